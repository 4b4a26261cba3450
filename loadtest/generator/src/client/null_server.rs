//! A responder that does no work. The rate that a generator reaches against the responder is the
//! generator's own limit.
//!
//! The responder uses real mutual TLS and real messages in one thread. For each document it makes a
//! single response, of the same size as the engine's, and reuses the response. `decrypt` of such a
//! response gives the document, so a client's checks succeed. The responder can send wrong
//! responses on request, to test that a client detects them.

use std::collections::HashMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use sealwire_msgpack::{Malformed, Token, TokenReader, write};
use sealwire_wire::{
    ErrorCode, ErrorFormat, FrameLayout, Info, MessageHeader, Method, PROTOCOL, RpcError, Scanner,
    response,
};

use crate::fault::Fault;
use crate::stream::{READ_BYTES, Stream};
use sealwire_service::tls_files::{self, TlsFileError};

/// Memory limit for documents and their responses. Beyond the limit new documents are rejected. A
/// forgotten document could not be opened again, and the client would report a wrong response.
const REMEMBERED_BYTES_MAX: usize = 1 << 30;
/// Reading from a connection stops while this many bytes wait to be sent on it.
const BACKLOG_BYTES_MAX: usize = 4 << 20;
/// Time limit of a handshake. All other connections wait during a handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// A responder, ready to serve.
pub(crate) struct NullServer {
    tls: Arc<ServerConfig>,
    /// Results for documents; `opened` holds the results for their sealed forms.
    sealed: HashMap<Vec<u8>, Vec<u8>>,
    opened: HashMap<Vec<u8>, Vec<u8>>,
    /// Remaining memory of both maps, in bytes.
    room: usize,
    made: u32,
    wrong_every: u32,
    given: u32,
}

