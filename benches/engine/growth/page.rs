//! The page of plots: a panel per series, with both axes logarithmic.

use std::fmt::Write as _;

use super::{Curve, Series};

/// Width and height of a panel, and its margins: left, top, right, bottom.
const PANEL: [f64; 2] = [300.0, 190.0];
const MARGIN: [f64; 4] = [52.0, 26.0, 12.0, 34.0];
const STYLE: &str = "
:root { color-scheme: light dark; --text: #1b1f24; --faint: #8a929c; --line: #2b6cb0; --back: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e7ec; --faint: #7d8691; --line: #6cb2f5; --back: #14181d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem; }
.panels { display: flex; flex-wrap: wrap; gap: 0.5rem; }
svg { width: 300px; height: 190px; font-size: 10px; fill: var(--text); }
.grid { stroke: var(--faint); stroke-opacity: 0.35; } .line { stroke: var(--line); fill: none; stroke-width: 1.8; }
.dot { fill: var(--line); } .end { text-anchor: end; } .middle { text-anchor: middle; } .name { font-weight: 600; font-size: 11px; }
.faint { fill: var(--faint); }";

/// Returns the page.
pub(super) fn html(curves: &[Curve]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>growth of costs</title><style>{STYLE}</style></head><body>\n\
         <h1>How costs grow</h1>\n<p>Both axes are logarithmic. The slope is that of the drawn points: 0 is no growth, 1 \
         is linear. The engine is a process of its own with embedded state, roles and an audit record of every \
         request.</p>\n"
    );
    for curve in curves {
        // Writing to a string does not fail.
        let _ = write!(
            page,
            "<h2>{}</h2>\n<p>{}</p>\n<div class=\"panels\">\n",
            curve.size, curve.load
        );
        curve
            .series
            .iter()
            .for_each(|series| page += &panel(curve, series));
        page += "</div>\n";
        curve
            .notes
            .iter()
            .for_each(|note| page += &format!("<p>{note}</p>\n"));
    }
    page + "</body></html>\n"
}

fn panel(curve: &Curve, series: &Series) -> String {
    let [width, height] = PANEL;
    let [left, top, right, bottom] = MARGIN;
    let sizes: Vec<f64> = curve.sizes.iter().map(|size| *size as f64).collect();
    let [x_low, x_high] = decades(&sizes);
    let [y_low, y_high] = decades(&series.values);
    let x = |size: f64| left + (size.log10() - x_low) / (x_high - x_low) * (width - left - right);
    let y = |value: f64| {
        height - bottom - (value.log10() - y_low) / (y_high - y_low) * (height - top - bottom)
    };
    let label = format!("{} over {}", series.name, curve.size);
    let mut svg =
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">");
    let slope = curve.slope(series, 0);
    let _ = write!(
        svg,
        "<text class=\"name\" x=\"{left}\" y=\"12\">{}, {} <tspan class=\"faint\">slope {slope:.2}</tspan></text>",
        series.name, series.unit
    );
    for decade in y_low as i32..=y_high as i32 {
        let (at, text) = (y(10_f64.powi(decade)), digits(10_f64.powi(decade)));
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{left} {at:.1}H{}\"/>",
            width - right
        );
        let _ = write!(
            svg,
            "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
            left - 4.0,
            at + 3.5
        );
    }
    for size in &curve.sizes {
        let text = self::size(*size);
        let (at, below) = (x(*size as f64), height - bottom + 13.0);
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{at:.1}\" y=\"{below}\">{text}</text>"
        );
    }
    let _ = write!(
        svg,
        "<text class=\"middle faint\" x=\"{}\" y=\"{}\">{}</text>",
        f64::midpoint(left, width - right),
        height - 6.0,
        curve.size
    );
    let points: Vec<_> = sizes
        .iter()
        .zip(&series.values)
        .map(|(size, value)| (x(*size), y(*value)))
        .collect();
    let path: Vec<String> = points
        .iter()
        .map(|(x, y)| format!("{x:.1} {y:.1}"))
        .collect();
    let _ = write!(svg, "<path class=\"line\" d=\"M{}\"/>", path.join("L"));
    points.iter().for_each(|(x, y)| {
        svg += &format!("<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>")
    });
    svg + "</svg>\n"
}

/// Returns the exponents of the decades around all values.
fn decades(values: &[f64]) -> [f64; 2] {
    let least = values
        .iter()
        .copied()
        .fold(f64::INFINITY, f64::min)
        .log10()
        .floor();
    let most = values.iter().copied().fold(0.0, f64::max).log10().ceil();
    [least, most.max(least + 1.0)]
}

/// Formats a size: a power of ten in full up to 1,000, then as k and M.
pub(super) fn size(size: usize) -> String {
    match size {
        1_000_000.. => format!("{}M", size / 1_000_000),
        10_000.. => format!("{}k", size / 1_000),
        _ => size.to_string(),
    }
}

/// Formats a value with three digits.
pub(super) fn digits(value: f64) -> String {
    match value {
        _ if value >= 99.5 || value == 0.0 => format!("{value:.0}"),
        _ if value >= 9.95 => format!("{value:.1}").trim_end_matches(".0").to_owned(),
        _ if value >= 0.995 => format!("{value:.2}").trim_end_matches(".00").to_owned(),
        _ => format!("{value:.3}").trim_end_matches('0').to_owned(),
    }
}
