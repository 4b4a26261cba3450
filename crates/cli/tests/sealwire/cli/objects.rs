//! Tests of `objects` and of collections of objects, against a real engine.

use std::fmt::Write as _;
use std::process::Output;

use serde_json::{Value, json};

use super::{Dev, fed, sealwire};

const PEOPLE: [&str; 2] = ["--collection", "people-objects"];

/// Creates a collection with every option, and permits the client everything in it.
fn vault() -> Dev {
    let dev = Dev::start();
    let create = [
        "collections",
        "create",
        "demo",
        "people-objects",
        "--objects",
        "--suite",
        "xaes",
    ];
    let properties = [
        "email:email unique required",
        "name:name index prefixes=1,3 accept-leak",
        "city:string index bits=12",
        "age:integer index",
        "photo:blob",
        "note:string clear description=\"From the \\\"form\\\"\"",
    ];
    let properties = properties
        .iter()
        .flat_map(|property| ["--property", property]);
    let times = ["--expires-s", "86400", "--retention-s", "3600"];
    let made = dev.operate(
        &create
            .into_iter()
            .chain(properties)
            .chain(times)
            .collect::<Vec<_>>(),
    );
    assert!(made.contains("\n  email:email required unique\n"), "{made}");
    permit(
        &dev,
        &["objects.* apps=demo collections=people-objects properties=*"],
    );
    dev
}

/// Lets the client have these grants alone.
fn permit(dev: &Dev, grants: &[&str]) {
    dev.operate(&[&["roles", "set", "relay"], grants].concat());
}

/// Runs `objects` on the collection.
fn objects(dev: &Dev, arguments: &[&str]) -> String {
    dev.ok(&[&["objects"], arguments, &PEOPLE[..]].concat())
}

/// Runs `objects`, which must fail. Returns both outputs.
fn failed(dev: &Dev, arguments: &[&str]) -> (String, String) {
    let output = sealwire(
        dev.path(),
        &dev.arguments(&[&["objects"], arguments, &PEOPLE[..]].concat()),
    );
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    texts(output)
}

