//! Draws the figures as SVG.

use std::io;
use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;
use sealwire_benches::figure::{Area, COLOURS, Drawn, FAINT, FONT, INK, draw, latency_panel};
use sealwire_benches::stats::LogHistogram;

/// Opacity of the band that marks the batches.
const BAND: f64 = 0.08;

/// Draws fields per second over time, with a panel per variant and lines for requests of 30 and
/// 2,000 fields. `burst` is the time in seconds from the arrival of the batches to their end if
/// they ran alone.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn speed(
    file: &Path,
    variants: &[(&str, &[Vec<f64>; 2])],
    bin_s: f64,
    burst: Range<f64>,
) -> io::Result<()> {
    let title = format!(
        "Fields sealed in a second while {} s of batches burst in",
        burst.end - burst.start
    );
    let keys = [
        ("calls of 30 fields", COLOURS[2].filled()),
        ("calls of 2,000 fields", COLOURS[0].filled()),
        (
            "batches: their arrival, and as long as they alone would take",
            INK.mix(BAND).filled(),
        ),
    ];
    let panels = variants.len();
    draw(file, &title, &keys, panels, |areas| {
        let most = variants
            .iter()
            .flat_map(|(_, lines)| lines.iter().flatten())
            .copied()
            .fold(1.0, f64::max);
        for (at, (area, variant)) in areas.iter().zip(variants).enumerate() {
            speed_panel(area, *variant, bin_s, &burst, most * 1.05, at + 1 == panels)?;
        }
        Ok(())
    })
}

/// Draws the share of requests by latency, with a panel per class and a line per variant.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn latency(
    file: &Path,
    classes: [&str; 3],
    variants: &[(&str, &[LogHistogram; 3])],
) -> io::Result<()> {
    let keys: Vec<_> = variants
        .iter()
        .zip(COLOURS)
        .map(|((name, _), colour)| (*name, colour.filled()))
        .collect();
    draw(
        file,
        "Latency of served calls at 1.5 times the capacity",
        &keys,
        classes.len(),
        |areas| {
            for (class, (area, name)) in areas.iter().zip(classes).enumerate() {
                let lines: Vec<_> = variants
                    .iter()
                    .map(|(name, of)| (*name, &of[class]))
                    .collect();
                let below =
                    "latency, from when a call should have been sent to its reply (logarithmic)";
                latency_panel(
                    area,
                    name,
                    &lines,
                    "calls",
                    (class + 1 == classes.len()).then_some(below),
                )?;
            }
            Ok(())
        },
    )
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
    let band = Rectangle::new(
        [(burst.start, 0.0), (burst.end, most)],
        INK.mix(BAND).filled(),
    );
    chart.draw_series([band])?;
    for (line, colour) in lines.iter().zip([COLOURS[2], COLOURS[0]]) {
        let points = line
            .iter()
            .enumerate()
            .map(|(bin, rate)| ((bin as f64 + 0.5) * bin_s, *rate));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    Ok(())
}

fn thousands(rate: f64) -> String {
    if rate >= 1e3 {
        format!("{:.0}k", rate / 1e3)
    } else {
        format!("{rate:.0}")
    }
}
