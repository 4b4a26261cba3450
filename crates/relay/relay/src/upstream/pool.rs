//! A pool of connections to one upstream.
//!
//! A request is sent again only if none of its bytes were sent. The upstream can close an idle
//! connection at the moment when the pool takes it. hyper returns the unsent request in that case.
//! No other retry exists.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::body::{Progress, RequestBody, UpstreamBody};
use super::connection::{Connection, Http1, Http2, open_connection};
use super::error::{Cause, Stage, UpstreamError};
use super::short_frames::ShortFrames;
use super::tls::UpstreamTls;
use super::{Protocol, Upstream};
use crate::headers::join_cookies;
use crate::shares::{ClientId, ClientShares};

/// Most idle connections that are tried before a new connection is opened.
const STALE_MAX: usize = 3;
/// Time in which an HTTP/1 connection must become ready after the response was read. The connection
/// is ready at once, unless the upstream responded early and still reads the request.
const READY_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections to one upstream. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    upstream: Arc<Upstream>,
    tls: UpstreamTls,
    /// Idle HTTP/1 connections, with the last used one at the end.
    idle: Mutex<Vec<Http1>>,
    /// All connections over HTTP/2.
    shared: Mutex<Vec<Http2>>,
    /// Permits for HTTP/1 connections, of all clients and of each client.
    permits: Arc<Semaphore>,
    clients: ClientShares,
    /// Permits of WebSockets.
    websockets: Arc<Semaphore>,
    /// Wakes a request that waits for capacity on an HTTP/2 connection.
    room: Arc<Notify>,
    /// Held while a connection that can use HTTP/2 is opened, so that a burst of requests shares
    /// it.
    opening: tokio::sync::Mutex<()>,
    /// Number of connections that could not be opened.
    failures: AtomicUsize,
    /// True after ALPN selected HTTP/1.
    is_http1: AtomicBool,
    /// Set when the task that closes idle connections was started.
    prunes: Once,
}

/// Permission to use an HTTP/1 connection.
#[derive(Debug)]
pub(super) struct Permit {
    _share: OwnedSemaphorePermit,
    _permit: OwnedSemaphorePermit,
}

/// Use of a connection by one request. Dropping it closes an HTTP/1 connection.
#[derive(Debug)]
pub(super) enum Lease {
    Http1 {
        connection: Option<Http1>,
        permit: Option<Permit>,
        shared: Arc<Shared>,
        is_upgrade: bool,
    },
    Http2(Http2),
}

impl Lease {
    /// Returns true if the connection was upgraded from HTTP.
    pub(super) fn is_upgrade(&self) -> bool {
        matches!(
            self,
            Self::Http1 {
                is_upgrade: true,
                ..
            }
        )
    }

    /// Returns the counter of short frames that an HTTP/2 connection can send at once.
    fn short_frames(&self) -> Option<Arc<ShortFrames>> {
        match self {
            Self::Http1 { .. } => None,
            Self::Http2(connection) => Some(Arc::clone(&connection.short_frames)),
        }
    }

    /// Returns the connection to the pool.
    pub(super) fn release(mut self) {
        let Self::Http1 {
            connection,
            permit,
            shared,
            ..
        } = &mut self
        else {
            return;
        };
        let permit = permit.take();
        let shared = Arc::clone(shared);
        let Some(mut connection) = connection.take() else {
            return;
        };
        if connection.sender.is_ready() {
            return shared.return_idle(connection);
        }
        tokio::spawn(async move {
            match timeout(READY_TIMEOUT, connection.sender.ready()).await {
                Ok(Ok(())) => shared.return_idle(connection),
                _ => connection.driver.abort(),
            }
            drop(permit);
        });
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match self {
            // Without the abort, hyper would read the rest of the response first. An upgraded
            // connection does not belong to the lease any more.
            Self::Http1 {
                connection: Some(connection),
                is_upgrade: false,
                ..
            } => connection.driver.abort(),
            Self::Http1 { .. } => {}
            Self::Http2(connection) => {
                connection.streams.fetch_sub(1, Ordering::Relaxed);
                connection.room.notify_one();
            }
        }
    }
}

