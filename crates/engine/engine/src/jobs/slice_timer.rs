//! Ends slices by time as well as by counted work: work that costs more than the model says must
//! not keep its thread.
//!
//! A slice looks at the clock after each bounded piece of work, about as much as 16 short fields.
//! So it exceeds its time by at most one such piece, or by one field that is larger.

use std::time::{Duration, Instant};

use sealwire_payload::{ExtraWork, Field, Outcome, Path, Transform};

/// A function that returns the current time, such as `Instant::now`.
pub type Clock = fn() -> Instant;

/// Work of one field of a document besides its bytes, in bytes.
const FIELD_WORK: u64 = 256;
/// Work between two looks at the clock, in bytes.
const PIECE_WORK: u64 = 16 * FIELD_WORK;

/// Tells when the time of a slice is over.
#[derive(Clone, Copy, Debug)]
pub struct SliceTimer {
    clock: Clock,
    /// `None`: never.
    ends: Option<Instant>,
}

impl SliceTimer {
    /// A timer that never ends.
    pub const UNLIMITED: Self = Self {
        clock: Instant::now,
        ends: None,
    };

    /// Starts a timer that ends after `span`.
    pub fn start(span: Duration, clock: Clock) -> Self {
        Self::until(clock().checked_add(span), clock)
    }

    /// Creates a timer that ends at a time; `None`: never.
    pub(crate) fn until(ends: Option<Instant>, clock: Clock) -> Self {
        Self { clock, ends }
    }

    /// Returns true if the time is over. Reads the clock.
    pub fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| (self.clock)() >= ends)
    }
}

/// A transform that pauses when the time of its slice is over.
pub(crate) struct Timed<'t, T> {
    transform: &'t mut T,
    timer: SliceTimer,
    /// Work of fields since the last look at the clock.
    work: u64,
    /// Extra work up to the last field.
    extra: ExtraWork,
}

impl<'t, T: Transform> Timed<'t, T> {
    pub(crate) fn new(transform: &'t mut T, timer: SliceTimer) -> Self {
        let extra = transform.extra_work();
        Self {
            transform,
            timer,
            work: 0,
            extra,
        }
    }
}

impl<T: Transform> Transform for Timed<'_, T> {
    type Error = T::Error;

    #[inline]
    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, T::Error> {
        self.work += FIELD_WORK + field.raw.len() as u64;
        self.transform.field(field, out)
    }

    #[inline]
    fn pauses(&mut self) -> bool {
        let extra = self.transform.extra_work();
        let ExtraWork { fields, bytes } = extra.since(self.extra);
        self.extra = extra;
        self.work = self
            .work
            .saturating_add(fields.saturating_mul(FIELD_WORK))
            .saturating_add(bytes);

        if self.transform.pauses() {
            return true;
        }
        if self.work < PIECE_WORK {
            return false;
        }

        self.work = 0;
        self.timer.is_over()
    }

    fn pauses_between(&mut self) -> bool {
        self.timer.is_over()
    }

    #[inline]
    fn extra_work(&self) -> ExtraWork {
        self.transform.extra_work()
    }

    fn failed(&mut self, path: &Path<'_>, error: T::Error) -> Result<(), T::Error> {
        self.transform.failed(path, error)
    }

    fn complete(&mut self, out: &mut [u8]) {
        self.transform.complete(out);
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A clock that advances by a fixed time per look.

    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::time::{Duration, Instant};

    thread_local! {
        static LOOKS: Cell<u32> = const { Cell::new(0) };
    }

    /// Time that passes between two looks.
    pub(crate) const STEP: Duration = Duration::from_micros(10);

    /// Returns the same time always.
    pub(crate) fn standing() -> Instant {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        *START
    }

    /// Returns a time that is [`STEP`] later than at the last look of this thread.
    pub(crate) fn stepping() -> Instant {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        LOOKS.set(LOOKS.get() + 1);
        *START + STEP * LOOKS.get()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealwire_payload::{Budget, Containers, Progress, Selection, Walk, WalkLimits};

    use super::testing::{STEP, stepping};
    use super::*;

    /// Keeps every field, and counts extra work for each.
    struct Extra {
        each: ExtraWork,
        all: ExtraWork,
    }

    impl Transform for Extra {
        type Error = ();

        fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
            self.all = self.all.plus(self.each);
            Ok(Outcome::Keep)
        }

        fn extra_work(&self) -> ExtraWork {
            self.all
        }

        fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
            Ok(())
        }
    }

    /// Returns the fields and bytes that one slice of so many clock steps walks over.
    fn slice(document: &[u8], selects: bool, each: ExtraWork, steps: u32) -> (usize, usize) {
        let selection = if selects {
            Selection::everything()
        } else {
            Selection::parse(["$.x"]).unwrap()
        };
        let mut walk = Walk::new(
            Arc::new(selection),
            Containers::Descend,
            WalkLimits::default(),
        );
        let mut extra = Extra {
            each,
            all: ExtraWork::default(),
        };
        let timer = SliceTimer::start(STEP * steps, stepping);
        let progress = walk
            .advance(
                document,
                &mut Vec::new(),
                &mut Timed::new(&mut extra, timer),
                Budget::UNLIMITED,
            )
            .unwrap();
        assert_eq!(progress, Progress::More);
        (walk.fields(), walk.position())
    }

    #[test]
    fn a_slice_ends_by_time_within_a_bounded_piece_of_work() {
        let short = [&[0xdd, 0, 1, 0, 0][..], &[1; 65_536]].concat();
        let long = [
            &[0x91][..],
            &[&[0xc5, 0x10, 0][..], &[7; 4_096]].concat().repeat(20),
        ]
        .concat();
        let long = [&[0x9f][..], &long[1..]].concat();
        let none = ExtraWork::default();
        for (name, document, each, steps, fields) in [
            // 4,096 of work is 16 fields of one byte, of 257 each.
            ("short fields", &short, none, 1, 16),
            ("for longer", &short, none, 4, 64),
            (
                "dear fields",
                &short,
                ExtraWork {
                    fields: 100,
                    bytes: 0,
                },
                3,
                3,
            ),
            (
                "searched bytes",
                &short,
                ExtraWork {
                    fields: 0,
                    bytes: 1_800,
                },
                1,
                2,
            ),
            ("long fields", &long, none, 2, 2),
        ] {
            assert_eq!(slice(document, true, each, steps).0, fields, "{name}");
        }
        // Where nothing is selected, 256 tokens are a piece.
        assert_eq!(slice(&short, false, none, 3), (0, 5 + 3 * 256 - 1));
    }

    #[test]
    fn a_timer_without_an_end_reads_no_clock() {
        fn none() -> Instant {
            panic!("no clock is read")
        }
        assert!(
            !SliceTimer {
                clock: none,
                ends: None
            }
            .is_over()
        );
        assert!(!SliceTimer::UNLIMITED.is_over());
        let timer = SliceTimer::start(STEP * 2, stepping);
        assert_eq!(
            [timer.is_over(), timer.is_over(), timer.is_over()],
            [false, true, true]
        );
    }
}
