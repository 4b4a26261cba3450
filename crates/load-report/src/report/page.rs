//! The page: warnings first, then the plots, the tables behind them, and the data of the files.

use super::html::Html;
use super::plots::{Axes, Names, Subject};
use super::scale::{digits, short, time_us, whole};
use super::tables::{self, Group};
use super::{Figures, ReportPage};
use super::{compare, engines};
use crate::results::{Backends, Run, ScaleFigures, Sweep};

const STYLE: &str = include_str!("page.css");

/// Content policy: the page makes no requests and runs no scripts, whatever a file contains.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Content of the files by kind, each in the order of the files.
struct Content<'a> {
    runs: Vec<&'a Run>,
    sweeps: Vec<&'a Sweep>,
    backends: Vec<&'a Backends>,
    scales: Vec<&'a ScaleFigures>,
}

impl<'a> Content<'a> {
    fn of(documents: &'a [ReportPage]) -> Self {
        let mut content = Self {
            runs: Vec::new(),
            sweeps: Vec::new(),
            backends: Vec::new(),
            scales: Vec::new(),
        };
        for document in documents {
            match &document.figures {
                Figures::Run(run) => content.runs.push(run),
                Figures::Sweep(sweep) => content.sweeps.push(sweep),
                Figures::Backends(backends) => content.backends.push(backends),
                Figures::Scale(scale) => content.scales.push(scale),
            }
        }
        content
    }

    /// Returns all runs, including the runs of sweeps.
    fn all_runs(&self) -> Vec<&'a Run> {
        self.runs
            .iter()
            .copied()
            .chain(self.sweeps.iter().flat_map(|sweep| &sweep.runs))
            .collect()
    }
}