impl NullServer {
    /// Uses the certificates of a `sealwire dev` folder. Makes every `wrong_every`-th document
    /// response wrong; 0: none.
    ///
    /// # Errors
    /// [`Fault::Failed`] with the file that is not usable.
    pub(crate) fn new(folder: &Path, wrong_every: u32) -> Result<Self, Fault> {
        let ca = folder.join("ca.pem");
        let cert = folder.join("server.pem");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(
            Arc::new(tls_files::authorities(&ca)?),
            Arc::clone(&provider),
        )
        .build();
        let verifier = verifier.map_err(|error| TlsFileError::rejected(&ca, error))?;
        let unusable = |error| TlsFileError::rejected(&cert, error);
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                tls_files::certificates(&cert)?,
                tls_files::private_key(&folder.join("server-key.pem"))?,
            )
            .map_err(unusable)?;
        // As in the engine, sessions cannot be resumed without a client certificate.
        tls.session_storage = Arc::new(NoServerSessionStorage {});
        tls.send_tls13_tickets = 0;
        let sealed = HashMap::new();
        let opened = HashMap::new();
        Ok(Self {
            tls: Arc::new(tls),
            sealed,
            opened,
            room: REMEMBERED_BYTES_MAX,
            made: 0,
            wrong_every,
            given: 0,
        })
    }

    /// Serves until `stop` is readable or its other end is closed.
    ///
    /// # Errors
    /// Returns errors of the listener. An error of a connection ends only that connection.
    pub(crate) fn serve(
        &mut self,
        listener: &TcpListener,
        stop: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let mut streams: Vec<Stream> = Vec::new();
        let mut scratch = vec![0; READ_BYTES];
        loop {
            let ready = ready(listener, stop, &streams)?;
            if ready.stop {
                return Ok(());
            }
            for number in ready.streams {
                self.serve_one(&mut streams[number], &mut scratch);
            }
            streams.retain(|stream| stream.ended().is_none());
            if ready.listener
                && let Some(mut stream) = self.accept(listener)
            {
                self.serve_one(&mut stream, &mut scratch);
                streams.push(stream);
            }
        }
    }

    fn serve_one(&mut self, stream: &mut Stream, scratch: &mut [u8]) {
        stream.flush();
        stream.receive(scratch, |stream, boundary, message| {
            self.answer(stream, boundary, message)
        });
        stream.flush();
    }

    fn accept(&self, listener: &TcpListener) -> Option<Stream> {
        let (socket, _): (TcpStream, _) = listener.accept().ok()?;
        socket.set_nonblocking(false).ok()?;
        let tls = rustls::ServerConnection::new(Arc::clone(&self.tls)).ok()?;
        Stream::begin(socket, tls, Scanner::for_requests, PATIENCE).ok()
    }

    fn answer(&mut self, stream: &mut Stream, boundary: &FrameLayout, message: &[u8]) {
        // A cancelled request already has its response.
        let MessageHeader::Request { msgid, method } = boundary.header else {
            return;
        };
        let out = stream.out();
        let payload = boundary
            .payload
            .and_then(|span| message.get(span.start..span.end));
        match (method, payload) {
            (Some(Method::Encrypt | Method::Tokenize), Some(payload)) => {
                self.document(out, msgid, true, payload)
            }
            (Some(Method::Decrypt | Method::Detokenize), Some(payload)) => {
                self.document(out, msgid, false, payload)
            }
            (Some(Method::Info), _) => {
                response::start(out, msgid);
                info().encode(out);
            }
            (Some(Method::Health), _) => {
                response::start(out, msgid);
                sealwire_wire::Health.encode(out);
            }
            _ => response::error(
                out,
                msgid,
                &RpcError::new(ErrorCode::NotFound, "this responder has no such method"),
                ErrorFormat::Map,
            ),
        }
    }

    fn document(&mut self, out: &mut Vec<u8>, msgid: u32, seals: bool, payload: &[u8]) {
        if seals && !self.sealed.contains_key(payload) {
            self.make(payload);
        }
        let known = if seals { &self.sealed } else { &self.opened };
        let Some(result) = known.get(payload) else {
            let error = if seals {
                RpcError::new(
                    ErrorCode::Unavailable,
                    "this responder remembers no more documents; start it anew",
                )
            } else {
                RpcError::new(ErrorCode::CannotOpen, "cannot open")
            };
            return response::error(out, msgid, &error, ErrorFormat::Map);
        };
        response::start(out, msgid);
        out.extend_from_slice(result);
        self.given = self.given.wrapping_add(1);
        if self.wrong_every > 0 && self.given.is_multiple_of(self.wrong_every) {
            // Changes the last byte of the last field.
            let last = out.len() - AFTER_PAYLOAD;
            out[last - 1] ^= 1;
        }
    }

    /// Creates the responses for a new document and for its sealed form. Does nothing if the memory
    /// limit is reached.
    fn make(&mut self, plain: &[u8]) {
        let mut sealed = Vec::new();
        let mut reader = TokenReader::new(plain);
        let mut field = 0;
        let is_made = seal(
            &mut reader,
            &mut sealed,
            self.made.wrapping_add(1),
            &mut field,
        )
        .is_ok();
        let Some(room) = self
            .room
            .checked_sub(2 * (plain.len() + sealed.len()))
            .filter(|_| is_made)
        else {
            return;
        };
        self.room = room;
        self.made = self.made.wrapping_add(1);
        self.sealed.insert(plain.to_vec(), result(&sealed));
        self.opened.insert(sealed, result(plain));
    }
}

/// Number of bytes after the payload in a result: a key of 11 bytes and a number of one byte.
const AFTER_PAYLOAD: usize = 12;

fn result(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 32);
    write::map_len(&mut out, 2);
    write::str(&mut out, "payload");
    out.extend_from_slice(payload);
    write::str(&mut out, "generation");
    write::uint(&mut out, 1);
    out
}

/// Copies a value, with each leaf replaced by a unique text as long as its envelope. The scanner
/// has limited the depth.
fn seal(
    reader: &mut TokenReader<'_>,
    out: &mut Vec<u8>,
    document: u32,
    field: &mut u32,
) -> Result<(), Malformed> {
    let begin = reader.position();
    let bytes = match reader.token()? {
        Token::Map(pairs) => {
            write::map_len(out, pairs);
            for _ in 0..pairs {
                out.extend_from_slice(reader.value()?);
                seal(reader, out, document, field)?;
            }
            return Ok(());
        }
        Token::Array(values) => {
            write::array_len(out, values);
            return (0..values).try_for_each(|_| seal(reader, out, document, field));
        }
        Token::Nil => {
            write::nil(out);
            return Ok(());
        }
        Token::Str(bytes) | Token::Bin(bytes) => bytes.len(),
        _ => reader.position() - begin,
    };
    // Length of an envelope in text form, from `proto/envelope.md`.
    let length = 56 + ((21 + bytes) * 4).div_ceil(3);
    *field += 1;
    write::str(
        out,
        &format!("{:A<length$}", format!("sw1:null{document:08x}{field:08x}")),
    );
    Ok(())
}

