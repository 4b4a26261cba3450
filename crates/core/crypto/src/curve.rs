//! The two supported curves and their identifiers in each specification.

/// A curve of app keys and ephemeral keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Curve {
    /// NIST P-256, secp256r1: the default. `r1` on the wire.
    P256,
    /// secp256k1, through libsecp256k1. `k1` on the wire.
    Secp256k1,
}

impl Curve {
    /// All curves, default first.
    pub const ALL: [Self; 2] = [Self::P256, Self::Secp256k1];

    /// Returns the HPKE KEM id: RFC 9180 section 7.1 for P-256; draft-wahby-cfrg-hpke-kem-secp256k1
    /// for secp256k1.
    pub(crate) fn kem_id(self) -> u16 {
        match self {
            Self::P256 => 0x0010,
            Self::Secp256k1 => 0x0016,
        }
    }

    /// Returns the short name used on the wire, in configuration and in files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P256 => "r1",
            Self::Secp256k1 => "k1",
        }
    }

    /// Returns the curve with this short name, if there is one.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|curve| curve.name() == name)
    }
}
