//! Rejects requests that two readers of HTTP can read differently.
//!
//! hyper accepts several forms that proxies and servers interpret differently. A request that
//! passes [`check`] has one framing, one host, a method in capital letters and a path without
//! escapes that an upstream could resolve. The path that is matched against routes is therefore the
//! path that is forwarded.
//!
//! Two forms never reach [`check`] through hyper 1.12, because hyper drops `Content-Length` beside
//! `Transfer-Encoding`, and merges equal `Content-Length` lines.
//! [`sealwire_service::http_server::head_check`] rejects both forms first. [`check`] rejects them
//! anyway, for heads from other sources and for later versions of hyper.

use std::sync::LazyLock;

use http::Method;
use http::header::{self, HeaderMap, HeaderName};
use http::request::Parts;
use sealwire_service::http_server::head::{check_authority, check_framing, is_expectation_known};

use sealwire_relay_body::name::NameSet;

use crate::error::{Failure, Reason};

/// Most bytes of names and values of all headers. hyper limits HTTP/1 heads while reading, but
/// counts HTTP/2 heads differently.
pub const HEADER_BYTES_MAX: usize = 32 << 10;
/// Most headers of a request.
pub const HEADERS_MAX: usize = 100;
/// Longest path with its query, in bytes.
pub const TARGET_BYTES_MAX: usize = 16 << 10;

/// Headers that `Connection` must not name, because their removal would change framing, routing or
/// identity.
const NOT_CONNECTION_OPTIONS: [&str; 8] = [
    "authorization",
    "content-encoding",
    "content-length",
    "content-type",
    "cookie",
    "host",
    "trailer",
    "transfer-encoding",
];
/// Names whose form with `_` is rejected, because CGI-like gateways treat both forms as one header.
/// Names that start with `x-forwarded-` are rejected in that form too.
const TWINS: [&str; 14] = [
    "accept-encoding",
    "content-encoding",
    "content-length",
    "content-type",
    "forwarded",
    "host",
    "if-range",
    "proxy-authorization",
    "proxy-connection",
    "set-cookie",
    "trailer",
    "transfer-encoding",
    "x-real-ip",
    "x-request-id",
];

/// Parameters that some frameworks read the method from.
static UNDERSCORED_METHODS: LazyLock<NameSet> =
    LazyLock::new(|| parameter_names(&["_method", "_httpmethod"]));
static NAMED_METHODS: LazyLock<NameSet> = LazyLock::new(|| {
    parameter_names(&[
        "x-http-method",
        "x-http-method-override",
        "x-method-override",
    ])
});

fn parameter_names(names: &[&str]) -> NameSet {
    let mut set = NameSet::new(true);
    names.iter().for_each(|name| set.insert(name, 0));
    set
}

/// Target of a request that passed [`check`].
#[derive(Clone, PartialEq, Eq)]
pub struct CheckedTarget {
    /// Host in lower case without port; an IPv6 address has its brackets. Empty only for HTTP/1.0
    /// without `Host`.
    pub host: Box<str>,
    /// Port of the authority, if it has one.
    pub port: Option<u16>,
    /// Path that starts with `/`, with escapes in capital letters. Empty for CONNECT.
    pub path: Box<str>,
    /// Query without the `?`.
    pub query: Option<Box<str>>,
}

