//! Names of principals, from client certificates and from bearer tokens.
//!
//! Of a certificate, by default the SPIFFE URI comes first, then the first DNS name, then the common
//! name. Of a token, the name is a claim, after the name of the token's issuer. A token and a
//! certificate never name the same principal.
//!
//! The certificate must already be verified; this module only reads it. A name is used unchanged
//! except for the case of DNS names, or rejected. Names are never cut or repaired, so two
//! certificates cannot become one principal. The kind is part of the principal. A common name that
//! looks like a SPIFFE URI is rejected. A common name that looks like a host name is not that host.
//!
//! Every name of an accepted kind must be valid, also those that are not used: a certificate with a
//! name that this module cannot read is rejected, because other programs may read that name
//! differently.

use std::fmt;
use std::sync::Arc;

use x509_parser::asn1_rs::{Any, Class, Tag};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::X509Certificate;

/// Longest SPIFFE ID, in bytes, by its standard.
const SPIFFE_BYTES_MAX: usize = 2_048;
/// Longest host name, in bytes, by RFC 1035.
const HOST_BYTES_MAX: usize = 253;
/// Longest common name, in characters, by RFC 5280.
const COMMON_NAME_MAX: usize = 64;
/// Longest name of a token's issuer, in bytes. Names of settings have this limit.
const ISSUER_BYTES_MAX: usize = 64;
/// Longest issuer and claim together, in bytes: as long as a SPIFFE ID.
const TOKEN_NAME_BYTES_MAX: usize = SPIFFE_BYTES_MAX;
/// Precedes the name of a principal of a token, as operators write it.
const TOKEN_PREFIX: &str = "jwt:";
/// Tags of subject alternative names (RFC 5280, section 4.2.1.6). The parser gives names that are
/// not UTF-8 by tag.
const DNS_TAG: Tag = Tag(2);
const URI_TAG: Tag = Tag(6);
/// The last tag that RFC 5280 defines.
const LAST_TAG: Tag = Tag(8);
/// Letters (by Unicode) that have no visible form.
const INVISIBLE_LETTERS: [char; 4] = ['\u{115f}', '\u{1160}', '\u{3164}', '\u{ffa0}'];
/// Maximum number of characters of a name that `Display` shows.
const SHOWN_MAX: usize = 128;

/// The certificate field that a name comes from, or a bearer token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PrincipalKind {
    /// A URI that begins with `spiffe://`.
    Spiffe,
    /// A DNS name.
    Dns,
    /// The subject's common name.
    CommonName,
    /// The name of a token's issuer, a colon, and a claim of the token.
    Jwt,
}

/// A client's authenticated name. Cheap to clone and safe to log: printable, and displayed with at
/// most 128 characters.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Principal {
    kind: PrincipalKind,
    name: Arc<str>,
}

/// A reason why a certificate does not name a principal. The client's certificate authority must
/// issue another certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrincipalError {
    /// Not an X.509 certificate.
    #[error("the client certificate cannot be read")]
    NotACertificate,
    /// More than one SPIFFE URI. The standard requires exactly one.
    #[error("the client certificate has more than one SPIFFE URI")]
    Ambiguous,
    /// A SPIFFE URI that breaks the standard's rules.
    #[error("the client certificate has a malformed SPIFFE URI")]
    Spiffe,
    /// A DNS name that is a wildcard or malformed.
    #[error("the client certificate has a DNS name that is not a host name")]
    Dns,
    /// A common name that is too long, has forbidden characters, or looks like a SPIFFE URI; or
    /// several common names.
    #[error("the client certificate has several common names, or an invalid one")]
    CommonName,
    /// Subject alternative names that cannot be read, or several lists of them.
    #[error("the client certificate's subject alternative names cannot be read")]
    AlternativeNames,
    /// A URI that is malformed, of any scheme.
    #[error("the client certificate has a malformed URI")]
    Uri,
    /// No name of an accepted kind.
    #[error("the client certificate has no name of a kind in access.name_order of the engine")]
    Nameless,
}

/// The accepted kinds of names, in order of precedence. Kinds that are left out are not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity([Option<PrincipalKind>; 3]);

impl Default for Identity {
    /// Returns the order SPIFFE URI, DNS name, common name.
    fn default() -> Self {
        Self([
            Some(PrincipalKind::Spiffe),
            Some(PrincipalKind::Dns),
            Some(PrincipalKind::CommonName),
        ])
    }
}

