//! Token formats: random strings of a chosen shape.
//!
//! A token reveals only the parts of its value that its format keeps on purpose: a length, or the
//! ends of a card number. All tokens of a format are equally likely, except the value itself, which
//! is excluded. The number of tokens limits the number of values in a collection. The store knows
//! the used tokens, so the caller must detect exhaustion.
//!
//! | format | shape | how many |
//! | --- | --- | --- |
//! | opaque | `tok_` and 22 letters or digits | 62^22, about 2^131 |
//! | uuid | RFC 9562 version 4, lower case | 2^122 |
//! | digits | as many digits as the value | 10^n, less the value: 9 for one digit |
//! | card | as many digits as the value, its ends kept, passes Luhn | 10^(m-1) for m digits between the ends, less the value |
//! | email | `tok-`, 25 lower-case letters or digits, `@tokens.invalid` | 36^25, about 2^129 |

use sealwire_crypto::{Datatype, Error};

const OPAQUE_PREFIX: &str = "tok_";
const OPAQUE_CHARS: usize = 22;
const EMAIL_PREFIX: &str = "tok-";
const EMAIL_CHARS: usize = 25;
/// RFC 2606 reserves `.invalid`, so mail to a token is never delivered.
const EMAIL_SUFFIX: &str = "@tokens.invalid";
/// Positions of the hyphens in a UUID.
const UUID_HYPHENS: [usize; 4] = [8, 13, 18, 23];
const UUID_CHARS: usize = 36;
const ALPHABET: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// The format of a collection's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A string recognizable as a token that a double click selects completely. For any value.
    Opaque,
    /// A random UUID. For any value.
    Uuid,
    /// As many digits as the value, which must be a string of 1 to [`Format::DIGITS_MAX`] digits.
    Digits,
    /// A card number that keeps the value's ends. For a string of 12 to 19 digits that passes Luhn.
    Card(CardEnds),
    /// An undeliverable mail address that survives lower-casing. For any value.
    Email,
}

/// The digits of a card number that its token keeps. The first six identify the bank, and receipts
/// show the last four.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CardEnds {
    first: u8,
    last: u8,
}

impl CardEnds {
    /// Most digits kept at the start.
    pub const FIRST_MAX: u8 = 6;
    /// Most digits kept at the end.
    pub const LAST_MAX: u8 = 4;

    /// Creates the numbers of digits to keep at the start and at the end.
    ///
    /// # Errors
    /// [`Error::InvalidCardEnds`] beyond either maximum, because too few random digits would remain
    /// between the ends.
    pub fn new(first: u8, last: u8) -> Result<Self, Error> {
        let fit = first <= Self::FIRST_MAX && last <= Self::LAST_MAX;
        if fit {
            Ok(Self { first, last })
        } else {
            Err(Error::InvalidCardEnds)
        }
    }

    /// Returns the number of digits kept at the start.
    #[must_use]
    pub fn first(self) -> u8 {
        self.first
    }

    /// Returns the number of digits kept at the end.
    #[must_use]
    pub fn last(self) -> u8 {
        self.last
    }
}

impl Default for CardEnds {
    fn default() -> Self {
        Self {
            first: Self::FIRST_MAX,
            last: Self::LAST_MAX,
        }
    }
}

/// The reason why a format has no token for a value. Contains no part of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The format requires a string of digits. The client must choose another collection.
    #[error("not a string of 1 to 64 digits")]
    NotDigits,
    /// The format requires a card number. The client must choose another collection.
    #[error("not a string of 12 to 19 digits that passes Luhn")]
    NotCard,
    /// The system's random source failed, independent of the value. Stop using this process.
    #[error("the random source failed")]
    Library,
}

impl Format {
    /// Longest value and token of [`Format::Digits`].
    pub const DIGITS_MAX: usize = 64;

    /// Replaces the content of `out` with a random token for a value. The token is never the value
    /// itself.
    ///
    /// # Errors
    /// [`Unfit`] when the format has no token for such a value.
    pub fn generate(
        self,
        datatype: Datatype,
        plaintext: &[u8],
        out: &mut String,
    ) -> Result<(), Unfit> {
        let text = (datatype == Datatype::String).then_some(plaintext);
        match self {
            Self::Digits if !text.is_some_and(is_digits) => return Err(Unfit::NotDigits),
            Self::Card(_) if !text.is_some_and(is_card) => return Err(Unfit::NotCard),
            _ => {}
        }
        let mut random = RandomBytes::default();
        loop {
            out.clear();
            self.draw(plaintext, &mut || random.byte(), out)?;
            if text != Some(out.as_bytes()) {
                return Ok(());
            }
        }
    }

    /// Returns true if a string has the shape of this format. For digits and cards, checks for
    /// digits or a card number.
    #[must_use]
    pub fn has_shape(self, text: &str) -> bool {
        match self {
            Self::Opaque => text.strip_prefix(OPAQUE_PREFIX).is_some_and(|random| {
                random.len() == OPAQUE_CHARS
                    && random.bytes().all(|byte| byte.is_ascii_alphanumeric())
            }),
            Self::Email => text
                .strip_prefix(EMAIL_PREFIX)
                .and_then(|rest| rest.strip_suffix(EMAIL_SUFFIX))
                .is_some_and(|random| {
                    random.len() == EMAIL_CHARS
                        && random
                            .bytes()
                            .all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
                }),
            Self::Uuid => is_uuid(text.as_bytes()),
            Self::Digits => is_digits(text.as_bytes()),
            Self::Card(_) => is_card(text.as_bytes()),
        }
    }

