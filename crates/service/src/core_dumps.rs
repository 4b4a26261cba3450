//! Protects the memory of this process, which contains keys or values, from core dumps and
//! debuggers.

/// Switches core dumps off, and prevents other processes of the same user from reading this one's
/// memory. Failures are logged, and `sealwire doctor` reports them.
pub fn forbid() {
    forbid_files();
    // The resource limit does not apply to core dumps that the kernel pipes to a program. This
    // setting covers such dumps and also blocks debuggers. The call is made even if the resource
    // limit failed.
    #[cfg(target_os = "linux")]
    if rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .is_err()
    {
        tracing::warn!("core dumps that are piped to a program could not be switched off");
    }
}

/// Switches core dump files off, and leaves the process open to debuggers and profilers.
pub fn forbid_files() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    if setrlimit(
        Resource::Core,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )
    .is_err()
    {
        tracing::warn!("core dumps could not be switched off");
    }
}

/// Returns true if [`forbid`] took effect.
pub fn are_forbidden() -> bool {
    use rustix::process::{Resource, getrlimit};
    #[cfg(target_os = "linux")]
    let dumpable = !matches!(
        rustix::process::dumpable_behavior(),
        Ok(rustix::process::DumpableBehavior::NotDumpable)
    );
    #[cfg(not(target_os = "linux"))]
    let dumpable = false;
    !dumpable && getrlimit(Resource::Core).current == Some(0)
}
