//! The log of programs without a filter per module: lines on standard error.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::prelude::*;

/// Starts the log. Lines are JSON objects or text. Lines below the level are dropped, and so are
/// lines of libraries below `warn`, because libraries log content at `debug`. `targets` names
/// targets of the program that do not begin with `sealwire`.
pub fn start(is_json: bool, level: LevelFilter, targets: &'static [&'static str]) {
    let ours = filter_fn(move |metadata| {
        *metadata.level() <= tracing::Level::WARN
            || metadata.target().starts_with("sealwire")
            || targets.contains(&metadata.target())
    });
    // Logging an internal error would panic if standard error is closed.
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let layer = if is_json {
        layer.json().flatten_event(true).boxed()
    } else {
        layer.boxed()
    };
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(ours).with_filter(level))
        .try_init();
}
