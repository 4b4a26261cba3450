//! The authority for interception: issues a certificate for each intercepted host, on demand.
//!
//! Clients of the relay trust the authority's certificate. This certificate is constrained to
//! the hosts that the relay may intercept (RFC 5280, section 4.2.1.10) and to TLS servers. A stolen
//! key can therefore impersonate no other host, client or mailbox. The name constraints cover all
//! kinds of names, because some clients ignore the extended key usage of an authority. Leaf
//! certificates are valid for a day and exist only in memory.

use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig};
use rustls::sign::CertifiedKey;
use time::{Duration, OffsetDateTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};

/// Validity of a leaf certificate.
const LEAF_VALID: Duration = Duration::hours(24);
/// Remaining validity below which a leaf is issued again.
const RENEW_BEFORE: Duration = Duration::hours(1);
/// Leaves and authorities are valid from this long ago, for clients whose clocks are behind.
const BACKDATED: Duration = Duration::hours(1);
/// Most leaves in memory. Each takes about 2 KiB.
const LEAVES_MAX: std::num::NonZeroUsize =
    std::num::NonZeroUsize::new(1_024).expect("1,024 is not zero");

/// An error of the authority. Never carries key material.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The certificate or the key is malformed or not supported.
    #[error("the authority's certificate or key cannot be used")]
    Unusable(#[source] rcgen::Error),
    /// The certificate is not of an authority.
    #[error("the certificate is not that of an authority")]
    NotAnAuthority,
    /// The key does not match the certificate.
    #[error("the key does not belong to the certificate")]
    KeyMismatch,
    /// A leaf could not be signed.
    #[error("cannot issue a certificate")]
    Issue(#[source] rcgen::Error),
    /// The TLS library rejects the leaf.
    #[error("cannot use an issued certificate")]
    Leaf(#[source] rustls::Error),
}

/// TLS configuration of a host, and the end of its leaf's validity.
type Leaf = (Arc<ServerConfig>, OffsetDateTime);

/// An authority with its leaves.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    not_after: OffsetDateTime,
    is_limited: bool,
    leaves: Mutex<LruCache<Box<str>, Leaf>>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

/// Certificate and key of a new authority, in PEM.
pub struct NewAuthority {
    /// The certificate, which clients trust.
    pub cert_pem: String,
    /// The private key. Store it with mode 0600.
    pub key_pem: zeroize::Zeroizing<String>,
}

/// Creates an authority that can certify only these hosts.
///
/// # Errors
/// [`AuthorityError::Issue`] if a host is not a DNS name.
pub fn create_authority(
    hosts: &[&str],
    days: u16,
    now: OffsetDateTime,
) -> Result<NewAuthority, AuthorityError> {
    let params = authority_params(hosts, days, now)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Issue)?;
    let cert_pem = params
        .self_signed(&key)
        .map_err(AuthorityError::Issue)?
        .pem();
    Ok(NewAuthority {
        cert_pem,
        key_pem: key.serialize_pem().into(),
    })
}

/// Returns the content of an authority's certificate.
fn authority_params(
    hosts: &[&str],
    days: u16,
    now: OffsetDateTime,
) -> Result<CertificateParams, AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "Sealwire relay interception");
    params.not_before = now - BACKDATED;
    params.not_after = now + Duration::days(i64::from(days));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];

    // In an authority, this extension limits the use of its leaves.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // The library checks host names when it writes them for leaves.
    CertificateParams::new(
        hosts
            .iter()
            .map(|host| (*host).to_owned())
            .collect::<Vec<_>>(),
    )
    .map_err(AuthorityError::Issue)?;
    let mut constraints =
        CustomExtension::from_oid_content(NAME_CONSTRAINTS, name_constraints(hosts));
    constraints.set_criticality(true);
    params.custom_extensions = vec![constraints];
    Ok(params)
}

/// Identifier of the extension with name constraints (RFC 5280, section 4.2.1.10).
const NAME_CONSTRAINTS: &[u64] = &[2, 5, 29, 30];
/// Tags of general names (RFC 5280, section 4.2.1.6), as used in constraints.
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;
const IP_ADDRESS: u8 = 0x87;

/// Writes the name constraints of an authority for these hosts. The library writes no constraints
/// for URIs.
///
/// Names of a kind without constraints would be permitted. E-mail addresses and URIs are permitted
/// and excluded at a reserved domain (RFC 2606). An empty name would exclude all, but
/// implementations read it differently.
fn name_constraints(hosts: &[&str]) -> Vec<u8> {
    const RESERVED: [(u8, &[u8]); 2] = [(EMAIL, b"invalid"), (URI, b"invalid")];
    let hosts = hosts.iter().map(|host| (DNS, host.as_bytes()));
    let permitted: Vec<u8> = hosts.chain(RESERVED).flat_map(encode_subtree).collect();
    let addresses = [(IP_ADDRESS, &[0; 8][..]), (IP_ADDRESS, &[0; 32][..])];
    let excluded: Vec<u8> = addresses
        .into_iter()
        .chain(RESERVED)
        .flat_map(encode_subtree)
        .collect();
    let subtrees = [encode_der(0xa0, &permitted), encode_der(0xa1, &excluded)];
    encode_der(0x30, &subtrees.concat())
}

