//! Key agreements that other threads make for an opener.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::app;
use crate::{
    AppId, AppKeys, CannotOpen, Curve, Datatype, EncapsulationPlace, Encoding, KeyPair, KeyScope,
    KeyState, KeyVersion, OpenKeyCache, Opener, Origin, Sealer, Suite,
};

/// Texts of `count` fields, each under a key of its own.
fn cold(keys: &AppKeys, suite: Suite, encoding: Encoding, count: usize) -> Vec<Vec<u8>> {
    let version = keys.newest(suite).unwrap();
    let mut sealer = Sealer::new(
        keys.app(),
        Arc::clone(version),
        KeyScope::Field,
        encoding,
        b"row",
    )
    .unwrap();
    let seal = |field: usize| {
        let mut out = Vec::new();
        sealer
            .seal(Datatype::String, field.to_string().as_bytes(), &mut out)
            .unwrap();
        out
    };
    (0..count).map(seal).collect()
}

fn texts(keys: &AppKeys, count: usize) -> Vec<Vec<u8>> {
    cold(keys, Suite::P256, Encoding::Text, count)
}

fn opens(opener: &mut Opener, encoding: Encoding, envelope: &[u8], field: usize) {
    let opened = match encoding {
        Encoding::Text => opener.open_text(envelope),
        Encoding::Binary => opener.open_binary(envelope),
    };
    assert_eq!(
        opened.map(|opened| opened.plaintext.to_vec()),
        Ok(field.to_string().into_bytes())
    );
}

#[test]
fn an_opener_makes_the_agreements_that_nobody_made_before() {
    let keys = app("shop");
    for suite in Suite::ALL.into_iter().filter(|suite| *suite != Suite::Xaes) {
        for encoding in [Encoding::Text, Encoding::Binary] {
            let envelopes = cold(&keys, suite, encoding, 10);
            for helped in 0..=10 {
                let mut opener = Opener::new(Arc::clone(&keys), b"row");
                let queue = opener.share_agreements();
                for envelope in &envelopes {
                    match encoding {
                        Encoding::Text => queue.add_text(envelope),
                        Encoding::Binary => queue.add_binary(envelope),
                    }
                }
                assert!((0..helped).all(|_| queue.agree_next()));
                for (field, envelope) in envelopes.iter().enumerate() {
                    opens(&mut opener, encoding, envelope, field);
                }
                assert_eq!(opener.agreements(), 10 - helped, "{suite:?} {encoding:?}");
                assert!(!queue.agree_next(), "the opener took all");
            }
        }
    }
}

#[test]
fn help_comes_from_the_back_while_the_opener_goes_on_in_front() {
    let keys = app("shop");
    let envelopes = texts(&keys, 10);
    let mut opener = Opener::new(Arc::clone(&keys), b"row");
    let queue = opener.share_agreements();
    envelopes
        .iter()
        .for_each(|envelope| queue.add_text(envelope));
    for (field, envelope) in envelopes.iter().enumerate() {
        opens(&mut opener, Encoding::Text, envelope, field);
        assert_eq!(queue.agree_next(), field < 5);
    }
    assert_eq!(opener.agreements(), 5, "they meet in the middle");
}

#[test]
fn fields_without_agreement_are_not_queued() {
    let keys = app("shop");
    let [had, cached, fresh] = <[_; 3]>::try_from(texts(&keys, 3)).unwrap();
    let cache = Arc::new(OpenKeyCache::new(NonZeroUsize::new(8).unwrap(), 100));
    let opener = || Opener::new(Arc::clone(&keys), b"row").keeping(Some(Arc::clone(&cache)));
    opener().open_text(&cached).unwrap();
    let mut opener = opener();
    opener.open_text(&had).unwrap();
    let apart = {
        let version = Arc::clone(keys.newest(Suite::P256MlKem768).unwrap());
        let sealer = Sealer::new(
            keys.app(),
            version,
            KeyScope::Request,
            Encoding::Text,
            b"row",
        )
        .unwrap();
        let mut out = Vec::new();
        sealer
            .placing(EncapsulationPlace::Apart)
            .seal(Datatype::String, b"x", &mut out)
            .unwrap();
        out
    };
    let mut wrong_encapsulation = cold(&keys, Suite::P256MlKem768, Encoding::Text, 1).remove(0);
    wrong_encapsulation[100] ^= 1;
    let queue = opener.share_agreements();
    for (name, text, is_queued) in [
        ("opened before by this request", &had[..], false),
        ("opened before by another one", &cached, false),
        (
            "symmetric",
            &cold(&keys, Suite::Xaes, Encoding::Text, 1)[0],
            false,
        ),
        ("encapsulation not given", &apart, false),
        (
            "encapsulation of another header",
            &wrong_encapsulation,
            false,
        ),
        ("key of another app", &texts(&app("other"), 1)[0], false),
        ("too short", b"sw1:AQ", false),
        ("not base64", &[&b"sw1:"[..], &[b'*'; 99]].concat(), false),
        ("of another request", &fresh, true),
        ("a second time", &fresh, false),
    ] {
        queue.add_text(text);
        assert_eq!(queue.agree_next(), is_queued, "{name}");
    }
    assert_eq!(cache.lookups().0, 0, "adding is no use of the cache");
}

