//! One self-contained page: the story, the overview, and small multiples over time.

use std::fmt::Write as _;

use crate::fair::report::digits;
use crate::founding::arms::{Arm, KEYS, Place};
use crate::founding::plot::{self, Axes, Row, Series};
use crate::founding::report::{Report, figures, has_latency};
use crate::founding::window::{ArmResult, Request, STEPS};

const STYLE: &str = include_str!("page.css");

/// A value of a request that is plotted over time.
struct Measure {
    axis: &'static str,
    format: fn(f64) -> String,
    value: fn(&Request) -> f64,
}

const LATENCY: Measure = Measure {
    axis: "latency",
    format: seconds,
    value: |request| request.latency,
};
const SPEED: Measure = Measure {
    axis: "fields / latency",
    format: fields_per_s,
    value: |request| request.fields as f64 / request.latency,
};

/// Returns the page.
pub(super) fn html(report: &Report) -> String {
    let plan = &report.plan;
    let (small, per_s, batch) = (plan.small_fields, plan.small_per_s, plan.batch_fields);
    let (most, timeout, window) = (
        plan.under_way(STEPS - 1),
        plan.timeout.as_millis(),
        plan.window_s(),
    );
    let warning = report.warning().map_or(String::new(), |text| {
        format!("<p class=\"warning\">{text}</p>")
    });
    let promises: String = report
        .promises()
        .iter()
        .fold(String::new(), |list, promise| {
            let class = match promise.ratio {
                None => "",
                Some(_) if promise.holds => "holds",
                Some(_) => "fails",
            };
            list + &format!(
                "<li>{}: <b class=\"{class}\">{}</b></li>",
                escape(&promise.what),
                promise.verdict()
            )
        });
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>founding: one small client beside batches</title>\
         <style>{STYLE}</style></head><body>\n\
         <h1>One small client beside a growing batch client</h1>\n\
         <p>The engine that Sealwire follows encrypted on the async runtime that also did its network I/O, on secp256k1, \
         with one ephemeral key per field. When one batch client grew, every client waited. Four remedies followed: P-256, \
         one key per request, a bounded pool of crypto threads, and cancellation. This page measures each of them alone \
         and together, on one machine.</p>\n\
         <p>A small client sends {small} fields {per_s} times a second, at fixed times, whether or not earlier responses \
         have arrived. A batch client keeps requests of {batch} fields under way, in {STEPS} steps \
         of equal length within {window:.0} s: none, then {}, then twice as many at each step, up to {most}. It gives up \
         a request after {timeout} ms and sends another.</p>\n\
         <ul>{promises}</ul>\n{warning}\n",
        plan.under_way(1),
    );
    page += &legend();
    page += "<h2>The small client, without batches and beside the most</h2>\n\
         <p>Each row is one arm. The hollow dot is the p99 of the small client's latency without batches, the full dot at \
         the largest step. A long line means that the batch client starved the small one. Bold rows are the original \
         design and today's default. The number is the ratio.</p>\n";
    let mut threads: Vec<usize> = report
        .results
        .iter()
        .map(|result| result.arm.threads)
        .collect();
    threads.sort_unstable();
    threads.dedup();
    for count in threads.iter().rev() {
        let results: Vec<&ArmResult> = report
            .results
            .iter()
            .filter(|result| result.arm.threads == *count)
            .collect();
        let name = format!("{count} {}", if *count == 1 { "thread" } else { "threads" });
        let _ = write!(page, "<h3>{name}</h3>\n{}\n", overview(report, &results));
    }
    let figures = [
        (
            "Latency over time",
            "One dot per request, at the time it was due; lower is better. Vertical lines are the steps, with the batches \
             under way below. If dots climb from left to right, requests wait for the batch client's work. A \
             batch that was given up is drawn at the timeout.",
            &LATENCY,
        ),
        (
            "Fields divided by latency, per request",
            "The same requests as the original engine's authors plotted them: fields of a request divided by its latency; \
             higher is better. In the incident it collapses over time for both clients.",
            &SPEED,
        ),
    ];
    for (title, text, measure) in figures {
        let _ = write!(
            page,
            "<h2>{title}</h2>\n<p>{text} The axis is logarithmic, and the same in all panels.</p>\n"
        );
        for (nth, count) in threads.iter().rev().enumerate() {
            let open = if nth == 0 { " open" } else { "" };
            let plural = if *count == 1 { "" } else { "s" };
            let grid = grid(report, *count, measure);
            let _ = write!(
                page,
                "<details{open}><summary>{count} thread{plural}</summary>\n{grid}</details>\n"
            );
        }
    }
    page + &method(report) + "</body></html>\n"
}

fn legend() -> String {
    "<p class=\"legend\"><span class=\"key own\">small client, crypto threads of the engine's own</span>\
     <span class=\"key shared\">small client, shared runtime</span><span class=\"key batch\">batch client</span></p>\n"
        .to_owned()
}

