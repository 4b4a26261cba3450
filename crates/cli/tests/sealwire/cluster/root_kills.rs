//! Tests with random kills while the root key of a database is rotated.
//!
//! `SEALWIRE_KILL_ROUNDS` sets the number of rounds. The default is 6, which has each combination
//! once.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sealwire_client::{Client, Decrypt, Detokenize, Encrypt, Error, Tokenize, to_payload};
use sealwire_testkit::{Postgres, TransitServer};

use crate::cluster::engines::{APP, Cluster, EngineProcess, RANDOM, run, until};
use crate::old_roots::{RawStore, root_of};

/// Pause of the load between two values. All values are opened after every round, so their number
/// must stay small.
const PAUSE: Duration = Duration::from_millis(50);
/// Values per request when all of them are opened.
const OPENED_AT_ONCE: usize = 500;
/// Commands that are killed, by kind.
const ROTATIONS: [[&str; 2]; 2] = [["kek", "rotate"], ["root", "rotate"]];

/// A load that seals, opens and tokenizes, and remembers what was acknowledged.
#[derive(Default)]
struct Load {
    /// Sealed values and tokens, each with its value.
    acknowledged: Mutex<Acknowledged>,
    failures: Mutex<HashMap<String, u64>>,
    stop: AtomicBool,
}

#[derive(Clone, Default)]
struct Acknowledged {
    sealed: Vec<(String, String)>,
    tokens: Vec<(String, String)>,
}

impl Load {
    async fn run(&self, client: &Client) {
        for number in 0_u64.. {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            if let Err(error) = self.seal_and_tokenize(client, number).await {
                *self
                    .failures
                    .lock()
                    .unwrap()
                    .entry(kind(&error))
                    .or_default() += 1;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn seal_and_tokenize(&self, client: &Client, number: u64) -> Result<(), Error> {
        let value = format!("value {number}");
        let payload = to_payload(&[&value])?;
        let sealed = client.encrypt(Encrypt::new(APP, &payload)).await?;
        let [text] = sealed.to_value()?;
        self.acknowledged
            .lock()
            .unwrap()
            .sealed
            .push((text, value.clone()));
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed.payload))
                .await?
                .payload,
            payload
        );
        let [token] = client
            .tokenize(Tokenize::new(APP, RANDOM, &payload))
            .await?
            .to_value()?;
        self.acknowledged
            .lock()
            .unwrap()
            .tokens
            .push((token, value));
        Ok(())
    }

    /// Returns the number of acknowledged values.
    fn count(&self) -> usize {
        let acknowledged = self.acknowledged.lock().unwrap();
        acknowledged.sealed.len() + acknowledged.tokens.len()
    }

    /// Returns the number of failed requests.
    fn failed(&self) -> u64 {
        self.failures.lock().unwrap().values().sum()
    }

    /// Waits until four more values are acknowledged.
    async fn goes_on(&self) {
        let before = self.count();
        until("the load goes on", async || {
            (self.count() > before + 4).then_some(())
        })
        .await;
    }

    /// Opens every acknowledged value through one engine.
    async fn opens_all(&self, client: &Client) {
        let Acknowledged { sealed, tokens } = self.acknowledged.lock().unwrap().clone();
        for part in sealed.chunks(OPENED_AT_ONCE) {
            let (sealed, values): (Vec<_>, Vec<_>) = part.iter().cloned().unzip();
            let payload = to_payload(&sealed).unwrap();
            let opened = client.decrypt(Decrypt::new(APP, &payload)).await.unwrap();
            assert_eq!(
                opened.to_value::<Vec<String>>().unwrap(),
                values,
                "a sealed value was lost"
            );
        }
        for part in tokens.chunks(OPENED_AT_ONCE) {
            let (tokens, values): (Vec<_>, Vec<_>) = part.iter().cloned().unzip();
            let payload = to_payload(&tokens).unwrap();
            let found = client
                .detokenize(Detokenize::new(APP, RANDOM, &payload))
                .await
                .unwrap();
            assert_eq!(
                found.to_value::<Vec<String>>().unwrap(),
                values,
                "a token was lost"
            );
        }
    }
}

/// Returns the kind of an error that the loss of an engine explains.
fn kind(error: &Error) -> String {
    match error {
        Error::Disconnected { .. } => "disconnected".into(),
        Error::Connect(_) => "cannot connect".into(),
        other => panic!("not a failure that the loss of an engine explains: {other}"),
    }
}

/// Two engines on one database, with a root key in a file and in a transit server.
struct Deployment<'a> {
    cluster: Cluster<'a>,
    engines: [EngineProcess; 2],
    vault: TransitServer,
    raw: RawStore,
    /// Longest times so far of `kek rotate` and `root rotate` without a kill.
    usual: [Duration; 2],
}

