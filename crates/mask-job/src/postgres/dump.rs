//! The schema, by the source's own `pg_dump`: what comes before the data, and what comes behind it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{env, fs};

use tokio::process::Command;
use tokio_postgres::Client;

use super::connect::Endpoint;
use crate::error::JobError;

/// Which half of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// Types, functions, tables, sequences.
    PreData,
    /// Keys, indexes, constraints, triggers.
    PostData,
}

/// A `pg_dump` that can read the source.
#[derive(Clone, Debug)]
pub(crate) struct Dump {
    program: PathBuf,
}

impl Dump {
    /// One that is at least as new as the server; of several the oldest of those.
    pub(crate) async fn find(client: &Client, source: &Endpoint) -> Result<Self, JobError> {
        let row = client.query_one("SELECT pg_catalog.current_setting('server_version_num')::int", &[]).await;
        let wanted = row.map_err(|error| source.error(&error))?.get::<_, i32>(0) / 10_000;
        let mut found = Vec::new();
        for folder in folders().await {
            if let Some(version) = version(&folder.join("pg_dump")).await {
                found.push((version, folder.join("pg_dump")));
            }
        }
        found.sort();
        let newest = found.last().map(|(version, program)| (*version, program.clone()));
        match found.into_iter().find(|(version, _)| *version >= wanted) {
            Some((_, program)) => Ok(Self { program }),
            None => Err(JobError::Plan(match newest {
                None => format!(
                    "pg_dump was not found in PATH, by pg_config or in /usr/lib/postgresql: \
                     install PostgreSQL's client programs, version {wanted} or newer"
                ),
                Some((version, program)) => format!(
                    "the source is PostgreSQL {wanted}, and {} is version {version}: \
                     install the client programs of version {wanted} or newer",
                    program.display()
                ),
            })),
        }
    }

    /// SQL that makes one half of the schema as it is in the snapshot; without owners and grants.
    pub(crate) async fn section(
        &self,
        source: &Endpoint,
        snapshot: &str,
        section: Section,
    ) -> Result<String, JobError> {
        let mut command = std::process::Command::new(&self.program);
        source.environment(&mut command);
        let section = match section {
            Section::PreData => "--section=pre-data",
            Section::PostData => "--section=post-data",
        };
        command.args(["--schema-only", section, "--no-owner", "--no-privileges", "--no-publications"]);
        command.args(["--no-subscriptions", "--no-security-labels", "--no-tablespaces", "--encoding=UTF8"]);
        command
            .arg(format!("--snapshot={snapshot}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let failed = |said: String| JobError::Postgres { whence: "pg_dump", said };
        let output = Command::from(command).kill_on_drop(true).output().await;
        let output = output.map_err(JobError::io(&self.program))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let sql = String::from_utf8(output.stdout).map_err(|_| failed("wrote what is not UTF-8".to_owned()))?;
        Ok(without_psql(&sql))
    }
}

/// Without lines that only `psql` understands, which newer versions put around everything.
fn without_psql(sql: &str) -> String {
    let is_psql = |line: &&str| line.starts_with("\\restrict ") || line.starts_with("\\unrestrict ");
    sql.split_inclusive('\n').filter(|line| !is_psql(line)).collect()
}

async fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    if let Ok(told) = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).output().await
        && let Ok(folder) = String::from_utf8(told.stdout)
    {
        folders.push(PathBuf::from(folder.trim()));
    }
    let debian = fs::read_dir(Path::new("/usr/lib/postgresql")).into_iter().flatten().flatten();
    folders.extend(debian.map(|entry| entry.path().join("bin")));
    folders.retain(|folder| folder.join("pg_dump").is_file());
    folders
}

/// The major version that it says it is.
async fn version(program: &Path) -> Option<i32> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output().await.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let number = text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    number.split(['.', 'd', 'b', 'r']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_psql_are_left_out() {
        let sql = "\\restrict abc\nCREATE TABLE t (a text DEFAULT '\\x');\n\\unrestrict abc\n";
        assert_eq!(without_psql(sql), "CREATE TABLE t (a text DEFAULT '\\x');\n");
    }
}
