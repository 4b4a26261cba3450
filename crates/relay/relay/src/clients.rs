//! Authentication of clients: by certificate, by token, or none.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION};
use http::{HeaderMap, HeaderValue};
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::Tag;
use x509_parser::extensions::GeneralName;

use crate::error::{Failure, Reason};
use crate::server_tls::read_secret;
use crate::shares::ClientId;

/// Shortest token in bytes. 128 bits in base64 or hexadecimal are longer.
const TOKEN_BYTES_MIN: usize = 20;

/// Tags of subject alternative names. The parser returns names that are not UTF-8 by their tag.
const DNS_TAG: Tag = Tag(2);
const URI_TAG: Tag = Tag(6);

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The name in the client's certificate, for the log.
    pub principal: Option<Arc<str>>,
    /// The client whose limits apply.
    pub id: ClientId,
}

/// Authentication that a listener requires.
pub enum Clients {
    /// All clients.
    Open,
    /// Clients with a verified certificate that has one of these names. All clients with a
    /// certificate if the set is empty.
    Certificate(HashSet<Box<str>>),
    /// Clients with one of these tokens. Only digests are stored.
    Bearer(HashSet<[u8; 32]>),
}

impl std::fmt::Debug for Clients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Certificate(_) => "Certificate",
            Self::Bearer(_) => "Bearer",
        })
    }
}

impl Clients {
    /// Permits clients with a certificate of one of these names: a DNS name with or without `dns:`,
    /// a URI, or `cn:` and a common name. Permits all clients with a certificate if the list is
    /// empty. The configuration accepts no other principals ([`is_principal`]).
    pub fn from_principals<'a>(principals: impl IntoIterator<Item = &'a str>) -> Self {
        let names = principals
            .into_iter()
            .map(|name| name.strip_prefix("dns:").unwrap_or(name).into());
        Self::Certificate(names.collect())
    }

    /// Reads a file with one token per line. Lines that start with `#` are comments.
    ///
    /// # Errors
    /// A sentence that contains no token.
    pub fn read_tokens(path: &Path) -> Result<Self, String> {
        let text = read_secret(path).map_err(|error| error.to_string())?;
        let lines = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut tokens = HashSet::new();
        for line in lines {
            if line.len() < TOKEN_BYTES_MIN || !line.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "{}: a token is shorter than {TOKEN_BYTES_MIN} characters, or has characters other than visible ASCII",
                    path.display()
                ));
            }
            tokens.insert(token_digest(line.as_bytes()));
        }
        if tokens.is_empty() {
            Err(format!("{}: the file has no token", path.display()))
        } else {
            Ok(Self::Bearer(tokens))
        }
    }

    /// Authenticates a request. `name` is from the client's verified certificate. `address`
    /// identifies the client if the listener requires no authentication.
    ///
    /// # Errors
    /// [`Reason::Unauthenticated`].
    pub fn authenticate(
        &self,
        headers: &HeaderMap,
        is_proxy: bool,
        name: Option<&Arc<str>>,
        address: ClientId,
    ) -> Result<Client, Failure> {
        const UNAUTHENTICATED: Failure = Failure::request(Reason::Unauthenticated);
        match self {
            Self::Open => Ok(Client {
                principal: None,
                id: address,
            }),
            Self::Certificate(allowed) => {
                let name = name.filter(|name| allowed.is_empty() || allowed.contains(&***name));
                let name = name.ok_or(UNAUTHENTICATED)?;
                Ok(Client {
                    principal: Some(Arc::clone(name)),
                    id: ClientId::Name(Arc::clone(name)),
                })
            }
            Self::Bearer(tokens) => {
                let header = if is_proxy {
                    PROXY_AUTHORIZATION
                } else {
                    AUTHORIZATION
                };
                let mut values = headers.get_all(header).iter();
                let (Some(value), None) = (values.next(), values.next()) else {
                    return Err(UNAUTHENTICATED);
                };
                let token = token_of(value, is_proxy).ok_or(UNAUTHENTICATED)?;
                // The time of a lookup by digest reveals nothing about the token.
                let token_digest = token_digest(&token);
                if tokens.contains(&token_digest) {
                    Ok(Client {
                        principal: None,
                        id: ClientId::Token(token_digest),
                    })
                } else {
                    Err(UNAUTHENTICATED)
                }
            }
        }
    }
}

/// Returns the token of `Bearer TOKEN`. A proxy client that supports only user and password sends
/// the token as its password.
fn token_of(value: &HeaderValue, is_proxy: bool) -> Option<Vec<u8>> {
    let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().as_bytes().to_vec());
    }
    if !is_proxy || !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair =
        base64::Engine::decode(&base64::engine::general_purpose::STANDARD, rest.trim()).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair.get(colon + 1..)?.to_vec())
}

