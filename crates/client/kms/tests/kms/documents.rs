//! The configurations in documents and samples are valid, and the guide names what the program has.

use std::path::Path;

use sealwire_kms::config::parse;
use sealwire_kms::metrics::Metrics;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn examples_are_valid() {
    let guide = read("docs/kubernetes.md");
    let example = guide.split("```toml\n").nth(1).unwrap();
    let example = example.split_once("```").unwrap().0;
    for (place, text) in [
        ("docs/kubernetes.md", example),
        ("ops/kubernetes/kms.toml", &read("ops/kubernetes/kms.toml")),
    ] {
        parse(text, []).unwrap_or_else(|errors| panic!("{place}: {errors}"));
    }
}

#[test]
fn guides_name_metrics_and_paths() {
    let guide = read("docs/kubernetes.md");
    for metric in Metrics::docs() {
        let name = metric.name.trim_end_matches("_total");
        assert!(
            metric.kind == "info" || guide.contains(name),
            "docs/kubernetes.md does not name {name}"
        );
    }
    let sample = parse(&read("ops/kubernetes/kms.toml"), []).unwrap();
    let socket = format!("unix://{}", sample.plugin.socket.display());
    for path in [
        "docs/kubernetes.md",
        "ops/kubernetes/encryption-configuration.yaml",
    ] {
        assert!(
            read(path).contains(&socket),
            "{path} does not name {socket}"
        );
    }
}

#[test]
fn units_fit_the_default_limits() {
    let sample = parse(&read("ops/kubernetes/kms.toml"), []).unwrap();
    let unit = read("ops/systemd/sealwire-kms.service");
    let value = |key: &str| {
        let found = unit.lines().find_map(|line| line.strip_prefix(key));
        found
            .unwrap_or_else(|| panic!("{key} is missing"))
            .to_owned()
    };
    let seconds: u64 = value("TimeoutStopSec=").parse().unwrap();
    assert!(seconds * 1_000 > sample.limits.drain_ms);
    assert_eq!(value("RestartPreventExitStatus="), "64");
    assert_eq!(value("LimitCORE="), "0");
    let folder = format!("/run/{}", value("RuntimeDirectory="));
    assert_eq!(sample.plugin.socket.parent(), Some(Path::new(&folder)));
    assert_eq!(value("RuntimeDirectoryMode="), "0700");
}
