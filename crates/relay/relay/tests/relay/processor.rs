//! A proxy that speaks external processing to the relay, message by message, as Envoy does.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::Request;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use sealwire_relay::ext_proc::proto::{
    FULL_DUPLEX_STREAMED, HeaderMap, HeaderMutation, HeaderValue, HttpBody, HttpHeaders,
    HttpTrailers, ImmediateResponse, Part, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration, ResponsePart,
};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Ends a test that hangs.
const HANG: Duration = Duration::from_secs(30);

/// Path of the service's method.
pub(crate) const PROCESS: &str = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";

/// Next event of a stream.
#[derive(Debug)]
pub(crate) enum Event {
    Answer(ResponsePart),
    /// The status of gRPC, which ends the stream in order.
    Status(u16, String),
    /// The stream broke off without a status.
    Reset,
}

/// One stream.
pub(crate) struct Stream {
    /// `None` after the proxy ended its side.
    messages: Option<mpsc::Sender<Bytes>>,
    body: Incoming,
    buffer: BytesMut,
    _sender: http2::SendRequest<Body>,
}

type Body = StreamBody<stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

impl Stream {
    /// Opens a stream.
    pub(crate) async fn open(address: SocketAddr) -> Self {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let (messages, receiver) = mpsc::channel::<Bytes>(16);
        let frames: stream::BoxStream<'static, _> =
            Box::pin(stream::unfold(receiver, async |mut receiver| {
                receiver
                    .recv()
                    .await
                    .map(|bytes| (Ok(Frame::data(bytes)), receiver))
            }));
        let request = Request::post(format!("http://relay{PROCESS}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(StreamBody::new(frames))
            .unwrap();
        let response = timeout(HANG, sender.send_request(request))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "application/grpc");
        Self {
            messages: Some(messages),
            body: response.into_body(),
            buffer: BytesMut::new(),
            _sender: sender,
        }
    }

    /// Sends bytes in place of a message.
    pub(crate) async fn send_bytes(&mut self, bytes: impl Into<Bytes>) {
        if let Some(messages) = &self.messages {
            let _ = messages.send(bytes.into()).await;
        }
    }

    /// Sends a message.
    pub(crate) async fn send_message(&mut self, message: &ProcessingRequest) {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(message.encoded_len() as u32);
        message.encode(&mut frame).unwrap();
        self.send_bytes(frame.freeze()).await;
    }

    /// Sends a part.
    pub(crate) async fn send(&mut self, part: Part) {
        self.send_message(&message(part)).await;
    }

    /// Ends the proxy's side.
    pub(crate) fn half_close(&mut self) {
        self.messages = None;
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Event {
        timeout(HANG, self.read()).await.expect("the stream hangs")
    }

    async fn read(&mut self) -> Event {
        loop {
            if self.buffer.len() >= 5 {
                let length = u32::from_be_bytes(self.buffer[1..5].try_into().unwrap()) as usize;
                if self.buffer.len() >= 5 + length {
                    self.buffer.advance(5);
                    let message = ProcessingResponse::decode(self.buffer.split_to(length)).unwrap();
                    return Event::Answer(message.response.unwrap());
                }
            }
            match self.body.frame().await {
                None | Some(Err(_)) => return Event::Reset,
                Some(Ok(frame)) => match frame.into_trailers() {
                    Ok(trailers) => {
                        let text = |name: &str| {
                            trailers
                                .get(name)
                                .map_or("", |value| value.to_str().unwrap())
                                .to_owned()
                        };
                        return Event::Status(
                            text("grpc-status").parse().unwrap(),
                            text("grpc-message"),
                        );
                    }
                    Err(frame) => self.buffer.extend_from_slice(&frame.into_data().unwrap()),
                },
            }
        }
    }

    /// Reads to the end of the stream. Returns the answers, and the status if there is one.
    pub(crate) async fn rest(&mut self) -> (Vec<ResponsePart>, Option<u16>) {
        let mut answers = Vec::new();
        loop {
            match self.next().await {
                Event::Answer(answer) => answers.push(answer),
                Event::Status(code, _) => return (answers, Some(code)),
                Event::Reset => return (answers, None),
            }
        }
    }
}

/// A message with the settings of the filter, which count in the first one alone.
pub(crate) fn message(part: Part) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(part),
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: FULL_DUPLEX_STREAMED,
            response_body_mode: FULL_DUPLEX_STREAMED,
        }),
        ..ProcessingRequest::default()
    }
}

/// Header lines.
pub(crate) fn lines(headers: &[(&str, &str)]) -> HeaderMap {
    let header = |(key, value): &(&str, &str)| HeaderValue {
        key: (*key).to_owned(),
        value: String::new(),
        raw_value: Bytes::copy_from_slice(value.as_bytes()),
    };
    HeaderMap {
        headers: headers.iter().map(header).collect(),
    }
}

