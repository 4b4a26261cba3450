//! Tests of `sealwire kek` and `sealwire root`: a document opens again after every change of the
//! root key.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use sealwire_apps::ROOT_RECORD;
use sealwire_store::Snapshot;
use sealwire_testkit::softhsm::{CONFIGURATION, SoftHsm};
use sealwire_testkit::{Certificates, ROOT_TOKEN, TransitServer};

use super::{DEV, Dev, ok, refused, write_secret};
use crate::old_roots::{RawStore, root_of};

/// Starts an engine on the folder, and opens the document that an engine sealed before.
pub(super) fn opens(folder: tempfile::TempDir) -> tempfile::TempDir {
    let dev = Dev::start_in(folder);
    assert!(dev.ok(&["decrypt", "sealed.json"]).contains("4242"));
    dev.end()
}

#[test]
fn an_engine_starts_with_any_slot_through_the_life_of_a_root_key() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    dev.ok(&["encrypt", "mine.json", "--output", "sealed.json"]);
    refused(dev.path(), &["kek", "list"], 1, "stop the engine");
    let folder = dev.end();
    let at = folder.path().to_owned();
    let (config, local) = (
        at.join("sealwire-dev/sealwire.toml"),
        at.join("sealwire-dev/kek"),
    );
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace(
            "file = \"kek\"",
            "file = \"kek\"\nproviders = \"providers.toml\"",
        ),
    )
    .unwrap();
    let table = "[vault]\nkind = \"file\"\npath = \"vault.key\"\n\n[spare]\nkind = \"file\"\npath = \"spare.key\"\n";
    fs::write(at.join("sealwire-dev/providers.toml"), table).unwrap();
    for (name, digit) in [("vault.key", "5"), ("spare.key", "6")] {
        write_secret(&at.join("sealwire-dev").join(name), &digit.repeat(64));
    }
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&ok(&at, &[arguments, &["--json"]].concat())).unwrap()
    };
    let numbers = || -> Vec<u64> {
        let slots = json(&["kek", "list"])["roots"][0]["slots"]
            .as_array()
            .unwrap()
            .clone();
        slots
            .iter()
            .map(|slot| slot["number"].as_u64().unwrap())
            .collect()
    };

    assert!(ok(&at, &["kek", "list"]).contains("the store has no root key"));
    refused(
        &at,
        &["kek", "verify"],
        1,
        "`sealwire kek init` creates one",
    );
    refused(
        &at,
        &["kek", "init", "--provider", "hsm"],
        1,
        "provider hsm: not configured here",
    );
    assert!(
        ok(
            &at,
            &["kek", "init", "--provider", "local", "--provider", "vault"]
        )
        .contains("2 slots")
    );
    refused(&at, &["kek", "init"], 1, "root key already");
    let shown = ok(&at, &["kek", "list"]);
    assert!(
        shown.contains(", active, created ") && shown.contains("provider spare (file) has no slot"),
        "{shown}"
    );
    assert_eq!(json(&["kek", "add", "spare"])["slot"], 3);
    refused(
        &at,
        &["kek", "add", "spare"],
        1,
        "provider spare has two slots",
    );

    // The local key is lost. The other slots start the engine, and verify the audit log.
    let kept = fs::read_to_string(&local).unwrap();
    fs::remove_file(&local).unwrap();
    write_secret(&local, &"0".repeat(64));
    let folder = opens(folder);
    assert!(at.join("sealwire-dev/audit/root.json").exists());
    assert!(ok(&at, &["audit", "verify"]).contains("records 1 to "));
    let uses = ok(&at, &["audit", "show", "--event", "provider"]);
    assert!(
        uses.contains(", unwrap of slot ") && uses.contains(" (file): ok, "),
        "{uses}"
    );
    refused_after_output(&at, &["kek", "verify"], "1 slot does not unwrap");
    refused(
        &at,
        &["kek", "remove", "1"],
        1,
        "its provider can no longer open the store; add --yes to confirm. Nothing was changed",
    );
    ok(&at, &["kek", "remove", "1", "--yes"]);
    assert!(ok(&at, &["kek", "verify"]).contains("slot 2 (provider vault): unwraps the root key"));
    refused(&at, &["kek", "remove", "1", "--yes"], 1, "no slot 1");
    assert_eq!(numbers(), [2, 3]);
    ok(&at, &["kek", "rotate"]);
    assert_eq!(numbers(), [4, 5]);
    let folder = opens(folder);

    // A slot goes only if another one unwraps now.
    fs::rename(at.join("sealwire-dev/spare.key"), at.join("spare.key")).unwrap();
    refused(
        &at,
        &["kek", "remove", "4", "--yes"],
        1,
        "no other slot unwraps the root key now",
    );
    ok(&at, &["kek", "remove", "5", "--yes"]);
    refused(
        &at,
        &["kek", "remove", "4", "--yes"],
        1,
        "the last slot cannot be removed",
    );

    let before = json(&["kek", "list"])["roots"][0]["id"].clone();
    ok(&at, &["root", "rotate"]);
    assert_ne!(json(&["kek", "list"])["roots"][0]["id"], before);
    assert_eq!(numbers(), [6]);
    let folder = opens(folder);
    assert!(ok(&at, &["audit", "verify"]).contains("records 1 to "));
    ok(&at, &["root", "rotate", "--abandon"]);

    assert!(ok(&at, &["root", "seal"]).contains("the store is sealed"));
    assert!(ok(&at, &["kek", "list"]).contains("sealed since "));
    for refused_now in [
        &["kek", "verify"][..],
        &["kek", "add", "spare"],
        &["kek", "rotate"],
        &["root", "rotate"],
    ] {
        refused(&at, refused_now, 1, "the store is sealed");
    }
    assert!(json(&["kek", "list"])["sealed_unix_s"].is_u64());
    assert!(ok(&at, &["root", "unseal"]).contains("not sealed"));
    assert!(json(&["kek", "list"])["sealed_unix_s"].is_null());
    let folder = opens(folder);

    refused(&at, &["root", "remove"], 2, "--to-local");
    refused(
        &at,
        &["root", "remove", "--to-local"],
        1,
        "the audit log is not of this key-encryption key",
    );
    fs::write(&local, kept).unwrap();
    ok(&at, &["root", "remove", "--to-local"]);
    fs::remove_file(at.join("sealwire-dev/vault.key")).unwrap();
    opens(folder);
    assert!(!at.join("sealwire-dev/audit/root.json").exists());
}

