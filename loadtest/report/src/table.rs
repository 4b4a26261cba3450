//! Results as text tables, with the conditions above them.

use std::fmt::Write as _;

use crate::results::{Class, Mode, Run, Sweep};

/// Formats one run.
pub fn run(run: &Run) -> String {
    let mut text = head(run);
    let names = [
        "calls", "sent", "ok", "errors", "checked", "p50", "p90", "p99", "p99.9", "max",
    ];
    let rows: Vec<Vec<String>> = run.classes.iter().map(class).collect();
    text += &columns(&names, &rows);
    let totals = &run.totals;
    let _ = writeln!(
        text,
        "\n  {} calls/s answered of {} offered, {} fields/s; {} MB/s out, {} MB/s in",
        number(totals.ok_per_s),
        number(totals.offered_per_s),
        number(totals.fields_per_s),
        number(totals.bytes_out_per_s / 1e6),
        number(totals.bytes_in_per_s / 1e6),
    );
    for class in run.classes.iter().filter(|class| !class.errors.is_empty()) {
        let errors: Vec<String> = class
            .errors
            .iter()
            .map(|(code, count)| format!("{count} {code}"))
            .collect();
        let _ = writeln!(text, "  errors of {}: {}", class.name, errors.join(", "));
    }
    if let Some(cpu) = run.server_cpu {
        let _ = writeln!(
            text,
            "  engine: {} us of CPU for a field, {} cores",
            number(cpu.us_per_field),
            number(cpu.cores)
        );
    }
    let generator = &run.generator;
    let _ = writeln!(
        text,
        "  generator: {} us of CPU for a call, {} cores; sends at most {} behind their time, {} of 100 at most {}{}",
        number(generator.us_per_call),
        number(generator.cpu_cores),
        time(generator.lag_max_us),
        99,
        time(generator.lag_p99_us),
        generator
            .nice
            .map_or_else(String::new, |nice| format!("; nice {nice}")),
    );
    if generator.was_bottleneck {
        let why = generator.why.as_deref().unwrap_or("it did not say why");
        let _ = writeln!(
            text,
            "  THE GENERATOR WAS THE BOTTLENECK, these figures are its own: {why}"
        );
    }
    text
}

/// Returns the heading of a run, with the conditions of its figures.
fn head(run: &Run) -> String {
    let conditions = &run.conditions;
    let engine = &conditions.engine;
    let load = match conditions.mode {
        Mode::Open => format!(
            "{} calls/s, whatever the answers do",
            number(conditions.offered_per_s.unwrap_or(0.0))
        ),
        Mode::Closed => format!(
            "{} callers, each waiting for its answer",
            conditions.callers.unwrap_or(0)
        ),
    };
    format!(
        "{}\n  engine {} at {}, {}\n  {load}; {} connections, {} processes; {} s after {} s of warm-up\n  {}, {} cores, {}{}\n\n",
        run.name,
        engine.version,
        engine.address,
        conditions.tls,
        conditions.connections,
        conditions.processes,
        conditions.duration_s,
        conditions.warm_up_s,
        conditions.machine.cpu,
        conditions.machine.cores,
        conditions.machine.os,
        if conditions.same_machine {
            "; engine and generator share them"
        } else {
            ""
        },
    )
}

fn class(class: &Class) -> Vec<String> {
    let times = &class.latency_us;
    let mut row = vec![class.name.clone()];
    row.extend(
        [
            class.sent,
            class.ok,
            class.errors.values().sum(),
            class.checked,
        ]
        .map(|count| count.to_string()),
    );
    row.extend([times.p50, times.p90, times.p99, times.p999, times.max].map(time));
    row
}

/// Formats a sweep with one line per rate.
pub fn sweep(sweep: &Sweep) -> String {
    let rows = sweep.runs.iter().map(|run| {
        let worst = |of: fn(&Class) -> f64| run.classes.iter().map(of).fold(0.0, f64::max);
        vec![
            number(run.totals.offered_per_s),
            number(run.totals.ok_per_s),
            number(run.totals.fields_per_s),
            run.totals.errors.to_string(),
            time(worst(|class| class.latency_us.p50)),
            time(worst(|class| class.latency_us.p99)),
            run.server_cpu
                .map_or_else(|| "-".to_owned(), |cpu| number(cpu.cores)),
            number(run.generator.cpu_cores),
            if run.generator.was_bottleneck {
                "generator"
            } else {
                ""
            }
            .to_owned(),
        ]
    });
    let head = [
        "offered/s",
        "ok/s",
        "fields/s",
        "errors",
        "p50",
        "p99",
        "engine cores",
        "generator cores",
        "limit",
    ];
    let mut text = columns(&head, &rows.collect::<Vec<_>>());
    match &sweep.knee {
        Some(knee) => {
            let _ = writeln!(
                text,
                "\n  knee at {} calls/s: {}",
                number(knee.offered_per_s),
                knee.why
            );
        }
        None if sweep.runs.iter().any(|run| run.generator.was_bottleneck) => {
            text += "\n  no knee was found: the generator was at its limit before the engine was\n";
        }
        None => text += "\n  no knee was found\n",
    }
    text
}

/// Formats columns: the first aligned left, the others aligned right.
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        rows.iter()
            .map(|row| row[at].chars().count())
            .fold(head[at].len(), usize::max)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut line = String::from(" ");
        for (at, (cell, width)) in cells.zip(&widths).enumerate() {
            let _ = if at == 0 {
                write!(line, " {cell:<width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    };
    line(&mut head.iter().copied());
    rows.iter()
        .for_each(|row| line(&mut row.iter().map(String::as_str)));
    text
}

/// Formats three significant digits, with commas between thousands.
pub fn number(value: f64) -> String {
    let places = match value.abs() {
        0.0 => 0,
        below if below < 1.0 => 3,
        below if below < 10.0 => 2,
        below if below < 100.0 => 1,
        _ => 0,
    };
    let plain = format!("{value:.places$}");
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Formats microseconds in the most readable unit.
pub fn time(us: f64) -> String {
    match us {
        us if us < 1_000.0 => format!("{} us", number(us)),
        us if us < 1_000_000.0 => format!("{} ms", number(us / 1e3)),
        us => format!("{} s", number(us / 1e6)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Figures;

    #[test]
    fn numbers_and_times_read_well() {
        let numbers = [
            (0.0, "0"),
            (0.1234, "0.123"),
            (1.5, "1.50"),
            (12.34, "12.3"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
            (-1_234.0, "-1,234"),
            (-123.0, "-123"),
        ];
        for (value, text) in numbers {
            assert_eq!(number(value), text);
        }
        for (us, text) in [
            (12.34, "12.3 us"),
            (1_500.0, "1.50 ms"),
            (2_500_000.0, "2.50 s"),
        ] {
            assert_eq!(time(us), text);
        }
    }

    #[test]
    fn a_run_shows_its_classes_errors_and_limits() {
        let Ok(Figures::Run(mut one)) = Figures::parse(&crate::results::tests::run().to_string())
        else {
            panic!()
        };
        let text = run(&one);
        for part in [
            "encrypt 30 fields",
            "30 fields  10000  9997       3       12",
            "3 overloaded",
            "X25519MLKEM768",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(!text.contains("BOTTLENECK"));
        one.generator.was_bottleneck = true;
        one.generator.why = Some("late".to_owned());
        assert!(run(&one).contains("BOTTLENECK, these figures are its own: late"));
    }
}
