//! The client with its runtime, and requests that the calling thread waits for.
//!
//! Each client has a separate runtime, so that closing the client ends its threads and its
//! connections. These threads do not exist in a forked process. A client from before the fork is
//! therefore neither used nor dropped there.

use std::future::Future;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use sealwire_client::{Client, ClientConfig, Endpoint, Pacer, Pem};
use tokio::runtime::{Builder, Runtime};

use crate::errors;
use crate::options::Options;
use crate::request::Request;

/// Interval at which a waiting thread checks for a signal such as Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Default number of threads of a client's runtime: one for each connection to an engine.
const THREADS: usize = 2;
const THREADS_MAX: usize = 64;

/// The client that the classes in Python share.
#[pyclass(frozen, module = "sealwire._native")]
pub(crate) struct NativeClient {
    running: Mutex<Option<Arc<Running>>>,
}

/// A client that has not been closed.
pub(crate) struct Running {
    /// The client and its runtime, `Some` until the drop.
    parts: Option<(Client, Runtime)>,
    /// Shared by all calls on columns, so that they adapt to the engine together.
    pacer: Pacer,
    /// Number of values of columns that were sent.
    values: AtomicU64,
    /// Why renewed certificates are not in use, as it was last logged.
    logged: Mutex<Option<Arc<str>>>,
    process: u32,
}

impl Drop for Running {
    fn drop(&mut self) {
        let parts = self.parts.take();
        if self.process != process::id() {
            // Threads that this process does not have can hold locks of the runtime.
            Box::leak(Box::new(parts));
        } else if let Some((client, runtime)) = parts {
            drop(client);
            runtime.shutdown_background();
        }
    }
}

impl Running {
    pub(crate) fn client(&self) -> &Client {
        let (client, _) = self.parts.as_ref().expect("dropped once");
        client
    }

    pub(crate) fn count_values(&self, count: usize) {
        self.values.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    /// Logs once when renewed certificates are not in use, because requests succeed until the
    /// earlier ones expire.
    fn log_renewal(&self, py: Python<'_>) -> PyResult<()> {
        let error = self.client().renewal_error();
        let is_news = {
            let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *logged, error.clone()) != error
        };
        match error {
            Some(error) if is_news => {
                let logger = py
                    .import("logging")?
                    .call_method1("getLogger", ("sealwire",))?;
                logger.call_method1("warning", ("%s", &*error)).map(drop)
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        let (_, runtime) = self.parts.as_ref().expect("dropped once");
        runtime
    }

    /// Waits for a future without the interpreter. A signal handler that raises ends the wait and
    /// drops the future.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = T> + Send,
    ) -> PyResult<T> {
        let mut future = pin!(future);
        let parked = Arc::new(ParkedThread {
            thread: thread::current(),
            is_woken: AtomicBool::new(true),
        });
        loop {
            let waited = py.detach(|| {
                let _context = self.runtime().enter();
                parked.poll_for(future.as_mut(), SIGNALS_EVERY)
            });
            match waited {
                Poll::Ready(output) => return Ok(output),
                Poll::Pending => py.check_signals()?,
            }
        }
    }
}

/// The thread that waits for a future. A timer of the runtime for each wait would wake a thread of
/// the runtime each time.
struct ParkedThread {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl ParkedThread {
    /// Polls a future whenever it is woken, at most for the given time.
    fn poll_for<T>(
        self: &Arc<Self>,
        mut future: Pin<&mut impl Future<Output = T>>,
        most: Duration,
    ) -> Poll<T> {
        let waker = Waker::from(Arc::clone(self));
        let until = Instant::now() + most;
        loop {
            if self.is_woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Poll::Ready(output);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Poll::Pending;
            }
            if !self.is_woken.load(Ordering::Acquire) {
                thread::park_timeout(left);
            }
        }
    }
}

impl NativeClient {
    pub(crate) fn running(&self, py: Python<'_>) -> PyResult<Arc<Running>> {
        let running = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let running = running.ok_or_else(|| errors::unusable(py, "the client is closed"))?;
        if running.process != process::id() {
            return Err(errors::unusable(
                py,
                "the client was created before a fork: create one in each process",
            ));
        }
        Ok(running)
    }
}

#[pymethods]
impl NativeClient {
    #[new]
    fn new(
        py: Python<'_>,
        endpoints: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let options = Options::new("Client", options)?;
        let threads = options.take("threads", "an integer")?.unwrap_or(THREADS);
        if !(1..=THREADS_MAX).contains(&threads) {
            return Err(PyValueError::new_err(format!(
                "threads must be in 1..={THREADS_MAX}"
            )));
        }
        let config = read_config(endpoints, &options)?;
        options.finish()?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("sealwire")
            .enable_all()
            .build()?;
        let client = py
            .detach(|| Client::lazy(config))
            .map_err(|error| errors::of_client(py, &error))?;
        let running = Running {
            parts: Some((client, runtime)),
            pacer: Pacer::default(),
            values: AtomicU64::new(0),
            logged: Mutex::new(None),
            process: process::id(),
        };
        Ok(Self {
            running: Mutex::new(Some(Arc::new(running))),
        })
    }

