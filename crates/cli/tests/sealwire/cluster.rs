//! Tests of several engines on one PostgreSQL, as separate processes, from a client's view:
//! agreement, kills, losses.
//!
//! The database is a throw-away server with fsync on, the engines are the built program, and
//! clients use real mTLS.

mod access;
mod agreement;
mod alerts;
mod dump;
mod engines;
mod kills;
mod ledger;
mod loss;
mod moving;
mod objects;
mod outages;
mod planes;
mod root_kills;
mod roots;
mod sweeps;
mod tampering;
