//! Makes certificates and bearer tokens for `sealwire dev`, `sealwire certs` and tests.
//!
//! A small authority for a first start, not a public one. The authority issues server and client
//! certificates with ECDSA P-256 keys. Sub-authorities, wildcards, and certificates that outlive
//! the authority are not supported. The authority keeps no list of issued certificates, so
//! revocation needs another authority.

mod files;
mod token_issuer;

use std::fmt;
use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType,
};
use time::{Duration, OffsetDateTime};
use x509_parser::pem::parse_x509_pem;
use zeroize::Zeroizing;

pub use files::{Access, Existing, FileError, write};
pub use token_issuer::{TokenClaims, TokenIssuer};

/// Hours before now from which a certificate is valid, to tolerate clocks that are behind.
const BACKDATE_HOURS: i64 = 1;

/// The time span in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not valid before.
    pub not_before: OffsetDateTime,
    /// Not valid after.
    pub not_after: OffsetDateTime,
}

impl Validity {
    /// Returns a span from one hour ago to `days` days from now.
    pub fn days(days: u32) -> Self {
        let now = OffsetDateTime::now_utc();
        Self {
            not_before: now - Duration::hours(BACKDATE_HOURS),
            not_after: now + Duration::days(i64::from(days)),
        }
    }
}

/// A subject alternative name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A host name, without wildcards.
    Dns(String),
    /// An address.
    Ip(IpAddr),
    /// A URI, such as `spiffe://example.org/relay`.
    Uri(String),
}

/// The end of a connection that a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// The engine.
    Server,
    /// A client.
    Client,
}

/// Content of a certificate.
#[derive(Clone, Debug)]
pub struct Leaf {
    /// The subject's common name, 1 to 64 characters.
    pub common_name: String,
    /// Alternative names. A server certificate needs at least one, to match its address.
    pub names: Vec<Name>,
    /// The end of a connection that the certificate is for.
    pub usage: Usage,
    /// The span of validity, which must not end after the authority's.
    pub validity: Validity,
}

/// A private key as PEM, wiped on drop. No `Clone`; `Debug` shows its length only.
pub struct SecretPem(Zeroizing<String>);

impl SecretPem {
    /// Wraps PEM text that the caller has read.
    pub fn new(pem: String) -> Self {
        Self(Zeroizing::new(pem))
    }

    /// The only access to the text, for writing it to a file of mode 0600 or for parsing it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SecretPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretPem({} bytes)", self.0.len())
    }
}

/// A certificate and its key.
#[derive(Debug)]
pub struct Issued {
    /// The certificate, PEM.
    pub cert_pem: String,
    /// The certificate's private key, PKCS #8 PEM.
    pub key_pem: SecretPem,
}

/// The reason why a certificate cannot be made or an authority cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// The text is not one PEM certificate.
    #[error("the authority's certificate is not a PEM certificate")]
    NotACertificate,
    /// The certificate cannot sign others.
    #[error("the certificate is not an authority's: it lacks the CA basic constraint")]
    NotAnAuthority,
    /// The text is not a supported private key.
    #[error("the key is not an unencrypted PKCS #8 PEM key of the expected kind")]
    NotAKey,
    /// Certificate and key do not match.
    #[error("the authority's key does not belong to its certificate")]
    KeyMismatch,
    /// A common name must be 1 to 64 printable characters.
    #[error("a common name has 1 to 64 printable characters")]
    CommonName,
    /// An alternative name that is not allowed in a certificate.
    #[error(
        "alternative name {0:?}: must be a host name without wildcards, an address or a URI in ASCII"
    )]
    AlternativeName(Name),
    /// A server certificate without alternative names matches no address.
    #[error("a server certificate needs at least one alternative name")]
    Nameless,
    /// The validity ends before its start, or after the authority's.
    #[error("the validity must end after it begins, and not after the authority's own ({0})")]
    Validity(OffsetDateTime),
    /// The cryptographic library could not sign a token.
    #[error("signing a token")]
    Signing,
    /// The certificate library failed, because of a bug or a lack of randomness.
    #[error("making a certificate")]
    Library(#[from] rcgen::Error),
}

