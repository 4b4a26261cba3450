//! Multiplication of fixed points by secret scalars, with fast functions that the safe bindings do
//! not offer.
//!
//! [`FixedBase`] is any public key of P-256 with a precomputed table.
//! [`secp256k1::multiply_generator`] multiplies the generator of secp256k1. OpenSSL and libsecp256k1
//! do the multiplications, in constant time: this crate has no curve arithmetic. Only this crate of
//! the workspace contains `unsafe`; each block says why it is sound.

mod p256;
pub mod secp256k1;

pub use p256::FixedBase;

/// The reason why a point cannot be used or multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes do not encode a point of P-256.
    #[error("not a point of P-256")]
    NotAPoint,
    /// The scalar is zero or not below the order of the curve.
    #[error("not a scalar of the curve")]
    NotAScalar,
    /// The library failed: no memory, or no randomness.
    #[error("the library failed")]
    Library,
}
