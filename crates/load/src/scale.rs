//! Loads of 1, 2 and more engines with one state, through the endpoint list of clients and through
//! a TCP balancer.
//!
//! Clients are those of `sealwire-client`, so that their choice of endpoints is measured, too. They
//! send in a closed loop with the same number of requests under way for any number of engines.
//! Engines report their own CPU time, so figures per core-second hold also if all processes share
//! few cores. Throughput then says little: it ends where the machine ends.

mod clients;
mod readings;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sealwire_client::{Client, ClientConfig, Endpoint};

use crate::fault::Fault;
use crate::host;
use crate::results::{
    CheckpointUse, DatabaseUse, IdleUse, RestartFigures, Routing, SCALE, ScaleFigures, ScaleLoad,
    ScalePoint, now,
};
use crate::target::Target;

use clients::{LoadInputs, RunningLoad, failed};
use readings::{DatabaseProbe, EngineReading, SystemReading};

/// Maximum number of engines. A client's list has at most as many.
pub(crate) const ENGINES_MAX: usize = ClientConfig::ENDPOINTS_MAX;
/// Maximum time for a killed engine to come back.
const BACK_MAX: Duration = Duration::from_secs(180);
/// Part of the write-ahead log that the server's statistics must have counted.
const COUNTED_MIN: f64 = 0.95;
/// Maximum time to wait for that. Servers count idle connections after 10 s.
const COUNTED_WAIT_MAX: Duration = Duration::from_secs(15);
/// Deadline of requests.
const DEADLINE: Duration = Duration::from_secs(60);

/// Description of the loads.
#[derive(Clone, Debug)]
pub(crate) struct ScaleSettings {
    /// The engines, 1 to [`ENGINES_MAX`]. All have one state.
    pub(crate) targets: Vec<Target>,
    /// Addresses of their admin listeners, in the same order.
    pub(crate) admins: Vec<String>,
    /// Numbers of engines to load. A number takes the first engines of the list.
    pub(crate) counts: Vec<usize>,
    /// A balancer in front of as many engines as its entry in `counts`; empty without balancers.
    pub(crate) balancers: Vec<Target>,
    pub(crate) database: Option<DatabaseAccess>,
    pub(crate) loads: Vec<ScaleLoad>,
    pub(crate) app: String,
    /// Collection of the tokens.
    pub(crate) collection: String,
    pub(crate) fields: u32,
    pub(crate) field_bytes: u32,
    /// Rows that the table gets before the loads.
    pub(crate) rows: u32,
    pub(crate) clients: u32,
    pub(crate) in_flight: u32,
    /// Connections of a client to each endpoint.
    pub(crate) connections: u32,
    /// Age at which clients replace a connection.
    pub(crate) connection_age: Duration,
    pub(crate) rounds: u32,
    pub(crate) duration: Duration,
    pub(crate) warm_up: Duration,
    /// Kill the last engine at the end. Something else must start it again.
    pub(crate) restart: bool,
    pub(crate) seed: u64,
}

/// The engines' database.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseAccess {
    pub(crate) url: String,
    pub(crate) password_file: Option<PathBuf>,
}

impl ScaleSettings {
    /// Checks that the loads can run.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        let invalid = |what: String| Err(Fault::Failed(what));
        let engines = self.targets.len();
        if !(1..=ENGINES_MAX).contains(&engines) {
            return invalid(format!("--connect takes 1 to {ENGINES_MAX} engines"));
        }
        if self.admins.len() != engines {
            return invalid(format!(
                "--admin needs an address for each of the {engines} engines, in the same order"
            ));
        }
        if self.counts.is_empty()
            || self
                .counts
                .iter()
                .any(|count| !(1..=engines).contains(count))
        {
            return invalid(format!(
                "--counts takes numbers from 1 to {engines}, the number of engines"
            ));
        }
        if !self.balancers.is_empty() && self.balancers.len() != self.counts.len() {
            return invalid("--balancers needs a balancer for each number of --counts".to_owned());
        }
        if self.restart && self.counts.last().is_none_or(|count| *count < 2) {
            return invalid("--restart needs at least 2 engines at the end of --counts".to_owned());
        }
        let makes_tokens = self.rows > 0 || self.loads.contains(&ScaleLoad::Tokenize);
        let at = |load: ScaleLoad| self.loads.iter().position(|of| *of == load);
        if at(ScaleLoad::Detokenize)
            .is_some_and(|look_up| at(ScaleLoad::Tokenize).is_none_or(|made| made > look_up))
        {
            return invalid(
                "--loads with `detokenize` needs `tokenize` before it, which makes the tokens"
                    .to_owned(),
            );
        }
        if self.database.is_some() && !makes_tokens {
            return invalid("--database is only for loads of tokens".to_owned());
        }
        Ok(())
    }

    fn client(&self, endpoints: &[Target], connections: usize) -> Result<Client, Fault> {
        let mut config = endpoints[0].client();
        config.endpoints = endpoints
            .iter()
            .map(|to| Endpoint::new(to.dial(), &to.server_name))
            .collect();
        config.connections = connections;
        config.connection_age_max = self.connection_age;
        config.deadline = DEADLINE;
        Client::lazy(config).map_err(|error| failed(&error))
    }

    /// Returns new clients of as many engines as the entry of `counts` says.
    fn clients(&self, at: usize, way: Routing) -> Result<Vec<Client>, Fault> {
        let (count, connections) = (self.counts[at], self.connections as usize);
        let client = || match way {
            Routing::Endpoints => self.client(&self.targets[..count], connections),
            // As many connections in all as with a list.
            Routing::Balancer => self.client(&self.balancers[at..=at], connections * count),
        };
        (0..self.clients).map(|_| client()).collect()
    }
}

