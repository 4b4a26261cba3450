//! Texts of failures in the situations that cause them, as `docs/messages.md` lists them.
//!
//! Every text comes from the program, or from the configuration code of the relay. The page is
//! written anew with `SEALWIRE_BLESS=1`.

use std::fmt::Write as _;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use super::{Dev, sealwire};

/// A change of the configuration that `sealwire dev` writes: replaces the first text by the second
/// one. An empty first text appends the second one.
type Change = (&'static str, &'static str);

/// Mistakes in the engine's configuration, found by `sealwire config check`.
const ENGINE: &[(&str, Change)] = &[
    (
        "A line has two equals signs",
        ("[state]", "x = = 3\n[state]"),
    ),
    (
        "A setting occurs twice",
        ("folder = \"state\"", "folder = \"a\"\nfolder = \"b\""),
    ),
    ("A section is misspelt", ("[state]", "[stat]")),
    (
        "A setting is misspelt",
        ("folder = \"state\"", "foldr = \"state\""),
    ),
    (
        "A setting does not exist",
        ("folder = \"state\"", "colour = \"blue\""),
    ),
    (
        "A number where a text is needed",
        ("folder = \"state\"", "folder = 3"),
    ),
    (
        "A text where a number is needed",
        ("", "\n[limits]\ndepth_max = \"many\"\n"),
    ),
    (
        "A number is too small",
        ("", "\n[limits]\nconnections_max = 0\n"),
    ),
    (
        "A number is too large",
        ("", "\n[limits]\ndepth_max = 100_000\n"),
    ),
    ("A number is negative", ("", "\n[limits]\ndepth_max = -1\n")),
    (
        "A fraction is out of range",
        ("", "\n[traces]\nsample_ratio = 2\n"),
    ),
    (
        "An address without a port",
        ("address = \"127.0.0.1:7443\"", "address = \"localhost\""),
    ),
    (
        "A port that does not exist",
        (
            "address = \"127.0.0.1:7443\"",
            "address = \"127.0.0.1:70000\"",
        ),
    ),
    (
        "Two listeners on one address",
        (
            "address = \"127.0.0.1:7445\"",
            "address = \"127.0.0.1:7443\"",
        ),
    ),
    (
        "A choice that does not exist",
        ("", "\n[log]\nformat = \"xml\"\n"),
    ),
    (
        "A wrong access mode",
        ("[access]", "[access]\nmode = \"audit\""),
    ),
    (
        "A wrong order of names",
        ("[access]", "[access]\nname_order = [\"email\"]"),
    ),
    (
        "A wrong tenant weight",
        ("", "\n[schedule]\nweights = [\"shop\"]\n"),
    ),
    (
        "No operators are listed, and any client could be one",
        ("principals = [\"dev-operator\"]", "principals = []"),
    ),
    (
        "No client authority",
        ("client_ca = \"ca.pem\"", "client_ca = \"\""),
    ),
    (
        "The certificate file is missing",
        ("certificate = \"server.pem\"", "certificate = \"gone.pem\""),
    ),
    (
        "The certificate file holds something else",
        (
            "certificate = \"server.pem\"",
            "certificate = \"sealwire.toml\"",
        ),
    ),
    (
        "The certificate file holds a key",
        (
            "certificate = \"server.pem\"",
            "certificate = \"server-key.pem\"",
        ),
    ),
    (
        "The key belongs to another certificate",
        ("key = \"server-key.pem\"", "key = \"client-key.pem\""),
    ),
    (
        "The key is readable by others",
        ("key = \"server-key.pem\"", "key = \"exposed-key.pem\""),
    ),
    (
        "The client authority is missing",
        ("client_ca = \"ca.pem\"", "client_ca = \"gone.pem\""),
    ),
    (
        "The revocation list is missing",
        (
            "client_ca = \"ca.pem\"",
            "client_ca = \"ca.pem\"\nclient_crl = \"gone.crl\"",
        ),
    ),
    (
        "The file of the key-encryption key is missing",
        ("file = \"kek\"", "file = \"gone\""),
    ),
    (
        "The key-encryption key itself stands in the setting",
        (
            "file = \"kek\"",
            "file = \"00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff\"",
        ),
    ),
    (
        "A provider that does not exist",
        ("provider = \"file\"", "provider = \"vault\""),
    ),
    (
        "The variable of the key-encryption key is not set",
        ("provider = \"file\"", "provider = \"environment\""),
    ),
    (
        "The providers' file is missing",
        ("file = \"kek\"", "providers = \"gone.toml\""),
    ),
    (
        "PostgreSQL without a URL",
        ("[state]", "[state]\nmode = \"postgres\""),
    ),
    (
        "A URL of another database",
        (
            "[state]",
            "[postgres]\nurl = \"mysql://db\"\n[state]\nmode = \"postgres\"",
        ),
    ),
    (
        "A password in the URL",
        (
            "[state]",
            "[postgres]\nurl = \"postgres://u:hunter2@db/x\"\n[state]\nmode = \"postgres\"",
        ),
    ),
    (
        "An audit failure mode that does not exist",
        ("[audit]", "[audit]\non_failure = \"ignore\""),
    ),
    (
        "A trace collector over HTTPS",
        ("", "\n[traces]\nendpoint = \"https://collector:4318\"\n"),
    ),
    (
        "A default deadline above the longest one",
        ("", "\n[limits]\ndeadline_ms_default = 700_000\n"),
    ),
    (
        "Too little memory for the longest request",
        ("", "\n[schedule]\nmemory_mib = 1\n"),
    ),
    (
        "A token algorithm with a shared secret",
        ("jwks_file", "algorithms = [\"HS256\"]\njwks_file"),
    ),
    (
        "A token issuer without an audience",
        ("audiences = [\"sealwire\"]", "audiences = []"),
    ),
    (
        "A token issuer without keys",
        ("jwks_file = \"jwks.json\"", "jwks_file = \"\""),
    ),
    (
        "The key set of a token issuer is missing",
        ("jwks_file = \"jwks.json\"", "jwks_file = \"gone.json\""),
    ),
    (
        "The key set of a token issuer holds something else",
        ("jwks_file = \"jwks.json\"", "jwks_file = \"ca.pem\""),
    ),
    (
        "A key set over plain HTTP",
        (
            "jwks_file = \"jwks.json\"",
            "jwks_url = \"http://ci.example/keys\"\njwks_ca = \"ca.pem\"",
        ),
    ),
    (
        "A key set at a URL, and no authority of its server",
        (
            "jwks_file = \"jwks.json\"",
            "jwks_url = \"https://ci.example/keys\"",
        ),
    ),
    (
        "A token issuer without the HTTP listener",
        (
            "address = \"127.0.0.1:0\"\n\n[admin]",
            "address = \"\"\n\n[admin]",
        ),
    ),
];

