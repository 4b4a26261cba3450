//! A valid audit log with its checkpoint: the log verifies, and every change is detected.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sealwire_audit::{
    AuditKey, CHECKPOINT_FILE, Checkpoint, FileEvent, Filter, Follow, Observer, OnFailure, Options,
    Range, Record, Trail, TrailOptions, verify,
};
use zeroize::Zeroizing;

use crate::seed::words as list;
use crate::{Input, Seed};

/// A folder with the audit log, and the original contents of its files.
struct TrailKeys {
    folder: PathBuf,
    files: Vec<(String, Vec<u8>)>,
    key: AuditKey,
}

struct NoObserver;

impl Observer for NoObserver {
    fn notice(&self, _: &FileEvent<'_>) {}
}

fn key() -> AuditKey {
    AuditKey::new(&Zeroizing::new([7; 32]))
}

static WORLD: LazyLock<TrailKeys> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder").keep();
    let journal = Options {
        folder: folder.clone(),
        segment_bytes: 3_000,
        segment_age: Duration::from_secs(3_600),
        folder_bytes_max: None,
        sync: false,
        instance: "engine-1".into(),
    };
    let options = TrailOptions {
        journal,
        on_failure: OnFailure::Reject,
        queue_records: 100,
        queue_bytes: 1 << 20,
        reserve_bytes: 0,
        gather: Duration::ZERO,
        version: "0.0.0",
    };
    let trail = Trail::open(options, key(), Arc::new(NoObserver)).expect("a trail");
    for fields in 0..30 {
        let record = Record {
            principal: "relay",
            kind: "dns",
            method: "encrypt",
            app: Some("shop"),
            fields,
            outcome: "ok",
            ..Record::default()
        };
        let _ = trail.record(&record).wait();
    }
    drop(trail);
    let entries = std::fs::read_dir(&folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry"));
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().expect("a name");
            (name.ends_with(".jsonl") || name == CHECKPOINT_FILE)
                .then(|| (name, std::fs::read(entry.path()).expect("a file")))
        })
        .collect();
    files.sort();
    assert!(files.len() > 3, "a checkpoint and several segments");
    TrailKeys {
        folder,
        files,
        key: key(),
    }
});

/// Changes one file of the log. Settings: file, operation, position, count; then bytes to insert.
pub(crate) fn check_input(input: &[u8]) {
    let TrailKeys { folder, files, key } = &*WORLD;
    let mut input = Input(input);
    let (name, original) = &files[usize::from(input.byte()) % files.len()];
    let operation = input.byte() % 5;
    let at = usize::from(input.short());
    let count = usize::from(input.byte());
    let at = at % (original.len() + 1);
    let end = (at + count).min(original.len());
    let changed = match operation {
        0 => [&original[..at], input.0, &original[end..]].concat(),
        1 => original[..at].to_vec(),
        2 => {
            let mut lines: Vec<&[u8]> = original.split_inclusive(|byte| *byte == b'\n').collect();
            let one = at % lines.len();
            let other = count % lines.len();
            lines.swap(one, other);
            lines.concat()
        }
        3 => {
            let mut lines: Vec<&[u8]> = original.split_inclusive(|byte| *byte == b'\n').collect();
            let line = lines[at % lines.len()];
            lines.insert(count % (lines.len() + 1), line);
            lines.concat()
        }
        _ => {
            let mut changed = original.clone();
            let masks = if input.0.is_empty() {
                &[1][..]
            } else {
                input.0
            };
            changed[at..end]
                .iter_mut()
                .zip(masks.iter().cycle())
                .for_each(|(byte, mask)| *byte ^= mask);
            changed
        }
    };
    let path = folder.join(name);
    std::fs::write(&path, &changed).expect("the changed file");
    let keyed = verify(folder, Some(key), Range::default(), &[], &mut |_, _| ()).expect("a report");
    let plain = verify(folder, None, Range::default(), &[], &mut |_, _| ()).expect("a report");
    assert!(
        !keyed.is_sound() || plain.is_sound(),
        "the key finds less than no key: {plain:?}"
    );
    let is_last = files
        .last()
        .is_some_and(|(last, _)| last == name || files[files.len() - 2].0 == *name);
    // Bytes without a newline after the last record are a torn write.
    let is_torn = is_last && changed.starts_with(original) && keyed.torn_bytes > 0;
    if keyed.is_sound() {
        assert!(
            changed == *original || is_torn,
            "a change of {name} is not found: {keyed:?}"
        );
    } else {
        assert_ne!(
            changed, *original,
            "an honest trail has findings: {keyed:?}"
        );
    }
    if let Ok(head) = Checkpoint::read(folder, Some(key)) {
        assert!(
            name != CHECKPOINT_FILE || changed == *original,
            "a changed checkpoint is believed: {head:?}"
        );
    }
    let filter = Filter::default();
    let _ = Follow::new(folder.clone()).poll(&mut |line: &[u8]| {
        let _ = filter.take(line);
        Ok(())
    });
    std::fs::write(&path, original).expect("the original file");
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for file in 0..5 {
        seeds.push(Seed::new(
            format!("unchanged-{file}"),
            &[file, 0, 0, 0, 0],
            [],
        ));
        for operation in 0..5 {
            for (at, position) in [[0u8, 30], [1, 40], [4, 0]].into_iter().enumerate() {
                let settings = [file, operation, position[0], position[1], 2];
                seeds.push(Seed::new(
                    format!("changed-{file}-{operation}-{at}"),
                    &settings,
                    "1",
                ));
            }
        }
    }
    seeds.push(Seed::new("torn", &[4, 0, 255, 255, 0], "{\"seq\":"));
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "{\"seq\":",
        ",\"time\":\"",
        "\",\"event\":\"",
        "\"call\"",
        "\"segment\"",
        "\"start\"",
        ",\"hash\":\"",
        "\",\"mac\":\"",
        "\"}\n",
        "\"chain\":\"",
        "\"key\":\"",
        "\"file\":\"audit-0000000000000001.jsonl\"",
        " ",
        "\n",
    ])
}