fn info() -> Info {
    Info {
        name: "sealwire-load null".to_owned(),
        version: concat!("null ", env!("CARGO_PKG_VERSION")).to_owned(),
        protocol: PROTOCOL,
        ..Info::default()
    }
}

/// The sources that are readable.
struct Ready {
    stop: bool,
    listener: bool,
    streams: Vec<usize>,
}

/// Waits until a source is readable.
fn ready(
    listener: &TcpListener,
    stop: Option<BorrowedFd<'_>>,
    streams: &[Stream],
) -> io::Result<Ready> {
    let flags = |stream: &Stream| {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, stream.backlog() < BACKLOG_BYTES_MAX);
        flags.set(PollFlags::OUT, stream.wants_write());
        flags
    };
    let mut polled: Vec<_> = streams
        .iter()
        .map(|stream| PollFd::new(stream, flags(stream)))
        .collect();
    polled.push(PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN));
    polled.extend(stop.map(|stop| PollFd::from_borrowed_fd(stop, PollFlags::IN)));
    match poll(&mut polled, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => (),
        Err(error) => return Err(error.into()),
    }
    let came = |at: usize| {
        polled
            .get(at)
            .is_some_and(|polled| !polled.revents().is_empty())
    };
    let count = streams.len();
    Ok(Ready {
        stop: came(count + 1),
        listener: came(count),
        streams: (0..count).filter(|at| came(*at)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use sealwire_wire::{Document, Response};

    use super::*;
    use crate::certs;
    use crate::target::Target;

    /// Returns the response to a document: a payload or an error code.
    fn ask(null: &mut NullServer, seals: bool, payload: &[u8]) -> Result<Vec<u8>, ErrorCode> {
        let mut out = Vec::new();
        null.document(&mut out, 1, seals, payload);
        let outcome = Response::decode(&out).unwrap().outcome;
        outcome
            .map(|result| Document::decode(result).unwrap().payload.to_vec())
            .map_err(|error| error.code)
    }

    #[test]
    fn a_request_that_comes_with_the_end_of_the_handshake_is_answered() {
        let folder = tempfile::tempdir().unwrap();
        certs::fill(folder.path()).unwrap();
        let mut null = NullServer::new(folder.path(), 0).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::of_folder(folder.path(), &listener.local_addr().unwrap().to_string());
        let (stop, ends) = std::io::pipe().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| null.serve(&listener, Some(stop.as_fd())).unwrap());
            let _ends = ends;
            let (config, name) = target.tls().unwrap();
            let mut tls = rustls::ClientConnection::new(config, name).unwrap();
            let mut socket = TcpStream::connect(&target.address).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_secs(120)))
                .unwrap();
            tls.write_tls(&mut socket).unwrap();
            while tls.is_handshaking() {
                assert!(tls.read_tls(&mut socket).unwrap() > 0);
                tls.process_new_packets().unwrap();
            }
            let mut request = Vec::new();
            let mut both = Vec::new();
            sealwire_wire::request::info(&mut request, 7);
            tls.writer().write_all(&request).unwrap();
            while tls.wants_write() {
                tls.write_tls(&mut both).unwrap();
            }
            socket.write_all(&both).unwrap();
            while tls.process_new_packets().unwrap().plaintext_bytes_to_read() == 0 {
                assert!(tls.read_tls(&mut socket).expect("an answer") > 0);
            }
        });
    }

    #[test]
    fn what_was_sealed_opens_however_much_came_after_and_what_has_no_room_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        certs::fill(folder.path()).unwrap();
        let mut null = NullServer::new(folder.path(), 0).unwrap();
        let plain = |number: u32| {
            let mut out = Vec::new();
            write::str(&mut out, &format!("document {number}"));
            out
        };
        let sealed: Vec<_> = (0..3_000)
            .map(|number| ask(&mut null, true, &plain(number)).unwrap())
            .collect();
        for (number, sealed) in sealed.iter().enumerate() {
            assert_eq!(ask(&mut null, false, sealed).unwrap(), plain(number as u32));
        }
        null.room = 200;
        assert_eq!(
            ask(&mut null, true, &plain(3_000)),
            Err(ErrorCode::Unavailable)
        );
        assert_eq!(
            ask(&mut null, true, &plain(0)).as_ref(),
            Ok(&sealed[0]),
            "it is remembered"
        );
        assert_eq!(ask(&mut null, false, &plain(0)), Err(ErrorCode::CannotOpen));
    }
}