/// Runs a command that prints a result and fails.
fn refused_after_output(folder: &Path, arguments: &[&str], says: &str) {
    let output = super::sealwire(folder, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && !output.stdout.is_empty() && text.contains(says),
        "{text}"
    );
}

#[test]
fn a_missing_provider_is_named_and_nothing_is_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    ok(path, &["kek", "init"]);
    fs::write(path.join("sealwire-dev/kek"), "0".repeat(64)).unwrap();
    refused(
        path,
        &["config", "check"],
        1,
        "root key: no slot unwraps it: slot 1 (provider local): ",
    );
    refused(
        path,
        &["kek", "add", "local"],
        1,
        "slot 1 (provider local): ",
    );
    refused(
        path,
        &["root", "rotate", "--abandon", "--config", "absent.toml"],
        64,
        "absent.toml",
    );
}

/// A token, a transit engine and a file each start the store alone.
#[test]
fn a_token_and_a_transit_engine_each_unseal_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    let at = path.join("sealwire-dev");
    let hsm = SoftHsm::new().unwrap();
    hsm.add_token("sealwire", "123456").unwrap();
    let certificates = Certificates::make(path, "unused").unwrap();
    let transit = TransitServer::start(&certificates).unwrap();
    transit.add_key("transit", "sealwire");
    for (name, secret) in [("pin", "123456"), ("token", ROOT_TOKEN)] {
        fs::write(at.join(name), secret).unwrap();
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let (module, ca) = (hsm.module().display(), certificates.ca.display());
    let address = transit.address();
    let tables = format!(
        "[hsm]\nkind = \"pkcs11\"\nmodule = \"{module}\"\ntoken = \"sealwire\"\nkey = \"root\"\npin_file = \"pin\"\n\n\
         [vault]\nkind = \"transit\"\naddress = \"{address}\"\nca = \"{ca}\"\nkey = \"sealwire\"\nauth = \"token\"\n\
         token_file = \"token\"\n"
    );
    fs::write(at.join("providers.toml"), tables).unwrap();
    let config = at.join("sealwire.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace(
            "file = \"kek\"",
            "file = \"kek\"\nproviders = \"providers.toml\"",
        ),
    )
    .unwrap();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        command
            .current_dir(path)
            .args(arguments)
            .env(CONFIGURATION, hsm.configuration());
        let output = command.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    };

    assert!(
        run(&["kek", "generate", "vault"])
            .1
            .contains("keys of kind transit are made where they are kept")
    );
    assert!(run(&["kek", "generate", "hsm"]).0);
    assert!(
        run(&["kek", "generate", "hsm"])
            .1
            .contains("there is a key")
    );
    let (done, said) = run(&["kek", "init"]);
    assert!(done && said.contains("3 slots"), "{said}");
    assert!(run(&["kek", "verify"]).0);
    let said = run(&["doctor", "--all"]).1;
    for expected in [
        "slot 1 (provider hsm, pkcs11) unwraps root key",
        "slot 3 (provider vault, transit) unwraps root key",
        "provider hsm works with a test value",
        "provider vault works with a test value",
    ] {
        assert!(
            said.contains(&format!("good     providers: {expected}")),
            "{expected} is not in {said}"
        );
    }
    let key = fs::read_to_string(at.join("kek")).unwrap();
    fs::write(at.join("kek"), "0".repeat(64)).unwrap();
    assert!(
        run(&["config", "check"]).0,
        "token and transit engine are left"
    );
    // Without its configuration SoftHSM has no token.
    assert!(
        ok(path, &["config", "check"]).contains("is good"),
        "the transit engine is left"
    );
    drop(transit);
    let said = run(&["doctor"]).1;
    assert!(
        said.contains(
            "warning  providers: slot 3 (provider vault, transit) does not unwrap root key"
        ),
        "{said}"
    );
    refused(path, &["config", "check"], 1, "no slot unwraps it");
    assert!(run(&["config", "check"]).0, "the token is left");
    let (verified, said) = run(&["kek", "verify"]);
    assert!(
        !verified && said.contains("slot 1 (provider hsm): unwraps the root key"),
        "{said}"
    );
    fs::write(at.join("kek"), key).unwrap();
    assert!(
        ok(path, &["config", "check"]).contains("is good"),
        "the file is left"
    );
}

