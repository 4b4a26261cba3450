//! Requests whose results an asyncio event loop waits for.
//!
//! The threads of the runtime never wait for the interpreter: they put results into a list and
//! write one byte to a socket that the event loop watches. The loop's thread then completes all
//! futures that are due at once.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use sealwire_client::Error;
use tokio::task::AbortHandle;

use crate::client::NativeClient;
use crate::errors;
use crate::request::{Outcome, Request};

type Finished = (u64, Result<Outcome, Error>);

/// The requests of one event loop.
#[pyclass(frozen, module = "sealwire._native")]
pub(crate) struct EventLoop {
    /// The end that the loop watches.
    wake: UnixStream,
    finished: Arc<FinishedQueue>,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    next: u64,
    requests: HashMap<u64, (Py<PyAny>, AbortHandle)>,
}

/// Results on their way from the runtime to the loop.
struct FinishedQueue {
    results: Mutex<Vec<Finished>>,
    wake: UnixStream,
}

impl FinishedQueue {
    fn push(&self, finished: Finished) {
        let mut results = lock(&self.results);
        results.push(finished);
        if results.len() == 1 {
            // A failed write means that the loop has closed its end, so no future waits for the
            // result.
            let _ = (&self.wake).write(&[0]);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EventLoop {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        lock(&self.pending)
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        for (_, request) in self.pending().requests.values() {
            request.abort();
        }
    }
}

#[pymethods]
impl EventLoop {
    #[new]
    fn new() -> PyResult<Self> {
        let (wake, other) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let finished = Arc::new(FinishedQueue {
            results: Mutex::new(Vec::new()),
            wake: other,
        });
        Ok(Self {
            wake,
            finished,
            pending: Mutex::new(Pending::default()),
        })
    }

    /// Returns the descriptor that becomes readable when results are there.
    fn fileno(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    /// Starts a request that completes an asyncio future. Returns the number by which it can be
    /// cancelled.
    fn start(
        &self,
        py: Python<'_>,
        client: &NativeClient,
        request: &Request,
        future: Py<PyAny>,
    ) -> PyResult<u64> {
        let running = client.running(py)?;
        let mut pending = self.pending();
        let number = pending.next;
        pending.next += 1;
        let call = Arc::clone(&request.call);
        let finished = Arc::clone(&self.finished);
        let client = running.client().clone();
        // The lock is held until the request is listed, so that its result is not taken earlier.
        let task = running
            .runtime()
            .spawn(async move { finished.push((number, call.send(&client).await)) });
        pending
            .requests
            .insert(number, (future, task.abort_handle()));
        Ok(number)
    }

    /// Cancels a request, here and on the engine. The future of the request is not completed.
    fn cancel(&self, number: u64) {
        let request = self.pending().requests.remove(&number);
        if let Some((_, request)) = request {
            request.abort();
        }
    }

    /// Ends all requests because the client is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let requests = std::mem::take(&mut self.pending().requests);
        let ended = requests.into_values().map(|(future, request)| {
            request.abort();
            let error = errors::unusable(py, "the client was closed during the request");
            complete(future.bind(py), Err(error))
        });
        first_error(ended)
    }

    /// Completes the futures whose results are there.
    fn complete(&self, py: Python<'_>) -> PyResult<()> {
        while let Ok(64) = (&self.wake).read(&mut [0; 64]) {}
        let finished = std::mem::take(&mut *lock(&self.finished.results));
        let ended = finished.into_iter().map(|(number, outcome)| {
            let request = self.pending().requests.remove(&number);
            let Some((future, _)) = request else {
                return Ok(());
            };
            let outcome = outcome
                .map_err(|error| errors::of_client(py, &error))
                .and_then(|found| found.into_python(py));
            complete(future.bind(py), outcome)
        });
        first_error(ended)
    }
}

/// Completes a future, unless it is done.
fn complete<'py>(future: &Bound<'py, PyAny>, outcome: PyResult<Bound<'py, PyAny>>) -> PyResult<()> {
    if future.call_method0("done")?.is_truthy()? {
        return Ok(());
    }
    match outcome {
        Ok(value) => future.call_method1("set_result", (value,))?,
        Err(error) => future.call_method1("set_exception", (error.into_value(future.py()),))?,
    };
    Ok(())
}

/// Runs all steps, and then returns the first error. A signal handler can raise in any step, and
/// the other steps complete futures that somebody waits for.
fn first_error(steps: impl Iterator<Item = PyResult<()>>) -> PyResult<()> {
    let mut first = Ok(());
    for step in steps {
        first = first.and(step);
    }
    first
}
