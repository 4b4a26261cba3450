//! Checks of certificates, authorities and revocation lists: they must load, match, and not expire
//! soon.

use std::path::Path;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use time::OffsetDateTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::Report;
use sealwire_server::tls;
use sealwire_service::bearer::{TokenVerifier, UnixClock};
use sealwire_service::tls_files;
use sealwire_settings::Config;

const CHECK: &str = "certificates";
/// Number of days before the expiry from which a certificate causes a warning.
const DAYS_FEW: i64 = 30;
/// Remedy for a certificate that expires.
const RENEW: &str = "install a new certificate; the engine loads it without a restart";

pub(super) fn check_certificates(report: &mut Report, config: &Config) {
    let why = "the engine does not start with it";
    let remedy = "correct the path, owner or permissions of the named file, or restore it from a backup. A certificate that has expired is issued anew by the same authority (`sealwire certs`, docs/operators/certificates.md)";
    if let Err(error) = tls::load(&config.tls, config.control.as_ref()) {
        report.add_problem(CHECK, with_cause(&error), why, remedy);
    }
    if let Err(error) = TokenVerifier::open(&config.issuers.0, UnixClock::system()) {
        report.add_problem(
            CHECK,
            error.to_string(),
            why,
            "correct the path, owner, permissions or content of the named file",
        );
    }
    check_server_chain(report, &config.tls.certificate);
    check_authorities(report, "tls.client_ca", &config.tls.client_ca);
    if let Some(lists) = &config.tls.client_crl {
        check_revocation_lists(report, "tls.client_crl", lists, &config.tls.client_ca);
    }
    if let Some(control) = &config.control {
        if let Some(authority) = &control.client_ca {
            check_authorities(report, "control.client_ca", authority);
        }
        if let Some(lists) = &control.client_crl {
            let of = control.client_ca.as_ref().unwrap_or(&config.tls.client_ca);
            check_revocation_lists(report, "control.client_crl", lists, of);
        }
    }
}

fn with_cause(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Returns every certificate of a file, or none if the file cannot be read, which the loading check
/// has reported.
fn read_certificates(file: &Path) -> Vec<CertificateDer<'static>> {
    tls_files::certificates(file).unwrap_or_default()
}

fn parse_certificates<'a>(ders: &'a [CertificateDer<'static>]) -> Vec<X509Certificate<'a>> {
    ders.iter()
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, parsed)| parsed)
        .collect()
}

/// Checks the server's own chain.
fn check_server_chain(report: &mut Report, file: &Path) {
    let ders = read_certificates(file);
    let chain = parse_certificates(&ders);
    let Some(leaf) = chain.first() else { return };
    let at = file.display();
    let names = leaf
        .subject_alternative_name()
        .ok()
        .flatten()
        .map_or(0, |names| names.value.general_names.len());
    if names == 0 {
        report.add_problem(
            CHECK,
            format!("tls.certificate: {at} has no subject alternative names"),
            "clients reject it, because they compare the host with these names only",
            "issue a certificate with the names and addresses that clients connect to: `sealwire certs server`",
        );
    }
    if let Ok(Some(usage)) = leaf.extended_key_usage()
        && !(usage.value.server_auth || usage.value.any)
    {
        report.add_problem(
            CHECK,
            format!("tls.certificate: {at} is not for servers"),
            "clients reject it, because its extended key usage lacks serverAuth",
            "issue a certificate for a server: `sealwire certs server`",
        );
    }
    for (below, above) in chain.iter().zip(chain.iter().skip(1)) {
        if below.issuer() != above.subject()
            || below.verify_signature(Some(above.public_key())).is_err()
        {
            report.add_problem(
                CHECK,
                format!(
                    "tls.certificate: {at}: {} is followed by one that did not issue it",
                    escaped_subject(below)
                ),
                "clients cannot build the chain to the authority that they trust",
                "put the server's certificate first, and after each certificate the one of its issuer",
            );
        }
    }
    check_expiry(
        report,
        "tls.certificate",
        file,
        &chain,
        "clients reject the engine's certificate after this date",
    );
}

