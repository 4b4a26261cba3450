//! Encodes responses, for servers. A result is written directly after its header, without a copy or
//! a second buffer.
//!
//! A response is appended completely before the next response starts. An unfinished [`Document`]
//! can be discarded, so a request that fails while its document is written leaves no bytes in the
//! buffer.

use sealwire_msgpack::write;

use crate::error::{ErrorFormat, RpcError};
use crate::limits::{FIELD_ERRORS_MAX, FIELD_PATH_BYTES_MAX};
use crate::method::Notification;
use crate::response_decoder::FieldError;

/// Appends `[1, msgid, nil, `. The caller then appends the result, one value.
pub fn start(out: &mut Vec<u8>, msgid: u32) {
    write::array_len(out, 4);
    write::uint(out, 1);
    write::uint(out, u64::from(msgid));
    write::nil(out);
}

/// Appends a whole response with `error` in the given format.
pub fn error(out: &mut Vec<u8>, msgid: u32, error: &RpcError, format: ErrorFormat) {
    write::array_len(out, 4);
    write::uint(out, 1);
    write::uint(out, u64::from(msgid));
    error.encode_as(out, format);
    write::nil(out);
}

/// Appends the notification `[2, "error", [error]]`: the last message before the server closes the
/// connection for a reason other than one request.
pub fn protocol_error(out: &mut Vec<u8>, error: &RpcError) {
    write::array_len(out, 3);
    write::uint(out, 2);
    write::str(out, Notification::Error.name());
    write::array_len(out, 1);
    error.encode(out);
}

/// The response to a document request while its payload is being written: `{payload, generation,
/// errors?, unmatched?}`.
#[derive(Debug)]
#[must_use = "finish or discard it, else half a response stays in the buffer"]
pub struct Document {
    start_at: usize,
    map_at: usize,
}

impl Document {
    /// Appends everything before the payload. The caller then appends the payload, one value in any
    /// number of steps, and calls [`Document::finish`].
    pub fn start(out: &mut Vec<u8>, msgid: u32) -> Self {
        let start_at = out.len();
        start(out, msgid);
        let map_at = out.len();
        write::map_len(out, 2);
        write::str(out, "payload");
        Self { start_at, map_at }
    }

    /// Appends everything after the payload. Lists the first [`FIELD_ERRORS_MAX`] of `errors`, with
    /// paths truncated to [`FIELD_PATH_BYTES_MAX`] bytes. `errors_omitted` counts the rest and
    /// `omitted`. `unmatched` are positions of paths. `encapsulations` are the encapsulations that
    /// fields of the payload refer to.
    pub fn finish(
        self,
        out: &mut Vec<u8>,
        generation: u64,
        (errors, omitted): (&[FieldError], u64),
        unmatched: &[u32],
        encapsulations: &[String],
    ) {
        write::str(out, "generation");
        write::uint(out, generation);
        let listed = &errors[..errors.len().min(FIELD_ERRORS_MAX)];
        let omitted = omitted + (errors.len() - listed.len()) as u64;
        if !listed.is_empty() {
            // A map of up to 15 keys has its count in the low bits of its one header byte.
            out[self.map_at] += 1;
            write::str(out, "errors");
            write::array_len(out, u32::try_from(listed.len()).unwrap_or(u32::MAX));
            for error in listed {
                write::map_len(out, 2);
                write::str(out, "path");
                write::str(
                    out,
                    &error.path[..error.path.floor_char_boundary(FIELD_PATH_BYTES_MAX)],
                );
                write::str(out, "code");
                write::str(out, error.code.name());
            }
        }
        if omitted > 0 {
            out[self.map_at] += 1;
            write::str(out, "errors_omitted");
            write::uint(out, omitted);
        }
        if !unmatched.is_empty() {
            out[self.map_at] += 1;
            write::str(out, "unmatched");
            write::array_len(out, u32::try_from(unmatched.len()).unwrap_or(u32::MAX));
            unmatched
                .iter()
                .for_each(|position| write::uint(out, (*position).into()));
        }
        if !encapsulations.is_empty() {
            out[self.map_at] += 1;
            write::str(out, "encapsulations");
            write::array_len(out, u32::try_from(encapsulations.len()).unwrap_or(u32::MAX));
            encapsulations.iter().for_each(|text| write::str(out, text));
        }
    }

