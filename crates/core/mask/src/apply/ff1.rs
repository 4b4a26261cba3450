//! Format-preserving encryption: FF1 of NIST SP 800-38G with AES-256, by the `fpe` crate. The
//! numerals are a type of this module that needs only stack memory.
//!
//! Domains below 1,000,000 are rejected, as revision 1 of the standard requires. Each half of the
//! numerals is one integer of at most 96 bits. The additions of a round therefore fit in 128 bits.
//! This bounds the length.

use aes::Aes256Enc;
use fpe::ff1::{FF1, NumeralString, Operations};

use super::Unfit;

/// Minimum number of possible values of a numeral string.
const DOMAIN_MIN: u128 = 1_000_000;

/// Maximum number of numerals, which decimal numerals reach.
pub(super) const NUMERALS_MAX: usize = 56;

/// A keyed permutation of the numeral strings of each length, one per tweak.
pub(super) struct Ff1 {
    /// Boxed, so that a move leaves no copy of the key behind.
    cipher: Box<FF1<Aes256Enc>>,
    radix: u32,
    len_min: usize,
    len_max: usize,
}

impl Ff1 {
    /// Wraps `cipher`, which must have been created for `radix` (10 to 62).
    pub(super) fn new(cipher: FF1<Aes256Enc>, radix: u32) -> Self {
        Self {
            cipher: Box::new(cipher),
            radix,
            len_min: len_min(radix),
            len_max: len_max(radix),
        }
    }

    /// Checks that numeral strings of length `len` have enough possible values and fit the
    /// integers.
    pub(super) fn check(&self, len: usize) -> Result<(), Unfit> {
        if len < self.len_min {
            return Err(Unfit::SmallDomain);
        }
        if len > self.len_max {
            return Err(Unfit::TooLong(self.len_max));
        }
        Ok(())
    }

    /// Encrypts numerals, each below the radix, in place.
    pub(super) fn encrypt(&self, tweak: &[u8], numerals: &mut [u8]) -> Result<(), Unfit> {
        self.check(numerals.len())?;
        let plain = Numerals::read(numerals, self.radix);
        let sealed = self
            .cipher
            .encrypt(tweak, &plain)
            .map_err(|_| Unfit::SmallDomain)?;
        sealed.write(numerals);
        Ok(())
    }

    /// Reverses [`Ff1::encrypt`].
    #[cfg(test)]
    pub(super) fn decrypt(&self, tweak: &[u8], numerals: &mut [u8]) -> Result<(), Unfit> {
        self.check(numerals.len())?;
        let plain = self
            .cipher
            .decrypt(tweak, &Numerals::read(numerals, self.radix))
            .map_err(|_| Unfit::SmallDomain)?;
        plain.write(numerals);
        Ok(())
    }
}

impl std::fmt::Debug for Ff1 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ff1")
            .field("radix", &self.radix)
            .finish_non_exhaustive()
    }
}

fn len_min(radix: u32) -> usize {
    (1..)
        .find(|len| u128::from(radix).pow(*len) >= DOMAIN_MIN)
        .map_or(usize::MAX, |len| len as usize)
}

/// Returns the maximum length: twice the number of numerals that fit in 96 bits.
pub(super) fn len_max(radix: u32) -> usize {
    let half = (1..96)
        .take_while(|len| {
            u128::from(radix)
                .checked_pow(*len)
                .is_some_and(|n| n <= 1 << 96)
        })
        .count();
    (2 * half).min(NUMERALS_MAX)
}

/// Numerals as the two integers that FF1 works on.
struct Numerals {
    front: Half,
    back: Half,
}

/// A half of the numerals: an integer of `len` numerals below `radix`.
#[derive(Clone, Copy)]
struct Half {
    value: u128,
    len: usize,
    radix: u32,
}

impl Half {
    fn read(numerals: &[u8], radix: u32) -> Self {
        let value = numerals.iter().fold(0, |value, numeral| {
            value * u128::from(radix) + u128::from(*numeral)
        });
        Self {
            value,
            len: numerals.len(),
            radix,
        }
    }

    fn write(self, numerals: &mut [u8]) {
        numerals.iter_mut().rev().fold(self.value, |rest, numeral| {
            *numeral = (rest % u128::from(self.radix)) as u8;
            rest / u128::from(self.radix)
        });
    }
}

impl Numerals {
    fn read(numerals: &[u8], radix: u32) -> Self {
        let (front, back) = numerals.split_at(numerals.len() / 2);
        Self {
            front: Half::read(front, radix),
            back: Half::read(back, radix),
        }
    }

    fn write(&self, numerals: &mut [u8]) {
        let (front, back) = numerals.split_at_mut(self.front.len);
        self.front.write(front);
        self.back.write(back);
    }
}

impl NumeralString for Numerals {
    type Ops = Half;

    fn is_valid(&self, radix: u32) -> bool {
        [self.front, self.back]
            .iter()
            .all(|half| half.radix == radix && half.value < power(radix, half.len))
    }

    fn numeral_count(&self) -> usize {
        self.front.len + self.back.len
    }

    fn split(&self) -> (Half, Half) {
        (self.front, self.back)
    }

    fn concat(front: Half, back: Half) -> Self {
        Self { front, back }
    }
}

impl Operations for Half {
    type Bytes = BigEndian;

    fn numeral_count(&self) -> usize {
        self.len
    }

    fn to_be_bytes(&self, _: u32, b: usize) -> BigEndian {
        BigEndian {
            bytes: self.value.to_be_bytes(),
            len: b,
        }
    }

    fn add_mod_exp(self, other: impl Iterator<Item = u8>, radix: u32, m: usize) -> Self {
        let modulus = power(radix, m);
        Self {
            value: (self.value + integer(other) % modulus) % modulus,
            len: m,
            radix,
        }
    }

    fn sub_mod_exp(self, other: impl Iterator<Item = u8>, radix: u32, m: usize) -> Self {
        let modulus = power(radix, m);
        Self {
            value: (self.value + (modulus - integer(other) % modulus)) % modulus,
            len: m,
            radix,
        }
    }
}

/// The last `len` bytes of an integer, big-endian.
struct BigEndian {
    bytes: [u8; 16],
    len: usize,
}

impl AsRef<[u8]> for BigEndian {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[16 - self.len..]
    }
}

/// Reads an integer. A half has at most 12 bytes, so the input has at most 16.
fn integer(bytes: impl Iterator<Item = u8>) -> u128 {
    bytes.fold(0, |value, byte| value << 8 | u128::from(byte))
}

fn power(radix: u32, len: usize) -> u128 {
    u128::from(radix).pow(len as u32)
}

#[cfg(test)]
mod tests;