fn encode_subtree((tag, name): (u8, &[u8])) -> Vec<u8> {
    encode_der(0x30, &encode_der(tag, name))
}

/// Writes a value in DER.
fn encode_der(tag: u8, content: &[u8]) -> Vec<u8> {
    let bytes = content.len().to_be_bytes();
    let length: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
    match content.len() {
        length @ 0..0x80 => [&[tag, length as u8], content].concat(),
        _ => [&[tag, 0x80 | length.len() as u8], &length[..], content].concat(),
    }
}

impl Authority {
    /// Loads an authority from the contents of its files.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn load(cert_pem: &str, key_pem: &str) -> Result<Self, AuthorityError> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(cert_pem.as_bytes())
            .map_err(|_| AuthorityError::NotAnAuthority)?;
        let certificate = pem
            .parse_x509()
            .map_err(|_| AuthorityError::NotAnAuthority)?;
        if !certificate.is_ca() {
            return Err(AuthorityError::NotAnAuthority);
        }

        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Unusable)?;
        if rcgen::PublicKeyData::subject_public_key_info(&key) != certificate.public_key().raw {
            return Err(AuthorityError::KeyMismatch);
        }
        let not_after = certificate.validity().not_after.to_datetime();
        let is_limited = is_limited(&certificate);
        let issuer = Issuer::from_ca_cert_pem(cert_pem, key).map_err(AuthorityError::Unusable)?;
        Ok(Self {
            issuer,
            not_after,
            is_limited,
            leaves: Mutex::new(LruCache::new(LEAVES_MAX)),
        })
    }

    /// Returns the end of the authority's validity.
    pub const fn not_after(&self) -> OffsetDateTime {
        self.not_after
    }

    /// Returns true if the authority is constrained to some names and to servers, as [`create_authority`]
    /// does.
    pub const fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Returns the TLS configuration of a host. Issues a leaf if none exists, which takes about 100
    /// us under the lock of all leaves. Two connections to a new host therefore share one leaf.
    ///
    /// # Errors
    /// [`AuthorityError`] if the host is not a DNS name.
    pub fn server_config(
        &self,
        host: &str,
        now: OffsetDateTime,
    ) -> Result<Arc<ServerConfig>, AuthorityError> {
        let mut leaves = self.leaves.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((config, not_after)) = leaves.get(host)
            && *not_after > now + RENEW_BEFORE
        {
            return Ok(Arc::clone(config));
        }

        let not_after = (now + LEAF_VALID).min(self.not_after);
        let leaf = Arc::new(self.issue_leaf(host, now, not_after)?);
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder
            .with_safe_default_protocol_versions()
            .map_err(AuthorityError::Leaf)?;
        let resolver = OneHost {
            host: host.into(),
            leaf,
        };
        let mut config = builder
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let config = Arc::new(config);
        leaves.put(host.into(), (Arc::clone(&config), not_after));
        Ok(config)
    }

    fn issue_leaf(
        &self,
        host: &str,
        now: OffsetDateTime,
        not_after: OffsetDateTime,
    ) -> Result<CertifiedKey, AuthorityError> {
        let mut params =
            CertificateParams::new([host.to_owned()]).map_err(AuthorityError::Issue)?;
        params.distinguished_name = DistinguishedName::new();
        params.not_before = now - BACKDATED;
        params.not_after = not_after;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(AuthorityError::Issue)?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(AuthorityError::Issue)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        CertifiedKey::from_der(
            vec![certificate.der().clone()],
            key,
            &aws_lc_rs::default_provider(),
        )
        .map_err(AuthorityError::Leaf)
    }
}

