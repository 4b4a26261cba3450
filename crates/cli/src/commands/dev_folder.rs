//! The folder that `sealwire dev` creates, with the files of a development engine.

use std::fs::DirBuilder;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

pub(super) use sealwire_command_line::dev_folder::{
    CLIENT_CERT, CLIENT_PRINCIPAL, CLIENT_ROLE, CONFIG_FILE, DEFAULT_PATH, DEMO_APP, OPERATOR_CERT,
    OPERATOR_PRINCIPAL, reject_untrusted,
};
use sealwire_crypto::Kek;

use super::Failure;
use super::certs::{
    CA, CA_DAYS, JWKS_FILE, LEAF_DAYS, TOKEN_AUDIENCE, TOKEN_ISSUER, issue_certificate,
    load_authority, load_token_issuer,
};
use sealwire_dev_ca::{Access, Authority, Existing, Leaf, Name, TokenClaims, Usage, Validity};
use sealwire_settings::Config;

/// File name of the engine's certificate, without `.pem`.
const SERVER_CERT: &str = "server";
/// Name of the file with the key-encryption key.
const KEK_FILE: &str = "kek";

/// Name of the issuer of tokens in the configuration.
pub(super) const ISSUER_NAME: &str = "dev";
/// File with a token of a client.
pub(super) const TOKEN_FILE: &str = "token";
/// The principal of that token.
pub(super) const TOKEN_PRINCIPAL: &str = "jwt:dev:client";
/// The claim `sub` of that token.
const TOKEN_SUBJECT: &str = "client";

/// Listen addresses of the folder's engine. A new folder stores them; for an existing folder they
/// apply to this run only.
pub(super) struct ListenAddresses {
    pub(super) listen: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
    pub(super) control: Option<SocketAddr>,
    pub(super) http: Option<SocketAddr>,
}

impl ListenAddresses {
    fn or_default(&self) -> [SocketAddr; 4] {
        [
            (self.listen, 7_443),
            (self.admin, 7_444),
            (self.control, 7_445),
            (self.http, 7_446),
        ]
        .map(|(given, port)| given.unwrap_or((Ipv4Addr::LOCALHOST, port).into()))
    }
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
    if !folder.join(KEK_FILE).exists() {
        sealwire_dev_ca::write(
            &folder.join(KEK_FILE),
            Kek::generate_hex()?.as_bytes(),
            Access::Owner,
            Existing::Keep,
        )?;
    }
    if !folder.join("ca.pem").exists() {
        let authority = Authority::create("Sealwire development", Validity::days(CA_DAYS))?;
        super::certs::write_pair(folder, CA, authority.cert_pem(), authority.key_pem())?;
    }
    let loopback = Name::Ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let [listen, admin, control, http] = addresses.or_default();
    let server_names = vec![
        Name::Dns("localhost".into()),
        loopback,
        Name::Ip(listen.ip()),
        Name::Ip(control.ip()),
        Name::Ip(http.ip()),
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
        if !folder.join(format!("{name}.pem")).exists() {
            let leaf = Leaf {
                common_name: name.into(),
                names,
                usage,
                validity: Validity::days(LEAF_DAYS),
            };
            issue_certificate(folder, name, &load_authority(folder)?, &leaf)?;
        }
    }
    if !folder.join(TOKEN_FILE).exists() {
        let claims = TokenClaims {
            issuer: TOKEN_ISSUER,
            subject: TOKEN_SUBJECT,
            audience: TOKEN_AUDIENCE,
            days: LEAF_DAYS,
        };
        let token = load_token_issuer(folder)?.issue(&claims)?;
        sealwire_dev_ca::write(
            &folder.join(TOKEN_FILE),
            token.as_bytes(),
            Access::Owner,
            Existing::Keep,
        )?;
    }
    if !folder.join(CONFIG_FILE).exists() {
        let text = format!(
            "# Created by `sealwire dev`. `sealwire config template` prints every key with its unit, range and default.\n\
             [listen]\naddress = \"{listen}\"\n\n[http]\naddress = \"{http}\"\n\n[admin]\naddress = \"{admin}\"\n\n\
             [control]\naddress = \"{control}\"\nprincipals = [\"{OPERATOR_PRINCIPAL}\"]\n\n\
             [access]\nadministrators = [\"{OPERATOR_PRINCIPAL}\"]\n\n\
             [tls]\ncertificate = \"server.pem\"\nkey = \"server-key.pem\"\nclient_ca = \"ca.pem\"\n\n\
             [state]\nfolder = \"state\"\n\n[kek]\nprovider = \"file\"\nfile = \"{KEK_FILE}\"\n\n[audit]\nfolder = \"audit\"\n\n\
             [issuer.{ISSUER_NAME}]\nissuer = \"{TOKEN_ISSUER}\"\naudiences = [\"{TOKEN_AUDIENCE}\"]\njwks_file = \"{JWKS_FILE}\"\n"
        );
        sealwire_dev_ca::write(
            &folder.join(CONFIG_FILE),
            text.as_bytes(),
            Access::Owner,
            Existing::Keep,
        )?;
    }
    let mut config = super::load_config(&folder.join(CONFIG_FILE))?;
    config.listen.address = addresses.listen.or(config.listen.address);
    config.http.address = addresses.http.or(config.http.address);
    config.admin.address = addresses.admin.unwrap_or(config.admin.address);
    if let Some(control) = &mut config.control {
        control.address = addresses.control.unwrap_or(control.address);
    }
    Ok(config)
}
