//! Whatever stands in a segment: it is read without a panic, and only what was sealed with the key verifies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire_audit::{AuditKey, Follow, Line, Range, verify};
use zeroize::Zeroizing;

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|byte| *byte == b'\n') {
        if let Some(line) = Line::parse(line) {
            let _ = (line.event(), line.time());
        }
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("audit-0000000000000001.jsonl"), bytes).unwrap();
    // Nobody outside has this key, so nothing that comes in was sealed with it.
    let key = AuditKey::new(&Zeroizing::new([7; 32]));
    for key in [Some(&key), None] {
        let report = verify(folder.path(), key, Range::default(), &[], &mut |_, _| ()).unwrap();
        assert!(!report.is_sound(), "without a head nothing does");
        assert!(key.is_none() || report.lines == 0 || report.findings.len() > 1, "{report:?}");
    }
    let mut lines = 0;
    let mut count = |_: &[u8]| {
        lines += 1;
        Ok(())
    };
    Follow::new(folder.path().to_owned()).poll(&mut count).unwrap();
    assert_eq!(lines, bytes.iter().filter(|byte| **byte == b'\n').count());
});
