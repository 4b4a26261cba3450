//! Finds the principal of a request, and its connection to the engine.
//!
//! A connection with a client certificate has one principal. On a connection without one, requests
//! of several principals can follow each other or run at once, because a proxy can send them. Each
//! principal then has its own [`Session`], so that the engine attributes every request to the
//! principal of that request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sealwire_access::Principal;
use sealwire_wire::{ErrorCode, RpcError};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::authorization::{NoToken, bearer_token};
use crate::problem::Problem;
use crate::session::Session;
use crate::{AuthenticationError, Bearers, ClientLink, HttpOptions, Pace, Permits, Spawn};

/// Most principals with a session on one connection.
const PRINCIPALS_MAX: usize = 16;
/// Suggested pause before the next attempt if a connection or a principal has too many sessions.
const SESSION_RETRY_MS: u32 = 100;

/// A principal on a connection.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) body_memory: Permits,
    pub(crate) conversions: Permits,
    pub(crate) pace: Arc<dyn Pace>,
    spawn: Spawn,
}

impl Client {
    /// Creates a client, and the future that moves the messages of its session.
    pub(crate) fn new(
        link: ClientLink,
        options: &HttpOptions,
    ) -> (Self, impl Future<Output = ()> + use<>) {
        let ClientLink {
            engine,
            body_memory,
            conversions,
            pace,
            spawn,
        } = link;
        let (session, relay) = Session::new(engine, options);
        let client = Self {
            session,
            body_memory,
            conversions,
            pace,
            spawn,
        };
        (client, relay)
    }

    /// Runs a future with the principal's share of the network threads. Dropping the returned future
    /// drops the other one.
    ///
    /// # Errors
    /// The future panicked, or the engine ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RpcError> {
        let (mut sender, receiver) = oneshot::channel();
        (self.spawn)(Box::pin(async move {
            tokio::select! {
                output = future => drop(sender.send(output)),
                () = sender.closed() => (),
            }
        }));
        receiver
            .await
            .map_err(|_| RpcError::new(ErrorCode::Internal, "internal error"))
    }
}

/// The clients of a connection.
#[derive(Clone)]
pub(crate) enum ConnectionClients {
    Certificate(Arc<Client>),
    Bearer(Arc<BearerClients>),
}

impl ConnectionClients {
    /// Fails for a request that names a second principal beside that of the certificate.
    pub(crate) fn check_single(&self, headers: &HeaderMap) -> Result<(), Problem> {
        if matches!(self, Self::Certificate(_)) && headers.contains_key(AUTHORIZATION) {
            return Err(Problem::bad_request(
                "the client certificate of this connection names the principal; send no header Authorization, or connect without a client certificate",
            ));
        }
        Ok(())
    }
}

/// The principals of a connection without a client certificate.
pub(crate) struct BearerClients {
    bearers: Arc<dyn Bearers>,
    options: HttpOptions,
    open: Mutex<Vec<OpenClient>>,
    opened: Instant,
    is_authenticated: AtomicBool,
    /// Number of requests whose responses are not complete yet.
    running: AtomicUsize,
    /// Time of the last start or end of a request.
    used: Mutex<Instant>,
}

/// A principal with a session.
struct OpenClient {
    principal: Principal,
    client: Arc<Client>,
    used: Instant,
    /// Ends the session when it is dropped.
    _open: oneshot::Sender<()>,
}

