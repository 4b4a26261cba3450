//! Properties of every file, whole and in pieces.

use proptest::prelude::*;

use super::super::file::TRAILER_BYTES;
use super::*;
use crate::{CannotOpen, KeyScope};

const VERSIONS: [FileVersion; 4] = [
    FileVersion::V2,
    FileVersion::V3,
    FileVersion::V4,
    FileVersion::V5,
];

fn forge(version: FileVersion, content: &[u8]) -> Vec<u8> {
    let forge = Forge {
        app: [0x11; 32],
        ephemeral: [0x22; 32],
        iv: IV,
        kdf: version.scheme().kdf,
    };
    let map = metadata(Some("card-number"));
    forge.file(version, version.is_legacy().then_some(&map[2..]), content)
}

fn whole(keys: &Arc<AppKeys>, legacy: Legacy, file: &[u8]) -> Option<(Vec<u8>, Option<String>)> {
    let mut opener = Opener::new(keys, legacy);
    let opened = opener.open_file(file).ok()?;
    Some((opened.content.to_vec(), opened.role.map(Into::into)))
}

/// The way a caller is meant to go: each candidate from the start, until one finishes.
fn pieces(
    keys: &AppKeys,
    legacy: Legacy,
    file: &[u8],
    piece: usize,
) -> Option<(Vec<u8>, Option<String>)> {
    let (header, rest) = FileHeader::split(file)?;
    for mut opener in FileOpener::candidates(keys, &header, legacy).ok()? {
        let mut out = Vec::new();
        if rest
            .chunks(piece.max(1))
            .all(|chunk| opener.update(chunk, &mut out).is_ok())
        {
            let role = opener.role().map(Into::into);
            if opener.finish().is_ok() {
                return Some((out, role));
            }
        }
    }
    None
}

#[test]
fn file_versions_open_whole_and_in_pieces() {
    let keys = app([0x11; 32]);
    for version in VERSIONS {
        for content in [&b""[..], b"hello", &[7; 100_000]] {
            let file = forge(version, content);
            assert!(looks_like_file(&file));
            let expected = (
                content.to_vec(),
                version.is_legacy().then(|| "card-number".to_owned()),
            );
            let step = if content.len() > 100 { 4096 } else { 1 };
            for piece in [step, 19, 20, 21, 1000, usize::MAX] {
                assert_eq!(
                    pieces(&keys, Legacy::Allowed, &file, piece),
                    Some(expected.clone()),
                    "{piece}"
                );
            }
            assert_eq!(whole(&keys, Legacy::Allowed, &file), Some(expected));
            for opened in [
                whole(&keys, Legacy::Refused, &file),
                pieces(&keys, Legacy::Refused, &file, 64),
            ] {
                assert_eq!(opened.is_none(), version.is_legacy());
            }
            let other = app([0x12; 32]);
            assert_eq!(whole(&other, Legacy::Allowed, &file), None);
            assert_eq!(pieces(&other, Legacy::Allowed, &file, 64), None);
        }
    }
}

/// A new checksum is anyone's to make, so damage is tried with one. The sign of version 2's
/// ephemeral key is the known exception.
#[test]
fn a_file_with_any_bit_changed_does_not_open() {
    let keys = app([0x11; 32]);
    let mut signs = 0;
    for version in VERSIONS {
        let file = forge(version, b"hello");
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut altered = file.clone();
                altered[at] ^= 1 << bit;
                let repaired = checksummed(altered[..altered.len() - 4].to_vec());
                for altered in [&altered, &repaired] {
                    let sign =
                        version == FileVersion::V2 && (at, bit) == (9, 0) && *altered == repaired;
                    let changed = *altered != file;
                    assert_eq!(
                        whole(&keys, Legacy::Allowed, altered).is_some(),
                        sign || !changed,
                        "{version:?} {at}"
                    );
                    assert_eq!(
                        pieces(&keys, Legacy::Allowed, altered, 7).is_some(),
                        sign || !changed,
                        "{version:?} {at}"
                    );
                    signs += usize::from(sign);
                }
            }
        }
        for length in 0..file.len() {
            let cut = &file[..length];
            assert_eq!(whole(&keys, Legacy::Allowed, cut), None);
            assert_eq!(pieces(&keys, Legacy::Allowed, cut, 7), None);
            let cut = checksummed(cut.to_vec());
            let is_whole = cut == file;
            assert_eq!(whole(&keys, Legacy::Allowed, &cut).is_some(), is_whole);
            assert_eq!(pieces(&keys, Legacy::Allowed, &cut, 7).is_some(), is_whole);
        }
    }
    assert_eq!(signs, 1);
}

