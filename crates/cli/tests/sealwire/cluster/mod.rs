//! Several engines on one PostgreSQL, each a process of its own, and what their callers see: agreement, kills, loss.
//!
//! The database is a throw-away one with fsync on, the engines are the built program, and callers use real mTLS.

mod access;
mod agreement;
mod dump;
mod engines;
mod kills;
mod ledger;
mod loss;
mod moving;
mod planes;
mod sweeps;
