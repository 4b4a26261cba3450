//! Reasons for which a token is not accepted.

/// The reason why a token is not accepted, as a developer needs it. The text contains no part of the
/// token: it names settings of this program, and members of tokens by their standard names.
///
/// Every text is of printable ASCII without quotes and backslashes, so that it can stand in the
/// header `WWW-Authenticate`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is longer than the limit.
    #[error("the token is longer than {max} bytes")]
    TooLong {
        /// The limit, in bytes.
        max: usize,
    },
    /// The token has five parts.
    #[error("the token is encrypted (JWE); send a signed token (JWS)")]
    Encrypted,
    /// The token has not three parts.
    #[error("the token is not a JWT: it must have three parts with dots between them")]
    Parts,
    /// A part is not in base64url.
    #[error("the {part} of the token must be base64url without padding")]
    Encoding {
        /// The part: header, claims or signature.
        part: &'static str,
    },
    /// A part is not a JSON object, or a member occurs twice.
    #[error("the {part} of the token must be a JSON object in which no member occurs twice")]
    Json {
        /// The part: header or claims.
        part: &'static str,
    },
    /// The header has a member that changes how the token is read, or brings its own key.
    #[error("the header of the token has the member {name}, which is not accepted")]
    HeaderMember {
        /// The member.
        name: &'static str,
    },
    /// A member of the header is missing or has the wrong type.
    #[error("the member {name} in the header of the token must be {expected}")]
    HeaderType {
        /// The member.
        name: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A claim is missing.
    #[error("the token has no claim {name}")]
    MissingClaim {
        /// The claim.
        name: String,
    },
    /// A claim has the wrong type.
    #[error("the claim {name} of the token must be {expected}")]
    ClaimType {
        /// The claim.
        name: String,
        /// What it must be.
        expected: &'static str,
    },
    /// No issuer of the settings has issued the token.
    #[error("the claim iss of the token is none of the accepted issuers: {accepted}")]
    UnknownIssuer {
        /// The values of `issuer` in the settings.
        accepted: String,
    },
    /// The algorithm is not permitted.
    #[error("the algorithm of the token is none of those for issuer {issuer}: {accepted}")]
    Algorithm {
        /// Name of the issuer in the settings.
        issuer: String,
        /// Permitted algorithms.
        accepted: String,
    },
    /// The issuer has no such key.
    #[error(
        "issuer {issuer} has no key with the kid of the token; if the issuer has a new key, retry in 30 s; otherwise get a new token"
    )]
    UnknownKey {
        /// Name of the issuer in the settings.
        issuer: String,
    },
    /// The token names no key, and several or none could be meant.
    #[error(
        "the token has no kid, and issuer {issuer} has {fitting} keys for its algorithm, not one"
    )]
    NoKid {
        /// Name of the issuer in the settings.
        issuer: String,
        /// Number of keys that fit.
        fitting: usize,
    },
    /// The key is for other algorithms.
    #[error(
        "the key of issuer {issuer} with the kid of the token is not for the algorithm of the token"
    )]
    KeyAlgorithm {
        /// Name of the issuer in the settings.
        issuer: String,
    },
    /// The signature is wrong.
    #[error(
        "the signature of the token is not valid for the key of issuer {issuer}; get a new token from that issuer"
    )]
    Signature {
        /// Name of the issuer in the settings.
        issuer: String,
    },
    /// The token has expired.
    #[error("the token expired {ago_s} s ago; get a new one")]
    Expired {
        /// Seconds since `exp`.
        ago_s: u64,
    },
    /// The token is not valid yet.
    #[error("the token becomes valid in {in_s} s (nbf); check the clocks of issuer and engine")]
    NotYetValid {
        /// Seconds until `nbf`.
        in_s: u64,
    },
    /// The token is for others.
    #[error("the claim aud of the token must contain one of: {accepted}")]
    Audience {
        /// Accepted audiences.
        accepted: String,
    },
    /// The claim cannot be a principal.
    #[error(
        "the claim {name} of the token must be 1 to about 2,000 visible ASCII characters with single spaces between words"
    )]
    Principal {
        /// The claim.
        name: String,
    },
    /// The keys of the issuer are not known, or too old. The client is not at fault.
    #[error("the keys of issuer {issuer} are not available now; retry later")]
    Unavailable {
        /// Name of the issuer in the settings.
        issuer: String,
    },
}

impl TokenError {
    /// Returns true if the client can do nothing about the error.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Returns a short name of the reason for logs. It contains nothing of the token.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TooLong { .. } => "too_long",
            Self::Encrypted => "encrypted",
            Self::Parts => "parts",
            Self::Encoding { .. } => "encoding",
            Self::Json { .. } => "json",
            Self::HeaderMember { .. } => "header_member",
            Self::HeaderType { .. } => "header_type",
            Self::MissingClaim { .. } => "missing_claim",
            Self::ClaimType { .. } => "claim_type",
            Self::UnknownIssuer { .. } => "unknown_issuer",
            Self::Algorithm { .. } => "algorithm",
            Self::UnknownKey { .. } => "unknown_key",
            Self::NoKid { .. } => "no_kid",
            Self::KeyAlgorithm { .. } => "key_algorithm",
            Self::Signature { .. } => "signature",
            Self::Expired { .. } => "expired",
            Self::NotYetValid { .. } => "not_yet_valid",
            Self::Audience { .. } => "audience",
            Self::Principal { .. } => "principal",
            Self::Unavailable { .. } => "unavailable",
        }
    }
}
