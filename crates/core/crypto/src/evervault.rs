//! Strings and files in the published Evervault format: read every tag, write the current ones.
//!
//! `proto/evervault.md` describes the format for its users. This module rejects debug strings, and
//! rejects legacy tags unless the client allows them. [`Sealer`] and [`FileSealer`] write,
//! [`Opener`] and [`FileOpener`] read. [`inspect`] reads a string's public metadata without a key.
//!
//! Important: only tags with metadata authenticate the datatype and the role. Under any other tag,
//! anyone can change the datatype of a string. The sign byte of the ephemeral key is not
//! authenticated there either, so the key is not a unique id.

mod derive;
mod file;
#[doc(hidden)]
pub mod fuzzing;
mod metadata;
mod number;
mod open;
mod ring;
mod seal;
mod stream;
mod text;

pub(crate) use derive::Kdf;
pub use file::{
    FILE_BYTES_MAX, FILE_HEADER_BYTES, FileError, FileHeader, FileInspection, FileVersion,
    inspect_file, looks_like_file,
};
pub use metadata::{InvalidRole, ORIGIN, Role};
pub use number::{Number, NumberText};
pub use open::{Legacy, Opened, OpenedFile, OpenedValue, Opener};
pub use seal::{Form, Sealer};
pub use stream::{FileOpener, FileSealer};
pub use text::{Datatype, Inspection, TEXT_BYTES_MAX, Tag, inspect, looks_like};

#[cfg(test)]
mod tests;