/// Returns the fault of loads in which requests failed.
pub(crate) fn check_errors(figures: &ScaleFigures) -> Result<(), Fault> {
    if let Some(point) = figures.points.iter().find(|point| point.errors > 0) {
        let (errors, load, way) = (point.errors, point.load.name(), point.way.name());
        return Err(Fault::Failed(format!(
            "{errors} requests of `{load}` through the {way} failed"
        )));
    }
    match figures.restarts.iter().find(|restart| restart.errors > 0) {
        Some(RestartFigures { way, errors, .. }) => Err(Fault::Failed(format!(
            "{errors} requests through the {} failed when an engine was killed",
            way.name()
        ))),
        None => Ok(()),
    }
}

/// Runs all loads. Passes each point to `progress` when it is measured.
///
/// # Errors
/// Fails if an engine, a balancer or the database cannot be used, or a response is wrong.
pub(crate) fn run(
    settings: &ScaleSettings,
    progress: impl FnMut(&ScalePoint),
) -> Result<ScaleFigures, Fault> {
    settings.check()?;
    let threads = host::cores().min(4) as usize;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()?;
    runtime.block_on(measure(settings, progress))
}

async fn measure(
    settings: &ScaleSettings,
    mut progress: impl FnMut(&ScalePoint),
) -> Result<ScaleFigures, Fault> {
    let started = now();
    let database = match &settings.database {
        Some(access) => {
            let password = access
                .password_file
                .as_ref()
                .map(std::fs::read_to_string)
                .transpose()?;
            Some(DatabaseProbe::connect(&access.url, password.as_deref().map(str::trim_end)).await?)
        }
        None => None,
    };
    let database = database.as_ref();
    let idle = idle(settings, database).await?;
    let first = settings.client(&settings.targets, 1)?;
    let version = first.info().await.map_err(|error| failed(&error))?.version;
    let inputs = Arc::new(LoadInputs::prepare(settings, &first).await?);
    inputs.fill(&first, settings.rows).await?;
    let bench = ScaleRunner {
        settings,
        database,
        inputs,
    };
    let ways: &[Routing] = if settings.balancers.is_empty() {
        &[Routing::Endpoints]
    } else {
        &[Routing::Endpoints, Routing::Balancer]
    };
    let mut points = Vec::new();
    for round in 1..=settings.rounds {
        for load in &settings.loads {
            for at in 0..settings.counts.len() {
                for way in ways {
                    let point = bench.point(round, *load, *way, at).await?;
                    progress(&point);
                    points.push(point);
                }
            }
        }
    }
    let checkpoint = match database {
        Some(database) if settings.loads.contains(&ScaleLoad::Tokenize) => {
            Some(bench.checkpoint(database).await?)
        }
        _ => None,
    };
    let mut restarts = Vec::new();
    for way in ways.iter().filter(|_| settings.restart) {
        restarts.push(bench.restart(*way).await?);
    }
    let table = match database {
        Some(database) => Some(database.table().await?),
        None => None,
    };
    Ok(ScaleFigures {
        schema: SCALE.to_owned(),
        tool: concat!("sealwire-load ", env!("CARGO_PKG_VERSION")).to_owned(),
        started,
        version,
        machine: host::machine(),
        same_machine: settings
            .targets
            .iter()
            .all(|target| host::is_here(&target.address)),
        clients: settings.clients,
        in_flight: settings.in_flight,
        connections: settings.connections,
        fields: settings.fields,
        field_bytes: settings.field_bytes,
        duration_s: settings.duration.as_secs_f64(),
        idle,
        table,
        checkpoint,
        restarts,
        points,
    })
}

