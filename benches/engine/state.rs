//! `state`: loading and changing the control state of many apps, with and without a root key.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sealwire_apps::{Control, FindKek, KeyKind, RootRecord, RootSlot};
use sealwire_benches::stats::{Interval, bootstrap, median};
use sealwire_benches::{is_smoke_run, say};
use sealwire_crypto::{AppId, Kek, RootKey, Suite};
use sealwire_store::{ControlStore, MemoryStore, Snapshot, StoreError};
use sealwire_store_embedded::{EmbeddedStore, embedded::Options as EmbeddedOptions};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::{Database, Postgres};
use serde_json::json;
use tempfile::TempDir;

use crate::backends::store::failed;

const HELP: &str = "\
Loading and changing the control state of many apps, with a root key and without one.

    cargo bench -p sealwire-benches --bench engine -- state [OPTIONS]

    --apps N       Apps, each with keys of two suites and a token key; 100000 by default.
    --rounds N     In which each state is loaded and changed once; 7 by default.
    --only TEXT    Stores whose name contains this text: memory, embedded, postgres.
    --json         JSON on standard output instead of a table.
    --help         This.

With a root key, a load verifies every record, and a change authenticates it. A load also unwraps all keys, in both cases. Ratios are
medians over the rounds; ranges are 90 % intervals of a bootstrap over the rounds. The rotation of the root key is done
once.
";

/// The greatest time of a load with authenticated records, as a multiple of one without.
const LOAD_FACTOR_MAX: f64 = 1.2;
/// Time limit of the database's statements. A rotation writes all records in one.
const TIMEOUT: Duration = Duration::from_secs(60);
const SUITES: [Suite; 2] = [Suite::P256, Suite::Xaes];
const STORES: [&str; 3] = ["memory", "embedded", "postgres"];

struct Options {
    apps: usize,
    rounds: usize,
    only: String,
    json: bool,
}

/// Finds the KEK with the root keys that it holds. Without a root record, the plain KEK.
struct Keyring {
    plain: Arc<Kek>,
    roots: [RootKey; 2],
}

#[async_trait]
impl FindKek for Keyring {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError> {
        let Some(record) = root else {
            return Ok(Arc::clone(&self.plain));
        };
        for root in &self.roots {
            if root.id(&record.set)? == record.active.id {
                return Ok(Arc::new(
                    root.kek_with_wrapped_audit(&record.set, &record.wrapped_audit)?,
                ));
            }
        }
        Err(StoreError::RootKey("not in the keyring".into()))
    }
}

/// An open store, and what removes it when it is dropped.
struct OpenStore {
    store: Arc<dyn ControlStore>,
    _folder: Option<TempDir>,
    _database: Option<Database<'static>>,
}

async fn open(name: &str) -> io::Result<OpenStore> {
    Ok(match name {
        "memory" => OpenStore {
            store: Arc::new(MemoryStore::default()),
            _folder: None,
            _database: None,
        },
        "embedded" => {
            let folder = tempfile::tempdir()?;
            let options = EmbeddedOptions {
                timeout: TIMEOUT,
                ..EmbeddedOptions::default()
            };
            let store = EmbeddedStore::open(folder.path(), &options).map_err(failed)?;
            OpenStore {
                store: Arc::new(store),
                _folder: Some(folder),
                _database: None,
            }
        }
        _ => {
            let server: &'static Postgres = Postgres::shared();
            let database = server.database().map_err(failed)?;
            let password = Some(server.password().to_owned());
            let options = PostgresOptions {
                password,
                timeout: TIMEOUT,
                ..PostgresOptions::new(database.socket_url())
            };
            let store = PostgresStore::connect(options).await.map_err(failed)?;
            OpenStore {
                store: Arc::new(store),
                _folder: None,
                _database: Some(database),
            }
        }
    })
}

fn slot(number: u32) -> RootSlot {
    RootSlot {
        number,
        provider: "local".into(),
        kind: "file".into(),
        fields: BTreeMap::new(),
        wrapped: vec![7; 60],
        created_unix_s: 1,
        verified_unix_s: 1,
    }
}

/// Creates the records of many apps. Each is created alone: with the others, every creation would
/// load all of them.
async fn records(keyring: &Arc<Keyring>, count: usize) -> io::Result<Snapshot> {
    let mut all = Snapshot {
        generation: count as u64,
        records: BTreeMap::new(),
    };
    for number in 0..count {
        let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
        let app = AppId::new(&format!("app-{number:06}")).map_err(failed)?;
        Control::with_finder(Arc::clone(&store), Arc::clone(keyring) as _)
            .create(&app, &SUITES)
            .await
            .map_err(failed)?;
        all.records
            .extend(store.load().await.map_err(failed)?.records);
    }
    Ok(all)
}

/// Times in milliseconds, by round.
#[derive(Default)]
struct Times {
    load: Vec<f64>,
    change: Vec<f64>,
}

