//! Operations on the root key and its slots.

use sealwire_wire::control as wire;

use super::wrapper;

wrapper! {
    /// An operation on the store's root key and its slots, for
    /// [`Client::root`](crate::Client::root).
    ///
    /// ```no_run
    /// use sealwire_client::{Client, control::RootOperation};
    ///
    /// # async fn example(operator: Client) -> Result<(), sealwire_client::Error> {
    /// let state = operator.root(RootOperation::verify()).await?;
    /// for slot in state.roots.iter().flat_map(|root| &root.slots) {
    ///     println!("slot {} of {}: {:?}", slot.number, slot.provider, slot.unwraps);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    RootOperation
}

impl<'a> RootOperation<'a> {
    /// Describes the root key and its slots. Contacts no provider, and works while the store is
    /// sealed.
    pub fn status() -> Self {
        Self(wire::RootOperation::Status)
    }

    /// Creates the root key. The 1 to 8 providers get a slot each; `None` means all providers of
    /// the engine.
    pub fn init(providers: impl Into<Option<Vec<&'a str>>>) -> Self {
        Self(wire::RootOperation::Init {
            providers: providers.into(),
        })
    }

    /// Replaces the root key, or continues an unfinished rotation.
    pub fn rotate() -> Self {
        Self(wire::RootOperation::Rotate { abandon: false })
    }

    /// Removes the incoming root key of an unfinished rotation.
    pub fn abandon_rotation() -> Self {
        Self(wire::RootOperation::Rotate { abandon: true })
    }

    /// Seals the store.
    pub fn seal() -> Self {
        Self(wire::RootOperation::Seal)
    }

    /// Unseals the store.
    pub fn unseal() -> Self {
        Self(wire::RootOperation::Unseal)
    }

    /// Adds a slot of this provider.
    pub fn add_slot(provider: &'a str) -> Self {
        Self(wire::RootOperation::AddSlot { provider })
    }

    /// Removes the slot with this number.
    pub fn remove_slot(slot: u32) -> Self {
        Self(wire::RootOperation::RemoveSlot { slot })
    }

    /// Unwraps every slot, and records the time of the test in the slots that unwrap.
    pub fn verify() -> Self {
        Self(wire::RootOperation::Verify)
    }

    /// Replaces every slot by a new wrapped copy of the root key.
    pub fn rotate_slots() -> Self {
        Self(wire::RootOperation::RotateSlots)
    }

    /// Returns true if the operation can be retried without harm. `Verify` only records the time of
    /// the last successful test.
    pub(crate) fn can_be_retried(&self) -> bool {
        matches!(
            self.0,
            wire::RootOperation::Status | wire::RootOperation::Verify
        )
    }
}
