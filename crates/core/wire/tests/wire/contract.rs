//! Reads the tables of `proto/README.md` and compares them with the code.
//!
//! The page is for readers who do not know this crate. A row that is added, removed, renamed or
//! reordered on one side only fails here.

use sealwire_msgpack::{Token, TokenReader};

use sealwire_wire::ResultCodec as _;
use sealwire_wire::*;

const PAGE: &str = include_str!("../../../../../proto/README.md");

/// Returns the rows of the first table below the heading `section` whose first cell is `head`.
/// Cells have no backquotes.
fn table(section: &str, head: &str) -> Vec<Vec<String>> {
    let mut lines = PAGE.lines().skip_while(|line| {
        line.trim_start_matches('#').trim() != section || !line.starts_with('#')
    });
    lines
        .next()
        .unwrap_or_else(|| panic!("no section {section}"));
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with('#')).collect();
    let start = body
        .iter()
        .position(|line| line.starts_with(&format!("| {head} |")));
    body[start.unwrap_or_else(|| panic!("no table {head} in {section}")) + 2..]
        .iter()
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect()
        })
        .collect()
}

fn column(rows: &[Vec<String>], index: usize) -> Vec<&str> {
    rows.iter().map(|row| row[index].as_str()).collect()
}

#[test]
fn methods_and_notifications() {
    let names = |methods: Methods| methods.iter().map(Method::name).collect::<Vec<_>>();
    assert_eq!(column(&table("Methods", "method"), 0), names(Methods::DATA));
    assert_eq!(
        column(&table("Control", "control method"), 0),
        names(Methods::CONTROL)
    );
    assert!(
        names(Methods::TOKENS)
            .iter()
            .all(|name| name.contains("token"))
    );
    let both = [Method::AppsPublicKeys, Method::Info, Method::Health];
    assert!(Method::ALL.into_iter().all(|method| {
        Methods::DATA.contains(method) != Methods::CONTROL.contains(method)
            || both.contains(&method)
    }));
    assert_eq!(
        column(&table("Notifications", "notification"), 0),
        Notification::ALL.map(Notification::name)
    );
    assert!(PAGE.contains(&format!("protocol version {PROTOCOL},")));
}

#[test]
fn params() {
    let options = table("Request options", "option");
    for method in Method::ALL {
        let section = format!("{method} params");
        let mut expect: Vec<[&str; 4]> = method
            .params()
            .iter()
            .map(|param| {
                [
                    param.name,
                    param.types,
                    param.default.unwrap_or("required"),
                    param.rule,
                ]
            })
            .collect();
        let without = [
            Method::Inspect,
            Method::AppsPublicKeys,
            Method::Info,
            Method::Health,
        ];
        let takes_options = Methods::DATA.contains(method) && !without.contains(&method);
        if takes_options {
            let own = expect
                .len()
                .checked_sub(options.len())
                .unwrap_or_else(|| panic!("{method} takes no options"));
            assert_eq!(options, expect.split_off(own), "{method}");
        }
        if expect.is_empty() {
            assert!(PAGE.contains(&format!("### {section}\n\nNone.\n")));
        } else {
            assert_eq!(table(&section, "key"), expect, "{method}");
        }
    }
}