/// Counts a running request until it is dropped.
pub(crate) struct RunningRequest(Arc<BearerClients>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        self.0.touch();
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BearerClients {
    pub(crate) fn new(bearers: Arc<dyn Bearers>, options: HttpOptions) -> Self {
        let now = Instant::now();
        Self {
            bearers,
            options,
            open: Mutex::default(),
            opened: now,
            is_authenticated: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            used: Mutex::new(now),
        }
    }

    /// Counts a request as running.
    pub(crate) fn start_request(self: &Arc<Self>) -> RunningRequest {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.touch();
        RunningRequest(Arc::clone(self))
    }

    fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Authenticates a request, and returns its client.
    ///
    /// # Errors
    /// The request has no valid token, or the principal has too many sessions.
    pub(crate) async fn find(&self, headers: &HeaderMap) -> Result<Arc<Client>, Problem> {
        let token = match bearer_token(headers) {
            Ok(token) => token,
            Err(no_token) => {
                return Err(match (self.bearers.count_rejected(), no_token) {
                    (Some(retry_after), _) => {
                        Problem::unauthenticated(AuthenticationError::Limited { retry_after })
                    }
                    (None, NoToken::Missing) => Problem::no_token(),
                    (None, NoToken::Malformed(why)) => {
                        Problem::unauthenticated(AuthenticationError::Invalid(why.to_owned()))
                    }
                });
            }
        };
        let authenticated = self.bearers.authenticate(token).await;
        let principal = authenticated.map_err(Problem::unauthenticated)?;
        self.is_authenticated.store(true, Ordering::Relaxed);
        self.client(principal)
    }

    /// Returns the client of a principal, with a session that is open.
    fn client(&self, principal: Principal) -> Result<Arc<Client>, Problem> {
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // The engine closes idle sessions. A session is not used shortly before that.
        let idle_time_max = self.options.idle_time_max / 2;
        open.retain(|open| {
            let is_idle = open.is_idle() && now.duration_since(open.used) >= idle_time_max;
            !open.client.session.is_closed() && !is_idle
        });
        if let Some(open) = open.iter_mut().find(|open| open.principal == principal) {
            open.used = now;
            return Ok(Arc::clone(&open.client));
        }

        if open.len() >= PRINCIPALS_MAX {
            let idle = open
                .iter()
                .enumerate()
                .filter(|(_, open)| open.is_idle())
                .min_by_key(|(_, open)| open.used)
                .map(|(at, _)| at);
            let Some(at) = idle else {
                return Err(too_many(
                    "too many principals send requests over this connection at once; use several connections",
                ));
            };
            open.swap_remove(at);
        }
        let link = self.bearers.connect(&principal).ok_or_else(|| {
            too_many("the principal has limits.connections_per_principal_max connections already")
        })?;
        let (client, relay) = Client::new(link, &self.options);
        let client = Arc::new(client);
        let (alive, ended) = oneshot::channel::<()>();
        (client.spawn)(Box::pin(async move {
            tokio::select! {
                () = relay => (),
                _ = ended => (),
            }
        }));
        open.push(OpenClient {
            principal,
            client: Arc::clone(&client),
            used: now,
            _open: alive,
        });
        Ok(client)
    }

    /// Waits until the connection should close: the engine shuts down, no request had a valid token
    /// in time, or there was no request for a long time.
    pub(crate) async fn ended(&self) {
        tokio::select! {
            () = self.bearers.shutdown() => (),
            () = self.idle() => (),
        }
    }

    async fn idle(&self) {
        let first_by = self.opened + self.options.authentication_time_max;
        sleep_until(first_by).await;
        if !self.is_authenticated.load(Ordering::Relaxed) {
            return;
        }
        loop {
            let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let is_running = self.running.load(Ordering::Relaxed) > 0;
            let until = if is_running { now } else { used } + self.options.idle_time_max;
            if until <= now {
                return;
            }
            sleep_until(until).await;
        }
    }
}

impl OpenClient {
    /// Returns true if no request uses the client. Requests hold clones of it, which are made under
    /// the lock of the table.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.client) == 1
    }
}

