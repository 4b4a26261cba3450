//! Bodies of the fuzz targets. Each body takes bytes and ends with assertions.
//!
//! `fuzz` runs the bodies under libFuzzer. The tests of this crate run every committed seed, so
//! they fail if a target no longer accepts its seeds.

#![expect(
    clippy::missing_panics_doc,
    reason = "a target reports a finding by a panic"
)]

mod access_record;
mod audit;
mod config;
mod copy_job;
mod csv_job;
mod envelope;
mod evervault;
mod grant;
mod http_params;
mod input;
mod job;
mod json;
mod json_job;
mod jwt;
mod key_import;
mod mask;
mod metadata;
mod number;
mod object;
mod parquet_job;
mod pem;
mod principal;
mod public_keys;
mod relay_body;
mod reply;
mod scan;
mod seed;
mod share;
mod splice;
mod state;
mod token_row;
mod trail;
mod walk;

pub use input::Input;
pub use seed::Seed;

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct FuzzTarget {
    /// The name of its program in `fuzz`.
    pub name: &'static str,
    /// Runs one input. Panics when the input shows a defect.
    pub run: fn(&[u8]),
    /// Creates the seeds.
    pub seeds: fn() -> Vec<Seed>,
    /// Lists the words of its dictionary.
    pub words: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($module:ident),+ $(,)?) => {
        /// All targets by name.
        pub const TARGETS: &[FuzzTarget] = &[$(FuzzTarget {
            name: stringify!($module),
            run: $module::check_input,
            seeds: $module::make_seeds,
            words: $module::dictionary_words,
        }),+];
    };
}

targets!(
    access_record,
    audit,
    config,
    copy_job,
    csv_job,
    envelope,
    evervault,
    grant,
    http_params,
    json,
    json_job,
    jwt,
    key_import,
    mask,
    metadata,
    number,
    object,
    parquet_job,
    pem,
    principal,
    public_keys,
    relay_body,
    reply,
    scan,
    share,
    splice,
    state,
    token_row,
    trail,
    walk,
);

/// Runs one input of the target with this name.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS
        .iter()
        .find(|target| target.name == name)
        .expect("a target of TARGETS");
    (target.run)(input);
}
