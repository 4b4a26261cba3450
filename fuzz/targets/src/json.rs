//! JSON and MessagePack: after one conversion there and back, further conversions do not change a
//! document.

use sealwire_payload::WalkLimits;
use sealwire_payload::json::{from_msgpack, to_msgpack};

use crate::seed::{packed, words as list};
use crate::{Input, Seed};

/// Converts bytes as JSON and as MessagePack. Settings: whether JSON is indented.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let pretty = input.byte() & 1 != 0;
    let bytes = input.0;
    let limits = WalkLimits::default();
    if let Ok(packed) = to_msgpack(bytes, limits) {
        fixpoint(&packed, pretty, limits);
    }
    let mut json = Vec::new();
    if from_msgpack(bytes, &mut json, pretty, limits).is_ok()
        && let Ok(packed) = to_msgpack(&json, limits)
    {
        fixpoint(&packed, pretty, limits);
    }
}

fn fixpoint(packed: &[u8], pretty: bool, limits: WalkLimits) {
    let mut json = Vec::new();
    from_msgpack(packed, &mut json, pretty, limits)
        .expect("a document from JSON has a form in JSON");
    assert!(std::str::from_utf8(&json).is_ok());
    let again = to_msgpack(&json, limits).expect("written JSON can be read");
    assert_eq!(packed, again, "{}", String::from_utf8_lossy(&json));
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let texts = [
        r#"{"a":[1,-2,0.5,null,true,false,"x"],"b":{},"c":[]}"#,
        "[18446744073709551615,-9223372036854775808,1e300,5e-324,-0.0,1.0]",
        r#""\u00e9\ud83d\ude00\"\\\/\b\f\n\r\t""#,
        " [ 1 , { \"a\" : [ ] } ] ",
    ];
    let mut seeds = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        seeds.push(Seed::new(format!("json-{at}"), &[at as u8], text));
        seeds.push(Seed::new(format!("packed-{at}"), &[at as u8], packed(text)));
    }
    let wide = [vec![
        0xdc, 0, 3, 0xd9, 1, b'a', 0xcc, 5, 0xca, 0x3f, 0x80, 0, 0,
    ]];
    seeds.extend(wide.map(|bytes| Seed::new("packed-wide", &[0], bytes)));
    seeds.push(Seed::new("packed-binary", &[0], [0xc4, 2, 0xff, 0]));
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let texts = list([
        "{\"a\":", "[[", "]]", "\\ud83d", "\\ude00", "1e308", "-0.0", "null", "true", "false",
        "\\u0000",
    ]);
    let packed: [&[u8]; 8] = [
        &[0xca, 0x7f, 0x80, 0, 0],
        &[0xcb, 0x7f, 0xf0],
        &[0xd9, 1],
        &[0xdc, 0, 1],
        &[0xde, 0, 1],
        &[0xcf],
        &[0xd3],
        &[0xc4, 1],
    ];
    texts.into_iter().chain(list(packed)).collect()
}
