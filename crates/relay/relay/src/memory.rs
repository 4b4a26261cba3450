//! Memory for bodies. An exchange reserves memory as bytes arrive, within the shares of its
//! connection and of its client.
//!
//! A client must leave free a part of the memory that other clients do not use (see
//! [`leaves_enough_for_others`]). A body that is larger than a whole share is rejected as too
//! large. A `Content-Length` reserves nothing: memory is reserved when bytes arrive, and for the
//! decoder. The unit of 4 KiB is small compared with a body.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Reason;
use crate::shares::leaves_enough_for_others;

/// Unit of the semaphores in bytes. On 32-bit machines a semaphore has at most 2^29 permits, which
/// would limit a budget to 512 MiB if a permit were one byte.
const UNIT: usize = 4 << 10;

/// A bounded amount of memory.
#[derive(Clone, Debug)]
pub struct Budget {
    units: Arc<Semaphore>,
    /// Number of all units.
    total: usize,
    /// Detail of [`Reason::Busy`] if the budget is used up, or if the client must leave the rest to
    /// other clients.
    exceeded: &'static str,
}

impl Budget {
    /// Creates a budget of `bytes` bytes.
    pub fn new(bytes: usize, exceeded: &'static str) -> Self {
        Self::with_semaphore(
            Arc::new(Semaphore::new(Self::count_units(bytes))),
            bytes,
            exceeded,
        )
    }

    /// Creates a budget of `bytes` bytes over a semaphore that other budgets share. The semaphore
    /// must have been created with [`Budget::count_units`] of `bytes`.
    pub fn with_semaphore(units: Arc<Semaphore>, bytes: usize, exceeded: &'static str) -> Self {
        Self {
            units,
            total: Self::count_units(bytes),
            exceeded,
        }
    }

    /// Returns the number of units of a budget of `bytes` bytes, rounded down, at least 1.
    pub fn count_units(bytes: usize) -> usize {
        (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS)
    }

    /// Returns the number of reserved bytes. `bytes` must be the size with which the budget was
    /// created.
    pub fn used_bytes(&self, bytes: usize) -> usize {
        (Self::count_units(bytes) - self.units.available_permits()) * UNIT
    }

    fn used_units(&self) -> usize {
        self.total.saturating_sub(self.units.available_permits())
    }

    fn take_units(&self, units: u32) -> Result<OwnedSemaphorePermit, Reason> {
        let permit = Arc::clone(&self.units).try_acquire_many_owned(units);
        permit.map_err(|_| Reason::Busy(self.exceeded))
    }
}

/// The budgets from which an exchange reserves memory.
#[derive(Clone, Debug)]
pub struct Account {
    /// The budgets of the connection, of the client on all its connections, and of the process.
    pub budgets: [Budget; 3],
}

impl Account {
    /// Creates an empty reservation.
    pub const fn new_reservation(self) -> Reservation {
        Reservation {
            account: self,
            units: 0,
            permits: None,
        }
    }
}

/// Memory that a body has reserved so far. Dropping it releases the memory.
#[derive(Debug)]
pub struct Reservation {
    account: Account,
    units: usize,
    permits: Option<[OwnedSemaphorePermit; 3]>,
}

impl Reservation {
    /// Raises the reservation to at least `bytes`. A larger reservation does not change.
    ///
    /// # Errors
    /// [`Reason::TooLarge`] if the share of the connection or of the client is smaller than
    /// `bytes`. [`Reason::Busy`] with the budget that is used up, or with the client's budget if
    /// the client would not leave enough for others. In each case, the reservation does not change.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), Reason> {
        let units = bytes.div_ceil(UNIT);
        if units <= self.units {
            return Ok(());
        }
        let more = u32::try_from(units - self.units).unwrap_or(u32::MAX);
        let [connection, client, process] = &self.account.budgets;
        for (share, limit) in [
            (connection, "limits.connection_memory_bytes"),
            (client, "limits.client_memory_bytes"),
        ] {
            if units > share.total {
                return Err(Reason::TooLarge(limit, (share.total * UNIT) as u64));
            }
        }

        let taken = [
            connection.take_units(more)?,
            client.take_units(more)?,
            process.take_units(more)?,
        ];

