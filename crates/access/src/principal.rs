//! Reads the principal's name from a client certificate. By default the SPIFFE URI comes first, then the first DNS
//! name, then the common name.
//!
//! The certificate must already be verified; this module only reads it. A name is used unchanged except for the case of
//! DNS names, or rejected. Names are never cut or repaired, so two certificates cannot become one principal. The kind
//! is part of the principal. A common name that looks like a SPIFFE URI is rejected. A common name that looks like a
//! host name is not that host.

use std::fmt;
use std::sync::Arc;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

/// Longest SPIFFE ID, in bytes, by its standard.
const SPIFFE_BYTES_MAX: usize = 2_048;
/// Longest host name, in bytes, by RFC 1035.
const HOST_BYTES_MAX: usize = 253;
/// Longest common name, in characters, by RFC 5280.
const COMMON_NAME_MAX: usize = 64;
/// Maximum number of characters of a name that `Display` shows.
const SHOWN_MAX: usize = 128;

/// The certificate field that a name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrincipalKind {
    /// A URI that begins with `spiffe://`.
    Spiffe,
    /// A DNS name.
    Dns,
    /// The subject's common name.
    CommonName,
}

/// A client's authenticated name. Cheap to clone and safe to log: printable, and displayed with at most 128 characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    kind: PrincipalKind,
    name: Arc<str>,
}

/// A reason why a certificate names no principal. The client's certificate authority must issue another certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrincipalError {
    /// Not an X.509 certificate.
    #[error("the client certificate cannot be read")]
    NotACertificate,
    /// More than one SPIFFE URI. The standard requires exactly one.
    #[error("the client certificate has more than one SPIFFE URI")]
    Ambiguous,
    /// A SPIFFE URI that breaks the standard's rules.
    #[error("the client certificate's SPIFFE URI is malformed")]
    Spiffe,
    /// A DNS name that is a wildcard or malformed.
    #[error("the client certificate's DNS name is not a host name")]
    Dns,
    /// A common name that is too long, has forbidden characters, or looks like a SPIFFE URI.
    #[error("the client certificate's common name cannot be used")]
    CommonName,
    /// No name of an accepted kind.
    #[error("the client certificate has no name of a kind that is accepted here")]
    Nameless,
}

/// The accepted kinds of names, in order of precedence. Kinds that are left out are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity([Option<PrincipalKind>; 3]);

impl Default for Identity {
    /// Returns the order SPIFFE URI, DNS name, common name.
    fn default() -> Self {
        Self([Some(PrincipalKind::Spiffe), Some(PrincipalKind::Dns), Some(PrincipalKind::CommonName)])
    }
}

impl Identity {
    /// Parses the kinds as written in the configuration: `spiffe`, `dns` and `cn`. Returns `None` for an empty list, an
    /// unknown kind, or a kind that occurs twice.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let mut order = [None; 3];
        let mut count = 0;
        for name in names {
            let kind = match name {
                "spiffe" => PrincipalKind::Spiffe,
                "dns" => PrincipalKind::Dns,
                "cn" => PrincipalKind::CommonName,
                _ => return None,
            };
            if order.contains(&Some(kind)) {
                return None;
            }
            order[count] = Some(kind);
            count += 1;
        }
        (count > 0).then_some(Self(order))
    }
}