impl std::fmt::Debug for CheckedTarget {
    /// Omits path and query, because they can hold values to encrypt.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CheckedTarget")
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Checks the head of a request. `is_tls` is true if the request came over TLS.
///
/// # Errors
///
/// [`Reason::Ambiguous`] (400), [`Reason::Expectation`] (417) or [`Reason::TooLarge`]. After each
/// of them, the caller must close an HTTP/1 connection, because a proxy in front may have framed
/// the body differently.
pub fn check(request: &Parts, is_tls: bool) -> Result<CheckedTarget, Failure> {
    check_sizes(request)?;
    check_names(&request.headers)?;
    check_framing(request).map_err(ambiguous_request)?;
    check_connection(&request.headers).map_err(ambiguous_request)?;
    if !is_expectation_known(&request.headers) {
        return Err(Failure::request(Reason::Expectation));
    }
    check_method(request.method.as_str()).map_err(ambiguous_request)?;
    let (host, port) = check_authority(request, is_tls).map_err(ambiguous_request)?;
    if request.method == Method::CONNECT {
        return Ok(CheckedTarget {
            host,
            port,
            path: "".into(),
            query: None,
        });
    }
    let path = request.uri.path();
    check_path(path).map_err(ambiguous_request)?;
    let query = request.uri.query();
    check_query(query.unwrap_or_default()).map_err(ambiguous_request)?;
    Ok(CheckedTarget {
        host,
        port,
        path: with_capital_escapes(path).into(),
        query: query.map(Into::into),
    })
}

/// Returns the path with the hexadecimal digits of its escapes in capital letters. .NET clients
/// send small letters, and all readers treat both alike (RFC 3986, section 6.2.2.1).
fn with_capital_escapes(path: &str) -> String {
    let mut parts = path.split('%');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(2));
        out.push('%');
        out.push_str(&digits.to_ascii_uppercase());
        out.push_str(rest);
    }
    out
}

fn ambiguous_request(detail: &'static str) -> Failure {
    Failure::request(Reason::Ambiguous(detail))
}

fn too_large(limit: &'static str, max: usize) -> Failure {
    Failure::request(Reason::TooLarge(limit, max as u64))
}

fn check_sizes(request: &Parts) -> Result<(), Failure> {
    let bytes: usize = request
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if request.headers.len() > HEADERS_MAX {
        return Err(too_large("header count", HEADERS_MAX));
    }
    if bytes > HEADER_BYTES_MAX {
        return Err(too_large("header bytes", HEADER_BYTES_MAX));
    }
    if request
        .uri
        .path_and_query()
        .is_some_and(|target| target.as_str().len() > TARGET_BYTES_MAX)
    {
        return Err(too_large("target bytes", TARGET_BYTES_MAX));
    }
    Ok(())
}

/// Rejects methods with small letters. Methods are case-sensitive (RFC 9110, section 9.1), but some
/// servers ignore the case.
fn check_method(method: &str) -> Result<(), &'static str> {
    if method
        .bytes()
        .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'-')
    {
        return Ok(());
    }
    Err("a method that is not in capital letters")
}

/// Rejects a name with `_` that equals a significant or present name when `_` is read as `-`.
fn check_names(headers: &HeaderMap) -> Result<(), Failure> {
    for name in headers
        .keys()
        .map(HeaderName::as_str)
        .filter(|name| name.contains('_'))
    {
        let twin = name.replace('_', "-");
        let is_significant = TWINS.contains(&twin.as_str()) || twin.starts_with("x-forwarded-");
        if is_significant || headers.contains_key(&twin) {
            return Err(ambiguous_request(
                "a header name with an underscore equals another header",
            ));
        }
    }
    Ok(())
}

fn check_connection(headers: &HeaderMap) -> Result<(), &'static str> {
    for value in headers.get_all(header::CONNECTION) {
        for option in value.as_bytes().split(|byte| *byte == b',') {
            let option = option.trim_ascii();
            if NOT_CONNECTION_OPTIONS
                .iter()
                .any(|name| option.eq_ignore_ascii_case(name.as_bytes()))
            {
                return Err("Connection names a header that is end to end");
            }
        }
    }
    Ok(())
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if !path.starts_with('/') || path.starts_with("//") {
        return Err("a path that does not start with exactly one slash");
    }
    let bytes = path.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'%' => check_escape(bytes.get(index + 1..index + 3))?,
            b'\\' | b'#' => return Err("a path with a backslash or a fragment"),
            b';' => return Err("a path with parameters of a segment"),
            0x21..=0x7e => {}
            _ => return Err("a path with a byte that is not visible ASCII"),
        }
    }
    // Lenient decoders read an overlong form such as `%c0%af` as a slash.
    if percent_encoding::percent_decode_str(path)
        .decode_utf8()
        .is_err()
    {
        return Err("a path with escapes that are not UTF-8");
    }
    // Some servers merge slashes, so their route for `/a//b` would differ from the relay's.
    if path.contains("//") {
        return Err("a path with an empty segment");
    }
    // Some servers drop the parameters of a segment (after `;`) before they resolve dot segments.
    // Servers that decode first read `%3b` as `;`.
    if path
        .replace("%3b", ";")
        .replace("%3B", ";")
        .split('/')
        .any(is_dot_segment)
    {
        return Err("a path with dot segments");
    }
    Ok(())
}

