//! Records of requests and of events of the trail.

use std::borrow::Cow;
use std::time::Duration;

use crate::json;
use crate::timestamp::Timestamp;

/// Longest record in bytes, without its hash and MAC. Longer texts are truncated: see [`Record`].
pub const RECORD_BYTES_MAX: usize = 48 << 10;

/// Longest principal name in bytes: the maximum length of a SPIFFE ID.
const PRINCIPAL_BYTES_MAX: usize = 2_048;
/// Longest reason in bytes: the maximum that a request can carry.
const REASON_BYTES_MAX: usize = 256;
/// Longest other text in bytes.
const TEXT_BYTES_MAX: usize = 128;
/// Largest total size of the facts about a change, in bytes. Sufficient for a principal with its
/// role, or for the grants of a role.
const CHANGE_BYTES_MAX: usize = 4_096;
/// Maximum number of data subjects in a record, of 35 bytes each.
pub const SUBJECTS_MAX: usize = 500;
/// Maximum number of facts about a change.
const CHANGES_MAX: usize = 8;

/// A request with its outcome. The fields contain no part of a payload, a token or a key. Names are
/// truncated to 128 bytes, reasons to 256, principals to 2,048, and the facts about a change to
/// 4,096 in total.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record<'a> {
    /// The principal: the whole name in the certificate.
    pub principal: &'a str,
    /// The certificate field that holds the principal's name.
    pub kind: &'a str,
    /// The method; unknown methods share one name.
    pub method: &'a str,
    /// The app that the request named, if it could be parsed.
    pub app: Option<&'a str>,
    /// The collection that the request named.
    pub collection: Option<&'a str>,
    /// The reason for the request, as stated by the client.
    pub reason: Option<&'a str>,
    /// The masking function that the principal's role applies to values.
    pub mask: Option<&'a str>,
    /// The data subjects whose objects or tokens the request read or wrote: keyed hashes of their
    /// names, at most [`SUBJECTS_MAX`].
    pub subjects: &'a [[u8; 16]],
    /// The requested change of a control request, or the key that an erasure removes.
    pub change: &'a [(&'static str, Change<'a>)],
    /// Number of fields that the response covers; for token methods, the number of tokens.
    pub fields: u64,
    /// Number of these fields that failed individually.
    pub errors: u64,
    /// Size of the request message in bytes. For a message rejected before it was complete, the
    /// bytes received so far.
    pub bytes_in: u64,
    /// `ok` or the error code.
    pub outcome: &'a str,
    /// The generation of control state used for the decision.
    pub generation: u64,
    /// Time from the last byte of the request to the decision.
    pub took: Duration,
}

/// A fact about a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// A name or a choice.
    Text(&'a str),
    /// Several names.
    Texts(Cow<'a, [&'a str]>),
    /// A number.
    Number(u64),
    /// A boolean.
    Flag(bool),
    /// The value is removed.
    Nothing,
}

impl Record<'_> {
    /// Appends everything between the record number and the hash.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, at: Timestamp, instance: &str) {
        begin(out, at, "call", instance);
        json::text(out, "principal", cut(self.principal, PRINCIPAL_BYTES_MAX));
        json::text(out, "kind", cut(self.kind, TEXT_BYTES_MAX));
        json::text(out, "method", cut(self.method, TEXT_BYTES_MAX));
        for (name, text, bytes_max) in [
            ("app", self.app, TEXT_BYTES_MAX),
            ("collection", self.collection, TEXT_BYTES_MAX),
            ("reason", self.reason, REASON_BYTES_MAX),
            ("mask", self.mask, TEXT_BYTES_MAX),
        ] {
            if let Some(text) = text {
                json::text(out, name, cut(text, bytes_max));
            }
        }

        if !self.subjects.is_empty() {
            json::key(out, "subjects");
            out.push(b'[');
            for (index, id) in self.subjects.iter().take(SUBJECTS_MAX).enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                json::string(out, &format!("{:032x}", u128::from_be_bytes(*id)));
            }

            out.push(b']');
        }

        if !self.change.is_empty() {
            json::key(out, "change");
            let mut left = CHANGE_BYTES_MAX;
            for (index, (name, fact)) in self.change.iter().take(CHANGES_MAX).enumerate() {
                out.extend_from_slice(if index == 0 { b"{" } else { b"," });
                json::string(out, name);
                out.push(b':');
                match fact {
                    Change::Text(text) => json::string(out, take(text, &mut left)),
                    Change::Texts(texts) => {
                        out.push(b'[');
                        for (index, text) in texts.iter().enumerate() {
                            if left == 0 {
                                break;
                            }
                            if index > 0 {
                                out.push(b',');
                            }
                            json::string(out, take(text, &mut left));
                        }
                        out.push(b']');
                    }
                    Change::Number(value) => json::number(out, *value),
                    Change::Flag(flag) => {
                        out.extend_from_slice(if *flag { b"true" } else { b"false" })
                    }
                    Change::Nothing => out.extend_from_slice(b"null"),
                }
            }

            out.push(b'}');
        }

        json::count(out, "fields", self.fields);
        json::count(out, "errors", self.errors);
        json::count(out, "bytes_in", self.bytes_in);
        json::text(out, "outcome", cut(self.outcome, TEXT_BYTES_MAX));
        json::count(out, "generation", self.generation);
        json::count(
            out,
            "took_us",
            u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX),
        );
    }
}

