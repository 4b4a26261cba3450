//! Records of roles and bindings.

use std::fmt::Display;

use sealwire_access::{
    Binding, Grant, Operations, Principal, Role, RoleName, principal_key, role_key,
};

use crate::seed::words as list;
use crate::{Input, Seed};

/// Parses a record. The record's key precedes it, up to a newline.
pub(crate) fn run(input: &[u8]) {
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
        Err(error) => said(&error),
    }
    match Binding::from_record(key, record) {
        Ok(binding) => {
            assert_eq!(principal_key(&binding.principal), key);
            assert_eq!(Binding::from_record(key, &binding.to_record()), Ok(binding));
        }
        Err(error) => said(&error),
    }
}

fn said(error: &impl Display) {
    assert!(!error.to_string().is_empty());
}

pub(crate) fn seeds() -> Vec<Seed> {
    let role = |name: &str, grants: &[&str]| {
        let grants = grants
            .iter()
            .map(|grant| Grant::from_text(grant).expect("a grant"))
            .collect();
        let role = Role::new(name, grants).expect("a role");
        (
            format!("role-{name}"),
            role_key(role.name()),
            role.to_record(),
        )
    };
    let binding = |principal: &str, name: &str| {
        let principal = Principal::from_text(principal).expect("a principal");
        let roles = ["administrator", "support"]
            .map(|role| RoleName::new(role).expect("a name"))
            .to_vec();
        let key = principal_key(&principal);
        (
            format!("binding-{name}"),
            key,
            Binding { principal, roles }.to_record(),
        )
    };
    let all = [
        role(
            "support",
            &[
                "decrypt apps=shop mask=partial(last=4) hourly=1000",
                "encrypt apps=*",
            ],
        ),
        role(
            "app.one",
            &["encrypt,decrypt,tokenize apps=shop,web collections=people,cards reason"],
        ),
        role("nothing", &[]),
        role("operator", &["apps.*,collections.* apps=*"]),
        binding("relay.example.org", "dns"),
        binding("spiffe://example.org/relay", "spiffe"),
        binding("cn:relay", "common-name"),
    ];
    all.into_iter()
        .map(|(name, key, record)| Seed::new(name, format!("{key}\n").as_bytes(), record))
        .collect()
}

pub(crate) fn words() -> Vec<Vec<u8>> {
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
