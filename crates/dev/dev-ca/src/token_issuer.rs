//! Issues bearer tokens (JWT) for development and tests.

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use data_encoding::BASE64URL_NOPAD;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use time::{Duration, OffsetDateTime};

use crate::{PkiError, SecretPem};

/// An issuer of tokens with one ECDSA P-256 key. `Debug` shows no key.
pub struct TokenIssuer {
    key: EcdsaKeyPair,
    key_pem: SecretPem,
}

/// Content of a token.
#[derive(Clone, Debug)]
pub struct TokenClaims<'a> {
    /// The claim `iss`.
    pub issuer: &'a str,
    /// The claim `sub`.
    pub subject: &'a str,
    /// The claim `aud`.
    pub audience: &'a str,
    /// Days from now until the token expires.
    pub days: u32,
}

impl TokenIssuer {
    /// Creates an issuer with a fresh key.
    ///
    /// # Errors
    ///
    /// The cryptographic library failed.
    pub fn create() -> Result<Self, PkiError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        Self::load(SecretPem::new(key.serialize_pem()))
    }

    /// Loads an issuer from the content of its key file.
    ///
    /// # Errors
    ///
    /// Not an ECDSA P-256 key in PEM.
    pub fn load(key_pem: SecretPem) -> Result<Self, PkiError> {
        let key = KeyPair::from_pem(key_pem.expose()).map_err(|_| PkiError::NotAKey)?;
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der())
            .map_err(|_| PkiError::NotAKey)?;
        Ok(Self { key, key_pem })
    }

    /// Returns the private key in PEM. Store it with mode 0600.
    pub fn key_pem(&self) -> &SecretPem {
        &self.key_pem
    }

    /// Returns the key set that verifies the tokens (RFC 7517).
    pub fn jwks(&self) -> String {
        // An uncompressed point: 4, x, y.
        let point = self.key.public_key().as_ref();
        let (x, y) = point[1..].split_at(32);
        let key = json!({
            "kty": "EC",
            "crv": "P-256",
            "use": "sig",
            "alg": "ES256",
            "kid": self.kid(),
            "x": BASE64URL_NOPAD.encode(x),
            "y": BASE64URL_NOPAD.encode(y),
        });
        json!({ "keys": [key] }).to_string()
    }

    fn kid(&self) -> String {
        let hash = digest(&SHA256, self.key.public_key().as_ref());
        BASE64URL_NOPAD.encode(&hash.as_ref()[..12])
    }

    /// Issues a token.
    ///
    /// # Errors
    ///
    /// The cryptographic library failed.
    pub fn issue(&self, claims: &TokenClaims<'_>) -> Result<String, PkiError> {
        let now = OffsetDateTime::now_utc();
        let end = now + Duration::days(i64::from(claims.days));
        self.sign(&json!({
            "iss": claims.issuer,
            "sub": claims.subject,
            "aud": claims.audience,
            "iat": now.unix_timestamp(),
            "exp": end.unix_timestamp(),
        }))
    }

    /// Signs any claims, for tests.
    ///
    /// # Errors
    ///
    /// The cryptographic library failed.
    pub fn sign(&self, claims: &Value) -> Result<String, PkiError> {
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": self.kid()});
        self.sign_texts(header.to_string().as_bytes(), claims.to_string().as_bytes())
    }

    /// Signs a header and claims that need not be JSON, for tests.
    ///
    /// # Errors
    ///
    /// The cryptographic library failed.
    pub fn sign_texts(&self, header: &[u8], claims: &[u8]) -> Result<String, PkiError> {
        let header = BASE64URL_NOPAD.encode(header);
        let claims = BASE64URL_NOPAD.encode(claims);
        let signed = format!("{header}.{claims}");
        let signature = self
            .key
            .sign(&SystemRandom::new(), signed.as_bytes())
            .map_err(|_| PkiError::Signing)?;
        Ok(format!(
            "{signed}.{}",
            BASE64URL_NOPAD.encode(signature.as_ref())
        ))
    }
}

impl fmt::Debug for TokenIssuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenIssuer")
            .field("kid", &self.kid())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_survives_its_file_and_shows_no_key() {
        let made = TokenIssuer::create().unwrap();
        let pem = SecretPem::new(made.key_pem().expose().to_owned());
        let loaded = TokenIssuer::load(pem).unwrap();
        assert_eq!(made.jwks(), loaded.jwks());
        assert!(!made.jwks().contains("\"d\""));
        let line = made.key_pem().expose().lines().nth(1).unwrap();
        assert!(!format!("{made:?}").contains(line));
        for pem in [
            "",
            "no key",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----",
        ] {
            let loaded = TokenIssuer::load(SecretPem::new(pem.to_owned()));
            assert!(matches!(loaded, Err(PkiError::NotAKey)), "{pem}");
        }
    }
}
