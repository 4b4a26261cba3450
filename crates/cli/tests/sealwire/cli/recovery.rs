//! Tests of `sealwire recovery` and `sealwire root recover`: holders of shares open a store whose
//! providers are lost.

use std::cell::RefCell;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use std::sync::Arc;

use sealwire_apps::{Control, FindKek, RootRecord};
use sealwire_crypto::{AppId, Kek, RootKey, Suite};
use sealwire_engine::root::{Providers, Unsealer};
use sealwire_engine::stores::{Access, Stores};
use sealwire_kek::{Share, shares};
use sealwire_settings::{Config, Environment};
use sealwire_store::{ControlStore, MemoryStore, Snapshot, StoreError, everything};

use super::root::opens;
use super::{DEV, Dev, ok, sealwire, spawn, write_secret};
use crate::old_roots::RawStore;

const PROVIDERS: &str = "[board]\nkind = \"shares\"\npublic_key = \"recovery.pub\"\n\n\
                         [fresh]\nkind = \"file\"\npath = \"fresh.key\"\n";

/// A folder with a configuration and a store, and everything that commands print.
struct Site {
    path: PathBuf,
    printed: RefCell<String>,
}

impl Site {
    /// Configures the providers `board` and `fresh` in a folder of `sealwire dev`.
    fn new(path: &Path) -> Self {
        let at = path.join("sealwire-dev");
        let text = fs::read_to_string(at.join("sealwire.toml")).unwrap();
        let text = text.replace(
            "file = \"kek\"",
            "file = \"kek\"\nproviders = \"providers.toml\"",
        );
        fs::write(at.join("sealwire.toml"), text).unwrap();
        fs::write(at.join("providers.toml"), PROVIDERS).unwrap();
        write_secret(&at.join("fresh.key"), &"7".repeat(64));
        Self {
            path: path.to_owned(),
            printed: RefCell::default(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join("sealwire-dev").join(name)
    }

    /// Puts another key in the place of a key file, as its loss does.
    fn lose(&self, name: &str, digit: &str) {
        fs::write(self.file(name), digit.repeat(64)).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = sealwire(&self.path, arguments);
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        self.printed.borrow_mut().push_str(&text);
        (output.status.code(), text)
    }

    fn ok(&self, arguments: &[&str]) -> String {
        let (status, text) = self.run(arguments);
        assert_eq!(status, Some(0), "{arguments:?}: {text}");
        text
    }

    fn refused(&self, arguments: &[&str], says: &str) {
        let (status, text) = self.run(arguments);
        assert!(
            status == Some(1) && text.contains(says),
            "{arguments:?}: {text}"
        );
    }

    fn list(&self) -> serde_json::Value {
        serde_json::from_str(&self.ok(&["kek", "list", "--json"])).unwrap()
    }

    /// Returns the number of each slot, and its provider.
    fn slots(&self) -> Vec<(u64, String)> {
        let slots = self.list()["roots"][0]["slots"].as_array().unwrap().clone();
        slots
            .iter()
            .map(|slot| {
                (
                    slot["number"].as_u64().unwrap(),
                    slot["provider"].as_str().unwrap().into(),
                )
            })
            .collect()
    }

    /// Makes a recovery key, or splits one again.
    fn shares(&self, arguments: &[&str], folder: &str) {
        self.ok(&[
            &["recovery"],
            arguments,
            &["--threshold", "2", "--shares", "3", "--out", folder],
        ]
        .concat());
    }
}

fn slots(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected
        .iter()
        .map(|(number, provider)| (*number, (*provider).to_owned()))
        .collect()
}

#[test]
fn shares_open_a_sealed_store_whose_providers_are_lost() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    dev.ok(&["encrypt", "mine.json", "--output", "sealed.json"]);
    let folder = dev.end();
    let site = Site::new(folder.path());
    site.ok(&["kek", "init", "--provider", "local"]);
    site.shares(&["create"], "cards");
    fs::copy(
        site.path.join("cards/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    site.ok(&["kek", "add", "board"]);
    site.ok(&["root", "seal"]);
    site.lose("kek", "9");
    site.refused(&["root", "unseal"], "no slot unwraps it");
    site.refused(&["kek", "add", "fresh"], "sealed");
    let recover = [
        "root",
        "recover",
        "--provider",
        "fresh",
        "--share",
        "cards/share-1-of-3",
        "--share",
    ];
    site.refused(&[&recover[..], &["cards/share-1-of-3"]].concat(), "share");
    assert!(
        site.list()["sealed_unix_s"].is_u64(),
        "nothing is changed by wrong shares"
    );
    assert!(
        site.ok(&[&recover[..], &["cards/share-3-of-3"]].concat())
            .contains("fresh unwraps it")
    );
    assert_eq!(site.list()["sealed_unix_s"], serde_json::Value::Null);
    opens(folder);
}

#[test]
fn shares_recover_a_store_whose_providers_are_lost() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    dev.ok(&["encrypt", "mine.json", "--output", "sealed.json"]);
    let folder = dev.end();
    let site = Site::new(folder.path());
    let create = [
        "recovery",
        "create",
        "--threshold",
        "2",
        "--shares",
        "3",
        "--out",
        "cards",
    ];
    site.refused(&create, "`sealwire kek init` creates one");
    site.ok(&["kek", "init", "--provider", "local"]);
    site.refused(
        &[
            "recovery",
            "create",
            "--threshold",
            "4",
            "--shares",
            "3",
            "--out",
            "cards",
        ],
        "threshold must be from 2",
    );
    assert!(
        !site.path.join("cards").exists(),
        "nothing is left of a command that failed"
    );
    assert!(site.ok(&create).contains("any 2 of 3 shares open its slot"));
    site.refused(&create, "cards: File exists");
    for (name, mode) in [
        ("", 0o700),
        ("share-1-of-3", 0o600),
        ("share-3-of-3", 0o600),
    ] {
        let metadata = fs::metadata(site.path.join("cards").join(name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
    }

    // The slot needs the public key alone.
    site.refused(&["kek", "add", "board"], "recovery.pub: No such file");
    fs::copy(
        site.path.join("cards/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    site.ok(&["kek", "add", "board"]);
    assert_eq!(site.slots(), slots(&[(1, "local"), (2, "board")]));
    let slot = &site.list()["roots"][0]["slots"][1];
    assert!(
        slot["needs_holders"] == true && slot["unwraps"] == false && slot["verified_unix_s"] == 0,
        "{slot}"
    );
    assert!(
        site.ok(&["kek", "list"])
            .contains("shares       never                 needs the holders of shares")
    );
    assert!(
        site.ok(&["kek", "verify"])
            .contains("slot 2 (provider board): needs the holders of shares: ")
    );
    site.refused(
        &["kek", "remove", "1", "--yes"],
        "no other slot unwraps the root key now, so slot 1 stays",
    );
    let both = [
        "--share",
        "cards/share-1-of-3",
        "--share",
        "cards/share-3-of-3",
    ];
    assert!(
        site.ok(&[&["recovery", "check"], &both[..]].concat())
            .contains("2 shares open slot 2 of root key ")
    );
    assert!(!site.ok(&["kek", "list"]).contains("never"));
    site.refused(
        &[&["root", "recover", "--provider", "local"], &both[..]].concat(),
        "there is nothing to recover",
    );

    // No holder takes part in rotations. They keep the recovery key.
    site.ok(&["kek", "rotate"]);
    site.ok(&["root", "rotate"]);
    assert_eq!(site.slots(), slots(&[(5, "local"), (6, "board")]));
    site.shares(&["create"], "others");
    fs::copy(
        site.path.join("others/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    for command in ["kek", "root"] {
        site.refused(
            &[command, "rotate"],
            "provider board: its public key is of recovery key ",
        );
    }
    fs::copy(
        site.path.join("cards/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    let folder = opens(folder);

    // All providers are lost.
    site.lose("kek", "9");
    let why = "slot 6 (provider board): needs the holders of shares: `sealwire root recover`";
    site.refused(&["config", "check"], why);
    let mut engine = spawn(&site.path, &DEV);
    assert!(!engine.wait().unwrap().success());
    let log = std::io::read_to_string(engine.stderr.take().unwrap()).unwrap();
    assert!(
        log.contains("a slot does not unwrap the root key"),
        "the lost key is an alarm: {log}"
    );
    let unwrapped = log
        .lines()
        .filter(|line| line.contains("a slot does not unwrap"));
    assert!(
        unwrapped.into_iter().all(|line| !line.contains("shares")),
        "the slot of shares is none: {log}"
    );
    let recover = |more: &[&str]| -> Vec<String> {
        ["root", "recover"]
            .iter()
            .chain(more)
            .map(|&argument| argument.to_owned())
            .collect()
    };
    let given = [&both[..], &["--provider", "fresh"]].concat();
    let by_shares = recover(&given);
    assert!(
        site.ok(&by_shares.iter().map(String::as_str).collect::<Vec<_>>())
            .contains("fresh unwraps it")
    );
    assert_eq!(
        site.slots(),
        slots(&[(5, "local"), (6, "board"), (7, "fresh")])
    );
    site.ok(&["kek", "remove", "5", "--yes"]);
    let folder = opens(folder);
    assert!(site.ok(&["audit", "verify"]).contains("records 1 to "));

    // After another rotation the same shares still do, in any choice, from standard input, in place
    // of the lost slot.
    site.ok(&["root", "rotate"]);
    assert_eq!(site.slots(), slots(&[(8, "board"), (9, "fresh")]));
    site.lose("fresh.key", "3");
    site.refused(&["config", "check"], "no slot unwraps it");
    let mut child = spawn(
        &site.path,
        &[
            "root",
            "recover",
            "--provider",
            "fresh",
            "--provider",
            "local",
        ],
    );
    let text = |share: &str| fs::read_to_string(site.path.join("cards").join(share)).unwrap();
    let lines = text("share-3-of-3") + "\n" + &text("share-2-of-3");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    site.printed
        .borrow_mut()
        .push_str(&String::from_utf8([output.stdout, output.stderr].concat()).unwrap());
    assert_eq!(
        site.slots(),
        slots(&[(8, "board"), (10, "fresh"), (11, "local")])
    );
    site.ok(&["kek", "verify"]);
    let folder = opens(folder);

    // New holders: the slot stays, and both splits open it.
    site.shares(&[&["split"], &both[..]].concat(), "again");
    for folder in ["cards", "again"] {
        let files = [1, 2].map(|number| format!("{folder}/share-{number}-of-3"));
        site.ok(&[
            "recovery", "check", "--share", &files[0], "--share", &files[1],
        ]);
    }

    let cards =
        ["1", "2", "3"].map(|number| Share::parse(&text(&format!("share-{number}-of-3"))).unwrap());
    let secret = shares::join(&cards).unwrap();
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let printed = site.printed.borrow();
    assert!(
        printed.contains("recovery key ") && !printed.contains("sws1:") && !printed.contains(&hex)
    );
    for card in &cards {
        assert!(!printed.contains(&card.to_text()[40..]));
    }
    drop(folder);
}

#[test]
fn wrong_shares_change_nothing_and_are_named() {
    let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let sites = [&folder, &elsewhere].map(|folder| {
        ok(folder.path(), &[&DEV[..], &["--demo-only"]].concat());
        let site = Site::new(folder.path());
        site.ok(&["kek", "init", "--provider", "local"]);
        site.shares(&["create"], "cards");
        site
    });
    let [site, foreign] = &sites;
    fs::copy(
        site.path.join("cards/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    site.ok(&["kek", "add", "board"]);
    site.shares(&["create"], "others");
    site.shares(
        &[
            "split",
            "--share",
            "cards/share-1-of-3",
            "--share",
            "cards/share-2-of-3",
        ],
        "again",
    );
    let share = |name: &str| fs::read_to_string(site.path.join("cards").join(name)).unwrap();
    let good = share("share-2-of-3");
    let altered =
        good[..80].to_owned() + if &good[80..81] == "A" { "B" } else { "A" } + &good[81..];
    let write = |name: &str, mode, text: &str| {
        fs::write(site.path.join(name), text).unwrap();
        fs::set_permissions(site.path.join(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    write("altered", 0o600, &altered);
    write("false", 0o600, "sws1:hello");
    write("exposed", 0o644, &good);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        site.path.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    // Shares of another secret that name this key, as a holder who lies can make them.
    let held = Share::parse(&good).unwrap();
    for share in shares::split(&[9; 32], *held.set(), *held.key(), 2, 3).unwrap() {
        write(
            &format!("lie-{}", share.index()),
            0o600,
            share.to_text().as_str(),
        );
    }
    site.lose("kek", "9");
    let before = site.list();

    let foreign = foreign
        .path
        .join("cards/share-2-of-3")
        .display()
        .to_string();
    let cases: [(&[&str], &str, &str); 13] = [
        (
            &["cards/share-1-of-3"],
            "fresh",
            "2 different shares are needed; given: 1",
        ),
        (
            &["cards/share-1-of-3", "cards/share-1-of-3"],
            "fresh",
            "share number 1 was given twice",
        ),
        (
            &["cards/share-1-of-3", "altered"],
            "fresh",
            "altered: the checksum does not match",
        ),
        // A file that others can read, and one that would be waited for.
        (
            &["cards/share-1-of-3", "exposed"],
            "fresh",
            "exposed: mode 644",
        ),
        (
            &["cards/share-1-of-3", "pipe"],
            "fresh",
            "pipe: must be a regular file",
        ),
        (
            &["cards/share-1-of-3", "false"],
            "fresh",
            "false: a share is `sws1:` and 87 characters",
        ),
        (
            &["cards/share-1-of-3", &foreign],
            "fresh",
            "a share belongs to the recovery key of another store",
        ),
        (
            &["cards/share-1-of-3", "others/share-2-of-3"],
            "fresh",
            "position 2 belongs to another recovery key",
        ),
        (
            &["cards/share-1-of-3", "again/share-2-of-3"],
            "fresh",
            "position 2 belongs to another split",
        ),
        (
            &["others/share-1-of-3", "others/share-2-of-3"],
            "fresh",
            "has no slot that is sealed to recovery key ",
        ),
        (
            &["lie-1", "lie-2"],
            "fresh",
            "do not yield the recovery key that they name",
        ),
        (
            &["cards/share-1-of-3", "cards/share-2-of-3"],
            "board",
            "Name a provider that unwraps by itself",
        ),
        (
            &["cards/share-1-of-3", "cards/share-2-of-3"],
            "nowhere",
            "provider nowhere: not configured here",
        ),
    ];
    for (files, provider, says) in cases {
        let mut arguments = vec!["root", "recover", "--provider", provider];
        arguments.extend(files.iter().flat_map(|file| ["--share", file]));
        site.refused(&arguments, says);
        if provider == "fresh" {
            let check = [&["recovery", "check"], &arguments[4..]].concat();
            site.refused(&check, says);
        }
    }
    site.refused(
        &["root", "recover", "--provider", "fresh"],
        "no share of the recovery key was given",
    );
    assert_eq!(site.list(), before);
    // The right ones do.
    site.ok(&[
        "root",
        "recover",
        "--provider",
        "local",
        "--share",
        "cards/share-1-of-3",
        "--share",
        "cards/share-2-of-3",
    ]);
    assert!(site.ok(&["config", "check"]).contains("is valid"));
    let printed = site.printed.borrow();
    assert!(
        !printed.contains("sws1:A")
            && !printed.contains("hello")
            && !printed.contains(&good[40..80])
    );
}

/// Adds an incoming root key to the store, as a rotation does before it waits for engines.
async fn stage_root(config: &Path) {
    let config = Config::load(config, &Environment::of_process()).unwrap();
    let unsealer = Arc::new(Unsealer::open(&config).unwrap());
    let stores = Stores::open(&config, Access::Change).await.unwrap();
    let control = Control::with_finder(
        Arc::clone(&stores.control),
        Arc::<Unsealer>::clone(&unsealer),
    );
    let (record, root) = (
        control.root().await.unwrap().1.unwrap(),
        RootKey::generate().unwrap(),
    );
    let mut slots = Vec::new();
    for (name, number) in ["local", "board"].into_iter().zip(record.next_slot..) {
        slots.push(
            unsealer
                .providers()
                .new_slot(name, record.set, &root, number)
                .await
                .unwrap(),
        );
    }
    control.stage_root(&root, slots).await.unwrap();
    stores.close().await;
}

#[test]
fn an_unfinished_rotation_is_recovered_and_then_finished() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &[&DEV[..], &["--demo-only"]].concat());
    let site = Site::new(folder.path());
    site.ok(&["kek", "init", "--provider", "local"]);
    site.shares(&["create"], "cards");
    fs::copy(
        site.path.join("cards/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    site.ok(&["kek", "add", "board"]);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(stage_root(&site.file("sealwire.toml")));
    drop(runtime);
    site.lose("kek", "9");
    site.refused(&["config", "check"], "no slot unwraps it");
    let both = [
        "--share",
        "cards/share-1-of-3",
        "--share",
        "cards/share-2-of-3",
    ];
    assert!(
        site.ok(&[&["recovery", "check"], &both[..]].concat())
            .contains("2 shares open slot 2 and slot 4")
    );
    site.ok(&[&["root", "recover", "--provider", "local"], &both[..]].concat());
    let roots = site.list()["roots"].as_array().unwrap().clone();
    assert!(
        roots.len() == 2 && roots.iter().all(|root| root["slots"][1]["unwraps"] == true),
        "{roots:?}"
    );
    assert!(site.ok(&["config", "check"]).contains("is valid"));
    site.ok(&["root", "rotate"]);
    assert_eq!(site.slots(), slots(&[(4, "board"), (6, "local")]));
}

/// Finds the KEK by a root key that someone made.
struct MadeUp(Arc<RootKey>, Arc<Kek>);

#[async_trait::async_trait]
impl FindKek for MadeUp {
    async fn find(&self, root: Option<&RootRecord>) -> Result<Arc<Kek>, StoreError> {
        let Some(record) = root else {
            return Ok(Arc::clone(&self.1));
        };
        Ok(Arc::new(self.0.kek_with_wrapped_audit(
            &record.set,
            &record.wrapped_audit,
        )?))
    }
}

/// Makes a whole state with a root key, an app and an administrator of one's own, with nothing but
/// what the store and the recovery public key tell.
async fn forged(config: &Path, truth: &Snapshot) -> Snapshot {
    let config = Config::load(config, &Environment::of_process()).unwrap();
    let set = RootRecord::of(truth).unwrap().unwrap().set;
    let root = Arc::new(RootKey::generate().unwrap());
    let plain = Arc::new(Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap());
    let store: Arc<dyn ControlStore> = Arc::new(MemoryStore::default());
    let control = Control::with_finder(
        Arc::clone(&store),
        Arc::new(MadeUp(Arc::clone(&root), plain)),
    );
    control
        .create(&AppId::new("demo").unwrap(), &[Suite::P256])
        .await
        .unwrap();
    let slot = Providers::load(&config)
        .unwrap()
        .new_slot("board", set, &root, 1)
        .await
        .unwrap();
    control.create_root(set, &root, vec![slot]).await.unwrap();
    control
        .skip_generations(truth.generation + 10)
        .await
        .unwrap();
    everything(&*store).await.unwrap()
}

#[test]
fn shares_do_not_recover_a_state_that_somebody_made() {
    let folder = tempfile::tempdir().unwrap();
    ok(folder.path(), &[&DEV[..], &["--demo-only"]].concat());
    let site = Site::new(folder.path());
    assert!(
        site.ok(&["kek", "init", "--provider", "local"])
            .contains("Note the root key's id ")
    );
    site.shares(&["create"], "cards");
    fs::copy(
        site.path.join("cards/recovery.pub"),
        site.file("recovery.pub"),
    )
    .unwrap();
    site.ok(&["kek", "add", "board"]);
    let id = site.list()["roots"][0]["id"].as_str().unwrap().to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let config = site.file("sealwire.toml");
    let read = || {
        runtime.block_on(async {
            let raw = RawStore::open(&config).await;
            let state = raw.read().await;
            raw.close().await;
            state
        })
    };
    let write = |state: &Snapshot| {
        runtime.block_on(async {
            let raw = RawStore::open(&config).await;
            raw.replace(state).await;
            raw.close().await;
        });
    };
    let truth = read();
    site.lose("kek", "9");
    write(&runtime.block_on(forged(&config, &truth)));
    let before = read();
    assert_ne!(
        RootRecord::of(&before).unwrap().unwrap().active.to_string(),
        id
    );

    let both = [
        "--share",
        "cards/share-1-of-3",
        "--share",
        "cards/share-2-of-3",
    ];
    let check = [&["recovery", "check"], &both[..]].concat();
    let recover = [&["root", "recover", "--provider", "fresh"], &both[..]].concat();
    // On a machine that knows the root key.
    for command in [&check, &recover] {
        site.refused(
            command,
            "audit/anchor.json names another one. Nothing was changed",
        );
        site.refused(
            &[&command[..], &["--root-key-id", &id]].concat(),
            "and --root-key-id another one. Nothing was changed",
        );
    }
    // On a machine that knows nothing.
    let audit = site.file("audit");
    fs::rename(&audit, site.file("audit-kept")).unwrap();
    for command in [&check, &recover] {
        site.refused(command, "nothing on this machine confirms that it is yours");
        site.refused(command, "--root-key-id and the id from your records");
        for other in [&id[..], "", "00"] {
            site.refused(
                &[&command[..], &["--root-key-id", other]].concat(),
                "Nothing was changed",
            );
        }
    }
    assert_eq!(read(), before, "nothing was changed");
    let listed = site.list();
    assert!(listed["verified"] == false, "{listed}");

    // The state that the shares are of.
    fs::remove_dir_all(site.file("state")).unwrap();
    runtime.block_on(async {
        let raw = RawStore::open(&config).await;
        raw.put_into_new_store(&truth).await;
        raw.close().await;
    });
    site.refused(&check, "nothing on this machine confirms");
    let shouted = id.to_uppercase();
    assert!(
        site.ok(&[&check[..], &["--root-key-id", &shouted]].concat())
            .contains(&format!("of root key {id}"))
    );
    assert!(
        site.ok(&[&recover[..], &["--root-key-id", &id]].concat())
            .contains(&format!("recovered the root key {id}: "))
    );
    // A machine with an anchor needs no id.
    fs::remove_dir_all(&audit).unwrap();
    fs::rename(site.file("audit-kept"), &audit).unwrap();
    site.ok(&check);
    // The anchor of an earlier version names no root key.
    let anchor: serde_json::Value =
        serde_json::from_slice(&fs::read(audit.join("anchor.json")).unwrap()).unwrap();
    let text = serde_json::json!({
        "format": 1, "set": anchor["set"], "generation": anchor["generation"], "code": anchor["code"],
    });
    fs::write(audit.join("anchor.json"), text.to_string()).unwrap();
    let _ = fs::remove_file(audit.join("root.json"));
    site.refused(&check, "nothing on this machine confirms");
    site.ok(&[&check[..], &["--root-key-id", &id]].concat());
    site.ok(&check);
}
