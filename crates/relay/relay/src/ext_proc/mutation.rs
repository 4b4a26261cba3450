//! Converts headers of the proxy's messages to HTTP headers, and changes of them to mutations.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, Request, StatusCode, Uri, Version, uri};

use super::proto;
use crate::error::{Failure, Reason, problem};
use crate::exchange::RELAY_ERROR;
use crate::request_check::{HEADER_BYTES_MAX, HEADERS_MAX};
use crate::route_edit::REQUEST_ID;

/// `HeaderAppendAction.APPEND_IF_EXISTS_OR_ADD`.
const APPEND: i32 = 0;
/// `HeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD`.
const OVERWRITE: i32 = 2;
/// Header from which the proxy reads the target.
const PATH: &str = ":path";

/// Head of a request as the proxy sent it.
pub(super) struct RequestHead {
    /// Method, target and headers.
    pub(super) parts: Parts,
    /// True if the client's scheme is https.
    pub(super) is_tls: bool,
    /// True if the request asks for another protocol, such as WebSocket.
    pub(super) is_upgrade: bool,
}

/// Pseudo-headers of a message.
#[derive(Default)]
struct Pseudo {
    method: Option<Bytes>,
    scheme: Option<Bytes>,
    authority: Option<Bytes>,
    path: Option<Bytes>,
    protocol: Option<Bytes>,
    status: Option<Bytes>,
}

impl Pseudo {
    /// Stores a pseudo-header. Returns `None` if it is unknown or occurs twice.
    fn set(&mut self, name: &str, value: Bytes) -> Option<()> {
        let place = match name {
            ":method" => &mut self.method,
            ":scheme" => &mut self.scheme,
            ":authority" => &mut self.authority,
            PATH => &mut self.path,
            ":protocol" => &mut self.protocol,
            ":status" => &mut self.status,
            _ => return None,
        };
        place.replace(value).is_none().then_some(())
    }
}

/// Reads the head of a request.
///
/// # Errors
/// The head is malformed or exceeds a limit.
pub(super) fn request_head(headers: proto::HttpHeaders) -> Result<RequestHead, Failure> {
    const MALFORMED: Failure = Failure::request(Reason::Ambiguous(
        "a header of the proxy is malformed or occurs twice",
    ));
    let (pseudo, map) = read_headers(
        headers.headers.unwrap_or_default(),
        Failure::request,
        &MALFORMED,
    )?;
    let (Some(method), Some(scheme), Some(authority), Some(path)) =
        (pseudo.method, pseudo.scheme, pseudo.authority, pseudo.path)
    else {
        return Err(Failure::request(Reason::Ambiguous(
            "the proxy sent a request without method, scheme, authority or path",
        )));
    };

    let is_tls = scheme.as_ref() == b"https";
    let uri = Uri::builder()
        .scheme(uri::Scheme::try_from(&*scheme).map_err(|_| MALFORMED)?)
        .authority(uri::Authority::try_from(&*authority).map_err(|_| MALFORMED)?)
        .path_and_query(uri::PathAndQuery::try_from(&*path).map_err(|_| MALFORMED)?)
        .build()
        .map_err(|_| MALFORMED)?;
    let request = Request::builder()
        .method(&*method)
        .uri(uri)
        .version(Version::HTTP_2)
        .body(());
    let (mut parts, ()) = request.map_err(|_| MALFORMED)?.into_parts();

    // Reject a target that this parser reads differently from the proxy: rules must be chosen by
    // the target that the proxy uses.
    if parts
        .uri
        .path_and_query()
        .is_none_or(|target| target.as_str().as_bytes() != path)
    {
        return Err(MALFORMED);
    }
    let is_upgrade = pseudo.protocol.is_some() || map.contains_key(http::header::UPGRADE);
    parts.headers = map;
    Ok(RequestHead {
        parts,
        is_tls,
        is_upgrade,
    })
}

