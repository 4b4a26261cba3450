use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

/// A process of user 7 with the groups 70 and 71, and one of root.
fn processes() -> [Process; 2] {
    [
        Process {
            user: 7,
            groups: vec![70, 71],
        },
        Process {
            user: 0,
            groups: vec![0],
        },
    ]
}

#[test]
fn file_rule_by_owner_group_and_mode() {
    use FileKind::{Public, Secret};
    // (kind, owner, group, mode), accepted by user 7, accepted by root.
    for ((kind, user, group, mode), by_user, by_root) in [
        ((Secret, 7, 70, 0o600), true, false),
        ((Secret, 7, 70, 0o400), true, false),
        ((Secret, 7, 71, 0o440), true, false),
        ((Secret, 7, 99, 0o600), true, false),
        ((Secret, 7, 99, 0o640), false, false),
        // Kubernetes with fsGroup; a package that installs for the engine's group; a credential of
        // systemd.
        ((Secret, 0, 70, 0o440), true, true),
        ((Secret, 0, 71, 0o640), true, true),
        ((Secret, 0, 0, 0o440), true, true),
        ((Secret, 0, 0, 0o600), true, true),
        // Root reads for engines of any group.
        ((Secret, 0, 99, 0o640), false, true),
        ((Secret, 0, 0, 0o644), false, false),
        ((Secret, 0, 0, 0o604), false, false),
        ((Secret, 0, 0, 0o601), false, false),
        ((Secret, 0, 0, 0o602), false, false),
        ((Secret, 0, 70, 0o660), false, false),
        ((Secret, 0, 70, 0o620), false, false),
        ((Secret, 0, 70, 0o650), false, false),
        ((Secret, 7, 70, 0o666), false, false),
        // Of somebody else.
        ((Secret, 8, 70, 0o600), false, false),
        ((Secret, 8, 70, 0o440), false, false),
        ((Secret, 65_534, 0, 0o400), false, false),
        ((Public, 0, 0, 0o644), true, true),
        ((Public, 7, 70, 0o644), true, false),
        ((Public, 0, 99, 0o444), true, true),
        ((Public, 0, 70, 0o664), false, false),
        ((Public, 0, 0, 0o646), false, false),
        ((Public, 8, 0, 0o444), false, false),
    ] {
        let found = Attributes { user, group, mode };
        let [as_user, as_root] =
            processes().map(|process| process.check_file(Path::new("/k"), kind, &found));
        assert_eq!(
            (as_user.is_none(), as_root.is_none()),
            (by_user, by_root),
            "{kind:?} {found}: {as_user:?}"
        );
        for problem in [as_user, as_root].into_iter().flatten() {
            let text = problem.to_string();
            assert!(
                text.contains(&format!("mode {mode:03o}, owner {user}:{group}")),
                "{text}"
            );
            assert!(text.contains(": run `ch") && text.contains("/k"), "{text}");
            assert!(
                !["rm ", "openssl", "replace the", "new key"]
                    .iter()
                    .any(|word| text.contains(word)),
                "{text}"
            );
        }
    }
}

/// A remedy must lead to a file that the process can read and the rule accepts.
#[test]
fn file_rule_remedies_end_the_problem() {
    for (found, remedies) in [
        (
            Attributes {
                user: 7,
                group: 70,
                mode: 0o644,
            },
            ["chmod 600 /k", "chown -h 0 /k"],
        ),
        (
            Attributes {
                user: 0,
                group: 70,
                mode: 0o644,
            },
            ["chmod 640 /k", "chmod 600 /k"],
        ),
        (
            Attributes {
                user: 0,
                group: 0,
                mode: 0o644,
            },
            ["chgrp 70 /k && chmod 640 /k", "chmod 600 /k"],
        ),
        (
            Attributes {
                user: 0,
                group: 99,
                mode: 0o660,
            },
            ["chgrp 70 /k && chmod 640 /k", "chmod 600 /k"],
        ),
        (
            Attributes {
                user: 8,
                group: 70,
                mode: 0o600,
            },
            ["chown -h 7 /k", "chown -h 0 /k"],
        ),
    ] {
        for (process, remedy) in processes().into_iter().zip(remedies) {
            let problem = process
                .check_file(Path::new("/k"), FileKind::Secret, &found)
                .unwrap();
            assert_eq!(
                problem.remedy.as_deref(),
                Some(remedy),
                "{found} {process:?}"
            );
        }
    }
}

