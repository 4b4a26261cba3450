//! `email`: an address at a reserved domain, or at the same domain.
//!
//! Masked addresses are equal except for case if and only if the original addresses are. A unique
//! index on the column therefore stays valid, and so does a unique index on its lower case.

use sealwire_msgpack::write;

use super::Unfit;
use crate::Value;
use crate::keys::KeyedHmac;
use sealwire_mask_rules::limits::EMAIL_BYTES_MAX;

const NOT_AN_EMAIL: Unfit = Unfit::Shape("an e-mail address: something, `@`, a domain");

/// RFC 2606 reserves these domains, so no address there belongs to anybody.
const DOMAINS: [&str; 3] = ["example.com", "example.net", "example.org"];

/// Names at the beginning of an address, for readability only. The characters after the name
/// distinguish addresses.
const NAMES: [&str; 32] = [
    "alex", "anna", "ben", "carla", "chris", "dana", "david", "elena", "eva", "felix", "hana",
    "ivan", "jan", "julia", "kai", "lara", "leo", "lina", "luca", "maria", "max", "mina", "nico",
    "nora", "olga", "oscar", "paula", "robin", "sara", "tom", "vera", "yuki",
];

/// Number of characters after the name, each of 5 bits: 80 bits.
const CHARS: usize = 16;

#[derive(Debug)]
pub(crate) struct Email {
    keyed: KeyedHmac,
    keeps_domain: bool,
}

impl Email {
    pub(super) fn new(keyed: KeyedHmac, keeps_domain: bool) -> Self {
        Self {
            keyed,
            keeps_domain,
        }
    }

    pub(super) fn mask_value(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else {
            return Err(Unfit::Type);
        };
        if text.len() > EMAIL_BYTES_MAX {
            return Err(Unfit::TooLong(EMAIL_BYTES_MAX));
        }
        let (local, domain) = text.rsplit_once('@').ok_or(NOT_AN_EMAIL)?;
        if local.is_empty()
            || domain.is_empty()
            || domain.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(NOT_AN_EMAIL);
        }
        let is_lower = text
            .bytes()
            .all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        let lower = if is_lower {
            None
        } else {
            Some(text.to_lowercase()).filter(|lower| lower != text)
        };
        let hash = self
            .keyed
            .hash(b"email", &[lower.as_deref().unwrap_or(text).as_bytes()]);

        let name = NAMES[usize::from(hash[0] % 32)];
        let domain = if self.keeps_domain {
            domain
        } else {
            DOMAINS[usize::from(hash[1]) % DOMAINS.len()]
        };
        write::str_header(out, name.len() + 1 + CHARS + 1 + domain.len());
        let start = out.len();
        out.extend_from_slice(name.as_bytes());
        out.push(b'.');
        let bits = hash[2..12]
            .iter()
            .fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let chars = b"abcdefghijklmnopqrstuvwxyz234567";
        out.extend((0..CHARS).map(|at| chars[(bits >> (5 * at)) as usize & 31]));
        if lower.is_some() {
            self.capitalize(text, &mut out[start..]);
        }
        out.push(b'@');
        out.extend_from_slice(domain.as_bytes());
        Ok(())
    }

    /// Changes the case of letters, derived from the spelling of `text`. At least one letter
    /// becomes upper case.
    fn capitalize(&self, text: &str, local: &mut [u8]) {
        let hash = self.keyed.hash(b"email/case", &[text.as_bytes()]);
        for (at, byte) in local.iter_mut().enumerate() {
            if hash[at / 8] >> (at % 8) & 1 == 1 || at == 0 {
                byte.make_ascii_uppercase();
            }
        }
    }
}
