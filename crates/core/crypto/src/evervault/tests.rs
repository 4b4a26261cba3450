//! The worked examples, our own vectors, and the contract of sealing and opening.

mod contract;
mod examples;
mod files;
mod numbers;
mod vectors;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::derive::{Derived, Kdf};
use super::file::FileHeader;
use super::text::Aad;
use super::*;
use crate::aead::AeadKey;
use crate::{AppId, AppKeys, Curve, KeyPair, KeyState, KeyVersion, OpenKeyCache};

const IV: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11];
const TIME: u32 = 1_700_000_000;

/// An app whose newest key on either curve is this scalar.
fn app(scalar: [u8; 32]) -> Arc<AppKeys> {
    let version = |curve| {
        KeyVersion::new(
            1,
            KeyState::Active,
            KeyPair::from_scalar(curve, &scalar).unwrap(),
        )
    };
    Arc::new(AppKeys::new(AppId::new("shop").unwrap(), Curve::ALL.map(version).into()).unwrap())
}

fn newest(keys: &AppKeys, curve: Curve) -> Arc<KeyVersion> {
    keys.newest(curve).unwrap().clone()
}

/// Length and map in front of a text.
fn metadata(role: Option<&str>) -> Vec<u8> {
    let mut map = Vec::new();
    metadata::MetadataStamp {
        origin: ORIGIN,
        encrypted_at: TIME,
    }
    .encode(role, &mut map);
    map
}

fn with_metadata(role: Option<&str>) -> Form {
    Form::Metadata {
        role: role.map(|role| Role::new(role).unwrap()),
        encrypted_at: TIME,
    }
}

/// Makes a value from its parts, right or wrong, with nothing checked: what the writers cannot be
/// made to write.
#[derive(Clone)]
struct Forge {
    app: [u8; 32],
    ephemeral: [u8; 32],
    iv: [u8; 12],
    kdf: Kdf,
}

impl Forge {
    fn key(&self, curve: Curve) -> (AeadKey, KeyPair, KeyPair) {
        let (app, ephemeral) = (self.app, self.ephemeral);
        let [app, ephemeral] =
            [app, ephemeral].map(|scalar| KeyPair::from_scalar(curve, &scalar).unwrap());
        let derived = Derived::new(app.agree(ephemeral.public()).unwrap());
        let bytes = derived.key_bytes(self.kdf, curve, ephemeral.public().uncompressed());
        (AeadKey::new(&bytes).unwrap(), app, ephemeral)
    }

    fn string(&self, tag: Tag, datatype: Datatype, payload: &[u8]) -> String {
        let (key, app, ephemeral) = self.key(tag.curve());
        let aad = Aad::new(
            tag,
            datatype,
            ephemeral.public().compressed(),
            app.public().compressed(),
        );
        let mut sealed = payload.to_vec();
        key.seal(self.iv, aad.as_slice(), &mut sealed, 0).unwrap();
        let word = std::str::from_utf8(datatype.word()).unwrap();
        let [iv, point, sealed] = [&self.iv[..], ephemeral.public().compressed(), &sealed]
            .map(|part| STANDARD_NO_PAD.encode(part));
        let colon = if tag == Tag::Untagged { "" } else { ":" };
        format!("ev:{}{colon}{word}{iv}:{point}:{sealed}:$", tag.text())
    }

    fn file(&self, version: FileVersion, metadata: Option<&[u8]>, content: &[u8]) -> Vec<u8> {
        let (key, app, ephemeral) = self.key(version.curve());
        let mut file =
            FileHeader::write(version, ephemeral.public().compressed(), self.iv).to_vec();
        let seal = |plain: &[u8]| {
            let mut sealed = plain.to_vec();
            key.seal(
                self.iv,
                version.aad(app.public().compressed()),
                &mut sealed,
                0,
            )
            .unwrap();
            sealed
        };
        if let Some(metadata) = metadata {
            let sealed = seal(metadata);
            let length = u16::try_from(sealed.len()).unwrap();
            file[7..9].copy_from_slice(&(57 + length).to_le_bytes());
            file.extend_from_slice(&length.to_le_bytes());
            file.extend_from_slice(&sealed);
        }
        file.extend_from_slice(&seal(content));
        checksummed(file)
    }
}

/// A file's bytes with the checksum they need.
fn checksummed(mut file: Vec<u8>) -> Vec<u8> {
    file.extend_from_slice(&crc32fast::hash(&file).to_le_bytes());
    file
}

/// The derivation a tag stands for, and a payload under it.
fn forge_for(tag: Tag) -> Forge {
    Forge {
        app: [0x11; 32],
        ephemeral: [0x22; 32],
        iv: IV,
        kdf: tag.kdf(),
    }
}

fn payload(tag: Tag, role: Option<&str>, text: &str) -> Vec<u8> {
    let metadata = if tag.has_metadata() {
        metadata(role)
    } else {
        Vec::new()
    };
    [&metadata, text.as_bytes()].concat()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "odd hex");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