/// Events of the trail and of its engine.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The engine opened the audit log.
    Start {
        /// The engine's version.
        version: &'a str,
        /// The condition of the audit log when it was opened.
        found: &'a str,
        /// Bytes of an incomplete line of the previous run, which was moved to a separate file.
        torn_bytes: u64,
    },
    /// The engine closed the audit log; the last record of its run.
    Stop,
    /// Records were lost, because the files could not be written.
    Gap {
        /// Number of lost records.
        lost: u64,
        /// Time of the first loss.
        since: Timestamp,
        /// The system's last error.
        error: &'a str,
    },
    /// Rejected requests that were counted instead of recorded individually.
    Refused {
        /// The principal, or `*` for several.
        principal: &'a str,
        /// The certificate field that holds the principal's name.
        kind: &'a str,
        /// The method, or `*` for several.
        method: &'a str,
        /// The error code of the response, or `*` for several.
        outcome: &'a str,
        /// Number of requests.
        count: u64,
        /// Time of the first request.
        first: Timestamp,
        /// Time of the last request.
        last: Timestamp,
        /// Total size of the messages in bytes.
        bytes_in: u64,
    },
    /// The engine changed rows of a token map in background maintenance.
    Sweep {
        /// `archived`, `pruned` or `erased`.
        action: &'a str,
        /// The app, if its name is known.
        app: Option<&'a str>,
        /// The collection, if its name is known.
        collection: Option<&'a str>,
        /// Number of the app.
        app_number: u64,
        /// Number of the collection.
        collection_number: u64,
        /// Number of rows.
        rows: u64,
    },
    /// The engine used a provider of the store's root key.
    Provider {
        /// `wrap`, `unwrap` or `probe`.
        operation: &'a str,
        /// Name of the provider.
        provider: &'a str,
        /// Kind of the provider.
        provider_kind: &'a str,
        /// Number of the slot.
        slot: u64,
        /// Id of the root key.
        root: &'a [u8; 16],
        /// `ok`, or the kind of the failure.
        outcome: &'a str,
        /// Time of the result. Uses from before the audit log was opened are recorded afterwards.
        used: Timestamp,
        /// Duration of the use.
        took: Duration,
    },
    /// The engine reloaded a file.
    Reload {
        /// A name of the changed part.
        what: &'a str,
        /// `ok`, or the error.
        outcome: &'a str,
    },
}

