//! The methods and notifications that exist. What is not built is not listed.

use std::fmt;

/// A request's method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Replaces the leaves of a payload by envelopes.
    Encrypt,
    /// Opens every envelope in a payload.
    Decrypt,
    /// Opens every envelope in a payload and seals it again to the newest key.
    Rewrap,
    /// Says what one envelope states about itself, without opening it.
    Inspect,
    /// Says what this server is and what it accepts.
    Info,
    /// Answers while the server serves.
    Health,
}

impl Method {
    /// Every method, in the order of the contract's table.
    pub const ALL: [Self; 6] = [Self::Encrypt, Self::Decrypt, Self::Rewrap, Self::Inspect, Self::Info, Self::Health];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Rewrap => "rewrap",
            Self::Inspect => "inspect",
            Self::Info => "info",
            Self::Health => "health",
        }
    }

    /// Whether its params have a `payload`.
    pub const fn takes_document(self) -> bool {
        match self {
            Self::Encrypt | Self::Decrypt | Self::Rewrap => true,
            Self::Inspect | Self::Info | Self::Health => false,
        }
    }

    /// The method of that exact name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name().as_bytes() == name)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A notification: a message that gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notice {
    /// Caller to server, `[2, "cancel", [msgid]]`: stop that call.
    Cancel,
    /// Server to caller, `[2, "error", [{code, message}]]`: why the connection is about to close.
    Error,
}

impl Notice {
    /// Every notification, in the order of the contract's table.
    pub const ALL: [Self; 2] = [Self::Cancel, Self::Error];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Error => "error",
        }
    }

    /// The notification of that exact name.
    pub fn from_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|notice| notice.name().as_bytes() == name)
    }
}