/// Reads status and headers of a response.
///
/// # Errors
/// The head is malformed or exceeds a limit.
pub(super) fn response_head(
    headers: proto::HttpHeaders,
) -> Result<(StatusCode, HeaderMap), Failure> {
    const MALFORMED: Failure = Failure::response(Reason::UpstreamBroken(
        "a header of the response is malformed",
    ));
    let (pseudo, map) = read_headers(
        headers.headers.unwrap_or_default(),
        Failure::response,
        &MALFORMED,
    )?;
    let status = pseudo
        .status
        .and_then(|status| StatusCode::from_bytes(&status).ok())
        .ok_or(MALFORMED)?;
    Ok((status, map))
}

/// Splits headers into pseudo-headers and others.
fn read_headers(
    headers: proto::HeaderMap,
    failure: impl Fn(Reason) -> Failure,
    malformed: &Failure,
) -> Result<(Pseudo, HeaderMap), Failure> {
    // Checked before the map is filled, because the map cannot hold more than 2^15 lines.
    check_size(&headers).map_err(failure)?;
    let mut pseudo = Pseudo::default();
    let mut map = HeaderMap::new();
    for header in headers.headers {
        let value = if header.raw_value.is_empty() {
            header.value.into()
        } else {
            header.raw_value
        };
        if header.key.starts_with(':') {
            pseudo
                .set(&header.key, value)
                .ok_or_else(|| malformed.clone())?;
            continue;
        }
        let name = HeaderName::from_bytes(header.key.as_bytes()).map_err(|_| malformed.clone())?;
        let mut value =
            http::HeaderValue::from_maybe_shared(value).map_err(|_| malformed.clone())?;
        // Sensitive: a rule can select the value, and a debug text must not show it.
        value.set_sensitive(true);
        map.append(name, value);
    }
    Ok((pseudo, map))
}

/// Checks number and size of headers or trailers.
///
/// # Errors
/// A limit is exceeded.
pub(super) fn check_size(headers: &proto::HeaderMap) -> Result<(), Reason> {
    let headers = &headers.headers;
    if headers.len() > HEADERS_MAX {
        return Err(Reason::TooLarge("header count", HEADERS_MAX as u64));
    }
    let bytes: usize = headers
        .iter()
        .map(|header| header.key.len() + header.value.len() + header.raw_value.len() + 4)
        .sum();
    if bytes > HEADER_BYTES_MAX {
        return Err(Reason::TooLarge("header bytes", HEADER_BYTES_MAX as u64));
    }
    Ok(())
}

impl proto::HeaderMutation {
    /// Returns the changes that turn `from` into `to`.
    pub(super) fn between(from: &HeaderMap, to: &HeaderMap) -> Self {
        let removed = from
            .keys()
            .filter(|name| !to.contains_key(*name))
            .map(ToString::to_string);
        let mut mutation = Self {
            set_headers: Vec::new(),
            remove_headers: removed.collect(),
        };
        for name in to
            .keys()
            .filter(|name| !from.get_all(*name).iter().eq(to.get_all(*name).iter()))
        {
            for (at, value) in to.get_all(name).iter().enumerate() {
                let action = if at == 0 { OVERWRITE } else { APPEND };
                mutation.push(
                    name.as_str(),
                    Bytes::copy_from_slice(value.as_bytes()),
                    action,
                );
            }
        }
        mutation
    }

    /// Returns the changes that remove all lines.
    pub(super) fn remove_all(of: &proto::HeaderMap) -> Self {
        let mut names: Vec<String> = of.headers.iter().map(|header| header.key.clone()).collect();
        names.sort_unstable();
        names.dedup();
        Self {
            set_headers: Vec::new(),
            remove_headers: names,
        }
    }

    /// Sets the target of a request.
    pub(super) fn set_target(&mut self, target: &str) {
        self.set(PATH, target);
    }

    fn set(&mut self, key: &str, value: &str) {
        self.push(key, Bytes::copy_from_slice(value.as_bytes()), OVERWRITE);
    }

    fn push(&mut self, key: &str, raw_value: Bytes, append_action: i32) {
        let header = proto::HeaderValue {
            key: key.to_owned(),
            value: String::new(),
            raw_value,
        };
        self.set_headers.push(proto::HeaderValueOption {
            header: Some(header),
            append_action,
            keep_empty_value: true,
        });
    }
}

