//! The stores of a configuration, opened: where control state rests, and where tokens do, if this
//! engine keeps any.

use std::sync::{Arc, Weak};
use std::time::Duration;

use sealwire_store::{
    BatchLimits, Coalescer, ControlStore, ObjectStore, ObjectWriter, Observer, StoreError,
    ThrottleBounds, TokenStore, WriteThrottle,
};
use sealwire_store_embedded::{EmbeddedStore, FileStore, embedded::Options};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};

use crate::jobs::objects::Objects;
use crate::jobs::tokens::store_io::{ROW_BYTES, Tokens};
use sealwire_settings::{Config, Mode, Postgres};
use sealwire_telemetry::metrics::Metrics;

/// Limits of batches for the embedded store, which one writer task owns. The number of reads is the
/// number of reader threads.
const EMBEDDED_LANES: BatchLimits = BatchLimits {
    writers: 1,
    readers: 2,
};

/// The open stores of an engine.
pub struct Stores {
    /// Apps, keys and collections.
    pub control: Arc<dyn ControlStore>,
    /// The rows of token maps; `None`: this engine keeps no tokens.
    pub tokens: Option<Arc<dyn TokenStore>>,
    /// Objects of collections; `None`: this engine keeps none.
    pub objects: Option<Arc<dyn ObjectStore>>,
    /// How many writes and look-ups of tokens it does at once.
    lanes: BatchLimits,
    embedded: Option<Arc<EmbeddedStore>>,
    postgres: Option<Arc<PostgresStore>>,
}

/// Opens what lies on disk, off the network threads.
async fn blocking<T: Send + 'static>(
    open: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::task::spawn_blocking(open)
        .await
        .map_err(|_| StoreError::Unavailable("opening it ended early".into()))?
}

/// Access to the control state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As an engine has it: a file is only read.
    Serve,
    /// To change it.
    Change,
}

impl Stores {
    /// Opens the stores that a configuration names.
    ///
    /// # Errors
    ///
    /// The store's error.
    pub async fn open(config: &Config, access: Access) -> Result<Self, StoreError> {
        let state = config.state.clone();
        match state.mode {
            Mode::Stateless => {
                let control = Arc::new(
                    blocking(move || match access {
                        Access::Serve => FileStore::open_read_only(&state.file),
                        Access::Change => FileStore::open(&state.file),
                    })
                    .await?,
                );
                let lanes = EMBEDDED_LANES;
                Ok(Self {
                    control,
                    tokens: None,
                    objects: None,
                    lanes,
                    embedded: None,
                    postgres: None,
                })
            }
            Mode::Embedded => {
                let store = Arc::new(
                    blocking(move || EmbeddedStore::open(&state.folder, &Options::default()))
                        .await?,
                );
                let control = Arc::clone(&store);
                let lanes = EMBEDDED_LANES;
                let (tokens, objects): (Arc<dyn TokenStore>, Arc<dyn ObjectStore>) =
                    (store.clone(), store.clone());
                let tokens = Some(tokens);
                let objects = Some(objects);
                Ok(Self {
                    control,
                    tokens,
                    objects,
                    lanes,
                    embedded: Some(store),
                    postgres: None,
                })
            }
            Mode::Postgres => {
                let store =
                    Arc::new(PostgresStore::connect(postgres_options(&config.postgres)).await?);
                let control = Arc::clone(&store);
                let tokens = Arc::clone(&store);
                let objects = Arc::clone(&store);
                let lanes = BatchLimits {
                    writers: config.postgres.writers,
                    readers: config.postgres.readers,
                };
                let tokens = Some(tokens as Arc<dyn TokenStore>);
                let objects = Some(objects as Arc<dyn ObjectStore>);
                Ok(Self {
                    control,
                    tokens,
                    objects,
                    lanes,
                    embedded: None,
                    postgres: Some(store),
                })
            }
        }
    }

    /// Returns the stores for requests: lookups and writes are batched, and writes are throttled to
    /// the speed of the store. Rows of tokens and objects share one throttle. Token values have at
    /// most `value_bytes_max` bytes.
    pub fn batched(
        &self,
        value_bytes_max: usize,
        metrics: &Arc<Metrics>,
    ) -> (Option<Tokens>, Option<Objects>) {
        let observer: Arc<dyn Observer> = Arc::<Metrics>::clone(metrics);
        let throttle = WriteThrottle::new(ThrottleBounds::new(self.lanes));
        let row_bytes_max = value_bytes_max.saturating_add(ROW_BYTES);
        let tokens = self.tokens.as_ref().map(|store| {
            let store = Coalescer::for_rows(
                Arc::clone(store),
                self.lanes,
                row_bytes_max,
                Arc::clone(&observer),
            );
            Tokens::new(store, throttle.clone(), row_bytes_max, Arc::clone(metrics))
        });

        let objects = self.objects.as_ref().map(|store| {
            let writer = ObjectWriter::new(Arc::clone(store), self.lanes, Arc::clone(&observer));
            Objects::new(writer, throttle.clone(), Arc::clone(metrics))
        });
        (tokens, objects)
    }

    /// Returns a function that counts the open and the missing connections to the database.
    pub fn links(&self) -> impl Fn() -> (usize, usize) + Send + Sync + 'static {
        // A weak reference, so that the function does not keep the store open.
        let postgres = self.postgres.as_ref().map(Arc::downgrade);
        move || {
            postgres
                .as_ref()
                .and_then(Weak::upgrade)
                .map_or((0, 0), |store| store.connection_counts())
        }
    }

    /// Closes the stores, so that another process can open them when this returns.
    pub async fn close(&self) {
        if let Some(store) = &self.embedded {
            store.close().await;
        }
    }
}

/// Converts the configuration into connection options.
pub fn postgres_options(from: &Postgres) -> PostgresOptions {
    let password = std::env::var(Postgres::PASSWORD)
        .ok()
        .filter(|_| from.password_file.is_none());
    PostgresOptions {
        password,
        password_file: from.password_file.clone(),
        ca: from.ca.clone(),
        client_certificate: from.client_certificate.clone(),
        client_key: from.client_key.clone(),
        tls: from.tls,
        writers: from.writers,
        readers: from.readers,
        timeout: Duration::from_millis(from.timeout_ms),
        ..PostgresOptions::new(&*from.url)
    }
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores")
            .field("tokens", &self.tokens.is_some())
            .finish_non_exhaustive()
    }
}