        let used = client.used_units();
        let left = process.units.available_permits() + used;
        if !leaves_enough_for_others(used, left, client.total, process.total) {
            return Err(Reason::Busy(client.exceeded));
        }
        self.units = units;
        match &mut self.permits {
            Some(permits) => permits
                .iter_mut()
                .zip(taken)
                .for_each(|(permit, more)| permit.merge(more)),
            None => self.permits = Some(taken),
        }
        Ok(())
    }

    /// Releases memory until at most `bytes`, rounded up to a unit, are reserved.
    pub fn shrink_to(&mut self, bytes: usize) {
        let units = bytes.div_ceil(UNIT);
        let Some(surplus) = self.units.checked_sub(units).filter(|surplus| *surplus > 0) else {
            return;
        };
        self.units = units;
        for permit in self.permits.iter_mut().flatten() {
            drop(permit.split(surplus));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    /// An account of a connection with 64 KiB, of a client with 128 KiB, in a process with 256 KiB.
    fn account(client: &Budget, process: &Budget) -> Account {
        Account {
            budgets: [
                Budget::new(64 * KIB, "connection"),
                client.clone(),
                process.clone(),
            ],
        }
    }

    #[test]
    fn memory_is_taken_as_it_is_used_and_within_every_share() {
        let process = Budget::new(256 * KIB, "process");
        let clients = [
            Budget::new(128 * KIB, "client"),
            Budget::new(128 * KIB, "client"),
        ];
        let connections: Vec<_> = [0, 0, 0, 1, 1, 1]
            .iter()
            .map(|at| account(&clients[*at], &process))
            .collect();
        let reserve = |connection: usize, bytes| {
            let mut reservation = connections[connection].clone().new_reservation();
            reservation.grow_to(bytes).map(|()| reservation)
        };
        let refused = |connection, bytes| match reserve(connection, bytes) {
            Err(Reason::Busy(share)) => share,
            other => panic!("{other:?}"),
        };

        // Nothing, and less than a unit.
        let nothing = connections[0].clone().new_reservation();
        assert_eq!(process.used_bytes(256 * KIB), 0);
        let mut first = reserve(0, 1).unwrap();
        assert_eq!(process.used_bytes(256 * KIB), 4 * KIB);
        first.grow_to(1).unwrap();
        first.grow_to(64 * KIB).unwrap();
        assert_eq!(process.used_bytes(256 * KIB), 64 * KIB);

        assert_eq!(refused(0, 1), "connection");
        let second = reserve(1, 64 * KIB).unwrap();
        assert_eq!(refused(2, 1), "client");
        // Memory of one client does not count for the other client.
        let third = [reserve(3, 64 * KIB).unwrap(), reserve(4, 32 * KIB).unwrap()];
        // The second client leaves a quarter of the memory that the first client leaves.
        assert_eq!(refused(5, 1), "client");
        assert_eq!(process.used_bytes(256 * KIB), 224 * KIB);

        // No share of a connection has so much.
        let too_large = reserve(5, 64 * KIB + 1).unwrap_err();
        assert_eq!(
            too_large,
            Reason::TooLarge("limits.connection_memory_bytes", 64 << 10)
        );
        // A failed growth takes nothing from the other shares, and keeps the memory that was
        // already reserved.
        assert!(first.grow_to(65 * KIB).is_err());
        drop((second, third, nothing));
        assert_eq!(process.used_bytes(256 * KIB), 64 * KIB);
        first.shrink_to(20 * KIB + 1);
        assert_eq!(process.used_bytes(256 * KIB), 24 * KIB);
        first.shrink_to(24 * KIB + 1);
        assert_eq!(process.used_bytes(256 * KIB), 24 * KIB);
        first.grow_to(28 * KIB).unwrap();
        assert_eq!(process.used_bytes(256 * KIB), 28 * KIB);
        first.shrink_to(0);
        assert_eq!(process.used_bytes(256 * KIB), 0);
        assert!(reserve(0, 64 * KIB).is_ok());
    }

    #[test]
    fn the_process_limits_what_clients_take_together() {
        let process = Budget::new(100 * KIB, "process");
        let clients = [
            Budget::new(128 * KIB, "client"),
            Budget::new(128 * KIB, "client"),
        ];
        let _first = {
            let mut reservation = account(&clients[0], &process).new_reservation();
            reservation.grow_to(64 * KIB).unwrap();
            reservation
        };
        let mut second = account(&clients[1], &process).new_reservation();
        assert_eq!(second.grow_to(64 * KIB), Err(Reason::Busy("process")));
        assert_eq!(second.grow_to(36 * KIB), Ok(()));
    }
}
