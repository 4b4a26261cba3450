//! The figures, as SVG.

use std::error::Error;
use std::io;
use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use sealwire_benches::stats::LogHistogram;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 760;
const TITLE_HEIGHT: u32 = 70;
const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(45, 52, 64);
const FAINT: RGBColor = RGBColor(226, 229, 234);
/// Told apart by people who see fewer colours too (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(0, 114, 178)];

/// How dark the band of the batches is.
const BAND: f64 = 0.08;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn Error>>;

/// Fields a second over time, a panel for each variant: calls of 30 and of 2,000 fields. `burst`, in seconds, is when the
/// batches arrive and how long they alone would take.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn speed(file: &Path, variants: &[(&str, &[Vec<f64>; 2])], bin_s: f64, burst: Range<f64>) -> io::Result<()> {
    let title = format!("Fields sealed in a second while {} s of batches burst in", burst.end - burst.start);
    let keys = [
        ("calls of 30 fields", COLOURS[2].filled()),
        ("calls of 2,000 fields", COLOURS[0].filled()),
        ("batches: their arrival, and as long as they alone would take", INK.mix(BAND).filled()),
    ];
    let panels = variants.len();
    draw(file, &title, &keys, panels, |areas| {
        let most = variants.iter().flat_map(|(_, lines)| lines.iter().flatten()).copied().fold(1.0, f64::max);
        for (at, (area, variant)) in areas.iter().zip(variants).enumerate() {
            speed_panel(area, *variant, bin_s, &burst, most * 1.05, at + 1 == panels)?;
        }
        Ok(())
    })
}

/// Shares of calls by latency, a panel for each class and a line for each variant.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn latency(file: &Path, classes: [&str; 3], variants: &[(&str, &[LogHistogram; 3])]) -> io::Result<()> {
    let keys: Vec<_> = variants.iter().zip(COLOURS).map(|((name, _), colour)| (*name, colour.filled())).collect();
    draw(file, "Latency of served calls at 1.5 times the capacity", &keys, classes.len(), |areas| {
        for (class, (area, name)) in areas.iter().zip(classes).enumerate() {
            let lines: Vec<_> = variants.iter().map(|(name, of)| (*name, &of[class])).collect();
            latency_panel(area, name, &lines, class + 1 == classes.len())?;
        }
        Ok(())
    })
}

/// A page with a title and the meaning of its colours above, and panels of one height below each other.
fn draw(
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
            head.draw(&Text::new((*name).to_owned(), (left + 25, 46), (FONT, 14).into_font().color(&INK)))?;
            // The backend knows no widths; a letter is about half as wide as it is high.
            left += 60 + 7 * i32::try_from(name.len())?;
        }
        fill(&body.split_evenly((panels, 1)))?;
        page.present()?;
        Ok(())
    };
    drawn().map_err(|error| io::Error::other(error.to_string()))
}

fn speed_panel(
    area: &Area<'_>,
    (name, lines): (&str, &[Vec<f64>; 2]),
    bin_s: f64,
    burst: &Range<f64>,
    most: f64,
    is_last: bool,
) -> Drawn {
    let end = lines[0].len() as f64 * bin_s;
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FONT, 17).into_font().color(&INK))
        .margin_left(16)
        .margin_right(24)
        .margin_bottom(6)
        .x_label_area_size(if is_last { 44 } else { 24 })
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..end, 0.0..most)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style((FONT, 13).into_font().color(&INK))
        .axis_desc_style((FONT, 14).into_font().color(&INK))
        .x_labels(14)
        .y_labels(4)
        .x_label_formatter(&|s| format!("{s:.0}"))
        .y_label_formatter(&|rate| thousands(*rate))
        .x_desc(if is_last { "time, seconds" } else { "" })
        .y_desc("fields / s")
        .draw()?;
    let band = Rectangle::new([(burst.start, 0.0), (burst.end, most)], INK.mix(BAND).filled());
    chart.draw_series([band])?;
    for (line, colour) in lines.iter().zip([COLOURS[2], COLOURS[0]]) {
        let points = line.iter().enumerate().map(|(bin, rate)| ((bin as f64 + 0.5) * bin_s, *rate));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    Ok(())
}

fn latency_panel(area: &Area<'_>, name: &str, lines: &[(&str, &LogHistogram)], is_last: bool) -> Drawn {
    let most = lines.iter().flat_map(|(_, of)| of.bins().map(|(.., share)| share)).fold(0.01, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(name, (FONT, 17).into_font().color(&INK))
        .margin_left(16)
        .margin_right(24)
        .margin_bottom(6)
        .x_label_area_size(if is_last { 44 } else { 24 })
        .y_label_area_size(64)
        .build_cartesian_2d((1e-4..10.0).log_scale(), 0.0..most)?;
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
        .x_desc(if is_last { "latency, from when a call should have been sent to its reply (logarithmic)" } else { "" })
        .y_desc("calls")
        .draw()?;
    let mut below = 38;
    for ((name, of), colour) in lines.iter().zip(COLOURS) {
        let bins: Vec<_> = of.bins().collect();
        let points = bins.iter().map(|(from, to, share)| ((from * to).sqrt(), *share));
        chart.draw_series(AreaSeries::new(points.clone(), 0.0, colour.mix(0.15)))?;
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
        let modes = of.modes();
        let count = format!("{name}: {modes} {}", if modes == 1 { "mode" } else { "modes" });
        area.draw(&Text::new(count, (92, below), (FONT, 13).into_font().color(&colour)))?;
        below += 18;
    }
    Ok(())
}

fn thousands(rate: f64) -> String {
    if rate >= 1e3 { format!("{:.0}k", rate / 1e3) } else { format!("{rate:.0}") }
}

fn seconds(s: f64) -> String {
    match s {
        _ if s < 0.999e-3 => format!("{:.1} ms", s * 1e3),
        _ if s < 0.999 => format!("{:.0} ms", s * 1e3),
        _ => format!("{s:.0} s"),
    }
}