#[test]
fn enumerated_params_list_every_name() {
    fn rule(names: &[&str]) -> String {
        names
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(" or ")
    }
    fn of<T: Copy>(all: &[T], name: fn(T) -> &'static str) -> String {
        rule(&all.iter().map(|value| name(*value)).collect::<Vec<_>>())
    }
    use control::{Kind, RotateKind, Scope, TokenFormat};
    let check = |methods: Methods, key: &str, rule: String| {
        let of = |method: Method| {
            method
                .params()
                .iter()
                .filter(|param| param.name == key)
                .map(|param| param.rule)
        };
        let rules: Vec<&str> = methods.iter().flat_map(of).collect();
        assert!(
            !rules.is_empty() && rules.iter().all(|found| *found == rule),
            "{key}: {rules:?}"
        );
    };
    let only = |method| Methods::of(&[method]);
    check(
        Methods::ALL.without(only(Method::AppsImport)),
        "suite",
        of(Suite::ALL, Suite::name),
    );
    check(
        only(Method::AppsImport),
        "suite",
        of(&[Suite::P256, Suite::Secp256k1], Suite::name),
    );
    check(Methods::ALL, "write_suite", of(Suite::ALL, Suite::name));
    check(
        Methods::ALL,
        "read_suites",
        format!("1 to 6 of {}", of(Suite::ALL, Suite::name)),
    );
    check(Methods::ALL, "key_scope", of(KeyScope::ALL, KeyScope::name));
    check(Methods::DATA, "format", of(Format::ALL, Format::name));
    check(Methods::ALL, "encoding", of(Encoding::ALL, Encoding::name));
    check(
        Methods::ALL,
        "encapsulation",
        of(Encapsulation::ALL, Encapsulation::name),
    );
    check(Methods::ALL, "unbound", of(Unbound::ALL, Unbound::name));
    check(
        only(Method::Decrypt),
        "outside",
        of(&[Outside::Accept, Outside::Refuse], Outside::name),
    );
    check(
        only(Method::Rewrap),
        "outside",
        of(Outside::ALL, Outside::name),
    );
    check(
        Methods::ALL,
        "unmatched",
        of(Unmatched::ALL, Unmatched::name),
    );
    check(
        Methods::ALL,
        "unknown",
        of(UnknownFields::ALL, UnknownFields::name),
    );
    check(Methods::ALL, "on_error", of(OnError::ALL, OnError::name));
    check(
        only(Method::AppsRotate),
        "kind",
        of(RotateKind::ALL, RotateKind::name),
    );
    check(
        only(Method::AppsSet),
        "format",
        of(&[Format::Native, Format::Evervault], Format::name),
    );
    check(
        only(Method::CollectionsCreate),
        "kind",
        of(Kind::ALL, Kind::name),
    );
    check(
        only(Method::CollectionsCreate),
        "format",
        of(TokenFormat::ALL, TokenFormat::name),
    );
    check(Methods::ALL, "scope", of(Scope::ALL, Scope::name));
}

#[test]
fn error_codes_and_whether_to_retry() {
    let rows = table("Errors", "code");
    assert_eq!(column(&rows, 0), ErrorCode::ALL.map(ErrorCode::name));
    for (row, code) in rows.iter().zip(ErrorCode::ALL) {
        assert_eq!(row[2].starts_with("yes"), code.is_retryable(), "{code}");
        assert!(
            row[2].starts_with("yes") || row[2].starts_with("no"),
            "{code}"
        );
    }
}

#[test]
fn details() {
    let keys = |error: RpcError| error.details.into_iter().map(|detail| detail.key);
    let refused = |error: ScanError| keys(RpcError::from(error));
    let overloaded = |reason| RpcError::overloaded(reason, 5, Some(6));
    let expect: Vec<_> = refused(ScanError::TooLong { max: 1 })
        .chain(["path".into(), "unmatched".into()])
        .chain(keys(overloaded(OverloadReason::Backlog)))
        .chain(keys(RpcError::not_granted(String::new(), "", "")))
        .chain(["errors".into()])
        .collect();
    assert_eq!(column(&table("Errors", "details"), 0), expect);
    let types = table("Errors", "details");
    for reason in OverloadReason::ALL {
        let answer = overloaded(reason);
        assert_eq!(
            (answer.code, answer.retry_after_ms),
            (ErrorCode::Overloaded, Some(5))
        );
        for detail in answer.details {
            let row = types.iter().find(|row| row[0] == *detail.key).unwrap();
            let of = match detail.value {
                DetailValue::Text(_) => "string",
                DetailValue::Number(_) => "integer",
                DetailValue::Errors(_) => "array of maps",
            };
            assert_eq!([&row[1][..], &row[2]], [of, "overloaded"]);
        }
        let unknown = RpcError::overloaded(reason, 5, None);
        assert_eq!(unknown.details, [Detail::text("reason", reason.name())]);
    }
}

