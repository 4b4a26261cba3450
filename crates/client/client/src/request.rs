//! The requests of the client. Each wraps the struct that the codec writes, without a copy.
//!
//! Every parameter is declared once, as a builder method. Parameters that several requests have are
//! declared in a macro of their own, such as [`common_parameters`].

pub(crate) mod control;
pub(crate) mod documents;
pub(crate) mod objects;
pub(crate) mod tokens;

use std::time::Duration;

/// Declares builder methods. Each sets a field of the codec's struct, which `inner` names.
macro_rules! parameters {
    ($($(#[$doc:meta])* $method:ident($value:ident: $type:ty) => |$inner:ident| $set:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $method(mut self, $value: $type) -> Self {
            let $inner = &mut self.0;
            $set;
            self
        }
    )*};
}
pub(crate) use parameters;

/// Declares the parameters of every request on data.
macro_rules! common_parameters {
    ($($path:ident.)?) => { crate::request::parameters! {
        /// Sets the time for the whole request, with all its attempts.
        ///
        /// Range: 1 ms to 1 h.
        /// Default: the client's [`deadline`](crate::ClientConfig::deadline).
        deadline(deadline: impl Into<Option<std::time::Duration>>) => |inner|
            inner.$($path.)?deadline_ms = deadline.into().map(crate::request::milliseconds);
        /// Requires that the server has applied the change with this generation. Otherwise the
        /// request fails with `conflict`.
        ///
        /// Default: 0.
        min_generation(generation: impl Into<Option<u64>>) => |inner|
            inner.$($path.)?min_generation = generation.into();
        /// States why the application makes the request, for the audit log. A role can require a
        /// reason.
        ///
        /// Length: 1 to 256 bytes without control characters.
        /// Default: none.
        reason(reason: impl Into<Option<&'a str>>) => |inner| inner.$($path.)?reason = reason.into();
        /// Sets the span of the application, as a W3C `traceparent`. An engine that records traces
        /// makes it the parent of its own span.
        ///
        /// Length: at most 256 bytes.
        /// Default: none.
        traceparent(traceparent: impl Into<Option<&'a str>>) => |inner|
            inner.$($path.)?traceparent = traceparent.into();
    } };
}
pub(crate) use common_parameters;

/// Lets crates of this workspace run a request without a server.
macro_rules! conversion {
    ($name:ident) => {
        #[cfg(feature = "workspace")]
        impl<'a> $name<'a> {
            /// Returns the request of the codec.
            #[doc(hidden)]
            pub fn into_wire(self) -> sealwire_wire::control::$name<'a> {
                self.0
            }
        }
    };
}
pub(crate) use conversion;

/// Declares the parameters of a page of a list.
macro_rules! page_parameters {
    ($limit:literal) => {
        crate::request::parameters! {
            /// Continues after an earlier page. The cursor is the `next` of that page.
            ///
            /// Default: the beginning.
            after(cursor: impl Into<Option<&'a str>>) => |inner| inner.after = cursor.into();
            #[doc = concat!("Limits the number of rows of this page.\n\n", $limit)]
            limit(rows: impl Into<Option<u32>>) => |inner| inner.limit = rows.into();
        }
    };
}
pub(crate) use page_parameters;

/// Options that every request on data has. Build them once to use them in several requests:
///
/// ```
/// use std::time::Duration;
/// use sealwire_client::{Decrypt, Encrypt, RequestOptions};
///
/// let options = RequestOptions::new()
///     .deadline(Duration::from_secs(2))
///     .reason("refund of order 4711");
/// let payload = sealwire_client::to_payload("4111 1111 1111 1111")?;
/// let encrypt = Encrypt::new("shop", &payload).options(options);
/// let decrypt = Decrypt::new("shop", &payload).options(options);
/// # Ok::<_, sealwire_client::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions<'a>(pub(crate) sealwire_wire::CommonParams<'a>);

impl<'a> RequestOptions<'a> {
    /// Creates options with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    common_parameters!();
}

/// Returns whole seconds, rounded up, so that nothing expires or is removed earlier than requested.
pub(crate) fn seconds(time: Duration) -> u64 {
    time.as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// Returns whole milliseconds, at least 1. The client bounds a deadline when it sends a request.
pub(crate) fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        for (time, expect) in [
            (Duration::ZERO, 0),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(1_500), 2),
            (Duration::from_secs(90), 90),
            (Duration::MAX, u64::MAX),
        ] {
            assert_eq!(seconds(time), expect, "{time:?}");
        }
    }

    #[test]
    fn milliseconds_are_at_least_one() {
        for (time, expect) in [
            (Duration::ZERO, 1),
            (Duration::from_micros(999), 1),
            (Duration::from_millis(2_000), 2_000),
            (Duration::MAX, u32::MAX),
        ] {
            assert_eq!(milliseconds(time), expect, "{time:?}");
        }
    }
}