/// Returns true for `.` or `..`, with escapes and before parameters.
fn is_dot_segment(segment: &str) -> bool {
    let name = segment.split(';').next().unwrap_or_default();
    matches!(
        name.to_ascii_lowercase().replace("%2e", ".").as_str(),
        "." | ".."
    )
}

/// Checks the two digits of an escape. A server that decodes before it splits, or decodes twice,
/// reads an escaped control character, `/`, `\` or `%` differently. [`crate::route_table`] rejects
/// a path that matches another route with other escapes.
fn check_escape(digits: Option<&[u8]>) -> Result<(), &'static str> {
    let text = digits.and_then(|digits| std::str::from_utf8(digits).ok());
    let text = text
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .unwrap_or_default();
    match u8::from_str_radix(text, 16) {
        Err(_) => Err("a path with a malformed escape"),
        Ok(b'/' | b'\\' | b'%') => Err("a path with an escaped slash, backslash or percent sign"),
        Ok(0..=0x1f | 0x7f) => Err("a path with an escaped control character"),
        // Routes are matched by the received bytes, so one path must have one spelling (RFC 3986,
        // section 6.2.2).
        Ok(b) if b.is_ascii_alphanumeric() || b"-._~;".contains(&b) => {
            Err("a path with an escape of a character that needs none")
        }
        Ok(_) => Ok(()),
    }
}

/// Checks a query. Queries have no common escape syntax, so malformed escapes pass. Bytes outside
/// visible ASCII are rejected.
fn check_query(query: &str) -> Result<(), &'static str> {
    if query
        .bytes()
        .all(|byte| (0x21..=0x7e).contains(&byte) && byte != b'#')
    {
        return Ok(());
    }
    Err("a query with a byte that is not visible ASCII")
}

/// Rejects a query with `_method` or a similar parameter, which some frameworks read the method
/// from. For paths whose route depends on the method.
///
/// # Errors
/// [`Reason::Ambiguous`].
pub fn check_no_method(query: &str) -> Result<(), Failure> {
    if query.split(['&', ';', '?']).any(overrides_method) {
        return Err(ambiguous_request(
            "a query with _method, and a route that depends on the method",
        ));
    }
    Ok(())
}

