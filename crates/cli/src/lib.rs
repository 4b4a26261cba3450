//! The `sealwire` program: commands, checks of an installation, and process-level support for an
//! engine.

mod commands;
mod doctor;
mod systemd;

pub use commands::run;
