//! The client's span in a request: the `traceparent` of W3C Trace Context, sections 3.2 and 4.
//!
//! The standard says to ignore an invalid `traceparent`, so this module has no error type. A later
//! version can append fields; the parser reads the fields of version 00 and ignores the rest.
//! `tracestate` is not supported.

/// Length of version 00 in bytes. Every later version starts with fields of the same layout.
const BYTES: usize = 55;

/// The span in which a client makes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The id of the trace. At least one byte is not zero.
    pub trace_id: [u8; 16],
    /// The id of the client's span. At least one byte is not zero.
    pub parent_id: [u8; 8],
    /// True if the client can have recorded its span and asks the engine to record one.
    pub sampled: bool,
}

impl TraceContext {
    /// Parses a `traceparent`. Returns `None` if the text is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, more) = text.as_bytes().split_at_checked(BYTES)?;
        let [version] = hex_bytes(&text[..2])?;
        let has_valid_end = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more[0] == b'-',
        };
        let has_dashes = [2, 35, 52].iter().all(|at| text[*at] == b'-');
        let context = Self {
            trace_id: hex_bytes(&text[3..35])?,
            parent_id: hex_bytes(&text[36..52])?,
            sampled: hex_bytes::<1>(&text[53..])?[0] & 1 != 0,
        };
        let has_ids = context.trace_id != [0; 16] && context.parent_id != [0; 8];
        (has_valid_end && has_dashes && has_ids).then_some(context)
    }
}

/// Decodes lower-case hexadecimal digits, two per byte.
fn hex_bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = hex_digit(*high)? << 4 | hex_digit(*low)?;
    }
    Some(bytes)
}

fn hex_digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    /// A second parser, written from the words of the standard: it splits the text at dashes.
    fn parse_by_standard(text: &str) -> Option<TraceContext> {
        let hex = |part: &str, length: usize| {
            part.len() == length && part.chars().all(|char| "0123456789abcdef".contains(char))
        };
        let mut parts = text.split('-');
        let (version, trace, parent, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let sound = hex(version, 2) && hex(trace, 32) && hex(parent, 16) && hex(flags, 2);
        let more = parts.next().is_some();
        let zero = |part: &str| part.chars().all(|char| char == '0');
        if !sound || version == "ff" || (version == "00" && more) || zero(trace) || zero(parent) {
            return None;
        }
        Some(TraceContext {
            trace_id: u128::from_str_radix(trace, 16).ok()?.to_be_bytes(),
            parent_id: u64::from_str_radix(parent, 16).ok()?.to_be_bytes(),
            sampled: u8::from_str_radix(flags, 16).ok()? % 2 == 1,
        })
    }

    #[test]
    fn traceparent_parses_valid_texts_and_ignores_invalid_ones() {
        let known = |sampled| {
            let trace_id = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736_u128.to_be_bytes();
            Some(TraceContext {
                trace_id,
                parent_id: 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes(),
                sampled,
            })
        };
        for (text, expected) in [
            (format!("00-{TRACE}-{PARENT}-01"), known(true)),
            (format!("00-{TRACE}-{PARENT}-00"), known(false)),
            (format!("00-{TRACE}-{PARENT}-03"), known(true)),
            (format!("00-{TRACE}-{PARENT}-fe"), known(false)),
            // Later versions append fields after a dash.
            (format!("01-{TRACE}-{PARENT}-01"), known(true)),
            (
                format!("cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like"),
                known(true),
            ),
            (format!("fe-{TRACE}-{PARENT}-01-"), known(true)),
            (format!("cc-{TRACE}-{PARENT}-01.what"), None),
            (format!("cc-{TRACE}-{PARENT}-0100"), None),
            (format!("00-{TRACE}-{PARENT}-01-"), None),
            (format!("00-{TRACE}-{PARENT}-01-what"), None),
            (format!("ff-{TRACE}-{PARENT}-01"), None),
            (format!("0-{TRACE}-{PARENT}-01"), None),
            (format!("0g-{TRACE}-{PARENT}-01"), None),
            (format!("00-{}-{PARENT}-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-{}-01", "0".repeat(16)), None),
            (format!("00-{}-{PARENT}-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{}-01", PARENT.to_uppercase()), None),
            (format!("00-{TRACE}-{PARENT}-0A"), None),
            (format!("00-{TRACE}-{PARENT}-1"), None),
            (format!("00-{TRACE}-{PARENT}"), None),
            (format!("00_{TRACE}-{PARENT}-01"), None),
            (format!("00-{TRACE}_{PARENT}-01"), None),
            (format!("00-{TRACE}-{PARENT}_01"), None),
            (format!("00-{}-{PARENT}-01", &TRACE[1..]), None),
            (format!(" 00-{TRACE}-{PARENT}-01"), None),
            (format!("00-{TRACE}-{PARENT}-01 "), None),
            (format!("00-{}é-{PARENT}-01", &TRACE[2..]), None),
            ("é".repeat(28), None),
            (String::new(), None),
            ("whatever".into(), None),
        ] {
            assert_eq!(TraceContext::parse(&text), expected, "{text}");
            assert_eq!(
                parse_by_standard(&text),
                expected,
                "{text}, by the standard"
            );
        }
    }

    proptest! {
        #[test]
        fn traceparent_parses_like_the_standard(
            mut text in "(00|0[1-9a-f]|[0-9a-f]{2}|ff)-([0-9a-f]{32}|0{32})-([0-9a-f]{16}|0{16})-[0-9a-f]{2}(-[ -~]{0,9})?",
            at in any::<prop::sample::Index>(),
            change in prop::option::of("[0-9a-fA-F é-]{0,2}"),
        ) {
            if let Some(change) = change {
                let at = at.index(text.len());
                text.replace_range(at..=at, &change);
            }
            prop_assert_eq!(TraceContext::parse(&text), parse_by_standard(&text), "{}", text);
        }

        #[test]
        fn traceparent_parser_never_panics(text in any::<String>()) {
            prop_assert_eq!(TraceContext::parse(&text), parse_by_standard(&text));
        }
    }
}