/// A certificate authority with its key in memory. `Debug` shows no key.
pub struct Authority {
    cert_pem: String,
    key_pem: SecretPem,
    issuer: Issuer<'static, KeyPair>,
    not_after: OffsetDateTime,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates a self-signed authority that can sign leaf certificates and revocation lists, but no
    /// sub-authorities.
    ///
    /// # Errors
    ///
    /// A name or validity that is not allowed; see [`PkiError`].
    pub fn create(common_name: &str, validity: Validity) -> Result<Self, PkiError> {
        let mut params = params(common_name, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let cert_pem = params.self_signed(&key)?.pem();
        let key_pem = SecretPem::new(key.serialize_pem());
        Ok(Self {
            cert_pem,
            key_pem,
            issuer: Issuer::new(params, key),
            not_after: validity.not_after,
        })
    }

    /// Loads an authority from the contents of its two files.
    ///
    /// # Errors
    ///
    /// Not PEM, not an authority, or a key of another pair.
    pub fn load(cert_pem: &str, key_pem: SecretPem) -> Result<Self, PkiError> {
        let (_, pem) =
            parse_x509_pem(cert_pem.as_bytes()).map_err(|_| PkiError::NotACertificate)?;
        let certificate = pem.parse_x509().map_err(|_| PkiError::NotACertificate)?;
        if !certificate.is_ca() {
            return Err(PkiError::NotAnAuthority);
        }
        let key = KeyPair::from_pem(key_pem.expose()).map_err(|_| PkiError::NotAKey)?;
        if key.subject_public_key_info() != certificate.public_key().raw {
            return Err(PkiError::KeyMismatch);
        }
        let not_after = certificate.validity().not_after.to_datetime();
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key)?;
        Ok(Self {
            cert_pem: cert_pem.to_owned(),
            key_pem,
            issuer,
            not_after,
        })
    }

    /// Returns the authority's certificate in PEM, which the peer trusts.
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// Returns the authority's private key in PEM. Store it with mode 0600, or discard it.
    pub fn key_pem(&self) -> &SecretPem {
        &self.key_pem
    }

    /// Returns the end of the authority's validity. No leaf certificate can end later.
    pub fn not_after(&self) -> OffsetDateTime {
        self.not_after
    }

    /// Issues a certificate with a fresh P-256 key, signed by this authority.
    ///
    /// The serial number is the truncated hash of the fresh public key: unpredictable and unique.
    ///
    /// # Errors
    ///
    /// A name or validity that is not allowed; see [`PkiError`].
    pub fn issue(&self, leaf: &Leaf) -> Result<Issued, PkiError> {
        if leaf.usage == Usage::Server && leaf.names.is_empty() {
            return Err(PkiError::Nameless);
        }
        // Compares whole seconds: a certificate has no fractions, so an authority loaded from its
        // file has lost them.
        if leaf.validity.not_after.unix_timestamp() > self.not_after.unix_timestamp() {
            return Err(PkiError::Validity(self.not_after));
        }
        let mut params = params(&leaf.common_name, leaf.validity)?;
        params.subject_alt_names = leaf
            .names
            .iter()
            .map(alternative_name)
            .collect::<Result<_, _>>()?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match leaf.usage {
            Usage::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Usage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued {
            cert_pem,
            key_pem: SecretPem::new(key.serialize_pem()),
        })
    }
}

