//! Readiness for requests: a phase and a set of failing conditions, both atomics.
//!
//! Writers say what they know when they learn it; a reader takes two loads and asks nobody.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Where in its life the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not listening yet.
    Starting = 0,
    /// Takes calls.
    Ready = 1,
    /// Finishes what runs and takes nothing new.
    Draining = 2,
}

/// Something the engine needs to answer well. Each fails and recovers on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The store of apps and keys does not answer.
    Store = 0,
    /// The key-encryption key is not there, or does not open the app keys.
    KeyEncryptionKey = 1,
    /// The server certificate has ended.
    Certificate = 2,
    /// The audit trail cannot be written.
    Audit = 3,
    /// The control state is not what holders of the root key wrote last, or an older one was put back.
    ControlState = 4,
    /// The store is sealed, and this engine holds no keys.
    Sealed = 5,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 6] =
        [Self::Store, Self::KeyEncryptionKey, Self::Certificate, Self::Audit, Self::ControlState, Self::Sealed];

    /// Its name in `/ready`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::KeyEncryptionKey => "key-encryption key",
            Self::Certificate => "server certificate",
            Self::Audit => "audit trail",
            Self::ControlState => "control state",
            Self::Sealed => "sealed",
        }
    }

    /// Its name in `/metrics`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::KeyEncryptionKey => "key_encryption_key",
            Self::Certificate => "server_certificate",
            Self::Audit => "audit_trail",
            Self::ControlState => "control_state",
            Self::Sealed => "sealed",
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The readiness of one engine. Begins as [`Phase::Starting`] with nothing failing.
#[derive(Debug, Default)]
pub struct Readiness {
    phase: AtomicU8,
    failing: AtomicU32,
}

impl Readiness {
    /// Enters a phase. Draining is final: a late `Ready` from a slow start must not call the traffic back.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// The phase it is in.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// Notes that a condition fails, or that it holds again.
    pub fn set(&self, condition: Condition, holds: bool) {
        if holds {
            self.failing.fetch_and(!condition.bit(), Ordering::Relaxed);
        } else {
            self.failing.fetch_or(condition.bit(), Ordering::Relaxed);
        }
    }

    /// Returns true if a condition fails.
    pub fn is_failing(&self, condition: Condition) -> bool {
        self.failing.load(Ordering::Relaxed) & condition.bit() != 0
    }

    /// Why calls should go elsewhere; `None` when they are welcome.
    pub fn refusal(&self) -> Option<String> {
        match self.phase() {
            Phase::Starting => return Some("starting".into()),
            Phase::Draining => return Some("draining".into()),
            Phase::Ready => {}
        }
        let failing = Condition::ALL.iter().filter(|condition| self.is_failing(**condition));
        let names: Vec<_> = failing.map(|condition| condition.name()).collect();
        (!names.is_empty()).then(|| format!("failing: {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_means_the_phase_and_every_condition() {
        let readiness = Readiness::default();
        let refusal = |expected: Option<&str>| assert_eq!(readiness.refusal().as_deref(), expected);
        refusal(Some("starting"));
        readiness.set(Condition::Store, false);
        refusal(Some("starting"));
        readiness.enter(Phase::Ready);
        refusal(Some("failing: store"));
        readiness.set(Condition::Certificate, false);
        refusal(Some("failing: store, server certificate"));
        readiness.set(Condition::Store, true);
        readiness.set(Condition::Certificate, true);
        refusal(None);
        readiness.enter(Phase::Draining);
        refusal(Some("draining"));
    }

    #[test]
    fn draining_is_final() {
        let readiness = Readiness::default();
        readiness.enter(Phase::Draining);
        readiness.enter(Phase::Ready);
        assert_eq!(readiness.phase(), Phase::Draining);
    }

    #[test]
    fn every_condition_has_a_bit_of_its_own() {
        let bits: u32 = Condition::ALL.iter().map(|condition| condition.bit()).sum();
        assert_eq!(bits.count_ones() as usize, Condition::ALL.len());
    }

    #[test]
    fn a_condition_is_called_alike_in_metrics() {
        for condition in Condition::ALL {
            assert_eq!(condition.label(), condition.name().replace([' ', '-'], "_"));
        }
    }
}
