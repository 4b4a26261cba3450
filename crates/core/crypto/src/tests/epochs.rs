//! The contract of epoch scope: a shared key, no number twice, and an end in time and in count.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, LazyLock};
use std::time::{Duration, Instant};

use super::{DHKEM, app};
use crate::mutex::lock;
use crate::{
    AppId, AppKeys, Clock, Datatype, EncapsulationPlace, Encoding, EpochLifetime, KeyScope, Opener,
    SEALER_ENCAPSULATIONS_MAX, Sealer, Suite,
};

thread_local! {
    /// The time of the test's clock.
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn clock() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START + TIME.get()
}

fn at(ms: u64) {
    TIME.set(Duration::from_millis(ms));
}

fn lifetime(ms: u32) -> EpochLifetime {
    EpochLifetime::from_ms(ms).unwrap()
}

fn sealer(keys: &AppKeys, suite: Suite, lifetime_ms: u32, clock: Clock, context: &[u8]) -> Sealer {
    let newest = keys.newest(suite).unwrap().clone();
    Sealer::in_epoch(
        keys.app(),
        newest,
        lifetime(lifetime_ms),
        clock,
        Encoding::Binary,
        context,
    )
    .unwrap()
}

/// A clock for several threads, which shows 20 us more each time it is read.
fn reading_clock() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    static READS: AtomicU32 = AtomicU32::new(0);
    *START + Duration::from_micros(20) * READS.fetch_add(1, Ordering::Relaxed)
}

/// Under which header one field was sealed, and with which number.
type Place = (Vec<u8>, u32);

fn place(envelope: &[u8]) -> Place {
    (
        envelope[3..42].to_vec(),
        u32::from_be_bytes(*envelope[43..].first_chunk().unwrap()),
    )
}

fn seal(sealer: &mut Sealer) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal(Datatype::String, b"4242", &mut out).unwrap();
    out
}

/// Where the only field of a call ends up.
fn one(keys: &AppKeys, suite: Suite, lifetime_ms: u32) -> Place {
    place(&seal(&mut sealer(keys, suite, lifetime_ms, clock, b"")))
}

fn opens(keys: &Arc<AppKeys>, context: &[u8], envelope: &[u8]) -> bool {
    Opener::new(keys.clone(), context)
        .open_binary(envelope)
        .is_ok_and(|opened| opened.plaintext == b"4242")
}

#[test]
fn calls_share_a_key_whatever_their_context_and_never_a_number() {
    let keys = app("shop");
    for suite in DHKEM {
        let mut calls = [b"row 1", b"row 2"]
            .map(|context| (context, sealer(&keys, suite, 15_000, clock, context)));
        let mut places = Vec::new();
        for _ in 0..3 {
            for (context, sealer) in &mut calls {
                let envelope = seal(sealer);
                assert!(opens(&keys, *context, &envelope) && !opens(&keys, b"row 3", &envelope));
                places.push(place(&envelope));
            }
        }
        places.push(one(&keys, suite, 15_000));
        assert!(
            places.iter().all(|(header, _)| *header == places[0].0),
            "one key"
        );
        assert!(
            places.iter().map(|(_, number)| *number).eq(0..7),
            "each number once"
        );
    }
    assert_ne!(
        one(&keys, Suite::P256, 15_000).0,
        one(&keys, Suite::Secp256k1, 15_000).0
    );
    assert_ne!(
        one(&keys, Suite::P256, 15_000).0,
        one(&app("shop"), Suite::P256, 15_000).0,
        "other keys"
    );
}

#[test]
fn an_epoch_is_one_apps_alone() {
    let (keys, other) = (app("shop"), AppId::new("other").unwrap());
    let version = keys.newest(Suite::P256).unwrap();
    let mut headers = HashSet::new();
    for app in [keys.app(), &other, keys.app()] {
        let made = Sealer::in_epoch(
            app,
            version.clone(),
            lifetime(9),
            clock,
            Encoding::Binary,
            b"",
        );
        assert!(headers.insert(place(&seal(&mut made.unwrap())).0));
    }
}