    /// Removes everything since `start`, so that the caller can write an error instead.
    pub fn discard(self, out: &mut Vec<u8>) {
        out.truncate(self.start_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Detail, ErrorCode, OverloadReason, push_json_string};
    use crate::response_decoder::{self, Response, decode_protocol_error};

    fn field_errors(count: usize, path: &str) -> Vec<FieldError> {
        vec![
            FieldError {
                path: path.to_owned(),
                code: ErrorCode::CannotOpen
            };
            count
        ]
    }

    /// Writes a document response after other bytes and reads it. `expect` has the number of keys
    /// in the map, of listed errors and of omitted errors.
    fn check(errors: &[FieldError], omitted: u64, unmatched: &[u32], expect: (u8, usize, u64)) {
        let mut out = vec![0xc0; 3];
        let document = Document::start(&mut out, 9);
        write::str(&mut out, "payload bytes");
        document.finish(&mut out, 42, (errors, omitted), unmatched, &[]);
        let reply = Response::decode(&out[3..]).unwrap();
        let result = reply.outcome.unwrap();
        let decoded = response_decoder::Document::decode(result).unwrap();
        assert_eq!(
            (reply.msgid, decoded.generation, decoded.payload),
            (9, 42, &b"\xadpayload bytes"[..])
        );
        assert_eq!(decoded.unmatched, unmatched);
        assert_eq!(
            (
                result[0] & 0x0f,
                decoded.errors.len(),
                decoded.errors_omitted
            ),
            expect
        );
    }

    #[test]
    fn document_response_omits_keys_without_values() {
        check(&[], 0, &[], (2, 0, 0));
        check(&field_errors(1, "$.a"), 0, &[], (3, 1, 0));
        check(&[], 0, &[0, 63], (3, 0, 0));
        check(&field_errors(1, "$.a"), 5, &[], (4, 1, 5));
        check(&field_errors(1, "$.a"), 5, &[7], (5, 1, 5));
        check(
            &field_errors(FIELD_ERRORS_MAX + 2, "$"),
            5,
            &[],
            (4, FIELD_ERRORS_MAX, 7),
        );
    }

    #[test]
    fn document_response_truncates_paths_between_characters() {
        let mut out = Vec::new();
        let document = Document::start(&mut out, 9);
        write::nil(&mut out);
        document.finish(
            &mut out,
            0,
            (&field_errors(1, &format!("$.{}", "é".repeat(1_000))), 0),
            &[],
            &[],
        );
        let result = Response::decode(&out).unwrap().outcome.unwrap();
        let errors = response_decoder::Document::decode(result).unwrap().errors;
        assert_eq!(errors[0].path, format!("$.{}", "é".repeat(511)));
    }

    #[test]
    fn discarded_document_leaves_no_bytes() {
        let mut out = vec![1, 2, 3];
        let document = Document::start(&mut out, 9);
        write::str(&mut out, "half");
        document.discard(&mut out);
        assert_eq!(out, [1, 2, 3]);
    }

    #[test]
    fn errors_round_trip() {
        for code in ErrorCode::ALL {
            let plain = RpcError::new(code, "no");
            let full = RpcError::new(code, "later")
                .retry_after_ms(250)
                .with(Detail::text("limit", "depth_max"))
                .with(Detail::number("max", u64::MAX));
            for sent in [plain, full] {
                let mut out = Vec::new();
                error(&mut out, u32::MAX, &sent, ErrorFormat::Map);
                assert_eq!(
                    Response::decode(&out),
                    Ok(Response {
                        msgid: u32::MAX,
                        outcome: Err(sent.clone())
                    })
                );
                out.clear();
                protocol_error(&mut out, &sent);
                assert_eq!(decode_protocol_error(&out), Ok(sent));
            }
        }
    }

    #[test]
    fn text_errors_have_code_message_and_hints() {
        let plain = |message: &'static str| RpcError::new(ErrorCode::NotFound, message);
        let cases = [
            (plain("no such method"), "not_found: no such method"),
            (plain(""), "not_found: "),
            (plain("a: b"), "not_found: a: b"),
            (
                plain("parameter `a\tb\n\u{85}`"),
                "not_found: parameter `a b  `",
            ),
            (
                plain("later").retry_after_ms(250),
                "not_found: later\t{\"retry_after_ms\":250}",
            ),
            (
                plain("no").with(Detail::text("path", "$.a")),
                "not_found: no\t{\"details\":{\"path\":\"$.a\"}}",
            ),
            (
                plain("no").with(Detail::text("path", "$['\"\\']\t\u{7f}\u{9f}é")),
                "not_found: no\t{\"details\":{\"path\":\"$['\\\"\\\\']\\u0009\\u007f\\u009fé\"}}",
            ),
            (
                RpcError::overloaded(OverloadReason::Memory, 5, Some(u64::MAX)),
                "overloaded: no memory for the call\t{\"retry_after_ms\":5,\"details\":{\"reason\":\"memory\",\"predicted_ms\":18446744073709551615}}",
            ),
        ];
        for (sent, expect) in cases {
            let mut out = Vec::new();
            error(&mut out, 9, &sent, ErrorFormat::Text);
            // A decoder of maps reads a plain string as `internal`.
            let expect = RpcError::new(ErrorCode::Internal, expect);
            assert_eq!(
                Response::decode(&out),
                Ok(Response {
                    msgid: 9,
                    outcome: Err(expect)
                })
            );
        }
        for code in ErrorCode::ALL {
            assert!(
                !code.name().contains(':'),
                "{code}: the first colon ends the code"
            );
            assert_eq!(RpcError::new(code, "m").to_text(), format!("{code}: m"));
        }
    }

    /// Compares `proto/vectors/text-errors.jsonl`, which clients in other languages read: responses
    /// with each code, without hints and with all hints.
    #[test]
    fn text_errors_match_the_vectors() {
        let mut lines = String::new();
        for code in ErrorCode::ALL {
            let plain = RpcError::new(code, "a sentence: for people");
            let full = RpcError::new(code, "a \"name\"\n")
                .retry_after_ms(250)
                .with(Detail::text("path", "$['\"a\t']"))
                .with(Detail::number("max", u64::MAX));
            for sent in [plain, full] {
                let mut out = Vec::new();
                error(&mut out, 1, &sent, ErrorFormat::Text);
                let response: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
                let mut text = String::new();
                push_json_string(&mut text, &sent.to_text());
                lines.push_str(&format!(
                    "{{\"code\":\"{code}\",\"text\":{text},\"response\":\"{response}\"}}\n"
                ));
            }
        }
        assert!(
            lines == include_str!("../../../../proto/vectors/text-errors.jsonl"),
            "the vectors are now:\n{lines}"
        );
    }

    #[test]
    fn errors_of_other_and_newer_servers_decode() {
        let read = |error: &[u8]| {
            let message = [&[0x94, 1, 7][..], error, &[0xc0]].concat();
            Response::decode(&message).map(|reply| reply.outcome.unwrap_err())
        };
        assert_eq!(
            read(b"\xa4oops"),
            Ok(RpcError::new(ErrorCode::Internal, "oops"))
        );
        let newer = b"\x83\xa4code\xa3new\xa7message\xa1m\xa4more\x91\x01";
        assert_eq!(read(newer), Ok(RpcError::new(ErrorCode::Internal, "m")));
        assert!(read(b"\x81\xa4code\xa8conflict").is_err(), "no message");
        assert!(read(b"\x81\xa7message\xa1m").is_err(), "no code");
        assert!(read(&[0x07]).is_err(), "a number");
        assert!(read(b"\xa1\xff").is_err(), "not UTF-8");
    }

    #[test]
    fn reply_decoder_rejects_other_messages() {
        for bytes in [
            &[][..],
            &[0xc0],
            &[0x94, 0, 1, 0xc0, 0xc0],
            &[0x94, 1, 1, 0xc0],
            &[0x94, 1, 1, 0xc0, 1, 1],
        ] {
            assert!(Response::decode(bytes).is_err(), "{bytes:02x?}");
        }
        for result in [
            &[0x80][..],
            b"\x81\xa7payload\x01",
            b"\x81\xaageneration\x01",
            b"\x91\x01",
        ] {
            assert!(
                response_decoder::Document::decode(result).is_err(),
                "{result:02x?}"
            );
        }
    }
}
