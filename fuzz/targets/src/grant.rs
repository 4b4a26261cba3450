//! Grants, principals and masks of grants, in the form that an operator writes.

use sealwire_access::{Grant, MaskText, Operation, Principal, Role, RoleName};

use crate::input::text;
use crate::seed::{numbered, words as list};
use crate::{Input, Seed};

/// Parses a text as a grant, as a principal and as a mask.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let name = input.text_until(0);
    let text = text(input.0);
    match Grant::from_text(text) {
        Ok(grant) => {
            let printed = grant.to_string();
            assert_eq!(Grant::from_text(&printed).as_ref(), Ok(&grant), "{printed}");
            if let Ok(role) = Role::new(name, vec![grant]) {
                assert_eq!(RoleName::new(name).as_ref(), Ok(role.name()));
                let key = sealwire_access::role_key(role.name());
                assert_eq!(Role::from_record(&key, &role.to_record()), Ok(role));
            }
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(
                !shown.is_empty() && !shown.chars().any(char::is_control),
                "{shown:?}"
            );
        }
    }
    if let Ok(mask) = MaskText::new(text) {
        assert_eq!(MaskText::new(&mask.to_string()), Ok(mask));
    }
    if let Some(principal) = Principal::from_text(text) {
        assert_eq!(Principal::from_text(&principal.to_text()), Some(principal));
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let grants = [
        "encrypt,tokens.* apps=shop,web collections=people reason",
        "decrypt apps=shop mask=partial(last=4) hourly=1000",
        "* apps=*",
        "decrypt,detokenize  mask=fixed(\"a \\\" (b)\") apps=a.b-c_d\tcollections=*",
        "apps.*,roles.* apps=*",
        "encrypt hourly=0 apps=x apps=y",
        "relay.example.org",
        "spiffe://example.org/ns/shop/sa/relay",
        "cn:relay one",
    ];
    numbered("text", b"support\0", grants)
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let operations = Operation::ALL.map(Operation::name);
    let parts = [
        " apps=",
        " collections=",
        " mask=",
        " hourly=",
        " reason",
        "=*",
        "apps=*",
        ".*",
        "partial(last=4)",
        "fixed(\"x\")",
        "spiffe://",
        "cn:",
        "\\\"",
    ];
    list(operations).into_iter().chain(list(parts)).collect()
}