#[test]
fn other_scopes_never_touch_it_nor_it_a_ready_key() {
    let keys = app("shop");
    for suite in DHKEM {
        let version = keys.newest(suite).unwrap();
        while version.make_ready(keys.app(), 2).unwrap() {}
        let uses = version.uses();
        let (shared, _) = one(&keys, suite, 15_000);
        assert_eq!(version.uses(), uses + 1);
        assert_eq!(
            version.make_ready(keys.app(), 2),
            Ok(false),
            "both ready keys are still there"
        );
        let mut headers = HashSet::from([shared.clone()]);
        for scope in [KeyScope::Request, KeyScope::Field, KeyScope::Request] {
            let made = Sealer::new(keys.app(), version.clone(), scope, Encoding::Binary, b"");
            assert!(
                headers.insert(place(&seal(&mut made.unwrap())).0),
                "two ready, one fresh, each its own"
            );
        }
        assert_eq!(one(&keys, suite, 15_000), (shared, 1));
        assert_eq!(
            version.uses(),
            uses + 4,
            "the second call of the epoch made no key"
        );
    }
}

#[test]
fn a_sealer_that_must_be_ready_makes_no_key() {
    let keys = app("shop");
    let other = AppId::new("elsewhere").unwrap();
    for suite in DHKEM {
        let version = keys.newest(suite).unwrap();
        let ready = || Sealer::if_ready(keys.app(), version, Encoding::Binary, b"");
        let in_epoch = |app| {
            Sealer::if_in_epoch(
                app,
                version,
                lifetime(9_000),
                Instant::now,
                Encoding::Binary,
                b"",
            )
        };
        assert!(ready().is_none() && in_epoch(keys.app()).is_none());
        assert_eq!(version.uses(), 0);
        version.make_ready(keys.app(), 1).unwrap();
        let begun = Sealer::in_epoch(
            keys.app(),
            version.clone(),
            lifetime(9_000),
            Instant::now,
            Encoding::Binary,
            b"",
        );
        let mut sealers = [ready(), in_epoch(keys.app()), begun.ok()].map(Option::unwrap);
        assert!(ready().is_none(), "a ready key is used once");
        assert!(in_epoch(&other).is_none(), "an epoch is of one app");
        assert_eq!(
            version.uses(),
            2,
            "one for the request, and one for the epoch"
        );
        let places: HashSet<_> = sealers.each_mut().map(|sealer| place(&seal(sealer))).into();
        assert_eq!(places.len(), 3, "no nonce is used twice");
        keys.end_epochs(None, Instant::now());
        assert!(in_epoch(keys.app()).is_none(), "the epoch is over");
    }
}

#[test]
fn threads_that_begin_at_once_share_one_key_and_lose_no_number() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 20;
    const NUMBERS: usize = 100_000;
    let keys = app("shop");
    let version = keys.newest(Suite::P256).unwrap();
    let (now, lifetime, round) = (Instant::now(), lifetime(15_000), Barrier::new(THREADS));
    let epoch = || version.epoch(keys.app(), lifetime, now).unwrap();
    let take = || {
        round.wait();
        let (epoch, mut last, mut grows) = (epoch(), None, true);
        for _ in 0..ROUNDS {
            // All threads start each round together, and a round outlasts the time that waking them
            // takes.
            round.wait();
            for _ in 0..NUMBERS {
                let number = epoch.take_number(lifetime, now);
                grows &= number > last;
                last = number;
            }
        }
        grows
    };
    let grows = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(take)).collect();
        threads.into_iter().all(|thread| thread.join().unwrap())
    });
    assert!(grows, "each thread's numbers grow");
    let taken = epoch().next.load(Ordering::Relaxed);
    assert_eq!(
        taken,
        (THREADS * ROUNDS * NUMBERS) as u64,
        "as many as were taken: none was given out twice"
    );
    assert_eq!(version.uses(), 1);
}

