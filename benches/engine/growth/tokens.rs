//! Tokens of one collection in the embedded state.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_apps::CollectionName;
use sealwire_benches::document::APP;
use sealwire_client::Client;
use sealwire_crypto::AppId;
use sealwire_server::server::open_control;
use sealwire_settings::{Config, Mode};
use tokio::runtime::Runtime;

use super::Curve;
use crate::child::{EngineChild, Folder};
use crate::cpu::place::Place;
use crate::cpu::{PRODUCTION, callers};
use crate::stores::place::{DETERMINISTIC, Store, failed, furnish};
use crate::stores::requests::{Kind, closed_loop, send};
use crate::tokens::place::fill;

/// Requests under way at once.
const CLIENTS: usize = 8;
/// Tokens that are made through the API and then looked up. Their ids are spread over those of all
/// rows.
const KNOWN_MAX: usize = 100_000;
/// Requests of each kind per second of measurement time.
const PER_SECOND: f64 = 10_000.0;
/// Part of the rows that a measurement of new tokens may add, so that the size hardly changes.
const NEW_PART: usize = 10;
/// Requests of a warm-up, as a part of the requests that are measured.
const WARM_UP_PART: usize = 10;
/// The engine is idle below this part of a core. Merges of files after a fill end before that.
const IDLE_PART: f64 = 0.05;
/// Time between two readings of the CPU time, and the longest wait for an idle engine.
const IDLE_STEP: Duration = Duration::from_millis(500);
const IDLE_WAIT_MAX: Duration = Duration::from_secs(60);
/// The round whose values have the known tokens.
const KNOWN_ROUND: usize = 0;

/// The documents with the tokens of values 0, 1, 2 and so on.
type Known = Arc<Vec<Vec<u8>>>;

pub(super) fn tokens(sizes: &[usize], time: Duration) -> io::Result<Curve> {
    let mut curve = Curve::new(
        "tokens",
        "tokens",
        "8 callers send one value per request to a deterministic collection: first look-ups (detokenize) of up to 100,000 \
         tokens in scattered order, then new values. The other rows are written into the store before the engine starts.",
        &[
            ("CPU per look-up", "us"),
            ("look-up p50", "us"),
            ("look-up p99", "us"),
            ("CPU per new token", "us"),
            ("new token p50", "us"),
            ("new token p99", "us"),
            ("memory", "MiB"),
        ],
    );
    let (folder, config) = Folder::make_with_config(&["client"], Mode::Embedded)?;
    let callers = callers()?;
    callers.block_on(furnish(&config, Store::Embedded))?;
    let known = sizes.first().copied().unwrap_or(0).min(KNOWN_MAX);
    let known = make_known(&callers, &folder, known)?;
    let (mut rows, mut filled) = (known.len(), 0);
    let count = ((time.as_secs_f64() * PER_SECOND) as usize).max(WARM_UP_PART);
    for (round, size) in sizes.iter().enumerate() {
        let missing = size.saturating_sub(rows);
        callers.block_on(fill_collection(&config, filled, missing))?;
        (filled, rows) = (filled + missing, rows + missing);
        let engine = EngineChild::start_with(&folder, &PRODUCTION)?;
        let place = Place::Process(engine, folder.clone());
        if !wait_until_idle(&place)? {
            curve.notes.push(format!(
                "With {size} tokens the engine was still merging files, which CPU times include."
            ));
        }
        let client = place.client(&callers);
        let load = Load {
            callers: &callers,
            place: &place,
            client: &client,
            known: &known,
        };
        let new = count.min(size / NEW_PART).max(1);
        // Two rounds of values, of which none is known: the warm-up and the measurement.
        load.send(Kind::Detokenize, KNOWN_ROUND, count / WARM_UP_PART)?;
        let look_up = load.send(Kind::Detokenize, KNOWN_ROUND, count)?;
        let warm_up = (new / WARM_UP_PART).max(1);
        load.send(Kind::New, 2 * round + 1, warm_up)?;
        let written = load.send(Kind::New, 2 * round + 2, new)?;
        rows += warm_up + new;
        let Place::Process(engine, _) = &place else {
            unreachable!("started as a process")
        };
        let memory = engine.resident_mib()?;
        curve.push(*size, &[&look_up[..], &written[..], &[memory]].concat());
        drop(client);
        place.stop();
    }
    Ok(curve)
}

