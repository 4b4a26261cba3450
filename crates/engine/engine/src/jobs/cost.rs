//! Predicted cost of requests on this machine: per kind of work, a linear function of keys, fields
//! and bytes.
//!
//! The models are calibrated at start by running some work of each kind, then corrected by the
//! measured time of slices. Units are nanoseconds of CPU.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use sealwire_access::Principal;
pub use sealwire_payload::ExtraWork;
use sealwire_schedule::{Agreement, Cost, CostModel, Sample, Time, WorkSize};
use sealwire_wire::{KeyScope, Method, Methods, Suite};

use crate::jobs::slice_timer::SliceTimer;

/// Scalars of a request outside its document: message type, msgid, method and app.
const HEAD_LEAVES: u64 = 4;
/// Authenticated bytes that take as long as one byte that is sealed or opened.
const AUTHENTICATED_PER_BYTE: u64 = 3;
/// Maximum bytes walked in one slice. A run of values that stay unchanged has the least cost per
/// byte.
const SLICE_BYTES_MAX: u64 = 256 << 10;

/// Adds work that is not proportional to the number of fields or their bytes.
#[must_use]
pub fn with_extra(work_size: WorkSize, extra: ExtraWork) -> WorkSize {
    let fields = work_size.fields.saturating_add(extra.fields);
    WorkSize {
        fields,
        bytes: work_size.bytes.saturating_add(extra.bytes),
        ..work_size
    }
}

/// Returns the work of authenticating a context of `context_bytes` with each field.
#[must_use]
pub fn authenticated(fields: u64, context_bytes: usize) -> ExtraWork {
    ExtraWork {
        fields: 0,
        bytes: fields.saturating_mul(context_bytes as u64) / AUTHENTICATED_PER_BYTE,
    }
}

/// Returns the maximum number of fields of the document in a message with `leaves` scalars.
pub fn fields_max(leaves: u64) -> u64 {
    leaves.saturating_sub(HEAD_LEAVES)
}

/// A kind of work on fields. Each kind has its own coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationKind {
    /// The work per field.
    pub operation: WorkKind,
    /// The suite of the envelopes that are written.
    pub suite: Suite,
    scope: KeyScope,
}

/// The work per field of one walk. Operations on tokens walk a second time after the store has
/// responded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    /// Seals fields.
    Seal,
    /// Opens envelopes.
    Open,
    /// Opens envelopes and seals their values again.
    Rewrap,
    /// First walk of `tokenize`: makes tokens and seals rows.
    MakeTokens,
    /// Second walk of `tokenize`: opens the rows of existing tokens.
    OpenExisting,
    /// First walk of `detokenize` and of requests on tokens: hashes tokens.
    HashTokens,
    /// Second walk of `detokenize`: opens rows.
    OpenRows,
    /// Masks fields.
    Mask,
    /// Validates, hashes and seals objects.
    SealObjects,
    /// Opens objects.
    OpenObjects,
}

impl OperationKind {
    /// Number of kinds with suites and scopes.
    const OF_ENVELOPES: usize = 3 * Suite::ALL.len() * KeyScope::ALL.len();
    const COUNT: usize = Self::OF_ENVELOPES + 7;

    /// Makes tokens.
    const MAKE_TOKENS: Self = Self::without_suite(WorkKind::MakeTokens);
    /// Hashes tokens.
    pub const HASH_TOKENS: Self = Self::without_suite(WorkKind::HashTokens);
    /// Opens rows.
    pub const OPEN_ROWS: Self = Self::without_suite(WorkKind::OpenRows);
    /// Masks fields.
    const MASK: Self = Self::without_suite(WorkKind::Mask);
    /// Seals objects.
    pub const SEAL_OBJECTS: Self = Self::without_suite(WorkKind::SealObjects);
    /// Opens objects.
    pub const OPEN_OBJECTS: Self = Self::without_suite(WorkKind::OpenObjects);

    const fn without_suite(operation: WorkKind) -> Self {
        Self {
            operation,
            suite: Suite::P256,
            scope: KeyScope::Epoch,
        }
    }

