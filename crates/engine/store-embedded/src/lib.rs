//! Stores in a local folder, for one process at a time.
//!
//! [`EmbeddedStore`] keeps control state, token rows and objects in an embedded database.
//! [`FileStore`] keeps control state in one file, and has no tokens or objects.

pub mod embedded;
mod file;
#[doc(hidden)]
pub mod fuzzing;

pub use embedded::EmbeddedStore;
pub use file::FileStore;
