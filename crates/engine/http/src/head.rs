//! Checks of a request's head: its size, and forms that two readers can read differently (request
//! smuggling).

use http::request::Parts;
use http::{StatusCode, Version};
use sealwire_service::http_server::head::{check_authority, check_framing, is_expectation_known};

use crate::problem::Problem;

/// Most bytes of the names and values of all headers.
pub(crate) const HEADER_BYTES_MAX: usize = 16 << 10;
/// Most headers of a request.
pub(crate) const HEADERS_MAX: usize = 100;
/// Bytes that a header takes besides its name and value, as in HTTP/2 (RFC 9113, section 6.5.2).
const HEADER_OVERHEAD: usize = 32;

/// Returns the bytes of a request's head, including the memory of each header's entry.
pub(crate) fn bytes(head: &Parts) -> usize {
    let target = head.uri.path_and_query();
    let headers = head.headers.iter();
    headers
        .map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD)
        .sum::<usize>()
        + target.map_or(0, |target| target.as_str().len())
}

/// Checks the head of a request.
///
/// # Errors
/// 431 for a long head, 417 for an unknown expectation, and 400 for a head that is ambiguous.
pub(crate) fn check(head: &Parts) -> Result<(), Problem> {
    if head.headers.len() > HEADERS_MAX || bytes(head) > HEADER_BYTES_MAX {
        return Err(Problem::new(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            format!(
                "the head has more than {HEADERS_MAX} headers or {HEADER_BYTES_MAX} bytes; send long parameters in a request object"
            ),
        )
        .closing());
    }
    check_framing(head).map_err(ambiguous)?;
    if head.version != Version::HTTP_2 && head.uri.authority().is_some() {
        return Err(ambiguous("a target that is not a path"));
    }
    let (host, _) = check_authority(head, true).map_err(ambiguous)?;
    if host.is_empty() {
        return Err(ambiguous("no Host"));
    }
    if !is_expectation_known(&head.headers) {
        return Err(Problem::new(
            StatusCode::EXPECTATION_FAILED,
            "Expect must be 100-continue",
        )
        .closing());
    }
    Ok(())
}

fn ambiguous(detail: &'static str) -> Problem {
    Problem::bad_request(format!("the head of the request is ambiguous: {detail}")).closing()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    #[test]
    fn ambiguous_heads_are_rejected() {
        let long = "x".repeat(HEADER_BYTES_MAX - HEADER_OVERHEAD);
        let many: Vec<(String, &str)> = (0..HEADERS_MAX).map(|n| (format!("x-{n}"), "")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (&**name, *value)).collect();
        let h1 = Version::HTTP_11;
        let host = ("host", "localhost:7446");
        for (version, target, headers, expected) in [
            (h1, "/v1/health", &[host][..], Ok(())),
            (h1, "/", &[host, ("transfer-encoding", "chunked")], Ok(())),
            (h1, "/", &[host, ("expect", "100-continue")], Ok(())),
            (h1, "/", &[], Err(400)),
            (h1, "/", &[host, host], Err(400)),
            (h1, "/", &[("host", "")], Err(400)),
            (h1, "/", &[("host", "a, b")], Err(400)),
            (h1, "/", &[("host", "a/b")], Err(400)),
            (h1, "https://localhost:7446/", &[host], Err(400)),
            (h1, "http://localhost:7446/", &[host], Err(400)),
            (
                h1,
                "/",
                &[host, ("transfer-encoding", "gzip, chunked")],
                Err(400),
            ),
            (
                h1,
                "/",
                &[host, ("transfer-encoding", "identity")],
                Err(400),
            ),
            (
                h1,
                "/",
                &[
                    host,
                    ("transfer-encoding", "chunked"),
                    ("transfer-encoding", "chunked"),
                ],
                Err(400),
            ),
            (
                h1,
                "/",
                &[
                    host,
                    ("transfer-encoding", "chunked"),
                    ("content-length", "1"),
                ],
                Err(400),
            ),
            (h1, "/", &[host, ("expect", "200-ok")], Err(417)),
            (h1, "/", &[host, ("x", &long)], Err(431)),
            (h1, "/", &[&[host], &many[..]].concat(), Err(431)),
            (Version::HTTP_10, "/", &[], Err(400)),
            (Version::HTTP_10, "/", &[host], Ok(())),
            (
                Version::HTTP_10,
                "/",
                &[host, ("transfer-encoding", "chunked")],
                Err(400),
            ),
            (Version::HTTP_2, "https://localhost:7446/", &[], Ok(())),
            (Version::HTTP_2, "https://localhost:7446/", &[host], Ok(())),
            (Version::HTTP_2, "/", &[host], Ok(())),
            (Version::HTTP_2, "/", &[], Err(400)),
            (Version::HTTP_2, "https://other/", &[host], Err(400)),
            (Version::HTTP_2, "http://localhost:7446/", &[], Err(400)),
        ] {
            let mut request = Request::builder().version(version).uri(target);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            let checked = check(&head).map_err(|problem| problem.status.as_u16());
            assert_eq!(checked, expected, "{version:?} {target} {headers:?}");
        }
    }
}
