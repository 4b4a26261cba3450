//! Creates key versions, wraps them under the KEK (key-encryption key) and unwraps them. Unwrapped
//! keys are returned only in types that wipe their memory when dropped.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire_crypto::{
    AppId, AppKeys, Curve, HybridKey, HybridSeed, Kek, KeyId, KeyMaterial, KeyPair, KeyVersion,
    Origin, PskKey, PskSeed, SigningKey, Suite, VerifyingKey, XaesKey, XaesSecret,
};
use sealwire_records::token::{TokenKeyVersion, TokenKeys, TokenSecret};

use super::model::{App, State};
use super::record::{
    AppEntry, AppRecord, Contents, Entry, KeyRecord, SIGNING_KEY, SigningKeyEntry,
    SigningKeyRecord, StateName, TokenKeyRecord, app_key, base64, damaged, suite_name,
};
use super::{first_removal, unix_s};
use sealwire_store::StoreError;

/// Unwraps the keys of all apps and returns the state to serve.
pub(super) fn unwrap_state(kek: &Kek, contents: &Contents) -> Result<State, StoreError> {
    let live = contents
        .apps
        .iter()
        .filter_map(|(app, entry)| Some((app, entry.live()?)));
    let apps = live
        .map(|(app, record)| unwrap_app(kek, contents, app, record))
        .collect::<Result<_, _>>()?;
    let removal_unix_s = first_removal(contents);
    let access = contents.access.clone();
    let signing_key = contents
        .signing_key
        .as_ref()
        .map(|record| unwrap_signing_key(kek, record))
        .transpose()?;
    Ok(State {
        generation: contents.generation,
        apps,
        removal_unix_s,
        signing_key: signing_key.map(Arc::new),
        access,
    })
}

fn unwrap_app(
    kek: &Kek,
    contents: &Contents,
    app: &AppId,
    record: &AppRecord,
) -> Result<App, StoreError> {
    let versions = record
        .keys
        .iter()
        .map(|key| unwrap_key(kek, app, key))
        .collect::<Result<_, _>>()?;
    let token_keys = record
        .token_keys
        .iter()
        .map(|key| unwrap_token_key(kek, app, record.number, key));
    let token_keys = token_keys.collect::<Result<_, _>>()?;
    let summary = record.summary(app)?;
    let collections = contents.collections(app, record.number);
    let collections = collections.filter_map(|(name, entry)| Some((name, entry.live()?)));
    Ok(App {
        number: record.number,
        state: summary.state,
        keys: Arc::new(AppKeys::new(app.clone(), versions)?.reading(summary.settings.read_suites)),
        token_keys: Arc::new(TokenKeys::new(record.number, token_keys)?),
        settings: summary.settings,
        collections: collections
            .map(|(name, record)| Ok((name.clone(), record.read()?)))
            .collect::<Result<_, StoreError>>()?,
    })
}

fn unwrap_key(kek: &Kek, app: &AppId, record: &KeyRecord) -> Result<KeyVersion, StoreError> {
    let store_key = app_key(app);
    let summary = record.summary(&store_key)?;
    let context = key_context(
        app,
        summary.suite,
        summary.number,
        summary.id,
        summary.origin,
    );
    let wrapped = base64(&store_key, &record.wrapped)?;

    let material: KeyMaterial = match summary.suite {
        Suite::P256 => unwrap_pair(kek, app, &wrapped, &context, Curve::P256)?,
        Suite::Secp256k1 => unwrap_pair(kek, app, &wrapped, &context, Curve::Secp256k1)?,
        Suite::P256Psk => {
            let seed = kek
                .unwrap_psk(&wrapped, &context)
                .map_err(|_| wrong_kek(app))?;
            PskKey::stored(Curve::P256, seed, summary.id).into()
        }
        Suite::Secp256k1Psk => {
            let seed = kek
                .unwrap_psk(&wrapped, &context)
                .map_err(|_| wrong_kek(app))?;
            PskKey::stored(Curve::Secp256k1, seed, summary.id).into()
        }
        Suite::P256MlKem768 => {
            let key = kek
                .unwrap_hybrid(&wrapped, &context)
                .map_err(|_| wrong_kek(app))?;
            HybridKey::stored(key, summary.id).into()
        }
        Suite::Xaes => {
            let secret = kek
                .unwrap_xaes(&wrapped, &context)
                .map_err(|_| wrong_kek(app))?;
            let key = XaesKey::derive(app, &secret)?;
            if record.public_key != STANDARD.encode(key.check()) {
                return Err(damaged(&store_key, "a key does not match its check".into()));
            }
            key.into()
        }
    };
    let version = KeyVersion::new(summary.number, summary.state, material);
    let version = version.sealing(summary.seals).of_origin(summary.origin);
    if version.id == summary.id {
        Ok(version)
    } else {
        Err(damaged(&store_key, "a key does not match its id".into()))
    }
}

