//! Checks of the machine: processor, random numbers, clock, process limits, memory and swap.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};

use super::Report;
use super::engine::RunningEngine;
use sealwire_service::core_dumps;
use sealwire_settings::Config;

/// File descriptors that are not for connections: listeners, the store, open files, the runtimes.
const FDS_BESIDE: u64 = 256;
/// 2026-01-01. This program is newer, so an earlier clock is wrong.
const BUILT_AFTER_S: u64 = 1_767_225_600;

/// Processor instructions that make the cryptography fast.
pub(super) fn cpu(report: &mut Report) {
    const CHECK: &str = "processor";
    #[cfg(target_arch = "x86_64")]
    let (aes, more) = (
        std::arch::is_x86_feature_detected!("aes")
            && std::arch::is_x86_feature_detected!("pclmulqdq"),
        if std::arch::is_x86_feature_detected!("vaes") {
            "AES-NI, VAES"
        } else {
            "AES-NI"
        },
    );
    #[cfg(target_arch = "aarch64")]
    let (aes, more) = (std::arch::is_aarch64_feature_detected!("aes"), "ARMv8 AES");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (aes, more) = (false, "");
    if aes {
        report.good(CHECK, format!("it has {more}"));
    } else {
        report.warn(
            CHECK,
            "it has no instructions for AES, or does not show them",
            "a field takes several times the CPU",
            "run on another machine, or let the virtual machine see its host's processor",
        );
    }
}

/// Checks that random numbers are available without waiting.
pub(super) fn entropy(report: &mut Report) {
    const CHECK: &str = "entropy";
    let mut drawn = [[0_u8; 32]; 2];
    let draw =
        |into: &mut [u8; 32]| rustix::rand::getrandom(into, rustix::rand::GetRandomFlags::NONBLOCK);
    let bytes = drawn.each_mut().map(|into| draw(into).unwrap_or(0));
    if bytes == [32, 32] && drawn[0] != drawn[1] {
        report.good(CHECK, "the system's random source is seeded");
    } else {
        report.wrong(
            CHECK,
            "the system's random source is not ready",
            "keys would wait for it, or be guessable",
            "wait until the machine has started; give a virtual machine a virtio-rng device",
        );
    }
}

/// Checks that a crash cannot write this program's memory to a file.
pub(super) fn core_dumps(report: &mut Report) {
    const CHECK: &str = "core dumps";
    core_dumps::forbid();
    if core_dumps::are_forbidden() {
        report.good(CHECK, "this program switches its own off");
    } else {
        report.wrong(
            CHECK,
            "they could not be switched off",
            "a crash would write keys to a file, or to the program that collects dumps",
            "set LimitCORE=0 in the unit, and allow prctl(PR_SET_DUMPABLE)",
        );
    }
}

/// Checks that memory cannot be swapped to a plain disk.
pub(super) fn swap(report: &mut Report) {
    const CHECK: &str = "swap";
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let used: Vec<&str> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    match swapped_to_disk(&used) {
        None if used.is_empty() => report.good(CHECK, "there is none"),
        None => report.good(
            CHECK,
            "what there is stays in memory, or is encrypted by name",
        ),
        Some(device) => report.warn(
            CHECK,
            format!("{device} is swapped to"),
            "keys and values in memory may be written there, and stay after the program has ended",
            "`swapoff`, MemorySwapMax=0 in the unit, or encrypt it",
        ),
    }
}

/// Returns the first swap device that is neither compressed memory nor a mapped device. Encrypted
/// swap is a mapped device.
fn swapped_to_disk<'a>(devices: &[&'a str]) -> Option<&'a str> {
    let fine = |device: &str| {
        device.starts_with("/dev/zram")
            || device.starts_with("/dev/mapper/")
            || device.starts_with("/dev/dm-")
    };
    devices.iter().copied().find(|device| !fine(device))
}

/// Checks that the clock is plausible.
pub(super) fn clock(report: &mut Report) {
    const CHECK: &str = "clock";
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    if now >= BUILT_AFTER_S {
        report.good(CHECK, "it is later than this program");
    } else {
        report.wrong(
            CHECK,
            "it stands before the time that this program was made",
            "certificates are refused, and tokens expire at the wrong time",
            "set it, and keep it right by NTP: `timedatectl`",
        );
    }
}

/// Checks that enough file descriptors are allowed for the configured connections.
pub(super) fn file_descriptors(
    report: &mut Report,
    config: &Config,
    engine: Option<&RunningEngine>,
) {
    const CHECK: &str = "file descriptors";
    let wanted = config.limits.connections_max as u64 + FDS_BESIDE;
    let (whose, has) = match engine.and_then(|engine| engine.max_fds) {
        Some(has) => ("the engine that runs", has),
        // An engine raises its soft limit to the maximum at its start.
        None => (
            "an engine of this shell",
            getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
        ),
    };
    let what = format!("{whose} may open {has}, and limits.connections_max needs {wanted}");
    if has >= wanted {
        report.good(CHECK, what);
    } else {
        let why = "the engine stops accepting connections before its own limit says so";
        let remedy = format!(
            "LimitNOFILE={wanted} in the unit, `ulimit -n {wanted}` in a shell, or fewer connections"
        );
        if engine.is_some() {
            report.wrong(CHECK, what, why, remedy)
        } else {
            report.warn(CHECK, what, why, remedy)
        }
    }
}

/// Checks that the machine has the memory that the configuration allows requests.
pub(super) fn memory(report: &mut Report, config: &Config) {
    const CHECK: &str = "memory";
    let kib = |text: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().trim_end_matches(" kB").parse::<u64>().ok()
    };
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .as_deref()
        .and_then(kib)
        .map(|kib| kib << 10);
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let Some(has) = machine.into_iter().chain(group).min() else {
        return report.good(CHECK, "this system does not say how much there is");
    };
    let wanted = config.schedule.memory_bytes();
    let what = format!(
        "there are {} MiB, and schedule.memory_mib lets calls hold {}",
        has >> 20,
        wanted >> 20
    );
    let why = "the system ends a process that takes more than there is, in the middle of its calls";
    if wanted > has {
        report.wrong(
            CHECK,
            what,
            why,
            format!(
                "schedule.memory_mib = {}, or more memory",
                (has >> 21).max(1)
            ),
        );
    } else if wanted > has / 4 * 3 {
        report.warn(
            CHECK,
            what,
            why,
            format!(
                "schedule.memory_mib = {}, or more memory",
                (has >> 21).max(1)
            ),
        );
    } else {
        report.good(CHECK, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_swap_on_a_plain_disk_is_said() {
        for (devices, said) in [
            (&[][..], None),
            (&["/dev/zram0", "/dev/dm-1", "/dev/mapper/swap"], None),
            (&["/dev/zram0", "/dev/sda2"], Some("/dev/sda2")),
            (&["/swapfile"], Some("/swapfile")),
        ] {
            assert_eq!(swapped_to_disk(devices), said, "{devices:?}");
        }
    }
}
