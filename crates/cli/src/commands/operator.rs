//! Changes apps, keys and collections, at an engine's control listener or in a file of apps.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sealwire_apps::Control;
use sealwire_client::{Client, Error, ErrorCode};
use sealwire_service::output::errln;
use sealwire_settings::{AccessMode, Mode};
use sealwire_store::StoreError;
use sealwire_store_embedded::FileStore;
use sealwire_wire::RpcError;
use sealwire_wire::control::{
    AppChanged, AppOperation, AppRequest, Apps, CheckRequest, Checked, CollectionChanged,
    CollectionRequest, Collections, Page, PrincipalChanged, PrincipalRequest, Principals, Records,
    RoleChanged, RoleRequest, Roles,
};

use super::connect::ConnectArgs;
use super::failure::RequestFailure;
use super::{ConfigArgs, Failure};
use sealwire_engine::control;
use sealwire_engine::root::Unsealer;

/// Entries per page of a list.
const PAGE: u32 = 1_000;

/// Target of the changes, and the output format.
#[derive(Debug, clap::Args)]
pub(super) struct TargetArgs {
    /// Change this file of apps, which engines with `state.mode` "stateless" read, instead of
    /// connecting to an engine. The keys in it are sealed under the configured key-encryption key
    #[arg(long, value_name = "FILE", conflicts_with = "connect")]
    file: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// An engine's control listener, and the output format.
#[derive(Debug, clap::Args)]
pub(super) struct EngineArgs {
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Target of the changes: an engine or a file.
pub(super) enum ControlTarget {
    /// An engine's control listener.
    Engine(Client),
    /// A file of apps, and the `access.mode` of the configuration.
    File(Control, AccessMode),
}

impl TargetArgs {
    /// Runs requests at the engine or on the file.
    pub(super) fn run<T>(
        &self,
        calls: impl AsyncFnOnce(ControlTarget) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Some(file) = &self.file else {
            return self
                .engine
                .run(async |client| calls(ControlTarget::Engine(client)).await);
        };
        let config = self.config.load()?;
        // The anchor belongs to the configured store. If the file is that store, the anchor is
        // checked as by an engine, and `root accept-rollback` accepts an older state.
        let is_configured =
            config.state.mode == Mode::Stateless && is_same_file(&config.state.file, file)?;
        let unsealer = if is_configured {
            Unsealer::open(&config)?
        } else {
            Unsealer::open_without_anchor(&config)?
        };
        let control = Control::with_finder(Arc::new(FileStore::open(file)?), Arc::new(unsealer));
        self.engine.connect.run(async {
            // Engines only read the file. Expired entries are deleted when an operator changes the
            // file.
            match control.maintain(unix_s()?).await {
                // The following change repairs the anchor, or fails with the same error.
                Err(error @ StoreError::NotAnchored { .. }) => {
                    errln!("deleting expired entries: {error}")
                }
                done => drop(done?),
            }
            calls(ControlTarget::File(control, config.access.mode)).await
        })
    }
}

/// Returns true if both paths name the same file. The file can be missing.
fn is_same_file(one: &Path, other: &Path) -> Result<bool, Failure> {
    Ok(real_path(one)? == real_path(other)?)
}

/// Returns the absolute path of a file without links. The file can be missing.
fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let path = std::path::absolute(path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
            Ok(folder
                .zip(path.file_name())
                .map_or_else(|| path.clone(), |(folder, name)| folder.join(name)))
        }
        found => Ok(found.map_err(|error| format!("{}: {error}", path.display()))?),
    }
}

impl EngineArgs {
    /// Returns true if an option names an engine, its folder or a certificate.
    pub(super) fn is_named(&self) -> bool {
        self.connect.is_given()
    }

