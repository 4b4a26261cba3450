//! Memory as a budget with a share for each tenant that needs no count of tenants.
//!
//! Dynamic thresholds (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
//! packet switches", 1998): a tenant may hold as much as is left free, times alpha. With alpha = 1
//! one tenant gets at most a half, n tenants one part of n + 1 each, and there is always room for a
//! newcomer.

/// Bytes held for calls, over all tenants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    max: u64,
    used: u64,
    alpha: f64,
}

impl Memory {
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

    /// Takes `more` bytes for a tenant that holds `held`; `false`, and no change, when that is more
    /// than its share.
    pub(crate) fn take(&mut self, held: u64, more: u64) -> bool {
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

    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.used -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the bytes of each tenant when all take one of 1,200 bytes in turn for as long as any
    /// can.
    fn shares(tenants: usize, alpha: f64) -> Vec<u64> {
        let mut memory = Memory::new(1_200, alpha);
        let mut held = vec![0; tenants];
        while held
            .iter_mut()
            .filter(|held| memory.take(**held, 1))
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
    fn without_a_share_the_first_takes_all() {
        assert_eq!(shares(1, 1e9), [1_199]);
    }

    #[test]
    fn what_does_not_fit_changes_nothing() {
        let mut memory = Memory::new(100, 1.0);
        for (held, more, fits) in [
            (0, 51, false),
            (0, u64::MAX, false),
            (0, 50, true),
            (50, 1, false),
            (0, 25, true),
        ] {
            assert_eq!(memory.take(held, more), fits, "{more} more than {held}");
        }
        memory.give_back(75);
        assert_eq!(memory.used(), 0);
    }
}