impl Principal {
    /// Returns the principal of a verified certificate in DER. The first accepted kind of name in the certificate
    /// counts. If that name is invalid, no other name is used instead.
    ///
    /// # Errors
    ///
    /// [`PrincipalError`] if the certificate has no usable name of an accepted kind.
    pub fn from_certificate(der: &[u8], identity: &Identity) -> Result<Self, PrincipalError> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| PrincipalError::NotACertificate)?;
        let names = certificate.subject_alternative_name().map_err(|_| PrincipalError::NotACertificate)?;
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        for kind in identity.0.into_iter().flatten() {
            let named = match kind {
                PrincipalKind::Spiffe => spiffe(names),
                PrincipalKind::Dns => dns(names),
                PrincipalKind::CommonName => common_name(&certificate),
            };
            if let Some(principal) = named? {
                return Ok(principal);
            }
        }
        Err(PrincipalError::Nameless)
    }

    /// Parses a principal as an operator writes it: a DNS name, a `spiffe://` URI, or `cn:` and a common name. Returns
    /// `None` if no certificate can contain that name.
    pub fn from_text(text: &str) -> Option<Self> {
        if is_spiffe_scheme(text) {
            is_spiffe_id(text).then(|| Self::new(PrincipalKind::Spiffe, text))
        } else if let Some(name) = text.strip_prefix("cn:") {
            is_common_name(name).then(|| Self::new(PrincipalKind::CommonName, name))
        } else {
            is_host_name(text).then(|| Self::new(PrincipalKind::Dns, &text.to_ascii_lowercase()))
        }
    }

    /// Formats the principal for [`Principal::from_text`]. Common names always carry `cn:`, since a common name can
    /// look like a DNS name.
    pub fn to_text(&self) -> String {
        match self.kind {
            PrincipalKind::Spiffe | PrincipalKind::Dns => self.as_str().to_owned(),
            PrincipalKind::CommonName => format!("cn:{}", self.name),
        }
    }
    fn new(kind: PrincipalKind, name: &str) -> Self {
        Self { kind, name: name.into() }
    }

    /// Returns the certificate field that the name comes from.
    pub fn kind(&self) -> PrincipalKind {
        self.kind
    }

    /// Returns the full name, at most 2,048 bytes, for policies and the audit log.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Principal {
    /// Writes the name, cut after 128 characters with `...`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => write!(f, "{}...", &self.name[..end]),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({self})", self.kind)
    }
}