/// Returns true if a certificate has the constraints that [`authority_params`] sets, for any hosts.
fn is_limited(certificate: &X509Certificate<'_>) -> bool {
    let is_lowest = certificate
        .basic_constraints()
        .is_ok_and(|found| found.is_some_and(|found| found.value.path_len_constraint == Some(0)));

    let is_for_servers = certificate.extended_key_usage().is_ok_and(|found| {
        found.is_some_and(|found| {
            let usage = found.value;
            let others = [
                usage.any,
                usage.client_auth,
                usage.code_signing,
                usage.email_protection,
                usage.time_stamping,
                usage.ocsp_signing,
                !usage.other.is_empty(),
            ];
            usage.server_auth && !others.contains(&true)
        })
    });

    let has_names = certificate.extensions().iter().any(|extension| {
        let ParsedExtension::NameConstraints(constraints) = extension.parsed_extension() else {
            return false;
        };
        let permitted = constraints.permitted_subtrees.iter().flatten();
        let hosts: Vec<&str> = permitted
            .filter_map(|subtree| match subtree.base {
                GeneralName::DNSName(host) => Some(host),
                _ => None,
            })
            .collect();
        extension.critical
            && !hosts.is_empty()
            && !hosts.contains(&"")
            && extension.value == name_constraints(&hosts).as_slice()
    });
    is_lowest && is_for_servers && has_names
}

/// Returns the leaf to clients that request the tunnel's host. Clients that request another host get
/// an alert.
#[derive(Debug)]
struct OneHost {
    host: Box<str>,
    leaf: Arc<CertifiedKey>,
}

