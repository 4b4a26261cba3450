//! The cipher suites of the envelope (`proto/envelope.md`).

use std::fmt;

use crate::{Curve, hybrid};

/// A cipher suite: how fields are sealed, and which kind of key seals and opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suite {
    /// HPKE in PSK mode to a P-256 key pair and a pre-shared key of the app. What new apps write.
    P256Psk,
    /// HPKE in base mode to a P-256 key pair.
    P256,
    /// HPKE in base mode to a secp256k1 key pair.
    Secp256k1,
    /// XAES-256-GCM under a symmetric key.
    Xaes,
    /// HPKE to a key of ML-KEM-768 and P-256 together. Experimental, until the drafts that it
    /// follows are RFCs.
    P256MlKem768,
    /// HPKE in PSK mode to a secp256k1 key pair and a pre-shared key of the app.
    Secp256k1Psk,
}

impl Suite {
    /// All suites, that of new apps first.
    pub const ALL: [Self; 6] = [
        Self::P256Psk,
        Self::P256,
        Self::Secp256k1,
        Self::Xaes,
        Self::P256MlKem768,
        Self::Secp256k1Psk,
    ];

    /// The suite that an app writes from its creation on, until its operator sets another.
    pub const OF_NEW_APPS: Self = Self::P256Psk;

    /// The suite where a stored record names none, and of Evervault values where a request names
    /// none. Never changes.
    pub const UNNAMED: Self = Self::P256;

    /// The suites whose public keys an app can publish, default first. A symmetric or pre-shared
    /// key is never published, and few HPKE libraries have secp256k1.
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
            Self::P256Psk => 5,
            Self::Secp256k1Psk => 6,
        }
    }

    /// Returns the suite of a header's first byte, or `None` if the byte is unknown.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|suite| suite.byte() == byte)
    }

    /// Returns the curve of the suite's key pairs. `None`: its keys are no key pairs on a curve
    /// alone. Only such keys can be imported, and used for Evervault values.
    #[must_use]
    pub fn curve(self) -> Option<Curve> {
        match self {
            Self::P256 => Some(Curve::P256),
            Self::Secp256k1 => Some(Curve::Secp256k1),
            Self::Xaes | Self::P256MlKem768 | Self::P256Psk | Self::Secp256k1Psk => None,
        }
    }

    /// Returns the curve of the suite's DHKEM. `None`: the suite has another KEM, or none.
    #[must_use]
    pub(crate) fn dhkem_curve(self) -> Option<Curve> {
        match self {
            Self::P256 | Self::P256Psk => Some(Curve::P256),
            Self::Secp256k1 | Self::Secp256k1Psk => Some(Curve::Secp256k1),
            Self::Xaes | Self::P256MlKem768 => None,
        }
    }

    /// Returns the suite of HPKE in PSK mode on a curve.
    #[must_use]
    pub(crate) fn psk_of(curve: Curve) -> Self {
        match curve {
            Curve::P256 => Self::P256Psk,
            Curve::Secp256k1 => Self::Secp256k1Psk,
        }
    }

    /// Returns the id of the suite's KEM in HPKE. `None`: the suite is no HPKE.
    #[must_use]
    pub fn kem_id(self) -> Option<u16> {
        match self {
            Self::P256MlKem768 => Some(hybrid::KEM_ID),
            _ => self.dhkem_curve().map(Curve::kem_id),
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
            Self::P256Psk => "p256-psk",
            Self::Secp256k1Psk => "secp256k1-psk",
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

    /// Returns the suites of the set, in the order of [`Suite::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Suite> {
        Suite::ALL
            .into_iter()
            .filter(move |suite| self.contains(*suite))
    }
}

impl Default for SuiteSet {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromIterator<Suite> for SuiteSet {
    fn from_iter<T: IntoIterator<Item = Suite>>(suites: T) -> Self {
        Self(
            suites
                .into_iter()
                .fold(0, |set, suite| set | 1 << suite as u8),
        )
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
