//! Reads the bearer token of a request (RFC 6750, section 2.1).

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The reason why a request has no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoToken {
    /// The request has no header `Authorization`.
    Missing,
    /// The header is malformed, or there are several. Contains the expected form.
    Malformed(&'static str),
}

/// Returns the token of a request. The name of the scheme has any case (RFC 9110, section 11.1). The
/// limit of a head bounds the token, and the verifier has a lower one.
pub(crate) fn bearer_token(headers: &HeaderMap) -> Result<&str, NoToken> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(NoToken::Missing)?;
    if values.next().is_some() {
        return Err(NoToken::Malformed(
            "the request must have one header Authorization, not several",
        ));
    }
    value
        .to_str()
        .ok()
        .and_then(|text| text.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token)
        .filter(|token| is_token(token))
        .ok_or(NoToken::Malformed(
            "the header Authorization must be Bearer, one space, and a token of letters, digits and - . _ ~ + / =",
        ))
}

fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_tokens_are_read_from_one_header() {
        for (values, expected) in [
            (&["Bearer a.b-c_d~e+f/g="][..], Some("a.b-c_d~e+f/g=")),
            (&["bearer abc"], Some("abc")),
            (&["BEARER abc"], Some("abc")),
            (&["Bearer  abc"], None),
            (&["Bearer\tabc"], None),
            (&["Bearer abc "], None),
            (&["Bearer a bc"], None),
            (&["Bearer abc, Bearer def"], None),
            (&["Bearer a,b"], None),
            (&["Bearer \"abc\""], None),
            (&["Bearer "], None),
            (&["Bearer"], None),
            (&["Bearerabc"], None),
            (&["abc"], None),
            (&[""], None),
            (&["Basic abc"], None),
            (&["Token abc"], None),
            (&["Bearer abc", "Bearer abc"], None),
            (&["Basic abc", "Bearer abc"], None),
        ] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(AUTHORIZATION, value.parse().unwrap());
            }
            assert_eq!(bearer_token(&headers).ok(), expected, "{values:?}");
        }
        assert_eq!(bearer_token(&HeaderMap::new()), Err(NoToken::Missing));
        let mut headers = HeaderMap::new();
        let value = http::HeaderValue::from_bytes(b"Bearer \xe9").unwrap();
        headers.append(AUTHORIZATION, value);
        assert!(matches!(bearer_token(&headers), Err(NoToken::Malformed(_))));
    }
}