impl Event<'_> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>, at: Timestamp, instance: &str) {
        match self {
            Self::Start {
                version,
                found,
                torn_bytes,
            } => {
                begin(out, at, "start", instance);
                json::text(out, "version", version);
                json::text(out, "found", found);
                json::count(out, "torn_bytes", *torn_bytes);
            }
            Self::Stop => begin(out, at, "stop", instance),
            Self::Gap { lost, since, error } => {
                begin(out, at, "gap", instance);
                json::count(out, "lost", *lost);
                json::key(out, "since");
                moment(out, *since);
                json::text(out, "error", cut(error, TEXT_BYTES_MAX));
            }
            Self::Refused {
                principal,
                kind,
                method,
                outcome,
                count,
                first,
                last,
                bytes_in,
            } => {
                begin(out, at, "refused", instance);
                json::text(out, "principal", cut(principal, PRINCIPAL_BYTES_MAX));
                json::text(out, "kind", cut(kind, TEXT_BYTES_MAX));
                json::text(out, "method", cut(method, TEXT_BYTES_MAX));
                json::text(out, "outcome", cut(outcome, TEXT_BYTES_MAX));
                json::count(out, "count", *count);
                json::key(out, "first");
                moment(out, *first);
                json::key(out, "last");
                moment(out, *last);
                json::count(out, "bytes_in", *bytes_in);
            }
            Self::Sweep {
                action,
                app,
                collection,
                app_number,
                collection_number,
                rows,
            } => {
                begin(out, at, "sweep", instance);
                json::text(out, "action", cut(action, TEXT_BYTES_MAX));
                for (name, text) in [("app", app), ("collection", collection)] {
                    if let Some(text) = text {
                        json::text(out, name, cut(text, TEXT_BYTES_MAX));
                    }
                }
                json::count(out, "app_number", *app_number);
                json::count(out, "collection_number", *collection_number);
                json::count(out, "rows", *rows);
            }
            Self::Provider {
                operation,
                provider,
                provider_kind,
                slot,
                root,
                outcome,
                used,
                took,
            } => {
                begin(out, at, "provider", instance);
                json::text(out, "operation", cut(operation, TEXT_BYTES_MAX));
                json::text(out, "provider", cut(provider, TEXT_BYTES_MAX));
                json::text(out, "provider_kind", cut(provider_kind, TEXT_BYTES_MAX));
                json::count(out, "slot", *slot);
                json::key(out, "root");
                out.push(b'"');
                json::hex(out, *root);
                out.push(b'"');
                json::text(out, "outcome", cut(outcome, TEXT_BYTES_MAX));
                json::key(out, "used");
                moment(out, *used);
                json::count(
                    out,
                    "took_us",
                    u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                );
            }
            Self::Reload { what, outcome } => {
                begin(out, at, "reload", instance);
                json::text(out, "what", cut(what, TEXT_BYTES_MAX));
                json::text(out, "outcome", cut(outcome, TEXT_BYTES_MAX));
            }
        }
    }
}

/// Appends the first fields of a record, after its number.
pub(crate) fn begin(out: &mut Vec<u8>, at: Timestamp, event: &str, instance: &str) {
    json::key(out, "time");
    moment(out, at);
    json::text(out, "event", event);
    json::text(out, "instance", cut(instance, TEXT_BYTES_MAX));
}

fn moment(out: &mut Vec<u8>, at: Timestamp) {
    out.push(b'"');
    out.extend_from_slice(&at.text());
    out.push(b'"');
}

/// Returns the first part of a text, of at most `left` bytes, and reduces `left` by its length.
fn take<'a>(text: &'a str, left: &mut usize) -> &'a str {
    let text = cut(text, *left);
    *left -= text.len();
    text
}

pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::chain::{Line, Link};
    use crate::digest::Digest;
    use crate::key::AuditKey;

    fn arbitrary_text() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[a-z.]{1,40}", "\\PC{0,3000}"]
    }

    proptest! {
        #[test]
        fn records_are_readable_by_another_library(
            texts in proptest::collection::vec(arbitrary_text(), 7),
            numbers in any::<[u64; 5]>(),
            optional in any::<[bool; 3]>(),
            changes in 0..6_usize,
            subjects in 0..600_usize,
        ) {
            let subjects = vec![[0xab; 16]; subjects];
            let some = |index: usize| optional[index].then(|| &*texts[index]);
            let grants = [&*texts[6], &texts[0], &texts[1]];
            let change = [
                ("key", Change::Text(&texts[5])), ("grants", Change::Texts(grants[..].into())),
                ("delay_s", Change::Number(numbers[4])), ("seals", Change::Flag(true)), ("expires_s", Change::Nothing),
            ];
            let record = Record {
                principal: &texts[3], kind: "dns", method: "encrypt", app: some(0), collection: some(1), reason: some(2),
                mask: some(2), subjects: &subjects,
                change: &change[..changes], fields: numbers[0], errors: numbers[1], bytes_in: numbers[2],
                outcome: "ok", generation: numbers[3], took: Duration::from_micros(numbers[4] >> 1),
            };
            let (mut body, mut out) = (Vec::new(), Vec::new());
            record.encode(&mut body, Timestamp::now(), &texts[4]);
            prop_assert!(body.len() <= RECORD_BYTES_MAX);
            let key = AuditKey::new(&zeroize::Zeroizing::new([7; 32]));
            let before = Digest::genesis(&[3; 16]);
            let mut link = Link { seq: 41, hash: before };
            link.seal(&key, &body, &mut out);
            prop_assert_eq!(out.pop(), Some(b'\n'));
            prop_assert!(!out.contains(&b'\n'));
            let line = Line::parse(&out).unwrap();
            prop_assert_eq!((line.seq, line.body, line.hash), (42, &body[..], link.hash));
            prop_assert_eq!(before.with(line.sealed), line.hash);
            prop_assert_eq!(key.line_mac(&line.hash), line.mac);
            prop_assert_eq!(line.event(), Some("call"));
            let read: serde_json::Value = serde_json::from_slice(&out).unwrap();
            prop_assert_eq!(read["principal"].as_str(), Some(cut(&texts[3], PRINCIPAL_BYTES_MAX)));
            prop_assert_eq!(read.get("app").and_then(|app| app.as_str()), some(0).map(|app| cut(app, TEXT_BYTES_MAX)));
            let reason = read.get("reason").and_then(|reason| reason.as_str());
            prop_assert_eq!(reason, some(2).map(|reason| cut(reason, REASON_BYTES_MAX)));
            let mask = read.get("mask").and_then(|mask| mask.as_str());
            prop_assert_eq!(mask, some(2).map(|mask| cut(mask, TEXT_BYTES_MAX)));
            let kept = |name: &str| read["change"].get(name).cloned().unwrap_or_default();
            if changes > 1 && texts[5].len() + grants.concat().len() < CHANGE_BYTES_MAX {
                prop_assert_eq!((kept("key"), kept("grants")), (serde_json::json!(texts[5]), serde_json::json!(grants)));
            }
            prop_assert_eq!(read["fields"].as_u64(), Some(numbers[0]));
            prop_assert_eq!(read["took_us"].as_u64(), Some(numbers[4] >> 1));
            prop_assert_eq!(read.get("change").map_or(0, |change| change.as_object().unwrap().len()), changes);
            prop_assert_eq!(read["hash"].as_str(), Some(&*line.hash.to_string()));
        }

        #[test]
        fn reader_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Line::parse(&bytes);
            bytes.extend_from_slice(b",\"hash\":\"");
            let _ = Line::parse(&bytes);
        }
    }

    #[test]
    fn the_use_of_a_provider_is_recorded_as_it_is_shown() {
        let used = Timestamp::parse(b"2026-11-22T00:34:24.123Z").unwrap();
        let event = Event::Provider {
            operation: "probe",
            provider: "hsm",
            provider_kind: "pkcs11",
            slot: 3,
            root: &[0xa5; 16],
            outcome: "denied",
            used,
            took: Duration::from_micros(1_234),
        };
        let (mut body, mut line) = (Vec::new(), Vec::new());
        event.encode(&mut body, Timestamp::now(), "run");
        let key = AuditKey::new(&zeroize::Zeroizing::new([7; 32]));
        Link {
            seq: 0,
            hash: Digest::genesis(&[0; 16]),
        }
        .seal(&key, &body, &mut line);
        let filter = crate::Filter {
            event: Some("provider".into()),
            ..crate::Filter::default()
        };
        let shown = filter.take(&line).unwrap();
        let texts = [
            &shown.operation,
            &shown.provider,
            &shown.provider_kind,
            &shown.root,
            &shown.outcome,
            &shown.used,
        ];
        let expected = [
            "probe",
            "hsm",
            "pkcs11",
            "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5",
            "denied",
            "2026-11-22T00:34:24.123Z",
        ];
        assert_eq!(texts.map(|text| text.as_deref()), expected.map(Some));
        assert_eq!(
            (shown.slot, shown.took_us, &*shown.instance),
            (Some(3), 1_234, "run")
        );
    }

    #[test]
    fn malformed_lines_are_rejected() {
        let (key, mut out) = (AuditKey::new(&zeroize::Zeroizing::new([7; 32])), Vec::new());
        Link {
            seq: 0,
            hash: Digest::genesis(&[0; 16]),
        }
        .seal(&key, b",\"a\":1", &mut out);
        let line = String::from_utf8(out).unwrap().trim_end().to_owned();
        assert!(Line::parse(line.as_bytes()).is_some());
        for (from, to) in [
            ("{\"seq\":1", "{\"seq\":01"),
            ("{\"seq\":1", "{\"seq\":0"),
            ("{\"seq\":1", "{\"seq\":"),
            ("\"seq\"", "\"seQ\""),
            ("{\"seq\":1", "{\"seq\":18446744073709551616"),
            ("{\"seq\":1", "{\"seq\":10000000000000000"),
            ("\"hash\"", "\"hasH\""),
            ("\"mac\"", "\"maC\""),
            ("\"}", "\"]"),
            ("{\"seq\":1", "{\"seq\":+1"),
            ("{\"seq\":1,", "{\"seq\":1 "),
        ] {
            assert_eq!(
                Line::parse(line.replacen(from, to, 1).as_bytes()),
                None,
                "{from} {to}"
            );
        }
        let upper = line.replace(['a', 'b', 'c', 'd', 'e', 'f'], "A");
        assert_eq!(Line::parse(upper.as_bytes()), None);
    }
}
