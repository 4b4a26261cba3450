//! Tests of the program as a user runs it: the built binary, real files, a real engine on loopback.

mod keys;
mod masks;
mod messages;
mod objects;
mod recovery;
mod rewraps;
mod root;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn sealwire(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sealwire"))
        .current_dir(folder)
        .args(arguments)
        .output()
        .unwrap()
}

/// Starts the command with pipes.
fn spawn(folder: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command
        .current_dir(folder)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn ok(folder: &Path, arguments: &[&str]) -> String {
    let output = sealwire(folder, arguments);
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert!(output.status.success(), "{arguments:?}: {err}");
    out
}

/// Runs a command that must fail with this status and this text on standard error.
fn refused(folder: &Path, arguments: &[&str], status: i32, says: &str) {
    let output = sealwire(folder, arguments);
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {err}");
    assert!(err.contains(says), "{arguments:?}: {err}");
    assert!(output.stdout.is_empty(), "{arguments:?} printed a result");
}

/// Writes a file that only its owner can read.
fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Arguments of an engine on ports that the system chooses.
const DEV: [&str; 9] = [
    "dev",
    "--listen",
    "127.0.0.1:0",
    "--admin",
    "127.0.0.1:0",
    "--control",
    "127.0.0.1:0",
    "--http",
    "127.0.0.1:0",
];

/// `sealwire dev` in a folder and on ports of its own.
pub(crate) struct Dev {
    folder: TempDir,
    child: Child,
    connect: String,
    control: String,
}

impl Dev {
    fn start() -> Self {
        Self::start_in(tempfile::tempdir().unwrap())
    }

    fn start_in(folder: TempDir) -> Self {
        Self::start_with(folder, &DEV)
    }

    fn start_with(folder: TempDir, arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_sealwire"))
            .current_dir(folder.path())
            .args(arguments)
            // Making a precomputed table for each key takes longer than a command.
            .env("SEALWIRE_CRYPTO_PRECOMPUTED_TABLES", "0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().unwrap().unwrap();
        let mut addresses = first
            .split_whitespace()
            .filter(|word| word.starts_with("127.0.0.1:"));
        let mut address = || addresses.next().unwrap().trim_end_matches('.').to_owned();
        let (connect, control) = (address(), address());
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            folder,
            child,
            connect,
            control,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn arguments<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--connect", &self.connect]].concat()
    }

    fn ok(&self, arguments: &[&str]) -> String {
        ok(self.path(), &self.arguments(arguments))
    }

    fn refused(&self, arguments: &[&str], says: &str) {
        refused(self.path(), &self.arguments(arguments), 1, says);
    }

    /// Adds the address of the control listener to an operator's command.
    fn operators<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        [arguments, &["--connect", &self.control]].concat()
    }

    fn operate(&self, arguments: &[&str]) -> String {
        ok(self.path(), &self.operators(arguments))
    }

    fn may_not(&self, arguments: &[&str], status: i32, says: &str) {
        refused(self.path(), &self.operators(arguments), status, says);
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Kills the process with SIGKILL. Nothing listens until [`Dev::again`].
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts an engine for a later [`Dev::again`], on ports that no other test gets meanwhile.
    pub(crate) fn start_to_come_again() -> Self {
        let [listen, control] =
            sealwire_testkit::free_ports::<2>().map(|port| format!("127.0.0.1:{port}"));
        let arguments = [
            "dev",
            "--listen",
            &listen,
            "--admin",
            "127.0.0.1:0",
            "--control",
            &control,
            "--http",
            "127.0.0.1:0",
        ];
        Self::start_with(tempfile::tempdir().unwrap(), &arguments)
    }

    /// Starts an engine again in the same folder and on the same ports.
    fn again(mut self) -> Self {
        let (connect, control) = (self.connect.clone(), self.control.clone());
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        let again = [
            "dev",
            "--listen",
            &connect,
            "--admin",
            "127.0.0.1:0",
            "--control",
            &control,
            "--http",
            "127.0.0.1:0",
        ];
        Self::start_with(folder, &again)
    }

    /// Stops the process with SIGTERM, which must drain and exit with status 0.
    pub(crate) fn stop(self) {
        self.end();
    }

    /// Ends the engine and returns its folder.
    fn end(mut self) -> TempDir {
        Command::new("kill")
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(self.child.wait().unwrap().success());
        std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap())
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_engine_that_was_just_started_stops_without_an_error() {
    // The engine is stopped when its first line appears, before its demonstration has ended.
    for _ in 0..3 {
        Dev::start().stop();
    }
}

/// Starts `sealwire dev` in a folder, and returns it with the first `curl` commands over HTTPS that
/// it prints.
fn dev_with_curl_commands(working: &Path, folder: &str) -> (Child, Vec<String>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sealwire"))
        .current_dir(working)
        .args(DEV)
        .args(["--folder", folder])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let commands = lines
        .by_ref()
        .map(|line| line.unwrap().trim_start().to_owned())
        .filter(|line| line.starts_with("curl --cacert"))
        .take(4)
        .collect();
    std::thread::spawn(move || lines.for_each(drop));
    (child, commands)
}

#[test]
fn curl_commands_of_dev_work_as_printed() {
    let working = tempfile::tempdir().unwrap();
    for folder in ["sealwire-dev", "it's a folder"] {
        let (mut child, commands) = dev_with_curl_commands(working.path(), folder);
        let printed = |command: &str| {
            let output = Command::new("sh")
                .current_dir(working.path())
                .args(["-c", command])
                .output()
                .unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{command}: {error}");
            String::from_utf8(output.stdout).unwrap()
        };
        let sealed = printed(&commands[0]);
        let opened = printed(&commands[1]);
        let tokens = printed(&commands[2]);
        let with_token = printed(&commands[3]);
        assert!(!commands[3].contains("--cert "), "{}", commands[3]);
        child.kill().unwrap();
        child.wait().unwrap();

        assert!(
            sealed.starts_with(r#"{"card": {"number": "sw1:"#),
            "{sealed}"
        );
        assert_eq!(opened, r#"{"card": {"number": "4242424242424242"}}"#);
        assert_eq!(with_token, opened);
        assert!(tokens.starts_with(r#"{"name": "tok_"#), "{tokens}");

        // The README shows the same commands, for the port of a new folder.
        if folder == "sealwire-dev" {
            let readme = crate::operations::read("README.md");
            for command in commands {
                let (before, rest) = command.split_once("https://localhost:").unwrap();
                let path = rest.trim_start_matches(|byte: char| byte.is_ascii_digit());
                let shown = format!("\n    {before}https://localhost:7446{path}\n");
                assert!(readme.contains(&shown), "README.md lacks {shown}");
            }
        }
    }
}

#[test]
fn the_demonstration_shows_before_and_after_and_keeps_its_keys() {
    let folder = tempfile::tempdir().unwrap();
    let first = ok(folder.path(), &[&DEV[..], &["--demo-only"]].concat());
    let (before, after) = first.split_once("encrypted for app `demo`").unwrap();
    assert!(before.contains("4242424242424242") && !after.contains("4242424242424242"));
    assert!(after.contains("\"number\": \"sw1:") && after.contains("identical, byte for byte"));
    let dev = Dev::start_in(folder);
    let list = || {
        (
            dev.operate(&["apps", "list", "--json"]),
            dev.operate(&["collections", "list", "demo", "--json"]),
        )
    };
    let before = list();
    assert!(before.1.contains("people") && before.1.contains("cards"));
    let dev = Dev::start_in(dev.end());
    let list = || {
        (
            dev.operate(&["apps", "list", "--json"]),
            dev.operate(&["collections", "list", "demo", "--json"]),
        )
    };
    assert_eq!(list(), before);
}

#[test]
fn a_users_file_comes_back_identical() {
    let dev = Dev::start();
    let documents = [
        r#"{"a":{"b":[1,[2,[3,{"c":null}]]],"d":{}},"e":[]}"#,
        r#"{"zoë 🔑":"\u0000\n\"\\/ ü","":"empty key","long":"LONG"}"#,
        r#"[0,-0.0,1,-1,18446744073709551615,-9223372036854775808,0.1,1e20,1.5E-300,true,false,null,""]"#,
        r#""just a string""#,
        "42",
        "null",
    ];
    for document in documents {
        let document = document.replace("LONG", &"x".repeat(100_000));
        dev.write("mine.json", &document);
        for options in [
            &[][..],
            &["--suite", "xaes"],
            &["--suite", "secp256k1"],
            &["--key-scope", "field"],
            &["--context", "row 7"],
        ] {
            dev.ok(&[
                &["encrypt", "mine.json", "--output", "sealed.json"],
                options,
            ]
            .concat());
            let context = if options.contains(&"--context") {
                options
            } else {
                &[]
            };
            let back = dev.ok(&[&["decrypt", "sealed.json"], context].concat());
            let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
            assert_eq!(parse(&back), parse(&document), "{document:.80} {options:?}");
        }
    }
    dev.stop();
}

#[test]
fn selections_contexts_and_reports() {
    let dev = Dev::start();
    dev.write(
        "mine.json",
        r#"{"card":{"number":"4242","cvc":"042"},"users":[{"ssn":"1"},{"ssn":"2"}],"open":"o"}"#,
    );
    let sealed = dev.ok(&[
        "encrypt",
        "mine.json",
        "-s",
        "$.card",
        "-s",
        "$.users[*].ssn",
        "--context",
        "here",
        "--compact",
    ]);
    let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
    for pointer in ["/card", "/users/0/ssn", "/users/1/ssn"] {
        assert!(
            value
                .pointer(pointer)
                .unwrap()
                .as_str()
                .unwrap()
                .starts_with("sw1:"),
            "{pointer}"
        );
    }
    assert_eq!(value["open"], "o");
    // A misspelt path would leave its field in the clear.
    let misspelt = [
        "encrypt",
        "mine.json",
        "-s",
        "$.card",
        "-s",
        "$.users[*].sn",
        "--compact",
    ];
    dev.refused(
        &misspelt,
        "--select $.users[*].sn matches nothing in mine.json: correct it",
    );
    let output = sealwire(
        dev.path(),
        &dev.arguments(&[&misspelt[..], &["--allow-unmatched"]].concat()),
    );
    assert!(output.status.success() && !output.stdout.is_empty());
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "$.users[*].sn matches nothing\n"
    );
    dev.write("sealed.json", &sealed);
    dev.refused(&["decrypt", "sealed.json"], "$.card does not open");
    let output = sealwire(
        dev.path(),
        &dev.arguments(&["decrypt", "sealed.json", "--report"]),
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        said,
        "$.card: cannot_open\n$.users[0].ssn: cannot_open\n$.users[1].ssn: cannot_open\n"
    );

    let envelope = value["card"].as_str().unwrap();
    let inspected: serde_json::Value =
        serde_json::from_str(&dev.ok(&["inspect", envelope, "--json"])).unwrap();
    assert_eq!(
        (&inspected["datatype"], &inspected["suite"]),
        (&"value".into(), &"p256-psk".into())
    );
    assert!(dev.ok(&["health", "--json"]).contains("\"status\":\"ok\""));
    assert!(dev.ok(&["info"]).contains("encrypt decrypt rewrap"));
}

#[test]
fn rows_have_contexts_of_their_own() {
    let dev = Dev::start();
    let rows = r#"[{"id":"a","v":"x"},{"id":2,"v":"y"}]"#;
    dev.write("rows.json", rows);
    let by_path = ["--context-path", "$.id", "--compact"];
    let of_values = [&by_path[..], &["-s", "$[*].v"]].concat();
    let sealed = dev.ok(&[&["encrypt", "rows.json"], &of_values[..]].concat());
    dev.write("sealed.json", &sealed);
    let opened = dev.ok(&[&["decrypt", "sealed.json"], &by_path[..]].concat());
    assert_eq!(opened.trim(), rows);
    let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
    dev.write("row.json", &value[1].to_string());
    let opened = dev.ok(&["decrypt", "row.json", "--context", "2", "--compact"]);
    assert_eq!(opened.trim(), r#"{"id":2,"v":"y"}"#);
    let moved = dev.ok(&[&["rewrap", "sealed.json", "--suite", "xaes"], &by_path[..]].concat());
    dev.write("moved.json", &moved);
    let opened = dev.ok(&[&["decrypt", "moved.json"], &by_path[..]].concat());
    assert_eq!(opened.trim(), rows);

    dev.write("rows.json", r#"[{"id":"a","v":"x"},{"v":"y"}]"#);
    dev.refused(
        &[&["encrypt", "rows.json"], &of_values[..]].concat(),
        "the item of this field has no value at the path of contexts",
    );
    dev.refused(
        &["encrypt", "rows.json", "--context-path", "$..id"],
        "at byte 1: expected one key or one index",
    );
    refused(
        dev.path(),
        &[
            "encrypt",
            "rows.json",
            "--context-path",
            "$.id",
            "--context",
            "a",
        ],
        2,
        "cannot be used with",
    );
}

#[test]
fn refusals_say_what_to_do() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"a":1}"#);
    dev.refused(&["encrypt", "nothing.json"], "nothing.json: No such file");
    dev.refused(
        &["encrypt", "mine.json", "--app", "nobody"],
        "sealwire apps list",
    );
    dev.refused(&["encrypt", "mine.json", "-s", "$.a["], "at byte 4");
    dev.refused(&["inspect", "hello"], "not a whole envelope");
    for (text, says) in [
        ("{\"a\": 12345678901234567890123}", "$.a"),
        ("[1e400]", "$[0]"),
        ("{\"a\":1,\"a\":2}", "a"),
        ("{\"a\":", "mine.json"),
    ] {
        dev.write("mine.json", text);
        dev.refused(&["encrypt", "mine.json"], says);
    }
    refused(
        dev.path(),
        &["encrypt", "nothing.json", "--folder", "elsewhere"],
        1,
        "nothing.json",
    );
    refused(
        dev.path(),
        &["health", "--folder", "elsewhere"],
        1,
        "sealwire dev",
    );
    refused(
        dev.path(),
        &["health", "--connect", "127.0.0.1:1"],
        1,
        "127.0.0.1:1",
    );
    let many = vec!["127.0.0.1:1"; 129].join(",");
    refused(
        dev.path(),
        &["health", "--connect", &many],
        1,
        "endpoints must be 1 to 128",
    );
    refused(
        dev.path(),
        &["health", "--connect", "127.0.0.1:1,"],
        1,
        "address must be host:port",
    );
    // One reachable address of several is enough.
    let both = format!("127.0.0.1:1,{}", dev.connect);
    ok(dev.path(), &["health", "--connect", &both]);
    ok(
        dev.path(),
        &[
            "health",
            "--connect",
            "127.0.0.1:1",
            "--connect",
            &dev.connect,
        ],
    );
    dev.may_not(
        &["apps", "create", "no/slash"],
        1,
        "app must be 1 to 64 bytes",
    );
    dev.may_not(&["apps", "create", ".dot"], 1, "letters");
    refused(dev.path(), &["encrypt"], 2, "Usage");
}

#[test]
fn configuration_is_checked_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(
        path.join("bad.toml"),
        "[listen]\nadress = \"127.0.0.1:1\"\n[limits]\ndepth_max = 3\n",
    )
    .unwrap();
    for command in [&["serve"][..], &["config", "check"]] {
        refused(
            path,
            &[command, &["--config", "bad.toml"]].concat(),
            64,
            "adress",
        );
        refused(
            path,
            &[command, &["--config", "bad.toml"]].concat(),
            64,
            "depth_max",
        );
        refused(
            path,
            &[command, &["--config", "absent.toml"]].concat(),
            64,
            "absent.toml",
        );
    }
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    assert!(ok(path, &["config", "check"]).contains("is valid: 1 app"));
    std::fs::write(
        path.join("reference.toml"),
        ok(path, &["config", "template"]),
    )
    .unwrap();
    // All defaults are accepted; only the files that they name are missing.
    refused(
        path,
        &["config", "check", "--config", "reference.toml"],
        1,
        "No such file",
    );
    std::fs::write(path.join("sealwire-dev/kek"), "not a key").unwrap();
    refused(path, &["serve"], 1, "key-encryption key is 32 bytes");
}

#[test]
fn a_configuration_is_checked_as_strictly_as_a_deployment() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    let config = path.join("sealwire-dev/sealwire.toml");
    let good = std::fs::read_to_string(&config).unwrap();
    let postgres =
        "mode = \"postgres\"\n[postgres]\nurl = \"postgres://user:hunter2@host/database\"";
    for (text, says) in [
        (
            good.replace("server.pem", "client.pem")
                .replace("server-key.pem", "client-key.pem"),
            "is not for servers",
        ),
        (
            good.replace("client_ca = \"ca.pem\"", "client_ca = \"client.pem\""),
            "may not issue certificates",
        ),
        (
            good.replace("folder = \"state\"", postgres),
            "must not contain the password",
        ),
    ] {
        assert_ne!(text, good);
        std::fs::write(&config, &text).unwrap();
        refused(path, &["config", "check"], 1, says);
        let output = sealwire(path, &["config", "check"]);
        assert!(
            !String::from_utf8(output.stderr)
                .unwrap()
                .contains("hunter2")
        );
    }
}

#[test]
fn certificates_are_made_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    refused(path, &["certs", "client", "relay"], 1, "certs authority");
    ok(path, &["certs", "authority"]);
    refused(path, &["certs", "authority"], 1, "ca-key.pem");
    let told = ok(
        path,
        &[
            "certs",
            "client",
            "relay",
            "--uri",
            "spiffe://example.org/relay",
            "--json",
        ],
    );
    assert!(told.contains("relay-key.pem"), "{told}");
    ok(
        path,
        &[
            "certs",
            "server",
            "engine",
            "--dns",
            "engine.example.org",
            "--ip",
            "127.0.0.1",
        ],
    );
    refused(
        path,
        &["certs", "client", "../relay"],
        1,
        "must not contain a slash",
    );
}

#[test]
fn tokens_are_issued_by_the_key_of_their_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let token = ok(path, &["certs", "token", "web"]);
    assert_eq!(token.trim().split('.').count(), 3, "{token}");
    let jwks = std::fs::read_to_string(path.join("jwks.json")).unwrap();
    assert!(!jwks.contains("\"d\""), "{jwks}");
    let key = std::fs::metadata(path.join("token-issuer-key.pem")).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o777,
        0o600
    );
    ok(
        path,
        &["certs", "token", "web", "--audience", "x", "--days", "2"],
    );
    assert_eq!(
        std::fs::read_to_string(path.join("jwks.json")).unwrap(),
        jwks
    );
    std::fs::write(path.join("token-issuer-key.pem"), "no key").unwrap();
    refused(
        path,
        &["certs", "token", "web"],
        1,
        "not an unencrypted PKCS",
    );
}

/// Returns the keys of the app `demo` (id, suite, number and state) from the JSON output of `apps`.
fn keys(printed: &str) -> Vec<(String, String, u64, String)> {
    let apps: serde_json::Value = serde_json::from_str(printed).unwrap();
    let app = apps
        .as_array()
        .unwrap()
        .iter()
        .find(|app| app["app"] == "demo")
        .unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let key = |key: &serde_json::Value| {
        (
            text(&key["id"]),
            text(&key["suite"]),
            key["version"].as_u64().unwrap(),
            text(&key["state"]),
        )
    };
    app["keys"].as_array().unwrap().iter().map(key).collect()
}

fn listed(dev: &Dev) -> Vec<(String, String, u64, String)> {
    keys(&dev.operate(&["apps", "list", "--json"]))
}

/// Returns the numbers of the keys of a suite, in order of creation.
fn numbers(keys: &[(String, String, u64, String)], suite: &str) -> Vec<u64> {
    keys.iter()
        .filter(|key| key.1 == suite)
        .map(|key| key.2)
        .collect()
}

/// Retries until `holds` returns true. An engine follows the store within a second.
fn soon(holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(300);
    while !holds() {
        assert!(Instant::now() < end, "it does not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn keys_are_rotated_disabled_and_enabled_under_a_running_engine() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242","open":"o"}"#);
    let seal = || dev.ok(&["encrypt", "mine.json", "-s", "$.card", "--compact"]);
    let key_of = |sealed: &str| {
        let value: serde_json::Value = serde_json::from_str(sealed).unwrap();
        let said = dev.ok(&["inspect", value["card"].as_str().unwrap(), "--json"]);
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        (
            said["key_id"].as_str().unwrap().to_owned(),
            said["suite"].as_str().unwrap().to_owned(),
        )
    };
    let old = seal();
    dev.write("old.json", &old);
    let before = listed(&dev);
    let made = keys(&dev.operate(&["apps", "rotate", "demo", "--json"]));
    assert_eq!(
        made.iter().map(|key| (&*key.1, key.2)).collect::<Vec<_>>(),
        [
            ("p256-psk", 2),
            ("p256", 2),
            ("secp256k1", 2),
            ("xaes", 2),
            ("secp256k1-psk", 2)
        ]
    );
    assert_eq!(listed(&dev), [&before[..], &made].concat());
    let one = keys(&dev.operate(&["apps", "rotate", "demo", "--suite", "secp256k1", "--json"]));
    assert_eq!((one.len(), &*one[0].1, one[0].2), (1, "secp256k1", 3));
    let (first, second, third) = (before[0].0.clone(), made[0].0.clone(), one[0].0.clone());

    // The engine seals with the new key and opens the old envelope.
    soon(|| key_of(&seal()).0 == second);
    assert_eq!(key_of(&old), (first.clone(), "p256-psk".into()));
    assert!(
        dev.ok(&["decrypt", "old.json", "--compact"])
            .contains("4242")
    );
    let moved = dev.ok(&["rewrap", "old.json", "--compact"]);
    assert_eq!(key_of(&moved), (second.clone(), "p256-psk".into()));
    dev.write("moved.json", &moved);
    soon(|| {
        key_of(&dev.ok(&["rewrap", "old.json", "--suite", "secp256k1", "--compact"]))
            == (third.clone(), "secp256k1".into())
    });

    // The old key is disabled: its envelope does not open, and the rewrapped one does. Then the key
    // is enabled again.
    let stopped = keys(&dev.operate(&["apps", "disable", "demo", &first, "--json"]));
    assert_eq!(
        stopped,
        [(first.clone(), "p256-psk".into(), 1, "disabled".into())]
    );
    soon(|| {
        !sealwire(dev.path(), &dev.arguments(&["decrypt", "old.json"]))
            .status
            .success()
    });
    dev.refused(&["decrypt", "old.json"], "$.card does not open");
    dev.refused(&["rewrap", "old.json"], "$.card does not open");
    assert!(
        dev.ok(&["decrypt", "moved.json", "--compact"])
            .contains("4242")
    );
    assert_eq!(
        dev.ok(&["rewrap", "old.json", "--report", "--compact"]),
        old
    );
    assert!(
        dev.operate(&["apps", "enable", "demo", &first])
            .contains("active")
    );
    soon(|| {
        sealwire(dev.path(), &dev.arguments(&["decrypt", "old.json"]))
            .status
            .success()
    });

    // Without an active key of the suite, encryption fails, and the operator is warned.
    dev.operate(&["apps", "disable", "demo", &first]);
    let last = sealwire(
        dev.path(),
        &dev.operators(&["apps", "disable", "demo", &second]),
    );
    assert!(last.status.success());
    assert!(
        String::from_utf8(last.stderr)
            .unwrap()
            .contains("no active key of suite p256-psk")
    );
    soon(|| {
        !sealwire(dev.path(), &dev.arguments(&["encrypt", "mine.json"]))
            .status
            .success()
    });
    dev.refused(&["encrypt", "mine.json"], "no active key of that suite");
    dev.refused(&["rewrap", "old.json"], "no active key of that suite");
    dev.operate(&["apps", "rotate", "demo", "--suite", "p256-psk"]);
    soon(|| {
        sealwire(dev.path(), &dev.arguments(&["encrypt", "mine.json"]))
            .status
            .success()
    });

    dev.may_not(
        &["apps", "rotate", "nobody"],
        1,
        "not_found: app nobody does not exist",
    );
    dev.may_not(
        &["apps", "rotate", "nobody", "--json"],
        1,
        "\"code\":\"not_found\"",
    );
    dev.may_not(
        &["apps", "rotate", "demo", "--suite", "rot13"],
        2,
        "the suites are p256",
    );
    dev.may_not(
        &["apps", "disable", "demo", "0000000000"],
        1,
        "has no key 0000000000",
    );
    dev.may_not(
        &["apps", "disable", "demo", "first"],
        2,
        "10 hexadecimal digits",
    );
    dev.stop();
}

#[test]
fn a_file_has_the_encapsulation_of_its_fields_once() {
    let dev = Dev::start();
    let plain = r#"{"card":"4242","name":"n","open":"o"}"#;
    dev.write("mine.json", plain);
    let apart = [
        "encrypt",
        "mine.json",
        "--suite",
        "p256-mlkem768",
        "--apart",
        "--compact",
        "-s",
        "$.card",
        "-s",
        "$.name",
    ];
    dev.refused(&apart, "no active key of that suite");
    dev.operate(&["apps", "rotate", "demo", "--suite", "p256-mlkem768"]);
    soon(|| {
        sealwire(dev.path(), &dev.arguments(&apart))
            .status
            .success()
    });
    let sealed = dev.ok(&apart);
    assert_eq!(
        (
            sealed.matches("sw1h:").count(),
            sealed.matches("\"$sw1\":[").count()
        ),
        (1, 1),
        "{sealed}"
    );
    assert!(sealed.len() < 1_900 && !sealed.contains("4242"));
    dev.write("sealed.json", &sealed);
    assert_eq!(
        dev.ok(&["decrypt", "sealed.json", "--compact"]).trim_end(),
        plain
    );
    // Fields that stay sealed keep their encapsulation.
    let half = dev.ok(&["decrypt", "sealed.json", "--compact", "-s", "$.card"]);
    assert!(half.contains("4242") && half.contains("sw1h:") && half.contains("sw1:"));
    dev.write("half.json", &half);
    let more = [
        "encrypt",
        "half.json",
        "--suite",
        "p256-mlkem768",
        "--apart",
        "--compact",
        "-s",
        "$.open",
    ];
    dev.write("half.json", &dev.ok(&more));
    let rewrapped = dev.ok(&[
        "rewrap",
        "half.json",
        "--suite",
        "p256-mlkem768",
        "--apart",
        "--compact",
    ]);
    assert_eq!(
        rewrapped.matches("sw1h:").count(),
        1,
        "the two before are needed no more"
    );
    dev.write("half.json", &rewrapped);
    assert_eq!(
        dev.ok(&["decrypt", "half.json", "--compact"]).trim_end(),
        plain
    );
    // Without it nothing opens.
    let at = sealed.find(",\"$sw1\"").unwrap();
    dev.write("cut.json", &format!("{}}}", &sealed[..at]));
    dev.refused(&["decrypt", "cut.json"], "$.card does not open");
    dev.write("list.json", "[1]");
    dev.refused(
        &[
            "encrypt",
            "list.json",
            "--suite",
            "p256-mlkem768",
            "--apart",
        ],
        "an object",
    );
    dev.stop();
}

#[test]
fn a_file_is_sealed_without_an_engine_and_opens_in_it() {
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242","open":"o"}"#);
    dev.refused(&["public-keys"], "apps rotate APP --outside");
    let key = keys(&dev.operate(&["apps", "rotate", "demo", "--outside", "--json"])).remove(0);
    assert_eq!((&*key.1, key.2), ("p256", 2));
    assert!(dev.operate(&["apps", "list"]).contains("active, outside"));
    soon(|| {
        sealwire(dev.path(), &dev.arguments(&["public-keys"]))
            .status
            .success()
    });
    let shown = dev.operate(&["apps", "public-keys", "demo"]);
    let field = |name: &str| {
        shown
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap()
            .trim()
            .to_owned()
    };
    let signer = field("signer");
    assert_eq!(
        (field("app"), field("key")),
        ("demo".into(), format!("{} p256", key.0))
    );
    assert_eq!(dev.ok(&["public-keys", "--signer", &signer]), shown);
    dev.write(
        "keys.json",
        &dev.ok(&["public-keys", "--signer", &signer, "--json"]),
    );

    // No engine is asked from here on.
    let seal = |more: &[&str]| {
        let arguments = [
            "seal",
            "mine.json",
            "--public-keys",
            "keys.json",
            "--compact",
        ];
        sealwire(dev.path(), &[&arguments[..], more].concat())
    };
    let refused = |more: &[&str], why: &str| {
        let output = seal(more);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && output.stdout.is_empty() && text.contains(why),
            "{text}"
        );
    };
    let sealed = seal(&[
        "--signer",
        &signer,
        "--select",
        "$.card",
        "--context",
        "row 1",
    ]);
    let sealed = String::from_utf8(sealed.stdout).unwrap();
    assert!(sealed.contains(r#""open":"o""#) && !sealed.contains("4242"));
    dev.write("sealed.json", &sealed);
    assert!(
        dev.ok(&["decrypt", "sealed.json", "--context", "row 1", "--compact"])
            .contains("4242")
    );
    let card = sealed.split('"').nth(3).unwrap();
    let said: serde_json::Value =
        serde_json::from_str(&dev.ok(&["inspect", card, "--json"])).unwrap();
    assert_eq!(
        (said["key_id"].as_str(), said["outside"].as_bool()),
        (Some(&*key.0), Some(true))
    );
    let strict = [
        "decrypt",
        "sealed.json",
        "--context",
        "row 1",
        "--refuse-outside",
    ];
    dev.refused(&strict, "$.card does not open");
    let rewrap = [
        "rewrap",
        "sealed.json",
        "--context",
        "row 1",
        "--compact",
        "--outside",
    ];
    dev.refused(&[&rewrap[..], &["refuse"]].concat(), "$.card does not open");
    dev.write("sealed.json", &dev.ok(&[&rewrap[..], &["accept"]].concat()));
    dev.refused(&strict, "$.card does not open");
    dev.write("sealed.json", &dev.ok(&[&rewrap[..], &["adopt"]].concat()));
    assert!(dev.ok(&strict).contains("4242"));

    let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    refused(&["--signer", other], "not that of the pinned signer");
    refused(&["--signer", "AAAA"], "32 bytes in base64");
    refused(
        &["--signer", &signer, "--app", "shop"],
        "the keys are those of app demo",
    );
    refused(
        &["--signer", &signer, "--min-generation", "1000000"],
        "older than generation 1000000",
    );
    refused(
        &["--signer", &signer, "--select", "$.crad"],
        "matches nothing",
    );
    dev.refused(
        &["public-keys", "--signer", other],
        "not that of the pinned signer",
    );
    let text = std::fs::read_to_string(dev.path().join("keys.json")).unwrap();
    dev.write("keys.json", &text.replace("demo", "shop"));
    refused(&["--signer", &signer], "not that of the pinned signer");
    dev.write("keys.json", "{}");
    refused(
        &["--signer", &signer],
        "the file must contain the output of `sealwire public-keys --json`",
    );
    dev.stop();
}

#[test]
fn a_file_is_sealed_to_a_hybrid_key_without_an_engine() {
    let dev = Dev::start();
    let plain = r#"{"card":"4242","open":"o"}"#;
    dev.write("mine.json", plain);
    dev.may_not(
        &["apps", "rotate", "demo", "--outside", "--suite", "xaes"],
        1,
        "no public keys of suite xaes",
    );
    dev.may_not(
        &["apps", "rotate", "demo", "--outside", "--token"],
        2,
        "cannot be used with",
    );
    let rotate = |suite| {
        keys(&dev.operate(&[
            "apps",
            "rotate",
            "demo",
            "--outside",
            "--suite",
            suite,
            "--json",
        ]))
        .remove(0)
    };
    let (p256, hybrid) = (rotate("p256"), rotate("p256-mlkem768"));
    assert_eq!((&*p256.1, &*hybrid.1), ("p256", "p256-mlkem768"));
    let shown = dev.operate(&["apps", "public-keys", "demo"]);
    let ids: Vec<_> = shown
        .lines()
        .filter_map(|line| line.strip_prefix("key"))
        .map(str::trim)
        .collect();
    assert_eq!(
        ids,
        [
            format!("{} p256", p256.0),
            format!("{} p256-mlkem768", hybrid.0)
        ]
    );
    let signer = shown
        .lines()
        .find_map(|line| line.strip_prefix("signer"))
        .unwrap()
        .trim();
    let fetch = ["public-keys", "--signer", signer, "--json"];
    soon(|| {
        let output = sealwire(dev.path(), &dev.arguments(&fetch));
        String::from_utf8(output.stdout)
            .unwrap()
            .contains(&hybrid.0)
    });
    dev.write("keys.json", &dev.ok(&fetch));

    // No engine is asked to seal.
    let seal = |file: &str, more: &[&str]| {
        let arguments = [
            "seal",
            file,
            "--public-keys",
            "keys.json",
            "--signer",
            signer,
            "--compact",
        ];
        let output = sealwire(dev.path(), &[&arguments[..], more].concat());
        (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let suite_of = |sealed: &str| {
        let card = sealed.split('"').nth(3).unwrap();
        let said: serde_json::Value =
            serde_json::from_str(&dev.ok(&["inspect", card, "--json"])).unwrap();
        assert_eq!(said["outside"].as_bool(), Some(true));
        said["suite"].as_str().unwrap().to_owned()
    };
    let by_default = seal("mine.json", &[]).0;
    assert_eq!(suite_of(&by_default), "p256");
    for (more, carriers) in [(&[][..], 0), (&["--apart"], 1)] {
        let (sealed, _) = seal("mine.json", &[&["--suite", "p256-mlkem768"], more].concat());
        assert_eq!(
            (suite_of(&sealed), sealed.matches("sw1h:").count()),
            ("p256-mlkem768".into(), carriers)
        );
        assert_eq!(sealed.matches("\"$sw1\":[").count(), carriers);
        dev.write("sealed.json", &sealed);
        assert_eq!(
            dev.ok(&["decrypt", "sealed.json", "--compact"]).trim_end(),
            plain
        );
        dev.refused(
            &["decrypt", "sealed.json", "--refuse-outside"],
            "$.card does not open",
        );
        // A rewrap leaves it in its suite.
        let moved = dev.ok(&["rewrap", "sealed.json", "--compact"]);
        assert_eq!(
            (suite_of(&moved), moved.contains("$sw1")),
            ("p256-mlkem768".into(), false)
        );
        dev.write("sealed.json", &moved);
        assert_eq!(
            dev.ok(&["decrypt", "sealed.json", "--compact"]).trim_end(),
            plain
        );
    }
    // A second client adds a field to the document of the first.
    dev.write(
        "half.json",
        &seal(
            "mine.json",
            &["--suite", "p256-mlkem768", "--apart", "--select", "$.card"],
        )
        .0,
    );
    let both = seal(
        "half.json",
        &["--suite", "p256-mlkem768", "--apart", "--select", "$.open"],
    )
    .0;
    assert_eq!(both.matches("sw1h:").count(), 2);
    dev.write("both.json", &both);
    assert_eq!(
        dev.ok(&["decrypt", "both.json", "--compact"]).trim_end(),
        plain
    );

    assert!(
        seal("mine.json", &["--apart"])
            .1
            .contains("not of suite p256-mlkem768")
    );
    dev.write("list.json", "[1]");
    assert!(
        seal("list.json", &["--suite", "p256-mlkem768", "--apart"])
            .1
            .contains("an object")
    );
    dev.operate(&["apps", "disable", "demo", &hybrid.0]);
    soon(|| {
        let output = sealwire(dev.path(), &dev.arguments(&fetch));
        !String::from_utf8(output.stdout)
            .unwrap()
            .contains(&hybrid.0)
    });
    dev.write("keys.json", &dev.ok(&fetch));
    assert!(
        seal("mine.json", &["--suite", "p256-mlkem768"])
            .1
            .contains("no key of that suite")
    );
    dev.stop();
}

/// Runs a command with `input` on its standard input.
fn fed(folder: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = spawn(folder, arguments);
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_imported_key_opens_what_was_sealed_elsewhere() {
    // The worked examples of the format, without a role.
    const SCALAR: &str = "1111111111111111111111111111111111111111111111111111111111111111";
    const R1: &str = "ev:Tk9D:number:AAECAwQFBgcICQoL:A9Zak5d8qj0bCBhS/1ennkZfFmBXcwS66tUF3TpIWJzz:lbqjC1tTcq/K6wWsY0/imAn7:$";
    const K1: &str = "ev:RFVC:AAECAwQFBgcICQoL:AkZtf8rlY+XLCaDRhwu1gDRIBGF4eaFJSc8iKF8brj8n:IMG3MCrR2YRlEklKmZa7BJs6yKjS:$";
    let dev = Dev::start();
    dev.write(
        "theirs.json",
        &format!(r#"{{"n":"{R1}","t":"{K1}","p":"plain"}}"#),
    );
    dev.refused(&["decrypt", "theirs.json"], "$.n does not open");
    dev.write("key.hex", SCALAR);
    let import = [
        "apps",
        "import",
        "demo",
        "--suite",
        "p256",
        "--key-file",
        "key.hex",
    ];
    std::fs::set_permissions(
        dev.path().join("key.hex"),
        std::fs::Permissions::from_mode(0o644),
    )
    .unwrap();
    dev.may_not(&import, 1, "key.hex: mode 644");
    std::fs::set_permissions(
        dev.path().join("key.hex"),
        std::fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let made = keys(&dev.operate(&[&import[..], &["--json"]].concat()));
    assert_eq!((&*made[0].1, made[0].2, &*made[0].3), ("p256", 2, "active"));
    dev.may_not(
        &import,
        1,
        &format!("app demo has key {} already", made[0].0),
    );
    // A key with a pre-shared key is no bare key: it comes from no file, and nobody else seals to
    // it.
    for suite in ["p256-psk", "secp256k1-psk"] {
        let import = [
            "apps",
            "import",
            "demo",
            "--suite",
            suite,
            "--key-file",
            "key.hex",
        ];
        dev.may_not(&import, 2, "the suites of key pairs are p256 and secp256k1");
        let publish = ["apps", "rotate", "demo", "--outside", "--suite", suite];
        dev.may_not(
            &publish,
            1,
            &format!("no public keys of suite {suite} are published"),
        );
    }
    for text in [SCALAR, "-----BEGIN PRIVATE KEY-----", "MC4CAQ\nAwBQ"] {
        let file = format!("--key-file={text}");
        let import = dev.operators(&["apps", "import", "demo", "--suite", "p256", &file]);
        let says = String::from_utf8(sealwire(dev.path(), &import).stderr).unwrap();
        assert!(
            says.contains("must be in a file or come from standard input") && !says.contains(text),
            "{says}"
        );
    }
    let piped = fed(
        dev.path(),
        &dev.operators(&[
            "apps",
            "import",
            "demo",
            "--suite",
            "secp256k1",
            "--key-file",
            "-",
        ]),
        SCALAR,
    );
    let shown = String::from_utf8(piped.stdout).unwrap();
    assert!(
        shown.contains("opens only") && !shown.contains("1111"),
        "{shown}"
    );
    let wrong = fed(
        dev.path(),
        &dev.operators(&[
            "apps",
            "import",
            "demo",
            "--suite",
            "secp256k1",
            "--key-file",
            "-",
        ]),
        "2222",
    );
    let says = String::from_utf8(wrong.stderr).unwrap();
    assert!(
        !wrong.status.success()
            && says.contains("not a private key of this curve")
            && !says.contains("2222")
    );

    soon(|| {
        sealwire(dev.path(), &dev.arguments(&["decrypt", "theirs.json"]))
            .status
            .success()
    });
    assert_eq!(
        dev.ok(&["decrypt", "theirs.json", "--compact"]),
        "{\"n\":42,\"t\":\"hello\",\"p\":\"plain\"}\n"
    );
    // The imported key does not seal: new data is encrypted under the earlier key.
    dev.write("mine.json", "\"x\"");
    let sealed = dev.ok(&["encrypt", "mine.json"]);
    assert!(
        dev.ok(&["inspect", sealed.trim().trim_matches('"')])
            .contains(&listed(&dev)[0].0)
    );
    dev.stop();
}

#[test]
fn settings_are_set_shown_checked_and_followed() {
    let dev = Dev::start();
    let path = dev.path();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    let shared = ["encrypt", "mine.json", "--key-scope", "epoch", "--compact"];
    dev.refused(&shared, "sealwire apps set APP --epoch-ms N");
    dev.operate(&["apps", "create", "other"]);
    let epochs = || {
        let apps: serde_json::Value =
            serde_json::from_str(&dev.operate(&["apps", "list", "--json"])).unwrap();
        let epoch = |app: &serde_json::Value| {
            (
                app["app"].as_str().unwrap().to_owned(),
                app["epoch_ms"].as_u64().unwrap(),
            )
        };
        apps.as_array()
            .unwrap()
            .iter()
            .map(epoch)
            .collect::<Vec<_>>()
    };
    let both = |demo| [("demo".to_owned(), demo), ("other".to_owned(), 0)];
    assert_eq!(epochs(), both(0));
    assert!(
        dev.operate(&["apps", "set", "demo", "--epoch-ms", "15000"])
            .contains("15000")
    );
    assert_eq!(epochs(), both(15_000));
    soon(|| sealwire(path, &dev.arguments(&shared)).status.success());
    dev.write("sealed.json", &dev.ok(&shared));
    assert!(
        dev.ok(&["decrypt", "sealed.json", "--compact"])
            .contains("4242")
    );
    let rotated = dev.operate(&["apps", "rotate", "demo", "--json"]);
    assert!(rotated.contains("\"epoch_ms\":15000"), "{rotated}");
    let set = dev.operate(&["apps", "set", "demo", "--epoch-ms", "0", "--json"]);
    assert_eq!((epochs(), keys(&set)), (both(0).to_vec(), listed(&dev)));
    let set = dev.operate(&["apps", "set", "demo", "--format", "evervault", "--json"]);
    assert!(
        set.contains("\"format\":\"evervault\"")
            && dev
                .operate(&["apps", "list"])
                .contains("demo                     evervault")
    );
    assert!(
        dev.operate(&["apps", "list", "--json"])
            .contains("\"format\":\"native\""),
        "the other app's"
    );
    dev.may_not(
        &["apps", "set", "demo", "--format", "evervault-bare"],
        2,
        "native or evervault",
    );
    dev.may_not(
        &["apps", "set", "demo", "--epoch-ms", "15001"],
        2,
        "0..=15000",
    );
    dev.may_not(&["apps", "set", "demo"], 2, "--epoch-ms");
    dev.may_not(
        &["apps", "set", "nobody", "--epoch-ms", "1"],
        1,
        "app nobody does not exist",
    );
    assert_eq!(epochs(), both(0));
    soon(|| !sealwire(path, &dev.arguments(&shared)).status.success());
    dev.stop();
}

#[test]
fn rotations_that_are_killed_lose_no_key() {
    /// Number of suites that a new app has keys of.
    const SUITES: usize = 5;
    let kills = std::env::var("SEALWIRE_KILL_ROUNDS")
        .map_or(8, |rounds| rounds.parse::<u32>().unwrap().min(100));
    let dev = Dev::start();
    dev.write("mine.json", r#"{"card":"4242"}"#);
    for suite in ["p256", "secp256k1"] {
        dev.ok(&[
            "encrypt",
            "mine.json",
            "--suite",
            suite,
            "--output",
            &format!("{suite}.json"),
        ]);
    }
    let rotate = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        command
            .current_dir(dev.path())
            .args(dev.operators(&["apps", "rotate", "demo"]))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let took = || {
        let start = Instant::now();
        assert!(rotate().wait().unwrap().success());
        start.elapsed()
    };
    let whole = (0..3).map(|_| took()).min().unwrap();
    let (mut ended_early, mut before) = (0, listed(&dev));
    for kill in 0..kills {
        let mut child = rotate();
        std::thread::sleep(whole * kill / kills);
        let _ = child.kill();
        ended_early += u32::from(!child.wait().unwrap().success());
        let after = listed(&dev);
        assert_eq!(after[..before.len()], before, "kill {kill}");
        // At most one more key per suite, and one that the engine still completed after the last
        // kill.
        assert!(after.len() <= before.len() + SUITES + 1);
        before = after;
    }
    println!(
        "{ended_early} of {kills} killed before their end, in up to {whole:?}; {} keys",
        before.len()
    );
    // The next rotation succeeds, the numbers have no gap, and the engine that ran all the time
    // opens and seals.
    assert!(rotate().wait().unwrap().success());
    let after = listed(&dev);
    assert!((before.len() + SUITES..=before.len() + SUITES + 1).contains(&after.len()));
    for suite in ["p256", "secp256k1"] {
        let numbers = numbers(&after, suite);
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        assert!(
            dev.ok(&["decrypt", &format!("{suite}.json"), "--compact"])
                .contains("4242")
        );
        let newest = &after.iter().rfind(|key| key.1 == suite).unwrap().0;
        soon(|| {
            let sealed = dev.ok(&["encrypt", "mine.json", "--suite", suite, "--compact"]);
            let value: serde_json::Value = serde_json::from_str(&sealed).unwrap();
            dev.ok(&["inspect", value["card"].as_str().unwrap()])
                .contains(newest)
        });
    }
    let folder = dev.end();
    assert!(
        ok(folder.path(), &["config", "check"]).contains("is valid: 1 app"),
        "every key unwraps"
    );
}

#[test]
fn rotations_of_several_processes_get_a_number_each() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start_in(folder);
    let children: Vec<Child> = (0..8)
        .map(|_| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
            command
                .current_dir(dev.path())
                .args(dev.operators(&["apps", "rotate", "demo"]))
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let keys = listed(&dev);
    for suite in ["p256", "secp256k1"] {
        assert_eq!(numbers(&keys, suite), (1..=9).collect::<Vec<_>>());
    }
}

#[test]
fn more_than_four_active_keys_on_a_curve_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Dev::start_in(folder);
    let warned = |arguments: &[&str]| {
        let output = sealwire(dev.path(), &dev.operators(arguments));
        assert!(output.status.success(), "{arguments:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        ["p256", "secp256k1"]
            .map(|suite| said.contains(&format!("demo has 5 active keys of suite {suite}")))
    };
    for _ in 2..=4 {
        assert_eq!(
            warned(&["apps", "rotate", "demo", "--suite", "p256"]),
            [false, false]
        );
    }
    assert_eq!(warned(&["apps", "rotate", "demo"]), [true, false]);
    let oldest = listed(&dev)
        .into_iter()
        .find(|key| key.1 == "p256")
        .unwrap()
        .0;
    assert_eq!(
        warned(&["apps", "disable", "demo", &oldest]),
        [false, false]
    );
    assert_eq!(warned(&["apps", "enable", "demo", &oldest]), [true, false]);
}

#[test]
fn collections_are_kept_and_apps_stopped_and_brought_back() {
    let dev = Dev::start();
    let listed = dev.operate(&["collections", "list", "demo"]);
    assert!(
        listed.contains("card 6/4") && listed.contains("people"),
        "{listed}"
    );
    let rules = [
        "--kind",
        "one-way",
        "--format",
        "uuid",
        "--scope",
        "context",
        "--expires-s",
        "60",
        "--json",
    ];
    let made = dev.operate(&[&["collections", "create", "demo", "ids"], &rules[..]].concat());
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let shown = ["kind", "format", "scope"].map(|key| made[0][key].as_str().unwrap());
    assert_eq!(
        (shown, &made[0]["expires_s"]),
        (["one_way", "uuid", "context"], &60.into())
    );
    assert!(
        dev.operate(&["collections", "set", "demo", "ids", "--never"])
            .contains("never")
    );
    dev.may_not(
        &["collections", "delete", "demo", "ids"],
        1,
        "objects of the collection are lost, and this cannot be undone; add --yes",
    );
    assert_eq!(
        dev.operate(&["collections", "delete", "demo", "ids", "--yes"]),
        ""
    );
    assert_eq!(dev.operate(&["collections", "list", "demo"]), listed);
    let create = ["collections", "create", "demo", "people"];
    dev.may_not(
        &[&create[..], &["--kind", "random"]].concat(),
        1,
        "has collection people already",
    );
    dev.may_not(&create, 2, "--kind");
    let digits = [
        "collections",
        "create",
        "demo",
        "d",
        "--kind",
        "random",
        "--format",
        "digits",
        "--first",
        "1",
    ];
    dev.may_not(&digits, 1, "only format \"card\" keeps digits");
    dev.may_not(&["collections", "set", "demo", "people"], 2, "--never");
    dev.may_not(
        &["collections", "list", "nobody"],
        1,
        "app nobody does not exist",
    );

    dev.write("mine.json", "\"x\"");
    for (stop, back, state) in [
        ("disable", "enable", "disabled"),
        ("delete", "restore", "deleting"),
    ] {
        assert!(
            dev.operate(&["apps", stop, "demo"])
                .contains(&format!("app {state}"))
        );
        dev.refused(&["encrypt", "mine.json"], "the app is disabled");
        assert!(!dev.operate(&["apps", back, "demo"]).contains("app "));
        dev.ok(&["encrypt", "mine.json"]);
    }
    let rotated = dev.operate(&["apps", "rotate", "demo", "--token"]);
    assert!(
        rotated.contains("token-2") && !rotated.contains("token-1 "),
        "{rotated}"
    );
    dev.may_not(&["apps", "delete", "demo", "token-1"], 1, "never deleted");
    let instances = dev.operate(&["instances"]);
    assert!(
        instances.contains(&dev.connect) && !instances.contains("behind"),
        "{instances}"
    );
    dev.stop();
}

#[test]
fn values_become_tokens_and_come_back() {
    let dev = Dev::start();
    let mine = r#"{"name":"Zoë","card":"4242424242424242","age":47,"open":"o"}"#;
    dev.write("mine.json", mine);
    let people = ["--collection", "people"];
    let tokens = dev.ok(&[
        &[
            "tokenize",
            "mine.json",
            "-s",
            "$.name",
            "-s",
            "$.age",
            "--compact",
        ],
        &people[..],
    ]
    .concat());
    let value: serde_json::Value = serde_json::from_str(&tokens).unwrap();
    let [name, age] = ["name", "age"].map(|key| value[key].as_str().unwrap().to_owned());
    assert!(name.starts_with("tok_") && age.starts_with("tok_") && value["open"] == "o");
    dev.write("tokens.json", &tokens);
    let back = dev.ok(&[&["detokenize", "tokens.json"], &people[..]].concat());
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(parse(&back), parse(mine), "types and all");

    let cards = ["--collection", "cards"];
    let card = |text: &str| parse(text)["card"].as_str().unwrap().to_owned();
    let [first, second] = [(), ()].map(|()| {
        card(&dev.ok(&[&["tokenize", "mine.json", "-s", "$.card"], &cards[..]].concat()))
    });
    assert!(
        first == second
            && first.starts_with("424242")
            && first.ends_with("4242")
            && first != "4242424242424242"
    );
    let found = dev.ok(&[&["tokens", "find", "4242424242424242"], &cards[..]].concat());
    assert_eq!(found.trim(), first);
    // A value on standard input, which process lists and shell histories do not show.
    for input in [
        "4242424242424242",
        "4242424242424242\n",
        "4242424242424242\r\n",
    ] {
        let found = fed(
            dev.path(),
            &dev.arguments(&[&["tokens", "find", "-"], &cards[..]].concat()),
            input,
        );
        assert_eq!(
            String::from_utf8(found.stdout).unwrap().trim(),
            first,
            "{input:?}"
        );
    }
    dev.refused(
        &[
            &["tokens", "find", "4242424242424242", "--as-json"],
            &cards[..],
        ]
        .concat(),
        "no token",
    );
    dev.refused(
        &[&["tokenize", "mine.json", "-s", "$.name"], &cards[..]].concat(),
        "not a card number",
    );

    let listed = |options: &[&str]| {
        let list = parse(&dev.ok(&[&["tokens", "list", "--json"], &people[..], options].concat()));
        list.as_array()
            .unwrap()
            .iter()
            .map(|token| token["token"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]).len(), 2);
    dev.ok(&[&["tokens", "expire", "--in-s", "0", &name], &people[..]].concat());
    dev.refused(
        &[&["detokenize", "tokens.json"], &people[..]].concat(),
        "not_found",
    );
    let dry = dev.ok(&[&["tokens", "archive", "--dry-run"], &people[..]].concat());
    assert!(dry.contains("1 would be"), "{dry}");
    dev.ok(&[&["tokens", "archive"], &people[..]].concat());
    assert_eq!(
        (listed(&[]), listed(&["--archived"])),
        (vec![age.clone()], vec![name])
    );
    dev.ok(&[&["tokens", "delete", &age], &people[..]].concat());
    assert!(listed(&[]).is_empty());
    dev.stop();
}

#[test]
fn a_file_of_apps_is_written_by_an_engine_and_changed_without_one() {
    let dev = Dev::start();
    let (path, list) = (dev.path(), ["apps", "list", "--json"]);
    assert!(
        dev.operate(&["apps", "export", "apps.json"])
            .contains("records of generation")
    );
    dev.may_not(
        &["apps", "export", "apps.json"],
        1,
        "exists and is not overwritten",
    );
    let in_file = |arguments: &[&str]| ok(path, &[arguments, &["--file", "apps.json"]].concat());
    assert_eq!(in_file(&list), dev.operate(&list));
    let before = dev.operate(&list);
    in_file(&["apps", "create", "other"]);
    in_file(&["apps", "rotate", "other", "--suite", "p256"]);
    in_file(&["collections", "create", "other", "c", "--kind", "random"]);
    assert!(
        in_file(&list).contains("other")
            && in_file(&["collections", "list", "other"]).contains("random")
    );
    // Apps past their deletion time are removed with the next change.
    in_file(&["apps", "delete", "other", "--delay-s", "0"]);
    assert!(!in_file(&list).contains("other"));
    assert_eq!(dev.operate(&list), before, "the engine's are its own");
    refused(
        path,
        &["apps", "create", "demo", "--file", "apps.json"],
        1,
        "app demo exists already",
    );
    dev.stop();
}

#[test]
fn clients_without_permission_for_apps_get_a_remedy() {
    let dev = Dev::start();
    let client = [
        "--cert",
        "sealwire-dev/client.pem",
        "--key",
        "sealwire-dev/client-key.pem",
    ];
    dev.may_not(
        &[&["apps", "list"], &client[..]].concat(),
        1,
        "Check that --cert and --key are those of an operator",
    );
    let list = ["apps", "list", "--connect"];
    refused(
        dev.path(),
        &[&list[..], &[&dev.connect]].concat(),
        1,
        "Give the address of the control listener (control.address)",
    );
    refused(
        dev.path(),
        &[&list[..], &["127.0.0.1:1"]].concat(),
        1,
        "no engine answers at 127.0.0.1:1",
    );
    refused(
        dev.path(),
        &["instances", "--folder", "elsewhere"],
        1,
        "run `sealwire dev`, or give --connect",
    );
    refused(
        dev.path(),
        &[
            "apps",
            "list",
            "--file",
            "a.json",
            "--connect",
            "127.0.0.1:1",
        ],
        2,
        "cannot be used with",
    );
    dev.stop();
}

#[test]
fn the_audit_log_is_shown_verified_and_not_believed_once_it_was_touched() {
    let mut dev = Dev::start();
    std::fs::write(
        dev.folder.path().join("mine.json"),
        "{\"pan\": \"4242424242424242\"}",
    )
    .unwrap();
    dev.ok(&["encrypt", "mine.json", "--output", "sealed.json"]);
    let at = dev.folder.path().to_owned();
    // Reads the trail while the engine writes.
    let shown = ok(
        &at,
        &["audit", "show", "--method", "encrypt", "--tail", "1"],
    );
    assert!(
        shown.contains("ok dev-client encrypt demo, 1 field, "),
        "{shown}"
    );
    assert!(!shown.contains("4242"));
    assert!(ok(&at, &["audit", "verify"]).contains("records 1 to "));
    let anchor = ok(&at, &["audit", "checkpoint"]).trim().to_owned();
    let json = ok(
        &at,
        &[
            "audit",
            "show",
            "--json",
            "--event",
            "call",
            "--since",
            "1h",
            "--principal",
            "dev-operator",
        ],
    );
    let methods: Vec<String> = json
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["method"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    let expected = [
        "apps.create",
        "collections.create",
        "collections.create",
        "roles.list",
        "roles.set",
        "principals.grant",
        "principals.grant",
    ];
    assert_eq!(methods, expected);
    assert_eq!(ok(&at, &["audit", "show", "--outcome", "failed"]), "");
    dev.child.kill().unwrap();
    dev.child.wait().unwrap();

    let said = ok(&at, &["audit", "verify", "--json", "--expect", &anchor]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&said["sound"], &said["keyed"]),
        (&true.into(), &true.into()),
        "{said}"
    );
    let plain = ok(&at, &["audit", "verify", "sealwire-dev/audit"]);
    assert!(plain.contains("without the key"), "{plain}");
    let nothing = ok(
        &at,
        &["audit", "archive", "--to", "moved", "--before", "1h"],
    );
    assert!(
        nothing.contains("nothing to move; the segment that is written always stays"),
        "{nothing}"
    );
    refused(
        &at,
        &["audit", "archive", "sealwire-dev/audit", "--to", "moved"],
        1,
        "--config names",
    );
    refused(&at, &["audit", "verify", "--expect", "1:ab"], 2, "SEQ:HASH");
    refused(
        &at,
        &["audit", "checkpoint", "nowhere"],
        1,
        "head.json is missing",
    );
    let file = at.join("sealwire-dev/audit/audit-0000000000000001.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let line = 1 + text
        .lines()
        .position(|line| line.contains("\"encrypt\""))
        .unwrap();
    std::fs::write(&file, text.replacen("\"encrypt\"", "\"decrypt\"", 1)).unwrap();
    let output = sealwire(&at, &["audit", "verify"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let expected = format!(
        "audit-0000000000000001.jsonl:{line}: record {line}: changed after it was written\n"
    );
    assert!(found.starts_with(&expected), "{found}");
    let kept: String = text
        .lines()
        .take(line)
        .flat_map(|line| [line, "\n"])
        .collect();
    std::fs::write(&file, kept).unwrap();
    let output = sealwire(&at, &["audit", "verify"]);
    let found = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.code() == Some(1) && found.contains("are missing at the end"),
        "{found}"
    );
}

#[test]
fn roles_are_made_given_asked_about_and_taken_away() {
    let dev = Dev::start();
    let listed = dev.operate(&["roles", "list", "--json"]);
    assert!(
        listed.contains("\"role\":\"relay\"") && listed.contains("\"role\":\"administrator\""),
        "{listed}"
    );
    let made = dev.operate(&[
        "roles",
        "set",
        "support",
        "decrypt,tokens.get apps=demo reason",
        "encrypt apps=*",
    ]);
    assert_eq!(
        made,
        "support\n  decrypt,tokens.get apps=demo reason\n  encrypt apps=*\n"
    );
    dev.may_not(
        &["roles", "set", "support", "fly apps=demo"],
        1,
        "\"fly\" is not an operation",
    );
    dev.may_not(
        &["roles", "set", "support", "encrypt"],
        1,
        "apps=NAME,NAME, or apps=* for all",
    );
    dev.may_not(
        &["roles", "set", "administrator", "encrypt apps=*"],
        1,
        "built in",
    );
    dev.may_not(
        &["principals", "grant", "cn:Anna", "none"],
        1,
        "role none does not exist",
    );
    dev.may_not(
        &["principals", "grant", "not a host", "support"],
        1,
        "cn: and a common name",
    );
    dev.operate(&["principals", "grant", "cn:Anna", "support"]);
    assert!(dev.operate(&["principals", "list"]).contains("cn:Anna"));
    let check = ["principals", "check", "cn:Anna", "decrypt", "demo"];
    dev.may_not(&check, 1, "no: decrypt on app demo needs a reason");
    assert_eq!(
        dev.operate(&[&check[..], &["--reason", "ticket 7"]].concat()),
        "yes, by role support (access.mode = \"enforce\")\n"
    );
    let guesser = [
        "roles",
        "set",
        "guesser",
        "decrypt apps=demo mask=hash",
        "encrypt apps=demo",
    ];
    let warned = |arguments: &[&str]| {
        String::from_utf8(sealwire(dev.path(), &dev.operators(arguments)).stderr).unwrap()
    };
    assert!(warned(&guesser).starts_with(
        "warning: callers of this role see values through a mask and can find them out"
    ));
    assert_eq!(
        warned(
            &[
                &guesser[..3],
                &["decrypt apps=demo mask=hash hourly=100", guesser[4]]
            ]
            .concat()
        ),
        ""
    );
    dev.may_not(
        &["principals", "check", "cn:Anna", "rewrap", "demo"],
        1,
        "no role of this principal grants rewrap",
    );
    dev.may_not(
        &["principals", "check", "Anna", "encrypt", "demo"],
        1,
        "this principal has no role",
    );
    dev.may_not(
        &["roles", "delete", "support"],
        1,
        "role support is in use by cn:Anna",
    );
    dev.operate(&["principals", "revoke", "cn:Anna"]);
    dev.operate(&["roles", "delete", "support"]);
    dev.may_not(
        &["principals", "revoke", "cn:Anna", "support"],
        1,
        "cn:Anna does not have role support",
    );

    // A role that requires a reason: the client's command must give one.
    dev.write("mine.json", r#"{"a":1}"#);
    dev.operate(&["roles", "set", "relay", "encrypt apps=demo reason"]);
    dev.refused(
        &["encrypt", "mine.json"],
        "encrypt on app demo needs a reason",
    );
    dev.ok(&["encrypt", "mine.json", "--reason", "ticket 7"]);
    dev.refused(
        &["decrypt", "mine.json", "--reason", "ticket 7"],
        "no role of this principal grants decrypt",
    );

    // Also on a file, which includes roles and principals.
    dev.operate(&["apps", "export", "apps.json"]);
    let in_file =
        |arguments: &[&str]| ok(dev.path(), &[arguments, &["--file", "apps.json"]].concat());
    for list in [["roles", "list"], ["principals", "list"]] {
        assert_eq!(in_file(&list), dev.operate(&list));
    }
    // The last principal that can grant roles keeps that right, whatever role it has it from.
    let locks_out = |arguments: &[&str]| {
        let done = sealwire(dev.path(), &[arguments, &["--file", "apps.json"]].concat());
        let says = String::from_utf8(done.stderr).unwrap();
        assert!(
            !done.status.success() && says.contains("nobody could grant roles any more"),
            "{arguments:?}: {says}"
        );
    };
    locks_out(&["principals", "revoke", "dev-operator"]);
    locks_out(&["principals", "revoke", "dev-operator", "administrator"]);
    in_file(&[
        "roles",
        "set",
        "guest",
        "principals.grant apps=* until=2099-01-01T00:00:00Z",
    ]);
    in_file(&["principals", "grant", "cn:Guest", "guest"]);
    locks_out(&["principals", "revoke", "dev-operator"]);
    in_file(&["roles", "set", "granter", "principals.grant apps=*"]);
    in_file(&["principals", "grant", "cn:Eve", "granter"]);
    in_file(&["principals", "revoke", "dev-operator", "administrator"]);
    locks_out(&["principals", "revoke", "cn:Eve"]);
    locks_out(&["roles", "set", "granter", "principals.list apps=*"]);
    in_file(&["roles", "set", "granter", "principals.grant apps=*"]);
    in_file(&["principals", "grant", "dev-operator", "administrator"]);
    in_file(&["roles", "set", "granter", "principals.list apps=*"]);
    in_file(&["principals", "grant", "cn:Anna", "relay"]);
    assert!(in_file(&["principals", "list"]).contains("cn:Anna"));
    dev.stop();
}

#[test]
fn a_host_makes_an_administrator_where_nobody_can_log_in_as_one() {
    let mut dev = Dev::start_to_come_again();
    let recover = |folder: &Path, principal, status, says| {
        let config = ["--config", "sealwire-dev/sealwire.toml"];
        refused(
            folder,
            &[&["principals", "recover", principal], &config[..]].concat(),
            status,
            says,
        );
    };
    recover(dev.path(), "cn:Frank", 1, "stop the engine");
    // Not over a connection.
    dev.may_not(
        &["principals", "recover", "cn:Frank"],
        2,
        "unexpected argument '--connect'",
    );
    dev.kill();
    std::fs::write(
        dev.path().join("sealwire-dev/other.toml"),
        std::fs::read_to_string(dev.path().join("sealwire-dev/sealwire.toml"))
            .unwrap()
            .replace("\"state\"", "\"absent\""),
    )
    .unwrap();
    let other = [
        "principals",
        "recover",
        "cn:Frank",
        "--config",
        "sealwire-dev/other.toml",
    ];
    refused(dev.path(), &other, 1, "does not exist");
    recover(dev.path(), "no name!", 1, "principal must be a name");
    let config = ["--config", "sealwire-dev/sealwire.toml"];
    let recovered = ok(
        dev.path(),
        &[&["principals", "recover", "cn:Frank"], &config[..]].concat(),
    );
    assert!(
        recovered.starts_with("cn:Frank has the role administrator in state.folder "),
        "{recovered}"
    );
    let dev = dev.again();
    let principals = dev.operate(&["principals", "list"]);
    let frank = principals
        .lines()
        .find(|line| line.starts_with("cn:Frank"))
        .unwrap();
    assert!(frank.ends_with(" administrator"), "{principals}");
    dev.may_not(
        &["principals", "check", "cn:Frank", "decrypt", "demo"],
        1,
        "no role of this principal grants decrypt",
    );
    dev.stop();
}

/// A key that other users can read, or a folder in which they can replace it, stops every command
/// that uses the key.
#[test]
fn exposed_key_files_are_rejected_by_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    let home = path.join("sealwire-dev");
    let chmod = |file: &str, mode| {
        std::fs::set_permissions(home.join(file), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let mode = |file: &str| {
        std::fs::metadata(home.join(file))
            .unwrap()
            .permissions()
            .mode()
    };
    // The default configuration is checked on its own.
    let config = home.join("sealwire.toml").display().to_string();
    let tls_key = "server-key.pem";
    assert!(home.join(tls_key).exists());
    let commands: [&[&str]; 3] = [&["serve"], &["config", "check"], &["kek", "init"]];
    for (file, bad, commands, says) in [
        ("kek", 0o644, &commands[..], "mode 644"),
        ("kek", 0o660, &commands[..], "its group can change it"),
        (
            ".",
            0o777,
            &commands[..],
            "other users can replace files in the folder",
        ),
        (tls_key, 0o644, &commands[..2], "mode 644"),
        ("ca.pem", 0o666, &commands[..2], "other users can change it"),
    ] {
        let good = mode(file);
        chmod(file, bad);
        for command in commands {
            let command = [*command, &["--config", &config][..]].concat();
            refused(path, &command, 1, says);
            refused(path, &command, 1, "run `chmod ");
        }
        chmod(file, good);
    }
    for good in [0o600, 0o400, 0o640, 0o440] {
        chmod("kek", good);
        assert!(
            ok(path, &["config", "check"]).contains("is valid"),
            "{good:o}"
        );
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "exposed_key_files_are_rejected_by_every_command: owners were not tested, which needs root"
        );
        return;
    }
    for (file, remedy) in [
        ("kek", "sealwire-dev/kek`"),
        (tls_key, "server-key.pem`"),
        (".", "put the file into one of root"),
    ] {
        std::os::unix::fs::chown(home.join(file), Some(54_321), None).unwrap();
        let check = ["config", "check", "--config", &config];
        refused(path, &check, 1, "can be changed by its owner, user 54321");
        refused(path, &check, 1, remedy);
        std::os::unix::fs::chown(home.join(file), Some(0), None).unwrap();
    }
    assert!(ok(path, &["config", "check"]).contains("is valid"));
}

/// Runs a program whose standard output nobody reads. `all`: nor its standard error.
fn run_without_reader(mut command: Command, all: bool) -> (Option<i32>, String) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    if all {
        command.stderr(writer.try_clone().unwrap());
    } else {
        command.stderr(Stdio::piped());
    }
    let output = command
        .stdin(Stdio::null())
        .stdout(writer)
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn commands_end_when_their_output_is_closed_or_full() {
    let dev = Dev::start();
    let path = dev.path();
    std::fs::write(path.join("a.json"), r#"{"card":"4242"}"#).unwrap();
    std::fs::write(path.join("a.csv"), "name,card\nZoe,4242424242424242\n").unwrap();
    std::fs::write(
        path.join("rules.toml"),
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"name\"\nmask = \"redact\"\n",
    )
    .unwrap();
    ok(
        path,
        &dev.arguments(&["tokenize", "a.json", "--collection", "people"]),
    );
    let with_engine: &[&[&str]] = &[
        &["encrypt", "a.json"],
        &["decrypt", "a.json"],
        &["rewrap", "a.json"],
        &["tokenize", "a.json", "--collection", "people"],
        &["health"],
        &["info"],
        &["info", "--json"],
        &["tokens", "list", "--collection", "people"],
    ];
    let of_operators: &[&[&str]] = &[
        &["keys", "census", "demo"],
        &["keys", "census", "demo", "--json"],
        &["apps", "list"],
        &["apps", "list", "--json"],
        &["collections", "list", "demo"],
        &["collections", "list", "demo", "--json"],
        &["instances"],
        &["instances", "--json"],
        &["roles", "list"],
        &["roles", "list", "--json"],
        &["principals", "list"],
        &["principals", "list", "--json"],
        &["principals", "check", "dev-client", "encrypt", "demo"],
    ];
    let alone: &[&[&str]] = &[
        &["config", "template"],
        &["mask", "check", "a.csv", "--rules", "rules.toml"],
        &["mask", "discover", "a.csv"],
        &["mask", "discover", "a.csv", "--json"],
    ];
    let mut all: Vec<Vec<&str>> = with_engine
        .iter()
        .map(|arguments| dev.arguments(arguments))
        .collect();
    all.extend(
        of_operators
            .iter()
            .map(|arguments| dev.operators(arguments)),
    );
    all.extend(alone.iter().map(|arguments| arguments.to_vec()));
    for arguments in all {
        let command = || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
            command.current_dir(path).args(&arguments);
            command
        };
        let (status, said) = run_without_reader(command(), false);
        assert_eq!((status, &*said), (Some(141), ""), "{arguments:?}");
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = command()
            .stdin(Stdio::null())
            .stdout(full)
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert_eq!(
            said.trim_end(),
            "sealwire: standard output: No space left on device (os error 28)",
            "{arguments:?}"
        );
    }
}

#[test]
fn output_that_nobody_reads_ends_a_program_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    ok(path, &[&DEV[..], &["--demo-only"]].concat());
    std::fs::write(path.join("a.json"), r#"{"card":"4242"}"#).unwrap();
    let commands: [&[&str]; 9] = [
        &["config", "template"],
        &["config", "check"],
        &["kek", "init"],
        &["kek", "list"],
        &["kek", "list", "--json"],
        &["audit", "show"],
        &["audit", "verify"],
        &["doctor"],
        &[
            "dev",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--control",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
            "--demo-only",
        ],
    ];
    for arguments in commands {
        for all in [false, true] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
            command.current_dir(path).args(arguments);
            if arguments == ["kek", "init"] && all {
                continue;
            }
            let (status, said) = run_without_reader(command, all);
            assert!(
                !said.contains("panicked") && !said.contains("Broken pipe"),
                "{arguments:?}: {said}"
            );
            assert_eq!(status, Some(141), "{arguments:?}, {all}: {said}");
        }
    }
    assert!(
        ok(path, &["kek", "list"]).contains("root key "),
        "what was done stays done"
    );
    // Errors of a command stay errors, also where nobody hears of them.
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    command
        .current_dir(path)
        .args(["config", "check", "--config", "absent.toml"]);
    assert_eq!(run_without_reader(command, true).0, Some(64));
    // Another failure of standard output is an error.
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
    let output = command
        .args(["config", "template"])
        .stdout(full)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains("standard output: No space left"),
        "{said}"
    );
}
