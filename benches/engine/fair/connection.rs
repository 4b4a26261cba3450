//! One connection of the generator: mutual TLS over a non-blocking socket, which returns complete
//! responses.
//!
//! Frames are encoded once and only their msgid is written anew, so that a call costs the generator
//! little more than its encryption by TLS.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sealwire_benches::document::{APP, document};
use sealwire_wire::{
    CommonParams, Encrypt, KeyScope, Limits, MessageHeader, Scan, Scanner, Writing, request,
};

/// A msgid of five bytes, so that any other of 32 bits fits in its place: behind the array's head,
/// the type and its marker.
const MSGID: u32 = 0x8000_0000;
const MSGID_AT: std::ops::Range<usize> = 3..7;
/// MessagePack values of a response around its payload: the array, type, msgid and nil, the map,
/// its two keys and the generation.
const AROUND_PAYLOAD: u64 = 8;
/// Bytes per read of a socket.
pub(crate) const READ_BYTES: usize = 256 << 10;

/// One encoded `encrypt` request.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Number of fields in the request.
    pub(crate) fields: usize,
    /// The payload.
    pub(crate) payload: Vec<u8>,
    /// Number of MessagePack values in a successful response.
    pub(crate) values: u64,
    bytes: Vec<u8>,
}

impl Frame {
    /// Makes a request of `fields` fields.
    pub(crate) fn new(fields: usize, key_scope: KeyScope, deadline_ms: Option<u32>) -> Self {
        Self::with(
            fields,
            Writing {
                key_scope,
                ..Writing::default()
            },
            deadline_ms,
        )
    }

    /// Makes a request of `fields` fields with any parameters of its envelopes.
    pub(crate) fn with(fields: usize, writing: Writing<'_>, deadline_ms: Option<u32>) -> Self {
        let payload = document(fields);
        let mut bytes = Vec::new();
        request::encrypt(
            &mut bytes,
            MSGID,
            &Encrypt {
                writing,
                options: CommonParams {
                    deadline_ms,
                    ..CommonParams::default()
                },
                ..Encrypt::new(APP, &payload)
            },
        );
        // The map of one key with its array of rows; a row is a map of ten keys and ten values.
        let values = AROUND_PAYLOAD + 3 + (fields.div_ceil(10) + 2 * fields) as u64;
        Self {
            fields,
            payload,
            values,
            bytes,
        }
    }
}

/// A request without a response yet. Times are nanoseconds of the generator's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Index of its load.
    pub(crate) load: usize,
    /// Index of its frame.
    pub(crate) frame: usize,
    /// Scheduled send time.
    pub(crate) intended: u64,
    /// Actual send time.
    pub(crate) sent: u64,
    /// True if it is the first one after a wait that the server had asked for.
    pub(crate) is_retry: bool,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct BenchConnection {
    /// Requests in flight, by msgid.
    pub(crate) pending: HashMap<u32, Pending>,
    /// Time before which nothing is sent, because the server has asked the client to wait.
    pub(crate) paused_until: u64,
    /// True from such a wait until the next request.
    pub(crate) has_waited: bool,
    /// True until the server closes it.
    pub(crate) open: bool,
    socket: TcpStream,
    tls: ClientConnection,
    input: Vec<u8>,
    scanner: Scanner,
    msgid: u32,
}

/// Returns a tenant's identity: the TLS settings with its certificate.
pub(crate) fn identity(folder: &Path, name: &str) -> io::Result<Arc<ClientConfig>> {
    let file = |name: String| folder.join(name);
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(file("ca.pem".into())).map_err(io::Error::other)?)
        .map_err(io::Error::other)?;
    let certificate =
        CertificateDer::from_pem_file(file(format!("{name}.pem"))).map_err(io::Error::other)?;
    let key =
        PrivateKeyDer::from_pem_file(file(format!("{name}.key"))).map_err(io::Error::other)?;
    let config = ClientConfig::builder_with_provider(Arc::new(sealwire_server::tls::provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![certificate], key)
        .map_err(io::Error::other)?;
    Ok(Arc::new(config))
}

