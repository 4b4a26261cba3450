//! The crate's contract, for all suites, encodings and scopes.

use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::{DHKEM, app};
use crate::open_key_cache::HELD_MAX;
use crate::{
    AppId, AppKeys, CannotOpen, Curve, Datatype, Encoding, Envelope, Error, Kek, KeyId, KeyPair,
    KeyScope, KeyState, KeyVersion, OpenKeyCache, Opener, PublicKey, Scalar, Sealer, Suite,
};

/// Bytes of an envelope that are of its header, whatever its suite and encoding.
const OF_HEADER: usize = 30;

fn sealer(
    keys: &AppKeys,
    suite: impl Into<Suite>,
    scope: KeyScope,
    encoding: Encoding,
    context: &[u8],
) -> Sealer {
    Sealer::new(
        keys.app(),
        keys.newest(suite).unwrap().clone(),
        scope,
        encoding,
        context,
    )
    .unwrap()
}

fn open(opener: &mut Opener, envelope: &[u8]) -> Result<(Datatype, Vec<u8>), CannotOpen> {
    let opened = if envelope.starts_with(b"sw1:") {
        opener.open_text(envelope)
    } else {
        opener.open_binary(envelope)
    };
    opened.map(|opened| (opened.datatype, opened.plaintext.to_vec()))
}

#[test]
fn sealed_fields_open_in_any_order() {
    let keys = app("shop");
    for suite in Suite::ALL {
        for encoding in [Encoding::Text, Encoding::Binary] {
            for scope in [KeyScope::Request, KeyScope::Field] {
                let mut sealer = sealer(&keys, suite, scope, encoding, b"ctx");
                let fields: Vec<Vec<u8>> = (0..20u8)
                    .map(|n| vec![b'a' + n; usize::from(n) * 7])
                    .collect();
                let sealed: Vec<Vec<u8>> = fields
                    .iter()
                    .map(|field| {
                        let mut out = b"before".to_vec();
                        sealer.seal(Datatype::String, field, &mut out).unwrap();
                        assert_eq!(out.len(), 6 + sealer.sealed_bytes(field.len()));
                        out.split_off(6)
                    })
                    .collect();
                let headers: HashSet<&[u8]> = sealed
                    .iter()
                    .map(|envelope| &envelope[..OF_HEADER])
                    .collect();
                assert_eq!(headers.len(), if scope == KeyScope::Field { 20 } else { 1 });
                let mut opener = Opener::new(keys.clone(), b"ctx");
                for (field, envelope) in fields.iter().zip(&sealed).rev() {
                    assert_eq!(
                        open(&mut opener, envelope),
                        Ok((Datatype::String, field.clone()))
                    );
                }
            }
        }
    }
}

/// Every bit of every byte, text and binary. All refuse, and all refuse alike.
#[test]
fn flipped_bits_do_not_open() {
    let keys = app("shop");
    for suite in Suite::ALL {
        for encoding in [Encoding::Text, Encoding::Binary] {
            let mut envelope = Vec::new();
            sealer(&keys, suite, KeyScope::Request, encoding, b"ctx")
                .seal(Datatype::String, b"4242424242424242", &mut envelope)
                .unwrap();
            let mut opener = Opener::new(keys.clone(), b"ctx");
            for at in 0..envelope.len() {
                for bit in 0..8 {
                    let mut flipped = envelope.clone();
                    flipped[at] ^= 1 << bit;
                    let opened = match encoding {
                        Encoding::Text => opener.open_text(&flipped),
                        Encoding::Binary => opener.open_binary(&flipped),
                    };
                    assert_eq!(opened, Err(CannotOpen), "byte {at} bit {bit}");
                }
            }
            assert!(
                open(&mut opener, &envelope).is_ok(),
                "the original still opens after all that"
            );
        }
    }
}

/// Seals one field and says under which header, so that a schedule's second use would show.
fn header_of_one(keys: &AppKeys, suite: Suite) -> Vec<u8> {
    let mut out = Vec::new();
    sealer(keys, suite, KeyScope::Request, Encoding::Binary, b"")
        .seal(Datatype::Binary, b"x", &mut out)
        .unwrap();
    out.truncate(42);
    out
}

