//! A load that records acknowledged tokens, and verifies at the end that they exist.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire_client::{Client, Detokenize, Error, ErrorCode, Tokenize, to_payload};
use sealwire_testkit::Database;

use crate::cluster::engines::{APP, DETERMINISTIC, RANDOM, until};

/// Number of values that all clients tokenize deterministically and repeatedly.
const SHARED_VALUES: u64 = 500;
/// Tokens per look-up request at the end.
const VERIFIED_AT_ONCE: usize = 500;

/// Records acknowledged requests.
pub(crate) struct Ledger {
    /// Distinguishes the requests of this ledger from those of others in one database.
    name: u64,
    deadline_ms: u32,
    /// Values by token.
    random: Mutex<HashMap<String, String>>,
    /// Tokens by value.
    deterministic: Mutex<HashMap<String, String>>,
    calls: AtomicU64,
    failures: Mutex<HashMap<String, u64>>,
    stop: AtomicBool,
}

/// Number of ledgers opened so far.
static OPENED: AtomicU64 = AtomicU64::new(0);

impl Ledger {
    /// Makes a ledger whose requests have a deadline of 3 s.
    pub(crate) fn open() -> Arc<Self> {
        Self::with_deadline(3_000)
    }

    /// Makes a ledger whose requests have a deadline of ten minutes, so that none fails because the
    /// machine is slow.
    pub(crate) fn patient() -> Arc<Self> {
        Self::with_deadline(600_000)
    }

    fn with_deadline(deadline_ms: u32) -> Arc<Self> {
        Arc::new(Self {
            name: OPENED.fetch_add(1, Ordering::Relaxed),
            deadline_ms,
            random: Mutex::default(),
            deterministic: Mutex::default(),
            calls: AtomicU64::new(0),
            failures: Mutex::default(),
            stop: AtomicBool::new(false),
        })
    }

    /// Makes another ledger that expects the deterministic tokens of this one.
    pub(crate) fn again(&self) -> Arc<Self> {
        let ledger = Self::with_deadline(self.deadline_ms);
        *ledger.deterministic.lock().unwrap() = self.deterministic.lock().unwrap().clone();
        ledger
    }

    /// Starts `callers` tasks that tokenize until [`Ledger::stop`].
    pub(crate) fn callers(
        self: &Arc<Self>,
        client: &Client,
        callers: u64,
    ) -> tokio::task::JoinSet<()> {
        let mut tasks = tokio::task::JoinSet::new();
        for caller in 0..callers {
            let (ledger, client) = (Arc::clone(self), client.clone());
            tasks.spawn(async move { ledger.caller(&client, caller).await });
        }
        tasks
    }

