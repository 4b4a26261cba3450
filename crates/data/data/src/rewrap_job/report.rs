//! The report of a job by rule, and its progress.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};

use sealwire_crypto::{KeyId, Suite};
use serde::Serialize;

/// Maximum number of values per rule that a report lists by the key of their row. Further values
/// are counted only.
pub const LEFT_LISTED_MAX: usize = 100;

/// A reason why a value was left unchanged and not moved to the newest key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftReason {
    /// The engine cannot open the envelope: it belongs to another app or context, its key is
    /// disabled, or its bytes were altered.
    CannotOpen,
    /// The value begins like an envelope but is not a valid envelope.
    Malformed,
    /// The encapsulation of the envelope is stored apart from the value.
    Apart,
    /// The value has Evervault's format, which does not name its key.
    Evervault,
    /// The envelope is only a part of the value, such as of a document.
    Inside,
    /// A column of type bytea contains a text envelope.
    TextInBytes,
    /// A column of the rule's context is null.
    NoContext,
    /// The new envelope is longer than the column's type permits.
    TooLong,
    /// The engine rejects a request even with this value alone.
    TooLarge,
}

impl LeftReason {
    /// Returns the name in JSON reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::CannotOpen => "cannot_open",
            Self::Malformed => "malformed",
            Self::Apart => "apart",
            Self::Evervault => "evervault",
            Self::Inside => "inside",
            Self::TextInBytes => "text_in_bytes",
            Self::NoContext => "no_context",
            Self::TooLong => "too_long",
            Self::TooLarge => "too_large",
        }
    }

    /// Describes the reason and its remedy.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::CannotOpen => {
                "does not open: another app or context, a disabled key, or altered bytes"
            }
            Self::Malformed => "begins like an envelope, but is not a valid envelope",
            Self::Apart => {
                "its encapsulation is stored elsewhere: rewrap the document with `sealwire rewrap FILE`"
            }
            Self::Evervault => {
                "an Evervault value, which does not name its key: rewrap it with `sealwire rewrap FILE`"
            }
            Self::Inside => {
                "an envelope is inside the value, as in a document: rewrap it with `sealwire rewrap FILE`"
            }
            Self::TextInBytes => {
                "a text envelope in a bytea column: store binary envelopes, or use a text column"
            }
            Self::NoContext => "a column of the rule's context is null",
            Self::TooLong => {
                "the new envelope is longer than the column's type permits: widen the column"
            }
            Self::TooLarge => {
                "too large for one request: see `sealwire info` for the engine's limits"
            }
        }
    }
}

/// A value that was left unchanged, identified by the key of its row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftValue {
    /// The key columns of the row, as text. Several columns are separated by commas.
    pub key: String,
    /// The reason.
    pub reason: LeftReason,
}

/// Number of envelopes under one key version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeyCount {
    /// Id of the key version, as `apps list` and `inspect` show it.
    pub key_id: String,
    /// Number of the suite in envelopes.
    pub suite: u8,
    /// Number of envelopes that the last pass read.
    pub values: u64,
    /// True if the engine seals to this key version; `None` if no value under it opened.
    pub newest: Option<bool>,
}

/// Counts of one rule. Counts are those of the last pass unless stated otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// Schema and table.
    pub table: String,
    /// The column.
    pub column: String,
    /// The app.
    pub app: String,
    /// Number of passes over the table.
    pub passes: u64,
    /// True if the last pass found nothing more to rewrap. False in a dry run.
    pub complete: bool,
    /// Number of rows.
    pub rows: u64,
    /// Number of values that were rewrapped, in all passes.
    pub rewrapped: u64,
    /// Number of values whose first write failed, in all passes. An application changed or locked
    /// the value between reading and writing, or an engine did not have the newest key yet.
    pub contended: u64,
    /// Number of nulls.
    pub nulls: u64,
    /// Number of values without an envelope.
    pub plain: u64,
    /// Envelopes by key version, as the last pass read them.
    pub keys: Vec<KeyCount>,
    /// Number of values that were left unchanged, by reason.
    pub left: BTreeMap<LeftReason, u64>,
    /// The first [`LEFT_LISTED_MAX`] values that were left unchanged.
    pub left_values: Vec<LeftValue>,
}

impl RuleReport {
    /// Returns the number of values that could not be moved to the newest key.
    #[must_use]
    pub fn left_count(&self) -> u64 {
        self.left.values().sum()
    }

    /// Starts a pass: resets the counts of the last pass.
    pub(crate) fn start_pass(&mut self) {
        let Self {
            table,
            column,
            app,
            passes,
            rewrapped,
            contended,
            ..
        } = std::mem::take(self);
        *self = Self {
            table,
            column,
            app,
            passes: passes + 1,
            rewrapped,
            contended,
            ..Self::default()
        };
    }

    pub(crate) fn add_left(&mut self, key: &[String], reason: LeftReason) {
        *self.left.entry(reason).or_default() += 1;
        if self.left_values.len() < LEFT_LISTED_MAX {
            self.left_values.push(LeftValue {
                key: key.join(","),
                reason,
            });
        }
    }
}

/// The report of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// True if nothing was written.
    pub dry_run: bool,
    /// Duration of the job in milliseconds.
    pub elapsed_ms: u64,
    /// Side effects of updates on the tables, found before the job started.
    pub warnings: Vec<String>,
    /// Counts by rule, in the order of the rules.
    pub rules: Vec<RuleReport>,
}

