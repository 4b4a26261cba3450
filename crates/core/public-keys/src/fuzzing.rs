//! Entry point for fuzzing the parser of a text whose signature is checked.

use crate::{KeysError, PublicKeys};

/// Parses a text.
///
/// # Errors
/// [`KeysError`].
pub fn parse(text: &str) -> Result<PublicKeys, KeysError> {
    PublicKeys::parse(text)
}
