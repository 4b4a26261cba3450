//! Results with their ranges over the rounds, as a table or as JSON.

use std::io;

use sealwire_benches::say;
use sealwire_benches::stats::median;
use serde_json::{Value, json};

/// A limit that a median must keep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    /// The median must be at least this.
    AtLeast(f64),
    /// The median must be at most this.
    AtMost(f64),
    /// The figure is only reported.
    None,
}

#[derive(Debug)]
struct Figure {
    name: String,
    unit: &'static str,
    low: f64,
    median: f64,
    high: f64,
    ask: Ask,
}

impl Figure {
    fn verdict(&self) -> &'static str {
        let is_met = match self.ask {
            Ask::AtLeast(least) => self.median >= least,
            Ask::AtMost(most) => self.median <= most,
            Ask::None => return "",
        };
        if is_met { "met" } else { "missed" }
    }

    fn ask(&self) -> String {
        match self.ask {
            Ask::AtLeast(least) => format!(">= {least}"),
            Ask::AtMost(most) => format!("<= {most}"),
            Ask::None => String::new(),
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name, "unit": self.unit, "low": self.low, "median": self.median, "high": self.high,
            "ask": self.ask(), "verdict": self.verdict(),
        })
    }
}

/// The figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Figure>);

impl Report {
    /// Adds a figure with its values in the rounds.
    pub(crate) fn add(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        rounds: &[f64],
        ask: Ask,
    ) {
        let low = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        self.0.push(Figure {
            name: name.into(),
            unit,
            low,
            median: median(rounds.to_vec()),
            high,
            ask,
        });
    }

    /// Prints all figures.
    pub(crate) fn print(&self, as_json: bool) -> io::Result<()> {
        if as_json {
            let figures: Vec<Value> = self.0.iter().map(Figure::json).collect();
            return say(&serde_json::to_string_pretty(&figures)?);
        }
        say(&format!(
            "{:<52} {:>10} {:>21} {:<6} {:<8} verdict",
            "figure", "median", "range", "unit", "ask"
        ))?;
        for figure in &self.0 {
            let range = format!("{:.2} to {:.2}", figure.low, figure.high);
            let (ask, verdict) = (figure.ask(), figure.verdict());
            let line = format!(
                "{:<52} {:>10.2} {range:>21} {:<6} {ask:<8} {verdict}",
                figure.name, figure.median, figure.unit
            );
            say(line.trim_end())?;
        }
        Ok(())
    }
}