/// The state of key versions, learned from responses of the engine.
#[derive(Debug, Default)]
pub(crate) struct KeyStandings {
    /// Key versions that the engine used for sealing in this pass. Their values need no rewrap.
    newest: HashSet<KeyId>,
    /// The last observation in any pass. Within a job, a key version that was once older than
    /// another stays older.
    seen: HashMap<KeyId, bool>,
    counts: BTreeMap<[u8; 5], (Suite, u64)>,
}

impl KeyStandings {
    /// Starts a pass. The newest key versions are learned again, because an app can be rotated
    /// between passes.
    pub(crate) fn start_pass(&mut self) {
        self.newest.clear();
        self.counts.clear();
    }

    pub(crate) fn count(&mut self, key: KeyId, suite: Suite) {
        self.counts.entry(*key.as_bytes()).or_insert((suite, 0)).1 += 1;
    }

    /// Records that the engine rewrapped a value under `old` to `new`. Returns false if an engine
    /// used a newer key version than `new` before, so that this engine lags behind.
    pub(crate) fn learn(&mut self, old: KeyId, new: KeyId, suite: Suite) -> bool {
        if old != new {
            self.newest.remove(&old);
            self.seen.insert(old, false);
        }
        if self.seen.get(&new) == Some(&false) {
            return false;
        }
        self.newest.insert(new);
        self.seen.insert(new, true);
        // A report names the newest key version even if no value is under it yet.
        self.counts.entry(*new.as_bytes()).or_insert((suite, 0));
        true
    }

    pub(crate) fn is_newest(&self, key: KeyId) -> bool {
        self.newest.contains(&key)
    }

    /// Returns true if a response of any pass showed whether the key version is newest.
    pub(crate) fn is_known(&self, key: KeyId) -> bool {
        self.seen.contains_key(&key)
    }

    pub(crate) fn counts(&self) -> Vec<KeyCount> {
        let counts = self.counts.iter().map(|(id, (suite, values))| {
            let key = KeyId::from_bytes(*id);
            KeyCount {
                key_id: key.to_string(),
                suite: suite.byte(),
                values: *values,
                newest: self.seen.get(&key).copied(),
            }
        });
        counts.collect()
    }
}

/// Progress counters. The job writes them; any thread can read them.
#[derive(Debug, Default)]
pub struct Progress {
    rows: AtomicU64,
    rows_expected: AtomicU64,
    rewrapped: AtomicU64,
    pass: AtomicU64,
}

impl Progress {
    /// Returns the rows that the current pass has read.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Returns the estimated number of rows of the current pass; 0 if unknown.
    pub fn rows_expected(&self) -> u64 {
        self.rows_expected.load(Ordering::Relaxed)
    }

    /// Returns the number of values that were rewrapped.
    pub fn rewrapped(&self) -> u64 {
        self.rewrapped.load(Ordering::Relaxed)
    }

    /// Returns the number of the current pass over a table, from 1.
    pub fn pass(&self) -> u64 {
        self.pass.load(Ordering::Relaxed)
    }

    pub(crate) fn start_pass(&self, pass: u64, rows_expected: u64) {
        self.rows.store(0, Ordering::Relaxed);
        self.rows_expected.store(rows_expected, Ordering::Relaxed);
        self.pass.store(pass, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, rows: u64, rewrapped: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.rewrapped.fetch_add(rewrapped, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> KeyId {
        KeyId::from_bytes([byte; 5])
    }

    #[test]
    fn key_standings_follow_the_keys_that_the_engine_uses() {
        let learn = |standings: &mut KeyStandings, old, new| {
            standings.learn(key(old), key(new), Suite::P256)
        };
        let mut standings = KeyStandings::default();
        assert!(!standings.is_known(key(1)) && !standings.is_newest(key(1)));
        assert!(learn(&mut standings, 1, 2));
        assert!(
            standings.is_known(key(1))
                && !standings.is_newest(key(1))
                && standings.is_newest(key(2))
        );
        // A rotation during the pass: the key that was newest is not any more.
        assert!(learn(&mut standings, 2, 3));
        assert!(!standings.is_newest(key(2)) && standings.is_newest(key(3)));
        standings.count(key(3), Suite::P256);
        standings.count(key(2), Suite::P256);
        standings.count(key(3), Suite::P256);
        let counts: Vec<_> = standings
            .counts()
            .into_iter()
            .map(|count| (count.values, count.newest))
            .collect();
        assert_eq!(counts, [(1, Some(false)), (2, Some(true))]);
        standings.start_pass();
        assert!(!standings.is_newest(key(3)) && standings.counts().is_empty());
        // Another engine still seals to the key before.
        assert!(!learn(&mut standings, 2, 2) && !learn(&mut standings, 1, 2));
        assert!(!standings.is_newest(key(2)) && learn(&mut standings, 3, 3));
    }

    #[test]
    fn a_pass_keeps_the_counts_of_all_passes_only() {
        let mut report = RuleReport {
            rewrapped: 3,
            contended: 1,
            rows: 9,
            passes: 1,
            ..RuleReport::default()
        };
        report.add_left(&["a".to_owned(), "7".to_owned()], LeftReason::CannotOpen);
        assert_eq!(report.left_values[0].key, "a,7");
        report.start_pass();
        let expected = RuleReport {
            rewrapped: 3,
            contended: 1,
            passes: 2,
            ..RuleReport::default()
        };
        assert_eq!(report, expected);
        for row in 0..2 * LEFT_LISTED_MAX {
            report.add_left(&[row.to_string()], LeftReason::Malformed);
        }
        assert_eq!(
            (report.left_count(), report.left_values.len()),
            (200, LEFT_LISTED_MAX)
        );
    }
}
