//! Strings and files in the published Evervault format: read every tag, write the current ones.
//!
//! `proto/evervault.md` describes the format for its users. Refuses debug strings, and refuses legacy tags unless the
//! caller allows them. Writing is [`Sealer`] and [`FileSealer`], reading [`Opener`] and [`FileOpener`]; what a string
//! says without a key is [`inspect`].
//!
//! The fact a reader would get wrong: only the tags with metadata authenticate the datatype and the role. A string
//! under another tag can be given another datatype by anyone, and its ephemeral key's sign byte is not bound either,
//! so it is no unique id of anything.

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
    FILE_BYTES_MAX, FILE_HEADER_BYTES, FileError, FileHeader, FileInspection, FileVersion, inspect_file,
    looks_like_file,
};
pub use metadata::{InvalidRole, ORIGIN, Role};
pub use number::{Number, NumberText};
pub use open::{Legacy, Opened, OpenedFile, Opener, Value};
pub use seal::{Form, Sealer};
pub use stream::{FileOpener, FileSealer};
pub use text::{Datatype, Inspection, TEXT_BYTES_MAX, Tag, inspect, looks_like};

#[cfg(test)]
mod tests;
