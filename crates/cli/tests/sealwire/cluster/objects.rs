//! Tests of objects on several engines with one database: schemas that change under load, a paused
//! engine, kills, and rows that are sealed again.

mod churn;
mod compare;
mod kills;
mod model;
mod paused;
mod rewraps;
mod subjects;

use sealwire_client::{
    Client, CollectionTarget, DetailValue, Error, ErrorCode, Listing, Objects, Page,
    PropertyDisclosure, RpcError,
};
use std::time::Duration;

use sealwire_client::control::{
    AlterCollection, AppOperation, CollectionOperation, CreateCollection, PropertySpec,
};
use sealwire_payload::json;

use crate::cluster::engines::{APP, Cluster, EngineProcess, HANG_S};

/// Counts terms on which objects and tables of terms do not agree.
const AGREE: &str = include_str!("../../../../engine/store-postgres/src/objects/tests/agree.sql");
/// Objects per page when a test reads a whole collection.
const PAGE: u32 = 500;

/// Makes a client that tries once, so that a test sees the response of the engine.
fn client(cluster: &Cluster<'_>, engine: &EngineProcess) -> Client {
    cluster.client_with(&[engine], |config| {
        config.attempts_max = 1;
        config.deadline = Duration::from_secs(600);
    })
}

async fn create_app(operator: &Client) {
    operator
        .change_app(APP, AppOperation::create())
        .await
        .unwrap();
}

async fn create(operator: &Client, collection: &str, properties: Vec<PropertySpec<'_>>) -> u64 {
    let (suite, expires_s, retention_s) = (None, None, None);
    let operation = CollectionOperation::create(
        CreateCollection::of_objects(properties)
            .suite(suite)
            .expires_after(expires_s.map(Duration::from_secs))
            .retention(retention_s.map(Duration::from_secs)),
    );
    operator
        .change_collection(APP, collection, operation)
        .await
        .unwrap()
        .generation
}

async fn alter(
    operator: &Client,
    collection: &str,
    alter: AlterCollection<'_>,
) -> Result<u64, Error> {
    let operation = CollectionOperation::alter(alter);
    Ok(
        in_time(operator.change_collection(APP, collection, operation))
            .await?
            .generation,
    )
}

fn drop_property(name: &str) -> AlterCollection<'_> {
    AlterCollection::new().drop_properties([name])
}

fn add_property(spec: PropertySpec<'_>) -> AlterCollection<'_> {
    AlterCollection::new().add_properties([spec])
}

/// Panics if a request has no result after [`HANG_S`].
async fn in_time<T>(request: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(HANG_S), request)
        .await
        .expect("a request hangs")
}

fn doc(json: &str) -> Vec<u8> {
    json::to_msgpack(json.as_bytes(), sealwire_payload::WalkLimits::default()).unwrap()
}

/// Returns a value as JSON.
fn text(value: &[u8]) -> String {
    let mut out = Vec::new();
    json::from_msgpack(
        value,
        &mut out,
        false,
        sealwire_payload::WalkLimits::default(),
    )
    .unwrap();
    String::from_utf8(out).unwrap().trim_end().to_owned()
}

fn rpc_error(error: Error) -> RpcError {
    match error {
        Error::Rpc(error) => error,
        other => panic!("not a response: {other}"),
    }
}

/// Returns true for the response of an engine whose schema is too old.
fn is_fenced(error: &RpcError) -> bool {
    error.code == ErrorCode::Conflict && error.retry_after_ms.is_some()
}

/// Returns the paths of the parts of a request that an error is about.
fn paths(error: &RpcError) -> Vec<&str> {
    let errors = error.details.iter().find_map(|detail| match &detail.value {
        DetailValue::Errors(errors) => Some(errors),
        _ => None,
    });
    errors
        .into_iter()
        .flatten()
        .map(|error| error.path.as_str())
        .collect()
}

/// Returns the objects for which a clause holds.
async fn query(
    client: &Client,
    map: CollectionTarget<'_>,
    property: &str,
    value: &str,
) -> Result<Objects, Error> {
    let clauses = doc(&format!(r#"[{{"property": "{property}", "eq": {value}}}]"#));
    in_time(client.objects_query(
        map,
        &clauses,
        PropertyDisclosure::default(),
        Page::new().limit(PAGE),
    ))
    .await
}

/// Returns all objects of a collection.
async fn list(client: &Client, map: CollectionTarget<'_>) -> Vec<sealwire_client::Object> {
    let (mut objects, mut next) = (Vec::new(), None::<String>);
    loop {
        let listing = Listing::new().after(next.as_deref()).limit(PAGE);
        let page = in_time(client.objects_list(map, listing, PropertyDisclosure::default()))
            .await
            .unwrap();
        objects.extend(page.objects.into_iter().flatten());
        next = page.next;
        if next.is_none() {
            return objects;
        }
    }
}