#[test]
fn reasons_of_overload() {
    assert_eq!(
        column(&table("Overload", "reason"), 0),
        OverloadReason::ALL.map(OverloadReason::name)
    );
}

#[test]
fn limits() {
    let pairs = |head: &str| -> Vec<(String, u64)> {
        // Both tables of the section begin with the same cell and differ in the second.
        let section = PAGE
            .split("\n## Limits\n")
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        let table = section
            .split(&format!(
                "| limit | {head} | counts |\n| --- | --- | --- |\n"
            ))
            .nth(1)
            .unwrap();
        let rows = table.lines().take_while(|line| line.starts_with('|'));
        rows.map(|row| {
            let cells: Vec<String> = row
                .split('|')
                .map(|cell| cell.trim().replace('`', ""))
                .collect();
            (cells[1].clone(), cells[2].parse().unwrap())
        })
        .collect()
    };
    let named = |pairs: &[(&str, u64)]| -> Vec<(String, u64)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    };
    let Limits {
        message_bytes_max,
        depth_max,
        elements_max,
        discard_bytes_max,
    } = Limits::default();
    assert_eq!(
        pairs("default"),
        named(&[
            ("message_bytes_max", message_bytes_max),
            ("depth_max", u64::from(depth_max)),
            ("elements_max", elements_max),
            ("discard_bytes_max", discard_bytes_max),
        ])
    );
    assert_eq!(
        pairs("value"),
        named(&[
            ("app_bytes_max", APP_BYTES_MAX as u64),
            ("select_paths_max", SELECT_PATHS_MAX as u64),
            ("select_path_bytes_max", SELECT_PATH_BYTES_MAX as u64),
            ("encapsulations_max", ENCAPSULATIONS_MAX as u64),
            ("encapsulation_bytes_max", ENCAPSULATION_BYTES_MAX as u64),
            ("context_bytes_max", CONTEXT_BYTES_MAX as u64),
            ("contexts_max", CONTEXTS_MAX as u64),
            ("contexts_bytes_max", CONTEXTS_BYTES_MAX as u64),
            ("reason_bytes_max", REASON_BYTES_MAX as u64),
            ("traceparent_bytes_max", TRACEPARENT_BYTES_MAX as u64),
            ("deadline_ms_max", u64::from(DEADLINE_MS_MAX)),
            ("role_bytes_max", ROLE_BYTES_MAX as u64),
            ("mask_rules_max", MASK_RULES_MAX as u64),
            ("mask_bytes_max", MASK_BYTES_MAX as u64),
            ("mask_lists_max", MASK_LISTS_MAX as u64),
            ("mask_entries_max", MASK_ENTRIES_MAX as u64),
            ("mask_entry_bytes_max", MASK_ENTRY_BYTES_MAX as u64),
            ("mask_lists_bytes_max", MASK_LISTS_BYTES_MAX as u64),
            ("tags_max", TAGS_MAX as u64),
            ("tag_bytes_max", TAG_BYTES_MAX as u64),
            ("expires_s_max", EXPIRES_S_MAX),
            (
                "idempotency_key_bytes_max",
                IDEMPOTENCY_KEY_BYTES_MAX as u64
            ),
            ("tokens_max", TOKENS_MAX as u64),
            ("token_bytes_max", TOKEN_BYTES_MAX as u64),
            ("value_bytes_max", VALUE_BYTES_MAX as u64),
            ("cursor_bytes_max", CURSOR_BYTES_MAX as u64),
            ("sweep_rows_max", SWEEP_ROWS_MAX as u64),
            ("private_key_bytes_max", PRIVATE_KEY_BYTES_MAX as u64),
            ("delay_s_max", DELAY_S_MAX),
            ("epoch_ms_max", u64::from(EPOCH_MS_MAX)),
            ("objects_max", OBJECTS_MAX as u64),
            ("subject_bytes_max", SUBJECT_BYTES_MAX as u64),
            ("clauses_max", CLAUSES_MAX as u64),
            ("properties_max", PROPERTIES_MAX as u64),
            ("description_bytes_max", DESCRIPTION_BYTES_MAX as u64),
            ("prefixes_max", PREFIXES_MAX as u64),
            ("grants_max", GRANTS_MAX as u64),
            ("grant_bytes_max", GRANT_BYTES_MAX as u64),
            ("principal_bytes_max", PRINCIPAL_BYTES_MAX as u64),
            ("long_cursor_bytes_max", LONG_CURSOR_BYTES_MAX as u64),
            ("method_bytes_max", METHOD_BYTES_MAX as u64),
            ("field_errors_max", FIELD_ERRORS_MAX as u64),
            ("field_path_bytes_max", FIELD_PATH_BYTES_MAX as u64),
        ])
    );
}