impl Identity {
    /// Parses the kinds as written in the configuration: `spiffe`, `dns` and `cn`. Returns `None`
    /// for an empty list, an unknown kind, or a kind that occurs twice.
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
    /// Returns the principal of a verified certificate in DER: the name of the first accepted kind
    /// that the certificate has.
    ///
    /// # Errors
    ///
    /// [`PrincipalError`] if the certificate has no name of an accepted kind, or any name of an
    /// accepted kind is invalid.
    pub fn from_certificate(der: &[u8], identity: &Identity) -> Result<Self, PrincipalError> {
        let (rest, certificate) = x509_parser::parse_x509_certificate(der)
            .map_err(|_| PrincipalError::NotACertificate)?;
        if !rest.is_empty() {
            return Err(PrincipalError::NotACertificate);
        }
        let names = alternative_names(&certificate)?;

        let mut principal = None;
        for kind in identity.0.into_iter().flatten() {
            let named = match kind {
                PrincipalKind::Spiffe => spiffe(names),
                PrincipalKind::Dns => dns(names),
                PrincipalKind::CommonName => common_name(&certificate),
                // `from_names` does not accept this kind.
                PrincipalKind::Jwt => Ok(None),
            };
            let named = named?;
            principal = principal.or(named);
        }
        principal.ok_or(PrincipalError::Nameless)
    }

    /// Returns the principal that a verified token names. `issuer` is the name of the issuer in the
    /// settings, and `claim` the value of the claim that names the client. Returns `None` if one of
    /// them is empty, too long, or not of visible ASCII characters with single spaces between them.
    pub fn from_token(issuer: &str, claim: &str) -> Option<Self> {
        let name = format!("{issuer}:{claim}");
        is_token_name(&name)
            .then(|| Self::new(PrincipalKind::Jwt, &name))
            // A colon in the issuer would end its name at another place.
            .filter(|_| !issuer.contains(':'))
    }

    /// Parses a principal as an operator writes it: a DNS name, a `spiffe://` URI, `cn:` and a
    /// common name, or `jwt:ISSUER:CLAIM`. Returns `None` if no certificate and no token can contain
    /// that name.
    pub fn from_text(text: &str) -> Option<Self> {
        if is_spiffe_scheme(text) {
            is_spiffe_id(text).then(|| Self::new(PrincipalKind::Spiffe, text))
        } else if let Some(name) = text.strip_prefix("cn:") {
            is_common_name(name).then(|| Self::new(PrincipalKind::CommonName, name))
        } else if let Some(name) = text.strip_prefix(TOKEN_PREFIX) {
            is_token_name(name).then(|| Self::new(PrincipalKind::Jwt, name))
        } else {
            is_host_name(text).then(|| Self::new(PrincipalKind::Dns, &text.to_ascii_lowercase()))
        }
    }

    /// Formats the principal for [`Principal::from_text`]. Common names always carry `cn:`, and names
    /// of tokens `jwt:`, since both can look like a name of another kind.
    pub fn to_text(&self) -> String {
        match self.kind {
            PrincipalKind::Spiffe | PrincipalKind::Dns => self.as_str().to_owned(),
            PrincipalKind::CommonName => format!("cn:{}", self.name),
            PrincipalKind::Jwt => format!("{TOKEN_PREFIX}{}", self.name),
        }
    }

    fn new(kind: PrincipalKind, name: &str) -> Self {
        Self {
            kind,
            name: name.into(),
        }
    }

    /// Returns the source of the name.
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

/// Returns the subject alternative names of a certificate, which is an empty list without the
/// extension.
fn alternative_names<'c>(
    certificate: &'c X509Certificate<'_>,
) -> Result<&'c [GeneralName<'c>], PrincipalError> {
    let extension = certificate
        .subject_alternative_name()
        .map_err(|_| PrincipalError::AlternativeNames)?;
    let Some(extension) = extension else {
        return Ok(&[]);
    };
    let names = &extension.value.general_names;
    if names.is_empty() || names.iter().any(has_undefined_tag) {
        return Err(PrincipalError::AlternativeNames);
    }
    Ok(names)
}

/// Returns true for a name with a tag that RFC 5280 does not define.
fn has_undefined_tag(name: &GeneralName<'_>) -> bool {
    matches!(name, GeneralName::Invalid(tag, _) if tag.0 > LAST_TAG.0)
}

