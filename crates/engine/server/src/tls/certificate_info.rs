//! Information about certificates for logs, metrics and `sealwire config check`: names,
//! fingerprints and expiry. This information is not secret.

use std::fmt;
use std::net::IpAddr;

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use sha2::{Digest as _, Sha256};
use time::{Duration, OffsetDateTime};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use sealwire_telemetry::metrics::CertificateLabel;

/// Maximum length of the logged names, in characters.
const NAMES_MAX: usize = 128;
/// Replaces a name that is not valid text.
const UNREADABLE: &str = "(unreadable name)";
/// Days before expiry at which a warning is logged.
const WARNING_DAYS: [i64; 3] = [30, 7, 1];

/// A certificate or revocation list in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The use of the certificate or list.
    pub label: CertificateLabel,
    /// SHA-256 digest of the DER encoding.
    pub fingerprint: [u8; 32],
    /// The common and alternative names of a certificate, or the issuer of a list. Printable.
    pub names: String,
    /// Start of the validity period, or `thisUpdate` of a list.
    pub valid_from: OffsetDateTime,
    /// `notAfter` of a certificate, or `nextUpdate` of a list, which is optional.
    pub expires_at: Option<OffsetDateTime>,
    /// Number of certificates that a list revokes. `None` for a certificate.
    pub revoked: Option<usize>,
}

/// How close the expiry is, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpiryStage {
    /// No warning is due.
    Good,
    /// The first, second or third warning is due.
    Warned(u8),
    /// The certificate or list has expired.
    Over,
}

impl CertificateInfo {
    pub(super) fn certificate(label: CertificateLabel, der: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der).ok()?;
        let common_names = certificate.subject().iter_common_name();
        let mut names: Vec<String> = common_names
            .map(|name| name.as_str().unwrap_or(UNREADABLE).to_owned())
            .collect();

        if let Ok(Some(alternative)) = certificate.subject_alternative_name() {
            names.extend(
                alternative
                    .value
                    .general_names
                    .iter()
                    .filter_map(|name| match name {
                        GeneralName::DNSName(name) | GeneralName::URI(name) => {
                            Some((*name).to_owned())
                        }
                        GeneralName::IPAddress(bytes) => address(bytes),
                        GeneralName::Invalid(..) => Some(UNREADABLE.to_owned()),
                        _ => None,
                    }),
            );
        }

        names.dedup();
        let validity = certificate.validity();
        Some(Self {
            label,
            fingerprint: Sha256::digest(der).into(),
            names: printable(&names.join(", ")),
            valid_from: validity.not_before.to_datetime(),
            expires_at: Some(validity.not_after.to_datetime()),
            revoked: None,
        })
    }

    pub(super) fn list(
        label: CertificateLabel,
        der: &CertificateRevocationListDer<'_>,
    ) -> Option<Self> {
        let (_, list) = CertificateRevocationList::from_der(der).ok()?;
        Some(Self {
            label,
            fingerprint: Sha256::digest(der).into(),
            names: printable(&list.issuer().to_string()),
            valid_from: list.last_update().to_datetime(),
            expires_at: list.next_update().map(|at| at.to_datetime()),
            revoked: Some(list.iter_revoked_certificates().count()),
        })
    }

    /// Returns how close the expiry is. Warnings are due 30 days, 7 days and one day before the
    /// expiry, but not before a third of the lifetime is left. A certificate that is renewed every
    /// day therefore causes no 30-day warning.
    pub fn stage(&self, now: OffsetDateTime) -> ExpiryStage {
        let Some(expires_at) = self.expires_at else {
            return ExpiryStage::Good;
        };
        let left = expires_at - now;

        if left < Duration::ZERO {
            return ExpiryStage::Over;
        }

        let third = (expires_at - self.valid_from) / 3;
        let due = WARNING_DAYS
            .iter()
            .filter(|days| left <= Duration::days(**days).min(third))
            .count();

        if due == 0 {
            ExpiryStage::Good
        } else {
            ExpiryStage::Warned(due as u8)
        }
    }

    /// Returns the configuration key of the file that contains the certificate or list.
    pub fn key(&self) -> &'static str {
        match self.label {
            CertificateLabel::Server => "tls.certificate",
            CertificateLabel::ClientCa => "tls.client_ca",
            CertificateLabel::ClientCrl => "tls.client_crl",
            CertificateLabel::ControlClientCa => "control.client_ca",
            CertificateLabel::ControlClientCrl => "control.client_crl",
        }
    }

    /// Returns the fingerprint in hexadecimal.
    pub fn fingerprint(&self) -> String {
        self.fingerprint
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

impl fmt::Display for CertificateInfo {
    /// Formats one line for `config check`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key(), self.names)?;
        if let Some(revoked) = self.revoked {
            write!(f, ", {revoked} revoked")?;
        }

        let now = OffsetDateTime::now_utc();
        match self.expires_at {
            Some(expires_at) if expires_at < now => {
                write!(f, ", OVER since {}", second(expires_at))?
            }
            Some(expires_at) => {
                let soon = if self.stage(now) == ExpiryStage::Good {
                    ""
                } else {
                    ", SOON"
                };
                write!(
                    f,
                    ", until {} ({} days{soon})",
                    second(expires_at),
                    (expires_at - now).whole_days()
                )?;
            }
            None => write!(f, ", without an end")?,
        }
        write!(f, ", SHA-256 {}", self.fingerprint())
    }
}

