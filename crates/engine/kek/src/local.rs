//! Providers with a local KEK: 64 hexadecimal digits in a file or in an environment variable.
//!
//! Each call reads the KEK again and wipes it at the end.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use data_encoding::HEXLOWER_PERMISSIVE;
use zeroize::Zeroizing;

use crate::secret_file::{FileReader, read_secret_file};
use crate::{Provider, ProviderError, ProviderKind, RootBytes, WrapSlot, reject_long};

/// Length of an AES-GCM nonce in bytes.
pub(crate) const NONCE_BYTES: usize = 12;
/// Length of an AES-GCM tag in bytes.
pub(crate) const TAG_BYTES: usize = 16;
/// Length of a wrapped copy in bytes: nonce, ciphertext, tag.
pub(crate) const COPY_BYTES: usize = NONCE_BYTES + 32 + TAG_BYTES;
const _: () = assert!(COPY_BYTES <= crate::WRAPPED_BYTES_MAX);

/// A KEK in a file with 64 hexadecimal digits and optional white space around them.
#[derive(Clone, Debug)]
pub struct FileProvider {
    path: PathBuf,
    reader: FileReader,
}

impl FileProvider {
    /// Creates a provider. Each call reads the file, one call at a time. If a read hangs, other
    /// calls fail with [`ProviderError::Unavailable`] after 5 seconds.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            reader: FileReader::default(),
        }
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    async fn read_kek(&self) -> Result<LocalKek, ProviderError> {
        let path = self.path.clone();
        self.reader
            .run(&self.path.display().to_string(), move || {
                LocalKek::parse(&read_secret_file(&path)?, || path.display().to_string())
            })
            .await
    }
}

#[async_trait]
impl Provider for FileProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::File
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        self.read_kek().await?.wrap(root, slot)
    }

    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        reject_long(wrapped)?;
        self.read_kek().await?.unwrap(wrapped, slot)
    }
}

/// A KEK in an environment variable with 64 hexadecimal digits and optional white space around
/// them. The process's environment contains the KEK as long as the process runs.
#[derive(Clone, Debug)]
pub struct EnvironmentProvider {
    variable: String,
}

impl EnvironmentProvider {
    /// Creates a provider. Each call reads the variable.
    #[must_use]
    pub fn new(variable: String) -> Self {
        Self { variable }
    }

    fn read_kek(&self) -> Result<LocalKek, ProviderError> {
        let place = format!("environment variable {}", self.variable);
        let text = std::env::var_os(&self.variable)
            .ok_or_else(|| ProviderError::NotFound(format!("{place}: not set")))?;
        LocalKek::parse(&Zeroizing::new(text.into_encoded_bytes()), || place)
    }
}

#[async_trait]
impl Provider for EnvironmentProvider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Environment
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        self.read_kek()?.wrap(root, slot)
    }

    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        reject_long(wrapped)?;
        self.read_kek()?.unwrap(wrapped, slot)
    }
}

/// Wraps with AES-256-GCM under a random nonce; the slot is the additional data.
struct LocalKek {
    /// The key in a separate allocation, as [`RootBytes`].
    bytes: Box<Zeroizing<[u8; 32]>>,
    /// The name of the file or variable in errors.
    place: String,
}

impl LocalKek {
    fn parse(text: &[u8], place: impl FnOnce() -> String) -> Result<Self, ProviderError> {
        let place = place();
        let digits = text.trim_ascii();
        let mut bytes = Box::new(Zeroizing::new([0; 32]));
        if digits.len() != 64
            || HEXLOWER_PERMISSIVE
                .decode_mut(digits, &mut bytes[..])
                .is_err()
        {
            return Err(ProviderError::Settings(
                place + ": must hold 64 hexadecimal digits",
            ));
        }
        Ok(Self { bytes, place })
    }

    fn aead(&self) -> Result<LessSafeKey, ProviderError> {
        let key =
            UnboundKey::new(&AES_256_GCM, &self.bytes[..]).map_err(|_| self.library_failed())?;
        Ok(LessSafeKey::new(key))
    }

    fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        let nonce = random_nonce()?;
        // Allocates the full capacity at once: growing would leave an unwiped copy of the key.
        let mut copy = Zeroizing::new(Vec::with_capacity(COPY_BYTES));
        copy.extend_from_slice(&nonce);
        copy.extend_from_slice(&root[..]);
        let tag = self
            .aead()?
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(slot.aad()),
                &mut copy[NONCE_BYTES..],
            )
            .map_err(|_| self.library_failed())?;
        copy.extend_from_slice(tag.as_ref());
        Ok(std::mem::take(&mut *copy))
    }

    fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        let wrapped: &[u8; COPY_BYTES] = wrapped.try_into().map_err(|_| self.copy_rejected())?;
        let (nonce, sealed) = wrapped
            .split_first_chunk::<NONCE_BYTES>()
            .ok_or_else(|| self.copy_rejected())?;
        let mut data = Zeroizing::new(sealed.to_vec());
        let plain = self
            .aead()?
            .open_in_place(
                Nonce::assume_unique_for_key(*nonce),
                Aad::from(slot.aad()),
                &mut data,
            )
            .map_err(|_| self.copy_rejected())?;
        let mut root = RootBytes::default();
        root.copy_from_slice(plain);
        Ok(root)
    }

    fn copy_rejected(&self) -> ProviderError {
        ProviderError::DoesNotUnwrap(format!(
            "{}: the copy was altered, or is another key's",
            self.place
        ))
    }

    fn library_failed(&self) -> ProviderError {
        ProviderError::Unavailable(format!("{}: the cryptographic library failed", self.place))
    }
}

