//! Audit records of control requests. A record names the principal and the change and never
//! contains a private key.

use sealwire_audit::{Change, Record};
use sealwire_wire::control::{
    AppOperation, CollectionOperation, Control, Kind, PrincipalOperation, RoleOperation,
    RootOperation,
};
use sealwire_wire::{ErrorCode, RpcError};
use tokio::time::Instant;

use super::ControlService;
use sealwire_access::Principal;
use sealwire_engine::access::RequestTarget;
use sealwire_engine::audit::{Recording, kind};
use sealwire_telemetry::metrics::{MethodLabel, ResponseCode};

/// Result of a control request.
#[derive(Debug, Default)]
pub(super) struct Applied {
    /// The generation in the response.
    pub(super) generation: u64,
    /// The key version that was created or changed.
    pub(super) key: Option<String>,
    /// The number of rows that were changed, and of rows that could not be changed.
    pub(super) rows: (u64, u64),
}

impl Applied {
    pub(super) fn at(generation: u64) -> Self {
        Self {
            generation,
            ..Self::default()
        }
    }
}

/// Information about a received request.
pub(super) struct RequestInfo<'a> {
    pub(super) principal: &'a Principal,
    pub(super) method: MethodLabel,
    pub(super) call: Option<&'a Control<'a>>,
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
}

impl ControlService {
    /// Records a request.
    pub(super) fn record(
        &self,
        heard: &RequestInfo<'_>,
        done: Result<&Applied, ErrorCode>,
    ) -> Recording {
        if !self.engine.audit.is_on() {
            return Recording::none();
        }
        let RequestTarget {
            app,
            collection,
            reason,
        } = heard
            .call
            .map_or_else(RequestTarget::default, RequestTarget::by_control);
        let (fields, errors) = done.map_or((0, 0), |done| done.rows);
        let key = done.ok().and_then(|done| done.key.as_deref());
        let changes = heard.call.map_or_else(Vec::new, |call| changes(call, key));
        let record = Record {
            principal: heard.principal.as_str(),
            kind: kind(heard.principal.kind()),
            method: heard.method.as_str(),
            app,
            collection,
            reason,
            mask: None,
            subjects: &[],
            change: &changes,
            fields,
            errors,
            bytes_in: heard.bytes as u64,
            outcome: done
                .map_or_else(ResponseCode::from, |_| ResponseCode::OK)
                .as_str(),
            generation: done.map_or_else(|_| self.engine.apps.generation(), |done| done.generation),
            took: heard.arrived.elapsed(),
        };
        // Invalid and denied requests are aggregated, since any client can send them without limit.
        let is_refused =
            done.is_err_and(|code| heard.call.is_none() || code == ErrorCode::Forbidden);
        if is_refused {
            self.engine.audit.refused(&record)
        } else {
            self.engine.audit.record(&record)
        }
    }
}

/// Returns the error for a request whose record was lost.
pub(super) fn unrecorded() -> RpcError {
    // The error suggests no retry time, because a client must not repeat a change blindly.
    RpcError::new(
        ErrorCode::Unavailable,
        "the audit trail cannot be written; the change may have been made",
    )
}

fn changes<'a>(call: &'a Control<'a>, made: Option<&'a str>) -> Vec<(&'static str, Change<'a>)> {
    let mut facts = Vec::new();
    match call {
        Control::App(call) => of_app(&call.operation, &mut facts),
        Control::Collection(call) => of_collection(&call.operation, &mut facts),
        Control::Role(call) => {
            facts.push(("role", Change::Text(call.role)));
            if let RoleOperation::Set { grants } = &call.operation {
                facts.push(("grants", Change::Texts(grants[..].into())));
            }
        }
        Control::Principal(call) => {
            facts.push(("principal", Change::Text(call.principal)));
            let role = match call.operation {
                PrincipalOperation::Grant { role } => Some(role),
                PrincipalOperation::Revoke { role } => role,
            };
            facts.push(("role", role.map_or(Change::Nothing, Change::Text)));
        }
        Control::Check(call) => {
            facts.extend([
                ("principal", Change::Text(call.principal)),
                ("operation", Change::Text(call.operation)),
            ]);
        }
        Control::Census(call) => facts.push(("prove", Change::Flag(call.prove))),
        Control::Migrate(call) => facts.extend([
            (
                "accept_unauthenticated",
                Change::Flag(call.accept_unauthenticated),
            ),
            ("dry_run", Change::Flag(call.dry_run)),
        ]),
        Control::Root(operation) => of_root(operation, &mut facts),
        Control::Apps(_)
        | Control::Export(_)
        | Control::Collections(_)
        | Control::RewrapRows(_)
        | Control::Instances
        | Control::Roles(_)
        | Control::Principals(_)
        | Control::PublicKeys(_) => (),
    }
    if let Some(made) = made.filter(|_| facts.iter().all(|(name, _)| *name != "key")) {
        facts.push(("key", Change::Text(made)));
    }
    facts
}

