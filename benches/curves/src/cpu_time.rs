//! Measures CPU time instead of wall time, so that other work on the cores does not count.
//!
//! The measured code neither waits nor starts threads. Reading this clock is a system call, a part
//! in ten thousand of a sample; caches that others fill and hosts that take the CPU away are not
//! taken out.

use std::time::Duration;

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use rustix::time::{ClockId, clock_gettime};

/// A Criterion measurement by the CPU time of the calling thread.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime;

impl CpuTime {
    fn now() -> Duration {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Duration::try_from(now).expect("starts at 0")
    }
}

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }

    fn end(&self, start: Duration) -> Duration {
        Self::now() - start
    }

    fn add(&self, a: &Duration, b: &Duration) -> Duration {
        *a + *b
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        WallTime.to_f64(value)
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}
