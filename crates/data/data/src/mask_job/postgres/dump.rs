//! The schema, dumped by `pg_dump` in two sections: before the data and after the data.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{env, fmt, fs};

use tokio::process::Command;
use tokio_postgres::Client;

use super::connect::Endpoint;
use crate::mask_job::error::JobError;

/// A section of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// Types, functions, tables, sequences.
    PreData,
    /// Keys, indexes, constraints, triggers.
    PostData,
}

/// A `pg_dump` program that can read the source and guards its output.
#[derive(Clone, Debug)]
pub(crate) struct Dump {
    program: PathBuf,
}

/// The first guarded minor release of each major version. Guarded releases escape names of the
/// source in SQL, and accept a key for the guards around their output (CVE-2025-8714 and
/// CVE-2025-8715). All later major versions are guarded; earlier major versions are not.
const GUARDED: [(u32, u32); 5] = [(13, 22), (14, 19), (15, 14), (16, 10), (17, 6)];

impl Dump {
    /// Finds a guarded program that is at least as new as the server. The oldest suitable version
    /// is used.
    pub(crate) async fn find(client: &Client, source: &Endpoint) -> Result<Self, JobError> {
        let row = client
            .query_one(
                "SELECT pg_catalog.current_setting('server_version_num')::int",
                &[],
            )
            .await;
        let wanted = row.map_err(|error| source.error(&error))?.get::<_, i32>(0) / 10_000;
        let mut found = Vec::new();
        for folder in program_folders().await {
            if let Some(version) = program_version(&folder.join("pg_dump")).await {
                found.push((version, folder.join("pg_dump")));
            }
        }
        Self::choose(found, u32::try_from(wanted).unwrap_or(0)).map_err(JobError::Plan)
    }

    fn choose(mut found: Vec<(Version, PathBuf)>, wanted: u32) -> Result<Self, String> {
        found.sort();
        let newest = found.last().cloned();
        let mut fitting = found
            .into_iter()
            .filter(|(version, _)| version.major >= wanted)
            .peekable();
        let unguarded = fitting.peek().cloned();
        if let Some((_, program)) = fitting.find(|(version, _)| version.is_guarded()) {
            return Ok(Self { program });
        }
        Err(match (unguarded, newest) {
            (Some((version, program)), _) => format!(
                "{} is version {version}, by which names in the source could run SQL in the target (CVE-2025-8714): install \
                 the client programs of version 17.6, 16.10, 15.14, 14.19, 13.22 or newer",
                program.display()
            ),
            (None, Some((version, program))) => format!(
                "the source is PostgreSQL {wanted}, and {} is version {version}: \
                 install the client programs of version {wanted} or newer",
                program.display()
            ),
            (None, None) => format!(
                "pg_dump was not found in PATH, by pg_config or in /usr/lib/postgresql: \
                 install PostgreSQL's client programs, version {wanted} or newer"
            ),
        })
    }

