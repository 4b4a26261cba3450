//! Split custody: `t` of `n` shares of a 32-byte recovery secret (Shamir's scheme over GF(256)).
//!
//! Fewer than `t` shares reveal nothing about the secret. A share names its set of root keys, its
//! recovery key and its split. The split is checked because shares of two splits of one key would
//! join to a wrong secret. [`join`] cannot verify the secret, so its caller must check the secret
//! against the recovery key.
//!
//! Text form: `sws1:` and 65 bytes in base64url without padding. The bytes are version `01`, set
//! (16), key id (5), split id (4), threshold, total, index, value (32), and a checksum. The
//! checksum is the first 4 bytes of the SHA-256 of all preceding bytes. The checksum detects typing
//! errors but not forgery.

use std::convert::Infallible;
use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use data_encoding::BASE64URL_NOPAD;
use rand::{TryCryptoRng, TryRng};
use vsss_rs::Gf256;
use zeroize::Zeroizing;

/// Smallest threshold, so that a single share never reveals the secret.
pub const THRESHOLD_MIN: u8 = 2;

/// Length of the binary form in bytes.
const BINARY_BYTES: usize = BODY_BYTES + CHECKSUM_BYTES;
/// Bytes before the checksum.
const BODY_BYTES: usize = 1 + 16 + 5 + 4 + 3 + 32;
const CHECKSUM_BYTES: usize = 4;
/// Prefix of the text form.
const PREFIX: &str = "sws1:";
/// Length of the text form in characters.
const TEXT_CHARS: usize = PREFIX.len() + (BINARY_BYTES * 8).div_ceil(6);
/// Version of the binary form.
const VERSION: u8 = 1;

/// A share of a recovery secret. The value is wiped on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Share {
    set: [u8; 16],
    key: [u8; 5],
    split: [u8; 4],
    threshold: u8,
    total: u8,
    index: u8,
    value: Zeroizing<[u8; 32]>,
}

/// The reason why a text is not a valid share. Errors never contain the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// The text has another prefix or another length than a share.
    #[error("must be `sws1:` and 87 characters of base64url")]
    Form,
    /// The checksum does not match: a character was altered.
    #[error("a character was altered: the checksum does not match")]
    Checksum,
    /// A later version of this program made the share.
    #[error("version {0} of the form is unknown")]
    Version(u8),
    /// The index, total and threshold contradict each other.
    #[error("share {index} of {total} with threshold {threshold} does not exist")]
    Numbers {
        /// The share's number.
        index: u8,
        /// The total number of shares.
        total: u8,
        /// The number of shares that are needed.
        threshold: u8,
    },
}

/// The reason why a secret cannot be split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The threshold is below [`THRESHOLD_MIN`] or above the total.
    #[error(
        "the threshold must be from {THRESHOLD_MIN} to the number of shares, {total}; it is {threshold}"
    )]
    Threshold {
        /// The number of shares that are needed.
        threshold: u8,
        /// The total number of shares.
        total: u8,
    },
    /// The random source or the library failed.
    #[error("the random source failed")]
    Library,
}

/// The reason why shares cannot be joined. Positions count the given shares from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There are fewer shares than the threshold.
    #[error("{given} shares were given, {threshold} are needed")]
    TooFew {
        /// The number of shares that were given.
        given: usize,
        /// The number of shares that are needed. Zero if no share was given.
        threshold: u8,
    },
    /// Two shares have the same number.
    #[error("share number {index} was given twice")]
    DuplicateIndex {
        /// The number that both shares have.
        index: u8,
    },
    /// A share belongs to another set or key than the first.
    #[error("the share at position {position} belongs to another recovery key than the first")]
    OtherKey {
        /// The share's position.
        position: usize,
    },
    /// A share belongs to another split of the same key than the first.
    #[error(
        "the share at position {position} belongs to another split of the recovery key than the first"
    )]
    OtherSplit {
        /// The share's position.
        position: usize,
    },
    /// More shares than needed were given, and they do not lie on one polynomial.
    #[error("the shares contradict each other: one of them is false")]
    Contradiction,
}

