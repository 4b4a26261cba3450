//! Who a client certificate names: its SPIFFE URI, else its first DNS name, else its common name.
//!
//! The certificate must have been verified before; this only reads it. A name is taken exactly or refused, never cut or
//! repaired, so that two certificates cannot become one principal. The kind is part of the principal: a common name
//! spelled like a SPIFFE URI is refused, and one spelled like a host name is still not that host.

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
/// Longest part of a name that is shown, in characters.
const SHOWN_MAX: usize = 128;

/// Which field of the certificate a name comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrincipalKind {
    /// A URI that begins with `spiffe://`.
    Spiffe,
    /// A DNS name.
    Dns,
    /// The subject's common name.
    CommonName,
}

/// The caller's identity. Cheap to clone, safe to log: printable, and shown at most 128 characters long.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    kind: PrincipalKind,
    name: Arc<str>,
}

/// Why a certificate names nobody. The peer's authority has to issue another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrincipalError {
    /// Not an X.509 certificate.
    #[error("the client certificate cannot be read")]
    NotACertificate,
    /// More than one SPIFFE URI; the standard wants exactly one.
    #[error("the client certificate has more than one SPIFFE URI")]
    Ambiguous,
    /// A SPIFFE URI that breaks the standard's rules.
    #[error("the client certificate's SPIFFE URI is malformed")]
    Spiffe,
    /// A DNS name that is a wildcard or malformed.
    #[error("the client certificate's DNS name is not a host name")]
    Dns,
    /// A common name with control characters, too long, or dressed up as a URI.
    #[error("the client certificate's common name cannot be used")]
    CommonName,
    /// No SPIFFE URI, DNS name or common name.
    #[error("the client certificate has no SPIFFE URI, DNS name or common name")]
    Nameless,
}

impl Principal {
    /// The principal of a verified certificate, DER.
    ///
    /// # Errors
    ///
    /// The certificate names nobody, or not in a way that can be told apart from others.
    pub fn from_certificate(der: &[u8]) -> Result<Self, PrincipalError> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).map_err(|_| PrincipalError::NotACertificate)?;
        let names = certificate.subject_alternative_name().map_err(|_| PrincipalError::NotACertificate)?;
        let names = names.map_or(&[][..], |names| &names.value.general_names);
        let mut spiffe = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) if is_spiffe_scheme(uri) => Some(*uri),
            _ => None,
        });
        if let Some(uri) = spiffe.next() {
            if spiffe.next().is_some() {
                return Err(PrincipalError::Ambiguous);
            }
            return is_spiffe_id(uri).then(|| Self::new(PrincipalKind::Spiffe, uri)).ok_or(PrincipalError::Spiffe);
        }
        let dns = names.iter().find_map(|name| match name {
            GeneralName::DNSName(host) => Some(*host),
            _ => None,
        });
        match dns {
            // Host names are the same in any case, so the principal is, too.
            Some(host) if is_host_name(host) => Ok(Self::new(PrincipalKind::Dns, &host.to_ascii_lowercase())),
            Some(_) => Err(PrincipalError::Dns),
            None => common_name(&certificate),
        }
    }

    pub(crate) fn new(kind: PrincipalKind, name: &str) -> Self {
        Self { kind, name: name.into() }
    }

    /// Which field of the certificate the name comes from.
    pub fn kind(&self) -> PrincipalKind {
        self.kind
    }

    /// The whole name, at most 2,048 bytes, for policies and the audit trail.
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Principal {
    /// The name, cut at 128 characters with `...`.
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

fn common_name(certificate: &X509Certificate<'_>) -> Result<Principal, PrincipalError> {
    let mut names = certificate.subject().iter_common_name();
    let name = names.next().ok_or(PrincipalError::Nameless)?;
    let name = name.as_str().map_err(|_| PrincipalError::CommonName)?;
    let usable = names.next().is_none()
        && (1..=COMMON_NAME_MAX).contains(&name.chars().count())
        && name.chars().all(is_plain)
        && name.trim() == name
        && !is_spiffe_scheme(name);
    usable.then(|| Principal::new(PrincipalKind::CommonName, name)).ok_or(PrincipalError::CommonName)
}

/// Letters and digits of any script, and printable ASCII. No control, no bidirectional override, no invisible space.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || c.is_ascii_graphic() || c == ' '
}

fn is_spiffe_scheme(uri: &str) -> bool {
    uri.get(..9).is_some_and(|scheme| scheme.eq_ignore_ascii_case("spiffe://"))
}

/// The SPIFFE ID standard, section 2: lower-case trust domain, then a path of plain, non-empty segments.
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

/// RFC 1035 labels of letters, digits and hyphens. No wildcard, no trailing dot.
pub(super) fn is_host_name(host: &str) -> bool {
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

    /// A self-signed certificate with exactly these names.
    fn certificate(common_name: Option<&str>, names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = names;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
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
            let principal = Principal::from_certificate(&certificate(common_name, names)).unwrap();
            assert_eq!((principal.kind(), principal.as_str()), (kind, name));
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
            let error = Principal::from_certificate(&certificate(common_name, names)).unwrap_err();
            assert_eq!(error, expected, "{case}");
        }
    }

    #[test]
    fn bytes_that_are_no_certificate_are_refused() {
        let good = certificate(Some("cn"), vec![]);
        for bytes in [&b""[..], b"0", &good[..good.len() / 2], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(Principal::from_certificate(bytes), Err(PrincipalError::NotACertificate));
        }
    }

    #[test]
    fn a_long_name_is_whole_in_policies_and_cut_in_logs() {
        let id = format!("spiffe://org/{}", "a".repeat(1_000));
        let principal = Principal::from_certificate(&certificate(None, vec![uri(&id)])).unwrap();
        assert_eq!(principal.as_str(), id);
        assert_eq!(principal.to_string().chars().count(), SHOWN_MAX + 3);
        assert!(format!("{principal:?}").starts_with("Spiffe(spiffe://org/"));
    }

    #[test]
    fn the_same_name_of_another_kind_is_another_principal() {
        let host = Principal::from_certificate(&certificate(None, vec![dns("relay")])).unwrap();
        let common = Principal::from_certificate(&certificate(Some("relay"), vec![])).unwrap();
        assert_ne!(host, common);
    }
}