impl<'a> Deployment<'a> {
    async fn new(postgres: &'a Postgres) -> Self {
        let cluster = Cluster::new(postgres);
        let (vault, table) = cluster.transit("vault", "");
        let cluster = cluster.providers(&table, "");
        let engines = [cluster.engine("one"), cluster.engine("two")];
        cluster.furnish(&engines[0]).await;
        cluster.agree(&engines.each_ref()).await;
        let raw = RawStore::open(&engines[0].config).await;
        let mut deployment = Self {
            cluster,
            engines,
            vault,
            raw,
            usual: [Duration::ZERO; 2],
        };
        deployment.succeeds(&["kek", "init"]);
        for kind in [0, 1] {
            deployment.rotates(kind);
        }
        deployment
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.engines[0].command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn succeeds(&self, arguments: &[&str]) {
        let output = self.command(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            error_text(&output)
        );
    }

    /// Runs a rotation without a kill.
    fn rotates(&mut self, kind: usize) {
        let begun = Instant::now();
        self.succeeds(&ROTATIONS[kind]);
        self.usual[kind] = self.usual[kind].max(begun.elapsed());
    }

    /// Kills an engine and starts it again.
    fn restart_engine(&mut self, engine: usize) {
        let Self {
            cluster, engines, ..
        } = self;
        engines[engine].kill();
        // A rotation waits for a killed engine until its last report is 90 s old.
        let address = engines[engine].address;
        let sql = format!(
            "UPDATE sealwire.instances SET seen = seen - interval '90 s' WHERE address = '{address}' RETURNING id"
        );
        assert_ne!(
            cluster.database.sql(&sql).unwrap(),
            "",
            "no instance has this address"
        );
        engines[engine].start();
    }

    /// Checks that all values open through each engine, and that another process can use the store.
    async fn check(&self, load: &Load) {
        for engine in &self.engines {
            load.opens_all(&self.cluster.client(&[engine])).await;
        }
        self.succeeds(&["kek", "verify"]);
    }
}

fn error_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns a random number below `end`.
fn random(end: u64) -> u64 {
    RandomState::new().hash_one(()) % end
}

#[test]
fn kills_of_command_engines_and_provider_during_a_rotation_lose_nothing() {
    let rounds = std::env::var("SEALWIRE_KILL_ROUNDS").map_or(6, |rounds| rounds.parse().unwrap());
    run(async {
        let mut deployment = Deployment::new(Postgres::shared()).await;
        let client = deployment.cluster.client(&deployment.engines.each_ref());
        let load = Arc::new(Load::default());
        let task = tokio::spawn({
            let load = Arc::clone(&load);
            async move { load.run(&client).await }
        });
        let begun = Instant::now();
        let (mut ended_early, mut staged, mut repeated, mut new_roots) = ([0; 3], 0, 0, 0);
        for round in 0..rounds {
            load.goes_on().await;
            let (kind, victim) = (round % 2, round % 3);
            let (before, failed) = (deployment.raw.read().await, load.failed());
            let mut child = deployment.command(&ROTATIONS[kind]).spawn().unwrap();
            tokio::time::sleep(deployment.usual[kind] * random(1_000) as u32 / 1_000).await;
            match victim {
                0 => child.kill().unwrap(),
                1 => deployment.restart_engine(random(2) as usize),
                _ => deployment.vault.stop(),
            }
            let output = child.wait_with_output().unwrap();
            deployment.vault.restart().unwrap();
            let (succeeded, said) = (output.status.success(), error_text(&output));
            match victim {
                0 => assert!(
                    said.is_empty() || said.starts_with("waiting for engines"),
                    "round {round}: {said}"
                ),
                1 => assert!(succeeded, "round {round}: {said}"),
                _ => assert!(
                    succeeded || said.contains("provider vault"),
                    "round {round}: {said}"
                ),
            }
            ended_early[victim] += u32::from(!succeeded);
            deployment.check(&load).await;
            assert!(
                victim == 1 || load.failed() == failed,
                "round {round}: {:?}",
                load.failures.lock().unwrap()
            );

            let (old, killed) = (root_of(&before), root_of(&deployment.raw.read().await));
            assert!(old.incoming.is_none());
            let is_done = match kind {
                0 => killed.next_slot > old.next_slot,
                _ => killed.active.id != old.active.id,
            };
            assert!(is_done || !succeeded, "round {round}: nothing was changed");
            assert!(
                killed.incoming.is_none() || (kind == 1 && !is_done),
                "round {round}: {killed:?}"
            );
            staged += u32::from(killed.incoming.is_some());
            if !is_done {
                repeated += 1;
                deployment.rotates(kind);
                deployment.check(&load).await;
            }
            let after = root_of(&deployment.raw.read().await);
            assert!(after.incoming.is_none());
            let numbers = |slots: &[sealwire_apps::RootSlot]| {
                slots.iter().map(|slot| slot.number).collect::<Vec<_>>()
            };
            let is_new = |number: &u32| *number >= old.next_slot;
            assert!(
                numbers(&after.active.slots).iter().all(is_new),
                "round {round}: an old copy is still there"
            );
            if let Some(incoming) = killed.incoming {
                assert_eq!(
                    after.active.id, incoming.entry.id,
                    "round {round}: the rotation did not go on"
                );
            }
            if kind == 1 {
                new_roots += 1;
                deployment.raw.opens_nothing_with_root_of(&before).await;
            }
        }
        load.goes_on().await;
        load.stop.store(true, Ordering::Relaxed);
        task.await.unwrap();
        deployment.check(&load).await;
        let [command, engine, provider] = ended_early;
        println!(
            "{rounds} rounds in {:?}, longest times {:?}: {command} commands killed before their end, {engine} and {provider} \
             failed after a kill of engine and provider; {repeated} rotations repeated, {staged} of them with an incoming root \
             key; {new_roots} root keys replaced; {} values opened, failed requests: {:?}",
            begun.elapsed(),
            deployment.usual,
            load.count(),
            load.failures.lock().unwrap()
        );
    });
}
