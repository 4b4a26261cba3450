//! Cumulative use of engines, database and clients. Two readings make the figures of a measurement
//! window.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use tokio_postgres::NoTls;

use crate::fault::Fault;
use crate::host;
use crate::results::{ScaleLoad, TokenTable};

/// Maximum time for a page of metrics.
const SCRAPE_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum size of a page of metrics. An engine's has about 200 KiB.
const SCRAPE_BYTES_MAX: u64 = 16 << 20;

/// Reading of an engine's metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EngineReading {
    /// Requests with a result, of the methods of [`ScaleLoad`].
    pub(super) ok: f64,
    pub(super) cpu_s: f64,
    /// Bytes of requests and responses, without TLS.
    pub(super) bytes: f64,
    /// Items and number of batches of the token store, of writes and of look-ups.
    pub(super) written: (f64, f64),
    pub(super) looked_up: (f64, f64),
    pub(super) resident_bytes: f64,
    pub(super) database_connections: f64,
}

impl EngineReading {
    /// Reads the metrics at the address of an admin listener.
    pub(super) fn read(admin: &str) -> Result<Self, Fault> {
        let page = scrape(admin)
            .map_err(|error| Fault::Failed(format!("no metrics at {admin}: {error}")))?;
        Self::parse(&page)
            .ok_or_else(|| Fault::Failed(format!("{admin} serves no metrics of an engine")))
    }

    fn parse(page: &str) -> Option<Self> {
        let sum = |name: &str, labels: &[&str]| {
            let lines = page.lines().filter_map(|line| {
                let rest = line.strip_prefix(name)?;
                let (of, value) = rest.split_once(' ')?;
                let is_whole = of.is_empty() || of.starts_with('{');
                if is_whole && labels.iter().all(|label| of.contains(label)) {
                    value.parse::<f64>().ok()
                } else {
                    None
                }
            });
            lines.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
        };
        let batches = |operation: &str| {
            let of = [&*format!("operation=\"{operation}\"")];
            let [items, count] = ["sum", "count"]
                .map(|part| sum(&format!("sealwire_store_batch_items_{part}"), &of));
            (items.unwrap_or(0.0), count.unwrap_or(0.0))
        };
        let mut ok = 0.0;
        for load in ScaleLoad::ALL {
            ok += sum(
                "sealwire_requests_total",
                &[&format!("method=\"{}\"", load.name()), "code=\"ok\""],
            )?;
        }
        Some(Self {
            ok,
            cpu_s: sum("process_cpu_seconds_total", &[])?,
            bytes: sum("sealwire_request_bytes_total", &[])?
                + sum("sealwire_reply_bytes_total", &[])?,
            written: batches("write"),
            looked_up: batches("get"),
            resident_bytes: sum("process_resident_memory_bytes", &[])?,
            // The connection that waits for notifications is not in the metric. An engine without a
            // database has none.
            database_connections: sum("sealwire_store_connections", &["state=\"up\""])
                .filter(|connections| *connections > 0.0)
                .map_or(0.0, |connections| connections + 1.0),
        })
    }
}

fn scrape(admin: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    stream.set_read_timeout(Some(SCRAPE_TIME_MAX))?;
    write!(
        stream,
        "GET /metrics HTTP/1.0\r\nhost: {admin}\r\nconnection: close\r\n\r\n"
    )?;
    let mut page = String::new();
    stream.take(SCRAPE_BYTES_MAX).read_to_string(&mut page)?;
    Ok(page)
}

/// A connection to the engines' database, for readings only.
pub(super) struct DatabaseProbe {
    client: tokio_postgres::Client,
    /// The process that started all others of the server, if it is on this machine.
    server: Option<u32>,
}

/// Reading of the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatabaseReading {
    cpu: Option<Duration>,
    /// Position in the write-ahead log.
    wal_bytes: f64,
    /// Bytes and whole pages of the write-ahead log as the server's statistics count them, up to
    /// some seconds late.
    counted: (f64, f64),
}

/// Use of the database between two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct DatabaseDelta {
    pub(super) cpu_s: Option<f64>,
    pub(super) wal_bytes: f64,
    pub(super) full_pages: f64,
    /// Part of the log that the statistics have counted, 0 to 1.
    pub(super) counted: f64,
}

