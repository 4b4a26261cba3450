//! A loaded module and its sessions. Every function here blocks and must run on the module's
//! thread.

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::error::{Error, RvError};
use cryptoki::mechanism::Mechanism;
use cryptoki::mechanism::aead::GcmParams;
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, SessionState, UserType};
use cryptoki::slot::{Slot, TokenInfo};
use cryptoki::types::{AuthPin, Ulong};
use zeroize::Zeroizing;

use super::Pkcs11Options;
use super::errors::ModuleFailure;
use crate::local::{COPY_BYTES, NONCE_BYTES, TAG_BYTES, random_nonce};
use crate::{ProviderError, RootBytes, secret_file};

/// Length of an AES-GCM tag in bits, the unit of PKCS #11.
const TAG_BITS: u64 = TAG_BYTES as u64 * 8;
/// Length of the KEK in bytes.
const KEY_BYTES: u64 = 32;
/// Longest PIN, in bytes.
const PIN_BYTES_MAX: usize = 255;

/// A module that is initialized until the process exits.
pub(super) struct Module {
    pub(super) context: Pkcs11,
    place: String,
    /// At most one session per slot, logged in.
    sessions: HashMap<u64, TokenSession>,
    /// PINs that failed to log in, per token.
    rejected: HashMap<TokenName, Vec<Zeroizing<String>>>,
}

/// A session with its token. The name shows whether the slot now contains another token.
struct TokenSession {
    session: Session,
    token: TokenName,
}

/// Names a token.
#[derive(Clone, PartialEq, Eq, Hash)]
struct TokenName {
    label: String,
    serial: String,
}

impl TokenName {
    fn from_info(info: &TokenInfo) -> Self {
        Self {
            label: info.label().to_owned(),
            serial: info.serial_number().to_owned(),
        }
    }

    fn place(&self) -> String {
        format!("token `{}` ({})", self.label, self.serial)
    }

    /// Returns the error for a token that does not permit a login.
    fn denied(&self, text: &str) -> ModuleFailure {
        ProviderError::Denied(format!("{}: {text}", self.place())).into()
    }
}

impl Module {
    /// Loads and initializes a module. The module uses locks of the operating system.
    pub(super) fn load(path: &Path) -> Result<Self, ProviderError> {
        let place = format!("module {}", path.display());
        let context = Pkcs11::new(path)
            .map_err(|error| ModuleFailure::from(error).into_provider_error(&place))?;
        let module = Self {
            context,
            place,
            sessions: HashMap::new(),
            rejected: HashMap::new(),
        };

        module
            .initialize()
            .map_err(|failure| failure.into_provider_error(&module.place))?;
        Ok(module)
    }

