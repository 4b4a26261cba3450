//! A table with the same values in the clear, and a pool of connections.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sealwire_store_postgres::PostgresOptions;
use tokio::sync::Semaphore;
use tokio_postgres::{Client, Config, NoTls, Statement};

use super::Operation;
use super::load::Target;
use super::place::{PAGE, Place, check_group, name, spread, values};
use crate::stores::place::failed;

const TABLE: &str =
    "CREATE TABLE plain (id bytea PRIMARY KEY, email text NOT NULL, name text NOT NULL,
        street text NOT NULL, note text NOT NULL);
    CREATE UNIQUE INDEX ON plain (email);
    CREATE INDEX ON plain (name)";
const INSERT: &str = "INSERT INTO plain
    SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::text[], $5::text[])";
const GET: &str = "SELECT email, name, street, note FROM plain WHERE id = $1";
const QUERY: &str =
    "SELECT id, email, name, street, note FROM plain WHERE name = $1 ORDER BY id LIMIT 100";
/// Rows with ids below those of [`id`], and with the lengths of [`values`].
const FILL: &str = "INSERT INTO plain SELECT decode(lpad(to_hex(n), 16, '0') || left(md5(n::text), 16), 'hex'),
        md5(n::text) || lpad(n::text, 20, 'f') || '@example.com', md5((n / 10)::text) || lpad((n / 10)::text, 32, 'f'),
        lpad(n::text, 64, '0'), lpad(to_hex(n), 64, '0')
    FROM generate_series($1::int8, $2::int8) AS n";
/// Rows per statement of a fill.
const FILL_ROWS: i64 = 100_000;

struct Connection {
    client: Client,
    insert: Statement,
    get: Statement,
    query: Statement,
}

pub(super) struct Plain {
    idle: Mutex<Vec<Connection>>,
    /// A permit per connection. Callers wait in the order of arrival.
    permits: Semaphore,
    known: AtomicU64,
    next: AtomicU64,
}

/// Returns the id of a row. Ids ascend with time, as those of the engine.
fn id(number: u64) -> [u8; 16] {
    (u128::from((1 << 60) + number) << 64 | spread(number) >> 64).to_be_bytes()
}

impl Plain {
    /// Creates the table, and opens as many connections as the engine has.
    pub(super) async fn connect(place: &Place) -> io::Result<Self> {
        let mut config: Config = place.database.socket_url().parse().map_err(failed)?;
        config.password(&place.password);
        let defaults = PostgresOptions::new(String::new());
        let (mut idle, count) = (Vec::new(), defaults.writers + defaults.readers);
        for at in 0..count {
            let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
            tokio::spawn(connection);
            if at == 0 {
                client.batch_execute(TABLE).await.map_err(failed)?;
            }
            let insert = client.prepare(INSERT).await.map_err(failed)?;
            let get = client.prepare(GET).await.map_err(failed)?;
            let query = client.prepare(QUERY).await.map_err(failed)?;
            idle.push(Connection {
                client,
                insert,
                get,
                query,
            });
        }
        let (known, next) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Self {
            idle: Mutex::new(idle),
            permits: Semaphore::new(count),
            known,
            next,
        })
    }

    /// Adds the rows that are read and found later.
    pub(super) async fn add_known(&self, known: u64) -> io::Result<()> {
        for _ in 0..known / PAGE {
            self.call(Operation::Add(PAGE), 0).await?;
        }
        self.known.store(known, Ordering::Relaxed);
        Ok(())
    }

    /// Inserts rows that no request reads.
    pub(super) async fn fill(&self, rows: u64) -> io::Result<()> {
        let rows = i64::try_from(rows).map_err(failed)?;
        let connection = self.take()?;
        for first in (1..=rows).step_by(FILL_ROWS as usize) {
            let last = rows.min(first + FILL_ROWS - 1);
            connection
                .client
                .execute(FILL, &[&first, &last])
                .await
                .map_err(failed)?;
        }
        self.give(connection);
        Ok(())
    }

    fn take(&self) -> io::Result<Connection> {
        let idle = self.idle.lock().map_err(failed)?.pop();
        idle.ok_or_else(|| failed("a permit without a connection"))
    }

    fn give(&self, connection: Connection) {
        if let Ok(mut idle) = self.idle.lock() {
            idle.push(connection);
        }
    }

    async fn run(
        &self,
        connection: &Connection,
        operation: Operation,
        random: u64,
    ) -> io::Result<bool> {
        let Connection {
            client,
            insert,
            get,
            query,
        } = connection;
        let known = self.known.load(Ordering::Relaxed).max(1);
        match operation {
            Operation::Get => {
                let number = random % known;
                let row = client
                    .query_one(get, &[&&id(number)[..]])
                    .await
                    .map_err(failed)?;
                let is_right = values(number)
                    .iter()
                    .enumerate()
                    .all(|(at, value)| row.get::<_, &str>(at) == value);
                if is_right {
                    Ok(true)
                } else {
                    Err(failed("wrong values"))
                }
            }
            Operation::Query => {
                let group = random % known.div_ceil(10);
                check_group(
                    client
                        .query(query, &[&name(group)])
                        .await
                        .map_err(failed)?
                        .len(),
                )
            }
            Operation::Add(batch) => {
                let first = self.next.fetch_add(batch, Ordering::Relaxed);
                let (mut ids, mut columns) = (Vec::new(), [const { Vec::new() }; 4]);
                for number in first..first + batch {
                    ids.push(id(number).to_vec());
                    columns
                        .iter_mut()
                        .zip(values(number))
                        .for_each(|(column, value)| column.push(value));
                }
                let [email, name, street, note] = columns;
                let added = client
                    .execute(insert, &[&ids, &email, &name, &street, &note])
                    .await
                    .map_err(failed)?;
                if added == batch {
                    Ok(true)
                } else {
                    Err(failed("a row was not added"))
                }
            }
        }
    }
}

impl Target for Plain {
    async fn call(&self, operation: Operation, random: u64) -> io::Result<bool> {
        let permit = self.permits.acquire().await.map_err(failed)?;
        let connection = self.take()?;
        let result = self.run(&connection, operation, random).await;
        self.give(connection);
        drop(permit);
        result
    }
}
