//! Keeps what this process holds in memory out of files and debuggers: it holds keys.

/// Switches core dumps off, and keeps other processes of the same user from reading this one's memory. A system that
/// refuses is said in the log; `sealwire doctor` finds it.
pub(crate) fn forbid() {
    forbid_files();
    // The limit does not hold for dumps that the kernel pipes to a program; this does, and it keeps debuggers off.
    #[cfg(target_os = "linux")]
    if rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).is_err() {
        tracing::warn!("core dumps that are piped to a program could not be switched off");
    }
}

/// Switches files of core dumps off, and leaves the process open to debuggers and to whoever measures it.
pub(crate) fn forbid_files() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).is_err() {
        tracing::warn!("core dumps could not be switched off");
    }
}

/// Returns true if [`forbid`] took effect.
pub(crate) fn are_forbidden() -> bool {
    use rustix::process::{Resource, getrlimit};
    #[cfg(target_os = "linux")]
    let dumpable = !matches!(rustix::process::dumpable_behavior(), Ok(rustix::process::DumpableBehavior::NotDumpable));
    #[cfg(not(target_os = "linux"))]
    let dumpable = false;
    !dumpable && getrlimit(Resource::Core).current == Some(0)
}
