//! secp256k1's generator.
//!
//! libsecp256k1 blinds this multiplication by a random value in its context, on top of being
//! constant time. The safe bindings draw a new value after each call, which doubles its cost; here
//! a thread draws one for every 64 calls. `unsafe` because they offer no call that takes a context.

use std::cell::RefCell;

use openssl::rand::rand_bytes;
use secp256k1::{PublicKey, Secp256k1, SignOnly, ffi};
use zeroize::Zeroizing;

use crate::Error;

/// Multiplications under one blinding value.
const USES_PER_BLINDING: u32 = 64;

struct Blinded {
    context: Secp256k1<SignOnly>,
    uses_left: u32,
}

thread_local! {
    static BLINDED: RefCell<Blinded> =
        RefCell::new(Blinded { context: Secp256k1::signing_only(), uses_left: 0 });
}

impl Blinded {
    fn blind(&mut self) -> Result<(), Error> {
        let mut seed = Zeroizing::new([0; 32]);
        rand_bytes(&mut seed[..])?;
        self.context.seeded_randomize(&seed);
        self.uses_left = USES_PER_BLINDING;
        Ok(())
    }
}

/// The public key of a private one: `scalar` times the generator, SEC 1 uncompressed. The scalar is
/// 32 bytes big-endian.
///
/// # Errors
///
/// [`Error::NotAScalar`], or [`Error::Library`] when there is no randomness.
pub fn multiply_generator(scalar: &[u8; 32]) -> Result<[u8; 65], Error> {
    BLINDED.with_borrow_mut(|blinded| {
        if blinded.uses_left == 0 {
            blinded.blind()?;
        }
        blinded.uses_left -= 1;
        let point = point(&blinded.context, scalar).ok_or(Error::NotAScalar)?;
        Ok(PublicKey::from(point).serialize_uncompressed())
    })
}

#[allow(unsafe_code)]
fn point(context: &Secp256k1<SignOnly>, scalar: &[u8; 32]) -> Option<ffi::PublicKey> {
    let context = context.ctx();
    // SAFETY: `new` is unsafe only because its zeros are no valid point; the call below makes one
    // of them, or fails and they are dropped unread.
    let mut point = unsafe { ffi::PublicKey::new() };
    // SAFETY: the context is live, made for signing and borrowed for the call; the scalar is 32
    // readable bytes and the point one writable place, as `secp256k1.h` asks. Any scalar is
    // allowed: the call returns 0 for an invalid one.
    let made = unsafe {
        ffi::secp256k1_ec_pubkey_create(context.as_ptr(), &raw mut point, scalar.as_ptr())
    };
    (made == 1).then_some(point)
}

#[cfg(test)]
mod tests {
    use secp256k1::SecretKey;

    use super::*;

    fn scalar(last: u8) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[31] = last;
        bytes
    }

    /// SEC 2, section 2.4.1.
    const GENERATOR: &str = "0479be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798\
                             483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8";
    const ORDER: &str = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141";

    fn unhex<const N: usize>(text: &str) -> [u8; N] {
        crate::p256::tests::unhex(text)
    }

    #[test]
    fn one_gives_the_generator_and_minus_one_its_mirror() {
        let generator: [u8; 65] = unhex(GENERATOR);
        assert_eq!(multiply_generator(&scalar(1)), Ok(generator));
        let mut minus_one: [u8; 32] = unhex(ORDER);
        minus_one[31] -= 1;
        let mirrored = multiply_generator(&minus_one).unwrap();
        assert_eq!(mirrored[..33], generator[..33]);
        assert_ne!(mirrored[33..], generator[33..]);
    }

    /// Over several blindings, on several threads.
    #[test]
    fn it_gives_what_the_safe_bindings_give() {
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for _ in 0..3 * USES_PER_BLINDING {
                        let mut bytes = [0; 32];
                        rand_bytes(&mut bytes).unwrap();
                        let Ok(secret) = SecretKey::from_secret_bytes(bytes) else {
                            continue;
                        };
                        let expected = PublicKey::from_secret_key(&secret).serialize_uncompressed();
                        assert_eq!(multiply_generator(&bytes), Ok(expected));
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_no_scalar_is_refused() {
        let order: [u8; 32] = unhex(ORDER);
        for bad in [scalar(0), order, [0xff; 32]] {
            assert_eq!(multiply_generator(&bad), Err(Error::NotAScalar));
        }
        assert!(
            multiply_generator(&scalar(2)).is_ok(),
            "a refusal leaves nothing behind"
        );
    }
}
