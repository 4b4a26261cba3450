//! The log line of a panic: its place without any value, at a limited rate.

use std::any::Any;
use std::panic::PanicHookInfo;
use std::time::Instant;

use crate::LogThrottle;

/// Logs panics of this process in place of the runtime's own lines, which may hold what a call was
/// about.
pub fn log() {
    std::panic::set_hook(Box::new(said));
}

fn said(panic: &PanicHookInfo<'_>) {
    static THROTTLE: LogThrottle = LogThrottle::new();
    if let Some(suppressed) = THROTTLE.record(Instant::now()) {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::error!(
            place,
            what = what(panic.payload()),
            suppressed,
            "a part of the engine panicked: report it"
        );
    }
}

/// Returns a panic message that is a constant of the program. A formatted message could contain a
/// secret.
fn what(payload: &(dyn Any + Send)) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_without_values() {
        let caught = |panic: fn()| std::panic::catch_unwind(panic).unwrap_err();
        assert_eq!(what(&*caught(|| panic!("on purpose"))), "on purpose");
        assert_eq!(what(&*caught(|| panic!("of {}", String::from("4242")))), "");
        assert_eq!(what(&*caught(|| std::panic::panic_any(7))), "");
    }
}