#[test]
fn precomputed_ephemeral_keys_seal_once() {
    let keys = app("shop");
    for suite in DHKEM {
        let version = keys.newest(suite).unwrap();
        assert_eq!(
            version.make_table(),
            Ok(matches!(suite, Suite::P256 | Suite::P256Psk))
        );
        assert_eq!(version.make_table(), Ok(false), "one is enough");
        for n in 0..3 {
            assert_eq!(version.make_ready(keys.app(), 2), Ok(n < 2));
        }
        let uses = version.uses();
        let mut sealer = sealer(&keys, suite, KeyScope::Field, Encoding::Text, b"ctx");
        let mut headers = HashSet::new();
        for n in 0..6u8 {
            let mut envelope = Vec::new();
            sealer.seal(Datatype::Binary, &[n], &mut envelope).unwrap();
            assert!(
                headers.insert(envelope[..56].to_vec()),
                "a schedule was used twice"
            );
            let opened = open(&mut Opener::new(keys.clone(), b"ctx"), &envelope);
            assert_eq!(
                opened,
                Ok((Datatype::Binary, vec![n])),
                "two ready, then by table or plainly"
            );
        }
        assert_eq!(version.uses(), uses + 6);
        version.make_ready(keys.app(), 9).unwrap();
        version.wipe_precomputed();
        assert!(headers.insert(header_of_one(&keys, suite)));
    }
}

#[test]
fn a_ready_schedule_goes_to_one_of_many_threads_and_to_its_own_app() {
    let keys = app("shop");
    let version = keys.newest(Curve::P256).unwrap();
    while version.make_ready(keys.app(), 64).unwrap() {}
    let headers: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let seal = || {
            (0..32)
                .map(|_| header_of_one(&keys, Suite::P256))
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(seal)).collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(headers.iter().collect::<HashSet<_>>().len(), 128);

    version
        .make_ready(&AppId::new("elsewhere").unwrap(), 64)
        .unwrap();
    let mut envelope = Vec::new();
    sealer(&keys, Curve::P256, KeyScope::Request, Encoding::Text, b"")
        .seal(Datatype::Binary, b"x", &mut envelope)
        .unwrap();
    assert!(
        Opener::new(keys, b"").open_text(&envelope).is_ok(),
        "another app's schedule is not used"
    );
}

#[test]
fn under_a_key_of_two_apps_each_opens_its_own() {
    for curve in Curve::ALL {
        let scalar = KeyPair::generate(curve).unwrap().scalar().unwrap();
        let [shop, elsewhere] = ["shop", "elsewhere"].map(|app| {
            let pair = KeyPair::from_scalar(curve, scalar.expose()).unwrap();
            let versions = vec![KeyVersion::new(1, KeyState::Active, pair)];
            Arc::new(AppKeys::new(AppId::new(app).unwrap(), versions).unwrap())
        });
        let version = shop.newest(curve).unwrap();
        for (of, other) in [
            (&shop, &elsewhere),
            (&elsewhere, &shop),
            (&shop, &elsewhere),
        ] {
            let mut envelope = Vec::new();
            Sealer::new(
                of.app(),
                version.clone(),
                KeyScope::Request,
                Encoding::Text,
                b"",
            )
            .unwrap()
            .seal(Datatype::Binary, b"x", &mut envelope)
            .unwrap();
            assert_eq!(
                open(&mut Opener::new(of.clone(), b""), &envelope),
                Ok((Datatype::Binary, b"x".to_vec()))
            );
            assert_eq!(
                open(&mut Opener::new(other.clone(), b""), &envelope),
                Err(CannotOpen)
            );
        }
    }
}

#[test]
fn kept_schedules_serve_other_requests_within_their_bounds() {
    let keys = app("shop");
    let kept = Arc::new(OpenKeyCache::new(2.try_into().unwrap(), 3));
    let seal = |curve| {
        let mut envelope = Vec::new();
        sealer(&keys, curve, KeyScope::Request, Encoding::Text, b"ctx")
            .seal(Datatype::Binary, b"x", &mut envelope)
            .unwrap();
        envelope
    };
    let opens = |envelope: &[u8], keys: &Arc<AppKeys>, context: &[u8]| {
        Opener::new(keys.clone(), context)
            .keeping(Some(kept.clone()))
            .open_text(envelope)
            .is_ok()
    };
    let first = seal(Curve::P256);
    assert!(!opens(&first, &keys, b"elsewhere"));
    assert!(kept.is_empty(), "what did not open is not kept");
    assert!(opens(&first, &keys, b"ctx") && opens(&first, &keys, b"ctx"));
    assert_eq!(kept.len(), 1);
    assert_eq!(
        kept.lookups(),
        (1, 2),
        "found once, looked for in vain before it was opened"
    );
    assert!(
        !opens(&first, &keys, b"elsewhere"),
        "a kept schedule checks the context too"
    );
    assert!(
        !opens(&first, &app("shop"), b"ctx"),
        "other keys of the same app name do not get it"
    );

    kept.tick();
    kept.tick();
    assert!(
        opens(&first, &keys, b"ctx") && kept.len() == 1,
        "use does not prolong its life"
    );
    kept.tick();
    assert!(kept.is_empty(), "its time is over");

    for curve in [Curve::P256, Curve::Secp256k1, Curve::P256] {
        assert!(opens(&seal(curve), &keys, b"ctx"));
    }
    assert_eq!(kept.len(), 2, "no more than its capacity");
    kept.purge(&AppId::new("other").unwrap());
    assert_eq!(kept.len(), 2);
    kept.purge(keys.app());
    assert!(kept.is_empty());
}

