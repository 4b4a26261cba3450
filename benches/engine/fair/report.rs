//! Report of an experiment: tables, gates and notes, as Markdown and as JSON.

use std::fmt::Write as _;

use sealwire_benches::stats::{Interval, Summary, Verdict};
use serde_json::{Value, json};

use crate::fair::generator::Cost;

/// A Markdown table.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table without rows.
    pub(crate) fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|&name| name.into()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with a cell for each column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn markdown(&self) -> String {
        let mut out = format!("### {}\n\n| {} |\n|", self.title, self.columns.join(" | "));
        out += &" --- |".repeat(self.columns.len());
        for row in &self.rows {
            // Writing to a string does not fail.
            let _ = write!(out, "\n| {} |", row.join(" | "));
        }
        out + "\n"
    }

    fn json(&self) -> Value {
        json!({ "title": self.title, "columns": self.columns, "rows": self.rows })
    }
}

/// A promise and its result.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    /// The requirement.
    pub(crate) what: String,
    /// The measured value.
    pub(crate) measured: String,
    /// The verdict.
    pub(crate) verdict: Verdict,
    /// True if it depends on time, which other processes on the machine take away.
    timed: bool,
}

/// One experiment's part of the report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Section {
    /// Its title.
    pub(crate) title: String,
    /// Tables of results.
    pub(crate) tables: Vec<Table>,
    /// Requirements with their verdicts.
    pub(crate) gates: Vec<Gate>,
    /// Notes for the reader.
    pub(crate) notes: Vec<String>,
}

impl Section {
    /// Makes an empty section.
    pub(crate) fn new(title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            ..Self::default()
        }
    }

    /// Adds a gate. The verdict is inconclusive if `judged` says that the result cannot be judged.
    pub(crate) fn gate(
        &mut self,
        what: impl Into<String>,
        measured: String,
        verdict: Verdict,
        judged: Judged,
    ) {
        let (verdict, measured) = match judged {
            Judged::Yes | Judged::Always => (verdict, measured),
            Judged::No(why) => (
                Verdict::Inconclusive,
                format!("{measured}; not judged: {why}"),
            ),
        };
        self.gates.push(Gate {
            what: what.into(),
            measured,
            verdict,
            timed: judged != Judged::Always,
        });
    }

    /// Notes the share of the machine that other processes took, and withdraws verdicts about time
    /// if it was too large.
    pub(crate) fn shared(&mut self, foreign: f64) {
        self.notes.push(format!(
            "others took {} of the machine during all of this",
            percent(foreign)
        ));
        for gate in self
            .gates
            .iter_mut()
            .filter(|gate| foreign > FOREIGN_MAX && gate.timed)
        {
            if gate.verdict != Verdict::Inconclusive {
                gate.verdict = Verdict::Inconclusive;
                gate.measured += "; not judged: the machine was not ours";
            }
        }
    }

    /// Formats the section as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!("## {}\n", self.title);
        for table in &self.tables {
            let _ = write!(out, "\n{}", table.markdown());
        }
        if !self.gates.is_empty() {
            let mut gates = Table::new("Gates", &["gate", "measured", "verdict"]);
            for Gate {
                what,
                measured,
                verdict,
                ..
            } in &self.gates
            {
                gates.row(vec![what.clone(), measured.clone(), verdict.name().into()]);
            }
            let _ = write!(out, "\n{}", gates.markdown());
        }
        for note in &self.notes {
            let _ = write!(out, "\n* {note}");
        }
        out + "\n"
    }

    /// Formats the section as JSON.
    pub(crate) fn json(&self) -> Value {
        let gates = self
            .gates
            .iter()
            .map(|gate| json!({ "gate": gate.what, "measured": gate.measured, "verdict": gate.verdict.name() }));
        json!({
            "title": self.title,
            "tables": self.tables.iter().map(Table::json).collect::<Vec<_>>(),
            "gates": gates.collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

/// Largest accepted share of the machine for other processes.
const FOREIGN_MAX: f64 = 0.05;

/// Tells whether a figure can be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judged {
    /// It can be judged, unless other processes disturbed the run.
    Yes,
    /// It can be judged, even if other processes disturbed the run.
    Always,
    /// It cannot be judged, for this reason.
    No(&'static str),
}

impl Judged {
    /// Returns `Yes` if the condition holds, and else `No` with the reason `otherwise`.
    pub(crate) const fn when(holds: bool, otherwise: &'static str) -> Self {
        if holds {
            Self::Yes
        } else {
            Self::No(otherwise)
        }
    }

    /// Combines two conditions. `No` wins.
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        if matches!(self, Self::No(_)) {
            self
        } else {
            other
        }
    }
}

/// Largest accepted p99 lag of sends, as a share of the shortest latency that is judged.
const LAG_SHARE_MAX: f64 = 0.25;
/// Lag of sends that is always accepted, in milliseconds: the time that a thread needs to wake.
const LAG_MS_MIN: f64 = 0.2;

/// Judges whether the generator kept up with figures of that many milliseconds, with a note on its
/// own cost.
pub(crate) fn kept_up(cost: Cost, of_ms: f64, what: &str) -> (Judged, String) {
    let kept = cost.lag_ms.p99 <= (LAG_SHARE_MAX * of_ms).max(LAG_MS_MIN);
    let note = format!(
        "{what}: the generator made {} calls at {:.0} us of CPU each, {:.1} % of all cores; sends were late by p50 {}, p99 {} ms{}",
        cost.calls,
        cost.cpu_us,
        cost.share * 100.0,
        ms(cost.lag_ms.p50),
        ms(cost.lag_ms.p99),
        if kept {
            ""
        } else {
            ": TOO LATE, these figures are not the server's alone"
        },
    );
    (Judged::when(kept, "the generator was late"), note)
}

/// Formats milliseconds with three digits.
pub(crate) fn ms(value: f64) -> String {
    digits(value)
}

/// Formats a number with three digits.
pub(crate) fn digits(value: f64) -> String {
    match value {
        _ if !value.is_finite() => "-".into(),
        _ if value.abs() < 10.0 => format!("{value:.2}"),
        _ if value.abs() < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a value with its interval.
pub(crate) fn interval(of: Interval, unit: &str) -> String {
    format!(
        "{}{unit} ({} to {})",
        digits(of.value),
        digits(of.low),
        digits(of.high)
    )
}

/// Formats the cells p50, p99, max and count.
pub(crate) fn summary(of: Summary) -> Vec<String> {
    vec![ms(of.p50), ms(of.p99), ms(of.max), of.count.to_string()]
}