    /// Kind of the work that follows the store's response.
    pub fn second_walk(self) -> Option<Self> {
        match self.operation {
            WorkKind::MakeTokens => Some(Self::without_suite(WorkKind::OpenExisting)),
            WorkKind::HashTokens => Some(Self::OPEN_ROWS),
            WorkKind::Seal
            | WorkKind::Open
            | WorkKind::Rewrap
            | WorkKind::OpenExisting
            | WorkKind::OpenRows
            | WorkKind::Mask
            | WorkKind::SealObjects
            | WorkKind::OpenObjects => None,
        }
    }

    /// Returns the kind of work of a request. Methods that only read have no suite and no scope;
    /// their estimate assumes one key per request, and the scheduler corrects it from measured
    /// slices.
    pub fn of(method: Method, suite: Suite, scope: KeyScope) -> Self {
        match method {
            Method::Encrypt => Self {
                operation: WorkKind::Seal,
                suite,
                scope,
            },
            Method::Rewrap => Self {
                operation: WorkKind::Rewrap,
                suite,
                scope,
            },
            Method::Tokenize => Self::MAKE_TOKENS,
            Method::Mask => Self::MASK,
            Method::ObjectsAdd | Method::ObjectsUpdate => Self::SEAL_OBJECTS,
            method if Methods::OBJECTS.contains(method) => Self::OPEN_OBJECTS,
            method if Methods::TOKENS.contains(method) => Self::HASH_TOKENS,
            _ => Self {
                operation: WorkKind::Open,
                suite: Suite::P256,
                scope: KeyScope::Request,
            },
        }
    }

    /// Number of groups of kinds.
    pub const GROUPS: usize = WorkKind::OpenObjects as usize + 1;

    /// Returns the group of the kind, in which a principal's requests cost alike.
    pub const fn group(self) -> usize {
        self.operation as usize
    }

    fn index(self) -> usize {
        if let Some(at) = (self.operation as usize).checked_sub(WorkKind::MakeTokens as usize) {
            return Self::OF_ENVELOPES + at;
        }
        (self.operation as usize * Suite::ALL.len() + self.suite as usize) * KeyScope::ALL.len()
            + self.scope as usize
    }

    fn all() -> impl Iterator<Item = Self> {
        let operations = [WorkKind::Seal, WorkKind::Open, WorkKind::Rewrap];
        let of_envelopes = operations.into_iter().flat_map(|operation| {
            Suite::ALL.iter().flat_map(move |suite| {
                KeyScope::ALL.iter().map(move |scope| Self {
                    operation,
                    suite: *suite,
                    scope: *scope,
                })
            })
        });

        let others = [
            WorkKind::MakeTokens,
            WorkKind::OpenExisting,
            WorkKind::HashTokens,
            WorkKind::OpenRows,
            WorkKind::Mask,
            WorkKind::SealObjects,
            WorkKind::OpenObjects,
        ];
        of_envelopes.chain(others.map(Self::without_suite))
    }

    /// Returns the work size of a whole message from its scalars and bytes.
    pub fn work_size(self, leaves: u64, bytes: u64) -> WorkSize {
        let fields = fields_max(leaves);
        let opened = u64::from(matches!(self.operation, WorkKind::Open | WorkKind::Rewrap));
        WorkSize {
            requests: 1,
            key_agreements: self.keys_made(true, fields) + opened,
            fields,
            bytes,
        }
    }

    /// Returns the work size of a slice. `opened`: key agreements done to open fields.
    pub fn done(self, first: bool, fields: u64, opened: u64, bytes: u64) -> WorkSize {
        WorkSize {
            requests: u64::from(first),
            key_agreements: self.keys_made(first, fields) + opened,
            fields,
            bytes,
        }
    }

    /// Returns the number of keys made for sealing `fields` fields. `first`: in the first slice of
    /// a request.
    fn keys_made(self, first: bool, fields: u64) -> u64 {
        match self.scope {
            _ if self.operation == WorkKind::Open => 0,
            KeyScope::Field => fields,
            KeyScope::Request => u64::from(first),
            KeyScope::Epoch => 0,
        }
    }
}