    /// Runs requests at the engine.
    pub(super) fn run<T>(
        &self,
        calls: impl AsyncFnOnce(Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.connect
            .run(async { calls(self.connect.operator().await?).await })
            .map_err(explain_error)
    }

    /// Runs requests at the engine, each without retries, so that the command can tell the reason
    /// for a wait.
    pub(super) fn run_without_retries<T>(
        &self,
        calls: impl AsyncFnOnce(Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let requests = async {
            let client = self
                .connect
                .operator_with(|config| config.attempts_max = 1)
                .await?;
            calls(client).await
        };
        self.connect.run(requests).map_err(explain_error)
    }
}

impl ControlTarget {
    /// Returns all apps.
    pub(super) async fn apps(&self) -> Result<Vec<sealwire_wire::control::App>, Failure> {
        read_pages(async |page| {
            let Apps { apps, next, .. } = match self {
                Self::Engine(client) => client.apps(page).await?,
                Self::File(control, _) => control::apps(control, page).await?,
            };
            Ok((apps, next))
        })
        .await
    }

    /// Changes an app.
    pub(super) async fn change_app(
        &self,
        app: &str,
        operation: AppOperation<'_>,
    ) -> Result<AppChanged, Failure> {
        let call = AppRequest { app, operation };
        Ok(match self {
            Self::Engine(client) => client.change_app(call).await?,
            Self::File(control, _) => control::change_app(control, call).await?,
        })
    }

    /// Returns all collections of an app.
    pub(super) async fn collections(
        &self,
        app: &str,
    ) -> Result<Vec<sealwire_wire::control::Collection>, Failure> {
        read_pages(async |page| {
            let Collections {
                collections, next, ..
            } = match self {
                Self::Engine(client) => client.collections(app, page).await?,
                Self::File(control, _) => control::collections(control, app, page).await?,
            };
            Ok((collections, next))
        })
        .await
    }

    /// Changes a collection.
    pub(super) async fn change_collection(
        &self,
        call: CollectionRequest<'_>,
    ) -> Result<CollectionChanged, Failure> {
        Ok(match self {
            Self::Engine(client) => client.change_collection(call).await?,
            Self::File(control, _) => control::change_collection(control, None, &call).await?,
        })
    }
}

/// Roles and principals.
impl ControlTarget {
    /// Returns all roles.
    pub(super) async fn roles(&self) -> Result<Vec<sealwire_wire::control::Role>, Failure> {
        read_pages(async |page| {
            let Roles { roles, next, .. } = match self {
                Self::Engine(client) => client.roles(page).await?,
                Self::File(control, _) => control::roles(&**control.store(), page).await?,
            };
            Ok((roles, next))
        })
        .await
    }

    /// Creates, changes or deletes a role.
    pub(super) async fn change_role(&self, call: RoleRequest<'_>) -> Result<RoleChanged, Failure> {
        Ok(match self {
            Self::Engine(client) => client.change_role(call).await?,
            Self::File(control, _) => control::change_role(&**control.store(), &call).await?,
        })
    }

    /// Returns all principals that have a role.
    pub(super) async fn principals(
        &self,
    ) -> Result<Vec<sealwire_wire::control::Principal>, Failure> {
        read_pages(async |page| {
            let Principals {
                principals, next, ..
            } = match self {
                Self::Engine(client) => client.principals(page).await?,
                Self::File(control, _) => control::principals(&**control.store(), page).await?,
            };
            Ok((principals, next))
        })
        .await
    }

    /// Grants a role to a principal, or revokes it.
    pub(super) async fn change_principal(
        &self,
        call: PrincipalRequest<'_>,
    ) -> Result<PrincipalChanged, Failure> {
        Ok(match self {
            Self::Engine(client) => client.change_principal(call).await?,
            Self::File(control, _) => control::change_principal(&**control.store(), call).await?,
        })
    }

    /// Checks whether a principal is permitted to do something.
    pub(super) async fn check(&self, call: CheckRequest<'_>) -> Result<Checked, Failure> {
        Ok(match self {
            Self::Engine(client) => client.check(call).await?,
            Self::File(control, mode) => {
                control::check_store(&**control.store(), *mode, &call).await?
            }
        })
    }
}

/// Reads a list page by page. `operation` returns a page and the start of the next page.
async fn read_pages<T>(
    operation: impl AsyncFn(Page<'_>) -> Result<(Vec<T>, Option<String>), Failure>,
) -> Result<Vec<T>, Failure> {
    let mut all = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let (page, next) = operation(Page {
            after: after.as_deref(),
            limit: Some(PAGE),
        })
        .await?;
        all.extend(page);
        after = next;
        if after.is_none() {
            return Ok(all);
        }
    }
}

pub(super) fn unix_s() -> Result<u64, Failure> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs())
}

/// Maximum number of attempts of an export. An attempt fails if the state changes meanwhile.
const EXPORTS_MAX: u32 = 10;

/// Returns all records of one generation.
pub(super) async fn export_records(client: &Client) -> Result<Records, Failure> {
    for _ in 0..EXPORTS_MAX {
        let mut all = client
            .export(Page {
                after: None,
                limit: Some(PAGE),
            })
            .await?;
        while let Some(after) = all.next.take() {
            let page = client
                .export(Page {
                    after: Some(&after),
                    limit: Some(PAGE),
                })
                .await?;
            if page.generation != all.generation {
                all.next = Some(after);
                break;
            }
            all.records.extend(page.records);
            all.next = page.next;
        }
        if all.next.is_none() {
            return Ok(all);
        }
    }
    Err(format!("the apps changed during each of {EXPORTS_MAX} attempts; run the command again while nobody changes apps").into())
}

/// Adds a hint to an error.
pub(super) fn explain_error(failure: Failure) -> Failure {
    let Some(error) = failure.downcast_ref::<Error>() else {
        return failure;
    };
    let text = match error {
        Error::Rpc(RpcError {
            code: ErrorCode::Forbidden,
            message,
            details,
            ..
        }) => {
            let text = format!("{message}; --cert and --key name an operator's certificate");
            // The principal lacks a role. Another certificate may have it.
            if details.is_empty() {
                text
            } else {
                format!("{text}, and `sealwire principals grant` gives it a role")
            }
        }
        Error::Rpc(rpc)
            if rpc.code == ErrorCode::NotFound && rpc.message.starts_with("no method") =>
        {
            format!("{error}: is this the control listener (control.address)?")
        }
        Error::Disconnected { .. } | Error::Deadline => {
            format!(
                "{error}; the engine may have made the change: check it with `list` before you repeat the command"
            )
        }
        _ => return failure,
    };
    RequestFailure::failure(text, error.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configured file is found under each of its names, also where it is missing.
    #[test]
    fn configured_file_is_found_under_each_of_its_names() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink("folder", at("link")).unwrap();
        for exists in [false, true] {
            if exists {
                std::fs::write(at("folder/apps.json"), "{}").unwrap();
            }
            for (name, expected) in [
                ("folder/apps.json", true),
                ("link/apps.json", true),
                ("folder/../folder/./apps.json", true),
                ("folder/other.json", false),
                ("apps.json", false),
                ("none/apps.json", false),
            ] {
                assert_eq!(
                    is_same_file(&at("folder/apps.json"), &at(name)).unwrap(),
                    expected,
                    "{name} {exists}"
                );
            }
        }
    }
}
