//! The form of a token: three parts, a header and claims. Nothing here is verified yet.

use data_encoding::BASE64URL_NOPAD;
use serde_json::Value;

use super::TokenError;
use super::keys::Algorithm;
use super::strict_json::StrictObject;

/// Longest token, in bytes.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;

/// Members of a header that bring a key or its address, or change how the token is read. `crit`
/// demands extensions, of which none is implemented.
const REJECTED_MEMBERS: [&str; 8] = ["crit", "b64", "zip", "cty", "jku", "jwk", "x5u", "x5c"];

/// Types of tokens that grant access. Other types, such as `logout+jwt`, are signed with the same
/// keys for other purposes.
const TYPES: [&str; 3] = ["jwt", "jose", "at+jwt"];

/// A token with the content of its parts.
pub(super) struct ParsedToken<'t> {
    /// The header and the claims as they were signed.
    pub(super) signed: &'t [u8],
    pub(super) signature: Vec<u8>,
    /// `None` if the header names an algorithm that no issuer can permit.
    pub(super) algorithm: Option<Algorithm>,
    pub(super) kid: Option<String>,
    pub(super) claims: Claims,
}

/// The claims of a token.
pub(super) struct Claims(StrictObject);

impl<'t> ParsedToken<'t> {
    /// Reads a token.
    pub(super) fn parse(token: &'t str) -> Result<Self, TokenError> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenError::TooLong {
                max: TOKEN_BYTES_MAX,
            });
        }
        let parts: Vec<&str> = token.split('.').collect();
        let [header, claims, signature] = parts[..] else {
            return Err(match parts.len() {
                5 => TokenError::Encrypted,
                _ => TokenError::Parts,
            });
        };

        let signed = &token.as_bytes()[..header.len() + 1 + claims.len()];
        let header = object("header", header)?;
        for name in REJECTED_MEMBERS {
            if header.0.contains_key(name) {
                return Err(TokenError::HeaderMember { name });
            }
        }
        check_type(header.0.get("typ"))?;
        let Some(Value::String(algorithm)) = header.0.get("alg") else {
            return Err(TokenError::HeaderType {
                name: "alg",
                expected: "the name of an algorithm",
            });
        };
        let kid = match header.0.get("kid") {
            None => None,
            Some(Value::String(kid)) => Some(kid.clone()),
            Some(_) => {
                return Err(TokenError::HeaderType {
                    name: "kid",
                    expected: "a text",
                });
            }
        };
        Ok(Self {
            signed,
            signature: decode("signature", signature)?,
            algorithm: Algorithm::from_name(algorithm),
            kid,
            claims: Claims(object("claims", claims)?),
        })
    }
}

fn check_type(typ: Option<&Value>) -> Result<(), TokenError> {
    let is_accepted = match typ {
        None => true,
        Some(Value::String(typ)) => {
            let typ = typ.to_ascii_lowercase();
            TYPES.contains(&typ.strip_prefix("application/").unwrap_or(&typ))
        }
        Some(_) => false,
    };
    if is_accepted {
        return Ok(());
    }
    Err(TokenError::HeaderType {
        name: "typ",
        expected: "JWT, JOSE or at+jwt, or absent",
    })
}

fn decode(part: &'static str, text: &str) -> Result<Vec<u8>, TokenError> {
    BASE64URL_NOPAD
        .decode(text.as_bytes())
        .map_err(|_| TokenError::Encoding { part })
}

fn object(part: &'static str, text: &str) -> Result<StrictObject, TokenError> {
    serde_json::from_slice(&decode(part, text)?).map_err(|_| TokenError::Json { part })
}

impl Claims {
    fn get(&self, name: &str) -> Result<&Value, TokenError> {
        self.0.0.get(name).ok_or_else(|| TokenError::MissingClaim {
            name: name.to_owned(),
        })
    }

    /// Returns a claim that must be a text.
    pub(super) fn text(&self, name: &str) -> Result<&str, TokenError> {
        let value = self.get(name)?;
        value.as_str().ok_or_else(|| claim_type(name, "a text"))
    }

    /// Returns a claim that must be a time, in whole seconds since 1970.
    pub(super) fn time(&self, name: &str) -> Result<u64, TokenError> {
        let value = self.get(name)?;
        value
            .as_u64()
            .ok_or_else(|| claim_type(name, "a whole number of seconds since 1970"))
    }

    /// Returns the same for a claim that can be absent.
    pub(super) fn optional_time(&self, name: &str) -> Result<Option<u64>, TokenError> {
        match self.time(name) {
            Ok(time) => Ok(Some(time)),
            Err(TokenError::MissingClaim { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the audiences of the token.
    pub(super) fn audiences(&self) -> Result<Vec<&str>, TokenError> {
        const EXPECTED: &str = "a text, or a list of texts";
        match self.get("aud")? {
            Value::String(audience) => Ok(vec![audience]),
            Value::Array(audiences) => audiences
                .iter()
                .map(|audience| audience.as_str())
                .collect::<Option<_>>()
                .ok_or_else(|| claim_type("aud", EXPECTED)),
            _ => Err(claim_type("aud", EXPECTED)),
        }
    }
}

fn claim_type(name: &str, expected: &'static str) -> TokenError {
    TokenError::ClaimType {
        name: name.to_owned(),
        expected,
    }
}
