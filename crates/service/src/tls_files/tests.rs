use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use sealwire_dev_ca::{Authority, Leaf, Name, Usage, Validity};

use super::*;

/// A folder with an authority, a client certificate, its key, and the key of another certificate.
struct Folder(tempfile::TempDir);

impl Folder {
    fn create() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        let authority = Authority::create("clients", Validity::days(1)).unwrap();
        folder.write("ca.pem", authority.cert_pem(), 0o644);
        for name in ["client", "other"] {
            let leaf = Leaf {
                common_name: name.into(),
                names: vec![Name::Dns("client.example".into())],
                usage: Usage::Client,
                validity: Validity::days(1),
            };
            let issued = authority.issue(&leaf).unwrap();
            folder.write(&format!("{name}.pem"), &issued.cert_pem, 0o644);
            folder.write(&format!("{name}-key.pem"), issued.key_pem.expose(), 0o600);
        }
        folder
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>, mode: u32) {
        let file = self.path(name);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, certificate: &str, key: &str) -> Result<ClientConfig, TlsFileError> {
        let (certificate, key) = (self.path(certificate), self.path(key));
        client_config(Some(&self.path("ca.pem")), Some((&certificate, &key)))
    }

    /// Checks that the files are rejected, and that the error names the file and quotes nothing.
    fn rejects(&self, certificate: &str, key: &str, file: &str, reason: &str) {
        let error = self.config(certificate, key).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.file(), self.path(file));
        assert!(text.contains(file) && text.contains(reason), "{text}");
        assert!(!text.contains("BEGIN") && !text.contains("MII"), "{text}");
    }
}

#[test]
fn client_config_takes_a_pair_and_no_other() {
    let folder = Folder::create();
    folder.write("empty.pem", "", 0o600);
    folder.write("cut.pem", "-----BEGIN CERTIFICATE-----\nMII", 0o600);
    folder.write("long.pem", vec![b'\n'; PEM_BYTES_MAX as usize + 1], 0o600);
    let key = fs::read_to_string(folder.path("client-key.pem")).unwrap();
    folder.write("shown-key.pem", &key, 0o644);
    folder.write("cut-key.pem", &key[..key.len() / 2], 0o600);

    assert!(folder.config("client.pem", "client-key.pem").is_ok());
    for (certificate, key, file, reason) in [
        (
            "client.pem",
            "other-key.pem",
            "other-key.pem",
            "is not the key of",
        ),
        ("client.pem", "shown-key.pem", "shown-key.pem", "mode 644"),
        (
            "client.pem",
            "cut-key.pem",
            "cut-key.pem",
            "PEM private key",
        ),
        (
            "client.pem",
            "client.pem",
            "client.pem",
            "other users can read or change it",
        ),
        ("client.pem", "absent.pem", "absent.pem", "No such file"),
        (
            "empty.pem",
            "client-key.pem",
            "empty.pem",
            "contains no PEM certificate",
        ),
        ("cut.pem", "client-key.pem", "cut.pem", "PEM certificate"),
        (
            "long.pem",
            "client-key.pem",
            "long.pem",
            "must have at most 4194304 bytes",
        ),
    ] {
        folder.rejects(certificate, key, file, reason);
    }
}

#[test]
fn files_that_state_no_length_are_read_and_folders_are_not() {
    // Files of /proc have a length of 0.
    assert!(!read_pem(Path::new("/proc/self/status")).unwrap().is_empty());
    let error = read_pem(Path::new("/proc/self")).unwrap_err().to_string();
    assert!(error.contains("must be a regular file"), "{error}");
}

#[test]
fn content_digest_follows_contents_and_not_times() {
    let folder = Folder::create();
    let files = [folder.path("client.pem"), folder.path("client-key.pem")];
    let digest = || ContentDigest::of(files.iter().map(PathBuf::as_path));
    let first = digest();
    assert_eq!(first, digest());
    assert_eq!(format!("{first:?}"), "ContentDigest");

    // Of the same length and within one tick of the clock.
    let content = fs::read(&files[0]).unwrap();
    let mut changed = content.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&files[0], &changed).unwrap();
    assert!(digest() != first);
    fs::remove_file(&files[0]).unwrap();
    assert!(digest() != first);
    fs::write(&files[0], &content).unwrap();
    assert_eq!(digest(), first);
}