impl Shared {
    fn return_idle(&self, mut connection: Http1) {
        connection.idle_since = Instant::now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(connection);
        let excess = idle
            .len()
            .saturating_sub(self.upstream.connections_max.div_ceil(2));
        idle.drain(..excess);
    }

    /// Removes connections that are closed or were idle for too long.
    fn close_unused(&self) {
        let now = Instant::now();
        let limit = self.upstream.idle_timeout;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|connection| {
            !connection.sender.is_closed() && now - connection.idle_since < limit
        });
        drop(idle);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain_mut(|connection| {
            if connection.streams.load(Ordering::Relaxed) > 0 {
                connection.idle_since = now;
            }
            !connection.sender.is_closed() && now - connection.idle_since < limit
        });
    }

    fn take_idle(self: &Arc<Self>, permit: &mut Option<Permit>) -> Option<Lease> {
        self.close_unused();
        let connection = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop()?;
        Some(self.new_lease(connection, permit.take()))
    }

    fn take_shared(&self) -> Option<Lease> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.retain(|connection| !connection.sender.is_closed());
        let connection = shared
            .iter()
            .find(|connection| connection.has_room())?
            .clone();
        connection.streams.fetch_add(1, Ordering::Relaxed);
        Some(Lease::Http2(connection))
    }

    /// Takes an HTTP/2 connection with capacity for a stream. Returns `None` if another connection
    /// can be opened. At the limit of connections, waits for capacity: more than
    /// [`super::STREAMS_MAX`] streams would share the windows of others.
    async fn wait_for_room(&self) -> Option<Lease> {
        loop {
            let mut room = pin!(self.room.notified());
            // Each stream that ends wakes one request. Register before the check, so that no
            // wake-up is lost.
            room.as_mut().enable();
            if let Some(lease) = self.take_shared() {
                return Some(lease);
            }
            let connections = self
                .shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .len();
            if connections < self.upstream.connections_max.max(1) {
                return None;
            }
            room.await;
        }
    }

    /// Like [`Self::wait_for_room`], with a deadline.
    async fn wait_for_room_until(&self, deadline: Instant) -> Result<Option<Lease>, UpstreamError> {
        timeout_at(deadline, self.wait_for_room())
            .await
            .map_err(|_| UpstreamError::before_sending(Stage::Busy))
    }

    fn new_lease(self: &Arc<Self>, connection: Http1, permit: Option<Permit>) -> Lease {
        Lease::Http1 {
            connection: Some(connection),
            permit,
            shared: Arc::clone(self),
            is_upgrade: false,
        }
    }

    /// Waits for the permit to use an HTTP/1 connection. Takes the permit of the client first, so
    /// that other clients do not queue behind the requests of one client.
    async fn acquire_permit(
        &self,
        client: &ClientId,
        deadline: Instant,
    ) -> Result<Permit, UpstreamError> {
        let share = self.clients.share_of(client);
        let share = acquire_until(deadline, share, Stage::ClientBusy).await?;
        let permits = Arc::clone(&self.permits);
        Ok(Permit {
            _share: share,
            _permit: acquire_until(deadline, permits, Stage::Busy).await?,
        })
    }

    fn may_be_http2(&self) -> bool {
        match self.upstream.protocol {
            Protocol::Http1 => false,
            Protocol::Http2 => true,
            Protocol::Auto => self.upstream.is_tls && !self.is_http1.load(Ordering::Relaxed),
        }
    }
}

/// Waits for a permit until the deadline. Fails with `stage` after it.
async fn acquire_until(
    deadline: Instant,
    semaphore: Arc<Semaphore>,
    stage: Stage,
) -> Result<OwnedSemaphorePermit, UpstreamError> {
    timeout_at(deadline, semaphore.acquire_owned())
        .await
        .ok()
        .and_then(Result::ok)
        .ok_or_else(|| UpstreamError::before_sending(stage))
}

impl Pool {
    /// Creates an empty pool.
    pub fn new(upstream: Arc<Upstream>) -> Self {
        Self::with_websockets(upstream, Semaphore::MAX_PERMITS)
    }

