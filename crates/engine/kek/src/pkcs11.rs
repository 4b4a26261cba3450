//! Provider with the KEK on a PKCS #11 token: a hardware security module or a smart card.
//!
//! The KEK is an AES-256 key that never leaves the token. The root key is encrypted with AES-GCM;
//! the slot is the additional data. A copy consists of the nonce that the token used (12 bytes),
//! the ciphertext (32) and the tag (16).
//!
//! Each module has one context and one thread per process, because two contexts of one module break
//! each other. Each token has one session with one login, because two threads must not share a
//! session. Paths that link to the same file are one module. Requests wait in a bounded queue. A
//! lost session is opened again, once per call.
//!
//! A token locks itself after a few wrong PINs. So a PIN is not used again after a failed login,
//! unless the device, session or slot was lost. No login is tried while the token reports that one
//! try is left. Repeated restarts of the program can still lock a token that does not report
//! remaining tries.

mod errors;
mod module;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{OnceCell, oneshot};

use crate::secret_file::FileReader;
use crate::{Provider, ProviderError, ProviderKind, RootBytes, WrapSlot, reject_long};
use module::Module;

/// Longest time of a call, in seconds, including its wait in the queue.
pub const CALL_SECONDS_MAX: u64 = 5;
/// Maximum number of requests that wait for one module.
const QUEUE_MAX: usize = 16;

/// Settings of a [`Pkcs11Provider`], without secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pkcs11Options {
    /// The module: a shared library that exports `C_GetFunctionList`.
    pub module: PathBuf,
    /// The token's label, at most 32 bytes. A label or a serial number is required. If both are
    /// given, both must match.
    pub token: Option<String>,
    /// The token's serial number, at most 16 bytes.
    pub serial: Option<String>,
    /// The key's label (`CKA_LABEL`).
    pub key: String,
    /// The key's id (`CKA_ID`), if several keys have the label. [`Pkcs11Provider::generate_key`]
    /// gives it to the new key.
    pub key_id: Option<Vec<u8>>,
    /// A file with the user's PIN, at most 255 bytes of UTF-8. Line ends after the PIN are ignored.
    /// Other users must not be able to read the file, and its group must not be able to change it.
    pub pin_file: PathBuf,
}

/// Wraps with an AES-256 key on a PKCS #11 token.
#[derive(Clone, Debug)]
pub struct Pkcs11Provider {
    options: Arc<Pkcs11Options>,
    time_limit: Duration,
    /// The queue of the module. Empty until the module's file is found.
    queue: Arc<OnceCell<ModuleQueue>>,
    reader: FileReader,
}

impl Pkcs11Provider {
    /// Creates a provider. The first call finds and loads the module, opens a session and logs in.
    /// A replaced module file is loaded only after a restart of the program.
    #[must_use]
    pub fn new(options: Pkcs11Options) -> Self {
        Self {
            options: Arc::new(options),
            time_limit: Duration::from_secs(CALL_SECONDS_MAX),
            queue: Arc::default(),
            reader: FileReader::default(),
        }
    }

    /// Returns the settings of this provider.
    #[must_use]
    pub fn options(&self) -> &Pkcs11Options {
        &self.options
    }

    /// Generates the key on the token: AES-256, sensitive, not extractable, for encryption and
    /// decryption. The time limit of calls applies, so a slow token can finish the key after
    /// [`ProviderError::Unavailable`] was returned.
    ///
    /// # Errors
    /// [`ProviderError::Settings`] if a key with this label and id exists; see [`ProviderError`]
    /// for other errors.
    pub async fn generate_key(&self) -> Result<(), ProviderError> {
        let options = Arc::clone(&self.options);
        self.call(move |module| module.generate_key(&options)).await
    }

    /// Checks that the token and the key can be used. Wraps and unwraps a test value; an altered
    /// copy or other additional data must fail. Does not try the PIN while the token has a session
    /// that is logged in.
    ///
    /// # Errors
    /// See [`ProviderError`].
    pub async fn check(&self) -> Result<(), ProviderError> {
        let options = Arc::clone(&self.options);
        self.call(move |module| module.check(&options)).await
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Module) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let limited = async {
            self.call_in(
                self.queue
                    .get_or_try_init(async || {
                        let module = self.options.module.clone();
                        self.reader
                            .run(&self.place(), move || queue_of(&module))
                            .await
                    })
                    .await?,
                work,
            )
            .await
        };

        tokio::time::timeout(self.time_limit, limited)
            .await
            .unwrap_or_else(|_| {
                let seconds = self.time_limit.as_secs();
                Err(ProviderError::Unavailable(format!(
                    "{}: no answer within {seconds} seconds",
                    self.place()
                )))
            })
    }

    /// Names the module in errors.
    fn place(&self) -> String {
        format!("module {}", self.options.module.display())
    }

    /// Runs `work` on the module's thread. Skips work whose caller was dropped before the work
    /// started.
    async fn call_in<T: Send + 'static>(
        &self,
        queue: &ModuleQueue,
        work: impl FnOnce(&mut Module) -> Result<T, ProviderError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        let (reply, result) = oneshot::channel();
        let job: ModuleJob = Box::new(move |thread| {
            if !reply.is_closed() {
                // If the caller was dropped, a root key in the result is wiped.
                let _ = reply.send(thread.loaded_module().and_then(work));
            }
        });
        queue.try_send(job).map_err(|error| match error {
            TrySendError::Full(_) => ProviderError::Unavailable(format!(
                "{}: {QUEUE_MAX} calls wait already",
                self.place()
            )),
            TrySendError::Disconnected(_) => thread_ended(&self.options.module),
        })?;
        result.await.unwrap_or_else(|_| {
            Err(ProviderError::Unavailable(format!(
                "{}: the call panicked",
                self.place()
            )))
        })
    }
}

