//! Checks a relay with all resources in its configuration: files, certificates, addresses,
//! upstreams and the engine.
//!
//! The checks change nothing and keep no port bound. A finding has the setting and the file, and
//! never a secret.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use sealwire_client::Client;
use sealwire_service::trusted_file::{FileKind, TrustedFile};
use time::OffsetDateTime;

use crate::clients::Clients;
use crate::config::{Compiled, Config, ListenConfig};
use crate::egress::authority::Authority;
use crate::server_tls::{ServerFiles, ServerTls, read_secret};
use crate::upstream::Upstream;
use crate::upstream::address::{self, Lookup};
use crate::upstream::error::Stage;
use crate::upstream::tls::UpstreamTls;
use sealwire_service::tls_files::{authorities, certificates};

/// Certificates with less remaining validity than this are reported.
const EXPIRES_SOON: time::Duration = time::Duration::days(14);
/// Longest time to resolve the name of an upstream.
const RESOLVE_MAX: Duration = Duration::from_secs(5);
/// File descriptors besides those of connections: files, listeners, event queues and the admin
/// listener.
const OTHER_FILES: u64 = 128;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// No problem.
    Good,
    /// Works now, but can fail.
    Warning,
    /// Does not work, or is not secure.
    Wrong,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// The setting, such as `listen.public.key`.
    pub place: String,
    /// The finding, and the action to take.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Good => "good",
            Level::Warning => "WARNING",
            Level::Wrong => "WRONG",
        };
        write!(f, "{level:<8} {}: {}", self.place, self.message)
    }
}

/// Checks everything. Waits for DNS and the engine, at most a few seconds for each name.
pub async fn check_all(config: &Config, compiled: &Compiled) -> Vec<Finding> {
    let mut report = Report {
        findings: Vec::new(),
        now: OffsetDateTime::now_utc(),
    };
    for warning in &compiled.warnings {
        report.add_finding(Level::Warning, "configuration", warning);
    }
    report.check_descriptors(config);
    report.check_address("admin.address", config.admin.address);
    for listener in &compiled.listeners {
        let place = format!("listen.{}", listener.name);
        report.check_address(&format!("{place}.address"), listener.config.address);
        report.check_listener(&place, &listener.config);
    }
    for (name, pool) in &compiled.upstreams {
        report
            .check_upstream(&format!("upstream.{name}"), pool.upstream())
            .await;
    }
    report.check_engine(config).await;
    report.findings
}

struct Report {
    findings: Vec<Finding>,
    now: OffsetDateTime,
}

impl Report {
    fn add_finding(&mut self, level: Level, place: impl Into<String>, message: impl Into<String>) {
        self.findings.push(Finding {
            level,
            place: place.into(),
            message: message.into(),
        });
    }

    /// An exchange needs two descriptors, for the client and for the upstream.
    fn check_descriptors(&mut self, config: &Config) {
        let needed = 2 * u64::from(config.limits.connections_max) + OTHER_FILES;
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let place = "limits.connections_max";
        match limit.filter(|limit| *limit < needed) {
            None => self.add_finding(Level::Good, place, format!("{needed} file descriptors are enough")),
            Some(limit) => self.add_finding(
                Level::Warning,
                place,
                format!("the connections need up to {needed} file descriptors, but the limit is {limit}; raise LimitNOFILE"),
            ),
        }
    }