    fn initialize(&self) -> Result<(), ModuleFailure> {
        match self
            .context
            .initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))
        {
            Ok(()) | Err(Error::Pkcs11(RvError::CryptokiAlreadyInitialized, _)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Wraps a root key.
    pub(super) fn wrap(
        &mut self,
        options: &Pkcs11Options,
        root: &RootBytes,
        aad: &[u8],
    ) -> Result<Vec<u8>, ProviderError> {
        self.with_session(options, |session| {
            encrypt_root(session, find_key(session, options)?, root, aad)
        })
    }

    /// Unwraps a copy.
    pub(super) fn unwrap(
        &mut self,
        options: &Pkcs11Options,
        wrapped: &[u8],
        aad: &[u8],
    ) -> Result<RootBytes, ProviderError> {
        self.with_session(options, |session| {
            let key = find_key(session, options)?;
            let failure = match decrypt_root(session, key, wrapped, aad) {
                Ok(root) => return Ok(root),
                Err(failure) => failure,
            };
            // Some tokens return a general error for a bad copy. If the key works for a test value,
            // the copy must be bad.
            if failure.is_ambiguous() && round_trip(session, key).is_ok() {
                return decrypt_root(session, key, wrapped, aad)
                    .map_err(|failure| failed_unwrap(failure, true, options));
            }
            Err(failed_unwrap(failure, false, options))
        })
    }

    /// Wraps and unwraps a test value. The token must reject an altered copy and other additional
    /// data.
    pub(super) fn check(&mut self, options: &Pkcs11Options) -> Result<(), ProviderError> {
        self.with_session(options, |session| {
            let key = find_key(session, options)?;
            round_trip(session, key)?;
            let copy = encrypt_root(
                session,
                key,
                &Box::new(zeroize::Zeroizing::new(CHECK_VALUE)),
                CHECK_AAD,
            )?;
            check_rejections(&copy, |copy, aad| decrypt_root(session, key, copy, aad))
        })
    }

    /// Generates the key, and checks that it can be used.
    pub(super) fn generate_key(&mut self, options: &Pkcs11Options) -> Result<(), ProviderError> {
        self.generate_key_and(options, |session| {
            round_trip(session, find_key(session, options)?)
        })
    }

    /// Generates the key and runs `check`. A retry after a lost session uses the key that the first
    /// try generated.
    pub(super) fn generate_key_and(
        &mut self,
        options: &Pkcs11Options,
        check: impl Fn(&Session) -> Result<(), ModuleFailure>,
    ) -> Result<(), ProviderError> {
        let context = self.context.clone();
        // The session can be lost after the token generated the key and before its response
        // arrived.
        let tried = Cell::new(false);
        self.with_session(options, |session| {
            // A login applies to the whole token, so this session is logged in, too.
            let writing = context.open_rw_session(session.get_session_info()?.slot_id())?;
            let exists = !writing.find_objects(&key_attributes(options))?.is_empty();
            if exists && !tried.get() {
                let text = format!("there is a key `{}` already", options.key);
                return Err(ProviderError::Settings(text).into());
            }
            if !exists {
                tried.set(true);
                writing.generate_key(&Mechanism::AesKeyGen, &new_key_attributes(options))?;
            }
            check(session)
        })
    }

    /// Closes all sessions. The next call opens a session and logs in.
    pub(super) fn close_sessions(&mut self) {
        self.sessions.clear();
    }

    /// Runs `act` in a session that is logged in. If the session is lost, runs `act` once more in a
    /// new session.
    pub(super) fn with_session<T>(
        &mut self,
        options: &Pkcs11Options,
        act: impl Fn(&Session) -> Result<T, ModuleFailure>,
    ) -> Result<T, ProviderError> {
        let place = format!("{}, token {}", self.place, token_text(options));
        let mut result = self
            .logged_in_session(options)
            .and_then(|session| run_at(&place, session, &act));
        if let Err(failure) = &result
            && failure.is_lost_session()
        {
            self.sessions.clear();
            result = self
                .initialize()
                .and_then(|()| self.logged_in_session(options))
                .and_then(|session| run_at(&place, session, &act));
        }
        result.map_err(|failure| failure.into_provider_error(&place))
    }

    /// Returns the session of the token. Opens a session and logs in if necessary.
    pub(super) fn logged_in_session(
        &mut self,
        options: &Pkcs11Options,
    ) -> Result<&Session, ModuleFailure> {
        let (slot, info) = self.find_token(options)?;
        let token = TokenName::from_info(&info);
        let known = self.sessions.remove(&slot.id());
        let login = match known.filter(|login| login.token == token && is_logged_in(&login.session))
        {
            Some(login) => login,
            None => TokenSession {
                session: self.log_in(slot, &info, &token, &options.pin_file)?,
                token,
            },
        };
        Ok(&self
            .sessions
            .entry(slot.id())
            .insert_entry(login)
            .into_mut()
            .session)
    }

    fn find_token(&self, options: &Pkcs11Options) -> Result<(Slot, TokenInfo), ModuleFailure> {
        let slots = self.context.get_slots_with_token()?;
        let results = slots.into_iter().map(|slot| {
            Ok((
                slot,
                self.context
                    .get_token_info(slot)
                    .map_err(ModuleFailure::from)?,
            ))
        });
        let found = find_matching(results, |(_, info)| {
            info.token_initialized()
                && is_wanted(options.token.as_ref(), info.label())
                && is_wanted(options.serial.as_ref(), info.serial_number())
        });
        let mut found = found?;
        let wanted = token_text(options);
        match (found.pop(), found.len()) {
            (Some(found), 0) => Ok(found),
            (None, _) => Err(ProviderError::NotFound(format!(
                "{}: token {wanted} is missing",
                self.place
            ))
            .into()),
            (Some(_), others) => Err(ProviderError::Settings(format!(
                "{}: {} tokens match {wanted}: set the serial number",
                self.place,
                others + 1
            ))
            .into()),
        }
    }

    fn log_in(
        &mut self,
        slot: Slot,
        info: &TokenInfo,
        token: &TokenName,
        pin_file: &Path,
    ) -> Result<Session, ModuleFailure> {
        let pin = read_pin(pin_file)?;
        if self
            .rejected
            .get(token)
            .is_some_and(|pins| pins.contains(&pin))
        {
            let file = pin_file.display();
            return Err(token.denied(&format!(
                "a login with the PIN in {file} failed, so it is not tried again: correct the file, or restart the program"
            )));
        }
        if info.user_pin_locked() {
            return Err(token.denied("its PIN is locked"));
        }

        if info.user_pin_final_try() {
            return Err(token.denied(
                "one more wrong PIN would lock it: log in once with the token's own tools",
            ));
        }

        let session = self.context.open_ro_session(slot)?;
        // The boxed string has its exact length, so the conversion leaves no copy in freed memory.
        let secret = AuthPin::new(pin.as_str().into());
        match session
            .login(UserType::User, Some(&secret))
            .map_err(ModuleFailure::from)
        {
            Ok(()) => {}
            Err(failure) if matches!(failure.code(), Some(RvError::UserAlreadyLoggedIn)) => {}
            Err(failure) if failure.is_lost_transport() => return Err(failure),
            Err(failure) => {
                // Tokens report a wrong PIN with various codes, so each failed login can have used
                // up a try.
                self.rejected.entry(token.clone()).or_default().push(pin);
                if failure.is_wrong_pin() {
                    return Err(
                        token.denied(&format!("it rejected the PIN in {}", pin_file.display()))
                    );
                }
                return Err(failure.into_provider_error(&token.place()).into());
            }
        }
        Ok(session)
    }
}

/// Runs `act` in a session. Adds the place to errors that this crate found.
fn run_at<T>(
    place: &str,
    session: &Session,
    act: impl Fn(&Session) -> Result<T, ModuleFailure>,
) -> Result<T, ModuleFailure> {
    act(session).map_err(|failure| failure.with_place(place))
}

fn is_wanted(wanted: Option<&String>, found: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

fn is_logged_in(session: &Session) -> bool {
    session.get_session_info().is_ok_and(|info| {
        matches!(
            info.session_state(),
            SessionState::RoUser | SessionState::RwUser
        )
    })
}

fn read_pin(file: &Path) -> Result<Zeroizing<String>, ProviderError> {
    let bytes = secret_file::read_secret_file(file)?;
    let pin = std::str::from_utf8(&bytes)
        .ok()
        .map(|text| text.trim_end_matches(['\r', '\n']))
        .filter(|text| !text.is_empty() && text.len() <= PIN_BYTES_MAX);
    let pin = pin.ok_or_else(|| {
        ProviderError::Settings(format!(
            "{}: must hold a PIN of 1 to {PIN_BYTES_MAX} bytes",
            file.display()
        ))
    })?;
    Ok(Zeroizing::new(pin.to_owned()))
}

/// Returns the name of the configured token for errors.
fn token_text(options: &Pkcs11Options) -> String {
    match (&options.token, &options.serial) {
        (Some(label), Some(serial)) => format!("`{label}` (serial number `{serial}`)"),
        (Some(label), None) => format!("`{label}`"),
        (None, serial) => format!(
            "with serial number `{}`",
            serial.as_deref().unwrap_or_default()
        ),
    }
}

/// Returns the results that match. The failure of one slot does not hide the other slots. If no
/// result matches, the first failure is returned, because that slot can hold the wanted token.
fn find_matching<T>(
    results: impl Iterator<Item = Result<T, ModuleFailure>>,
    matches: impl Fn(&T) -> bool,
) -> Result<Vec<T>, ModuleFailure> {
    let mut found = Vec::new();
    let mut failed = None;
    for result in results {
        match result {
            Ok(result) if matches(&result) => found.push(result),
            Ok(_) => {}
            Err(failure) => failed = failed.or(Some(failure)),
        }
    }

    match failed {
        Some(failure) if found.is_empty() => Err(failure),
        _ => Ok(found),
    }
}

/// Returns the attributes to find the key by.
fn key_attributes(options: &Pkcs11Options) -> Vec<Attribute> {
    let mut attributes = vec![
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::AES),
        Attribute::Token(true),
        Attribute::Label(options.key.clone().into_bytes()),
    ];
    attributes.extend(options.key_id.clone().map(Attribute::Id));
    attributes
}

/// Returns the attributes of a new key.
fn new_key_attributes(options: &Pkcs11Options) -> Vec<Attribute> {
    let mut attributes = key_attributes(options);
    attributes.extend([
        Attribute::ValueLen(Ulong::from(KEY_BYTES)),
        Attribute::Private(true),
        Attribute::Sensitive(true),
        Attribute::Extractable(false),
        Attribute::Encrypt(true),
        Attribute::Decrypt(true),
        Attribute::Wrap(false),
        Attribute::Unwrap(false),
        Attribute::Sign(false),
        Attribute::Verify(false),
    ]);
    attributes
}

fn key_error(text: String) -> ModuleFailure {
    ProviderError::Settings(text).into()
}

/// Finds the key and checks that it cannot be extracted from the token.
fn find_key(session: &Session, options: &Pkcs11Options) -> Result<ObjectHandle, ModuleFailure> {
    let name = &options.key;
    let key = match session.find_objects(&key_attributes(options))?[..] {
        [] => return Err(ProviderError::NotFound(format!("no AES key `{name}`")).into()),
        [key] => key,
        _ => {
            return Err(key_error(format!(
                "several keys `{name}`: set the key's id"
            )));
        }
    };

    let wanted = [
        AttributeType::Sensitive,
        AttributeType::Extractable,
        AttributeType::ValueLen,
    ];
    let attributes = session.get_attributes(key, &wanted)?;
    let safe = attributes.contains(&Attribute::Sensitive(true))
        && attributes.contains(&Attribute::Extractable(false));
    if !safe {
        return Err(key_error(format!(
            "key `{name}` must be sensitive and must not be extractable"
        )));
    }

    if !attributes.contains(&Attribute::ValueLen(Ulong::from(KEY_BYTES))) {
        return Err(key_error(format!(
            "key `{name}` must be of {KEY_BYTES} bytes"
        )));
    }

    Ok(key)
}

fn encrypt_root(
    session: &Session,
    key: ObjectHandle,
    root: &RootBytes,
    aad: &[u8],
) -> Result<Vec<u8>, ModuleFailure> {
    let mut nonce = random_nonce()?;
    let mechanism = Mechanism::AesGcm(GcmParams::new(&mut nonce, aad, Ulong::from(TAG_BITS))?);
    let sealed = session.encrypt(&mechanism, key, &root[..])?;
    // The token can replace the nonce with one that it generates.
    let copy = [&nonce[..], &sealed].concat();
    if copy.len() != COPY_BYTES {
        let text = format!(
            "the token encrypted 32 bytes to {}, not to 48",
            sealed.len()
        );
        return Err(ProviderError::WrongAnswer(text).into());
    }

    Ok(copy)
}

fn decrypt_root(
    session: &Session,
    key: ObjectHandle,
    wrapped: &[u8],
    aad: &[u8],
) -> Result<RootBytes, ModuleFailure> {
    let Some((nonce, sealed)) = wrapped
        .split_first_chunk::<NONCE_BYTES>()
        .filter(|_| wrapped.len() == COPY_BYTES)
    else {
        return Err(ProviderError::DoesNotUnwrap(format!(
            "the copy must be of {COPY_BYTES} bytes"
        ))
        .into());
    };
    let mut nonce = *nonce;
    let mechanism = Mechanism::AesGcm(GcmParams::new(&mut nonce, aad, Ulong::from(TAG_BITS))?);
    let plain = Zeroizing::new(session.decrypt(&mechanism, key, sealed)?);
    let mut root = RootBytes::default();
    if plain.len() != root.len() {
        let text = format!(
            "the token decrypted a copy to {} bytes, not to 32",
            plain.len()
        );
        return Err(ProviderError::WrongAnswer(text).into());
    }

    root.copy_from_slice(&plain);
    Ok(root)
}

/// The value and the additional data of a test. No slot has this additional data.
const CHECK_VALUE: [u8; 32] = [0x5a; 32];
const CHECK_AAD: &[u8] = b"sealwire/kek-check/1";

/// Wraps and unwraps a test value.
fn round_trip(session: &Session, key: ObjectHandle) -> Result<(), ModuleFailure> {
    let value = Box::new(zeroize::Zeroizing::new(CHECK_VALUE));
    let copy = encrypt_root(session, key, &value, CHECK_AAD)?;
    if decrypt_root(session, key, &copy, CHECK_AAD)? != value {
        return Err(ProviderError::WrongAnswer(
            "the token decrypted a test value to another".into(),
        )
        .into());
    }
    Ok(())
}

/// Checks that a token rejects a copy with other additional data and a copy with another tag.
fn check_rejections(
    copy: &[u8],
    decrypt: impl Fn(&[u8], &[u8]) -> Result<RootBytes, ModuleFailure>,
) -> Result<(), ModuleFailure> {
    let mut altered = copy.to_vec();
    if let Some(last) = altered.last_mut() {
        *last ^= 1;
    }

    let other_aad = [CHECK_AAD, b"0"].concat();
    for (copy, aad, ignored) in [
        (copy, &*other_aad, "additional data"),
        (&*altered, CHECK_AAD, "the tag"),
    ] {
        match decrypt(copy, aad) {
            Ok(_) => {
                return Err(ProviderError::WrongAnswer(format!(
                    "the token does not check {ignored}"
                ))
                .into());
            }
            Err(failure) if failure.is_bad_copy() || failure.is_ambiguous() => {}
            Err(failure) => return Err(failure),
        }
    }

    Ok(())
}

/// Returns the error of a failed decryption. `key_works` is true if a test value was unwrapped
/// after the failure.
fn failed_unwrap(
    failure: ModuleFailure,
    key_works: bool,
    options: &Pkcs11Options,
) -> ModuleFailure {
    if failure.is_bad_copy() || key_works && failure.is_ambiguous() {
        let text = format!(
            "key `{}`: the copy was altered, or is another key's",
            options.key
        );
        return ProviderError::DoesNotUnwrap(text).into();
    }
    failure
}

#[cfg(test)]
mod tests {
    use cryptoki::context::Function;

    use super::*;

    fn module_failure(code: RvError) -> ModuleFailure {
        Error::Pkcs11(code, Function::Decrypt).into()
    }

    #[test]
    fn a_failed_slot_is_an_error_only_if_no_token_matches() {
        let failed = || Err(module_failure(RvError::DeviceError));
        for (results, expected) in [
            (vec![], Ok(0)),
            (vec![Ok(1)], Ok(0)),
            (vec![Ok(7), Ok(7)], Ok(2)),
            (vec![failed(), Ok(7)], Ok(1)),
            (vec![Ok(7), failed()], Ok(1)),
            (vec![Ok(1), failed()], Err("DeviceError")),
        ] {
            match (
                find_matching(results.into_iter(), |number| *number == 7),
                expected,
            ) {
                (Ok(found), Ok(count)) => assert_eq!(found.len(), count),
                (Err(failure), Err(code)) => {
                    assert!(failure.into_provider_error("m").to_string().contains(code))
                }
                (found, _) => panic!("{found:?}"),
            }
        }
    }

    #[test]
    fn only_codes_of_a_bad_copy_and_confirmed_ambiguous_ones_mean_a_bad_copy() {
        let options = Pkcs11Options {
            module: "m".into(),
            token: None,
            serial: None,
            key: "kek".into(),
            key_id: None,
            pin_file: "p".into(),
        };
        for (code, unconfirmed, confirmed) in [
            (RvError::EncryptedDataInvalid, true, true),
            (RvError::SignatureInvalid, true, true),
            (RvError::GeneralError, false, true),
            (RvError::VendorDefined(1), false, true),
            (RvError::DeviceError, false, false),
            (RvError::HostMemory, false, false),
            (RvError::SessionClosed, false, false),
            (RvError::PinExpired, false, false),
        ] {
            for (key_works, expected) in [(false, unconfirmed), (true, confirmed)] {
                let error = failed_unwrap(module_failure(code), key_works, &options)
                    .into_provider_error("m");
                assert_eq!(
                    matches!(error, ProviderError::DoesNotUnwrap(_)),
                    expected,
                    "{key_works}: {error:?}"
                );
            }
        }
    }

    #[test]
    fn a_token_that_checks_nothing_is_found_out() {
        let copy = [1; COPY_BYTES];
        let rejected = |code: RvError| Err(module_failure(code));
        type Decrypt<'a> = &'a dyn Fn(bool, bool) -> Result<RootBytes, ModuleFailure>;
        let good = || Ok(Box::new(zeroize::Zeroizing::new(CHECK_VALUE)));
        let cases: [(Decrypt, Option<&str>); 5] = [
            (&|_, _| rejected(RvError::EncryptedDataInvalid), None),
            (&|_, _| rejected(RvError::GeneralError), None),
            (&|_, _| rejected(RvError::DeviceError), Some("DeviceError")),
            (
                &|same_copy, _| {
                    if same_copy {
                        good()
                    } else {
                        rejected(RvError::EncryptedDataInvalid)
                    }
                },
                Some("does not check additional data"),
            ),
            (
                &|_, same_aad| {
                    if same_aad {
                        good()
                    } else {
                        rejected(RvError::EncryptedDataInvalid)
                    }
                },
                Some("does not check the tag"),
            ),
        ];
        for (decrypt, problem) in cases {
            let result = check_rejections(&copy, |altered, aad| {
                decrypt(altered == copy, aad == CHECK_AAD)
            });
            let text = result.map_err(|failure| failure.into_provider_error("m").to_string());
            match problem {
                None => assert_eq!(text, Ok(())),
                Some(problem) => assert!(
                    text.as_ref().is_err_and(|text| text.contains(problem)),
                    "{text:?}"
                ),
            }
        }
    }
}