#[test]
fn lengths_and_flags_that_disagree_are_refused() {
    let keys = app([0x11; 32]);
    for (version, at, byte) in [
        (FileVersion::V2, 7, 56),
        (FileVersion::V3, 7, 0),
        (FileVersion::V3, 54, 1),
        (FileVersion::V3, 54, 2),
        (FileVersion::V4, 7, 57),
        (FileVersion::V5, 55, 1),
        (FileVersion::V5, 55, 0),
    ] {
        let mut file = forge(version, b"hello");
        file.truncate(file.len() - 4);
        file[at] = byte;
        let file = checksummed(file);
        assert_eq!(
            whole(&keys, Legacy::Allowed, &file),
            None,
            "{version:?} {at}"
        );
        assert_eq!(
            pieces(&keys, Legacy::Allowed, &file, 64),
            None,
            "{version:?} {at}"
        );
    }
    let mut debug = forge(FileVersion::V3, b"hello");
    debug[54] = 1;
    assert!(FileHeader::split(&debug).unwrap().0.is_debug);
}

/// The published clients on secp256k1 keep the derivation of their first call, for files too.
#[test]
fn mixed_derivations_open_on_secp256k1_only() {
    let keys = app([0x11; 32]);
    for (version, expected) in [(FileVersion::V2, true), (FileVersion::V3, false)] {
        let forge = Forge {
            app: [0x11; 32],
            ephemeral: [0x22; 32],
            iv: IV,
            kdf: version.scheme().kdf.other(),
        };
        let file = forge.file(version, None, b"hello");
        assert_eq!(whole(&keys, Legacy::Refused, &file).is_some(), expected);
        assert_eq!(
            pieces(&keys, Legacy::Refused, &file, 64).is_some(),
            expected
        );
    }
}

/// A string with the header and checksum of a file around its parts.
fn as_file(string: &str, version: FileVersion) -> Vec<u8> {
    let mut parts = string
        .trim_end_matches(":$")
        .rsplit(':')
        .map(|part| STANDARD_NO_PAD.decode(part).unwrap());
    let mut next = || parts.next().unwrap();
    let (sealed, ephemeral, iv) = (next(), next(), next());
    let header = FileHeader::write(
        version,
        &ephemeral.try_into().unwrap(),
        iv.try_into().unwrap(),
    );
    checksummed([&header[..], &sealed].concat())
}

/// A `TENZ` string and a version 3 file have the same key and additional data, and a file's content
/// need not be text.
#[test]
fn a_role_cannot_be_shed_by_making_a_string_a_file() {
    let keys = app([0x11; 32]);
    for role in [
        None,
        Some("a"),
        Some("card-number"),
        Some("aaaaaaaaaaaaaaaaaaaa"),
    ] {
        for text in ["", "4242424242424242", &"x".repeat(100_000)] {
            let payload = payload(Tag::Tenz, role, text);
            let string = forge_for(Tag::Tenz).string(Tag::Tenz, Datatype::String, &payload);
            let file = as_file(&string, FileVersion::V3);
            let with_role = Some((payload, role.map(Into::into)));
            assert_eq!(whole(&keys, Legacy::Refused, &file), None);
            assert_eq!(whole(&keys, Legacy::Allowed, &file), with_role);
            let step = if text.len() > 100 { 4096 } else { 1 };
            for piece in [step, 17, 21, usize::MAX] {
                assert_eq!(
                    pieces(&keys, Legacy::Refused, &file, piece),
                    None,
                    "{piece}"
                );
                assert_eq!(
                    pieces(&keys, Legacy::Allowed, &file, piece),
                    with_role,
                    "{piece}"
                );
            }
        }
    }
}

/// Strings without metadata have no role to lose: as a file they hold their text.
#[test]
fn a_string_without_metadata_is_a_file_too() {
    let keys = app([0x11; 32]);
    for (tag, version) in [
        (Tag::Tk9d, FileVersion::V3),
        (Tag::Rfvc, FileVersion::V2),
        (Tag::Untagged, FileVersion::V2),
    ] {
        let file = as_file(
            &forge_for(tag).string(tag, Datatype::String, b"hello"),
            version,
        );
        assert_eq!(
            whole(&keys, Legacy::Refused, &file),
            Some((b"hello".to_vec(), None)),
            "{tag:?}"
        );
    }
    for (tag, version) in [
        (Tag::T1jl, FileVersion::V3),
        (Tag::Qljv, FileVersion::V2),
        (Tag::Qktc, FileVersion::V3),
    ] {
        let file = as_file(
            &forge_for(tag).string(tag, Datatype::String, &payload(tag, None, "hello")),
            version,
        );
        assert_eq!(whole(&keys, Legacy::Allowed, &file), None, "{tag:?}");
    }
}

