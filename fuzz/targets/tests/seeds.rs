//! Runs every committed seed through its target, and compares the seeds and dictionaries with their
//! generator.
//!
//! `SEALWIRE_BLESS=1 cargo test -p sealwire-fuzz-targets -- --test-threads 1` writes them anew. One
//! thread is needed since two tests would write and read the same files at once. A seed that its
//! generator creates at random, such as a certificate, is only written if it is missing.

#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use sealwire_fuzz_targets::{FuzzTarget, TARGETS};

/// All seeds together.
const BYTES_MAX: u64 = 1 << 20;

fn fuzz(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(below)
}

fn is_blessing() -> bool {
    std::env::var_os("SEALWIRE_BLESS").is_some()
}

/// Reads the files of a folder by name.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    entries
        .map(|entry| {
            let entry = entry.unwrap();
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

/// Writes the generated files if requested, then returns the committed files.
fn committed(target: &FuzzTarget) -> BTreeMap<String, Vec<u8>> {
    let folder = fuzz("seeds").join(target.name);
    if is_blessing() {
        let seeds = (target.seeds)();
        let names: Vec<&str> = seeds.iter().map(|seed| seed.name.as_str()).collect();
        fs::create_dir_all(&folder).unwrap();
        for name in files(&folder)
            .keys()
            .filter(|name| !names.contains(&name.as_str()))
        {
            fs::remove_file(folder.join(name)).unwrap();
        }
        for seed in &seeds {
            let path = folder.join(&seed.name);
            if !(seed.is_random && path.exists()) {
                fs::write(path, &seed.bytes).unwrap();
            }
        }
    }
    files(&folder)
}

/// Prints a dictionary as libFuzzer reads it.
fn dictionary(target: &FuzzTarget) -> String {
    let mut out = String::new();
    for word in (target.words)() {
        out.push('"');
        for byte in word {
            match byte {
                b'"' | b'\\' => write!(out, "\\{}", char::from(byte)).unwrap(),
                b' '..=b'~' => out.push(char::from(byte)),
                _ => write!(out, "\\x{byte:02X}").unwrap(),
            }
        }
        out.push_str("\"\n");
    }
    out
}

#[test]
fn seeds_pass() {
    let mut failed = Vec::new();
    for target in TARGETS {
        let seeds = committed(target);
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        for (name, bytes) in seeds {
            if catch_unwind(|| (target.run)(&bytes)).is_err() {
                failed.push(format!("{}/{name}", target.name));
            }
        }
        for bytes in [&[][..], &[0], &[255; 64]] {
            (target.run)(bytes);
        }
    }
    assert_eq!(failed, [""; 0]);
}

#[test]
fn seeds_and_dictionaries_are_as_generated() {
    let mut bytes = 0;
    for target in TARGETS {
        let found = committed(target);
        bytes += found.values().map(|seed| seed.len() as u64).sum::<u64>();
        for seed in (target.seeds)() {
            let committed = found.get(&seed.name);
            assert!(
                committed.is_some_and(|found| seed.is_random || *found == seed.bytes),
                "{}/{}",
                target.name,
                seed.name
            );
        }
        let path = fuzz("dictionaries").join(format!("{}.dict", target.name));
        if is_blessing() {
            fs::create_dir_all(fuzz("dictionaries")).unwrap();
            fs::write(&path, dictionary(target)).unwrap();
        }
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            dictionary(target),
            "{}",
            target.name
        );
    }
    assert!(bytes <= BYTES_MAX, "{bytes} bytes of seeds");
}

/// `fuzz` has one program per target and no other.
#[test]
fn targets_have_programs() {
    let manifest = fs::read_to_string(fuzz("Cargo.toml")).unwrap();
    let programs: Vec<&str> = manifest
        .split("[[bin]]\nname = \"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(programs, names);
}
