//! A TLS connection on a nonblocking socket, of either side: sends messages, and receives complete
//! messages.
//!
//! Optimised for many small messages. Messages appended between two flushes share TLS records and
//! system calls, and a read takes all available data. Nothing is allocated per message. The
//! generator and the null responder both use this type.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustls::{CommonState, Connection};
use sealwire_wire::{FrameLayout, Limits, Scan, ScanError, Scanner};

/// Size of one socket read in bytes, and of the scratch buffer of [`Stream::receive`].
pub(crate) const READ_BYTES: usize = 256 << 10;
/// Maximum bytes encrypted at a time: a few records. Bytes that wait in TLS cannot be counted, so
/// few should wait there.
const SEAL_BYTES: usize = 64 << 10;

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    tls: Connection,
    scanner: Scanner,
    /// Bytes of incomplete messages.
    input: Vec<u8>,
    /// True if some of these bytes arrived with the end of the handshake and were not processed
    /// yet.
    is_early: bool,
    /// Messages to send. The bytes before `sealed` were already passed to TLS.
    out: Vec<u8>,
    sealed: usize,
    /// The reason for the end of the connection.
    ended: Option<String>,
    /// Bytes sent on the wire.
    pub(crate) bytes_out: u64,
    /// Bytes received on the wire.
    pub(crate) bytes_in: u64,
}

impl Stream {
    /// Performs the handshake within `patience`. The socket is nonblocking afterwards.
    pub(crate) fn begin(
        mut socket: TcpStream,
        tls: impl Into<Connection>,
        scanner: fn(Limits) -> Scanner,
        patience: Duration,
    ) -> io::Result<Self> {
        let mut tls = tls.into();
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        socket.set_write_timeout(Some(patience))?;
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            let (read, written) = tls.complete_io(&mut socket)?;
            if read + written == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        socket.set_nonblocking(true)?;
        // The last read of the handshake can contain messages, which polling the socket does not
        // report.
        let early = tls
            .process_new_packets()
            .map_err(io::Error::other)?
            .plaintext_bytes_to_read();
        let mut input = vec![0; early];
        tls.reader().read_exact(&mut input)?;
        let limits = Limits {
            message_bytes_max: 1 << 30,
            elements_max: 100_000_000,
            ..Limits::default()
        };
        Ok(Self {
            socket,
            tls,
            scanner: scanner(limits),
            is_early: !input.is_empty(),
            input,
            out: Vec::new(),
            sealed: 0,
            ended: None,
            bytes_out: 0,
            bytes_in: 0,
        })
    }

    /// Returns the names of the TLS version, cipher suite and key exchange.
    pub(crate) fn negotiated(&self) -> String {
        negotiated(&self.tls)
    }

    /// Returns the buffer for new messages. The next [`Stream::flush`] sends them.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Returns the number of bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.out.len() - self.sealed
    }

    /// Returns true if a flush would have something to write.
    pub(crate) fn wants_write(&self) -> bool {
        self.ended.is_none() && (self.backlog() > 0 || self.tls.wants_write())
    }

    /// Returns the reason for the end of the connection, if it ended.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) {
        while self.ended.is_none() {
            if self.tls.wants_write() {
                match self.tls.write_tls(&mut self.socket) {
                    Ok(written) => self.bytes_out += written as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                    Err(error) => self.end(error.to_string()),
                }
                continue;
            }
            let end = self.out.len().min(self.sealed + SEAL_BYTES);
            if end == self.sealed {
                self.out.clear();
                self.sealed = 0;
                return;
            }
            if let Err(error) = self.tls.writer().write_all(&self.out[self.sealed..end]) {
                self.end(error.to_string());
            }
            self.sealed = end;
            // Bounds the buffer if the reader never catches up.
            if self.sealed >= 1 << 20 {
                self.out.drain(..self.sealed);
                self.sealed = 0;
            }
        }
    }

    /// Reads available bytes and passes each complete message to `each`. `scratch` has
    /// [`READ_BYTES`]. Does nothing if no bytes are available. Call this once after accepting a
    /// connection, before waiting for the socket.
    pub(crate) fn receive(
        &mut self,
        scratch: &mut [u8],
        mut each: impl FnMut(&mut Self, &FrameLayout, &[u8]),
    ) {
        if std::mem::take(&mut self.is_early) {
            self.messages(&mut each);
        }
        while self.ended.is_none() {
            let read = match self.socket.read(scratch) {
                Ok(0) => return self.end("closed by the other end".to_owned()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return self.end(error.to_string()),
            };
            self.bytes_in += read as u64;
            if let Err(error) = self.open(&scratch[..read]) {
                self.end(error.to_string());
            }
            self.messages(&mut each);
            if read < scratch.len() {
                return;
            }
        }
    }

    /// Decrypts received bytes and appends them to `input`.
    fn open(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.tls.read_tls(&mut bytes)? == 0 {
                return Ok(());
            }
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let begin = self.input.len();
            let plain = state.plaintext_bytes_to_read();
            self.input.resize(begin + plain, 0);
            self.tls.reader().read_exact(&mut self.input[begin..])?;
        }
        Ok(())
    }

    fn messages(&mut self, each: &mut impl FnMut(&mut Self, &FrameLayout, &[u8])) {
        // Moved out so that `each` can use the connection, to respond or to send the next request.
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        loop {
            match self.scanner.scan(&input[at..]) {
                Scan::Message(boundary) => {
                    let message = &input[at..at + boundary.bytes];
                    at += boundary.bytes;
                    each(self, &boundary, message);
                }
                Scan::Incomplete => break,
                Scan::Rejected { error, .. } => {
                    self.refuse(error);
                    break;
                }
                Scan::Discard { bytes, .. } => at += bytes,
            }
        }
        input.drain(..at);
        self.input = input;
    }

    fn refuse(&mut self, error: ScanError) {
        self.end(format!("it sent what is no message: {error}"));
    }

    /// Ends the connection. Only the first reason is kept.
    pub(crate) fn end(&mut self, why: String) {
        self.ended.get_or_insert(why);
    }
}

/// Returns the names of the TLS version, cipher suite and key exchange of a connection.
pub(crate) fn negotiated(tls: &CommonState) -> String {
    let version = match tls.protocol_version() {
        Some(rustls::ProtocolVersion::TLSv1_3) => "TLS1.3".to_owned(),
        other => format!("{other:?}"),
    };
    let suite = tls
        .negotiated_cipher_suite()
        .map_or_else(String::new, |suite| {
            let name = format!("{:?}", suite.suite());
            name.replace("TLS13_", "TLS_")
        });
    let group = tls
        .negotiated_key_exchange_group()
        .map_or_else(String::new, |group| format!("{:?}", group.name()));
    format!("{version} {suite} {group}")
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
