//! An initialised data folder, made once per version and kept in Cargo's target folder; servers
//! start from a copy of it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::binaries::Binaries;
use super::user::User;
use super::{Failure, OWNER, checked};

/// Version of the folder's layout. Increase it when the code below makes a different folder.
const LAYOUT: u32 = 1;

/// Client authentication: by password, or by certificate for the role of its name.
const HBA: &str = "\
local   all         all                     scram-sha-256
hostssl all         certified 127.0.0.1/32  cert
host    all         all       127.0.0.1/32  scram-sha-256
local   replication all                     scram-sha-256
";

/// A data folder to copy, and the password of its roles.
#[derive(Debug)]
pub(super) struct Template {
    pub(super) data: PathBuf,
    pub(super) password: String,
}

impl Template {
    /// Returns the template of the installed version, and makes it first if it is missing. If
    /// several processes make it at once, the first is kept.
    pub(super) fn find(binaries: &Binaries, user: User) -> Result<Self, Failure> {
        let kind = if binaries.has_citus() {
            "citus"
        } else {
            "postgres"
        };
        let cache = cache_folder().join(format!("{kind}-{}-{LAYOUT}", binaries.version()?));
        if !cache.is_dir() {
            make(binaries, user, &cache)?;
        }
        let path = cache.join("password");
        let password = fs::read_to_string(&path).map_err(|source| Failure::io(&path, source))?;
        Ok(Self {
            data: cache.join("data"),
            password,
        })
    }
}

/// Returns `testkit` in Cargo's build folder of this profile, which is the folder with `deps`.
fn cache_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let built = program
        .ancestors()
        .find(|folder| folder.join("deps").is_dir());
    built
        .map_or_else(std::env::temp_dir, Path::to_path_buf)
        .join("testkit")
}

fn make(binaries: &Binaries, user: User, cache: &Path) -> Result<(), Failure> {
    let io = |source| Failure::io(cache, source);
    let parent = cache.parent().unwrap_or(cache);
    fs::create_dir_all(parent).map_err(io)?;
    // A folder that the server's user can enter. The target folder can be closed to that user.
    let work = tempfile::Builder::new()
        .prefix("sealwire-template-")
        .tempdir()
        .map_err(io)?;
    user.own(work.path()).map_err(io)?;
    let password = random().map_err(io)?;
    initialise(binaries, user, work.path(), &password)?;

    let ready = tempfile::Builder::new()
        .prefix("making-")
        .tempdir_in(parent)
        .map_err(io)?;
    User::same()
        .copy(&work.path().join("data"), &ready.path().join("data"))
        .map_err(io)?;
    fs::write(ready.path().join("password"), &password).map_err(io)?;
    match fs::rename(ready.path(), cache) {
        Err(source) if !cache.is_dir() => Err(io(source)),
        _ => Ok(()),
    }
}

fn initialise(binaries: &Binaries, user: User, work: &Path, password: &str) -> Result<(), Failure> {
    let io = |source| Failure::io(work, source);
    let (data, pwfile) = (work.join("data"), work.join("password"));
    fs::write(&pwfile, password).map_err(io)?;
    user.own(&pwfile).map_err(io)?;
    let mut initdb = user.command(&binaries.program("initdb"));
    initdb.args([
        "--no-sync",
        "--username=postgres",
        "--encoding=UTF8",
        "--locale=C",
        "--auth=scram-sha-256",
    ]);
    initdb
        .arg("--pgdata")
        .arg(&data)
        .arg("--pwfile")
        .arg(&pwfile);
    checked("initdb", initdb.output())?;
    let hba = data.join("pg_hba.conf");
    fs::write(&hba, HBA).map_err(io)?;

    let mut single = user.command(&binaries.program("postgres"));
    single
        .arg("--single")
        .arg("-D")
        .arg(&data)
        .args(["-F", "postgres"]);
    let sql = format!(
        "CREATE ROLE {OWNER} LOGIN PASSWORD '{password}'\nCREATE ROLE certified LOGIN IN ROLE {OWNER}\n"
    );
    checked("postgres --single", fed(&mut single, &sql)).map(drop)
}

fn fed(command: &mut Command, input: &str) -> std::io::Result<Output> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    child.wait_with_output()
}

/// Returns 32 random hexadecimal digits for the password. During a test, further users of the
/// machine can reach the server's port.
fn random() -> std::io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
