//! A plot as SVG: two axes, with marks between them.
//!
//! Colours come from the page's style sheet by class, so that they follow the reader's light or
//! dark setting. Measured values are in a group `series` and have colours; axes and notes are grey.

use std::fmt;

use super::html::Html;
use super::scale::Scale;

/// Number of series colours before they repeat.
pub(crate) const COLOURS: usize = 6;

/// Margins around the marks, in units of the drawing.
const TOP: f64 = 14.0;
const RIGHT: f64 = 26.0;
const BOTTOM: f64 = 46.0;
const LEFT: f64 = 66.0;
/// Approximate maximum width of a letter.
pub(crate) const LETTER: f64 = 6.8;
/// Maximum number of points with a title; more points are not distinguishable.
const POINTS_MAX: usize = 60;
/// Maximum number of points that are drawn large.
const DOTS_LARGE: usize = 14;

/// An axis of a plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    pub(crate) scale: Scale,
    /// The quantity of the axis, with its unit.
    pub(crate) title: &'static str,
    /// Formats the axis values.
    pub(crate) label: fn(f64) -> String,
}

/// Size of a plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Half the page width, for two plots side by side.
    Half,
    /// The full page width.
    Full,
}

impl Size {
    const fn of(self) -> (f64, f64) {
        match self {
            Self::Half => (520.0, 300.0),
            Self::Full => (1_060.0, 340.0),
        }
    }
}

/// Style of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineStyle {
    Solid,
    Dashed,
}

/// A plot under construction.
pub(crate) struct Chart {
    x: Axis,
    y: Axis,
    width: f64,
    height: f64,
    below: Html,
    marks: Html,
    above: Html,
}

/// A length in the drawing, rounded to a tenth.
pub(crate) struct Px(pub(crate) f64);

impl fmt::Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        write!(f, "{tenths}")
    }
}

/// Returns the class of a mark: its colour by series number.
pub(crate) fn class(name: &str, series: usize) -> String {
    format!("{name} s{}", series % COLOURS)
}

/// Returns half the width of a label.
fn half_width(label: &str) -> f64 {
    label.chars().count() as f64 * LETTER / 2.0
}

/// Draws vertical lines from the lower axis, and labels below them. All lines get labels if there
/// is room, otherwise powers of ten; a label that would overlap another is left out.
pub(crate) fn lower_axis(
    svg: &mut Html,
    scale: Scale,
    label: fn(f64) -> String,
    (left, right): (f64, f64),
    (top, ground): (f64, f64),
) {
    let ticks: Vec<_> = scale
        .ticks()
        .into_iter()
        .filter_map(|tick| {
            let x = left + scale.place(tick)? * (right - left);
            Some((x, label(tick), scale.is_major(tick)))
        })
        .collect();
    let crowded = ticks.windows(2).any(|pair| {
        let distance = pair[1].0 - pair[0].0;
        distance < half_width(&pair[0].1) + half_width(&pair[1].1) + LETTER
    });

    let mut free = f64::MIN;
    for (x, label, is_major) in &ticks {
        let at = Px(*x);
        let half = half_width(label);
        svg.leaf(
            "line",
            &[
                ("class", &"grid"),
                ("x1", &at),
                ("x2", &at),
                ("y1", &Px(top)),
                ("y2", &Px(ground)),
            ],
        );
        if x - half > free && (*is_major || !crowded) {
            svg.element(
                "text",
                &[
                    ("x", &at),
                    ("y", &Px(ground + 18.0)),
                    ("text-anchor", &"middle"),
                ],
                label,
            );
            free = x + half + LETTER;
        }
    }
}

impl Chart {
    pub(crate) fn new(x: Axis, y: Axis, size: Size) -> Self {
        let (width, height) = size.of();
        let (below, marks, above) = Default::default();
        Self {
            x,
            y,
            width,
            height,
            below,
            marks,
            above,
        }
    }

    fn at_x(&self, value: f64) -> Option<f64> {
        self.x
            .scale
            .place(value)
            .map(|at| LEFT + at * (self.width - LEFT - RIGHT))
    }

    fn at_y(&self, value: f64) -> Option<f64> {
        self.y
            .scale
            .place(value)
            .map(|at| self.height - BOTTOM - at * (self.height - TOP - BOTTOM))
    }

