//! Finds the programs of the installed server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::Failure;

/// The folder that holds `postgres`, `initdb`, `psql` and the rest of one version.
#[derive(Clone, Debug)]
pub(super) struct Binaries(PathBuf);

impl Binaries {
    /// Tries `pg_config`, then Debian's folders per version (the newest first), then PATH.
    pub(super) fn find() -> Result<Self, Failure> {
        let mut folders: Vec<PathBuf> =
            told_by_pg_config().into_iter().chain(debian(Path::new("/usr/lib/postgresql"))).collect();
        folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        folders.into_iter().find(|folder| complete(folder)).map(Self).ok_or(Failure::Missing)
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the server's version, such as `15.14`. The version names the template to use.
    pub(super) fn version(&self) -> Result<String, Failure> {
        let output = Command::new(self.program("postgres")).arg("--version").output();
        let output = output.map_err(|source| Failure::io(&self.program("postgres"), source))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        number.map(ToOwned::to_owned).ok_or_else(|| Failure::Program { program: "postgres".into(), said: text })
    }
}

fn complete(folder: &Path) -> bool {
    ["postgres", "initdb", "psql"].iter().all(|name| folder.join(name).is_file())
}

fn told_by_pg_config() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn debian(root: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(root).into_iter().flatten().flatten().filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path().join("bin")))
    });
    let mut versions: Vec<(u32, PathBuf)> = versions.collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    versions.into_iter().map(|(_, folder)| folder).collect()
}
