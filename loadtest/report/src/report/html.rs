//! Markup built from fixed literals and escaped text.
//!
//! Names of elements, classes and attributes are literals. Everything else, whether text or the
//! value of an attribute, goes through [`Html::text`] or an attribute and is escaped. A name in a
//! file therefore cannot become markup.

use std::fmt::{self, Display, Write as _};

/// A sequence of well-formed markup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Html(String);

/// Attributes of an element: literal names, and values that are escaped.
pub(crate) type Attributes<'a> = &'a [(&'static str, &'a dyn Display)];

impl Html {
    /// Appends literal markup.
    pub(crate) fn raw(&mut self, markup: &'static str) -> &mut Self {
        self.0.push_str(markup);
        self
    }

    /// Appends text, escaped.
    pub(crate) fn text(&mut self, text: impl Display) -> &mut Self {
        // Writing to a string does not fail.
        let _ = write!(Escaped(&mut self.0), "{text}");
        self
    }

    /// Appends HTML that was made elsewhere.
    pub(crate) fn add(&mut self, other: &Self) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// Appends `<name a="b">`.
    pub(crate) fn open(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.start(name, attributes);
        self.raw(">")
    }

    /// Appends `</name>`.
    pub(crate) fn close(&mut self, name: &'static str) -> &mut Self {
        self.raw("</").raw(name).raw(">")
    }

    /// Appends a line break between blocks.
    pub(crate) fn line(&mut self) -> &mut Self {
        self.raw("\n")
    }

    /// Appends `<name a="b">text</name>`.
    pub(crate) fn element(
        &mut self,
        name: &'static str,
        attributes: Attributes<'_>,
        text: impl Display,
    ) -> &mut Self {
        self.open(name, attributes).text(text).close(name)
    }

    /// Appends `<name a="b"/>`, for SVG.
    pub(crate) fn leaf(&mut self, name: &'static str, attributes: Attributes<'_>) -> &mut Self {
        self.start(name, attributes);
        self.raw("/>")
    }

    fn start(&mut self, name: &'static str, attributes: Attributes<'_>) {
        self.raw("<").raw(name);
        for (key, value) in attributes {
            self.raw(" ").raw(key).raw("=\"").text(value).raw("\"");
        }
    }

    /// Appends JSON for a `script` block that no browser runs. In JSON these characters occur only
    /// within strings, where a JSON escape has the same meaning.
    pub(crate) fn json(&mut self, json: &str) -> &mut Self {
        for character in json.chars() {
            match character {
                '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                    let _ = write!(self.0, "\\u{:04x}", u32::from(character));
                }
                other => self.0.push(other),
            }
        }
        self
    }

    /// Returns the complete text.
    pub(crate) fn finish(self) -> String {
        self.0
    }
}

struct Escaped<'a>(&'a mut String);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                // HTML forbids these characters, even escaped. The allowed control characters are
                // harmless.
                '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' => self.0.push('\u{fffd}'),
                // Such characters would change the direction of the following text.
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => self.0.push('\u{fffd}'),
                other => self.0.push(other),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_attributes_are_escaped() {
        for (text, escaped) in [
            ("30 fields", "30 fields"),
            (
                "<script>alert(1)</script>",
                "&lt;script&gt;alert(1)&lt;/script&gt;",
            ),
            ("\" onload='x' &amp;", "&quot; onload=&#39;x&#39; &amp;amp;"),
            ("Zoë 加密 µs", "Zoë 加密 µs"),
            (
                "a\0b\u{202e}c\u{1b}[0m\n",
                "a\u{fffd}b\u{fffd}c\u{fffd}[0m\n",
            ),
        ] {
            let mut html = Html::default();
            html.element("b", &[("title", &text)], text);
            assert_eq!(
                html.finish(),
                format!("<b title=\"{escaped}\">{escaped}</b>")
            );
        }
    }

    #[test]
    fn json_cannot_leave_its_block() {
        let data = serde_json::json!({ "name": "</script><!-- \u{2028} & \\u003c" });
        let mut html = Html::default();
        html.json(&data.to_string());
        let text = html.finish();
        assert!(!text.contains(['<', '>', '&', '\u{2028}']), "{text}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            data
        );
    }
}