/// Returns true if some framework reads the method from a parameter of a query.
fn overrides_method(pair: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
    let name = percent_encoding::percent_decode_str(&name).decode_utf8_lossy();
    // PHP replaces these characters with `_` at the start of a name.
    let has_prefix = name.trim_start().starts_with(['_', '.', '[']);
    (has_prefix && UNDERSCORED_METHODS.matches(&name)) || NAMED_METHODS.matches(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Version};

    /// Verdict for one head: `ok host port path query`, or the name of the reason.
    fn verdict(version: Version, is_tls: bool, line: &str, headers: &[(&str, &str)]) -> String {
        let (method, uri) = line.split_once(' ').unwrap();
        let mut builder = Request::builder().version(version).method(method).uri(uri);
        for (name, value) in headers {
            builder = builder.header(
                *name,
                http::HeaderValue::from_bytes(value.as_bytes()).unwrap(),
            );
        }
        // The library rejects some targets itself, before hyper's server would pass them.
        let Ok(request) = builder.body(()) else {
            return "ambiguous".into();
        };
        match check(&request.into_parts().0, is_tls) {
            Ok(target) => format!(
                "{} {:?} {} {:?}",
                target.host, target.port, target.path, target.query
            ),
            Err(failure) => failure.reason.name().into(),
        }
    }

    #[test]
    fn http1_framing_and_headers() {
        const HOST: (&str, &str) = ("host", "a.example");
        const OK: &str = "a.example None / None";
        let cases: &[(&[(&str, &str)], &str)] = &[
            (&[], OK),
            (&[("transfer-encoding", "chunked")], OK),
            (&[("transfer-encoding", "Chunked")], OK),
            (&[("content-length", "0")], OK),
            (&[("content-length", "18446744073709551615")], OK),
            (&[("expect", "100-Continue")], OK),
            (&[("connection", "close, x-mine")], OK),
            (&[("x_mine", "1")], OK),
            (
                &[("transfer-encoding", "chunked"), ("content-length", "4")],
                "ambiguous",
            ),
            (&[("transfer-encoding", "gzip, chunked")], "ambiguous"),
            (&[("transfer-encoding", "chunked, chunked")], "ambiguous"),
            (
                &[("transfer-encoding", "x"), ("transfer-encoding", "chunked")],
                "ambiguous",
            ),
            (
                &[
                    ("transfer-encoding", "chunked"),
                    ("transfer-encoding", "chunked"),
                ],
                "ambiguous",
            ),
            (&[("transfer-encoding", "xchunked")], "ambiguous"),
            (&[("transfer-encoding", "\"chunked\"")], "ambiguous"),
            (&[("transfer-encoding", "")], "ambiguous"),
            (&[("transfer_encoding", "chunked")], "ambiguous"),
            (&[("content_length", "3")], "ambiguous"),
            (&[("x_forwarded_for", "10.0.0.1")], "ambiguous"),
            (&[("x-forwarded_for", "10.0.0.1")], "ambiguous"),
            (&[("x_mine", "1"), ("x-mine", "2")], "ambiguous"),
            (
                &[("content-length", "3"), ("content-length", "3")],
                "ambiguous",
            ),
            (&[("content-length", "0001")], "ambiguous"),
            (&[("content-length", "1, 1")], "ambiguous"),
            (&[("content-length", "+1")], "ambiguous"),
            (&[("content-length", "-1")], "ambiguous"),
            (&[("content-length", "0x1")], "ambiguous"),
            (&[("content-length", "18446744073709551616")], "ambiguous"),
            (&[("content-length", "")], "ambiguous"),
            (&[("host", "a.example")], "ambiguous"),
            (&[("connection", "Content-Length, host")], "ambiguous"),
            (&[("connection", "close, transfer-encoding")], "ambiguous"),
            (&[("expect", "200-ok")], "expectation"),
            (&[("expect", "100-continue, x")], "expectation"),
            (
                &[("expect", "100-continue"), ("expect", "100-continue")],
                "expectation",
            ),
        ];
        for (headers, expected) in cases {
            let headers: Vec<_> = [HOST].into_iter().chain(headers.iter().copied()).collect();
            assert_eq!(
                verdict(Version::HTTP_11, false, "GET /", &headers),
                *expected,
                "{headers:?}"
            );
        }
    }

    #[test]
    fn hosts() {
        let cases = [
            ("a.example", "a.example None / None"),
            ("A.Example:8443", "a.example Some(8443) / None"),
            ("[2001:db8::1]:443", "[2001:db8::1] Some(443) / None"),
            ("10.0.0.1", "10.0.0.1 None / None"),
            ("a, b", "ambiguous"),
            ("a@b", "ambiguous"),
            ("a/..", "ambiguous"),
            ("a..b", "ambiguous"),
            ("a.", "ambiguous"),
            ("", "ambiguous"),
            (":80", "ambiguous"),
            ("a:", "ambiguous"),
            ("a:+80", "ambiguous"),
            ("a:65536", "ambiguous"),
            ("a:80:80", "ambiguous"),
            ("a b", "ambiguous"),
            ("[::1", "ambiguous"),
            ("[::1]x", "ambiguous"),
            ("[1.2.3.4]", "ambiguous"),
            ("a?b", "ambiguous"),
            ("ä.example", "ambiguous"),
        ];
        for (host, expected) in cases {
            assert_eq!(
                verdict(Version::HTTP_11, false, "GET /", &[("host", host)]),
                expected,
                "{host}"
            );
        }
        assert_eq!(verdict(Version::HTTP_11, false, "GET /", &[]), "ambiguous");
        assert_eq!(
            verdict(Version::HTTP_10, false, "GET /", &[]),
            " None / None"
        );
        let coded = [("host", "a"), ("transfer-encoding", "chunked")];
        assert_eq!(
            verdict(Version::HTTP_10, false, "GET /", &coded),
            "ambiguous"
        );
    }

    #[test]
    fn targets() {
        let h1 = Version::HTTP_11;
        let cases: &[(&str, &str)] = &[
            ("GET /a/b?c=d", "a None /a/b Some(\"c=d\")"),
            ("GET /a%20b/%C3%A4", "a None /a%20b/%C3%A4 None"),
            ("GET /a/b...c/.hidden", "a None /a/b...c/.hidden None"),
            ("GET /a;v=1/b", "ambiguous"),
            (
                "GET /a:b/c@d,e!$&'()*+=f",
                "a None /a:b/c@d,e!$&'()*+=f None",
            ),
            (
                "GET /a%40b/x%3Ay/%7Bz%7D",
                "a None /a%40b/x%3Ay/%7Bz%7D None",
            ),
            ("M-SEARCH /a", "a None /a None"),
            ("post /a", "ambiguous"),
            ("Post /a", "ambiguous"),
            ("POSt /a", "ambiguous"),
            ("GET_ /a", "ambiguous"),
            ("GET /a%3ab", "a None /a%3Ab None"),
            (
                "GET /a%c3%a4/b%c3%a4?c=%c3",
                "a None /a%C3%A4/b%C3%A4 Some(\"c=%c3\")",
            ),
            ("GET /a%C3%a4", "a None /a%C3%A4 None"),
            ("GET /%61/b", "ambiguous"),
            ("GET /a%2db", "ambiguous"),
            ("GET /a//b", "ambiguous"),
            ("GET /a/b//", "ambiguous"),
            ("GET /?a=%zz&b=../%2f", "a None / Some(\"a=%zz&b=../%2f\")"),
            ("GET http://a/x", "a None /x None"),
            ("GET http://A", "a None / None"),
            ("GET http://b/x", "ambiguous"),
            ("GET http://a:81/x", "ambiguous"),
            ("GET http://u:p@a/x", "ambiguous"),
            ("GET https://a/x", "ambiguous"),
            ("GET ftp://a/x", "ambiguous"),
            ("GET a:80", "ambiguous"),
            ("GET *", "ambiguous"),
            ("OPTIONS *", "ambiguous"),
            ("CONNECT /x", "ambiguous"),
            ("CONNECT a", "ambiguous"),
            ("CONNECT http://a/", "ambiguous"),
            ("GET //a/x", "ambiguous"),
            ("GET /a/../b", "ambiguous"),
            ("GET /a/./b", "ambiguous"),
            ("GET /a/..", "ambiguous"),
            ("GET /a/..;/b", "ambiguous"),
            ("GET /a/..;x=1/b", "ambiguous"),
            ("GET /a/..%3b/b", "ambiguous"),
            ("GET /a/%2e%2E/b", "ambiguous"),
            ("GET /a/.%2e/b", "ambiguous"),
            ("GET /a%2fb", "ambiguous"),
            ("GET /a%5Cb", "ambiguous"),
            ("GET /a%00b", "ambiguous"),
            ("GET /a%0d%0ab", "ambiguous"),
            ("GET /a%252e", "ambiguous"),
            ("GET /a%c0%afb", "ambiguous"),
            ("GET /%c0%ae%c0%ae/b", "ambiguous"),
            ("GET /a%zz", "ambiguous"),
            ("GET /a%2", "ambiguous"),
            ("GET /a%+1", "ambiguous"),
            ("GET /a\\b", "ambiguous"),
            ("GET /ä", "ambiguous"),
            ("GET /?ä", "ambiguous"),
        ];
        for (line, expected) in cases {
            assert_eq!(
                verdict(h1, false, line, &[("host", "a")]),
                *expected,
                "{line}"
            );
        }
        assert_eq!(
            verdict(h1, false, "CONNECT a:443", &[("host", "a:443")]),
            "a Some(443)  None"
        );
        assert_eq!(
            verdict(h1, false, "CONNECT a:443", &[("host", "b:443")]),
            "ambiguous"
        );
        let with_body = [("host", "a:443"), ("content-length", "3")];
        assert_eq!(verdict(h1, false, "CONNECT a:443", &with_body), "ambiguous");
    }

    #[test]
    fn methods_in_queries_are_found() {
        for (query, is_ok) in [
            ("", true),
            ("method=POST", true),
            ("a=_method&b_method=1", true),
            ("_methods=1", true),
            ("_method=PUT", false),
            ("a=1&_method=PUT", false),
            ("a=1;_method=PUT", false),
            ("%5Fmethod=PUT", false),
            ("_METHOD=PUT", false),
            ("+_method=PUT", false),
            (".method=PUT", false),
            ("_method[]=PUT", false),
            ("?_method=PUT", false),
            ("_HttpMethod=PATCH", false),
            ("X-HTTP-Method-Override=PUT", false),
            ("x_http_method=PUT", false),
            ("httpmethod=PUT", true),
        ] {
            assert_eq!(check_no_method(query).is_ok(), is_ok, "{query}");
        }
    }

    #[test]
    fn http2_authority_and_scheme() {
        type Case = (
            &'static str,
            bool,
            &'static [(&'static str, &'static str)],
            &'static str,
        );
        let cases: &[Case] = &[
            ("GET https://a/x", true, &[], "a None /x None"),
            ("GET https://a/x", true, &[("host", "A")], "a None /x None"),
            ("GET http://a/x", false, &[], "a None /x None"),
            ("GET https://a/x", true, &[("host", "b")], "ambiguous"),
            ("GET /x", true, &[], "ambiguous"),
            ("GET https://u@a/x", true, &[], "ambiguous"),
            ("GET http://a/x", true, &[], "ambiguous"),
            ("GET https://a/x", false, &[], "ambiguous"),
            (
                "GET https://a/x",
                true,
                &[("transfer-encoding", "chunked")],
                "ambiguous",
            ),
        ];
        for (line, is_tls, headers, expected) in cases {
            assert_eq!(
                verdict(Version::HTTP_2, *is_tls, line, headers),
                *expected,
                "{line} {is_tls} {headers:?}"
            );
        }
    }

    #[test]
    fn sizes() {
        let fits = "v".repeat(HEADER_BYTES_MAX - 64);
        let large = "v".repeat(HEADER_BYTES_MAX);
        for (value, expected) in [(fits, "a None / None"), (large, "too_large")] {
            assert_eq!(
                verdict(Version::HTTP_2, false, "GET http://a/", &[("x", &value)]),
                expected
            );
        }
        let names: Vec<String> = (0..=HEADERS_MAX).map(|index| format!("x{index}")).collect();
        let headers: Vec<_> = names.iter().map(|name| (name.as_str(), "v")).collect();
        assert_eq!(
            verdict(Version::HTTP_2, false, "GET http://a/", &headers),
            "too_large"
        );
        let line = format!("GET http://a/{}", "p".repeat(TARGET_BYTES_MAX));
        assert_eq!(verdict(Version::HTTP_2, false, &line, &[]), "too_large");
    }
}