/// A running engine with its client and the tokens to look up.
struct Load<'a> {
    callers: &'a Runtime,
    place: &'a Place,
    client: &'a Client,
    known: &'a Known,
}

impl Load<'_> {
    /// Sends `count` requests and checks each response. Returns CPU time per request, p50 and p99,
    /// in microseconds.
    fn send(&self, kind: Kind, round: usize, count: usize) -> io::Result<[f64; 3]> {
        let before = self.place.cpu()?;
        let known = Arc::clone(self.known);
        let requests = closed_loop(self.client, kind, count, CLIENTS, move |client, at| {
            let known = Arc::clone(&known);
            async move {
                let at = if kind == Kind::Detokenize {
                    at % known.len()
                } else {
                    at
                };
                let token = (kind == Kind::Detokenize).then(|| known[at].as_slice());
                send(&client, kind, round, at, token).await
            }
        });
        let (measured, _) = self.callers.block_on(requests)?;
        // The CPU time of threads is complete only after they sleep.
        std::thread::sleep(Duration::from_millis(20));
        let cpu = self.place.cpu()?.since(before).all().as_nanos() as f64 / count as f64 / 1e3;
        Ok([cpu, measured.us.p50, measured.us.p99])
    }
}

/// Makes tokens through an engine, and returns the documents with them.
fn make_known(callers: &Runtime, folder: &Folder, count: usize) -> io::Result<Known> {
    let engine = EngineChild::start_with(folder, &PRODUCTION)?;
    let place = Place::Process(engine, folder.clone());
    let client = place.client(callers);
    let tokenize =
        |client: Client, at| async move { send(&client, Kind::New, KNOWN_ROUND, at, None).await };
    let (_, known) = callers.block_on(closed_loop(&client, Kind::New, count, CLIENTS, tokenize))?;
    drop(client);
    place.stop();
    Ok(Arc::new(known))
}

/// Writes `count` rows into the collection, numbered from `first` on. No engine has the state open
/// meanwhile.
async fn fill_collection(config: &Config, first: usize, count: usize) -> io::Result<()> {
    let (control, stores) = open_control(config).await.map_err(failed)?;
    let state = control.load().await.map_err(failed)?;
    let (app, name) = (
        AppId::new(APP).map_err(failed)?,
        CollectionName::new(DETERMINISTIC).map_err(failed)?,
    );
    let app = state
        .apps
        .iter()
        .find(|other| *other.keys.app() == app)
        .ok_or_else(|| failed("there is no app"))?;
    let collection = app
        .collections
        .get(&name)
        .ok_or_else(|| failed("there is no collection"))?;
    let store = stores
        .tokens
        .as_ref()
        .ok_or_else(|| failed("the state keeps no tokens"))?;
    fill(
        store,
        app.map(collection),
        first as u64..(first + count) as u64,
    )
    .await?;
    stores.close().await;
    Ok(())
}

/// Waits until the engine uses no CPU time. Returns false if it did not come to rest.
fn wait_until_idle(place: &Place) -> io::Result<bool> {
    let end = Instant::now() + IDLE_WAIT_MAX;
    while Instant::now() < end {
        let before = place.cpu()?;
        std::thread::sleep(IDLE_STEP);
        if place.cpu()?.since(before).all() < IDLE_STEP.mul_f64(IDLE_PART) {
            return Ok(true);
        }
    }
    Ok(false)
}
