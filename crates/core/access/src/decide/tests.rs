//! Decisions in tables, and compared with a simple model.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::role::{ADMINISTRATOR, Names};

fn names(names: &[&str]) -> Names {
    Names::of(names.iter().copied()).unwrap()
}

fn grant(operations: &[&str], apps: &[&str], collections: &[&str], reason: bool) -> Grant {
    let set = operations
        .iter()
        .map(|text| Operations::from_text(text).unwrap());
    let operations = set.fold(Operations::NONE, Operations::and);
    Grant {
        apps: names(apps),
        collections: names(collections),
        reason,
        ..Grant::on_all(operations)
    }
}

fn role(name: &str, grants: Vec<Grant>) -> Arc<Role> {
    Arc::new(Role::new(name, grants).unwrap())
}

fn ask<'a>(
    operation: &str,
    app: Option<&'a str>,
    collection: Option<&'a str>,
) -> AuthorizationRequest<'a> {
    AuthorizationRequest::new(Operation::from_name(operation).unwrap(), app, collection)
}

#[test]
fn denials_name_the_missing_part() {
    let grants = Grants::of([
        role(
            "relay",
            vec![grant(
                &["encrypt", "tokenize"],
                &["shop"],
                &["people", "cards"],
                false,
            )],
        ),
        role(
            "support",
            vec![grant(
                &["decrypt", "detokenize"],
                &["shop"],
                &["people"],
                true,
            )],
        ),
        role(
            "lister",
            vec![grant(
                &["apps.*", "collections.list", "subjects.*"],
                &["*"],
                &["people"],
                false,
            )],
        ),
        role(
            "privacy",
            vec![grant(&["subjects.*"], &["shop"], &["*"], false)],
        ),
        role(
            "owner",
            vec![grant(
                &["apps.rotate", "collections.*"],
                &["shop"],
                &["*"],
                false,
            )],
        ),
        role("empty", vec![]),
    ]);
    use Missing::{App, Collection, Operation, Reason};
    let (shop, other) = (Some("shop"), Some("other"));
    for (operation, app, collection, reason, expected) in [
        ("encrypt", shop, None, None, Ok("relay")),
        ("encrypt", other, None, None, Err(App)),
        ("rewrap", shop, None, None, Err(Operation)),
        ("tokenize", shop, Some("people"), None, Ok("relay")),
        ("tokenize", shop, Some("files"), None, Err(Collection)),
        ("tokenize", other, Some("people"), None, Err(App)),
        ("decrypt", shop, None, None, Err(Reason)),
        ("decrypt", shop, None, Some("ticket 7"), Ok("support")),
        ("decrypt", other, None, Some("ticket 7"), Err(App)),
        (
            "detokenize",
            shop,
            Some("cards"),
            Some("ticket 7"),
            Err(Collection),
        ),
        ("detokenize", shop, Some("people"), None, Err(Reason)),
        ("tokens.get", shop, Some("people"), None, Err(Operation)),
        // The operation applies to the whole engine: a grant on one app is not enough.
        ("apps.list", None, None, None, Ok("lister")),
        ("instances.list", None, None, None, Err(Operation)),
        // The operation applies to all collections of an app: a grant on some collections is not
        // enough.
        ("collections.list", shop, None, None, Ok("owner")),
        ("collections.list", other, None, None, Err(Collection)),
        ("subjects.export", shop, None, None, Ok("privacy")),
        ("subjects.export", other, None, None, Err(Collection)),
        ("collections.create", shop, Some("any"), None, Ok("owner")),
        ("collections.create", other, Some("any"), None, Err(App)),
        ("apps.rotate", other, None, None, Ok("lister")),
    ] {
        let ask = ask(operation, app, collection).because(reason);
        let case = format!("{operation} {app:?} {collection:?} {reason:?}");
        assert_eq!(
            grants
                .find_grant(&ask)
                .map(|permitted| permitted.role.as_str()),
            expected,
            "{case}"
        );
        let permit = grants.decide(ask);
        assert_eq!(permit.is_ok(), expected.is_ok(), "{case}");
        if let Ok(permit) = permit {
            assert_eq!(
                (permit.operation().name(), permit.app()),
                (operation, app),
                "{case}"
            );
        }
    }
    assert_eq!(
        Grants::default().find_grant(&ask("encrypt", shop, None)),
        Err(Missing::Role)
    );
}

