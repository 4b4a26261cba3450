//! Checks of a request's head: its framing, its authority and its expectation.
//!
//! hyper accepts several forms that proxies and servers interpret differently. A request that
//! passes these checks has one framing and one host.

use http::header::{self, HeaderMap};
use http::request::Parts;
use http::{Method, Uri, Version};

/// Checks that the body of a request has one length for all readers.
///
/// # Errors
/// The reason, for the response.
pub fn check_framing(request: &Parts) -> Result<(), &'static str> {
    let headers = &request.headers;
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let coding = codings.next();
    let length = lengths.next();
    if codings.next().is_some() {
        return Err("more than one Transfer-Encoding");
    }
    if lengths.next().is_some() {
        return Err("more than one Content-Length");
    }
    if let Some(coding) = coding {
        if request.version != Version::HTTP_11 {
            return Err("Transfer-Encoding in another version than HTTP/1.1");
        }
        if !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
            return Err("a Transfer-Encoding other than chunked");
        }
        if length.is_some() {
            return Err("Transfer-Encoding and Content-Length");
        }
    }
    if let Some(length) = length {
        check_length(length.as_bytes())?;
    }
    if request.method == Method::CONNECT && (coding.is_some() || length.is_some()) {
        return Err("CONNECT with a body");
    }
    Ok(())
}

fn check_length(value: &[u8]) -> Result<(), &'static str> {
    let is_canonical = value == b"0" || value.first() != Some(&b'0');
    let is_number = std::str::from_utf8(value).is_ok_and(|text| text.parse::<u64>().is_ok());
    if !is_number || !is_canonical || !value.iter().all(u8::is_ascii_digit) {
        return Err("a Content-Length that is not a plain number");
    }
    Ok(())
}

/// Returns true if the client expects nothing, or `100-continue` once.
pub fn is_expectation_known(headers: &HeaderMap) -> bool {
    let mut values = headers.get_all(header::EXPECT).iter();
    match (values.next(), values.next()) {
        (None, _) => true,
        (Some(value), None) => value.as_bytes().eq_ignore_ascii_case(b"100-continue"),
        _ => false,
    }
}

/// Checks the target's form, its authority and `Host`, and returns host and port. `is_tls` is true
/// if the request came over TLS. The host is empty only for HTTP/1.0 without `Host`.
///
/// # Errors
/// The reason, for the response.
pub fn check_authority(
    request: &Parts,
    is_tls: bool,
) -> Result<(Box<str>, Option<u16>), &'static str> {
    let is_h2 = request.version == Version::HTTP_2;
    check_form(&request.method, &request.uri, is_h2, is_tls)?;
    let mut hosts = request.headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() {
        return Err("more than one Host");
    }
    let host = host
        .map(|host| split_authority(host.to_str().map_err(|_| "a Host that is not ASCII")?))
        .transpose()?;
    let authority = request
        .uri
        .authority()
        .map(|authority| split_authority(authority.as_str()))
        .transpose()?;
    match (authority, host) {
        (Some(authority), Some(host)) if authority != host => {
            Err("the target's authority differs from Host")
        }
        (Some(authority), None) if is_h2 || request.version == Version::HTTP_10 => Ok(authority),
        (Some(authority), Some(_)) => Ok(authority),
        (None, Some(host)) => Ok(host),
        (None, None) if request.version == Version::HTTP_10 => Ok(("".into(), None)),
        (_, None) => Err("no Host"),
    }
}

fn check_form(method: &Method, uri: &Uri, is_h2: bool, is_tls: bool) -> Result<(), &'static str> {
    let is_connect = method == Method::CONNECT;
    if uri.path() == "*" {
        return Err("the target *");
    }
    let has_path = uri.path_and_query().is_some();
    match (uri.scheme_str(), uri.authority()) {
        (None, Some(authority)) if is_connect && !has_path => match authority.port_u16() {
            Some(port) if port > 0 => Ok(()),
            _ => Err("CONNECT without a port"),
        },
        _ if is_connect => Err("CONNECT with another target than host and port"),
        (None, None) if has_path => Ok(()),
        (Some(scheme), Some(_)) => check_scheme(scheme, is_h2, is_tls),
        _ => Err("a target that is an authority only"),
    }
}

/// Checks the scheme of a target. A client cannot choose another scheme of a reverse proxy. Over
/// HTTP/1, a forward proxy accepts `http` targets with and without TLS; `https` targets need
/// CONNECT.
fn check_scheme(scheme: &str, is_h2: bool, is_tls: bool) -> Result<(), &'static str> {
    match scheme {
        "https" if is_tls => Ok(()),
        "http" if !is_tls || !is_h2 => Ok(()),
        "http" | "https" => Err("the target's scheme differs from the transport"),
        _ => Err("a scheme other than http and https"),
    }
}

fn is_label(label: &str) -> bool {
    !label.is_empty()
        && label
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Splits `host[:port]` and returns the host in lower case.
fn split_authority(text: &str) -> Result<(Box<str>, Option<u16>), &'static str> {
    const MALFORMED: &str = "a Host that is not a host and a port";
    let (host, rest) = if text.starts_with('[') {
        let end = text.find(']').ok_or(MALFORMED)?;
        text[1..end]
            .parse::<std::net::Ipv6Addr>()
            .map_err(|_| MALFORMED)?;
        text.split_at(end + 1)
    } else {
        let (host, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
        if host.len() > 253 || !host.split('.').all(is_label) {
            return Err(MALFORMED);
        }
        (host, rest)
    };
    let port = match rest.strip_prefix(':') {
        None if rest.is_empty() => None,
        Some(digits)
            if (1..=5).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_digit()) =>
        {
            Some(digits.parse().map_err(|_| MALFORMED)?)
        }
        _ => return Err(MALFORMED),
    };
    Ok((host.to_ascii_lowercase().into(), port))
}