#[test]
fn a_disabled_version_neither_opens_nor_seals() {
    let pair = KeyPair::generate(Curve::P256).unwrap();
    let scalar = pair.scalar().unwrap();
    let version = |number, state, scalar: &Scalar| {
        KeyVersion::new(
            number,
            state,
            KeyPair::from_scalar(Curve::P256, scalar.expose()).unwrap(),
        )
    };
    let newer = KeyPair::generate(Curve::P256).unwrap().scalar().unwrap();
    let id = AppId::new("shop").unwrap();
    let keys = |old| {
        let versions = vec![
            version(2, KeyState::Active, &newer),
            version(1, old, &scalar),
        ];
        Arc::new(AppKeys::new(id.clone(), versions).unwrap())
    };
    let (active, disabled) = (keys(KeyState::Active), keys(KeyState::Disabled));
    assert_eq!(
        active.newest(Curve::P256).unwrap().number,
        2,
        "the newest seals, whatever the order"
    );
    assert!(active.newest(Curve::Secp256k1).is_none());

    let mut envelope = Vec::new();
    let old = active.versions()[1].clone();
    Sealer::new(&id, old, KeyScope::Request, Encoding::Text, b"")
        .unwrap()
        .seal(Datatype::Binary, b"x", &mut envelope)
        .unwrap();
    let kept = Arc::new(OpenKeyCache::new(9.try_into().unwrap(), 9));
    assert!(
        Opener::new(active, b"")
            .keeping(Some(kept.clone()))
            .open_text(&envelope)
            .is_ok()
    );
    let mut disabled = Opener::new(disabled, b"").keeping(Some(kept.clone()));
    assert!(
        disabled.has_schedule_of_text(&envelope),
        "it fails without a Diffie-Hellman"
    );
    assert_eq!(disabled.held(), 0);
    assert_eq!(
        (disabled.open_text(&envelope), kept.len()),
        (Err(CannotOpen), 1),
        "not even what is kept"
    );
}

#[test]
fn an_opener_says_what_it_opens_without_an_agreement() {
    let keys = app("shop");
    let kept = Arc::new(OpenKeyCache::new(100.try_into().unwrap(), 9));
    let opener = || Opener::new(keys.clone(), b"").keeping(Some(kept.clone()));
    for (encoding, scope) in [
        (Encoding::Text, KeyScope::Request),
        (Encoding::Binary, KeyScope::Field),
    ] {
        let mut sealer = sealer(&keys, Curve::P256, scope, encoding, b"");
        let sealed: Vec<Vec<u8>> = (0..=HELD_MAX)
            .map(|_| {
                let mut out = Vec::new();
                sealer.seal(Datatype::Binary, b"x", &mut out).unwrap();
                out
            })
            .collect();
        let has = |opener: &mut Opener, envelope: &[u8]| match encoding {
            Encoding::Text => opener.has_schedule_of_text(envelope),
            Encoding::Binary => opener.has_schedule_of_binary(envelope),
        };
        let mut first = opener();
        assert!(sealed.iter().all(|envelope| !has(&mut first, envelope)));
        sealed
            .iter()
            .for_each(|envelope| drop(open(&mut first, envelope).unwrap()));
        let (agreements, mut second) = (first.agreements(), opener());
        assert!(
            sealed[1..]
                .iter()
                .all(|envelope| has(&mut second, envelope))
        );
        assert_eq!(
            has(&mut second, &sealed[0]),
            scope == KeyScope::Request,
            "no room for more keys than are held"
        );
        sealed[1..]
            .iter()
            .for_each(|envelope| drop(open(&mut second, envelope).unwrap()));
        assert_eq!((agreements > 0, second.agreements()), (true, 0));
        let unkept = &mut Opener::new(keys.clone(), b"");
        assert!(!has(unkept, &sealed[0]));
        for not_one in [&sealed[0][..9], b"", b"hello"] {
            assert!(has(unkept, not_one), "it fails without a Diffie-Hellman");
        }
    }
}

