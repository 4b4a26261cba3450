//! XAES-256-GCM against its specification's vectors (C2SP.org/XAES-256-GCM), and what a suite of
//! symmetric keys promises.

use std::collections::HashSet;
use std::sync::Arc;

use shake::{ExtendableOutput, Shake128, Update, XofReader};
use zeroize::Zeroizing;

use super::{hex, unhex};
use crate::{
    AppId, AppKeys, CannotOpen, Clock, Datatype, Encoding, Envelope, EpochLifetime, Error, KeyId,
    KeyScope, KeyState, KeyVersion, OpenKeyCache, Opener, Sealer, Suite, XaesKey, XaesSecret,
};

/// Seals under a key of the specification's form.
fn seal(key: &[u8; 32], nonce: &[u8; 24], aad: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let key = XaesKey::of_key(key, KeyId::from_bytes([0; 5]), [0; 16]).unwrap();
    let (random, sequence) = nonce.split_first_chunk().unwrap();
    let mut data = plaintext.to_vec();
    let sequence = u32::from_be_bytes(sequence.try_into().unwrap());
    key.sealing_context(random)
        .unwrap()
        .seal(sequence, aad, &mut data, 0)
        .unwrap();
    data
}

#[test]
fn the_published_vectors_come_out() {
    let nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX";
    for (key, aad, ciphertext) in [
        (
            1,
            "",
            "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271",
        ),
        (
            3,
            "c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ] {
        assert_eq!(
            hex(&seal(&[key; 32], nonce, aad.as_bytes(), b"XAES-256-GCM")),
            ciphertext
        );
    }
}

fn draw<const N: usize>(source: &mut impl XofReader) -> [u8; N] {
    let mut bytes = [0; N];
    source.read(&mut bytes);
    bytes
}

fn draw_some(source: &mut impl XofReader) -> Vec<u8> {
    let [length] = draw(source);
    let mut bytes = vec![0; length.into()];
    source.read(&mut bytes);
    bytes
}

/// The specification's accumulated test of 10,000 random inputs.
#[test]
fn ten_thousand_random_inputs_give_the_published_hash() {
    let (mut source, mut sink) = (Shake128::default().finalize_xof(), Shake128::default());
    for _ in 0..10_000 {
        let (key, nonce) = (draw(&mut source), draw(&mut source));
        let (plaintext, aad) = (draw_some(&mut source), draw_some(&mut source));
        sink.update(&seal(&key, &nonce, &aad, &plaintext));
    }
    let hash: [u8; 32] = draw(&mut sink.finalize_xof());
    assert_eq!(
        hex(&hash),
        "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"
    );
}

fn keys(app: &str, secret: [u8; 32], state: KeyState) -> Arc<AppKeys> {
    let app = AppId::new(app).unwrap();
    let key = XaesKey::derive(&app, &XaesSecret::new(Zeroizing::new(secret))).unwrap();
    Arc::new(AppKeys::new(app, vec![KeyVersion::new(1, state, key)]).unwrap())
}

fn sealer(keys: &AppKeys, scope: KeyScope, encoding: Encoding, context: &[u8]) -> Sealer {
    Sealer::new(
        keys.app(),
        Arc::clone(keys.newest(Suite::Xaes).unwrap()),
        scope,
        encoding,
        context,
    )
    .unwrap()
}

fn one(keys: &AppKeys, encoding: Encoding) -> Vec<u8> {
    let mut out = Vec::new();
    sealer(keys, KeyScope::Request, encoding, b"ctx")
        .seal(Datatype::String, b"sixteen bytes ok", &mut out)
        .unwrap();
    out
}

/// Computed by an implementation in Python and one in Rust on other libraries.
#[test]
fn an_envelope_has_the_bytes_of_the_format() {
    let secret: [u8; 32] = std::array::from_fn(|at| at as u8);
    let keys = keys("app-1", secret, KeyState::Active);
    let random: [u8; 20] = std::array::from_fn(|at| 0xa0 + at as u8);
    let version = Arc::clone(keys.newest(Suite::Xaes).unwrap());
    let mut sealer =
        Sealer::with_random(keys.app(), version, Encoding::Text, b"ctx", &random, 1).unwrap();
    let mut out = Vec::new();
    sealer
        .seal(Datatype::String, b"sixteen bytes ok", &mut out)
        .unwrap();
    let text = "sw1:A78Mpy_boKGio6SlpqeoqaqrrK2ur7CxsrMAAAAAAAH1Fk6seOciUyFczKJh5jiPyTrebJzMNOfV8PNiWcfu8A";
    assert_eq!((std::str::from_utf8(&out), out.len()), (Ok(text), 90));
    let said = Envelope::from_text(&out).unwrap();
    assert_eq!(
        (said.suite, said.sequence, said.plaintext_bytes),
        (Suite::Xaes, 1, 16)
    );
    assert_eq!(
        Opener::new(keys, b"ctx").open_text(&out).unwrap().plaintext,
        b"sixteen bytes ok"
    );
}

#[test]
fn a_key_is_bound_to_its_app() {
    let (shop, elsewhere) = (
        keys("shop", [7; 32], KeyState::Active),
        keys("elsewhere", [7; 32], KeyState::Active),
    );
    let [of_shop, of_elsewhere] =
        [&shop, &elsewhere].map(|keys| keys.newest(Suite::Xaes).unwrap().id);
    assert_ne!(of_shop, of_elsewhere);
    let mut envelope = one(&shop, Encoding::Binary);
    assert!(Opener::new(shop, b"ctx").open_binary(&envelope).is_ok());
    // The name of the other app's key does not help.
    envelope[4..9].copy_from_slice(of_elsewhere.as_bytes());
    assert_eq!(
        Opener::new(elsewhere, b"ctx").open_binary(&envelope),
        Err(CannotOpen)
    );
}

#[test]
fn a_header_that_differs_in_any_byte_does_not_open() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    let envelope = one(&keys, Encoding::Binary);
    let mut opener = Opener::new(keys, b"ctx");
    assert!(opener.open_binary(&envelope).is_ok());
    for at in 0..30 {
        for bit in 0..8 {
            let mut altered = envelope.clone();
            altered[at] ^= 1 << bit;
            assert_eq!(
                opener.open_binary(&altered),
                Err(CannotOpen),
                "byte {at} bit {bit}"
            );
        }
    }
    let mut reserved = envelope;
    reserved[29] = 1;
    assert_eq!(Envelope::from_binary(&reserved), None, "the reserved byte");
}

