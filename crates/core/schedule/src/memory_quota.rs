//! A memory budget shared between tenants without a fixed number of tenants.
//!
//! Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
//! packet switches", 1998): a tenant can hold at most alpha times the free memory. With alpha = 1,
//! a single tenant gets at most 1/2 of the memory, and each of n tenants at most 1/(n + 1). The
//! rest stays free for a new tenant.

/// The memory for requests of all tenants: its size and the bytes in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryQuota {
    max: u64,
    used: u64,
    /// Maximum ratio of a tenant's memory to the free memory.
    alpha: f64,
}

impl MemoryQuota {
    pub(crate) fn new(max: u64, alpha: f64) -> Self {
        Self {
            max,
            used: 0,
            alpha,
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Reserves `more` bytes for a tenant that holds `held` bytes. Returns false and changes
    /// nothing if the tenant would exceed its share, which is alpha times the memory that then is
    /// free.
    pub(crate) fn try_reserve(&mut self, held: u64, more: u64) -> bool {
        let Some(free) = self
            .max
            .checked_sub(self.used)
            .and_then(|free| free.checked_sub(more))
        else {
            return false;
        };
        let fits = held.saturating_add(more) as f64 <= self.alpha * free as f64;
        if fits {
            self.used += more;
        }
        fits
    }

    pub(crate) fn release(&mut self, bytes: u64) {
        self.used -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of each tenant if all reserve single bytes of 1,200 by turns, until none
    /// can.
    fn shares(tenants: usize, alpha: f64) -> Vec<u64> {
        let mut memory = MemoryQuota::new(1_200, alpha);
        let mut held = vec![0; tenants];
        while held
            .iter_mut()
            .filter(|held| memory.try_reserve(**held, 1))
            .map(|held| *held += 1)
            .count()
            > 0
        {}
        assert_eq!(memory.used(), held.iter().sum());
        held
    }

    #[test]
    fn n_tenants_get_one_part_of_n_plus_one_each() {
        for (tenants, share) in [(1, 600), (2, 400), (3, 300), (11, 100)] {
            assert!(
                shares(tenants, 1.0)
                    .iter()
                    .all(|held| held.abs_diff(share) <= 1),
                "{tenants} tenants"
            );
        }
    }

    #[test]
    fn alpha_without_limit_gives_the_first_tenant_all() {
        assert_eq!(shares(1, 1e9), [1_199]);
    }

    #[test]
    fn failed_reservation_changes_nothing() {
        let mut memory = MemoryQuota::new(100, 1.0);
        for (held, more, fits) in [
            (0, 51, false),
            (0, u64::MAX, false),
            (0, 50, true),
            (50, 1, false),
            (0, 25, true),
        ] {
            assert_eq!(
                memory.try_reserve(held, more),
                fits,
                "{more} more than {held}"
            );
        }
        memory.release(75);
        assert_eq!(memory.used(), 0);
    }
}