#[test]
fn more_ephemeral_keys_than_are_held_still_open_and_are_let_go() {
    let keys = app("shop");
    let mut sealer = sealer(
        &keys,
        Curve::Secp256k1,
        KeyScope::Field,
        Encoding::Binary,
        b"",
    );
    let sealed: Vec<Vec<u8>> = (0..100u32)
        .map(|n| {
            let mut out = Vec::new();
            sealer
                .seal(Datatype::Binary, &n.to_be_bytes(), &mut out)
                .unwrap();
            out
        })
        .collect();
    let mut opener = Opener::new(keys, b"");
    for (n, envelope) in (0..100u32).zip(&sealed).chain((0..8).zip(&sealed)) {
        assert_eq!(open(&mut opener, envelope).unwrap().1, n.to_be_bytes());
        assert!((1..=HELD_MAX).contains(&opener.held()), "{}", opener.held());
    }
}

/// The header of each suite before the body of each other, and each suite's byte in the header of
/// each other.
#[test]
fn suites_do_not_mix() {
    let keys = app("shop");
    let sealed = Suite::ALL.map(|suite| {
        let mut out = Vec::new();
        sealer(&keys, suite, KeyScope::Request, Encoding::Binary, b"")
            .seal(Datatype::Binary, b"0123456789012345", &mut out)
            .unwrap();
        (suite, out)
    });
    let mut opener = Opener::new(keys, b"");
    let body = |envelope: &[u8]| envelope.len() - 37;
    for (suite, envelope) in &sealed {
        assert!(open(&mut opener, envelope).is_ok());
        for (other, from) in sealed.iter().filter(|(other, _)| other != suite) {
            let mixed = [&envelope[..body(envelope)], &from[body(from)..]].concat();
            assert_eq!(
                open(&mut opener, &mixed),
                Err(CannotOpen),
                "header of {suite:?}, body of {other:?}"
            );
            let mut renamed = envelope.clone();
            renamed[3] = other.byte();
            assert_eq!(
                open(&mut opener, &renamed),
                Err(CannotOpen),
                "{suite:?} as {other:?}"
            );
        }
    }
}

#[test]
fn inspect_reads_what_is_written() {
    let keys = app("shop");
    for suite in Suite::ALL {
        let mut sealer = sealer(&keys, suite, KeyScope::Request, Encoding::Text, b"");
        let mut text = Vec::new();
        sealer
            .seal(Datatype::String, b"first", &mut Vec::new())
            .unwrap();
        sealer.seal(Datatype::Value, &[0xc3], &mut text).unwrap();
        let envelope = Envelope::from_text(&text).unwrap();
        assert_eq!(
            (envelope.suite, envelope.key_id),
            (suite, keys.newest(suite).unwrap().id)
        );
        assert_eq!(
            (
                envelope.datatype,
                envelope.sequence,
                envelope.plaintext_bytes
            ),
            (Datatype::Value, 1, 1)
        );
        for not_one in [&text[..64], b"sw1:", b"", b"hello"] {
            assert_eq!(Envelope::from_text(not_one), None);
        }
    }
}

#[test]
fn names_scalars_and_points_are_checked() {
    for (name, valid) in [
        ("a", true),
        ("shop-1.eu_west", true),
        ("", false),
        (".hidden", false),
        ("a/b", false),
        ("a b", false),
        ("\u{e9}", false),
        (&"x".repeat(64), true),
        (&"x".repeat(65), false),
    ] {
        assert_eq!(AppId::new(name).is_ok(), valid, "{name}");
    }
    let id = KeyId::from_bytes([0, 0x1f, 0xa0, 0x9b, 0xff]);
    for (text, expected) in [
        ("001fa09bff", Ok(id)),
        ("001FA09BFF", Ok(id)),
        ("001fa09bf", Err(Error::InvalidKeyId)),
        ("001fa09bff0", Err(Error::InvalidKeyId)),
        ("+01fa09bff", Err(Error::InvalidKeyId)),
        ("001fa09bfg", Err(Error::InvalidKeyId)),
        ("", Err(Error::InvalidKeyId)),
    ] {
        assert_eq!(text.parse::<KeyId>(), expected, "{text}");
    }
    assert_eq!(id.to_string(), "001fa09bff");
    for curve in Curve::ALL {
        for scalar in [[0; 32], [0xff; 32]] {
            assert_eq!(
                KeyPair::from_scalar(curve, &scalar).err(),
                Some(Error::InvalidPrivateKey)
            );
        }
        let point = *KeyPair::generate(curve).unwrap().public().uncompressed();
        let hybrid = [&[6 | (point[64] & 1)], &point[1..]].concat();
        let mut off_curve = point;
        off_curve[64] ^= 1;
        for bad in [&hybrid[..], &off_curve, &point[..64], &[0], &[]] {
            assert_eq!(
                PublicKey::from_sec1(curve, bad).err(),
                Some(Error::InvalidPublicKey)
            );
        }
        assert!(PublicKey::from_sec1(curve, &point).is_ok());
    }
}

