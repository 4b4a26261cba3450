//! Fills the table before a load and looks up all rows after it: large requests to all engines at
//! once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sealwire_client::{Client, Detokenize, Error, Tokenize};
use sealwire_msgpack::{Malformed, Token, TokenReader, write};
use sealwire_wire::{OnError, TokenLookupScope, TokenizeOptions};
use tokio::runtime::Runtime;

use super::VaultSettings;
use super::rows::{RowToken, TOKEN_BYTES, TokenRow, TokenRows, VALUE_BYTES, compare, token, value};
use crate::fault::Fault;
use crate::results::{Phase, RowCheck};
use crate::table::number;

/// Values or tokens per request. Within the engines' default limit of 10,000.
const FIELDS: u32 = 2_000;
/// Requests in flight per engine: one waits for the database while the engine seals another.
const IN_FLIGHT: usize = 2;
/// Time limit of a request. Busy engines reject requests, which are then retried.
const PATIENCE: Duration = Duration::from_secs(120);
/// Interval between progress lines.
const PROGRESS: Duration = Duration::from_secs(2);

/// A client of each engine, and the threads that serve them.
pub(super) struct BulkClients {
    runtime: Runtime,
    clients: Vec<Client>,
    app: Arc<str>,
    collection: Arc<str>,
}