#[test]
fn an_administrator_reads_no_value() {
    let grants = Grants::of([Arc::new(Role::administrator())]);
    for operation in Operation::ALL {
        let permitted = grants
            .decide(AuthorizationRequest::new(
                operation,
                Some("shop"),
                Some("people"),
            ))
            .is_ok();
        assert_eq!(
            permitted,
            Operations::CONTROL.contains(operation),
            "{operation}"
        );
    }
    assert_eq!(
        grants
            .permitted(&ask("apps.create", Some("new"), None))
            .unwrap()
            .role
            .as_str(),
        ADMINISTRATOR
    );
}

#[test]
fn the_refusal_names_what_was_asked_for_and_nothing_else_that_is_there() {
    let secret = role(
        "hidden-role",
        vec![grant(
            &["encrypt", "tokenize"],
            &["hidden-app"],
            &["hidden"],
            false,
        )],
    );
    let widely = role(
        "wide",
        vec![grant(
            &["tokenize", "collections.list"],
            &["*"],
            &["hidden"],
            false,
        )],
    );
    let reasoned = role("why", vec![grant(&["decrypt"], &["*"], &["*"], true)]);
    let grants = Grants::of([secret, widely, reasoned]);
    let shop = Some("shop");
    for (operation, app, collection, text) in [
        (
            "encrypt",
            shop,
            None,
            "no role of this principal grants encrypt on app shop; an administrator can grant a role that permits it with `sealwire principals grant`",
        ),
        (
            "rewrap",
            shop,
            None,
            "no role of this principal grants rewrap; an administrator can grant a role that permits it with `sealwire principals grant`",
        ),
        (
            "tokenize",
            shop,
            Some("people"),
            "no role of this principal grants tokenize on collection people of app shop; an administrator can grant a role that permits it with `sealwire principals grant`",
        ),
        (
            "collections.list",
            shop,
            None,
            "no role of this principal grants collections.list on app shop with all collections; an administrator can grant a role that permits it with `sealwire principals grant`",
        ),
        (
            "decrypt",
            shop,
            None,
            "decrypt on app shop needs a reason; send it in the parameter reason",
        ),
    ] {
        let denied = grants.decide(ask(operation, app, collection)).unwrap_err();
        assert_eq!(denied.to_string(), text);
        assert!(!denied.to_string().contains("hidden"));
    }
    let nobody = Grants::default()
        .decide(ask("encrypt", shop, None))
        .unwrap_err();
    assert_eq!(
        nobody.to_string(),
        "this principal has no role, so encrypt on app shop is denied; an administrator can grant a role that permits it with `sealwire principals grant`"
    );
}

#[test]
fn unmasked_grant_goes_before_the_first_masked_one() {
    let masked = |collections: &[&str], mask: &str| Grant {
        mask: Some(MaskText::new(mask).unwrap()),
        ..grant(&["decrypt", "detokenize"], &["shop"], collections, false)
    };
    let grants = Grants::of([
        role(
            "a",
            vec![
                masked(&["*"], "partial(last=4)"),
                masked(&["people"], "redact"),
            ],
        ),
        role(
            "b",
            vec![
                masked(&["*"], "hash"),
                grant(&["detokenize"], &["shop"], &["people"], true),
            ],
        ),
    ]);
    let shop = Some("shop");
    for (operation, collection, reason, mask) in [
        ("decrypt", None, None, Some("partial(last=4)")),
        ("decrypt", None, Some("ticket 7"), Some("partial(last=4)")),
        (
            "detokenize",
            Some("cards"),
            Some("ticket 7"),
            Some("partial(last=4)"),
        ),
        ("detokenize", Some("people"), None, Some("partial(last=4)")),
        ("detokenize", Some("people"), Some("ticket 7"), None),
    ] {
        let ask = ask(operation, shop, collection).because(reason);
        let seen = |sight: ValueVisibility<'_>| match sight {
            ValueVisibility::Clear => None,
            ValueVisibility::Masked(mask) => Some(mask.to_string()),
        };
        assert_eq!(
            seen(grants.decide(ask).unwrap().visibility()).as_deref(),
            mask,
            "{operation} {collection:?} {reason:?}"
        );
        for mode in [AccessMode::Enforce, AccessMode::Observe] {
            assert_eq!(
                seen(mode.decide(Some(&grants), ask).unwrap().permit.visibility()).as_deref(),
                mask,
                "{mode:?}"
            );
        }
        assert_eq!(
            seen(
                AccessMode::Off
                    .decide(Some(&grants), ask)
                    .unwrap()
                    .permit
                    .visibility()
            ),
            None
        );
    }
}

