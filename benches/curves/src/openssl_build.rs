//! Description of the OpenSSL that this program is linked with.
//!
//! `openssl version -a` does not list the options of a build. The option
//! `enable-ec_nistp_64_gcc_128` adds functions to libcrypto, so the symbols of the linked file show
//! the option.

use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use object::{Object as _, ObjectSymbol as _};

use crate::run::target;

/// A function that only a build with the option has. OpenSSL's table of curves refers to it, so a
/// static link keeps it.
const OPTION_SYMBOL: &str = "EC_GFp_nistp521_method";

/// A function of every build. A file without it has no symbols to judge by.
const ANY_SYMBOL: &str = "EC_GROUP_new_by_curve_name";

/// The kind of OpenSSL library in this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// The shared library of the system.
    Shared,
    /// A static library that `OPENSSL_STATIC` and `OPENSSL_LIB_DIR` name.
    Static,
    /// The library that Cargo builds from downloaded source.
    Vendored,
}

impl Linkage {
    /// Decides from the memory map of this program, and from the environment in which it was
    /// compiled.
    fn of(maps: &str, static_variable: Option<&str>, vendored: bool) -> Self {
        match static_variable {
            _ if maps.lines().any(is_libcrypto) => Self::Shared,
            Some(value) if value != "0" && !vendored => Self::Static,
            _ => Self::Vendored,
        }
    }
}

/// A build of OpenSSL. Displays as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSslBuild {
    /// The version, as OpenSSL reports it.
    pub version: String,
    /// The kind of library.
    pub linkage: Linkage,
    /// True if the build has the option `enable-ec_nistp_64_gcc_128`. `None` if its symbols do not
    /// tell.
    pub has_nistp_64: Option<bool>,
}

impl OpenSslBuild {
    /// Describes the OpenSSL of this program.
    ///
    /// # Errors
    /// If the memory map or the linked file cannot be read.
    pub fn of_this_program() -> io::Result<Self> {
        let maps = fs::read_to_string("/proc/self/maps")?;
        let linked = match maps
            .lines()
            .find(|line| is_libcrypto(line))
            .and_then(|line| line.find('/').map(|at| &line[at..]))
        {
            Some(library) => PathBuf::from(library),
            None => std::env::current_exe()?,
        };
        Ok(Self {
            version: openssl::version::version().into(),
            linkage: Linkage::of(
                &maps,
                option_env!("OPENSSL_STATIC"),
                cfg!(feature = "rivals"),
            ),
            has_nistp_64: has_option(&fs::read(linked)?),
        })
    }

    /// Keeps the description for the report, which another program writes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_as_system(&self) -> io::Result<()> {
        let file = system_file();
        file.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(file, self.to_string())
    }
}

impl fmt::Display for OpenSslBuild {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let linkage = match self.linkage {
            Linkage::Shared => "shared library",
            Linkage::Static => "static library",
            Linkage::Vendored => "vendored",
        };
        let option = match self.has_nistp_64 {
            Some(true) => "with ec_nistp_64_gcc_128",
            Some(false) => "without ec_nistp_64_gcc_128",
            None => "ec_nistp_64_gcc_128 unknown",
        };
        write!(f, "{}, {linkage}, {option}", self.version)
    }
}

/// Returns the saved description of the system's OpenSSL, if its bench has run.
pub(crate) fn saved_system() -> Option<String> {
    fs::read_to_string(system_file()).ok()
}

fn system_file() -> PathBuf {
    target().join("curves/openssl_system.txt")
}

/// Returns true if a line of a memory map is of OpenSSL's shared library.
fn is_libcrypto(line: &str) -> bool {
    let name = line
        .split_whitespace()
        .next_back()
        .map(Path::new)
        .and_then(Path::file_name);
    name.and_then(|name| name.to_str())
        .is_some_and(|name| name.starts_with("libcrypto.so"))
}

/// Returns true if the library or the program in `file` has the option, and `None` if it has no
/// symbols of OpenSSL.
fn has_option(file: &[u8]) -> Option<bool> {
    let file = object::File::parse(file).ok()?;
    let has = |wanted: &str| {
        file.symbols()
            .chain(file.dynamic_symbols())
            .any(|symbol| symbol.name() == Ok(wanted))
    };
    has(ANY_SYMBOL).then(|| has(OPTION_SYMBOL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: &str =
        "7f00-7f01 r-xp 00000000 08:01 42   /usr/lib/x86_64-linux-gnu/libcrypto.so.3\n";
    const OTHER: &str = "7f00-7f01 r-xp 00000000 08:01 42   /usr/lib/x86_64-linux-gnu/libc.so.6\n7f02-7f03 rw-p 0 0 0\n";

    #[test]
    fn the_linkage_is_that_of_the_map_or_of_the_environment() {
        for (maps, static_variable, vendored, linkage) in [
            (SHARED, None, false, Linkage::Shared),
            (SHARED, Some("1"), false, Linkage::Shared),
            (OTHER, Some("1"), false, Linkage::Static),
            (OTHER, Some("1"), true, Linkage::Vendored),
            (OTHER, Some("0"), false, Linkage::Vendored),
            (OTHER, None, false, Linkage::Vendored),
            ("", None, false, Linkage::Vendored),
        ] {
            assert_eq!(
                Linkage::of(maps, static_variable, vendored),
                linkage,
                "{maps} {static_variable:?} {vendored}"
            );
        }
    }

    #[test]
    fn a_description_is_one_line() {
        for (linkage, has_nistp_64, text) in [
            (
                Linkage::Shared,
                Some(true),
                "OpenSSL 3.0.19, shared library, with ec_nistp_64_gcc_128",
            ),
            (
                Linkage::Static,
                Some(false),
                "OpenSSL 3.0.19, static library, without ec_nistp_64_gcc_128",
            ),
            (
                Linkage::Vendored,
                None,
                "OpenSSL 3.0.19, vendored, ec_nistp_64_gcc_128 unknown",
            ),
        ] {
            assert_eq!(
                OpenSslBuild {
                    version: "OpenSSL 3.0.19".into(),
                    linkage,
                    has_nistp_64
                }
                .to_string(),
                text
            );
        }
    }

    #[test]
    fn what_has_no_symbols_of_openssl_is_unknown() {
        assert_eq!(has_option(b""), None);
        assert_eq!(has_option(b"no program"), None);
        assert_eq!(has_option(&fs::read("/bin/true").unwrap()), None);
    }

    /// `.cargo/config.toml` names the script that configures the vendored OpenSSL, which leaves the
    /// option at its default.
    #[cfg(feature = "rivals")]
    #[test]
    fn the_vendored_openssl_lacks_the_option() {
        let build = OpenSslBuild::of_this_program().unwrap();
        assert_eq!(
            (build.linkage, build.has_nistp_64),
            (Linkage::Vendored, Some(false)),
            "{build}"
        );
    }
}