/// Returns a random nonce (NIST SP 800-38D, section 8.2.2).
///
/// # Errors
/// [`ProviderError::Unavailable`] when the random source fails.
pub(crate) fn random_nonce() -> Result<[u8; NONCE_BYTES], ProviderError> {
    let mut nonce = [0; NONCE_BYTES];
    aws_lc_rs::rand::fill(&mut nonce)
        .map_err(|_| ProviderError::Unavailable("the system's random source failed".into()))?;
    Ok(nonce)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use sealwire_testkit::child;

    use super::*;

    const DIGITS: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    const SLOT: WrapSlot = WrapSlot {
        set: [1; 16],
        root: [2; 16],
        number: 3,
    };
    /// Names the variable with the KEK in the child process.
    const VARIABLE: &str = "SEALWIRE_TEST_CHILD_KEK";

    fn root() -> RootBytes {
        Box::new(zeroize::Zeroizing::new([7; 32]))
    }

    fn write(path: &Path, content: &str) {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    struct KekFile {
        _folder: tempfile::TempDir,
        provider: FileProvider,
    }

    fn file(content: &str) -> KekFile {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kek.key");
        write(&path, content);
        KekFile {
            _folder: folder,
            provider: FileProvider::new(path),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_unwraps_in_its_slot_alone() {
        let file = file(DIGITS);
        let copy = file.provider.wrap(&root(), &SLOT).await.unwrap();
        assert_eq!(copy.len(), COPY_BYTES);
        assert_eq!(file.provider.unwrap(&copy, &SLOT).await, Ok(root()));
        assert_ne!(
            copy,
            file.provider.wrap(&root(), &SLOT).await.unwrap(),
            "nonces differ"
        );
        for other in [
            WrapSlot {
                set: [9; 16],
                ..SLOT
            },
            WrapSlot {
                root: [9; 16],
                ..SLOT
            },
            WrapSlot { number: 4, ..SLOT },
        ] {
            let result = file.provider.unwrap(&copy, &other).await;
            assert!(
                matches!(result, Err(ProviderError::DoesNotUnwrap(_))),
                "{other:?}: {result:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn altered_copies_do_not_unwrap() {
        let file = file(DIGITS);
        let copy = file.provider.wrap(&root(), &SLOT).await.unwrap();
        let mut altered: Vec<Vec<u8>> = (0..copy.len() * 8)
            .map(|bit| {
                let mut copy = copy.clone();
                copy[bit / 8] ^= 1 << (bit % 8);
                copy
            })
            .collect();
        altered.extend([
            vec![],
            copy[1..].to_vec(),
            copy[..copy.len() - 1].to_vec(),
            [&copy[..], &[0]].concat(),
        ]);
        let other_key = FileProvider::new(file.provider.path().with_file_name("other.key"));
        write(other_key.path(), &DIGITS.replace("1f", "2f"));
        for copy in altered {
            let result = file.provider.unwrap(&copy, &SLOT).await;
            assert!(
                matches!(result, Err(ProviderError::DoesNotUnwrap(_))),
                "{copy:?}: {result:?}"
            );
        }
        assert!(matches!(
            other_key.unwrap(&copy, &SLOT).await,
            Err(ProviderError::DoesNotUnwrap(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fixed_copy_still_unwraps() {
        // Made with OpenSSL: key DIGITS, a nonce of zeros, the slot as additional data.
        let copy = "00000000000000000000000009bbb2d9b22b84ba0fafae321f2b969ed544\
                    51542f8667288799b484c2f85a512e3d6d82848fcdfe69e69cbb6f334858";
        let copy = data_encoding::HEXLOWER.decode(copy.as_bytes()).unwrap();
        assert_eq!(file(DIGITS).provider.unwrap(&copy, &SLOT).await, Ok(root()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_file_is_read_anew_by_each_call() {
        let file = file(DIGITS);
        let copy = file.provider.wrap(&root(), &SLOT).await.unwrap();
        fs::write(file.provider.path(), "").unwrap();
        assert!(matches!(
            file.provider.unwrap(&copy, &SLOT).await,
            Err(ProviderError::Settings(_))
        ));
        fs::write(
            file.provider.path(),
            format!("\n {} \r\n", DIGITS.to_uppercase()),
        )
        .unwrap();
        assert_eq!(file.provider.unwrap(&copy, &SLOT).await, Ok(root()));
        fs::remove_file(file.provider.path()).unwrap();
        assert!(matches!(
            file.provider.unwrap(&copy, &SLOT).await,
            Err(ProviderError::NotFound(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_key_is_rejected_and_never_repeated() {
        for content in [
            &DIGITS[1..],
            &format!("{DIGITS}0"),
            &DIGITS.replace('0', "g"),
            &DIGITS.replacen("00", "0 ", 1),
            "",
            "0x",
            "\u{e9}",
        ] {
            let Err(error) = file(content).provider.wrap(&root(), &SLOT).await else {
                panic!("{content}")
            };
            assert!(
                matches!(error, ProviderError::Settings(_)),
                "{content}: {error:?}"
            );
            assert!(
                content.len() < 3 || !error.to_string().contains(content),
                "{error}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_exposed_file_is_rejected() {
        let file = file(DIGITS);
        for (mode, rejected) in [(0o600, false), (0o440, false), (0o644, true), (0o660, true)] {
            fs::set_permissions(file.provider.path(), fs::Permissions::from_mode(mode)).unwrap();
            match file.provider.wrap(&root(), &SLOT).await {
                Ok(_) => assert!(!rejected, "{mode:o}"),
                Err(ProviderError::Settings(text)) => {
                    assert!(rejected && text.contains("chmod 600"), "{text}")
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_hangs_makes_calls_unavailable() {
        let file = file(DIGITS);
        let permit = file.provider.reader.block();
        for provider in [file.provider.clone(), file.provider.clone()] {
            let result = provider.wrap(&root(), &SLOT).await;
            assert!(
                matches!(&result, Err(ProviderError::Unavailable(text)) if text.contains("within 5 seconds")),
                "{result:?}"
            );
        }
        drop(permit);
        file.provider.wrap(&root(), &SLOT).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_variable_without_a_key_is_an_error() {
        let unset = EnvironmentProvider::new("SEALWIRE_TEST_UNSET".into())
            .wrap(&root(), &SLOT)
            .await;
        assert!(
            matches!(unset, Err(ProviderError::NotFound(_))),
            "{unset:?}"
        );
        // Cargo sets it for every test.
        let path = std::env::var("CARGO_MANIFEST_DIR").unwrap();
        let text = EnvironmentProvider::new("CARGO_MANIFEST_DIR".into())
            .wrap(&root(), &SLOT)
            .await
            .unwrap_err();
        assert!(matches!(text, ProviderError::Settings(_)), "{text:?}");
        assert!(!text.to_string().contains(&path), "{text}");
    }

    #[test]
    fn a_variable_with_a_key_wraps() {
        let status = child::command("local::tests::child_process")
            .env(VARIABLE, DIGITS)
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// The child process of the test above; passes at once if that test did not start it.
    #[tokio::test(start_paused = true)]
    async fn child_process() {
        if std::env::var_os(VARIABLE).is_none() {
            return;
        }
        let provider = EnvironmentProvider::new(VARIABLE.into());
        let copy = provider.wrap(&root(), &SLOT).await.unwrap();
        assert_eq!(
            file(DIGITS).provider.unwrap(&copy, &SLOT).await,
            Ok(root()),
            "both kinds share a layout"
        );
        assert_eq!(provider.unwrap(&copy, &SLOT).await, Ok(root()));
    }
}