#[test]
fn folder_rule_by_owner_group_and_mode() {
    for ((user, group, mode), by_user, by_root) in [
        ((0, 0, 0o755), true, true),
        ((0, 0, 0o700), true, true),
        ((7, 70, 0o755), true, false),
        ((8, 70, 0o755), false, false),
        ((8, 70, 0o1777), false, false),
        ((0, 0, 0o777), false, false),
        ((0, 0, 0o757), false, false),
        ((0, 0, 0o1777), true, true),
        // A volume of Kubernetes with fsGroup.
        ((0, 70, 0o3777), true, true),
        ((0, 70, 0o2775), true, false),
        ((0, 99, 0o775), false, false),
        ((0, 0, 0o775), true, true),
        ((0, 99, 0o1775), true, true),
    ] {
        let found = Attributes { user, group, mode };
        let [as_user, as_root] =
            processes().map(|process| process.check_folder(Path::new("/d"), &found));
        assert_eq!(
            (as_user.is_none(), as_root.is_none()),
            (by_user, by_root),
            "{found}: {as_user:?} {as_root:?}"
        );
    }
}

fn write(path: &Path, mode: u32) {
    fs::write(path, "secret").unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn reason(path: &Path, kind: FileKind) -> String {
    match read(path, kind, 6) {
        Ok(bytes) => {
            assert_eq!(&**bytes, b"secret");
            "good".into()
        }
        Err(error) => {
            assert_eq!(error.path, path);
            error.to_string()
        }
    }
}

#[test]
fn folders_and_links_on_the_way_are_judged() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    let chmod =
        |name: &str, mode| fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
    for folder in ["a", "a/b", "open", "other"] {
        fs::create_dir(at(folder)).unwrap();
    }
    write(&at("a/b/key"), 0o600);
    write(&at("other/key"), 0o600);
    symlink("b/key", at("a/link")).unwrap();
    symlink(at("a/b"), at("open/there")).unwrap();
    symlink("loop", at("loop")).unwrap();
    let check = |path: &str, expected: &str| {
        let found = reason(&at(path), FileKind::Secret);
        assert!(found.contains(expected), "{path}: {found}");
    };
    for path in [
        "a/b/key",
        "a/link",
        "open/there/key",
        "a/../a/b/./key",
        "open/there/../link",
    ] {
        check(path, "good");
    }
    // Any folder of any path to the file.
    chmod("a/b", 0o777);
    for path in ["a/b/key", "a/link", "open/there/key"] {
        check(path, "other users can replace files in the folder ");
    }
    check("other/key", "good");
    chmod("a/b", 0o1777);
    check("a/link", "good");
    chmod("a", 0o777);
    check("open/there/key", "/a (mode 777");
    chmod("a", 0o755);
    chmod("open", 0o757);
    check("open/there/key", "/open (mode 757");
    check("a/link", "good");
    check("loop", "Too many levels of symbolic links");
    check("missing/key", "No such file or directory");
    check("a", "must be a regular file");
    chmod("a/b/key", 0o644);
    check("a/link", "mode 644");
    assert_eq!(reason(&at("a/link"), FileKind::Public), "good");
    fs::write(at("other/key"), "longer than six bytes").unwrap();
    check("other/key", "must have at most 6 bytes");
    mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    check("pipe", "must be a regular file");
}

#[test]
fn files_and_folders_of_other_users_are_rejected() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "files_and_folders_of_other_users_are_rejected: needs root to give files away; not run"
        );
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    fs::create_dir(at("theirs")).unwrap();
    write(&at("theirs/key"), 0o600);
    write(&at("key"), 0o600);
    let give = |name: &str, user| chown(at(name), Some(user), None).unwrap();
    give("theirs", 12_345);
    for kind in [FileKind::Secret, FileKind::Public] {
        let found = reason(&at("theirs/key"), kind);
        assert!(
            found.contains("owner 12345:") && found.contains("put the file into one of root"),
            "{found}"
        );
        // A folder has other files of its owner.
        assert!(
            found.ends_with(CHECK_FIRST) && !found.contains("chown"),
            "{found}"
        );
        assert_eq!(reason(&at("key"), kind), "good");
    }
    give("key", 12_345);
    for kind in [FileKind::Secret, FileKind::Public] {
        let found = reason(&at("key"), kind);
        assert!(
            found.contains("must belong to root") && found.contains("owner 12345:"),
            "{found}"
        );
    }
    // A link that its owner can point elsewhere, in a folder that everybody can write.
    give("key", 0);
    fs::set_permissions(temporary.path(), Permissions::from_mode(0o1777)).unwrap();
    symlink("key", at("link")).unwrap();
    assert_eq!(reason(&at("link"), FileKind::Secret), "good");
    std::os::unix::fs::lchown(at("link"), Some(12_345), None).unwrap();
    let found = reason(&at("link"), FileKind::Secret);
    assert!(
        found.contains("link (mode 777, owner 12345:") && found.contains(CHECK_FIRST),
        "{found}"
    );
    // The remedy is of the link. What it points to can be a file of anybody.
    write(&at("victim"), 0o600);
    give("victim", 23_456);
    fs::remove_file(at("link")).unwrap();
    symlink("victim", at("link")).unwrap();
    std::os::unix::fs::lchown(at("link"), Some(12_345), None).unwrap();
    run_remedy(&reason(&at("link"), FileKind::Secret));
    assert_eq!((owner(&at("link")), owner(&at("victim"))), (0, 23_456));
    // Through a good link, the remedy of a file is of the file.
    run_remedy(&reason(&at("link"), FileKind::Secret));
    assert_eq!(reason(&at("link"), FileKind::Secret), "good");
}