    /// Returns one section of the schema in the snapshot, without owners and grants, and without
    /// statements that only a superuser can run.
    pub(crate) async fn dump_section(
        &self,
        source: &Endpoint,
        snapshot: &str,
        section: Section,
    ) -> Result<DumpSection, JobError> {
        let guard = random_guard()?;
        let mut command = std::process::Command::new(&self.program);
        source.environment(&mut command);
        let section = match section {
            Section::PreData => "--section=pre-data",
            Section::PostData => "--section=post-data",
        };
        command.args([
            "--schema-only",
            section,
            "--no-owner",
            "--no-privileges",
            "--no-publications",
        ]);
        command.args([
            "--no-subscriptions",
            "--no-security-labels",
            "--no-tablespaces",
            "--encoding=UTF8",
        ]);
        command
            .arg(format!("--snapshot={snapshot}"))
            .arg(format!(
                "--lock-wait-timeout={}",
                super::source::LOCK_TIMEOUT
            ))
            .arg(format!("--restrict-key={guard}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());

        let output = Command::from(command).kill_on_drop(true).output().await;
        let output = output.map_err(JobError::io(&self.program))?;
        if !output.status.success() {
            return Err(dump_error(String::from_utf8_lossy(&output.stderr).trim()));
        }
        let sql =
            String::from_utf8(output.stdout).map_err(|_| dump_error("its output is not UTF-8"))?;
        guarded_text(&sql, &guard)
            .map(DumpSection::new)
            .ok_or_else(|| dump_error("its output is not a guarded dump"))
    }
}

fn dump_error(message: &str) -> JobError {
    JobError::Postgres {
        origin: "pg_dump",
        message: message.to_owned(),
    }
}

/// The SQL of a section, as the target runs it.
pub(crate) struct DumpSection {
    pub(crate) sql: String,
    /// Objects that the section does not create.
    pub(crate) left_out: Vec<String>,
}

/// Statements that require a superuser, or the owner of an extension that a superuser created
/// beforehand. The second part names the kind of object that is left out.
const LEFT_OUT: [(&str, Option<&str>); 4] = [
    ("COMMENT ON EXTENSION ", Some("comment on extension")),
    ("CREATE EVENT TRIGGER ", Some("event trigger")),
    ("ALTER EVENT TRIGGER ", None),
    ("COMMENT ON EVENT TRIGGER ", None),
];

impl DumpSection {
    fn new(dump: &str) -> Self {
        let mut section = Self {
            sql: String::with_capacity(dump.len()),
            left_out: Vec::new(),
        };
        let mut rest = dump;
        let mut is_left_out = false;
        while !rest.is_empty() {
            let (line, after) = rest.split_at(logical_line(rest));
            rest = after;
            if !is_left_out
                && let Some((start, what)) =
                    LEFT_OUT.iter().find(|(start, _)| line.starts_with(start))
            {
                is_left_out = true;
                if let Some(what) = what {
                    section
                        .left_out
                        .push(format!("{what} {}", first_identifier(&line[start.len()..])));
                }
            }
            if !is_left_out {
                section.sql.push_str(line);
            }
            is_left_out &= !line.trim_end().ends_with(';');
        }
        section
    }

    /// Returns the SQL without the statements that create schemas of these names, written as SQL.
    pub(crate) fn without_schemas(&self, names: &[String]) -> String {
        let mut kept = String::with_capacity(self.sql.len());
        let mut rest = self.sql.as_str();
        while !rest.is_empty() {
            let (line, after) = rest.split_at(logical_line(rest));
            rest = after;
            let created = line.strip_prefix("CREATE SCHEMA ").map(first_identifier);
            if !created.is_some_and(|created| names.iter().any(|name| name == created)) {
                kept.push_str(line);
            }
        }
        kept
    }
}

/// Returns the length of the first line of a dump. Line breaks inside of literals, quoted names and
/// comments do not end the line.
fn logical_line(sql: &str) -> usize {
    let bytes = sql.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'\n' => return at + 1,
            b'\'' => quoted_length(&sql[at..], "'"),
            b'"' => quoted_length(&sql[at..], "\""),
            b'-' if bytes[at..].starts_with(b"--") => {
                sql[at..].find('\n').unwrap_or(sql.len() - at)
            }
            // A name can contain a dollar sign, but cannot begin with it.
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => name_length(&bytes[at..]),
            b'$' => match dollar_tag(&sql[at..]) {
                Some(tag) => quoted_length(&sql[at..], tag),
                None => 1,
            },
            _ => 1,
        };
    }
    sql.len()
}

fn name_length(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..))
        .count()
}

/// Returns the length of a literal that begins and ends with `quote`. Doubled quotes count as two
/// literals in a row.
fn quoted_length(text: &str, quote: &str) -> usize {
    text[quote.len()..]
        .find(quote)
        .map_or(text.len(), |end| end + 2 * quote.len())
}

/// Returns the quote `$tag$` that a text begins with.
fn dollar_tag(text: &str) -> Option<&str> {
    let tag = &text[..text[1..].find('$')? + 2];
    let is_name = tag[1..tag.len() - 1]
        .chars()
        .all(|c| c.is_alphanumeric() || c == '_');
    (is_name && !tag[1..].starts_with(|c: char| c.is_ascii_digit())).then_some(tag)
}

/// Returns the identifier, quoted or not, that a text begins with.
fn first_identifier(text: &str) -> &str {
    let mut length = 0;
    while text[length..].starts_with('"') {
        length += quoted_length(&text[length..], "\"");
    }
    if length == 0 {
        text.split([' ', ';', '\n']).next().unwrap_or_default()
    } else {
        &text[..length]
    }
}

