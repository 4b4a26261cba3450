//! SVG figures: pages of stacked panels, and a panel that shows the distribution of latencies.

use std::error::Error;
use std::io;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::stats::LogHistogram;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 760;
const TITLE_HEIGHT: u32 = 70;
/// The font of all text.
pub const FONT: &str = "sans-serif";
/// The colour of text and axes.
pub const INK: RGBColor = RGBColor(45, 52, 64);
/// The colour of mesh lines.
pub const FAINT: RGBColor = RGBColor(226, 229, 234);
/// Line colours that colour-blind readers can tell apart (Okabe and Ito).
pub const COLOURS: [RGBColor; 4] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(0, 114, 178),
    RGBColor(204, 121, 167),
];

/// The drawing area of a panel.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Result of drawing a figure.
pub type Drawn = Result<(), Box<dyn Error>>;

/// A page with a title and the meaning of its colours above, and panels of one height below each
/// other, which `fill` fills.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(
    file: &Path,
    title: &str,
    keys: &[(&str, ShapeStyle)],
    panels: usize,
    fill: impl FnOnce(&[Area<'_>]) -> Drawn,
) -> io::Result<()> {
    let drawn = || -> Drawn {
        let page = SVGBackend::new(file, (WIDTH, HEIGHT)).into_drawing_area();
        page.fill(&WHITE)?;
        let (head, body) = page.split_vertically(TITLE_HEIGHT);
        let style = (FONT, 22).into_font().style(FontStyle::Bold).color(&INK);
        head.draw(&Text::new(title.to_owned(), (24, 12), style))?;
        let mut left = 24;
        for (name, colour) in keys {
            head.draw(&Rectangle::new([(left, 48), (left + 18, 56)], *colour))?;
            head.draw(&Text::new(
                (*name).to_owned(),
                (left + 25, 46),
                (FONT, 14).into_font().color(&INK),
            ))?;
            // The backend does not measure text. A letter is about half as wide as it is high.
            left += 60 + 7 * i32::try_from(name.len())?;
        }
        fill(&body.split_evenly((panels, 1)))?;
        page.present()?;
        Ok(())
    };
    drawn().map_err(|error| io::Error::other(error.to_string()))
}

/// Draws the share of samples by latency, from 0.1 ms to 10 s, with one line and its count of modes
/// per histogram. `what` names the counted items. `below` names the times under the last panel of a
/// page.
///
/// # Errors
/// If the panel cannot be drawn.
pub fn latency_panel(
    area: &Area<'_>,
    name: &str,
    lines: &[(&str, &LogHistogram)],
    what: &str,
    below: Option<&str>,
) -> Drawn {
    let times = 1e-4..10.0;
    let most = lines
        .iter()
        .flat_map(|(_, of)| of.bins().map(|(.., share)| share))
        .fold(0.01, f64::max)
        * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FONT, 17).into_font().color(&INK))
        .margin_left(16)
        .margin_right(24)
        .margin_bottom(6)
        .x_label_area_size(if below.is_some() { 44 } else { 24 })
        .y_label_area_size(64)
        .build_cartesian_2d(times.clone().log_scale(), 0.0..most)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .y_labels(4)
        .x_label_formatter(&|s| seconds(*s))
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .x_desc(below.unwrap_or(""))
        .y_desc(what)
        .draw()?;
    let mut line = 38;
    for ((name, of), colour) in lines.iter().zip(COLOURS) {
        let middles = of
            .bins()
            .map(|(from, to, share)| ((from * to).sqrt(), share));
        let points: Vec<_> = middles.filter(|(time, _)| times.contains(time)).collect();
        chart.draw_series(AreaSeries::new(points.clone(), 0.0, colour.mix(0.15)))?;
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        let modes = of.modes();
        let count = format!(
            "{name}: {modes} {}",
            if modes == 1 { "mode" } else { "modes" }
        );
        area.draw(&Text::new(
            count,
            (92, line),
            (FONT, 13).into_font().color(&colour),
        ))?;
        line += 18;
    }
    Ok(())
}

fn seconds(s: f64) -> String {
    match s {
        _ if s < 0.999e-3 => format!("{:.1} ms", s * 1e3),
        _ if s < 0.999 => format!("{:.0} ms", s * 1e3),
        _ => format!("{s:.0} s"),
    }
}
