//! What this key never sealed never opens, and a changed envelope of its own does not either.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use sealwire_crypto::{
    AppId, AppKeys, Curve, Datatype, Encoding, Envelope, KeyPair, KeyScope, KeyState, KeyVersion, Opener, Sealer,
    looks_like_binary, looks_like_text,
};

/// Keys of the process, on both curves, and an honest envelope of each in each encoding.
static WORLD: LazyLock<(Arc<AppKeys>, Vec<Vec<u8>>)> = LazyLock::new(|| {
    let version = |curve| KeyVersion::new(1, KeyState::Active, KeyPair::generate(curve).unwrap());
    let app = AppId::new("fuzz").unwrap();
    let keys = AppKeys::new(app.clone(), Curve::ALL.map(version).into()).unwrap();
    let mut sealed = Vec::new();
    for curve in Curve::ALL {
        for encoding in [Encoding::Text, Encoding::Binary] {
            let newest = Arc::clone(keys.newest(curve).unwrap());
            let mut sealer = Sealer::new(&app, newest, KeyScope::Request, encoding, b"row 7").unwrap();
            let mut out = Vec::new();
            sealer.seal(Datatype::String, b"4111111111111111", &mut out).unwrap();
            sealed.push(out);
        }
    }
    (Arc::new(keys), sealed)
});

fuzz_target!(|input: (u8, Vec<(u8, u8)>, bool, &[u8])| {
    let (which, changes, extend, bytes) = input;
    let (keys, honest) = &*WORLD;
    let mut opener = Opener::new(Arc::clone(keys), b"row 7");

    // Bytes from nowhere: nobody guesses an envelope.
    check(&mut opener, bytes, false);

    // An honest one with bytes changed, or with a tail.
    let original = &honest[usize::from(which) % honest.len()];
    let mut changed = original.clone();
    for (at, xor) in changes {
        let at = usize::from(at) % changed.len();
        changed[at] ^= xor;
    }
    if extend {
        changed.extend_from_slice(bytes);
    }
    check(&mut opener, &changed, changed == *original);

    // The same in another place.
    let mut elsewhere = Opener::new(Arc::clone(keys), bytes);
    check(&mut elsewhere, original, bytes == b"row 7");
});

fn check(opener: &mut Opener, bytes: &[u8], honest: bool) {
    let text = Envelope::from_text(bytes);
    let binary = Envelope::from_binary(bytes);
    assert!(text.is_none() || looks_like_text(bytes));
    assert!(binary.is_none() || looks_like_binary(bytes));
    for envelope in [text, binary].into_iter().flatten() {
        assert_eq!(envelope.encoding.sealed_bytes(envelope.plaintext_bytes), bytes.len());
    }
    let text = opener.open_text(bytes).map(|opened| opened.plaintext.to_vec());
    let binary = opener.open_binary(bytes).map(|opened| opened.plaintext.to_vec());
    assert_eq!(text.is_ok() || binary.is_ok(), honest);
    for plaintext in [text, binary].into_iter().flatten() {
        assert_eq!(plaintext, b"4111111111111111");
    }
}