/// Returns a random key, which the source's schema cannot contain.
fn random_guard() -> Result<String, JobError> {
    let mut bytes = [0; 16];
    let random = rustls::crypto::aws_lc_rs::default_provider().secure_random;
    random
        .fill(&mut bytes)
        .map_err(|_| JobError::Plan("the system gives no random bytes".to_owned()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the text between the two `psql` guard commands that `pg_dump` writes around its output.
/// A similar line inside the text is part of a literal. Returns `None` if a guard is missing, is at
/// the wrong position, or has another key.
fn guarded_text<'s>(dump: &'s str, guard: &str) -> Option<&'s str> {
    // Blank lines and comments come before the first guard.
    let before: usize = dump
        .split_inclusive('\n')
        .take_while(|line| line.trim().is_empty() || line.starts_with("--"))
        .map(str::len)
        .sum();
    let start = format!("\\restrict {guard}\n");
    let end = format!("\\unrestrict {guard}\n");

    let sql = dump[before..].strip_prefix(start.as_str())?;
    sql.trim_end_matches('\n')
        .len()
        .checked_add(1)
        .and_then(|all| sql.get(..all))?
        .strip_suffix(end.as_str())
}

async fn program_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        env::split_paths(&env::var_os("PATH").unwrap_or_default()).collect();
    if let Ok(output) = Command::new("pg_config")
        .arg("--bindir")
        .stdin(Stdio::null())
        .output()
        .await
        && let Ok(folder) = String::from_utf8(output.stdout)
    {
        folders.push(PathBuf::from(folder.trim()));
    }
    let debian = fs::read_dir(Path::new("/usr/lib/postgresql"))
        .into_iter()
        .flatten()
        .flatten();
    folders.extend(debian.map(|entry| entry.path().join("bin")));
    folders.retain(|folder| folder.join("pg_dump").is_file());
    folders
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    /// `None` for an unreleased version.
    minor: Option<u32>,
}

impl Version {
    /// Parses `pg_dump (PostgreSQL) 17.6 (Debian 17.6-1)`, `18beta2` or `19devel`.
    fn parse(text: &str) -> Option<Self> {
        let word = text
            .split_whitespace()
            .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        let (major, rest) = word.split_at(digits);
        let minor = rest.strip_prefix('.').and_then(|minor| minor.parse().ok());
        Some(Self {
            major: major.parse().ok()?,
            minor,
        })
    }