/// Formats a time, for example `2026-03-14 09:26:53 UTC`.
pub(crate) fn second(at: OffsetDateTime) -> String {
    let date = at.date();
    let time = at.time();
    format!(
        "{date} {:02}:{:02}:{:02} UTC",
        time.hour(),
        time.minute(),
        time.second()
    )
}

fn address(bytes: &[u8]) -> Option<String> {
    let address = if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        IpAddr::from(v4)
    } else {
        IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)
    };
    Some(address.to_string())
}

/// Makes names safe for a log. An authority can put any bytes into a name.
fn printable(names: &str) -> String {
    let mut text: String = names
        .chars()
        .take(NAMES_MAX)
        .map(|c| {
            if c.is_alphanumeric() || c.is_ascii_graphic() || c == ' ' {
                c
            } else {
                '?'
            }
        })
        .collect();

    if names.chars().nth(NAMES_MAX).is_some() {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expiry_warnings_are_due_at_30_7_and_1_days_or_a_third_of_a_short_lifetime() {
        let now = OffsetDateTime::now_utc();
        let certificate = |lives: i64, left: i64| {
            let expires_at = now + Duration::hours(left);
            let fingerprint = [0; 32];
            let names = String::new();
            CertificateInfo {
                label: CertificateLabel::Server,
                fingerprint,
                names,
                valid_from: expires_at - Duration::hours(lives),
                expires_at: Some(expires_at),
                revoked: None,
            }
        };
        const YEAR: i64 = 365 * 24;
        for (lives, left, stage) in [
            (YEAR, 31 * 24, ExpiryStage::Good),
            (YEAR, 30 * 24, ExpiryStage::Warned(1)),
            (YEAR, 7 * 24 + 1, ExpiryStage::Warned(1)),
            (YEAR, 7 * 24, ExpiryStage::Warned(2)),
            (YEAR, 24, ExpiryStage::Warned(3)),
            (YEAR, 0, ExpiryStage::Warned(3)),
            (YEAR, -1, ExpiryStage::Over),
            (90 * 24, 30 * 24, ExpiryStage::Warned(1)),
            (30 * 24, 11 * 24, ExpiryStage::Good),
            (30 * 24, 10 * 24, ExpiryStage::Warned(1)),
            (24, 9, ExpiryStage::Good),
            (24, 8, ExpiryStage::Warned(3)),
        ] {
            assert_eq!(
                certificate(lives, left).stage(now),
                stage,
                "lives {lives} h, {left} h left"
            );
        }
        assert_eq!(
            CertificateInfo {
                expires_at: None,
                ..certificate(24, 1)
            }
            .stage(now),
            ExpiryStage::Good
        );
    }

    #[test]
    fn logged_names_are_printable_and_bounded() {
        assert_eq!(printable("a\nb\u{202e}c"), "a?b?c");
        assert_eq!(printable(&"x".repeat(200)).len(), NAMES_MAX + 3);
        assert_eq!(address(&[127, 0, 0, 1]).unwrap(), "127.0.0.1");
        assert_eq!(address(&[0; 16]).unwrap(), "::");
        assert_eq!(address(&[0; 5]), None);
    }
}