/// Mistakes in the relay's configuration: the text of the file.
const RELAY: &[(&str, Change)] = &[
    (
        "A section is misspelt",
        ("[upstream.shop]", "[upstraem.shop]"),
    ),
    (
        "A setting is misspelt",
        ("format = \"json\"", "fromat = \"json\""),
    ),
    (
        "A choice that does not exist",
        ("format = \"json\"", "format = \"xml\""),
    ),
    (
        "No engine",
        ("endpoints = [\"engine.internal:7443\"]", "endpoints = []"),
    ),
    (
        "An engine without a port",
        ("\"engine.internal:7443\"", "\"engine.internal\""),
    ),
    (
        "A listener without a port",
        ("\"0.0.0.0:8443\"", "\"0.0.0.0\""),
    ),
    (
        "A listener with half of its certificate",
        ("key = \"/etc/sealwire-relay/public-key.pem\"\n", ""),
    ),
    (
        "A client policy that does not exist",
        ("clients = \"mtls\"", "clients = \"some\""),
    ),
    (
        "Mutual TLS without an authority",
        ("client_ca = \"/etc/sealwire-relay/client-ca.pem\"\n", ""),
    ),
    (
        "An upstream without a scheme",
        ("\"https://shop.internal:8443\"", "\"shop.internal:8443\""),
    ),
    (
        "An upstream with a query",
        (
            "\"https://shop.internal:8443\"",
            "\"https://shop.internal:8443/?a=b\"",
        ),
    ),
    (
        "A network that does not exist",
        ("\"10.0.0.0/8\"", "\"10.0.0.0/99\""),
    ),
    (
        "A route to an unknown upstream",
        ("upstream = \"shop\"\napp", "upstream = \"shops\"\napp"),
    ),
    (
        "A route of an unknown listener",
        (
            "listen = \"public\"\npath = \"/orders/{*rest}\"",
            "listen = \"private\"\npath = \"/orders/{*rest}\"",
        ),
    ),
    (
        "A path with an open brace",
        ("\"/orders/{*rest}\"", "\"/orders/{id\""),
    ),
    (
        "A path without a slash",
        ("\"/orders/{*rest}\"", "\"orders\""),
    ),
    ("A route without rules", ("pass = true\n", "")),
    ("A rule without an app", ("app = \"shop\"\n", "")),
    (
        "An action that does not exist",
        ("action = \"encrypt\"", "action = \"hide\""),
    ),
    (
        "A selection that is no path",
        (
            "select = [\"$.card.number\"]\nrequired",
            "select = [\"card.number\"]\nrequired",
        ),
    ),
    (
        "A rule without a selection",
        (
            "select = [\"$.card.number\"]\nrequired",
            "select = []\nrequired",
        ),
    ),
];