/// Envelopes whose random bytes differ only behind the 12 that select the derived key.
#[test]
fn headers_that_share_a_derived_key_do_not_open_each_other() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    let version = keys.newest(Suite::Xaes).unwrap();
    let [first, second] = [1, 2].map(|last| {
        let mut random = [9; 20];
        random[19] = last;
        let mut sealer = Sealer::with_random(
            keys.app(),
            Arc::clone(version),
            Encoding::Binary,
            b"",
            &random,
            0,
        )
        .unwrap();
        let mut out = Vec::new();
        sealer
            .seal(Datatype::Binary, b"the same value", &mut out)
            .unwrap();
        out
    });
    let mut opener = Opener::new(keys, b"");
    assert!(opener.open_binary(&first).is_ok() && opener.open_binary(&second).is_ok());
    assert_ne!(first[35..], second[35..]);
    let swapped = [&first[..30], &second[30..]].concat();
    assert_eq!(opener.open_binary(&swapped), Err(CannotOpen));
}

#[test]
fn random_bytes_differ_per_request_or_field() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    for (scope, expected) in [(KeyScope::Request, 100), (KeyScope::Field, 300)] {
        let mut headers = HashSet::new();
        for _ in 0..100 {
            let mut sealer = sealer(&keys, scope, Encoding::Binary, b"");
            for _ in 0..3 {
                let mut out = Vec::new();
                sealer.seal(Datatype::Binary, b"x", &mut out).unwrap();
                headers.insert(out[..30].to_vec());
            }
        }
        assert_eq!(headers.len(), expected, "{scope:?}");
    }
}

#[test]
fn after_the_last_sequence_number_follow_other_random_bytes() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    let version = Arc::clone(keys.newest(Suite::Xaes).unwrap());
    let mut sealer = Sealer::with_random(
        keys.app(),
        version,
        Encoding::Binary,
        b"",
        &[9; 20],
        u32::MAX,
    )
    .unwrap();
    let [last, next] = [(); 2].map(|()| {
        let mut out = Vec::new();
        sealer.seal(Datatype::Binary, b"x", &mut out).unwrap();
        (
            out[9..29] == [9; 20],
            Envelope::from_binary(&out).unwrap().sequence,
        )
    });
    assert_eq!((last, next), ((true, u32::MAX), (false, 0)));
}

