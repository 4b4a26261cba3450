//! One connection of a churn load: TCP, TLS with a client certificate, and one request at a time,
//! all blocking.
//!
//! The engine has three limits on new connections. Above `limits.handshakes_max` a connection waits
//! in the kernel's queue, so that limit shows in the latency. At `limits.connections_max` the
//! engine closes a connection before the handshake. At `limits.connections_per_principal_max` it
//! closes the connection after the handshake, without a message.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, HandshakeKind, StreamOwned};
use sealwire_wire::{Limits, MessageHeader, Scan, Scanner};

use crate::frames;

/// Size of one read in bytes.
const READ_BYTES: usize = 16 << 10;

/// Bytes of all connections on the wire.
#[derive(Debug, Default)]
pub(super) struct WireBytes {
    pub(super) sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// A socket whose bytes are counted.
struct CountedSocket {
    socket: TcpStream,
    bytes: Arc<WireBytes>,
}

impl io::Read for CountedSocket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.socket.read(into)?;
        self.bytes
            .received
            .fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl io::Write for CountedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.socket.write(bytes)?;
        self.bytes.sent.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// Address and TLS settings of all connections.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// The engine's address, for errors.
    pub(super) engine: String,
    /// The address to connect to, which can be that of a relay.
    pub(super) address: SocketAddr,
    pub(super) name: ServerName<'static>,
    pub(super) tls: Arc<ClientConfig>,
    /// Time limit of each wait.
    pub(super) timeout: Duration,
    pub(super) bytes: Arc<WireBytes>,
}

/// The reason why a connection got no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The engine has as many connections as it may have.
    ConnectionsMax,
    /// The engine has as many connections of this principal as it may have.
    PrincipalMax,
    /// The engine does not accept the client certificate.
    ClientCertificate,
    /// This client does not accept the engine's certificate.
    EngineCertificate,
    /// Nothing listens at the address.
    NoListener,
    /// There was no progress within the time limit.
    Timeout,
    /// The connection ended after a response.
    Lost,
    /// Any other violation of TCP, TLS or the protocol.
    Protocol,
}

impl Reason {
    /// Returns the name in figures. The name of a limit is that of its setting.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::ConnectionsMax => "connections_max",
            Self::PrincipalMax => "connections_per_principal_max",
            Self::ClientCertificate => "client_certificate",
            Self::EngineCertificate => "engine_certificate",
            Self::NoListener => "no_listener",
            Self::Timeout => "timeout",
            Self::Lost => "connection_lost",
            Self::Protocol => "protocol",
        }
    }

    /// Returns true if a limit of the engine is the reason.
    pub(super) const fn is_rejection(self) -> bool {
        matches!(self, Self::ConnectionsMax | Self::PrincipalMax)
    }

    /// Returns what the user can do about it.
    const fn advice(self) -> &'static str {
        match self {
            Self::ConnectionsMax => {
                "the engine is at `limits.connections_max`: close other clients, or raise it"
            }
            Self::PrincipalMax => {
                "this principal is at `limits.connections_per_principal_max`: close its other clients, or raise it"
            }
            Self::ClientCertificate => {
                "the engine rejected the client certificate: give one with --cert and --key that an authority in the \
                 engine's `tls.client_ca` issued, and that has neither expired nor been revoked"
            }
            Self::EngineCertificate => {
                "the engine's certificate was rejected: give its authority with --ca and its name with --server-name"
            }
            Self::NoListener => {
                "start an engine with `sealwire dev`, or name another with --connect"
            }
            Self::Timeout => "raise --timeout-ms, or lower --rate",
            Self::Lost | Self::Protocol => "the engine's log has the reason",
        }
    }
}

/// A connection that got no response.
#[derive(Debug)]
pub(super) struct ConnectionFault {
    pub(super) reason: Reason,
    why: String,
}

impl ConnectionFault {
    fn new(reason: Reason, why: impl ToString) -> Self {
        Self {
            reason,
            why: why.to_string(),
        }
    }

    /// Describes the fault, and what to do about it.
    pub(super) fn describe(&self) -> String {
        format!("{} ({})", self.reason.advice(), self.why)
    }
}

/// A connection after the client's side of the handshake.
pub(super) struct Connection {
    tls: StreamOwned<ClientConnection, CountedSocket>,
    scanner: Scanner,
    /// Received bytes of an incomplete message.
    input: Vec<u8>,
    /// True after the first response, when the engine has accepted the connection.
    is_accepted: bool,
}