fn copy_folder(from: &Path, to: &Path) {
    assert!(
        Command::new("cp")
            .arg("-a")
            .args([from, to])
            .status()
            .unwrap()
            .success()
    );
}

/// Puts back the state folder of an earlier time, which is authentic.
#[test]
fn a_state_that_was_put_back_is_refused_or_only_read() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    dev.ok(&["encrypt", "mine.json", "--output", "sealed.json"]);
    let folder = dev.end();
    let at = folder.path().to_owned();
    let home = at.join("sealwire-dev");
    ok(&at, &["kek", "init"]);
    let folder = opens(folder);
    let anchor = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(home.join("audit/anchor.json")).unwrap()).unwrap()
    };
    let before = anchor()["generation"].as_u64().unwrap();
    copy_folder(&home.join("state"), &at.join("backup"));

    let dev = Dev::start_in(folder);
    dev.operate(&["roles", "set", "reader", "decrypt apps=*"]);
    dev.operate(&["apps", "create", "later"]);
    let folder = dev.end();
    let after = anchor()["generation"].as_u64().unwrap();
    assert!(after >= before + 2, "{before} {after}");
    let put_back = || {
        fs::remove_dir_all(home.join("state")).unwrap();
        copy_folder(&at.join("backup"), &home.join("state"));
    };
    put_back();
    let says =
        format!("the store is of generation {before}, and generation {after} was seen before");
    for command in [
        &["config", "check"][..],
        &["serve"],
        &["kek", "rotate"],
        &["root", "rotate"],
    ] {
        refused(&at, command, 1, &says);
    }

    let config = home.join("sealwire.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("[state]\n"), "{text}");
    fs::write(
        &config,
        text.replace("[state]\n", "[state]\non_rollback = \"read_only\"\n"),
    )
    .unwrap();
    let dev = Dev::start_in(folder);
    assert!(dev.ok(&["decrypt", "sealed.json"]).contains("4242"));
    dev.may_not(
        &["apps", "create", "other"],
        1,
        "an older state was put back",
    );
    dev.may_not(
        &["roles", "set", "reader", "decrypt apps=*"],
        1,
        "an older state was put back",
    );
    let folder = dev.end();
    assert_eq!(anchor()["generation"], after);
    fs::write(&config, text).unwrap();
    refused(&at, &["config", "check"], 1, &says);

    assert!(
        ok(&at, &["root", "accept-rollback"])
            .contains(&format!("from generation {} on", after + 1))
    );
    refused(&at, &["root", "accept-rollback"], 1, "nothing to accept");
    let dev = Dev::start_in(folder);
    assert!(dev.ok(&["decrypt", "sealed.json"]).contains("4242"));
    dev.operate(&["apps", "create", "other"]);
    let _folder = dev.end();
    assert_eq!(anchor()["generation"], after + 2);
}