impl Share {
    /// Returns the id of the set of root keys.
    #[must_use]
    pub fn set(&self) -> &[u8; 16] {
        &self.set
    }

    /// Returns the id of the recovery key.
    #[must_use]
    pub fn key(&self) -> &[u8; 5] {
        &self.key
    }

    /// Returns the id of the split, which is random.
    #[must_use]
    pub fn split_id(&self) -> &[u8; 4] {
        &self.split
    }

    /// Returns the number of shares that are needed.
    #[must_use]
    pub fn threshold(&self) -> u8 {
        self.threshold
    }

    /// Returns the total number of shares.
    #[must_use]
    pub fn total(&self) -> u8 {
        self.total
    }

    /// Returns the share's number, from 1 to [`Self::total`].
    #[must_use]
    pub fn index(&self) -> u8 {
        self.index
    }

    /// Returns the text form, 92 characters. The text is as secret as the share.
    #[must_use]
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new([0; BINARY_BYTES]);
        let mut rest = &mut bytes[..];
        let numbers = [self.threshold, self.total, self.index];
        for field in [
            &[VERSION][..],
            &self.set,
            &self.key,
            &self.split,
            &numbers,
            &self.value[..],
        ] {
            let (place, after) = rest.split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = after;
        }

        let sum = checksum(&bytes[..BODY_BYTES]);
        bytes[BODY_BYTES..].copy_from_slice(&sum);
        // A single allocation, because a growing text would leave copies that are not wiped.
        let mut text = Zeroizing::new(String::with_capacity(TEXT_CHARS));
        text.push_str(PREFIX);
        BASE64URL_NOPAD.encode_append(&bytes[..], &mut text);
        text
    }

    /// Parses the text form, with optional white space around it.
    ///
    /// # Errors
    /// See [`ShareError`].
    pub fn parse(text: &str) -> Result<Self, ShareError> {
        let digits = text
            .trim()
            .strip_prefix(PREFIX)
            .ok_or(ShareError::Form)?
            .as_bytes();
        let mut bytes = Zeroizing::new([0; BINARY_BYTES]);
        if BASE64URL_NOPAD.decode_len(digits.len()) != Ok(BINARY_BYTES) {
            return Err(ShareError::Form);
        }

        BASE64URL_NOPAD
            .decode_mut(digits, &mut bytes[..])
            .map_err(|_| ShareError::Form)?;
        let (body, sum) = bytes.split_at(BODY_BYTES);
        if sum != checksum(body) {
            return Err(ShareError::Checksum);
        }

        if body[0] != VERSION {
            return Err(ShareError::Version(body[0]));
        }

        let [threshold, total, index] = array_at(body, 26);
        if threshold < THRESHOLD_MIN || threshold > total || index == 0 || index > total {
            return Err(ShareError::Numbers {
                index,
                total,
                threshold,
            });
        }

        let mut value = Zeroizing::new([0; 32]);
        value.copy_from_slice(&body[29..]);
        Ok(Self {
            set: array_at(body, 1),
            key: array_at(body, 17),
            split: array_at(body, 22),
            threshold,
            total,
            index,
            value,
        })
    }

    /// Returns the index and the value in the library's format.
    fn point(&self) -> Zeroizing<Vec<u8>> {
        let mut point = Zeroizing::new(Vec::with_capacity(33));
        point.push(self.index);
        point.extend_from_slice(&self.value[..]);
        point
    }

    fn is_of_key_of(&self, other: &Self) -> bool {
        (self.set, self.key) == (other.set, other.key)
    }

    fn is_of_split_of(&self, other: &Self) -> bool {
        (self.split, self.threshold, self.total) == (other.split, other.threshold, other.total)
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Share({} of {}, threshold {})",
            self.index, self.total, self.threshold
        )
    }
}

/// Returns the first 4 bytes of the SHA-256.
fn checksum(body: &[u8]) -> [u8; CHECKSUM_BYTES] {
    array_at(digest(&SHA256, body).as_ref(), 0)
}

/// Copies `N` bytes from `from`. Panics if there are fewer.
fn array_at<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(&bytes[from..from + N]);
    array
}