impl ResolvesServerCert for OneHost {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_same = hello
            .server_name()
            .is_some_and(|name| name.eq_ignore_ascii_case(&self.host));
        is_same.then(|| Arc::clone(&self.leaf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier as _;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _};

    fn authority(hosts: &[&str]) -> (Authority, String) {
        let new = create_authority(hosts, 30, OffsetDateTime::now_utc()).unwrap();
        (
            Authority::load(&new.cert_pem, &new.key_pem).unwrap(),
            new.cert_pem,
        )
    }

    fn is_trusted(root_pem: &str, leaf: &CertifiedKey, host: &str) -> bool {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(root_pem.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .unwrap();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        verifier
            .verify_server_cert(&leaf.cert[0], &leaf.cert[1..], &name, &[], UnixTime::now())
            .is_ok()
    }

    #[test]
    fn a_leaf_is_trusted_for_its_host_alone() {
        let (authority, root) = authority(&["api.example.com", "example.org"]);
        let now = OffsetDateTime::now_utc();
        for (leaf_for, checked, expected) in [
            ("api.example.com", "api.example.com", true),
            ("api.example.com", "www.example.com", false),
            ("a.example.org", "a.example.org", true),
            // Outside the constraints: the leaf exists, and nobody trusts it.
            ("api.example.net", "api.example.net", false),
        ] {
            let leaf = authority
                .issue_leaf(leaf_for, now, now + LEAF_VALID)
                .unwrap();
            assert_eq!(
                is_trusted(&root, &leaf, checked),
                expected,
                "{leaf_for} as {checked}"
            );
        }
    }

    #[test]
    fn an_authority_certifies_servers_and_no_other_names() {
        use rcgen::SanType;
        let new = create_authority(
            &["api.example.com", "example.org"],
            30,
            OffsetDateTime::now_utc(),
        )
        .unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(new.cert_pem.as_bytes()).unwrap();
        let certificate = pem.parse_x509().unwrap();
        let usage = certificate
            .extended_key_usage()
            .unwrap()
            .map(|usage| usage.value.clone());
        let usage = usage.expect("an extended key usage");
        assert!(
            usage.server_auth && !usage.client_auth && !usage.email_protection && !usage.any,
            "{usage:?}"
        );
        let constraints = certificate
            .extensions()
            .iter()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::NameConstraints(constraints) => {
                    Some((extension.critical, constraints))
                }
                _ => None,
            })
            .unwrap();
        assert!(constraints.0);
        let names = |subtrees: &Option<Vec<x509_parser::extensions::GeneralSubtree<'_>>>| {
            let name = |name: &GeneralName<'_>| match name {
                GeneralName::DNSName(name) => format!("dns {name}"),
                GeneralName::RFC822Name(name) => format!("email {name}"),
                GeneralName::URI(name) => format!("uri {name}"),
                GeneralName::IPAddress(bytes) => {
                    format!(
                        "ip of {} bytes, {}",
                        bytes.len(),
                        bytes.iter().all(|b| *b == 0)
                    )
                }
                other => panic!("{other:?}"),
            };
            subtrees
                .iter()
                .flatten()
                .map(|subtree| name(&subtree.base))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            names(&constraints.1.permitted_subtrees),
            [
                "dns api.example.com",
                "dns example.org",
                "email invalid",
                "uri invalid"
            ]
        );
        assert_eq!(
            names(&constraints.1.excluded_subtrees),
            [
                "ip of 8 bytes, true",
                "ip of 32 bytes, true",
                "email invalid",
                "uri invalid"
            ]
        );

        // A library rejects such leaves too, even beside a permitted name.
        let (authority, root) = authority(&["api.example.com"]);
        let host = "api.example.com";
        for (name, expected) in [
            (None, true),
            (
                Some(SanType::Rfc822Name("admin@example.com".try_into().unwrap())),
                false,
            ),
            (
                Some(SanType::URI(
                    "spiffe://example.com/admin".try_into().unwrap(),
                )),
                false,
            ),
            (Some(SanType::IpAddress([10, 0, 0, 1].into())), false),
        ] {
            let mut params = CertificateParams::new([host.to_owned()]).unwrap();
            params.subject_alt_names.extend(name.clone());
            params.distinguished_name = DistinguishedName::new();
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
            let certificate = params.signed_by(&key, &authority.issuer).unwrap();
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let chain = vec![certificate.der().clone()];
            let leaf = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider()).unwrap();
            assert_eq!(is_trusted(&root, &leaf, host), expected, "{name:?}");
        }
    }

    #[test]
    fn an_authority_that_can_certify_more_is_told_apart() {
        type Change = fn(&mut CertificateParams);
        fn constrain(params: &mut CertificateParams, content: Vec<u8>, is_critical: bool) {
            let mut extension = CustomExtension::from_oid_content(NAME_CONSTRAINTS, content);
            extension.set_criticality(is_critical);
            params.custom_extensions = vec![extension];
        }
        const HOSTS: [&str; 2] = ["a.example", "b.example"];
        let cases: [(&str, Change, bool); 11] = [
            ("as made", |_| {}, true),
            (
                "for one host",
                |params| constrain(params, name_constraints(&["a.example"]), true),
                true,
            ),
            ("none", |params| params.custom_extensions.clear(), false),
            (
                "not critical",
                |params| constrain(params, name_constraints(&HOSTS), false),
                false,
            ),
            (
                "no host",
                |params| constrain(params, name_constraints(&[]), true),
                false,
            ),
            (
                "all hosts",
                |params| constrain(params, name_constraints(&["a.example", ""]), true),
                false,
            ),
            (
                "addresses alone",
                |params| {
                    let address = encode_der(0x30, &encode_der(IP_ADDRESS, &[0; 8]));
                    constrain(params, encode_der(0x30, &encode_der(0xa1, &address)), true);
                },
                false,
            ),
            (
                "hosts alone",
                |params| {
                    let host = encode_der(0x30, &encode_der(DNS, b"a.example"));
                    constrain(params, encode_der(0x30, &encode_der(0xa0, &host)), true);
                },
                false,
            ),
            (
                "any use",
                |params| params.extended_key_usages.clear(),
                false,
            ),
            (
                "for code",
                |params| {
                    params
                        .extended_key_usages
                        .push(ExtendedKeyUsagePurpose::CodeSigning)
                },
                false,
            ),
            (
                "above others",
                |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained),
                false,
            ),
        ];
        for (name, change, is_limited) in cases {
            let mut params = authority_params(&HOSTS, 30, OffsetDateTime::now_utc()).unwrap();
            change(&mut params);
            let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
            let cert_pem = params.self_signed(&key).unwrap().pem();
            let authority = Authority::load(&cert_pem, &key.serialize_pem()).unwrap();
            assert_eq!(authority.is_limited(), is_limited, "{name}");
        }
    }

    #[test]
    fn a_leaf_is_kept_and_renewed_before_its_end() {
        let (authority, _) = authority(&["example.com"]);
        let now = OffsetDateTime::now_utc();
        let first = authority.server_config("example.com", now).unwrap();
        assert!(Arc::ptr_eq(
            &first,
            &authority
                .server_config("example.com", now + Duration::hours(22))
                .unwrap()
        ));
        assert!(!Arc::ptr_eq(
            &first,
            &authority
                .server_config("example.com", now + Duration::hours(24))
                .unwrap()
        ));
    }

    #[test]
    fn authority_rejects_leaf_certificates_and_foreign_keys() {
        let now = OffsetDateTime::now_utc();
        let (one, other) = (
            create_authority(&["a.example"], 1, now).unwrap(),
            create_authority(&["b.example"], 1, now).unwrap(),
        );
        assert!(matches!(
            Authority::load(&one.cert_pem, &other.key_pem),
            Err(AuthorityError::KeyMismatch)
        ));
        assert!(matches!(
            Authority::load("no PEM", &one.key_pem),
            Err(AuthorityError::NotAnAuthority)
        ));
        assert!(matches!(
            Authority::load(&one.cert_pem, "no PEM"),
            Err(AuthorityError::Unusable(_))
        ));
        let leaf = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        let loaded = Authority::load(&leaf.cert.pem(), &leaf.signing_key.serialize_pem());
        assert!(matches!(loaded, Err(AuthorityError::NotAnAuthority)));
    }
}