/// The limits of one slice of work.
#[derive(Clone, Copy, Debug)]
pub struct SliceBudget {
    /// Fields.
    pub fields: usize,
    /// Bytes of the document to walk.
    pub bytes: usize,
    /// Key agreements of opening, after which the slice ends at the next field.
    pub agreements: usize,
    /// Ends the slice by time.
    pub timer: SliceTimer,
}

impl SliceBudget {
    /// A budget without limits.
    pub const UNLIMITED: Self = Self {
        fields: usize::MAX,
        bytes: usize::MAX,
        agreements: usize::MAX,
        timer: SliceTimer::UNLIMITED,
    };
}

/// The cost models of all kinds of work.
#[derive(Clone, Debug)]
pub struct Costs([KindCosts; OperationKind::COUNT]);

/// The cost model of one kind of work.
#[derive(Clone, Debug)]
struct KindCosts {
    model: CostModel,
    /// Samples of several principals, on which corrections of the model must agree.
    agreement: Agreement<Principal>,
}

impl KindCosts {
    fn new(model: CostModel) -> Self {
        Self {
            model,
            agreement: Agreement::new(),
        }
    }
}

impl Costs {
    /// Creates the cost models, one for each kind of work.
    pub fn new(model: impl FnMut(OperationKind) -> CostModel) -> Self {
        let models: Vec<_> = OperationKind::all()
            .map(model)
            .map(KindCosts::new)
            .collect();
        Self(
            models
                .try_into()
                .unwrap_or_else(|_| unreachable!("as many as kinds")),
        )
    }
}

impl Costs {
    /// Returns the predicted cost of `work_size`.
    pub fn estimate(&self, kind: OperationKind, work_size: WorkSize) -> Cost {
        self.0[kind.index()].model.estimate(work_size)
    }

    /// Returns the predicted cost of a whole request, with the work after the store's response.
    pub fn total(&self, kind: OperationKind, work_size: WorkSize) -> Cost {
        let second_walk = kind
            .second_walk()
            .map_or(0, |kind| self.estimate(kind, work_size).as_nanos());
        Cost::from_nanos(
            self.estimate(kind, work_size)
                .as_nanos()
                .saturating_add(second_walk),
        )
    }

    /// Returns the part of a request that `budget` covers, if its fields take `field_bytes` each.
    /// `has_started`: the first slice, which makes the request's key, is over.
    pub fn slice_budget(
        &self,
        kind: OperationKind,
        budget: Cost,
        field_bytes: u64,
        has_started: bool,
    ) -> SliceBudget {
        let model = &self.0[kind.index()].model;
        let request_cost = if has_started {
            0
        } else {
            model.estimate(kind.done(true, 0, 0, 0)).as_nanos()
        };
        let fields_budget = Cost::from_nanos(budget.as_nanos().saturating_sub(request_cost));
        let fields = model.fields_within(fields_budget, kind.keys_made(false, 1), field_bytes);

        let key_cost = model
            .estimate(WorkSize {
                key_agreements: 1,
                ..WorkSize::default()
            })
            .as_nanos()
            .max(1);

        // Twice the mean bytes of the fields, because fields differ, and a small token counts as 16
        // bytes.
        let bytes = fields
            .saturating_mul(field_bytes.max(32))
            .saturating_mul(2)
            .min(SLICE_BYTES_MAX);
        let agreements = (budget.as_nanos() / key_cost).max(1);

        SliceBudget {
            fields: usize::try_from(fields).unwrap_or(usize::MAX),
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            agreements: usize::try_from(agreements).unwrap_or(usize::MAX),
            timer: SliceTimer::UNLIMITED,
        }
    }

    /// Corrects the model by the CPU time of a slice, as far as the slices of most principals
    /// agree.
    pub fn observe(&mut self, now: Time, kind: OperationKind, sample: &Sample<'_, Principal>) {
        let KindCosts { model, agreement } = &mut self.0[kind.index()];
        agreement.learn(now, model, sample);
    }
}