#[test]
fn a_mode_decides_what_becomes_of_it() {
    let grants = Grants::of([role(
        "relay",
        vec![grant(&["encrypt"], &["shop"], &["*"], false)],
    )]);
    let may = || ask("encrypt", Some("shop"), None);
    let may_not = || ask("decrypt", Some("shop"), None);
    for (mode, grants, ask, passes, observed) in [
        (AccessMode::Enforce, Some(&grants), may(), true, None),
        (AccessMode::Enforce, Some(&grants), may_not(), false, None),
        (AccessMode::Enforce, None, may(), false, None),
        (AccessMode::Observe, Some(&grants), may(), true, None),
        (
            AccessMode::Observe,
            Some(&grants),
            may_not(),
            true,
            Some(Missing::Operation),
        ),
        (AccessMode::Observe, None, may(), true, Some(Missing::Role)),
        (AccessMode::Off, Some(&grants), may_not(), true, None),
        (AccessMode::Off, None, may(), true, None),
    ] {
        let case = format!("{mode:?} {ask:?}");
        let decision = mode.decide(grants, ask);
        assert_eq!(decision.is_ok(), passes, "{case}");
        let seen = decision
            .ok()
            .and_then(|decision| decision.observed)
            .map(|denied| denied.missing);
        assert_eq!(seen, observed, "{case}");
        let gives_values = ask == may_not();
        let passes = mode == AccessMode::Off || (mode == AccessMode::Observe && !gives_values);
        assert_eq!(mode.unknown(ask).is_some(), passes, "{case}");
    }
}

#[test]
fn observe_mode_removes_no_mask() {
    let masked = |operation: &str, app: &str, mask: &str| Grant {
        mask: Some(MaskText::new(mask).unwrap()),
        ..grant(&[operation], &[app], &["*"], true)
    };
    let last = "partial(last=4)";
    let one = Grants::of([role(
        "support",
        vec![
            masked("decrypt", "shop", last),
            masked("detokenize", "shop", last),
        ],
    )]);
    let several = Grants::of([
        role("a", vec![masked("decrypt", "shop", last)]),
        role("b", vec![masked("decrypt", "shop", "hash")]),
    ]);
    let none = Grants::of([role(
        "relay",
        vec![grant(&["encrypt"], &["shop"], &["*"], false)],
    )]);
    let (shop, other) = (Some("shop"), Some("other"));
    for (grants, operation, app, reason, mask, observed) in [
        // The request is granted when it gives the required reason.
        (
            Some(&one),
            "decrypt",
            shop,
            Some("ticket 7"),
            Some(last),
            false,
        ),
        (Some(&one), "decrypt", shop, None, Some(last), true),
        (
            Some(&one),
            "decrypt",
            other,
            Some("ticket 7"),
            Some(last),
            true,
        ),
        (Some(&several), "decrypt", shop, None, Some("redact"), true),
        (
            Some(&several),
            "detokenize",
            shop,
            Some("ticket 7"),
            Some("redact"),
            true,
        ),
        // A principal without a mask passes as if there were no roles.
        (Some(&none), "decrypt", shop, None, None, true),
        (None, "decrypt", shop, None, None, true),
    ] {
        let decision = AccessMode::Observe
            .decide(grants, ask(operation, app, Some("people")).because(reason))
            .unwrap();
        let seen = match decision.permit.visibility() {
            ValueVisibility::Clear => None,
            ValueVisibility::Masked(mask) => Some(mask.as_str()),
        };
        assert_eq!(
            (seen, decision.observed.is_some()),
            (mask, observed),
            "{operation} {app:?} {reason:?}"
        );
    }
}

