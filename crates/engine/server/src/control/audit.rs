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
use sealwire_engine::audit::{Recording, kind_name};
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
    pub(super) request: Option<&'a Control<'a>>,
    pub(super) bytes: usize,
    pub(super) arrived: Instant,
}

impl ControlService {
    /// Records a request.
    pub(super) fn record(
        &self,
        info: &RequestInfo<'_>,
        applied: Result<&Applied, ErrorCode>,
    ) -> Recording {
        if !self.engine.audit.is_on() {
            return Recording::none();
        }

        let RequestTarget {
            app,
            collection,
            reason,
        } = info
            .request
            .map_or_else(RequestTarget::default, RequestTarget::of_control);

        let (fields, errors) = applied.map_or((0, 0), |applied| applied.rows);
        let key = applied.ok().and_then(|applied| applied.key.as_deref());
        let changes = info
            .request
            .map_or_else(Vec::new, |request| changes(request, key));
        let record = Record {
            principal: info.principal.as_str(),
            kind: kind_name(info.principal.kind()),
            method: info.method.as_str(),
            app,
            collection,
            reason,
            mask: None,
            subjects: &[],
            change: &changes,
            fields,
            errors,
            bytes_in: info.bytes as u64,
            outcome: applied
                .map_or_else(ResponseCode::from, |_| ResponseCode::OK)
                .as_str(),
            generation: applied.map_or_else(
                |_| self.engine.apps.generation(),
                |applied| applied.generation,
            ),
            took: info.arrived.elapsed(),
        };

        // Invalid and denied requests are aggregated, since any client can send them without limit.
        let is_rejected =
            applied.is_err_and(|code| info.request.is_none() || code == ErrorCode::Forbidden);
        if is_rejected {
            self.engine.audit.record_rejected(&record)
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
        "the audit log cannot be written; the change may have been made",
    )
}

fn changes<'a>(
    request: &'a Control<'a>,
    created_key: Option<&'a str>,
) -> Vec<(&'static str, Change<'a>)> {
    let mut changes = Vec::new();
    match request {
        Control::App(request) => app_changes(&request.operation, &mut changes),
        Control::Collection(request) => collection_changes(&request.operation, &mut changes),
        Control::Role(request) => {
            changes.push(("role", Change::Text(request.role)));
            if let RoleOperation::Set { grants } = &request.operation {
                changes.push(("grants", Change::Texts(grants[..].into())));
            }
        }
        Control::Principal(request) => {
            changes.push(("principal", Change::Text(request.principal)));
            let role = match request.operation {
                PrincipalOperation::Grant { role } => Some(role),
                PrincipalOperation::Revoke { role } => role,
            };
            changes.push(("role", role.map_or(Change::Nothing, Change::Text)));
        }
        Control::Check(request) => {
            changes.extend([
                ("principal", Change::Text(request.principal)),
                ("operation", Change::Text(request.operation)),
            ]);
        }
        Control::Census(request) => changes.push(("prove", Change::Flag(request.prove))),
        Control::Migrate(request) => changes.extend([
            (
                "accept_unauthenticated",
                Change::Flag(request.accept_unauthenticated),
            ),
            ("dry_run", Change::Flag(request.dry_run)),
        ]),
        Control::Root(operation) => root_changes(operation, &mut changes),
        Control::Apps(_)
        | Control::Export(_)
        | Control::Collections(_)
        | Control::RewrapRows(_)
        | Control::Instances
        | Control::Roles(_)
        | Control::Principals(_)
        | Control::PublicKeys(_) => (),
    }

    if let Some(created_key) =
        created_key.filter(|_| changes.iter().all(|(name, _)| *name != "key"))
    {
        changes.push(("key", Change::Text(created_key)));
    }
    changes
}

