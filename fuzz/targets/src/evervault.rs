//! Evervault strings and files: a changed string or file does not open, unless the format does not
//! protect the changed part. Then it opens to the same value.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use sealwire_crypto::evervault::{
    Datatype, FILE_HEADER_BYTES, FileHeader, FileOpener, Form, Legacy, OpenedValue, Opener, Sealer,
    Tag, inspect, inspect_file, looks_like, looks_like_file,
};
use sealwire_crypto::{AppId, AppKeys, Curve, KeyPair, KeyScope, KeyState, KeyVersion};

use crate::input::edited;
use crate::seed::{key, text, unhex, vectors, words as list};
use crate::{Input, Seed};

const TEXT: &str = "4111111111111111";
const VECTORS: &str = include_str!("../../../proto/vectors/evervault.jsonl");

/// Keys, a valid string and file of each form, and the vectors.
struct EvervaultKeys {
    keys: Arc<AppKeys>,
    strings: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
    vectors: HashSet<Vec<u8>>,
}

static WORLD: LazyLock<EvervaultKeys> = LazyLock::new(|| {
    let vectors = vectors(VECTORS);
    let mut scalars: Vec<&str> = vectors
        .iter()
        .map(|vector| text(vector, "private_key"))
        .collect();
    scalars.sort_unstable();
    scalars.dedup();
    let pairs = scalars.iter().flat_map(|scalar| {
        Curve::ALL.map(|curve| KeyPair::from_scalar(curve, &key(scalar)).expect("a key"))
    });
    let versions = pairs
        .zip(1..)
        .map(|(pair, number)| KeyVersion::new(number, KeyState::Active, pair))
        .collect();
    let keys = Arc::new(AppKeys::new(AppId::new("fuzz").expect("a name"), versions).expect("keys"));
    let mut strings = Vec::new();
    let mut files = Vec::new();
    for recipient in keys.versions() {
        for form in [
            Form::Metadata {
                role: None,
                encrypted_at: 1_700_000_000,
            },
            Form::Plain,
        ] {
            let mut sealer =
                Sealer::new(Arc::clone(recipient), KeyScope::Request, &form).expect("a sealer");
            let mut string = Vec::new();
            let mut file = Vec::new();
            sealer
                .seal(Datatype::String, TEXT, &mut string)
                .expect("a string");
            sealer
                .seal_file(TEXT.as_bytes(), &mut file)
                .expect("a file");
            strings.push(string);
            files.push(file);
        }
    }
    EvervaultKeys {
        keys,
        strings,
        files,
        vectors: vectors.iter().map(bytes_of).collect(),
    }
});

fn bytes_of(vector: &serde_json::Value) -> Vec<u8> {
    let sealed = text(vector, "sealed");
    if vector["kind"] == "file" {
        unhex(sealed)
    } else {
        sealed.as_bytes().to_vec()
    }
}

/// Opens strings and files. Settings: valid input to change, bytes of a piece, whether the checksum
/// is corrected, changes.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let which = usize::from(input.byte());
    let piece = usize::from(input.byte()).max(1);
    let is_repaired = input.byte() & 1 != 0;
    let edits = input.edits();
    let EvervaultKeys {
        keys,
        strings,
        files,
        vectors,
    } = &*WORLD;
    let mut opener = Opener::new(keys, Legacy::Allowed);

    let bytes = input.0;
    assert!(inspect(bytes).is_none() || looks_like(bytes));
    assert!(inspect_file(bytes).is_none() || looks_like_file(bytes));
    if opener.open(bytes).is_ok() {
        let said = inspect(bytes).expect("a string that opens can be inspected");
        assert!(
            vectors.contains(bytes) || matches!(said.tag, Tag::Rfvc | Tag::Untagged),
            "{}",
            String::from_utf8_lossy(bytes)
        );
    }
    let whole = opener
        .open_file(bytes)
        .map(|opened| opened.content.to_vec())
        .ok();
    assert!(
        whole.is_none() || vectors.contains(bytes) || bytes[6] == 2,
        "a changed file opens"
    );
    if looks_like_file(bytes) {
        assert_eq!(whole, in_pieces(keys, bytes, piece));
    }

    if edits.is_empty() && !is_repaired && !bytes.is_empty() {
        return;
    }
    let which = which % strings.len();
    let string = edited(&strings[which], &edits);
    if let Ok(opened) = opener.open(&string) {
        let said = inspect(&string).expect("a string that opens can be inspected");
        assert!(opened.value == OpenedValue::Text(TEXT) && opened.role.is_none());
        // Two tags do not authenticate the sign of the ephemeral point.
        assert!(string == strings[which] || matches!(said.tag, Tag::Rfvc | Tag::Untagged));
    }
    let mut file = edited(&files[which], &edits);
    if is_repaired && let Some((body, checksum)) = file.split_last_chunk_mut::<4>() {
        *checksum = crc32fast::hash(body).to_le_bytes();
    }
    let whole = opener
        .open_file(&file)
        .map(|opened| opened.content.to_vec());
    assert_eq!(whole.clone().ok(), in_pieces(keys, &file, piece));
    if let Ok(content) = whole {
        assert!(content == TEXT.as_bytes() && (file == files[which] || file[6] == 2));
    }
}

fn in_pieces(keys: &AppKeys, file: &[u8], piece: usize) -> Option<Vec<u8>> {
    let (header, rest) = file.split_first_chunk::<FILE_HEADER_BYTES>()?;
    let candidates =
        FileOpener::candidates(keys, &FileHeader::read(header)?, Legacy::Allowed).ok()?;
    candidates.into_iter().find_map(|mut opener| {
        let mut content = Vec::new();
        rest.chunks(piece)
            .try_for_each(|chunk| opener.update(chunk, &mut content))
            .ok()?;
        opener.finish().ok().map(|()| content)
    })
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (at, vector) in vectors(VECTORS).iter().enumerate() {
        let bytes = bytes_of(vector);
        // Rejected vectors differ little from each other, so only some become seeds.
        if bytes.len() <= 2_000 && (vector["expect"] == "open" || at % 5 == 0) {
            seeds.push(Seed::new(
                format!("vector-{at:03}"),
                &[0, at as u8, 0, 0],
                bytes,
            ));
        }
    }
    for which in 0..8 {
        seeds.push(Seed::new(format!("own-{which}"), &[which, 3, 0, 0], []));
        seeds.push(Seed::new(
            format!("changed-{which}"),
            &[which, 9, 1, 1, 0, 30, 1],
            [],
        ));
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        &b"ev:"[..],
        b"ev:debug:",
        b"ev:QkTC:",
        b"ev:RFVC:",
        b"ev:QlJV:",
        b"ev:TENZ:",
        b"ev:T1JL:",
        b":number:",
        b":boolean:",
        b":string:",
        b":$",
        b"%EVENC",
        b"%EVENC\x02\x37\0",
        b"%EVENC\x03\x37\0",
        b"%EVENC\x04\x37\0",
        b"%EVENC\x05\x37\0",
    ])
}