    /// Creates an empty pool for at most `websockets_max` concurrent WebSockets.
    pub fn with_websockets(upstream: Arc<Upstream>, websockets_max: usize) -> Self {
        let permits = Arc::new(Semaphore::new(
            upstream.connections_max.clamp(1, Semaphore::MAX_PERMITS),
        ));
        let clients = ClientShares::new(upstream.connections_per_client_max);
        Self(Arc::new(Shared {
            upstream,
            tls: UpstreamTls::default(),
            idle: Mutex::default(),
            shared: Mutex::default(),
            permits,
            clients,
            websockets: Arc::new(Semaphore::new(websockets_max.min(Semaphore::MAX_PERMITS))),
            room: Arc::default(),
            opening: tokio::sync::Mutex::default(),
            failures: AtomicUsize::new(0),
            is_http1: AtomicBool::new(false),
            prunes: Once::new(),
        }))
    }

    /// Starts the task that closes idle connections. The task ends with the pool.
    fn start_pruning(&self) {
        let interval = (self.0.upstream.idle_timeout / 2).max(Duration::from_millis(100));
        let pruned = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(interval).await;
                let Some(shared) = pruned.upgrade() else {
                    return;
                };
                shared.close_unused();
            }
        });
    }

    /// Returns the permits of WebSockets.
    pub fn websocket_permits(&self) -> &Arc<Semaphore> {
        &self.0.websockets
    }

    /// Returns the upstream.
    pub fn upstream(&self) -> &Arc<Upstream> {
        &self.0.upstream
    }

    /// Sends a request and returns the head of the response. The request's target needs only a
    /// path. The authority is the request's `Host` or, without one, the upstream's.
    ///
    /// Hop-by-hop headers must already be removed, except `Connection` and `Upgrade` of a WebSocket
    /// request. After a 101, [`hyper::upgrade::on`] returns the connection. Dropping the body then
    /// removes the connection from the pool, so that it does not occupy the place of a request.
    ///
    /// Dropping the future closes an HTTP/1 connection and resets an HTTP/2 stream.
    ///
    /// # Errors
    ///
    /// See [`Stage`]. `sent` tells if a retry could perform an action twice.
    pub async fn send<B>(
        &self,
        request: Request<B>,
        client: &ClientId,
        deadline: Instant,
    ) -> Result<Response<UpstreamBody>, UpstreamError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Cause>,
    {
        self.0.prunes.call_once(|| self.start_pruning());
        let (mut parts, body) = request.into_parts();
        let host = take_authority(&mut parts.headers, &self.0.upstream)?;
        let (body, progress) = RequestBody::new(body);
        let facts = RequestFacts::from_head(&parts.method, &parts.headers);
        let mut request = Request::from_parts(parts, body);
        for attempt in 0..=STALE_MAX {
            let (mut lease, is_reused) = self
                .take_connection(client, deadline, attempt < STALE_MAX)
                .await?;
            address_request(
                &mut request,
                &host,
                &self.0.upstream,
                matches!(lease, Lease::Http2(_)),
            )?;
            request.body_mut().set_short_frames(lease.short_frames());
            match self
                .send_on(&mut lease, request, progress.clone(), deadline)
                .await
            {
                Ok(response) => return self.wrap_response(response, lease, facts),
                Err(SendFailure::Unsent(same, _)) if is_reused => request = *same,
                Err(SendFailure::Unsent(_, error)) => {
                    return Err(UpstreamError::before_sending(Stage::Exchange).with_cause(error));
                }
                Err(SendFailure::Failed(error)) => return Err(error),
            }
        }
        Err(UpstreamError::before_sending(Stage::Exchange))
    }

    /// Takes an idle or shared connection, or opens one. Returns true if other requests used the
    /// connection before.
    async fn take_connection(
        &self,
        client: &ClientId,
        deadline: Instant,
        may_reuse: bool,
    ) -> Result<(Lease, bool), UpstreamError> {
        let shared = &self.0;
        let mut opening = None;
        if shared.may_be_http2() {
            if let Some(lease) = shared.wait_for_room_until(deadline).await? {
                return Ok((lease, true));
            }
            let failures = shared.failures.load(Ordering::Relaxed);
            opening = Some(
                timeout_at(deadline, shared.opening.lock())
                    .await
                    .map_err(|_| UpstreamError::before_sending(Stage::Busy))?,
            );
            if let Some(lease) = shared.wait_for_room_until(deadline).await? {
                return Ok((lease, true));
            }
            // The upstream did not accept the connection of another request. Waiting requests must
            // not try one after the other, so release the lock.
            if shared.failures.load(Ordering::Relaxed) != failures {
                opening = None;
            }
        }

        let mut permit = None;
        if shared.upstream.protocol != Protocol::Http2 {
            if !shared.may_be_http2() {
                opening = None;
            }
            permit = Some(shared.acquire_permit(client, deadline).await?);
            if let Some(lease) = may_reuse.then(|| shared.take_idle(&mut permit)).flatten() {
                return Ok((lease, true));
            }
        }

        // Boxed: otherwise every request on an open connection would carry the size of a TLS
        // handshake.
        let opened = timeout_at(
            deadline,
            Box::pin(open_connection(&shared.upstream, &shared.tls)),
        )
        .await;
        let opened =
            opened.unwrap_or_else(|_| Err(UpstreamError::before_sending(Stage::ConnectTimeout)));
        if opened.is_err() {
            shared.failures.fetch_add(1, Ordering::Relaxed);
        }

        let lease = match opened? {
            Connection::Http1(connection) => {
                shared.is_http1.store(true, Ordering::Relaxed);
                shared.new_lease(connection, permit)
            }
            Connection::Http2(mut connection) => {
                connection.room = Arc::clone(&shared.room);
                connection.streams.fetch_add(1, Ordering::Relaxed);
                shared
                    .shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(connection.clone());
                Lease::Http2(connection)
            }
        };
        drop(opening);
        Ok((lease, false))
    }

    /// Sends a request and waits for the head of its response, within the time limits.
    async fn send_on(
        &self,
        lease: &mut Lease,
        request: Request<RequestBody>,
        progress: watch::Receiver<Progress>,
        deadline: Instant,
    ) -> Result<Response<Incoming>, SendFailure> {
        let sending = async {
            match lease {
                Lease::Http1 {
                    connection: Some(connection),
                    ..
                } => connection.sender.try_send_request(request).await,
                Lease::Http1 {
                    connection: None, ..
                } => unreachable!("a lease is released by value"),
                Lease::Http2(connection) => connection.sender.try_send_request(request).await,
            }
        };
        let last_progress = progress.clone();
        tokio::select! {
            sent = sending => sent.map_err(|error| SendFailure::from_error(error, *last_progress.borrow())),
            error = self.watch_timeouts(progress, deadline) => Err(SendFailure::Failed(error)),
        }
    }

    /// Waits for the first timeout that passes, and returns its error.
    async fn watch_timeouts(
        &self,
        mut progress: watch::Receiver<Progress>,
        deadline: Instant,
    ) -> UpstreamError {
        let body_idle = self.0.upstream.body_idle_timeout;
        let first_byte = self.0.upstream.first_byte_timeout;
        // An empty body ended before the connection was taken, so count from now on.
        let start = Instant::now();
        loop {
            let (end, stage) = match *progress.borrow_and_update() {
                Progress::Offered(at) => (at.max(start) + body_idle, Stage::Timeout),
                Progress::Awaited(at) => (at.max(start) + body_idle, Stage::RequestBodyTimeout),
                Progress::Ended(at) => (at.max(start) + first_byte, Stage::Timeout),
                Progress::Failed => (deadline, Stage::RequestBody),
            };
            tokio::select! {
                () = sleep_until(end.min(deadline)) => return UpstreamError::after_sending(stage),
                Ok(()) = progress.changed() => {}
            }
        }
    }

    /// Checks the head of a response and wraps its body.
    fn wrap_response(
        &self,
        response: Response<Incoming>,
        mut lease: Lease,
        facts: RequestFacts,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        check_response(&response, facts)
            .map_err(|detail| UpstreamError::after_sending(Stage::Malformed(detail)))?;
        if let Lease::Http1 { is_upgrade, .. } = &mut lease {
            *is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        }
        let is_close_delimited = is_close_delimited(&response, facts);
        let idle_timeout = self.0.upstream.body_idle_timeout;
        Ok(response.map(|body| UpstreamBody::new(body, lease, idle_timeout, is_close_delimited)))
    }
}

