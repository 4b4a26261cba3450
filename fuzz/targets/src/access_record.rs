//! Records of roles and bindings.

use std::fmt::Display;

use sealwire_access::{
    Binding, Grant, Operations, Principal, Role, RoleName, principal_key, role_key,
};

use crate::seed::words as list;
use crate::{Input, Seed};

/// Parses a record. The record's key precedes it, up to a newline.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let key = input.text_until(b'\n');
    let record = input.0;
    match Role::from_record(key, record) {
        Ok(role) => {
            assert_eq!(role_key(role.name()), key);
            let again = role.to_record();
            assert_eq!(Role::from_record(key, &again).as_ref(), Ok(&role));
            for grant in role.grants() {
                let printed = grant.to_string();
                // A record may contain a grant without an operation, but a text may not.
                if grant.operations != Operations::NONE {
                    assert_eq!(Grant::from_text(&printed).as_ref(), Ok(grant), "{printed}");
                }
            }
        }
        Err(error) => check_error_text(&error),
    }
    match Binding::from_record(key, record) {
        Ok(binding) => {
            assert_eq!(principal_key(&binding.principal), key);
            assert_eq!(Binding::from_record(key, &binding.to_record()), Ok(binding));
        }
        Err(error) => check_error_text(&error),
    }
}

fn check_error_text(error: &impl Display) {
    assert!(!error.to_string().is_empty());
}

fn role_seed(name: &str, grants: &[&str]) -> Seed {
    let grants = grants
        .iter()
        .map(|grant| Grant::from_text(grant).expect("a grant"))
        .collect();
    let role = Role::new(name, grants).expect("a role");
    let key = role_key(role.name());
    Seed::new(
        format!("role-{name}"),
        format!("{key}\n").as_bytes(),
        role.to_record(),
    )
}

fn binding_seed(principal: &str, name: &str) -> Seed {
    let principal = Principal::from_text(principal).expect("a principal");
    let roles = ["administrator", "support"]
        .map(|role| RoleName::new(role).expect("a name"))
        .to_vec();
    let key = principal_key(&principal);
    Seed::new(
        format!("binding-{name}"),
        format!("{key}\n").as_bytes(),
        Binding { principal, roles }.to_record(),
    )
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    vec![
        role_seed(
            "support",
            &[
                "decrypt apps=shop mask=partial(last=4) hourly=1000",
                "encrypt apps=*",
            ],
        ),
        role_seed(
            "app.one",
            &["encrypt,decrypt,tokenize apps=shop,web collections=people,cards reason"],
        ),
        role_seed("nothing", &[]),
        role_seed("operator", &["apps.*,collections.* apps=*"]),
        binding_seed("relay.example.org", "dns"),
        binding_seed("spiffe://example.org/relay", "spiffe"),
        binding_seed("cn:relay", "common-name"),
    ]
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "role/",
        "principal/dns/",
        "principal/cn/",
        "principal/spiffe/",
        "\"format\":1",
        "\"role\":",
        "\"grants\":[",
        "\"operations\":[\"",
        "\"apps\":[\"*\"]",
        "\"collections\":[\"*\"]",
        "\"reason\":true",
        "\"mask\":\"",
        "\"hourly\":",
        "\"principal\":\"",
        "\"roles\":[\"",
        "\"administrator\"",
        "\\u002a",
        "},{",
    ])
}