impl Connection {
    /// Connects and performs the client's side of the handshake. In TLS 1.3 that side is complete
    /// before the engine checks the client certificate.
    pub(super) fn open(endpoint: &Endpoint) -> Result<Self, ConnectionFault> {
        let socket =
            TcpStream::connect_timeout(&endpoint.address, endpoint.timeout).map_err(|error| {
                match error.kind() {
                    ErrorKind::ConnectionRefused => ConnectionFault::new(Reason::NoListener, error),
                    _ => fault(&error, Reason::ConnectionsMax),
                }
            })?;
        let prepared = socket
            .set_nodelay(true)
            .and_then(|()| socket.set_read_timeout(Some(endpoint.timeout)))
            .and_then(|()| socket.set_write_timeout(Some(endpoint.timeout)));
        prepared.map_err(|error| fault(&error, Reason::Protocol))?;
        let tls = ClientConnection::new(Arc::clone(&endpoint.tls), endpoint.name.clone());
        let mut tls = tls.map_err(|error| ConnectionFault::new(Reason::Protocol, error))?;
        let mut socket = CountedSocket {
            socket,
            bytes: Arc::clone(&endpoint.bytes),
        };
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)
                .map_err(|error| fault(&error, Reason::ConnectionsMax))?;
        }
        let limits = Limits {
            message_bytes_max: 1 << 30,
            elements_max: 100_000_000,
            ..Limits::default()
        };
        let scanner = Scanner::for_replies(limits);
        Ok(Self {
            tls: StreamOwned::new(tls, socket),
            scanner,
            input: Vec::new(),
            is_accepted: false,
        })
    }

    /// Returns true if the handshake resumed an earlier session.
    pub(super) fn is_resumed(&self) -> bool {
        self.tls.conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns the names of the TLS version, cipher suite and key exchange.
    pub(super) fn negotiated(&self) -> String {
        crate::stream::negotiated(&self.tls.conn)
    }

    /// Sends a request with [`frames::MSGID`] and returns the response and the time from send to
    /// response.
    pub(super) fn ask(&mut self, request: &[u8]) -> Result<(Vec<u8>, Duration), ConnectionFault> {
        let sent = Instant::now();
        let written = self.tls.write_all(request).and_then(|()| self.tls.flush());
        if let Err(error) = written {
            return Err(self.ended(&error));
        }
        loop {
            match self.scanner.scan(&self.input) {
                Scan::Message(layout)
                    if matches!(
                        layout.head,
                        MessageHeader::Response {
                            msgid: frames::MSGID
                        }
                    ) =>
                {
                    self.is_accepted = true;
                    let rest = self.input.split_off(layout.bytes);
                    return Ok((std::mem::replace(&mut self.input, rest), sent.elapsed()));
                }
                // A message that is no response states why the engine closes the connection.
                Scan::Message(layout) => {
                    let said = sealwire_wire::decode_protocol_error(&self.input[..layout.bytes]);
                    let why =
                        said.map_or_else(|error| error.to_string(), |error| error.to_string());
                    return Err(ConnectionFault::new(Reason::Protocol, why));
                }
                Scan::Incomplete => (),
                Scan::Refused { error, .. } => {
                    return Err(ConnectionFault::new(Reason::Protocol, error));
                }
                Scan::Discard { .. } => {
                    return Err(ConnectionFault::new(
                        Reason::Protocol,
                        "the response is too long",
                    ));
                }
            }
            let mut piece = [0; READ_BYTES];
            match self.tls.read(&mut piece) {
                Ok(0) => return Err(self.ended(&ErrorKind::UnexpectedEof.into())),
                Ok(read) => self.input.extend_from_slice(&piece[..read]),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(self.ended(&error)),
            }
        }
    }

    /// Returns the fault of a connection that ended with this error.
    fn ended(&mut self, error: &io::Error) -> ConnectionFault {
        // A failed write can leave an alert unread, which states the reason.
        let (conn, socket) = (&mut self.tls.conn, &mut self.tls.sock);
        if is_end(error)
            && conn.read_tls(socket).is_ok_and(|read| read > 0)
            && let Err(alert) = conn.process_new_packets()
        {
            return fault(&io::Error::other(alert), Reason::Protocol);
        }
        fault(
            error,
            if self.is_accepted {
                Reason::Lost
            } else {
                Reason::PrincipalMax
            },
        )
    }
}

/// Returns true if the error means that the other end closed the connection.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        error.kind(),
        UnexpectedEof | ConnectionReset | ConnectionAborted | BrokenPipe
    )
}

/// Converts an error. `closed` is the reason if the other end closed the connection without an
/// alert.
fn fault(error: &io::Error, closed: Reason) -> ConnectionFault {
    let reason = match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(rustls::Error::AlertReceived(alert)) if is_about_certificate(*alert) => {
            Reason::ClientCertificate
        }
        Some(rustls::Error::InvalidCertificate(_)) => Reason::EngineCertificate,
        Some(_) => Reason::Protocol,
        None if is_end(error) => closed,
        None if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Reason::Timeout
        }
        None => Reason::Protocol,
    };
    ConnectionFault::new(reason, error)
}

/// Returns true if a server sends this alert when it does not accept a client certificate.
fn is_about_certificate(alert: AlertDescription) -> bool {
    use AlertDescription::{
        AccessDenied, BadCertificate, CertificateExpired, CertificateRequired, CertificateRevoked,
        CertificateUnknown, DecryptError, UnknownCA, UnsupportedCertificate,
    };
    matches!(
        alert,
        AccessDenied
            | BadCertificate
            | CertificateExpired
            | CertificateRequired
            | CertificateRevoked
            | CertificateUnknown
            | DecryptError
            | UnknownCA
            | UnsupportedCertificate
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_of_a_connection_has_its_reason() {
        let tls = |error: rustls::Error| io::Error::new(ErrorKind::InvalidData, error);
        let alert = |alert| tls(rustls::Error::AlertReceived(alert));
        for (error, reason, is_rejection) in [
            (ErrorKind::UnexpectedEof.into(), "connections_max", true),
            (ErrorKind::ConnectionReset.into(), "connections_max", true),
            (ErrorKind::TimedOut.into(), "timeout", false),
            (ErrorKind::WouldBlock.into(), "timeout", false),
            (
                alert(AlertDescription::UnknownCA),
                "client_certificate",
                false,
            ),
            (
                alert(AlertDescription::CertificateExpired),
                "client_certificate",
                false,
            ),
            (alert(AlertDescription::ProtocolVersion), "protocol", false),
            (
                tls(rustls::Error::InvalidCertificate(
                    rustls::CertificateError::UnknownIssuer,
                )),
                "engine_certificate",
                false,
            ),
            (ErrorKind::PermissionDenied.into(), "protocol", false),
        ] {
            let fault = fault(&error, Reason::ConnectionsMax);
            assert_eq!(
                (fault.reason.name(), fault.reason.is_rejection()),
                (reason, is_rejection),
                "{error:?}"
            );
        }
    }
}