#[test]
fn fields_that_must_not_open_are_not_prepared() {
    let keys = |state, origin| {
        let version = KeyVersion::new(
            1,
            state,
            KeyPair::from_scalar(Curve::P256, &[7; 32]).unwrap(),
        );
        Arc::new(
            AppKeys::new(AppId::new("shop").unwrap(), vec![version.of_origin(origin)]).unwrap(),
        )
    };
    let envelope = &texts(&keys(KeyState::Active, Origin::Inside), 1)[0];
    for (state, origin, inside_only, opens) in [
        (KeyState::Active, Origin::Inside, true, true),
        (KeyState::Active, Origin::Outside, false, true),
        (KeyState::Active, Origin::Outside, true, false),
        (KeyState::Disabled, Origin::Inside, false, false),
    ] {
        let mut opener = Opener::new(keys(state, origin), b"row").inside_only(inside_only);
        let queue = opener.share_agreements();
        queue.add_text(envelope);
        assert_eq!(
            (queue.agree_next(), opener.open_text(envelope).is_ok()),
            (opens, opens),
            "{state:?} {origin:?}"
        );
    }
}

#[test]
fn an_agreement_that_fails_fails_for_the_opener_too() {
    let keys = app("shop");
    let mut envelope = cold(&keys, Suite::P256, Encoding::Binary, 1).remove(0);
    let mut opener = Opener::new(Arc::clone(&keys), b"row");
    let queue = opener.share_agreements();
    // Half of all x coordinates are on the curve.
    let off_curve = (0..=u8::MAX).find(|byte| {
        envelope[3 + 6 + 32] = *byte;
        queue.clear();
        queue.add_binary(&envelope);
        queue.agree_next() && queue.len() == 0
    });
    assert!(off_curve.is_some());
    assert_eq!(opener.open_binary(&envelope), Err(CannotOpen));
    assert_eq!(opener.agreements(), 1);
}

#[test]
fn prepared_contexts_reach_other_requests_only_after_a_field_opened() {
    let keys = app("shop");
    let cache = Arc::new(OpenKeyCache::new(NonZeroUsize::new(8).unwrap(), 100));
    let mut opener = Opener::new(Arc::clone(&keys), b"row").keeping(Some(Arc::clone(&cache)));
    let queue = opener.share_agreements();
    let envelope = &texts(&keys, 1)[0];
    let mut forged = envelope.clone();
    let tag = forged.len() - 1;
    forged[tag] = if forged[tag] == b'A' { b'Q' } else { b'A' };
    queue.add_text(&forged);
    assert!(queue.agree_next());
    assert_eq!(opener.open_text(&forged), Err(CannotOpen));
    assert!(cache.is_empty());
    opens(&mut opener, Encoding::Text, envelope, 0);
    assert_eq!((cache.len(), opener.agreements()), (1, 0));
}

#[test]
fn a_queue_is_bounded_and_what_does_not_fit_is_the_openers() {
    let keys = app("shop");
    let envelopes = texts(&keys, 200);
    let mut opener = Opener::new(Arc::clone(&keys), b"row");
    let queue = opener.share_agreements();
    let added = envelopes.iter().take_while(|envelope| {
        queue.add_text(envelope);
        queue.has_room()
    });
    let added = added.count() + 1;
    queue.add_text(&envelopes[added]);
    let mut helped = 0;
    while queue.agree_next() {
        helped += 1;
    }
    assert_eq!((added, helped), (128, 128));
    for (field, envelope) in envelopes.iter().enumerate() {
        opens(&mut opener, Encoding::Text, envelope, field);
    }
    assert_eq!(opener.agreements(), 200 - 128);
    assert!(queue.has_room());
}

#[test]
fn fields_open_while_other_threads_work() {
    let keys = app("shop");
    let envelopes = texts(&keys, 300);
    let mut opener = Opener::new(Arc::clone(&keys), b"row");
    let queue = opener.share_agreements();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    queue.agree_next();
                }
            });
        }
        scope.spawn(|| {
            envelopes
                .iter()
                .for_each(|envelope| queue.add_text(envelope))
        });
        scope.spawn(|| (0..5).for_each(|_| queue.clear()));
        for (field, envelope) in envelopes.iter().enumerate() {
            opens(&mut opener, Encoding::Text, envelope, field);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(opener.agreements() <= 300);
}
