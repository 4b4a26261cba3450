//! A pass over the column of a rule: reads pages in key order, sends their envelopes to the engine
//! to rewrap, and writes the results.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::mask_job::Endpoint;
use sealwire_crypto::KeyId;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use crate::rewrap_job::catalog::Target;
use crate::rewrap_job::classify::{ValueClass, classify};
use crate::rewrap_job::engine::{
    Encoding, Engine, EngineError, RewrapRequest, decode_values, encode_payload,
};
use crate::rewrap_job::error::RewrapError;
use crate::rewrap_job::report::{KeyStandings, LeftReason, Progress, RuleReport};
use crate::rewrap_job::statements::{read_page, write_page};

/// Maximum size of the values of one request in bytes. A larger page takes several requests.
const REQUEST_BYTES_MAX: usize = 4 << 20;

/// A rule of a running job.
pub(crate) struct ColumnWalk<'j, E> {
    pub(crate) client: &'j Client,
    pub(crate) endpoint: &'j Endpoint,
    pub(crate) target: &'j Target,
    pub(crate) engine: &'j E,
    pub(crate) progress: &'j Progress,
    /// Maximum number of rows of a page.
    pub(crate) page_rows: u64,
    /// Maximum number of values that are rewrapped per second; 0 for no limit.
    pub(crate) rate: u64,
    pub(crate) dry_run: bool,
    pub(crate) report: RuleReport,
    pub(crate) standings: KeyStandings,
    /// Number of values in the page that an engine sealed to a key version known to be old.
    pub(crate) outdated: u64,
}

/// Counts of a pass that determine whether another pass follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PassResult {
    pub(crate) rewrapped: u64,
    pub(crate) contended: u64,
}

/// An envelope that the engine has to rewrap.
struct Envelope {
    key: Vec<String>,
    value: Vec<u8>,
    key_id: KeyId,
    context: Vec<u8>,
}

/// Values to write, by key.
#[derive(Default)]
struct Changes {
    keys: Vec<Vec<String>>,
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
}

type Outcome = Result<Vec<u8>, LeftReason>;

