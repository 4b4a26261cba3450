//! SoftHSM: a PKCS #11 module with tokens in a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::Failure;

/// Name of the environment variable with the path of the configuration file. The module reads the
/// variable when it is initialized, so a test of the module runs in a child process with this
/// variable.
pub const CONFIGURATION: &str = "SOFTHSM2_CONF";

/// A private folder with tokens, removed when dropped.
#[derive(Debug)]
pub struct SoftHsm {
    folder: TempDir,
    module: PathBuf,
}

impl SoftHsm {
    /// Creates a folder without tokens.
    ///
    /// # Errors
    /// [`Failure::MissingSoftHsm`] if SoftHSM is not installed; [`Failure::Io`].
    pub fn new() -> Result<Self, Failure> {
        let module = find_module().ok_or(Failure::MissingSoftHsm)?;
        let folder =
            tempfile::tempdir().map_err(|error| Failure::io(&std::env::temp_dir(), error))?;
        let hsm = Self { folder, module };
        let tokens = hsm.folder.path().join("tokens");
        fs::create_dir(&tokens).map_err(|error| Failure::io(&tokens, error))?;
        let text = format!(
            "directories.tokendir = {}\nobjectstore.backend = file\nlog.level = ERROR\n",
            tokens.display()
        );
        fs::write(hsm.configuration(), text)
            .map_err(|error| Failure::io(&hsm.configuration(), error))?;
        Ok(hsm)
    }

    /// Returns the path of the module, a shared library.
    #[must_use]
    pub fn module(&self) -> &Path {
        &self.module
    }

    /// Returns the path of the configuration file, for [`CONFIGURATION`].
    #[must_use]
    pub fn configuration(&self) -> PathBuf {
        self.folder.path().join("softhsm2.conf")
    }

    /// Returns the folder, for files of the test.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Creates a token with a label and a user's PIN.
    ///
    /// # Errors
    /// [`Failure::MissingSoftHsm`] if `softhsm2-util` is not installed; [`Failure::Program`] with
    /// its output.
    pub fn add_token(&self, label: &str, pin: &str) -> Result<(), Failure> {
        let program = "softhsm2-util";
        let output = Command::new(program)
            .args([
                "--init-token",
                "--free",
                "--label",
                label,
                "--so-pin",
                "security-officer",
                "--pin",
                pin,
            ])
            .env(CONFIGURATION, self.configuration())
            .output()
            .map_err(|_| Failure::MissingSoftHsm)?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(Failure::Program {
            program: program.into(),
            said: String::from_utf8_lossy(&said).into_owned(),
        })
    }
}

/// Looks where Debian, Fedora, Homebrew and SoftHSM's own build install the module.
fn find_module() -> Option<PathBuf> {
    let folders = [
        "/usr/lib/softhsm",
        "/usr/lib64/pkcs11",
        "/usr/lib/pkcs11",
        "/usr/local/lib/softhsm",
        "/opt/homebrew/lib/softhsm",
    ];
    folders
        .iter()
        .map(|folder| Path::new(folder).join("libsofthsm2.so"))
        .find(|module| module.exists())
}