/// Kills rotations of the root key and of its copies at any moment. `SEALWIRE_KILL_ROUNDS` sets how
/// many, 20 unless it is set.
#[test]
fn rotations_of_the_root_key_that_are_killed_lose_nothing() {
    let kills =
        std::env::var("SEALWIRE_KILL_ROUNDS").map_or(20, |rounds| rounds.parse::<u32>().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    ok(path, &["kek", "init"]);
    let config = path.join("sealwire-dev/sealwire.toml");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    // Returns the records, after a check that the root key of earlier ones, if it was replaced,
    // opens none of them.
    let read = |earlier: Option<&Snapshot>| {
        runtime.block_on(async {
            let raw = RawStore::open(&config).await;
            let now = raw.read().await;
            let replaced =
                earlier.filter(|earlier| root_of(earlier).active.id != root_of(&now).active.id);
            if let Some(earlier) = replaced {
                raw.opens_nothing_with_root_of(earlier).await;
            }
            raw.close().await;
            (now, replaced.is_some())
        })
    };
    let (mut state, _) = read(None);
    let begun = std::time::Instant::now();
    ok(path, &["root", "rotate"]);
    let whole = begun.elapsed();
    let (mut ended_early, mut new_roots) = (0, 0);
    for kill in 0..kills {
        let command = if kill % 3 == 2 { "kek" } else { "root" };
        let mut child = super::spawn(path, &[command, "rotate"]);
        std::thread::sleep(whole * kill / kills);
        let _ = child.kill();
        ended_early += u32::from(!child.wait().unwrap().success());
        assert!(
            ok(path, &["config", "check"]).contains("1 apps"),
            "kill {kill}"
        );
        let (now, is_replaced) = read(Some(&state));
        (state, new_roots) = (now, new_roots + u32::from(is_replaced));
    }
    println!(
        "{ended_early} of {kills} killed before their end, in up to {whole:?}; {new_roots} root keys replaced"
    );
    ok(path, &["root", "rotate"]);
    // Records times, in a generation of its own.
    ok(path, &["kek", "verify"]);
    let (now, is_replaced) = read(Some(&state));
    assert!(is_replaced);

    // Another process refuses a copy of the folder in which the old root record was put back.
    let put_back = |records: &std::collections::BTreeMap<String, Vec<u8>>| {
        let copy = Snapshot {
            generation: now.generation,
            records: records.clone(),
        };
        runtime.block_on(async {
            let raw = RawStore::open(&config).await;
            raw.put_into_new_store(&copy).await;
            raw.close().await;
        });
    };
    let folder = path.join("sealwire-dev/state");
    fs::rename(&folder, path.join("kept")).unwrap();
    put_back(&now.records);
    ok(path, &["config", "check"]);
    fs::remove_dir_all(&folder).unwrap();
    let mut records = now.records.clone();
    records.insert(ROOT_RECORD.into(), state.records[ROOT_RECORD].clone());
    put_back(&records);
    refused(
        path,
        &["config", "check"],
        1,
        "record head is not authentic",
    );
}

fn anchored(home: &Path) -> u64 {
    let anchor: serde_json::Value =
        serde_json::from_slice(&fs::read(home.join("audit/anchor.json")).unwrap()).unwrap();
    anchor["generation"].as_u64().unwrap()
}

/// The anchor is read as soon as a response is there, and after a kill: nothing that comes later is
/// needed.
#[test]
fn commits_are_in_the_anchor_before_their_response() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    dev.ok(&["encrypt", "mine.json", "--output", "sealed.json"]);
    let folder = dev.end();
    let at = folder.path().to_owned();
    let home = at.join("sealwire-dev");
    let generation = |text: &str| -> u64 {
        let values: serde_json::Value = serde_json::from_str(text).unwrap();
        values["generation"]
            .as_u64()
            .unwrap_or_else(|| panic!("{values}"))
    };
    // Commands that change the store directly.
    for command in [
        &["kek", "init"][..],
        &["kek", "rotate"],
        &["root", "rotate"],
        &["root", "seal"],
        &["root", "unseal"],
    ] {
        let committed = generation(&ok(&at, &[command, &["--json"]].concat()));
        assert_eq!(anchored(&home), committed, "{command:?}");
    }
    let verified = ok(&at, &["kek", "verify"]);
    assert!(verified.contains("unwraps the root key"), "{verified}");
    assert_eq!(
        anchored(&home),
        generation(&ok(&at, &["kek", "list", "--json"])),
        "kek verify records times"
    );

    // Changes at an engine.
    let backup = |name: &str| copy_folder(&home.join("state"), &at.join(name));
    backup("before");
    let mut dev = Dev::start_in(folder);
    let commands: [&[&str]; 10] = [
        &["apps", "create", "later"],
        &["apps", "rotate", "demo"],
        &["collections", "create", "demo", "later", "--kind", "random"],
        &["roles", "set", "reader", "decrypt apps=*"],
        &["principals", "grant", "someone.example", "reader"],
        &["principals", "revoke", "someone.example", "reader"],
        &["apps", "disable", "later"],
        &["apps", "delete", "later"],
        &["kek", "rotate"],
        &["root", "seal"],
    ];
    let mut last = anchored(&home);
    for command in commands {
        dev.operate(command);
        let now = anchored(&home);
        assert!(now > last, "{command:?}: {now}");
        last = now;
    }
    dev.kill();
    let folder = std::mem::replace(&mut dev.folder, tempfile::tempdir().unwrap());
    drop(dev);
    assert!(ok(&at, &["kek", "list"]).contains("sealed since "));
    assert_eq!(
        anchored(&home),
        generation(&ok(&at, &["kek", "list", "--json"]))
    );

    // The state from before the seal does not come back.
    backup("sealed");
    let put_back = |name: &str| {
        fs::remove_dir_all(home.join("state")).unwrap();
        copy_folder(&at.join(name), &home.join("state"));
    };
    put_back("before");
    for command in [&["config", "check"][..], &["serve"]] {
        refused(
            &at,
            command,
            1,
            &format!("generation {last} was seen before"),
        );
    }
    put_back("sealed");
    ok(&at, &["root", "unseal"]);
    opens(folder);
}

