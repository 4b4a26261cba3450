//! Names of properties.

use std::fmt;
use std::str::FromStr;

use super::SchemaError;

/// Names a property: 1 to 40 of `a-z 0-9 _`, beginning with a letter, and no name of a built-in
/// field. Safe to log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PropertyName(Box<str>);

impl PropertyName {
    /// Longest name in bytes.
    pub const BYTES_MAX: usize = 40;

    /// Names of the built-in fields of objects.
    pub const RESERVED: [&str; 8] = [
        "id", "version", "created", "updated", "expires", "archived", "tags", "subject",
    ];

    /// Checks a name.
    ///
    /// # Errors
    /// [`SchemaError::InvalidName`] for another form, [`SchemaError::ReservedName`] for a built-in
    /// field.
    pub fn new(name: &str) -> Result<Self, SchemaError> {
        let is_valid = (1..=Self::BYTES_MAX).contains(&name.len())
            && name.starts_with(|char: char| char.is_ascii_lowercase())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
        if !is_valid {
            return Err(SchemaError::InvalidName);
        }
        if let Some(reserved) = Self::RESERVED
            .into_iter()
            .find(|reserved| *reserved == name)
        {
            return Err(SchemaError::ReservedName(reserved));
        }
        Ok(Self(name.into()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PropertyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for PropertyName {
    type Err = SchemaError;

    fn from_str(name: &str) -> Result<Self, SchemaError> {
        Self::new(name)
    }
}