#[test]
fn many_threads_never_get_the_same_number() {
    const THREADS: usize = 4;
    const CALLS: usize = 400;
    let keys = app("shop");
    let call = |thread: usize, call: usize| {
        // The shortest epoch, so that it ends every 50 fields or calls; and calls of several
        // lengths.
        let mut sealer = sealer(&keys, Suite::P256, 1, reading_clock, b"");
        (0..1 + (thread + call) % 7)
            .map(|_| seal(&mut sealer))
            .collect::<Vec<_>>()
    };
    let sealed: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let calls = |thread| {
            (0..CALLS)
                .flat_map(move |n| call(thread, n))
                .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || calls(thread)))
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    let places: HashSet<Place> = sealed.iter().map(|envelope| place(envelope)).collect();
    assert_eq!(places.len(), sealed.len(), "every key and number once");
    let headers = places
        .iter()
        .map(|(header, _)| header)
        .collect::<HashSet<_>>()
        .len();
    assert!(
        (2..sealed.len() / 4).contains(&headers),
        "{headers} epochs for {} fields",
        sealed.len()
    );
    let mut opener = Opener::new(keys.clone(), b"");
    assert!(
        sealed
            .iter()
            .all(|envelope| opener.open_binary(envelope).is_ok())
    );
}

#[test]
fn the_end_of_the_numbers_makes_a_new_key_also_within_a_call() {
    let keys = app("shop");
    let version = keys.newest(Suite::P256).unwrap();
    for (next, left) in [
        (u64::from(u32::MAX) - 2, 3),
        (u64::from(u32::MAX) + 1, 0),
        (u64::MAX / 2, 0),
    ] {
        version.cool();
        let (old, _) = one(&keys, Suite::P256, 15_000);
        let mut calls = [(); 2].map(|()| sealer(&keys, Suite::P256, 15_000, clock, b""));
        lock(&version.precomputed.epoch)
            .as_ref()
            .unwrap()
            .next
            .store(next, Ordering::Relaxed);
        let places: Vec<Place> = (0..10).map(|n| place(&seal(&mut calls[n % 2]))).collect();
        let (before, after) = places.split_at(left);
        let numbers =
            |places: &[Place]| places.iter().map(|(_, number)| *number).collect::<Vec<_>>();
        assert_eq!(
            numbers(before),
            (u32::MAX - 2..=u32::MAX).take(left).collect::<Vec<_>>()
        );
        assert!(before.iter().all(|(header, _)| *header == old));
        assert!(
            after
                .iter()
                .all(|(header, _)| *header != old && *header == after[0].0),
            "one new key for both"
        );
        assert!(
            numbers(after)
                .into_iter()
                .eq(0..10 - u32::try_from(left).unwrap())
        );
        assert_eq!(one(&keys, Suite::P256, 15_000).0, after[0].0);
    }
}

#[test]
fn the_end_of_the_time_makes_a_new_key_also_within_a_call() {
    let keys = app("shop");
    for suite in DHKEM {
        at(0);
        let mut long = sealer(&keys, suite, 100, clock, b"");
        let first = place(&seal(&mut long));
        for (ms, number) in [(50, 1), (99, 2)] {
            at(ms);
            assert_eq!(
                place(&seal(&mut long)),
                (first.0.clone(), number),
                "use does not prolong it"
            );
        }
        assert_eq!(one(&keys, suite, 100), (first.0.clone(), 3));
        at(100);
        let second = place(&seal(&mut long));
        assert!(
            second.0 != first.0 && second.1 == 0,
            "the long call changes over"
        );
        assert_eq!(
            one(&keys, suite, 100),
            (second.0.clone(), 1),
            "and the others with it"
        );

        // Another lifetime holds for the present epoch, counted from its beginning.
        at(140);
        assert_eq!(one(&keys, suite, 41), (second.0.clone(), 2));
        assert_eq!(one(&keys, suite, 15_000), (second.0.clone(), 3));
        let third = one(&keys, suite, 40);
        assert!(third.0 != second.0 && third.1 == 0);
        at(0);
        assert_eq!(
            one(&keys, suite, 1),
            (third.0, 1),
            "who read the clock just before it was made may use it"
        );
    }
}

