//! The database by itself: many rows per statement, many keys per lookup, and nothing else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sealwire_benches::stats::Random;
use sealwire_store::{Group, Row, TokenStore};
use tokio_postgres::{Client, Config, NoTls};

use crate::tokens::Window;
use crate::tokens::place::{MAP, failed, id};

const ROWS: u64 = 512;
const KEYS: u64 = 1_000;

const INSERT: &str =
    "INSERT INTO sealwire.tokens (app, collection, id, fingerprint, sealed, created)
    SELECT 1, 1, i.id, i.fingerprint, i.sealed, 1
    FROM unnest($1::bytea[], $2::bytea[], $3::bytea[]) AS i(id, fingerprint, sealed)";

const LOOK_UP: &str =
    "SELECT i.n, t.id, t.fingerprint, t.sealed, t.tags, t.expires, t.created, t.archived
    FROM unnest($1::bytea[]) WITH ORDINALITY AS i(id, n)
    JOIN sealwire.tokens t ON t.app = 1 AND t.collection = 1 AND t.id = i.id";

pub(crate) enum Raw {
    /// One connection per writer of the store.
    Postgres(Vec<Client>),
    /// The store itself, with full batches. The bench `store` measures the database below it.
    Store(Arc<dyn TokenStore>),
}

impl Raw {
    pub(crate) async fn postgres(
        url: &str,
        password: &str,
        connections: usize,
    ) -> io::Result<Self> {
        let mut config: Config = url.parse().map_err(failed)?;
        config.password(password);
        let mut clients = Vec::new();
        for _ in 0..connections {
            let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
            tokio::spawn(connection);
            clients.push(client);
        }
        Ok(Self::Postgres(clients))
    }

    /// Writes rows made by `fresh`, in full batches.
    pub(crate) async fn write(
        &self,
        fresh: impl Fn(u64) -> Vec<Row>,
        window: Duration,
    ) -> io::Result<Window> {
        let rows = AtomicU64::new(0);
        let begun = Instant::now();
        match self {
            Self::Postgres(clients) => {
                let write = async |client: &Client| -> io::Result<()> {
                    let insert = client.prepare(INSERT).await.map_err(failed)?;
                    while begun.elapsed() < window {
                        let made = fresh(ROWS);
                        let ids: Vec<&[u8]> = made.iter().map(|row| &row.id.0[..]).collect();
                        let prints: Vec<Option<&[u8]>> = made
                            .iter()
                            .map(|row| row.fingerprint.as_ref().map(|print| &print.0[..]))
                            .collect();
                        let sealed: Vec<&[u8]> = made.iter().map(|row| &row.sealed[..]).collect();
                        let count = client
                            .execute(&insert, &[&ids, &prints, &sealed])
                            .await
                            .map_err(failed)?;
                        rows.fetch_add(count, Ordering::Relaxed);
                    }
                    Ok(())
                };
                both(clients, write).await?;
            }
            Self::Store(store) => {
                while begun.elapsed() < window {
                    let groups = fresh(ROWS)
                        .into_iter()
                        .map(|row| Group {
                            map: MAP,
                            rows: vec![row],
                        })
                        .collect();
                    for written in store.write(1, groups).await {
                        written.map_err(failed)?;
                    }
                    rows.fetch_add(ROWS, Ordering::Relaxed);
                }
            }
        }
        Ok(Window {
            rate: rows.into_inner() as f64 / begun.elapsed().as_secs_f64(),
            latencies: Vec::new(),
        })
    }

    /// Looks up keys of existing rows, in full batches.
    pub(crate) async fn look_up(&self, there: u64, window: Duration) -> io::Result<Window> {
        let keys = AtomicU64::new(0);
        let seeds = AtomicU64::new(1);
        let begun = Instant::now();
        match self {
            Self::Postgres(clients) => {
                let look_up = async |client: &Client| -> io::Result<()> {
                    let mut random = Random::new(seeds.fetch_add(1, Ordering::Relaxed));
                    let select = client.prepare(LOOK_UP).await.map_err(failed)?;
                    while begun.elapsed() < window {
                        let ids: Vec<_> = (0..KEYS).map(|_| id(random.bits() % there).0).collect();
                        let ids: Vec<&[u8]> = ids.iter().map(|id| &id[..]).collect();
                        let rows = client.query(&select, &[&ids]).await.map_err(failed)?;
                        assert_eq!(rows.len() as u64, KEYS);
                        keys.fetch_add(KEYS, Ordering::Relaxed);
                    }
                    Ok(())
                };
                both(clients, look_up).await?;
            }
            Self::Store(store) => {
                let mut random = Random::new(1);
                while begun.elapsed() < window {
                    let ids: Vec<_> = (0..KEYS)
                        .map(|_| (MAP, id(random.bits() % there)))
                        .collect();
                    assert!(
                        store
                            .get(1, &ids)
                            .await
                            .map_err(failed)?
                            .iter()
                            .all(Option::is_some)
                    );
                    keys.fetch_add(KEYS, Ordering::Relaxed);
                }
            }
        }
        Ok(Window {
            rate: keys.into_inner() as f64 / begun.elapsed().as_secs_f64(),
            latencies: Vec::new(),
        })
    }
}

/// Runs the work on every connection at once.
async fn both(clients: &[Client], work: impl AsyncFn(&Client) -> io::Result<()>) -> io::Result<()> {
    let mut all: Vec<_> = clients
        .iter()
        .map(|client| Box::pin(work(client)))
        .collect();
    std::future::poll_fn(|context| {
        let mut failure = Ok(());
        all.retain_mut(|one| match one.as_mut().poll(context) {
            std::task::Poll::Ready(outcome) => {
                failure = std::mem::replace(&mut failure, Ok(())).and(outcome);
                false
            }
            std::task::Poll::Pending => true,
        });
        if all.is_empty() || failure.is_err() {
            std::task::Poll::Ready(failure)
        } else {
            std::task::Poll::Pending
        }
    })
    .await
}
