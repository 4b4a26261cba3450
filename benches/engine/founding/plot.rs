//! Plots as inline SVG. Colours are classes of the page's style sheet, so that they follow its
//! light or dark style.

use std::fmt::Write as _;

/// Width and height of a panel of small multiples, with its margins.
const PANEL: [f64; 2] = [250.0, 150.0];
/// Margins of a panel: left, top, right, bottom.
const MARGIN: [f64; 4] = [46.0, 8.0, 8.0, 30.0];
/// Most dots of a series. Of more, every n-th is drawn.
const DOTS_MAX: usize = 900;

/// Dots of one colour.
pub(super) struct Series<'a> {
    /// Class in the style sheet.
    pub(super) class: &'static str,
    /// Points: time in seconds, and value.
    pub(super) points: &'a [(f64, f64)],
}

/// Axes that all panels of a figure share.
pub(super) struct Axes {
    /// End of the time axis, in seconds.
    pub(super) end: f64,
    /// Decades of the value axis: the exponents of its ends.
    pub(super) decades: [i32; 2],
    /// Name and unit of the value axis.
    pub(super) name: &'static str,
    /// Formats a value.
    pub(super) format: fn(f64) -> String,
    /// Times at which steps begin, with their batches under way.
    pub(super) steps: Vec<(f64, String)>,
}

/// Returns the decades that hold all values.
pub(super) fn decades(values: impl Iterator<Item = f64>) -> [i32; 2] {
    let (least, most) = values.fold((f64::MAX, 0.0_f64), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least > most {
        return [0, 1];
    }
    let low = least.log10().floor() as i32;
    [low, (most.log10().ceil() as i32).max(low + 1)]
}

/// Draws values over time, with a logarithmic value axis. `note` is text in the panel's corner.
pub(super) fn panel(axes: &Axes, label: &str, series: &[Series<'_>], note: &str) -> String {
    let [width, height] = PANEL;
    let [left, top, right, bottom] = MARGIN;
    let [low, high] = axes.decades.map(f64::from);
    let x = |time: f64| left + time / axes.end * (width - left - right);
    let y = |value: f64| {
        height - bottom - (value.log10() - low) / (high - low) * (height - top - bottom)
    };
    let mut svg =
        format!("<svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"{label}\">");
    // Writing to a string does not fail.
    for (nth, decade) in (axes.decades[0]..=axes.decades[1]).enumerate() {
        let at = y(10_f64.powi(decade));
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{left} {at:.1}H{}\"/>",
            width - right
        );
        if nth % 2 == 0 || axes.decades[1] - axes.decades[0] < 4 {
            let text = (axes.format)(10_f64.powi(decade));
            let _ = write!(
                svg,
                "<text class=\"end\" x=\"{}\" y=\"{:.1}\">{text}</text>",
                left - 4.0,
                at + 3.5
            );
        }
    }
    for (time, batches) in &axes.steps {
        let at = x(*time);
        let _ = write!(
            svg,
            "<path class=\"step\" d=\"M{at:.1} {top}V{}\"/>",
            height - bottom
        );
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\">{batches}</text>",
            at + 2.0,
            height - bottom + 11.0
        );
    }
    for Series { class, points } in series {
        let mut path = String::new();
        for (time, value) in points
            .iter()
            .step_by(points.len().div_ceil(DOTS_MAX).max(1))
        {
            let _ = write!(path, "M{:.1} {:.1}h0", x(*time), y(*value));
        }
        let _ = write!(svg, "<path class=\"dots {class}\" d=\"{path}\"/>");
    }
    let _ = write!(
        svg,
        "<text class=\"end note\" x=\"{}\" y=\"{}\">{note}</text>",
        width - right - 3.0,
        top + 10.0
    );
    let _ = write!(
        svg,
        "<text x=\"{left}\" y=\"{}\">batches under way, over {:.0} s</text>",
        height - 6.0,
        axes.end
    );
    svg + "</svg>"
}

/// A row of the overview.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) class: &'static str,
    /// The value without batches, and at the largest step.
    pub(super) values: [f64; 2],
    /// Text at the end of the row.
    pub(super) note: String,
    /// The row is one of the two that a promise names.
    pub(super) is_promised: bool,
}

/// Draws a line per row from one value to the other on a logarithmic axis.
pub(super) fn overview(rows: &[Row], format: fn(f64) -> String, axis: &str) -> String {
    const WIDTH: f64 = 1_000.0;
    const LEFT: f64 = 330.0;
    const RIGHT: f64 = 90.0;
    const ROW: f64 = 20.0;
    const TOP: f64 = 10.0;
    let height = TOP + rows.len() as f64 * ROW + 40.0;
    let [low, high] = decades(
        rows.iter()
            .flat_map(|row| row.values)
            .filter(|value| *value > 0.0),
    );
    let x = |value: f64| {
        let share = (value.max(10_f64.powi(low)).log10() - f64::from(low)) / f64::from(high - low);
        LEFT + share * (WIDTH - LEFT - RIGHT)
    };
    let bottom = TOP + rows.len() as f64 * ROW;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{axis}\" class=\"wide\">"
    );
    for decade in low..=high {
        let value = 10_f64.powi(decade);
        let at = x(value);
        let _ = write!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>");
        let _ = write!(
            svg,
            "<text class=\"middle\" x=\"{at:.1}\" y=\"{}\">{}</text>",
            bottom + 14.0,
            format(value)
        );
    }
    for (nth, row) in rows.iter().enumerate() {
        let y = TOP + (nth as f64 + 0.5) * ROW;
        let [from, to] = row.values.map(x);
        let (class, weight) = (row.class, if row.is_promised { " strong" } else { "" });
        let _ = write!(
            svg,
            "<text class=\"end{weight}\" x=\"{}\" y=\"{:.1}\">{}</text>",
            LEFT - 10.0,
            y + 4.0,
            row.name
        );
        let _ = write!(
            svg,
            "<path class=\"bar {class}\" d=\"M{from:.1} {y:.1}H{to:.1}\"/>"
        );
        let _ = write!(
            svg,
            "<circle class=\"hollow {class}\" cx=\"{from:.1}\" cy=\"{y:.1}\" r=\"4\"/>"
        );
        let _ = write!(
            svg,
            "<circle class=\"{class}\" cx=\"{to:.1}\" cy=\"{y:.1}\" r=\"5\"/>"
        );
        let at = from.max(to) + 10.0;
        let _ = write!(
            svg,
            "<text class=\"{weight}\" x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
            y + 4.0,
            row.note
        );
    }
    let _ = write!(
        svg,
        "<text class=\"middle\" x=\"{}\" y=\"{}\">{axis}</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        bottom + 32.0
    );
    svg + "</svg>"
}
