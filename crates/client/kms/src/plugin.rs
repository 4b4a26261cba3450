//! The three methods of the plugin.
//!
//! The key id is the id in the envelope that `Encrypt` returns: the engine's id of the app's newest
//! key. It changes exactly when the app seals with another key. Nothing is cached: each `Status`
//! seals and opens a constant, so that its key id is that of the next `Encrypt`, and it reports "ok"
//! only if both work.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sealwire_client::{
    Client, Decrypt, Encoding, Encrypt, EnvelopeOptions, Format, Inspect, Outside, Suite,
};
use sealwire_msgpack::{TokenReader, write};
use sealwire_service::log_throttle::LogThrottle;
use sealwire_service::settings::shown;
use tokio::time::Instant;
use tonic::Status;
use zeroize::Zeroizing;

use crate::config::{Config, SuiteChoice};
use crate::engines::{Attempt, Engine, Engines, Outcome};
use crate::error::Failure;
use crate::proto::{
    CIPHERTEXT_BYTES_MAX, DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse,
    KEY_ID_BYTES_MAX, StatusResponse,
};

/// Longest plaintext. The API server sends 32 bytes.
pub const PLAINTEXT_BYTES_MAX: usize = 512;
/// The constant that `Status` seals and opens.
const PROBE: &[u8] = b"sealwire-kms probe";

/// The plugin.
#[derive(Debug)]
pub struct Plugin {
    engines: Engines,
    keys: KeyNames,
    deadline: Duration,
    is_healthy: AtomicBool,
    /// Key id of the last `Status`, to log changes.
    logged_key_id: Mutex<String>,
    failures: LogThrottle,
}

/// Names under which the engine seals.
#[derive(Debug)]
struct KeyNames {
    app: String,
    /// The context of every envelope: `kubernetes/` and the name of the cluster.
    context: String,
    options: EnvelopeOptions,
}

/// A sealed data key.
#[derive(Clone)]
pub struct Sealed {
    ciphertext: Vec<u8>,
    key_id: String,
}

