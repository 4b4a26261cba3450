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
use sealwire_service::tls_files;
use sealwire_settings::Config;

const CHECK: &str = "certificates";
/// Number of days before the expiry from which a certificate causes a warning.
const DAYS_FEW: i64 = 30;

pub(super) fn examine(report: &mut Report, config: &Config) {
    let why = "the engine does not start with it";
    let remedy = "correct the path, owner or permissions of the named file, or restore it from a backup. A certificate that has expired is issued anew by the same authority (`sealwire certs`, docs/operators/certificates.md)";
    if let Err(error) = tls::load(&config.tls, config.control.as_ref()) {
        report.wrong(CHECK, with_cause(&error), why, remedy);
    }
    server(report, &config.tls.certificate);
    authorities(report, "tls.client_ca", &config.tls.client_ca);
    if let Some(lists) = &config.tls.client_crl {
        revocation(report, "tls.client_crl", lists, &config.tls.client_ca);
    }
    if let Some(control) = &config.control {
        if let Some(authority) = &control.client_ca {
            authorities(report, "control.client_ca", authority);
        }
        if let Some(lists) = &control.client_crl {
            let of = control.client_ca.as_ref().unwrap_or(&config.tls.client_ca);
            revocation(report, "control.client_crl", lists, of);
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
fn read(file: &Path) -> Vec<CertificateDer<'static>> {
    tls_files::certificates(file).unwrap_or_default()
}

fn parse<'a>(ders: &'a [CertificateDer<'static>]) -> Vec<X509Certificate<'a>> {
    ders.iter()
        .filter_map(|der| X509Certificate::from_der(der).ok())
        .map(|(_, parsed)| parsed)
        .collect()
}

/// Checks the server's own chain.
fn server(report: &mut Report, file: &Path) {
    let ders = read(file);
    let chain = parse(&ders);
    let Some(leaf) = chain.first() else { return };
    let at = file.display();
    let names = leaf
        .subject_alternative_name()
        .ok()
        .flatten()
        .map_or(0, |names| names.value.general_names.len());
    if names == 0 {
        report.wrong(
            CHECK,
            format!("tls.certificate: {at} names no host"),
            "no caller accepts it: the names of hosts are looked for among the alternative names alone",
            "issue one with the names and addresses that callers connect to",
        );
    }
    if let Ok(Some(usage)) = leaf.extended_key_usage()
        && !(usage.value.server_auth || usage.value.any)
    {
        report.wrong(
            CHECK,
            format!("tls.certificate: {at} is not for servers"),
            "no caller accepts it: its extended key usage lacks serverAuth",
            "issue one for a server: `sealwire certs server`",
        );
    }
    for (below, above) in chain.iter().zip(chain.iter().skip(1)) {
        if below.issuer() != above.subject()
            || below.verify_signature(Some(above.public_key())).is_err()
        {
            report.wrong(
                CHECK,
                format!(
                    "tls.certificate: {at}: {} is followed by one that did not issue it",
                    shown(below)
                ),
                "callers cannot follow the chain to the authority they trust",
                "put the server's certificate first, then whoever issued it, in that order",
            );
        }
    }
    ends(
        report,
        "tls.certificate",
        file,
        &chain,
        "callers refuse the engine from then on",
    );
}

fn authorities(report: &mut Report, key: &str, file: &Path) {
    let ders = read(file);
    let all = parse(&ders);
    for authority in &all {
        if !authority.is_ca() {
            report.wrong(
                CHECK,
                format!(
                    "{key}: {}: {} may not issue certificates",
                    file.display(),
                    shown(authority)
                ),
                "no caller's certificate can come from it",
                "name the authority that issues callers' certificates, not one of those",
            );
        }
    }
    ends(
        report,
        key,
        file,
        &all,
        "callers whose certificates come from it are refused from then on",
    );
}

/// Returns the subject of a certificate for a terminal: control characters in its names are
/// escaped.
fn shown(certificate: &X509Certificate<'_>) -> String {
    certificate.subject().to_string().escape_debug().to_string()
}

/// Checks the expiry of certificates.
fn ends(
    report: &mut Report,
    key: &str,
    file: &Path,
    all: &[X509Certificate<'_>],
    why: &'static str,
) {
    let now = OffsetDateTime::now_utc();
    for certificate in all {
        let (from, to) = (
            certificate.validity().not_before.to_datetime(),
            certificate.validity().not_after.to_datetime(),
        );
        let what = format!("{key}: {}: {}", file.display(), shown(certificate));
        let days = (to - now).whole_days();
        if now < from {
            let remedy = "look at the clock of this machine, and of the one that issued it";
            report.wrong(
                CHECK,
                format!("{what} does not hold before {from}"),
                "it is refused until then",
                remedy,
            );
        } else if now > to {
            report.wrong(
                CHECK,
                format!("{what} ended on {}", to.date()),
                why,
                "issue another and put it in its place",
            );
        } else if days < DAYS_FEW {
            report.warn(
                CHECK,
                format!("{what} ends in {days} days"),
                why,
                "issue another and put it in its place",
            );
        } else {
            report.good(CHECK, format!("{what} holds for {days} days"));
        }
    }
}

/// Checks that each authority has a current revocation list.
fn revocation(report: &mut Report, key: &str, file: &Path, authorities: &Path) {
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
        return; // Loading has said so.
    }
    let at = file.display();
    let now = OffsetDateTime::now_utc();
    for list in &lists {
        let issuer = list.issuer();
        let age = (now - list.last_update().to_datetime()).whole_days();
        match list.next_update().map(|next| next.to_datetime()) {
            Some(next) if next < now => report.warn(
                CHECK,
                format!(
                    "{key}: {at}: the list of {issuer} should have been replaced on {}",
                    next.date()
                ),
                "whoever was revoked since is still let in",
                "have the authority issue a new list, and put it there",
            ),
            _ => report.good(
                CHECK,
                format!("{key}: {at}: the list of {issuer} is {age} days old"),
            ),
        }
    }
    let ders = read(authorities);
    for authority in parse(&ders)
        .iter()
        .filter(|it| !lists.iter().any(|list| list.issuer() == it.subject()))
    {
        report.wrong(
            CHECK,
            format!("{key}: {at} has no list of {}", authority.subject()),
            "every caller of an authority without a list is refused",
            "add its list, also when nobody is revoked",
        );
    }
}
