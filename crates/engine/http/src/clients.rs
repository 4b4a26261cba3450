//! Finds the principal of a request, and its connection to the engine.
//!
//! A connection with a client certificate has one principal. On a connection without one, requests
//! of several principals can follow each other or run at once, because a proxy can send them. Each
//! principal then has its own [`Session`], so that the engine attributes every request to the
//! principal of that request.
//!
//! A request takes from the limits of its principal as soon as its token is verified. Until then,
//! its head takes memory of the client's address, and a rejected request charges the address.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::header::AUTHORIZATION;
use http::request::Parts;
use sealwire_access::Principal;
use sealwire_service::http_server::stall::Spawn;
use sealwire_wire::{ErrorCode, RpcError};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::authorization::{NoToken, bearer_token};
use crate::problem::Problem;
use crate::session::Session;
use crate::{
    AuthenticationError, Bearers, BodyAccount, ClientLink, HttpOptions, Pace, Permits, head,
};

/// Most principals with a session on one connection.
const PRINCIPALS_MAX: usize = 16;
/// Suggested pause before the next attempt if a connection or a principal has too many sessions.
const SESSION_RETRY_MS: u32 = 100;

/// A principal on a connection.
pub(crate) struct Client {
    pub(crate) session: Session,
    pub(crate) body_memory: BodyAccount,
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
            results,
            body_memory,
            conversions,
            pace,
            spawn,
        } = link;
        let (session, relay) = Session::new(engine, results, options);
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
    /// Checks the head of a request, which must not name a second principal beside that of the
    /// certificate. Without a certificate, [`BearerClients::find`] has checked the head.
    pub(crate) fn check_head(&self, head: &Parts) -> Result<(), Problem> {
        if matches!(self, Self::Bearer(_)) {
            return Ok(());
        }
        head::check(head)?;
        if head.headers.contains_key(AUTHORIZATION) {
            return Err(Problem::bad_request(
                "the client certificate of this connection names the principal; send no header Authorization, or connect without a client certificate",
            ));
        }
        Ok(())
    }

    /// Counts a request whose head was rejected with this status before it could be read.
    pub(crate) fn count_invalid_head(&self, status: u16) {
        match self {
            Self::Certificate(client) => client.pace.count_rejected(status, true),
            Self::Bearer(clients) => {
                // The connection ends, so nobody can make a pause.
                let _ = clients.bearers.charge_rejected();
                clients.bearers.count_rejected(status);
            }
        }
    }
}

/// The reason why a connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// The engine shuts down, or has closed the connection of the certificate.
    Closed,
    /// No request had a valid token in time.
    Unauthenticated,
}

/// The principals of a connection without a client certificate.
pub(crate) struct BearerClients {
    bearers: Arc<dyn Bearers>,
    options: HttpOptions,
    open: Mutex<Vec<OpenClient>>,
    opened: Instant,
    is_authenticated: AtomicBool,
}

/// A principal with a session.
struct OpenClient {
    principal: Principal,
    client: Arc<Client>,
    used: Instant,
    /// Ends the session when it is dropped.
    _open: oneshot::Sender<()>,
}

impl BearerClients {
    pub(crate) fn new(bearers: Arc<dyn Bearers>, options: HttpOptions) -> Self {
        Self {
            bearers,
            options,
            open: Mutex::default(),
            opened: Instant::now(),
            is_authenticated: AtomicBool::new(false),
        }
    }

    /// Authenticates a request, and returns its client. Counts a request that is rejected.
    ///
    /// # Errors
    /// The head is invalid, no memory is left for it, the request has no valid token, or the
    /// principal has too many sessions.
    pub(crate) async fn find(&self, head: &Parts) -> Result<Arc<Client>, Problem> {
        let found = self.authenticate(head).await;
        if let Err(problem) = &found {
            self.bearers.count_rejected(problem.status.as_u16());
        }
        found
    }

    async fn authenticate(&self, head: &Parts) -> Result<Arc<Client>, Problem> {
        let token = token_of(head).map_err(|problem| match self.bearers.charge_rejected() {
            Some(retry_after) => Problem {
                closes: problem.closes,
                ..Problem::unauthenticated(AuthenticationError::Limited { retry_after })
            },
            None => problem,
        })?;
        // A remembered token waits for nothing, so forged tokens of its address cannot keep it out.
        let principal = match self.bearers.remembered(token) {
            Some(principal) => principal,
            None => self.check(head, token).await?,
        };
        // A principal with too many sessions must not keep further connections open by its token.
        let client = self.client(principal)?;
        if !self.is_authenticated.swap(true, Ordering::Relaxed) {
            self.bearers.note_authenticated();
        }
        Ok(client)
    }

    /// Checks a token. Holds memory of the address for the head meanwhile.
    async fn check(&self, head: &Parts, token: &str) -> Result<Principal, Problem> {
        let mut memory = self.bearers.head_memory().new_reservation();
        memory
            .grow_to(head::bytes(head))
            .map_err(|_| too_many("too many requests wait for the check of their tokens"))?;
        let authenticated = self.bearers.authenticate(token).await;
        authenticated.map_err(Problem::unauthenticated)
    }

