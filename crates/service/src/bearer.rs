//! Verifies bearer tokens: JSON Web Tokens (RFC 7519) that a configured issuer has signed.
//!
//! A [`TokenVerifier`] knows the issuers of the settings and their public keys. It accepts a token if
//! the issuer, the key, the algorithm, the audience and the times are right, and returns the
//! [`Principal`] that the token names. Nothing in a token chooses how the token is checked: the
//! algorithm must be one of the key and of the issuer's allow-list, and keys come from the issuer's
//! key set alone.
//!
//! The checks are strict where common libraries are lenient: a claim of the wrong type is an error
//! and not an absent claim, times are whole numbers, a member that occurs twice is an error, and the
//! clock can be replaced. AWS-LC checks the signatures, as in TLS.
//!
//! No text of this module contains a part of a token. The errors say what a developer must change.

mod error;
mod issuer;
mod keys;
mod source;
mod strict_json;
mod token;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lru::LruCache;
use sealwire_access::Principal;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

pub use error::TokenError;
pub use issuer::{IssuerOptions, KeySource, is_quotable};
pub use keys::{Algorithm, JwksError, KeySet};
pub use source::{IssuerError, JWKS_BYTES_MAX, JwksUrl, KeySourceError};
pub use token::TOKEN_BYTES_MAX;

use issuer::Issuer;
use token::ParsedToken;

/// Maximum number of verified tokens in the cache: about 300 bytes each with usual names, and at
/// most 2.4 KiB, so 24 MB.
const CACHE_ENTRIES: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");
/// Longest time for which a verified token is not verified again.
const CACHE_TIME: Duration = Duration::from_secs(30);

/// The wall clock, in whole seconds since 1970. Tests set it.
#[derive(Clone)]
pub struct UnixClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl UnixClock {
    /// Creates a clock from a function.
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// Returns the clock of the system.
    pub fn system() -> Self {
        Self::new(|| {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs())
        })
    }

    fn now(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for UnixClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnixClock")
    }
}

/// A token that was verified a short time ago.
struct CachedToken {
    principal: Principal,
    /// Position of the issuer in [`TokenVerifier::issuers`].
    issuer: usize,
    /// The version of the issuer's keys that verified the token.
    keys_version: u64,
    verified: Instant,
    expires_unix_s: u64,
}

/// Verifies the tokens of all configured issuers.
pub struct TokenVerifier {
    issuers: Vec<Issuer>,
    cache: Mutex<LruCache<[u8; 32], CachedToken>>,
    clock: UnixClock,
}

impl TokenVerifier {
    /// Creates a verifier. Reads the key sets that are files; those of URLs are fetched by
    /// [`Self::run`]. Blocks.
    ///
    /// # Errors
    ///
    /// A file cannot be used.
    pub fn open(issuers: &[IssuerOptions], clock: UnixClock) -> Result<Arc<Self>, IssuerError> {
        let issuers = issuers
            .iter()
            .map(|options| Issuer::open(options.clone()))
            .collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            issuers,
            cache: Mutex::new(LruCache::new(CACHE_ENTRIES)),
            clock,
        }))
    }

    /// Keeps the keys of all issuers current, until the future is dropped. Files are checked for
    /// changes at each `watch`; `None`: only [`Self::reload_files`] reads them again. `report` gets the
    /// number of issuers whose keys could not be loaded the last time, after each attempt.
    pub async fn run(
        self: Arc<Self>,
        watch: Option<Duration>,
        report: impl Fn(usize) + Send + Sync + 'static,
    ) {
        let report = Arc::new(report);
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..self.issuers.len() {
            let verifier = Arc::clone(&self);
            let report = Arc::clone(&report);
            tasks.spawn(async move {
                let report = || report(verifier.failing());
                verifier.issuers[at].keep_current(watch, report).await;
            });
        }
        // Each task runs until this future is dropped.
        while tasks.join_next().await.is_some() {}
        std::future::pending::<()>().await;
    }

    /// Reads all key sets that are files again.
    ///
    /// # Errors
    ///
    /// The first file that cannot be used. The keys of such an issuer stay, and the other issuers
    /// have their new keys.
    pub async fn reload_files(&self) -> Result<(), IssuerError> {
        let mut result = Ok(());
        for issuer in &self.issuers {
            let reloaded = issuer.reload_file().await;
            result = result.and(reloaded);
        }
        result
    }

    /// Returns the number of issuers whose keys could not be loaded the last time.
    pub fn failing(&self) -> usize {
        self.issuers
            .iter()
            .filter(|issuer| issuer.is_failing())
            .count()
    }

    /// Returns the principal of a token that was verified a short time ago and is still valid. Costs
    /// one hash.
    pub fn cached(&self, token: &str) -> Option<Principal> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let digest = digest(token);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let cached = cache.get(&digest)?;
        let issuer = &self.issuers[cached.issuer];
        let is_current = cached.verified.elapsed() < CACHE_TIME
            && issuer.is_unexpired(cached.expires_unix_s, self.clock.now())
            && issuer.keys_version() == Some(cached.keys_version);
        if is_current {
            return Some(cached.principal.clone());
        }
        cache.pop(&digest);
        None
    }

    /// Verifies a token. If the issuer has no such key and publishes its keys at a URL, the keys are
    /// fetched again, at most once in 30 seconds, and the token is checked once more.
    ///
    /// # Errors
    ///
    /// [`TokenError`].
    pub async fn verify(&self, token: &str) -> Result<Principal, TokenError> {
        let (at, error) = match self.check(token) {
            Err((Some(at), error @ TokenError::UnknownKey { .. })) => (at, error),
            checked => return checked.map_err(|(_, error)| error),
        };
        if !self.issuers[at].refresh_for_unknown_key().await {
            return Err(error);
        }
        self.check(token).map_err(|(_, error)| error)
    }

    /// Checks a token with the present keys. An error names the position of the issuer, if the token
    /// names one.
    fn check(&self, token: &str) -> Result<Principal, (Option<usize>, TokenError)> {
        let unattributed = |error| (None, error);
        let parsed = ParsedToken::parse(token).map_err(unattributed)?;
        let claimed = parsed.claims.text("iss").map_err(unattributed)?;
        let at = self
            .issuers
            .iter()
            .position(|issuer| issuer.options.issuer == claimed)
            .ok_or_else(|| (None, self.unknown_issuer()))?;

        let issuer = &self.issuers[at];
        let checked = issuer.check(&parsed, self.clock.now());
        let checked = checked.map_err(|error| (Some(at), error))?;
        let cached = CachedToken {
            principal: checked.principal.clone(),
            issuer: at,
            keys_version: checked.keys_version,
            verified: Instant::now(),
            expires_unix_s: checked.expires_unix_s,
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.put(digest(token), cached);
        Ok(checked.principal)
    }

    fn unknown_issuer(&self) -> TokenError {
        let issuers = self.issuers.iter().map(|issuer| &*issuer.options.issuer);
        TokenError::UnknownIssuer {
            accepted: issuers.collect::<Vec<_>>().join(", "),
        }
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenVerifier")
            .field("issuers", &self.issuers.len())
            .finish_non_exhaustive()
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests;
