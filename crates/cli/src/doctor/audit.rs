//! Checks of the audit trail: it must be writable, and its end must be from this engine.

use std::io::ErrorKind;
use std::path::Path;

use sealwire_audit::{AuditKey, CHECKPOINT_FILE, Checkpoint, NoteError};

use super::{Report, files};
use sealwire_settings::Config;

const CHECK: &str = "audit trail";

/// Checks the folder and the end of the trail that the last engine left. Checks the end's seal only
/// if the key is given.
pub(super) fn examine(report: &mut Report, config: &Config, key: Option<&AuditKey>) {
    let Some(folder) = config.audit.folder.as_deref() else {
        return report.warn(
            CHECK,
            "audit.folder is not set: no records are kept",
            "nothing says afterwards who did what",
            "set audit.folder to a folder for this engine alone",
        );
    };
    let there = folder
        .ancestors()
        .find(|folder| folder.is_dir())
        .unwrap_or(Path::new("."));
    files::room(
        report,
        "audit.folder",
        there,
        "without room for its records no call is answered, or they are lost",
    );
    if rustix::fs::access(there, rustix::fs::Access::WRITE_OK).is_err() {
        report.wrong(
            CHECK,
            format!(
                "audit.folder: {} cannot be written by this user",
                there.display()
            ),
            "the engine does not start",
            "make it with the engine's user as owner, mode 0700, or run this as that user",
        );
        return;
    }
    if !folder.exists() {
        return report.good(
            CHECK,
            format!("{} is made at the first start", folder.display()),
        );
    }
    match Checkpoint::read(folder, key) {
        Ok(head) if key.is_some() => report.good(CHECK, format!("it ends with record {}, under this key", head.seq)),
        Ok(head) => report.good(CHECK, format!("it ends with record {}", head.seq)),
        Err(NoteError::Missing) if is_empty(folder) => report.good(CHECK, "it has no record yet"),
        Err(NoteError::Io(error)) if error.kind() == ErrorKind::PermissionDenied => report.warn(
            CHECK,
            format!("audit.folder: {} belongs to another user, and was not looked at", folder.display()),
            "whether its end is as the engine left it is not known",
            "run this as the user of the engine: `sudo -u sealwire sealwire doctor`",
        ),
        Err(error) => report.wrong(
            CHECK,
            format!("audit.folder: {CHECKPOINT_FILE} {error}"),
            "the trail was touched, or is that of another key; the engine records that and goes on",
            "run `sealwire audit verify`, keep the folder as evidence, and give the engine a new one",
        ),
    }
}

fn is_empty(folder: &Path) -> bool {
    let segment = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("audit-"))
    };
    std::fs::read_dir(folder).is_ok_and(|mut entries| !entries.any(segment))
}
