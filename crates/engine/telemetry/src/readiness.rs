//! Readiness for requests: a phase and a set of failing conditions, both atomics.
//!
//! Writers say what they know when they learn it; a reader takes two loads and asks nobody.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use sealwire_service::metrics::Labels;

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
    /// The store has been unreadable for so long that the cached permissions of principals may no
    /// longer be used.
    Permissions = 1,
    /// The server certificate has ended.
    Certificate = 2,
    /// The audit trail cannot be written.
    Audit = 3,
    /// The control state is not what holders of the root key wrote last, or an older one was put
    /// back.
    ControlState = 4,
    /// The store is sealed, and this engine holds no keys.
    Sealed = 5,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 6] = [
        Self::Store,
        Self::Permissions,
        Self::Certificate,
        Self::Audit,
        Self::ControlState,
        Self::Sealed,
    ];

    /// Its name in `/ready`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Permissions => "permissions",
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
            Self::Permissions => "permissions",
            Self::Certificate => "server_certificate",
            Self::Audit => "audit_trail",
            Self::ControlState => "control_state",
            Self::Sealed => "sealed",
        }
    }

    /// Returns true if the engine serves requests that need no store while this condition fails: it
    /// keeps the last good control state.
    const fn allows_service_without_store(self) -> bool {
        match self {
            Self::Store | Self::ControlState => true,
            Self::Permissions | Self::Certificate | Self::Audit | Self::Sealed => false,
        }
    }

    const fn bit(self) -> u32 {
        1 << self as u32
    }
}

impl Labels for Condition {
    const NAMES: &'static [&'static str] = &["condition"];
    const COUNT: usize = Self::ALL.len();

    fn index(self) -> usize {
        self as usize
    }

    fn values(index: usize) -> Vec<&'static str> {
        vec![Self::ALL[index].label()]
    }
}

/// The readiness of one engine. Begins as [`Phase::Starting`] with nothing failing.
#[derive(Debug, Default)]
pub struct Readiness {
    phase: AtomicU8,
    failing: AtomicU32,
}

impl Readiness {
    /// Enters a phase. Draining is final: a late `Ready` from a slow start must not call the
    /// traffic back.
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

    /// Returns the state for `/ready` and `/ready/store`.
    pub fn state(&self) -> State {
        match self.phase() {
            Phase::Starting => return State::NotReady("starting".into()),
            Phase::Draining => return State::NotReady("draining".into()),
            Phase::Ready => {}
        }
        let failing = || {
            Condition::ALL
                .iter()
                .filter(|condition| self.is_failing(**condition))
        };
        let names = failing()
            .map(|condition| condition.name())
            .collect::<Vec<_>>()
            .join(", ");
        match failing().all(|condition| condition.allows_service_without_store()) {
            true if names.is_empty() => State::Ready,
            true => State::ReadyWithoutStore(format!("failing: {names}")),
            false => State::NotReady(format!("failing: {names}")),
        }
    }
}

/// Which requests an engine serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// All.
    Ready,
    /// Those that need no store: encryption and decryption of documents. Tokens, objects and
    /// changes fail for this reason.
    ReadyWithoutStore(String),
    /// None, for this reason.
    NotReady(String),
}

impl State {
    /// Returns true if the engine serves requests that need no store.
    pub const fn is_ready(&self) -> bool {
        matches!(self, Self::Ready | Self::ReadyWithoutStore(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_the_phase_and_every_condition() {
        fn not_ready(reason: &str) -> State {
            State::NotReady(reason.into())
        }
        let readiness = Readiness::default();
        assert_eq!(readiness.state(), not_ready("starting"));
        readiness.set(Condition::Store, false);
        assert_eq!(readiness.state(), not_ready("starting"));
        readiness.enter(Phase::Ready);
        assert_eq!(
            readiness.state(),
            State::ReadyWithoutStore("failing: store".into())
        );
        readiness.set(Condition::Certificate, false);
        assert_eq!(
            readiness.state(),
            not_ready("failing: store, server certificate")
        );
        readiness.set(Condition::Store, true);
        assert_eq!(readiness.state(), not_ready("failing: server certificate"));
        readiness.set(Condition::Certificate, true);
        assert_eq!(readiness.state(), State::Ready);
        readiness.enter(Phase::Draining);
        assert_eq!(readiness.state(), not_ready("draining"));
    }

    #[test]
    fn a_lost_store_and_records_that_are_not_authentic_take_no_engine_from_balancers() {
        for condition in Condition::ALL {
            let readiness = Readiness::default();
            readiness.enter(Phase::Ready);
            readiness.set(condition, false);
            let expected = matches!(condition, Condition::Store | Condition::ControlState);
            assert_eq!(
                readiness.state().is_ready(),
                expected,
                "{}",
                condition.name()
            );
        }
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
