//! Runs every block of commands in the operators' pages, in order, in one shell, with the built
//! program.
//!
//! The commands differ from the pages in three points: ports are free ones, system folders are
//! below a folder of the test, and the database is a temporary one. Programs that need a whole
//! machine are replaced: `systemctl` by a script that starts and stops the unit's program and
//! judges its exit status, `useradd`, `userdel` and `chown` by scripts that check their arguments.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use sealwire_testkit::Postgres;

use crate::operations::{read, repository};

const FOLDER: &str = "docs/operators";

/// The pages of [`FOLDER`] that have commands, in the order in which their commands can run.
const PAGES: [&str; 15] = [
    "install.md",
    "configure.md",
    "roles.md",
    "audit.md",
    "choose-a-store.md",
    "backup-and-restore.md",
    "unseal-and-root-keys.md",
    "rotate-root-keys.md",
    "recovery-shares.md",
    "changed-or-older-state.md",
    "start-and-stop.md",
    "certificates.md",
    "monitor-and-alert.md",
    "rotate-keys.md",
    "upgrade.md",
];

/// A block of commands, and its output if the guide shows it.
pub(crate) struct Block {
    pub(crate) line: usize,
    pub(crate) commands: String,
    pub(crate) shown: Option<String>,
}

/// Returns the blocks of a guide. `guide` names it in messages.
pub(crate) fn blocks(guide: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = text.lines().enumerate();
    // Shown output belongs to the block directly before.
    let mut follows = false;
    while let Some((at, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else {
            follows &= line.is_empty();
            continue;
        };
        let body = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| *line != "```");
        let body = body.fold(String::new(), |body, line| body + line + "\n");
        match kind {
            "sh" => blocks.push(Block {
                line: at + 1,
                commands: body,
                shown: None,
            }),
            "text" if follows => blocks.last_mut().unwrap().shown = Some(body),
            _ => panic!(
                "{guide}:{}: a block that is neither tried nor the output of the one before",
                at + 1
            ),
        }
        follows = kind == "sh";
    }
    blocks
}

/// Compares output with the guide: `...` stands for any text in a line, and alone for any lines.
pub(crate) fn fits(shown: &[&str], output: &[&str]) -> bool {
    match shown.split_first() {
        None => output.is_empty(),
        Some((&"...", rest)) => (0..=output.len()).any(|skipped| fits(rest, &output[skipped..])),
        Some((line, rest)) => output
            .split_first()
            .is_some_and(|(first, others)| line_fits(line, first) && fits(rest, others)),
    }
}

fn line_fits(shown: &str, line: &str) -> bool {
    let Some((first, rest)) = shown.split_once("...") else {
        return shown == line;
    };
    let Some(line) = line.strip_prefix(first) else {
        return false;
    };
    (0..=line.len())
        .any(|skipped| line.is_char_boundary(skipped) && line_fits(rest, &line[skipped..]))
}

const SYSTEMCTL: &str = r#"#!/bin/bash
# Does what systemd would with the one service: starts what the unit names, waits until it is ready, reloads it, stops it.
set -euo pipefail
root=ROOT
unit=$root/etc/systemd/system/sealwire.service
is_up() { [ -e "$root/pid" ] && kill -0 "$(cat "$root/pid")" 2>/dev/null; }
start() {
    test -f "$unit"
    command=$(sed -n 's/^ExecStart=//p' "$unit" | sed "s#/usr/bin#$root/usr/bin#; s#/etc/#$root/etc/#")
    rm -f "$root/status"
    ( cd "$root/var/lib/sealwire"; $command & echo $! > "$root/pid"; code=0; wait $! || code=$?; echo $code > "$root/status" ) 2>>"$root/log" >/dev/null &
    for _ in $(seq 600); do
        if [ "$(curl -s http://127.0.0.1:ADMIN/ready)" = ready ]; then return; fi
        if [ -e "$root/status" ]; then cat "$root/log" >&2; exit 1; fi
        sleep 0.1
    done
    exit 1
}
stop() {
    kill -TERM "$(cat "$root/pid")"
    for _ in $(seq 450); do
        if [ -s "$root/status" ]; then rm "$root/pid"; [ "$(cat "$root/status")" = 0 ]; return; fi
        sleep 0.1
    done
    exit 1
}
case "$*" in
    daemon-reload) [ -f "$unit" ] || [ ! -e "$root/usr/bin/sealwire" ] ;;
    "enable --now sealwire" | "start sealwire") is_up || start ;;
    "stop sealwire") ! is_up || stop ;;
    "restart sealwire") is_up && stop; start ;;
    "reload sealwire")
        [ "$(sed -n 's/^ExecReload=//p' "$unit")" = '/bin/kill -HUP $MAINPID' ]
        kill -HUP "$(cat "$root/pid")" ;;
    "disable sealwire") ;;
    *) echo "systemctl $*: not stood in for" >&2; exit 1 ;;