/// Splits a secret into `total` shares, of which any `threshold` join to the secret. `set` and
/// `key` identify the root keys and the recovery key of the secret. The library frees the
/// polynomial's coefficients without wiping them, so the process should exit soon.
///
/// # Errors
/// See [`SplitError`].
pub fn split(
    secret: &[u8; 32],
    set: [u8; 16],
    key: [u8; 5],
    threshold: u8,
    total: u8,
) -> Result<Vec<Share>, SplitError> {
    if threshold < THRESHOLD_MIN || threshold > total {
        return Err(SplitError::Threshold { threshold, total });
    }

    let mut id = [0; 4];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| SplitError::Library)?;
    let mut random = AwsLcRandom { failed: false };
    let points = Gf256::split_bytes(
        usize::from(threshold),
        usize::from(total),
        secret,
        &mut random,
    );
    let points = Zeroizing::new(points.map_err(|_| SplitError::Library)?);
    if random.failed || points.iter().any(|point| point.len() != 33) {
        return Err(SplitError::Library);
    }

    Ok(points
        .iter()
        .map(|point: &Vec<u8>| {
            let mut value = Zeroizing::new([0; 32]);
            value.copy_from_slice(&point[1..]);
            Share {
                set,
                key,
                split: id,
                threshold,
                total,
                index: point[0],
                value,
            }
        })
        .collect())
}

/// Joins shares to the secret. Extra shares beyond the threshold must be consistent with the first
/// shares.
///
/// # Errors
/// See [`JoinError`].
pub fn join(shares: &[Share]) -> Result<Zeroizing<[u8; 32]>, JoinError> {
    let Some(first) = shares.first() else {
        return Err(JoinError::TooFew {
            given: 0,
            threshold: 0,
        });
    };

    for (share, position) in shares.iter().zip(1..) {
        if !share.is_of_key_of(first) {
            return Err(JoinError::OtherKey { position });
        }
        if !share.is_of_split_of(first) {
            return Err(JoinError::OtherSplit { position });
        }
    }

    for (position, share) in shares.iter().enumerate() {
        if shares[..position]
            .iter()
            .any(|other| other.index == share.index)
        {
            return Err(JoinError::DuplicateIndex { index: share.index });
        }
    }

    let threshold = usize::from(first.threshold);
    if shares.len() < threshold {
        return Err(JoinError::TooFew {
            given: shares.len(),
            threshold: first.threshold,
        });
    }

    let secret = combine(&shares[..threshold])?;
    // All points lie on one polynomial if and only if each extra point gives the same constant
    // term.
    for extra in threshold..shares.len() {
        if combine(&shares[..=extra])? != secret {
            return Err(JoinError::Contradiction);
        }
    }

    Ok(secret)
}

fn combine(shares: &[Share]) -> Result<Zeroizing<[u8; 32]>, JoinError> {
    let points: Zeroizing<Vec<Vec<u8>>> = Zeroizing::new(
        shares
            .iter()
            .map(|share| std::mem::take(&mut *share.point()))
            .collect(),
    );
    // The library only rejects duplicate and zero indexes, which are excluded above.
    let bytes =
        Zeroizing::new(Gf256::combine_bytes(&*points).map_err(|_| JoinError::Contradiction)?);
    let mut secret = Zeroizing::new([0; 32]);
    if bytes.len() != secret.len() {
        return Err(JoinError::Contradiction);
    }

    secret.copy_from_slice(&bytes);
    Ok(secret)
}

/// AWS-LC's random source. After a failure its output must not be used.
struct AwsLcRandom {
    failed: bool,
}

impl TryRng for AwsLcRandom {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        let mut bytes = Zeroizing::new([0; 4]);
        self.try_fill_bytes(&mut bytes[..])?;
        Ok(u32::from_le_bytes(*bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        let mut bytes = Zeroizing::new([0; 8]);
        self.try_fill_bytes(&mut bytes[..])?;
        Ok(u64::from_le_bytes(*bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.failed |= aws_lc_rs::rand::fill(bytes).is_err();
        Ok(())
    }
}

impl TryCryptoRng for AwsLcRandom {}

#[cfg(test)]
mod tests;
