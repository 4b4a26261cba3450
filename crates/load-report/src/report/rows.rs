//! A plot of named rows, with one or two values each, above a common axis.

use super::chart::{LETTER, Px, class, lower_axis};
use super::html::Html;
use super::scale::Scale;

/// Total width, width for names, and maximum letters of a name. The full name is in the row's
/// tooltip.
const WIDE: (f64, f64, usize) = (1_060.0, 330.0, 48);
const NARROW: (f64, f64, usize) = (520.0, 160.0, 23);
/// Space for the text after a value.
const BESIDE: f64 = 22.0;
const TOP: f64 = 10.0;
const ROW: f64 = 30.0;
const BOTTOM: f64 = 44.0;
/// Maximum ratio of the largest to the smallest value for a linear axis from zero.
const LINEAR_MAX: f64 = 12.0;

/// One row.
pub(crate) struct ResultRow {
    pub(crate) name: String,
    /// Number of its colour.
    pub(crate) series: usize,
    pub(crate) value: f64,
    /// A second, greater value, for example p99 in addition to p50.
    pub(crate) upper: Option<f64>,
    /// The text after the value.
    pub(crate) said: String,
}

impl ResultRow {
    /// Creates a heading for the following rows, without a value.
    pub(crate) fn head(name: String) -> Self {
        Self {
            name,
            series: 0,
            value: f64::NAN,
            upper: None,
            said: String::new(),
        }
    }
}

/// Returns the height of a number of rows.
pub(crate) fn height(rows: usize) -> f64 {
    TOP + ROW * rows as f64 + BOTTOM
}

/// Draws the rows, in their order. From zero where that tells them apart, else by factors. Empty
/// without a value to show.
pub(crate) fn draw(
    id: &str,
    said: &str,
    title: &'static str,
    label: fn(f64) -> String,
    rows: &[ResultRow],
    wide: bool,
) -> Html {
    let values = || {
        rows.iter()
            .flat_map(|row| [Some(row.value), row.upper])
            .flatten()
    };
    let above_zero = || values().filter(|value| super::scale::TIMES.contains(value));
    let (least, most) = (
        above_zero().fold(f64::MAX, f64::min),
        above_zero().fold(0.0, f64::max),
    );
    let mut svg = Html::default();
    if most <= 0.0 {
        return svg;
    }
    let (width, left, name_max) = if wide { WIDE } else { NARROW };
    let said_max = rows
        .iter()
        .map(|row| row.said.chars().count())
        .max()
        .unwrap_or(0);
    let beside = BESIDE + LETTER * said_max as f64;
    let linear = most / least <= LINEAR_MAX;
    let scale = if linear {
        Scale::from_zero(values())
    } else {
        Scale::log(values())
    };
    let (right, ground) = (width - beside, TOP + ROW * rows.len() as f64);
    let at = |value: f64| scale.place(value).map(|at| left + at * (right - left));
    let view = format!("0 0 {width} {}", height(rows.len()));
    let class = if wide { "chart wide" } else { "chart" };
    svg.open(
        "svg",
        &[
            ("class", &class),
            ("id", &id),
            ("viewBox", &view),
            ("role", &"img"),
            ("aria-label", &said),
        ],
    );
    let (width, height) = (Px(right - left), Px(ground - TOP));
    svg.leaf(
        "rect",
        &[
            ("class", &"area"),
            ("x", &left),
            ("y", &TOP),
            ("width", &width),
            ("height", &height),
        ],
    );
    lower_axis(&mut svg, scale, label, (left, right), (TOP, ground));
    let (middle, low) = (Px((left + right) / 2.0), Px(ground + BOTTOM - 6.0));
    svg.element(
        "text",
        &[
            ("class", &"title"),
            ("x", &middle),
            ("y", &low),
            ("text-anchor", &"middle"),
        ],
        title,
    );
    let mut marks = Html::default();
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (number as f64 + 0.5);
        name(&mut svg, row, name_max, (left, y));
        let Some(x) = at(row.value) else { continue };
        let end = row.upper.and_then(at).unwrap_or(x);
        mark(&mut marks, row, linear.then_some(left), (x, end, y));

        let (beside, y) = (Px(end.max(x) + 12.0), Px(y + 4.0));
        svg.element(
            "text",
            &[("class", &"value"), ("x", &beside), ("y", &y)],
            &row.said,
        );
    }
    svg.open("g", &[("class", &"series")])
        .add(&marks)
        .close("g");
    svg.close("svg");
    svg
}

fn name(svg: &mut Html, row: &ResultRow, name_max: usize, (left, y): (f64, f64)) {
    let name = &row.name;
    let short: String = match name.chars().count() {
        count if count > name_max => name.chars().take(name_max - 1).chain(['…']).collect(),
        _ => name.clone(),
    };
    let class = if row.value.is_nan() {
        "name strong"
    } else {
        "name"
    };
    svg.open(
        "text",
        &[
            ("class", &class),
            ("x", &Px(left - 12.0)),
            ("y", &Px(y + 4.0)),
            ("text-anchor", &"end"),
        ],
    );
    svg.text(short).element("title", &[], name).close("text");
}

/// Draws a bar if the axis has a zero; otherwise a dot, or two dots joined by a line.
fn mark(marks: &mut Html, row: &ResultRow, zero: Option<f64>, (x, end, y): (f64, f64, f64)) {
    match (row.upper, zero) {
        (None, Some(zero)) => {
            let (width, top) = (Px(x - zero), Px(y - 8.0));
            let bar = class("bar", row.series);
            marks.leaf(
                "rect",
                &[
                    ("class", &bar),
                    ("x", &zero),
                    ("y", &top),
                    ("width", &width),
                    ("height", &16),
                ],
            );
        }
        (None, None) => dot(marks, row.series, "dot", x, y),
        (Some(_), _) => {
            let path = format!("M{} {}H{}", Px(x), Px(y), Px(end));
            marks.leaf(
                "path",
                &[("class", &class("line", row.series)), ("d", &path)],
            );
            dot(marks, row.series, "dot", x, y);
            dot(marks, row.series, "ring", end, y);
        }
    }
}

fn dot(marks: &mut Html, series: usize, name: &str, x: f64, y: f64) {
    marks.leaf(
        "circle",
        &[
            ("class", &class(name, series)),
            ("cx", &Px(x)),
            ("cy", &Px(y)),
            ("r", &5),
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::super::scale::short;
    use super::*;

    fn drawn(values: &[(f64, Option<f64>)]) -> String {
        let row = |(value, upper): &(f64, Option<f64>)| ResultRow {
            name: "<name>".into(),
            series: 0,
            value: *value,
            upper: *upper,
            said: short(*value),
        };
        draw(
            "id",
            "said",
            "title",
            short,
            &values.iter().map(row).collect::<Vec<_>>(),
            true,
        )
        .finish()
    }

    #[test]
    fn lengths_stand_for_values_only_from_zero() {
        let near = drawn(&[(1.0, None), (2.0, None)]);
        assert!(
            near.contains("class=\"bar s0\"") && near.contains("&lt;name&gt;"),
            "{near}"
        );
        let far = drawn(&[(1.0, None), (1_000.0, None)]);
        assert!(
            far.contains("class=\"dot s0\"") && !far.contains("class=\"bar"),
            "{far}"
        );
        let pair = drawn(&[(1.0, Some(4.0))]);
        assert!(pair.contains("class=\"ring s0\""), "{pair}");
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(drawn(&[]).is_empty());
        assert!(drawn(&[(0.0, None), (f64::NAN, None)]).is_empty());
    }
}