impl Sealed {
    /// Returns the id of the key that sealed.
    pub fn key_id(&self) -> &str {
        &self.key_id
    }
}

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed")
            .field("key_id", &self.key_id)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    /// Creates a plugin. Opens no connection. Reads the certificate files, so it blocks.
    ///
    /// # Errors
    /// A file of `[engine]` cannot be used.
    pub fn new(config: &Config) -> Result<Self, sealwire_client::Error> {
        let mut options = EnvelopeOptions::new()
            .format(Format::Native)
            .encoding(Encoding::Binary);
        if config.plugin.suite == SuiteChoice::Xaes {
            options = options.suite(Suite::Xaes);
        }
        Ok(Self {
            engines: Engines::new(config.engine.clients())?,
            keys: KeyNames {
                app: config.plugin.app.clone(),
                context: format!("kubernetes/{}", config.plugin.cluster),
                options,
            },
            deadline: Duration::from_millis(config.engine.deadline_ms.into()),
            is_healthy: AtomicBool::new(false),
            logged_key_id: Mutex::default(),
            failures: LogThrottle::new(),
        })
    }

    /// Returns the longest time of a request.
    pub const fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns the name of the app.
    pub fn app(&self) -> &str {
        &self.keys.app
    }

    /// Returns the engines.
    pub const fn engines(&self) -> &Engines {
        &self.engines
    }

    /// Returns true if the last `Status` found an engine that seals and opens.
    pub fn is_healthy(&self) -> bool {
        self.is_healthy.load(Ordering::Relaxed)
    }

    /// Handles `Status`. An engine that fails is reported in the response, with an empty key id: the
    /// API server then writes with its current data key for at most three minutes.
    pub async fn status(&self, deadline: Instant) -> StatusResponse {
        let probed = self.probe(deadline).await;
        let is_healthy = probed.is_ok();
        let was_healthy = self.is_healthy.swap(is_healthy, Ordering::Relaxed);
        let response = |healthz: String, key_id: String| StatusResponse {
            version: "v2".into(),
            healthz,
            key_id,
        };
        match probed {
            Ok(sealed) => {
                if !was_healthy {
                    tracing::info!("an engine encrypts and decrypts");
                }
                self.log_key_id(&sealed.key_id);
                response("ok".into(), sealed.key_id)
            }
            Err(failure) => {
                let text = failure.final_text(&self.keys.app);
                if was_healthy {
                    tracing::error!(error = %text, "no engine can encrypt and decrypt");
                }
                response(text, String::new())
            }
        }
    }

    /// Handles `Encrypt`.
    ///
    /// # Errors
    /// A status of gRPC.
    pub async fn encrypt(
        &self,
        request: EncryptRequest,
        deadline: Instant,
    ) -> Result<EncryptResponse, Status> {
        let plaintext = Zeroizing::new(request.plaintext);
        let reason = self.reason("encrypt", &request.uid);
        let sealed = self.seal(&plaintext, &reason, deadline).await;
        let sealed = sealed.map_err(|failure| self.status_of(&failure, "Encrypt", &request.uid))?;
        Ok(EncryptResponse {
            ciphertext: sealed.ciphertext,
            key_id: sealed.key_id,
        })
    }

    /// Handles `Decrypt`.
    ///
    /// # Errors
    /// A status of gRPC.
    pub async fn decrypt(
        &self,
        request: DecryptRequest,
        deadline: Instant,
    ) -> Result<DecryptResponse, Status> {
        let reason = self.reason("decrypt", &request.uid);
        let opened = self
            .open(&request.ciphertext, &request.key_id, &reason, deadline)
            .await;
        let mut opened =
            opened.map_err(|failure| self.status_of(&failure, "Decrypt", &request.uid))?;
        Ok(DecryptResponse {
            plaintext: std::mem::take(&mut *opened),
        })
    }

    /// Seals and opens a constant with one engine.
    ///
    /// # Errors
    /// The failure of the engine.
    pub async fn probe_engine(
        &self,
        engine: &Engine,
        deadline: Instant,
    ) -> Result<Sealed, Failure> {
        let reason = self.reason("check", "");
        engine
            .run(deadline, |client, attempt| {
                self.keys.probe(client, attempt, &reason)
            })
            .await
    }

    async fn probe(&self, deadline: Instant) -> Result<Sealed, Failure> {
        let reason = self.reason("status", "");
        self.engines
            .run(deadline, self.app(), |client, attempt| {
                self.keys.probe(client, attempt, &reason)
            })
            .await
    }

    async fn seal(
        &self,
        plaintext: &[u8],
        reason: &str,
        deadline: Instant,
    ) -> Result<Sealed, Failure> {
        if plaintext.is_empty() {
            return Err(Failure::Invalid("plaintext must not be empty"));
        }
        if plaintext.len() > PLAINTEXT_BYTES_MAX {
            return Err(Failure::Invalid("plaintext must have at most 512 bytes"));
        }
        self.engines
            .run(deadline, self.app(), |client, attempt| {
                self.keys.seal(client, attempt, plaintext, reason)
            })
            .await
    }

    async fn open(
        &self,
        ciphertext: &[u8],
        key_id: &str,
        reason: &str,
        deadline: Instant,
    ) -> Result<Zeroizing<Vec<u8>>, Failure> {
        if ciphertext.is_empty() || ciphertext.len() > CIPHERTEXT_BYTES_MAX {
            return Err(Failure::Invalid("ciphertext must have 1 to 1,024 bytes"));
        }
        if key_id.is_empty() || key_id.len() > KEY_ID_BYTES_MAX {
            return Err(Failure::Invalid("key_id must have 1 to 1,024 bytes"));
        }
        self.engines
            .run(deadline, self.app(), |client, attempt| {
                self.keys.open(client, attempt, ciphertext, key_id, reason)
            })
            .await
    }

    /// Returns the reason for the engine's audit log, with the id by which the API server logs the
    /// request.
    fn reason(&self, method: &str, uid: &str) -> String {
        let context = &self.keys.context;
        if uid.is_empty() {
            format!("{context} {method}")
        } else {
            format!("{context} {method} uid={}", shown(uid))
        }
    }

    fn status_of(&self, failure: &Failure, method: &str, uid: &str) -> Status {
        let status = failure.to_status(&self.keys.app);
        if let Some(suppressed) = self.failures.record(std::time::Instant::now()) {
            tracing::warn!(method, uid = %shown(uid), code = ?status.code(), error = status.message(), suppressed, "a request failed");
        }
        status
    }

    fn log_key_id(&self, key_id: &str) {
        let mut logged = self
            .logged_key_id
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *logged != key_id {
            tracing::info!(key_id, "encrypting with this key from now on");
            key_id.clone_into(&mut logged);
        }
    }
}

