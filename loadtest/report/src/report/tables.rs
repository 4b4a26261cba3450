//! The text and tables of the report: warnings, conditions, and the figures from which plots are
//! drawn.

use super::html::Html;
use super::scale::{digits, short, time_us, whole};
use crate::results::{Class, Mode, Run, Sweep};

/// Loads that were measured together, whose conditions are listed once.
pub(crate) struct Group<'a> {
    pub(crate) title: String,
    pub(crate) runs: Vec<&'a Run>,
}

/// Maximum number of listed values per condition; beyond that, only their number is shown.
const VALUES_MAX: usize = 3;

/// Returns the warnings that a reader must know before any figure. Warns of failed requests in
/// single loads only, because a sweep continues until requests fail.
pub(crate) fn warnings(single: &[&Run], sweeps: &[&Sweep]) -> Html {
    let mut html = Html::default();
    for run in single.iter().filter(|run| run.generator.was_bottleneck) {
        let why = run.generator.why.as_deref().unwrap_or("it did not say why");
        let rate = short(run.totals.offered_per_s);
        let said = format!(
            " in “{}” at {rate} calls/s: {why}. Its figures are the generator's, not the engine's.",
            run.name
        );
        warning(
            &mut html,
            "warning bad",
            "The generator was the bottleneck",
            &said,
        );
    }
    for sweep in sweeps {
        bottleneck_of(&mut html, sweep);
    }
    for run in single.iter().filter(|run| run.totals.errors > 0) {
        let mut codes: Vec<(&String, u64)> = Vec::new();
        for (code, count) in run.classes.iter().flat_map(|class| &class.errors) {
            match codes.iter_mut().find(|(known, _)| *known == code) {
                Some((_, sum)) => *sum = sum.saturating_add(*count),
                None => codes.push((code, *count)),
            }
        }
        let codes: Vec<_> = codes
            .iter()
            .map(|(code, count)| format!("{} {code}", whole(*count)))
            .collect();
        let said = format!(" of “{}” got no result: {}.", run.name, codes.join(", "));
        warning(
            &mut html,
            "warning",
            &format!("{} calls", whole(run.totals.errors)),
            &said,
        );
    }
    for run in single.iter().filter(|run| {
        run.classes
            .iter()
            .all(|class| class.ok > 0 && class.checked == 0)
    }) {
        warning(
            &mut html,
            "warning",
            "No reply was checked",
            &format!(" in “{}”.", run.name),
        );
    }
    if single
        .iter()
        .copied()
        .chain(sweeps.iter().flat_map(|sweep| &sweep.runs))
        .any(|run| run.conditions.same_machine)
    {
        let said = ": what the engine could do alone is more than is shown here.";
        warning(
            &mut html,
            "warning",
            "Engine and generator shared a machine",
            said,
        );
    }
    html
}

/// Writes one warning for a sweep, even if many of its rates cause it.
fn bottleneck_of(html: &mut Html, sweep: &Sweep) {
    let limited: Vec<&Run> = sweep
        .runs
        .iter()
        .filter(|run| run.generator.was_bottleneck)
        .collect();
    let lowest = limited
        .iter()
        .min_by(|a, b| a.totals.offered_per_s.total_cmp(&b.totals.offered_per_s));
    let Some(first) = lowest else {
        return;
    };
    let why = first
        .generator
        .why
        .as_deref()
        .unwrap_or("it did not say why");
    let count = limited.len();
    let all = sweep.runs.len();
    let from = short(first.totals.offered_per_s);
    let name = common_name(sweep);
    let said = format!(
        " at {count} of {all} rates of “{name}”; at {from} calls/s: {why}. Figures there are the generator's."
    );
    warning(
        html,
        "warning bad",
        "The generator was the bottleneck",
        &said,
    );
}