#[test]
fn a_key_that_has_sealed_as_many_requests_as_it_may_seals_no_more() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    let version = keys.newest(Suite::Xaes).unwrap();
    version.precomputed.set_uses(XaesKey::HEADERS_MAX - 1);
    let envelope = one(&keys, Encoding::Text);
    let again = || {
        Sealer::new(
            keys.app(),
            Arc::clone(version),
            KeyScope::Request,
            Encoding::Text,
            b"",
        )
        .map(drop)
    };
    assert_eq!(
        (again(), again()),
        (Err(Error::KeyUsedUp), Err(Error::KeyUsedUp))
    );
    assert!(Sealer::if_ready(keys.app(), version, Encoding::Text, b"").is_none());
    assert!(
        Opener::new(Arc::clone(&keys), b"ctx")
            .open_text(&envelope)
            .is_ok(),
        "it opens as before"
    );
}

#[test]
fn a_symmetric_key_needs_no_agreement_no_table_and_no_cache() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    let version = keys.newest(Suite::Xaes).unwrap();
    assert_eq!(
        (version.make_table(), version.make_ready(keys.app(), 9)),
        (Ok(false), Ok(false))
    );
    assert!(Sealer::if_ready(keys.app(), version, Encoding::Text, b"").is_some());
    let kept = Arc::new(OpenKeyCache::new(9.try_into().unwrap(), 9));
    let mut opener = Opener::new(Arc::clone(&keys), b"ctx").keeping(Some(Arc::clone(&kept)));
    for _ in 0..100 {
        let (text, binary) = (one(&keys, Encoding::Text), one(&keys, Encoding::Binary));
        assert!(opener.has_schedule_of_text(&text) && opener.has_schedule_of_binary(&binary));
        assert!(opener.open_text(&text).is_ok() && opener.open_binary(&binary).is_ok());
    }
    assert_eq!(
        (opener.agreements(), kept.len(), kept.lookups()),
        (0, 0, (0, 0))
    );
}

#[test]
fn a_symmetric_key_has_no_epoch_and_no_key_pair() {
    let keys = keys("shop", [7; 32], KeyState::Active);
    let version = keys.newest(Suite::Xaes).unwrap();
    let (lifetime, clock) = (
        EpochLifetime::from_ms(9).unwrap(),
        std::time::Instant::now as Clock,
    );
    let epoch = Sealer::in_epoch(
        keys.app(),
        Arc::clone(version),
        lifetime,
        clock,
        Encoding::Text,
        b"",
    );
    assert_eq!(epoch.map(drop), Err(Error::NoKeyPair));
    assert_eq!(version.pair().map(drop), Err(Error::NoKeyPair));
    let evervault = crate::evervault::Sealer::new(
        Arc::clone(version),
        KeyScope::Request,
        &crate::evervault::Form::Plain,
    );
    assert_eq!(evervault.map(drop), Err(Error::NoKeyPair));
}

#[test]
fn a_disabled_key_opens_nothing() {
    let envelope = one(&keys("shop", [7; 32], KeyState::Active), Encoding::Text);
    let disabled = keys("shop", [7; 32], KeyState::Disabled);
    assert_eq!(
        Opener::new(disabled, b"ctx").open_text(&envelope),
        Err(CannotOpen)
    );
}

#[test]
fn secrets_are_not_printed() {
    let secret = XaesSecret::new(Zeroizing::new([0xab; 32]));
    let key = XaesKey::derive(&AppId::new("shop").unwrap(), &secret).unwrap();
    let printed = format!(
        "{secret:?} {key:?} {:?}",
        keys("shop", [0xab; 32], KeyState::Active)
    );
    for part in ["abab", "171, 171", &hex(&key.check()[..2])] {
        assert!(!printed.contains(part), "{part} in {printed}");
    }
}

#[test]
fn secrets_that_differ_have_other_checks() {
    let app = AppId::new("shop").unwrap();
    let check = |secret: &XaesSecret| *XaesKey::derive(&app, secret).unwrap().check();
    let secret = XaesSecret::generate().unwrap();
    assert_eq!(
        check(&secret),
        check(&XaesSecret::new(Zeroizing::new(*secret.expose())))
    );
    assert_ne!(check(&secret), check(&XaesSecret::generate().unwrap()));
    assert_eq!(unhex(&hex(&check(&secret))).len(), 16);
}
