//! Reads the key-encryption key of a configuration.

use sealwire_crypto::Kek;
use sealwire_kek::ProviderError;
use zeroize::Zeroizing;

/// The key-encryption key cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("kek: {0}")]
pub struct KekError(pub(crate) String);

/// Reads the key-encryption key that a configuration names. The text is wiped; errors never repeat
/// it. Blocks on the file system, as all reads of a start do.
///
/// # Errors
///
/// The file or the variable cannot be read, or does not hold a key. The file is not regular, or
/// longer than [`sealwire_kek::SECRET_FILE_BYTES_MAX`].
pub fn read_kek(from: &sealwire_settings::KekSource) -> Result<Kek, KekError> {
    let (place, bytes) = match from {
        // Errors of the reader name the file.
        sealwire_settings::KekSource::File(path) => (
            path.display().to_string(),
            sealwire_kek::read_secret_file(path).map_err(|error| match error {
                ProviderError::NotFound(_) => KekError(format!(
                    "{}: the file of the setting kek.file does not exist. Restore it, or correct the setting. No other key \
                     opens the stored keys",
                    path.display()
                )),
                error => KekError(error.to_string()),
            })?,
        ),
        sealwire_settings::KekSource::Environment(name) => {
            let place = format!("environment variable {name}");
            let text = std::env::var(name)
                .map_err(|_| KekError(format!("{place} of the setting kek.env_var is not set, or not UTF-8 text. Set it to the same key as before: no other key opens the stored keys")))?;
            (place, Zeroizing::new(text.into_bytes()))
        }
    };

    let text =
        std::str::from_utf8(&bytes).map_err(|_| KekError(format!("{place}: must be text")))?;
    Kek::from_hex(text).map_err(|error| KekError(format!("{place}: {error}")))
}

#[cfg(test)]
mod tests {
    use sealwire_settings::KekSource;

    use super::*;

    #[test]
    fn a_key_is_read_from_a_short_regular_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kek.key");
        let read = || {
            read_kek(&KekSource::File(path.clone()))
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let missing = read().unwrap_err();
        assert!(
            missing.starts_with(&format!("kek: {}: ", path.display())),
            "{missing}"
        );
        std::fs::write(&path, format!("{}\n", *Kek::generate_hex().unwrap())).unwrap();
        let chmod = |mode| {
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode))
                .unwrap()
        };
        for mode in [0o644, 0o660, 0o604] {
            chmod(mode);
            let exposed = read().unwrap_err();
            assert!(
                exposed.contains(&format!("mode {mode:o}")) && exposed.contains("run `chmod 600 "),
                "{exposed}"
            );
        }
        chmod(0o600);
        assert_eq!(read(), Ok(()));
        std::fs::write(&path, [0xff; 64]).unwrap();
        assert!(read().unwrap_err().ends_with("must be text"));
        std::fs::File::create(&path)
            .unwrap()
            .set_len(1 << 40)
            .unwrap();
        assert!(
            read()
                .unwrap_err()
                .contains("must have at most 65536 bytes")
        );
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(read().unwrap_err().contains("must be a regular file"));
    }
}
