//! What every program of Sealwire needs: files that can be trusted, standard output, and spans.

pub mod output;
pub mod output_file;
pub mod spans;
pub mod trusted_file;