fn token_digest(token: &[u8]) -> [u8; 32] {
    use sha2::Digest as _;
    sha2::Sha256::digest(token).into()
}

/// Returns the name of a client's certificate: its first DNS name or URI, or `cn:` and its common
/// name. Returns `None` if the certificate lacks such a name, or if any of them is unreadable or has
/// invalid characters. An invalid name is never replaced by another name. The name includes its kind,
/// because authorities can verify the kinds differently.
pub fn name_of(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let extension = certificate.subject_alternative_name().ok()?;
    let mut alternative = None;
    for name in extension
        .iter()
        .flat_map(|extension| &extension.value.general_names)
    {
        match name {
            GeneralName::DNSName(name) if is_dns_name(name) => {
                alternative = alternative.or_else(|| Some(Arc::from(*name)));
            }
            GeneralName::URI(name) if is_uri(name) => {
                alternative = alternative.or_else(|| Some(Arc::from(*name)));
            }
            GeneralName::DNSName(_)
            | GeneralName::URI(_)
            | GeneralName::Invalid(DNS_TAG | URI_TAG, _) => return None,
            _ => {}
        }
    }

    let mut common = None;
    for name in certificate.subject().iter_common_name() {
        let text = name.as_str().ok()?;
        if !is_common_name(text) || common.replace(Arc::from(format!("cn:{text}"))).is_some() {
            return None;
        }
    }
    alternative.or(common)
}

/// Returns true if a text names a client in the form of `principals`. `dns:` is permitted only
/// before DNS names: before `cn:`, it would permit a common name.
pub fn is_principal(text: &str) -> bool {
    if let Some(name) = text.strip_prefix("dns:") {
        return is_dns_name(name);
    }
    match text.strip_prefix("cn:") {
        Some(name) => is_common_name(name),
        None => is_dns_name(text) || is_uri(text),
    }
}

fn is_common_name(name: &str) -> bool {
    !name.is_empty() && name.trim() == name && !name.chars().any(char::is_control)
}

fn is_dns_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._*".contains(&byte))
}