fn spiffe(names: &[GeneralName<'_>]) -> Result<Option<Principal>, PrincipalError> {
    let mut found = None;
    for name in names {
        let uri = match name {
            GeneralName::URI(uri) if is_uri(uri) => *uri,
            GeneralName::URI(_) | GeneralName::Invalid(URI_TAG, _) => {
                return Err(PrincipalError::Uri);
            }
            _ => continue,
        };
        if !is_spiffe_scheme(uri) {
            continue;
        }
        if !is_spiffe_id(uri) {
            return Err(PrincipalError::Spiffe);
        }
        if found
            .replace(Principal::new(PrincipalKind::Spiffe, uri))
            .is_some()
        {
            return Err(PrincipalError::Ambiguous);
        }
    }
    Ok(found)
}

fn dns(names: &[GeneralName<'_>]) -> Result<Option<Principal>, PrincipalError> {
    let mut found = None;
    for name in names {
        let host = match name {
            GeneralName::DNSName(host) if is_host_name(host) => *host,
            GeneralName::DNSName(_) | GeneralName::Invalid(DNS_TAG, _) => {
                return Err(PrincipalError::Dns);
            }
            _ => continue,
        };
        // Host names are case-insensitive, so the principal is lower case.
        found = found.or_else(|| {
            Some(Principal::new(
                PrincipalKind::Dns,
                &host.to_ascii_lowercase(),
            ))
        });
    }
    Ok(found)
}

fn common_name(certificate: &X509Certificate<'_>) -> Result<Option<Principal>, PrincipalError> {
    let mut names = certificate.subject().iter_common_name();
    let Some(name) = names.next() else {
        return Ok(None);
    };
    let text = common_name_text(name.attr_value()).filter(|text| is_common_name(text));
    match (text, names.next()) {
        (Some(text), None) => Ok(Some(Principal::new(PrincipalKind::CommonName, text))),
        _ => Err(PrincipalError::CommonName),
    }
}

/// Returns the text of an attribute whose type leaves no choice of how to decode it: a UTF8String,
/// or another string type with ASCII alone. `None` for the others, such as TeletexString, BMPString
/// and UniversalString.
fn common_name_text<'c>(value: &Any<'c>) -> Option<&'c str> {
    if value.class() != Class::Universal || value.header.is_constructed() {
        return None;
    }
    let text = std::str::from_utf8(value.data).ok()?;
    match value.tag() {
        Tag::Utf8String => Some(text),
        Tag::PrintableString | Tag::Ia5String | Tag::NumericString => {
            text.is_ascii().then_some(text)
        }
        _ => None,
    }
}

fn is_common_name(name: &str) -> bool {
    (1..=COMMON_NAME_MAX).contains(&name.chars().count())
        && name.chars().all(is_plain)
        && name.trim() == name
        && !is_spiffe_scheme(name)
}

/// Returns true for an issuer, a colon, and a claim. The issuer's name has no colon, so the first
/// colon ends it. Claims are ASCII, because equal-looking letters of other scripts would make
/// different principals.
fn is_token_name(name: &str) -> bool {
    let Some((issuer, claim)) = name.split_once(':') else {
        return false;
    };
    (1..=ISSUER_BYTES_MAX).contains(&issuer.len())
        && issuer
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !claim.is_empty()
        && name.len() <= TOKEN_NAME_BYTES_MAX
        && claim
            .split(' ')
            .all(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic()))
}

/// Returns true for letters and digits of any script, and printable ASCII. Control characters,
/// bidirectional overrides and invisible characters are excluded.
fn is_plain(c: char) -> bool {
    (c.is_alphanumeric() && !INVISIBLE_LETTERS.contains(&c)) || c.is_ascii_graphic() || c == ' '
}

/// Returns true if `uri` is an absolute URI of visible ASCII. The further form depends on the
/// scheme and is not checked.
fn is_uri(uri: &str) -> bool {
    let Some((scheme, rest)) = uri.split_once(':') else {
        return false;
    };
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'))
        && !rest.is_empty()
        && rest.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_spiffe_scheme(uri: &str) -> bool {
    uri.split_once(':')
        .is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("spiffe"))
}

/// Checks the rules of the SPIFFE ID standard, section 2: a lower-case trust domain, then a path of
/// plain, non-empty segments.
fn is_spiffe_id(uri: &str) -> bool {
    let Some(rest) = uri.strip_prefix("spiffe://") else {
        return false;
    };
    let mut parts = rest.split('/');
    let domain = parts.next().unwrap_or_default();
    let mut segments = parts.peekable();
    uri.len() <= SPIFFE_BYTES_MAX
        && (1..=255).contains(&domain.len())
        && domain
            .bytes()
            .all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-' | b'_'))
        && segments.peek().is_some()
        && segments.all(|segment| {
            !matches!(segment, "" | "." | "..")
                && segment
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
        })
}