esac
"#;
const USERADD: &str =
    "#!/bin/sh\n[ \"$1\" = --system ] && for last; do :; done && [ \"$last\" = sealwire ]\n";
const USERDEL: &str = "#!/bin/sh\n[ \"$*\" = sealwire ]\n";
const CHOWN: &str = "#!/bin/sh\nfor last; do :; done\ntest -d \"$last\"\n";

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) fn free_ports() -> [String; 3] {
    sealwire_testkit::free_ports::<3>().map(|port| port.to_string())
}

#[test]
fn commands_of_the_operations_guide_work() {
    let postgres = Postgres::shared();
    let database = postgres.database().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    for made in ["root/bin", "root/etc", "root/usr", "target/release"] {
        fs::create_dir_all(folder.path().join(made)).unwrap();
    }
    symlink(
        env!("CARGO_BIN_EXE_sealwire"),
        folder.path().join("target/release/sealwire"),
    )
    .unwrap();
    symlink(
        repository("ops").canonicalize().unwrap(),
        folder.path().join("ops"),
    )
    .unwrap();
    let [listen, admin, control] = free_ports();
    let here = |text: &str| {
        let mut text = text.to_owned();
        for (from, to) in [("7443", &listen), ("7444", &admin), ("7445", &control)] {
            text = text.replace(from, to);
        }
        let url = format!("url = \"{}\"", database.tls_url());
        text = text.replace(
            "url = \"postgres://sealwire@db.internal:5432/sealwire\"",
            &url,
        );
        for system in [
            "/usr/bin/sealwire",
            "/etc/sealwire",
            "/etc/systemd",
            "/var/lib/sealwire",
        ] {
            text = text.replace(system, &format!("{}{system}", root.display()));
        }
        text
    };
    let stands_in = SYSTEMCTL
        .replace("ROOT", root.to_str().unwrap())
        .replace("ADMIN", &admin);
    for (name, text) in [
        ("systemctl", stands_in.as_str()),
        ("useradd", USERADD),
        ("userdel", USERDEL),
        ("chown", CHOWN),
    ] {
        program(&root.join("bin").join(name), text);
    }
    let mut blocks: Vec<(String, Block)> = Vec::new();
    for page in PAGES {
        let path = format!("{FOLDER}/{page}");
        let found = self::blocks(&path, &read(&path));
        assert!(!found.is_empty(), "{path} has no commands");
        blocks.extend(found.into_iter().map(|block| (path.clone(), block)));
    }
    let ca = postgres.certificates().ca.display().to_string();
    let mut script = String::from("set -euo pipefail\n");
    for (at, (_, block)) in blocks.iter().enumerate() {
        if block.commands.contains("postgres-password") {
            // Files of the operator: the database's password and authority.
            let etc = root.join("etc/sealwire");
            let _ = writeln!(
                script,
                "cp '{ca}' {0}/tls/postgres-ca.pem; (umask 077; cp password {0}/postgres-password)",
                etc.display()
            );
        }
        let file = folder.path().join(format!("{at}.sh"));
        fs::write(&file, here(&block.commands)).unwrap();
        // `set -e` has no effect on the left side of `||`, so each block is sourced separately.
        let _ = writeln!(
            script,
            "echo {at} > at; . {} > {at}.out 2> {at}.err",
            file.display()
        );
    }
    fs::write(folder.path().join("all.sh"), script).unwrap();
    fs::write(folder.path().join("password"), postgres.password()).unwrap();
    fs::set_permissions(
        folder.path().join("password"),
        fs::Permissions::from_mode(0o600),
    )
    .unwrap();
    let path = std::env::var("PATH").unwrap();
    let psql = postgres.command("psql");
    let postgres_programs = Path::new(psql.get_program()).parent().unwrap().display();
    let socket = database.socket_url();
    let of_socket = |name: &str| {
        socket
            .split(['?', '&'])
            .find_map(|part| part.strip_prefix(name))
            .unwrap()
            .to_owned()
    };
    let outcome = Command::new("bash")
        .arg("all.sh")
        .current_dir(folder.path())
        .env(
            "PATH",
            format!(
                "{0}/usr/bin:{0}/bin:{postgres_programs}:{path}",
                root.display()
            ),
        )
        .env("PGHOST", of_socket("host="))
        .env("PGPORT", of_socket("port="))
        .env("PGUSER", of_socket("user="))
        .env("PGDATABASE", database.name())
        .env("PGPASSWORD", postgres.password())
        .status()
        .unwrap();
    let engine = fs::read_to_string(root.join("pid")).ok();
    if let Some(pid) = engine {
        let _ = Command::new("kill").arg(pid.trim()).status();
    }
    let text = |name: String| fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    let last: usize = text("at".into()).trim().parse().unwrap();
    let (page, block) = &blocks[last];
    assert!(
        outcome.success(),
        "{page}:{}: failed: {}\n{}\n{}",
        block.line,
        here(&block.commands),
        text(format!("{last}.out")),
        text(format!("{last}.err")),
    );
    assert_eq!(last + 1, blocks.len());
    for (at, (page, block)) in blocks.iter().enumerate() {
        let Some(shown) = &block.shown else { continue };
        let (shown, output) = (here(shown), text(format!("{at}.out")));
        let same = fits(
            &shown.lines().collect::<Vec<_>>(),
            &output.lines().collect::<Vec<_>>(),
        );
        assert!(
            same,
            "{page}:{}: prints\n{output}\nand not\n{shown}",
            block.line
        );
    }
    // The JSON log has the fields that the pages name, and none of the processed values.
    let log = fs::read_to_string(root.join("log")).unwrap();
    assert!(!log.contains("4242424242424242") && !log.contains("Zoe"));
    for line in log.lines() {
        let event: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        for field in ["timestamp", "level", "target", "fields"] {
            assert!(event.get(field).is_some(), "{line} has no {field}");
        }
        assert!(event["fields"]["message"].is_string(), "{line}");
    }
    assert!(log.lines().count() >= 10, "{log}");
}

#[test]
fn pages_with_commands_are_run() {
    for entry in fs::read_dir(repository(FOLDER)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let has_commands = read(&format!("{FOLDER}/{name}")).contains("```sh\n");
        assert_eq!(has_commands, PAGES.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn output_fits_what_is_shown_and_nothing_else() {
    for (shown, output, expected) in [
        ("a\nb", "a\nb", true),
        ("a\nb", "a", false),
        ("a", "a\nb", false),
        ("a\n...", "a\nb\nc", true),
        ("...\nc", "a\nb\nc", true),
        ("...\nc", "a\nb", false),
        ("x ... y", "x 1 2 y", true),
        ("x ... y", "x 1 2 z", false),
        ("x ...", "y", false),
    ] {
        let (shown, output): (Vec<_>, Vec<_>) = (shown.lines().collect(), output.lines().collect());
        assert_eq!(fits(&shown, &output), expected, "{shown:?} {output:?}");
    }
}