    /// Sends a request and waits for its result.
    fn run<'py>(&self, py: Python<'py>, request: &Request) -> PyResult<Bound<'py, PyAny>> {
        let running = self.running(py)?;
        let outcome = running.wait(py, request.call.send(running.client()))?;
        if let Err(error) = running.log_renewal(py) {
            // A failing handler of the logger replaces neither a result nor an error. Ctrl-C is
            // passed on.
            if !error.is_instance_of::<PyException>(py) {
                return Err(error);
            }
            error.write_unraisable(py, None);
        }
        outcome
            .map_err(|error| errors::of_client(py, &error))?
            .into_python(py)
    }

    /// Returns why renewed certificates are not in use, or `None` if they are.
    fn renewal_error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self
            .running(py)?
            .client()
            .renewal_error()
            .map(|error| error.to_string()))
    }

    /// Logs once when renewed certificates are not in use. Requests of an event loop do not do so
    /// themselves.
    fn log_renewal(&self, py: Python<'_>) -> PyResult<()> {
        let running = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        running.map_or(Ok(()), |running| running.log_renewal(py))
    }

    /// Returns the client's counters.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let running = self.running(py)?;
        let stats = running.client().stats();
        let pacer = running.pacer().stats();
        let map = PyDict::new(py);
        map.set_item("attempts", stats.attempts)?;
        map.set_item("retries", stats.retries)?;
        map.set_item("retries_refused", stats.retries_refused)?;
        map.set_item("ejections", stats.ejections)?;
        map.set_item("repeated", pacer.retries)?;
        map.set_item("waited_ms", pacer.waited_ms)?;
        map.set_item("values", running.values.load(Ordering::Relaxed))?;
        Ok(map)
    }

    /// Ends the connections once the requests that threads wait for are done. Does nothing if
    /// repeated.
    fn close(&self, py: Python<'_>) {
        let running = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| drop(running));
    }
}

fn read_config(endpoints: &Bound<'_, PyAny>, options: &Options<'_>) -> PyResult<ClientConfig> {
    let server_name: Option<String> = options.take("server_name", "a string")?;
    let mut config = ClientConfig::new(
        "",
        "",
        required_pem(options, "ca")?,
        required_pem(options, "cert")?,
        required_pem(options, "key")?,
    );
    config.endpoints = read_endpoints(endpoints, server_name.as_deref())?;

    read_number(options, "connections", &mut config.connections)?;
    read_number(options, "in_flight_max", &mut config.in_flight_max)?;
    read_number(options, "request_bytes_max", &mut config.request_bytes_max)?;
    read_number(
        options,
        "response_bytes_max",
        &mut config.response_bytes_max,
    )?;
    read_number(options, "attempts_max", &mut config.attempts_max)?;
    read_number(options, "retry_percent", &mut config.retry_percent)?;
    read_number(options, "eject_after", &mut config.eject_after)?;

    for (name, duration) in [
        ("connection_age_max_ms", &mut config.connection_age_max),
        ("connect_timeout_ms", &mut config.connect_timeout),
        ("deadline_ms", &mut config.deadline),
        ("backoff_min_ms", &mut config.backoff_min),
        ("backoff_max_ms", &mut config.backoff_max),
        ("ejection_min_ms", &mut config.ejection_min),
        ("ejection_max_ms", &mut config.ejection_max),
    ] {
        if let Some(value) = options.take::<u64>(name, "a positive integer of milliseconds")? {
            *duration = Duration::from_millis(value);
        }
    }
    config.repeat_sent = options
        .take("repeat_sent", "a boolean")?
        .unwrap_or(config.repeat_sent);
    Ok(config)
}

/// Sets a number if the option is given.
fn read_number<'py, N: FromPyObjectOwned<'py>>(
    options: &Options<'py>,
    name: &str,
    number: &mut N,
) -> PyResult<()> {
    if let Some(value) = options.take(name, "a positive integer")? {
        *number = value;
    }
    Ok(())
}

fn required_pem(options: &Options<'_>, name: &str) -> PyResult<Pem> {
    let value = options.required::<Bound<'_, PyAny>>(name, "a path or bytes")?;
    read_pem(&value, name)
}

/// Reads a path as a string, or PEM text as bytes. A string is always a path, so that a key is
/// never taken for one.
fn read_pem(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Pem> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(Pem::Bytes(bytes.as_bytes().to_vec()));
    }
    let path: PathBuf = value.extract().map_err(|raised| {
        errors::unless_passed_on(value.py(), raised, || {
            PyTypeError::new_err(format!(
                "Client() argument '{name}' must be a path or bytes"
            ))
        })
    })?;
    Ok(Pem::File(path))
}

/// Reads one endpoint or a list of them. Each is `"host:port"` or a pair of that and the name in
/// its certificate.
fn read_endpoints(value: &Bound<'_, PyAny>, server_name: Option<&str>) -> PyResult<Vec<Endpoint>> {
    match read_endpoint(value, server_name) {
        Ok(endpoint) => Ok(vec![endpoint]),
        Err(raised) if errors::is_passed_on(value.py(), &raised) => Err(raised),
        Err(_) => value
            .try_iter()
            .map_err(|raised| endpoint_error(value.py(), raised))?
            .map(|value| read_endpoint(&value?, server_name))
            .collect(),
    }
}

fn read_endpoint(value: &Bound<'_, PyAny>, server_name: Option<&str>) -> PyResult<Endpoint> {
    if let Ok(address) = value.extract::<String>() {
        let host = address.rsplit_once(':').map_or(&*address, |(host, _)| host);
        let name = server_name
            .unwrap_or(host.trim_start_matches('[').trim_end_matches(']'))
            .to_owned();
        return Ok(Endpoint::new(address, name));
    }
    value
        .extract::<(String, String)>()
        .map(|(address, name)| Endpoint::new(address, name))
        .map_err(|raised| endpoint_error(value.py(), raised))
}

fn endpoint_error(py: Python<'_>, raised: PyErr) -> PyErr {
    errors::unless_passed_on(py, raised, || {
        PyTypeError::new_err("an endpoint must be 'host:port' or a pair of that and a server name")
    })
}
