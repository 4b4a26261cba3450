//! Checks the file lists of the database before it opens them. The database writes checksums of the
//! lists but does not verify them. With a damaged list, the database could allocate an unlimited
//! amount of memory.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use sealwire_store::StoreError;

/// Name of the file that points to the current list `vN`:
/// `version u64 | checksum u128 | checksum kind u8`, little endian.
const CURRENT: &str = "current";
const XXH3_128: u8 = 0;
/// Folder of the table files.
const TABLES: &str = "tables";

/// Checks every keyspace in the folder of a database. A keyspace with neither list nor files was
/// not created yet.
pub(super) fn check(database: &Path) -> Result<(), StoreError> {
    let keyspaces = database.join("keyspaces");
    let entries = match fs::read_dir(&keyspaces) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| io_error(&keyspaces, error))?,
    };

    for entry in entries {
        let keyspace = entry.map_err(|error| io_error(&keyspaces, error))?.path();
        let current = keyspace.join(CURRENT);
        match fs::read(&current) {
            Ok(named) => check_one(&keyspace, &named)?,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                if fs::read_dir(keyspace.join(TABLES)).is_ok_and(|mut files| files.next().is_some())
                {
                    return Err(damage_in(
                        &keyspace,
                        "the file `current`, which points to the list of files, is missing",
                    ));
                }
            }
            Err(error) => return Err(io_error(&current, error)),
        }
    }

    Ok(())
}

fn check_one(keyspace: &Path, current: &[u8]) -> Result<(), StoreError> {
    let parts = current
        .split_first_chunk()
        .and_then(|(version, rest)| Some((version, rest.split_first_chunk()?)));
    let Some((version, (checksum, [XXH3_128]))) = parts else {
        return Err(damage_in(
            keyspace,
            "the file `current`, which points to the list of files, has an invalid form",
        ));
    };

    let list = keyspace.join(format!("v{}", u64::from_le_bytes(*version)));
    let bytes = match fs::read(&list) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(damage_in(keyspace, "the list of files is missing"));
        }
        bytes => bytes.map_err(|error| io_error(&list, error))?,
    };

    if xxh3_128(&bytes) != u128::from_le_bytes(*checksum) {
        return Err(damage_in(
            keyspace,
            "the list of files does not match its checksum",
        ));
    }

    Ok(())
}

/// Returns the error of a damaged folder.
pub(super) fn damage_in(folder: &Path, what: &str) -> StoreError {
    StoreError::Damaged {
        place: folder.display().to_string(),
        what: what.to_owned(),
    }
}

/// Returns the error of a path that cannot be read or written.
pub(super) fn io_error(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::Io {
        path: path.to_owned(),
        source,
    }
}