    /// Returns the client of a principal, with a session that is open.
    fn client(&self, principal: Principal) -> Result<Arc<Client>, Problem> {
        let now = Instant::now();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        // The engine has no limit for idle sessions, and the connection can be in use by others. An
        // idle session stays until the next request of the connection, and there are at most 16.
        let idle_time_max = self.options.idle_time_max;
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

    /// Waits until the engine shuts down, or until it is too late for the first valid token.
    pub(crate) async fn ended(&self) -> ConnectionEnd {
        let shutdown = self.bearers.shutdown();
        let mut shutdown = pin!(shutdown);
        tokio::select! {
            () = shutdown.as_mut() => return ConnectionEnd::Closed,
            () = sleep_until(self.opened + self.options.head_time_max) => (),
        }
        if !self.is_authenticated.load(Ordering::Relaxed) {
            return ConnectionEnd::Unauthenticated;
        }
        shutdown.await;
        ConnectionEnd::Closed
    }
}

/// Returns the token of a request, after its head was checked.
fn token_of(head: &Parts) -> Result<&str, Problem> {
    head::check(head)?;
    bearer_token(&head.headers).map_err(|no_token| match no_token {
        NoToken::Missing => Problem::no_token(),
        NoToken::Malformed(why) => {
            Problem::unauthenticated(AuthenticationError::Invalid(why.to_owned()))
        }
    })
}

impl OpenClient {
    /// Returns true if no request uses the client. Requests and unread responses hold clones of it,
    /// which are made under the lock of the table.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.client) == 1
    }
}

