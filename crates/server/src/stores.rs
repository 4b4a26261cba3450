//! The stores of a configuration, opened: where control state rests, and where tokens do, if this engine keeps any.

use std::sync::Arc;

use sealwire_store::embedded::Options;
use sealwire_store::{
    Coalescer, ControlStore, EmbeddedStore, FileStore, Lanes, Observer, StoreError, ThrottleBounds, TokenStore,
    WriteThrottle,
};

use crate::config::{Mode, State};
use crate::metrics::Metrics;
use crate::tokens::ask::Tokens;

/// One writer task owns the store; reads are as many as there are threads to hand them to.
const EMBEDDED_LANES: Lanes = Lanes { writers: 1, readers: 2 };

/// What an engine keeps its state in.
pub struct Stores {
    /// Apps, keys and collections.
    pub control: Arc<dyn ControlStore>,
    /// The rows of token maps; `None`: this engine keeps no tokens.
    pub tokens: Option<Arc<dyn TokenStore>>,
    /// How many writes and look-ups of tokens it does at once.
    lanes: Lanes,
    embedded: Option<Arc<EmbeddedStore>>,
}

/// What the opener wants of the control state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// As an engine has it: a file is only read.
    Serve,
    /// To change it.
    Change,
}

impl Stores {
    /// Opens what a configuration names.
    ///
    /// # Errors
    ///
    /// What the store says.
    pub async fn open(state: &State, access: Access) -> Result<Self, StoreError> {
        let state = state.clone();
        let open = move || match state.mode {
            Mode::Stateless => {
                let file = match access {
                    Access::Serve => FileStore::open_read_only(&state.file)?,
                    Access::Change => FileStore::open(&state.file)?,
                };
                Ok(Self { control: Arc::new(file), tokens: None, lanes: EMBEDDED_LANES, embedded: None })
            }
            Mode::Embedded => {
                let store = Arc::new(EmbeddedStore::open(&state.folder, &Options::default())?);
                let (control, tokens) = (Arc::clone(&store), Arc::clone(&store));
                Ok(Self { control, tokens: Some(tokens), lanes: EMBEDDED_LANES, embedded: Some(store) })
            }
        };
        let failed = |_| StoreError::Unavailable("opening it ended early".into());
        tokio::task::spawn_blocking(open).await.map_err(failed)?
    }

    /// The token store as calls use it: what they ask goes together, and they write as fast as it keeps up.
    pub fn joined(&self, metrics: &Arc<Metrics>) -> Option<Tokens> {
        let store = Arc::clone(self.tokens.as_ref()?);
        let observer: Arc<dyn Observer> = Arc::<Metrics>::clone(metrics);
        let throttle = WriteThrottle::new(ThrottleBounds::new(self.lanes));
        Some(Tokens::new(Coalescer::new(store, self.lanes, observer), throttle, Arc::clone(metrics)))
    }

    /// Gives up what is held, so that another process can have it when this returns.
    pub async fn close(&self) {
        if let Some(store) = &self.embedded {
            store.close().await;
        }
    }
}

impl std::fmt::Debug for Stores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stores").field("tokens", &self.tokens.is_some()).finish_non_exhaustive()
    }
}
