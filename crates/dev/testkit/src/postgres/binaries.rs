//! Finds the programs of the installed server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::Failure;

/// The folder that holds `postgres`, `initdb`, `psql` and the rest of one version.
#[derive(Clone, Debug)]
pub(super) struct Binaries {
    folder: PathBuf,
    has_citus: bool,
}

impl Binaries {
    /// Tries `pg_config`, then Debian's folders per version (the newest first), then PATH.
    pub(super) fn find() -> Result<Self, Failure> {
        let mut folders: Vec<PathBuf> = told_by_pg_config()
            .into_iter()
            .chain(debian(Path::new("/usr/lib/postgresql")))
            .collect();
        folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let folder = folders
            .into_iter()
            .find(|folder| complete(folder))
            .ok_or(Failure::Missing)?;
        Ok(Self {
            folder,
            has_citus: false,
        })
    }

    /// Returns the programs that `pg_config` names, of a server that has the extension Citus.
    pub(super) fn of_citus(pg_config: &Path) -> Result<Self, Failure> {
        let folder = told_by(pg_config, "--bindir")
            .filter(|folder| complete(folder))
            .ok_or(Failure::Missing)?;
        let extension =
            told_by(pg_config, "--sharedir").map(|folder| folder.join("extension/citus.control"));
        if !extension.is_some_and(|file| file.is_file()) {
            return Err(Failure::MissingCitus);
        }
        Ok(Self {
            folder,
            has_citus: true,
        })
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Returns true if the server loads the extension Citus.
    pub(super) fn has_citus(&self) -> bool {
        self.has_citus
    }

    /// Returns the server's version, such as `15.14`. The version names the template to use.
    pub(super) fn version(&self) -> Result<String, Failure> {
        let output = Command::new(self.program("postgres"))
            .arg("--version")
            .output();
        let output = output.map_err(|source| Failure::io(&self.program("postgres"), source))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        number
            .map(ToOwned::to_owned)
            .ok_or_else(|| Failure::Program {
                program: "postgres".into(),
                said: text,
            })
    }
}

fn complete(folder: &Path) -> bool {
    ["postgres", "initdb", "psql"]
        .iter()
        .all(|name| folder.join(name).is_file())
}

fn told_by_pg_config() -> Option<PathBuf> {
    told_by(Path::new("pg_config"), "--bindir")
}

fn told_by(pg_config: &Path, folder: &str) -> Option<PathBuf> {
    let output = Command::new(pg_config).arg(folder).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn debian(root: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((number, entry.path().join("bin")))
        });
    let mut versions: Vec<(u32, PathBuf)> = versions.collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    versions.into_iter().map(|(_, folder)| folder).collect()
}
