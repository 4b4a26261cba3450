//! Discovery in a Parquet file or object.

use std::path::Path;

use sealwire_discover::{DiscoverOptions, Discovery, Trial, column_trial};

use crate::mask_job::error::JobError;
use crate::mask_job::output::Input;
use crate::mask_job::parquet::sample::{FileSamples, sample};
use crate::mask_job::report::Progress;

/// Samples a Parquet file or object and proposes rules that a job accepts. Only parts of large
/// files are read; [`sample`] defines the limits.
pub(super) fn discover_parquet(
    input: &Input,
    options: DiscoverOptions,
    trial: Trial<'_>,
    progress: &Progress,
) -> Result<Discovery, JobError> {
    let FileSamples {
        samples,
        is_whole,
        note,
    } = sample(input, options, progress)?;
    let name = input.name();
    let table = Path::new(&name)
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    let decided = samples.judge(&table).decide(Some(&mut column_trial(trial)));
    let mut discovery = decided.unwrap_or_else(|never| match never {});
    discovery.read_whole = is_whole;
    discovery.notes.splice(0..0, note);
    Ok(discovery)
}
