//! A thousand small bodies of each format, well-formed and damaged, cut at every byte.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;

use super::{PART, rule, set};
use crate::{BodyError, BodyRule, Containers, Format, Limits, Piece, RuleSet, Scanner};

const BODIES: u64 = 1_000;

/// A generator of small numbers (splitmix64). The seed is the number of the body, so a failure can
/// be repeated.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.below(texts.len())]
    }

    fn json(&mut self, depth: usize, out: &mut String) {
        let scalars = [
            "1",
            "-0.5e+3",
            "true",
            "null",
            r#""""#,
            r#""x""#,
            r#""\u00e4\n""#,
            r#""\ud83d\ude00""#,
            "\"ü😀\"",
            " 12 ",
        ];
        match self.below(if depth == 0 { 2 } else { 4 }) {
            2 => {
                out.push('[');
                for at in 0..self.below(3) {
                    out.push_str(if at > 0 { ", " } else { "" });
                    self.json(depth - 1, out);
                }
                out.push(']');
            }
            3 => {
                out.push('{');
                for at in 0..self.below(4) {
                    let key = self.one_of(&["a", "b", "c", "\\u0061", "ü"]);
                    let _ = write!(out, "{}\"{key}\":", if at > 0 { "," } else { "" });
                    self.json(depth - 1, out);
                }
                out.push('}');
            }
            _ => out.push_str(self.one_of(&scalars)),
        }
    }

    /// A body of the format, which is damaged at one byte in one of four.
    fn body(&mut self, format: &Format) -> Vec<u8> {
        let mut out = String::from(self.one_of(&["", "", "", "\u{feff}"]));
        match format {
            Format::Json => self.json(4, &mut out),
            Format::JsonLines => (0..self.below(4)).for_each(|_| {
                self.json(2, &mut out);
                out.push_str(self.one_of(&["\n", "\r\n", "\n\n", " \n\t\r\n"]));
            }),
            Format::Form => {
                out.clear();
                (0..self.below(5)).for_each(|_| {
                    out.push_str(self.one_of(&["a=", "%61=", "b=", "c", "=", "a+b="]));
                    out.push_str(self.one_of(&["", "x", "%20+", "%C3%A4", "1=2"]));
                    out.push_str(self.one_of(&["&", "&&", "&", ""]));
                });
            }
            Format::EventStream => (0..self.below(4)).for_each(|_| {
                let end = self.one_of(&["\n", "\r\n", "\r"]);
                out.push_str(self.one_of(&["", ": hi\n", "id: 1\r\n", "event:x\r"]));
                let mut data = String::new();
                self.json(2, &mut data);
                let _ = write!(
                    out,
                    "data: {}{end}{end}",
                    data.replace(", ", &format!(",{end}data:"))
                );
            }),
            Format::Multipart { .. } => {
                out.clear();
                (0..self.below(3)).for_each(|_| {
                    let _ = write!(
                        out,
                        "--bnd{}\r\n{PART}",
                        self.one_of(&["", "", "", "", "", "", "", "", " "])
                    );
                    out.push_str(self.one_of(&["", "v", "\r\n", "--b\r\n-", "ü", "\r\n--bn"]));
                    out.push_str("\r\n");
                });
                let _ = write!(
                    out,
                    "--bnd--{}",
                    self.one_of(&["", "\r\n", " \r\nend", "\r\n--b"])
                );
            }
        }
        let mut body = out.into_bytes();
        if !body.is_empty() && self.below(4) == 0 {
            let at = self.below(body.len());
            body[at] = b"\"\\{]\r\n-,%\x80 \0"[self.below(12)];
        }
        body
    }
}

/// Literal bytes of a body, and its holes: offset among the literal bytes, rule, source and value.
type Joined = (Vec<u8>, Vec<(usize, usize, Bytes, Vec<u8>)>);

/// Scans the parts of a body. `None` for a body that is rejected: with two faults, the cut can
/// decide which is named.
fn joined(
    format: &Format,
    rules: &Arc<RuleSet>,
    limits: Limits,
    parts: &[&[u8]],
) -> Option<Joined> {
    let mut scanner = Scanner::new(format.clone(), Arc::clone(rules), limits);
    let mut pieces = Vec::new();
    let mut scan = || -> Result<(), BodyError> {
        parts
            .iter()
            .try_for_each(|part| scanner.push(&Bytes::copy_from_slice(part), &mut pieces))?;
        scanner.finish(&mut pieces)
    };
    scan().ok()?;
    let (mut literal, mut holes) = (Vec::new(), Vec::new());
    for piece in pieces {
        match piece {
            Piece::Literal(bytes) => literal.extend_from_slice(&bytes),
            Piece::Hole(hole) => holes.push((literal.len(), hole.rule, hole.source, hole.value)),
        }
    }
    Some((literal, holes))
}

/// The body that the pieces came from.
fn source((literal, holes): &Joined) -> Vec<u8> {
    let (mut out, mut done) = (Vec::new(), 0);
    for (at, _, source, _) in holes {
        out.extend_from_slice(&literal[done..*at]);
        out.extend_from_slice(source);
        done = *at;
    }
    out.extend_from_slice(&literal[done..]);
    out
}

#[track_caller]
fn check(format: &Format) {
    let rules: [Arc<RuleSet>; 2] = [
        set([
            rule(&["$.a", "$[*].a"], Containers::Whole),
            rule(&["$..b"], Containers::Leaves),
        ]),
        set([BodyRule {
            required: true,
            ..rule(&["$..a"], Containers::Deny)
        }]),
    ];
    let (mut accepted, mut found) = (0, 0);
    for seed in 0..BODIES {
        let body = Numbers(seed << 32).body(format);
        let rules = &rules[usize::from(seed % 4 == 0)];
        let pass_unparsed = seed % 3 == 0;
        let limits = Limits {
            value_bytes_max: 40,
            record_bytes_max: 120,
            pass_unparsed,
            ..Limits::default()
        };
        let whole = joined(format, rules, limits, &[&body]);
        for at in 0..=body.len() {
            let cut = joined(format, rules, limits, &[&body[..at], &body[at..]]);
            assert_eq!(
                cut,
                whole,
                "body {seed} cut at {at}: {:?}",
                String::from_utf8_lossy(&body)
            );
        }
        let bytes: Vec<&[u8]> = body.chunks(1).collect();
        assert_eq!(
            joined(format, rules, limits, &bytes),
            whole,
            "body {seed} byte by byte"
        );
        if let Some(pieces) = &whole {
            accepted += 1;
            found += pieces.1.len();
            assert_eq!(source(pieces), body, "body {seed}");
        }
    }
    assert!(
        accepted > 300 && accepted < 950 && found > 150,
        "{accepted} accepted, {found} values found"
    );
}

#[test]
fn json_is_cut_anywhere() {
    check(&Format::Json);
}

#[test]
fn lines_are_cut_anywhere() {
    check(&Format::JsonLines);
}

#[test]
fn forms_are_cut_anywhere() {
    check(&Format::Form);
}

#[test]
fn events_are_cut_anywhere() {
    check(&Format::EventStream);
}

#[test]
fn parts_are_cut_anywhere() {
    check(&Format::Multipart {
        boundary: "bnd".into(),
    });
}