/// Builds the response to the client with the problem document of a failure.
pub(super) fn immediate_response(failure: &Failure, request_id: &str) -> proto::ImmediateResponse {
    let mut headers = proto::HeaderMutation::default();
    headers.set("content-type", "application/problem+json");
    headers.set(RELAY_ERROR, failure.reason.name());
    headers.set(REQUEST_ID, request_id);
    if let Some(seconds) = failure.retry_after_s() {
        headers.set("retry-after", &seconds.to_string());
    }
    proto::ImmediateResponse {
        status: Some(proto::HttpStatus {
            code: failure.status().as_u16().into(),
        }),
        headers: Some(headers),
        body: problem(failure, request_id).into(),
        details: failure.reason.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        map
    }

    #[test]
    fn a_mutation_has_the_differences_alone() {
        let from = map(&[("a", "1"), ("b", "1"), ("b", "2"), ("c", "1"), ("d", "1")]);
        let to = map(&[("a", "1"), ("b", "1"), ("b", "3"), ("d", ""), ("e", "1")]);
        let mutation = proto::HeaderMutation::between(&from, &to);
        assert_eq!(mutation.remove_headers, ["c"]);
        let mut set: Vec<_> = mutation
            .set_headers
            .iter()
            .map(|option| {
                let header = option.header.as_ref().unwrap();
                assert!(option.keep_empty_value && header.value.is_empty());
                (
                    header.key.as_str(),
                    &header.raw_value[..],
                    option.append_action,
                )
            })
            .collect();
        set.sort_by_key(|(name, ..)| *name);
        let expected: [(&str, &[u8], i32); 4] = [
            ("b", b"1", OVERWRITE),
            ("b", b"3", APPEND),
            ("d", b"", OVERWRITE),
            ("e", b"1", OVERWRITE),
        ];
        assert_eq!(set, expected);
        assert_eq!(
            proto::HeaderMutation::between(&from, &from),
            proto::HeaderMutation::default()
        );
    }

    fn head(lines: &[(&str, &str)]) -> Result<RequestHead, Failure> {
        let headers = lines
            .iter()
            .map(|(key, value)| proto::HeaderValue {
                key: (*key).to_owned(),
                value: String::new(),
                raw_value: Bytes::copy_from_slice(value.as_bytes()),
            })
            .collect();
        request_head(proto::HttpHeaders {
            headers: Some(proto::HeaderMap { headers }),
            end_of_stream: true,
        })
    }

    const HEAD: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a.example"),
        (":path", "/a?b=c"),
    ];

    #[test]
    fn a_head_has_each_pseudo_header_once() {
        let whole = head(&HEAD).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(whole.is_tls && !whole.is_upgrade && whole.parts.uri == "https://a.example/a?b=c");
        for missing in 0..HEAD.len() {
            let mut lines = HEAD.to_vec();
            let line = lines.remove(missing);
            assert!(head(&lines).is_err(), "{line:?} is missing");
            lines.extend([line, line]);
            assert!(head(&lines).is_err(), "{line:?} is there twice");
        }
        for other in [
            (":other", "x"),
            ("a b", "x"),
            ("a", "x\r\ny"),
            ("", "x"),
            (":path", "/"),
        ] {
            assert!(head(&[&HEAD[..], &[other]].concat()).is_err(), "{other:?}");
        }
        for path in ["/a#b", "", "a", "/a b"] {
            let lines = [&HEAD[..3], &[(":path", path)]].concat();
            assert!(head(&lines).is_err(), "{path}");
        }
        for upgrade in [("upgrade", "websocket"), (":protocol", "websocket")] {
            assert!(head(&[&HEAD[..], &[upgrade]].concat()).is_ok_and(|head| head.is_upgrade));
        }
    }

    #[test]
    fn heads_have_limits() {
        let many = vec![("a", "b"); HEADERS_MAX + 1];
        assert!(
            head(&many).is_err_and(|failure| matches!(
                failure.reason,
                Reason::TooLarge("header count", _)
            ))
        );
        let long = "x".repeat(HEADER_BYTES_MAX);
        let lines = [&HEAD[..], &[("a", long.as_str())]].concat();
        assert!(
            head(&lines).is_err_and(|failure| matches!(
                failure.reason,
                Reason::TooLarge("header bytes", _)
            ))
        );
    }
}