impl<E: Engine> ColumnWalk<'_, E> {
    /// Walks the whole table once.
    pub(crate) async fn run_pass(&mut self) -> Result<PassResult, RewrapError> {
        self.report.start_pass();
        self.standings.start_pass();
        self.progress
            .start_pass(self.report.passes, self.target.rows_estimated);
        let first = self
            .prepare(&read_page(self.target, self.page_rows, true))
            .await?;
        let next = self
            .prepare(&read_page(self.target, self.page_rows, false))
            .await?;
        let write = self.prepare(&write_page(self.target)).await?;

        let mut result = PassResult::default();
        let mut last: Option<Vec<String>> = None;
        loop {
            let started = Instant::now();
            let rows = match &last {
                None => self.query(&first, &[]).await?,
                Some(key) => self.query(&next, key).await?,
            };
            let Some(row) = rows.last() else {
                return Ok(result);
            };
            last = Some(self.key(row));

            let envelopes = self.classify(&rows);
            let sent = envelopes.len() as u64;
            let changes = self.rewrap(envelopes).await?;
            let wanted = changes.old.len() as u64 + std::mem::take(&mut self.outdated);
            let written = self.write(&write, changes).await?;
            result.rewrapped += written;
            result.contended += wanted - written;
            self.report.rewrapped += written;
            self.report.contended += wanted - written;
            self.progress.add(rows.len() as u64, written);
            tokio::time::sleep(pause_for_rate(sent, self.rate, started.elapsed())).await;
        }
    }

    /// Counts the rows of a page. Returns the envelopes whose key version is not known to be
    /// newest. A dry run returns one envelope per unknown key version, to learn whether that
    /// version is newest.
    fn classify(&mut self, rows: &[Row]) -> Vec<Envelope> {
        let mut envelopes: Vec<Envelope> = Vec::new();
        for row in rows {
            self.report.rows += 1;
            let Some(value) = self.value(row) else {
                self.report.nulls += 1;
                continue;
            };
            let (key_id, suite) = match classify(&value, self.target.encoding) {
                ValueClass::Plain => {
                    self.report.plain += 1;
                    continue;
                }
                ValueClass::Left(reason) => {
                    self.report.add_left(&self.key(row), reason);
                    continue;
                }
                ValueClass::Envelope { key, suite } => (key, suite),
            };
            self.standings.count(key_id, suite);
            let is_learned = self.dry_run
                && (self.standings.is_known(key_id)
                    || envelopes.iter().any(|other| other.key_id == key_id));
            if self.standings.is_newest(key_id) || is_learned {
                continue;
            }
            match self.context(row) {
                Some(context) => envelopes.push(Envelope {
                    key: self.key(row),
                    value,
                    key_id,
                    context,
                }),
                None => self.report.add_left(&self.key(row), LeftReason::NoContext),
            }
        }
        envelopes
    }

    /// Sends envelopes to the engine, with at most four concurrent requests. Returns the changes to
    /// write.
    async fn rewrap(&mut self, envelopes: Vec<Envelope>) -> Result<Changes, RewrapError> {
        let mut queues = [const { Vec::new() }; 4];
        for (at, positions) in divide_requests(&envelopes).into_iter().enumerate() {
            queues[at % 4].push(positions);
        }
        let [a, b, c, d] = queues.map(|queue| self.send_requests(&envelopes, queue));
        let (a, b, c, d) = tokio::try_join!(a, b, c, d)?;
        let mut outcomes = [a, b, c, d].concat();
        outcomes.sort_by_key(|(at, _)| *at);

        let mut changes = Changes {
            keys: vec![Vec::new(); self.target.key.len()],
            ..Changes::default()
        };
        for ((_, outcome), envelope) in outcomes.into_iter().zip(envelopes) {
            match outcome.and_then(|new| self.check_new_value(envelope.key_id, new)) {
                Ok(None) => {}
                Ok(Some(new)) => {
                    changes
                        .keys
                        .iter_mut()
                        .zip(envelope.key)
                        .for_each(|(column, key)| column.push(key));
                    changes.old.push(envelope.value);
                    changes.new.push(new);
                }
                Err(reason) => self.report.add_left(&envelope.key, reason),
            }
        }
        Ok(changes)
    }

    /// Checks a value from the engine. Returns `None` if the key version is unchanged, because a
    /// value that is already under the newest key is not written.
    fn check_new_value(&mut self, old: KeyId, new: Vec<u8>) -> Result<Option<Vec<u8>>, LeftReason> {
        let ValueClass::Envelope { key, suite } = classify(&new, self.target.encoding) else {
            return Err(LeftReason::Malformed);
        };
        let is_current = self.standings.learn(old, key, suite);
        if key == old || self.dry_run {
            self.outdated += u64::from(!is_current && !self.dry_run);
            return Ok(None);
        }
        // Envelopes are ASCII.
        if self.target.chars_max.is_some_and(|max| new.len() > max) {
            return Err(LeftReason::TooLong);
        }
        Ok(Some(new))
    }

    /// Sends several requests, one after the other. Returns the outcomes of all their envelopes.
    async fn send_requests(
        &self,
        all: &[Envelope],
        requests: Vec<Vec<usize>>,
    ) -> Result<Vec<(usize, Outcome)>, RewrapError> {
        let mut outcomes = Vec::new();
        for positions in requests {
            outcomes.extend(self.send_request(all, positions).await?);
        }
        Ok(outcomes)
    }

    /// Sends some envelopes, and divides them in halves if the engine rejects them as too many.
    /// Returns the outcome of each envelope.
    async fn send_request(
        &self,
        all: &[Envelope],
        positions: Vec<usize>,
    ) -> Result<Vec<(usize, Outcome)>, RewrapError> {
        let encoding = self.target.encoding;
        let mut waiting = vec![positions];
        let mut outcomes = Vec::new();
        while let Some(positions) = waiting.pop() {
            let Some(first) = positions.first() else {
                continue;
            };
            let payload = encode_payload(
                positions.iter().map(|at| all[*at].value.as_slice()),
                encoding,
            );
            let context = &all[*first].context;
            let request = RewrapRequest {
                app: &self.target.app,
                context,
                encoding,
                payload: &payload,
            };
            let read = match self.engine.rewrap(request).await {
                Ok(response) => decode_values(&response, positions.len(), encoding),
                Err(error) => Err(error),
            };
            match read {
                Ok(read) => {
                    let read = read
                        .into_iter()
                        .map(|value| value.map_err(|_| LeftReason::CannotOpen));
                    outcomes.extend(positions.into_iter().zip(read));
                }
                Err(EngineError::TooLarge) if positions.len() == 1 => {
                    outcomes.push((positions[0], Err(LeftReason::TooLarge)));
                }
                Err(EngineError::TooLarge) => {
                    let (head, tail) = positions.split_at(positions.len() / 2);
                    waiting.extend([head.to_vec(), tail.to_vec()]);
                }
                Err(EngineError::Failed(why)) => return Err(RewrapError::Engine(why)),
            }
        }
        Ok(outcomes)
    }

    /// Writes changes in one statement, which is one transaction. Returns the number of rows that
    /// were written.
    async fn write(&self, statement: &Statement, changes: Changes) -> Result<u64, RewrapError> {
        if changes.old.is_empty() {
            return Ok(0);
        }
        let mut parameters: Vec<Box<dyn ToSql + Sync + Send>> = Vec::new();
        for column in changes.keys {
            parameters.push(Box::new(column));
        }
        match self.target.encoding {
            Encoding::Text => {
                parameters.push(Box::new(envelope_texts(changes.old)));
                parameters.push(Box::new(envelope_texts(changes.new)));
            }
            Encoding::Binary => {
                parameters.push(Box::new(changes.old));
                parameters.push(Box::new(changes.new));
            }
        }
        let parameters: Vec<&(dyn ToSql + Sync)> =
            parameters.iter().map(|value| &**value as _).collect();
        self.client
            .execute(statement, &parameters)
            .await
            .map_err(|error| self.table_error(&error))
    }

    fn key(&self, row: &Row) -> Vec<String> {
        (0..self.target.key.len()).map(|at| row.get(at)).collect()
    }

    fn value(&self, row: &Row) -> Option<Vec<u8>> {
        let at = self.target.key.len();
        match self.target.encoding {
            Encoding::Text => row.get::<_, Option<String>>(at).map(String::into_bytes),
            Encoding::Binary => row.get(at),
        }
    }

    /// Returns the context of a row, or `None` if one of the context's columns is null.
    fn context(&self, row: &Row) -> Option<Vec<u8>> {
        let columns =
            (self.target.key.len() + 1..row.len()).map(|at| row.get::<_, Option<&str>>(at));
        self.target.context.render(columns).map(String::into_bytes)
    }

    async fn prepare(&self, sql: &str) -> Result<Statement, RewrapError> {
        self.client
            .prepare(sql)
            .await
            .map_err(|error| self.table_error(&error))
    }

    async fn query(&self, statement: &Statement, key: &[String]) -> Result<Vec<Row>, RewrapError> {
        let key: Vec<&(dyn ToSql + Sync)> = key.iter().map(|value| value as _).collect();
        self.client
            .query(statement, &key)
            .await
            .map_err(|error| self.table_error(&error))
    }

    fn table_error(&self, error: &tokio_postgres::Error) -> RewrapError {
        RewrapError::Table {
            table: self.target.title(),
            error: self.endpoint.error(error),
        }
    }
}