/// The keys of a map, in order.
fn keys(map: &[u8]) -> Vec<String> {
    let mut reader = TokenReader::new(map);
    let Ok(Token::Map(count)) = reader.token() else {
        panic!("not a map")
    };
    let mut keys = Vec::new();
    for _ in 0..count {
        keys.push(reader.str_utf8().unwrap().to_owned());
        reader.skip_value().unwrap();
    }
    keys
}

#[test]
fn results() {
    let inspection = Inspection {
        format: Format::Native,
        version: Some(1),
        tag: Some(String::new()),
        suite: Suite::P256,
        key_id: Some(String::new()),
        outside: true,
        datatype: ValueKind::String,
        sequence: Some(0),
        encoding: Encoding::Text,
        plaintext_bytes: 0,
        encapsulation: Some(Encapsulation::Inline),
        debug: Some(false),
    };
    let mut out = Vec::new();
    inspection.encode(&mut out);
    assert_eq!(column(&table("inspect result", "key"), 0), keys(&out));
    out.clear();
    Info::default().encode(&mut out);
    assert_eq!(column(&table("info result", "key"), 0), keys(&out));
    out.clear();
    let document = response::Document::start(&mut out, 1);
    out.push(0xc0);
    let errors = [FieldError {
        path: "$".to_owned(),
        code: ErrorCode::CannotOpen,
    }];
    document.finish(&mut out, 1, (&errors, 1), &[0], &["sw1h:".to_owned()]);
    assert_eq!(
        column(&table("Document result", "key"), 0),
        keys(Response::decode(&out).unwrap().outcome.unwrap())
    );
}

/// Returns the keys of the first map in the first list of a map.
fn entry(map: &[u8]) -> Vec<String> {
    let mut reader = TokenReader::new(map);
    reader.map_len().unwrap();
    reader.skip_value().unwrap();
    reader.array_len().unwrap();
    keys(reader.value().unwrap())
}

#[test]
fn results_of_the_methods_on_tokens() {
    let token = sealwire_wire::Token {
        token: "tok".into(),
        created: 1,
        expires: Some(2),
        archived: Some(3),
        tags: vec!["t".into()],
    };
    let tokens = Tokens {
        tokens: vec![Some(token)],
        next: Some(String::new()),
        generation: 1,
    };
    let found = Found {
        token: Some(String::new()),
        generation: 1,
    };
    let counted = Counted {
        count: 1,
        missing: vec![0],
        next: Some(String::new()),
        generation: 1,
    };
    let encoded = |encode: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        encode(&mut out);
        out
    };
    let bytes = encoded(&|out| tokens.encode(out));
    assert_eq!(column(&table("Tokens result", "key"), 0), keys(&bytes));
    assert_eq!(
        column(&table("Tokens result", "of a token"), 0),
        entry(&bytes)
    );
    assert_eq!(Tokens::decode(&bytes), Ok(tokens));
    let bytes = encoded(&|out| found.encode(out));
    assert_eq!(column(&table("Found result", "key"), 0), keys(&bytes));
    assert_eq!(Found::decode(&bytes), Ok(found));
    let bytes = encoded(&|out| counted.encode(out));
    assert_eq!(column(&table("Count result", "key"), 0), keys(&bytes));
    assert_eq!(Counted::decode(&bytes), Ok(counted));
}