/// Where a command is sent.
#[derive(Clone, Copy, PartialEq)]
enum To {
    /// No address is added.
    Nowhere,
    /// The listener of requests.
    Requests,
    /// The listener of operators.
    Operators,
}

/// Commands that fail, and where they are sent. A `~` is a space within an argument. `doc.json`, `sealed.json` and the like are written
/// by [`write_documents`].
const COMMANDS: &[(&str, To, &str)] = &[
    ("A command is misspelt", To::Nowhere, "encrpyt doc.json"),
    (
        "An option is misspelt",
        To::Nowhere,
        "encrypt doc.json --selct $.name",
    ),
    (
        "An option has no such value",
        To::Nowhere,
        "encrypt doc.json --suite rsa",
    ),
    ("The document is missing", To::Requests, "encrypt gone.json"),
    ("The document is empty", To::Requests, "encrypt empty.json"),
    ("The document is not JSON", To::Requests, "encrypt bad.json"),
    (
        "The file holds two documents",
        To::Requests,
        "encrypt two.json",
    ),
    ("A key occurs twice", To::Requests, "encrypt twice.json"),
    (
        "The output is an input",
        To::Requests,
        "encrypt doc.json --output doc.json",
    ),
    (
        "The output's folder is missing",
        To::Requests,
        "encrypt doc.json --output gone/out.json",
    ),
    (
        "A selection does not start at the root",
        To::Requests,
        "encrypt doc.json --select name",
    ),
    (
        "A selection ends too early",
        To::Requests,
        "encrypt doc.json --select $.a[",
    ),
    (
        "A selection matches nothing",
        To::Requests,
        "encrypt doc.json --select $.nope",
    ),
    (
        "The app does not exist",
        To::Requests,
        "encrypt doc.json --app shop",
    ),
    (
        "The app's name is malformed",
        To::Requests,
        "encrypt doc.json --app sh*p",
    ),
    (
        "The context is another one",
        To::Requests,
        "decrypt sealed.json --context other",
    ),
    (
        "An envelope was altered",
        To::Requests,
        "decrypt altered.json",
    ),
    ("An envelope was cut", To::Requests, "inspect sw1:abc"),
    ("A text is no envelope", To::Requests, "inspect hello"),
    (
        "The collection does not exist",
        To::Requests,
        "tokenize doc.json --collection gone",
    ),
    (
        "A value has not the collection's format",
        To::Requests,
        "tokenize doc.json --select $.name --collection cards",
    ),
    (
        "A role is missing",
        To::Requests,
        "objects list --collection people",
    ),
    (
        "Nothing listens at the address",
        To::Nowhere,
        "health --connect 127.0.0.1:1",
    ),
    (
        "The address has no port",
        To::Nowhere,
        "health --connect localhost",
    ),
    (
        "The address has a port above 65535",
        To::Nowhere,
        "health --connect localhost:99999",
    ),
    (
        "A data request at the operators' listener",
        To::Operators,
        "encrypt doc.json",
    ),
    (
        "An operator's request at the data listener",
        To::Requests,
        "apps list",
    ),
    (
        "A client's certificate at the operators' listener",
        To::Operators,
        "apps list --cert sealwire-dev/client.pem --key sealwire-dev/client-key.pem",
    ),
    (
        "The client's certificate is missing",
        To::Requests,
        "health --cert gone.pem --key sealwire-dev/client-key.pem",
    ),
    (
        "The client's key belongs to another certificate",
        To::Requests,
        "health --cert sealwire-dev/client.pem --key sealwire-dev/operator-key.pem",
    ),
    (
        "The engine's authority is another one",
        To::Requests,
        "health --ca other/ca.pem",
    ),
    (
        "The client's authority is another one",
        To::Requests,
        "health --cert other/client.pem --key other/client-key.pem",
    ),
    ("The app exists already", To::Operators, "apps create demo"),
    (
        "The new app's name is malformed",
        To::Operators,
        "apps create sh*p",
    ),
    (
        "An app to rotate does not exist",
        To::Operators,
        "apps rotate shop",
    ),
    (
        "An app to delete does not exist",
        To::Operators,
        "apps delete shop",
    ),
    (
        "A key version does not exist",
        To::Operators,
        "apps disable demo ffffffffff",
    ),
    (
        "The collection exists already",
        To::Operators,
        "collections create demo people --kind random",
    ),
    (
        "A collection to list has no app",
        To::Operators,
        "collections list shop",
    ),
    (
        "A collection to delete does not exist",
        To::Operators,
        "collections delete demo gone --yes",
    ),
    (
        "A property has no such type",
        To::Operators,
        "collections create demo staff --objects --property age:number",
    ),
    (
        "A grant is malformed",
        To::Operators,
        "roles set helpdesk decrypt~apps=demo~weekly=3",
    ),
    (
        "A grant names no operation",
        To::Operators,
        "roles set helpdesk encrpyt~apps=demo",
    ),
    (
        "A built-in role is changed",
        To::Operators,
        "roles set administrator decrypt~apps=*",
    ),
    ("A role is in use", To::Operators, "roles delete relay"),
    (
        "A role to delete does not exist",
        To::Operators,
        "roles delete ghost",
    ),
    (
        "A role to grant does not exist",
        To::Operators,
        "principals grant shop.internal ghost",
    ),
    (
        "The last administrator gives up the role",
        To::Operators,
        "principals revoke dev-operator administrator",
    ),
    (
        "A permission is missing",
        To::Operators,
        "principals check shop.internal encrypt demo",
    ),
    (
        "Keys to count belong to no app",
        To::Operators,
        "keys census shop",
    ),
    (
        "Rows to rewrap belong to no app",
        To::Operators,
        "keys rewrap shop",
    ),
    ("The store has no root key", To::Operators, "root rotate"),
    (
        "A provider to generate a key in is not configured",
        To::Nowhere,
        "kek generate hsm",
    ),
    ("The state is in use by an engine", To::Nowhere, "kek list"),
    (
        "The engine runs already",
        To::Nowhere,
        "serve --config sealwire-dev/sealwire.toml",
    ),
    (
        "The configuration is missing",
        To::Nowhere,
        "serve --config gone.toml",
    ),
    (
        "The trail to verify is missing",
        To::Nowhere,
        "audit verify gone",
    ),
    (
        "The trail was altered",
        To::Nowhere,
        "audit verify altered-audit",
    ),
    (
        "No share of a recovery key was given",
        To::Nowhere,
        "recovery check",
    ),
    (
        "The configuration of a store to copy is missing",
        To::Nowhere,
        "store migrate --from gone.toml --to sealwire-dev/sealwire.toml",
    ),
    (
        "The key of a signer is malformed",
        To::Nowhere,
        "seal doc.json --select $.name --public-keys gone.json --signer 00",
    ),
    (
        "The rules of a mask are missing",
        To::Requests,
        "mask file doc.json --rules gone.toml --out masked.json",
    ),
    (
        "A masking function does not exist (scramble)",
        To::Requests,
        "mask file doc.json --rules function.toml --out masked.json",
    ),
    (
        "A masking rule is misspelt (paht)",
        To::Requests,
        "mask file doc.json --rules misspelt.toml --out masked.json",
    ),
    (
        "A masking function has a wrong value (partial(last=x))",
        To::Requests,
        "mask file doc.json --rules value.toml --out masked.json",
    ),
    (
        "The format of a file to mask is not known",
        To::Requests,
        "mask file doc.xyz --rules valid.toml --out masked.xyz",
    ),
];

