//! Email addresses.

use std::borrow::Cow;

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};

use super::{Checked, stored};

/// Longest address in bytes (RFC 5321, erratum 1690).
const EMAIL_BYTES_MAX: usize = 254;
/// Longest part before the `@` in bytes.
const LOCAL_BYTES_MAX: usize = 64;

/// The parts of an email address.
pub(crate) struct EmailParts<'a> {
    /// The part before the last `@`, as given.
    pub(crate) local: &'a str,
    /// The domain in its ASCII form, lower case.
    pub(crate) domain: Cow<'a, str>,
}

impl<'a> EmailParts<'a> {
    /// Splits an address at its last `@`. Returns `None` without an `@`, or if the rest is not a
    /// domain name.
    pub(crate) fn of(text: &'a str) -> Option<Self> {
        let (local, domain) = text.rsplit_once('@')?;
        let domain = Uts46::new()
            .to_ascii(
                domain.as_bytes(),
                AsciiDenyList::STD3,
                Hyphens::Check,
                DnsLength::Verify,
            )
            .ok()?;
        Some(Self { local, domain })
    }
}

/// Stores an address as given.
pub(super) fn check_email(text: &str) -> Checked {
    if text.len() > EMAIL_BYTES_MAX {
        return Err("have at most 254 bytes");
    }
    let Some(EmailParts { local, domain }) = EmailParts::of(text) else {
        return Err("be one address with a valid domain after its last @");
    };
    if !domain.contains('.') {
        return Err("have a domain with a dot");
    }
    if local.is_empty() || local.len() > LOCAL_BYTES_MAX {
        return Err("have 1 to 64 bytes before its last @");
    }
    if !is_local(local) {
        return Err("be one address alone, without name, comments or spaces");
    }
    Ok(stored(text))
}

/// Returns true for a local part without quotes and without characters that need them, or for a
/// quoted one.
fn is_local(local: &str) -> bool {
    match local.strip_prefix('"') {
        Some(quoted) => quoted.strip_suffix('"').is_some_and(is_quoted),
        None => !local.chars().any(|char| {
            char.is_control() || char.is_whitespace() || "()<>[]:;,\\\"@".contains(char)
        }),
    }
}

/// Returns true for the content of a quoted string (RFC 5321, section 4.1.2).
fn is_quoted(content: &str) -> bool {
    let mut chars = content.chars();
    while let Some(char) = chars.next() {
        let is_good = match char {
            '"' => false,
            '\\' => chars.next().is_some_and(|next| !next.is_control()),
            char => !char.is_control(),
        };
        if !is_good {
            return false;
        }
    }
    true
}