    fn is_guarded(self) -> bool {
        let Some(minor) = self.minor else {
            return false;
        };
        match GUARDED.iter().find(|(major, _)| *major == self.major) {
            Some((_, first)) => minor >= *first,
            None => self.major > GUARDED[GUARDED.len() - 1].0,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.minor {
            Some(minor) => write!(f, "{}.{minor}", self.major),
            None => write!(f, "{}, unreleased", self.major),
        }
    }
}

/// Returns the version that the program reports.
async fn program_version(program: &Path) -> Option<Version> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .await
        .ok()?;
    Version::parse(&String::from_utf8(output.stdout).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_sections_omit_statements_for_superusers() {
        let dump = "-- Name: it's $x$; Type: COMMENT\n\
            COMMENT ON EXTENSION hstore IS 'first;\nCOMMENT ON EXTENSION is no statement here;\n';\n\
            COMMENT ON TABLE t IS '\nCOMMENT ON EXTENSION a IS ''b'';\n';\n\
            CREATE FUNCTION a$b$c() RETURNS int AS $_$\nCREATE EVENT TRIGGER x;\n$_$ LANGUAGE sql;\n\
            CREATE TABLE \"q\"\"\nALTER EVENT TRIGGER \" (a int);\n\
            CREATE EVENT TRIGGER \"log it; \"\"now\"\"\" ON ddl_command_end\n         WHEN TAG IN ('CREATE TABLE')\n\
            \x20  EXECUTE FUNCTION public.log_ddl();\n\
            ALTER EVENT TRIGGER \"log it; \"\"now\"\"\" DISABLE;\n\
            COMMENT ON EVENT TRIGGER other IS 'x';\nSELECT $1, 'ä' AS \"ö\", ä$1 FROM t;\n";
        let section = DumpSection::new(dump);
        assert_eq!(
            section.left_out,
            [
                "comment on extension hstore",
                "event trigger \"log it; \"\"now\"\"\""
            ]
        );
        let kept: Vec<&str> = section.sql.split_inclusive(";\n").collect();
        assert_eq!(kept.len(), 6, "{kept:#?}");
        for part in [
            "it's $x$",
            "COMMENT ON TABLE t",
            "a$b$c",
            "CREATE TABLE",
            "SELECT $1, 'ä'",
        ] {
            assert!(section.sql.contains(part), "{part}: {kept:#?}");
        }
        for part in ["first", "ddl_command_end", "DISABLE", "other"] {
            assert!(!section.sql.contains(part), "{part}: {kept:#?}");
        }
        let schemas = DumpSection::new(
            "CREATE SCHEMA ext;\nCREATE SCHEMA \"Odd one\";\nSELECT '\nCREATE SCHEMA ext;\n';\nCREATE SCHEMA ex;\n",
        );
        let kept = schemas.without_schemas(&["ext".to_owned(), "\"Odd one\"".to_owned()]);
        assert_eq!(
            kept,
            "SELECT '\nCREATE SCHEMA ext;\n';\nCREATE SCHEMA ex;\n"
        );
        // An unclosed literal or comment continues to the end.
        for open in ["'a\nb", "\"a\nb", "$t$a\nb", "-- a"] {
            assert_eq!(logical_line(open), open.len(), "{open}");
        }
    }

    #[test]
    fn dumps_are_the_text_between_their_guards() {
        let head = "--\n-- PostgreSQL database dump\n--\n\n";
        let sql = "\nCOMMENT ON TABLE t IS 'a\n\\restrict b\n\\unrestrict k1\n\\! ls\n';\n--\n-- complete\n--\n\n";
        let whole = format!("{head}\\restrict k1\n{sql}\\unrestrict k1\n\n");
        assert_eq!(guarded_text(&whole, "k1"), Some(sql));
        assert_eq!(
            guarded_text("\\restrict k1\n\\unrestrict k1\n", "k1"),
            Some("")
        );
        for (wrong, why) in [
            (
                whole.replace("\\restrict k1", "\\restrict k2"),
                "another key",
            ),
            (
                whole.replace("\\unrestrict k1\n\n", "\\unrestrict k2\n\n"),
                "another key at the end",
            ),
            (format!("{head}{sql}"), "no guards"),
            (
                format!("{head}SELECT 1;\n\\restrict k1\n{sql}\\unrestrict k1\n"),
                "SQL in front",
            ),
            (format!("{whole}SELECT 1;\n"), "SQL behind"),
            (format!("{whole}\\unrestrict k2\n"), "a command behind"),
            (format!("{head}\\restrict k1\n{sql}"), "cut short"),
            (
                format!("{head}\\restrict k1 k1\n{sql}\\unrestrict k1\n"),
                "two keys",
            ),
            ("\\restrict k1\n".to_owned(), "one guard"),
            (String::new(), "nothing"),
        ] {
            assert_eq!(guarded_text(&wrong, "k1"), None, "{why}");
        }
        assert_ne!(random_guard().unwrap(), random_guard().unwrap());
    }

    #[test]
    fn unguarded_versions_of_pg_dump_are_rejected() {
        for (text, guarded) in [
            ("pg_dump (PostgreSQL) 17.6 (Debian 17.6-1.pgdg12+1)", true),
            ("pg_dump (PostgreSQL) 17.5", false),
            ("pg_dump (PostgreSQL) 16.10", true),
            ("pg_dump (PostgreSQL) 16.9", false),
            ("pg_dump (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", true),
            ("pg_dump (PostgreSQL) 14.18", false),
            ("pg_dump (PostgreSQL) 13.22", true),
            ("pg_dump (PostgreSQL) 12.22", false),
            ("pg_dump (PostgreSQL) 18.0", true),
            ("pg_dump (PostgreSQL) 18beta2", false),
            ("pg_dump (PostgreSQL) 19devel", false),
        ] {
            assert_eq!(
                Version::parse(text).unwrap().is_guarded(),
                guarded,
                "{text}"
            );
        }
        assert_eq!(Version::parse("pg_dump of somebody"), None);
        let of = |versions: &[(u32, u32)], wanted| {
            let found = versions.iter().map(|(major, minor)| {
                (
                    Version {
                        major: *major,
                        minor: Some(*minor),
                    },
                    PathBuf::from(format!("/{major}.{minor}")),
                )
            });
            Dump::choose(found.collect(), wanted).map(|dump| dump.program.display().to_string())
        };
        assert_eq!(of(&[(18, 1), (17, 6), (16, 10)], 17).unwrap(), "/17.6");
        assert_eq!(of(&[(18, 1), (17, 5)], 17).unwrap(), "/18.1");
        for (versions, wanted, expected) in [
            (
                &[(17, 5)][..],
                17,
                "/17.5 is version 17.5, by which names in the source could run SQL",
            ),
            (
                &[(16, 10)],
                17,
                "the source is PostgreSQL 17, and /16.10 is version 16.10: install",
            ),
            (&[], 17, "pg_dump was not found in PATH"),
        ] {
            let error = of(versions, wanted).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
