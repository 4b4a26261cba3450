//! The cipher suites of the envelope (`proto/envelope.md`).

use std::fmt;

use crate::{Curve, hybrid};

/// A cipher suite: how fields are sealed, and which kind of key seals and opens them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suite {
    /// HPKE to a P-256 key pair. The default.
    #[default]
    P256,
    /// HPKE to a secp256k1 key pair.
    Secp256k1,
    /// XAES-256-GCM under a symmetric key.
    Xaes,
    /// HPKE to a key of ML-KEM-768 and P-256 together. Experimental, until the drafts that it follows are RFCs.
    P256MlKem768,
}

impl Suite {
    /// All suites, default first.
    pub const ALL: [Self; 4] = [Self::P256, Self::Secp256k1, Self::Xaes, Self::P256MlKem768];

    /// The suites whose public keys an app can publish, default first. A symmetric key is never published, and few HPKE
    /// libraries have secp256k1.
    pub const PUBLISHED: [Self; 2] = [Self::P256, Self::P256MlKem768];

    /// Returns true if the suite follows drafts that can still change.
    #[must_use]
    pub fn is_experimental(self) -> bool {
        self == Self::P256MlKem768
    }

    /// Returns the first byte of an envelope's header.
    #[must_use]
    pub fn byte(self) -> u8 {
        match self {
            Self::P256 => 1,
            Self::Secp256k1 => 2,
            Self::Xaes => 3,
            Self::P256MlKem768 => 4,
        }
    }

    /// Returns the suite of a header's first byte, or `None` if the byte is unknown.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.byte() == byte)
    }

    /// Returns the curve of the suite's key pairs. `None`: its keys are no key pairs on a curve alone.
    #[must_use]
    pub fn curve(self) -> Option<Curve> {
        match self {
            Self::P256 => Some(Curve::P256),
            Self::Secp256k1 => Some(Curve::Secp256k1),
            Self::Xaes | Self::P256MlKem768 => None,
        }
    }

    /// Returns the id of the suite's KEM in HPKE. `None`: the suite is no HPKE.
    #[must_use]
    pub fn kem_id(self) -> Option<u16> {
        match self {
            Self::P256MlKem768 => Some(hybrid::KEM_ID),
            _ => self.curve().map(Curve::kem_id),
        }
    }

    /// Returns the name used on the wire, in configuration and by commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P256 => "p256",
            Self::Secp256k1 => "secp256k1",
            Self::Xaes => "xaes",
            Self::P256MlKem768 => "p256-mlkem768",
        }
    }

    /// Returns the suite with this name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.name() == name)
    }
}

/// A set of suites.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SuiteSet(u8);

impl SuiteSet {
    /// Every suite.
    pub const ALL: Self = Self((1 << Suite::ALL.len()) - 1);

    /// Returns true if the set has `suite`.
    #[must_use]
    #[inline]
    pub fn contains(self, suite: Suite) -> bool {
        self.0 & 1 << suite as u8 != 0
    }

    /// Returns the suites of the set, default first.
    pub fn iter(self) -> impl Iterator<Item = Suite> {
        Suite::ALL.into_iter().filter(move |suite| self.contains(*suite))
    }
}

impl Default for SuiteSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<Suite> for SuiteSet {
    fn from_iter<T: IntoIterator<Item = Suite>>(suites: T) -> Self {
        Self(suites.into_iter().fold(0, |set, suite| set | 1 << suite as u8))
    }
}

impl fmt::Debug for SuiteSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl From<Curve> for Suite {
    fn from(curve: Curve) -> Self {
        match curve {
            Curve::P256 => Self::P256,
            Curve::Secp256k1 => Self::Secp256k1,
        }
    }
}