/// Headers of a request.
pub(crate) fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    end_of_stream: bool,
) -> Part {
    let pseudo = [
        (":method", method),
        (":scheme", "http"),
        (":authority", "a.example"),
        (":path", path),
    ];
    Part::RequestHeaders(HttpHeaders {
        headers: Some(lines(&[&pseudo, headers].concat())),
        end_of_stream,
    })
}

/// Headers of a response.
pub(crate) fn response(status: &str, headers: &[(&str, &str)], end_of_stream: bool) -> Part {
    let pseudo = [(":status", status)];
    Part::ResponseHeaders(HttpHeaders {
        headers: Some(lines(&[&pseudo, headers].concat())),
        end_of_stream,
    })
}

/// Bytes of a request's body.
pub(crate) fn request_body(body: impl AsRef<[u8]>, end_of_stream: bool) -> Part {
    Part::RequestBody(HttpBody {
        body: Bytes::copy_from_slice(body.as_ref()),
        end_of_stream,
    })
}

/// Bytes of a response's body.
pub(crate) fn response_body(body: impl AsRef<[u8]>, end_of_stream: bool) -> Part {
    Part::ResponseBody(HttpBody {
        body: Bytes::copy_from_slice(body.as_ref()),
        end_of_stream,
    })
}

/// Trailers.
pub(crate) fn trailers(headers: &[(&str, &str)]) -> HttpTrailers {
    HttpTrailers {
        trailers: Some(lines(headers)),
    }
}

/// A message that a proxy forwards in one direction.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Forwarded {
    pub(crate) headers: HeaderMutation,
    pub(crate) body: Vec<u8>,
    /// True if the end of the message was told.
    pub(crate) is_complete: bool,
}

/// Sorts answers into the two directions. The last is the response of the relay itself, if it sent
/// one.
pub(crate) fn forwarded(
    answers: Vec<ResponsePart>,
) -> (Forwarded, Forwarded, Option<ImmediateResponse>) {
    let (mut request, mut response, mut immediate) =
        (Forwarded::default(), Forwarded::default(), None);
    for answer in answers {
        assert!(
            immediate.is_none(),
            "an answer after the immediate response"
        );
        match answer {
            ResponsePart::RequestHeaders(headers) => {
                request.headers = headers.response.unwrap().header_mutation.unwrap()
            }
            ResponsePart::ResponseHeaders(headers) => {
                response.headers = headers.response.unwrap().header_mutation.unwrap()
            }
            ResponsePart::RequestBody(body) => {
                append(&mut request, body.response.unwrap().body_mutation.unwrap())
            }
            ResponsePart::ResponseBody(body) => {
                append(&mut response, body.response.unwrap().body_mutation.unwrap())
            }
            ResponsePart::RequestTrailers(_) => request.is_complete = true,
            ResponsePart::ResponseTrailers(_) => response.is_complete = true,
            ResponsePart::Immediate(answer) => immediate = Some(answer),
        }
    }
    (request, response, immediate)
}

fn append(to: &mut Forwarded, mutation: sealwire_relay::ext_proc::proto::BodyMutation) {
    let streamed = mutation.streamed_response.unwrap();
    assert!(!to.is_complete, "bytes after the end");
    assert!(
        streamed.body.len() <= 64 << 10,
        "a chunk of {} bytes",
        streamed.body.len()
    );
    to.body.extend_from_slice(&streamed.body);
    to.is_complete = streamed.end_of_stream;
}

/// Value that a mutation sets.
pub(crate) fn set<'m>(mutation: &'m HeaderMutation, name: &str) -> Option<&'m str> {
    let headers = mutation
        .set_headers
        .iter()
        .filter_map(|option| option.header.as_ref());
    headers
        .filter(|header| header.key == name)
        .map(|header| std::str::from_utf8(&header.raw_value).unwrap())
        .next()
}

/// The problem document of a response of the relay.
pub(crate) fn problem(immediate: &ImmediateResponse) -> serde_json::Value {
    let problem: serde_json::Value = serde_json::from_slice(&immediate.body).unwrap();
    let headers = immediate.headers.as_ref().unwrap();
    assert_eq!(problem["status"], immediate.status.unwrap().code);
    assert_eq!(
        set(headers, "content-type"),
        Some("application/problem+json")
    );
    assert_eq!(set(headers, "x-request-id"), problem["instance"].as_str());
    let name = problem["type"]
        .as_str()
        .unwrap()
        .strip_prefix("urn:sealwire:relay:")
        .unwrap();
    assert_eq!(
        (
            set(headers, "sealwire-relay-error"),
            immediate.details.as_str()
        ),
        (Some(name), name)
    );
    problem
}
