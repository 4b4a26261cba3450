//! Tests of `keys`, against a real engine.

use std::process::Output;

use serde_json::Value;

use super::{Dev, sealwire};

/// Runs an operator's command. Returns its output, whatever its status.
fn output(dev: &Dev, arguments: &[&str]) -> Output {
    sealwire(dev.path(), &dev.operators(arguments))
}

/// Runs a command that must fail after it has printed its result. Returns what it says about the
/// failure.
fn failed(dev: &Dev, arguments: &[&str]) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = output(dev, arguments);
    assert_eq!(status.code(), Some(1), "{arguments:?}");
    assert!(
        String::from_utf8(stdout).unwrap().starts_with("KEY "),
        "{arguments:?}"
    );
    String::from_utf8(stderr).unwrap()
}

fn census(dev: &Dev) -> Value {
    serde_json::from_str(&dev.operate(&["keys", "census", "demo", "--json"])).unwrap()
}

/// Returns the id of the newest version of the token key and its rows.
fn newest(census: &Value) -> (String, u64) {
    let keys = census["keys"].as_array().unwrap().iter();
    let key = keys
        .clone()
        .find(|key| key["suite"].is_null() && key["newest"] == true)
        .unwrap();
    (
        key["key"].as_str().unwrap().to_owned(),
        key["rows"].as_u64().unwrap(),
    )
}

#[test]
fn commands_empty_a_key_version_and_prove_it() {
    let dev = Dev::start();
    dev.operate(&[
        "collections",
        "create",
        "demo",
        "staff",
        "--objects",
        "--property",
        "note:string",
    ]);
    dev.operate(&[
        "roles",
        "set",
        "relay",
        "objects.* apps=demo collections=staff properties=*",
    ]);
    dev.write(
        "staff.json",
        r#"[{"note": "a"}, {"note": "b"}, {"note": "c"}]"#,
    );
    dev.ok(&[
        "objects",
        "add",
        "staff.json",
        "--collection",
        "staff",
        "--json",
    ]);
    let (old, rows) = newest(&census(&dev));
    assert_eq!(rows, 3);
    let check = |key: &str| failed(&dev, &["keys", "census", "demo", key, "--expect-none"]);
    assert!(check(&old).contains("3 rows are under"));
    dev.operate(&["apps", "rotate", "demo", "--token"]);
    let done = dev.operate(&[
        "keys",
        "rewrap",
        "demo",
        "--collection",
        "staff",
        "--rate",
        "1000000",
        "--json",
    ]);
    let done: Value = serde_json::from_str(&done).unwrap();
    assert_eq!(
        (&done["rewrapped"], &done["unopened"]),
        (&3.into(), &serde_json::json!({}))
    );
    let (new, rows) = newest(&done["census"]);
    assert!(rows == 3 && new != old);
    // A repetition has nothing to do.
    let again = dev.operate(&["keys", "rewrap", "demo"]);
    assert!(
        again.starts_with("0 rows rewrapped, 1 passes\nKEY "),
        "{again}"
    );
    assert!(check(&old).contains("is active"));
    dev.operate(&["apps", "disable", "demo", &old]);
    let proven = dev.operate(&["keys", "census", "demo", &old, "--expect-none"]);
    assert!(
        proven.contains(&old) && !proven.contains(&new) && proven.contains("\nproven: "),
        "{proven}"
    );
    let counted = dev.operate(&["keys", "census", "demo", "--no-wait"]);
    assert!(
        counted.contains("  3 objects of staff\n") && counted.contains("\nnot proven: "),
        "{counted}"
    );
    assert!(check(&new).contains("3 rows are under"));
    let counted = census(&dev);
    let unused = counted["keys"]
        .as_array()
        .unwrap()
        .iter()
        .find(|key| key["suite"] == "p256")
        .unwrap();
    assert!(check(unused["key"].as_str().unwrap()).contains("apps rotate"));

    dev.may_not(
        &["keys", "census", "demo", "0000000000"],
        1,
        "app demo has no key version 0000000000",
    );
    dev.may_not(&["keys", "census", "demo", "--expect-none"], 2, "<KEY>");
    dev.may_not(&["keys", "rewrap", "demo", "--rate", "0"], 2, "--rate");
    dev.may_not(
        &["keys", "rewrap", "nobody"],
        1,
        "no app has the name in the request",
    );
    dev.may_not(
        &["apps", "delete", "demo", &old],
        1,
        "a token key is never deleted",
    );
    let left = dev.ok(&["objects", "list", "--collection", "staff", "--json"]);
    assert_eq!(left.lines().count(), 3);
}
