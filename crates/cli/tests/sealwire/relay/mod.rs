//! A relay in front of an upstream, with a real engine: values are replaced on both wires, and nothing else changes.

mod bodies;
mod clients;
mod egress;
mod envoy;
mod failures;
mod faults;
mod fronts;
mod places;
mod sessions;
mod site;
mod traces;
