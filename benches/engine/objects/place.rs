//! An engine on PostgreSQL with a collection of objects.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire_access::{Binding, Grant, Principal, Role, principal_key, role_key};
use sealwire_apps::CollectionName;
use sealwire_benches::document::APP;
use sealwire_client::{
    AddObjects, Client, ClientConfig, Error, ErrorCode, PropertyDisclosure, TokenMap,
};
use sealwire_crypto::{AppId, Suite};
use sealwire_dev_ca::{Access, Existing};
use sealwire_msgpack::write;
use sealwire_records::objects::{PropertyName, PropertySpec, PropertyType, Schema};
use sealwire_server::server::open_control;
use sealwire_settings::{Config, Mode};
use sealwire_store::{
    ControlStore as _, Filter, MapId, MapView, ObjectId, ObjectRow, ObjectStore as _, Term,
};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::{Database, Postgres};
use tokio::task::JoinSet;

use super::Operation;
use super::load::Target;
use crate::child::{EngineChild, Folder};
use crate::stores::place::failed;
use crate::tokens::place::settings;

/// Objects in a request at most, and in a page of a fill.
pub(super) const PAGE: u64 = 500;
/// Objects with one value of the indexed property.
const GROUP: u64 = 10;
const COLLECTION: &str = "people";
const CLIENT: &str = "client";
const CONNECTIONS: usize = 4;
/// Pages that a fill writes at once.
const FILL_TASKS: usize = 2;
/// Guards against hangs; says nothing about speed.
const DEADLINE: Duration = Duration::from_secs(600);
const MAP: MapId = MapId {
    app: 1,
    collection: 1,
};

/// The names of the properties, in the order of [`values`].
const PROPERTIES: [&str; 4] = ["email", "name", "street", "note"];

/// Returns the values of an object, of 64 bytes each. Unique and indexed values are in no order, as
/// real ones are.
pub(super) fn values(number: u64) -> [String; 4] {
    [
        format!("{:032x}{number:020}@example.com", spread(number)),
        name(number / GROUP),
        format!("{number:064}"),
        format!("{number:064x}"),
    ]
}

/// Returns a value of the indexed property.
pub(super) fn name(group: u64) -> String {
    format!("{:032x}{group:032}", spread(group))
}

