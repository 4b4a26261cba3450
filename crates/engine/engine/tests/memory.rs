//! Reads the memory of this process before and after a seal: known secrets are there, and then they
//! are not.
//!
//! The store is made by another process, so that this one holds nothing but what an engine loads.
//! The secrets come from there masked, and nothing here ever unmasks one.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire_apps::{Control, KeyKind};
use sealwire_crypto::{
    AppId, Curve, Encoding, EpochLifetime, Kek, KeyPair, KeyScope, OpenKeyCache, RootKey, Sealer,
    Suite,
};
use sealwire_engine::apps::Apps;
use sealwire_engine::key_warmer::KeyWarmer;
use sealwire_engine::root::{LOCAL_PROVIDER, Unsealer};
use sealwire_engine::stores::{Access, Stores};
use sealwire_settings::Config;
use sealwire_telemetry::Telemetry;

/// Folder of the store, for the process that makes it.
const MAKE_IN: &str = "SEALWIRE_TEST_MAKE_IN";
const MASK: u8 = 0xa7;
const CHUNK_BYTES: usize = 1 << 20;
const SET: [u8; 16] = [3; 16];
/// Longest wait for the wipe. Guards against a hang; says nothing about speed.
const WIPE_TIME_MAX: Duration = Duration::from_secs(60);

/// A secret, masked.
struct Needle {
    name: String,
    masked: Vec<u8>,
}

fn shop() -> AppId {
    AppId::new("shop").unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

async fn opened(config: &Config) -> (Control, Stores) {
    let unsealer = Arc::new(Unsealer::open(config).unwrap());
    let stores = Stores::open(config, Access::Change).await.unwrap();
    (
        Control::with_finder(Arc::clone(&stores.control), unsealer),
        stores,
    )
}

/// Creates a store with a root key and an app, and prints the masked secrets.
async fn make(folder: &str) {
    let config = Config::defaults(folder.as_ref());
    let sealwire_settings::KekSource::File(file) = &config.kek else {
        panic!("the default is a file")
    };
    let kek = Kek::generate_hex().unwrap();
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, &*kek).unwrap();
    fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let unsealer = Unsealer::open(&config).unwrap();
    let root = RootKey::generate().unwrap();
    let slot = unsealer
        .providers()
        .new_slot(LOCAL_PROVIDER, SET, &root, 1)
        .await
        .unwrap();
    let (control, stores) = opened(&config).await;
    control.create(&shop(), &Suite::ALL).await.unwrap();
    let print = |name: &str, secret: &[u8]| {
        let masked: String = secret
            .iter()
            .map(|byte| format!("{:02x}", byte ^ MASK))
            .collect();
        println!("needle {name} {masked}");
    };
    for (name, curve) in [
        ("P-256 key", Curve::P256),
        ("secp256k1 key", Curve::Secp256k1),
    ] {
        let pair = KeyPair::generate(curve).unwrap();
        let mut scalar = *pair.scalar().unwrap().expose();
        control.import(&shop(), pair, true).await.unwrap();
        print(&format!("{name}, big-endian").replace(' ', "_"), &scalar);
        // As the words of a number.
        scalar.reverse();
        print(&format!("{name}, little-endian").replace(' ', "_"), &scalar);
    }
    control
        .rotate(&shop(), KeyKind::Outside(Suite::P256))
        .await
        .unwrap();
    control.create_root(SET, &root, vec![slot]).await.unwrap();
    print("root_key", &root.expose()[..]);
    let kek: Vec<u8> = kek
        .as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    print("local_key", &kek);
    stores.close().await;
}

/// Returns the secrets of a store that another process makes.
fn made_elsewhere(folder: &str) -> Vec<Needle> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command
        .args(["--exact", "--nocapture", TEST])
        .env(MAKE_IN, folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let needle = |line: &str| {
        let (name, hex) = line.split_once("needle ")?.1.split_once(' ')?;
        let digits = hex
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap());
        Some(Needle {
            name: name.to_owned(),
            masked: digits.collect(),
        })
    };
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter_map(needle)
        .collect()
}