impl BulkClients {
    /// Reads the certificates. Connects with the first request.
    pub(super) fn new(settings: &VaultSettings) -> Result<Self, Fault> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let client = |target: &crate::target::Target| {
            let mut config = target.client();
            config.connections = 1;
            config.attempts_max = 100;
            config.retry_percent = 100;
            config.deadline = PATIENCE;
            // Without it the client adds an idempotency key per request, which costs an index entry
            // per row.
            config.repeat_sent = false;
            Client::lazy(config).map_err(|error| failed(&error))
        };
        let clients = settings
            .targets
            .iter()
            .map(client)
            .collect::<Result<_, _>>()?;
        Ok(Self {
            runtime,
            clients,
            app: (&*settings.app).into(),
            collection: (&*settings.collection).into(),
        })
    }

    /// Tokenizes `count` new values and adds their rows.
    pub(super) fn fill(&self, rows: &mut TokenRows, count: u32) -> Result<(), Fault> {
        let begin = rows.reserve(count);
        let (end, seed, before) = (begin + count, rows.seed(), rows.len());
        let (sender, made) = channel::<Result<(usize, u32, Vec<RowToken>), Fault>>();
        let next = Arc::new(AtomicU32::new(begin));
        for (engine, client) in self.workers() {
            let (next, sender) = (Arc::clone(&next), sender.clone());
            let (app, collection) = (Arc::clone(&self.app), Arc::clone(&self.collection));
            self.runtime.spawn(async move {
                loop {
                    let first = next.fetch_add(FIELDS, Ordering::Relaxed);
                    if first >= end {
                        return;
                    }
                    let numbers = first..end.min(first + FIELDS);
                    let payload = array(
                        numbers.len(),
                        VALUE_BYTES,
                        numbers.map(|number| value(seed, number)),
                    );
                    let writing = TokenizeOptions {
                        collection: &collection,
                        ..TokenizeOptions::default()
                    };
                    let reply = client
                        .tokenize(Tokenize {
                            writing,
                            ..Tokenize::new(&app, &payload)
                        })
                        .await;
                    let tokens = reply.map_err(|error| failed(&error)).and_then(|reply| {
                        texts(&reply.payload)
                            .map_err(wrong)?
                            .into_iter()
                            .map(token)
                            .collect::<Result<Vec<_>, _>>()
                    });
                    let is_failed = tokens.is_err();
                    if sender
                        .send(tokens.map(|tokens| (engine, first, tokens)))
                        .is_err()
                        || is_failed
                    {
                        return;
                    }
                }
            });
        }
        drop(sender);
        Progress::new("filled", u64::from(count)).collect(&made, |(engine, first, tokens)| {
            let done = tokens.len() as u64;
            for (number, token) in (first..).zip(tokens) {
                rows.acknowledge(TokenRow {
                    token,
                    engine: engine as u8,
                    phase: Phase::Fill,
                    number,
                });
            }
            done
        })?;
        let made = rows.len() - before;
        if made != count as usize {
            return Err(Fault::Wrong(format!("{made} tokens for {count} values")));
        }
        Ok(())
    }

    /// Looks up every acknowledged row, through another engine than that which acknowledged it if
    /// there are several.
    pub(super) fn check(&self, rows: TokenRows) -> Result<RowCheck, Fault> {
        let began = Instant::now();
        let total = rows.len() as u64;
        let lists: Vec<Arc<[u32]>> = rows
            .check_lists(self.clients.len())
            .into_iter()
            .map(Arc::from)
            .collect();
        let cursors: Vec<Arc<AtomicUsize>> = lists.iter().map(|_| Arc::default()).collect();
        let rows = Arc::new(rows);
        let (sender, checked) = channel::<Result<RowCheck, Fault>>();
        for (engine, client) in self.workers() {
            let (list, cursor, rows) = (
                Arc::clone(&lists[engine]),
                Arc::clone(&cursors[engine]),
                Arc::clone(&rows),
            );
            let (app, collection, sender) = (
                Arc::clone(&self.app),
                Arc::clone(&self.collection),
                sender.clone(),
            );
            self.runtime.spawn(async move {
                loop {
                    let first = cursor.fetch_add(FIELDS as usize, Ordering::Relaxed);
                    let Some(part) = list
                        .get(first..list.len().min(first + FIELDS as usize))
                        .filter(|p| !p.is_empty())
                    else {
                        return;
                    };
                    let tokens = part.iter().map(|index| rows.get(*index as usize).token);
                    let payload = array(part.len(), TOKEN_BYTES, tokens);
                    let writing = TokenLookupScope {
                        collection: &collection,
                    };
                    let lookup = Detokenize {
                        writing,
                        on_error: OnError::Report,
                        ..Detokenize::new(&app, &payload)
                    };
                    let reply = client.detokenize(lookup).await;
                    let result = reply.map_err(|error| failed(&error)).and_then(|reply| {
                        let found = texts(&reply.payload).map_err(wrong)?;
                        if found.len() != part.len() {
                            return Err(Fault::Wrong(format!(
                                "{} values for {} tokens",
                                found.len(),
                                part.len()
                            )));
                        }
                        let mut check = RowCheck::new();
                        part.iter().zip(found).for_each(|(at, found)| {
                            compare(&mut check, &rows, *at as usize, engine, found)
                        });
                        Ok(check)
                    });
                    let is_failed = result.is_err();
                    if sender.send(result).is_err() || is_failed {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut sum = RowCheck::new();
        Progress::new("checked", total).collect(&checked, |part| {
            sum.add(&part);
            part.checked()
        })?;
        sum.seconds = began.elapsed().as_secs_f64();
        Ok(sum)
    }

    fn workers(&self) -> impl Iterator<Item = (usize, Client)> {
        let of = |(engine, client): (usize, &Client)| {
            std::iter::repeat_n((engine, client.clone()), IN_FLIGHT)
        };
        self.clients.iter().enumerate().flat_map(of)
    }
}

fn failed(error: &Error) -> Fault {
    Fault::Failed(crate::probe::describe(error))
}

fn wrong(error: Malformed) -> Fault {
    Fault::Wrong(error.to_string())
}

/// Encodes an array of texts of one length.
fn array<const N: usize>(
    count: usize,
    bytes: usize,
    texts: impl Iterator<Item = [u8; N]>,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + count * (bytes + 2));
    write::array_len(&mut out, count as u32);
    texts.for_each(|text| {
        write::str_header(&mut out, text.len());
        out.extend_from_slice(&text);
    });
    out
}

/// Reads an array of texts.
fn texts(payload: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    let mut reader = TokenReader::new(payload);
    (0..reader.array_len()?)
        .map(|_| text(&mut reader))
        .collect()
}

/// Reads one text.
pub(super) fn text<'a>(reader: &mut TokenReader<'a>) -> Result<&'a [u8], Malformed> {
    match reader.token()? {
        Token::Str(text) => Ok(text),
        _ => Err(Malformed::Expected {
            expected: "a string",
            found: "another value",
        }),
    }
}

/// Progress of a bulk operation, on standard error.
struct Progress {
    verb: &'static str,
    total: u64,
    done: u64,
    began: Instant,
    said: Instant,
}

impl Progress {
    fn new(verb: &'static str, total: u64) -> Self {
        let now = Instant::now();
        Self {
            verb,
            total,
            done: 0,
            began: now,
            said: now,
        }
    }

    /// Passes each result to `take`, which returns the number of its rows, until all senders have
    /// ended.
    fn collect<T>(
        &mut self,
        results: &Receiver<Result<T, Fault>>,
        mut take: impl FnMut(T) -> u64,
    ) -> Result<(), Fault> {
        loop {
            match results
                .recv_timeout((self.said + PROGRESS).saturating_duration_since(Instant::now()))
            {
                Ok(result) => self.done += take(result?),
                Err(RecvTimeoutError::Timeout) => self.say(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.say();
                    return Ok(());
                }
            }
        }
    }

    fn say(&mut self) {
        use std::io::Write as _;
        self.said = Instant::now();
        // A closed standard error must not stop a load.
        let _ = writeln!(std::io::stderr(), "{}", self.line(self.said - self.began));
    }

    /// Returns the line for people after this time.
    fn line(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(1e-3);
        let per_s = self.done as f64 / seconds;
        let [done, total] = [self.done, self.total].map(|count| number(count as f64));
        let line = format!(
            "{} {done} of {total} rows in {seconds:.0} s, {} rows/s",
            self.verb,
            number(per_s.round())
        );
        let left = (self.total - self.done.min(self.total)) as f64 / per_s;
        if left > 0.0 && left.is_finite() {
            format!("{line}, {left:.0} s left")
        } else {
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_back_from_their_array() {
        let all = [*b"one", *b"two"];
        let payload = array(2, 3, all.into_iter());
        assert_eq!(texts(&payload), Ok(vec![&b"one"[..], b"two"]));
        assert!(texts(&payload[..6]).is_err());
        assert!(texts(&[0x91, 0x01]).is_err());
    }

    #[test]
    fn progress_says_what_is_left() {
        let mut progress = Progress::new("filled", 1_000_000);
        for (done, seconds, expected) in [
            (
                250_000,
                10,
                "filled 250,000 of 1,000,000 rows in 10 s, 25,000 rows/s, 30 s left",
            ),
            (
                1_000_000,
                10,
                "filled 1,000,000 of 1,000,000 rows in 10 s, 100,000 rows/s",
            ),
            (0, 0, "filled 0 of 1,000,000 rows in 0 s, 0 rows/s"),
        ] {
            progress.done = done;
            assert_eq!(progress.line(Duration::from_secs(seconds)), expected);
        }
    }
}
