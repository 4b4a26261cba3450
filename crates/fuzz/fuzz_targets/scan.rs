//! The scanner finds the same messages however the bytes are cut, and the decoder never leaves its message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire_wire::{
    Boundary, Call, Fate, Limits, RpcError, Scan, ScanError, Scanner, Span, decode_cancel, decode_errors, request,
};

/// What a connection would act on.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Message { at: usize, found: Boundary },
    Refused { at: usize, error: ScanError, fate: Fate },
}

// Small, so that the fuzzer meets them.
const LIMITS: Limits = Limits { message_bytes_max: 256, depth_max: 8, elements_max: 64, discard_bytes_max: 512 };

/// Feeds `stream` so that at most `pieces` (repeated) bytes arrive at a time.
fn scan(stream: &[u8], pieces: &[u8], limits: Limits, replies: bool) -> (Vec<Seen>, usize) {
    let mut scanner = if replies { Scanner::for_replies(limits) } else { Scanner::for_requests(limits) };
    let (mut taken, mut arrived, mut seen) = (0, 0, Vec::new());
    let mut pieces = pieces.iter().cycle();
    loop {
        match scanner.scan(&stream[taken..arrived]) {
            Scan::Incomplete if arrived == stream.len() => return (seen, taken),
            Scan::Incomplete => {
                if let Some(whole) = scanner.outlook(&stream[taken..arrived]).and_then(|outlook| outlook.whole) {
                    assert!((scanner.bytes_at_least()..=limits.message_bytes_max).contains(&whole.bytes));
                    assert!((1..=limits.elements_max).contains(&whole.leaves));
                }
                let piece = pieces.next().map_or(usize::MAX, |piece| 1 + usize::from(*piece));
                arrived = stream.len().min(arrived.saturating_add(piece));
            }
            Scan::Message(found) => {
                assert!(found.bytes > 0 && taken + found.bytes <= arrived);
                assert!(found.bytes as u64 <= limits.message_bytes_max && found.elements <= limits.elements_max);
                assert!(found.leaves <= found.elements);
                let message = &stream[taken..taken + found.bytes];
                decode(message, &found);
                seen.push(Seen::Message { at: taken, found });
                taken += found.bytes;
            }
            Scan::Refused { error, fate, .. } => {
                assert!(!RpcError::from(error).message.is_empty());
                seen.push(Seen::Refused { at: taken, error, fate });
                if fate == Fate::Close {
                    return (seen, taken);
                }
            }
            Scan::Discard { bytes, .. } => {
                assert!(bytes > 0 && taken + bytes <= arrived);
                taken += bytes;
            }
        }
    }
}

fn decode(message: &[u8], found: &Boundary) {
    let _ = decode_cancel(message);
    let _ = decode_errors(message);
    let payload = match Call::decode(message, found) {
        Ok(Call::Encrypt(call) | Call::Rewrap(call)) => call.payload,
        Ok(Call::Decrypt(call)) => call.payload,
        Ok(Call::Tokenize(call)) => call.payload,
        Ok(Call::Detokenize(call)) => call.payload,
        Ok(call) => return assert!(again(&call).as_deref().is_none_or(|bytes| same(bytes, &call))),
        Err(error) => return assert!(!RpcError::from(error).message.is_empty()),
    };
    let Some(Span { start, end }) = found.payload else { panic!("a payload from nowhere") };
    assert!(std::ptr::eq(payload, &message[start..end]));
    assert_eq!(request::check_payload(payload), Ok(()));
}

/// What a client would send of a call without a document.
fn again(call: &Call<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match call {
        Call::Tokens(call) => request::tokens(&mut out, 7, call),
        Call::Control(call) => request::control(&mut out, 7, call),
        _ => return None,
    }
    Some(out)
}

/// Whether that is the same call.
fn same(message: &[u8], call: &Call<'_>) -> bool {
    let Scan::Message(found) = Scanner::for_requests(Limits::default()).scan(message) else { return false };
    Call::decode(message, &found).as_ref() == Ok(call)
}

/// A refusal for length may come while the message arrives, before another that lies further on: which of the two
/// depends on the cut. Where the messages lie does not.
fn messages(seen: &[Seen]) -> Vec<&Seen> {
    seen.iter().filter(|seen| matches!(seen, Seen::Message { .. })).collect()
}

fuzz_target!(|input: (bool, bool, Vec<u8>, &[u8])| {
    let (replies, tight, pieces, stream) = input;
    let limits = if tight { LIMITS } else { Limits::default() };
    let (whole, _) = scan(stream, &[], limits, replies);
    let (cut, _) = scan(stream, &pieces, limits, replies);
    assert_eq!(messages(&whole), messages(&cut));
    assert_eq!(whole.len(), cut.len(), "{whole:?} {cut:?}");
});