/// A change whose anchor cannot be written is made, and its response says what is missing.
#[test]
fn a_commit_without_its_anchor_is_an_error_that_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    ok(path, &["kek", "init"]);
    let config = path.join("sealwire-dev/sealwire.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace(
            "[state]\n",
            "[state]\nanchor_file = \"absent/anchor.json\"\n",
        ),
    )
    .unwrap();
    refused(
        path,
        &["root", "seal"],
        1,
        "the change was made, as generation ",
    );
    refused(
        path,
        &["root", "seal"],
        1,
        "absent/anchor.json was not written: No such file",
    );
    fs::create_dir(path.join("sealwire-dev/absent")).unwrap();
    ok(path, &["root", "seal"]);
    let anchor = fs::read_to_string(path.join("sealwire-dev/absent/anchor.json")).unwrap();
    assert!(
        anchor.contains("\"format\":2") && anchor.contains("\"roots\":["),
        "{anchor}"
    );
    assert!(ok(path, &["kek", "list"]).contains("sealed since "));
}

/// A command on the configured file goes by the anchor as an engine does. On another file it does
/// not.
#[test]
fn commands_on_the_configured_file_continue_no_older_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    let (home, config) = (
        path.join("sealwire-dev"),
        path.join("sealwire-dev/sealwire.toml"),
    );
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace(
            "[state]\n",
            "[state]\nmode = \"stateless\"\nfile = \"apps.json\"\n",
        ),
    )
    .unwrap();
    let create = |app| ["apps", "create", app, "--file", "sealwire-dev/apps.json"];
    ok(path, &create("demo"));
    ok(path, &["kek", "init"]);
    let older = fs::read(home.join("apps.json")).unwrap();
    ok(path, &create("later"));
    let anchored = fs::read(home.join("audit/anchor.json")).unwrap();

    fs::write(home.join("apps.json"), &older).unwrap();
    fs::write(home.join("copy.json"), &older).unwrap();
    for command in [
        &create("other")[..],
        &[
            "apps",
            "list",
            "--file",
            "sealwire-dev/../sealwire-dev/apps.json",
        ],
    ] {
        refused(path, command, 1, "an older state was put back");
    }
    assert_eq!(fs::read(home.join("apps.json")).unwrap(), older);
    ok(
        path,
        &[
            "apps",
            "create",
            "other",
            "--file",
            "sealwire-dev/copy.json",
        ],
    );
    fs::remove_file(home.join("apps.json")).unwrap();
    refused(
        path,
        &create("other"),
        1,
        "this machine's anchor names the set of root keys",
    );
    assert_eq!(fs::read(home.join("audit/anchor.json")).unwrap(), anchored);

    fs::write(home.join("apps.json"), &older).unwrap();
    ok(path, &["root", "accept-rollback"]);
    ok(path, &create("other"));
}