/// Spreads numbers evenly. The odd factor keeps them distinct.
pub(super) fn spread(number: u64) -> u128 {
    u128::from(number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// A running engine with its client. Fields drop in this order.
pub(super) struct Place {
    client: Client,
    _engine: EngineChild,
    _folder: Folder,
    pub(super) database: Database<'static>,
    pub(super) password: String,
    /// Ids of the objects that are read, by number.
    ids: Vec<String>,
    next: AtomicU64,
    subjects: u64,
}

impl Place {
    /// Starts an engine. `subjects`: data subjects that added objects name in turn.
    pub(super) async fn start(subjects: u64) -> io::Result<Self> {
        let folder = Folder::make(&[CLIENT], Mode::Embedded)?;
        let mut config = Config::defaults(folder.path());
        let server: &'static Postgres =
            Box::leak(Box::new(Postgres::start(settings()).map_err(failed)?));
        let database = server.database().map_err(failed)?;
        let password = server.password().to_owned();
        let file = folder.path().join("password");
        sealwire_dev_ca::write(&file, password.as_bytes(), Access::Owner, Existing::Replace)
            .map_err(failed)?;
        config.state.mode = Mode::Postgres;
        config.postgres.url = database.socket_url();
        config.postgres.password_file = Some(file);
        furnish(&config).await?;
        // Settings have the lifetime of the program, as the server has.
        let url: &'static str = config.postgres.url.clone().leak();
        let settings = [
            ("state.mode", "postgres"),
            ("postgres.url", url),
            ("postgres.password_file", "password"),
        ];
        let engine = EngineChild::start_with(&folder, &settings)?;
        let client = folder.client(CLIENT, engine.address);
        let client = ClientConfig {
            connections: CONNECTIONS,
            attempts_max: 1,
            deadline: DEADLINE,
            ..client
        };
        let client = Client::connect(client).await.map_err(failed)?;
        let (ids, next) = (Vec::new(), AtomicU64::new(0));
        Ok(Self {
            client,
            _engine: engine,
            _folder: folder,
            database,
            password,
            ids,
            next,
            subjects,
        })
    }

    /// Adds the objects that are read and found later.
    pub(super) async fn add_known(&mut self, known: u64) -> io::Result<()> {
        for _ in 0..known / PAGE {
            let ids = self
                .add(PAGE)
                .await?
                .ok_or_else(|| failed("a lone request was rejected"))?;
            self.ids.extend(ids);
        }
        Ok(())
    }

    /// Adds new objects. Returns their ids, or `None` if the request was rejected because of
    /// overload.
    async fn add(&self, batch: u64) -> io::Result<Option<Vec<String>>> {
        let first = self.next.fetch_add(batch, Ordering::Relaxed);
        let mut objects = Vec::new();
        write::array_len(&mut objects, batch as u32);
        for number in first..first + batch {
            write::map_len(&mut objects, PROPERTIES.len() as u32);
            for (property, value) in PROPERTIES.iter().zip(values(number)) {
                write::str(&mut objects, property);
                write::str(&mut objects, &value);
            }
        }
        let numbers = (first..first + batch).filter(|_| self.subjects > 0);
        let subjects: Vec<String> = numbers
            .map(|number| format!("person {}", number % self.subjects))
            .collect();
        let subjects = subjects.iter().map(String::as_str).collect();
        let add = AddObjects {
            objects: &objects,
            subjects,
            ..AddObjects::default()
        };
        let Some(added) = admitted(self.client.objects_add(map(), add).await)? else {
            return Ok(None);
        };
        if added.objects.len() as u64 != batch {
            return Err(failed("an object was not added"));
        }
        Ok(Some(
            added.objects.into_iter().map(|object| object.id).collect(),
        ))
    }

    async fn get(&self, random: u64) -> io::Result<bool> {
        let number = random % self.ids.len() as u64;
        let found = self
            .client
            .objects_get(
                map(),
                &[&self.ids[number as usize]],
                PropertyDisclosure::default(),
            )
            .await;
        let Some(found) = admitted(found)? else {
            return Ok(false);
        };
        let object = found
            .objects
            .into_iter()
            .next()
            .flatten()
            .ok_or_else(|| failed("an object is not there"))?;
        let text = |text: &str| {
            let mut out = Vec::new();
            write::str(&mut out, text);
            out
        };
        let is_right = object
            .properties
            .iter()
            .zip(values(number))
            .all(|((_, value), of)| *value == text(&of));
        if is_right && object.properties.len() == PROPERTIES.len() {
            Ok(true)
        } else {
            Err(failed("wrong values"))
        }
    }

    async fn query(&self, random: u64) -> io::Result<bool> {
        let group = random % (self.ids.len() as u64 / GROUP);
        let mut clauses = Vec::new();
        write::array_len(&mut clauses, 1);
        write::map_len(&mut clauses, 2);
        for text in ["property", "name", "eq", &name(group)] {
            write::str(&mut clauses, text);
        }
        let found = self
            .client
            .objects_query(map(), &clauses, PropertyDisclosure::default(), None, None)
            .await;
        let Some(found) = admitted(found)? else {
            return Ok(false);
        };
        check_group(found.objects.len())
    }

    /// Writes objects into the store, as large as one that the engine sealed. No request reads
    /// them.
    pub(super) async fn fill(&self, rows: u64) -> io::Result<()> {
        let options = PostgresOptions {
            password: Some(self.password.clone()),
            ..PostgresOptions::new(self.database.socket_url())
        };
        let store = PostgresStore::connect(options).await.map_err(failed)?;
        let view = MapView {
            map: MAP,
            generation: u64::MAX,
        };
        let page = store
            .list_objects(view, &Filter::default(), None, 1)
            .await
            .map_err(failed)?;
        let model = page
            .found
            .into_iter()
            .next()
            .ok_or_else(|| failed("no object is there"))?;
        let model = ObjectRow {
            subject: None,
            ..model
        };
        let (store, model, next) = (
            Arc::new(store),
            Arc::new(model),
            Arc::new(AtomicU64::new(1)),
        );
        let mut tasks = JoinSet::new();
        for _ in 0..FILL_TASKS {
            let (store, model, next) = (Arc::clone(&store), Arc::clone(&model), Arc::clone(&next));
            tasks.spawn(async move {
                loop {
                    let first = next.fetch_add(PAGE, Ordering::Relaxed);
                    if first > rows {
                        return Ok(());
                    }
                    let numbers = first..(rows + 1).min(first + PAGE);
                    let page: Vec<_> = numbers
                        .map(|number| (MAP, filler(&model, number)))
                        .collect();
                    store.put_objects(&page).await.map_err(failed)?;
                }
            });
        }
        tasks.join_all().await.into_iter().collect()
    }

    /// Gives the database the statistics and the clean files that it has after some time.
    pub(super) fn settle(&self) -> io::Result<()> {
        for sql in ["VACUUM ANALYZE", "CHECKPOINT"] {
            self.database.sql(sql).map_err(failed)?;
        }
        Ok(())
    }
}

/// Returns an object with its own id and terms, and the content of `model`. Ids ascend with time,
/// as those of the engine.
fn filler(model: &ObjectRow, number: u64) -> ObjectRow {
    let id = u128::from(number) << 80 | spread(number) >> 48;
    let with = |terms: &[Term], hash: u128| {
        terms
            .iter()
            .map(|term| Term {
                hash: hash.to_be_bytes(),
                ..*term
            })
            .collect()
    };
    ObjectRow {
        id: ObjectId(id.to_be_bytes()),
        unique: with(&model.unique, !spread(number)),
        terms: with(&model.terms, !spread(number / GROUP)),
        ..model.clone()
    }
}

impl Target for Place {
    async fn call(&self, operation: Operation, random: u64) -> io::Result<bool> {
        match operation {
            Operation::Get => self.get(random).await,
            Operation::Query => self.query(random).await,
            Operation::Add(batch) => Ok(self.add(batch).await?.is_some()),
        }
    }
}

/// Checks how many objects a query found.
pub(super) fn check_group(found: usize) -> io::Result<bool> {
    if found as u64 == GROUP {
        Ok(true)
    } else {
        Err(failed(format!("a query found {found} objects")))
    }
}

fn map() -> TokenMap<'static> {
    TokenMap::new(APP, COLLECTION)
}

/// Returns the response, or `None` if the request was rejected because of overload.
fn admitted<T>(result: Result<T, Error>) -> io::Result<Option<T>> {
    match result {
        Ok(result) => Ok(Some(result)),
        Err(Error::Rpc(error)) if error.code == ErrorCode::Overloaded => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Creates the collection and the client's role.
async fn furnish(config: &Config) -> io::Result<()> {
    let (control, stores) = open_control(config).await.map_err(failed)?;
    let app = AppId::new(APP).map_err(failed)?;
    control.create(&app, &Suite::ALL).await.map_err(failed)?;
    let name = CollectionName::new(COLLECTION).map_err(failed)?;
    control
        .create_objects(&app, &name, schema()?)
        .await
        .map_err(failed)?;
    let grant = "objects.add,objects.get,objects.query apps=* properties=*";
    let grant = Grant::from_text(grant).map_err(failed)?;
    let role = Role::new("objects", vec![grant]).map_err(failed)?;
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

fn schema() -> io::Result<Schema> {
    let mut specs = Vec::new();
    for (at, name) in PROPERTIES.into_iter().enumerate() {
        specs.push(PropertySpec {
            name: PropertyName::new(name).map_err(failed)?,
            property_type: if at == 0 {
                PropertyType::Email
            } else {
                PropertyType::String
            },
            nullable: false,
            unique: at == 0,
            index: at == 1,
            bits: None,
            prefixes: Vec::new(),
            accept_leak: false,
            encrypted: true,
            description: String::new(),
        });
    }
    Schema::new(Suite::Xaes, &specs).map_err(failed)
}
