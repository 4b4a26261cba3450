//! Plots of loads that several engines share: CPU time per request over the number of engines.

use super::chart::{Axis, Chart, LineStyle, Size};
use super::compare::legend;
use super::html::Html;
use super::plots::figure;
use super::scale::{Scale, short, time_us};
use crate::results::{Routing, ScaleFigures, ScaleLoad, ScalePoint};

/// Draws the CPU time of engines and database per request.
pub(crate) fn engines(figures: &ScaleFigures, number: usize) -> Html {
    let mut html = Html::default();
    html.open("div", &[("class", &"plots")]);
    html.add(&figure(
        "Engine CPU per request",
        "All engines together. Dashed: through the TCP balancer.",
        cpu(figures, &format!("engines-cpu-{number}"), |point| {
            Some(point.engine_cpu_us)
        }),
    ));
    html.add(&figure(
        "Database CPU per request",
        "More engines make smaller batches. Dashed: through the TCP balancer.",
        cpu(figures, &format!("engines-database-{number}"), |point| {
            point.database?.cpu_us
        }),
    ));
    html.close("div").line();
    html
}

fn cpu(figures: &ScaleFigures, id: &str, of: fn(&ScalePoint) -> Option<f64>) -> Option<Html> {
    let kinds = figures.kinds();
    let points = |load: ScaleLoad, way: Routing| -> Vec<(f64, f64)> {
        let of_line = kinds.iter().filter(|kind| (kind.0, kind.1) == (load, way));
        of_line
            .filter_map(|kind| Some((f64::from(kind.2), figures.median(*kind, of)?)))
            .collect()
    };
    let lines = ScaleLoad::ALL.map(|load| {
        (
            load,
            [Routing::Endpoints, Routing::Balancer].map(|way| points(load, way)),
        )
    });
    let lines: Vec<_> = lines
        .into_iter()
        .filter(|(_, ways)| ways.iter().any(|points| !points.is_empty()))
        .collect();
    let all = || lines.iter().flat_map(|(_, ways)| ways.iter().flatten());
    all().next()?;
    let x = Axis {
        scale: Scale::from_zero(all().map(|(engines, _)| *engines)),
        title: "engines",
        label: short,
    };
    let y = Axis {
        scale: Scale::from_zero(all().map(|(_, us)| *us)),
        title: "CPU for a request",
        label: time_us,
    };
    let mut chart = Chart::new(x, y, Size::Half);
    for (series, (load, ways)) in lines.iter().enumerate() {
        for (points, stroke) in ways.iter().zip([LineStyle::Solid, LineStyle::Dashed]) {
            chart.line(series, stroke, points);
            let said = |(engines, us): &(f64, f64)| {
                (
                    *engines,
                    *us,
                    format!(
                        "{} with {} engines: {}",
                        load.name(),
                        short(*engines),
                        time_us(*us)
                    ),
                )
            };
            chart.dots(series, "dot", &points.iter().map(said).collect::<Vec<_>>());
        }
    }
    let mut html = legend(lines.iter().map(|(load, _)| load.name().to_owned()));
    html.add(&chart.finish(id, "CPU time per request by number of engines"));
    Some(html)
}
