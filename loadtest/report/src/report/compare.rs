//! Plots over the loads of a sweep: a series of runs at rising request rates.

use super::chart::{Axis, Chart, LineStyle, Size};
use super::html::Html;
use super::plots::figure;
use super::scale::{Scale, percentile, short, time_us};
use super::spread;
use crate::results::{Run, Sweep};

/// Latency quantiles that are drawn over the offered load.
const QUANTILES: [f64; 3] = [0.5, 0.99, 0.999];
/// Colour of the CPU plot. Smaller numbers are the colours of the quantiles in the plot beside it.
const CPU_SERIES: usize = QUANTILES.len();

/// Draws throughput, latency and CPU per field over the offered load. `number` distinguishes the
/// ids of the plots of several sweeps on one page.
pub(crate) fn sweep(sweep: &Sweep, number: usize) -> Html {
    // Sorted again, because a results file need not come from our generator.
    let mut runs: Vec<&Run> = sweep.runs.iter().collect();
    runs.sort_by(|a, b| a.totals.offered_per_s.total_cmp(&b.totals.offered_per_s));
    let mut html = Html::default();
    html.open("div", &[("class", &"plots")]);
    html.add(&full_width(&figure(
        "Throughput against offered load",
        "On the dotted line every call is answered. A ring marks a load at which the generator was the limit, not the engine.",
        throughput(sweep, &runs, number),
    )));
    html.add(&figure(
        "Latency against offered load",
        "Of all calls together, measured from the time at which each call was due.",
        latency(sweep, &runs, number),
    ));
    html.add(&figure(
        "CPU per field against offered load",
        "CPU time of the engine per field of the results.",
        cpu_over_load(sweep, &runs, number),
    ));
    html.close("div").line();
    html
}

/// Wraps a figure so that it takes the full page width.
fn full_width(figure: &Html) -> Html {
    let mut html = Html::default();
    html.open("div", &[("class", &"across")])
        .add(figure)
        .close("div")
        .line();
    html
}

/// Returns the axis of the offered load.
fn load_axis(runs: &[&Run]) -> Axis {
    let scale = Scale::from_zero(runs.iter().map(|run| run.totals.offered_per_s));
    Axis {
        scale,
        title: "calls offered a second",
        label: short,
    }
}

fn throughput(sweep: &Sweep, runs: &[&Run], number: usize) -> Option<Html> {
    runs.first()?;
    let x = load_axis(runs);
    let rates = runs.iter().map(|run| run.totals.ok_per_s);
    let y = Axis {
        scale: Scale::from_zero(rates),
        title: "calls answered a second",
        label: short,
    };

    let mut chart = Chart::new(x, y, Size::Full);
    // `Scale::from_zero` makes linear axes only.
    let (Scale::Linear { to: x_max, .. }, Scale::Linear { to: y_max, .. }) = (x.scale, y.scale)
    else {
        return None;
    };
    let end = x_max.min(y_max);
    chart.guide((end, end), "all answered");

    let points: Vec<_> = runs
        .iter()
        .map(|run| (run.totals.offered_per_s, run.totals.ok_per_s))
        .collect();
    chart.area(0, &points);
    chart.line(0, LineStyle::Solid, &points);

    for run in runs {
        let totals = &run.totals;
        let tooltip = format!(
            "{}/s offered, {}/s answered",
            short(totals.offered_per_s),
            short(totals.ok_per_s)
        );
        let class = if run.generator.was_bottleneck {
            "ring"
        } else {
            "dot"
        };
        chart.dots(
            0,
            class,
            &[(totals.offered_per_s, totals.ok_per_s, tooltip)],
        );
    }

    if let Some(knee) = &sweep.knee {
        chart.mark(
            knee.offered_per_s,
            &format!(
                "knee: {} of {}/s answered",
                short(knee.ok_per_s),
                short(knee.offered_per_s)
            ),
        );
    }
    Some(chart.finish(
        &format!("sweep-{number}"),
        "Calls answered a second by calls offered a second",
    ))
}

fn latency(sweep: &Sweep, runs: &[&Run], number: usize) -> Option<Html> {
    let lines = QUANTILES.map(|quantile| {
        let points: Vec<_> = runs
            .iter()
            .filter_map(|run| Some((run.totals.offered_per_s, spread::quantile(run, quantile)?)))
            .collect();
        (quantile, points)
    });
    if lines.iter().all(|(_, points)| points.is_empty()) {
        return None;
    }
    let times = lines
        .iter()
        .flat_map(|(_, points)| points)
        .map(|(_, us)| *us);
    let y = Axis {
        scale: Scale::log(times),
        title: "latency",
        label: time_us,
    };
    let mut chart = Chart::new(load_axis(runs), y, Size::Half);
    for (series, (quantile, points)) in lines.iter().enumerate() {
        chart.line(series, LineStyle::Solid, points);
        let dots: Vec<_> = points
            .iter()
            .map(|(load, us)| {
                let percentile = percentile(*quantile);
                let text = format!("{percentile} at {}/s: {}", short(*load), time_us(*us));
                (*load, *us, text)
            })
            .collect();
        chart.dots(series, "dot", &dots);
    }
    if let Some(knee) = &sweep.knee {
        chart.mark(knee.offered_per_s, "knee");
    }
    let mut html = legend(
        QUANTILES
            .iter()
            .map(|quantile| format!("p{}", percentile(*quantile).trim_end_matches(" %"))),
    );
    html.add(&chart.finish(
        &format!("sweep-latency-{number}"),
        "Latency by calls offered a second",
    ));
    Some(html)
}

fn cpu_over_load(sweep: &Sweep, runs: &[&Run], number: usize) -> Option<Html> {
    let points: Vec<_> = runs
        .iter()
        .filter_map(|run| Some((run.totals.offered_per_s, run.server_cpu?.us_per_field)))
        .collect();
    points.first()?;
    let y = Axis {
        scale: Scale::from_zero(points.iter().map(|(_, us)| *us)),
        title: "CPU for a field",
        label: time_us,
    };
    let mut chart = Chart::new(load_axis(runs), y, Size::Half);
    chart.line(CPU_SERIES, LineStyle::Solid, &points);
    let dots: Vec<_> = points
        .iter()
        .map(|(load, us)| {
            let text = format!("{} at {}/s", time_us(*us), short(*load));
            (*load, *us, text)
        })
        .collect();
    chart.dots(CPU_SERIES, "dot", &dots);
    if let Some(knee) = &sweep.knee {
        chart.mark(knee.offered_per_s, "knee");
    }
    let mut html = Html::default();
    html.open("ul", &[("class", &"legend")]);
    legend_item(&mut html, CPU_SERIES, "CPU for a field");
    html.close("ul").line();
    html.add(&chart.finish(
        &format!("sweep-cpu-{number}"),
        "CPU per field by calls offered a second",
    ));
    Some(html)
}

/// Returns a legend: the name of each series, beside its colour.
pub(crate) fn legend(names: impl Iterator<Item = String>) -> Html {
    let mut html = Html::default();
    html.open("ul", &[("class", &"legend")]);
    for (series, name) in names.enumerate() {
        legend_item(&mut html, series, &name);
    }
    html.close("ul").line();
    html
}

/// Appends one legend entry: a colour and its name.
pub(crate) fn legend_item(html: &mut Html, series: usize, name: &str) {
    let class = super::chart::class("key", series);
    html.raw("<li>")
        .open("i", &[("class", &class)])
        .raw("</i>")
        .element("span", &[], name)
        .close("li")
        .line();
}
