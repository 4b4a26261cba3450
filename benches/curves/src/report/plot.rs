//! Draws one table as a bar chart with a logarithmic axis and one group of bars per column.

use std::error::Error;

use plotters::prelude::*;

use super::{Table, human};

const WIDTH: u32 = 960;
const HEIGHT: u32 = 420;

/// Returns a separate SVG.
///
/// # Errors
/// If the drawing library fails.
pub(super) fn svg(table: &Table) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut svg = String::new();
    draw(
        table,
        &SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area(),
    )
    .map_err(|e| e.to_string())?;
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(table: &Table, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
    let times = || table.rows.values().flatten().flatten().map(|(ns, _)| *ns);
    let (least, most) = (
        times().fold(f64::MAX, f64::min) / 2.0,
        times().fold(0.0, f64::max) * 1.5,
    );
    let columns = table.columns.len();
    area.fill(&WHITE)?;
    // A column is 1 wide, and its centre is at its index. A quarter of the width stays free for the
    // names of rows.
    let width = columns as f64 / 0.75;
    let mut chart = ChartBuilder::on(area)
        .caption(&table.title, ("sans-serif", 20))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(70)
        .build_cartesian_2d(-0.5..width - 0.5, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(width as usize + 2)
        .x_label_formatter(&|x| column_name(table, *x))
        .y_label_formatter(&|ns| human(*ns))
        .draw()?;
    let bar = 0.8 / table.rows.len() as f64;
    for (at, (name, row)) in table.rows.iter().enumerate() {
        let colour = Palette99::pick(at).to_rgba();
        let left = at as f64 * bar - 0.4;
        let bars = row.iter().enumerate().filter_map(|(column, time)| {
            let (ns, _) = (*time)?;
            let x = column as f64 + left;
            Some(Rectangle::new(
                [(x, least), (x + bar * 0.9, ns)],
                colour.filled(),
            ))
        });
        chart
            .draw_series(bars)?
            .label(name)
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Returns the name of the column whose centre is at `x`.
fn column_name(table: &Table, x: f64) -> String {
    let is_middle = x >= -0.01 && (x - x.round()).abs() < 0.01;
    table
        .columns
        .get(x.round().max(0.0) as usize)
        .filter(|_| is_middle)
        .cloned()
        .unwrap_or_default()
}