/// Some Android clients write this. Content that only resembles it is content.
#[test]
fn unmarked_metadata_needs_the_legacy_switch_and_keeps_its_role() {
    let keys = app([0x11; 32]);
    let some = Some::<Option<&str>>;
    for version in [FileVersion::V2, FileVersion::V3] {
        for (map, refused, allowed) in [
            (&b"\x81\xa2dr\xa3pan"[..], None, some(Some("pan"))),
            (b"\x81\xa2eo\x05", None, some(None)),
            (b"\x81\xa2et\xce\x65\x53\xf1\x00", None, some(None)),
            (b"\x82\xa1x\x01\xa2dr\xa3pan", None, some(Some("pan"))),
            (b"\xde\x00\x01\xa2dr\xd9\x03pan", None, some(Some("pan"))),
            // A role there is, and nobody can say which.
            (b"\x82\xa2dr\xa3pan\xa2dr\xa3ban", None, None),
            (b"\x81\xa2dr\xc0", None, None),
            (b"\x81\xa2dr\xa1\xff", None, None),
            (b"\x81\xa2dr\xa3pan\xc0", some(None), some(None)),
            (b"\x82\xa2dr\xa3pan", some(None), some(None)),
            (b"", some(None), some(None)),
            (b"\x80", some(None), some(None)),
            (b"\x81\xa1x\x01", some(None), some(None)),
            (b"\x92\xa2dr\xa3pan", some(None), some(None)),
            (b"\xa2dr\xa3pan", some(None), some(None)),
        ] {
            let content = [
                &u16::try_from(map.len()).unwrap().to_le_bytes()[..],
                map,
                b"\x89PNG",
            ]
            .concat();
            let file = forge(version, &content);
            for (legacy, role) in [(Legacy::Refused, refused), (Legacy::Allowed, allowed)] {
                let expected = role.map(|role| (content.clone(), role.map(Into::into)));
                assert_eq!(whole(&keys, legacy, &file), expected, "{map:02x?}");
                for piece in [1, 2, 3, 21, 1000] {
                    assert_eq!(
                        pieces(&keys, legacy, &file, piece),
                        expected,
                        "{map:02x?} {piece}"
                    );
                }
            }
            // The writer rejects what the reader would not open.
            let recipient = newest(&keys, version.curve());
            let expected = if refused.is_some() {
                Ok(())
            } else {
                Err(FileError::Ambiguous)
            };
            let mut sealer =
                Sealer::new(recipient.clone(), KeyScope::Request, &with_metadata(None)).unwrap();
            let mut out = b"before".to_vec();
            assert_eq!(sealer.seal_file(&content, &mut out), expected, "{map:02x?}");
            assert_eq!(out == b"before", expected.is_err());
            for piece in [1, 3, 1000] {
                let (mut sealer, _) = FileSealer::new(&recipient).unwrap();
                let sealed = content
                    .clone()
                    .chunks_mut(piece)
                    .try_for_each(|chunk| sealer.update(chunk));
                assert_eq!(sealed, expected, "{map:02x?} {piece}");
            }
        }
        for content in [
            &b""[..],
            b"\x0b",
            b"\x0b\x00",
            b"\x0b\x00\x81\xa2dr\xa3pa",
            b"\xff\xff\x81\xa2dr\xa3pan",
        ] {
            let expected = Some((content.to_vec(), None));
            assert_eq!(
                whole(&keys, Legacy::Refused, &forge(version, content)),
                expected
            );
            assert_eq!(
                pieces(&keys, Legacy::Refused, &forge(version, content), 1),
                expected
            );
        }
    }
}

/// A weakness of the format that no reader can close: the role of version 5 is not bound to the
/// content. It is why version 5 is legacy, and why roles are not written into files.
#[test]
fn a_version_5_file_can_be_rebuilt_without_its_role() {
    let keys = app([0x11; 32]);
    let file = forge(FileVersion::V5, b"hello");
    let content_at = usize::from(u16::from_le_bytes([file[7], file[8]]));
    let mut rebuilt = file[..FILE_HEADER_BYTES].to_vec();
    rebuilt[6] = 3;
    rebuilt[7..9].copy_from_slice(&[55, 0]);
    rebuilt.extend_from_slice(&file[content_at..file.len() - 4]);
    assert_eq!(
        whole(&keys, Legacy::Refused, &checksummed(rebuilt)),
        Some((b"hello".to_vec(), None))
    );
}

