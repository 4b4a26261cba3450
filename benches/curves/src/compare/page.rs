//! The comparison as one HTML page that loads nothing else.

use std::error::Error;
use std::fmt::Write as _;

use plotters::style::RGBColor;

use super::{COLUMNS, MachineComparison, Primitive, SIDES, plot};

const STYLE: &str = "
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1d232b; --soft: #5b6672; --line: #dde1e6; --a: #0b6bb8; --b: #cc4b00; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #111418; --ink: #e7eaee; --soft: #9aa5b1; --line: #3a424d; --a: #58aef0; --b: #ff8f4d; }
}
body { margin: 0 auto; max-width: 1000px; padding: 24px; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h2 { margin: 40px 0 4px; font-size: 19px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 12px 3px 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th:first-child, td:first-child { white-space: nowrap; }
.differs td, .changed { font-weight: 600; }
.soft { color: var(--soft); }
.key { display: inline-block; width: 12px; height: 12px; margin-right: 6px; }
figure { margin: 0; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--ink); }
svg line, svg polyline { stroke: var(--ink); }
";

/// Returns the page.
///
/// # Errors
/// If a plot cannot be drawn.
pub(super) fn html(comparison: &MachineComparison) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut page = String::from("<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n");
    page += "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n<title>curves: A and B</title>\n";
    page += &style();
    page += "<h1>Two runs of the curves bench</h1>\n";
    for sentence in comparison.summary() {
        // Writing to a string does not fail.
        let _ = writeln!(page, "<p>{}</p>", escape(&sentence));
    }
    page += &machines(comparison);
    for primitive in &comparison.primitives {
        page += &section(primitive)?;
    }
    Ok(page + "</html>\n")
}

/// Returns the style sheet. It replaces the colours of a plot by the variables of the page.
fn style() -> String {
    let mut style = String::from(STYLE);
    for (RGBColor(red, green, blue), side) in plot::BARS.into_iter().zip(SIDES) {
        let side = side.to_lowercase();
        let _ = writeln!(
            style,
            "svg rect[fill=\"#{red:02X}{green:02X}{blue:02X}\"], .key.{side} {{ fill: var(--{side}); background: var(--{side}); }}"
        );
    }
    format!("<style>{style}</style>\n")
}

fn machines(comparison: &MachineComparison) -> String {
    let head = comparison.sides.iter().zip(SIDES).map(|(side, name)| {
        format!(
            "<th><span class=\"key {}\"></span>{name}: {}",
            name.to_lowercase(),
            escape(&side.name)
        )
    });
    let mut table = format!("<table>\n<tr><th>{}\n", head.collect::<String>());
    for [name, a, b] in comparison
        .properties()
        .into_iter()
        .map(|cells| cells.map(|cell| escape(&cell)))
    {
        let class = if a == b { "" } else { " class=differs" };
        let _ = writeln!(table, "<tr{class}><td>{name}<td>{a}<td>{b}");
    }
    table + "</table>\n<p class=soft>Bold rows differ.</p>\n"
}

fn section(primitive: &Primitive) -> Result<String, Box<dyn Error + Send + Sync>> {
    let (title, svg) = (escape(&primitive.title()), plot::svg(primitive)?);
    let changed = if primitive.reversed.is_empty() {
        ""
    } else {
        " class=changed"
    };
    let mut section =
        format!("<h2>{title}</h2>\n<figure role=img aria-label=\"{title}\">\n{svg}</figure>\n");
    let _ = writeln!(
        section,
        "<p{changed}>{}</p>\n<table>\n<tr><th>{}",
        escape(&primitive.order_text()),
        COLUMNS.join("<th>")
    );
    for cells in primitive.cells() {
        let _ = writeln!(
            section,
            "<tr><td>{}",
            cells.map(|cell| escape(&cell)).join("<td>")
        );
    }
    Ok(section + "</table>\n")
}

/// Escapes a text for HTML, because the files can come from anywhere.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
