//! JSON to MessagePack and back is a fixed point after the first step, and neither direction accepts what the other cannot
//! give back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire_payload::Limits;
use sealwire_payload::json::{from_msgpack, to_msgpack};

fuzz_target!(|input: (bool, &[u8])| {
    let (pretty, bytes) = input;
    let limits = Limits::default();
    if let Ok(packed) = to_msgpack(bytes, limits) {
        fixpoint(&packed, pretty, limits);
    }
    // Any MessagePack that JSON can say comes back as the same value: its JSON is the same, and so is the next step.
    let mut json = Vec::new();
    if from_msgpack(bytes, &mut json, pretty, limits).is_ok() {
        if let Ok(packed) = to_msgpack(&json, limits) {
            fixpoint(&packed, pretty, limits);
        }
    }
});

fn fixpoint(packed: &[u8], pretty: bool, limits: Limits) {
    let mut json = Vec::new();
    from_msgpack(packed, &mut json, pretty, limits).expect("what JSON gave, JSON can say");
    assert!(std::str::from_utf8(&json).is_ok());
    let again = to_msgpack(&json, limits).expect("what we write, we read");
    assert_eq!(packed, again, "{}", String::from_utf8_lossy(&json));
}
