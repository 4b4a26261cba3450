//! Statistics of a simulation.

use crate::request::Gauges;

/// Requests of one group and size.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClassRow {
    pub(crate) offered: u64,
    pub(crate) offered_work: u64,
    /// Admitted without a wait.
    pub(crate) at_once: u64,
    /// Rejected by the core.
    pub(crate) rejected_read: u64,
    /// Rejected by the core, or unread in the pause of its connection.
    pub(crate) rejected: u64,
    /// Part of these that was rejected for the second time.
    pub(crate) rejected_twice: u64,
    /// Not done in time.
    pub(crate) late: u64,
    pub(crate) done_work: u64,
    /// Longest wait of an admitted request for its first slice, in ns.
    pub(crate) waited_max: u64,
    /// Requests rejected after they waited for twice their bound.
    pub(crate) expired: u64,
    /// Requests that the network thread ran itself.
    pub(crate) inline: u64,
    latencies: Vec<u64>,
}

impl ClassRow {
    pub(crate) fn finish(&mut self, latency: u64) {
        self.latencies.push(latency);
    }

    pub(crate) fn done(&self) -> u64 {
        self.latencies.len() as u64
    }

    /// A quantile of the latency, in ms; infinite if none finished.
    pub(crate) fn ms(&self, quantile: f64) -> f64 {
        match self.latencies.len() {
            0 => f64::INFINITY,
            count => self.latencies[(count as f64 * quantile) as usize % count] as f64 / 1e6,
        }
    }

    pub(crate) fn max_ms(&self) -> f64 {
        self.latencies
            .last()
            .map_or(f64::INFINITY, |max| *max as f64 / 1e6)
    }

    /// Peaks of the latency's histogram: 8 bins a decade, smoothed twice with 1 2 1; a peak has at
    /// least 1 % of all and a valley of less than half its height to the next.
    pub(crate) fn modes(&self) -> usize {
        let mut bins = vec![0.0; 12 * 8];
        for latency in &self.latencies {
            bins[((*latency as f64).log10() * 8.0) as usize] += 1.0 / self.latencies.len() as f64;
        }
        for _ in 0..2 {
            let at = |i: usize| bins.get(i).copied().unwrap_or(0.0);
            bins = (0..bins.len())
                .map(|i| (at(i.wrapping_sub(1)) + 2.0 * at(i) + at(i + 1)) / 4.0)
                .collect();
        }
        let (mut modes, mut peak, mut valley) = (0, 0.0_f64, 0.0_f64);
        for height in bins {
            if height < valley {
                valley = height;
            }
            if height > peak && (modes > 0 || height >= 0.01) {
                // Still climbing the same hill, or the first.
                (modes, peak, valley) = (modes.max(1), height, height);
            } else if height >= 0.01 && valley < 0.5 * height.min(peak) {
                (modes, peak, valley) = (modes + 1, height, height);
            }
        }
        modes
    }
}

/// Statistics of one run.
#[derive(Clone, Debug)]
pub(crate) struct SimulationReport {
    /// By group, then by size.
    pub(crate) rows: Vec<Vec<ClassRow>>,
    /// Most work admitted and not done, in ns.
    pub(crate) backlog_max: u64,
    /// Times a worker found nothing to do while a request waited.
    pub(crate) idle_while_waiting: u64,
    pub(crate) last: Gauges,
    /// By group, when the estimates of a tenant were last corrected by more than a fifth, in ns.
    pub(crate) corrected_until: Vec<u64>,
    /// Estimates of the model over what they were at first: least, most and at the end.
    pub(crate) drift: [f64; 3],
    capacity: f64,
}

impl SimulationReport {
    pub(crate) fn new(groups: usize, sizes: usize, millis: u64, workers: usize) -> Self {
        Self {
            rows: vec![vec![ClassRow::default(); sizes]; groups],
            backlog_max: 0,
            idle_while_waiting: 0,
            last: Gauges::default(),
            corrected_until: vec![0; groups],
            drift: [1.0; 3],
            capacity: millis as f64 * 1e6 * workers as f64,
        }
    }

    pub(crate) fn finish(&mut self, last: Gauges) {
        self.last = last;
        self.rows
            .iter_mut()
            .flatten()
            .for_each(|row| row.latencies.sort_unstable());
    }

    pub(crate) fn row(&self, group: usize, size: usize) -> &ClassRow {
        &self.rows[group][size]
    }

    /// Prints a group: name, then per size the requests done, p50 and p99 in ms, rejected in percent.
    pub(crate) fn show(&self, name: &str, group: usize) {
        let mut line = format!("{name:44}");
        for (row, part) in self.rows[group].iter().zip(self.proportions(group)) {
            let rejected = 100.0 * row.rejected as f64 / row.offered.max(1) as f64;
            let (p50, p99, done) = (row.ms(0.5), row.ms(0.99), row.done());
            line += &format!("|{done:7} {p50:8.2} {p99:8.2} {rejected:3.0}% {part:.2} ");
        }
        println!("{line}| {:.1} %", 100.0 * self.goodput(group));
    }

    /// Returns the work of a group that finished in time, as a fraction of the capacity.
    pub(crate) fn goodput(&self, group: usize) -> f64 {
        self.rows[group]
            .iter()
            .map(|row| row.done_work)
            .sum::<u64>() as f64
            / self.capacity
    }

    /// Of all groups.
    pub(crate) fn goodput_all(&self) -> f64 {
        (0..self.rows.len()).map(|group| self.goodput(group)).sum()
    }

    /// Returns, for each size, its fraction of the work done divided by its fraction of the work
    /// offered.
    pub(crate) fn proportions(&self, group: usize) -> Vec<f64> {
        let sum = |of: fn(&ClassRow) -> u64| self.rows[group].iter().map(of).sum::<u64>() as f64;
        let (done, offered) = (sum(|row| row.done_work), sum(|row| row.offered_work));
        self.rows[group]
            .iter()
            .map(|row| row.done_work as f64 / done / (row.offered_work as f64 / offered))
            .collect()
    }

    pub(crate) fn rejected_read(&self, group: usize) -> u64 {
        self.rows[group].iter().map(|row| row.rejected_read).sum()
    }
}
