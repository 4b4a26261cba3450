//! The folder that `sealwire dev` creates, with the files of a development engine.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use sealwire_crypto::Kek;

use super::Failure;
use super::certs::{CA, CA_DAYS, LEAF_DAYS, issue, load_authority};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, Usage, Validity};
use sealwire_settings::{Config, Environment};

/// Default path of the folder.
pub(super) const DEFAULT_PATH: &str = "sealwire-dev";
/// Name of the configuration file.
pub(super) const CONFIG_FILE: &str = "sealwire.toml";
/// Name of the app that `sealwire dev` creates.
pub(super) const DEMO_APP: &str = "demo";
/// File name of the client certificate, without `.pem`.
pub(super) const CLIENT_CERT: &str = "client";
/// File name of the operator certificate, without `.pem`. The operator can change apps, keys and
/// collections.
pub(super) const OPERATOR_CERT: &str = "operator";
/// Principal of the client certificate.
pub(super) const CLIENT_PRINCIPAL: &str = "dev-client";
/// Principal of the operator certificate.
pub(super) const OPERATOR_PRINCIPAL: &str = "dev-operator";
/// Role of the client.
pub(super) const CLIENT_ROLE: &str = "relay";
/// File name of the engine's certificate, without `.pem`.
const SERVER_CERT: &str = "server";
/// Name of the file with the key-encryption key.
const KEK_FILE: &str = "kek";

/// Listen addresses of the folder's engine. A new folder stores them; for an existing folder they
/// apply to this run only.
pub(super) struct ListenAddresses {
    pub(super) listen: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) control: Option<SocketAddr>,
}

impl ListenAddresses {
    fn or_default(&self) -> [SocketAddr; 3] {
        let or_port =
            |given: Option<SocketAddr>, port| given.unwrap_or((Ipv4Addr::LOCALHOST, port).into());
        [
            or_port(self.listen, 7_443),
            or_port(self.admin, 7_444),
            or_port(self.control, 7_445),
        ]
    }
}

/// Rejects a folder that another user owns or can write to, because that user controls its keys,
/// certificates and addresses. The default path is relative, so another user can have put the
/// folder into the working directory. Accepts a folder that does not exist.
pub(super) fn reject_untrusted(folder: &Path) -> Result<(), Failure> {
    reject_untrusted_for(folder, rustix::process::geteuid().as_raw())
}

fn reject_untrusted_for(folder: &Path, user: u32) -> Result<(), Failure> {
    let (Ok(link), Ok(target)) = (std::fs::symlink_metadata(folder), std::fs::metadata(folder))
    else {
        return Ok(());
    };
    let mode = target.mode();
    // Accepts group write if the gid equals the uid, which is the user's private group on many
    // systems.
    let others_can_write = mode & 0o002 != 0 || (mode & 0o020 != 0 && target.gid() != target.uid());
    let is_owner_trusted = [&link, &target]
        .iter()
        .all(|metadata| [user, 0].contains(&metadata.uid()));
    if !is_owner_trusted || others_can_write {
        let folder = folder.display();
        let message = format!(
            "{folder} belongs to another user, or other users can write to it: give a folder of your own with --folder"
        );
        return Err(message.into());
    }
    Ok(())
}

/// Creates the missing files of the folder and loads its configuration. Existing files, such as
/// keys, are kept.
pub(super) fn create_and_load(
    folder: &Path,
    addresses: &ListenAddresses,
) -> Result<Config, Failure> {
    reject_untrusted(folder)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|e| format!("{}: {e}", folder.display()))?;
    // Checks again, because another user can have created the folder since the first check.
    reject_untrusted(folder)?;
    let missing = |name: &str| !folder.join(name).exists();
    if missing(KEK_FILE) {
        sealwire_dev_ca::write(
            &folder.join(KEK_FILE),
            Kek::generate_hex()?.as_bytes(),
            Access::Owner,
            Existing::Keep,
        )?;
    }
    if missing("ca.pem") {
        let authority = Authority::create("Sealwire development", Validity::days(CA_DAYS))?;
        super::certs::write_pair(folder, CA, authority.cert_pem(), authority.key_pem())?;
    }
    let loopback = Name::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let [listen, admin, control] = addresses.or_default();
    let server_names = vec![
        Name::Dns("localhost".into()),
        loopback,
        Name::Ip(listen.ip()),
        Name::Ip(control.ip()),
    ];
    let certificates = [
        (SERVER_CERT, Usage::Server, server_names),
        (
            CLIENT_CERT,
            Usage::Client,
            vec![Name::Dns(CLIENT_PRINCIPAL.into())],
        ),
        (
            OPERATOR_CERT,
            Usage::Client,
            vec![Name::Dns(OPERATOR_PRINCIPAL.into())],
        ),
    ];
    for (name, usage, names) in certificates {
        if missing(&format!("{name}.pem")) {
            let leaf = Leaf {
                common_name: name.into(),
                names,
                usage,
                validity: Validity::days(LEAF_DAYS),
            };
            issue(folder, name, &load_authority(folder)?, &leaf)?;
        }
    }
    if missing(CONFIG_FILE) {
        let text = format!(
            "# Created by `sealwire dev`. `sealwire config template` prints every key with its unit, range and default.\n\
             [listen]\naddress = \"{listen}\"\n\n[admin]\naddress = \"{admin}\"\n\n\
             [control]\naddress = \"{control}\"\nprincipals = [\"{OPERATOR_PRINCIPAL}\"]\n\n\
             [access]\nadministrators = [\"{OPERATOR_PRINCIPAL}\"]\n\n\
             [tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\nclient_ca = \"ca.pem\"\n\n\
             [state]\nfolder = \"state\"\n\n[kek]\nprovider = \"file\"\nfile = \"{KEK_FILE}\"\n\n[audit]\nfolder = \"audit\"\n"
        );
        sealwire_dev_ca::write(
            &folder.join(CONFIG_FILE),
            text.as_bytes(),
            Access::Owner,
            Existing::Keep,
        )?;
    }
    let mut config = Config::load(&folder.join(CONFIG_FILE), &Environment::of_process())?;
    config.listen.address = addresses.listen.or(config.listen.address);
    config.admin.address = addresses.admin.unwrap_or(config.admin.address);
    if let Some(control) = &mut config.control {
        control.address = addresses.control.unwrap_or(control.address);
    }
    Ok(config)
}

/// Loads the configuration of this folder, if it has one.
pub(super) fn load_config(folder: &Path) -> Result<Option<Config>, Failure> {
    let file: PathBuf = folder.join(CONFIG_FILE);
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
    fn a_folder_that_another_user_controls_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let metadata = folder.path().metadata().unwrap();
        let (owner, has_private_group) = (metadata.uid(), metadata.gid() == metadata.uid());
        reject_untrusted_for(folder.path(), owner).unwrap();
        reject_untrusted_for(&folder.path().join("nowhere"), owner + 1).unwrap();
        // Folders of root are always trusted.
        assert_eq!(
            reject_untrusted_for(folder.path(), owner + 1).is_ok(),
            owner == 0
        );
        for (mode, is_trusted) in [
            (0o700, true),
            (0o755, true),
            (0o775, has_private_group),
            (0o777, false),
            (0o702, false),
        ] {
            set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                reject_untrusted_for(folder.path(), owner).is_ok(),
                is_trusted,
                "{mode:o}"
            );
        }
    }
}