/// What a decision lets a client see.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Denied,
    /// The request passes, and values are shown in the clear if the response has any.
    Clear,
    /// The request passes, and values are shown through the mask of the principal.
    Masked,
}

fn seen(permit: Option<&Permit<'_>>) -> Seen {
    let Some(permit) = permit else {
        return Seen::Denied;
    };
    let visibility = match permit.operation().reads_properties() {
        true => permit
            .properties()
            .read("card")
            .expect("observing covers every property"),
        false => permit.visibility(),
    };
    match visibility {
        ValueVisibility::Clear => Seen::Clear,
        ValueVisibility::Masked(mask) => {
            assert_eq!(mask.as_str(), "partial(last=4)");
            Seen::Masked
        }
    }
}

#[test]
fn operations_in_all_modes_show_no_masked_value() {
    let of = |grants: &[&str]| {
        let grants: Vec<Grant> = grants
            .iter()
            .map(|text| Grant::from_text(text).unwrap())
            .collect();
        Grants::of([role("r", grants)])
    };
    // Grants are on another app, so that no grant covers the request.
    let clear = || of(&["encrypt,decrypt,detokenize,tokens.list,subjects.export apps=other"]);
    let masked = || {
        of(&[
            "decrypt apps=other mask=partial(last=4)",
            "encrypt apps=other",
        ])
    };
    let mask_of_property = || of(&["objects.get apps=other properties=card mask=partial(last=4)"]);
    let ended = || of(&["decrypt apps=shop mask=partial(last=4) until=2020-01-01T00:00:00Z"]);
    let missing = || Grants::default().and_unreadable_roles();
    let principals = [
        ("no role", Some(None)),
        ("a role without a mask", Some(Some(clear()))),
        ("a role with a mask", Some(Some(masked()))),
        (
            "a role with a mask of a property",
            Some(Some(mask_of_property())),
        ),
        ("a role with a mask, ended", Some(Some(ended()))),
        ("an unreadable role", Some(Some(missing()))),
        (
            "a role without a mask, and an unreadable one",
            Some(Some(clear().and_unreadable_roles())),
        ),
        (
            "a role with a mask, and an unreadable one",
            Some(Some(masked().and_unreadable_roles())),
        ),
        ("roles that cannot be loaded", None),
    ];
    let maskable = [
        "decrypt",
        "detokenize",
        "objects.get",
        "objects.query",
        "objects.list",
    ];
    let unmaskable = ["subjects.export", "tokens.list"];
    let of_readers = [
        "rewrap",
        "apps.import",
        "apps.disable",
        "apps.enable",
        "apps.delete",
        "apps.restore",
        "apps.set",
        "apps.export",
        "collections.migrate",
        "roles.set",
        "roles.delete",
        "principals.grant",
        "principals.revoke",
        "root.init",
        "kek.add",
    ];

    for operation in Operation::ALL {
        let name = operation.name();
        let ask =
            AuthorizationRequest::new(operation, Some("shop"), Some("people")).at(1_800_000_000);
        for mode in [AccessMode::Off, AccessMode::Observe, AccessMode::Enforce] {
            for (principal, grants) in &principals {
                let case = format!("{name}, {}, {principal}", mode.name());
                let has_mask = principal.contains("with a mask");
                let is_unknown = principal.contains("unreadable") || grants.is_none();
                let expected = match mode {
                    AccessMode::Off => Seen::Clear,
                    AccessMode::Enforce => Seen::Denied,
                    AccessMode::Observe if maskable.contains(&name) && is_unknown => Seen::Denied,
                    AccessMode::Observe if maskable.contains(&name) && has_mask => Seen::Masked,
                    AccessMode::Observe
                        if unmaskable.contains(&name) && (is_unknown || has_mask) =>
                    {
                        Seen::Denied
                    }
                    AccessMode::Observe
                        if of_readers.contains(&name) && (is_unknown || has_mask) =>
                    {
                        Seen::Denied
                    }
                    AccessMode::Observe => Seen::Clear,
                };
                let permit = match grants {
                    None => mode.unknown(ask),
                    Some(grants) => match mode.decide(grants.as_ref(), ask) {
                        Ok(Decision { permit, observed }) => {
                            assert_eq!(observed.is_some(), mode == AccessMode::Observe, "{case}");
                            Some(permit)
                        }
                        Err(denied) => {
                            let is_named = denied.to_string().contains("access.mode \"observe\"");
                            assert_eq!(is_named, mode == AccessMode::Observe, "{case}: {denied}");
                            None
                        }
                    },
                };
                // A permit for an operation without values carries the mask along.
                let found = seen(permit.as_ref());
                let has_values = maskable.contains(&name) || unmaskable.contains(&name);
                let found = if !has_values && found == Seen::Masked {
                    Seen::Clear
                } else {
                    found
                };
                assert_eq!(found, expected, "{case}");
            }
        }
    }
}