/// Measures what engines and database use without requests.
async fn idle(
    settings: &ScaleSettings,
    database: Option<&DatabaseProbe>,
) -> Result<IdleUse, Fault> {
    let first = SystemReading::take(&settings.admins, database).await?;
    tokio::time::sleep(settings.duration).await;
    let last = SystemReading::take(&settings.admins, database).await?;
    let engines = settings.admins.len() as f64;
    let seconds = (last.at - first.at).as_secs_f64();
    let sum = |reading: &SystemReading, of: fn(&EngineReading) -> f64| {
        reading.engines.iter().map(of).sum::<f64>()
    };
    let database_cpu_s = last
        .database
        .zip(first.database)
        .and_then(|(last, first)| last.since(&first).cpu_s);
    let per_engine_and_s = |cpu_s: f64| cpu_s * 1e6 / engines / seconds;
    Ok(IdleUse {
        engines: settings.admins.len() as u32,
        engine_cpu_us_per_s: per_engine_and_s(
            sum(&last, |engine| engine.cpu_s) - sum(&first, |engine| engine.cpu_s),
        ),
        engine_bytes: sum(&last, |engine| engine.resident_bytes) / engines,
        database_connections: sum(&last, |engine| engine.database_connections) / engines,
        database_cpu_us_per_s: database_cpu_s.map(per_engine_and_s),
    })
}

/// State shared by all measurements.
struct ScaleRunner<'a> {
    settings: &'a ScaleSettings,
    database: Option<&'a DatabaseProbe>,
    inputs: Arc<LoadInputs>,
}

