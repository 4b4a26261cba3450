//! Secrets that show their purpose: private keys in PEM, JSON web tokens, and access keys with a
//! known prefix.
//!
//! Strings that are only random are not recognized, since identifiers and hashes look alike.

/// Prefixes of access keys, with the bounds of the length of the rest. The rest consists of
/// letters, digits, `_`, `-` and `.`.
const PREFIXES: [(&[u8], usize, usize); 24] = [
    (b"ghp_", 36, 255),
    (b"gho_", 36, 255),
    (b"ghu_", 36, 255),
    (b"ghs_", 36, 255),
    (b"ghr_", 36, 255),
    (b"github_pat_", 40, 255),
    (b"glpat-", 20, 255),
    (b"xoxb-", 20, 255),
    (b"xoxa-", 20, 255),
    (b"xoxp-", 20, 255),
    (b"xoxr-", 20, 255),
    (b"xoxs-", 20, 255),
    (b"xapp-", 20, 255),
    (b"sk_live_", 16, 255),
    (b"sk_test_", 16, 255),
    (b"rk_live_", 16, 255),
    (b"rk_test_", 16, 255),
    (b"whsec_", 24, 255),
    (b"AIza", 35, 35),
    (b"npm_", 36, 36),
    (b"SG.", 66, 66),
    (b"dop_v1_", 64, 64),
    (b"hvs.", 24, 255),
    (b"pypi-", 85, 512),
];

pub(super) fn is_secret(text: &[u8]) -> bool {
    is_pem(text) || is_json_web_token(text) || is_aws_access_key(text) || is_prefixed(text)
}

/// Returns true for one PEM private key (RFC 7468), with or without a final newline.
fn is_pem(text: &[u8]) -> bool {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    let Some(rest) = text.strip_prefix(b"-----BEGIN ") else {
        return false;
    };

    let Some(dashes) = rest.windows(5).position(|part| part == b"-----") else {
        return false;
    };

    let label = &rest[..dashes];
    let is_label = label.ends_with(b"PRIVATE KEY")
        && label.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b' '));
    let end = [b"-----END ", label, b"-----"].concat();
    let body = &rest[dashes + 5..];
    is_label && body.ends_with(&end) && body.len() > end.len() + 32
}

/// Returns true for a signed JSON web token (RFC 7519): three parts of base64url, of which the
/// first begins with `{"`.
fn is_json_web_token(text: &[u8]) -> bool {
    if !text.starts_with(b"eyJ") {
        return false;
    }

    let mut parts = text.split(|byte| *byte == b'.');
    is_base64url(parts.next(), 16)
        && is_base64url(parts.next(), 8)
        && is_base64url(parts.next(), 32)
        && parts.next().is_none()
}

/// Returns true for at least `bytes_min` characters of base64url.
fn is_base64url(part: Option<&[u8]>, bytes_min: usize) -> bool {
    part.is_some_and(|part| {
        part.len() >= bytes_min
            && part
                .iter()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    })
}

/// Returns true for an access key id of AWS: `AKIA` or `ASIA` and 16 characters of base32.
fn is_aws_access_key(text: &[u8]) -> bool {
    let rest = text
        .strip_prefix(b"AKIA")
        .or_else(|| text.strip_prefix(b"ASIA"));
    rest.is_some_and(|rest| {
        rest.len() == 16
            && rest
                .iter()
                .all(|byte| matches!(byte, b'A'..=b'Z' | b'2'..=b'7'))
    })
}

fn is_prefixed(text: &[u8]) -> bool {
    PREFIXES.iter().any(|(prefix, bytes_min, bytes_max)| {
        let rest = text.strip_prefix(*prefix);
        rest.is_some_and(|rest| {
            (*bytes_min..=*bytes_max).contains(&rest.len())
                && rest.iter().all(|byte: &u8| {
                    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
                })
        }) && text.iter().any(u8::is_ascii_digit)
    })
}
