//! Metrics of the process, under Prometheus' standard names.
//!
//! The admin thread reads them from `/proc` at each scrape. On systems without `/proc` the series
//! stay at zero.

use std::fs;

use prometheus_client::metrics::gauge::Gauge;
use rustix::process::{Resource, getrlimit};
use sealwire_service::metrics;
use sealwire_service::metrics::{Gauge64, Seconds};

metrics! {
    /// The metrics of the process.
    pub(super) struct Process {
        /// User and system CPU time
        cpu: Seconds = "process_cpu_seconds_total";
        /// Start time, in seconds since 1970
        start: Gauge64 = "process_start_time_seconds";
        /// Resident memory
        resident: Gauge = "process_resident_memory_bytes";
        /// Virtual memory
        virtual_bytes: Gauge = "process_virtual_memory_bytes";
        /// Threads
        threads: Gauge = "process_threads";
        /// Open file descriptors
        open_fds: Gauge = "process_open_fds";
        /// Maximum open file descriptors; a connection takes one
        max_fds: Gauge = "process_max_fds";
    }
}

impl Process {
    /// Reads the current values from `/proc`. If a file cannot be read, its last values stay.
    pub(super) fn update(&self) {
        if let Some(stat) = fs::read_to_string("/proc/self/stat")
            .ok()
            .as_deref()
            .and_then(Stat::parse)
        {
            let ticks = rustix::param::clock_ticks_per_second() as f64;
            let cpu = stat.cpu_ticks as f64 / ticks;
            // The system's count never falls, but a concurrent scrape can already have set a later
            // value.
            self.cpu.inc_by((cpu - self.cpu.get()).max(0.0));
            self.threads.set(stat.threads);
            self.virtual_bytes.set(stat.virtual_bytes);
            self.resident.set(
                stat.resident_pages
                    .saturating_mul(rustix::param::page_size() as i64),
            );
            if let Some(boot) = fs::read_to_string("/proc/stat")
                .ok()
                .as_deref()
                .and_then(boot_seconds)
            {
                self.start.set(boot + stat.start_ticks as f64 / ticks);
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // The descriptor that reads the folder is not counted.
            self.open_fds
                .set(i64::try_from(open.count()).unwrap_or(i64::MAX) - 1);
        }
        let max = getrlimit(Resource::Nofile).current;
        self.max_fds.set(
            max.and_then(|max| i64::try_from(max).ok())
                .unwrap_or(i64::MAX),
        );
    }
}

/// Some fields of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: i64,
    start_ticks: u64,
    virtual_bytes: i64,
    resident_pages: i64,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The second field is the program's name, which may hold anything but ends with the last
        // parenthesis.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let user_ticks: u64 = parse_field(&fields, 14)?;
        let system_ticks: u64 = parse_field(&fields, 15)?;

        Some(Self {
            cpu_ticks: user_ticks.checked_add(system_ticks)?,
            threads: parse_field(&fields, 20)?,
            start_ticks: parse_field(&fields, 22)?,
            virtual_bytes: parse_field(&fields, 23)?,
            resident_pages: parse_field(&fields, 24)?,
        })
    }
}

/// Parses a field by its number in proc(5), which counts from 1. The first field after the name
/// has the number 3.
fn parse_field<T: std::str::FromStr>(fields: &[&str], number: usize) -> Option<T> {
    fields.get(number - 3)?.parse().ok()
}

/// Returns the start time of the machine from `/proc/stat`, in seconds since 1970.
fn boot_seconds(text: &str) -> Option<f64> {
    text.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_parses_names_with_spaces_and_parentheses() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194560 900 0 2 0 120 30 0 0 20 0 9 0 5000 104857600 2560 18446744073709551615";
        let expected = Stat {
            cpu_ticks: 150,
            threads: 9,
            start_ticks: 5_000,
            virtual_bytes: 104_857_600,
            resident_pages: 2_560,
        };
        assert_eq!(Stat::parse(text), Some(expected));
        for broken in [
            "",
            "7 (a",
            "7 (a) S 1 2",
            "7 (a) S 1 7 7 0 -1 4194560 900 0 2 0 x 30 0 0 20 0 9 0 5000 1 2",
        ] {
            assert_eq!(Stat::parse(broken), None, "{broken}");
        }
        assert_eq!(
            boot_seconds("cpu 1 2\nbtime 1700000000\nprocesses 5\n"),
            Some(1_700_000_000.0)
        );
        assert_eq!(boot_seconds("cpu 1 2\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn process_metrics_measure_this_process() {
        let process = Process::register(&mut sealwire_service::metrics::Registrar::default());
        let file = fs::File::open("/proc/self/stat").unwrap();
        process.update();
        let before = process.open_fds.get();
        assert!(
            process.resident.get() > 1 << 20
                && process.virtual_bytes.get() >= process.resident.get()
        );
        assert!(process.threads.get() >= 1 && before >= 4 && process.max_fds.get() >= before);
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        assert!(
            process.start.get() > 1e9 && process.start.get() <= now + 1.0,
            "{}",
            process.start.get()
        );
        let cpu = process.cpu.get();
        process.update();
        assert!(process.cpu.get() >= cpu);
        drop(file);
    }
}
