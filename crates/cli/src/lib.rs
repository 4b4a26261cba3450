//! The `sealwire` program: commands, checks of an installation, and what a process needs around an engine.

mod commands;
mod core_dumps;
mod doctor;
mod systemd;

pub use commands::run;
