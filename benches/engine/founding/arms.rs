//! The compared combinations, and how the server of each is started.

use std::io;
use std::process::Command;
use std::thread::available_parallelism;

use sealwire_wire::{KeyScope, Suite, Writing};

use crate::child::{EngineChild, Folder};
use crate::founding::shared_runtime;

/// Threads that do the cryptography.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Crypto threads of the engine's own.
    Own,
    /// The threads of the async runtime that also does the network I/O.
    Shared,
}

impl Place {
    /// Returns the name, as in the name of an arm.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Shared => "shared",
        }
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arm {
    pub(super) suite: Suite,
    pub(super) key_scope: KeyScope,
    pub(super) place: Place,
    pub(super) threads: usize,
    /// The batch client cancels the requests that it gives up.
    pub(super) cancels: bool,
}

/// Number of cores.
pub(super) fn cores() -> usize {
    available_parallelism().map_or(1, usize::from)
}

/// Returns the compared numbers of threads.
pub(super) fn threads() -> Vec<usize> {
    let mut threads = vec![1, (cores() / 2).max(1), cores()];
    threads.dedup();
    threads
}

impl Arm {
    /// The original engine before its incident.
    pub(super) fn incident() -> Self {
        let (suite, key_scope) = (Suite::Secp256k1, KeyScope::Field);
        Self {
            suite,
            key_scope,
            place: Place::Shared,
            threads: cores(),
            cancels: false,
        }
    }

    /// Today's engine with its default settings.
    pub(super) fn default_of_today() -> Self {
        let (suite, key_scope) = (Suite::P256, KeyScope::Request);
        Self {
            suite,
            key_scope,
            place: Place::Own,
            threads: cores(),
            cancels: true,
        }
    }

    /// Returns every combination.
    pub(super) fn all() -> Vec<Self> {
        let mut arms = Vec::new();
        for threads in threads().into_iter().rev() {
            for place in [Place::Shared, Place::Own] {
                for cancels in [false, true] {
                    for (suite, key_scope) in KEYS {
                        arms.push(Self {
                            suite,
                            key_scope,
                            place,
                            threads,
                            cancels,
                        });
                    }
                }
            }
        }
        arms
    }

    /// Returns the arms of a smoke run: both places, suites, scopes and ways to give up.
    pub(super) fn of_smoke() -> Vec<Self> {
        let shared = Self {
            cancels: true,
            ..Self::incident()
        };
        let own = Self {
            cancels: false,
            ..Self::default_of_today()
        };
        vec![Self::incident(), shared, own, Self::default_of_today()]
    }

    /// Returns the name, which `--only` selects by.
    pub(super) fn name(self) -> String {
        let cancels = if self.cancels { "cancel" } else { "off" };
        format!(
            "{}-{}-t{}-{cancels}",
            self.keys(),
            self.place.name(),
            self.threads
        )
    }

    /// Returns the names of suite and key scope.
    pub(super) fn keys(self) -> String {
        format!("{}-{}", self.suite.name(), self.key_scope.name())
    }

    /// Returns how both clients have their fields sealed.
    pub(super) fn writing(self) -> Writing<'static> {
        Writing {
            suite: Some(self.suite),
            key_scope: self.key_scope,
            ..Writing::default()
        }
    }

    /// Starts the server.
    pub(super) fn start(self, folder: &Folder) -> io::Result<EngineChild> {
        // Settings live as long as the program, and an arm adds a few bytes.
        let threads: &'static str = self.threads.to_string().leak();
        let settings = [
            ("state.mode", "stateless"),
            ("audit.folder", ""),
            ("crypto.threads", threads),
        ];
        match self.place {
            Place::Own => EngineChild::start_with(folder, &settings),
            Place::Shared => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg(shared_runtime::SERVE).arg(folder.path());
                EngineChild::spawn(command, &settings)
            }
        }
    }
}

/// Curves and key scopes, from the remedy to the incident.
pub(super) const KEYS: [(Suite, KeyScope); 4] = [
    (Suite::P256, KeyScope::Request),
    (Suite::P256, KeyScope::Field),
    (Suite::Secp256k1, KeyScope::Request),
    (Suite::Secp256k1, KeyScope::Field),
];
