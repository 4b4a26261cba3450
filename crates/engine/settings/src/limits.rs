//! All limits that an operator can set, with unit, range, default and the reason for the default.
//!
//! This module only defines numbers. The code that enforces a limit reads the number from
//! [`Limits`]. The list below generates the struct, its documentation, the `[limits]` section of
//! the configuration and its reference text. A limit therefore always exists in all four places.
//!
//! Some sizes depend on each other: [`Limits::check`] checks these rules.

use sealwire_service::settings::{Key, Kind, Literal, Problem, Problems};

use crate::key::Values;

/// Bytes that a request is charged in addition to its messages, for accounting, traversal and keys.
pub const CALL_BYTES: usize = 4 << 10;

/// Turns the list of limits into the struct, its defaults and its configuration keys.
macro_rules! limits {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $type:ty, $unit:literal, $min:literal..=$max:expr, $default:expr;
    )+) => {
        /// Every bound an operator may turn. Bytes and counts are `usize`, times are milliseconds.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nUnit: ", $unit, ". Range: `", stringify!($min), "..=", stringify!($max),
                    "`. Default: `", stringify!($default), "`.")]
                pub $name: $type,
            )+
        }

        /// The `[limits]` section, key by key.
        pub(crate) const KEYS: &[Key] = &[$(
            Key {
                section: "limits",
                name: stringify!($name),
                kind: Kind::Number { unit: $unit, min: $min, max: $max },
                default: Literal::Number($default),
                doc: concat!($($doc, "\n"),+),
            },
        )+];

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }

        impl Limits {
            /// Takes each limit out of values that are already in range.
            pub(crate) fn take(values: &mut Values) -> Self {
                Self { $($name: number(values, stringify!($name)),)+ }
            }
        }
    };
}

limits! {
    /// Maximum message size. 64 MiB hold 2 million fields of 16 bytes with keys.
    message_bytes_max: usize, "bytes", 1_024..=1 << 30, 64 << 20;
    /// Maximum nesting of a message; its own array counts as 1. Real documents stay below 20.
    depth_max: u32, "levels", 4..=1_024, 64;
    /// Maximum scalars, keys and containers in a message. Default: 64 MiB at 16 bytes each.
    elements_max: usize, "values", 16..=1 << 30, 4_000_000;
    /// Maximum response size. A sealed field grows by about 90 bytes, so 30-byte fields grow
    /// fourfold.
    reply_bytes_max: usize, "bytes", 1_024..=1 << 32, 256 << 20;
    /// Maximum size of a rejected message that is read and dropped. A larger one closes the
    /// connection. 256 MiB take two seconds at 1 Gbit/s.
    discard_bytes_max: usize, "bytes", 0..=1 << 32, 256 << 20;
    /// Maximum open connections. An idle one takes about 50 KiB: 50 MiB at 1,024.
    connections_max: usize, "connections", 1..=65_536, 1_024;
    /// Maximum open connections of one principal, which leaves room for other clients.
    connections_per_principal_max: usize, "connections", 1..=65_536, 256;
    /// Maximum rate of a principal's unknown, malformed or denied requests. Above it, the engine
    /// pauses before it reads the principal's next request. Requests of cheap methods (health,
    /// info, inspect) and messages without a response count a tenth.
    rejected_per_s_max: u32, "requests", 1..=1_000_000, 2_000;
    /// Maximum concurrent TLS handshakes; others wait in the kernel's queue. A handshake takes 0.22
    /// ms of CPU (P-256).
    handshakes_max: usize, "handshakes", 1..=65_536, 64;
    /// Timeout of a TLS handshake, and of the head of an HTTP request. Default: three lost packets with a 1 s timeout fit.
    handshake_ms_max: u64, "ms", 10..=600_000, 10_000;
    /// Maximum requests in flight per connection; further ones wait. 256 requests of 1 ms keep a
    /// core busy over a round trip of 256 ms.
    in_flight_per_connection_max: usize, "requests", 1..=65_536, 256;
    /// Maximum requests in flight of one principal, on all its connections; further ones wait.
    /// Default: 16 full connections.
    in_flight_per_principal_max: usize, "requests", 1..=16_777_216, 4_096;
    /// Maximum bytes of requests and responses per connection; reading pauses there. Default: the
    /// largest message, its largest response (64 + 256 MiB) and one more message.
    bytes_per_connection_max: usize, "bytes", 65_536..=1 << 34, 384 << 20;
    /// Maximum time to receive a message before its connection is closed. The largest message needs
    /// 1.1 MB/s.
    message_ms_max: u64, "ms", 100..=3_600_000, 60_000;
    /// Maximum time in which a client reads nothing of a waiting response before its connection is
    /// closed. Default: longer than a garbage collection pause or a lost packet.
    write_stall_ms_max: u64, "ms", 100..=3_600_000, 10_000;
    /// Time without a request before a connection is closed. Default: common load balancers close
    /// first (350 s).
    idle_ms_max: u64, "ms", 1_000..=86_400_000, 600_000;
    /// Deadline of a request that names none.
    deadline_ms_default: u64, "ms", 1..=3_600_000, 30_000;
    /// Maximum deadline of a request; longer ones are shortened. Default: enough for a full message
    /// on a slow line.
    deadline_ms_max: u64, "ms", 1..=3_600_000, 600_000;
    /// Time after SIGTERM in which `/ready` is 503 and everything is still served, so that a
    /// balancer sends no more connections before the engine closes its own. Set it to what a
    /// balancer needs to notice: for checks every 2 s of which two must fail, 5_000. Clients with a
    /// list of endpoints need none.
    drain_delay_ms: u64, "ms", 0..=300_000, 0;
    /// Time for running requests after SIGTERM. Orchestrators kill after 30 s by default.
    drain_ms_max: u64, "ms", 0..=3_600_000, 10_000;
    /// Field errors listed in a response under `on_error: "report"`; further ones are only counted.
    /// 1,000 take 100 KB.
    errors_reported_max: usize, "errors", 1..=1_000, 1_000;
    /// Maximum fields that a request tokenizes or detokenizes. 10,000 take a transaction of 0.1 s
    /// and 10 MiB.
    tokens_per_call_max: usize, "fields", 1..=100_000, 10_000;
    /// Maximum size of a tokenized value, also for `tokens.find`. Databases handle 64 KiB rows
    /// well.
    token_value_bytes_max: usize, "bytes", 1..=1_048_576, 65_536;
}

