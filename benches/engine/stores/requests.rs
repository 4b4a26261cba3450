//! The requests of one round: each kind in a closed loop, with every response checked.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sealwire_benches::document::APP;
use sealwire_benches::stats::Summary;
use sealwire_client::{
    Client, Detokenize, TokenLookupScope, TokenMap, TokenSearch, Tokenize, TokenizeOptions,
};
use sealwire_msgpack::write;
use tokio::task::JoinSet;

use super::place::{DETERMINISTIC, RANDOM, failed};

/// Step between the values of consecutive reads, so that reads do not follow the order of writes.
/// The step is prime, so reads visit each value once if the prime does not divide their count.
const STEP: usize = 7_919;

/// Number of persons about whom values are.
const PERSONS: usize = 1_000;

/// A kind of request, in the order in which a round sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Random,
    New,
    Known,
    Detokenize,
    Find,
    NewOfPerson,
    DetokenizeOfPerson,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Random,
        Self::New,
        Self::Known,
        Self::Detokenize,
        Self::Find,
        Self::NewOfPerson,
        Self::DetokenizeOfPerson,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Random => "tokenize, random",
            Self::New => "tokenize, deterministic, new value",
            Self::Known => "tokenize, deterministic, known value",
            Self::Detokenize => "detokenize",
            Self::Find => "tokens.find",
            Self::NewOfPerson => "tokenize, deterministic, new value of a person",
            Self::DetokenizeOfPerson => "detokenize, token of a person",
        }
    }
}

/// Rate and times of one kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) per_s: f64,
    pub(crate) us: Summary,
}

/// Sends `count` requests of each kind, `clients` at once. Values are unique to the round.
pub(crate) async fn round(
    client: &Client,
    number: usize,
    count: usize,
    clients: usize,
) -> io::Result<Vec<Measured>> {
    let mut measured = Vec::new();
    // The documents with the tokens of the deterministic collection, by value.
    let mut tokens = Arc::new(Vec::new());
    for kind in Kind::ALL {
        let known = Arc::clone(&tokens);
        let send = move |client: Client, at: usize| {
            let known = Arc::clone(&known);
            async move { send(&client, kind, number, at, known.get(at).map(Vec::as_slice)).await }
        };
        let (result, answers) = closed_loop(client, kind, count, clients, send).await?;
        measured.push(result);
        if matches!(kind, Kind::New | Kind::NewOfPerson) {
            tokens = Arc::new(answers);
        }
    }
    Ok(measured)
}

/// Sends requests until all have a response, in the order of a shuffle for reads. Returns the
/// responses by value.
pub(crate) async fn closed_loop<S, A>(
    client: &Client,
    kind: Kind,
    count: usize,
    clients: usize,
    send: S,
) -> io::Result<(Measured, Vec<Vec<u8>>)>
where
    S: Fn(Client, usize) -> A + Clone + Send + 'static,
    A: Future<Output = io::Result<Vec<u8>>> + Send + 'static,
{
    let step = if matches!(kind, Kind::Random | Kind::New | Kind::NewOfPerson)
        || count.is_multiple_of(STEP)
    {
        1
    } else {
        STEP
    };
    let next = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        let (client, next, send) = (client.clone(), Arc::clone(&next), send.clone());
        tasks.spawn(async move {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return Ok(done);
                }
                let at = at * step % count;
                let since = Instant::now();
                let answer = send(client.clone(), at).await?;
                done.push((at, since.elapsed().as_secs_f64() * 1e6, answer));
            }
        });
    }
    let mut done = tasks
        .join_all()
        .await
        .into_iter()
        .collect::<io::Result<Vec<Vec<_>>>>()?
        .concat();
    let took = begun.elapsed().as_secs_f64();
    done.sort_by_key(|(at, _, _)| *at);
    let times = done.iter().map(|(_, us, _)| *us).collect();
    let answers = done.into_iter().map(|(_, _, answer)| answer).collect();
    Ok((
        Measured {
            per_s: count as f64 / took,
            us: Summary::of(times),
        },
        answers,
    ))
}

/// Returns the value number `at` of a round, as MessagePack.
fn value(round: usize, at: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write::str(&mut out, &format!("{round:06}{at:010}"));
    out
}

/// Returns a document with one field, whose value is `value` in MessagePack.
fn document(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write::map_len(&mut out, 1);
    write::str(&mut out, "field");
    out.extend_from_slice(value);
    out
}

/// Sends one request and checks its response. `token` is the document with the value's token, if it
/// has one. Returns the document of the response.
pub(crate) async fn send(
    client: &Client,
    kind: Kind,
    round: usize,
    at: usize,
    token: Option<&[u8]>,
) -> io::Result<Vec<u8>> {
    let value = value(round, at);
    let plain = document(&value);
    let token = token.unwrap_or_default();
    let collection = if kind == Kind::Random {
        RANDOM
    } else {
        DETERMINISTIC
    };
    let (answer, is_right) = match kind {
        Kind::Random | Kind::New | Kind::Known | Kind::NewOfPerson => {
            let person = format!("person {}", at % PERSONS);
            let subject = (kind == Kind::NewOfPerson).then_some(&*person);
            let writing = TokenizeOptions {
                collection,
                subject,
                ..TokenizeOptions::default()
            };
            let answer = client
                .tokenize(Tokenize {
                    writing,
                    ..Tokenize::new(APP, &plain)
                })
                .await
                .map_err(failed)?;
            let is_right =
                answer.payload != plain && (kind != Kind::Known || answer.payload == token);
            (answer.payload.to_vec(), is_right)
        }
        Kind::Detokenize | Kind::DetokenizeOfPerson => {
            let writing = TokenLookupScope { collection };
            let answer = client
                .detokenize(Detokenize {
                    writing,
                    ..Detokenize::new(APP, token)
                })
                .await
                .map_err(failed)?;
            (Vec::new(), answer.payload == plain)
        }
        Kind::Find => {
            let found = client
                .tokens_find(
                    TokenMap::new(APP, collection),
                    TokenSearch {
                        value: &value,
                        ..TokenSearch::default()
                    },
                )
                .await
                .map_err(failed)?;
            let mut text = Vec::new();
            found
                .token
                .iter()
                .for_each(|token| write::str(&mut text, token));
            (Vec::new(), document(&text) == token)
        }
    };
    if is_right {
        Ok(answer)
    } else {
        Err(failed(format!(
            "{}: value {at} got a wrong response",
            kind.name()
        )))
    }
}
