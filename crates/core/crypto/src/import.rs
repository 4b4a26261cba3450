//! Imports private keys that other programs exported.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use zeroize::{Zeroize as _, Zeroizing};

use crate::kek::hex;
use crate::{Curve, Error, KeyPair};

/// Base64 with padding that must be exact or absent.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The beginning of a PEM file.
const PEM: &[u8] = b"-----BEGIN ";

impl KeyPair {
    /// Reads a key pair of `curve` from the text of a file, ignoring white space around it. Accepts
    /// PEM without encryption: `EC PRIVATE KEY` of SEC 1 or `PRIVATE KEY` of PKCS #8. Also accepts
    /// the 32 bytes of the scalar as 64 hexadecimal digits or as base64.
    ///
    /// # Errors
    /// [`Error::UnreadableKey`] for another form, an encrypted key or one of another curve;
    /// [`Error::InvalidPrivateKey`] when the scalar is zero or not below the order of the curve.
    pub fn import(curve: Curve, text: &[u8]) -> Result<Self, Error> {
        let text = text.trim_ascii();
        let scalar = match text.starts_with(PEM) {
            true => from_pem(curve, text),
            false => hex(text).or_else(|| from_base64(text)),
        };
        Self::from_scalar(curve, &*scalar.ok_or(Error::UnreadableKey)?)
    }
}

fn from_base64(text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    // The buffer is one byte too long on purpose, so that 33 bytes are detected.
    let mut bytes = Zeroizing::new([0; 33]);
    let length = BASE64.decode_slice(text, &mut bytes[..]).ok()?;
    let mut scalar = Zeroizing::new([0; 32]);
    scalar.copy_from_slice(bytes[..length].get(..32).filter(|_| length == 32)?);
    Some(scalar)
}

fn from_pem(curve: Curve, text: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
    let named = match curve {
        Curve::P256 => Nid::X9_62_PRIME256V1,
        Curve::Secp256k1 => Nid::SECP256K1,
    };
    // Without a callback OpenSSL would prompt on the terminal for the password of an encrypted key.
    let key = PKey::private_key_from_pem_callback(text, |_| Err(ErrorStack::get()))
        .ok()?
        .ec_key()
        .ok()?;
    if key.group().curve_name() != Some(named) || key.check_key().is_err() {
        return None;
    }
    let mut bytes = key.private_key().to_vec_padded(32).ok()?;
    let mut scalar = Zeroizing::new([0; 32]);
    scalar.copy_from_slice(&bytes);
    bytes.zeroize();
    Some(scalar)
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
    use openssl::bn::BigNum;
    use openssl::ec::{EcGroup, EcKey, EcPoint};
    use openssl::pkey::Private;
    use openssl::symm::Cipher;

    use super::*;

    fn openssl_key(named: Nid, scalar: [u8; 32]) -> EcKey<Private> {
        let group = EcGroup::from_curve_name(named).unwrap();
        let number = BigNum::from_slice(&scalar).unwrap();
        let mut point = EcPoint::new(&group).unwrap();
        point
            .mul_generator2(
                &group,
                &number,
                &mut openssl::bn::BigNumContext::new().unwrap(),
            )
            .unwrap();
        EcKey::from_private_components(&group, &number, &point).unwrap()
    }

    #[test]
    fn import_forms_give_the_same_key() {
        for (curve, named) in [
            (Curve::P256, Nid::X9_62_PRIME256V1),
            (Curve::Secp256k1, Nid::SECP256K1),
        ] {
            // The second key has leading zeros, which a number written without its width loses.
            let mut small = [0; 32];
            small[31] = 7;
            for scalar in [[0x11; 32], small] {
                let expected = KeyPair::from_scalar(curve, &scalar).unwrap();
                let key = openssl_key(named, scalar);
                let hex: String = scalar.iter().map(|byte| format!("{byte:02x}")).collect();
                for text in [
                    hex.to_uppercase().into_bytes(),
                    hex.into_bytes(),
                    STANDARD.encode(scalar).into_bytes(),
                    STANDARD_NO_PAD.encode(scalar).into_bytes(),
                    key.private_key_to_pem().unwrap(),
                    PKey::from_ec_key(key)
                        .unwrap()
                        .private_key_to_pem_pkcs8()
                        .unwrap(),
                ] {
                    let spaced = [b" \n", &text[..], b"\r\n"].concat();
                    for text in [text, spaced] {
                        let found = KeyPair::import(curve, &text).unwrap();
                        assert_eq!(found.public().compressed(), expected.public().compressed());
                    }
                }
            }
        }
    }

    #[test]
    fn import_rejects_keys_of_other_curves() {
        let pem = openssl_key(Nid::X9_62_PRIME256V1, [0x11; 32])
            .private_key_to_pem()
            .unwrap();
        let other = openssl_key(Nid::SECP256K1, [0x11; 32])
            .private_key_to_pem()
            .unwrap();
        let encrypted = openssl_key(Nid::X9_62_PRIME256V1, [0x11; 32])
            .private_key_to_pem_passphrase(Cipher::aes_256_cbc(), b"secret")
            .unwrap();
        let key = PKey::from_ec_key(openssl_key(Nid::X9_62_PRIME256V1, [0x11; 32])).unwrap();
        let rsa = PKey::from_rsa(openssl::rsa::Rsa::generate(2_048).unwrap()).unwrap();
        for text in [
            &b""[..],
            b"11",
            "11".repeat(31).as_bytes(),
            "11".repeat(33).as_bytes(),
            "1g".repeat(32).as_bytes(),
            STANDARD.encode([1; 31]).as_bytes(),
            STANDARD.encode([1; 33]).as_bytes(),
            &[0x11; 32],
            &other,
            &encrypted,
            &key.public_key_to_pem().unwrap(),
            &rsa.private_key_to_pem_pkcs8().unwrap(),
            &pem[..pem.len() / 2],
        ] {
            assert_eq!(
                KeyPair::import(Curve::P256, text).map(drop),
                Err(Error::UnreadableKey)
            );
        }
        for text in ["00".repeat(32), "ff".repeat(32)] {
            assert_eq!(
                KeyPair::import(Curve::P256, text.as_bytes()).map(drop),
                Err(Error::InvalidPrivateKey)
            );
        }
    }
}
