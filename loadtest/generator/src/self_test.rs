//! Measures the generator's own limit against the responder that does no work, which runs in a
//! separate process.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fault::Fault;
use crate::results::{Run, Sweep};
use crate::sweep::answered;
use crate::table::number;

/// A rate counts only if at least this share of its requests got a result.
const OK_SHARE_MIN: f64 = 0.99;

/// The responder as a child process, which ends when this process closes its standard input.
pub(crate) struct Responder {
    child: Child,
    /// Address of the listener.
    pub(crate) address: String,
}

impl Responder {
    /// Starts one with the certificates of a folder.
    pub(crate) fn start(folder: &Path) -> Result<Self, Fault> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([
                "sink",
                "--listen",
                "127.0.0.1:0",
                "--until-input-ends",
                "--folder",
            ])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(said) = child.stdout.take() {
            BufReader::new(said).read_line(&mut line)?;
        }
        let mut responder = Self {
            child,
            address: String::new(),
        };
        match line.trim_end().rsplit_once(' ') {
            Some((_, address)) => address.clone_into(&mut responder.address),
            None => {
                return Err(Fault::Failed(
                    "the responder did not start; what it said is above".to_owned(),
                ));
            }
        }
        Ok(responder)
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns the run with the greatest rate that was sent on time and got results.
pub(crate) fn best(sweep: &Sweep) -> Option<&Run> {
    let is_good = |run: &&Run| !run.generator.was_bottleneck && answered(run) >= OK_SHARE_MIN;
    sweep
        .runs
        .iter()
        .filter(is_good)
        .max_by(|a, b| a.totals.offered_per_s.total_cmp(&b.totals.offered_per_s))
}

/// Describes the generator's limit in a sentence.
///
/// # Errors
/// [`Fault::Bottleneck`] if the limit is below `target_per_s`.
pub(crate) fn verdict(sweep: &Sweep, target_per_s: f64) -> Result<String, Fault> {
    let Some(run) = best(sweep) else {
        return Err(Fault::Bottleneck(
            "no rate was sent on time and answered; is the machine busy?".to_owned(),
        ));
    };
    let generator = &run.generator;
    let rate = run.totals.ok_per_s;
    let said = format!(
        "{} frames/s of {} field sent on time over {} connections by {} processes: {} us of CPU for each, {} cores, so {} \
         frames/s a core; 99 of 100 sends at most {} us behind their time",
        number(rate),
        run.classes.first().map_or(0, |class| class.fields),
        run.conditions.connections,
        run.conditions.processes,
        number(generator.us_per_call),
        number(generator.cpu_cores),
        number(rate / generator.cpu_cores.max(1e-3)),
        number(generator.lag_p99_us),
    );
    if run.totals.offered_per_s < target_per_s {
        return Err(Fault::Bottleneck(format!(
            "{said}; that is less than the {} asked for",
            number(target_per_s)
        )));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::{Figures, SWEEP};

    #[test]
    fn only_what_was_sent_on_time_and_answered_counts() {
        let run = |offered: f64, share: f64, was_bottleneck: bool| {
            let Ok(Figures::Run(mut run)) =
                Figures::parse(include_str!("../../report/src/results/run.json"))
            else {
                panic!()
            };
            (run.totals.offered_per_s, run.totals.ok_per_s) = (offered, offered * share);
            (run.conditions.duration_s, run.classes[0].sent) = (1.0, offered as u64);
            run.classes[0].ok = (offered * share) as u64;
            (run.generator.cpu_cores, run.generator.was_bottleneck) = (0.5, was_bottleneck);
            *run
        };
        let sweep = |runs: Vec<Run>| Sweep {
            schema: SWEEP.to_owned(),
            runs,
            knee: None,
        };
        let some = sweep(vec![
            run(1_000.0, 1.0, false),
            run(2_000.0, 0.9, false),
            run(4_000.0, 1.0, true),
        ]);
        assert!(
            verdict(&some, 1_000.0)
                .unwrap()
                .contains("so 2,000 frames/s a core")
        );
        assert!(matches!(verdict(&some, 1_001.0), Err(Fault::Bottleneck(_))));
        assert!(matches!(
            verdict(&sweep(vec![run(9.0, 1.0, true)]), 1.0),
            Err(Fault::Bottleneck(_))
        ));
    }
}
