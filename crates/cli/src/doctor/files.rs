//! Checks of the permissions of secret files, and of free space in folders that are written.

use std::fs::Metadata;
use std::path::Path;

use super::Report;
use sealwire_engine::root::{LOCAL_PROVIDER, Providers};
use sealwire_service::trusted_file::{Exposure, FileError, FileErrorReason, FileKind, TrustedFile};
use sealwire_settings::{Config, KekSource, Mode};

const CHECK: &str = "files";
/// The effect of an exposed file.
const EXPOSED: &str = "other users can read or replace the secret";
/// The effect of a file that others can replace.
const REPLACEABLE: &str = "anyone who can replace the file decides what the engine trusts, so the engine rejects the file";

/// Checks access to files with secrets, and to files whose content is trusted.
pub(super) fn check_modes(report: &mut Report, config: &Config) {
    use FileKind::{Public, Secret};
    let tls = &config.tls;
    let mut files = vec![
        ("tls.key".to_owned(), tls.key.clone(), Secret),
        (
            "tls.certificate".to_owned(),
            tls.certificate.clone(),
            Public,
        ),
        ("tls.client_ca".to_owned(), tls.client_ca.clone(), Public),
    ];
    if let KekSource::File(file) = &config.kek {
        files.push(("kek.file".to_owned(), file.clone(), Secret));
    }
    if config.state.mode == Mode::Postgres {
        let postgres = [
            ("postgres.password_file", &config.postgres.password_file),
            ("postgres.client_key", &config.postgres.client_key),
        ];
        files.extend(
            postgres
                .into_iter()
                .filter_map(|(key, file)| Some((key.to_owned(), file.clone()?, Secret))),
        );
    }
    if let Some(file) = &config.kek_providers {
        files.push(("kek.providers".to_owned(), file.clone(), Public));
    }

    // A file of providers that does not load is reported by the check of the key-encryption key.
    for (name, settings) in Providers::load(config).iter().flat_map(Providers::iter) {
        if name != LOCAL_PROVIDER {
            let of_provider = settings.files().into_iter();
            files.extend(of_provider.map(|(key, file, kind)| {
                (format!("provider {name}: {key}"), file.to_owned(), kind)
            }));
        }
    }

    let mut checked = 0;
    for (key, file, kind) in files {
        // A missing file is reported by the check that needs the file.
        if !file.exists() {
            continue;
        }
        checked += usize::from(kind == Secret);
        if let Err(FileError {
            reason: FileErrorReason::Exposed(Exposure { problem, remedy }),
            ..
        }) = TrustedFile::open(&file, kind)
        {
            let effect = if kind == Secret { EXPOSED } else { REPLACEABLE };
            let advice = match remedy {
                Some(command) => format!("run `{command}`"),
                None => "move the file as named, and change the setting".to_owned(),
            };
            report.add_problem(
                CHECK,
                format!("{key}: {}: {problem}", file.display()),
                effect,
                advice,
            );
        }
    }

    let kept = match config.state.mode {
        Mode::Stateless => Some(("state.file", config.state.file.as_path())),
        Mode::Embedded => Some(("state.folder", config.state.folder.as_path())),
        Mode::Postgres => None,
    };
    if let Some((key, path)) = kept
        && let Ok(metadata) = std::fs::metadata(path)
        && let Some(mode) = written_by_others(&metadata)
    {
        report.add_problem(
            CHECK,
            format!("{key}: {} has mode {mode:03o}", path.display()),
            "other users can install an older or different state, and the engine could not detect it",
            format!("run `chmod o-w,g-w {}`", sealwire_service::trusted_file::quoted(path)),
        );
    }
    report.add_good(CHECK, format!("{checked} files with secrets were checked"));
}

/// Returns the mode if anybody other than the owner can write.
fn written_by_others(metadata: &Metadata) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = metadata.permissions().mode() & 0o777;
    (mode & 0o022 != 0).then_some(mode)
}

/// Checks the free space of a folder that the engine writes to.
pub(super) fn check_space(report: &mut Report, key: &str, folder: &Path, why: &'static str) {
    const CHECK: &str = "disk";
    /// Free bytes below which the store soon fails: its journal alone takes 64 MiB.
    const BYTES_MIN: u64 = 256 << 20;
    /// Free bytes below which the check warns.
    const BYTES_FEW: u64 = 2 << 30;
    /// Free inodes in percent below which the check warns.
    const FILES_FEW: u64 = 5;
    let Ok(disk) = rustix::fs::statvfs(folder) else {
        return report.add_warning(
            CHECK,
            format!("{key}: the free space at {} is not known", folder.display()),
            why,
            "check it with `df`",
        );
    };
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let what = format!("{key}: {} MiB are free at {}", free >> 20, folder.display());
    let remedy = "enlarge the disk, or free space outside this folder, whose files are keys, state or records; `df` shows the space";
    if free < BYTES_MIN {
        report.add_problem(CHECK, what, why, remedy);
    } else if free < BYTES_FEW {
        report.add_warning(CHECK, what, why, remedy);
    } else {
        report.add_good(CHECK, what);
    }
    // Some file systems have no fixed number of files and report 0.
    if disk.f_files > 0 && disk.f_favail < disk.f_files / 100 * FILES_FEW {
        let what = format!(
            "{key}: {} of {} files are left at {}",
            disk.f_favail,
            disk.f_files,
            folder.display()
        );
        report.add_warning(
            CHECK,
            what,
            "without free inodes, no file can be created",
            "free inodes outside this folder; `df -i` counts them",
        );
    }
}