fn of_app<'a>(operation: &AppOperation<'a>, facts: &mut Vec<(&'static str, Change<'a>)>) {
    let text =
        |name: &'static str, text: Option<&'a str>| text.map(|text| (name, Change::Text(text)));
    match operation {
        AppOperation::Create => (),
        AppOperation::Rotate { kind } => facts.push(("kind", Change::Text(kind.name()))),
        // The record never contains the key.
        AppOperation::Import {
            suite,
            private_key: _,
            seals,
        } => {
            facts.extend([
                ("suite", Change::Text(suite.name())),
                ("seals", Change::Flag(*seals)),
            ]);
        }
        AppOperation::Disable { key }
        | AppOperation::Enable { key }
        | AppOperation::Restore { key } => facts.extend(text("key", *key)),
        AppOperation::Delete { key, delay_s } => {
            facts.extend(text("key", *key));
            facts.extend(delay_s.map(|delay| ("delay_s", Change::Number(delay))));
        }
        AppOperation::Set {
            format,
            epoch_ms,
            write_suite,
            read_suites,
        } => {
            facts.extend(text("format", format.map(|format| format.name())));
            facts.extend(epoch_ms.map(|ms| ("epoch_ms", Change::Number(ms.into()))));
            facts.extend(text("write_suite", write_suite.map(|suite| suite.name())));
            let names = |suites: &Vec<sealwire_wire::Suite>| {
                suites.iter().map(|suite| suite.name()).collect::<Vec<_>>()
            };
            facts.extend(
                read_suites
                    .as_ref()
                    .map(|suites| ("read_suites", Change::Texts(names(suites).into()))),
            );
        }
    }
}

fn of_root<'a>(operation: &RootOperation<'a>, facts: &mut Vec<(&'static str, Change<'a>)>) {
    match operation {
        RootOperation::Init {
            providers: Some(providers),
        } => {
            facts.push(("providers", Change::Texts(providers.clone().into())));
        }
        RootOperation::Rotate { abandon } => facts.push(("abandon", Change::Flag(*abandon))),
        RootOperation::AddSlot { provider } => facts.push(("provider", Change::Text(provider))),
        RootOperation::RemoveSlot { slot } => {
            facts.push(("slot", Change::Number(u64::from(*slot))))
        }
        RootOperation::Init { providers: None }
        | RootOperation::Status
        | RootOperation::Seal
        | RootOperation::Unseal
        | RootOperation::Verify
        | RootOperation::RotateSlots => (),
    }
}

fn of_collection<'a>(
    operation: &CollectionOperation<'a>,
    facts: &mut Vec<(&'static str, Change<'a>)>,
) {
    let time = |seconds: Option<u64>| seconds.map_or(Change::Nothing, Change::Number);
    match operation {
        CollectionOperation::Create(new) => {
            facts.push(("kind", Change::Text(new.kind.name())));
            if new.kind == Kind::Objects {
                let properties = new.properties.iter().map(|property| property.name);
                let suite = new.suite.map(|suite| Change::Text(suite.name()));
                facts.extend([
                    ("properties", Change::Texts(properties.collect())),
                    ("suite", suite.unwrap_or(Change::Nothing)),
                ]);
            } else {
                facts.extend([
                    ("format", Change::Text(new.format.name())),
                    ("scope", Change::Text(new.scope.name())),
                ]);
            }
            facts.extend([
                ("expires_s", time(new.expires_s)),
                ("retention_s", time(new.retention_s)),
            ]);
        }
        CollectionOperation::Set {
            expires_s,
            retention_s,
        } => {
            facts.extend(expires_s.map(|seconds| ("expires_s", time(seconds))));
            facts.extend(retention_s.map(|seconds| ("retention_s", time(seconds))));
        }
        CollectionOperation::Alter(alter) => {
            let added = alter.add.iter().map(|property| property.name).collect();
            let lists = [
                ("add", added),
                ("drop", alter.drop.clone()),
                ("allow_duplicates", alter.allow_duplicates.clone()),
                ("allow_null", alter.allow_null.clone()),
                ("drop_index", alter.drop_index.clone()),
            ];
            let named = lists.into_iter().filter(|(_, names)| !names.is_empty());
            facts.extend(named.map(|(key, names)| (key, Change::Texts(names.into()))));
            facts.extend(
                alter
                    .suite
                    .map(|suite| ("suite", Change::Text(suite.name()))),
            );
        }
        CollectionOperation::Delete => (),
    }
}
