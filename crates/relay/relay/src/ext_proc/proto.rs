//! Messages of Envoy's external-processing service, as far as the relay reads or writes them.
//!
//! Written by hand, because the generated crate of all Envoy messages takes 83 CPU-seconds to
//! compile, and this module needs only 19 messages. The field numbers are those of
//! `envoy/service/ext_proc/v3/external_processor.proto`, `envoy/config/core/v3/base.proto` and
//! `envoy/type/v3/http_status.proto`. The relay skips all other fields.
//!
//! `Debug` shows only names, because headers and bodies contain values.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, message, skip_field};
use prost::{DecodeError, Message, Oneof};

use crate::request_check::HEADERS_MAX;

/// `BodySendMode.FULL_DUPLEX_STREAMED`. The relay accepts no other mode.
pub const FULL_DUPLEX_STREAMED: i32 = 4;

/// A message from the proxy.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct ProcessingRequest {
    /// Part of the HTTP message.
    #[prost(oneof = "Part", tags = "2, 3, 4, 5, 6, 7")]
    pub request: Option<Part>,
    /// True if the proxy ignores the responses.
    #[prost(bool, tag = "10")]
    pub observability_mode: bool,
    /// Settings of the filter. Only in the first message.
    #[prost(message, optional, tag = "11")]
    pub protocol_config: Option<ProtocolConfiguration>,
    /// Flow-control windows between proxy and processor. Only in the first message.
    #[prost(message, optional, tag = "12")]
    pub flow_control_init: Option<FlowControlInit>,
}

/// Part of an HTTP message.
#[derive(Clone, PartialEq, Oneof)]
#[prost(skip_debug)]
pub enum Part {
    /// Headers of the request.
    #[prost(message, tag = "2")]
    RequestHeaders(HttpHeaders),
    /// Headers of the response.
    #[prost(message, tag = "3")]
    ResponseHeaders(HttpHeaders),
    /// Bytes of the request's body.
    #[prost(message, tag = "4")]
    RequestBody(HttpBody),
    /// Bytes of the response's body.
    #[prost(message, tag = "5")]
    ResponseBody(HttpBody),
    /// Trailers of the request.
    #[prost(message, tag = "6")]
    RequestTrailers(HttpTrailers),
    /// Trailers of the response.
    #[prost(message, tag = "7")]
    ResponseTrailers(HttpTrailers),
}

/// Settings of the filter.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct ProtocolConfiguration {
    /// `BodySendMode` of requests.
    #[prost(int32, tag = "1")]
    pub request_body_mode: i32,
    /// `BodySendMode` of responses.
    #[prost(int32, tag = "2")]
    pub response_body_mode: i32,
}

/// Flow-control windows. The relay reads only whether they are present.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct FlowControlInit {}

/// Headers of a message.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HttpHeaders {
    /// The headers, with pseudo-headers.
    #[prost(message, optional, tag = "1")]
    pub headers: Option<HeaderMap>,
    /// True if the message has neither body nor trailers.
    #[prost(bool, tag = "3")]
    pub end_of_stream: bool,
}

/// Bytes of a body.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HttpBody {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// True if neither bytes nor trailers follow.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// Trailers of a message.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HttpTrailers {
    /// The trailers.
    #[prost(message, optional, tag = "1")]
    pub trailers: Option<HeaderMap>,
}

/// Header lines: at most one more than the limit, so that an excess is detected.
#[derive(Clone, Default, PartialEq)]
pub struct HeaderMap {
    /// The lines.
    pub headers: Vec<HeaderValue>,
}

/// Not derived, to limit the lines: an empty line takes two bytes in a message, but 80 bytes in
/// memory.
impl Message for HeaderMap {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        message::encode_repeated(1, &self.headers, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag == 1 && self.headers.len() <= HEADERS_MAX {
            message::merge_repeated(wire_type, &mut self.headers, buf, ctx)
        } else {
            skip_field(wire_type, tag, buf, ctx)
        }
    }

    fn encoded_len(&self) -> usize {
        message::encoded_len_repeated(1, &self.headers)
    }

    fn clear(&mut self) {
        self.headers.clear();
    }
}

/// A header line.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HeaderValue {
    /// Name in lower case.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Value, from proxies that do not set `raw_value`.
    #[prost(string, tag = "2")]
    pub value: String,
    /// Value as bytes.
    #[prost(bytes = "bytes", tag = "3")]
    pub raw_value: Bytes,
}

/// A message for the proxy.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct ProcessingResponse {
    /// Response to a part of the HTTP message.
    #[prost(oneof = "ResponsePart", tags = "1, 2, 3, 4, 5, 6, 7")]
    pub response: Option<ResponsePart>,
}

