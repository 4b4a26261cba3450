//! A TCP proxy on loopback that breaks connections on demand.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From client to server.
    ToServer,
    /// From server to client.
    ToClient,
}

/// A proxy with separate threads. Dropping the proxy cuts its connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<SharedProxy>,
}

#[derive(Debug)]
struct SharedProxy {
    state: Mutex<ProxyState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ProxyState {
    target: u16,
    refuse: bool,
    hole: bool,
    delay: Duration,
    cut_after: Option<(Direction, usize)>,
    cut_at: Option<(Vec<u8>, bool)>,
    connections: Vec<[TcpStream; 2]>,
    accepted: u64,
    closed: bool,
}

impl Proxy {
    /// Starts a proxy at a free port of 127.0.0.1 that forwards to the port `target` there.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(target: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let state = ProxyState {
            target,
            refuse: false,
            hole: false,
            delay: Duration::ZERO,
            cut_after: None,
            cut_at: None,
            connections: Vec::new(),
            accepted: 0,
            closed: false,
        };
        let shared = Arc::new(SharedProxy {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &accepting));
        Ok(Self { port, shared })
    }

    /// Returns the port that the proxy listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the number of accepted connections so far, including those that were closed at once.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// Forwards new connections to another port.
    pub fn switch(&self, target: u16) {
        self.shared.lock().target = target;
    }

    /// Sets whether new connections are closed at once.
    pub fn refuse(&self, refuse: bool) {
        self.shared.lock().refuse = refuse;
    }

    /// Sets whether nothing passes. Connections stay open and new ones are accepted, but no byte is
    /// forwarded. Bytes sent meanwhile are forwarded afterwards.
    pub fn black_hole(&self, hole: bool) {
        self.shared.lock().hole = hole;
        self.shared.changed.notify_all();
    }

    /// Delays each piece by this time, in either direction.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    /// Cuts all connections now.
    pub fn cut(&self) {
        self.shared.lock().cut();
    }

    /// Cuts, once, the connection that carries the last of `bytes` more bytes in the direction
    /// `way`. The cut can fall within a message.
    pub fn cut_after(&self, way: Direction, bytes: usize) {
        self.shared.lock().cut_after = Some((way, bytes));
    }

    /// Cuts, once, the connection whose client sends these bytes in one piece. The cut is before
    /// the bytes, or after them if `delivered`, so that only the response is lost. Cannot match
    /// encrypted bytes.
    pub fn cut_at(&self, bytes: &[u8], delivered: bool) {
        self.shared.lock().cut_at = Some((bytes.to_vec(), delivered));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        state.cut();
        drop(state);
        self.shared.changed.notify_all();
        // Wakes the accepting thread.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl SharedProxy {
    fn lock(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the black hole is on. Returns the delay that is still to be applied to the
    /// piece.
    fn hold(&self) -> Duration {
        let state = self.lock();
        let state = self
            .changed
            .wait_while(state, |state| state.hole && !state.closed);
        state.unwrap_or_else(PoisonError::into_inner).delay
    }
}

impl ProxyState {
    fn cut(&mut self) {
        for stream in self.connections.drain(..).flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns how many bytes of a piece to forward, and whether to cut the connection after them.
    fn pass(&mut self, way: Direction, piece: &[u8]) -> (usize, bool) {
        if let Some((bytes, delivered)) = &self.cut_at
            && way == Direction::ToServer
            && piece.windows(bytes.len()).any(|window| window == bytes)
        {
            let passes = if *delivered { piece.len() } else { 0 };
            self.cut_at = None;
            return (passes, true);
        }
        match &mut self.cut_after {
            Some((cut, left)) if *cut == way && *left <= piece.len() => {
                let passes = *left;
                self.cut_after = None;
                (passes, true)
            }
            Some((cut, left)) if *cut == way => {
                *left -= piece.len();
                (piece.len(), false)
            }
            _ => (piece.len(), false),
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<SharedProxy>) {
    while let Ok((client, _)) = listener.accept() {
        let mut state = shared.lock();
        if state.closed {
            return;
        }
        state.accepted += 1;
        if state.refuse {
            continue;
        }
        let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, state.target)) else {
            continue;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (Ok(client_copy), Ok(server_copy)) = (client.try_clone(), server.try_clone()) else {
            continue;
        };
        let (Ok(client_kept), Ok(server_kept)) = (client.try_clone(), server.try_clone()) else {
            continue;
        };
        state.connections.push([client_kept, server_kept]);
        drop(state);
        let (to_server, to_client) = (Arc::clone(shared), Arc::clone(shared));
        let mute = Arc::new(AtomicBool::new(false));
        let muted = Arc::clone(&mute);
        thread::spawn(move || pump(client, server, Direction::ToServer, &to_server, &mute));
        thread::spawn(move || {
            pump(
                server_copy,
                client_copy,
                Direction::ToClient,
                &to_client,
                &muted,
            )
        });
    }
}

/// Forwards bytes until either end closes or the connection is cut. Forwards nothing to the client
/// if `mute` is set.
fn pump(
    mut from: TcpStream,
    mut to: TcpStream,
    way: Direction,
    shared: &SharedProxy,
    mute: &AtomicBool,
) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(read) = from.read(&mut buffer)
        && read > 0
    {
        thread::sleep(shared.hold());
        if way == Direction::ToClient && mute.load(Ordering::Acquire) {
            continue;
        }
        let (passes, cut) = shared.lock().pass(way, &buffer[..read]);
        if cut && way == Direction::ToServer {
            // No part of the response may be forwarded. The response can arrive here before the
            // connection is closed.
            mute.store(true, Ordering::Release);
        }
        if to.write_all(&buffer[..passes]).is_err() {
            break;
        }
        if cut && way == Direction::ToServer {
            // The server must read the delivered bytes before it sees the end of the connection.
            let _ = to.shutdown(Shutdown::Write);
            let _ = from.shutdown(Shutdown::Both);
            return;
        }
        if cut {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    use super::{Direction, Proxy};

    /// Longest wait for an expected response.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Starts a server that echoes each piece with `mark` in front.
    fn echo(mark: u8) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                thread::spawn(move || {
                    let mut buffer = [0; 1024];
                    while let Ok(read) = stream.read(&mut buffer)
                        && read > 0
                    {
                        let answer = [&[mark], &buffer[..read]].concat();
                        if stream.write_all(&answer).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Returns the response to a piece; `None` if none arrives in time.
    fn ask(stream: &mut TcpStream, piece: &[u8]) -> Option<Vec<u8>> {
        let mut answer = vec![0; 1024];
        let _ = stream.write_all(piece);
        match stream.read(&mut answer) {
            Ok(read) => Some(answer[..read].to_vec()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Some(Vec::new()),
            Err(_) => None,
        }
    }

    #[test]
    fn bytes_pass_until_they_are_cut() {
        let proxy = Proxy::start(echo(b'a')).unwrap();
        let mut stream = connect(&proxy);
        assert_eq!(ask(&mut stream, b"one"), Some(b"aone".to_vec()));
        proxy.cut();
        assert_eq!(
            ask(&mut stream, b"two"),
            Some(Vec::new()),
            "a cut connection ends"
        );
        assert_eq!(
            ask(&mut connect(&proxy), b"three"),
            Some(b"athree".to_vec()),
            "another one is taken"
        );
    }

    #[test]
    fn faults_do_what_their_names_say() {
        let proxy = Proxy::start(echo(b'a')).unwrap();
        proxy.cut_after(Direction::ToClient, 2);
        assert_eq!(ask(&mut connect(&proxy), b"cut"), Some(b"ac".to_vec()));
        proxy.cut_at(b"commit", false);
        assert_eq!(ask(&mut connect(&proxy), b"a commit!"), Some(Vec::new()));
        proxy.cut_at(b"commit", true);
        assert_eq!(
            ask(&mut connect(&proxy), b"a commit!"),
            Some(Vec::new()),
            "the answer is lost"
        );
        assert_eq!(
            ask(&mut connect(&proxy), b"a commit!"),
            Some(b"aa commit!".to_vec()),
            "each cuts once"
        );
        proxy.refuse(true);
        assert_eq!(ask(&mut connect(&proxy), b"x"), Some(Vec::new()));
        proxy.refuse(false);
        proxy.switch(echo(b'b'));
        assert_eq!(ask(&mut connect(&proxy), b"x"), Some(b"bx".to_vec()));
        assert_eq!(proxy.accepted(), 6);
    }

    #[test]
    fn a_black_hole_keeps_what_it_took() {
        let proxy = Proxy::start(echo(b'a')).unwrap();
        let mut stream = connect(&proxy);
        proxy.black_hole(true);
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        assert_eq!(ask(&mut stream, b"one"), None);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        proxy.black_hole(false);
        assert_eq!(ask(&mut stream, b""), Some(b"aone".to_vec()));
    }
}