impl ScaleRunner<'_> {
    async fn point(
        &self,
        round: u32,
        load: ScaleLoad,
        way: Routing,
        at: usize,
    ) -> Result<ScalePoint, Fault> {
        let settings = self.settings;
        let engines = settings.counts[at];
        let (admins, database) = (
            &settings.admins[..engines],
            self.database.filter(|_| load.uses_database()),
        );
        let clients = settings.clients(at, way)?;
        let running = RunningLoad::start(&self.inputs, load, &clients, settings.in_flight);
        tokio::time::sleep(settings.warm_up).await;
        let first = SystemReading::take(admins, database).await?;
        running.measure();
        tokio::time::sleep(settings.duration).await;
        let last = SystemReading::take(admins, database).await?;
        let result = running.stop().await?;
        point(PointKey { round, load, way }, (&first, &last), &result).ok_or_else(|| {
            let why = result
                .last_error
                .unwrap_or_else(|| "no response came in the measurement window".to_owned());
            Fault::Unanswered(format!(
                "{} through {} of {engines} engines: {why}",
                load.name(),
                way.name()
            ))
        })
    }

    /// Kills the last engine under load, and measures its share of the requests when it is back.
    async fn restart(&self, way: Routing) -> Result<RestartFigures, Fault> {
        let settings = self.settings;
        let at = settings.counts.len() - 1;
        let engines = settings.counts[at];
        let (target, admins) = (&settings.targets[engines - 1], &settings.admins[..engines]);
        let clients = settings.clients(at, way)?;
        let running = RunningLoad::start(
            &self.inputs,
            ScaleLoad::Encrypt,
            &clients,
            settings.in_flight,
        );
        tokio::time::sleep(settings.warm_up).await;
        running.measure();
        let began = Instant::now();
        let killed = kill(&target.address)?;
        wait_until_restarted(target, &admins[engines - 1], killed).await?;
        let away = began.elapsed();
        // Balancer and clients notice that it is back.
        tokio::time::sleep(settings.duration).await;
        let first = SystemReading::take(admins, None).await?;
        tokio::time::sleep(settings.duration).await;
        let last = SystemReading::take(admins, None).await?;
        let result = running.stop().await?;
        let served: Vec<f64> = last
            .engines
            .iter()
            .zip(&first.engines)
            .map(|(last, first)| last.ok - first.ok)
            .collect();
        let all: f64 = served.iter().sum();
        Ok(RestartFigures {
            way,
            engines: engines as u32,
            away_s: away.as_secs_f64(),
            settle_s: settings.duration.as_secs_f64(),
            share: served[engines - 1] * engines as f64 / all.max(1.0),
            ok: result.latency.count(),
            errors: result.errors,
        })
    }

    /// Measures the write-ahead log of new tokens right after a checkpoint, with all engines.
    async fn checkpoint(&self, database: &DatabaseProbe) -> Result<CheckpointUse, Fault> {
        let settings = self.settings;
        let at = settings.counts.len() - 1;
        let rows = database.table().await?.rows;
        let clients = settings.clients(at, Routing::Endpoints)?;
        database.checkpoint().await?;
        let first = database.read().await?;
        let running = RunningLoad::start(
            &self.inputs,
            ScaleLoad::Tokenize,
            &clients,
            settings.in_flight,
        );
        running.measure();
        tokio::time::sleep(settings.duration).await;
        let result = running.stop().await?;
        let began = Instant::now();
        let used = loop {
            let used = database.read().await?.since(&first);
            if used.counted > COUNTED_MIN || began.elapsed() > COUNTED_WAIT_MAX {
                break used;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let (made, responses) = (
            database.table().await?.rows.saturating_sub(rows),
            result.latency.count(),
        );
        if made == 0 || made < responses {
            return Err(Fault::Failed(format!(
                "{responses} requests made only {made} new tokens: the values have tokens already, so give another --seed"
            )));
        }
        let per_token = |all: f64| all / made as f64;
        let (wal_bytes, full_pages) = (per_token(used.wal_bytes), per_token(used.full_pages));
        Ok(CheckpointUse {
            tokens: made,
            wal_bytes,
            full_pages,
            rows,
        })
    }
}

/// Kills the process of an engine on this machine. Returns its number.
fn kill(address: &str) -> Result<u32, Fault> {
    let unknown = || {
        Fault::Failed(format!(
            "--restart: no process `sealwire` on this machine listens on {address}"
        ))
    };
    let pid = host::engine(address).ok_or_else(unknown)?;
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(unknown)?;
    kill_process(process, Signal::KILL).map_err(std::io::Error::from)?;
    Ok(pid)
}

/// Waits until an engine serves metrics that is another process than `killed`.
async fn wait_until_restarted(target: &Target, admin: &str, killed: u32) -> Result<(), Fault> {
    let began = Instant::now();
    while EngineReading::read(admin).is_err()
        || host::engine(&target.address).is_none_or(|pid| pid == killed)
    {
        if began.elapsed() > BACK_MAX {
            return Err(Fault::Lost(format!(
                "{} did not come back after the kill",
                target.address
            )));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

struct PointKey {
    round: u32,
    load: ScaleLoad,
    way: Routing,
}

/// Returns the figures between two readings; `None` if no request succeeded.
fn point(
    key: PointKey,
    (first, last): (&SystemReading, &SystemReading),
    result: &clients::LoadResult,
) -> Option<ScalePoint> {
    let PointKey { round, load, way } = key;
    let used = |of: fn(&EngineReading) -> f64| -> Vec<f64> {
        last.engines
            .iter()
            .zip(&first.engines)
            .map(|(last, first)| of(last) - of(first))
            .collect()
    };
    let sum = |of: fn(&EngineReading) -> f64| used(of).iter().sum::<f64>();
    let per_engine = used(|engine| engine.ok);
    let ok: f64 = per_engine.iter().sum();
    if ok < 1.0 {
        return None;
    }
    let us = |seconds: f64| seconds * 1e6 / ok;
    let (items, batches) = match load {
        ScaleLoad::Tokenize => (
            sum(|engine| engine.written.0),
            sum(|engine| engine.written.1),
        ),
        _ => (
            sum(|engine| engine.looked_up.0),
            sum(|engine| engine.looked_up.1),
        ),
    };
    let client_cpu = last
        .clients
        .zip(first.clients)
        .map_or(0.0, |(last, first)| (last - first).as_secs_f64());
    Some(ScalePoint {
        round,
        load,
        way,
        engines: last.engines.len() as u32,
        ok: ok as u64,
        ok_per_s: ok / (last.at - first.at).as_secs_f64(),
        errors: result.errors,
        latency_us: result.latency.times(),
        shares: per_engine.iter().map(|of_engine| of_engine / ok).collect(),
        engine_cpu_us: us(sum(|engine| engine.cpu_s)),
        client_cpu_us: us(client_cpu),
        bytes: sum(|engine| engine.bytes) / ok,
        batch_items: (load.uses_database() && batches > 0.0).then(|| items / batches),
        database: last.database.zip(first.database).map(|(last, first)| {
            let used = last.since(&first);
            DatabaseUse {
                cpu_us: used.cpu_s.map(us),
                wal_bytes: used.wal_bytes / ok,
                full_pages: used.full_pages / ok,
            }
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(change: impl FnOnce(&mut ScaleSettings)) -> ScaleSettings {
        let target = || Target::of_folder(std::path::Path::new("nowhere"), "127.0.0.1:1");
        let mut settings = ScaleSettings {
            targets: vec![target(), target()],
            admins: vec!["127.0.0.1:2".into(), "127.0.0.1:3".into()],
            counts: vec![1, 2],
            balancers: vec![target(), target()],
            database: None,
            loads: ScaleLoad::ALL.into(),
            app: "demo".into(),
            collection: "vault".into(),
            fields: 30,
            field_bytes: 16,
            rows: 0,
            clients: 2,
            in_flight: 2,
            connections: 2,
            connection_age: Duration::from_secs(1_800),
            rounds: 1,
            duration: Duration::from_secs(1),
            warm_up: Duration::ZERO,
            restart: true,
            seed: 1,
        };
        change(&mut settings);
        settings
    }

    #[test]
    fn loads_that_cannot_run_are_invalid() {
        assert_eq!(settings(|_| ()).check(), Ok(()));
        let check = |change: fn(&mut ScaleSettings), said: &str| {
            let error = settings(change).check().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        };
        check(|settings| settings.targets.clear(), "1 to 128 engines");
        check(
            |settings| (settings.counts, settings.balancers) = (vec![1], Vec::new()),
            "--restart needs at least 2 engines",
        );
        check(
            |settings| drop(settings.admins.pop()),
            "--admin needs an address for each of the 2 engines",
        );
        check(
            |settings| settings.counts.push(3),
            "--counts takes numbers from 1 to 2",
        );
        check(
            |settings| settings.counts = vec![0],
            "--counts takes numbers from 1 to 2",
        );
        check(
            |settings| drop(settings.balancers.pop()),
            "a balancer for each number",
        );
        check(
            |settings| settings.loads = vec![ScaleLoad::Detokenize],
            "needs `tokenize`",
        );
        check(
            |settings| settings.loads = vec![ScaleLoad::Detokenize, ScaleLoad::Tokenize],
            "needs `tokenize`",
        );
        let database = |settings: &mut ScaleSettings| {
            settings.loads = vec![ScaleLoad::Encrypt];
            settings.database = Some(DatabaseAccess {
                url: String::new(),
                password_file: None,
            });
        };
        check(database, "only for loads of tokens");
    }

    #[test]
    fn figures_are_the_difference_of_two_readings_per_request() {
        let at = std::time::Instant::now();
        let engine = |ok: f64, cpu_s: f64, written: (f64, f64)| EngineReading {
            ok,
            cpu_s,
            written,
            bytes: ok * 100.0,
            ..EngineReading::default()
        };
        let reading = |seconds: u64, engines: Vec<EngineReading>| SystemReading {
            at: at + Duration::from_secs(seconds),
            engines,
            database: None,
            clients: Some(Duration::from_secs(seconds)),
        };
        let first = reading(
            0,
            vec![engine(5.0, 1.0, (50.0, 1.0)), engine(0.0, 1.0, (0.0, 0.0))],
        );
        let last = reading(
            2,
            vec![
                engine(305.0, 1.5, (350.0, 51.0)),
                engine(100.0, 1.5, (100.0, 50.0)),
            ],
        );
        let result = clients::LoadResult {
            errors: 3,
            ..clients::LoadResult::new()
        };
        let key = || PointKey {
            round: 2,
            load: ScaleLoad::Tokenize,
            way: Routing::Balancer,
        };
        let figures = point(key(), (&first, &last), &result).unwrap();
        assert_eq!(
            (
                figures.ok,
                figures.ok_per_s,
                figures.errors,
                figures.engines
            ),
            (400, 200.0, 3, 2)
        );
        assert_eq!(
            (figures.shares.clone(), figures.fairness()),
            (vec![0.75, 0.25], 0.8)
        );
        assert_eq!(
            (figures.engine_cpu_us, figures.client_cpu_us, figures.bytes),
            (2_500.0, 5_000.0, 100.0)
        );
        assert_eq!((figures.batch_items, figures.database), (Some(4.0), None));
        assert_eq!(point(key(), (&first, &first), &result), None);
    }
}