/// Runs the command that an error names.
fn run_remedy(error: &str) {
    let remedy = error
        .split_once(": run `")
        .unwrap()
        .1
        .strip_suffix('`')
        .unwrap();
    let status = std::process::Command::new("sh")
        .args(["-c", remedy])
        .status()
        .unwrap();
    assert!(status.success(), "{error}");
}

fn owner(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().uid()
}

/// A file's name can be chosen by others. No name makes the shell do anything else.
#[test]
fn remedies_name_every_path_as_one_argument() {
    let temporary = tempfile::tempdir().unwrap();
    for name in [
        "key",
        "a b",
        "it's",
        "$(touch made)",
        "`touch made`",
        "a;touch made",
        "*",
        "a\nb",
        "'",
        "\\",
        "-R",
        "é",
    ] {
        let path = temporary.path().join(name);
        write(&path, 0o644);
        run_remedy(&reason(&path, FileKind::Secret));
        assert_eq!(reason(&path, FileKind::Secret), "good", "{name:?}");
    }
    assert!(!Path::new("made").exists());
    for (path, expected) in [
        ("/etc/a-b_1.key", "/etc/a-b_1.key"),
        ("-R", "./-R"),
        ("~/key", "'~/key'"),
        ("it's", "'it'\\''s'"),
        ("", "''"),
    ] {
        assert_eq!(quoted(Path::new(path)), expected);
    }
}

/// Kubernetes replaces a volume by renaming a link to another folder.
#[test]
fn volumes_of_kubernetes_are_read() {
    let temporary = tempfile::tempdir().unwrap();
    let at = |name: &str| temporary.path().join(name);
    fs::set_permissions(temporary.path(), Permissions::from_mode(0o3777)).unwrap();
    for (folder, mode) in [("..2026_01", 0o440), ("..2026_02", 0o444)] {
        fs::create_dir(at(folder)).unwrap();
        fs::set_permissions(at(folder), Permissions::from_mode(0o2755)).unwrap();
        write(&at(folder).join("kek.key"), mode);
    }
    symlink("..data/kek.key", at("kek.key")).unwrap();
    symlink("..2026_01", at("..data")).unwrap();
    assert_eq!(reason(&at("kek.key"), FileKind::Secret), "good");
    symlink("..2026_02", at("..data_tmp")).unwrap();
    fs::rename(at("..data_tmp"), at("..data")).unwrap();
    let found = reason(&at("kek.key"), FileKind::Secret);
    assert!(
        found.contains("mode 444") && found.contains("defaultMode 0440 and fsGroup"),
        "{found}"
    );
}

#[test]
fn password_files_are_secret_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    let long = "p".repeat(5_000);
    for (mode, text, expected) in [
        (0o600, &b"pass word\r\n"[..], Ok("pass word")),
        (0o600, b"", Ok("")),
        (0o644, b"hunter2", Err("other users can read")),
        (0o620, b"hunter2", Err("its group can change it")),
        (0o600, b"hunter2\xff", Err("invalid utf-8")),
        (0o600, long.as_bytes(), Err("at most 4096 bytes")),
    ] {
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        match (
            read_password(&file).map_err(|error| error.to_string()),
            expected,
        ) {
            (Ok(password), Ok(expected)) => assert_eq!(password, expected),
            (Err(error), Err(expected)) => {
                assert!(error.contains(expected), "{error}");
                assert!(!error.contains("hunter2"), "{error}");
            }
            (result, _) => panic!("{mode:o}: {result:?}"),
        }
    }
}

#[test]
fn private_folders_are_writable_by_their_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run");
    fs::create_dir(&path).unwrap();
    for (mode, problem) in [
        (0o700, None),
        (0o755, None),
        (0o770, Some("chmod go-w ")),
        (0o702, Some("chmod go-w ")),
        // Programs of other users can need it.
        (0o1777, Some("other users can replace files in it")),
    ] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let found = check_private_folder(&path)
            .err()
            .map(|error| error.to_string());
        match (problem, &found) {
            (None, None) => {}
            (Some(problem), Some(found)) => assert!(found.contains(problem), "{found}"),
            _ => panic!("{mode:o}: {found:?}"),
        }
    }
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
    assert!(check_private_folder(&link).is_ok());
    for missing in [file, folder.path().join("none")] {
        assert!(check_private_folder(&missing).is_err());
    }
}