/// What no root key verifies is marked, in text and as JSON.
#[test]
fn root_key_listings_mark_what_is_not_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    let list = || -> serde_json::Value {
        serde_json::from_str(&ok(path, &["kek", "list", "--json"])).unwrap()
    };
    assert!(
        list()["verified"] == false,
        "nothing authenticates a store without a root key"
    );
    ok(path, &["kek", "init"]);
    let (text, values) = (ok(path, &["kek", "list"]), list());
    assert!(!text.to_lowercase().contains("not verified"), "{text}");
    assert!(
        values["verified"] == true && values["unverified_reason"].is_null(),
        "{values}"
    );
    // Nobody unwraps the root key: the slots in the store can be anybody's.
    let kek = path.join("sealwire-dev/kek");
    let kept = fs::read_to_string(&kek).unwrap();
    fs::write(&kek, "0".repeat(64)).unwrap();
    let (text, values) = (ok(path, &["kek", "list"]), list());
    assert!(
        text.starts_with("NOT VERIFIED: ") && text.contains(", not verified\n"),
        "{text}"
    );
    assert_eq!(values["verified"], false);
    assert!(
        values["unverified_reason"]
            .as_str()
            .unwrap()
            .contains("no slot unwraps it"),
        "{values}"
    );
    fs::write(&kek, kept).unwrap();
    ok(path, &["root", "seal"]);
    let (text, values) = (ok(path, &["kek", "list"]), list());
    assert!(
        text.contains(" (not verified); `sealwire root unseal`"),
        "{text}"
    );
    assert!(
        values["verified"] == false && values["sealed_unix_s"].is_u64(),
        "{values}"
    );
}
