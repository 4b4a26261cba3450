//! Headers and trailers that the relay removes, sets or joins when it forwards a message.

use std::net::IpAddr;
use std::sync::LazyLock;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use sealwire_relay_body::name::NameSet;

/// Headers of one connection (RFC 9110, section 7.6.1). For a WebSocket, the caller sets `upgrade`
/// again.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Credentials for the hop between client and relay, and the challenge for them.
const PROXY_ONLY: [&str; 3] = [
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
];
/// Validators and digests of the body bytes, which are invalid after a change.
const BODY_DIGESTS: [&str; 6] = [
    "content-digest",
    "content-length",
    "content-md5",
    "digest",
    "etag",
    "repr-digest",
];
/// Trailers that are never forwarded: framing, routing, authentication and request modifiers (RFC
/// 9110, section 6.5.1).
const NOT_TRAILERS: [&str; 29] = [
    "age",
    "authorization",
    "cache-control",
    "connection",
    "cookie",
    "date",
    "expect",
    "expires",
    "forwarded",
    "host",
    "keep-alive",
    "location",
    "max-forwards",
    "pragma",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "retry-after",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "vary",
    "via",
    "warning",
    "www-authenticate",
    "x-real-ip",
];
/// Headers from which some servers read method or path instead of the request line.
const OVERRIDES: [&str; 17] = [
    "path-info",
    "script-name",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-method",
    "x-original-path",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-script-name",
];

static OVERRIDE_NAMES: LazyLock<NameSet> = LazyLock::new(|| NameSet::from_names(&OVERRIDES));

/// Facts about the client's side of a request, for the forwarding headers.
#[derive(Clone, Copy, Debug)]
pub struct Hop<'a> {
    /// Address of the client.
    pub client: IpAddr,
    /// True if the request came over TLS.
    pub is_tls: bool,
    /// Authority as the client sent it: `host[:port]`.
    pub authority: &'a str,
    /// If true, the client is a proxy, and its forwarding headers are kept and extended.
    pub trust_forwarded: bool,
    /// HTTP version of the message for `Via`: `1.1` or `2.0`.
    pub version: &'static str,
    /// Name of the route in `Via`.
    pub via: &'a str,
}

/// Returns true if a request has already passed the route with this name. The name is the second
/// word of an entry of `Via` (RFC 9110, section 7.6.3).
pub fn has_passed(headers: &HeaderMap, via: &str) -> bool {
    let mut entries = headers
        .get_all(header::VIA)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    entries.any(|entry| {
        let mut words = entry
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        words.nth(1).is_some_and(|name| name == via.as_bytes())
    })
}

/// Removes hop-by-hop headers and the headers that `Connection` lists. Keeps `te: trailers` if
/// `keep_te_trailers` is set, which is for HTTP/2 upstreams.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, keep_te_trailers: bool) {
    let accepts_trailers = keep_te_trailers && has_token(headers, &header::TE, b"trailers");
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|option| HeaderName::from_bytes(option.trim_ascii()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    remove_all(headers, &HOP_BY_HOP);
    if accepts_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

fn is_override(present: &str) -> bool {
    OVERRIDE_NAMES.matches(present)
}

/// Removes headers from which some servers read method or path, in any spelling. Method and path of
/// the request line decided which rules apply.
pub fn remove_overrides(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_override(name.as_str()))
        .cloned()
        .collect();
    for name in named {
        headers.remove(name);
    }
}

/// Prepares the headers of a request for an upstream. Removes hop-by-hop headers, `Expect` and
/// proxy credentials, joins cookies, and sets `Via` and the forwarding headers.
pub fn forward_request(headers: &mut HeaderMap, hop: &Hop<'_>, to_h2: bool) {
    remove_hop_by_hop(headers, to_h2);
    remove_all(headers, &PROXY_ONLY);
    headers.remove(header::EXPECT);
    if !to_h2 {
        join_cookies(headers);
    }
    append_via(headers, hop.via, hop.version);
    set_forwarded(headers, hop);
}

