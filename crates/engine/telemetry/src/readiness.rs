//! Readiness for requests: a phase and a set of failing conditions.
//!
//! Both are atomics. The parts of the engine update them at every change, so a reader needs only
//! two loads.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use sealwire_service::metrics::Labels;

/// Phase in the life of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not listening yet.
    Starting = 0,
    /// Accepts requests.
    Ready = 1,
    /// Finishes running requests and accepts no new ones.
    Draining = 2,
}

/// A condition for serving requests. Conditions fail and recover independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The store of apps and keys does not respond.
    Store = 0,
    /// The store has been unreadable for so long that the cached permissions of principals may no
    /// longer be used.
    Permissions = 1,
    /// The server certificate has expired.
    Certificate = 2,
    /// The audit log cannot be written.
    Audit = 3,
    /// The control state is not authentic, or an older state was put back.
    ControlState = 4,
    /// The store is sealed, so this engine has no keys.
    Unsealed = 5,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 6] = [
        Self::Store,
        Self::Permissions,
        Self::Certificate,
        Self::Audit,
        Self::ControlState,
        Self::Unsealed,
    ];

    /// Returns the name in `/ready`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Permissions => "permissions",
            Self::Certificate => "server certificate",
            Self::Audit => "audit log",
            Self::ControlState => "control state",
            Self::Unsealed => "sealed",
        }
    }

    /// Returns the label value in `/metrics`.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Permissions => "permissions",
            Self::Certificate => "server_certificate",
            Self::Audit => "audit_trail",
            Self::ControlState => "control_state",
            Self::Unsealed => "sealed",
        }
    }

    /// Returns true if the engine serves requests that need no store while this condition fails.
    /// The engine then uses the last good control state.
    const fn allows_service_without_store(self) -> bool {
        match self {
            Self::Store | Self::ControlState => true,
            Self::Permissions | Self::Certificate | Self::Audit | Self::Unsealed => false,
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

/// The readiness of one engine. The initial phase is [`Phase::Starting`], and no condition fails.
#[derive(Debug, Default)]
pub struct Readiness {
    phase: AtomicU8,
    failing: AtomicU32,
}

impl Readiness {
    /// Enters a phase. Draining is final: a slow start that reports `Ready` late must not bring
    /// traffic back.
    pub fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    /// Returns the current phase.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// Records whether a condition holds or fails.
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

        let failing: Vec<Condition> = Condition::ALL
            .into_iter()
            .filter(|condition| self.is_failing(*condition))
            .collect();
        if failing.is_empty() {
            return State::Ready;
        }

        let names: Vec<_> = failing.iter().map(|condition| condition.name()).collect();
        let reason = format!("failing: {}", names.join(", "));
        if failing
            .iter()
            .all(|condition| condition.allows_service_without_store())
        {
            State::ReadyWithoutStore(reason)
        } else {
            State::NotReady(reason)
        }
    }
}

/// The set of requests that an engine serves now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The engine serves every request.
    Ready,
    /// The engine serves only requests that need no store, such as encryption and decryption of
    /// documents. Requests on tokens and objects, and changes, fail for this reason.
    ReadyWithoutStore(String),
    /// The engine serves no requests, for this reason.
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
    fn state_follows_phase_and_conditions() {
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
    fn engine_stays_ready_without_store_or_authentic_control_state() {
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
    fn condition_bits_are_distinct() {
        let bits: u32 = Condition::ALL.iter().map(|condition| condition.bit()).sum();
        assert_eq!(bits.count_ones() as usize, Condition::ALL.len());
    }

    #[test]
    fn condition_labels_match_their_names() {
        for condition in Condition::ALL {
            let expected = match condition {
                // The value that dashboards and alerts of operators know.
                Condition::Audit => "audit_trail".to_owned(),
                _ => condition.name().replace([' ', '-'], "_"),
            };
            assert_eq!(condition.label(), expected);
        }
    }
}
