//! A temporary certificate authority, with one server certificate for this machine and one client
//! certificate.
//!
//! The files have the same names as those of `sealwire dev`. For lasting certificates use
//! `sealwire certs`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// Creates the folder and its files. Leaves an existing folder unchanged.
///
/// # Errors
/// Returns errors of the file system and of certificate generation.
pub fn make(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    fill(folder)
}

/// Creates the certificate and key files in an existing folder.
///
/// # Errors
/// Same as [`make`].
pub fn fill(folder: &Path) -> io::Result<()> {
    let failed = |error: rcgen::Error| io::Error::other(error);
    let mut authority = CertificateParams::new(Vec::new()).map_err(failed)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().map_err(failed)?;
    fs::write(
        folder.join("ca.pem"),
        authority.self_signed(&key).map_err(failed)?.pem(),
    )?;
    let issuer = Issuer::new(authority, key);
    for (name, usage) in [
        ("server", ExtendedKeyUsagePurpose::ServerAuth),
        ("client", ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let mut leaf = CertificateParams::new(vec!["localhost".to_owned()]).map_err(failed)?;
        leaf.subject_alt_names
            .push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        leaf.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = leaf.signed_by(&key, &issuer).map_err(failed)?;
        fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
        let file = folder.join(format!("{name}-key.pem"));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)?;
        file.write_all(key.serialize_pem().as_bytes())?;
    }
    Ok(())
}
