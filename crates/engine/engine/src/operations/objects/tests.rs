//! Payloads of any form against the parsers of objects, changes and clauses.

use std::sync::Arc;

use crate::jobs::error::RequestFailure;
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use sealwire_access::{AuthorizationRequest, Grant, Grants, Operation, PropertyAccess, Role};
use sealwire_crypto::{AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Suite};
use sealwire_msgpack::write;
use sealwire_records::objects::{
    ObjectKeys, PropertyName, PropertySpec, PropertyType, Schema, SchemaChange, Values,
};
use sealwire_records::token::{TokenKeyVersion, TokenKeys, TokenSecret};
use sealwire_store::{MapId, ObjectId, ObjectRow};
use sealwire_wire::shared::Own;
use sealwire_wire::{ErrorCode, ObjectsOperation, PropertyDisclosure};
use zeroize::Zeroizing;

use super::payload::{ERRORS_MAX, ValueReader, parse_change, split_items};
use super::query::Query;
use super::read::{ReadSpec, open_object};
use super::seal::{ObjectSealer, assign};
use super::write::object_work;
use crate::frame_text::Frame;
use crate::objects::ObjectCollection;
use crate::operation::{MessageSize, Operation as _};
use crate::subjects::ReadableRow;

fn collection() -> ObjectCollection {
    let app = AppId::new("shop").unwrap();
    let key = KeyVersion::new(
        1,
        KeyState::Active,
        KeyMaterial::generate(&app, Suite::Xaes).unwrap(),
    );
    let secret = TokenSecret::generate().unwrap();
    let token_keys = TokenKeys::new(
        1,
        vec![TokenKeyVersion {
            number: 1,
            state: KeyState::Active,
            secret,
        }],
    )
    .unwrap();
    let spec = |name: &str, property_type| PropertySpec {
        index: property_type != PropertyType::Json,
        ..PropertySpec::new(PropertyName::new(name).unwrap(), property_type)
    };
    let specs = [
        PropertySpec {
            prefixes: vec![1, 3],
            accept_leak: true,
            ..spec("name", PropertyType::Name)
        },
        spec("age", PropertyType::Integer),
        spec("notes", PropertyType::Json),
    ];
    ObjectCollection {
        keys: Arc::new(AppKeys::new(app, vec![key]).unwrap()),
        object_keys: Arc::new(ObjectKeys::new(1, &token_keys.object_index_secret())),
        token_keys: Arc::new(token_keys),
        map: MapId {
            app: 1,
            collection: 2,
        },
        schema: Arc::new(Schema::new(Suite::Xaes, &specs).unwrap()),
    }
}

/// Returns the access of a role with these grants to properties.
fn access(operation: Operation, grants: &[&str]) -> PropertyAccess {
    let grants = grants
        .iter()
        .map(|grant| Grant::from_text(grant).unwrap())
        .collect();
    let grants = Grants::of([Arc::new(Role::new("tests", grants).unwrap())]);
    let operation = AuthorizationRequest::new(operation, Some("shop"), Some("people"));
    grants.decide(operation).unwrap().properties().clone()
}

fn all(operation: Operation) -> PropertyAccess {
    access(
        operation,
        &["objects.add,objects.query apps=shop collections=people properties=*"],
    )
}

/// Returns a map of `count` names without a value.
fn map_of(count: u32, name: impl Fn(u32) -> String) -> Vec<u8> {
    let mut map = Vec::new();
    write::map_len(&mut map, count);
    for at in 0..count {
        write::str(&mut map, &name(at));
        write::nil(&mut map);
    }
    map
}

#[test]
fn errors_of_a_map_are_bounded() {
    let collection = collection();
    let all = all(Operation::ObjectsAdd);
    let age = access(
        Operation::ObjectsAdd,
        &["objects.add apps=shop collections=people properties=age"],
    );
    let cases = [
        (
            "unknown names",
            &all,
            map_of(100_000, |at| format!("p{at}")),
            ErrorCode::BadRequest,
        ),
        (
            "the empty name",
            &all,
            map_of(100_000, |_| String::new()),
            ErrorCode::BadRequest,
        ),
        (
            "names that are not granted",
            &age,
            map_of(100_000, |at| format!("p{at}")),
            ErrorCode::Forbidden,
        ),
        (
            "one name again and again",
            &age,
            map_of(100_000, |_| "age".to_owned()),
            ErrorCode::BadRequest,
        ),
    ];
    for (case, access, map, code) in cases {
        let errors = ValueReader {
            collection: &collection,
            access,
        }
        .read("$[0]", &map)
        .unwrap_err();
        assert_eq!(errors.len(), ERRORS_MAX, "{case}");
        assert!(errors.iter().all(|error| error.code == code), "{case}");
    }
}

