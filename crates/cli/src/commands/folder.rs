//! The folder that `sealwire dev` makes, and the names of its files.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sealwire_crypto::Kek;

use super::Failure;
use super::certs::{CA, CA_DAYS, LEAF_DAYS, issue, load_authority};
use sealwire_config::{Config, Environment};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity};

/// Default folder of `sealwire dev`.
pub(super) const DEFAULT: &str = "sealwire-dev";
/// The folder's configuration file.
pub(super) const CONFIG: &str = "sealwire.toml";
/// The folder's app.
pub(super) const APP: &str = "demo";
/// The folder's client certificate.
pub(super) const CLIENT: &str = "client";
/// The folder's operator certificate, which can change apps, keys and collections.
pub(super) const OPERATOR: &str = "operator";
/// Names of the two certificates.
pub(super) const CLIENT_NAME: &str = "dev-client";
pub(super) const OPERATOR_NAME: &str = "dev-operator";
/// The role of the client.
pub(super) const CLIENT_ROLE: &str = "relay";
const SERVER: &str = "server";
const KEK: &str = "kek";

/// Listen addresses of the folder's engine. A new folder stores them; for an existing folder they apply to this run
/// only.
pub(super) struct Addresses {
    pub(super) listen: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) control: Option<SocketAddr>,
}

impl Addresses {
    fn or_default(&self) -> [SocketAddr; 3] {
        let port = |given: Option<SocketAddr>, port| given.unwrap_or((Ipv4Addr::LOCALHOST, port).into());
        [port(self.listen, 7_443), port(self.admin, 7_444), port(self.control, 7_445)]
    }
}

/// Rejects a folder that another user owns or can write, because that user controls its keys, certificates and
/// addresses. A relative folder can exist in any working directory.
pub(super) fn refuse_foreign(folder: &Path) -> Result<(), Failure> {
    refuse_foreign_to(folder, rustix::process::geteuid().as_raw())
}

fn refuse_foreign_to(folder: &Path, user: u32) -> Result<(), Failure> {
    let (Ok(named), Ok(found)) = (std::fs::symlink_metadata(folder), std::fs::metadata(folder)) else { return Ok(()) };
    let mode = found.mode();
    // Accepts group write if the gid equals the uid, which is the user's private group on many systems.
    let others_write = mode & 0o002 != 0 || (mode & 0o020 != 0 && found.gid() != found.uid());
    let is_own = [&named, &found].iter().all(|one| [user, 0].contains(&one.uid()));
    if !is_own || others_write {
        let folder = folder.display();
        let said = format!(
            "{folder} belongs to another user, or others may write to it: name a folder of your own with --folder"
        );
        return Err(said.into());
    }
    Ok(())
}

/// Creates the missing files of the folder and loads its configuration. Existing files are kept, so keys stay.
pub(super) fn prepare(folder: &Path, at: &Addresses) -> Result<Config, Failure> {
    refuse_foreign(folder)?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    // Another user can have created the folder since the first check.
    refuse_foreign(folder)?;
    let missing = |name: &str| !folder.join(name).exists();
    if missing(KEK) {
        sealwire_dev_ca::write(&folder.join(KEK), Kek::generate_hex()?.as_bytes(), Access::Owner, Existing::Keep)?;
    }
    if missing("ca.pem") {
        let authority = Authority::create("Sealwire development", Validity::days(CA_DAYS))?;
        super::certs::write_pair(folder, CA, authority.cert_pem(), authority.key_pem())?;
    }
    let loopback = Name::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let [listen, admin, control] = at.or_default();
    let server = vec![Name::Dns("localhost".into()), loopback, Name::Ip(listen.ip()), Name::Ip(control.ip())];
    let certificates = [
        (SERVER, Usage::Server, server),
        (CLIENT, Usage::Client, vec![Name::Dns(CLIENT_NAME.into())]),
        (OPERATOR, Usage::Client, vec![Name::Dns(OPERATOR_NAME.into())]),
    ];
    for (name, usage, names) in certificates {
        if missing(&format!("{name}.pem")) {
            let leaf = Leaf { common_name: name.into(), names, usage, validity: Validity::days(LEAF_DAYS) };
            issue(folder, name, &load_authority(folder)?, &leaf)?;
        }
    }
    if missing(CONFIG) {
        let text = format!(
            "# Made by `sealwire dev`. `sealwire config template` prints every key with its unit, range and default.\n\
             [listen]\naddress = \"{listen}\"\n\n[admin]\naddress = \"{admin}\"\n\n\
             [control]\naddress = \"{control}\"\nprincipals = [\"{OPERATOR_NAME}\"]\n\n\
             [access]\nadministrators = [\"{OPERATOR_NAME}\"]\n\n\
             [tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\nclient_ca = \"ca.pem\"\n\n\
             [state]\nfolder = \"state\"\n\n[kek]\nprovider = \"file\"\nfile = \"{KEK}\"\n\n[audit]\nfolder = \"audit\"\n"
        );
        sealwire_dev_ca::write(&folder.join(CONFIG), text.as_bytes(), Access::Owner, Existing::Keep)?;
    }
    let mut config = Config::load(&folder.join(CONFIG), &Environment::of_process())?;
    config.listen.address = at.listen.or(config.listen.address);
    config.admin.address = at.admin.unwrap_or(config.admin.address);
    if let Some(listens) = &mut config.control {
        listens.address = at.control.unwrap_or(listens.address);
    }
    Ok(config)
}

/// Loads the configuration of this folder, if it has one.
pub(super) fn config(folder: &Path) -> Result<Option<Config>, Failure> {
    let file: PathBuf = folder.join(CONFIG);
    match std::fs::metadata(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(Config::load(&file, &Environment::of_process())?)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_folder_of_somebody_else_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let found = folder.path().metadata().unwrap();
        let (own, own_group) = (found.uid(), found.gid() == found.uid());
        refuse_foreign_to(folder.path(), own).unwrap();
        refuse_foreign_to(&folder.path().join("nowhere"), own + 1).unwrap();
        // Folders of root are always trusted.
        assert_eq!(refuse_foreign_to(folder.path(), own + 1).is_ok(), own == 0);
        for (mode, is_trusted) in [(0o700, true), (0o755, true), (0o775, own_group), (0o777, false), (0o702, false)] {
            set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(refuse_foreign_to(folder.path(), own).is_ok(), is_trusted, "{mode:o}");
        }
    }
}