/// Counts where each needle is found in the memory of this process. `window` is filled with parts
/// of it, and left out.
fn found(needles: &[Needle], window: &mut [u8]) -> Vec<Vec<String>> {
    let memory = fs::File::open("/proc/self/mem").unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let own = window.as_ptr() as u64;
    let own = own..own + window.len() as u64;
    let mut places = vec![Vec::new(); needles.len()];
    for line in maps.lines().filter(|line| {
        line.split(' ')
            .nth(1)
            .is_some_and(|mode| mode.starts_with("rw"))
    }) {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [mut at, end] = [from, to].map(|text| u64::from_str_radix(text, 16).unwrap());
        let label = line.split_whitespace().nth(5).unwrap_or("anonymous");
        while at < end {
            if own.contains(&at) {
                at = own.end;
                continue;
            }
            let next = if at < own.start {
                end.min(own.start)
            } else {
                end
            };
            let length = usize::try_from(next - at).unwrap().min(window.len());
            if memory.read_exact_at(&mut window[..length], at).is_err() {
                break;
            }
            for (needle, places) in needles.iter().zip(&mut places) {
                let masked = &needle.masked;
                for start in 0..=length.saturating_sub(masked.len()) {
                    if window[start] ^ MASK == masked[0]
                        && window[start..]
                            .iter()
                            .zip(masked)
                            .all(|(byte, masked)| byte ^ MASK == *masked)
                        && length - start >= masked.len()
                    {
                        places.push(format!("{:x} ({label})", at + start as u64));
                    }
                }
            }
            // A secret can lie across the edge of two windows.
            at = if at + length as u64 == next {
                next
            } else {
                at + length as u64 - 64
            };
        }
    }
    window.fill(0);
    places
}

const TEST: &str = "secrets_leave_memory_after_a_seal";

#[test]
fn secrets_leave_memory_after_a_seal() {
    if let Ok(folder) = std::env::var(MAKE_IN) {
        return runtime().block_on(make(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let needles = made_elsewhere(folder.path().to_str().unwrap());
    assert_eq!(needles.len(), 6);
    let mut window = vec![0; CHUNK_BYTES];
    let runtime = runtime();
    let (before, after) = runtime.block_on(async {
        let config = Config::defaults(folder.path());
        let (control, stores) = opened(&config).await;
        let opened = Arc::new(OpenKeyCache::new(16.try_into().unwrap(), 60));
        let apps = Arc::new(
            Apps::load(control, "here".into(), Some(opened))
                .await
                .unwrap(),
        );
        let telemetry = Arc::new(Telemetry::default());
        let warmer = KeyWarmer::new(&config.crypto);
        let tasks = [
            tokio::spawn(Arc::clone(&warmer).follow(Arc::clone(&apps))),
            tokio::spawn(Arc::clone(&apps).age()),
            tokio::spawn(Arc::clone(&apps).watch(Duration::from_secs(30), None, telemetry)),
        ];
        // Fills every cache that belongs to a key: tables, ready keys, epochs.
        let keys = Arc::clone(&apps.find("shop").1.unwrap().keys);
        for suite in Suite::ALL {
            for _ in 0..100 {
                let newest = Arc::clone(keys.newest(suite).unwrap());
                Sealer::new(&shop(), newest, KeyScope::Request, Encoding::Text, b"").unwrap();
            }
            if suite == Suite::Xaes {
                continue;
            }
            let lifetime = EpochLifetime::from_ms(15_000).unwrap();
            let newest = Arc::clone(keys.newest(suite).unwrap());
            Sealer::in_epoch(&shop(), newest, lifetime, Instant::now, Encoding::Text, b"").unwrap();
        }
        drop(keys);
        tokio::time::sleep(Duration::from_secs(3)).await;
        while warmer.make_ready() {}
        let before = found(&needles, &mut window);
        apps.control().seal().await.unwrap();
        apps.changed_here().await;
        assert!(apps.is_sealed());
        // The key warmer looks once per second. A slow machine gets the time that it needs.
        let end = Instant::now() + WIPE_TIME_MAX;
        let after = loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let after = found(&needles, &mut window);
            if after.iter().all(Vec::is_empty) || Instant::now() > end {
                break after;
            }
        };
        for task in tasks {
            task.abort();
        }
        stores.close().await;
        (before, after)
    });
    for ((needle, before), after) in needles.iter().zip(&before).zip(&after) {
        println!(
            "{}: {} copies before, after {after:?}",
            needle.name,
            before.len()
        );
    }
    for (curve, both) in [("P-256", [0, 1]), ("secp256k1", [2, 3])] {
        assert!(
            both.iter().any(|form| !before[*form].is_empty()),
            "{curve}: the search finds nothing before the seal"
        );
    }
    for (at, name) in [(4, "the root key"), (5, "the local key")] {
        assert!(
            !before[at].is_empty(),
            "{name}: the search finds nothing before the seal"
        );
    }
    let left: Vec<&str> = needles
        .iter()
        .zip(&after)
        .filter(|(_, places)| !places.is_empty())
        .map(|(needle, _)| &*needle.name)
        .collect();
    assert!(left.is_empty(), "left after the seal: {left:?}");
}
