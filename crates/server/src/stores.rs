//! The stores of a configuration, opened: where control state rests, and where tokens do, if this engine keeps any.

use std::sync::Arc;

use sealwire_store::embedded::Options;
use sealwire_store::{ControlStore, EmbeddedStore, FileStore, StoreError, TokenStore};

use crate::config::{Mode, State};

/// What an engine keeps its state in.
pub struct Stores {
    /// Apps, keys and collections.
    pub control: Arc<dyn ControlStore>,
    /// The rows of token maps; `None`: this engine keeps no tokens.
    pub tokens: Option<Arc<dyn TokenStore>>,
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
                Ok(Self { control: Arc::new(file), tokens: None, embedded: None })
            }
            Mode::Embedded => {
                let store = Arc::new(EmbeddedStore::open(&state.folder, &Options::default())?);
                let (control, tokens) = (Arc::clone(&store), Arc::clone(&store));
                Ok(Self { control, tokens: Some(tokens), embedded: Some(store) })
            }
        };
        let failed = |_| StoreError::Unavailable("opening it ended early".into());
        tokio::task::spawn_blocking(open).await.map_err(failed)?
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