/// Response to a part of an HTTP message.
#[derive(Clone, PartialEq, Oneof)]
#[prost(skip_debug)]
pub enum ResponsePart {
    /// Changes of the request's headers.
    #[prost(message, tag = "1")]
    RequestHeaders(HeadersOrBodyResponse),
    /// Changes of the response's headers.
    #[prost(message, tag = "2")]
    ResponseHeaders(HeadersOrBodyResponse),
    /// Bytes of the request's body.
    #[prost(message, tag = "3")]
    RequestBody(HeadersOrBodyResponse),
    /// Bytes of the response's body.
    #[prost(message, tag = "4")]
    ResponseBody(HeadersOrBodyResponse),
    /// Changes of the request's trailers.
    #[prost(message, tag = "5")]
    RequestTrailers(TrailersResponse),
    /// Changes of the response's trailers.
    #[prost(message, tag = "6")]
    ResponseTrailers(TrailersResponse),
    /// A response of the relay to the client.
    #[prost(message, tag = "7")]
    Immediate(ImmediateResponse),
}

/// `HeadersResponse` and `BodyResponse`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HeadersOrBodyResponse {
    /// The changes.
    #[prost(message, optional, tag = "1")]
    pub response: Option<CommonResponse>,
}

/// Changes of headers or of a body. The status is `CONTINUE`, and the proxy keeps its route.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct CommonResponse {
    /// Changes of headers.
    #[prost(message, optional, tag = "2")]
    pub header_mutation: Option<HeaderMutation>,
    /// Change of the body.
    #[prost(message, optional, tag = "3")]
    pub body_mutation: Option<BodyMutation>,
}

/// Response to trailers.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct TrailersResponse {
    /// Changes of the trailers.
    #[prost(message, optional, tag = "1")]
    pub header_mutation: Option<HeaderMutation>,
}

/// Changes of headers. The proxy removes headers before it sets others.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HeaderMutation {
    /// Lines to set.
    #[prost(message, repeated, tag = "1")]
    pub set_headers: Vec<HeaderValueOption>,
    /// Names to remove.
    #[prost(string, repeated, tag = "2")]
    pub remove_headers: Vec<String>,
}

/// A header line to set.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct HeaderValueOption {
    /// The line.
    #[prost(message, optional, tag = "1")]
    pub header: Option<HeaderValue>,
    /// 0 to append, 2 to overwrite or add.
    #[prost(int32, tag = "3")]
    pub append_action: i32,
    /// If true, the line is set even if its value is empty.
    #[prost(bool, tag = "4")]
    pub keep_empty_value: bool,
}

/// Change of a body.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct BodyMutation {
    /// The next bytes.
    #[prost(message, optional, tag = "3")]
    pub streamed_response: Option<StreamedBodyResponse>,
}

/// The next bytes of a body.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct StreamedBodyResponse {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub body: Bytes,
    /// True if no bytes follow.
    #[prost(bool, tag = "2")]
    pub end_of_stream: bool,
}

/// A response of the relay to the client, which ends the exchange.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct ImmediateResponse {
    /// The status.
    #[prost(message, optional, tag = "1")]
    pub status: Option<HttpStatus>,
    /// Headers to set.
    #[prost(message, optional, tag = "2")]
    pub headers: Option<HeaderMutation>,
    /// The body.
    #[prost(bytes = "bytes", tag = "3")]
    pub body: Bytes,
    /// Reason for the proxy's access log.
    #[prost(string, tag = "5")]
    pub details: String,
}

/// An HTTP status.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
#[prost(skip_debug)]
pub struct HttpStatus {
    /// The status code.
    #[prost(int32, tag = "1")]
    pub code: i32,
}

macro_rules! debug_by_name {
    ($($name:ident),+) => {
        $(impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        })+
    };
}

debug_by_name!(
    ProcessingRequest,
    Part,
    ProtocolConfiguration,
    FlowControlInit,
    HttpHeaders,
    HttpBody,
    HttpTrailers,
    HeaderMap,
    HeaderValue,
    ProcessingResponse,
    ResponsePart,
    HeadersOrBodyResponse,
    CommonResponse,
    TrailersResponse,
    HeaderMutation,
    HeaderValueOption,
    BodyMutation,
    StreamedBodyResponse,
    ImmediateResponse,
    HttpStatus
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_take_no_memory() {
        for (lines, kept) in [
            (0, 0),
            (1, 1),
            (HEADERS_MAX, HEADERS_MAX),
            (1 << 20, HEADERS_MAX + 1),
        ] {
            let headers = HeaderMap::decode(&*[0x0a, 0].repeat(lines))
                .unwrap()
                .headers;
            assert_eq!(headers.len(), kept);
            assert!(headers.capacity() <= 2 * HEADERS_MAX);
        }
    }
}
