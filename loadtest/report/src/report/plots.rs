//! Plots of single loads: throughput and latency over time, latency by percentile, and latency
//! distribution.

use super::chart::{Axis, Chart, LineStyle, Size};
use super::html::Html;
use super::scale::{Scale, percent, percentile, short, time_us};
use super::spread;
use crate::results::{Class, IntervalFigures, Run};

/// Formats seconds for the labels of a time axis.
fn seconds(s: f64) -> String {
    short(s)
}

/// Formats a percentile for the labels of a percentile axis, without the percent sign.
fn nines(quantile: f64) -> String {
    percentile(quantile).trim_end_matches(" %").to_owned()
}

/// Names of series. A name's position is its colour, so that equal names have equal colours in
/// every plot.
#[derive(Debug, Default)]
pub(crate) struct Names(Vec<String>);

impl Names {
    pub(crate) fn of(runs: &[&Run]) -> Self {
        let mut names = Self::default();
        for class in runs.iter().flat_map(|run| &run.classes) {
            if !names.0.contains(&class.name) {
                names.0.push(class.name.clone());
            }
        }
        names
    }

    pub(crate) fn place(&self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or(0)
    }
}

/// Axes that all loads of a page share, so that their plots can be compared visually.
pub(crate) struct Axes {
    /// `None` if the loads differ too much for a common axis.
    speed: Option<Scale>,
    over_time: Scale,
    latency: Scale,
    shares: Scale,
    times: Scale,
    calls: f64,
}

impl Axes {
    pub(crate) fn of(runs: &[&Run]) -> Self {
        let classes: Vec<&Class> = runs
            .iter()
            .flat_map(|run| &run.classes)
            .filter(|class| class.ok > 0)
            .collect();
        let uppers: Vec<f64> = classes
            .iter()
            .flat_map(|class| class.histogram_us.iter().map(|(upper, _)| *upper))
            .collect();
        let ends = classes.iter().flat_map(|class| {
            [class.latency_us, class.service_us]
                .into_iter()
                .flat_map(|times| [times.min, times.max])
        });
        let intervals = classes.iter().flat_map(|class| &class.over_time);
        let shares = classes
            .iter()
            .flat_map(|class| spread::bins(&class.histogram_us))
            .map(|(_, share)| share);

        Self {
            speed: shared_speed(runs),
            over_time: Scale::log(
                intervals
                    .filter(|interval| interval.ok > 0)
                    .map(|interval| interval.p99_us),
            ),
            latency: Scale::log(ends.chain(uppers.iter().copied())),
            shares: Scale::from_zero(shares),
            times: Scale::log(uppers.iter().copied()),
            calls: classes
                .iter()
                .map(|class| class.ok as f64)
                .fold(0.0, f64::max),
        }
    }
}

/// Maximum ratio of the highest to the lowest throughput for a common axis.
const SPEEDS_MAX: f64 = 10.0;

fn speeds(run: &Run) -> impl Iterator<Item = f64> {
    run.classes
        .iter()
        .flat_map(|class| &class.over_time)
        .map(|moment| moment.fields_per_s)
}

fn shared_speed(runs: &[&Run]) -> Option<Scale> {
    let highest: Vec<f64> = runs
        .iter()
        .map(|run| speeds(run).fold(0.0, f64::max))
        .filter(|highest| *highest > 0.0)
        .collect();
    let greatest = highest.iter().copied().fold(0.0, f64::max);
    let least = highest.iter().copied().fold(f64::MAX, f64::min);
    (greatest <= least * SPEEDS_MAX).then(|| Scale::from_zero(highest.into_iter()))
}

impl Axes {
    /// Returns true if all throughput plots share one axis.
    pub(crate) fn share_speed(&self) -> bool {
        self.speed.is_some()
    }
}

/// Returns a plot with its title and explanation. Empty without data.
pub(crate) fn figure(title: &'static str, how: &'static str, chart: Option<Html>) -> Html {
    let mut html = Html::default();
    if let Some(chart) = chart {
        html.raw("<figure><figcaption>")
            .element("h4", &[], title)
            .element("p", &[], how)
            .raw("</figcaption>\n");
        html.raw("<div>")
            .add(&chart)
            .raw("</div>")
            .close("figure")
            .line();
    }
    html
}

/// Input of a plot: the load, its number on the page, and the axes that it shares with others.
pub(crate) struct Subject<'a> {
    pub(crate) run: &'a Run,
    pub(crate) number: usize,
    pub(crate) axes: &'a Axes,
    pub(crate) names: &'a Names,
}