fn unwrap_pair(
    kek: &Kek,
    app: &AppId,
    wrapped: &[u8],
    context: &[u8],
    curve: Curve,
) -> Result<KeyMaterial, StoreError> {
    let scalar = kek.unwrap(wrapped, context).map_err(|_| wrong_kek(app))?;
    Ok(KeyPair::from_scalar(curve, scalar.expose())?.into())
}

fn wrong_kek(app: &AppId) -> StoreError {
    StoreError::WrongKek { app: app.clone() }
}

fn unwrap_token_key(
    kek: &Kek,
    app: &AppId,
    number: u32,
    record: &TokenKeyRecord,
) -> Result<TokenKeyVersion, StoreError> {
    let wrapped = base64(&app_key(app), &record.wrapped)?;
    let secret = kek.unwrap_secret(&wrapped, &token_key_context(app, number, record.number));
    let secret = secret.map_err(|_| StoreError::WrongKek { app: app.clone() })?;
    Ok(TokenKeyVersion {
        number: record.number,
        state: record.state.into(),
        secret: TokenSecret::new(secret),
    })
}

fn unwrap_signing_key(kek: &Kek, record: &SigningKeyRecord) -> Result<SigningKey, StoreError> {
    let bytes = base64(SIGNING_KEY, &record.public_key)?.try_into();
    let public =
        VerifyingKey::from_bytes(bytes.map_err(|_| damaged(SIGNING_KEY, "not 32 bytes".into()))?);
    let unwrapped = kek.unwrap_signing_key(&base64(SIGNING_KEY, &record.wrapped)?, &public);
    let key = unwrapped.map_err(|_| {
        damaged(
            SIGNING_KEY,
            "it is wrapped under another key-encryption key".into(),
        )
    })?;

    if *key.verifying_key() == public {
        Ok(key)
    } else {
        Err(damaged(
            SIGNING_KEY,
            "the key does not match its public half".into(),
        ))
    }
}

/// Returns all records with keys, wrapped under `new` instead of `old`. Removes the unpublished
/// public keys of key pairs from older records. No code reads them, and a reader of the store could
/// seal values to them.
pub(super) fn wrap_anew(
    old: &Kek,
    new: &Kek,
    contents: &Contents,
) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let mut records = Vec::new();
    for (app, record) in contents
        .apps
        .iter()
        .filter_map(|(app, entry)| Some((app, entry.live()?)))
    {
        let mut record = record.clone();
        for key in &mut record.keys {
            key.wrapped = STANDARD.encode(wrap_key_anew(old, new, app, key)?);
            key.drop_unread_public_key();
        }
        let number = record.number;
        for key in &mut record.token_keys {
            let TokenKeyVersion { secret, .. } = unwrap_token_key(old, app, number, key)?;
            let wrapped =
                new.wrap_secret(secret.expose(), &token_key_context(app, number, key.number))?;
            key.wrapped = STANDARD.encode(wrapped);
        }
        records.push((app_key(app), AppEntry::Live(record).into_bytes()));
    }

    if let Some(record) = &contents.signing_key {
        let wrapped = STANDARD.encode(new.wrap_signing_key(&unwrap_signing_key(old, record)?)?);
        let record = SigningKeyEntry::Live(SigningKeyRecord {
            wrapped,
            ..record.clone()
        });
        records.push((SIGNING_KEY.into(), record.into_bytes()));
    }
    Ok(records)
}

fn wrap_key_anew(
    old: &Kek,
    new: &Kek,
    app: &AppId,
    record: &KeyRecord,
) -> Result<Vec<u8>, StoreError> {
    let store_key = app_key(app);
    let summary = record.summary(&store_key)?;
    let context = key_context(
        app,
        summary.suite,
        summary.number,
        summary.id,
        summary.origin,
    );
    let wrapped = base64(&store_key, &record.wrapped)?;

    let rewrapped = match summary.suite {
        Suite::P256 | Suite::Secp256k1 => old
            .unwrap(&wrapped, &context)
            .map(|key| new.wrap(&key, &context)),
        Suite::Xaes => old
            .unwrap_xaes(&wrapped, &context)
            .map(|key| new.wrap_xaes(&key, &context)),
        Suite::P256MlKem768 => old
            .unwrap_hybrid(&wrapped, &context)
            .map(|key| new.wrap_hybrid(&key, &context)),
        Suite::P256Psk | Suite::Secp256k1Psk => old
            .unwrap_psk(&wrapped, &context)
            .map(|key| new.wrap_psk(&key, &context)),
    };
    Ok(rewrapped.map_err(|_| wrong_kek(app))??)
}