#[test]
fn observing_keeps_what_roles_grant_beside_an_unreadable_one() {
    let grants = parsed(&[
        "decrypt apps=shop",
        "detokenize apps=shop mask=hash hourly=10",
        "objects.get apps=shop properties=name",
        "subjects.export apps=shop",
    ])
    .and_unreadable_roles();
    for mode in [AccessMode::Observe, AccessMode::Enforce] {
        let permit =
            |operation| mode.decide(Some(&grants), ask(operation, Some("shop"), Some("people")));
        assert_eq!(
            permit("decrypt").unwrap().permit.visibility(),
            ValueVisibility::Clear
        );
        let detokenize = permit("detokenize").unwrap().permit;
        let ValueVisibility::Masked(mask) = detokenize.visibility() else {
            panic!("{mode:?}")
        };
        assert_eq!(mask.as_str(), "hash");
        assert!(permit("subjects.export").is_ok() && permit("tokens.list").is_err());
        let get = permit("objects.get").unwrap().permit;
        assert_eq!(get.properties().read("name"), Some(ValueVisibility::Clear));
        assert_eq!(
            get.properties().read("card"),
            None,
            "another property could be masked by the unreadable role"
        );
    }
}

#[test]
fn observing_lifts_no_hourly_limit_of_a_mask() {
    let grants = parsed(&[
        "decrypt apps=shop mask=hash hourly=10 reason",
        "detokenize apps=other mask=hash hourly=20",
    ]);
    for operation in ["decrypt", "detokenize", "objects.get"] {
        let decision = AccessMode::Observe
            .decide(Some(&grants), ask(operation, Some("shop"), Some("people")))
            .unwrap();
        assert_eq!(
            (decision.permit.hourly(), decision.observed.is_some()),
            (Some(10), true),
            "{operation}"
        );
    }
}

fn parsed(grants: &[&str]) -> Grants {
    let grants = grants
        .iter()
        .map(|text| Grant::from_text(text).unwrap())
        .collect();
    Grants::of([role("reader", grants)])
}

