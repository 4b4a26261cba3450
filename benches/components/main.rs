//! Criterion benches of each crate, and of the engine end to end.
//!
//! `cargo bench -p sealwire-benches --bench components -- FILTER` runs the benches whose name
//! matches; `cargo test` runs each once. A server, a database or an engine is started only by a
//! bench that passes the filter.

mod access;
mod crypto;
mod masks;
mod objects;
mod payload;
mod schedule;
mod server;
mod store;
mod wire;

fn main() {
    let mut criterion = sealwire_benches::criterion();
    crypto::benches(&mut criterion);
    payload::benches(&mut criterion);
    wire::benches(&mut criterion);
    masks::benches(&mut criterion);
    objects::benches(&mut criterion);
    schedule::benches(&mut criterion);
    access::benches(&mut criterion);
    store::benches(&mut criterion);
    server::benches(&mut criterion);
    criterion.final_summary();
}
