//! Splicing: changed values enter a JSON text, and all its other bytes stay.

use sealwire_msgpack::{Token, TokenReader, write};
use sealwire_payload::WalkLimits;
use sealwire_payload::json::{splice, to_msgpack};

use crate::seed::{packed, words as list};
use crate::{Input, Seed};

/// Splices a text with values of its own and with those of another document. Settings: a mask of
/// the values to replace, and the other document as MessagePack with its length.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let mask = input.byte();
    let len = usize::from(input.byte()).min(input.0.len());
    let (other, text) = input.0.split_at(len);
    let limits = WalkLimits::default();

    let mut out = Vec::new();
    // Documents that do not belong to the text give an error or an unusable text, without a panic.
    let _ = splice(text, other, text, &mut out, limits);
    let Ok(before) = to_msgpack(text, limits) else {
        return;
    };
    out.clear();
    let _ = splice(text, &before, other, &mut out, limits);

    out.clear();
    splice(text, &before, &before, &mut out, limits).expect("an unchanged document has its text");
    assert_eq!(out, text);

    let mut after = Vec::new();
    let mut replacer = Replacer {
        document: &before,
        mask,
        at: 0,
    };
    replacer.copy(&mut TokenReader::new(&before), &mut after);
    out.clear();
    splice(text, &before, &after, &mut out, limits).expect("texts have a form in JSON");
    let read = to_msgpack(&out, limits).expect("a spliced text can be read");
    assert_eq!(read, after, "{}", String::from_utf8_lossy(&out));
}

/// Copies a document and replaces values, among them whole containers, by a text.
struct Replacer<'a> {
    document: &'a [u8],
    mask: u8,
    at: u32,
}

impl Replacer<'_> {
    fn copy(&mut self, reader: &mut TokenReader<'_>, out: &mut Vec<u8>) {
        self.at = (self.at + 1) % 8;
        if self.mask >> self.at & 1 == 1 {
            reader.skip_value().expect("a converted document");
            write::str(out, "sw1:\"]}");
            return;
        }
        let start = reader.position();
        let values = match reader.peek().expect("a converted document") {
            Token::Array(len) | Token::Map(len) => len,
            _ => return out.extend_from_slice(reader.value().expect("a converted document")),
        };
        let is_map = matches!(reader.token(), Ok(Token::Map(_)));
        out.extend_from_slice(&self.document[start..reader.position()]);
        for _ in 0..values {
            if is_map {
                out.extend_from_slice(reader.value().expect("a key"));
            }
            self.copy(reader, out);
        }
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let texts = [
        r#"{ "a" : [1,-2, 0.50,null,true ,false,"x"], "b":{ }, "c":[ ] }"#,
        "[18446744073709551615,-9223372036854775808,1e300 , 5e-324,-0.0,1.0]",
        r#"{"\u00e9":"\"]}","a\\":{"b":[[],[[1]]]}}"#,
        "\u{feff} \"x\" ",
        "{\"a\\",
    ];
    let other = packed(r#"{"a":[1,2],"b":"x"}"#);
    let mut seeds = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        for mask in [0x00, 0x54, 0xff] {
            let settings = [&[mask, other.len() as u8][..], &other].concat();
            seeds.push(Seed::new(format!("text-{at}-{mask:02x}"), &settings, text));
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "{\"a\":", "[[", "]]", "\\\"", "\\u0022", "1e308", "-0.0", "null", "true", "\u{feff}",
        " , ", " : ",
    ])
}