fn check_authorities(report: &mut Report, key: &str, file: &Path) {
    let ders = read_certificates(file);
    let all = parse_certificates(&ders);
    for authority in &all {
        if !authority.is_ca() {
            report.add_problem(
                CHECK,
                format!(
                    "{key}: {}: {} may not issue certificates",
                    file.display(),
                    escaped_subject(authority)
                ),
                "no client certificate can be issued by it",
                "name the authority that issues client certificates, not a client certificate",
            );
        }
    }
    check_expiry(
        report,
        key,
        file,
        &all,
        "the engine rejects clients of this authority after this date",
    );
}

/// Returns the subject of a certificate for a terminal: control characters in its names are
/// escaped.
fn escaped_subject(certificate: &X509Certificate<'_>) -> String {
    certificate.subject().to_string().escape_debug().to_string()
}

/// Checks the expiry of certificates.
fn check_expiry(
    report: &mut Report,
    key: &str,
    file: &Path,
    all: &[X509Certificate<'_>],
    why: &'static str,
) {
    let now = OffsetDateTime::now_utc();
    for certificate in all {
        let start = certificate.validity().not_before.to_datetime();
        let end = certificate.validity().not_after.to_datetime();
        let what = format!(
            "{key}: {}: {}",
            file.display(),
            escaped_subject(certificate)
        );
        let days = (end - now).whole_days();
        if now < start {
            report.add_problem(
                CHECK,
                format!("{what} is valid only from {start}"),
                "the certificate is rejected until then",
                "check the clocks of this machine and of the machine that issued the certificate",
            );
        } else if now > end {
            report.add_problem(
                CHECK,
                format!("{what} expired on {}", end.date()),
                why,
                RENEW,
            );
        } else if days < DAYS_FEW {
            report.add_warning(
                CHECK,
                format!("{what} expires in {}", days_text(days)),
                why,
                RENEW,
            );
        } else {
            report.add_good(CHECK, format!("{what} is valid for {}", days_text(days)));
        }
    }
}

/// Returns a number of days with its noun.
fn days_text(days: i64) -> String {
    format!("{days} {}", if days == 1 { "day" } else { "days" })
}

/// Checks that each authority has a current revocation list.
fn check_revocation_lists(report: &mut Report, key: &str, file: &Path, authorities: &Path) {
    let lists: Vec<CertificateRevocationListDer<'static>> = tls_files::read_pem(file)
        .ok()
        .and_then(|pem| tls_files::items(&pem, "PEM revocation list").ok())
        .unwrap_or_default();
    let lists: Vec<CertificateRevocationList<'_>> = lists
        .iter()
        .filter_map(|der| CertificateRevocationList::from_der(der).ok())
        .map(|(_, list)| list)
        .collect();
    if lists.is_empty() {
        return; // The check that loads the TLS files has reported this.
    }
    let at = file.display();
    let now = OffsetDateTime::now_utc();
    for list in &lists {
        let issuer = list.issuer();
        let age = (now - list.last_update().to_datetime()).whole_days();
        match list.next_update().map(|next| next.to_datetime()) {
            Some(next) if next < now => report.add_warning(
                CHECK,
                format!(
                    "{key}: {at}: a newer list of {issuer} was due on {}",
                    next.date()
                ),
                "clients that were revoked since then are still accepted",
                "issue a new list with the authority, and install it there",
            ),
            _ => report.add_good(
                CHECK,
                format!(
                    "{key}: {at}: the list of {issuer} is {} old",
                    days_text(age)
                ),
            ),
        }
    }
    let ders = read_certificates(authorities);
    for authority in parse_certificates(&ders).iter().filter(|authority| {
        !lists
            .iter()
            .any(|list| list.issuer() == authority.subject())
    }) {
        report.add_problem(
            CHECK,
            format!("{key}: {at} has no list of {}", authority.subject()),
            "the engine rejects all clients of this authority",
            "add a list of this authority, even if it revokes no certificate",
        );
    }
}