/// Facts about a request that its response is checked against.
#[derive(Clone, Copy)]
struct RequestFacts {
    is_head: bool,
    is_upgrade: bool,
}

impl RequestFacts {
    fn from_head(method: &Method, headers: &http::HeaderMap) -> Self {
        Self {
            is_head: method == Method::HEAD,
            is_upgrade: headers.contains_key(header::UPGRADE),
        }
    }
}

enum SendFailure {
    /// Nothing was sent.
    Unsent(Box<Request<RequestBody>>, hyper::Error),
    Failed(UpstreamError),
}

impl SendFailure {
    fn from_error(mut error: TrySendError<Request<RequestBody>>, progress: Progress) -> Self {
        match error.take_message() {
            Some(request) => Self::Unsent(Box::new(request), error.into_error()),
            None => {
                let stage = if progress == Progress::Failed {
                    Stage::RequestBody
                } else {
                    Stage::Exchange
                };
                Self::Failed(UpstreamError::after_sending(stage).with_cause(error.into_error()))
            }
        }
    }
}

/// Returns the authority from `Host`, or from the upstream.
fn take_authority(
    headers: &mut http::HeaderMap,
    upstream: &Upstream,
) -> Result<HeaderValue, UpstreamError> {
    if let Some(host) = headers.remove(header::HOST) {
        return Ok(host);
    }
    let host = if upstream.host.contains(':') {
        format!("[{}]", upstream.host)
    } else {
        upstream.host.to_string()
    };
    let is_default = upstream.port == if upstream.is_tls { 443 } else { 80 };
    let text = if is_default {
        host
    } else {
        format!("{host}:{}", upstream.port)
    };
    HeaderValue::try_from(text)
        .map_err(|error| UpstreamError::before_sending(Stage::Resolve).with_cause(error))
}