/// Takes the number of a limit in the type of its field.
fn number<T: TryFrom<u64>>(values: &mut Values, name: &'static str) -> T {
    let number = values.number("limits", name);
    T::try_from(number).unwrap_or_else(|_| unreachable!("{name}: every range above fits its type"))
}

impl Limits {
    /// Checks the rules between limits. Each single limit was already checked against its range.
    ///
    /// # Errors
    ///
    /// Returns a [`Problem`] per violated rule, with the names of both keys.
    pub fn check(&self) -> Result<(), Problems> {
        let mut problems = Problems::default();
        self.check_rules(&mut problems);
        problems.into_result()
    }

    pub(crate) fn check_rules(&self, problems: &mut Problems) {
        let one_call = self.message_bytes_max.saturating_add(self.reply_bytes_max);
        let rules = [
            (
                self.reply_bytes_max >= self.message_bytes_max,
                "reply_bytes_max",
                "must be at least limits.message_bytes_max, because a payload without sealed fields comes back at its length",
            ),
            (
                self.bytes_per_connection_max >= one_call,
                "bytes_per_connection_max",
                "must be at least limits.message_bytes_max + limits.reply_bytes_max, or the longest request never fits",
            ),
            (
                self.connections_per_principal_max <= self.connections_max,
                "connections_per_principal_max",
                "must be at most limits.connections_max",
            ),
            (
                self.in_flight_per_principal_max >= self.in_flight_per_connection_max,
                "in_flight_per_principal_max",
                "must be at least limits.in_flight_per_connection_max, or one connection cannot use its limit",
            ),
            (
                self.handshakes_max <= self.connections_max,
                "handshakes_max",
                "must be at most limits.connections_max",
            ),
            (
                self.deadline_ms_default <= self.deadline_ms_max,
                "deadline_ms_default",
                "must be at most limits.deadline_ms_max",
            ),
        ];
        for (holds, key, rule) in rules {
            if !holds {
                problems.push(Problem::new(format!("limits.{key}"), rule));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_fit_together() {
        Limits::default().check().unwrap();
    }

    #[test]
    fn defaults_lie_in_their_ranges() {
        for key in KEYS {
            let (Kind::Number { min, max, .. }, Literal::Number(default)) = (key.kind, key.default)
            else {
                panic!("{}: a limit is a number", key.name);
            };
            assert!((min..=max).contains(&default), "{}", key.name);
            assert!(usize::try_from(max).is_ok(), "{}", key.name);
            assert!(!key.name.contains("depth") || u32::try_from(max).is_ok());
        }
    }

    #[test]
    fn limits_that_contradict_each_other_are_named() {
        type Change = fn(&mut Limits);
        let cases: &[(Change, &str)] = &[
            (
                |l| l.reply_bytes_max = l.message_bytes_max - 1,
                "limits.reply_bytes_max",
            ),
            (
                |l| l.bytes_per_connection_max = l.message_bytes_max + l.reply_bytes_max - 1,
                "limits.bytes_per_connection_max",
            ),
            (
                |l| l.connections_per_principal_max = l.connections_max + 1,
                "limits.connections_per_principal_max",
            ),
            (
                |l| l.handshakes_max = l.connections_max + 1,
                "limits.handshakes_max",
            ),
            (
                |l| l.in_flight_per_principal_max = l.in_flight_per_connection_max - 1,
                "limits.in_flight_per_principal_max",
            ),
            (
                |l| l.deadline_ms_default = l.deadline_ms_max + 1,
                "limits.deadline_ms_default",
            ),
        ];
        for (change, key) in cases {
            let mut limits = Limits::default();
            change(&mut limits);
            let error = limits.check().unwrap_err();
            assert_eq!(error.len(), 1, "{key}: {error}");
            assert!(error.to_string().starts_with(key), "{key}: {error}");
        }
    }

    #[test]
    fn broken_rules_are_reported_together() {
        let limits = Limits {
            connections_max: 1,
            ..Limits::default()
        };
        assert_eq!(limits.check().unwrap_err().len(), 2);
    }
}