/// Returns the whole document.
pub(super) fn page(title: &str, documents: &[ReportPage]) -> String {
    let content = Content::of(documents);
    let mut html = Html::default();
    html.raw("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    html.leaf(
        "meta",
        &[
            ("http-equiv", &"Content-Security-Policy"),
            ("content", &POLICY),
        ],
    );
    html.raw("\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.element("title", &[], title)
        .raw("<style>\n")
        .raw(STYLE)
        .raw("</style>\n</head>\n<body>\n<main>\n");
    header(&mut html, title, &content);
    html.add(&tables::warnings(&content.runs, &content.sweeps));
    overview(&mut html, &content);
    runs(&mut html, &content);
    sweeps(&mut html, &content);
    cpu(&mut html, &content);
    backends(&mut html, &content);
    scales(&mut html, &content);
    conditions(&mut html, &content);
    files(&mut html, documents);
    html.raw("</main>\n</body>\n</html>\n");
    html.finish()
}

/// Draws the plots of stores without a page.
pub(super) fn stores_svg(backends: &Backends) -> String {
    let plots = compare::store_plots(backends, 1);
    let (width, gap, head) = (520.0, 24.0, 40.0);
    let row = plots.first().map_or(0.0, |plot| plot.height) + head + gap;
    let (all_width, all_height) = (2.0 * width + 3.0 * gap, 2.0 * row + gap);
    let mut svg = Html::default();
    let view = format!("0 0 {all_width} {all_height}");
    let (name, side) = ("http://www.w3.org/2000/svg", "100%");
    svg.open(
        "svg",
        &[
            ("xmlns", &name),
            ("viewBox", &view),
            ("width", &all_width),
            ("height", &all_height),
        ],
    );
    svg.raw("<style>").raw(STYLE).raw("</style>\n");
    svg.leaf(
        "rect",
        &[("class", &"paper"), ("width", &side), ("height", &side)],
    );
    for (at, plot) in plots.iter().enumerate() {
        let (x, y) = (
            gap + (at % 2) as f64 * (width + gap),
            gap + (at / 2) as f64 * row,
        );
        svg.element(
            "text",
            &[("class", &"head"), ("x", &x), ("y", &(y + 16.0))],
            plot.title,
        );
        svg.open(
            "svg",
            &[
                ("x", &x),
                ("y", &(y + head)),
                ("width", &width),
                ("height", &plot.height),
            ],
        );
        svg.add(&plot.svg).close("svg").line();
    }
    svg.close("svg").line();
    svg.finish()
}

fn header(html: &mut Html, title: &str, content: &Content<'_>) {
    html.element("h1", &[], title);
    let runs = content.all_runs();
    let mut parts: Vec<String> = Vec::new();
    if let (Some(first), Some(last)) = (
        runs.iter().map(|run| &run.started).min(),
        runs.iter().map(|run| &run.started).max(),
    ) {
        parts.push(if first == last {
            first.clone()
        } else {
            format!("{first} to {last}")
        });
    }
    if let Some(run) = runs.first() {
        let (engine, machine) = (&run.conditions.engine, &run.conditions.machine);
        parts.push(format!("engine {}", engine.version));
        parts.push(format!("{}, {} cores", machine.cpu, machine.cores));
        parts.push(run.conditions.tls.clone());
    }
    html.element("p", &[("class", &"soft")], parts.join(" · "));
}

fn section(html: &mut Html, title: &'static str, how: &'static str) {
    html.element("h2", &[], title)
        .element("p", &[("class", &"soft")], how);
}

fn overview(html: &mut Html, content: &Content<'_>) {
    if content.runs.len() > 1 {
        section(
            html,
            "At a glance",
            "Every load of this page; each is plotted below.",
        );
        html.raw("<div class=\"card\">")
            .add(&tables::overview(&content.runs))
            .close("div")
            .line();
    }
}

fn runs(html: &mut Html, content: &Content<'_>) {
    if content.runs.is_empty() {
        return;
    }
    let (axes, names) = (Axes::of(&content.runs), Names::of(&content.runs));
    let how = match (content.runs.len(), axes.share_speed()) {
        (1, _) => "",
        (_, true) => "Axes of the same kind are the same for all loads.",
        (_, false) => {
            "Axes of times and shares are the same for all loads. Their speeds are too far apart for that."
        }
    };
    section(html, "Encryption speed and latency", how);
    for (number, run) in content.runs.iter().enumerate() {
        card(
            html,
            &Subject {
                run,
                number: number + 1,
                axes: &axes,
                names: &names,
            },
        );
    }
}

fn card(html: &mut Html, subject: &Subject<'_>) {
    let run = subject.run;
    html.raw("<section class=\"card\">")
        .element("h3", &[], &run.name);
    html.element("p", &[("class", &"soft")], tables::load(run));
    html.raw("<ul class=\"tiles\">");
    let totals = &run.totals;
    tile(html, &short(totals.fields_per_s), "fields a second");
    tile(html, &short(totals.ok_per_s), "calls answered a second");
    if let Some(cpu) = run.server_cpu {
        tile(html, &time_us(cpu.us_per_field), "engine CPU for a field");
        tile(html, &digits(cpu.cores), "engine cores busy");
    }
    tile(
        html,
        &digits(run.generator.cpu_cores),
        "generator cores busy",
    );
    tile(html, &whole(totals.errors), "calls without a result");
    if let Some(vault) = &run.vault {
        tile(
            html,
            &whole(vault.check.checked()),
            "rows looked up at the end",
        );
        tile(html, &whole(vault.check.lost()), "rows lost");
    }
    html.raw("</ul>");
    if run.classes.iter().any(|class| class.ok > 0) {
        html.raw("<ul class=\"legend\">");
        for class in &run.classes {
            compare::item(html, subject.names.place(&class.name), &class.name);
        }
        html.raw("</ul>\n<div class=\"plots\">");
        html.add(&subject.speed()).add(&subject.percentiles());
        html.add(&subject.latency_over_time())
            .add(&subject.histogram());
        html.add(&subject.average_over_time());
        html.raw("</div>\n");
    } else {
        html.raw("<p>No call was answered: there is nothing to plot.</p>\n");
    }
    html.add(&tables::classes(run)).close("section").line();
}

fn tile(html: &mut Html, value: &str, name: &'static str) {
    html.raw("<li>")
        .element("b", &[], value)
        .element("span", &[], name)
        .close("li")
        .line();
}

fn sweeps(html: &mut Html, content: &Content<'_>) {
    for (number, sweep) in content.sweeps.iter().enumerate() {
        section(
            html,
            "Rising load",
            "The same calls at rising rates. The knee is the most that was still served well.",
        );
        html.raw("<section class=\"card\">");
        html.element("h3", &[], tables::common_name(sweep));
        match &sweep.knee {
            Some(knee) => {
                let (ok, offered) = (short(knee.ok_per_s), short(knee.offered_per_s));
                let said = format!(
                    "Knee at {offered} calls/s offered, {ok}/s answered: {}",
                    knee.why
                );
                html.element("p", &[("class", &"soft")], said);
            }
            None => {
                let is_own = sweep.runs.iter().any(|run| run.generator.was_bottleneck);
                let why = if is_own {
                    "the generator was at its limit before the engine was"
                } else {
                    "the greatest rate was still served well, or none was, or the sweep was broken off"
                };
                html.element(
                    "p",
                    &[("class", &"soft")],
                    format!("No knee was found: {why}."),
                );
            }
        }
        html.add(&compare::sweep(sweep, number + 1));
        let runs: Vec<&Run> = sweep.runs.iter().collect();
        html.raw("<details><summary>All rates as a table</summary>")
            .add(&tables::overview(&runs))
            .close("details");
        html.close("section").line();
    }
}

fn cpu(html: &mut Html, content: &Content<'_>) {
    let chart = compare::cpu(&content.runs);
    if !chart.is_empty() {
        section(
            html,
            "CPU per field",
            "CPU time of the engine, all of its threads, for a field of an answered call.",
        );
        html.raw("<section class=\"card\"><div class=\"across\"><figure>")
            .add(&chart);
        html.raw("</figure></div></section>\n");
    }
}

fn backends(html: &mut Html, content: &Content<'_>) {
    for (number, backends) in content.backends.iter().enumerate() {
        section(
            html,
            "Storage backends",
            "Random secrets through the engine's own throttle and coalescer.",
        );
        html.raw("<section class=\"card\">")
            .add(&compare::backends(backends, number + 1));
        html.add(&tables::stores(backends));
        html.raw("<details><summary>Conditions</summary>")
            .add(&tables::store_conditions(backends))
            .close("details");
        html.close("section").line();
    }
}

fn scales(html: &mut Html, content: &Content<'_>) {
    for (number, scale) in content.scales.iter().enumerate() {
        section(
            html,
            "Several engines",
            "Engines with one state, through an endpoint list and through a TCP balancer.",
        );
        html.raw("<section class=\"card\">")
            .add(&engines::engines(scale, number + 1));
        html.element("pre", &[], crate::table::scale(scale))
            .close("section")
            .line();
    }
}

fn conditions(html: &mut Html, content: &Content<'_>) {
    let mut groups: Vec<Group<'_>> = content
        .runs
        .iter()
        .map(|run| Group {
            title: run.name.clone(),
            runs: vec![*run],
        })
        .collect();
    for sweep in content.sweeps.iter().filter(|sweep| !sweep.runs.is_empty()) {
        let title = format!("sweep: {}", tables::common_name(sweep));
        groups.push(Group {
            title,
            runs: sweep.runs.iter().collect(),
        });
    }
    if !groups.is_empty() {
        section(
            html,
            "Conditions",
            "What the figures depend on; they say nothing about other machines.",
        );
        html.raw("<div class=\"card\">")
            .add(&tables::conditions(&groups))
            .close("div")
            .line();
    }
}

fn files(html: &mut Html, documents: &[ReportPage]) {
    section(
        html,
        "Raw data",
        "The files that this page was made of. Each is also in this page, in a block of JSON at its end.",
    );
    html.raw("<div class=\"card\"><ul>");
    for document in documents {
        html.raw("<li>")
            .open("a", &[("href", &document.link)])
            .text(&document.name)
            .raw("</a></li>\n");
    }
    html.raw("</ul>").close("div").line();
    for (number, document) in documents.iter().enumerate() {
        let id = format!("data-{}", number + 1);
        html.open(
            "script",
            &[
                ("type", &"application/json"),
                ("id", &id),
                ("data-file", &document.name),
            ],
        );
        html.json(&document.text).close("script").line();
    }
}
