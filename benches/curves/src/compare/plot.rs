//! Draws one primitive as a bar chart with a logarithmic axis: two bars per implementation, A above
//! B.
//!
//! Colours are only those below. The style sheet of the page replaces them, so that they fit a dark
//! page too.

use std::error::Error;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::Primitive;
use crate::report::human;

const WIDTH: u32 = 960;
/// Height of one implementation.
const ROW_HEIGHT: u32 = 44;
/// Height of the axis and the margins.
const FRAME_HEIGHT: u32 = 50;
/// Space for the names of implementations.
const NAMES_WIDTH: u32 = 180;

/// The colours of A and B on a light page.
pub(super) const BARS: [RGBColor; 2] = [RGBColor(0x0b, 0x6b, 0xb8), RGBColor(0xcc, 0x4b, 0x00)];

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Returns an SVG element without a background.
///
/// # Errors
/// If the drawing library fails.
pub(super) fn svg(primitive: &Primitive) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut svg = String::new();
    let height = FRAME_HEIGHT + ROW_HEIGHT * primitive.rows.len() as u32;
    draw(
        primitive,
        &SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area(),
    )
    .map_err(|error| error.to_string())?;
    Ok(svg)
}

fn draw(primitive: &Primitive, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let times = || primitive.rows.iter().flat_map(|row| row.times).flatten();
    // Room for the text of the longest bar.
    let (least, most) = (
        times().fold(f64::MAX, f64::min) / 2.0,
        times().fold(0.0, f64::max) * 2.0,
    );
    // A row is 1 high, and its centre is at its index. The first row is at the top.
    let rows = primitive.rows.len() as f64;
    let chart = ChartBuilder::on(area)
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(NAMES_WIDTH)
        .build_cartesian_2d((least..most).log_scale(), rows - 0.5..-0.5)?;
    let plane = chart.plotting_area();
    let text = |position| ("sans-serif", 13).into_font().color(&BLACK).pos(position);
    let beside_bar = text(Pos::new(HPos::Left, VPos::Center));
    let name_style = text(Pos::new(HPos::Right, VPos::Center));
    let below_line = text(Pos::new(HPos::Center, VPos::Top));
    for ns in ticks(least, most) {
        plane.draw(&PathElement::new(
            [(ns, -0.5), (ns, rows - 0.5)],
            BLACK.mix(0.2),
        ))?;
        let (x, y) = plane.map_coordinate(&(ns, rows - 0.5));
        area.draw(&Text::new(human(ns), (x, y + 6), below_line.clone()))?;
    }
    for (at, row) in primitive.rows.iter().enumerate() {
        let centre = at as f64;
        let (x, y) = plane.map_coordinate(&(least, centre));
        area.draw(&Text::new(
            row.implementation.clone(),
            (x - 8, y),
            name_style.clone(),
        ))?;
        for (side, time) in row.times.into_iter().enumerate() {
            let Some(ns) = time else { continue };
            let top = centre - 0.4 + 0.4 * side as f64;
            plane.draw(&Rectangle::new(
                [(least, top), (ns, top + 0.36)],
                BARS[side].filled(),
            ))?;
            let (x, y) = plane.map_coordinate(&(ns, top + 0.18));
            area.draw(&Text::new(human(ns), (x + 6, y), beside_bar.clone()))?;
        }
    }
    area.present()?;
    Ok(())
}

/// Returns the values of the axis that get a line: 1, 2 and 5 of every power of ten, or only 1 if
/// there are many.
pub(super) fn ticks(least: f64, most: f64) -> Vec<f64> {
    let steps: &[f64] = if most / least < 1e4 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let values = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
    values.filter(|ns| (least..=most).contains(ns)).collect()
}