#[test]
fn results_of_the_methods_on_objects() {
    let object = Object {
        id: "0193".into(),
        version: 1,
        expires: Some(2),
        archived: Some(3),
        tags: vec!["t".into()],
        properties: vec![("age".into(), vec![1])],
        ..Object::default()
    };
    let objects = Objects {
        objects: vec![Some(object)],
        next: Some(String::new()),
        generation: 1,
    };
    let mut bytes = Vec::new();
    objects.encode(&mut bytes);
    assert_eq!(column(&table("Objects result", "key"), 0), keys(&bytes));
    assert_eq!(
        column(&table("Objects result", "of an object"), 0),
        entry(&bytes)
    );
    assert_eq!(Objects::decode(&bytes), Ok(objects));
    let changed = ObjectsChanged {
        objects: vec![ObjectVersion {
            id: "0193".into(),
            version: 1,
        }],
        generation: 1,
    };
    let mut bytes = Vec::new();
    changed.encode(&mut bytes);
    assert_eq!(
        column(&table("Objects change result", "key"), 0),
        keys(&bytes)
    );
    assert_eq!(ObjectsChanged::decode(&bytes), Ok(changed));
    let found = SubjectFound {
        erased: Some(1),
        ..SubjectFound::default()
    };
    let mut bytes = Vec::new();
    found.encode(&mut bytes);
    assert_eq!(column(&table("Subject result", "key"), 0), keys(&bytes));
    assert_eq!(SubjectFound::decode(&bytes), Ok(found));
    let objects = SubjectExport {
        unreadable: vec!["0193".into()],
        next: Some(String::new()),
        ..SubjectExport::default()
    };
    let token = SubjectToken {
        token: "tok".into(),
        value: Some(b"\xa14".to_vec()),
        created: 1,
        expires: Some(2),
        archived: Some(3),
        tags: vec!["a".into()],
    };
    let bare = SubjectToken {
        value: None,
        expires: None,
        archived: None,
        tags: Vec::new(),
        ..token.clone()
    };
    let objects = SubjectExport {
        tokens: vec![token, bare],
        ..objects
    };
    let mut bytes = Vec::new();
    objects.encode(&mut bytes);
    assert_eq!(
        column(&table("Subject export result", "key"), 0),
        keys(&bytes)
    );
    assert_eq!(SubjectExport::decode(&bytes), Ok(objects));
    let erased = SubjectErased {
        id: "0193".into(),
        objects: 2,
        tokens: 3,
        ..SubjectErased::default()
    };
    let mut bytes = Vec::new();
    erased.encode(&mut bytes);
    assert_eq!(column(&table("Erasure result", "key"), 0), keys(&bytes));
    assert_eq!(SubjectErased::decode(&bytes), Ok(erased));
}

