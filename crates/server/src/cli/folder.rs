//! The folder that `sealwire dev` makes, and where things are in it.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use sealwire_crypto::{AppId, Curve, Kek};
use sealwire_store::StoreError;

use super::Failure;
use super::certs::{CA, CA_DAYS, LEAF_DAYS, issue, load_authority};
use crate::config::{Config, Environment};
use crate::pki::{self, Access, Authority, Existing, Leaf, Name, Usage, Validity};
use crate::server::open_control;

/// Where `sealwire dev` keeps everything, unless told otherwise.
pub(super) const DEFAULT: &str = "sealwire-dev";
/// The configuration in it.
pub(super) const CONFIG: &str = "sealwire.toml";
/// The app in it.
pub(super) const APP: &str = "demo";
/// The client certificate in it.
pub(super) const CLIENT: &str = "client";
const SERVER: &str = "server";
const KEK: &str = "kek";

/// Makes what is missing in the folder and loads its configuration. Existing files are kept, so keys stay.
pub(super) fn prepare(folder: &Path, listen: SocketAddr, admin: SocketAddr) -> Result<Config, Failure> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let missing = |name: &str| !folder.join(name).exists();
    if missing(KEK) {
        pki::write(&folder.join(KEK), Kek::generate_hex()?.as_bytes(), Access::Owner, Existing::Keep)?;
    }
    if missing("ca.pem") {
        let authority = Authority::create("Sealwire development", Validity::days(CA_DAYS))?;
        super::certs::write_pair(folder, CA, authority.cert_pem(), authority.key_pem())?;
    }
    for (name, usage) in [(SERVER, Usage::Server), (CLIENT, Usage::Client)] {
        if missing(&format!("{name}.pem")) {
            let names = match usage {
                Usage::Server => {
                    vec![
                        Name::Dns("localhost".into()),
                        Name::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                        Name::Ip(listen.ip()),
                    ]
                }
                Usage::Client => vec![Name::Dns("dev-client".into())],
            };
            let leaf = Leaf { common_name: name.into(), names, usage, validity: Validity::days(LEAF_DAYS) };
            issue(folder, name, &load_authority(folder)?, &leaf)?;
        }
    }
    if missing(CONFIG) {
        let text = format!(
            "# Made by `sealwire dev`. `sealwire reference` prints every key with its unit, range and default.\n\
             [listen]\naddress = \"{listen}\"\n\n[admin]\naddress = \"{admin}\"\n\n\
             [tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\nclient_ca = \"ca.pem\"\n\n\
             [state]\nmode = \"stateless\"\nfile = \"apps.json\"\n\n[kek]\nprovider = \"file\"\nfile = \"{KEK}\"\n"
        );
        pki::write(&folder.join(CONFIG), text.as_bytes(), Access::Owner, Existing::Keep)?;
    }
    let config = Config::load(&folder.join(CONFIG), &Environment::of_process())?;
    Ok(config)
}

/// Makes the app of a folder that was prepared, if it is not there.
pub(super) async fn create_app(config: &Config) -> Result<(), Failure> {
    let (control, stores) = open_control(config).await?;
    let made = control.create(&AppId::new(APP)?, &Curve::ALL).await;
    stores.close().await;
    match made {
        Ok(_) | Err(StoreError::Exists { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Where the engine of this folder listens, if the folder has a configuration.
pub(super) fn listen_address(folder: &Path) -> Result<Option<SocketAddr>, Failure> {
    let file: PathBuf = folder.join(CONFIG);
    match std::fs::metadata(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(Config::load(&file, &Environment::of_process())?.listen.address)),
    }
}
