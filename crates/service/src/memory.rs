//! Memory for bodies. A request reserves memory as bytes arrive, within the share of its client.
//!
//! A client leaves a part of the memory that other clients do not use. A body that does not fit
//! into an empty share is too large. Announced lengths reserve nothing. The unit is small compared
//! with a body, so the reserved memory is about the bytes that were read plus the decoder's own
//! memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of the semaphores in bytes. A semaphore counts to 2^29 on 32-bit machines.
const UNIT: usize = 4 << 10;

/// A bounded amount of memory.
#[derive(Clone, Debug)]
pub struct Budget {
    units: Arc<Semaphore>,
    /// Number of all units.
    total: usize,
    /// Detail of the failure when the budget is in use, or the client must leave the rest to others.
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

    /// Wraps a semaphore that counts the units of a budget of `bytes` bytes.
    pub fn with_semaphore(units: Arc<Semaphore>, bytes: usize, exceeded: &'static str) -> Self {
        Self {
            units,
            total: Self::count_units(bytes),
            exceeded,
        }
    }

    /// Returns the number of units of a budget of `bytes` bytes.
    pub fn count_units(bytes: usize) -> usize {
        (bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS)
    }

    /// Returns the used bytes of a budget of `bytes`.
    pub fn used_bytes(&self, bytes: usize) -> usize {
        (Self::count_units(bytes) - self.units.available_permits()) * UNIT
    }

    fn used_units(&self) -> usize {
        self.total.saturating_sub(self.units.available_permits())
    }

    fn take_units(&self, units: u32) -> Result<OwnedSemaphorePermit, GrowError> {
        let permit = Arc::clone(&self.units).try_acquire_many_owned(units);
        permit.map_err(|_| GrowError::Busy(self.exceeded))
    }
}

/// The reason why a reservation does not grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrowError {
    /// Memory is in use, or must be left to other clients.
    Busy(&'static str),
    /// A share of this position and of this many bytes is smaller than the reservation.
    TooLarge(usize, u64),
}

/// The budgets from which a request reserves memory.
#[derive(Clone, Debug)]
pub struct Account<const N: usize> {
    /// The budgets in the order in which memory is taken. The last two are those of the client on
    /// all its connections, and of the process.
    pub budgets: [Budget; N],
}

impl<const N: usize> Account<N> {
    /// Creates an empty reservation.
    pub const fn new_reservation(self) -> Reservation<N> {
        Reservation {
            memory_account: self,
            units: 0,
            permits: Vec::new(),
        }
    }
}

/// Memory that a body has reserved so far. Dropping it releases the memory.
#[derive(Debug)]
pub struct Reservation<const N: usize> {
    memory_account: Account<N>,
    units: usize,
    /// The permits of each budget, or none.
    permits: Vec<OwnedSemaphorePermit>,
}

impl<const N: usize> Reservation<N> {
    /// Reserves memory until at least `bytes` are reserved. Memory that is already reserved stays.
    ///
    /// # Errors
    /// [`GrowError`]. Nothing more is reserved.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), GrowError> {
        let units = bytes.div_ceil(UNIT);
        if units <= self.units {
            return Ok(());
        }
        let more = u32::try_from(units - self.units).unwrap_or(u32::MAX);
        let [shares @ .., process] = &self.memory_account.budgets[..] else {
            return Ok(());
        };
        for (position, share) in shares.iter().enumerate() {
            if units > share.total {
                return Err(GrowError::TooLarge(position, (share.total * UNIT) as u64));
            }
        }

        let taken: Vec<_> = self
            .memory_account
            .budgets
            .iter()
            .map(|budget| budget.take_units(more))
            .collect::<Result<_, _>>()?;

        if let Some(client) = shares.last() {
            let used = client.used_units();
            let left = process.units.available_permits() + used;
            if !leaves_enough_for_others(used, left, client.total, process.total) {
                return Err(GrowError::Busy(client.exceeded));
            }
        }
        self.add(units, taken);
        Ok(())
    }

    fn add(&mut self, units: usize, taken: Vec<OwnedSemaphorePermit>) {
        self.units = units;
        if self.permits.is_empty() {
            self.permits = taken;
        } else {
            self.permits
                .iter_mut()
                .zip(taken)
                .for_each(|(permit, more)| permit.merge(more));
        }
    }

    /// Releases memory until at most `bytes`, rounded up to a unit, are reserved.
    pub fn shrink_to(&mut self, bytes: usize) {
        let units = bytes.div_ceil(UNIT);
        let Some(surplus) = self.units.checked_sub(units).filter(|surplus| *surplus > 0) else {
            return;
        };
        self.units = units;
        for permit in &mut self.permits {
            drop(permit.split(surplus));
        }
    }
}

/// Returns true if a client that uses `used` of `left` leaves enough for others. `left` is the part
/// of `total` that other clients do not use. The client must leave a quarter of it, or less if its
/// share of the total is larger. A client can always use one.
pub fn leaves_enough_for_others(used: usize, left: usize, share: usize, total: usize) -> bool {
    let share = share.max(total - total / 4);
    used <= 1 || used as u128 * total as u128 <= left as u128 * share as u128
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    /// An account of a connection with 64 KiB, of a client with 128 KiB, in a process with 256 KiB.
    fn account(client: &Budget, process: &Budget) -> Account<3> {
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
        let rejected = |connection, bytes| match reserve(connection, bytes) {
            Err(GrowError::Busy(share)) => share,
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

        assert_eq!(rejected(0, 1), "connection");
        let second = reserve(1, 64 * KIB).unwrap();
        assert_eq!(rejected(2, 1), "client");
        // Memory of one client does not count for the other client.
        let third = [reserve(3, 64 * KIB).unwrap(), reserve(4, 32 * KIB).unwrap()];
        // The second client leaves a quarter of the memory that the first client leaves.
        assert_eq!(rejected(5, 1), "client");
        assert_eq!(process.used_bytes(256 * KIB), 224 * KIB);

        // No share of a connection has so much.
        let too_large = reserve(5, 64 * KIB + 1).unwrap_err();
        assert_eq!(too_large, GrowError::TooLarge(0, 64 << 10));
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
    fn clients_leave_a_part_of_what_others_leave() {
        // Of 64, each of several clients gets three quarters of the rest while earlier clients keep
        // their permits.
        let mut free = 64;
        let mut used = Vec::new();
        for _ in 0..4 {
            let most = (1..=free)
                .take_while(|used| leaves_enough_for_others(*used, free, 48, 64))
                .last();
            used.extend(most);
            free -= most.unwrap_or(0);
        }
        assert_eq!(used, [48, 12, 3, 1]);
        // A small share is not smaller because others use theirs.
        assert!(leaves_enough_for_others(10, 14, 10, 64));
        assert!(!leaves_enough_for_others(10, 13, 10, 64));
        // The whole is for one client, where a proxy is the only one.
        assert!(leaves_enough_for_others(64, 64, 64, 64));
        assert!(!leaves_enough_for_others(65, 64, 64, 64));
    }

    #[test]
    fn process_limits_what_clients_take_together() {
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
        assert_eq!(second.grow_to(64 * KIB), Err(GrowError::Busy("process")));
        assert_eq!(second.grow_to(36 * KIB), Ok(()));
    }
}
