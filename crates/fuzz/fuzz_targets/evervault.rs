//! An Evervault string or file that was changed opens to nothing, or to what it held where the format binds no more.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use sealwire_crypto::evervault::{
    Datatype, FILE_HEADER_BYTES, FileHeader, FileOpener, Form, Legacy, Opener, Sealer, Tag, Value, inspect,
    inspect_file, looks_like, looks_like_file,
};
use sealwire_crypto::{AppId, AppKeys, Curve, KeyPair, KeyScope, KeyState, KeyVersion};

const TEXT: &str = "4111111111111111";

/// Keys of the process, two on each curve, and an honest string and file of each form.
struct World {
    keys: Arc<AppKeys>,
    strings: Vec<Vec<u8>>,
    files: Vec<Vec<u8>>,
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let version = |number, curve| KeyVersion::new(number, KeyState::Active, KeyPair::generate(curve).unwrap());
    let versions = [1, 2].into_iter().flat_map(|number| Curve::ALL.map(|curve| version(number, curve))).collect();
    let keys = Arc::new(AppKeys::new(AppId::new("fuzz").unwrap(), versions).unwrap());
    let (mut strings, mut files) = (Vec::new(), Vec::new());
    for recipient in keys.versions() {
        for form in [Form::Metadata { role: None, encrypted_at: 1_700_000_000 }, Form::Plain] {
            let mut sealer = Sealer::new(Arc::clone(recipient), KeyScope::Request, &form).unwrap();
            let (mut string, mut file) = (Vec::new(), Vec::new());
            sealer.seal(Datatype::String, TEXT, &mut string).unwrap();
            sealer.seal_file(TEXT.as_bytes(), &mut file).unwrap();
            strings.push(string);
            files.push(file);
        }
    }
    World { keys, strings, files }
});

fuzz_target!(|input: (u8, Vec<(u8, u8)>, bool, u8, &[u8])| {
    let (which, changes, mend, piece, bytes) = input;
    let World { keys, strings, files } = &*WORLD;
    let mut opener = Opener::new(keys, Legacy::Allowed);

    // Bytes from nowhere.
    assert!(opener.open(bytes).is_err() && opener.open_file(bytes).is_err());
    assert!(inspect(bytes).is_none() || looks_like(bytes));
    assert!(inspect_file(bytes).is_none() || looks_like_file(bytes));

    let which = usize::from(which) % strings.len();
    let string = changed(&strings[which], &changes);
    if let Ok(opened) = opener.open(&string) {
        let said = inspect(&string).expect("what opens can be inspected");
        assert!(opened.value == Value::Text(TEXT) && opened.role.is_none());
        // The sign of the ephemeral point is bound by nothing in two tags.
        assert!(string == strings[which] || matches!(said.tag, Tag::Rfvc | Tag::Untagged));
    }

    let mut file = changed(&files[which], &changes);
    if mend && let Some((body, checksum)) = file.split_last_chunk_mut::<4>() {
        *checksum = crc32fast::hash(body).to_le_bytes();
    }
    let whole = opener.open_file(&file).map(|opened| opened.content.to_vec());
    assert_eq!(whole.clone().ok(), in_pieces(keys, &file, usize::from(piece).max(1)));
    if let Ok(content) = whole {
        assert!(content == TEXT.as_bytes() && (file == files[which] || file[6] == 2));
    }
});

fn changed(honest: &[u8], changes: &[(u8, u8)]) -> Vec<u8> {
    let mut changed = honest.to_vec();
    for (at, xor) in changes {
        let at = usize::from(*at) % changed.len();
        changed[at] ^= xor;
    }
    changed
}

fn in_pieces(keys: &AppKeys, file: &[u8], piece: usize) -> Option<Vec<u8>> {
    let (header, rest) = file.split_first_chunk::<FILE_HEADER_BYTES>()?;
    let candidates = FileOpener::candidates(keys, &FileHeader::read(header)?, Legacy::Allowed).ok()?;
    candidates.into_iter().find_map(|mut opener| {
        let mut content = Vec::new();
        rest.chunks(piece).try_for_each(|chunk| opener.update(chunk, &mut content)).ok()?;
        opener.finish().ok().map(|()| content)
    })
}
