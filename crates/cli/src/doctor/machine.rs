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
pub(super) fn check_cpu(report: &mut Report) {
    const CHECK: &str = "processor";
    #[cfg(target_arch = "x86_64")]
    let instructions = x86_instructions();
    #[cfg(target_arch = "aarch64")]
    let instructions = std::arch::is_aarch64_feature_detected!("aes").then_some("ARMv8 AES");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let instructions: Option<&str> = None;
    match instructions {
        Some(instructions) => report.add_good(CHECK, format!("it has {instructions}")),
        None => report.add_warning(
            CHECK,
            "it has no instructions for AES, or the hypervisor hides them",
            "each field takes several times the CPU time",
            "run on another machine, or pass the host's processor type to the virtual machine",
        ),
    }
}

/// Returns the names of the instructions for AES and GCM, if the processor has them.
#[cfg(target_arch = "x86_64")]
fn x86_instructions() -> Option<&'static str> {
    let has_aes = std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    let has_vaes = std::arch::is_x86_feature_detected!("vaes");
    has_aes.then_some(if has_vaes { "AES-NI, VAES" } else { "AES-NI" })
}

/// Checks that random numbers are available without waiting.
pub(super) fn check_entropy(report: &mut Report) {
    const CHECK: &str = "entropy";
    let mut drawn = [[0_u8; 32]; 2];
    let bytes = drawn.each_mut().map(|into| {
        rustix::rand::getrandom(into, rustix::rand::GetRandomFlags::NONBLOCK).unwrap_or(0)
    });
    if bytes == [32, 32] && drawn[0] != drawn[1] {
        report.add_good(CHECK, "the system's random source is seeded");
    } else {
        report.add_problem(
            CHECK,
            "the system's random source is not ready",
            "the creation of keys would wait for it",
            "wait until the machine has started; give a virtual machine a virtio-rng device",
        );
    }
}

/// Checks that a crash cannot write this program's memory to a file.
pub(super) fn check_core_dumps(report: &mut Report) {
    const CHECK: &str = "core dumps";
    core_dumps::forbid();
    if core_dumps::are_forbidden() {
        report.add_good(CHECK, "this program disables its own");
    } else {
        report.add_problem(
            CHECK,
            "they could not be disabled",
            "a crash would write keys to a file, or to the program that collects dumps",
            "set LimitCORE=0 in the unit, and allow prctl(PR_SET_DUMPABLE)",
        );
    }
}

/// Checks that memory cannot be swapped to a plain disk.
pub(super) fn check_swap(report: &mut Report) {
    const CHECK: &str = "swap";
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let used: Vec<&str> = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    match swapped_to_disk(&used) {
        None if used.is_empty() => report.add_good(CHECK, "this machine has no swap space"),
        None => report.add_good(
            CHECK,
            "all swap devices are compressed memory or mapped devices, such as encrypted ones",
        ),
        Some(device) => report.add_warning(
            CHECK,
            format!("{device} is a swap device that may be unencrypted"),
            "keys and values in memory can be written there, and stay after the program has ended",
            "disable it with `swapoff`, set MemorySwapMax=0 in the unit, or encrypt the device",
        ),
    }
}

/// Returns the first swap device that is neither compressed memory nor a mapped device. Encrypted
/// swap is a mapped device.
fn swapped_to_disk<'a>(devices: &[&'a str]) -> Option<&'a str> {
    devices
        .iter()
        .copied()
        .find(|device| !is_memory_or_mapped(device))
}

fn is_memory_or_mapped(device: &str) -> bool {
    ["/dev/zram", "/dev/mapper/", "/dev/dm-"]
        .into_iter()
        .any(|prefix| device.starts_with(prefix))
}

/// Checks that the clock is plausible.
pub(super) fn check_clock(report: &mut Report) {
    const CHECK: &str = "clock";
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    if now >= BUILT_AFTER_S {
        report.add_good(CHECK, "it shows a time after this program was built");
    } else {
        report.add_problem(
            CHECK,
            "it shows a time before this program was built",
            "certificates are rejected, and tokens expire at the wrong time",
            "set the clock, and synchronize it by NTP: `timedatectl`",
        );
    }
}

/// Checks that enough file descriptors are allowed for the configured connections.
pub(super) fn check_file_descriptors(
    report: &mut Report,
    config: &Config,
    engine: Option<&RunningEngine>,
) {
    const CHECK: &str = "file descriptors";
    let wanted = config.limits.connections_max as u64 + FDS_BESIDE;
    let (whose, has) = match engine.and_then(|engine| engine.max_fds) {
        Some(has) => ("the running engine", has),
        // An engine raises its soft limit to the maximum at its start.
        None => (
            "an engine started from this shell",
            getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
        ),
    };
    let what = format!("{whose} can open {has}, and limits.connections_max needs {wanted}");
    if has >= wanted {
        report.add_good(CHECK, what);
    } else {
        let why = "the engine stops accepting connections before limits.connections_max is reached";
        let remedy = format!(
            "set LimitNOFILE={wanted} in the unit or run `ulimit -n {wanted}` in the shell, or lower limits.connections_max"
        );
        if engine.is_some() {
            report.add_problem(CHECK, what, why, remedy)
        } else {
            report.add_warning(CHECK, what, why, remedy)
        }
    }
}

/// Checks that the machine has the memory that the configuration allows requests.
pub(super) fn check_memory(report: &mut Report, config: &Config) {
    const CHECK: &str = "memory";
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .as_deref()
        .and_then(total_kib)
        .map(|kib| kib << 10);
    let group = fs::read_to_string("/sys/fs/cgroup/memory.max")
        .ok()
        .and_then(|text| text.trim().parse::<u64>().ok());
    let Some(has) = machine.into_iter().chain(group).min() else {
        return report.add_good(CHECK, "this system does not report its memory");
    };
    // The HTTP listener can hold as much again.
    let (holders, settings) = match config.http.address {
        Some(_) => (2, "schedule.memory_mib and http.address let"),
        None => (1, "schedule.memory_mib lets"),
    };
    let wanted = config.schedule.memory_bytes() * holders;
    let what = format!(
        "this process can use {} MiB, and {settings} requests hold {} MiB",
        has >> 20,
        wanted >> 20
    );
    let why = "the operating system kills a process that uses more memory than that";
    let remedy = format!(
        "set schedule.memory_mib to at most {}, or add memory",
        ((has >> 21) / holders).max(1)
    );
    if wanted > has {
        report.add_problem(CHECK, what, why, remedy);
    } else if wanted > has / 4 * 3 {
        report.add_warning(CHECK, what, why, remedy);
    } else {
        report.add_good(CHECK, what);
    }
}

/// Returns the memory of the machine from the text of `/proc/meminfo`, in KiB.
fn total_kib(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
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
