//! What every program of Sealwire needs: files that can be trusted, standard output, metrics, and
//! spans.

pub mod metrics;
pub mod output;
pub mod spans;
pub mod trusted_file;
