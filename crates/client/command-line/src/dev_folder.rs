//! The folder that `sealwire dev` creates: names of its files, and the addresses of its engine.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::Failure;

/// Default path of the folder.
pub const DEFAULT_PATH: &str = "sealwire-dev";
/// Name of the configuration file.
pub const CONFIG_FILE: &str = "sealwire.toml";
/// Name of the app that `sealwire dev` creates.
pub const DEMO_APP: &str = "demo";
/// File name of the client certificate, without `.pem`.
pub const CLIENT_CERT: &str = "client";
/// File name of the operator certificate, without `.pem`. The operator can change apps, keys and
/// collections.
pub const OPERATOR_CERT: &str = "operator";
/// Principal of the client certificate.
pub const CLIENT_PRINCIPAL: &str = "dev-client";
/// Principal of the operator certificate.
pub const OPERATOR_PRINCIPAL: &str = "dev-operator";
/// Role of the client.
pub const CLIENT_ROLE: &str = "relay";
/// Rejects a folder that another user owns or can write to, because that user controls its keys,
/// certificates and addresses. The default path is relative, so another user can have put the
/// folder into the working directory. Accepts a folder that does not exist.
///
/// # Errors
/// The folder cannot be trusted.
pub fn reject_untrusted(folder: &Path) -> Result<(), Failure> {
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

/// Maximum size of the configuration file in bytes, as for the engine.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// A listener of the folder's engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Listener {
    /// The listener of the data methods.
    Data,
    /// The listener of the control methods.
    Control,
}

impl Listener {
    /// The table of the configuration file with the listener's address.
    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::Data => "listen",
            Self::Control => "control",
        }
    }
}

/// Returns the address of a listener of the folder's engine. The variable that overrides the
/// configuration file takes precedence over the file.
pub(crate) fn listener_address(folder: &Path, listener: Listener) -> Result<Address, Failure> {
    let table = listener.table();
    let file = folder.join(CONFIG_FILE);
    let opened = match File::open(&file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Address::NoEngine),
        Err(error) => return Err(file_error(&file, &error).into()),
    };
    let mut text = String::new();
    opened
        .take(CONFIG_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| file_error(&file, &error))?;
    // The engine checks the whole file; only one key is read here.
    let config: toml::Table =
        toml::from_str(&text).map_err(|error| file_error(&file, &error.message()))?;
    let address = match std::env::var(format!("SEALWIRE_{}_ADDRESS", table.to_uppercase())) {
        Ok(address) => address,
        Err(_) => config
            .get(table)
            .and_then(|table| table.get("address"))
            .and_then(toml::Value::as_str)
            .unwrap_or_default()
            .to_owned(),
    };
    Ok(if address.is_empty() {
        Address::NotServed
    } else {
        Address::At(address)
    })
}

fn file_error(file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", file.display())
}

/// The address of a listener of an engine.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// The folder has no configuration file.
    NoEngine,
    /// The engine has no such listener.
    NotServed,
    /// Host and port.
    At(String),
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

    #[test]
    fn addresses_are_those_of_the_configuration_file() {
        let folder = tempfile::tempdir().unwrap();
        let found = |listener| listener_address(folder.path(), listener);
        assert_eq!(found(Listener::Data).unwrap(), Address::NoEngine);
        for (text, data, control) in [
            ("", Address::NotServed, Address::NotServed),
            (
                "[listen]\naddress = '127.0.0.1:1'\n[control]\naddress = ''\n",
                Address::At("127.0.0.1:1".to_owned()),
                Address::NotServed,
            ),
            (
                "[control]\naddress = '[::1]:2'\n",
                Address::NotServed,
                Address::At("[::1]:2".to_owned()),
            ),
        ] {
            std::fs::write(folder.path().join(CONFIG_FILE), text).unwrap();
            assert_eq!(found(Listener::Data).unwrap(), data, "{text}");
            assert_eq!(found(Listener::Control).unwrap(), control, "{text}");
        }
        let secret = "[kek]\nfile = 'hunter2\n";
        std::fs::write(folder.path().join(CONFIG_FILE), secret).unwrap();
        let error = found(Listener::Data).unwrap_err().to_string();
        assert!(
            error.contains("sealwire.toml") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
