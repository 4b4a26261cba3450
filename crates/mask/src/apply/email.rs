//! `email`: an address at a domain that nobody has, or at the same one.
//!
//! Addresses that are equal but for case get addresses that are equal but for case, and only they do: a unique index on
//! the column survives, and so does one on its lower case.

use sealwire_msgpack::write;

use super::Unfit;
use crate::Value;
use crate::keys::Keyed;
use crate::limits::EMAIL_BYTES_MAX;

const NOT_AN_EMAIL: Unfit = Unfit::Shape("an e-mail address: something, `@`, a domain");

/// RFC 2606 keeps them from ever being anybody's.
const DOMAINS: [&str; 3] = ["example.com", "example.net", "example.org"];

/// What an address begins with, for its looks; what tells addresses apart follows.
const NAMES: [&str; 32] = [
    "alex", "anna", "ben", "carla", "chris", "dana", "david", "elena", "eva", "felix", "hana", "ivan", "jan", "julia",
    "kai", "lara", "leo", "lina", "luca", "maria", "max", "mina", "nico", "nora", "olga", "oscar", "paula", "robin",
    "sara", "tom", "vera", "yuki",
];

/// Characters of 5 bits each: 80 bits.
const CHARS: usize = 16;

#[derive(Debug)]
pub(crate) struct Email {
    keyed: Keyed,
    keeps_domain: bool,
}

impl Email {
    pub(super) fn new(keyed: Keyed, keeps_domain: bool) -> Self {
        Self { keyed, keeps_domain }
    }

    pub(super) fn apply(&self, value: Value<'_>, out: &mut Vec<u8>) -> Result<(), Unfit> {
        let Value::Str(text) = value else { return Err(Unfit::Type) };
        if text.len() > EMAIL_BYTES_MAX {
            return Err(Unfit::TooLong(EMAIL_BYTES_MAX));
        }
        let (local, domain) = text.rsplit_once('@').ok_or(NOT_AN_EMAIL)?;
        if local.is_empty() || domain.is_empty() || domain.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(NOT_AN_EMAIL);
        }
        let is_lower = text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase());
        let lower = if is_lower { None } else { Some(text.to_lowercase()).filter(|lower| lower != text) };
        let hash = self.keyed.hash(b"email", &[lower.as_deref().unwrap_or(text).as_bytes()]);

        let name = NAMES[usize::from(hash[0] % 32)];
        let domain = if self.keeps_domain { domain } else { DOMAINS[usize::from(hash[1]) % DOMAINS.len()] };
        write::str_header(out, name.len() + 1 + CHARS + 1 + domain.len());
        let start = out.len();
        out.extend_from_slice(name.as_bytes());
        out.push(b'.');
        let bits = hash[2..12].iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let chars = b"abcdefghijklmnopqrstuvwxyz234567";
        out.extend((0..CHARS).map(|at| chars[(bits >> (5 * at)) as usize & 31]));
        if lower.is_some() {
            self.capitalize(text, &mut out[start..]);
        }
        out.push(b'@');
        out.extend_from_slice(domain.as_bytes());
        Ok(())
    }

    /// Gives letters the case that the spelling of `text` draws, one capital at least.
    fn capitalize(&self, text: &str, local: &mut [u8]) {
        let hash = self.keyed.hash(b"email/case", &[text.as_bytes()]);
        for (at, byte) in local.iter_mut().enumerate() {
            if hash[at / 8] >> (at % 8) & 1 == 1 || at == 0 {
                byte.make_ascii_uppercase();
            }
        }
    }
}
