//! Multiplication of fixed points by secret scalars, where the safe bindings leave out the fast
//! way.
//!
//! [`FixedBase`] is any public key of P-256 with a table made for it;
//! [`secp256k1::multiply_generator`] is that curve's generator. The multiplications are OpenSSL's
//! and libsecp256k1's own, in constant time: no curve arithmetic is written here. The one place in
//! the workspace with `unsafe`; each block says why it is sound.

mod p256;
pub mod secp256k1;

pub use p256::FixedBase;

/// Why a point could not be used or multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are no point of P-256.
    #[error("not a point of P-256")]
    NotAPoint,
    /// The scalar is zero or not below the order of the curve.
    #[error("not a scalar of the curve")]
    NotAScalar,
    /// The library failed: no memory, or no randomness.
    #[error("the library failed")]
    Library,
}