    async fn caller(&self, client: &Client, caller: u64) {
        let mut round = 0;
        while !self.stop.load(Ordering::Relaxed) {
            round += 1;
            let done = match round % 2 {
                0 => self.write_random(client, caller, round).await,
                _ => self.write_deterministic(client, caller, round).await,
            };
            match done {
                Ok(()) => drop(self.calls.fetch_add(1, Ordering::Relaxed)),
                Err(error) => {
                    *self
                        .failures
                        .lock()
                        .unwrap()
                        .entry(kind(&error))
                        .or_default() += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }

    /// Tokenizes new values, tagged with their number.
    async fn write_random(&self, client: &Client, caller: u64, round: u64) -> Result<(), Error> {
        let count = 1 + round % 17;
        let values: Vec<String> = (0..count)
            .map(|field| format!("value {caller}/{round}/{field}"))
            .collect();
        let tag = format!("{count}/{}/{caller}/{round}", self.name);
        let payload = to_payload(&values)?;
        let call = Tokenize::new(APP, RANDOM, &payload)
            .deadline(Duration::from_millis(self.deadline_ms.into()))
            .tags([&*tag]);
        let tokens: Vec<String> = client.tokenize(call).await?.to_value()?;
        let mut random = self.random.lock().unwrap();
        for (token, value) in tokens.into_iter().zip(values) {
            assert!(
                random.insert(token, value).is_none(),
                "a random token was given twice"
            );
        }
        Ok(())
    }

    /// Tokenizes values that other clients tokenize too.
    async fn write_deterministic(
        &self,
        client: &Client,
        caller: u64,
        round: u64,
    ) -> Result<(), Error> {
        let value = |field| {
            format!(
                "card {}",
                (caller * 31 + round * 7 + field * 3) % SHARED_VALUES
            )
        };
        let values: Vec<String> = (0..1 + round % 9).map(value).collect();
        let payload = to_payload(&values)?;
        let call = Tokenize::new(APP, DETERMINISTIC, &payload)
            .deadline(Duration::from_millis(self.deadline_ms.into()));
        let tokens: Vec<String> = client.tokenize(call).await?.to_value()?;
        let mut deterministic = self.deterministic.lock().unwrap();
        for (token, value) in tokens.into_iter().zip(values) {
            let known = deterministic.entry(value).or_insert_with(|| token.clone());
            assert_eq!(*known, token, "one value has two tokens");
        }
        Ok(())
    }

    /// Stops the clients.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Waits until `calls` more requests are acknowledged.
    pub(crate) async fn goes_on(&self, calls: u64) {
        let before = self.calls();
        until("the load goes on", async || {
            (self.calls() > before + calls).then_some(())
        })
        .await;
    }

    /// Returns the number of acknowledged requests.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Returns the number of failed requests by error.
    pub(crate) fn failures(&self) -> Vec<(String, u64)> {
        let mut failures: Vec<_> = self.failures.lock().unwrap().clone().into_iter().collect();
        failures.sort();
        failures
    }

    /// Verifies that every acknowledged token leads to its value, that no request is stored in
    /// part, and that no value has two tokens.
    pub(crate) async fn verify(&self, client: &Client, database: &Database<'_>) {
        let random: Vec<_> = self.random.lock().unwrap().clone().into_iter().collect();
        let cards = self.deterministic.lock().unwrap().clone();
        let cards: Vec<_> = cards
            .into_iter()
            .map(|(value, token)| (token, value))
            .collect();
        for (collection, promised) in [(RANDOM, &random), (DETERMINISTIC, &cards)] {
            for part in promised.chunks(VERIFIED_AT_ONCE) {
                let (tokens, values): (Vec<_>, Vec<_>) = part.iter().cloned().unzip();
                let payload = to_payload(&tokens).unwrap();
                let detokenize = async || {
                    let call = Detokenize::new(APP, collection, &payload);
                    // Right after a loss, the store can be unavailable for a moment. A lost token
                    // would give another error.
                    match client.detokenize(call).await {
                        Err(Error::Rpc(error)) if error.code == ErrorCode::Unavailable => None,
                        found => Some(found.unwrap().to_value::<Vec<String>>().unwrap()),
                    }
                };
                let found = until("look-ups", detokenize).await;
                assert_eq!(found, values, "an acknowledged token was lost");
            }
        }
        let halves = "SELECT count(*) FROM (SELECT tags[1] AS tag, count(*) AS rows FROM sealwire.tokens \
                      WHERE tags IS NOT NULL GROUP BY 1) AS calls WHERE rows <> split_part(tag, '/', 1)::int";
        assert_eq!(
            database.sql(halves).unwrap(),
            "0",
            "a call was written by half"
        );
        let rows = "SELECT count(*) - count(DISTINCT (app, collection, fingerprint)) FROM sealwire.tokens \
                    WHERE fingerprint IS NOT NULL";
        assert_eq!(
            database.sql(rows).unwrap(),
            "0",
            "a fingerprint is there twice"
        );
    }
}

/// Returns the kind of an error, without details that differ per request.
fn kind(error: &Error) -> String {
    match error {
        Error::Rpc(error) => error.code.name().to_owned(),
        Error::Deadline => "deadline (client)".into(),
        Error::Disconnected { .. } => "disconnected".into(),
        Error::Connect(_) => "cannot connect".into(),
        other => panic!("not a failure that a lost engine or database explains: {other}"),
    }
}
