//! Clients of several engines in a closed loop: each sends its next request when the response to
//! the last has arrived.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sealwire_client::{Client, Decrypt, Detokenize, Encrypt, Error, Tokenize};
use sealwire_msgpack::{Malformed, Token, TokenReader, write};
use sealwire_wire::{TokenLookupScope, TokenizeOptions};
use tokio::task::JoinSet;

use super::ScaleSettings;
use crate::fault::Fault;
use crate::frames;
use crate::histograms::Spread;
use crate::random::Random;
use crate::results::ScaleLoad;

/// Different documents of a load.
const DOCUMENTS: usize = 64;
/// Maximum number of tokens that look-ups choose from.
const TOKENS_MAX: usize = 1_000_000;
/// Values per request that fills the table.
const FILL_VALUES: u32 = 2_000;
/// Requests under way that fill the table.
const FILL_IN_FLIGHT: u32 = 4;
/// Letters of a value.
const VALUE_BYTES: usize = 16;

/// Part of a load.
const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const ENDED: u8 = 2;

/// A document and its encrypted form.
struct SealedDocument {
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

/// A token and its value, both as MessagePack.
#[derive(Clone)]
struct MadeToken {
    token: Arc<[u8]>,
    value: [u8; VALUE_BYTES],
}

/// Documents, tokens and values that requests are made of, shared by all clients and loads.
pub(super) struct LoadInputs {
    app: String,
    collection: String,
    documents: Vec<SealedDocument>,
    tokens: Mutex<Vec<MadeToken>>,
    /// Values that were made so far. Each number gives another value.
    values: AtomicU64,
    seed: u64,
}

impl LoadInputs {
    /// Makes documents and encrypts them.
    pub(super) async fn prepare(settings: &ScaleSettings, client: &Client) -> Result<Self, Fault> {
        let mut random = Random::new(settings.seed);
        let mut documents = Vec::with_capacity(DOCUMENTS);
        for _ in 0..DOCUMENTS {
            let plain = frames::document(settings.fields, settings.field_bytes, &mut random);
            let sealed = client
                .encrypt(Encrypt::new(&settings.app, &plain))
                .await
                .map_err(|error| failed(&error))?;
            documents.push(SealedDocument {
                plain,
                sealed: sealed.payload.to_vec(),
            });
        }
        let (app, collection) = (settings.app.clone(), settings.collection.clone());
        let (tokens, values) = (Mutex::default(), AtomicU64::new(0));
        Ok(Self {
            app,
            collection,
            documents,
            tokens,
            values,
            seed: settings.seed,
        })
    }

    /// Returns the letters of a value. The first of them are its number, so that no two are equal.
    fn value(&self, number: u64) -> [u8; VALUE_BYTES] {
        let mut value = [0; VALUE_BYTES];
        let bits = [number, Random::new(self.seed ^ number).bits()];
        for (at, letter) in value.iter_mut().enumerate() {
            // 11 letters of 6 bits hold the number.
            let (word, shift) = if at < 11 {
                (bits[0], 6 * at)
            } else {
                (bits[1], 6 * (at - 11))
            };
            *letter = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
                [(word >> shift & 63) as usize];
        }
        value
    }

    fn new_value(&self) -> [u8; VALUE_BYTES] {
        self.value(self.values.fetch_add(1, Ordering::Relaxed))
    }

    fn keep(&self, made: MadeToken) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if tokens.len() < TOKENS_MAX {
            tokens.push(made);
        }
    }

    fn any_token(&self, random: &mut Random) -> Option<MadeToken> {
        let tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        (!tokens.is_empty()).then(|| tokens[random.below(tokens.len())].clone())
    }

    /// Makes tokens of `rows` new values with large requests.
    pub(super) async fn fill(self: &Arc<Self>, client: &Client, rows: u32) -> Result<(), Fault> {
        let next = Arc::new(AtomicU64::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..FILL_IN_FLIGHT {
            let (material, client, next) = (Arc::clone(self), client.clone(), Arc::clone(&next));
            workers.spawn(async move {
                while next.fetch_add(FILL_VALUES.into(), Ordering::Relaxed) < rows.into() {
                    let mut payload =
                        Vec::with_capacity(FILL_VALUES as usize * (VALUE_BYTES + 1) + 5);
                    write::array_len(&mut payload, FILL_VALUES);
                    (0..FILL_VALUES).for_each(|_| append(&mut payload, &material.new_value()));
                    material.tokenize(&client, &payload).await?;
                }
                Ok(())
            });
        }
        all(workers).await
    }

    async fn tokenize(&self, client: &Client, payload: &[u8]) -> Result<Vec<u8>, Fault> {
        let writing = TokenizeOptions {
            collection: &self.collection,
            ..TokenizeOptions::default()
        };
        let reply = client
            .tokenize(Tokenize {
                writing,
                ..Tokenize::new(&self.app, payload)
            })
            .await;
        reply
            .map(|reply| reply.payload.to_vec())
            .map_err(|error| failed(&error))
    }

    /// Sends one request and checks its response.
    async fn request(
        &self,
        load: ScaleLoad,
        client: &Client,
        random: &mut Random,
    ) -> Result<(), Fault> {
        let document = &self.documents[random.below(DOCUMENTS)];
        match load {
            ScaleLoad::Encrypt => {
                let sealed = client
                    .encrypt(Encrypt::new(&self.app, &document.plain))
                    .await;
                let sealed = sealed.map_err(|error| failed(&error))?.payload;
                right(
                    frames::every_field_changed(&document.plain, &sealed),
                    "encrypt: a field is not sealed",
                )
            }
            ScaleLoad::Decrypt => {
                let opened = client
                    .decrypt(Decrypt::new(&self.app, &document.sealed))
                    .await;
                let opened = opened.map_err(|error| failed(&error))?.payload;
                right(
                    Ok(opened == document.plain),
                    "decrypt: the document differs from what was encrypted",
                )
            }
            ScaleLoad::Tokenize => {
                let value = self.new_value();
                let mut payload = Vec::with_capacity(VALUE_BYTES + 1);
                append(&mut payload, &value);
                let token = self.tokenize(client, &payload).await?;
                right(
                    text(&token).map(|token| token != value),
                    "tokenize: the response is the value",
                )?;
                self.keep(MadeToken {
                    token: token.into(),
                    value,
                });
                Ok(())
            }
            ScaleLoad::Detokenize => {
                let made = self.any_token(random);
                let made = made.ok_or_else(|| {
                    Fault::Failed("no token to look up: load `tokenize` first".to_owned())
                })?;
                let writing = TokenLookupScope {
                    collection: &self.collection,
                };
                let found = client
                    .detokenize(Detokenize {
                        writing,
                        ..Detokenize::new(&self.app, &made.token)
                    })
                    .await;
                let found = found.map_err(|error| failed(&error))?.payload;
                right(
                    text(&found).map(|found| found == made.value),
                    "detokenize: the value of another token",
                )
            }
        }
    }
}

/// Latencies and errors of the measured part of a load.
pub(super) struct LoadResult {
    pub(super) latency: Spread,
    pub(super) errors: u64,
    /// Description of the last error.
    pub(super) last_error: Option<String>,
}

impl LoadResult {
    pub(super) fn new() -> Self {
        Self {
            latency: Spread::coarse(),
            errors: 0,
            last_error: None,
        }
    }

