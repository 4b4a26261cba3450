//! One loaded module and its sessions. Every call here blocks, and belongs on the module's thread.

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

/// Bits of a tag of AES-GCM, as PKCS #11 counts.
const TAG_BITS: u64 = TAG_BYTES as u64 * 8;
/// Bytes of the KEK.
const KEY_BYTES: u64 = 32;
/// Longest PIN, in bytes.
const PIN_BYTES_MAX: usize = 255;

/// An initialized module. It stays initialized until the process ends.
pub(super) struct Module {
    pub(super) context: Pkcs11,
    place: String,
    /// One session per slot, logged in.
    sessions: HashMap<u64, TokenSession>,
    /// PINs that a token rejected.
    rejected: HashMap<TokenName, Vec<Zeroizing<String>>>,
}

/// A session with its token. Another token can be put into the slot.
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
    fn of(info: &TokenInfo) -> Self {
        Self { label: info.label().to_owned(), serial: info.serial_number().to_owned() }
    }

    fn place(&self) -> String {
        format!("token `{}` ({})", self.label, self.serial)
    }
}

impl Module {
    /// Loads and initializes a module, with locks of the operating system.
    pub(super) fn load(path: &Path) -> Result<Self, ProviderError> {
        let place = format!("module {}", path.display());
        let context = Pkcs11::new(path).map_err(|error| ModuleFailure::from(error).into_provider_error(&place))?;
        let module = Self { context, place, sessions: HashMap::new(), rejected: HashMap::new() };
        module.initialize().map_err(|failure| failure.into_provider_error(&module.place))?;
        Ok(module)
    }

