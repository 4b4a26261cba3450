//! Memory for bodies of a relay: within the shares of a connection and of a client.

use sealwire_service::memory;
pub use sealwire_service::memory::Budget;

use crate::error::Reason;

/// The budgets of a connection, of its client on all its connections, and of the process.
pub type Account = memory::Account<3>;

/// Memory that a body has reserved so far.
pub type Reservation = memory::Reservation<3>;

/// The settings of the shares, in the order of [`Account`].
const SHARES: [&str; 2] = [
    "limits.connection_memory_bytes",
    "limits.client_memory_bytes",
];

impl From<memory::GrowError> for Reason {
    fn from(error: memory::GrowError) -> Self {
        match error {
            memory::GrowError::Busy(exceeded) => Self::Busy(exceeded),
            memory::GrowError::TooLarge(share, bytes) => Self::TooLarge(
                SHARES.get(share).copied().unwrap_or("limits.memory_bytes"),
                bytes,
            ),
        }
    }
}