    fn add(&mut self, other: Self) {
        self.latency.add(&other.latency);
        self.errors += other.errors;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

/// Clients that send requests until they are stopped.
pub(super) struct RunningLoad {
    part: Arc<AtomicU8>,
    workers: JoinSet<Result<LoadResult, Fault>>,
}

impl RunningLoad {
    /// Starts `in_flight` loops for each client.
    pub(super) fn start(
        material: &Arc<LoadInputs>,
        load: ScaleLoad,
        clients: &[Client],
        in_flight: u32,
    ) -> Self {
        let part = Arc::new(AtomicU8::new(WARM_UP));
        let mut workers = JoinSet::new();
        for (number, client) in (0_u64..).zip(
            clients
                .iter()
                .flat_map(|client| (0..in_flight).map(move |_| client)),
        ) {
            let (material, client, part) =
                (Arc::clone(material), client.clone(), Arc::clone(&part));
            let mut random = Random::new(material.seed ^ (number + 1) << 32);
            workers.spawn(async move {
                let mut result = LoadResult::new();
                loop {
                    let at = part.load(Ordering::Relaxed);
                    if at == ENDED {
                        return Ok(result);
                    }
                    let began = Instant::now();
                    match material.request(load, &client, &mut random).await {
                        Ok(()) if at == MEASURED => {
                            result.latency.record(began.elapsed().as_nanos() as u64)
                        }
                        Ok(()) => (),
                        Err(wrong @ Fault::Wrong(_)) => return Err(wrong),
                        Err(error) => {
                            // Errors of the warm-up count too: the engines were not what the
                            // figures are about.
                            result.errors += 1;
                            result.last_error = Some(error.to_string());
                            tokio::time::sleep(Duration::from_millis(10)).await;
                        }
                    }
                }
            });
        }
        Self { part, workers }
    }

    /// Begins the part that counts.
    pub(super) fn measure(&self) {
        self.part.store(MEASURED, Ordering::Relaxed);
    }

    /// Ends the load and waits for responses that are under way.
    pub(super) async fn stop(mut self) -> Result<LoadResult, Fault> {
        self.part.store(ENDED, Ordering::Relaxed);
        let mut result = LoadResult::new();
        while let Some(ended) = self.workers.join_next().await {
            result.add(ended.map_err(|panic| Fault::Failed(panic.to_string()))??);
        }
        Ok(result)
    }
}

async fn all(mut workers: JoinSet<Result<(), Fault>>) -> Result<(), Fault> {
    while let Some(ended) = workers.join_next().await {
        ended.map_err(|panic| Fault::Failed(panic.to_string()))??;
    }
    Ok(())
}

fn append(out: &mut Vec<u8>, value: &[u8]) {
    write::str_header(out, value.len());
    out.extend_from_slice(value);
}

fn text(payload: &[u8]) -> Result<&[u8], Malformed> {
    match TokenReader::new(payload).token()? {
        Token::Str(text) => Ok(text),
        _ => Err(Malformed::Expected {
            expected: "a string",
            found: "another value",
        }),
    }
}

fn right(is_right: Result<bool, Malformed>, why: &str) -> Result<(), Fault> {
    match is_right {
        Ok(true) => Ok(()),
        Ok(false) => Err(Fault::Wrong(why.to_owned())),
        Err(error) => Err(Fault::Wrong(error.to_string())),
    }
}

pub(super) fn failed(error: &Error) -> Fault {
    Fault::Failed(crate::probe::describe(error))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_values_are_equal() {
        let material = LoadInputs {
            app: String::new(),
            collection: String::new(),
            documents: Vec::new(),
            tokens: Mutex::default(),
            values: AtomicU64::new(0),
            seed: 1,
        };
        let numbers = (0..10_000)
            .chain((1..64).map(|bit| 1 << bit))
            .chain([u64::MAX]);
        let numbers: HashSet<u64> = numbers.collect();
        let values: HashSet<_> = numbers
            .iter()
            .map(|number| material.value(*number))
            .collect();
        assert_eq!(values.len(), numbers.len());
    }
}