#[test]
fn properties_are_covered_separately() {
    let grants = parsed(&[
        "objects.get apps=shop collections=people properties=name",
        "objects.get apps=shop collections=people properties=card,name mask=partial(last=4)",
        "objects.get apps=shop collections=people properties=phone reason",
        "objects.get apps=shop collections=people properties=iban until=2027-01-31T00:00:00Z",
        "objects.get apps=other collections=people properties=*",
        "objects.query apps=shop collections=people properties=email",
        "objects.update apps=shop collections=people properties=phone hourly=10",
    ]);
    let end = 1_801_353_600;
    let permit = |operation, reason, at| {
        grants.decide(
            ask(operation, Some("shop"), Some("people"))
                .because(reason)
                .at(at),
        )
    };
    let get = permit("objects.get", None, end - 1).unwrap();
    let shown = |permit: &Permit<'_>, property| {
        permit.properties().read(property).map(|shown| match shown {
            ValueVisibility::Clear => "clear".to_owned(),
            ValueVisibility::Masked(mask) => mask.as_str().to_owned(),
        })
    };
    for (property, expected) in [
        ("name", Some("clear")),
        ("card", Some("partial(last=4)")),
        ("phone", None),
        ("iban", Some("clear")),
        ("email", None),
    ] {
        assert_eq!(shown(&get, property).as_deref(), expected, "{property}");
        assert!(get.properties().uses(property) == expected.is_some());
    }
    let later = permit("objects.get", Some("ticket 7"), end).unwrap();
    assert_eq!(
        (shown(&later, "phone").as_deref(), shown(&later, "iban")),
        (Some("clear"), None)
    );
    // A query uses its own grants and reads by those of `objects.get`.
    let query = permit("objects.query", None, end).unwrap();
    assert!(query.properties().uses("email") && !query.properties().uses("name"));
    assert_eq!(
        (shown(&query, "email"), shown(&query, "name").as_deref()),
        (None, Some("clear"))
    );
    // A write reads nothing. The smallest limit applies.
    let update = permit("objects.update", None, end).unwrap();
    assert!(update.properties().uses("phone") && !update.properties().uses("name"));
    assert_eq!((shown(&update, "phone"), update.hourly()), (None, Some(10)));
    let denied = get.property_denied(Operation::ObjectsGet, "email");
    assert_eq!(
        (denied.missing, denied.to_string()),
        (
            Missing::Property,
            "no role of this principal grants objects.get for property email on collection people of app shop; an administrator can grant a role that permits it with `sealwire principals grant`".into()
        )
    );
}

#[test]
fn hourly_limits_of_reading_hold_for_every_method_that_reads() {
    let grants = parsed(&[
        "objects.get apps=shop collections=people properties=* hourly=10",
        "objects.query apps=shop collections=people properties=email",
        "objects.list,objects.delete apps=shop collections=people",
        "objects.update apps=shop collections=people properties=* hourly=20",
        "objects.get apps=shop collections=other properties=* hourly=5",
    ]);
    let cases = [
        ("objects.get", Some(10)),
        ("objects.query", Some(10)),
        ("objects.list", Some(10)),
        ("objects.update", Some(20)),
        ("objects.delete", None),
    ];
    for (operation, expected) in cases {
        let permit = grants
            .decide(ask(operation, Some("shop"), Some("people")))
            .unwrap();
        assert_eq!(permit.hourly(), expected, "{operation}");
    }
}

#[test]
fn a_grant_permits_nothing_from_its_end_on() {
    let grants = parsed(&[
        "encrypt apps=shop until=2027-01-31T00:00:00Z",
        "decrypt apps=shop until=2027-01-31T00:00:00Z reason",
    ]);
    let encrypt = ask("encrypt", Some("shop"), None);
    for (asked, expected) in [
        (encrypt.at(1_801_353_599), Ok(())),
        (encrypt.at(1_801_353_600), Err(Missing::Time)),
        (encrypt, Err(Missing::Time)),
        (
            ask("decrypt", Some("shop"), None).at(1),
            Err(Missing::Reason),
        ),
        (
            ask("decrypt", Some("shop"), None)
                .because(Some("why"))
                .at(1),
            Ok(()),
        ),
    ] {
        assert_eq!(
            grants
                .decide(asked)
                .map(drop)
                .map_err(|denied| denied.missing),
            expected,
            "{asked:?}"
        );
    }
}

#[test]
fn without_enforcement_all_properties_are_covered() {
    let masked = parsed(&["objects.get apps=shop properties=card mask=redact"]);
    let get = ask("objects.get", Some("shop"), Some("people"));
    let check = |mode: AccessMode, grants, expected: Option<&str>| {
        let permit = mode.decide(grants, get).unwrap().permit;
        let mask = match permit.properties().read("name").unwrap() {
            ValueVisibility::Clear => None,
            ValueVisibility::Masked(mask) => Some(mask.as_str().to_owned()),
        };
        assert_eq!(mask.as_deref(), expected, "{mode:?}");
    };
    check(AccessMode::Off, Some(&masked), None);
    check(AccessMode::Observe, Some(&masked), Some("redact"));
    check(AccessMode::Observe, None, None);
    for operation in ["objects.get", "objects.query", "objects.list"] {
        assert!(
            AccessMode::Observe
                .unknown(ask(operation, Some("shop"), Some("people")))
                .is_none(),
            "{operation}"
        );
    }
}