    /// Draws one random token, which can be equal to the value. The plaintext must fit the format.
    fn draw<E>(
        self,
        plaintext: &[u8],
        byte: &mut impl FnMut() -> Result<u8, E>,
        out: &mut String,
    ) -> Result<(), E> {
        match self {
            Self::Opaque => {
                out.push_str(OPAQUE_PREFIX);
                draw_chars(&ALPHABET[..], OPAQUE_CHARS, byte, out)
            }
            Self::Email => {
                out.push_str(EMAIL_PREFIX);
                draw_chars(&ALPHABET[..36], EMAIL_CHARS, byte, out)?;
                out.push_str(EMAIL_SUFFIX);
                Ok(())
            }
            Self::Uuid => draw_uuid(byte, out),
            Self::Digits => draw_chars(&ALPHABET[..10], plaintext.len(), byte, out),
            Self::Card(ends) => draw_card(ends, plaintext, byte, out),
        }
    }
}

/// Draws a uniform number below `bound`, which must not be 0. Bytes at or above the greatest
/// multiple of `bound` are skipped.
pub(super) fn below<E>(bound: u8, byte: &mut impl FnMut() -> Result<u8, E>) -> Result<u8, E> {
    let excess = (u8::MAX % bound + 1) % bound;
    loop {
        let drawn = byte()?;
        if drawn <= u8::MAX - excess {
            return Ok(drawn % bound);
        }
    }
}

fn draw_chars<E>(
    alphabet: &[u8],
    chars: usize,
    byte: &mut impl FnMut() -> Result<u8, E>,
    out: &mut String,
) -> Result<(), E> {
    let bound = u8::try_from(alphabet.len()).expect("alphabets are short");
    for _ in 0..chars {
        out.push(char::from(alphabet[usize::from(below(bound, byte)?)]));
    }
    Ok(())
}

/// Draws a UUID (RFC 9562, section 5.4).
fn draw_uuid<E>(byte: &mut impl FnMut() -> Result<u8, E>, out: &mut String) -> Result<(), E> {
    for at in 0..16 {
        let drawn = match (at, byte()?) {
            (6, drawn) => drawn & 0x0f | 0x40,
            (8, drawn) => drawn & 0x3f | 0x80,
            (_, drawn) => drawn,
        };
        for nibble in [drawn >> 4, drawn & 15] {
            if UUID_HYPHENS.contains(&out.len()) {
                out.push('-');
            }
            out.push(char::from(ALPHABET[usize::from(nibble)]));
        }
    }
    Ok(())
}

/// Draws the digits between the ends of `card`. The last drawn digit makes the number pass Luhn.
fn draw_card<E>(
    ends: CardEnds,
    card: &[u8],
    byte: &mut impl FnMut() -> Result<u8, E>,
    out: &mut String,
) -> Result<(), E> {
    let last_at = card.len() - usize::from(ends.last);
    let first = &card[..ends.first.into()];
    out.extend(first.iter().map(|digit| char::from(*digit)));
    draw_chars(
        &ALPHABET[..10],
        last_at - 1 - usize::from(ends.first),
        byte,
        out,
    )?;
    let chosen_at = out.len();
    out.push('0');
    out.extend(card[last_at..].iter().map(|digit| char::from(*digit)));

    // In either parity, the weights of the digits 0 to 9 are a permutation of 0..10, so exactly one
    // digit fits.
    let missing = (10 - luhn(out.as_bytes()) % 10) % 10;
    let is_doubled = (card.len() - chosen_at).is_multiple_of(2);
    let digit = (b'0'..=b'9')
        .find(|digit| weight(*digit, is_doubled) == missing)
        .expect("a permutation");
    out.replace_range(
        chosen_at..=chosen_at,
        char::from(digit).encode_utf8(&mut [0; 4]),
    );
    Ok(())
}

/// Computes Luhn's sum (ISO/IEC 7812-1, annex B) over ASCII digits. The sum of a valid number is a
/// multiple of ten.
pub(super) fn luhn(digits: &[u8]) -> u32 {
    digits
        .iter()
        .rev()
        .enumerate()
        .map(|(at, digit)| weight(*digit, !at.is_multiple_of(2)))
        .sum()
}

fn weight(digit: u8, is_doubled: bool) -> u32 {
    match (u32::from(digit - b'0'), is_doubled) {
        (digit, false) => digit,
        (digit @ 0..5, true) => 2 * digit,
        (digit, true) => 2 * digit - 9,
    }
}

fn is_digits(text: &[u8]) -> bool {
    (1..=Format::DIGITS_MAX).contains(&text.len()) && text.iter().all(u8::is_ascii_digit)
}

fn is_card(text: &[u8]) -> bool {
    (12..=19).contains(&text.len()) && is_digits(text) && luhn(text).is_multiple_of(10)
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == UUID_CHARS
        && text.iter().enumerate().all(|(at, c)| match (at, c) {
            (at, c) if UUID_HYPHENS.contains(&at) => *c == b'-',
            (14, c) => *c == b'4',
            (19, c) => matches!(c, b'8' | b'9' | b'a' | b'b'),
            (_, c) => matches!(c, b'0'..=b'9' | b'a'..=b'f'),
        })
}

/// The system's random source, read in blocks that are enough for nearly every token. Lives as long
/// as one token.
struct RandomBytes {
    bytes: [u8; 32],
    at: usize,
}

impl Default for RandomBytes {
    fn default() -> Self {
        Self {
            bytes: [0; 32],
            at: 32,
        }
    }
}

impl RandomBytes {
    #[inline]
    fn byte(&mut self) -> Result<u8, Unfit> {
        if self.at == self.bytes.len() {
            aws_lc_rs::rand::fill(&mut self.bytes).map_err(|_| Unfit::Library)?;
            self.at = 0;
        }
        self.at += 1;
        Ok(self.bytes[self.at - 1])
    }
}