    fn at(&self, point: (f64, f64)) -> Option<(f64, f64)> {
        self.at_x(point.0).zip(self.at_y(point.1))
    }

    /// Returns the path through the points. Points outside the plot leave a gap.
    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        let mut pen = 'M';
        for point in points {
            match self.at(*point) {
                Some((x, y)) => {
                    path += &format!("{pen}{} {}", Px(x), Px(y));
                    pen = 'L';
                }
                None => pen = 'M',
            }
        }
        path
    }

    pub(crate) fn line(&mut self, series: usize, stroke: LineStyle, points: &[(f64, f64)]) {
        let path = self.path(points);
        let name = if stroke == LineStyle::Dashed {
            "line dashed"
        } else {
            "line"
        };
        self.marks
            .leaf("path", &[("class", &class(name, series)), ("d", &path)]);
    }

    /// Fills the area between a line and the lower axis.
    pub(crate) fn area(&mut self, series: usize, points: &[(f64, f64)]) {
        let ground = Px(self.height - BOTTOM);
        let inside: Vec<_> = points.iter().filter_map(|point| self.at(*point)).collect();
        let (Some((first, _)), Some((last, _))) = (inside.first(), inside.last()) else {
            return;
        };
        let mut path = format!("M{} {ground}", Px(*first));
        for (x, y) in &inside {
            path += &format!("L{} {}", Px(*x), Px(*y));
        }
        path += &format!("L{} {ground}Z", Px(*last));
        self.marks
            .leaf("path", &[("class", &class("fill", series)), ("d", &path)]);
    }

    /// Draws points with a tooltip for each. `name` is `dot` or another class of the style sheet.
    pub(crate) fn dots(&mut self, series: usize, name: &str, points: &[(f64, f64, String)]) {
        let every = points.len().div_ceil(POINTS_MAX).max(1);
        for (x, y, said) in points.iter().step_by(every) {
            let Some((x, y)) = self.at((*x, *y)) else {
                continue;
            };
            let radius = if points.len() > DOTS_LARGE { 2.3 } else { 3.5 };
            let class = class(name, series);
            self.marks.open(
                "circle",
                &[
                    ("class", &class),
                    ("cx", &Px(x)),
                    ("cy", &Px(y)),
                    ("r", &Px(radius)),
                ],
            );
            self.marks.element("title", &[], said).close("circle");
        }
    }

    /// Marks an error at `x` by a cross on the lower axis.
    pub(crate) fn fault(&mut self, x: f64, said: &str) {
        let Some(x) = self.at_x(x) else { return };
        let y = self.height - BOTTOM - 6.0;
        let path = format!("M{} {}l8 8m0 -8l-8 8", Px(x - 4.0), Px(y - 4.0));
        self.marks
            .open("path", &[("class", &"fault"), ("d", &path)]);
        self.marks.element("title", &[], said).close("path");
    }

    /// Draws a grey line from the origin, with a label near its end.
    pub(crate) fn guide(&mut self, end: (f64, f64), word: &str) {
        let path = self.path(&[(0.0, 0.0), end]);
        self.below
            .leaf("path", &[("class", &"guide"), ("d", &path)]);
        let Some((x, y)) = self.at((end.0 * 0.9, end.1 * 0.9)) else {
            return;
        };
        let x = Px(x - 10.0);
        let y = Px(y);
        self.below.element(
            "text",
            &[
                ("class", &"note"),
                ("x", &x),
                ("y", &y),
                ("text-anchor", &"end"),
            ],
            word,
        );
    }

    /// Draws a grey vertical line at a value, with a label.
    pub(crate) fn mark(&mut self, x: f64, word: &str) {
        let Some(x) = self.at_x(x) else { return };
        let ground = self.height - BOTTOM;
        self.above.leaf(
            "line",
            &[
                ("class", &"mark"),
                ("x1", &Px(x)),
                ("x2", &Px(x)),
                ("y1", &Px(TOP)),
                ("y2", &Px(ground)),
            ],
        );
        // The label is on the side with more room.
        let (anchor, shift) = if x > self.width * 0.55 {
            ("end", -7.0)
        } else {
            ("start", 7.0)
        };
        self.above.element(
            "text",
            &[
                ("class", &"note strong"),
                ("x", &Px(x + shift)),
                ("y", &Px(ground - 10.0)),
                ("text-anchor", &anchor),
            ],
            word,
        );
    }

    /// Completes the plot; `said` is its text for screen readers.
    pub(crate) fn finish(self, id: &str, said: &str) -> Html {
        let mut svg = Html::default();
        let view = format!("0 0 {} {}", self.width, self.height);
        let class = if self.width > 600.0 {
            "chart wide"
        } else {
            "chart"
        };
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
        self.grid(&mut svg);
        svg.add(&self.below);
        svg.open("g", &[("class", &"series")])
            .add(&self.marks)
            .close("g");
        svg.add(&self.above);
        svg.close("svg");
        svg
    }

    fn grid(&self, svg: &mut Html) {
        let ground = self.height - BOTTOM;
        let right = self.width - RIGHT;
        svg.leaf(
            "rect",
            &[
                ("class", &"area"),
                ("x", &LEFT),
                ("y", &TOP),
                ("width", &Px(right - LEFT)),
                ("height", &Px(ground - TOP)),
            ],
        );
        for tick in self.y.scale.ticks() {
            let Some(y) = self.at_y(tick) else { continue };
            svg.leaf(
                "line",
                &[
                    ("class", &"grid"),
                    ("x1", &LEFT),
                    ("x2", &Px(right)),
                    ("y1", &Px(y)),
                    ("y2", &Px(y)),
                ],
            );
            let label = (self.y.label)(tick);
            let place = Px(LEFT - 9.0);
            svg.element(
                "text",
                &[("x", &place), ("y", &Px(y + 4.0)), ("text-anchor", &"end")],
                label,
            );
        }
        lower_axis(
            svg,
            self.x.scale,
            self.x.label,
            (LEFT, right),
            (TOP, ground),
        );
        let axis: [(&'static str, &dyn fmt::Display); 5] = [
            ("class", &"axis"),
            ("x1", &LEFT),
            ("x2", &Px(right)),
            ("y1", &Px(ground)),
            ("y2", &Px(ground)),
        ];
        svg.leaf("line", &axis);
        let middle = Px((LEFT + right) / 2.0);
        let low = Px(self.height - 7.0);
        svg.element(
            "text",
            &[
                ("class", &"title"),
                ("x", &middle),
                ("y", &low),
                ("text-anchor", &"middle"),
            ],
            self.x.title,
        );
        let height = (TOP + ground) / 2.0;
        let turned = format!("rotate(-90 13 {})", Px(height));
        svg.element(
            "text",
            &[
                ("class", &"title"),
                ("x", &13),
                ("y", &Px(height)),
                ("text-anchor", &"middle"),
                ("transform", &turned),
            ],
            self.y.title,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let axis = |to| Axis {
            scale: Scale::between(0.0, to),
            title: "t",
            label: super::super::scale::short,
        };
        Chart::new(axis(10.0), axis(10.0), Size::Half)
    }

    #[test]
    fn a_line_has_a_gap_where_a_point_is_outside() {
        let chart = chart();
        assert_eq!(chart.path(&[(0.0, 0.0), (10.0, 10.0)]), "M66 254L494 14");
        assert_eq!(
            chart.path(&[(0.0, 0.0), (5.0, 11.0), (10.0, 10.0), (f64::NAN, 1.0)]),
            "M66 254M494 14"
        );
    }

    #[test]
    fn what_is_measured_is_in_the_series_and_nothing_else_is() {
        let mut chart = chart();
        chart.line(0, LineStyle::Solid, &[(0.0, 0.0), (10.0, 10.0)]);
        chart.dots(7, "dot", &[(5.0, 5.0, "<5>".into())]);
        chart.guide((10.0, 10.0), "g");
        chart.mark(5.0, "m");
        let svg = chart.finish("id", "\"said\"").finish();
        let (before, series) = svg.split_once("<g class=\"series\">").unwrap();
        let (series, after) = series.split_once("</g>").unwrap();
        assert!(
            series.contains("class=\"line s0\"")
                && series.contains("class=\"dot s1\"")
                && series.contains("&lt;5&gt;")
        );
        assert!(!before.contains("class=\"line") && !after.contains("class=\"dot"));
        assert!(
            before.contains("class=\"guide\"")
                && after.contains("class=\"mark\"")
                && before.contains("&quot;said")
        );
    }
}