#[test]
fn a_request_that_outlives_its_epochs_has_few_encapsulations() {
    let keys = app("shop");
    let version = keys.newest(Suite::P256MlKem768).unwrap();
    for (place, began) in [
        (EncapsulationPlace::Apart, 0),
        (EncapsulationPlace::Inline, 1_000),
    ] {
        at(began);
        let mut long = Sealer::in_epoch(
            keys.app(),
            version.clone(),
            lifetime(1),
            clock,
            Encoding::Binary,
            b"",
        )
        .unwrap()
        .placing(place);
        // Each field is sealed in a millisecond of its own, so that every epoch is over after one
        // field.
        let envelopes: Vec<Vec<u8>> = (0..146)
            .map(|ms| {
                at(began + ms);
                seal(&mut long)
            })
            .collect();
        let given = long.take_encapsulations();
        assert_eq!(
            given.len(),
            if place == EncapsulationPlace::Apart {
                SEALER_ENCAPSULATIONS_MAX
            } else {
                0
            }
        );
        let mut opener = Opener::new(keys.clone(), b"");
        given
            .iter()
            .for_each(|text| opener.give(text.as_bytes()).unwrap());
        assert!(
            envelopes
                .iter()
                .all(|envelope| opener.open_binary(envelope).is_ok()),
            "{place:?}"
        );
        let headers: HashSet<_> = envelopes.iter().map(|envelope| &envelope[3..30]).collect();
        assert_eq!(
            headers.len(),
            SEALER_ENCAPSULATIONS_MAX,
            "two epochs and the request's own key"
        );
        // The request's own key serves no other request.
        let other = seal(
            &mut Sealer::in_epoch(
                keys.app(),
                version.clone(),
                lifetime(1),
                clock,
                Encoding::Binary,
                b"",
            )
            .unwrap(),
        );
        assert!(!headers.contains(&other[3..30]));
    }
}

#[test]
fn ended_epochs_are_freed_without_another_request() {
    let keys = app("shop");
    for suite in DHKEM {
        let version = keys.newest(suite).unwrap();
        let begin = || {
            at(0);
            version.cool();
            one(&keys, suite, 100);
            Arc::downgrade(lock(&version.precomputed.epoch).as_ref().unwrap())
        };
        let is_held_after = |lifetime_ms: Option<u32>, ms: u64| {
            let epoch = begin();
            at(ms);
            keys.end_epochs(lifetime_ms.map(lifetime), clock());
            epoch.strong_count() == 1
        };
        for (lifetime_ms, ms, held) in [
            (Some(100), 99, true),
            (Some(100), 100, false),
            (Some(50), 50, false),
            (None, 0, false),
        ] {
            assert_eq!(is_held_after(lifetime_ms, ms), held, "{lifetime_ms:?} {ms}");
        }

        // A call in its middle holds the key until its next field, or until it ends, however much
        // time was left.
        let by_cooling = || version.cool();
        let by_setting = || keys.end_epochs(None, clock());
        for end in [&by_cooling as &dyn Fn(), &by_setting] {
            for ends in [false, true] {
                let epoch = begin();
                let mut long = sealer(&keys, suite, 100, clock, b"");
                end();
                assert_eq!(epoch.strong_count(), 1);
                if ends {
                    drop(long);
                } else {
                    // It goes on under a key of its own: no epoch begins that was forbidden.
                    seal(&mut long);
                    assert!(lock(&version.precomputed.epoch).is_none());
                    at(1_000);
                    seal(&mut long);
                    assert!(lock(&version.precomputed.epoch).is_none());
                }
                assert!(epoch.upgrade().is_none());
            }
        }
    }
}