#[test]
fn results_of_the_control_methods() {
    use control::*;
    macro_rules! check {
        ($section:literal, $result:expr, $type:ident) => {{
            let result = $result;
            let mut out = Vec::new();
            result.encode(&mut out);
            assert_eq!(column(&table($section, "key"), 0), keys(&out));
            assert_eq!($type::decode(&out), Ok(result));
            assert!(
                $type::decode(&[0x80]).is_err()
                    && $type::decode(&[&out[..], &[0xc0]].concat()).is_err()
            );
            out
        }};
    }
    let (text, some) = (String::new, Some(String::new()));
    let key = Key {
        id: text(),
        suite: text(),
        version: 1,
        state: text(),
        seals: true,
        outside: true,
        created_unix_s: 1,
        delete_unix_s: Some(2),
    };
    let token_key = TokenKey {
        version: 1,
        state: text(),
        created_unix_s: 1,
    };
    let app = App {
        app: text(),
        state: text(),
        delete_unix_s: Some(1),
        format: text(),
        epoch_ms: 0,
        write_suite: text(),
        read_suites: Vec::new(),
        keys: vec![key.clone()],
        token_keys: vec![token_key.clone()],
    };
    let apps = check!(
        "Apps result",
        Apps {
            apps: vec![app.clone()],
            next: some.clone(),
            generation: 1
        },
        Apps
    );
    assert_eq!(column(&table("Apps result", "of an app"), 0), entry(&apps));
    let key = rmp_serde::to_vec_named(&key).unwrap();
    assert_eq!(column(&table("Apps result", "of a key"), 0), keys(&key));
    let token_key = rmp_serde::to_vec_named(&token_key).unwrap();
    assert_eq!(
        column(&table("Apps result", "of a token key"), 0),
        keys(&token_key)
    );
    check!(
        "App change result",
        AppChanged {
            app: Some(app),
            key: some.clone(),
            generation: 1
        },
        AppChanged
    );
    let signed = PublicKeys {
        keys: text(),
        signature: text(),
        signer: text(),
        generation: 1,
    };
    check!("Public keys result", signed, PublicKeys);
    let collection = Collection {
        app: text(),
        collection: text(),
        kind: text(),
        format: "opaque".into(),
        first: Some(6),
        last: Some(4),
        scope: "context".into(),
        suite: "xaes".into(),
        records: "all".into(),
        properties: vec![Property {
            description: "d".into(),
            bits: Some(8),
            prefixes: vec![3],
            ..Property::default()
        }],
        expires_s: Some(1),
        retention_s: Some(0),
        created_unix_s: 1,
    };
    let list = Collections {
        collections: vec![collection.clone()],
        next: some.clone(),
        generation: 1,
    };
    let collections = check!("Collections result", list, Collections);
    assert_eq!(
        column(&table("Collections result", "of a collection"), 0),
        entry(&collections)
    );
    let changed = CollectionChanged {
        collection: Some(collection),
        generation: 1,
    };
    check!("Collection change result", changed, CollectionChanged);
    let record = Record {
        key: text(),
        record: text(),
    };
    check!(
        "Records result",
        Records {
            records: vec![record],
            next: some.clone(),
            generation: 1
        },
        Records
    );
    let role = Role {
        role: text(),
        grants: vec![text()],
        built_in: false,
    };
    let roles = check!(
        "Roles result",
        Roles {
            roles: vec![role.clone()],
            next: some.clone(),
            generation: 1
        },
        Roles
    );
    assert_eq!(
        column(&table("Roles result", "of a role"), 0),
        entry(&roles)
    );
    check!(
        "Role change result",
        RoleChanged {
            role: Some(role),
            generation: 1
        },
        RoleChanged
    );
    let principal = Principal {
        principal: text(),
        roles: vec![text()],
    };
    let list = Principals {
        principals: vec![principal.clone()],
        next: some.clone(),
        generation: 1,
    };
    let principals = check!("Principals result", list, Principals);
    assert_eq!(
        column(&table("Principals result", "of a principal"), 0),
        entry(&principals)
    );
    let changed = PrincipalChanged {
        principal: Some(principal),
        generation: 1,
    };
    check!("Principal change result", changed, PrincipalChanged);
    let checked = Checked {
        permitted: true,
        role: some.clone(),
        mask: some.clone(),
        missing: some.clone(),
        mode: "off".into(),
        generation: 1,
    };
    check!("Check result", checked, Checked);
    let count = CensusCount {
        kind: text(),
        collection: "people".into(),
        number: 1,
        key: text(),
        rows: 1,
    };
    let key = CensusKey {
        key: text(),
        suite: "xaes".into(),
        version: 1,
        state: text(),
        newest: true,
    };
    let packed = rmp_serde::to_vec_named(&key).unwrap();
    assert_eq!(
        column(&table("Census result", "of a key version"), 0),
        keys(&packed)
    );
    let census = Census {
        counts: vec![count],
        keys: vec![key],
        proven: true,
        next: some.clone(),
        generation: 1,
    };
    let census = check!("Census result", census, Census);
    assert_eq!(
        column(&table("Census result", "of a count"), 0),
        entry(&census)
    );
    let rewrapped = RewrappedRows {
        rewrapped: 1,
        changed: 2,
        unopened: 3,
        unauthenticated: 4,
        collection: "people".into(),
        next: some.clone(),
        generation: 1,
    };
    check!("Rewrapped rows result", rewrapped, RewrappedRows);
    let migrated = MigratedObjects {
        migrated: 1,
        changed: 2,
        unauthenticated: vec![text()],
        unopened: vec![text()],
        erased: vec![text()],
        finished: true,
        next: some.clone(),
        generation: 1,
    };
    check!("Migrated objects result", migrated, MigratedObjects);
    let instance = Instance {
        id: text(),
        address: text(),
        version: text(),
        generation: 1,
        age_ms: 1,
    };
    let instances = check!(
        "Instances result",
        Instances {
            instances: vec![instance],
            generation: 1
        },
        Instances
    );
    assert_eq!(
        column(&table("Instances result", "of an instance"), 0),
        entry(&instances)
    );
    let slot = RootSlotState {
        number: 1,
        provider: text(),
        kind: text(),
        fields: [].into(),
        created_unix_s: 1,
        verified_unix_s: 1,
        unwraps: Some(false),
        error: Some(text()),
    };
    let root = RootKeyState {
        id: text(),
        state: text(),
        created_unix_s: 1,
        slots: vec![slot.clone()],
    };
    let provider = RootProvider {
        name: text(),
        kind: text(),
        fields: [].into(),
    };
    let state = RootState {
        sealed_unix_s: Some(1),
        verified: true,
        unverified_reason: some.clone(),
        roots: vec![root.clone()],
        providers: vec![provider.clone()],
        slot: Some(1),
        generation: 1,
    };
    check!("Root key result", state, RootState);
    let packed = [
        ("of a root key", rmp_serde::to_vec_named(&root)),
        ("of a slot", rmp_serde::to_vec_named(&slot)),
        ("of a provider", rmp_serde::to_vec_named(&provider)),
    ];
    for (of, packed) in packed {
        assert_eq!(
            column(&table("Root key result", of), 0),
            keys(&packed.unwrap())
        );
    }
}