    fn check_address(&mut self, place: &str, address: SocketAddr) {
        match TcpListener::bind(address) {
            Ok(_) => self.add_finding(Level::Good, place, format!("{address} is free")),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                self.add_finding(
                    Level::Warning,
                    place,
                    format!("{address} is in use: by the running relay, or by another program"),
                );
            }
            Err(error) => self.add_finding(
                Level::Wrong,
                place,
                format!("cannot listen on {address}: {error}"),
            ),
        }
        if place == "admin.address" && address.ip().is_unspecified() {
            self.add_finding(
                Level::Warning,
                place,
                "serves metrics without credentials on every address of this machine; name one address",
            );
        }
    }

    fn check_listener(&mut self, place: &str, config: &ListenConfig) {
        if let (Some(certificate), Some(key)) = (&config.certificate, &config.key) {
            let files = ServerFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                client_ca: config.client_ca.clone(),
            };
            if let Err(error) = ServerTls::load(files) {
                self.add_finding(Level::Wrong, place, format!("TLS cannot start: {error}"));
            }
            self.check_certificates(&format!("{place}.certificate"), certificate);
            self.check_secret(&format!("{place}.key"), key);
        }
        if let Some(ca) = &config.client_ca {
            self.check_authorities(&format!("{place}.client_ca"), ca);
        }
        if let Some(tokens) = &config.tokens {
            let place = format!("{place}.tokens");
            match Clients::read_tokens(tokens) {
                Ok(_) => self.check_secret(&place, tokens),
                Err(error) => self.add_finding(Level::Wrong, &place, error),
            }
        }
        if let (Some(certificate), Some(key)) =
            (&config.authority_certificate, &config.authority_key)
        {
            self.check_interception(place, certificate, key);
        }
    }

    fn check_interception(&mut self, place: &str, certificate: &Path, key: &Path) {
        let place = format!("{place}.authority_certificate");
        match load_authority(certificate, key) {
            Ok(authority) => {
                self.check_validity(&place, self.now, authority.not_after());
                if !authority.is_limited() {
                    let message = "the authority can issue certificates for other names than its hosts, or for other uses than TLS servers; `sealwire-relay authority` creates a constrained authority";
                    self.add_finding(Level::Warning, &place, message);
                }
            }
            Err(error) => self.add_finding(Level::Wrong, &place, error),
        }
        self.check_secret(
            &place.replace("authority_certificate", "authority_key"),
            key,
        );
    }

    async fn check_upstream(&mut self, place: &str, upstream: &Upstream) {
        if upstream.is_tls {
            if let Err(error) = UpstreamTls::default().config(upstream) {
                self.add_finding(Level::Wrong, place, format!("TLS cannot start: {error}"));
            }
            if let Some(file) = &upstream.roots {
                self.check_authorities(&format!("{place}.roots"), file);
            }
        }
        if let Some((certificate, key)) = &upstream.identity {
            self.check_certificates(&format!("{place}.certificate"), certificate);
            self.check_secret(&format!("{place}.key"), key);
        }
        let place = format!("{place}.url");
        let resolving = address::resolve(
            &upstream.host,
            upstream.port,
            &upstream.addresses,
            Lookup::OfUpstream,
        );
        match tokio::time::timeout(RESOLVE_MAX, resolving).await {
            Ok(Ok(addresses)) => {
                let addresses = count(addresses.len(), "address", "addresses");
                self.add_finding(Level::Good, place, format!("the host has {addresses}"));
            }
            Ok(Err(error)) if error.stage == Stage::Denied => self.add_finding(
                Level::Wrong,
                place,
                "the host has an address that `addresses` does not permit (empty: public addresses only); if the address is yours, add its network",
            ),
            Ok(Err(_)) => self.add_finding(Level::Wrong, place, "the host has no address"),
            Err(_) => self.add_finding(Level::Wrong, place, format!("DNS did not respond within {} s", RESOLVE_MAX.as_secs())),
        }
    }

    /// Checks the files of the client, then requests the version and methods of an engine.
    async fn check_engine(&mut self, config: &Config) {
        let engine = &config.engine;
        self.check_authorities("engine.ca", &engine.ca);
        self.check_certificates("engine.certificate", &engine.certificate);
        self.check_secret("engine.key", &engine.key);
        let place = "engine.endpoints";
        let info = match Client::lazy(engine.client()) {
            Ok(client) => client.info().await,
            Err(error) => Err(error),
        };
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                return self.add_finding(
                    Level::Wrong,
                    place,
                    format!("no engine responds: {error}"),
                );
            }
        };
        self.add_finding(
            Level::Good,
            place,
            format!("an engine of version {} responds", info.version),
        );
        let rules = config
            .route
            .iter()
            .flat_map(|route| route.request.iter().chain(&route.response));
        let mut missing: Vec<&str> = rules.map(|rule| rule.action.name()).collect();
        missing.retain(|action| !info.methods.iter().any(|method| method == action));
        missing.sort_unstable();
        missing.dedup();
        for action in missing {
            self.add_finding(
                Level::Wrong,
                place,
                format!("the engine does not serve {action}, which rules need"),
            );
        }
    }

    /// Checks that a file has authorities. An expired one among others does no harm, such as in the
    /// system's file.
    fn check_authorities(&mut self, place: &str, file: &Path) {
        match authorities(file) {
            Ok(roots) => {
                let authorities = count(roots.len(), "authority", "authorities");
                self.add_finding(Level::Good, place, format!("the file has {authorities}"));
            }
            Err(error) => self.add_finding(Level::Wrong, place, error.to_string()),
        }
    }

    /// Checks the validity of every certificate of a chain.
    fn check_certificates(&mut self, place: &str, file: &Path) {
        let chain = match certificates(file) {
            Ok(chain) => chain,
            Err(error) => return self.add_finding(Level::Wrong, place, error.to_string()),
        };
        let validities: Option<Vec<_>> = chain.iter().map(validity_of).collect();
        let ends = validities.and_then(|validities| {
            let start = validities.iter().map(|(start, _)| *start).max()?;
            Some((start, validities.iter().map(|(_, end)| *end).min()?))
        });
        match ends {
            Some((start, end)) => self.check_validity(place, start, end),
            None => self.add_finding(
                Level::Wrong,
                place,
                format!("{}: a certificate cannot be read", file.display()),
            ),
        }
    }

    fn check_validity(&mut self, place: &str, start: OffsetDateTime, end: OffsetDateTime) {
        let (level, message) = if start > self.now {
            (Level::Wrong, format!("is valid only from {}", start.date()))
        } else if end <= self.now {
            (
                Level::Wrong,
                format!("has expired on {}; renew it", end.date()),
            )
        } else if end - self.now < EXPIRES_SOON {
            (
                Level::Warning,
                format!("expires on {}; renew it", end.date()),
            )
        } else {
            (Level::Good, format!("is valid until {}", end.date()))
        };
        self.add_finding(level, place, message);
    }

    /// Checks that only owner and group can read a secret, and only the owner can change it.
    fn check_secret(&mut self, place: &str, file: &Path) {
        match TrustedFile::open(file, FileKind::Secret) {
            Ok(_) => self.add_finding(Level::Good, place, "other users cannot read it"),
            Err(error) => self.add_finding(Level::Wrong, place, error.to_string()),
        }
    }
}

