//! A relay in front of an upstream, with a real engine: values are replaced on both wires, and
//! nothing else changes.

mod bodies;
mod clients;
mod egress;
mod envoy;
mod ext_proc;
mod failures;
mod faults;
mod fronts;
mod oracle;
mod places;
#[allow(dead_code, reason = "the relay's own tests use the rest")]
#[path = "../../../relay/relay/tests/relay/processor.rs"]
mod processor;
mod sessions;
pub(crate) mod site;
mod traces;