/// Prepares the headers of a response for the client.
pub fn forward_response(headers: &mut HeaderMap, via: &str, version: &'static str) {
    remove_hop_by_hop(headers, false);
    remove_all(headers, &PROXY_ONLY);
    append_via(headers, via, version);
}

/// Joins cookie lines, which HTTP/2 may split, with `; `, because HTTP/1 permits only one line.
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).iter();
    let (Some(first), Some(second)) = (lines.next(), lines.next()) else {
        return;
    };
    let mut joined = first.as_bytes().to_vec();
    for line in [second].into_iter().chain(lines) {
        joined.extend_from_slice(b"; ");
        joined.extend_from_slice(line.as_bytes());
    }
    // Joined values are valid, because each of them was valid.
    if let Ok(mut value) = HeaderValue::from_bytes(&joined) {
        value.set_sensitive(true);
        headers.insert(header::COOKIE, value);
    }
}

/// Removes trailers that a recipient could interpret as framing, routing, authentication or a
/// description of the content.
pub fn filter_trailers(trailers: &mut HeaderMap) {
    let named: Vec<HeaderName> = trailers
        .keys()
        .filter(|name| !can_be_trailer(name.as_str()))
        .cloned()
        .collect();
    for name in named {
        trailers.remove(name);
    }
}

/// Returns the trailer names that a message declares and that can pass, as a value of `Trailer`.
/// HTTP/1.1 sends no other trailers.
pub fn declared_trailers(headers: &HeaderMap) -> Option<HeaderValue> {
    let names: Vec<HeaderName> = headers
        .get_all(header::TRAILER)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| can_be_trailer(name.as_str()))
        .collect();
    let names: Vec<&str> = names.iter().map(HeaderName::as_str).collect();
    HeaderValue::try_from(names.join(", "))
        .ok()
        .filter(|value| !value.is_empty())
}

fn can_be_trailer(name: &str) -> bool {
    let plain = name.replace('_', "-");
    !(NOT_TRAILERS.contains(&plain.as_str())
        || plain.starts_with("content-")
        || plain.starts_with("x-forwarded-")
        || plain.starts_with("if-")
        || is_override(name))
}

/// Adjusts a request whose body is changed. `was_decoded` is true if a content coding was removed.
pub fn adjust_changed_request(headers: &mut HeaderMap, was_decoded: bool) {
    remove_all(headers, &BODY_DIGESTS);
    if was_decoded {
        headers.remove(header::CONTENT_ENCODING);
    }
}

/// Adjusts a request whose response will be changed. The upstream must send the whole body without
/// a content coding.
pub fn prepare_response_change(headers: &mut HeaderMap) {
    remove_all(headers, &["if-none-match", "if-range", "range"]);
    headers.insert(
        header::ACCEPT_ENCODING,
        HeaderValue::from_static("identity"),
    );
}

/// Adjusts a response whose body is changed. `was_decoded` is true if a content coding was removed.
pub fn adjust_changed_response(headers: &mut HeaderMap, was_decoded: bool) {
    remove_all(headers, &BODY_DIGESTS);
    if was_decoded {
        headers.remove(header::CONTENT_ENCODING);
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("none"));
}

