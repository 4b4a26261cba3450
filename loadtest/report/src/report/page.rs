//! The page: warnings first, then the plots, the tables with their figures, and the data of the
//! files.

use super::compare;
use super::html::Html;
use super::plots::{Axes, Names, Subject};
use super::scale::{digits, short, time_us, whole};
use super::tables::{self, Group};
use super::{Figures, ReportPage};
use crate::results::{Run, Sweep};

const STYLE: &str = include_str!("page.css");

/// Content policy: the page makes no requests and runs no scripts, whatever a file contains.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Content of the files by kind, each in the order of the files.
struct Content<'a> {
    runs: Vec<&'a Run>,
    sweeps: Vec<&'a Sweep>,
}

impl<'a> Content<'a> {
    fn of(documents: &'a [ReportPage]) -> Self {
        let mut content = Self {
            runs: Vec::new(),
            sweeps: Vec::new(),
        };
        for document in documents {
            match &document.figures {
                Figures::Run(run) => content.runs.push(run),
                Figures::Sweep(sweep) => content.sweeps.push(sweep),
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
    conditions(&mut html, &content);
    files(&mut html, documents);
    html.raw("</main>\n</body>\n</html>\n");
    html.finish()
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
        let engine = &run.conditions.engine;
        let machine = &run.conditions.machine;
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
    let axes = Axes::of(&content.runs);
    let names = Names::of(&content.runs);
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
    html.raw("</ul>");
    if run.classes.iter().any(|class| class.ok > 0) {
        html.raw("<ul class=\"legend\">");
        for class in &run.classes {
            compare::legend_item(html, subject.names.place(&class.name), &class.name);
        }
        html.raw("</ul>\n<div class=\"plots\">");
        html.add(&subject.speed()).add(&subject.percentiles());
        html.add(&subject.latency_over_time())
            .add(&subject.histogram());
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
            "The same calls at rising rates. The knee is the highest rate that was still served well.",
        );
        html.raw("<section class=\"card\">");
        html.element("h3", &[], tables::common_name(sweep));
        match &sweep.knee {
            Some(knee) => {
                let ok = short(knee.ok_per_s);
                let offered = short(knee.offered_per_s);
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
            "The figures hold for these conditions and say nothing about other machines.",
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