fn envelope_texts(values: Vec<Vec<u8>>) -> Vec<String> {
    values
        .into_iter()
        .map(|value| String::from_utf8(value).expect("an envelope is ASCII"))
        .collect()
}

/// Divides envelopes into requests, by context and by size. Returns the positions of each request's
/// envelopes.
fn divide_requests(envelopes: &[Envelope]) -> Vec<Vec<usize>> {
    let mut by_context: BTreeMap<&[u8], Vec<(usize, Vec<usize>)>> = BTreeMap::new();
    for (at, envelope) in envelopes.iter().enumerate() {
        let requests = by_context.entry(&envelope.context).or_default();
        let bytes = envelope.value.len();
        match requests.last_mut() {
            Some((total, positions)) if *total + bytes <= REQUEST_BYTES_MAX => {
                *total += bytes;
                positions.push(at);
            }
            _ => requests.push((bytes, vec![at])),
        }
    }
    by_context
        .into_values()
        .flatten()
        .map(|(_, positions)| positions)
        .collect()
}

/// Returns the pause after a page, so that its rewrapped values stay within the rate.
fn pause_for_rate(values: u64, rate: u64, elapsed: Duration) -> Duration {
    let micros = values
        .saturating_mul(1_000_000)
        .checked_div(rate)
        .unwrap_or(0);
    Duration::from_micros(micros).saturating_sub(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_keep_pages_within_the_rate() {
        let ms = Duration::from_millis;
        for (values, rate, elapsed, expected) in [
            (500, 0, ms(1), ms(0)),
            (500, 1_000, ms(0), ms(500)),
            (500, 1_000, ms(200), ms(300)),
            (500, 1_000, ms(700), ms(0)),
            (0, 1_000, ms(0), ms(0)),
            (1, 1, ms(0), ms(1_000)),
        ] {
            assert_eq!(
                pause_for_rate(values, rate, elapsed),
                expected,
                "{values} at {rate}"
            );
        }
    }

    #[test]
    fn requests_have_one_context_and_a_bounded_size() {
        let envelope = |context: &str, bytes: usize| Envelope {
            key: vec!["1".to_owned()],
            value: vec![b'x'; bytes],
            key_id: KeyId::from_bytes([1; 5]),
            context: context.as_bytes().to_vec(),
        };
        assert!(divide_requests(&[]).is_empty());
        let same = [envelope("", 9), envelope("", 9), envelope("", 9)];
        assert_eq!(divide_requests(&same), [[0, 1, 2]]);
        let mixed = [envelope("b", 9), envelope("a", 9), envelope("b", 9)];
        assert_eq!(divide_requests(&mixed), [vec![1], vec![0, 2]]);
        let large = [
            envelope("", REQUEST_BYTES_MAX + 1),
            envelope("", REQUEST_BYTES_MAX),
            envelope("", 1),
        ];
        assert_eq!(divide_requests(&large), [[0], [1], [2]]);
    }
}