#[test]
fn a_wrapped_key_opens_under_its_kek_and_record_only() {
    let hex = Kek::generate_hex().unwrap();
    let kek = Kek::from_hex(&format!(" {}\n", *hex)).unwrap();
    let scalar = KeyPair::generate(Curve::P256).unwrap().scalar().unwrap();
    let wrapped = kek.wrap(&scalar, b"shop/1").unwrap();
    assert_eq!(
        kek.unwrap(&wrapped, b"shop/1").unwrap().expose(),
        scalar.expose()
    );
    assert_ne!(
        wrapped,
        kek.wrap(&scalar, b"shop/1").unwrap(),
        "the nonce is fresh"
    );
    let other = Kek::from_hex(&Kek::generate_hex().unwrap()).unwrap();
    let mut altered = wrapped.clone();
    altered[20] ^= 1;
    for (kek, wrapped, bound) in [
        (&kek, &wrapped[..], &b"shop/2"[..]),
        (&other, &wrapped, b"shop/1"),
        (&kek, &altered, b"shop/1"),
        (&kek, &wrapped[1..], b"shop/1"),
        (&kek, &[], b"shop/1"),
    ] {
        assert_eq!(kek.unwrap(wrapped, bound).err(), Some(Error::Unwrap));
    }
    for bad in [
        "",
        "00",
        &"g".repeat(64),
        &"0".repeat(63),
        &"\u{e9}".repeat(32),
    ] {
        assert_eq!(Kek::from_hex(bad).err(), Some(Error::InvalidKek));
    }
}

/// Formats every type that holds a secret and looks for its bytes.
#[test]
fn secrets_are_not_printed() {
    let keys = app("shop");
    let pair = keys.newest(Curve::P256).unwrap().pair().unwrap();
    let scalar = pair.scalar().unwrap();
    let sealer = sealer(&keys, Curve::P256, KeyScope::Request, Encoding::Text, b"");
    let opener = Opener::new(keys.clone(), b"");
    let kek = Kek::from_hex(&"ab".repeat(32)).unwrap();
    let printed = format!("{pair:?} {scalar:?} {sealer:?} {opener:?} {kek:?} {keys:?}");
    let decimal = format!("{}, {}", scalar.expose()[0], scalar.expose()[1]);
    for secret in [
        super::hex(&scalar.expose()[..4]),
        decimal,
        "abab".into(),
        "171, 171".into(),
    ] {
        assert!(!printed.contains(&secret), "{secret} in {printed}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_open_and_never_panic(
        bytes: Vec<u8>, keep in 0usize..120, at in 0usize..120, suite in prop::sample::select(&Suite::ALL[..])
    ) {
        let keys = app("shop");
        let mut opener = Opener::new(keys.clone(), b"");
        let mut text = b"sw1:".to_vec();
        text.extend_from_slice(&bytes);
        let _ = Envelope::from_text(&text);
        let _ = Envelope::from_binary(&bytes);
        prop_assert_eq!(opener.open_text(&text).err(), Some(CannotOpen));
        prop_assert_eq!(opener.open_binary(&bytes).err(), Some(CannotOpen));
        let mut envelope = Vec::new();
        sealer(&keys, suite, KeyScope::Request, Encoding::Binary, b"")
            .seal(Datatype::Binary, b"0123456789", &mut envelope).unwrap();
        let whole = envelope.clone();
        envelope.truncate(keep);
        let at = at.min(envelope.len());
        envelope.splice(at..at, bytes);
        prop_assert_eq!(opener.open_binary(&envelope).is_ok(), envelope == whole);
    }
}
