//! An engine per store: a process of its own, as in production, with two collections and a role for
//! them.

use std::io;

use sealwire_access::{Binding, Grant, Principal, Role, principal_key, role_key};
use sealwire_apps::{CollectionKind, CollectionName, CollectionRules, Scope};
use sealwire_benches::document::APP;
use sealwire_client::{Client, ClientConfig};
use sealwire_crypto::{AppId, Suite};
use sealwire_dev_ca::{Access, Existing};
use sealwire_records::token::Format;
use sealwire_server::server::open_control;
use sealwire_settings::{Config, Mode};
use sealwire_store::ControlStore as _;
use sealwire_testkit::{Database, Postgres};
use tokio::runtime::Runtime;

use crate::child::{EngineChild, Folder, Setting};

/// The collection in which each write makes a new token.
pub(crate) const RANDOM: &str = "random";
/// The collection in which equal values have equal tokens.
pub(crate) const DETERMINISTIC: &str = "deterministic";
/// The client's identity.
const CLIENT: &str = "client";
/// Connections of the client.
const CONNECTIONS: usize = 4;

/// A state of the engine that keeps tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Embedded,
    Postgres,
}

impl Store {
    pub(crate) const ALL: [Self; 2] = [Self::Embedded, Self::Postgres];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Postgres => "postgres",
        }
    }
}

/// A running engine with its client. Fields drop in this order.
pub(crate) struct Place {
    pub(crate) client: Client,
    _engine: EngineChild,
    _folder: Folder,
    _database: Option<Database<'static>>,
}

impl Place {
    pub(crate) fn start(store: Store, clients: &Runtime) -> io::Result<Self> {
        let folder = Folder::make(&[CLIENT], Mode::Embedded)?;
        let mut config = Config::defaults(folder.path());
        let mut settings: Vec<Setting> = Vec::new();
        let database = match store {
            Store::Embedded => None,
            Store::Postgres => {
                let options = sealwire_testkit::Options::default();
                let options = options
                    .set("shared_buffers", "256MB")
                    .set("max_wal_size", "4GB");
                let server: &'static Postgres =
                    Box::leak(Box::new(Postgres::start(options).map_err(failed)?));
                let database = server.database().map_err(failed)?;
                let file = folder.path().join("password");
                sealwire_dev_ca::write(
                    &file,
                    server.password().as_bytes(),
                    Access::Owner,
                    Existing::Replace,
                )
                .map_err(failed)?;
                config.state.mode = Mode::Postgres;
                config.postgres.url = database.socket_url();
                config.postgres.password_file = Some(file);
                // Settings have the lifetime of the program, as the server has.
                let url: &'static str = config.postgres.url.clone().leak();
                settings.extend([
                    ("state.mode", "postgres"),
                    ("postgres.url", url),
                    ("postgres.password_file", "password"),
                ]);
                Some(database)
            }
        };
        clients.block_on(furnish(&config, store))?;
        let engine = EngineChild::start_with(&folder, &settings)?;
        let config = ClientConfig {
            connections: CONNECTIONS,
            ..folder.client(CLIENT, engine.address)
        };
        let client = clients.block_on(Client::connect(config)).map_err(failed)?;
        Ok(Self {
            client,
            _engine: engine,
            _folder: folder,
            _database: database,
        })
    }
}

/// Creates the collections and the client's role. The embedded state has the app already.
pub(crate) async fn furnish(config: &Config, store: Store) -> io::Result<()> {
    let (control, stores) = open_control(config).await.map_err(failed)?;
    let app = AppId::new(APP).map_err(failed)?;
    if store == Store::Postgres {
        control.create(&app, &Suite::ALL).await.map_err(failed)?;
    }
    for (name, kind) in [
        (RANDOM, CollectionKind::Random),
        (DETERMINISTIC, CollectionKind::Deterministic),
    ] {
        let (format, scope) = (Format::Opaque, Scope::Collection);
        let rules = CollectionRules {
            kind,
            format,
            scope,
            expires_s: None,
            retention_s: None,
        };
        let name = CollectionName::new(name).map_err(failed)?;
        control
            .create_collection(&app, &name, rules)
            .await
            .map_err(failed)?;
    }
    let grant = Grant::from_text("tokenize,detokenize,tokens.find apps=*").map_err(failed)?;
    let role = Role::new("tokens", vec![grant]).map_err(failed)?;
    let principal = Principal::from_text(CLIENT).ok_or_else(|| failed("no name of a principal"))?;
    let binding = Binding {
        principal,
        roles: vec![role.name().clone()],
    };
    let records = [
        (role_key(role.name()), role.to_record()),
        (principal_key(&binding.principal), binding.to_record()),
    ];
    for (key, record) in records {
        let base = control.generation().await.map_err(failed)?;
        control
            .store()
            .commit(base, &key, Some(&record))
            .await
            .map_err(failed)?;
    }
    stores.close().await;
    Ok(())
}

/// Converts an error of another crate.
pub(crate) fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}
