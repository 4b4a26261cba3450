//! The caller's span as it is named in calls: the `traceparent` of W3C Trace Context, sections 3.2
//! and 4.
//!
//! Whoever is given an invalid one must go on as if there were none, so there is no error here. A
//! later version may add parts at the end; what version 00 has is read of it. `tracestate` is not
//! carried.

/// Bytes of version 00, which every later version begins with in shape.
const BYTES: usize = 55;

/// Which span a call is made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace. Not all zero.
    pub trace_id: [u8; 16],
    /// The caller's span. Not all zero.
    pub parent_id: [u8; 8],
    /// True if the caller may have kept its span and asks the engine to keep one.
    pub sampled: bool,
}

impl TraceContext {
    /// Reads the text of a `traceparent`; `None` if that is invalid.
    pub fn parse(text: &str) -> Option<Self> {
        let (text, more) = text.as_bytes().split_at_checked(BYTES)?;
        let (version, trace, parent, flags) =
            (&text[..2], &text[3..35], &text[36..52], &text[53..]);
        let [version] = bytes(version)?;
        let ends = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => more.is_empty() || more[0] == b'-',
        };
        let dashes = [2, 35, 52].iter().all(|at| text[*at] == b'-');
        let context = Self {
            trace_id: bytes(trace)?,
            parent_id: bytes(parent)?,
            sampled: bytes::<1>(flags)?[0] & 1 != 0,
        };
        let named = context.trace_id != [0; 16] && context.parent_id != [0; 8];
        (ends && dashes && named).then_some(context)
    }
}

/// Lower-case hexadecimal digits, two for each byte.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const PARENT: &str = "00f067aa0ba902b7";

    /// The reading of a text in the words of the standard, which takes it apart another way.
    fn by_the_book(text: &str) -> Option<TraceContext> {
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
    fn what_is_valid_and_what_is_passed_over() {
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
            // Later versions: what they add comes after a dash.
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
            assert_eq!(by_the_book(&text), expected, "{text}, by the book");
        }
    }

    proptest! {
        #[test]
        fn it_reads_as_the_standard_says(
            mut text in "(00|0[1-9a-f]|[0-9a-f]{2}|ff)-([0-9a-f]{32}|0{32})-([0-9a-f]{16}|0{16})-[0-9a-f]{2}(-[ -~]{0,9})?",
            at in any::<prop::sample::Index>(),
            change in prop::option::of("[0-9a-fA-F é-]{0,2}"),
        ) {
            if let Some(change) = change {
                let at = at.index(text.len());
                text.replace_range(at..=at, &change);
            }
            prop_assert_eq!(TraceContext::parse(&text), by_the_book(&text), "{}", text);
        }

        #[test]
        fn no_text_makes_it_panic(text in any::<String>()) {
            prop_assert_eq!(TraceContext::parse(&text), by_the_book(&text));
        }
    }
}
