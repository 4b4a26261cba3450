//! A row of the embedded store is read or refused, and one row has one form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire_store::TokenId;
use sealwire_store::embedded::row::{decode, encode};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(row) = decode(TokenId([7; 16]), bytes) {
        assert_eq!(encode(&row), bytes);
    }
});