const APPS: [&str; 3] = ["a", "b", "c"];

fn some_names() -> impl Strategy<Value = Names> {
    prop_oneof![
        Just(Names::All),
        subsequence(APPS.to_vec(), 1..=3).prop_map(|some| Names::of(some).unwrap())
    ]
}

fn some_grant() -> impl Strategy<Value = Grant> {
    let all = subsequence(Operation::ALL.to_vec(), 1..6);
    let of_values = subsequence(vec![Operation::Decrypt, Operation::Detokenize], 1..3);
    let operations = prop_oneof![all, of_values].prop_map(|some| some.into_iter().collect());
    let mask = prop::option::of(select(vec!["redact", "hash"]));
    (operations, some_names(), some_names(), any::<bool>(), mask).prop_map(
        |(operations, apps, collections, reason, mask): (Operations, _, _, _, _)| {
            let of_control = operations
                .iter()
                .any(|one| Operations::CONTROL.contains(one));
            let mask = mask.filter(|_| operations.without(Operations::MASKABLE).is_empty());
            let mask = mask.map(|mask| MaskText::new(mask).unwrap());
            Grant {
                apps,
                collections,
                reason: reason && !of_control,
                mask,
                ..Grant::on_all(operations)
            }
        },
    )
}

/// A simple model of authorization. Returns the masks of all grants that permit the request, in
/// order. A grant permits a request if it covers operation, app and collection, and the request
/// gives a required reason.
fn model<'r>(
    roles: &'r [Arc<Role>],
    operation: Operation,
    app: &str,
    collection: &str,
    reason: bool,
) -> Vec<&'r Option<MaskText>> {
    let reaches = |names: &Names, name: &str, all: bool| match names {
        Names::All => true,
        Names::Only(names) => !all && names.iter().any(|one| &**one == name),
    };
    let text = operation.name();
    let whole = ["apps.list", "apps.export", "instances.list"].contains(&text)
        || ["roles.", "principals.", "root.", "kek."]
            .iter()
            .any(|group| text.starts_with(group));
    let of_all = text == "collections.list"
        || ["keys.", "subjects."]
            .iter()
            .any(|group| text.starts_with(group));
    let with_collection = text.contains("token")
        || text.starts_with("objects.")
        || text.starts_with("collections.")
        || of_all;
    let grants = roles.iter().flat_map(|role| role.grants());
    let permits = |grant: &&Grant| {
        reaches(&grant.apps, app, whole)
            && (!with_collection || reaches(&grant.collections, collection, of_all))
            && (reason || !grant.reason)
    };
    let grants = grants
        .filter(|grant| grant.operations.contains(operation))
        .filter(permits);
    grants.map(|grant| &grant.mask).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_decision_is_what_the_model_says(
        of in vec(vec(some_grant(), 0..4), 0..4),
        app in select(APPS.to_vec()),
        collection in select(APPS.to_vec()),
        reason in any::<bool>(),
    ) {
        let roles: Vec<_> = of.into_iter().enumerate().map(|(n, grants)| role(&format!("r{n}"), grants)).collect();
        let grants = Grants::of(roles.iter().cloned());
        for operation in Operation::ALL {
            let ask = AuthorizationRequest::new(operation, Some(app), Some(collection)).because(reason.then_some("why"));
            let decided = grants.decide(ask);
            let masks = model(&roles, operation, app, collection, reason);
            prop_assert_eq!(decided.is_ok(), !masks.is_empty(), "{}", operation);
            if let Ok(permit) = &decided {
                let clear = masks.iter().any(|mask| mask.is_none());
                let is_hidden = !clear && !operation.uses_properties();
                let expected = masks[0].as_ref().filter(|_| is_hidden).map_or(ValueVisibility::Clear, ValueVisibility::Masked);
                prop_assert_eq!(permit.visibility(), expected);
            }
            // An additional grant never takes a permission away.
            let more = Grants::of(roles.iter().cloned().chain([Arc::new(Role::administrator())]));
            prop_assert!(decided.is_err() || more.decide(ask).is_ok());
        }
    }
}
