//! Formats of bodies and their media types.

use crate::BodyError;

/// Most bytes of a multipart boundary (RFC 2046, section 5.1.1).
const BOUNDARY_MAX: usize = 70;

/// The format of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// A single JSON text (RFC 8259).
    Json,
    /// JSON lines: a JSON text per line.
    JsonLines,
    /// `application/x-www-form-urlencoded` (WHATWG URL).
    Form,
    /// `multipart/form-data` (RFC 7578).
    Multipart {
        /// The boundary, without its leading hyphens.
        boundary: Box<str>,
    },
    /// `text/event-stream` with JSON data (WHATWG HTML).
    EventStream,
}

impl Format {
    /// Returns true if both formats are of the same kind. Ignores the boundary.
    pub fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Returns true if only values at the root have names.
    pub const fn is_flat(&self) -> bool {
        matches!(self, Self::Form | Self::Multipart { .. })
    }

    /// Parses a `Content-Type`.
    ///
    /// # Errors
    /// Returns [`BodyError::Unsupported`] for any other type, a charset other than UTF-8, or an
    /// invalid or missing boundary.
    pub fn from_content_type(header: &str) -> Result<Self, BodyError> {
        let mut parameters = Parameters(header);
        let media_type = parameters.media_type().to_ascii_lowercase();
        let is_multipart = media_type.starts_with("multipart/");
        let mut boundary = None;
        let mut charsets = 0;
        let mut boundaries = 0;
        while let Some(parameter) = parameters.next() {
            let (name, value) = parameter?;
            if name.eq_ignore_ascii_case("charset") {
                charsets += 1;
                if !["utf-8", "utf8", "us-ascii"]
                    .iter()
                    .any(|known| value.eq_ignore_ascii_case(known))
                {
                    return Err(BodyError::Unsupported("a charset other than UTF-8"));
                }
            } else if name.eq_ignore_ascii_case("boundary") {
                boundaries += 1;
                boundary = Some(value);
            } else if is_multipart {
                // Some parsers look for the text `boundary` anywhere in the header.
                return Err(BodyError::Unsupported(
                    "a multipart body with another parameter than boundary and charset",
                ));
            }
        }
        if charsets > 1 || boundaries > 1 {
            return Err(BodyError::Unsupported(
                "a content type with a parameter twice",
            ));
        }
        match media_type.as_str() {
            "application/json" | "text/json" => Ok(Self::Json),
            "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/json-lines" => Ok(Self::JsonLines),
            "application/x-www-form-urlencoded" => Ok(Self::Form),
            "text/event-stream" => Ok(Self::EventStream),
            "multipart/form-data" => {
                let boundary = boundary.filter(|boundary| is_boundary(boundary));
                let boundary = boundary.ok_or(BodyError::Unsupported(
                    "a multipart body without a valid boundary",
                ))?;
                Ok(Self::Multipart {
                    boundary: boundary.into(),
                })
            }
            other if names_paths_in_values(other) => Err(BodyError::Unsupported(
                "a patch, whose values have their paths as data",
            )),
            other if other.ends_with("+json") => Ok(Self::Json),
            _ => Err(BodyError::Unsupported("a content type that cannot be read")),
        }
    }
}

/// Returns true for patches of JSON (RFC 6902), of SCIM (RFC 7644) and of SenML (RFC 8790), for
/// queries, and for similar types. A merge patch has the structure of its document (RFC 7396).
fn names_paths_in_values(media_type: &str) -> bool {
    const WORDS: [&str; 6] = ["etch", "jsonpatch", "jsonpath", "patch", "path", "scim"];
    let Some(name) = media_type.strip_suffix("+json") else {
        return false;
    };
    name.split(['/', '-', '.', '_', '+'])
        .any(|word| WORDS.contains(&word))
        && !name.ends_with("merge-patch")
}

fn is_file_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("filename")
}

/// Returns true for a valid boundary. RFC 2046 permits more characters, but some parsers end or
/// decode a boundary at these.
fn is_boundary(text: &str) -> bool {
    (1..=BOUNDARY_MAX).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.+/:".contains(&byte))
}

/// Returns true for a token (RFC 9110, section 5.6.2) without an apostrophe, which PHP reads as a
/// quotation mark.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"\"'(),/:;<=>?@[\\]{}".contains(&byte))
}

/// Returns true for a charset, a language and an escaped text, separated by apostrophes (RFC 8187).
fn is_extended(text: &str) -> bool {
    text.matches('\'').count() == 2 && is_token(&text.replace('\'', ""))
}

/// White space in a header value (RFC 9110, section 5.6.3).
const BLANKS: [char; 2] = [' ', '\t'];

/// Parameters of a header value, `; name=value` or `; name="value"`.
pub(crate) struct Parameters<'a>(pub(crate) &'a str);

impl<'a> Parameters<'a> {
    /// Consumes and returns the text before the first parameter.
    pub(crate) fn media_type(&mut self) -> &'a str {
        let end = self.0.find(';').unwrap_or(self.0.len());
        let (first, rest) = self.0.split_at(end);
        self.0 = rest;
        first.trim_matches(BLANKS)
    }

    /// Consumes and returns the next parameter. A quoted value with an escape is an error, since
    /// parsers disagree on it. In the name of a file, a backslash is an ordinary character, unless
    /// a quotation mark follows it.
    pub(crate) fn next(&mut self) -> Option<Result<(&'a str, &'a str), BodyError>> {
        let rest = self.0.trim_start_matches(BLANKS);
        if rest.is_empty() {
            return None;
        }
        let malformed = BodyError::Unsupported("a malformed header parameter");
        let Some(rest) = rest.strip_prefix(';') else {
            return Some(Err(malformed));
        };
        let rest = rest.trim_start_matches(BLANKS);
        if rest.is_empty() {
            self.0 = rest;
            return None;
        }
        let Some((name, value)) = rest.split_once('=') else {
            return Some(Err(malformed));
        };
        // Some parsers join `name*0` and `name*1`, or prefer `name*` (RFC 2231), so these names are
        // ambiguous.
        if !is_token(name) || (name.contains('*') && !name.eq_ignore_ascii_case("filename*")) {
            return Some(Err(malformed));
        }
        let (value, rest) = match value.strip_prefix('"') {
            Some(quoted) => match quoted.split_once('"') {
                // Parsers that split at `;` first would see another parameter.
                Some((value, rest))
                    if !value.contains(['\\', ';'])
                        || (is_file_name(name) && !value.ends_with('\\')) =>
                {
                    (value, rest)
                }
                _ => return Some(Err(malformed)),
            },
            None => match value.split_at(value.find([';', ' ', '\t']).unwrap_or(value.len())) {
                // Some parsers read an asterisk as the start of an encoding.
                (value, rest)
                    if (is_token(value) && !value.contains('*'))
                        || (name.contains('*') && is_extended(value)) =>
                {
                    (value, rest)
                }
                _ => return Some(Err(malformed)),
            },
        };
        self.0 = rest;
        Some(Ok((name, value)))
    }
}