impl BenchConnection {
    /// Connects and completes the TLS handshake, blocking.
    pub(crate) fn open(address: SocketAddr, identity: &Arc<ClientConfig>) -> io::Result<Self> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
        let mut tls =
            ClientConnection::new(Arc::clone(identity), name).map_err(io::Error::other)?;
        tls.set_buffer_limit(None);
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        socket.set_nonblocking(true)?;
        let limits = Limits {
            message_bytes_max: 256 << 20,
            elements_max: 10_000_000,
            ..Limits::default()
        };
        Ok(Self {
            pending: HashMap::new(),
            paused_until: 0,
            has_waited: false,
            open: true,
            socket,
            tls,
            input: Vec::new(),
            scanner: Scanner::for_replies(limits),
            msgid: 0,
        })
    }

    /// Returns the socket to wait on.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns true if bytes wait for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        self.open && self.tls.wants_write()
    }

    /// Sends a request, or as much of it as the socket accepts.
    pub(crate) fn send(&mut self, frame: &mut Frame, pending: Pending) {
        self.msgid = self.msgid.wrapping_add(1);
        frame.bytes[MSGID_AT].copy_from_slice(&self.msgid.to_be_bytes());
        self.pending.insert(self.msgid, pending);
        self.write(&frame.bytes);
    }

    /// Cancels the requests that match `which`.
    pub(crate) fn cancel(&mut self, which: impl Fn(&Pending) -> bool) {
        let mut bytes = Vec::new();
        self.pending
            .iter()
            .filter(|(_, pending)| which(pending))
            .for_each(|(id, _)| request::cancel(&mut bytes, *id));
        self.write(&bytes);
    }

    fn write(&mut self, bytes: &[u8]) {
        // The TLS buffer is unlimited, so it accepts all bytes.
        if self.tls.writer().write_all(bytes).is_err() {
            self.open = false;
        }
        self.flush();
    }

    /// Writes buffered bytes until the socket would block.
    pub(crate) fn flush(&mut self) {
        while self.wants_write() {
            match self.tls.write_tls(&mut self.socket) {
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.open = false,
            }
        }
    }

    /// Reads the available bytes, and passes each complete response to `each`: its msgid, its
    /// number of values and its bytes. `scratch` has [`READ_BYTES`] bytes.
    pub(crate) fn receive(
        &mut self,
        scratch: &mut [u8],
        mut each: impl FnMut(&mut Self, u32, u64, &[u8]),
    ) {
        let read = match self.socket.read(scratch) {
            Ok(read @ 1..) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Ok(0) | Err(_) => {
                self.open = false;
                return;
            }
        };
        if self.take(&scratch[..read]).is_err() {
            self.open = false;
        }
        self.flush();
        // Moved out so that `each` can use the connection to send the next request.
        let input = std::mem::take(&mut self.input);
        let mut at = 0;
        loop {
            match self.scanner.scan(&input[at..]) {
                Scan::Message(boundary) => {
                    let message = &input[at..at + boundary.bytes];
                    at += boundary.bytes;
                    if let MessageHeader::Response { msgid } = boundary.header {
                        each(self, msgid, boundary.elements, message);
                    }
                }
                Scan::Incomplete => break,
                Scan::Rejected { .. } | Scan::Discard { .. } => {
                    self.open = false;
                    break;
                }
            }
        }
        self.input = input;
        self.input.drain(..at);
    }

    /// Decrypts received bytes and appends the plaintext to `input`.
    fn take(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes)?;
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let (begin, plain) = (self.input.len(), state.plaintext_bytes_to_read());
            self.input.resize(begin + plain, 0);
            self.tls.reader().read_exact(&mut self.input[begin..])?;
        }
        Ok(())
    }
}
