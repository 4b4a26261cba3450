//! Segments without a valid seal: reading them never panics, and no segment verifies.

use std::path::PathBuf;
use std::sync::LazyLock;

use sealwire_audit::{AuditKey, Follow, Line, Range, verify};
use zeroize::Zeroizing;

use crate::Seed;
use crate::seed::words as list;

/// A folder per process. Each input replaces the segment in it.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| tempfile::tempdir().expect("a folder").keep());

/// Verifies a folder that holds the input as its only segment.
pub(crate) fn check_input(bytes: &[u8]) {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(line) = Line::parse(line) {
            let _ = (line.event(), line.time());
        }
    }
    std::fs::write(FOLDER.join("audit-0000000000000001.jsonl"), bytes).expect("a segment");
    let key = AuditKey::new(&Zeroizing::new([7; 32]));
    for key in [Some(&key), None] {
        let report = verify(&FOLDER, key, Range::default(), &[], &mut |_, _| ()).expect("a report");
        assert!(!report.is_sound(), "a folder without a checkpoint verifies");
        assert!(
            key.is_none() || report.lines == 0 || report.findings.len() > 1,
            "{report:?}"
        );
    }
    let mut lines = 0;
    Follow::new(FOLDER.clone())
        .poll(&mut |_: &[u8]| {
            lines += 1;
            Ok(())
        })
        .expect("lines");
    assert_eq!(lines, bytes.iter().filter(|byte| **byte == b'\n').count());
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let digits = "0".repeat(64);
    let seal = format!(",\"hash\":\"{digits}\",\"mac\":\"{}\"}}", &digits[..32]);
    let call = format!(
        "{{\"seq\":2,\"time\":\"2024-01-31T23:59:59.999Z\",\"event\":\"call\",\"instance\":\"e\"{seal}\n"
    );
    let first = format!(
        "{{\"seq\":1,\"time\":\"2024-01-31T23:59:59.999Z\",\"event\":\"segment\",\"chain\":\"{}\",\"previous_seq\":0,\"previous\":\"{digits}\"{seal}\n",
        &digits[..32]
    );
    vec![
        Seed::new("call", &[], &call),
        Seed::new("two", &[], format!("{first}{call}")),
        Seed::new("torn", &[], &call[..call.len() / 2]),
        Seed::new("empty-lines", &[], "\n\n{}\n"),
    ]
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "{\"seq\":",
        ",\"time\":\"",
        "\",\"event\":\"",
        "\"call\"",
        "\"segment\"",
        "\"start\"",
        "\"stop\"",
        "\"gap\"",
        ",\"hash\":\"",
        "\",\"mac\":\"",
        "\"}\n",
        "9999999999999999",
        "\"chain\":\"",
        "\"previous\":\"",
        "\"lost\":",
        "2024-01-31T23:59:59.999Z",
    ])
}
