//! An issuer: its settings, its present keys, and the checks of its tokens.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire_access::Principal;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::TokenError;
use super::keys::{Algorithm, KeySet, NoKey};
use super::source::{self, IssuerError, JwksUrl, KeySourceError};
use super::token::ParsedToken;
use crate::tls_files;

/// Shortest time between two fetches, also of keys that could not be fetched and of unknown keys.
const FETCH_PAUSE: Duration = Duration::from_secs(30);
/// Longest time for which a token with an unknown key waits for a fetch.
const FETCH_WAIT_MAX: Duration = Duration::from_secs(10);
/// How long a changed file must stay unchanged before it is loaded.
const SETTLE: Duration = Duration::from_millis(500);

/// Where the keys of an issuer come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// A file, which another program keeps current.
    File(PathBuf),
    /// A URL of the issuer.
    Url {
        /// The URL.
        url: JwksUrl,
        /// PEM file with the authorities of the server's certificate.
        ca: PathBuf,
        /// Time between two fetches.
        refresh: Duration,
        /// Longest time for which keys are used after the last successful fetch.
        stale: Duration,
    },
}

/// Settings of an issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerOptions {
    /// Name of the issuer in principals, errors and logs.
    pub name: String,
    /// The exact value of the claim `iss`.
    pub issuer: String,
    /// Accepted values of the claim `aud`.
    pub audiences: Vec<String>,
    /// Permitted algorithms.
    pub algorithms: Vec<Algorithm>,
    /// Name of the claim that names the client.
    pub principal_claim: String,
    /// Tolerance for clocks that differ, in seconds.
    pub skew_s: u64,
    /// Where the keys come from.
    pub keys: KeySource,
}

/// Returns true for a text that can stand in an error and in a quoted part of a header.
pub fn is_quotable(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 1_024
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\'))
}

/// The keys of an issuer now.
#[derive(Default)]
struct Keys {
    set: Option<Arc<KeySet>>,
    /// Digest of the text of `set`.
    digest: [u8; 32],
    /// Number of changes of `set`.
    version: u64,
    /// Time of the last successful load.
    loaded: Option<Instant>,
    /// The error of the last load, if it failed.
    failure: Option<String>,
}

/// A token that was verified.
pub(super) struct VerifiedToken {
    pub(super) principal: Principal,
    pub(super) keys_version: u64,
    pub(super) expires_unix_s: u64,
}

/// An issuer with its keys.
pub(super) struct Issuer {
    pub(super) options: IssuerOptions,
    keys: Mutex<Keys>,
    /// Requests a fetch.
    wanted: Notify,
    fetches: watch::Sender<Fetches>,
}

/// The fetches of an issuer's keys so far.
#[derive(Clone, Copy, Default)]
struct Fetches {
    /// Number of fetches that have ended.
    ended: u64,
    is_running: bool,
    /// Time of the last start.
    started: Option<Instant>,
}

impl Issuer {
    /// Creates an issuer. Reads its keys if they are in a file. Blocks.
    pub(super) fn open(options: IssuerOptions) -> Result<Self, IssuerError> {
        let issuer = Self {
            options,
            keys: Mutex::default(),
            wanted: Notify::new(),
            fetches: watch::channel(Fetches::default()).0,
        };
        if let KeySource::Url { ca, .. } = &issuer.options.keys {
            // A missing file is a mistake in the settings, unlike a server that does not respond.
            tls_files::authorities(ca).map_err(|error| issuer.error(error.into()))?;
        }
        if let KeySource::File(file) = &issuer.options.keys {
            let loaded =
                source::read_file(file).and_then(|text| source::parse(&text, &file.display()));
            let (set, digest) = loaded.map_err(|error| issuer.error(error))?;
            issuer.replace(set, digest);
        }
        Ok(issuer)
    }