fn load_authority(certificate: &Path, key: &Path) -> Result<Authority, String> {
    let certificate_pem = fs::read_to_string(certificate)
        .map_err(|error| format!("{}: {error}", certificate.display()))?;
    let key_pem = read_secret(key).map_err(|error| error.to_string())?;
    Authority::load(&certificate_pem, &key_pem).map_err(|error| error.to_string())
}

/// Returns a number with its noun.
fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Returns start and end of a certificate's validity.
fn validity_of(certificate: &CertificateDer<'_>) -> Option<(OffsetDateTime, OffsetDateTime)> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let validity = certificate.validity();
    Some((
        validity.not_before.to_datetime(),
        validity.not_after.to_datetime(),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use sealwire_dev_ca::{Leaf, Name, Usage, Validity};

    use super::*;
    use crate::config::{compile, parse};
    use crate::egress::authority;

    /// A folder with every file of [`text`].
    fn folder(days: u32) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str, mode: u32| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            chmod(&path, mode);
        };
        let ca = sealwire_dev_ca::Authority::create("test", Validity::days(400)).unwrap();
        let leaf = Leaf {
            common_name: "relay".into(),
            names: vec![Name::Dns("relay.example".into())],
            usage: Usage::Server,
            validity: Validity::days(days),
        };
        let issued = ca.issue(&leaf).unwrap();
        write("ca.pem", ca.cert_pem(), 0o644);
        write("cert.pem", &issued.cert_pem, 0o644);
        write("key.pem", issued.key_pem.expose(), 0o600);
        write("tokens", "0123456789abcdefghij\n", 0o640);
        let interception =
            authority::create_authority(&["api.example"], 100, OffsetDateTime::now_utc()).unwrap();
        write("egress.pem", &interception.cert_pem, 0o644);
        write("egress-key.pem", &interception.key_pem, 0o400);
        folder
    }

    fn text(folder: &Path) -> String {
        "[engine]\nendpoints = ['127.0.0.1:1']\nca = '$/ca.pem'\ncertificate = '$/cert.pem'\nkey = '$/key.pem'\ndeadline_ms = 200\n\
         [admin]\naddress = '127.0.0.1:0'\n\
         [listen.public]\naddress = '127.0.0.1:0'\ncertificate = '$/cert.pem'\nkey = '$/key.pem'\nclient_ca = '$/ca.pem'\n\
         [listen.egress]\naddress = '127.0.0.1:0'\nkind = 'forward'\nclients = 'bearer'\ntokens = '$/tokens'\n\
         authority_certificate = '$/egress.pem'\nauthority_key = '$/egress-key.pem'\n\
         [upstream.shop]\nurl = 'https://127.0.0.1:1'\nroots = '$/ca.pem'\naddresses = ['127.0.0.0/8']\n\
         certificate = '$/cert.pem'\nkey = '$/key.pem'\n\
         [[route]]\nname = 'r'\nlisten = 'public'\npath = '/'\nupstream = 'shop'\npass = true\n"
            .replace('$', &folder.display().to_string())
    }

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Returns places and texts of findings that are not good, except those of the engine, which
    /// does not run.
    async fn problems(text: &str) -> Vec<String> {
        let config = parse(text, []).unwrap_or_else(|errors| panic!("{errors}"));
        let findings = check_all(&config, &compile(&config).unwrap()).await;
        let is_problem = |finding: &&Finding| {
            finding.level > Level::Good
                && !matches!(
                    &*finding.place,
                    "engine.endpoints" | "limits.connections_max"
                )
        };
        let told: Vec<_> = findings
            .iter()
            .filter(is_problem)
            .map(ToString::to_string)
            .collect();
        assert!(
            told.iter()
                .all(|text| !text.contains("0123456789") && !text.contains("PRIVATE")),
            "{told:?}"
        );
        told
    }

    #[tokio::test]
    async fn a_sound_relay_has_no_problem_but_its_engine() {
        let folder = folder(100);
        assert_eq!(problems(&text(folder.path())).await, Vec::<String>::new());
        let envoy = "[listen.envoy]\naddress = '127.0.0.1:0'\nkind = 'ext_proc'\ncertificate = '$/cert.pem'\nkey = '$/key.pem'\n\
             client_ca = '$/ca.pem'\n[[route]]\nname = 'e'\nlisten = 'envoy'\npath = '/'\npass = true\n";
        let beside_envoy =
            text(folder.path()) + &envoy.replace('$', &folder.path().display().to_string());
        assert_eq!(problems(&beside_envoy).await, Vec::<String>::new());
        let config = parse(&text(folder.path()), []).unwrap();
        let findings = check_all(&config, &compile(&config).unwrap()).await;
        let engine = findings
            .iter()
            .find(|finding| finding.place == "engine.endpoints")
            .unwrap();
        assert_eq!(engine.level, Level::Wrong);
        assert!(engine.message.starts_with("no engine responds"), "{engine}");
    }

    #[tokio::test]
    async fn files_of_the_configuration_are_checked() {
        type Case<'a> = (&'a str, fn(&Path), &'a [&'a str]);
        let cases: [Case<'_>; 8] = [
            (
                "key.pem",
                |path| chmod(path, 0o644),
                &["listen.public.key", "upstream.shop.key", "engine.key"],
            ),
            (
                "tokens",
                |path| chmod(path, 0o620),
                &["listen.egress.tokens"],
            ),
            (
                "egress-key.pem",
                |path| chmod(path, 0o604),
                &["listen.egress.authority_key"],
            ),
            (
                "ca.pem",
                |path| fs::write(path, "").unwrap(),
                &["client_ca", "shop.roots", "engine.ca"],
            ),
            (
                "cert.pem",
                |path| fs::write(path, "").unwrap(),
                &["public.certificate", "engine.certificate"],
            ),
            (
                "key.pem",
                |path| fs::remove_file(path).unwrap(),
                &["listen.public.key", "engine.key"],
            ),
            (
                "tokens",
                |path| fs::write(path, "short").unwrap(),
                &["listen.egress.tokens"],
            ),
            (
                "egress.pem",
                |path| fs::write(path, "x").unwrap(),
                &["listen.egress.authority_certificate"],
            ),
        ];
        for (file, break_it, expected) in cases {
            let folder = folder(100);
            break_it(&folder.path().join(file));
            let problems = problems(&text(folder.path())).await;
            for place in expected {
                assert!(
                    problems
                        .iter()
                        .any(|told| told.starts_with("WRONG") && told.contains(place)),
                    "{file}: {problems:?}"
                );
            }
        }
    }

    #[tokio::test]
    async fn certificates_that_expire_soon_are_told() {
        let problems = problems(&text(folder(3).path())).await;
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(
            problems
                .iter()
                .all(|told| told.starts_with("WARNING") && told.contains("expires on")),
            "{problems:?}"
        );
    }

    #[test]
    fn validity_has_a_begin_and_an_end() {
        let now = OffsetDateTime::now_utc();
        let day = time::Duration::days(1);
        for (begin, end, expected) in [
            (now - day, now + 15 * day, Level::Good),
            (now - day, now + 13 * day, Level::Warning),
            (now - day, now - day, Level::Wrong),
            (now + day, now + 15 * day, Level::Wrong),
        ] {
            let mut report = Report {
                findings: Vec::new(),
                now,
            };
            report.check_validity("x", begin, end);
            assert_eq!(report.findings[0].level, expected);
        }
    }

    #[tokio::test]
    async fn addresses_in_use_and_of_others_are_told() {
        let folder = folder(100);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let problems = problems(
            &text(folder.path())
                .replacen("'127.0.0.1:0'", &format!("'{address}'"), 1)
                .replacen("'127.0.0.1:0'", "'203.0.113.1:9'", 1)
                .replace("127.0.0.0/8", "10.0.0.0/8"),
        )
        .await;
        for expected in [
            format!("WARNING  admin.address: {address} is in use"),
            "WRONG    listen.public.address: cannot listen on".to_owned(),
            "WRONG    upstream.shop.url: the host has an address that `addresses` does not permit"
                .to_owned(),
        ] {
            assert!(
                problems.iter().any(|told| told.starts_with(&expected)),
                "{expected}: {problems:?}"
            );
        }
    }
}
