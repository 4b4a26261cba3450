//! Compares `docs/openapi.json` and the table of statuses in `docs/http.md` with the code.

use std::collections::{BTreeMap, BTreeSet};

use http::Method as Verb;
use serde_json::Value;

use super::contract_page::Page;
use super::generator::{generate, methods, problems};
use crate::problem::HTTP_STATUSES;
use crate::route::{self, Route};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/openapi.json");

fn document() -> Value {
    serde_json::from_slice(super::DOCUMENT).unwrap()
}

/// Returns every operation of the document, with its verb and path.
fn operations(document: &Value) -> Vec<(Verb, &str, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (verb, operation) in item.as_object().unwrap() {
            let verb = Verb::from_bytes(verb.to_uppercase().as_bytes()).unwrap();
            found.push((verb, path.as_str(), operation));
        }
    }
    found
}

#[test]
fn openapi_document_is_the_generated_one() {
    let generated = generate();
    if std::env::var_os("SEALWIRE_BLESS").is_some() {
        std::fs::write(FILE, &generated).unwrap();
        return;
    }
    assert!(
        generated.as_bytes() == super::DOCUMENT,
        "docs/openapi.json is outdated; run SEALWIRE_BLESS=1 cargo test --package sealwire-http openapi_document"
    );
}

#[test]
fn openapi_response_is_the_document() {
    let response = super::response();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.body(), super::DOCUMENT);
}

#[test]
fn openapi_references_resolve() {
    fn check(document: &Value, value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| check(document, item, found)),
            Value::Object(members) => {
                if let Some(Value::String(reference)) = members.get("$ref") {
                    let target = document.pointer(reference.trim_start_matches('#'));
                    assert!(target.is_some(), "{reference}");
                    found.insert(reference.clone());
                }
                members
                    .values()
                    .for_each(|member| check(document, member, found));
            }
            _ => (),
        }
    }
    let document = document();
    let mut found = BTreeSet::new();
    check(&document, &document, &mut found);
    let kinds = document["components"].as_object().unwrap();
    for kind in ["schemas", "parameters", "headers", "responses"] {
        for name in kinds[kind].as_object().unwrap().keys() {
            let reference = format!("#/components/{kind}/{name}");
            assert!(found.contains(&reference), "nothing uses {reference}");
        }
    }
}

#[test]
fn openapi_operations_are_the_routes_of_the_listener() {
    let document = document();
    let mut expected: BTreeSet<(String, String)> = methods()
        .into_iter()
        .map(|(verb, path, _)| (verb.to_string(), path))
        .collect();
    assert!(expected.len() > 20);
    expected.insert(("GET".into(), super::PATH.into()));
    let operations = operations(&document);
    let found: BTreeSet<(String, String)> = operations
        .iter()
        .map(|(verb, path, _)| (verb.to_string(), (*path).to_owned()))
        .collect();
    assert_eq!(found, expected);

    let mut names = BTreeSet::new();
    for (verb, path, operation) in operations {
        let path = path.replace("{app}", "shop");
        let route = route::find(&verb, &path);
        let name = operation["operationId"].as_str().unwrap();
        assert!(names.insert(name), "{name}");
        let letters = name.replace(|character: char| !character.is_ascii_alphanumeric(), "");
        match route.unwrap() {
            Route::Data { method, app } => {
                assert_eq!(app, "shop");
                let words = method.name().replace(['.', '_'], "");
                assert_eq!(letters.to_lowercase(), words);
            }
            Route::Plain(method) => assert_eq!(name, method.name()),
            Route::Description => assert_eq!(name, "openapi"),
        }
    }
}

#[test]
fn openapi_statuses_are_those_of_problems() {
    let document = document();
    let problems = problems();
    for (verb, path, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            if status == "200" {
                continue;
            }
            let case = format!("{verb} {path} {status}");
            let codes = problems.get(&status.parse().unwrap()).expect(&case);
            let reference = response["$ref"].as_str().unwrap();
            let response = document.pointer(&reference[1..]).unwrap();
            let schema = &response["content"][crate::problem::PROBLEM]["schema"]["allOf"][1];
            let names: Vec<&str> = codes.iter().map(|code| code.name()).collect();
            assert_eq!(
                schema["properties"]["code"]["enum"],
                serde_json::json!(names),
                "{case}"
            );
            assert_eq!(
                schema["properties"]["status"]["const"].to_string(),
                *status,
                "{case}"
            );
        }
    }
}

#[test]
fn http_page_lists_the_statuses_of_all_codes() {
    let page = Page::new(include_str!("../../../../../docs/http.md"));
    let mut documented = BTreeMap::<u16, BTreeSet<String>>::new();
    for row in page.table("Errors", "code").unwrap() {
        for code in row[0].split(", ") {
            let words = row[1].split(|character: char| !character.is_ascii_digit());
            for status in words.filter(|word| word.len() == 3) {
                let codes = documented.entry(status.parse().unwrap()).or_default();
                codes.insert(code.trim_matches('`').into());
            }
        }
    }
    let expected: BTreeMap<u16, BTreeSet<String>> = problems()
        .into_iter()
        .map(|(status, codes)| (status, codes.iter().map(ToString::to_string).collect()))
        .collect();
    assert_eq!(documented, expected);
    assert!(
        HTTP_STATUSES
            .iter()
            .all(|status| documented.contains_key(&status.as_u16()))
    );
}