fn too_many(detail: &'static str) -> Problem {
    RpcError::new(ErrorCode::Overloaded, detail)
        .retry_after_ms(SESSION_RETRY_MS)
        .into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::DuplexStream;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::BoxFuture;

    struct NoPace;

    impl Pace for NoPace {
        fn count_rejected(&self) {}

        fn pause(&self) -> Option<Instant> {
            None
        }
    }

    /// Accepts every token as the name of its principal. Keeps the engine's ends of connections.
    #[derive(Default)]
    struct EveryToken {
        engines: Mutex<Vec<(Principal, DuplexStream)>>,
        is_full: AtomicBool,
    }

    impl EveryToken {
        fn opened(&self) -> usize {
            self.engines.lock().unwrap().len()
        }
    }

    impl Bearers for EveryToken {
        fn authenticate<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<Principal, AuthenticationError>> {
            Box::pin(async move {
                Principal::from_token("ci", token)
                    .ok_or_else(|| AuthenticationError::Invalid("not a name".into()))
            })
        }

        fn count_rejected(&self) -> Option<Duration> {
            None
        }

        fn connect(&self, principal: &Principal) -> Option<ClientLink> {
            if self.is_full.load(Ordering::Relaxed) {
                return None;
            }
            let permits = || Permits {
                all: Arc::new(Semaphore::new(1_000)),
                principal: Arc::new(Semaphore::new(1_000)),
            };
            let (http, engine) = tokio::io::duplex(1_024);
            self.engines
                .lock()
                .unwrap()
                .push((principal.clone(), engine));
            Some(ClientLink {
                engine: http,
                body_memory: permits(),
                conversions: permits(),
                pace: Arc::new(NoPace),
                spawn: Arc::new(|task| drop(tokio::spawn(task))),
            })
        }

        fn shutdown(&self) -> BoxFuture<'_, ()> {
            Box::pin(std::future::pending())
        }
    }

    fn clients() -> (Arc<EveryToken>, Arc<BearerClients>) {
        let bearers = Arc::new(EveryToken::default());
        let minute = Duration::from_secs(60);
        let options = HttpOptions {
            body_bytes_max: 1 << 20,
            discard_bytes_max: 1 << 20,
            depth_max: 64,
            response_bytes_max: 1 << 20,
            result_bytes_max: 1 << 20,
            idle_time_max: 10 * minute,
            body_time_max: minute,
            write_time_max: minute,
            drain_time_max: minute,
            authentication_time_max: Duration::from_secs(10),
            streams_max: 100,
            spawn: Arc::new(|task| drop(tokio::spawn(task))),
        };
        let clients = BearerClients::new(Arc::clone(&bearers) as Arc<dyn Bearers>, options);
        (bearers, Arc::new(clients))
    }

    async fn find(clients: &BearerClients, name: &str) -> Result<Arc<Client>, u16> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {name}").parse().unwrap());
        let found = clients.find(&headers).await;
        found.map_err(|problem| problem.status.as_u16())
    }

    #[tokio::test(start_paused = true)]
    async fn principals_have_their_own_sessions() {
        let (bearers, clients) = clients();
        let first = find(&clients, "a").await.unwrap();
        let second = find(&clients, "b").await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        assert!(Arc::ptr_eq(&first, &find(&clients, "a").await.unwrap()));
        assert_eq!(bearers.opened(), 2);
        assert_eq!(find(&clients, "~").await.err(), None);

        // A session that the engine has closed is not used again.
        bearers.engines.lock().unwrap().remove(0);
        while !first.session.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(!Arc::ptr_eq(&first, &find(&clients, "a").await.unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn idle_sessions_make_room_and_busy_ones_do_not() {
        let (bearers, clients) = clients();
        let mut busy = Vec::new();
        for number in 0..PRINCIPALS_MAX {
            busy.push(find(&clients, &number.to_string()).await.unwrap());
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(find(&clients, "more").await.err(), Some(429));

        // The session that was used least recently ends, and the engine sees its end.
        drop(busy.remove(3));
        drop(busy.remove(1));
        drop(find(&clients, "1").await.unwrap());
        find(&clients, "more").await.unwrap();
        let (ended, mut engine) = bearers.engines.lock().unwrap().remove(3);
        assert_eq!(ended.as_str(), "ci:3");
        let mut read = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut engine, &mut read)
            .await
            .unwrap();
        assert_eq!(clients.open.lock().unwrap().len(), PRINCIPALS_MAX);

        // Sessions without requests end some time before the engine would close them.
        drop(busy);
        tokio::time::advance(Duration::from_secs(300)).await;
        find(&clients, "0").await.unwrap();
        assert_eq!(clients.open.lock().unwrap().len(), 1);

        bearers.is_full.store(true, Ordering::Relaxed);
        assert_eq!(find(&clients, "another").await.err(), Some(429));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_end_without_a_valid_token_and_when_they_are_idle() {
        let (_, clients) = clients();
        let start = Instant::now();
        let running = clients.start_request();
        assert_eq!(find(&clients, "\"").await.err(), Some(401));
        clients.ended().await;
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        drop(running);

        let (_, clients) = self::clients();
        let start = Instant::now();
        let running = clients.start_request();
        find(&clients, "a").await.unwrap();
        let ended = Arc::clone(&clients);
        let ended = tokio::spawn(async move { ended.ended().await });
        tokio::time::sleep(Duration::from_secs(3_000)).await;
        assert!(!ended.is_finished(), "a request runs");
        drop(running);
        ended.await.unwrap();
        let elapsed = start.elapsed();
        assert!(elapsed >= Duration::from_secs(3_600), "{elapsed:?}");
        assert!(elapsed < Duration::from_secs(4_300), "{elapsed:?}");
    }

    #[test]
    fn certificates_and_tokens_exclude_each_other() {
        let mut headers = HeaderMap::new();
        let (client, _relay) = {
            let link = EveryToken::default()
                .connect(&Principal::from_token("ci", "a").unwrap())
                .unwrap();
            Client::new(link, &clients().1.options)
        };
        let certificate = ConnectionClients::Certificate(Arc::new(client));
        assert!(certificate.check_single(&headers).is_ok());
        headers.insert(AUTHORIZATION, "Bearer a".parse().unwrap());
        assert!(certificate.check_single(&headers).is_err());
        let bearer = ConnectionClients::Bearer(clients().1);
        assert!(bearer.check_single(&headers).is_ok());
    }
}
