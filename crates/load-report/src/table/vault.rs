//! The figures of a vault load as text: latencies per phase and over time, and the check of the
//! rows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::results::{Run, VaultFigures};
use crate::table::{columns, number, time};

/// Formats a count, with commas between thousands.
fn whole(count: u64) -> String {
    if count < 1_000 {
        count.to_string()
    } else {
        number(count as f64)
    }
}

/// Formats counts by name.
pub fn counts(counts: &BTreeMap<String, u64>) -> String {
    let parts: Vec<String> = counts
        .iter()
        .map(|(code, count)| format!("{} {code}", whole(*count)))
        .collect();
    if parts.is_empty() {
        "none".to_owned()
    } else {
        parts.join(", ")
    }
}

/// Formats the latencies of the phases, the kill, and the check of the rows.
pub(super) fn vault(vault: &VaultFigures) -> String {
    let mut text = String::new();
    let rows = vault.phases.iter().flat_map(|phase| {
        let name = if vault.kill.is_some() {
            phase.phase.name()
        } else {
            "whole"
        };
        phase.kinds.iter().enumerate().map(move |(at, kind)| {
            let span = format!("{name}, {:.1} to {:.1} s", phase.from_s, phase.to_s);
            let mut row = vec![
                if at == 0 { span } else { String::new() },
                kind.name.clone(),
            ];
            row.extend([kind.ok, kind.failed].map(whole));
            row.extend(
                [kind.mean_us, kind.p95_us, kind.p99_us, kind.max_us].map(|us| {
                    if kind.ok > 0 {
                        time(us)
                    } else {
                        "-".to_owned()
                    }
                }),
            );
            row
        })
    });
    text += &columns(
        &[
            "phase",
            "operation",
            "ok",
            "failed",
            "average",
            "p95",
            "p99",
            "max",
        ],
        &rows.collect::<Vec<_>>(),
    );
    text.push('\n');
    if let Some(kill) = &vault.kill {
        let back = kill
            .recovered_s
            .map_or("and did not come back".to_owned(), |at| {
                format!(
                    "and had all connections again after {:.1} s",
                    at - kill.at_s
                )
            });
        let (address, at, in_flight) = (&kill.address, kill.at_s, kill.in_flight);
        let _ = writeln!(
            text,
            "  {address} was killed at {at:.1} s with {in_flight} operations in flight, {back}"
        );
        let (retried, given_up) = (counts(&vault.retried), counts(&vault.given_up));
        let _ = writeln!(
            text,
            "  kill window: retried {retried}; given up {given_up}"
        );
    }
    let _ = writeln!(
        text,
        "  errors{}: {}",
        if vault.kill.is_some() {
            " outside it"
        } else {
            ""
        },
        counts(&vault.errors)
    );
    let check = &vault.check;
    let per_phase: Vec<String> = check
        .phases
        .iter()
        .filter(|rows| rows.checked > 0)
        .map(|rows| format!("{} {}", whole(rows.checked), rows.phase.name()))
        .collect();
    let _ = writeln!(
        text,
        "  rows: {} checked in {:.0} s ({}), {} lost, {} wrong; filled in {:.0} s",
        whole(check.checked()),
        check.seconds,
        per_phase.join(", "),
        whole(check.lost()),
        whole(check.wrong()),
        vault.fill_s,
    );
    for example in &check.examples {
        let _ = writeln!(text, "  {example}");
    }
    text
}

/// Formats the latencies of each kind over time, one row per interval.
pub(super) fn over_time(run: &Run) -> String {
    let mut head = vec!["to second".to_owned(), "ok".to_owned(), "errors".to_owned()];
    for class in &run.classes {
        head.extend(["average", "p95", "p99"].map(|what| format!("{} {what}", class.name)));
    }
    let Some(first) = run.classes.first() else {
        return String::new();
    };
    let rows = (0..first.over_time.len()).map(|at| {
        let moments = || {
            run.classes
                .iter()
                .filter_map(|class| class.over_time.get(at))
        };
        let mut row = vec![
            format!("{:.1}", first.over_time[at].t_s),
            moments().map(|moment| moment.ok).sum::<u64>().to_string(),
            moments()
                .map(|moment| moment.errors)
                .sum::<u64>()
                .to_string(),
        ];
        for moment in moments() {
            let figures = [moment.mean_us, moment.p95_us, Some(moment.p99_us)];
            row.extend(figures.map(|us| {
                us.filter(|_| moment.ok > 0)
                    .map_or_else(|| "-".to_owned(), time)
            }));
        }
        row
    });
    columns(
        &head.iter().map(String::as_str).collect::<Vec<_>>(),
        &rows.collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use crate::results::Figures;
    use crate::results::tests::vault_run;

    #[test]
    fn a_vault_load_shows_phases_times_and_rows() {
        let Ok(Figures::Run(run)) = Figures::parse(&vault_run().to_string()) else {
            panic!()
        };
        let text = crate::table::run(&run);
        for part in [
            "before, 0.0 to 0.2 s    look-up  9,000       1   500 us  900 us  1.50 ms  9.00 ms",
            "0.5        500       0            3.00 us        3.50 us        4.00 us",
            "was killed at 0.2 s with 12 operations in flight, and had all connections again after 0.2 s",
            "kill window: retried 12 connection_lost; given up none",
            "errors outside it: none",
            "rows: 10,900 checked in 0 s (10,000 fill, 100 before, 50 during, 750 after), 1 lost, 0 wrong; filled in 2 s",
            "row 10100 is not there",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }
}