fn method(report: &Report) -> String {
    format!(
        "<h2>What the arms are</h2>\n<ul>\
         <li><b>p256, secp256k1</b>: the curves. Both use today's libraries, so their difference is smaller than it was in \
         the original engine.</li>\
         <li><b>request, field</b>: one ephemeral key per request or per field.</li>\
         <li><b>own</b>: the engine with its default settings but for the number of crypto threads, and without state and \
         audit trail. Its scheduler works in slices, and rejects requests that would wait too long.</li>\
         <li><b>shared</b>: a server of this bench. It uses the engine's TLS, wire codec, keys and sealing code, and has no \
         scheduler, slices, rejections, roles or audit trail. The task of a connection seals each request to its end on \
         the runtime's threads, first come, first served. It is no mode of the engine.</li>\
         <li><b>cancel, off</b>: a batch client that gives up sends <code>cancel</code>, or does not and keeps the \
         connection. The server then does work that nobody awaits.</li></ul>\n\
         <p>Latency counts from when a request was due to its response. Requests without a response when the window had \
         been over for {:.0} s count with the time until then, a lower bound. Rejected requests have no latency here; \
         the table of the run counts them as not in time. At most 900 dots of a client are drawn per panel.</p>\n\
         <p>Responses of every arm were opened by an engine and compared with what was sent.</p>\n\
         <h2>This run</h2>\n<p>{}<br>{}<br><code>{}</code><br>{:.0} s; other processes took at most {:.1} % of the machine \
         in a window. <code>founding.json</code> beside this page has every request.</p>\n",
        report.plan.settle.as_secs_f64(),
        escape(&report.machine),
        escape(&report.versions),
        escape(&report.command),
        report.took.as_secs_f64(),
        report.foreign() * 100.0,
    )
}

const fn class(place: Place) -> &'static str {
    place.name()
}

/// Returns the name of an arm in words, without its threads.
fn words(arm: Arm) -> String {
    let place = match arm.place {
        Place::Own => "own crypto threads",
        Place::Shared => "shared runtime",
    };
    let cancels = if arm.cancels { "cancel" } else { "no cancel" };
    format!(
        "{}, key per {}, {place}, {cancels}",
        arm.suite.name(),
        arm.key_scope.name()
    )
}

fn overview(report: &Report, results: &[&ArmResult]) -> String {
    let row = |result: &&ArmResult| {
        let (arm, of) = (result.arm, figures(&report.plan, result));
        Row {
            name: words(arm),
            class: class(arm.place),
            values: [of.alone.p99 / 1e3, of.largest.p99 / 1e3],
            note: format!("{}x", digits(of.ratio())),
            is_promised: [Arm::incident(), Arm::default_of_today()].contains(&arm),
        }
    };
    let mut rows: Vec<Row> = results.iter().map(row).collect();
    rows.sort_by(|a, b| b.values[1].total_cmp(&a.values[1]));
    plot::overview(
        &rows,
        seconds,
        "p99 latency of the small client (logarithmic)",
    )
}

/// Draws a panel for each arm of a number of threads: suites and key scopes in columns, the rest in
/// rows.
fn grid(report: &Report, threads: usize, measure: &Measure) -> String {
    let all = || {
        report
            .results
            .iter()
            .flat_map(|result| result.small.iter().chain(&result.batch))
    };
    let values = all()
        .filter(|request| has_latency(request))
        .map(measure.value);
    let step = |nth: usize| {
        (
            nth as f64 * report.plan.step.as_secs_f64(),
            report.plan.under_way(nth).to_string(),
        )
    };
    let axes = Axes {
        end: report.plan.window_s(),
        decades: plot::decades(values),
        name: measure.axis,
        format: measure.format,
        steps: (0..STEPS).map(step).collect(),
    };
    let mut out = String::from("<div class=\"grid-of-panels\">\n<span></span>");
    for (suite, scope) in KEYS {
        let _ = write!(out, "<b>{}, key per {}</b>", suite.name(), scope.name());
    }
    for place in [Place::Shared, Place::Own] {
        for cancels in [false, true] {
            let find = |(suite, key_scope)| {
                let arm = Arm {
                    suite,
                    key_scope,
                    place,
                    threads,
                    cancels,
                };
                report.results.iter().find(|result| result.arm == arm)
            };
            let results = KEYS.map(find);
            if results.iter().all(Option::is_none) {
                continue;
            }
            let who = if place == Place::Own {
                "own crypto threads"
            } else {
                "shared runtime"
            };
            let how = if cancels { "cancel" } else { "no cancel" };
            let _ = write!(
                out,
                "\n<b class=\"side\">{who},<br>{how}<br><small>{}</small></b>",
                axes.name
            );
            for result in results {
                out += &result.map_or("<span></span>".into(), |result| {
                    arm_panel(report, &axes, result, measure)
                });
            }
        }
    }
    out + "\n</div>\n"
}

fn arm_panel(report: &Report, axes: &Axes, result: &ArmResult, measure: &Measure) -> String {
    let points = |requests: &[Request]| -> Vec<(f64, f64)> {
        let shown = requests.iter().filter(|request| has_latency(request));
        shown
            .map(|request| (request.due, (measure.value)(request)))
            .collect()
    };
    let (small, batch) = (points(&result.small), points(&result.batch));
    let series = [
        Series {
            class: "batch",
            points: &batch,
        },
        Series {
            class: class(result.arm.place),
            points: &small,
        },
    ];
    let note = match result.arm {
        arm if arm == Arm::incident() => "the original design",
        arm if arm == Arm::default_of_today() => "today's default",
        _ => "",
    };
    let ratio = figures(&report.plan, result).ratio();
    let label = format!(
        "{}: {} over time, p99 ratio {}",
        words(result.arm),
        axes.name,
        digits(ratio)
    );
    plot::panel(axes, &label, &series, note)
}

fn seconds(s: f64) -> String {
    match s {
        _ if s < 0.999e-3 => format!("{:.0} us", s * 1e6),
        _ if s < 0.999 => format!("{:.0} ms", s * 1e3),
        _ => format!("{s:.0} s"),
    }
}

fn fields_per_s(rate: f64) -> String {
    match rate {
        _ if rate < 0.999 => format!("{rate}/s"),
        _ if rate < 999.0 => format!("{rate:.0}/s"),
        _ if rate < 999e3 => format!("{:.0}k/s", rate / 1e3),
        _ => format!("{:.0}M/s", rate / 1e6),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