impl DatabaseProbe {
    /// Connects. The connection is not encrypted, so `url` must name a socket or an address of this
    /// machine.
    pub(super) async fn connect(url: &str, password: Option<&str>) -> Result<Self, Fault> {
        let mut config: tokio_postgres::Config = url
            .parse()
            .map_err(|_| Fault::Failed("--database is no URL of PostgreSQL".to_owned()))?;
        if config.get_password().is_some() {
            let why = "--database must not have the password: others see it; give --database-password-file";
            return Err(Fault::Failed(why.to_owned()));
        }
        let is_here = |host: &tokio_postgres::config::Host| match host {
            tokio_postgres::config::Host::Tcp(name) => name == "localhost" || is_loopback(name),
            tokio_postgres::config::Host::Unix(_) => true,
        };
        let addresses = config.get_hostaddrs();
        let has_host = !config.get_hosts().is_empty() || !addresses.is_empty();
        if !has_host
            || !config.get_hosts().iter().all(is_here)
            || !addresses.iter().all(IpAddr::is_loopback)
        {
            let why = "--database must name a socket or a loopback address: its connection is not encrypted";
            return Err(Fault::Failed(why.to_owned()));
        }
        if let Some(password) = password {
            config.password(password);
        }
        let (client, connection) = config
            .connect(NoTls)
            .await
            .map_err(|error| unread(&error))?;
        tokio::spawn(connection);
        let backend: i32 = one(&client, "SELECT pg_backend_pid()").await?;
        let server = u32::try_from(backend)
            .ok()
            .and_then(host::parent)
            .filter(|pid| host::family_cpu(*pid).is_some());
        Ok(Self { client, server })
    }

    pub(super) async fn read(&self) -> Result<DatabaseReading, Fault> {
        const LOG: &str = "SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, wal_bytes::float8, wal_fpi::float8 \
            FROM pg_stat_wal";
        let row = self
            .client
            .query_one(LOG, &[])
            .await
            .map_err(|error| unread(&error))?;
        let cpu = self.server.and_then(host::family_cpu);
        Ok(DatabaseReading {
            cpu,
            wal_bytes: row.get(0),
            counted: (row.get(1), row.get(2)),
        })
    }

    /// Begins a checkpoint and waits for its end.
    pub(super) async fn checkpoint(&self) -> Result<(), Fault> {
        self.client
            .batch_execute("CHECKPOINT")
            .await
            .map_err(|error| unread(&error))
    }

    /// Returns the size of the table of tokens.
    pub(super) async fn table(&self) -> Result<TokenTable, Fault> {
        const SIZES: &str = "SELECT (SELECT count(*) FROM sealwire.tokens), pg_table_size('sealwire.tokens'), \
            array(SELECT pg_relation_size(indexrelid) FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid \
                WHERE indrelid = 'sealwire.tokens'::regclass AND relname IN ('tokens_pkey', 'tokens_fingerprint')), \
            current_setting('max_connections')::int";
        let row = self
            .client
            .query_one(SIZES, &[])
            .await
            .map_err(|error| unread(&error))?;
        let indexes: Vec<i64> = row.get(2);
        Ok(TokenTable {
            rows: row.get::<_, i64>(0).unsigned_abs(),
            heap_bytes: row.get::<_, i64>(1).unsigned_abs(),
            random_index_bytes: indexes.into_iter().map(i64::unsigned_abs).collect(),
            connections_max: row.get::<_, i32>(3).unsigned_abs(),
        })
    }
}

impl DatabaseReading {
    /// Returns the use since an earlier reading.
    pub(super) fn since(&self, first: &Self) -> DatabaseDelta {
        let cpu = self
            .cpu
            .zip(first.cpu)
            .and_then(|(to, from)| to.checked_sub(from));
        let wal_bytes = self.wal_bytes - first.wal_bytes;
        let (bytes, pages) = (
            self.counted.0 - first.counted.0,
            self.counted.1 - first.counted.1,
        );
        DatabaseDelta {
            cpu_s: cpu.map(|cpu| cpu.as_secs_f64()),
            wal_bytes,
            // Statistics are late by the same time at both readings of a steady load.
            full_pages: if bytes > 0.0 {
                pages / bytes * wal_bytes
            } else {
                0.0
            },
            counted: if wal_bytes > 0.0 {
                (bytes / wal_bytes).min(1.0)
            } else {
                1.0
            },
        }
    }
}

