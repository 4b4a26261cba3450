//! Description of the machine and of the libraries that a result file belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::{fs, thread};

/// The versions of all crates that this program is built from.
const LOCK_FILE: &str = include_str!("../../../Cargo.lock");

/// The package whose versions count if the lock file has several of one crate.
const PACKAGE: &str = "sealwire-curves";

/// The measured crates, and the crates with the C code of two of them.
const CRATES: [&str; 13] = [
    "aes-gcm",
    "aws-lc-rs",
    "aws-lc-sys",
    "base64",
    "base64-simd",
    "data-encoding",
    "hkdf",
    "k256",
    "p256",
    "ring",
    "secp256k1",
    "secp256k1-sys",
    "sha2",
];

/// The machine and the libraries of one run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MachineInfo {
    /// The CPU's model as the kernel names it, or the architecture if it has no name.
    pub(crate) cpu: String,
    /// Number of cores that the run could use.
    pub(crate) cores: u64,
    /// A version, by the name of the library.
    pub(crate) libraries: BTreeMap<String, String>,
}

impl MachineInfo {
    /// Describes this machine. `openssl` are the libraries whose versions Cargo does not know.
    pub(crate) fn describe(openssl: impl IntoIterator<Item = (String, String)>) -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let crates = CRATES
            .iter()
            .filter_map(|name| Some(((*name).into(), locked_version(LOCK_FILE, name)?)));
        Self {
            cpu: cpu_model(&cpuinfo).unwrap_or(std::env::consts::ARCH).into(),
            cores: thread::available_parallelism().map_or(1, |cores| cores.get() as u64),
            libraries: crates.chain(openssl).collect(),
        }
    }

    /// Returns every property with its name, in the order in which a table shows them.
    pub(crate) fn properties(&self) -> Vec<(String, String)> {
        let machine = [
            ("CPU".into(), self.cpu.clone()),
            ("cores".into(), self.cores.to_string()),
        ];
        let libraries = self
            .libraries
            .iter()
            .map(|(name, version)| (name.clone(), version.clone()));
        machine.into_iter().chain(libraries).collect()
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let (_, model) = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))?;
    Some(model.trim()).filter(|model| !model.is_empty())
}

/// Returns a crate's version. If the lock file has several, it names the version among the
/// dependencies of [`PACKAGE`].
fn locked_version(lock_file: &str, name: &str) -> Option<String> {
    let mut versions = BTreeSet::new();
    for package in lock_file.split("[[package]]") {
        let value = |key: &str| {
            package.lines().find_map(|line| {
                line.strip_prefix(key)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
        };
        if value("name") == Some(PACKAGE) {
            let dependency = |line: &str| {
                let (found, version) = line
                    .trim()
                    .strip_prefix('"')?
                    .strip_suffix("\",")?
                    .split_once(' ')?;
                (found == name).then(|| version.to_owned())
            };
            if let Some(version) = package.lines().find_map(dependency) {
                return Some(version);
            }
        }
        if value("name") == Some(name) {
            versions.extend(value("version").map(String::from));
        }
    }
    (!versions.is_empty()).then(|| versions.into_iter().collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_what_the_kernel_names() {
        for (cpuinfo, model) in [
            (
                "processor\t: 0\nmodel name\t: AMD EPYC 9R14\ncpu MHz\t: 2600\n",
                Some("AMD EPYC 9R14"),
            ),
            ("processor\t: 0\nBogoMIPS\t: 243.75\n", None),
            ("model name\t: \n", None),
            ("", None),
        ] {
            assert_eq!(cpu_model(cpuinfo), model, "{cpuinfo:?}");
        }
    }

    #[test]
    fn a_version_is_that_of_this_package() {
        let lock_file = "version = 4\n\n[[package]]\nname = \"base64\"\nversion = \"0.22.1\"\n\n\
            [[package]]\nname = \"base64\"\nversion = \"0.23.1\"\n\n\
            [[package]]\nname = \"other\"\nversion = \"1.0.0\"\ndependencies = [\n \"base64 0.22.1\",\n]\n\n\
            [[package]]\nname = \"ring\"\nversion = \"0.17.14\"\n\n\
            [[package]]\nname = \"sha2\"\nversion = \"0.10.9\"\n\n[[package]]\nname = \"sha2\"\nversion = \"0.11.0\"\n\n\
            [[package]]\nname = \"sealwire-curves\"\nversion = \"0.1.0\"\ndependencies = [\n \"base64 0.23.1\",\n \
            \"ring\",\n]\n";
        for (name, version) in [
            ("base64", Some("0.23.1")),
            ("ring", Some("0.17.14")),
            ("sha2", Some("0.10.9, 0.11.0")),
            ("k256", None),
        ] {
            assert_eq!(
                locked_version(lock_file, name).as_deref(),
                version,
                "{name}"
            );
        }
    }

    #[test]
    fn every_measured_crate_has_a_version() {
        let machine = MachineInfo::describe([("openssl".into(), "OpenSSL 3.6.3".into())]);
        assert!(machine.cores > 0 && !machine.cpu.is_empty());
        assert_eq!(machine.libraries.len(), CRATES.len() + 1, "{machine:?}");
        assert_eq!(machine.properties().len(), CRATES.len() + 3);
    }
}
