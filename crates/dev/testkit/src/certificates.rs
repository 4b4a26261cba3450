//! A fresh authority, a server certificate for loopback, and a client certificate for one name.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Files of a throw-away authority, in PEM.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// The authority's certificate, which the peer trusts.
    pub ca: PathBuf,
    /// The server's certificate, for `localhost`, 127.0.0.1 and ::1.
    pub server: PathBuf,
    /// The server's key, mode 0600.
    pub server_key: PathBuf,
    /// The client's certificate, with a chosen common name.
    pub client: PathBuf,
    /// The client's key, mode 0600.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes the files in `folder`, which must exist.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn make(folder: &Path, client_name: &str) -> io::Result<Self> {
        let (issuer, ca_pem) = authority().map_err(io::Error::other)?;
        let server = leaf(
            &issuer,
            "localhost",
            &["localhost", "127.0.0.1", "::1"],
            ExtendedKeyUsagePurpose::ServerAuth,
        );
        let (server_pem, server_key_pem) = server.map_err(io::Error::other)?;
        let client = leaf(
            &issuer,
            client_name,
            &[],
            ExtendedKeyUsagePurpose::ClientAuth,
        );
        let (client_pem, client_key_pem) = client.map_err(io::Error::other)?;
        Ok(Self {
            ca: write(folder, "ca.pem", &ca_pem)?,
            server: write(folder, "server.pem", &server_pem)?,
            server_key: write(folder, "server-key.pem", &server_key_pem)?,
            client: write(folder, "client.pem", &client_pem)?,
            client_key: write(folder, "client-key.pem", &client_key_pem)?,
        })
    }
}

fn authority() -> Result<(Issuer<'static, KeyPair>, String), rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "throw-away authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate()?;
    let pem = params.self_signed(&key)?.pem();
    Ok((Issuer::new(params, key), pem))
}

/// Makes a certificate and its key, in PEM.
fn leaf(
    issuer: &Issuer<'static, KeyPair>,
    common_name: &str,
    names: &[&str],
    usage: ExtendedKeyUsagePurpose,
) -> Result<(String, String), rcgen::Error> {
    let mut params =
        CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![usage];
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, issuer)?.pem(), key.serialize_pem()))
}

fn write(folder: &Path, name: &str, pem: &str) -> io::Result<PathBuf> {
    let path = folder.join(name);
    fs::write(&path, pem)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}
