//! Envelopes: an envelope opens only if a key of the app sealed it, unchanged, and only under its
//! context.

use std::sync::{Arc, LazyLock};

use sealwire_crypto::{
    AppId, AppKeys, Datatype, EncapsulationPlace, Encoding, Envelope, KeyMaterial, KeyScope,
    KeyState, KeyVersion, Opener, Sealer, Suite, looks_like_binary, looks_like_text,
};

use crate::input::edited;
use crate::seed::{key, text, unhex, vectors, words as list};
use crate::{Input, Seed};

const VECTORS: &str = include_str!("../../../proto/vectors/envelope.jsonl");
const PLAINTEXT: &[u8] = b"4111111111111111";

/// An envelope that opens.
struct Known {
    context: Vec<u8>,
    bytes: Vec<u8>,
    plaintext: Vec<u8>,
}

/// The keys of the vectors, and the envelopes that they open.
struct EnvelopeKeys {
    keys: Arc<AppKeys>,
    known: Vec<Known>,
    /// Index of the first envelope that this process sealed itself.
    own: usize,
}

static WORLD: LazyLock<EnvelopeKeys> = LazyLock::new(|| {
    let app = AppId::new("shop").expect("a name");
    let vectors: Vec<_> = vectors(VECTORS)
        .into_iter()
        .filter(|vector| vector["expect"] == "open")
        .collect();
    let mut materials: Vec<(Suite, String)> = Vec::new();
    let mut known = Vec::new();
    for vector in &vectors {
        let material = (
            Suite::from_name(text(vector, "suite")).expect("a suite"),
            text(vector, "key").to_owned(),
        );
        if !materials.contains(&material) {
            materials.push(material);
        }
        let context = unhex(text(vector, "context"));
        let plaintext = unhex(text(&vector["opens_to"], "plaintext"));
        known.push(Known {
            context,
            bytes: bytes_of(vector),
            plaintext,
        });
    }
    let versions = materials.iter().zip(1..).map(|((suite, bytes), number)| {
        let material = KeyMaterial::from_secret(&app, *suite, key(bytes).into()).expect("a key");
        KeyVersion::new(number, KeyState::Active, material)
    });
    let keys = Arc::new(AppKeys::new(app.clone(), versions.collect()).expect("keys"));
    let own = known.len();
    for suite in Suite::ALL {
        for encoding in [Encoding::Text, Encoding::Binary] {
            let newest = Arc::clone(keys.newest(suite).expect("a key"));
            let mut sealer =
                Sealer::new(&app, newest, KeyScope::Request, encoding, b"row 7").expect("a sealer");
            let mut bytes = Vec::new();
            sealer
                .seal(Datatype::String, PLAINTEXT, &mut bytes)
                .expect("an envelope");
            known.push(Known {
                context: b"row 7".to_vec(),
                bytes,
                plaintext: PLAINTEXT.to_vec(),
            });
        }
    }
    EnvelopeKeys { keys, known, own }
});

fn bytes_of(vector: &serde_json::Value) -> Vec<u8> {
    let envelope = text(vector, "envelope");
    if vector["encoding"] == "text" {
        envelope.as_bytes().to_vec()
    } else {
        unhex(envelope)
    }
}

/// Opens envelopes. Settings: context, an envelope of this process, and changes to it.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let contexts: [&[u8]; 4] = [b"", b"row 7", b"cards.pan.", b"row 8"];
    let context = contexts[usize::from(input.byte() % 4)];
    let mut opener = Opener::new(Arc::clone(&WORLD.keys), context);
    let own = WORLD.own + usize::from(input.byte()) % (WORLD.known.len() - WORLD.own);
    let edits = input.edits();
    // The same bytes as the text of an encapsulation.
    let _ = opener.give(input.0);
    check_envelope(&mut opener, context, input.0);
    check_envelope(
        &mut opener,
        context,
        &edited(&WORLD.known[own].bytes, &edits),
    );
}

fn check_envelope(opener: &mut Opener, context: &[u8], bytes: &[u8]) {
    let text = Envelope::from_text(bytes);
    let binary = Envelope::from_binary(bytes);
    assert!(text.is_none() || looks_like_text(bytes));
    assert!(binary.is_none() || looks_like_binary(bytes));
    for envelope in [text, binary].into_iter().flatten() {
        let sealed_bytes = match envelope.encapsulation {
            Some(EncapsulationPlace::Apart) => Encoding::sealed_bytes_apart,
            Some(EncapsulationPlace::Inline) | None => Encoding::sealed_bytes,
        };
        assert_eq!(
            sealed_bytes(envelope.encoding, envelope.suite, envelope.plaintext_bytes),
            bytes.len()
        );
    }
    let known = WORLD
        .known
        .iter()
        .find(|known| known.bytes == bytes && known.context == context);
    let text = opener
        .open_text(bytes)
        .map(|opened| opened.plaintext.to_vec());
    let binary = opener
        .open_binary(bytes)
        .map(|opened| opened.plaintext.to_vec());
    assert_eq!(text.is_ok() || binary.is_ok(), known.is_some());
    for plaintext in [text, binary].into_iter().flatten() {
        assert_eq!(Some(plaintext), known.map(|known| known.plaintext.clone()));
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    // Rejected vectors differ little from each other, so only some become seeds.
    let chosen = vectors(VECTORS)
        .into_iter()
        .zip(1..)
        .filter(|(vector, at)| vector["expect"] == "open" || at % 3 == 0);
    let vectors = chosen.map(|(vector, at)| {
        let context = if text(&vector, "context").is_empty() {
            0
        } else {
            2
        };
        Seed::new(
            format!("vector-{at:03}"),
            &[context, 0, 0],
            bytes_of(&vector),
        )
    });
    let own = (0..6).flat_map(|own| {
        [
            Seed::new(format!("own-{own}"), &[1, own, 0], []),
            Seed::new(format!("changed-{own}"), &[1, own, 1, 0, 60, 1], []),
        ]
    });
    vectors.chain(own).collect()
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        &b"sw1:"[..],
        b"SW",
        b"SW\x01\x01",
        b"SW\x01\x03",
        b"sw1:AY",
        b"sw1:Aq",
        b"sw1:A7",
        b"sw1:BQ",
        b"sw1:Bg",
        &[0, 0, 0, 0],
        b"AAAAAA",
        b"=",
        b"-_",
    ])
}
