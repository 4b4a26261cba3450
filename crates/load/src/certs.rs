//! A throw-away authority, with a certificate for a responder on this machine and one for its caller.
//!
//! The files have the names that `sealwire dev` gives them. Whoever needs certificates that last takes `sealwire certs`.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// Makes the folder and everything in it; a folder that is there stays as it is.
///
/// # Errors
/// What the file system or the maker of certificates says.
pub fn make(folder: &Path) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fill(folder)
}

/// Makes everything in a folder.
///
/// # Errors
/// As [`make`].
pub fn fill(folder: &Path) -> io::Result<()> {
    let failed = |error: rcgen::Error| io::Error::other(error);
    let mut authority = CertificateParams::new(Vec::new()).map_err(failed)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate().map_err(failed)?;
    fs::write(folder.join("ca.pem"), authority.self_signed(&key).map_err(failed)?.pem())?;
    let issuer = Issuer::new(authority, key);
    for (name, usage) in
        [("server", ExtendedKeyUsagePurpose::ServerAuth), ("client", ExtendedKeyUsagePurpose::ClientAuth)]
    {
        let mut leaf = CertificateParams::new(vec!["localhost".to_owned()]).map_err(failed)?;
        leaf.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST)));
        leaf.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(failed)?;
        let certificate = leaf.signed_by(&key, &issuer).map_err(failed)?;
        fs::write(folder.join(format!("{name}.pem")), certificate.pem())?;
        let file = folder.join(format!("{name}-key.pem"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
        file.write_all(key.serialize_pem().as_bytes())?;
    }
    Ok(())
}
