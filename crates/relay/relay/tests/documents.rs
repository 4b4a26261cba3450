//! The configurations in documents and samples are valid.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use sealwire_relay::config::{compile, parse};
use sealwire_relay::metrics::Metrics;

fn read(path: &str) -> String {
    std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../..")
            .join(path),
    )
    .unwrap()
}

fn is_valid(place: &str, text: &str) {
    let config = parse(text, []).unwrap_or_else(|error| panic!("{place}: {error}"));
    let compiled = compile(&config).unwrap_or_else(|errors| panic!("{place}: {errors:?}"));
    assert!(
        compiled.warnings.is_empty(),
        "{place}: {:?}",
        compiled.warnings
    );
}

#[test]
fn examples_of_the_guide_are_valid() {
    let guide = read("docs/relay.md");
    let blocks: Vec<&str> = guide
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split_once("```").unwrap().0)
        .collect();
    assert!(blocks.len() >= 3, "the guide has {} examples", blocks.len());
    // Later examples leave out the engine, which is the first table of the first one.
    let engine = blocks[0].split_once("[listen").unwrap().0;
    for (at, block) in blocks.iter().enumerate() {
        let engine = if at == 0 { "" } else { engine };
        is_valid(&format!("example {}", at + 1), &format!("{engine}{block}"));
    }
}

#[test]
fn the_sample_is_valid() {
    is_valid("ops/relay/relay.toml", &read("ops/relay/relay.toml"));
}

#[test]
fn the_guide_names_every_metric() {
    let guide = read("docs/operators/relay-run.md");
    let metrics = Metrics::docs();
    assert!(metrics.len() >= 15, "{metrics:?}");
    // The guide names the family.
    for metric in metrics.iter().filter(|metric| metric.kind != "info") {
        let name = metric.name.trim_end_matches("_total");
        assert!(
            guide.contains(name),
            "docs/operators/relay-run.md does not name {name}"
        );
    }
}