impl KeyNames {
    /// Seals bytes, and reads the key id from the envelope.
    async fn seal(
        &self,
        client: Client,
        attempt: Attempt,
        plaintext: &[u8],
        reason: &str,
    ) -> Result<Outcome<Sealed>, Failure> {
        let payload = payload_of(plaintext);
        let request = Encrypt::new(&self.app, &payload)
            .context(&self.context)
            .envelope_options(self.options)
            .options(attempt.options(reason));
        let document = client.encrypt(request).await?;
        let ciphertext = bytes_of(&document.payload)?;
        if ciphertext.len() > CIPHERTEXT_BYTES_MAX {
            return Err(Failure::LongCiphertext(ciphertext.len()));
        }
        let key_id = key_id_of(&client, ciphertext).await?;
        let key_id = key_id.ok_or(Failure::UnexpectedResponse)?;
        Ok(Outcome {
            value: Sealed {
                ciphertext: ciphertext.to_vec(),
                key_id,
            },
            generation: document.generation,
        })
    }

    /// Opens an envelope, if its key has the given id. Values that were sealed outside of an engine
    /// do not open: anyone who has a published key could have written them.
    async fn open(
        &self,
        client: Client,
        attempt: Attempt,
        ciphertext: &[u8],
        key_id: &str,
        reason: &str,
    ) -> Result<Outcome<Zeroizing<Vec<u8>>>, Failure> {
        // Without this check, bytes that are not an envelope would come back unchanged.
        let found = key_id_of(&client, ciphertext).await?;
        let found = found.ok_or(Failure::Invalid("ciphertext is not a binary envelope"))?;
        if found != key_id {
            return Err(Failure::OtherKey);
        }

        let payload = payload_of(ciphertext);
        let request = Decrypt::new(&self.app, &payload)
            .context(&self.context)
            .outside(Outside::Refuse)
            .options(attempt.options(reason));
        let document = client.decrypt(request).await?;
        let plaintext = Zeroizing::new(bytes_of(&document.payload)?.to_vec());
        Ok(Outcome {
            value: plaintext,
            generation: document.generation,
        })
    }

    async fn probe(
        &self,
        client: Client,
        attempt: Attempt,
        reason: &str,
    ) -> Result<Outcome<Sealed>, Failure> {
        let sealed = self.seal(client.clone(), attempt, PROBE, reason).await?;
        let Sealed { ciphertext, key_id } = &sealed.value;
        let opened = self
            .open(client, attempt, ciphertext, key_id, reason)
            .await?;
        if *opened.value == PROBE {
            Ok(sealed)
        } else {
            Err(Failure::UnexpectedResponse)
        }
    }
}

/// Returns the id of the key in a binary envelope, or `None` for an envelope of another format.
async fn key_id_of(client: &Client, envelope: &[u8]) -> Result<Option<String>, Failure> {
    let inspection = client.inspect(Inspect::binary(envelope)).await?;
    Ok(inspection
        .key_id
        .filter(|_| inspection.format == Format::Native))
}

/// Returns bytes as a payload: one MessagePack value.
fn payload_of(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    // With room for the header, so that no reallocation leaves an unwiped copy.
    let mut payload = Zeroizing::new(Vec::with_capacity(bytes.len() + 5));
    write::bin(&mut payload, bytes);
    payload
}

/// Returns the bytes of a payload.
fn bytes_of(payload: &[u8]) -> Result<&[u8], Failure> {
    let mut reader = TokenReader::new(payload);
    let bytes = reader.bin().map_err(|_| Failure::UnexpectedResponse)?;
    if reader.is_at_end() {
        Ok(bytes)
    } else {
        Err(Failure::UnexpectedResponse)
    }
}