/// Returns true if `host` is a host name: RFC 1035 labels of letters, digits, hyphens and
/// underscores. Wildcards and trailing dots are invalid.
pub fn is_host_name(host: &str) -> bool {
    (1..=HOST_BYTES_MAX).contains(&host.len())
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::strategy::Strategy as _;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    /// Makes a self-signed certificate with exactly these names.
    fn certificate(common_name: Option<&str>, names: Vec<SanType>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        if let Some(name) = common_name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.subject_alt_names = names;
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec()
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
            (
                Some("cn"),
                vec![dns("a.example"), uri("spiffe://org/relay")],
                Spiffe,
                "spiffe://org/relay",
            ),
            (
                Some("cn"),
                vec![uri("https://x"), dns("A.example"), dns("b.example")],
                Dns,
                "a.example",
            ),
            (
                Some("relay 7"),
                vec![uri("https://x")],
                CommonName,
                "relay 7",
            ),
            (Some("caf\u{e9}"), vec![], CommonName, "caf\u{e9}"),
            (None, vec![dns("only")], Dns, "only"),
        ];
        for (common_name, names, kind, name) in cases {
            let principal = named(&certificate(common_name, names)).unwrap();
            assert_eq!((principal.kind(), principal.as_str()), (kind, name));
        }
    }

    #[test]
    fn identity_follows_the_configured_order_and_kinds() {
        use PrincipalError::{Dns, Nameless};
        let all = || {
            certificate(
                Some("cn"),
                vec![dns("a.example"), uri("spiffe://org/relay")],
            )
        };
        let broken = || {
            certificate(
                Some("cn"),
                vec![dns("*.example"), uri("spiffe://org/relay")],
            )
        };
        let cases = [
            (vec!["spiffe", "dns", "cn"], all(), Ok("spiffe://org/relay")),
            (vec!["cn", "dns", "spiffe"], all(), Ok("cn:cn")),
            (vec!["dns"], all(), Ok("a.example")),
            (vec!["cn"], all(), Ok("cn:cn")),
            (vec!["dns", "cn"], broken(), Err(Dns)),
            (vec!["spiffe"], broken(), Ok("spiffe://org/relay")),
            (vec!["cn", "dns"], broken(), Err(Dns)),
            (vec!["cn", "spiffe"], broken(), Ok("cn:cn")),
            (
                vec!["spiffe"],
                certificate(Some("cn"), vec![dns("a.example")]),
                Err(Nameless),
            ),
            (
                vec!["spiffe", "dns"],
                certificate(Some("cn"), vec![]),
                Err(Nameless),
            ),
        ];
        for (order, der, expected) in cases {
            let identity = Identity::from_names(order.iter().copied()).unwrap();
            let named =
                Principal::from_certificate(&der, &identity).map(|principal| principal.to_text());
            assert_eq!(
                named.as_deref().map_err(|error| *error),
                expected,
                "{order:?}"
            );
        }
        for none in [
            vec![],
            vec!["dns", "dns"],
            vec!["DNS"],
            vec!["spiffe", "dns", "cn", "cn"],
            vec!["ip"],
        ] {
            assert_eq!(Identity::from_names(none.iter().copied()), None, "{none:?}");
        }
        assert_eq!(
            Identity::from_names(["spiffe", "dns", "cn"]),
            Some(Identity::default())
        );
    }

    #[test]
    fn operator_names_can_occur_in_certificates() {
        for text in [
            "relay.internal",
            "cn:relay 7",
            "cn:relay.internal",
            "spiffe://org/relay",
        ] {
            assert_eq!(Principal::from_text(text).unwrap().to_text(), text);
        }
        assert_eq!(
            Principal::from_text("Relay.INTERNAL"),
            Principal::from_text("relay.internal")
        );
        assert_ne!(
            Principal::from_text("cn:relay"),
            Principal::from_text("relay")
        );
        for none in [
            "",
            "cn:",
            "cn: x",
            "cn:a\nb",
            "cn:spiffe://org/x",
            "a b",
            "*.x",
            "spiffe://org",
            "SPIFFE://org/x",
        ] {
            assert_eq!(Principal::from_text(none), None, "{none}");
        }
    }

    #[test]
    fn ambiguous_names_are_rejected() {
        use PrincipalError::{Ambiguous, CommonName, Dns, Nameless, Spiffe};
        let long = format!("spiffe://org/{}", "a".repeat(2_048));
        let cases = [
            (None, vec![], Nameless),
            (None, vec![uri("https://example.org")], Nameless),
            (
                None,
                vec![uri("spiffe://a/x"), uri("spiffe://a/y")],
                Ambiguous,
            ),
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
        for bytes in [
            &b""[..],
            b"0",
            &good[..good.len() / 2],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
        ] {
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

    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;
    const EMAIL: u8 = 0x81;
    const DNS: u8 = 0x82;
    const URI: u8 = 0x86;
    const IP: u8 = 0x87;
    const OTHER: u8 = 0xa0;

    /// A name of a certificate: its ASN.1 tag and content.
    type RawName = (u8, Vec<u8>);

    fn raw(tag: u8, content: impl AsRef<[u8]>) -> RawName {
        (tag, content.as_ref().to_vec())
    }

    fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        let header = match content.len() {
            0..=127 => vec![tag, length[1]],
            _ => vec![tag, 0x82, length[0], length[1]],
        };
        [header, content.to_vec()].concat()
    }

    /// Encodes the content of a subjectAltName extension.
    fn alternative(names: &[RawName]) -> Vec<u8> {
        let names: Vec<u8> = names
            .iter()
            .flat_map(|(tag, content)| tlv(*tag, content))
            .collect();
        tlv(0x30, &names)
    }

    /// Makes a self-signed certificate with these common names and subjectAltName extensions,
    /// whatever they contain. The signature does not hold, which only the TLS library checks.
    fn raw_certificate(common_names: &[RawName], extensions: &[Vec<u8>]) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let placeholder =
            |at: usize, length: usize| format!("{}{}", ["P", "Q"][at], "#".repeat(length - 1));
        for (at, (_, content)) in common_names.iter().enumerate() {
            let kind = [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])][at].clone();
            params
                .distinguished_name
                .push(kind, placeholder(at, content.len()));
        }
        let extension = |content: &Vec<u8>| {
            rcgen::CustomExtension::from_oid_content(&[2, 5, 29, 17], content.clone())
        };
        params.custom_extensions = extensions.iter().map(extension).collect();
        let mut der = params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec();

        for (at, (tag, content)) in common_names.iter().enumerate() {
            let made = tlv(UTF8, placeholder(at, content.len()).as_bytes());
            // It is the issuer's name, too.
            for from in 0..der.len() - made.len() {
                if der[from..].starts_with(&made) {
                    der[from..from + made.len()].copy_from_slice(&tlv(*tag, content));
                }
            }
        }
        der
    }

    #[test]
    fn certificate_with_invalid_name_of_a_counted_kind_is_rejected() {
        use PrincipalError::{AlternativeNames, Ambiguous, CommonName, Dns, Spiffe, Uri};
        let utf8 = |text: &str| raw(UTF8, text);
        let dns = |text: &str| raw(DNS, text);
        let uri = |text: &str| raw(URI, text);
        let id = || uri("spiffe://org/relay");
        let relay = || vec![utf8("relay")];
        let utf16 = |text: &str| {
            text.encode_utf16()
                .flat_map(u16::to_be_bytes)
                .collect::<Vec<_>>()
        };
        let utf32 = |text: &str| {
            text.chars()
                .flat_map(|c| u32::from(c).to_be_bytes())
                .collect::<Vec<_>>()
        };
        let long = format!("{}.{0}.{0}.{0}", "a".repeat(63));
        // Each certificate also has a valid name that could be used instead.
        for (common_names, names, expected) in [
            (relay(), vec![raw(DNS, b"rel\xe9y.example")], Dns),
            (relay(), vec![dns("rel\u{e9}y.example")], Dns),
            (relay(), vec![dns("relay\0.example")], Dns),
            (relay(), vec![dns("relay.example\0")], Dns),
            (relay(), vec![dns("")], Dns),
            (relay(), vec![dns(" relay")], Dns),
            (relay(), vec![dns("relay ")], Dns),
            (relay(), vec![dns("relay\n")], Dns),
            (relay(), vec![dns("relay.example.")], Dns),
            (relay(), vec![dns(&long)], Dns),
            (relay(), vec![raw(0xa2, tlv(0x16, b"relay"))], Dns),
            (relay(), vec![dns("relay"), dns("*.example")], Dns),
            (relay(), vec![dns("relay"), raw(DNS, b"\xff")], Dns),
            (relay(), vec![id(), dns("*.example")], Dns),
            (relay(), vec![id(), raw(DNS, b"\xff\xfe")], Dns),
            (
                relay(),
                vec![dns("relay"), raw(URI, b"spiffe://org/rel\xe9y")],
                Uri,
            ),
            (relay(), vec![id(), raw(URI, b"\xff")], Uri),
            (
                relay(),
                vec![dns("relay"), uri("spiffe://org/rel\u{e9}y")],
                Uri,
            ),
            (relay(), vec![dns("relay"), uri("https://rel\u{e9}y")], Uri),
            (
                relay(),
                vec![dns("relay"), uri("spiffe://org/relay\0")],
                Uri,
            ),
            (relay(), vec![dns("relay"), uri(" spiffe://org/relay")], Uri),
            (relay(), vec![dns("relay"), uri("\u{1}https://x")], Uri),
            (relay(), vec![dns("relay"), uri("")], Uri),
            (relay(), vec![dns("relay"), uri("relay")], Uri),
            (relay(), vec![dns("relay"), uri("://relay")], Uri),
            (
                relay(),
                vec![dns("relay"), raw(0xa6, tlv(0x16, b"spiffe://org/relay"))],
                Uri,
            ),
            (relay(), vec![dns("relay"), uri("spiffe:org/relay")], Spiffe),
            (
                relay(),
                vec![dns("relay"), uri("SPIFFE:/org/relay")],
                Spiffe,
            ),
            (relay(), vec![dns("relay"), id(), id()], Ambiguous),
            (
                vec![utf8("relay"), utf8("other")],
                vec![id(), dns("relay")],
                CommonName,
            ),
            (
                vec![utf8("relay"), utf8("relay")],
                vec![dns("relay")],
                CommonName,
            ),
            (vec![utf8("relay ")], vec![dns("relay")], CommonName),
            (vec![utf8("re\0lay")], vec![dns("relay")], CommonName),
            (vec![utf8("re\u{3164}lay")], vec![dns("relay")], CommonName),
            (vec![utf8("spiffe:org")], vec![dns("relay")], CommonName),
            (vec![utf8(&"x".repeat(65))], vec![dns("relay")], CommonName),
            (vec![raw(UTF8, b"rel\xe9y")], vec![dns("relay")], CommonName),
            (
                vec![raw(PRINTABLE, "rel\u{e9}y")],
                vec![dns("relay")],
                CommonName,
            ),
            (
                vec![raw(0x16, "rel\u{e9}y")],
                vec![dns("relay")],
                CommonName,
            ),
            (vec![raw(0x14, b"relay")], vec![dns("relay")], CommonName),
            (
                vec![raw(0x1e, utf16("relay"))],
                vec![dns("relay")],
                CommonName,
            ),
            (
                vec![raw(0x1c, utf32("relay"))],
                vec![dns("relay")],
                CommonName,
            ),
            (vec![raw(0x04, b"relay")], vec![dns("relay")], CommonName),
            (vec![raw(0x8c, b"relay")], vec![dns("relay")], CommonName),
            (
                vec![raw(0x2c, tlv(UTF8, b"relay"))],
                vec![dns("relay")],
                CommonName,
            ),
            (
                relay(),
                vec![dns("relay"), raw(0x89, b"x")],
                AlternativeNames,
            ),
            (
                relay(),
                vec![dns("relay"), raw(0x0c, b"x")],
                AlternativeNames,
            ),
            (relay(), vec![], AlternativeNames),
        ] {
            let named = named(&raw_certificate(&common_names, &[alternative(&names)]));
            assert_eq!(named, Err(expected), "{common_names:x?} {names:x?}");
        }

        let good = alternative(&[dns("relay")]);
        for extensions in [
            vec![good.clone(); 2],
            vec![good[..good.len() - 1].to_vec()],
            vec![vec![]],
        ] {
            let named = named(&raw_certificate(&relay(), &extensions));
            assert_eq!(named, Err(AlternativeNames), "{extensions:x?}");
        }
        let followed = [raw_certificate(&relay(), &[good]), vec![0]].concat();
        assert_eq!(named(&followed), Err(PrincipalError::NotACertificate));
    }

    #[test]
    fn names_of_kinds_that_do_not_count_are_ignored() {
        let (utf8, dns) = (|text: &str| raw(UTF8, text), |text: &str| raw(DNS, text));
        let upn = [
            tlv(0x06, &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 20, 2, 3]),
            tlv(0xa0, &tlv(UTF8, b"root")),
        ]
        .concat();
        let id = || raw(URI, "spiffe://org/relay");
        let all = ["spiffe", "dns", "cn"];
        for (order, common_names, names, expected) in [
            (
                &all[..],
                vec![],
                vec![dns("relay"), raw(EMAIL, b"\xff@\0")],
                Ok("relay"),
            ),
            (
                &all,
                vec![],
                vec![dns("relay"), raw(IP, b"12345")],
                Ok("relay"),
            ),
            (
                &all,
                vec![],
                vec![raw(OTHER, &upn), dns("relay")],
                Ok("relay"),
            ),
            (
                &all,
                vec![],
                vec![raw(OTHER, b"\xff"), dns("relay")],
                Ok("relay"),
            ),
            (
                &all,
                vec![],
                vec![raw(OTHER, &upn)],
                Err(PrincipalError::Nameless),
            ),
            (
                &all,
                vec![raw(PRINTABLE, b"relay 7")],
                vec![raw(URI, "urn:x:y")],
                Ok("cn:relay 7"),
            ),
            (
                &all,
                vec![utf8("relay")],
                vec![id(), dns("relay"), dns("RELAY.example")],
                Ok("spiffe://org/relay"),
            ),
            (
                &["spiffe"],
                vec![raw(0x1e, b"\0r")],
                vec![id(), raw(DNS, b"\xff")],
                Ok("spiffe://org/relay"),
            ),
            (
                &["dns"],
                vec![utf8("")],
                vec![raw(URI, b"\xff"), dns("relay")],
                Ok("relay"),
            ),
            (
                &["cn"],
                vec![utf8("relay")],
                vec![raw(URI, b"\xff"), dns("*")],
                Ok("cn:relay"),
            ),
            (
                &["cn", "dns"],
                vec![utf8("relay")],
                vec![raw(URI, b"\xff"), dns("other")],
                Ok("cn:relay"),
            ),
        ] {
            // A placeholder has one character at least.
            let common_names: Vec<RawName> = common_names
                .into_iter()
                .filter(|(_, name)| !name.is_empty())
                .collect();
            let der = raw_certificate(&common_names, &[alternative(&names)]);
            let identity = Identity::from_names(order.iter().copied()).unwrap();
            let named =
                Principal::from_certificate(&der, &identity).map(|principal| principal.to_text());
            assert_eq!(
                named.as_deref().map_err(|error| *error),
                expected,
                "{order:?} {common_names:x?} {names:x?}"
            );
        }
    }

    #[test]
    fn principals_of_tokens_are_apart_from_those_of_certificates() {
        let longest = "x".repeat(TOKEN_NAME_BYTES_MAX - "k8s:".len());
        let longer = format!("{longest}x");
        let long_issuer = "i".repeat(ISSUER_BYTES_MAX + 1);
        for (issuer, claim, expected) in [
            ("k8s", "relay", Some("jwt:k8s:relay")),
            (
                "k8s",
                "system:serviceaccount:shop:web",
                Some("jwt:k8s:system:serviceaccount:shop:web"),
            ),
            (
                "spire",
                "spiffe://org/relay",
                Some("jwt:spire:spiffe://org/relay"),
            ),
            (
                "ci",
                "repo:org/x:Production 1",
                Some("jwt:ci:repo:org/x:Production 1"),
            ),
            ("k8s", "cn:relay", Some("jwt:k8s:cn:relay")),
            ("k8s", &longest, Some(&*format!("jwt:k8s:{longest}"))),
            ("k8s", &longer, None),
            (&long_issuer, "relay", None),
            ("", "relay", None),
            ("k8s", "", None),
            ("k:8s", "relay", None),
            ("k 8s", "relay", None),
            ("k8s", " relay", None),
            ("k8s", "relay ", None),
            ("k8s", "re  lay", None),
            ("k8s", "re\nlay", None),
            ("k8s", "re\0lay", None),
            ("k8s", "re\u{7f}lay", None),
            ("k8s", "rel\u{e9}y", None),
            ("k8s", "re\u{202e}lay", None),
        ] {
            let principal = Principal::from_token(issuer, claim);
            let text = principal.as_ref().map(Principal::to_text);
            assert_eq!(text.as_deref(), expected, "{issuer:?} {claim:?}");
            if let Some(text) = text {
                assert_eq!(Principal::from_text(&text), principal, "{text}");
            }
        }
        for text in ["jwt:", "jwt:k8s", "jwt:k8s:", "jwt::relay", "JWT:k8s:relay"] {
            assert_eq!(Principal::from_text(text), None, "{text}");
        }
        let token = Principal::from_token("k8s", "relay").unwrap();
        for text in ["cn:k8s:relay", "relay"] {
            assert_ne!(Principal::from_text(text).unwrap(), token, "{text}");
        }
        assert_eq!(Identity::from_names(["jwt"]), None);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

        /// A simple model: the first valid name of the first kind, and nothing if any name of a
        /// kind that counts is invalid.
        #[test]
        fn certificate_with_invalid_counted_name_has_no_principal(
            picked in proptest::sample::subsequence((0..22_usize).collect::<Vec<_>>(), 0..5).prop_shuffle(),
            common_name in 0..5_usize,
            order in proptest::sample::subsequence(vec!["spiffe", "dns", "cn"], 1..=3).prop_shuffle(),
        ) {
            // The kind of each name, and the principal that it makes if it is valid.
            let alternatives: [(&str, RawName, Option<&str>); 22] = [
                ("dns", raw(DNS, "relay"), Some("relay")),
                ("dns", raw(DNS, "Other.example"), Some("other.example")),
                ("dns", raw(DNS, "*.example"), None),
                ("dns", raw(DNS, b"\xff"), None),
                ("dns", raw(DNS, "re\0lay"), None),
                ("dns", raw(DNS, ""), None),
                ("dns", raw(DNS, "relay "), None),
                ("dns", raw(DNS, "a".repeat(64)), None),
                ("spiffe", raw(URI, "spiffe://org/relay"), Some("spiffe://org/relay")),
                ("spiffe", raw(URI, "spiffe://org/other"), Some("spiffe://org/other")),
                ("spiffe", raw(URI, b"spiffe://org/\xff"), None),
                ("spiffe", raw(URI, "Spiffe://org/relay"), None),
                ("spiffe", raw(URI, "spiffe://org"), None),
                ("spiffe", raw(URI, "\tspiffe://org/relay"), None),
                ("spiffe", raw(URI, "spiffe:relay"), None),
                ("", raw(URI, "https://example.org"), None),
                ("", raw(EMAIL, "a@example.org"), None),
                ("", raw(EMAIL, b"\xff"), None),
                ("", raw(IP, [127, 0, 0, 1]), None),
                ("", raw(IP, [1]), None),
                ("", raw(OTHER, b"\xff"), None),
                ("", raw(0x88, [0x2a, 3]), None),
            ];
            let common_names: [&[(RawName, Option<&str>)]; 5] = [
                &[],
                &[(raw(UTF8, "Relay 7"), Some("cn:Relay 7"))],
                &[(raw(UTF8, b"\xff"), None)],
                &[(raw(0x1e, b"\0r"), None)],
                &[(raw(UTF8, "a"), None), (raw(UTF8, "b"), None)],
            ];

            let names: Vec<_> = picked.iter().map(|at| &alternatives[*at]).collect();
            let mut expected: Option<Result<&str, ()>> = None;
            for kind in &order {
                let of_kind: Vec<Option<&str>> = match *kind {
                    "cn" => common_names[common_name].iter().map(|(_, name)| *name).collect(),
                    _ => names.iter().filter(|(of, _, _)| of == kind).map(|(_, _, name)| *name).collect(),
                };
                let is_ambiguous = *kind == "spiffe" && of_kind.len() > 1;
                if is_ambiguous || of_kind.iter().any(Option::is_none) {
                    expected = Some(Err(()));
                    break;
                }
                expected = expected.or(of_kind.first().map(|name| Ok(name.unwrap())));
            }

            let encoded: Vec<RawName> = names.iter().map(|(_, name, _)| name.clone()).collect();
            let extensions = if encoded.is_empty() { vec![] } else { vec![alternative(&encoded)] };
            let common: Vec<RawName> = common_names[common_name].iter().map(|(name, _)| name.clone()).collect();
            let identity = Identity::from_names(order.iter().copied()).unwrap();
            let named = Principal::from_certificate(&raw_certificate(&common, &extensions), &identity);
            let text = named.as_ref().map(Principal::to_text);
            proptest::prop_assert_eq!(text.as_deref().map_err(|_| ()), expected.unwrap_or(Err(())), "{:?}", named);
        }
    }
}