fn is_loopback(name: &str) -> bool {
    name.parse()
        .is_ok_and(|address: IpAddr| address.is_loopback())
}

async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(
    client: &tokio_postgres::Client,
    query: &str,
) -> Result<T, Fault> {
    let row = client
        .query_one(query, &[])
        .await
        .map_err(|error| unread(&error))?;
    row.try_get(0).map_err(|error| unread(&error))
}

fn unread(error: &tokio_postgres::Error) -> Fault {
    let said = error
        .as_db_error()
        .map_or_else(|| error.to_string(), |db| db.message().to_owned());
    Fault::Failed(format!("--database: {said}"))
}

/// A reading of everything.
pub(super) struct SystemReading {
    pub(super) at: Instant,
    pub(super) engines: Vec<EngineReading>,
    pub(super) database: Option<DatabaseReading>,
    pub(super) clients: Option<Duration>,
}

impl SystemReading {
    pub(super) async fn take(
        admins: &[String],
        database: Option<&DatabaseProbe>,
    ) -> Result<Self, Fault> {
        let engines = admins
            .iter()
            .map(|admin| EngineReading::read(admin))
            .collect::<Result<_, _>>()?;
        let database = match database {
            Some(database) => Some(database.read().await?),
            None => None,
        };
        Ok(Self {
            at: Instant::now(),
            engines,
            database,
            clients: host::process_cpu(std::process::id()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# TYPE sealwire_requests counter
sealwire_requests_total{method=\"encrypt\",code=\"ok\"} 5
sealwire_requests_total{method=\"encrypt\",code=\"overloaded\"} 7
sealwire_requests_total{method=\"decrypt\",code=\"ok\"} 1
sealwire_requests_total{method=\"tokenize\",code=\"ok\"} 2
sealwire_requests_total{method=\"detokenize\",code=\"ok\"} 3
sealwire_requests_total{method=\"health\",code=\"ok\"} 100
process_cpu_seconds_total 1.5
sealwire_request_bytes_total 100
sealwire_reply_bytes_total 50
sealwire_store_batch_items_sum{operation=\"write\"} 40.0
sealwire_store_batch_items_count{operation=\"write\"} 4
sealwire_store_batch_items_bucket{le=\"1.0\",operation=\"write\"} 9
process_resident_memory_bytes 1000
sealwire_store_connections{state=\"up\"} 12
sealwire_store_connections{state=\"down\"} 1
";

    #[tokio::test]
    async fn a_database_elsewhere_or_a_password_in_its_url_is_rejected() {
        for (url, said) in [
            (
                "postgres://u@db.internal/d",
                "must name a socket or a loopback address",
            ),
            (
                "host=localhost hostaddr=192.0.2.1",
                "must name a socket or a loopback address",
            ),
            (
                "hostaddr=192.0.2.1",
                "must name a socket or a loopback address",
            ),
            ("user=u", "must name a socket or a loopback address"),
            (
                "host=localhost,192.0.2.1",
                "must name a socket or a loopback address",
            ),
            (
                "postgres://u:s3cret@localhost/d",
                "must not have the password",
            ),
            ("postgres://[", "is no URL of PostgreSQL"),
        ] {
            let error = DatabaseProbe::connect(url, None)
                .await
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(
                error.contains(said) && !error.contains("s3cret"),
                "{url}: {error}"
            );
        }
    }

    #[test]
    fn metrics_of_the_loads_are_added_up() {
        let read = EngineReading::parse(PAGE).unwrap();
        let expected = EngineReading {
            ok: 11.0,
            cpu_s: 1.5,
            bytes: 150.0,
            written: (40.0, 4.0),
            looked_up: (0.0, 0.0),
            resident_bytes: 1_000.0,
            database_connections: 13.0,
        };
        assert_eq!(read, expected);
        for missing in [
            "process_cpu_seconds_total 1.5\n",
            "sealwire_requests_total{method=\"decrypt\",code=\"ok\"} 1\n",
        ] {
            assert_eq!(
                EngineReading::parse(&PAGE.replace(missing, "")),
                None,
                "{missing}"
            );
        }
        assert_eq!(EngineReading::parse("<html>"), None);
    }
}