#[async_trait]
impl Provider for Pkcs11Provider {
    fn kind(&self) -> ProviderKind {
        ProviderKind::Pkcs11
    }

    async fn wrap(&self, root: &RootBytes, slot: &WrapSlot) -> Result<Vec<u8>, ProviderError> {
        let options = Arc::clone(&self.options);
        let root = root.clone();
        let aad = slot.aad();
        self.call(move |module| module.wrap(&options, &root, &aad))
            .await
    }

    async fn unwrap(&self, wrapped: &[u8], slot: &WrapSlot) -> Result<RootBytes, ProviderError> {
        reject_long(wrapped)?;
        let options = Arc::clone(&self.options);
        let wrapped = wrapped.to_vec();
        let aad = slot.aad();
        self.call(move |module| module.unwrap(&options, &wrapped, &aad))
            .await
    }
}

/// A request to a module's thread.
type ModuleJob = Box<dyn FnOnce(&mut ModuleThread) + Send>;
type ModuleQueue = SyncSender<ModuleJob>;

/// The state of a module's thread.
struct ModuleThread {
    path: PathBuf,
    /// The loaded module, which stays loaded. `None` until the first successful load.
    module: Option<Module>,
}

impl ModuleThread {
    fn loaded_module(&mut self) -> Result<&mut Module, ProviderError> {
        match &mut self.module {
            Some(module) => Ok(module),
            none => Ok(none.insert(Module::load(&self.path)?)),
        }
    }

    fn run(&mut self, jobs: &Receiver<ModuleJob>) {
        for job in jobs {
            let Some(_call) = RunningRequest::start() else {
                return;
            };
            // The caller notices a panic by its dropped response channel. Sessions can be in the
            // middle of an operation, so they are closed.
            if catch_unwind(AssertUnwindSafe(|| job(self))).is_err()
                && let Some(module) = &mut self.module
            {
                module.close_sessions();
            }
        }
    }
}

/// Calls of all modules.
struct Calls {
    running: usize,
    /// True during shutdown. No further call starts.
    is_shutting_down: bool,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls {
    running: 0,
    is_shutting_down: false,
});
static CALL_ENDED: Condvar = Condvar::new();

/// A call of a module, counted until it is dropped.
struct RunningRequest(());

impl RunningRequest {
    fn start() -> Option<Self> {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        calls.running += usize::from(!calls.is_shutting_down);
        (!calls.is_shutting_down).then(|| Self(()))
    }
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        CALLS.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
        CALL_ENDED.notify_all();
    }
}

/// Rejects new calls and waits for running calls to finish, at most [`CALL_SECONDS_MAX`]. Must be
/// called before the process exits: exit unloads the modules, and a running call would crash. Calls
/// continue after their caller is dropped, for instance because another slot answered first.
pub fn end_calls() {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    calls.is_shutting_down = true;
    let limit = Duration::from_secs(CALL_SECONDS_MAX);
    drop(CALL_ENDED.wait_timeout_while(calls, limit, |calls| calls.running > 0));
}

fn missing_module(module: &Path, error: &std::io::Error) -> ProviderError {
    ProviderError::NotFound(format!("module {}: {error}", module.display()))
}

/// Returns the queue of a module. Starts the module's thread if it does not run yet. Threads run
/// until the process exits. Blocks on the file system.
fn queue_of(module: &Path) -> Result<ModuleQueue, ProviderError> {
    static QUEUES: LazyLock<Mutex<HashMap<(u64, u64), ModuleQueue>>> =
        LazyLock::new(Mutex::default);
    let path = fs::canonicalize(module).map_err(|error| missing_module(module, &error))?;
    // Paths to the same file are one module, also through hard links.
    let metadata = fs::metadata(&path).map_err(|error| missing_module(module, &error))?;
    let file = (metadata.dev(), metadata.ino());
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(queue) = queues.get(&file) {
        return Ok(queue.clone());
    }

    let (queue, jobs) = mpsc::sync_channel(QUEUE_MAX);
    let mut thread = ModuleThread { path, module: None };
    thread::Builder::new()
        .name("pkcs11".into())
        .spawn(move || thread.run(&jobs))
        .map_err(|error| {
            ProviderError::Unavailable(format!("no thread for a PKCS #11 module: {error}"))
        })?;
    queues.insert(file, queue.clone());
    Ok(queue)
}

/// Returns the error for a module whose thread has ended. The thread is not replaced, because a
/// second context of the module would break.
fn thread_ended(module: &Path) -> ProviderError {
    ProviderError::Unavailable(format!(
        "module {}: its thread ended; restart the program",
        module.display()
    ))
}

#[cfg(test)]
mod tests;
