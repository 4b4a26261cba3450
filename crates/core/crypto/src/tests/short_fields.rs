//! Fields that are sealed together must be the same bytes as fields that are sealed one by one.

use std::cell::Cell;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::app;
use crate::key::Ephemeral;
use crate::{AppKeys, Curve, Datatype, Encoding, EpochLifetime, KeyScope, Opener, Sealer, Suite};

thread_local! {
    /// The time of the test's clock.
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn clock() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + TIME.get()
}

/// 400 fields of 0 to 130 bytes and of every datatype. Most are short.
fn fields() -> Vec<(Datatype, Vec<u8>)> {
    let length = |at: usize| {
        if at.is_multiple_of(11) {
            at % 131
        } else {
            at % 40
        }
    };
    (0..400)
        .map(|at| {
            (
                Datatype::ALL[at % 3],
                vec![b'a' + (at % 26) as u8; length(at)],
            )
        })
        .collect()
}

/// Seals fields with a text between them, and completes after every `slice` fields. Calls `before`
/// before each field.
fn seal_later(sealer: &mut Sealer, slice: usize, mut before: impl FnMut(usize)) -> Vec<Vec<u8>> {
    let (mut out, mut places) = (Vec::new(), Vec::new());
    for (at, (datatype, plaintext)) in fields().iter().enumerate() {
        before(at);
        out.extend_from_slice(b"between");
        let start = out.len();
        sealer.seal_later(*datatype, plaintext, &mut out).unwrap();
        assert_eq!(out.len(), start + sealer.sealed_bytes(plaintext.len()));
        places.push(start..out.len());
        if at % slice == 0 {
            sealer.complete(&mut out);
        }
    }
    sealer.complete(&mut out);
    // A second time changes nothing.
    let done = out.clone();
    sealer.complete(&mut out);
    assert_eq!(out, done);
    assert!(
        places
            .iter()
            .all(|place| &out[place.start - 7..place.start] == b"between")
    );
    places
        .into_iter()
        .map(|place| out[place].to_vec())
        .collect()
}

fn assert_all_open(keys: &Arc<AppKeys>, encoding: Encoding, context: &[u8], sealed: &[Vec<u8>]) {
    let mut opener = Opener::new(keys.clone(), context);
    for (at, ((datatype, plaintext), envelope)) in fields().iter().zip(sealed).enumerate() {
        let opened = match encoding {
            Encoding::Text => opener.open_text(envelope),
            Encoding::Binary => opener.open_binary(envelope),
        };
        let opened = opened.unwrap_or_else(|_| panic!("{encoding:?}: field {at} does not open"));
        assert_eq!(
            (opened.datatype, opened.plaintext),
            (*datatype, &plaintext[..])
        );
    }
}

#[test]
fn fields_sealed_together_are_those_sealed_alone() {
    let keys = app("shop");
    for suite in [Suite::P256, Suite::P256Psk, Suite::Xaes] {
        let recipient = keys.newest(suite).unwrap();
        for encoding in [Encoding::Text, Encoding::Binary] {
            for context in [&b""[..], b"users", &[7; 100]] {
                for slice in [1, 2, 31, 32, 33, 1_000] {
                    let ephemeral = Ephemeral::generate(Curve::P256).unwrap();
                    let sealer = || match suite {
                        Suite::Xaes => Sealer::with_random(
                            keys.app(),
                            Arc::clone(recipient),
                            encoding,
                            context,
                            &[9; 20],
                            5,
                        ),
                        _ => Sealer::with_ephemeral(
                            keys.app(),
                            Arc::clone(recipient),
                            encoding,
                            context,
                            &ephemeral,
                            5,
                        ),
                    };
                    let mut alone = sealer().unwrap();
                    let expected = fields().into_iter().map(|(datatype, plaintext)| {
                        let mut out = Vec::new();
                        alone.seal(datatype, &plaintext, &mut out).unwrap();
                        out
                    });
                    let sealed = seal_later(&mut sealer().unwrap(), slice, |_| ());
                    assert!(
                        sealed.into_iter().eq(expected),
                        "{suite:?}, {encoding:?}, slices of {slice}"
                    );
                }
            }
        }
    }
}