fn params(common_name: &str, validity: Validity) -> Result<CertificateParams, PkiError> {
    if common_name.is_empty()
        || common_name.chars().count() > 64
        || common_name.chars().any(char::is_control)
    {
        return Err(PkiError::CommonName);
    }
    if validity.not_after <= validity.not_before {
        return Err(PkiError::Validity(validity.not_after));
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = validity.not_before;
    params.not_after = validity.not_after;
    Ok(params)
}

fn alternative_name(name: &Name) -> Result<SanType, PkiError> {
    let refused = || PkiError::AlternativeName(name.clone());
    match name {
        Name::Dns(host) if sealwire_access::is_host_name(host) => Ok(SanType::DnsName(
            host.as_str().try_into().map_err(|_| refused())?,
        )),
        Name::Ip(address) => Ok(SanType::IpAddress(*address)),
        Name::Uri(uri) if uri.contains(':') && uri.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(SanType::URI(
                uri.as_str().try_into().map_err(|_| refused())?,
            ))
        }
        Name::Dns(_) | Name::Uri(_) => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::extensions::{GeneralName, ParsedExtension};

    fn leaf(usage: Usage) -> Leaf {
        Leaf {
            common_name: "relay".into(),
            names: vec![
                Name::Dns("relay.example.org".into()),
                Name::Ip(IpAddr::from([127, 0, 0, 1])),
                Name::Uri("spiffe://example.org/relay".into()),
            ],
            usage,
            validity: Validity::days(30),
        }
    }

    fn der(pem: &str) -> Vec<u8> {
        parse_x509_pem(pem.as_bytes()).unwrap().1.contents
    }

    fn authority() -> Authority {
        Authority::create("Sealwire test authority", Validity::days(365)).unwrap()
    }

    #[test]
    fn an_authority_says_what_it_may_do_and_no_more() {
        let der = der(authority().cert_pem());
        let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
        let basic = cert.basic_constraints().unwrap().unwrap();
        assert!(basic.critical && basic.value.ca && basic.value.path_len_constraint == Some(0));
        let usage = cert.key_usage().unwrap().unwrap().value;
        assert!(usage.key_cert_sign() && usage.crl_sign() && !usage.digital_signature());
    }

    #[test]
    fn a_leaf_carries_its_names_and_one_usage() {
        let authority = authority();
        for usage in [Usage::Server, Usage::Client] {
            let der = der(&authority.issue(&leaf(usage)).unwrap().cert_pem);
            let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
            assert!(!cert.is_ca());
            let eku = cert.extended_key_usage().unwrap().unwrap().value;
            assert_eq!(
                (eku.server_auth, eku.client_auth),
                (usage == Usage::Server, usage == Usage::Client)
            );
            let key_usage = cert.key_usage().unwrap().unwrap().value;
            assert!(key_usage.digital_signature() && !key_usage.key_cert_sign());
            let names = &cert
                .subject_alternative_name()
                .unwrap()
                .unwrap()
                .value
                .general_names;
            assert!(matches!(
                names[..],
                [
                    GeneralName::DNSName("relay.example.org"),
                    GeneralName::IPAddress([127, 0, 0, 1]),
                    GeneralName::URI("spiffe://example.org/relay"),
                ]
            ));
            let identified = cert.extensions().iter().any(|extension| {
                matches!(
                    extension.parsed_extension(),
                    ParsedExtension::AuthorityKeyIdentifier(_)
                )
            });
            assert!(identified);
        }
    }

    #[test]
    fn serial_numbers_are_long_and_differ() {
        let authority = authority();
        let serials: std::collections::HashSet<Vec<u8>> = (0..20)
            .map(|_| {
                let der = der(&authority.issue(&leaf(Usage::Client)).unwrap().cert_pem);
                let (_, cert) = x509_parser::parse_x509_certificate(&der).unwrap();
                assert!(cert.raw_serial().len() >= 16);
                cert.raw_serial().to_vec()
            })
            .collect();
        assert_eq!(serials.len(), 20);
    }

    #[test]
    fn an_authority_survives_its_files() {
        let made = authority();
        let loaded = Authority::load(
            made.cert_pem(),
            SecretPem::new(made.key_pem().expose().into()),
        )
        .unwrap();
        assert_eq!(
            loaded.not_after().unix_timestamp(),
            made.not_after().unix_timestamp()
        );
        let outlast = Leaf {
            validity: Validity {
                not_before: made.not_after() - Duration::days(1),
                not_after: made.not_after(),
            },
            ..leaf(Usage::Server)
        };
        loaded.issue(&outlast).unwrap();
    }

    #[test]
    fn authorities_that_are_none_are_refused() {
        let (first, second) = (authority(), authority());
        let issued = first.issue(&leaf(Usage::Client)).unwrap();
        let key = |pem: &SecretPem| SecretPem::new(pem.expose().into());
        let cases = [
            ("", key(first.key_pem()), "is not a PEM certificate"),
            (first.cert_pem(), key(second.key_pem()), "does not belong"),
            (
                first.cert_pem(),
                SecretPem::new("no key".into()),
                "not an unencrypted",
            ),
            (&issued.cert_pem, key(&issued.key_pem), "not an authority"),
        ];
        for (cert, key, expected) in cases {
            let error = Authority::load(cert, key).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn leaves_that_must_not_be_issued() {
        let authority = authority();
        let validity = Validity::days(30);
        let reversed = Validity {
            not_before: validity.not_after,
            not_after: validity.not_before,
        };
        let with_name = |name| Leaf {
            names: vec![name],
            ..leaf(Usage::Client)
        };
        let cases: Vec<(&str, Leaf)> = vec![
            (
                "no name",
                Leaf {
                    names: Vec::new(),
                    ..leaf(Usage::Server)
                },
            ),
            (
                "outlives",
                Leaf {
                    validity: Validity::days(366),
                    ..leaf(Usage::Client)
                },
            ),
            (
                "reversed",
                Leaf {
                    validity: reversed,
                    ..leaf(Usage::Client)
                },
            ),
            (
                "empty common name",
                Leaf {
                    common_name: String::new(),
                    ..leaf(Usage::Client)
                },
            ),
            (
                "long common name",
                Leaf {
                    common_name: "x".repeat(65),
                    ..leaf(Usage::Client)
                },
            ),
            (
                "control character",
                Leaf {
                    common_name: "a\nb".into(),
                    ..leaf(Usage::Client)
                },
            ),
            ("wildcard", with_name(Name::Dns("*.example.org".into()))),
            ("empty host", with_name(Name::Dns(String::new()))),
            ("host with space", with_name(Name::Dns("a b".into()))),
            ("URI without scheme", with_name(Name::Uri("example".into()))),
            (
                "URI with newline",
                with_name(Name::Uri("spiffe://a/\n".into())),
            ),
        ];
        for (case, leaf) in cases {
            assert!(authority.issue(&leaf).is_err(), "{case}");
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let authority = authority();
        let issued = authority.issue(&leaf(Usage::Client)).unwrap();
        let shown = format!("{authority:?} {issued:?}");
        assert!(!shown.contains("PRIVATE"), "{shown}");
        let body = issued.key_pem.expose().lines().nth(1).unwrap();
        assert!(!shown.contains(body));
    }
}
