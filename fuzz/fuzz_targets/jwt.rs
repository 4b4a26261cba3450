//! Runs `sealwire_fuzz_targets::TARGETS` of this program's name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| sealwire_fuzz_targets::run(
    env!("CARGO_BIN_NAME"),
    input
));