/// Returns the record of a fresh signing key.
pub(super) fn new_signing_key(kek: &Kek) -> Result<SigningKeyRecord, StoreError> {
    let key = SigningKey::generate()?;
    let wrapped = STANDARD.encode(kek.wrap_signing_key(&key)?);
    let public_key = STANDARD.encode(key.verifying_key().as_bytes());
    Ok(SigningKeyRecord {
        public_key,
        created_unix_s: unix_s(),
        wrapped,
    })
}

/// Rejects a KEK that does not unwrap every key of an app. Keys under different KEKs would make the
/// whole app unreadable.
pub(super) fn check_kek(kek: &Kek, app: &AppId, record: &AppRecord) -> Result<(), StoreError> {
    record
        .keys
        .iter()
        .try_for_each(|key| unwrap_key(kek, app, key).map(drop))?;
    record
        .token_keys
        .iter()
        .try_for_each(|key| unwrap_token_key(kek, app, record.number, key).map(drop))
}

/// Rejects a KEK that does not unwrap one key of each app. Used before an app is created.
pub(super) fn check_kek_for_all(kek: &Kek, contents: &Contents) -> Result<(), StoreError> {
    for (app, record) in contents
        .apps
        .iter()
        .filter_map(|(app, entry)| Some((app, Entry::live(entry)?)))
    {
        match record.token_keys.first() {
            Some(key) => unwrap_token_key(kek, app, record.number, key).map(drop)?,
            None => return Err(damaged(&app_key(app), "no token key".into())),
        }
    }
    Ok(())
}

impl AppRecord {
    /// Generates a key and adds it as the next version of `suite`. Retries if the app already has
    /// the key id, because an app with duplicate ids could not be loaded.
    pub(super) fn add_generated_key(
        &mut self,
        kek: &Kek,
        app: &AppId,
        suite: Suite,
        origin: Origin,
    ) -> Result<KeyId, StoreError> {
        loop {
            let added = match suite {
                Suite::P256 => {
                    self.add_key_pair(kek, app, &KeyPair::generate(Curve::P256)?, true, origin)
                }
                Suite::Secp256k1 => self.add_key_pair(
                    kek,
                    app,
                    &KeyPair::generate(Curve::Secp256k1)?,
                    true,
                    origin,
                ),
                Suite::P256Psk => self.add_psk_key(kek, app, suite, Curve::P256),
                Suite::Secp256k1Psk => self.add_psk_key(kek, app, suite, Curve::Secp256k1),
                Suite::Xaes => self.add_symmetric_key(kek, app, &XaesSecret::generate()?),
                Suite::P256MlKem768 => self.add_hybrid_key(
                    kek,
                    app,
                    &HybridKey::from_seed(HybridSeed::generate()?)?,
                    origin,
                ),
            };
            // The probability that the id is taken is 2^-40 per existing key.
            match added {
                Err(StoreError::KeyTaken { .. }) => {}
                added => return added,
            }
        }
    }

    /// Adds a key pair as the next version of its suite. If `seals` is false, the version can only
    /// open. The record contains the public key only if it is published. Otherwise a reader of the
    /// store could seal values to it, as engines do.
    pub(super) fn add_key_pair(
        &mut self,
        kek: &Kek,
        app: &AppId,
        pair: &KeyPair,
        seals: bool,
        origin: Origin,
    ) -> Result<KeyId, StoreError> {
        let suite = pair.public().curve().into();
        let id = KeyId::of(pair.public());
        let number = self.next_number(app, suite, id)?;
        let wrapped = kek.wrap(
            &pair.scalar()?,
            &key_context(app, suite, number, id, origin),
        )?;
        let public: &[u8] = match origin {
            Origin::Inside => b"",
            Origin::Outside => pair.public().compressed(),
        };
        let key = self.push_key(suite, number, id, public, &wrapped);
        (key.opens_only, key.outside) = (!seals, origin == Origin::Outside);
        Ok(id)
    }

    fn add_symmetric_key(
        &mut self,
        kek: &Kek,
        app: &AppId,
        secret: &XaesSecret,
    ) -> Result<KeyId, StoreError> {
        let key = XaesKey::derive(app, secret)?;
        let number = self.next_number(app, Suite::Xaes, key.id())?;
        let wrapped = kek.wrap_xaes(
            secret,
            &key_context(app, Suite::Xaes, number, key.id(), Origin::Inside),
        )?;
        self.push_key(Suite::Xaes, number, key.id(), key.check(), &wrapped);
        Ok(key.id())
    }

