//! The log line of a panic: its place without any value, at a limited rate.

use std::any::Any;
use std::panic::PanicHookInfo;
use std::time::Instant;

use crate::LogThrottle;

/// Installs a panic hook that logs without values. The runtime's default hook prints the panic
/// message, which can contain data of a request.
pub fn log() {
    std::panic::set_hook(Box::new(log_panic));
}

fn log_panic(panic: &PanicHookInfo<'_>) {
    static THROTTLE: LogThrottle = LogThrottle::new();
    if let Some(suppressed) = THROTTLE.record(Instant::now()) {
        let place = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        tracing::error!(
            place,
            what = constant_message(panic.payload()),
            suppressed,
            "a part of the engine panicked: report it"
        );
    }
}

/// Returns a panic message that is a constant of the program. A formatted message could contain a
/// secret.
fn constant_message(payload: &(dyn Any + Send)) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_messages_contain_no_formatted_values() {
        fn message_of(panic: fn()) -> &'static str {
            constant_message(&*std::panic::catch_unwind(panic).unwrap_err())
        }

        assert_eq!(message_of(|| panic!("on purpose")), "on purpose");
        assert_eq!(message_of(|| panic!("of {}", String::from("4242"))), "");
        assert_eq!(message_of(|| std::panic::panic_any(7)), "");
    }
}