/// Adjusts a response that now has plaintext in its body or in a header, so that no cache stores
/// it. Some caches have their own headers that override `Cache-Control`. Such headers are removed
/// by pattern.
pub fn forbid_caching(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .keys()
        .filter(|name| concerns_caches(name.as_str()))
        .cloned()
        .collect();
    for name in named {
        headers.remove(name);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// Returns true if a cache can interpret the header as permission to store a response, or as a
/// validator of a stored response.
fn concerns_caches(name: &str) -> bool {
    let plain = name.replace('_', "-");
    // Access-Control headers are for browsers and their preflight requests.
    if plain.starts_with("access-control-") {
        return false;
    }
    ["cache", "surrogate", "edge-control"]
        .into_iter()
        .any(|part| plain.contains(part))
        || is_lifetime_in_caches(&plain)
        || plain.split('-').any(|word| ["etag", "ttl"].contains(&word))
        || ["age", "last-modified", "pragma"].contains(&plain.as_str())
}

/// Returns true for `Expires`, `Max-Age` and their variants for a kind of cache, such as
/// `X-Accel-Expires`. Headers of sessions and tokens can end alike, and do not match.
fn is_lifetime_in_caches(name: &str) -> bool {
    let owner = name
        .strip_suffix("expires")
        .or_else(|| name.strip_suffix("max-age"));
    let owner = owner.and_then(|owner| owner.trim_end_matches('-').rsplit('-').next());
    owner.is_some_and(|owner| ["", "accel", "cdn", "edge", "proxy", "shared", "x"].contains(&owner))
}

fn remove_all(headers: &mut HeaderMap, names: &[&'static str]) {
    for name in names {
        headers.remove(*name);
    }
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &[u8]) -> bool {
    let values = headers.get_all(name);
    values.iter().any(|value| {
        value
            .as_bytes()
            .split(|byte| *byte == b',')
            .any(|t| t.trim_ascii().eq_ignore_ascii_case(token))
    })
}

fn append_via(headers: &mut HeaderMap, via: &str, version: &str) {
    if let Ok(value) = HeaderValue::try_from(format!("{version} {via}")) {
        headers.append(header::VIA, value);
    }
}

/// Sets `X-Forwarded-For`, `-Proto` and `-Host`. The client's values are kept only behind a trusted
/// proxy. There, `Forwarded` is kept unchanged, because the relay does not extend it.
fn set_forwarded(headers: &mut HeaderMap, hop: &Hop<'_>) {
    let known: Vec<HeaderName> = headers
        .keys()
        .filter(|name| name.as_str().starts_with("x-forwarded-"))
        .cloned()
        .collect();
    let mut proto = None;
    let mut host = None;
    let mut hops: Vec<HeaderValue> = Vec::new();
    if hop.trust_forwarded {
        proto = headers.get("x-forwarded-proto").cloned();
        host = headers.get("x-forwarded-host").cloned();
        hops.extend(headers.get_all("x-forwarded-for").iter().cloned());
    } else {
        known.iter().for_each(|name| drop(headers.remove(name)));
        remove_all(headers, &["forwarded", "x-real-ip"]);
    }

    let mut path: Vec<u8> = hops
        .iter()
        .map(HeaderValue::as_bytes)
        .collect::<Vec<_>>()
        .join(&b", "[..]);
    if !path.is_empty() {
        path.extend_from_slice(b", ");
    }
    path.extend_from_slice(hop.client.to_canonical().to_string().as_bytes());
    let scheme = if hop.is_tls { "https" } else { "http" };
    let host = host.or_else(|| {
        HeaderValue::from_str(hop.authority)
            .ok()
            .filter(|host| !host.is_empty())
    });

    if let Ok(path) = HeaderValue::from_bytes(&path) {
        headers.insert("x-forwarded-for", path);
    }
    headers.insert(
        "x-forwarded-proto",
        proto.unwrap_or(HeaderValue::from_static(scheme)),
    );
    if let Some(host) = host {
        headers.insert("x-forwarded-host", host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `name: value` lines.
    fn map(lines: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(": ").unwrap();
            headers.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        headers
    }

    fn lines(headers: &HeaderMap) -> String {
        let mut lines: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        lines.join("\n")
    }

    fn check(change: impl Fn(&mut HeaderMap), before: &str, after: &str) {
        let mut headers = map(before);
        change(&mut headers);
        assert_eq!(lines(&headers), lines(&map(after)), "{before}");
    }

    #[test]
    fn hop_by_hop_headers_go() {
        let before = "connection: close, X-Mine\nconnection: keep-alive\nx-mine: 1\nkeep-alive: timeout=5\nte: trailers
            trailer: x\ntransfer-encoding: chunked\nupgrade: h2c\nhttp2-settings: AA\nproxy-connection: x\naccept: b";
        check(
            |headers| remove_hop_by_hop(headers, false),
            before,
            "accept: b",
        );
        check(
            |headers| remove_hop_by_hop(headers, true),
            before,
            "te: trailers\naccept: b",
        );
        check(|headers| remove_hop_by_hop(headers, true), "te: gzip", "");
        check(
            |headers| remove_hop_by_hop(headers, true),
            "te: gzip, Trailers;q=1\nte: trailers",
            "te: trailers",
        );
    }

    #[test]
    fn headers_that_override_method_or_path_go_in_any_spelling() {
        let before =
            "x-http-method-override: POST\nX_HTTP_Method_Override: POST\nx-http-method: PUT\nx-method-override: PUT
            x-original-url: /a\nx-rewrite-url: /a\nx_rewrite.url: /a\nx-original-uri: /a\nscript_name: /a\nx-script-name: /a\npath_info: /a\nx-request-id: 1
            x-forwarded-method: PUT\nX_Forwarded_Uri: /a\nx-forwarded-path: /a\nx-forwarded-url: /a\nx-forwarded-prefix: /a
            x-original-file: a\nx-forwarded-for: a\nmethod: x";
        check(
            remove_overrides,
            before,
            "x-request-id: 1\nx-forwarded-prefix: /a\nx-original-file: a\nx-forwarded-for: a\nmethod: x",
        );
    }

    #[test]
    fn trailers_keep_what_is_harmless() {
        let before = "grpc-status: 0\nx-checksum: 1\ncontent-length: 3\ncontent_length: 3\nhost: b\nauthorization: x
            transfer-encoding: chunked\ncontent-type: text/html\nset-cookie: a=b\ncookie: a=b\nx-forwarded-for: a
            if-match: *\ncache-control: x\ntrailer: x\nx-real-ip: a\nx_real_ip: a\nx-http-method-override: PUT\nx_original_url: /a";
        check(filter_trailers, before, "grpc-status: 0\nx-checksum: 1");
    }

    #[test]
    fn declared_trailers_keep_what_is_harmless() {
        let declared = |lines: &str| {
            declared_trailers(&map(lines)).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(
            declared("trailer: X-A, Content-Length,, x_b\ntrailer: host , x-c"),
            Some("x-a, x_b, x-c".into())
        );
        assert_eq!(
            (declared("trailer: host"), declared("accept: b")),
            (None, None)
        );
    }

    #[test]
    fn cookies_are_joined() {
        check(
            join_cookies,
            "cookie: a=1\ncookie: b=2\ncookie: c=3",
            "cookie: a=1; b=2; c=3",
        );
        check(join_cookies, "cookie: a=1; b=2", "cookie: a=1; b=2");
        check(join_cookies, "accept: b", "accept: b");
    }

    fn hop(trust_forwarded: bool) -> Hop<'static> {
        let client = "::ffff:192.0.2.7".parse().unwrap();
        Hop {
            client,
            is_tls: true,
            authority: "api.example:8443",
            trust_forwarded,
            version: "1.1",
            via: "sealwire-relay-7",
        }
    }

    #[test]
    fn forwarding_headers_are_the_relays() {
        let before = "x-forwarded-for: 10.0.0.1\nx-forwarded-for: 10.0.0.2\nx-forwarded-proto: http\nforwarded: for=x
            x-forwarded-host: evil\nx-forwarded-port: 1\nx-real-ip: 10.0.0.1\nexpect: 100-continue
            proxy-authorization: Basic x\nauthorization: Bearer y\nvia: 1.0 edge";
        let own = "x-forwarded-for: 192.0.2.7\nx-forwarded-proto: https\nx-forwarded-host: api.example:8443
            authorization: Bearer y\nvia: 1.0 edge\nvia: 1.1 sealwire-relay-7";
        check(
            |headers| forward_request(headers, &hop(false), false),
            before,
            own,
        );
        let extended = "x-forwarded-for: 10.0.0.1, 10.0.0.2, 192.0.2.7\nx-forwarded-proto: http\nforwarded: for=x
            x-forwarded-host: evil\nx-forwarded-port: 1\nx-real-ip: 10.0.0.1\nauthorization: Bearer y
            via: 1.0 edge\nvia: 1.1 sealwire-relay-7";
        check(
            |headers| forward_request(headers, &hop(true), false),
            before,
            extended,
        );
    }

    #[test]
    fn responses_lose_the_hop() {
        let before = "connection: x-hop\nx-hop: 1\nproxy-authenticate: Basic\netag: \"a\"";
        check(
            |headers| forward_response(headers, "sealwire-relay-7", "1.1"),
            before,
            "etag: \"a\"\nvia: 1.1 sealwire-relay-7",
        );
    }

    #[test]
    fn a_loop_has_the_name_of_its_route() {
        for (lines, expected) in [
            ("via: 1.1 sealwire-relay-7", true),
            ("via: 2.0 sealwire-relay-7", true),
            ("via: HTTP/1.1 sealwire-relay-7 (a comment)", true),
            ("via: 1.0 edge, 1.1\tsealwire-relay-7 , 1.1 other", true),
            ("via: 1.0 edge\nvia: 1.1 sealwire-relay-7", true),
            ("via: 1.1 sealwire-relay-8", false),
            ("via: 1.1 sealwire-relay-77", false),
            ("via: 1.1 edge (sealwire-relay-7)", false),
            ("via: sealwire-relay-7", false),
            ("via: 1.1", false),
            ("forwarded: 1.1 sealwire-relay-7", false),
        ] {
            assert_eq!(
                has_passed(&map(lines), "sealwire-relay-7"),
                expected,
                "{lines}"
            );
        }
    }

    #[test]
    fn caches_do_not_keep_a_revealed_response() {
        let controls = "cache-control: public, max-age=60\ncdn-cache-control: max-age=60\ncloudflare-cdn-cache-control: max-age=60
            vercel-cdn-cache-control: max-age=60\nnetlify-cdn-cache-control: max-age=60\nx-magento-cache-control: max-age=60
            x-litespeed-cache-control: public\nx-lscache: on\nx-cache-enabled: true\nx-cacheable: yes\ncache-tag: a\nedge-cache-tag: a
            netlify-cache-tag: a\nsurrogate-control: max-age=60\nsurrogate-key: a\nedge-control: max-age=60\nx-edge-control: a
            x-accel-expires: 60\nexpires: Thu, 01 Dec 2044 16:00:00 GMT\ncache_control: public\nx_accel_expires: 60
            cdn-expires: 60\nx_edge_max_age: 60\nx-max-age: 60\netag: \"a\"\nlast-modified: Thu, 01 Dec 1994 16:00:00 GMT\nage: 5\npragma: public\nx-ttl: 60\nx-varnish-ttl: 60";
        let rest = "content-type: application/json\nvary: accept\nset-cookie: a=b\nx-accel-buffering: no\nlocation: /x
            x-expired: 1\naccess-control-max-age: 600\naccess_control_max_age: 600\nx-session-expires: 60\nx-token-max-age: 60\nx-page: 5\nx-usage: 7\nx-throttle: 7\nknowledge: 1";
        let after = format!("{rest}\ncache-control: no-store");
        check(forbid_caching, &format!("{controls}\n{rest}"), &after);
        check(forbid_caching, rest, &after);
    }

    #[test]
    fn changed_messages() {
        let before = "etag: \"a\"\ncontent-md5: x\ndigest: x\ncontent-digest: x\nrepr-digest: x\ncontent-length: 5
            content-encoding: gzip\naccept-ranges: bytes\ncache-control: public\nexpires: x\nvary: accept";
        let after = "accept-ranges: none\ncache-control: public\nexpires: x\nvary: accept";
        check(
            |headers| adjust_changed_response(headers, true),
            before,
            after,
        );
        let after = format!("{after}\ncontent-encoding: gzip");
        check(
            |headers| adjust_changed_response(headers, false),
            before,
            &after,
        );
        let before =
            "content-md5: x\ndigest: x\ncontent-length: 5\ncontent-encoding: gzip\naccept: b";
        check(
            |headers| adjust_changed_request(headers, true),
            before,
            "accept: b",
        );
        let before = "range: bytes=0-1\nif-range: \"a\"\nif-none-match: \"a\"\naccept-encoding: gzip, br\nif-match: \"a\"";
        check(
            prepare_response_change,
            before,
            "accept-encoding: identity\nif-match: \"a\"",
        );
    }
}