#[test]
fn files_take_no_role_and_have_a_limit() {
    let keys = app([0x11; 32]);
    let recipient = newest(&keys, Curve::P256);
    let mut out = b"before".to_vec();
    let mut sealer = Sealer::new(
        recipient.clone(),
        KeyScope::Request,
        &with_metadata(Some("pan")),
    )
    .unwrap();
    assert_eq!(sealer.seal_file(b"x", &mut out), Err(FileError::Role));
    let mut sealer =
        Sealer::new(recipient.clone(), KeyScope::Request, &with_metadata(None)).unwrap();
    let most = usize::try_from(FILE_BYTES_MAX).unwrap();
    let mut content = vec![0; most + 1];
    assert_eq!(
        sealer.seal_file(&content, &mut out),
        Err(FileError::TooLong)
    );
    assert_eq!(out, b"before");
    assert_eq!(sealer.seal_file(&content[..most], &mut out), Ok(()));
    assert_eq!(out.len(), 6 + sealer.sealed_file_bytes(most));
    let (mut sealer, _) = FileSealer::new(&recipient).unwrap();
    assert_eq!(sealer.update(&mut content[..most]), Ok(()));
    assert_eq!(sealer.update(&mut content[..1]), Err(FileError::TooLong));
}

#[test]
fn active_key_versions_open_files() {
    for curve in Curve::ALL {
        let version = |number: u32| {
            KeyVersion::new(
                number,
                KeyState::Active,
                KeyPair::from_scalar(curve, &[number as u8; 32]).unwrap(),
            )
        };
        let keys =
            AppKeys::new(AppId::new("shop").unwrap(), (1..4).map(version).collect()).unwrap();
        let keys = Arc::new(keys);
        for number in 1u8..5 {
            let (mut sealer, header) = FileSealer::new(&newest(&app([number; 32]), curve)).unwrap();
            let mut content = *b"some content";
            sealer.update(&mut content).unwrap();
            let file = [&header[..], &content, &sealer.finish().unwrap()].concat();
            let expected = (number < 4).then(|| (b"some content".to_vec(), None));
            assert_eq!(whole(&keys, Legacy::Refused, &file), expected);
            assert_eq!(pieces(&keys, Legacy::Refused, &file, 5), expected);
        }
    }
}

proptest! {
    #[test]
    fn sealed_files_survive_opening(content: Vec<u8>, curve in 0usize..2, piece in 1usize..200) {
        let keys = app([0x11; 32]);
        let recipient = newest(&keys, Curve::ALL[curve]);
        let (mut sealer, header) = FileSealer::new(&recipient).unwrap();
        let mut sealed = content.clone();
        for chunk in sealed.chunks_mut(piece) {
            sealer.update(chunk).unwrap();
        }
        let in_pieces = [&header[..], &sealed, &sealer.finish().unwrap()].concat();
        let mut at_once = Vec::new();
        let mut sealer = Sealer::new(recipient, KeyScope::Request, &with_metadata(None)).unwrap();
        sealer.seal_file(&content, &mut at_once).unwrap();
        prop_assert_eq!(in_pieces.len(), FILE_HEADER_BYTES + content.len() + TRAILER_BYTES);
        for file in [in_pieces, at_once] {
            let expected = Some((content.clone(), None));
            prop_assert_eq!(whole(&keys, Legacy::Refused, &file), expected.clone());
            prop_assert_eq!(pieces(&keys, Legacy::Refused, &file, piece), expected);
        }
    }

    #[test]
    fn arbitrary_bytes_never_open_and_never_panic(bytes: Vec<u8>, version in 0usize..4, at in 0usize..120) {
        let keys = app([0x11; 32]);
        let mut spliced = forge(VERSIONS[version], b"hello");
        let length = spliced.len();
        spliced.splice(at.min(length).., bytes.clone());
        for file in [bytes, spliced] {
            if file != forge(VERSIONS[version], b"hello") {
                prop_assert_eq!(Opener::new(&keys, Legacy::Allowed).open_file(&file).err(), Some(CannotOpen));
                prop_assert_eq!(pieces(&keys, Legacy::Allowed, &file, 16), None);
            }
        }
    }
}
