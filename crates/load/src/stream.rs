//! One end of a TLS connection on a socket that never blocks: messages out, whole messages in.
//!
//! Made for many small messages: what is appended between two flushes shares its TLS records and system calls, and one
//! read takes what the socket has. Nothing is allocated per message. Both the generator and the responder that it is
//! proved against stand on it.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustls::Connection;
use sealwire_wire::{Boundary, Limits, Scan, ScanError, Scanner};

/// One read of a socket. The scratch buffer of [`Stream::receive`] has this length.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// Bytes encrypted at a time: a few records, so that little waits in TLS, where it cannot be counted.
const SEAL_BYTES: usize = 64 << 10;

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: TcpStream,
    tls: Connection,
    scanner: Scanner,
    /// Bytes of messages that are not whole yet.
    input: Vec<u8>,
    /// True if some of them arrived with the end of the handshake and were not processed yet.
    is_early: bool,
    /// Messages to send; what is before `sealed` has gone to TLS.
    out: Vec<u8>,
    sealed: usize,
    /// Why it ended.
    ended: Option<String>,
    /// Bytes on the wire.
    pub(crate) bytes_out: u64,
    /// Bytes on the wire.
    pub(crate) bytes_in: u64,
}

impl Stream {
    /// Shakes hands, for `patience` at most, and then never blocks again.
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
        // The read that brought the end of the handshake may have brought messages, which no poll of the socket shows.
        let early = tls.process_new_packets().map_err(io::Error::other)?.plaintext_bytes_to_read();
        let mut input = vec![0; early];
        tls.reader().read_exact(&mut input)?;
        let limits = Limits { message_bytes_max: 1 << 30, elements_max: 100_000_000, ..Limits::default() };
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

    /// Version, suite and key exchange, by their names.
    pub(crate) fn negotiated(&self) -> String {
        let version = match self.tls.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_3) => "TLS1.3".to_owned(),
            other => format!("{other:?}"),
        };
        let suite = self.tls.negotiated_cipher_suite().map_or_else(String::new, |suite| {
            let name = format!("{:?}", suite.suite());
            name.replace("TLS13_", "TLS_")
        });
        let group =
            self.tls.negotiated_key_exchange_group().map_or_else(String::new, |group| format!("{:?}", group.name()));
        format!("{version} {suite} {group}")
    }

    /// Where messages are appended. They leave with the next [`Stream::flush`].
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Bytes that wait to be sent.
    pub(crate) fn backlog(&self) -> usize {
        self.out.len() - self.sealed
    }

    /// Returns true if a flush would have something to write.
    pub(crate) fn wants_write(&self) -> bool {
        self.ended.is_none() && (self.backlog() > 0 || self.tls.wants_write())
    }

    /// Why it ended, if it did.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Hands the socket what it takes.
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
            // A reader that never keeps up must not make this grow without end.
            if self.sealed >= 1 << 20 {
                self.out.drain(..self.sealed);
                self.sealed = 0;
            }
        }
    }

    /// Takes what the socket has, and gives each whole message to `each`. `scratch` has [`READ_BYTES`]. Does nothing
    /// where nothing has come. Who accepts a connection calls this once before waiting for the socket.
    pub(crate) fn receive(&mut self, scratch: &mut [u8], mut each: impl FnMut(&mut Self, &Boundary, &[u8])) {
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

    /// Decrypts to the end of `input`.
    fn open(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.tls.read_tls(&mut bytes)? == 0 {
                return Ok(());
            }
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let (begin, plain) = (self.input.len(), state.plaintext_bytes_to_read());
            self.input.resize(begin + plain, 0);
            self.tls.reader().read_exact(&mut self.input[begin..])?;
        }
        Ok(())
    }

    fn messages(&mut self, each: &mut impl FnMut(&mut Self, &Boundary, &[u8])) {
        // Taken out so that `each` may use the connection, to answer or to send the next call.
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
                Scan::Refused { error, .. } => {
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

    /// Ends it. The first reason stays.
    pub(crate) fn end(&mut self, why: String) {
        self.ended.get_or_insert(why);
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