struct Measured {
    store: &'static str,
    plain: Times,
    authenticated: Times,
    create_root_ms: f64,
    rotate_ms: f64,
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

async fn round(control: &Control, times: &mut Times) -> io::Result<()> {
    let begun = Instant::now();
    control.load().await.map_err(failed)?;
    times.load.push(ms(begun));
    let begun = Instant::now();
    let app = AppId::new("app-000000").map_err(failed)?;
    control.rotate(&app, KeyKind::Token).await.map_err(failed)?;
    times.change.push(ms(begun));
    Ok(())
}

async fn measure(
    store: &'static str,
    state: &Snapshot,
    keyring: &Arc<Keyring>,
    rounds: usize,
) -> io::Result<Measured> {
    let (without, with) = (open(store).await?, open(store).await?);
    for place in [&without, &with] {
        place.store.replace(0, state).await.map_err(failed)?;
    }
    let control = |place: &OpenStore| {
        Control::with_finder(Arc::clone(&place.store), Arc::clone(keyring) as _)
    };
    let (plain, authenticated) = (control(&without), control(&with));
    let begun = Instant::now();
    authenticated
        .create_root([1; 16], &keyring.roots[0], vec![slot(1)])
        .await
        .map_err(failed)?;
    let create_root_ms = ms(begun);
    let mut measured = Measured {
        store,
        plain: Times::default(),
        authenticated: Times::default(),
        create_root_ms,
        rotate_ms: f64::NAN,
    };
    for number in 0..rounds {
        if number % 2 == 0 {
            round(&plain, &mut measured.plain).await?;
        }
        round(&authenticated, &mut measured.authenticated).await?;
        if number % 2 == 1 {
            round(&plain, &mut measured.plain).await?;
        }
    }
    authenticated
        .stage_root(&keyring.roots[1], vec![slot(2)])
        .await
        .map_err(failed)?;
    let begun = Instant::now();
    authenticated
        .activate_root(&keyring.roots[1])
        .await
        .map_err(failed)?;
    measured.rotate_ms = ms(begun);
    Ok(measured)
}

impl Measured {
    fn factor(&self, of: impl Fn(&Times) -> &[f64]) -> Interval {
        let pairs: Vec<f64> = of(&self.authenticated)
            .iter()
            .zip(of(&self.plain))
            .map(|(with, without)| with / without)
            .collect();
        bootstrap(pairs.len(), |drawn| {
            median(drawn.iter().map(|at| pairs[*at]).collect())
        })
    }
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "-h")
    {
        return write!(io::stdout(), "{HELP}");
    }
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let plain = Kek::from_hex(&Kek::generate_hex().map_err(failed)?).map_err(failed)?;
    let roots = [
        RootKey::generate().map_err(failed)?,
        RootKey::generate().map_err(failed)?,
    ];
    let keyring = Arc::new(Keyring {
        plain: Arc::new(plain),
        roots,
    });
    let measured = runtime.block_on(async {
        let state = records(&keyring, options.apps).await?;
        let mut all = Vec::new();
        for store in STORES
            .into_iter()
            .filter(|store| store.contains(&options.only))
        {
            all.push(measure(store, &state, &keyring, options.rounds).await?);
        }
        Ok::<_, io::Error>(all)
    })?;
    report(&options, &measured)
}

fn report(options: &Options, measured: &[Measured]) -> io::Result<()> {
    if options.json {
        let one = |of: &Measured| {
            let factor = |interval: Interval| json!([interval.low, interval.value, interval.high]);
            json!({
                "store": of.store,
                "load_ms": [median(of.plain.load.clone()), median(of.authenticated.load.clone())],
                "load_factor": factor(of.factor(|times| &times.load)),
                "change_ms": [median(of.plain.change.clone()), median(of.authenticated.change.clone())],
                "change_factor": factor(of.factor(|times| &times.change)),
                "create_root_ms": of.create_root_ms,
                "rotate_ms": of.rotate_ms,
            })
        };
        return say(
            &json!({"apps": options.apps, "stores": measured.iter().map(one).collect::<Vec<_>>()})
                .to_string(),
        );
    }
    let mut text = format!(
        "{} apps. Load: at most {LOAD_FACTOR_MAX} times the time without a root key.\n\n\
         | store | load without, ms | with | factor | change without, ms | with | factor | create root, ms | rotate, ms |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
        options.apps
    );
    for of in measured {
        let factor = |interval: Interval| {
            format!(
                "{:.2} ({:.2} to {:.2})",
                interval.value, interval.low, interval.high
            )
        };
        text += &format!(
            "| {} | {:.0} | {:.0} | {} | {:.0} | {:.0} | {} | {:.0} | {:.0} |\n",
            of.store,
            median(of.plain.load.clone()),
            median(of.authenticated.load.clone()),
            factor(of.factor(|times| &times.load)),
            median(of.plain.change.clone()),
            median(of.authenticated.change.clone()),
            factor(of.factor(|times| &times.change)),
            of.create_root_ms,
            of.rotate_ms,
        );
    }
    say(text.trim_end())
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let (apps, rounds) = if is_smoke_run() {
        (20, 2)
    } else {
        (100_000, 7)
    };
    let mut options = Options {
        apps,
        rounds,
        only: String::new(),
        json: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || {
            arguments
                .next()
                .ok_or_else(|| format!("{argument} needs a value"))
        };
        let number = |text: &String| {
            text.parse::<usize>()
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| format!("{text}: a number from 1 on"))
        };
        match argument.as_str() {
            "--apps" => options.apps = number(value()?)?,
            "--rounds" => options.rounds = number(value()?)?,
            "--only" => options.only.clone_from(value()?),
            "--json" => options.json = true,
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}