/// Returns the CPU time of this thread. A call takes a few hundred nanoseconds, which is too much
/// for every slice.
pub fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec);
    let nanos = u32::try_from(time.tv_nsec);
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use sealwire_schedule::Coefficients;

    use super::*;

    fn costs() -> Costs {
        let model = CostModel::new(Coefficients {
            request: 5_000.0,
            key_agreement: 50_000.0,
            field: 200.0,
            byte: 0.5,
        });
        Costs::new(|_| model.clone())
    }

    #[test]
    fn kinds_have_distinct_indexes() {
        let mut indexes: Vec<_> = OperationKind::all().map(OperationKind::index).collect();
        indexes.sort_unstable();
        assert_eq!(indexes, (0..OperationKind::COUNT).collect::<Vec<_>>());
    }

    #[test]
    fn work_size_of_a_message_depends_on_its_key_scope() {
        for (method, scope, keys) in [
            (Method::Encrypt, KeyScope::Request, 1),
            (Method::Encrypt, KeyScope::Field, 96),
            (Method::Encrypt, KeyScope::Epoch, 0),
            (Method::Decrypt, KeyScope::Request, 1),
            (Method::Rewrap, KeyScope::Request, 2),
            (Method::Rewrap, KeyScope::Field, 97),
            (Method::Rewrap, KeyScope::Epoch, 1),
        ] {
            let kind = OperationKind::of(method, Suite::P256, scope);
            let work_size = kind.work_size(100, 2_000);
            assert_eq!(
                work_size,
                WorkSize {
                    requests: 1,
                    key_agreements: keys,
                    fields: 96,
                    bytes: 2_000
                },
                "{method:?} {scope:?}"
            );
        }
    }

    #[test]
    fn token_request_costs_both_of_its_walks() {
        let mut costs = costs();
        let of = |method| OperationKind::of(method, Suite::Xaes, KeyScope::Field);
        let mint = of(Method::Tokenize);
        let look = of(Method::Detokenize);
        assert_eq!(
            (look, of(Method::TokensGet), look.second_walk()),
            (
                OperationKind::HASH_TOKENS,
                OperationKind::HASH_TOKENS,
                Some(OperationKind::OPEN_ROWS)
            )
        );
        let behind = mint.second_walk().unwrap();
        assert_eq!(
            (
                behind.second_walk(),
                OperationKind::OPEN_ROWS.second_walk(),
                of(Method::Encrypt).second_walk()
            ),
            (None, None, None)
        );
        let work_size = mint.work_size(104, 1_000);
        assert_eq!(
            work_size,
            WorkSize {
                requests: 1,
                key_agreements: 0,
                fields: 100,
                bytes: 1_000
            }
        );
        assert_eq!(costs.estimate(mint, work_size).as_nanos(), 25_500);
        let principals = ["a", "b"].map(|name| Principal::from_text(name).unwrap());
        for _ in 0..2_000 {
            for tenant in &principals {
                let took = Duration::from_micros(51);
                let sample = Sample {
                    tenant,
                    done: work_size,
                    took,
                    is_ordinary: true,
                };
                costs.observe(Time::default(), behind, &sample);
            }
        }
        let first = costs.estimate(mint, work_size).as_nanos();
        let total = costs.total(mint, work_size).as_nanos();
        assert!(
            first == 25_500 && (76_000..=76_500).contains(&total),
            "{first} {total}"
        );
        assert_eq!(
            costs.total(of(Method::Encrypt), work_size),
            costs.estimate(of(Method::Encrypt), work_size)
        );
    }

    #[test]
    fn a_slice_is_as_much_as_its_budget_buys_and_at_least_a_field() {
        let costs = costs();
        let slice = Cost::from_nanos(100_000);
        let of = |scope| OperationKind::of(Method::Encrypt, Suite::Xaes, scope);
        for (scope, has_started, field_bytes, fields, agreements) in [
            (KeyScope::Request, true, 0, 500, 2),
            (KeyScope::Request, true, 600, 200, 2),
            (KeyScope::Request, false, 0, 225, 2),
            (KeyScope::Field, true, 20, 1, 2),
            (KeyScope::Field, false, 1 << 40, 1, 2),
        ] {
            let budget = costs.slice_budget(of(scope), slice, field_bytes, has_started);
            assert_eq!(
                (budget.fields, budget.agreements),
                (fields, agreements),
                "{scope:?} {has_started}"
            );
            assert!(budget.bytes as u64 <= SLICE_BYTES_MAX);
        }
    }
}
