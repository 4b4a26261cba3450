//! Checks of the audit log: it must be writable, and its end must be from this engine.

use std::io::ErrorKind;
use std::path::Path;

use sealwire_audit::{AuditKey, CHECKPOINT_FILE, Checkpoint, NoteError};

use super::{Report, files};
use sealwire_settings::Config;

const CHECK: &str = "audit log";

/// Checks the folder and the end of the trail that the last engine left. Checks the end's seal only
/// if the key is given.
pub(super) fn check_trail(report: &mut Report, config: &Config, key: Option<&AuditKey>) {
    let Some(folder) = config.audit.folder.as_deref() else {
        return report.add_warning(
            CHECK,
            "audit.folder is not set: no records are kept",
            "no record of requests and changes exists afterwards",
            "set audit.folder to a folder for this engine alone",
        );
    };

    let existing = folder
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("."));
    files::check_space(
        report,
        "audit.folder",
        existing,
        "without space for audit records the engine rejects requests, or loses the records",
    );
    if rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_err() {
        report.add_problem(
            CHECK,
            format!(
                "audit.folder: {} cannot be written by this user",
                existing.display()
            ),
            "the engine does not start",
            "create it with the engine's user as owner and mode 0700, or run this command as that user",
        );
        return;
    }
    if !folder.exists() {
        return report.add_good(
            CHECK,
            format!("{} is created at the first start", folder.display()),
        );
    }
    match Checkpoint::read(folder, key) {
        Ok(head) if key.is_some() => report.add_good(CHECK, format!("the trail ends with record {}, sealed with this key", head.seq)),
        Ok(head) => report.add_good(CHECK, format!("the trail ends with record {}", head.seq)),
        Err(NoteError::Missing) if is_empty(folder) => report.add_good(CHECK, "the trail has no record yet"),
        Err(NoteError::Io(error)) if error.kind() == ErrorKind::PermissionDenied => report.add_warning(
            CHECK,
            format!("audit.folder: {} belongs to another user, and was not checked", folder.display()),
            "changes at the end of the trail are not detected",
            "run this command as the engine's user: `sudo -u sealwire sealwire doctor`",
        ),
        Err(error) => report.add_problem(
            CHECK,
            format!("audit.folder: {CHECKPOINT_FILE} {error}"),
            "the trail was changed, or belongs to another key; the engine records this and continues",
            "run `sealwire audit verify`, keep the folder as evidence, and set audit.folder to another folder",
        ),
    }
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| {
        !entries.any(|entry| {
            entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("audit-"))
        })
    })
}