#[test]
fn fields_that_wait_keep_their_key_when_the_next_one_gets_another() {
    let keys = app("shop");
    let newest = || Arc::clone(keys.newest(Curve::P256).unwrap());
    for encoding in [Encoding::Text, Encoding::Binary] {
        let ephemeral = Ephemeral::generate(Curve::P256).unwrap();
        // The numbers of the first key are used up after 50 fields.
        let first = u32::MAX - 49;
        let mut used_up =
            Sealer::with_ephemeral(keys.app(), newest(), encoding, b"c", &ephemeral, first)
                .unwrap();
        assert_all_open(
            &keys,
            encoding,
            b"c",
            &seal_later(&mut used_up, 1_000, |_| ()),
        );

        let mut per_field =
            Sealer::new(keys.app(), newest(), KeyScope::Field, encoding, b"c").unwrap();
        assert_all_open(
            &keys,
            encoding,
            b"c",
            &seal_later(&mut per_field, 1_000, |_| ()),
        );

        // An epoch ends by time, and for good.
        TIME.set(Duration::ZERO);
        let lifetime = EpochLifetime::from_ms(15_000).unwrap();
        let mut in_epoch =
            Sealer::in_epoch(keys.app(), newest(), lifetime, clock, encoding, b"c").unwrap();
        let sealed = seal_later(&mut in_epoch, 1_000, |at| match at {
            100 => TIME.set(Duration::from_secs(16)),
            200 => keys.end_epochs(None, clock()),
            _ => (),
        });
        let headers = sealed.iter().map(|envelope| &envelope[..42]);
        assert_eq!(headers.collect::<std::collections::HashSet<_>>().len(), 3);
        assert_all_open(&keys, encoding, b"c", &sealed);
    }
}

#[test]
fn fields_that_wait_are_zeros() {
    let keys = app("shop");
    let newest = Arc::clone(keys.newest(Curve::P256).unwrap());
    let mut sealer =
        Sealer::new(keys.app(), newest, KeyScope::Request, Encoding::Binary, b"").unwrap();
    let mut out = Vec::new();
    for _ in 0..20 {
        sealer
            .seal_later(Datatype::String, b"4242424242424242", &mut out)
            .unwrap();
    }
    // Neither plaintext nor key stream is ever in the output.
    assert!(!out.windows(8).any(|window| window == b"42424242"));
    let last = out.len() - 37..out.len();
    let waits = crate::gcm_batch::is_accelerated();
    assert_eq!(out[last.clone()].iter().all(|byte| *byte == 0), waits);
    sealer.complete(&mut out);
    assert!(out[last].iter().any(|byte| *byte != 0));
}

/// The context of a field. Some contexts have one field, others many; some occur again.
fn context_of(at: usize) -> Vec<u8> {
    let item = match at {
        0..30 => at,
        30..200 => 30 + at / 40,
        _ => at % 2,
    };
    match item % 3 {
        0 => Vec::new(),
        1 => vec![b'c'; item],
        _ => vec![b'd'; 4_000 + item],
    }
}

#[test]
fn fields_of_changing_contexts_are_sealed_as_one_by_one() {
    let keys = app("shop");
    let newest = keys.newest(Suite::P256).unwrap();
    for encoding in [Encoding::Text, Encoding::Binary] {
        let ephemeral = Ephemeral::generate(Curve::P256).unwrap();
        let sealer = |sequence: u32, context: &[u8]| {
            let newest = Arc::clone(newest);
            Sealer::with_ephemeral(keys.app(), newest, encoding, context, &ephemeral, sequence)
                .unwrap()
        };
        let expected: Vec<Vec<u8>> = (0..)
            .zip(fields())
            .map(|(sequence, (datatype, plaintext))| {
                let mut out = Vec::new();
                sealer(sequence, &context_of(sequence as usize))
                    .seal(datatype, &plaintext, &mut out)
                    .unwrap();
                out
            })
            .collect();
        for slice in [1, 7, 50, 400] {
            let mut changing = sealer(0, b"not in use");
            let (mut out, mut ends) = (Vec::new(), vec![0]);
            for (at, (datatype, plaintext)) in fields().iter().enumerate() {
                if at == 0 || context_of(at) != context_of(at - 1) {
                    changing.set_context(&context_of(at));
                }
                changing.seal_later(*datatype, plaintext, &mut out).unwrap();
                ends.push(out.len());
                if at % slice == 0 {
                    changing.complete(&mut out);
                }
            }
            changing.complete(&mut out);
            let sealed = ends.windows(2).map(|ends| out[ends[0]..ends[1]].to_vec());
            assert_eq!(sealed.collect::<Vec<_>>(), expected, "{encoding:?} {slice}");
        }

        let mut opener = Opener::new(Arc::clone(&keys), b"not in use");
        for (at, envelope) in expected.iter().enumerate() {
            let mut open = |context: &[u8]| {
                opener.set_context(context);
                let opened = match encoding {
                    Encoding::Text => opener.open_text(envelope),
                    Encoding::Binary => opener.open_binary(envelope),
                };
                opened.map(|opened| opened.plaintext.to_vec())
            };
            assert!(open(b"another").is_err());
            assert_eq!(open(&context_of(at)).as_ref(), Ok(&fields()[at].1), "{at}");
        }
    }
}