fn texts(output: Output) -> (String, String) {
    (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn lines(printed: &str) -> Vec<Value> {
    printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Adds objects. Returns their ids.
fn add(dev: &Dev, text: &str) -> Vec<String> {
    dev.write("objects.json", text);
    let added = lines(&objects(dev, &["add", "objects.json", "--json"]));
    added
        .iter()
        .map(|object| object["id"].as_str().unwrap().to_owned())
        .collect()
}

fn count(dev: &Dev) -> usize {
    objects(dev, &["list", "--all", "--json"]).lines().count()
}

#[test]
fn a_listed_collection_of_objects_is_a_schema() {
    let dev = vault();
    let listed = dev.operate(&["collections", "list", "demo"]);
    let expected = concat!(
        "  email:email required unique\n  name:name index prefixes=1,3 accept-leak\n",
        "  city:string index bits=12\n  age:integer index\n  photo:blob\n",
        "  note:string clear description=\"From the \\\"form\\\"\"\n"
    );
    assert!(
        listed.contains(expected) && listed.contains("card 6/4"),
        "{listed}"
    );
    let listed: Value =
        serde_json::from_str(&dev.operate(&["collections", "list", "demo", "--json"])).unwrap();
    let people = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|of| of["kind"] == "objects")
        .unwrap();
    assert_eq!(people["records"], "authenticated");
    let migrated = dev.operate(&["collections", "migrate", "demo", "people-objects", "--json"]);
    let migrated: Value = serde_json::from_str(&migrated).unwrap();
    assert_eq!(
        (&migrated["finished"], &migrated["migrated"]),
        (&json!(true), &json!(0))
    );
    dev.may_not(&["collections", "migrate", "demo", "demo"], 1, "");
    let email = json!({"name": "email", "type": "email", "nullable": false, "unique": true, "index": true,
        "encrypted": true});
    assert_eq!(
        (
            &people["properties"][0],
            &people["expires_s"],
            &people["retention_s"]
        ),
        (&email, &86_400.into(), &3_600.into())
    );
    // The listed properties are a schema for another collection, once its operator accepts what
    // prefixes reveal.
    let schema = people["properties"].to_string();
    let from_file = [
        "collections",
        "create",
        "demo",
        "copies",
        "--objects",
        "--schema",
        "schema.json",
    ];
    dev.write("schema.json", &schema);
    dev.may_not(&from_file, 1, "accept_leak");
    dev.write(
        "schema.json",
        &schema.replace("\"prefixes\"", "\"accept_leak\":true,\"prefixes\""),
    );
    assert!(
        dev.operate(&from_file)
            .contains("  name:name index prefixes=1,3 accept-leak\n")
    );
    dev.stop();
}

#[test]
fn a_schema_is_altered_and_the_name_of_a_dropped_property_is_waited_for() {
    let dev = vault();
    let alter = ["collections", "alter", "demo", "people-objects"];
    let relaxed = dev.operate(
        &[
            &alter[..],
            &[
                "--add",
                "phone:phone index",
                "--drop",
                "age",
                "--allow-duplicates",
                "email",
                "--allow-null",
                "email",
            ],
            &["--drop-index", "city", "--suite", "p256"],
        ]
        .concat(),
    );
    for line in [
        "  email:email index\n",
        "  city:string\n",
        "  phone:phone index\n",
    ] {
        assert!(relaxed.contains(line), "{relaxed}");
    }
    assert!(!relaxed.contains("age"));
    // The name of a dropped property is free when every live engine serves the drop.
    let again = dev.operate(&[&alter[..], &["--add", "age:string", "--wait"]].concat());
    assert!(again.contains("  age:string\n"), "{again}");
    dev.stop();
}

#[test]
fn invalid_schemas_are_explained() {
    let dev = Dev::start();
    let create = ["collections", "create", "demo", "c"];
    for (arguments, status, says) in [
        (
            &["--objects"][..],
            2,
            "--property <PROPERTY>|--schema <FILE>",
        ),
        (
            &["--objects", "--property", "a:string", "--kind", "random"],
            2,
            "'--objects' cannot be used with '--kind",
        ),
        (
            &["--objects", "--property", "a:string", "--scope", "context"],
            2,
            "cannot be used with",
        ),
        (
            &["--objects", "--property", "a:string", "--schema", "s.json"],
            2,
            "cannot be used with",
        ),
        (
            &["--kind", "random", "--property", "a:string"],
            2,
            "cannot be used with",
        ),
        (
            &["--kind", "random", "--schema", "s.json"],
            2,
            "cannot be used with",
        ),
        (
            &["--kind", "random", "--suite", "xaes"],
            2,
            "cannot be used with",
        ),
        (&["--property", "a:string"], 2, "--objects"),
        (
            &["--objects", "--property", "a:string uniqe"],
            2,
            "none of the words required, unique",
        ),
        (&["--objects", "--property", "a"], 2, "begin with NAME:TYPE"),
        (
            &["--objects", "--property", "a:text"],
            1,
            "must be one of string, integer",
        ),
        (&["--objects", "--property", "a:boolean index"], 1, "index"),
        (
            &["--objects", "--property", "a:name index prefixes=2"],
            1,
            "accept_leak",
        ),
        (
            &["--objects", "--schema", "absent.json"],
            1,
            "absent.json: No such file",
        ),
        (
            &["--objects", "--schema", "s.json"],
            1,
            "unknown field `uniqe`",
        ),
    ] {
        dev.write(
            "s.json",
            r#"[{"name": "a", "type": "string", "uniqe": true}]"#,
        );
        dev.may_not(&[&create[..], arguments].concat(), status, says);
    }
    let alter = ["collections", "alter", "demo", "people"];
    dev.may_not(&alter, 2, "--drop <NAME>");
    dev.may_not(&[&alter[..], &["--wait"]].concat(), 2, "--drop <NAME>");
    dev.may_not(&[&alter[..], &["--drop", "a"]].concat(), 1, "tokens");
    dev.stop();
}

#[test]
fn objects_are_added_and_read() {
    let dev = vault();
    let ids = add(
        &dev,
        r#"[{"email": "anna@example.com", "name": "Anna Lee", "age": 41, "photo": "aGVsbG8=", "city": "Bern"},
            {"email": "bo@example.com"}]"#,
    );
    let found = lines(&objects(&dev, &["get", &ids[1], &ids[0], "--json"]));
    assert_eq!(
        (&found[0]["id"], &found[1]["version"]),
        (&ids[1].clone().into(), &1.into())
    );
    let expected = json!({"email": "anna@example.com", "name": "Anna Lee", "city": "Bern", "age": 41,
        "photo": "aGVsbG8=", "note": null});
    assert_eq!(found[1]["properties"], expected);
    let shown = objects(&dev, &["get", &ids[0], "--properties", "email,age"]);
    assert_eq!(
        shown.lines().nth(1).unwrap(),
        format!("{} 1        email=\"anna@example.com\" age=41", ids[0])
    );
    let masked = objects(&dev, &["get", &ids[0], "--masked"]);
    assert!(
        !masked.contains("anna@") && !masked.contains("Anna Lee") && masked.contains("email=\""),
        "{masked}"
    );
    let missing = sealwire(
        dev.path(),
        &dev.arguments(&[&["objects", "get", &ids[0], "nobody"], &PEOPLE[..]].concat()),
    );
    assert!(missing.status.success() && texts(missing).1 == "nobody: not found\n");

    dev.stop();
}

#[test]
fn objects_of_another_version_are_neither_changed_nor_deleted() {
    let dev = vault();
    let ids = add(
        &dev,
        r#"[{"email": "anna@example.com", "age": 41, "city": "Bern"}, {"email": "bo@example.com"}]"#,
    );
    let change = |version: u64| {
        format!(
            r#"{{"id": "{}", "set": {{"age": 42, "city": null}}, "if_version": {version}}}"#,
            ids[0]
        )
    };
    dev.write("change.json", &change(7));
    let (_, err) = failed(&dev, &["update", "change.json"]);
    assert_eq!(
        err,
        "line 1: the object has version 1\nsealwire: conflict: nothing was changed\n"
    );
    dev.write("change.json", &change(1));
    let updated = lines(&objects(&dev, &["update", "change.json", "--json"]));
    assert_eq!(updated, [json!({"id": ids[0], "version": 2})]);
    let shown = objects(&dev, &["get", &ids[0], "--properties", "age,city"]);
    assert!(shown.ends_with(" 2        age=42\n"), "{shown}");

    let (_, err) = failed(&dev, &["delete", &ids[0], &ids[1], "--versions", "2,2"]);
    assert!(err.starts_with(&format!("{}: ", ids[1])), "{err}");
    let (_, err) = failed(&dev, &["delete", &ids[0], "--versions", "2,2"]);
    assert!(err.contains("--versions has 2 numbers for 1 ids"), "{err}");
    assert_eq!(
        objects(&dev, &["delete", &ids[0], "--versions", "2"]),
        "1 removed\n"
    );
    let (_, err) = failed(&dev, &["delete", &ids[0]]);
    assert!(
        err.starts_with(&format!("{}: no such object\n", ids[0])),
        "{err}"
    );
    let fed = fed(
        dev.path(),
        &dev.arguments(&[&["objects", "delete", "-", "--json"], &PEOPLE[..]].concat()),
        &ids[1],
    );
    assert_eq!(texts(fed).0, "{\"count\":1,\"dry_run\":false}\n");
    assert_eq!(count(&dev), 0);
    dev.stop();
}

/// 1,200 lines of JSON, of which line 777 is `bad`.
fn many(bad: &str) -> String {
    let mut text = String::new();
    for line in 1..=1_200 {
        if line == 777 {
            let _ = writeln!(text, "{bad}");
        } else {
            let _ = writeln!(
                text,
                r#"{{"email": "p{line}@example.com", "name": "Person {line}", "age": {}}}"#,
                line % 90
            );
        }
    }
    text
}

#[test]
fn lines_are_added_in_whole_requests_and_a_bad_one_is_named() {
    let dev = vault();
    let add = [
        "add",
        "many.jsonl",
        "--idempotency-key",
        "import 1",
        "--tag",
        "import",
        "--json",
    ];
    for (bad, says) in [
        (r#"{"email": "no address"}"#, "line 777: $.email: "),
        (r#"{"email": "x@example.com""#, "line 777: "),
        ("7", "line 777: must be a map of property names to values\n"),
        (r#"{"email": "P776@example.com"}"#, "line 777: $.email: "),
    ] {
        dev.write("many.jsonl", &many(bad));
        let (out, err) = failed(&dev, &add);
        let (parts, error) = err
            .trim_end()
            .rsplit_once('\n')
            .unwrap_or(("", err.trim_end()));
        let error: Value = serde_json::from_str(error).unwrap();
        let message = error["message"].as_str().unwrap();
        assert!(
            format!("{parts}\n{message}").contains(says.trim_end()),
            "{bad}: {err}"
        );
        assert!(
            message.ends_with("; 500 objects before were added"),
            "{bad}: {err}"
        );
        // A key repeats the first request, so no failed attempt adds its objects twice.
        assert_eq!((out.lines().count(), count(&dev)), (500, 500), "{bad}");
    }
    assert!(
        failed(&dev, &add)
            .1
            .contains("conflict: nothing from line 501 to line 1000 was changed")
    );
    dev.write(
        "many.jsonl",
        &many(r#"{"email": "p777@example.com", "name": "Person 777", "age": 57}"#),
    );
    for _ in 0..2 {
        assert_eq!(objects(&dev, &add).lines().count(), 1_200);
        assert_eq!(count(&dev), 1_200);
    }

    let limited = sealwire(
        dev.path(),
        &dev.arguments(&[&["objects", "list", "--limit", "600"], &PEOPLE[..]].concat()),
    );
    let (out, err) = texts(limited);
    assert_eq!(out.lines().count(), 601);
    assert!(err.contains("there may be more"), "{err}");
    let tagged = |tag| {
        objects(
            &dev,
            &[
                "list",
                "--all",
                "--json",
                "--properties",
                "email",
                "--tag",
                tag,
            ],
        )
    };
    assert_eq!(
        (
            tagged("import").lines().count(),
            tagged("other").lines().count()
        ),
        (1_200, 0)
    );
    assert_eq!(
        lines(&tagged("import"))[0]["properties"]
            .as_object()
            .unwrap()
            .len(),
        1
    );
    // A reader that leaves early ends the command as SIGPIPE would.
    let list = dev.arguments(&[&["objects", "list", "--all", "--json"], &PEOPLE[..]].concat());
    let mut listing = super::spawn(dev.path(), &list);
    drop(listing.stdout.take());
    assert_eq!(listing.wait_with_output().unwrap().status.code(), Some(141));
    let found = objects(&dev, &["query", "--where", "age:=7", "--all", "--json"]);
    assert_eq!(found.lines().count(), 14);
    dev.stop();
}

/// A collection of three people.
fn three_people() -> Dev {
    let dev = vault();
    add(
        &dev,
        "{\"email\": \"anna@example.com\", \"name\": \"Anna Lee\", \"age\": 41, \"city\": \"Bern\"}\n\
         {\"email\": \"bo@example.com\", \"name\": \"Bo Ek\", \"age\": 41, \"city\": \"Rom\"}\n\
         {\"email\": \"cy@example.com\", \"name\": \"Cy Ek\", \"age\": 7, \"city\": \"Oslo, east\"}\n",
    );
    dev
}

#[test]
fn objects_are_found_by_every_kind_of_clause() {
    let dev = three_people();
    let found = |arguments: &[&str]| {
        let printed = objects(
            &dev,
            &[&["query", "--json", "--properties", "email"], arguments].concat(),
        );
        let mut found: Vec<String> = lines(&printed)
            .iter()
            .map(|object| {
                object["properties"]["email"]
                    .as_str()
                    .unwrap()
                    .split('@')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        found.sort();
        found.join(" ")
    };
    dev.write(
        "clauses.json",
        r#"[{"property": "city", "in": ["Rom"]}, {"property": "name", "prefix": "b"}]"#,
    );
    for (arguments, expected) in [
        (&["--where", "email=ANNA@example.com"][..], "anna"),
        (&["--where", "age:=41"], "anna bo"),
        (&["--where", "age:=41", "--where", "city=Rom"], "bo"),
        (&["--where-in", "city=Bern,Rom"], "anna bo"),
        (&["--where-in", "city:=[\"Oslo, east\"]"], "cy"),
        (
            &["--where-in", "age:=[7, 8]", "--where-prefix", "name=c"],
            "cy",
        ),
        (&["--where-prefix", "name=ann"], "anna"),
        (&["--clauses", "clauses.json"], "bo"),
        (&["--where", "email=nobody@example.com"], ""),
    ] {
        assert_eq!(found(arguments), expected, "{arguments:?}");
    }
    let query = [&["objects", "query", "--clauses", "-"], &PEOPLE[..]].concat();
    let (out, _) = texts(fed(
        dev.path(),
        &dev.arguments(&query),
        r#"[{"property": "age", "eq": 7}]"#,
    ));
    assert!(
        out.starts_with("ID ") && out.contains("email=\"cy@example.com\" name=\"Cy Ek\""),
        "{out}"
    );
    dev.stop();
}

#[test]
fn impossible_queries_are_explained() {
    let dev = vault();
    for (arguments, says) in [
        (&["--where", "note=x"][..], "index"),
        (
            &["--where", "age:=41", "--where", "age=x"],
            "age: a value of type integer must be an integer\n",
        ),
        (&["--where", "shoe=x"], "shoe"),
        (&["--where-prefix", "email=a"], "prefix"),
    ] {
        let (_, err) = failed(&dev, &[&["query"], arguments].concat());
        assert!(err.contains(says), "{arguments:?}: {err}");
    }
    let usage = |arguments: &[&str], says: &str| {
        super::refused(
            dev.path(),
            &[&["objects", "query"], arguments, &PEOPLE[..]].concat(),
            2,
            says,
        );
    };
    usage(&[], "--where <CLAUSE>");
    usage(&["--where", "email"], "PROPERTY=TEXT");
    usage(&["--clauses", "-", "--where", "a=b"], "cannot be used with");
    dev.stop();
}

#[test]
fn objects_expire_and_are_archived_and_pruned() {
    let dev = vault();
    let ids = add(
        &dev,
        r#"[{"email": "a@example.com"}, {"email": "b@example.com"}]"#,
    );
    assert_eq!(
        objects(&dev, &["expire", &ids[0], "--never"]),
        "1 changed\n"
    );
    assert_eq!(
        objects(&dev, &["expire", &ids[0], "--in-s", "0"]),
        "1 changed\n"
    );
    let list = |more: &[&str]| lines(&objects(&dev, &[&["list", "--json"], more].concat()));
    // Far in the future, so that it does not matter when the engine's clock passed the expiry.
    let expired = list(&["--expired-before", "4102444800"]);
    assert!(
        expired
            .iter()
            .any(|object| object["id"] == *ids[0] && object["properties"] == json!({})),
        "{expired:?}"
    );
    assert_eq!(
        objects(&dev, &["archive", "--dry-run"]),
        "1 would be archived\n"
    );
    assert_eq!(objects(&dev, &["archive"]), "1 archived\n");
    let archived = list(&["--archived"]);
    assert_eq!(
        (archived.len(), &archived[0]["id"]),
        (1, &ids[0].clone().into())
    );
    assert!(archived[0]["archived"].is_u64());
    assert_eq!(objects(&dev, &["prune"]), "0 removed\n");
    assert_eq!(
        objects(&dev, &["prune", "--archived-s", "0", "--json"]),
        "{\"count\":1,\"dry_run\":false}\n"
    );
    assert_eq!((list(&["--archived"]).len(), list(&[]).len()), (0, 1));
    dev.stop();
}

#[test]
fn grants_decide_for_each_property() {
    let dev = vault();
    let ids = add(
        &dev,
        r#"{"email": "anna@example.com", "name": "Anna", "age": 41}"#,
    );
    permit(
        &dev,
        &[
            "objects.get apps=demo collections=people-objects properties=name reason until=2100-01-01T00:00:00Z",
            "objects.get apps=demo collections=people-objects properties=email mask=redact reason",
        ],
    );
    let get = ["get", &ids[0], "--json"];
    assert!(failed(&dev, &get).1.contains("needs a reason"));
    let found = lines(&objects(
        &dev,
        &[&get[..], &["--reason", "ticket 7"]].concat(),
    ));
    let properties = found[0]["properties"].as_object().unwrap();
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["email", "name"]);
    assert_eq!(properties["name"], "Anna");
    assert!(!found[0].to_string().contains("anna@"), "{found:?}");
    assert!(
        failed(&dev, &["query", "--where", "age:=41", "--reason", "x"])
            .1
            .contains("forbidden")
    );
    let check = [
        "principals",
        "check",
        "dev-client",
        "objects.get",
        "demo",
        "people-objects",
        "--reason",
        "x",
    ];
    assert_eq!(
        dev.operate(&[&check[..], &["--property", "email"]].concat()),
        "yes, by role relay, values through redact (access.mode = \"enforce\")\n"
    );
    dev.may_not(&[&check[..], &["--property", "age"]].concat(), 1, "no: ");
    for (help, words) in [
        (
            &["roles", "set", "--help"][..],
            &["properties=", "until="][..],
        ),
        (
            &["principals", "check", "--help"],
            &["--property", "until="],
        ),
    ] {
        let help = super::ok(dev.path(), help);
        assert!(words.iter().all(|word| help.contains(word)), "{help}");
    }
    for command in [
        "add", "get", "update", "delete", "query", "list", "expire", "archive", "prune",
    ] {
        let help = super::ok(dev.path(), &["objects", command, "--help"]);
        assert!(
            help.contains("Example") && help.contains(&format!("sealwire objects {command} ")),
            "{help}"
        );
    }
    dev.stop();
}