/// Returns true for a URI that is not a name of another kind.
fn is_uri(name: &str) -> bool {
    let scheme = name
        .split_once(':')
        .map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|scheme| !matches!(&*scheme, "" | "cn" | "dns"))
        && name.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: ClientId =
        ClientId::Address(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    fn bearer() -> Clients {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "# comment\n0123456789abcdefghij\n").unwrap();
        Clients::read_tokens(file.path()).unwrap()
    }

    #[test]
    fn tokens_are_compared_whole() {
        let basic = |pair: &str| {
            format!(
                "Basic {}",
                base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pair)
            )
        };
        for (is_proxy, value, is_let_in) in [
            (false, "Bearer 0123456789abcdefghij".to_owned(), true),
            (false, "bearer  0123456789abcdefghij".to_owned(), true),
            (false, "Bearer 0123456789abcdefghi".to_owned(), false),
            (false, "Bearer 0123456789abcdefghijk".to_owned(), false),
            (false, "Bearer # comment".to_owned(), false),
            (false, "Bearer ".to_owned(), false),
            (false, "0123456789abcdefghij".to_owned(), false),
            (false, basic("x:0123456789abcdefghij"), false),
            (true, basic("x:0123456789abcdefghij"), true),
            (true, basic("0123456789abcdefghij:"), false),
            (true, "Basic ???".to_owned(), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(
                if is_proxy {
                    PROXY_AUTHORIZATION
                } else {
                    AUTHORIZATION
                },
                value.parse().unwrap(),
            );
            assert_eq!(
                bearer()
                    .authenticate(&headers, is_proxy, None, ADDRESS)
                    .is_ok(),
                is_let_in,
                "{value}"
            );
            headers.append(
                if is_proxy {
                    PROXY_AUTHORIZATION
                } else {
                    AUTHORIZATION
                },
                "Bearer x".parse().unwrap(),
            );
            assert!(
                bearer()
                    .authenticate(&headers, is_proxy, None, ADDRESS)
                    .is_err(),
                "two headers"
            );
        }
        assert!(
            bearer()
                .authenticate(&HeaderMap::new(), false, None, ADDRESS)
                .is_err()
        );
    }

    #[test]
    fn weak_files_of_tokens_are_rejected_without_their_text() {
        for text in [
            "",
            "# only a comment",
            "short-s3cret",
            "0123456789abcdefghij with space s3cret",
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), text).unwrap();
            let error = Clients::read_tokens(file.path()).unwrap_err();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_certificate_with_an_invalid_name_names_no_client() {
        use rcgen::{
            CertificateParams, CustomExtension, DistinguishedName, DnType, DnValue, KeyPair,
        };
        let (dns, uri, email) = (0x82, 0x86, 0x81);
        let latin = DnValue::BmpString("relay".try_into().unwrap());
        let text = |text: &str| DnValue::Utf8String(text.into());
        /// A common name, further names with their tags, and the client's name.
        type Case<'a> = (DnValue, &'a [(u8, &'a [u8])], Option<&'a str>);
        let cases: [Case<'_>; 17] = [
            (
                text("relay"),
                &[(dns, b"relay.example"), (uri, b"spiffe://org/x")],
                Some("relay.example"),
            ),
            (
                text("relay"),
                &[(uri, b"spiffe://org/x")],
                Some("spiffe://org/x"),
            ),
            (text("relay"), &[(email, b"\xff")], Some("cn:relay")),
            (
                text("relay.example"),
                &[(email, b"a")],
                Some("cn:relay.example"),
            ),
            // No name of one kind is one of another.
            (text("x"), &[(dns, b"cn:relay")], None),
            (text("x"), &[(uri, b"cn:relay")], None),
            (text("x"), &[(uri, b"relay.example")], None),
            (text("relay"), &[(dns, b"rel\xe9y.example")], None),
            (
                text("relay"),
                &[(uri, b"spiffe://org/\xff"), (dns, b"relay.example")],
                None,
            ),
            (
                text("relay"),
                &[(dns, b"relay.example"), (dns, b"\xff")],
                None,
            ),
            (text("relay"), &[(dns, b"relay\0.example")], None),
            (text("relay"), &[(dns, b"")], None),
            (text("relay"), &[(dns, b" relay.example")], None),
            (text("re\nlay"), &[(dns, b"relay.example")], None),
            (text(" relay"), &[(email, b"a")], None),
            (text(""), &[(email, b"a")], None),
            (latin, &[(dns, b"relay.example")], None),
        ];
        for (common_name, names, expected) in cases {
            let names: Vec<u8> = names
                .iter()
                .flat_map(|(tag, name)| [&[*tag, name.len() as u8][..], name].concat())
                .collect();
            let extension = [&[0x30, names.len() as u8][..], &names].concat();
            let mut params = CertificateParams::default();
            params.distinguished_name = DistinguishedName::new();
            params
                .distinguished_name
                .push(DnType::CommonName, common_name.clone());
            params.custom_extensions = vec![CustomExtension::from_oid_content(
                &[2, 5, 29, 17],
                extension,
            )];
            let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            assert_eq!(
                name_of(certificate.der()).as_deref(),
                expected,
                "{common_name:?} {names:x?}"
            );
        }
    }

    #[test]
    fn a_name_lets_in_its_own_kind_alone() {
        for (principal, name, is_let_in) in [
            ("relay.example", "relay.example", true),
            ("dns:relay.example", "relay.example", true),
            ("cn:relay.example", "cn:relay.example", true),
            ("relay.example", "cn:relay.example", false),
            ("dns:relay.example", "cn:relay.example", false),
            ("cn:relay.example", "relay.example", false),
            ("spiffe://org/relay", "spiffe://org/relay", true),
            ("spiffe://org/relay", "cn:spiffe://org/relay", false),
        ] {
            let clients = Clients::from_principals([principal]);
            let name = Arc::from(name);
            let outcome = clients.authenticate(&HeaderMap::new(), false, Some(&name), ADDRESS);
            assert_eq!(outcome.is_ok(), is_let_in, "{principal} {name}");
        }
    }

    #[test]
    fn certificates_are_let_in_by_name() {
        let only = Clients::Certificate(HashSet::from(["relay.example".into()]));
        let all = Clients::Certificate(HashSet::new());
        let (known, other): (Arc<str>, Arc<str>) = ("relay.example".into(), "other".into());
        let headers = HeaderMap::new();
        let client = Client {
            principal: Some(Arc::clone(&known)),
            id: ClientId::Name(Arc::clone(&known)),
        };
        assert_eq!(
            only.authenticate(&headers, false, Some(&known), ADDRESS),
            Ok(client)
        );
        assert!(
            only.authenticate(&headers, false, Some(&other), ADDRESS)
                .is_err()
        );
        assert!(only.authenticate(&headers, false, None, ADDRESS).is_err());
        assert!(
            all.authenticate(&headers, false, Some(&other), ADDRESS)
                .is_ok()
        );
        assert!(all.authenticate(&headers, false, None, ADDRESS).is_err());
    }
}