fn spiffe(names: &[GeneralName<'_>]) -> Result<Option<Principal>, PrincipalError> {
    let mut uris = names.iter().filter_map(|name| match name {
        GeneralName::URI(uri) if is_spiffe_scheme(uri) => Some(*uri),
        _ => None,
    });
    let Some(uri) = uris.next() else { return Ok(None) };
    if uris.next().is_some() {
        return Err(PrincipalError::Ambiguous);
    }
    let usable = is_spiffe_id(uri).then(|| Principal::new(PrincipalKind::Spiffe, uri));
    usable.map(Some).ok_or(PrincipalError::Spiffe)
}

fn dns(names: &[GeneralName<'_>]) -> Result<Option<Principal>, PrincipalError> {
    let host = names.iter().find_map(|name| match name {
        GeneralName::DNSName(host) => Some(*host),
        _ => None,
    });
    let Some(host) = host else { return Ok(None) };
    // Host names are case-insensitive, so the principal is lower case.
    let usable = is_host_name(host).then(|| Principal::new(PrincipalKind::Dns, &host.to_ascii_lowercase()));
    usable.map(Some).ok_or(PrincipalError::Dns)
}

fn common_name(certificate: &X509Certificate<'_>) -> Result<Option<Principal>, PrincipalError> {
    let mut names = certificate.subject().iter_common_name();
    let Some(name) = names.next() else { return Ok(None) };
    let name = name.as_str().map_err(|_| PrincipalError::CommonName)?;
    let usable = names.next().is_none() && is_common_name(name);
    let usable = usable.then(|| Principal::new(PrincipalKind::CommonName, name));
    usable.map(Some).ok_or(PrincipalError::CommonName)
}

fn is_common_name(name: &str) -> bool {
    (1..=COMMON_NAME_MAX).contains(&name.chars().count())
        && name.chars().all(is_plain)
        && name.trim() == name
        && !is_spiffe_scheme(name)
}

/// Returns true for letters and digits of any script, and printable ASCII. Control characters, bidirectional overrides
/// and invisible spaces are excluded.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || c.is_ascii_graphic() || c == ' '
}

fn is_spiffe_scheme(uri: &str) -> bool {
    uri.get(..9).is_some_and(|scheme| scheme.eq_ignore_ascii_case("spiffe://"))
}

/// Checks the rules of the SPIFFE ID standard, section 2: a lower-case trust domain, then a path of plain, non-empty
/// segments.
fn is_spiffe_id(uri: &str) -> bool {
    let Some(rest) = uri.strip_prefix("spiffe://") else { return false };
    let mut parts = rest.split('/');
    let domain = parts.next().unwrap_or_default();
    let mut segments = parts.peekable();
    uri.len() <= SPIFFE_BYTES_MAX
        && (1..=255).contains(&domain.len())
        && domain.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'))
        && segments.peek().is_some()
        && segments.all(|segment| {
            !matches!(segment, "" | "." | "..")
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        })
}

/// Returns true if `host` is a host name: RFC 1035 labels of letters, digits, hyphens and underscores. Wildcards and
/// trailing dots are invalid.
pub fn is_host_name(host: &str) -> bool {
    (1..=HOST_BYTES_MAX).contains(&host.len())
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    /// Makes a self-signed certificate with exactly these names.
    fn certificate(common_name: Option<&str>, names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = names;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn named(der: &[u8]) -> Result<Principal, PrincipalError> {
        Principal::from_certificate(der, &Identity::default())
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    #[test]
    fn the_most_specific_name_wins() {
        use PrincipalKind::{CommonName, Dns, Spiffe};
        let cases = [
            (Some("cn"), vec![dns("a.example"), uri("spiffe://org/relay")], Spiffe, "spiffe://org/relay"),
            (Some("cn"), vec![uri("https://x"), dns("A.example"), dns("b.example")], Dns, "a.example"),
            (Some("relay 7"), vec![uri("https://x")], CommonName, "relay 7"),
            (Some("caf\u{e9}"), vec![], CommonName, "caf\u{e9}"),
            (None, vec![dns("only")], Dns, "only"),
        ];
        for (common_name, names, kind, name) in cases {
            let principal = named(&certificate(common_name, names)).unwrap();
            assert_eq!((principal.kind(), principal.as_str()), (kind, name));
        }
    }

    #[test]
    fn the_order_is_the_operators_and_a_kind_left_out_names_nobody() {
        use PrincipalError::{Dns, Nameless};
        let all = || certificate(Some("cn"), vec![dns("a.example"), uri("spiffe://org/relay")]);
        let broken = || certificate(Some("cn"), vec![dns("*.example"), uri("spiffe://org/relay")]);
        let cases = [
            (vec!["spiffe", "dns", "cn"], all(), Ok("spiffe://org/relay")),
            (vec!["cn", "dns", "spiffe"], all(), Ok("cn:cn")),
            (vec!["dns"], all(), Ok("a.example")),
            (vec!["cn"], all(), Ok("cn:cn")),
            (vec!["dns", "cn"], broken(), Err(Dns)),
            (vec!["spiffe"], broken(), Ok("spiffe://org/relay")),
            (vec!["cn", "dns"], broken(), Ok("cn:cn")),
            (vec!["spiffe"], certificate(Some("cn"), vec![dns("a.example")]), Err(Nameless)),
            (vec!["spiffe", "dns"], certificate(Some("cn"), vec![]), Err(Nameless)),
        ];
        for (order, der, expected) in cases {
            let identity = Identity::from_names(order.iter().copied()).unwrap();
            let named = Principal::from_certificate(&der, &identity).map(|principal| principal.to_text());
            assert_eq!(named.as_deref().map_err(|error| *error), expected, "{order:?}");
        }
        for none in [vec![], vec!["dns", "dns"], vec!["DNS"], vec!["spiffe", "dns", "cn", "cn"], vec!["ip"]] {
            assert_eq!(Identity::from_names(none.iter().copied()), None, "{none:?}");
        }
        assert_eq!(Identity::from_names(["spiffe", "dns", "cn"]), Some(Identity::default()));
    }

    #[test]
    fn an_operator_writes_only_what_a_certificate_could_say() {
        for text in ["relay.internal", "cn:relay 7", "cn:relay.internal", "spiffe://org/relay"] {
            assert_eq!(Principal::from_text(text).unwrap().to_text(), text);
        }
        assert_eq!(Principal::from_text("Relay.INTERNAL"), Principal::from_text("relay.internal"));
        assert_ne!(Principal::from_text("cn:relay"), Principal::from_text("relay"));
        for none in ["", "cn:", "cn: x", "cn:a\nb", "cn:spiffe://org/x", "a b", "*.x", "spiffe://org", "SPIFFE://org/x"]
        {
            assert_eq!(Principal::from_text(none), None, "{none}");
        }
    }

    #[test]
    fn names_that_could_be_mistaken_are_refused() {
        use PrincipalError::{Ambiguous, CommonName, Dns, Nameless, Spiffe};
        let long = format!("spiffe://org/{}", "a".repeat(2_048));
        let cases = [
            (None, vec![], Nameless),
            (None, vec![uri("https://example.org")], Nameless),
            (None, vec![uri("spiffe://a/x"), uri("spiffe://a/y")], Ambiguous),
            (Some("good"), vec![uri("spiffe://")], Spiffe),
            (Some("good"), vec![uri("spiffe://org")], Spiffe),
            (Some("good"), vec![uri("spiffe://Org/x")], Spiffe),
            (Some("good"), vec![uri("SPIFFE://org/x")], Spiffe),
            (Some("good"), vec![uri("spiffe://org//x")], Spiffe),
            (Some("good"), vec![uri("spiffe://org/x/")], Spiffe),
            (Some("good"), vec![uri("spiffe://org/../x")], Spiffe),
            (Some("good"), vec![uri("spiffe://org/x%20y")], Spiffe),
            (Some("good"), vec![uri(&long)], Spiffe),
            (Some("good"), vec![dns("*.example.org")], Dns),
            (Some("good"), vec![dns("a..b")], Dns),
            (Some("good"), vec![dns("-a")], Dns),
            (Some(""), vec![], CommonName),
            (Some(" x"), vec![], CommonName),
            (Some("a\nb"), vec![], CommonName),
            (Some("a\u{202e}b"), vec![], CommonName),
            (Some("a\u{200b}b"), vec![], CommonName),
            (Some("spiffe://org/relay"), vec![], CommonName),
            (Some(&*"x".repeat(65)), vec![], CommonName),
        ];
        for (common_name, names, expected) in cases {
            let case = format!("{common_name:?} {names:?}");
            let error = named(&certificate(common_name, names)).unwrap_err();
            assert_eq!(error, expected, "{case}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        let good = certificate(Some("cn"), vec![]);
        for bytes in [&b""[..], b"0", &good[..good.len() / 2], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(named(bytes), Err(PrincipalError::NotACertificate));
        }
    }

    #[test]
    fn a_long_name_is_whole_in_policies_and_cut_in_logs() {
        let id = format!("spiffe://org/{}", "a".repeat(1_000));
        let principal = named(&certificate(None, vec![uri(&id)])).unwrap();
        assert_eq!(principal.as_str(), id);
        assert_eq!(principal.to_string().chars().count(), SHOWN_MAX + 3);
        assert!(format!("{principal:?}").starts_with("Spiffe(spiffe://org/"));
    }

    #[test]
    fn the_same_name_of_another_kind_is_another_principal() {
        let host = named(&certificate(None, vec![dns("relay")])).unwrap();
        let common = named(&certificate(Some("relay"), vec![])).unwrap();
        assert_ne!(host, common);
    }
}
