//! One line that says how far a job is, for a person at a terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::report::{Moment, Progress};

const EVERY: Duration = Duration::from_millis(200);

/// Draws on standard error until it is dropped, and leaves nothing there. Nothing at all where that is no terminal. Runs as
/// long as `job` and gives what it gives; safe to drop midway.
pub async fn with_progress_bar<T>(progress: Arc<Progress>, job: impl Future<Output = T>) -> T {
    if !io::stderr().is_terminal() {
        return job.await;
    }
    let begun = Instant::now();
    let mut job = std::pin::pin!(job);
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let _line = Line;
    loop {
        tokio::select! {
            biased;
            outcome = &mut job => return outcome,
            _ = ticks.tick() => draw(&line(progress.moment(), begun.elapsed())),
        }
    }
}

/// Clears the line when the job ends, however it does.
struct Line;

impl Drop for Line {
    fn drop(&mut self) {
        draw("");
    }
}

fn draw(text: &str) {
    // A terminal that is gone is no reason to end a job.
    let _ = write!(io::stderr(), "\r{text}\x1b[K");
    let _ = io::stderr().flush();
}

/// `42 %  430 MB of 1.0 GB  120 MB/s  210,000 rows/s  5 s left`.
fn line(moment: Moment, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(0.001);
    let done = match (moment.bytes_all, moment.records_all) {
        (0, 0) => None,
        (0, all) => Some(moment.records as f64 / all as f64),
        (all, _) => Some(moment.bytes as f64 / all as f64),
    };
    let mut text = String::new();
    if let Some(done) = done {
        // An estimate may fall short of what there is.
        let _ = write!(text, "{:3.0} %  ", (done * 100.0).min(99.0));
    }
    text.push_str(&bytes(moment.bytes as f64));
    if moment.bytes_all > 0 {
        let _ = write!(text, " of {}", bytes(moment.bytes_all as f64));
    }
    let _ = write!(text, "  {}/s  {:.0} rows/s", bytes(moment.bytes as f64 / seconds), moment.records as f64 / seconds);
    if let Some(done) = done.filter(|done| (0.001..1.0).contains(done)) {
        let left = (seconds / done - seconds).ceil() as u64;
        let _ = match left {
            ..120 => write!(text, "  {left} s left"),
            120..7_200 => write!(text, "  {} min left", left / 60),
            _ => write!(text, "  {} h left", left / 3_600),
        };
    }
    text
}

fn bytes(count: f64) -> String {
    match count {
        ..1e6 => format!("{:.0} kB", count / 1e3),
        1e6..1e9 => format!("{:.0} MB", count / 1e6),
        _ => format!("{:.1} GB", count / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_what_is_known() {
        let check = |bytes, bytes_all, records, records_all, seconds, expected: &str| {
            let moment = Moment { bytes, bytes_all, records, records_all };
            assert_eq!(line(moment, Duration::from_secs(seconds)), expected);
        };
        check(0, 1_000_000_000, 0, 0, 0, "  0 %  0 kB of 1.0 GB  0 kB/s  0 rows/s");
        check(500_000_000, 1_000_000_000, 10, 0, 5, " 50 %  500 MB of 1.0 GB  100 MB/s  2 rows/s  5 s left");
        check(2_000, 0, 10, 0, 1, "2 kB  2 kB/s  10 rows/s");
        check(2_000, 0, 250, 1_000, 300, " 25 %  2 kB  0 kB/s  1 rows/s  15 min left");
        check(2_000, 0, 2_000, 1_000, 2, " 99 %  2 kB  1 kB/s  1000 rows/s");
    }
}