impl Subject<'_> {
    /// Returns the classes that have results.
    fn classes(&self) -> impl Iterator<Item = (usize, &Class)> {
        self.run
            .classes
            .iter()
            .filter(|class| class.ok > 0)
            .map(|class| (self.names.place(&class.name), class))
    }

    fn finish(&self, chart: Chart, kind: &str, said: &str) -> Option<Html> {
        let said = format!("{said}: {}", self.run.name);
        self.classes()
            .next()
            .map(|_| chart.finish(&format!("{kind}-{}", self.number), &said))
    }

    fn time_axis(&self) -> Axis {
        let moments = self.run.classes.iter().flat_map(|class| &class.over_time);
        let end = moments.map(|moment| moment.t_s).fold(0.0, f64::max);
        Axis {
            scale: Scale::between(0.0, end),
            title: "seconds",
            label: seconds,
        }
    }

    fn over_time(
        &self,
        y: Axis,
        value: impl Fn(&IntervalFigures) -> Option<f64>,
        said: fn(f64) -> String,
    ) -> Chart {
        let mut chart = Chart::new(self.time_axis(), y, Size::Half);
        for (series, class) in self.classes() {
            // NaN breaks the line where a value is missing.
            let points: Vec<_> = class
                .over_time
                .iter()
                .map(|moment| (moment.t_s, value(moment).unwrap_or(f64::NAN)))
                .collect();
            chart.line(series, LineStyle::Solid, &points);
            let name = &class.name;
            let dots = points.iter().filter(|(_, value)| value.is_finite());
            let dots = dots.map(|(t, value)| {
                (
                    *t,
                    *value,
                    format!("{name} at {} s: {}", short(*t), said(*value)),
                )
            });
            chart.dots(series, "dot", &dots.collect::<Vec<_>>());
        }
        for class in &self.run.classes {
            for moment in class.over_time.iter().filter(|moment| moment.errors > 0) {
                chart.fault(
                    moment.t_s,
                    &format!("{}: {} errors", class.name, moment.errors),
                );
            }
        }
        chart
    }

    /// Draws the fields in results per second, by class.
    pub(crate) fn speed(&self) -> Html {
        let scale = self
            .axes
            .speed
            .unwrap_or_else(|| Scale::from_zero(speeds(self.run)));
        let y = Axis {
            scale,
            title: "fields a second",
            label: short,
        };
        let chart = self.over_time(
            y,
            |moment| Some(moment.fields_per_s),
            |value| format!("{} fields/s", short(value)),
        );
        let chart = self.finish(chart, "speed", "Fields a second over time");
        figure(
            "Speed over time",
            "Fields of answered calls, by the size of the call. A red cross: calls failed.",
            chart,
        )
    }

    /// Draws the p99 latency over time, by class.
    pub(crate) fn latency_over_time(&self) -> Html {
        let y = Axis {
            scale: self.axes.over_time,
            title: "p99 latency",
            label: time_us,
        };
        let chart = self.over_time(
            y,
            |moment| (moment.ok > 0).then_some(moment.p99_us),
            |value| format!("p99 {}", time_us(value)),
        );
        let chart = self.finish(chart, "latency-over-time", "p99 latency over time");
        figure(
            "Latency over time",
            "99 of 100 calls of each moment were answered within this.",
            chart,
        )
    }

    /// Draws latency by percentile, measured from the due time and from the send time.
    pub(crate) fn percentiles(&self) -> Html {
        let x = Axis {
            scale: Scale::tail(self.axes.calls),
            title: "percentile of calls, %",
            label: nines,
        };
        let y = Axis {
            scale: self.axes.latency,
            title: "time to the answer",
            label: time_us,
        };
        let mut chart = Chart::new(x, y, Size::Half);
        for (series, class) in self.classes() {
            chart.line(
                series,
                LineStyle::Dashed,
                &spread::known(&class.service_us, class.ok),
            );
            chart.line(
                series,
                LineStyle::Solid,
                &spread::curve(&class.histogram_us, class.latency_us.min),
            );
            let known = spread::known(&class.latency_us, class.ok);
            let dots: Vec<_> = known
                .into_iter()
                .map(|(quantile, us)| {
                    let percentile = percentile(quantile);
                    let text = format!("{} {percentile}: {}", class.name, time_us(us));
                    (quantile, us, text)
                })
                .collect();
            chart.dots(series, "dot", &dots);
        }
        let how = "Solid: from when the call should have been sent. Dashed: from when it was. Apart, calls waited to be sent.";
        figure(
            "Latency by percentile",
            how,
            self.finish(chart, "percentiles", "Latency by percentile"),
        )
    }

    /// Draws the latency distribution.
    pub(crate) fn histogram(&self) -> Html {
        let x = Axis {
            scale: self.axes.times,
            title: "latency from the schedule",
            label: time_us,
        };
        let y = Axis {
            scale: self.axes.shares,
            title: "share of its calls",
            label: percent,
        };
        let mut chart = Chart::new(x, y, Size::Half);
        for (series, class) in self.classes() {
            let bins = spread::bins(&class.histogram_us);
            chart.area(series, &bins);
            chart.line(series, LineStyle::Solid, &bins);
        }
        let how = "Calls of each size in ranges of a twentieth of a power of ten. Two humps are two kinds of fate.";
        figure(
            "Spread of latencies",
            how,
            self.finish(chart, "histogram", "Spread of latencies"),
        )
    }
}