fn write_documents(dev: &Dev) {
    // The file's mode would else depend on the mask of the process that runs the test.
    let certificate = dev.path().join("sealwire-dev/server.pem");
    std::fs::set_permissions(certificate, Permissions::from_mode(0o644)).unwrap();
    let key = dev.path().join("sealwire-dev/server-key.pem");
    let exposed = key.with_file_name("exposed-key.pem");
    std::fs::copy(key, &exposed).unwrap();
    std::fs::set_permissions(exposed, Permissions::from_mode(0o644)).unwrap();
    for (name, text) in [
        (
            "doc.json",
            r#"{"id": 7, "name": "Zoe", "card": "4242424242424242"}"#,
        ),
        ("doc.xyz", "x"),
        ("empty.json", ""),
        ("bad.json", r#"{"id": 7, "name": }"#),
        ("two.json", "{} {}"),
        ("twice.json", r#"{"a": 1, "a": 2}"#),
        (
            "valid.toml",
            "unknown = \"keep\"\n[[rule]]\npath = \"$.name\"\nmask = \"redact\"\n",
        ),
        (
            "function.toml",
            "unknown = \"keep\"\n[[rule]]\npath = \"$.name\"\nmask = \"scramble\"\n",
        ),
        (
            "misspelt.toml",
            "unknown = \"keep\"\n[[rule]]\npaht = \"$.name\"\nmask = \"redact\"\n",
        ),
        (
            "value.toml",
            "unknown = \"keep\"\n[[rule]]\npath = \"$.name\"\nmask = \"partial(last=x)\"\n",
        ),
    ] {
        dev.write(name, text);
    }
    let sealed = dev.ok(&["encrypt", "doc.json", "--select", "$.name"]);
    dev.write("sealed.json", &sealed);
    let end = sealed.find("\"card\"").unwrap();
    let altered = sealed[..end].trim_end().len() - 4;
    let letter = if sealed.as_bytes()[altered] == b'A' {
        "B"
    } else {
        "A"
    };
    dev.write(
        "altered.json",
        &[&sealed[..altered], letter, &sealed[altered + 1..]].concat(),
    );
}

/// Replaces what differs from run to run.
struct Normalizer {
    names: Vec<(String, &'static str)>,
}

/// Stands in a row whose situation does not fail. The test then fails at the end, with all such rows.
const NO_FAILURE: &str = "NO FAILURE";

impl Normalizer {
    /// Returns the text of a failed command.
    fn failure(&self, output: &Output) -> String {
        let text = self.apply(&String::from_utf8_lossy(&output.stderr));
        if output.status.success() || text.trim().is_empty() {
            return NO_FAILURE.to_owned();
        }
        text
    }

    fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (from, to) in &self.names {
            text = text.replace(from.as_str(), to);
        }
        replace_after(
            &mut text,
            "in use by process ",
            |c| c.is_ascii_digit(),
            "4711",
        );
        replace_after(
            &mut text,
            "mode 644, owner ",
            |c| c.is_ascii_digit() || c == ':',
            "1000:1000:",
        );
        text
    }
}

/// Replaces the characters of one kind after a marker.
fn replace_after(text: &mut String, marker: &str, is_replaced: fn(char) -> bool, new: &str) {
    let Some(start) = text.find(marker).map(|start| start + marker.len()) else {
        return;
    };
    let length = text[start..]
        .find(|c| !is_replaced(c))
        .unwrap_or(text.len() - start);
    text.replace_range(start..start + length, new);
}

/// Adds a line of the page's table.
fn write_row(page: &mut String, situation: &str, trigger: &str, text: &str) {
    let cell = |text: &str| {
        text.trim()
            .replace('|', "\\|")
            .replace('<', "&lt;")
            .replace('\n', "<br>")
    };
    let _ = writeln!(
        page,
        "| {situation} | `{}` | {} |",
        cell(trigger),
        cell(text)
    );
}

fn apply_change(text: &str, (from, to): Change) -> String {
    if from.is_empty() {
        return text.to_owned() + to;
    }
    assert!(text.contains(from), "{from} is not in the configuration");
    text.replacen(from, to, 1)
}

/// Returns the changed lines of a change.
fn trigger_of((from, to): Change) -> String {
    let is_new = |line: &&str| !line.is_empty() && from.lines().all(|old| old != *line);
    let changed: Vec<&str> = to.lines().filter(is_new).collect();
    if changed.is_empty() {
        return format!("without {}", from.trim());
    }
    changed.join(" ")
}

fn engine_rows(dev: &Dev, normalizer: &Normalizer, page: &mut String) {
    let path = dev.path().join("sealwire-dev/sealwire.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = [("listen", "7443"), ("admin", "7444"), ("control", "7445")]
        .into_iter()
        .fold(text, |text, (section, port)| {
            let header = format!("[{section}]\naddress = \"127.0.0.1:");
            text.replace(&format!("{header}0\""), &format!("{header}{port}\""))
        });
    for (situation, change) in ENGINE {
        let changed = apply_change(&text, *change);
        dev.write("sealwire-dev/engine.toml", &changed);
        let output = sealwire(
            dev.path(),
            &["config", "check", "-c", "sealwire-dev/engine.toml"],
        );
        let error = normalizer.failure(&output);
        assert!(
            !error.contains("00112233") && !error.contains("hunter2"),
            "{situation}: {error}"
        );
        write_row(page, situation, &trigger_of(*change), &error);
    }
}

fn relay_rows(page: &mut String) {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(root().join("ops/relay/relay.toml")).unwrap();
    let file = folder.path().join("relay.toml");
    for (situation, change) in RELAY {
        std::fs::write(&file, apply_change(&text, *change)).unwrap();
        let errors = sealwire_relay::config::load(&file)
            .and_then(|config| sealwire_relay::config::compile(&config))
            .map(drop);
        let text = errors.map_or_else(|errors| errors.to_string(), |()| NO_FAILURE.to_owned());
        write_row(page, situation, &trigger_of(*change), &text);
    }
}

fn command_rows(dev: &Dev, normalizer: &Normalizer, page: &mut String) {
    for (situation, to, command) in COMMANDS {
        let words: Vec<String> = command
            .split(' ')
            .map(|word| word.replace('~', " "))
            .collect();
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        let arguments = match to {
            To::Nowhere => arguments,
            To::Requests => dev.arguments(&arguments),
            To::Operators => dev.operators(&arguments),
        };
        let output = sealwire(dev.path(), &arguments);
        let error = normalizer.failure(&output);
        let mut shown = "sealwire".to_owned();
        for word in &words {
            // As a shell takes it.
            if word.contains([' ', '*', '$', '[']) {
                shown.push_str(&format!(" '{word}'"));
            } else {
                shown.push_str(&format!(" {word}"));
            }
        }
        write_row(page, situation, &shown, &error);
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn messages_are_those_of_the_documentation() {
    let dev = Dev::start();
    write_documents(&dev);
    let other = Dev::start();
    std::os::unix::fs::symlink(other.path().join("sealwire-dev"), dev.path().join("other"))
        .unwrap();
    altered_audit(&dev);
    let normalizer = Normalizer {
        names: vec![
            (format!("{}/", dev.path().display()), ""),
            (dev.connect.clone(), "127.0.0.1:7443"),
            (dev.control.clone(), "127.0.0.1:7445"),
        ],
    };
    let mut page = INTRODUCTION.to_owned();
    page.push_str("\n## The engine's configuration\n\n");
    page.push_str(HEADER);
    engine_rows(&dev, &normalizer, &mut page);
    page.push_str("\n## The relay's configuration\n\n");
    page.push_str(HEADER);
    relay_rows(&mut page);
    page.push_str("\n## Commands\n\n");
    page.push_str(HEADER);
    command_rows(&dev, &normalizer, &mut page);

    let succeeded: Vec<&str> = page
        .lines()
        .filter(|line| line.contains(NO_FAILURE))
        .collect();
    if !succeeded.is_empty() {
        eprintln!("{page}");
    }
    assert!(succeeded.is_empty(), "{succeeded:#?}");

    let file = root().join("docs/messages.md");
    if std::env::var_os("SEALWIRE_BLESS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let documented = std::fs::read_to_string(&file).unwrap();
    for (line, (documented, now)) in documented.lines().zip(page.lines()).enumerate() {
        assert_eq!(documented, now, "docs/messages.md, line {}", line + 1);
    }
    assert_eq!(documented.lines().count(), page.lines().count());
}

const INTRODUCTION: &str = "# Messages

Situations in which a program does not do what it was asked to, what caused each, and the text that it prints. A test \
produces every text. The relay prints its texts below a line `sealwire-relay: FILE cannot be used:`. Search this page for a text that you got; the text itself says what to do.
";

const HEADER: &str = "| situation | caused by | text |\n| --- | --- | --- |\n";

/// Copies the audit log and changes one of its records.
fn altered_audit(dev: &Dev) {
    let folder = dev.path().join("altered-audit");
    std::fs::create_dir(&folder).unwrap();
    for entry in std::fs::read_dir(dev.path().join("sealwire-dev/audit")).unwrap() {
        let entry = entry.unwrap();
        let Ok(text) = std::fs::read_to_string(entry.path()) else {
            continue;
        };
        std::fs::write(
            folder.join(entry.file_name()),
            text.replacen("\"demo\"", "\"demi\"", 1),
        )
        .unwrap();
    }
}