#[test]
fn a_change_removes_values_of_dropped_properties() {
    let mut collection = collection();
    let next_number = collection.schema.next_number;
    let drop = SchemaChange {
        drop: vec![PropertyName::new("age").unwrap()],
        ..SchemaChange::default()
    };
    let dropped = collection.schema.property("age").unwrap().number;
    let kept = collection.schema.property("name").unwrap().number;
    let schema = collection.schema.change(&drop, 2).unwrap().schema;
    // A schema remembers a bounded number of dropped properties.
    for schema in [
        schema.clone(),
        Schema {
            dropped: Vec::new(),
            ..schema
        },
    ] {
        collection.schema = Arc::new(schema);
        let numbers = [kept, dropped, next_number];
        let mut values: Values = numbers
            .map(|number| (number, Zeroizing::new(vec![7])))
            .into_iter()
            .collect();
        assign(&collection, &mut values, Vec::new());
        assert_eq!(
            values.iter().map(|(number, _)| number).collect::<Vec<_>>(),
            [kept, next_number]
        );
    }
}

/// Returns a query for people of an age in `ages`.
fn ages(ages: &[u8]) -> Vec<u8> {
    let mut clauses = vec![0x91, 0x82];
    write::str(&mut clauses, "property");
    write::str(&mut clauses, "age");
    write::str(&mut clauses, "in");
    write::array_len(&mut clauses, ages.len() as u32);
    clauses.extend_from_slice(ages);
    clauses
}

#[test]
fn an_object_that_expires_during_a_query_is_not_found() {
    let collection = collection();
    let denied = |_: &str| RequestFailure::Internal("denied");
    let query = Query::new(
        &collection,
        &ages(&[7]).into(),
        None,
        1,
        &all(Operation::ObjectsQuery),
        denied,
    )
    .unwrap();
    let row = |expires| ObjectRow {
        id: ObjectId([1; 16]),
        version: 1,
        created: 1,
        updated: 1,
        expires,
        archived: None,
        subject: None,
        key: [0; 5],
        tags: Vec::new(),
        unique: Vec::new(),
        terms: Vec::new(),
        sealed: Bytes::from_static(b"does not open"),
    };
    let readable = |expires| ReadableRow {
        row: row(expires),
        subject: None,
    };
    let mut reads = ReadSpec {
        properties: Vec::new(),
    };
    let mut found = |expires, query| {
        open_object(&collection, &readable(expires), &mut reads, query, 10).map(|one| one.is_some())
    };
    assert_eq!(found(Some(10), Some(&query)), Ok(false));
    assert_eq!(
        found(Some(10), None),
        Ok(true),
        "a list has the object without values"
    );
    assert!(found(Some(11), Some(&query)).is_err() && found(None, Some(&query)).is_err());
}

#[test]
fn a_query_is_charged_for_the_values_that_it_guesses() {
    let guesses: Vec<u8> = (0..64).collect();
    let frame = Bytes::from(ages(&guesses));
    let disclosure = PropertyDisclosure {
        properties: Some(vec![]),
        masked: false,
    };
    let operation = ObjectsOperation::Query {
        clauses: &frame,
        disclosure,
        after: None,
        limit: Some(1),
    };
    let size = MessageSize {
        bytes: frame.len(),
        leaves: 4 + 64,
    };
    assert!(operation.own(&Frame(&frame)).fields_max(size) >= 64);
}

/// Makes bytes that are often parts of payloads.
fn payloads() -> impl Strategy<Value = Vec<u8>> {
    const KEYS: [&str; 10] = [
        "id",
        "set",
        "if_version",
        "property",
        "eq",
        "in",
        "prefix",
        "name",
        "age",
        "notes",
    ];
    let text = |text: &str| {
        let mut out = Vec::new();
        write::str(&mut out, text);
        out
    };
    let part = prop_oneof![
        4 => proptest::sample::select(KEYS.to_vec()).prop_map(text),
        3 => (0x80u8..0x84).prop_map(|map| vec![map]),
        3 => (0x90u8..0x94).prop_map(|array| vec![array]),
        1 => any::<String>().prop_map(move |any| text(&any)),
        1 => any::<u8>().prop_map(|byte| vec![byte]),
        1 => Just(text("00000000-0000-0000-0000-000000000000")),
    ];
    vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop_oneof![payloads(), vec(any::<u8>(), 0..200)]) {
        let collection = collection();
        let add = all(Operation::ObjectsAdd);
        let query = all(Operation::ObjectsQuery);
        let _ = ValueReader { collection: &collection, access: &add }.read("$[0]", &bytes);
        let _ = parse_change("$[0]", &bytes);
        let bytes = Bytes::from(bytes);
        let _ = split_items(&bytes);
        let denied = |_: &str| RequestFailure::Internal("denied");
        let _ = Query::new(&collection, &bytes, None, 1, &query, denied);
    }
}

#[test]
fn index_terms_of_an_object_count_as_work() {
    // A name with two lengths of prefixes, and an age.
    let terms = ObjectSealer::new(Arc::new(collection()))
        .unwrap()
        .terms_max();
    assert_eq!(terms, 4);
    let mut object = Vec::new();
    write::map_len(&mut object, 1);
    write::str(&mut object, "name");
    write::str(&mut object, "Jane");
    // At most five terms of one property; two terms are a field.
    for (terms, fields) in [(0, 2), (4, 4), (5, 4), (320, 4)] {
        let work = object_work(&object, terms);
        assert_eq!(
            (work.fields, work.bytes),
            (fields, object.len() as u64),
            "{terms}"
        );
    }
    assert_eq!(object_work(&[0xc1], 320).fields, 1);
}