/// Returns a server's response to a stream with one message and the effect on the connection, in
/// the words of the contract.
fn verdict(stream: &[u8]) -> (String, &'static str) {
    let mut scanner = Scanner::for_requests(Limits::default());
    let mut rest = stream;
    let mut answer = String::from("none");
    loop {
        match scanner.scan(rest) {
            Scan::Incomplete => return (answer, "ended by the caller"),
            Scan::Discard { bytes, ended } => {
                rest = &rest[bytes..];
                if ended {
                    return (answer, "survives");
                }
            }
            Scan::Message(boundary) => {
                assert_eq!(boundary.bytes, rest.len());
                if boundary.header.response_id().is_some() {
                    answer = Request::decode(rest, &boundary)
                        .map_or_else(|error| error.code().name(), |_| "a result")
                        .to_owned();
                }
                return (answer, "survives");
            }
            Scan::Rejected {
                header,
                error,
                disposition,
            } => {
                answer = error.code().name().to_owned();
                if header.and_then(|header| header.response_id()).is_none() {
                    answer += " notification";
                }
                if disposition == Disposition::Close {
                    return (answer, "closes");
                }
            }
        }
    }
}

#[test]
fn invalid_messages_get_the_documented_response() {
    let call = |params: &[u8]| [&b"\x94\x00\x07\xa7encrypt\x91"[..], params].concat();
    let params = |pair: &[u8]| call(&[&b"\x83\xa3app\xa1a\xa7payload\x01"[..], pair].concat());
    let mut long = call(b"\x82\xa3app\xa1a\xa7payload\xc6\x04\x10\x00\x00");
    long.resize(long.len() + (65 << 20), 0);
    let many = [&call(b"\xdd\x00\x98\x96\x80")[..], &vec![0xc0; 10_000_000]].concat();
    let deep = [&call(&[0x91; 10_000])[..], &[0xc0]].concat();
    let cases: [(&str, Vec<Vec<u8>>); 22] = [
        (
            "unknown method",
            vec![b"\x94\x00\x07\xa6reveal\x91\x80".to_vec()],
        ),
        ("unknown key in params", vec![params(b"\xa6colour\x01")]),
        ("key in params given twice", vec![params(b"\xa3app\xa1b")]),
        ("required key missing", vec![call(b"\x81\xa3app\xa1a")]),
        (
            "value of another type",
            vec![params(b"\xa5suite\x01"), params(b"\xa6select\xc2")],
        ),
        (
            "string or key in params that is not UTF-8",
            vec![params(b"\xa5suite\xa1\xff"), params(b"\xa1\xff\x01")],
        ),
        (
            "params not an array of one map",
            vec![
                call(&[0x01]),
                b"\x94\x00\x07\xa7encrypt\x80".to_vec(),
                b"\x94\x00\x07\xa7encrypt\xc0".to_vec(),
            ],
        ),
        (
            "method not a string",
            vec![
                b"\x94\x00\x07\x01\x91\x80".to_vec(),
                b"\x94\x00\x07\x91\x01\x90".to_vec(),
            ],
        ),
        ("nested 10,000 deep", vec![deep]),
        ("array that claims 10 million values", vec![many]),
        ("message of 65 MiB", vec![long]),
        (
            "string that claims 4 GiB",
            vec![params(b"\xa5suite\xdb\xff\xff\xff\xff")],
        ),
        (
            "array that claims 4 billion values",
            vec![params(b"\xa6select\xdd\xff\xff\xff\xff")],
        ),
        ("marker 0xc1 inside params", vec![params(b"\xa5suite\xc1")]),
        ("marker 0xc1 at the start", vec![vec![0xc1]]),
        (
            "not an array",
            vec![vec![0x80], vec![0x01], b"GET / HTTP/1.1".to_vec()],
        ),
        (
            "array of another length than 3 or 4",
            vec![vec![0x90], vec![0x92], vec![0x95]],
        ),
        (
            "unknown message type",
            vec![vec![0x94, 3], vec![0x94, 0xff], vec![0x94, 0xc0]],
        ),
        (
            "response sent to the server",
            vec![vec![0x94, 1, 7, 0xc0, 0xc0]],
        ),
        (
            "msgid negative, beyond 32 bits or not an integer",
            vec![
                vec![0x94, 0, 0xff],
                b"\x94\x00\xcf\x00\x00\x00\x01\x00\x00\x00\x00".to_vec(),
                vec![0x94, 0, 0xa1, b'7'],
            ],
        ),
        (
            "truncated: the stream ends inside it",
            vec![call(b"\x82\xa3app"), vec![0x94], call(&[0xd9])],
        ),
        (
            "unknown notification",
            vec![b"\x93\x02\xa5hello\x90".to_vec()],
        ),
    ];
    let rows = table("What a bad message does", "message");
    assert_eq!(column(&rows, 0), cases.each_ref().map(|(name, _)| *name));
    for ((name, streams), row) in cases.iter().zip(&rows) {
        for stream in streams {
            let (answer, connection) = verdict(stream);
            assert_eq!(
                [&answer[..], connection],
                [&row[1][..], &row[2][..]],
                "{name}"
            );
        }
    }
}