/// Returns the common part of the names of a sweep's loads, which differ in their rates.
pub(crate) fn common_name(sweep: &Sweep) -> String {
    let Some(first) = sweep.runs.first() else {
        return String::new();
    };
    let common: String = first
        .name
        .chars()
        .enumerate()
        .take_while(|(at, character)| {
            sweep
                .runs
                .iter()
                .all(|run| run.name.chars().nth(*at) == Some(*character))
        })
        .map(|(_, character)| character)
        .collect();
    let whole = common.chars().count() == first.name.chars().count();
    let part = if whole {
        common.as_str()
    } else {
        common
            .rsplit_once(',')
            .map_or(common.as_str(), |(part, _)| part)
    };
    if part.trim().is_empty() {
        first.name.clone()
    } else {
        part.trim().to_owned()
    }
}

fn warning(html: &mut Html, class: &str, what: &str, said: &str) {
    html.open("div", &[("class", &class)])
        .raw("<p>")
        .element("b", &[], what)
        .text(said)
        .raw("</p>")
        .close("div")
        .line();
}

/// Returns a table with one line per load.
pub(crate) fn overview(runs: &[&Run]) -> Html {
    let head = [
        "load",
        "offered/s",
        "answered/s",
        "fields/s",
        "not answered",
        "p50, worst",
        "p99, worst",
        "CPU/field",
        "engine cores",
    ];
    table(
        &head,
        &runs.iter().map(|run| run_cells(run)).collect::<Vec<_>>(),
    )
}

fn run_cells(run: &Run) -> Vec<String> {
    let totals = &run.totals;
    let (cpu, cores) = run.server_cpu.map_or(("–".into(), "–".into()), |cpu| {
        (time_us(cpu.us_per_field), digits(cpu.cores))
    });
    vec![
        run.name.clone(),
        short(totals.offered_per_s),
        short(totals.ok_per_s),
        short(totals.fields_per_s),
        whole(totals.errors),
        worst_time(run, |class| class.latency_us.p50),
        worst_time(run, |class| class.latency_us.p99),
        cpu,
        cores,
    ]
}

/// Returns the greatest of a time of all classes.
fn worst_time(run: &Run, time: fn(&Class) -> f64) -> String {
    time_us(run.classes.iter().map(time).fold(0.0, f64::max))
}

/// Returns a table with one line per class of a load.
pub(crate) fn classes(run: &Run) -> Html {
    let head = [
        "calls",
        "sent",
        "answered",
        "failed",
        "late",
        "checked",
        "min",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "p99 from send",
    ];
    table(
        &head,
        &run.classes.iter().map(class_cells).collect::<Vec<_>>(),
    )
}

fn class_cells(class: &Class) -> Vec<String> {
    let mut cells = vec![class.name.clone()];
    cells.extend(
        [
            class.sent,
            class.ok,
            failed(class),
            class.late,
            class.checked,
        ]
        .map(whole),
    );
    let times = &class.latency_us;
    let times = [
        times.min,
        times.p50,
        times.p90,
        times.p99,
        times.p999,
        times.max,
        class.service_us.p99,
    ];
    cells.extend(times.map(|time| {
        if class.ok > 0 {
            time_us(time)
        } else {
            "–".into()
        }
    }));
    cells
}

fn failed(class: &Class) -> u64 {
    class
        .errors
        .values()
        .fold(0, |sum, count| sum.saturating_add(*count))
}

