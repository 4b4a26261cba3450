//! Preparation of a load: working connections, and requests ready to be sent.

use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use sealwire_wire::{Document, Info, Response, ResultCodec as _, Scanner, request};

use crate::ask::{PATIENCE, ask, result};
use crate::calls::Calls;
use crate::fault::Fault;
use crate::frames::{self, Frame};
use crate::load::{Load, Method, Request};
use crate::random::Random;
use crate::stream::{READ_BYTES, Stream};

/// A request that waits for its response. Times are nanoseconds of the generator's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// Index of the request's kind.
    pub(crate) kind: u32,
    /// Index of the frame within the kind.
    pub(crate) frame: u32,
    /// True if the request only opens an earlier result, to compare it.
    pub(crate) is_check: bool,
    /// Planned send time.
    pub(crate) due: u64,
    /// Actual send time.
    pub(crate) sent: u64,
}

/// A pause that the engine has requested on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectionPause {
    /// End of the pause.
    pub(crate) until: u64,
    /// Minimum number of fields of the requests that must wait.
    pub(crate) fields: u32,
}

/// A connection with its requests.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) stream: Stream,
    pub(crate) calls: Calls<Pending>,
    pub(crate) pause: ConnectionPause,
}

/// Encoded requests of one kind.
#[derive(Debug)]
pub(crate) struct SessionKind {
    pub(crate) call: Request,
    /// The encoded requests, at least one.
    pub(crate) frames: Vec<Frame>,
}

/// All connections and requests of a load.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) links: Vec<Link>,
    pub(crate) kinds: Vec<SessionKind>,
    /// The negotiated TLS parameters.
    pub(crate) tls: String,
    /// The engine's version.
    pub(crate) version: String,
}

impl Session {
    /// Connects, reads the engine's version on each connection, and prepares the requests of a load.
    pub(crate) fn open(load: &Load) -> Result<Self, Fault> {
        load.check()?;
        let mut streams = connect(load)?;
        let mut scratch = vec![0; READ_BYTES];
        let mut version = String::new();
        for stream in &mut streams {
            // In TLS 1.3, the client handshake completes before the engine checks the certificate,
            // so the first response reports errors.
            request::info(stream.out(), frames::MSGID);
            let answer = ask(stream, &mut scratch).map_err(|fault| at(load, &fault))?;
            let result = result(&answer).map_err(|fault| at(load, &fault))?;
            version = Info::decode(result)
                .map_err(|error| Fault::Wrong(format!("info: {error}")))?
                .version;
        }
        let mut random = Random::new(load.seed ^ 0x5eed);
        let kinds = load
            .calls
            .iter()
            .map(|call| SessionKind::make(load, call, &mut streams[0], &mut scratch, &mut random));
        let kinds = kinds.collect::<Result<_, _>>()?;
        let tls = streams[0].negotiated();
        let link = |stream| Link {
            stream,
            calls: Calls::new(),
            pause: ConnectionPause::default(),
        };
        Ok(Self {
            links: streams.into_iter().map(link).collect(),
            kinds,
            tls,
            version,
        })
    }
}

/// Adds the engine's address to a fault.
fn at(load: &Load, fault: &Fault) -> Fault {
    Fault::Failed(format!("{}: {fault}", load.target.address))
}

fn connect(load: &Load) -> Result<Vec<Stream>, Fault> {
    let target = &load.target;
    let (config, name) = target.tls()?;
    let failed = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                ": start one with `sealwire dev`, or name another with --connect"
            }
            _ => "",
        };
        Fault::Failed(format!(
            "no engine answers at {} ({error}){advice}",
            target.address
        ))
    };
    let address = target.address.to_socket_addrs().map_err(failed)?.next();
    let address =
        address.ok_or_else(|| Fault::Failed(format!("{} has no address", target.address)))?;
    let one = |_| {
        let socket = TcpStream::connect_timeout(&address, PATIENCE).map_err(failed)?;
        let tls = rustls::ClientConnection::new(Arc::clone(&config), name.clone());
        let tls = tls.map_err(|error| failed(io::Error::other(error)))?;
        Stream::begin(socket, tls, Scanner::for_replies, PATIENCE).map_err(failed)
    };
    (0..load.connections).map(one).collect()
}

impl SessionKind {
    fn make(
        load: &Load,
        call: &Request,
        stream: &mut Stream,
        scratch: &mut [u8],
        random: &mut Random,
    ) -> Result<Self, Fault> {
        let before = match call.method {
            Method::Encrypt | Method::Tokenize => None,
            Method::Decrypt => Some(Method::Encrypt),
            Method::Detokenize => Some(Method::Tokenize),
        };
        let one = |_| {
            let plain = frames::document(call.fields, call.field_bytes, random);
            let Some(before) = before else {
                let payload = plain.clone();
                return Ok(Frame::new(&load.app, call, call.method, plain, &payload));
            };
            let patient = Request {
                deadline_ms: None,
                ..call.clone()
            };
            let mut tries = 0;
            loop {
                frames::encode(
                    stream.out(),
                    frames::MSGID,
                    &load.app,
                    &patient,
                    before,
                    &plain,
                );
                let answer = ask(stream, scratch)?;
                match Response::decode(&answer)
                    .map_err(|error| Fault::Wrong(error.to_string()))?
                    .outcome
                {
                    Ok(result) => {
                        let made = Document::decode(result)
                            .map_err(|error| Fault::Wrong(error.to_string()))?;
                        return Ok(Frame::new(
                            &load.app,
                            call,
                            call.method,
                            plain,
                            made.payload,
                        ));
                    }
                    Err(error) if error.code.is_retryable() && tries < 100 => {
                        tries += 1;
                        std::thread::sleep(Duration::from_millis(
                            error.retry_after_ms.unwrap_or(50).into(),
                        ));
                    }
                    Err(error) => {
                        return Err(Fault::Failed(format!(
                            "{} before the load: {error}",
                            before.name()
                        )));
                    }
                }
            }
        };
        let frames = (0..load.distinct).map(one).collect::<Result<_, Fault>>()?;
        Ok(Self {
            call: call.clone(),
            frames,
        })
    }
}