fn app_changes<'a>(operation: &AppOperation<'a>, changes: &mut Vec<(&'static str, Change<'a>)>) {
    match operation {
        AppOperation::Create => (),
        AppOperation::Rotate { kind } => changes.push(("kind", Change::Text(kind.name()))),
        // The record never contains the key.
        AppOperation::Import {
            suite,
            private_key: _,
            seals,
        } => {
            changes.extend([
                ("suite", Change::Text(suite.name())),
                ("seals", Change::Flag(*seals)),
            ]);
        }
        AppOperation::Disable { key }
        | AppOperation::Enable { key }
        | AppOperation::Restore { key } => changes.extend(text_change("key", *key)),
        AppOperation::Delete { key, delay_s } => {
            changes.extend(text_change("key", *key));
            changes.extend(delay_s.map(|delay| ("delay_s", Change::Number(delay))));
        }
        AppOperation::Set {
            format,
            epoch_ms,
            write_suite,
            read_suites,
        } => {
            changes.extend(text_change("format", format.map(|format| format.name())));
            changes.extend(epoch_ms.map(|ms| ("epoch_ms", Change::Number(ms.into()))));
            changes.extend(text_change(
                "write_suite",
                write_suite.map(|suite| suite.name()),
            ));
            if let Some(suites) = read_suites {
                let names = suites.iter().map(|suite| suite.name()).collect();
                changes.push(("read_suites", Change::Texts(names)));
            }
        }
    }
}

fn text_change<'a>(
    name: &'static str,
    text: Option<&'a str>,
) -> Option<(&'static str, Change<'a>)> {
    text.map(|text| (name, Change::Text(text)))
}

fn number_or_nothing<'a>(number: Option<u64>) -> Change<'a> {
    number.map_or(Change::Nothing, Change::Number)
}

fn root_changes<'a>(operation: &RootOperation<'a>, changes: &mut Vec<(&'static str, Change<'a>)>) {
    match operation {
        RootOperation::Init {
            providers: Some(providers),
        } => {
            changes.push(("providers", Change::Texts(providers.clone().into())));
        }
        RootOperation::Rotate { abandon } => changes.push(("abandon", Change::Flag(*abandon))),
        RootOperation::AddSlot { provider } => changes.push(("provider", Change::Text(provider))),
        RootOperation::RemoveSlot { slot } => {
            changes.push(("slot", Change::Number(u64::from(*slot))))
        }
        RootOperation::Init { providers: None }
        | RootOperation::Status
        | RootOperation::Seal
        | RootOperation::Unseal
        | RootOperation::Verify
        | RootOperation::RotateSlots => (),
    }
}

fn collection_changes<'a>(
    operation: &CollectionOperation<'a>,
    changes: &mut Vec<(&'static str, Change<'a>)>,
) {
    match operation {
        CollectionOperation::Create(new) => {
            changes.push(("kind", Change::Text(new.kind.name())));
            if new.kind == Kind::Objects {
                let properties = new.properties.iter().map(|property| property.name);
                let suite = new.suite.map(|suite| Change::Text(suite.name()));
                changes.extend([
                    ("properties", Change::Texts(properties.collect())),
                    ("suite", suite.unwrap_or(Change::Nothing)),
                ]);
            } else {
                changes.extend([
                    ("format", Change::Text(new.format.name())),
                    ("scope", Change::Text(new.scope.name())),
                ]);
            }
            changes.extend([
                ("expires_s", number_or_nothing(new.expires_s)),
                ("retention_s", number_or_nothing(new.retention_s)),
            ]);
        }
        CollectionOperation::Set {
            expires_s,
            retention_s,
        } => {
            changes.extend(expires_s.map(|seconds| ("expires_s", number_or_nothing(seconds))));
            changes.extend(retention_s.map(|seconds| ("retention_s", number_or_nothing(seconds))));
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
            changes.extend(named.map(|(key, names)| (key, Change::Texts(names.into()))));
            changes.extend(
                alter
                    .suite
                    .map(|suite| ("suite", Change::Text(suite.name()))),
            );
        }
        CollectionOperation::Delete => (),
    }
}