fn too_many(detail: &'static str) -> Problem {
    let error = RpcError::new(ErrorCode::Overloaded, detail);
    Problem::rejected_here(error.retry_after_ms(SESSION_RETRY_MS))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use sealwire_service::memory::Budget;
    use tokio::io::DuplexStream;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::{BoxFuture, Memory};

    struct NoPace;

    impl Pace for NoPace {
        fn count_rejected(&self, _status: u16, _is_fault_of_sender: bool) {}

        fn pause(&self) -> Option<Instant> {
            None
        }

        fn require_role(&self) -> BoxFuture<'_, Result<(), RpcError>> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    /// Accepts every token as the name of its principal. Keeps the engine's ends of connections.
    struct EveryToken {
        engines: Mutex<Vec<(Principal, DuplexStream)>>,
        is_full: AtomicBool,
        memory: Memory,
        heads: [Budget; 2],
        /// The statuses of rejected requests.
        rejected: Mutex<Vec<u16>>,
        charged: AtomicUsize,
        authenticated: AtomicUsize,
    }

    impl Default for EveryToken {
        fn default() -> Self {
            Self {
                engines: Mutex::default(),
                is_full: AtomicBool::new(false),
                memory: Memory::new(60 << 10, 10 << 10, 10 << 10),
                heads: [8 << 10, 64 << 10].map(|bytes| Budget::new(bytes, "heads")),
                rejected: Mutex::default(),
                charged: AtomicUsize::new(0),
                authenticated: AtomicUsize::new(0),
            }
        }
    }

    impl EveryToken {
        fn opened(&self) -> usize {
            self.engines.lock().unwrap().len()
        }
    }

    impl Bearers for EveryToken {
        fn remembered(&self, token: &str) -> Option<Principal> {
            let name = token.strip_prefix("remembered-")?;
            Principal::from_token("ci", name)
        }

        fn authenticate<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<Principal, AuthenticationError>> {
            Box::pin(async move {
                if token == "slow" {
                    std::future::pending::<()>().await;
                }
                Principal::from_token("ci", token)
                    .ok_or_else(|| AuthenticationError::Invalid("not a name".into()))
            })
        }

        fn note_authenticated(&self) {
            self.authenticated.fetch_add(1, Ordering::Relaxed);
        }

        fn charge_rejected(&self) -> Option<Duration> {
            self.charged.fetch_add(1, Ordering::Relaxed);
            None
        }

        fn count_rejected(&self, status: u16) {
            self.rejected.lock().unwrap().push(status);
        }

        fn head_memory(&self) -> BodyAccount {
            BodyAccount {
                budgets: self.heads.clone(),
            }
        }

        fn connect(&self, principal: &Principal) -> Option<ClientLink> {
            if self.is_full.load(Ordering::Relaxed) {
                return None;
            }
            let own = self.memory.of_principal();
            let (_, results) = self.memory.result_memory(&own);
            let (http, engine) = tokio::io::duplex(1_024);
            self.engines
                .lock()
                .unwrap()
                .push((principal.clone(), engine));
            Some(ClientLink {
                engine: http,
                results,
                body_memory: self.memory.body_account(&own),
                conversions: Permits {
                    all: Arc::new(Semaphore::new(1)),
                    principal: Arc::new(Semaphore::new(1)),
                },
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
            idle_time_max: 10 * minute,
            head_time_max: Duration::from_secs(10),
            body_time_max: minute,
            write_time_max: minute,
            streams_max: 100,
            spawn: Arc::new(|task| drop(tokio::spawn(task))),
        };
        let clients = BearerClients::new(Arc::clone(&bearers) as Arc<dyn Bearers>, options);
        (bearers, Arc::new(clients))
    }

    /// The head of a request with this header `Authorization`.
    fn head(authorization: Option<&str>) -> Parts {
        let mut request = http::Request::builder().header("host", "localhost");
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(()).unwrap().into_parts().0
    }

    /// The head of a request with a token and a further header.
    fn head_with(name: &'static str, value: &str) -> Parts {
        let mut head = head(Some("Bearer a"));
        head.headers.append(name, value.parse().unwrap());
        head
    }

    async fn find(clients: &BearerClients, name: &str) -> Result<Arc<Client>, u16> {
        let head = head(Some(&format!("Bearer {name}")));
        let found = clients.find(&head).await;
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

        // Sessions without requests end while other principals use the connection.
        drop(busy);
        tokio::time::advance(Duration::from_secs(600)).await;
        find(&clients, "0").await.unwrap();
        assert_eq!(clients.open.lock().unwrap().len(), 1);

        bearers.is_full.store(true, Ordering::Relaxed);
        assert_eq!(find(&clients, "another").await.err(), Some(429));
    }

    #[tokio::test(start_paused = true)]
    async fn connections_end_without_a_valid_token() {
        let (_, clients) = clients();
        let start = Instant::now();
        assert_eq!(find(&clients, "\"").await.err(), Some(401));
        assert_eq!(clients.ended().await, ConnectionEnd::Unauthenticated);
        assert_eq!(start.elapsed(), Duration::from_secs(10));

        let (_, clients) = self::clients();
        find(&clients, "a").await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(3_000), clients.ended());
        assert!(ended.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn connections_end_without_a_session() {
        for (token, is_full, status, end) in [
            ("a", true, Some(429), Some(ConnectionEnd::Unauthenticated)),
            (
                "remembered-a",
                true,
                Some(429),
                Some(ConnectionEnd::Unauthenticated),
            ),
            ("a", false, None, None),
            ("remembered-a", false, None, None),
        ] {
            let (bearers, clients) = clients();
            bearers.is_full.store(is_full, Ordering::Relaxed);
            assert_eq!(find(&clients, token).await.err(), status, "{token}");
            let ended = tokio::time::timeout(Duration::from_secs(3_000), clients.ended());
            assert_eq!(ended.await.ok(), end, "{token}");
            let authenticated = bearers.authenticated.load(Ordering::Relaxed);
            assert_eq!(authenticated == 1, end.is_none(), "{token}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_without_a_principal_are_counted_and_charged() {
        let (bearers, clients) = clients();
        let long = "x".repeat(head::HEADER_BYTES_MAX);
        for (head, status, closes) in [
            (head(None), 401, false),
            (head(Some("Basic abc")), 401, false),
            (head(Some("Bearer \"")), 401, false),
            (head_with("authorization", "Bearer b"), 401, false),
            (head_with("host", "other"), 400, true),
            (head_with("expect", "more"), 417, true),
            (head_with("x", &long), 431, true),
        ] {
            let before = bearers.charged.load(Ordering::Relaxed);
            let problem = clients.find(&head).await.err().unwrap();
            assert_eq!(problem.status.as_u16(), status, "{head:?}");
            assert_eq!(problem.closes, closes, "{head:?}");
            let after = bearers.charged.load(Ordering::Relaxed);
            assert_eq!(after, before + 1, "{head:?}");
            assert_eq!(bearers.rejected.lock().unwrap().pop(), Some(status));
        }
        find(&clients, "a").await.unwrap();
        assert!(bearers.rejected.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn heads_take_memory_of_their_address_until_their_token_is_checked() {
        let (bearers, clients) = clients();
        // Two heads of one unit each.
        let first = pin!(find(&clients, "slow"));
        let second = pin!(find(&clients, "slow"));
        let others = async {
            assert_eq!(find(&clients, "a").await.err(), Some(429));
            assert_eq!(*bearers.rejected.lock().unwrap(), [429]);
            find(&clients, "remembered-a").await.unwrap();
        };
        tokio::select! {
            biased;
            _ = first => panic!("the token is not checked"),
            _ = second => panic!("the token is not checked"),
            () = others => (),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn heads_release_the_memory_of_their_address() {
        let (_, clients) = clients();
        for _ in 0..10 {
            find(&clients, "a").await.unwrap();
            assert_eq!(find(&clients, "~").await.err(), None);
        }
    }

    #[test]
    fn certificates_and_tokens_exclude_each_other() {
        let (client, _relay) = {
            let link = EveryToken::default()
                .connect(&Principal::from_token("ci", "a").unwrap())
                .unwrap();
            Client::new(link, &clients().1.options)
        };
        let certificate = ConnectionClients::Certificate(Arc::new(client));
        assert!(certificate.check_head(&head(None)).is_ok());
        let with_token = head(Some("Bearer a"));
        assert!(certificate.check_head(&with_token).is_err());
        let bearer = ConnectionClients::Bearer(clients().1);
        assert!(bearer.check_head(&with_token).is_ok());
    }
}
