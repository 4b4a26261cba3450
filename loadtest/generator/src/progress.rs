//! Progress output while a load runs: one line per second on standard error, printed by a separate
//! thread.

use std::io::Write as _;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::response_checker::Recent;
use crate::table::{number, time};

/// Progress in the last second.
pub(crate) struct ProgressSample {
    /// Seconds since the start of the measurement window; negative during warm-up.
    pub(crate) t_s: f64,
    /// Requests without a response yet.
    pub(crate) under_way: u64,
    pub(crate) recent: Recent,
}

/// The sender of progress to the printing thread.
pub(crate) struct Live(Sender<ProgressSample>);

impl Live {
    /// Starts the printing thread. The thread ends when the sender is dropped.
    pub(crate) fn start() -> (Self, JoinHandle<()>) {
        let (sender, moments) = channel::<ProgressSample>();
        let printer = std::thread::spawn(move || {
            // A closed standard error must not stop a load.
            moments
                .iter()
                .for_each(|moment| drop(writeln!(std::io::stderr(), "{}", line(&moment))));
        });
        (Self(sender), printer)
    }

    /// Sends progress to the printing thread. Never blocks.
    pub(crate) fn tell(&self, moment: ProgressSample) {
        let _ = self.0.send(moment);
    }
}

fn line(moment: &ProgressSample) -> String {
    let Recent {
        ok,
        errors,
        latency,
    } = &moment.recent;
    let phase = if moment.t_s < 0.0 { " (warm-up)" } else { "" };
    format!(
        "{:7.1} s  {} ok/s  {errors} errors  p50 {}  p99 {}  {} under way{phase}",
        moment.t_s,
        number(*ok as f64),
        time(latency.quantile_us(0.5)),
        time(latency.quantile_us(0.99)),
        moment.under_way,
    )
}
