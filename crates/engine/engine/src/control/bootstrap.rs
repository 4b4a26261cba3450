//! The first start: somebody has to be able to give others their roles.

use sealwire_access::{AccessMode, Principal, Role, principal_key};
use sealwire_store::{CommitSteps, ControlStore, StoreError};

use super::roles::{BindError, assign_role, commit_record};

/// Says that the first administrators were made, and is never removed.
const MADE: &str = "access/administrators";

/// Gives the configured principals the role of an administrator, once in the life of a store, and
/// only while nobody else has any role. Gives whether anything was changed.
///
/// # Errors
///
/// The store's error. The next start continues one that ended midway.
pub async fn first_start(
    config: &sealwire_settings::Access,
    store: &dyn ControlStore,
) -> Result<bool, StoreError> {
    if config.mode == AccessMode::Off {
        return Ok(false);
    }

    let (_, made) = store.read(MADE).await?;
    let bound = store.singles(None, config.administrators.len() + 1).await?;
    let keys: Vec<String> = config.administrators.iter().map(principal_key).collect();
    let is_ours = bound.records.keys().all(|key| keys.contains(key));

    if made.is_none() && is_ours && !config.administrators.is_empty() {
        return match make(&config.administrators, store).await {
            Ok(()) => Ok(true),
            Err(error @ StoreError::RolledBack { .. }) => {
                tracing::warn!(%error, "access.administrators are not given their role");
                Ok(false)
            }
            Err(StoreError::ReadOnly) => {
                tracing::warn!(
                    "access.administrators cannot be given their role: this engine only reads its file; \
                     `sealwire principals grant PRINCIPAL administrator --file FILE` does it"
                );
                Ok(false)
            }
            Err(error) => Err(error),
        };
    }

    if bound.records.is_empty() {
        let mode = if config.mode == AccessMode::Enforce {
            "every request is denied"
        } else {
            "every request would be denied"
        };
        tracing::warn!(
            "no principal has a role, so {mode}: name one in access.administrators and start again, or use \
             `sealwire principals grant PRINCIPAL ROLE --file FILE`, or set access.mode to \"observe\" meanwhile"
        );
    }
    Ok(false)
}

async fn make(administrators: &[Principal], store: &dyn ControlStore) -> Result<(), StoreError> {
    let role = Role::administrator();
    let mut steps = CommitSteps::default();
    for principal in administrators {
        let generation = match assign_role(store, principal, role.name()).await {
            Ok(generation) => steps.made(Ok(generation))?,
            Err(BindError::Store(error)) => steps.made(Err(error))?,
            // Neither error occurs: the role is built in, and the principals have no other role.
            Err(BindError::NoRole | BindError::TooMany) => continue,
        };
        tracing::warn!(%principal, generation, "is an administrator from now on: nobody had a role");
    }
    steps.made(commit_record(store, MADE, b"{\"format\":1}").await)?;
    steps.end()
}