    /// Adds a hybrid key. The record contains no public key, because checking it requires expanding
    /// the seed. A published key is derived at publication.
    fn add_hybrid_key(
        &mut self,
        kek: &Kek,
        app: &AppId,
        key: &HybridKey,
        origin: Origin,
    ) -> Result<KeyId, StoreError> {
        let number = self.next_number(app, Suite::P256MlKem768, key.id())?;
        let context = key_context(app, Suite::P256MlKem768, number, key.id(), origin);
        let wrapped = kek.wrap_hybrid(key.seed(), &context)?;
        self.push_key(Suite::P256MlKem768, number, key.id(), b"", &wrapped)
            .outside = origin == Origin::Outside;
        Ok(key.id())
    }

    /// Adds a key with a pre-shared key. The record contains no public key, because no code needs
    /// it and the store should not reveal it.
    fn add_psk_key(
        &mut self,
        kek: &Kek,
        app: &AppId,
        suite: Suite,
        curve: Curve,
    ) -> Result<KeyId, StoreError> {
        let key = PskKey::from_seed(curve, PskSeed::generate()?)?;
        let number = self.next_number(app, suite, key.id())?;
        let wrapped = kek.wrap_psk(
            key.seed(),
            &key_context(app, suite, number, key.id(), Origin::Inside),
        )?;
        self.push_key(suite, number, key.id(), b"", &wrapped);
        Ok(key.id())
    }

    /// Assigns the number of a new key. Fails if the app already has a key with this id.
    fn next_number(&mut self, app: &AppId, suite: Suite, id: KeyId) -> Result<u32, StoreError> {
        if self.keys.iter().any(|key| key.is(id)) {
            return Err(StoreError::KeyTaken {
                app: app.clone(),
                key: id,
            });
        }

        let name = suite_name(suite);
        let highest_present = self
            .keys
            .iter()
            .filter(|key| key.suite == name)
            .map(|key| key.number)
            .max();
        let highest = self.highest.entry(name.into()).or_default();
        *highest = (*highest)
            .max(highest_present.unwrap_or(0))
            .checked_add(1)
            .ok_or_else(|| damaged(&app_key(app), "no number left".into()))?;
        Ok(*highest)
    }

    /// Appends the record of a key that seals and whose origin is inside.
    fn push_key(
        &mut self,
        suite: Suite,
        number: u32,
        id: KeyId,
        public: &[u8],
        wrapped: &[u8],
    ) -> &mut KeyRecord {
        let record = KeyRecord {
            id: id.to_string(),
            suite: suite_name(suite).into(),
            number,
            state: StateName::Active,
            opens_only: false,
            outside: false,
            created_unix_s: unix_s(),
            delete_unix_s: None,
            public_key: STANDARD.encode(public),
            wrapped: STANDARD.encode(wrapped),
        };

        self.keys.push(record);
        let last = self.keys.len() - 1;
        &mut self.keys[last]
    }

    /// Adds a fresh secret as the next version of the token key. Versions are never removed, so the
    /// last version has the highest number.
    pub(super) fn add_token_key(&mut self, kek: &Kek, app: &AppId) -> Result<u32, StoreError> {
        let highest = self
            .token_keys
            .iter()
            .map(|key| key.number)
            .max()
            .unwrap_or(0);
        let number = highest
            .checked_add(1)
            .ok_or_else(|| damaged(&app_key(app), "no number left".into()))?;
        let wrapped = kek.wrap_secret(
            TokenSecret::generate()?.expose(),
            &token_key_context(app, self.number, number),
        )?;
        let wrapped = STANDARD.encode(wrapped);
        self.token_keys.push(TokenKeyRecord {
            number,
            state: StateName::Active,
            created_unix_s: unix_s(),
            wrapped,
        });
        Ok(number)
    }
}

/// Returns the context to which a wrapped key is bound: its app, suite, number, id and origin. The
/// context is public. The app's name contains no zero byte, so the encoding is unambiguous.
pub(super) fn key_context(
    app: &AppId,
    suite: Suite,
    number: u32,
    id: KeyId,
    origin: Origin,
) -> Vec<u8> {
    let origin: &[u8] = match origin {
        Origin::Inside => b"", // The contexts are older than origins.
        Origin::Outside => b"outside",
    };
    let app = [
        b"sealwire/kek/1".as_slice(),
        app.as_str().as_bytes(),
        &[0, suite.byte()],
    ]
    .concat();
    [&app[..], &number.to_be_bytes(), id.as_bytes(), origin].concat()
}

/// Returns the context to which a wrapped token key is bound: its app, the app's number and its own
/// number. A token key has no id, but the app's number is never reused.
pub(super) fn token_key_context(app: &AppId, app_number: u32, number: u32) -> Vec<u8> {
    [
        app.as_str().as_bytes(),
        &[0],
        &app_number.to_be_bytes(),
        &number.to_be_bytes(),
    ]
    .concat()
}