fn table(head: &[&'static str], rows: &[Vec<String>]) -> Html {
    let mut html = Html::default();
    html.raw("<div class=\"scroll\"><table><thead><tr>");
    for name in head {
        html.element("th", &[("scope", &"col")], name);
    }
    html.raw("</tr></thead><tbody>\n");
    for row in rows {
        html.raw("<tr>");
        for cell in row {
            html.element("td", &[], cell);
        }
        html.raw("</tr>\n");
    }
    html.raw("</tbody></table>").close("div").line();
    html
}

/// Returns a table of facts with one column per title. A fact that all columns share is listed
/// once.
fn facts(titles: &[&str], rows: &[(String, Vec<String>)]) -> Html {
    let mut html = Html::default();
    html.raw("<div class=\"scroll\"><table class=\"facts\">");
    if titles.len() > 1 {
        html.raw("<thead><tr><th></th>");
        for title in titles {
            html.element("th", &[("scope", &"col")], title);
        }
        html.raw("</tr></thead>");
    }
    html.raw("<tbody>\n");
    for (name, values) in rows {
        html.raw("<tr>").element("td", &[], name);
        match values.as_slice() {
            [first, others @ ..] if others.iter().all(|other| other == first) => {
                html.element("td", &[("colspan", &values.len())], first);
            }
            all => all.iter().for_each(|value| {
                html.element("td", &[], value);
            }),
        }
        html.raw("</tr>\n");
    }
    html.raw("</tbody></table>").close("div").line();
    html
}

type Condition = (&'static str, fn(&Run) -> String);

const CONDITIONS: [Condition; 14] = [
    ("Engine", |run| run.conditions.engine.version.clone()),
    ("Address", |run| run.conditions.engine.address.clone()),
    ("Cores of the engine", |run| {
        known(run.conditions.engine.cores.map(|cores| cores.to_string()))
    }),
    ("State", |run| known(run.conditions.engine.state.clone())),
    ("Suites", |run| known(run.conditions.engine.suites.clone())),
    ("Key scope", |run| {
        known(run.conditions.engine.scope.clone())
    }),
    ("TLS", |run| run.conditions.tls.clone()),
    ("Generator", |run| run.tool.clone()),
    ("Its machine", |run| {
        let machine = &run.conditions.machine;
        format!("{}, {} cores, {}", machine.cpu, machine.cores, machine.os)
    }),
    ("Same machine", |run| {
        if run.conditions.same_machine {
            "yes".into()
        } else {
            "no".into()
        }
    }),
    ("Load", load),
    ("Connections", |run| {
        format!(
            "{} of {} processes",
            run.conditions.connections, run.conditions.processes
        )
    }),
    ("Time", |run| {
        format!(
            "{} s after {} s of warm-up",
            digits(run.conditions.duration_s),
            digits(run.conditions.warm_up_s)
        )
    }),
    ("Begun", |run| run.started.clone()),
];

fn known(fact: Option<String>) -> String {
    fact.unwrap_or_else(|| "not known".into())
}

/// Describes the clock and number of requests of a load.
pub(crate) fn load(run: &Run) -> String {
    let conditions = &run.conditions;
    match (
        conditions.mode,
        conditions.offered_per_s,
        conditions.callers,
    ) {
        (Mode::Open, Some(rate), _) => format!("{} calls/s by the clock", short(rate)),
        (Mode::Open, None, _) => "by the clock".into(),
        (Mode::Closed, _, Some(callers)) => format!(
            "{} callers, each waiting for its answer",
            whole(callers.into())
        ),
        (Mode::Closed, _, None) => "callers that wait for their answers".into(),
    }
}

/// Returns a table of the loads' conditions, with a column per group.
pub(crate) fn conditions(groups: &[Group<'_>]) -> Html {
    let titles: Vec<&str> = groups.iter().map(|group| group.title.as_str()).collect();
    let rows = CONDITIONS.map(|(name, of)| {
        (
            name.to_owned(),
            groups.iter().map(|group| joined(group, of)).collect(),
        )
    });
    facts(&titles, &rows)
}

fn joined(group: &Group<'_>, of: fn(&Run) -> String) -> String {
    let mut values: Vec<String> = Vec::new();
    for value in group.runs.iter().map(|run| of(run)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    match values.len() {
        count if count > VALUES_MAX => {
            format!("{} to {} ({count} values)", values[0], values[count - 1])
        }
        _ => values.join("; "),
    }
}