    fn error(&self, error: KeySourceError) -> IssuerError {
        IssuerError {
            name: self.options.name.clone(),
            error,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks a token with the present keys.
    pub(super) fn check(
        &self,
        token: &ParsedToken<'_>,
        now_unix_s: u64,
    ) -> Result<VerifiedToken, TokenError> {
        let issuer = || self.options.name.clone();
        let (keys, keys_version) = self
            .present_keys()
            .ok_or_else(|| TokenError::Unavailable { issuer: issuer() })?;
        let algorithm = token
            .algorithm
            .filter(|algorithm| self.options.algorithms.contains(algorithm))
            .ok_or_else(|| self.wrong_algorithm())?;
        let key = keys
            .find(token.kid.as_deref(), algorithm)
            .map_err(|error| match error {
                NoKey::UnknownKid => TokenError::UnknownKey { issuer: issuer() },
                NoKey::WrongAlgorithm => TokenError::KeyAlgorithm { issuer: issuer() },
                NoKey::NoKid { fitting } => TokenError::NoKid {
                    issuer: issuer(),
                    fitting,
                },
            })?;
        key.verify_sig(token.signed, &token.signature)
            .map_err(|_| TokenError::Signature { issuer: issuer() })?;

        // Only claims that the issuer has signed decide from here on.
        let claims = &token.claims;
        let expires_unix_s = claims.time("exp")?;
        if !self.is_unexpired(expires_unix_s, now_unix_s) {
            return Err(TokenError::Expired {
                ago_s: now_unix_s.saturating_sub(expires_unix_s),
            });
        }
        let starts_unix_s = claims.optional_time("nbf")?.unwrap_or(0);
        if starts_unix_s > now_unix_s.saturating_add(self.options.skew_s) {
            return Err(TokenError::NotYetValid {
                in_s: starts_unix_s - now_unix_s,
            });
        }
        let audiences = claims.audiences()?;
        let accepted = &self.options.audiences;
        if !accepted.iter().any(|name| audiences.contains(&&**name)) {
            return Err(TokenError::Audience {
                accepted: accepted.join(", "),
            });
        }
        let claim = claims.text(&self.options.principal_claim)?;
        let principal = Principal::from_token(&self.options.name, claim).ok_or_else(|| {
            TokenError::Principal {
                name: self.options.principal_claim.clone(),
            }
        })?;
        Ok(VerifiedToken {
            principal,
            keys_version,
            expires_unix_s,
        })
    }

    fn wrong_algorithm(&self) -> TokenError {
        let names: Vec<&str> = self.options.algorithms.iter().map(|a| a.name()).collect();
        TokenError::Algorithm {
            issuer: self.options.name.clone(),
            accepted: names.join(", "),
        }
    }

    /// Returns true before the end of a token's validity.
    pub(super) fn is_unexpired(&self, expires_unix_s: u64, now_unix_s: u64) -> bool {
        now_unix_s < expires_unix_s.saturating_add(self.options.skew_s)
    }

    /// Returns the version of the present keys. `None`: they are not known, or too old.
    pub(super) fn keys_version(&self) -> Option<u64> {
        self.present_keys().map(|(_, version)| version)
    }

    fn present_keys(&self) -> Option<(Arc<KeySet>, u64)> {
        let keys = self.lock();
        if let KeySource::Url { stale, .. } = &self.options.keys
            && keys.loaded?.elapsed() > *stale
        {
            return None;
        }
        Some((Arc::clone(keys.set.as_ref()?), keys.version))
    }

    /// Returns true if the last load of the keys failed, or none was completed yet.
    pub(super) fn is_failing(&self) -> bool {
        let keys = self.lock();
        keys.failure.is_some() || keys.set.is_none()
    }

    /// Stores the result of a load. The old keys stay if it failed.
    fn store(
        &self,
        loaded: Result<(KeySet, [u8; 32]), KeySourceError>,
    ) -> Result<(), KeySourceError> {
        match loaded {
            Ok((set, digest)) => {
                self.replace(set, digest);
                Ok(())
            }
            Err(error) => {
                self.note_failure(&error);
                Err(error)
            }
        }
    }

    fn replace(&self, set: KeySet, digest: [u8; 32]) {
        let issuer = &*self.options.name;
        let mut keys = self.lock();
        keys.loaded = Some(Instant::now());
        let had_failed = keys.failure.take().is_some();
        if keys.set.is_some() && keys.digest == digest {
            if had_failed {
                tracing::info!(issuer, "the keys of a token issuer can be loaded again");
            }
            return;
        }

        let (usable, skipped) = set.counts();
        tracing::info!(issuer, usable, skipped, "keys of a token issuer are in use");
        if usable == 0 {
            tracing::warn!(
                issuer,
                "no key of the issuer can verify tokens, so all its tokens are rejected"
            );
        }
        keys.set = Some(Arc::new(set));
        keys.digest = digest;
        keys.version += 1;
    }

    /// Notes that the keys could not be loaded. A failure that stays the same is logged once.
    fn note_failure(&self, error: &KeySourceError) {
        let issuer = &*self.options.name;
        let error = error.to_string();
        let mut keys = self.lock();
        if keys.failure.as_ref() != Some(&error) {
            let has_keys = keys.set.is_some();
            tracing::warn!(
                issuer,
                error,
                has_keys,
                "cannot load the keys of a token issuer; earlier keys stay in use, those of a URL for a limited time"
            );
        }
        keys.failure = Some(error);
    }

    /// Keeps the keys current until the future is dropped. Calls `report` after each load.
    pub(super) async fn keep_current(&self, watch: Option<Duration>, report: impl Fn()) {
        match (&self.options.keys, watch) {
            (
                KeySource::Url {
                    url, ca, refresh, ..
                },
                _,
            ) => self.fetch_regularly(url, ca, *refresh, report).await,
            (KeySource::File(file), Some(watch)) => self.watch_file(file, watch, report).await,
            (KeySource::File(_), None) => std::future::pending().await,
        }
    }

    async fn fetch_regularly(
        &self,
        url: &JwksUrl,
        ca: &Path,
        refresh: Duration,
        report: impl Fn(),
    ) {
        loop {
            let started = Instant::now();
            self.fetches.send_modify(|fetches| {
                fetches.started = Some(started);
                fetches.is_running = true;
            });
            let loaded = fetch(url, ca).await;
            let is_loaded = self.store(loaded).is_ok();
            report();
            self.fetches.send_modify(|fetches| {
                fetches.ended += 1;
                fetches.is_running = false;
            });

            let pause = if is_loaded {
                refresh
            } else {
                refresh.min(FETCH_PAUSE)
            };
            tokio::select! {
                () = sleep_until(started + pause) => {}
                () = self.wanted.notified() => sleep_until(started + FETCH_PAUSE).await,
            }
        }
    }

    /// Fetches the keys again because a token names an unknown key. Returns true if they were
    /// fetched, and false if they come from a file or were fetched a short time ago.
    pub(super) async fn refresh_for_unknown_key(&self) -> bool {
        if !matches!(self.options.keys, KeySource::Url { .. }) {
            return false;
        }
        let mut fetches = self.fetches.subscribe();
        let before = *fetches.borrow();
        let is_due = before
            .started
            .is_none_or(|started| started.elapsed() >= FETCH_PAUSE);
        if is_due {
            self.wanted.notify_one();
        } else if !before.is_running {
            return false;
        }
        let ended = fetches.wait_for(|now| now.ended > before.ended);
        timeout(FETCH_WAIT_MAX, ended)
            .await
            .is_ok_and(|ended| ended.is_ok())
    }

    /// Reads the file again if its content changed and then stayed the same for a moment.
    async fn watch_file(&self, file: &Path, watch: Duration, report: impl Fn()) {
        let mut failed = [0; 32];
        loop {
            sleep(watch).await;
            let text = read(file).await;
            let digest = text.as_ref().map_or([0; 32], |text| digest_of(text));
            let known = self.lock().digest;
            let is_known = digest == known && !self.is_failing();
            // Files that cannot be read are read again each time, and logged once.
            if is_known || (digest == failed && digest != [0; 32]) {
                continue;
            }
            sleep(SETTLE).await;
            let settled = read(file).await;
            let is_settled = match (&text, &settled) {
                (Ok(first), Ok(second)) => first == second,
                (Err(_), Err(_)) => true,
                _ => false,
            };
            if !is_settled {
                continue;
            }
            let loaded = settled.and_then(|text| source::parse(&text, &file.display()));
            failed = if self.store(loaded).is_err() {
                digest
            } else {
                [0; 32]
            };
            report();
        }
    }

    /// Reads the file of the keys again. Does nothing for a URL.
    pub(super) async fn reload_file(&self) -> Result<(), IssuerError> {
        let KeySource::File(file) = &self.options.keys else {
            return Ok(());
        };
        let text = read(file).await;
        let loaded = text.and_then(|text| source::parse(&text, &file.display()));
        self.store(loaded).map_err(|error| self.error(error))
    }
}

async fn fetch(url: &JwksUrl, ca: &Path) -> Result<(KeySet, [u8; 32]), KeySourceError> {
    let text = source::fetch(url, ca).await?;
    source::parse(&text, url)
}

async fn read(file: &Path) -> Result<Vec<u8>, KeySourceError> {
    let file = file.to_owned();
    tokio::task::spawn_blocking(move || source::read_file(&file))
        .await
        .unwrap_or(Err(KeySourceError::Stopped))
}

/// Returns the digest by which a changed text is noticed.
pub(super) fn digest_of(text: &[u8]) -> [u8; 32] {
    Sha256::digest(text).into()
}