    fn initialize(&self) -> Result<(), ModuleFailure> {
        match self.context.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK)) {
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
        self.with_session(options, |session| encrypt(session, find_key(session, options)?, root, aad))
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
            let failure = match decrypt(session, key, wrapped, aad) {
                Ok(root) => return Ok(root),
                Err(failure) => failure,
            };
            if failure.is_bad_copy() {
                return Err(does_not_unwrap(options).into());
            }
            // Some tokens return a general error for a bad copy. A key that works then shows that the copy is bad.
            if failure.is_ambiguous() && round_trip(session, key).is_ok() {
                return decrypt(session, key, wrapped, aad).map_err(|failure| {
                    if failure.is_lost_session() { failure } else { does_not_unwrap(options).into() }
                });
            }
            Err(failure)
        })
    }

    /// Wraps and unwraps a test value.
    pub(super) fn check(&mut self, options: &Pkcs11Options) -> Result<(), ProviderError> {
        self.with_session(options, |session| round_trip(session, find_key(session, options)?))
    }

    /// Generates the key, and checks that it can be used.
    pub(super) fn generate_key(&mut self, options: &Pkcs11Options) -> Result<(), ProviderError> {
        let context = self.context.clone();
        self.with_session(options, |session| {
            // The login is the token's, so it holds for this session too.
            let writing = context.open_rw_session(session.get_session_info()?.slot_id())?;
            if !writing.find_objects(&description(options))?.is_empty() {
                let text = format!("there is a key `{}` already", options.key);
                return Err(ProviderError::Settings(text).into());
            }
            let mut template = description(options);
            template.extend([
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
            writing.generate_key(&Mechanism::AesKeyGen, &template)?;
            round_trip(session, find_key(session, options)?)
        })
    }

    /// Runs `act` in a session that is logged in, and once more in a new session if that one is lost.
    pub(super) fn with_session<T>(
        &mut self,
        options: &Pkcs11Options,
        act: impl Fn(&Session) -> Result<T, ModuleFailure>,
    ) -> Result<T, ProviderError> {
        let mut result = self.session(options).and_then(&act);
        if let Err(failure) = &result
            && failure.is_lost_session()
        {
            self.sessions.clear();
            result = self.initialize().and_then(|()| self.session(options)).and_then(&act);
        }
        result.map_err(|failure| {
            let token = options.token.as_deref().or(options.serial.as_deref()).unwrap_or_default();
            failure.into_provider_error(&format!("{}, token `{token}`", self.place))
        })
    }

    /// Returns the session of the token, and opens it and logs in if there is none.
    pub(super) fn session(&mut self, options: &Pkcs11Options) -> Result<&Session, ModuleFailure> {
        let (slot, info) = self.find_token(options)?;
        let token = TokenName::of(&info);
        let known = self.sessions.remove(&slot.id());
        let login = match known.filter(|login| login.token == token && is_logged_in(&login.session)) {
            Some(login) => login,
            None => TokenSession { session: self.log_in(slot, &info, &token, &options.pin_file)?, token },
        };
        Ok(&self.sessions.entry(slot.id()).insert_entry(login).into_mut().session)
    }

    fn find_token(&self, options: &Pkcs11Options) -> Result<(Slot, TokenInfo), ModuleFailure> {
        let matches = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
        let mut found = Vec::new();
        for slot in self.context.get_slots_with_token()? {
            // A slot that does not answer must not hide the others.
            let Ok(info) = self.context.get_token_info(slot) else { continue };
            if info.token_initialized()
                && matches(&options.token, info.label())
                && matches(&options.serial, info.serial_number())
            {
                found.push((slot, info));
            }
        }
        match (found.pop(), found.len()) {
            (Some(found), 0) => Ok(found),
            (None, _) => Err(ProviderError::NotFound(format!(
                "{}: no token with {}",
                self.place,
                match (&options.token, &options.serial) {
                    (Some(label), Some(serial)) => format!("label `{label}` and serial number `{serial}`"),
                    (Some(label), None) => format!("label `{label}`"),
                    (None, serial) => format!("serial number `{}`", serial.as_deref().unwrap_or_default()),
                }
            ))
            .into()),
            (Some(_), others) => Err(ProviderError::Settings(format!(
                "{}: {} tokens match: set the serial number",
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
        let denied = |text: &str| ModuleFailure::from(ProviderError::Denied(format!("{}: {text}", token.place())));
        let pin = read_pin(pin_file)?;
        if self.rejected.get(token).is_some_and(|pins| pins.contains(&pin)) {
            let file = pin_file.display();
            return Err(denied(&format!(
                "it rejected the PIN in {file}, which is not tried again: correct the file, or restart the program"
            )));
        }
        if info.user_pin_locked() {
            return Err(denied("its PIN is locked"));
        }
        if info.user_pin_final_try() {
            return Err(denied("one more wrong PIN would lock it: log in once with the token's own tools"));
        }
        let session = self.context.open_ro_session(slot)?;
        // A boxed text of its exact length: no copy is left behind.
        let secret = AuthPin::new(pin.as_str().into());
        match session.login(UserType::User, Some(&secret)).map_err(ModuleFailure::from) {
            Ok(()) => {}
            Err(failure) if matches!(failure.code(), Some(RvError::UserAlreadyLoggedIn)) => {}
            Err(failure) if failure.is_wrong_pin() => {
                self.rejected.entry(token.clone()).or_default().push(pin);
                return Err(denied(&format!("it rejected the PIN in {}", pin_file.display())));
            }
            Err(failure) => return Err(failure),
        }
        Ok(session)
    }
}

fn is_logged_in(session: &Session) -> bool {
    session
        .get_session_info()
        .is_ok_and(|info| matches!(info.session_state(), SessionState::RoUser | SessionState::RwUser))
}

fn read_pin(file: &Path) -> Result<Zeroizing<String>, ProviderError> {
    let bytes = secret_file::read_private(file)?;
    let wrong =
        || ProviderError::Settings(format!("{}: must hold a PIN of 1 to {PIN_BYTES_MAX} bytes", file.display()));
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong())?.trim_end_matches(['\r', '\n']);
    if text.is_empty() || text.len() > PIN_BYTES_MAX {
        return Err(wrong());
    }
    Ok(Zeroizing::new(text.to_owned()))
}

/// Returns the attributes that find the key.
fn description(options: &Pkcs11Options) -> Vec<Attribute> {
    let mut description = vec![
        Attribute::Class(ObjectClass::SECRET_KEY),
        Attribute::KeyType(KeyType::AES),
        Attribute::Token(true),
        Attribute::Label(options.key.clone().into_bytes()),
    ];
    description.extend(options.key_id.clone().map(Attribute::Id));
    description
}

/// Finds the key, and checks that nobody can take it out of the token.
fn find_key(session: &Session, options: &Pkcs11Options) -> Result<ObjectHandle, ModuleFailure> {
    let name = &options.key;
    let settings = |text: String| ModuleFailure::from(ProviderError::Settings(text));
    let key = match session.find_objects(&description(options))?[..] {
        [] => return Err(ProviderError::NotFound(format!("no AES key `{name}` on the token")).into()),
        [key] => key,
        _ => return Err(settings(format!("several keys `{name}` on the token: set the key's id"))),
    };
    let wanted = [AttributeType::Sensitive, AttributeType::Extractable, AttributeType::ValueLen];
    let attributes = session.get_attributes(key, &wanted)?;
    let safe = attributes.contains(&Attribute::Sensitive(true)) && attributes.contains(&Attribute::Extractable(false));
    if !safe {
        return Err(settings(format!("key `{name}` must be sensitive and must not be extractable")));
    }
    if !attributes.contains(&Attribute::ValueLen(Ulong::from(KEY_BYTES))) {
        return Err(settings(format!("key `{name}` must be of {KEY_BYTES} bytes")));
    }
    Ok(key)
}

fn encrypt(session: &Session, key: ObjectHandle, root: &RootBytes, aad: &[u8]) -> Result<Vec<u8>, ModuleFailure> {
    let mut nonce = random_nonce()?;
    let mechanism = Mechanism::AesGcm(GcmParams::new(&mut nonce, aad, Ulong::from(TAG_BITS))?);
    let sealed = session.encrypt(&mechanism, key, &root[..])?;
    // The token can have replaced the nonce by its own.
    let copy = [&nonce[..], &sealed].concat();
    if copy.len() != COPY_BYTES {
        let text = format!("the token encrypted 32 bytes to {}, not to 48", sealed.len());
        return Err(ProviderError::WrongAnswer(text).into());
    }
    Ok(copy)
}

fn decrypt(session: &Session, key: ObjectHandle, wrapped: &[u8], aad: &[u8]) -> Result<RootBytes, ModuleFailure> {
    let Some((nonce, sealed)) = wrapped.split_first_chunk::<NONCE_BYTES>().filter(|_| wrapped.len() == COPY_BYTES)
    else {
        return Err(ProviderError::DoesNotUnwrap(format!("the copy must be of {COPY_BYTES} bytes")).into());
    };
    let mut nonce = *nonce;
    let mechanism = Mechanism::AesGcm(GcmParams::new(&mut nonce, aad, Ulong::from(TAG_BITS))?);
    let plain = Zeroizing::new(session.decrypt(&mechanism, key, sealed)?);
    let mut root = RootBytes::default();
    if plain.len() != root.len() {
        let text = format!("the token decrypted a copy to {} bytes, not to 32", plain.len());
        return Err(ProviderError::WrongAnswer(text).into());
    }
    root.copy_from_slice(&plain);
    Ok(root)
}

/// Wraps and unwraps a test value that no slot has.
fn round_trip(session: &Session, key: ObjectHandle) -> Result<(), ModuleFailure> {
    const AAD: &[u8] = b"sealwire/kek-check/1";
    let value = RootBytes::new([0x5a; 32]);
    let copy = encrypt(session, key, &value, AAD)?;
    if decrypt(session, key, &copy, AAD)? != value {
        return Err(ProviderError::WrongAnswer("the token decrypted a test value to another".into()).into());
    }
    Ok(())
}

fn does_not_unwrap(options: &Pkcs11Options) -> ProviderError {
    ProviderError::DoesNotUnwrap(format!("key `{}`: the copy was altered, or is another key's", options.key))
}