/// Adapts target, `Host` and version to the version of the connection.
fn address_request(
    request: &mut Request<RequestBody>,
    host: &HeaderValue,
    upstream: &Upstream,
    is_h2: bool,
) -> Result<(), UpstreamError> {
    let path = request
        .uri()
        .path_and_query()
        .cloned()
        .unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
    let mut builder = Uri::builder().path_and_query(path);
    if is_h2 {
        request.headers_mut().remove(header::HOST);
        builder = builder
            .scheme(if upstream.is_tls { "https" } else { "http" })
            .authority(host.as_bytes());
    } else {
        // HTTP/1 permits one line of cookies, and an HTTP/1 client must list `te` in `Connection`.
        join_cookies(request.headers_mut());
        request.headers_mut().remove(header::TE);
        request.headers_mut().insert(header::HOST, host.clone());
    }
    *request.version_mut() = if is_h2 {
        Version::HTTP_2
    } else {
        Version::HTTP_11
    };
    *request.uri_mut() = builder
        .build()
        .map_err(|error| UpstreamError::before_sending(Stage::Exchange).with_cause(error))?;
    Ok(())
}

/// Rejects a response whose end two readers can see differently, and a switch of protocols that the
/// request did not ask for.
fn check_response<B>(response: &Response<B>, facts: RequestFacts) -> Result<(), &'static str> {
    let headers = response.headers();
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    match (codings.next(), lengths.next()) {
        (Some(_), Some(_)) => return Err("Transfer-Encoding and Content-Length"),
        (Some(coding), None) if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") => {
            return Err("Transfer-Encoding");
        }
        (None, Some(length)) if !length.as_bytes().iter().all(u8::is_ascii_digit) => {
            return Err("Content-Length");
        }
        _ => {}
    }
    if codings.next().is_some() || lengths.next().is_some() {
        return Err("Transfer-Encoding or Content-Length more than once");
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS && !facts.is_upgrade {
        return Err("an upgrade that the request did not ask for");
    }
    Ok(())
}

fn is_close_delimited<B>(response: &Response<B>, facts: RequestFacts) -> bool {
    let headers = response.headers();
    let is_framed = headers.contains_key(header::CONTENT_LENGTH)
        || headers.contains_key(header::TRANSFER_ENCODING);
    let status = response.status();
    let has_body =
        !facts.is_head && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    response.version() < Version::HTTP_2 && !is_framed && has_body && !status.is_informational()
}

#[cfg(test)]
#[path = "pool_tests.rs"]
pub(super) mod tests;
