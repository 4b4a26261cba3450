//! A load as data: what is called, when and how often. What a child process is given, and what a test makes.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::target::Target;

/// Most connections of one process: each is a socket that is looked at in every turn.
pub const CONNECTIONS_MAX: u32 = 1_024;
/// Most callers of a closed loop.
pub const CALLERS_MAX: u32 = 100_000;
/// Most fields of a call: what the engine's limit on values in a message lets through.
pub const FIELDS_MAX: u32 = 1_500_000;

/// One load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Who is called.
    pub target: Target,
    /// The app whose keys seal.
    pub app: String,
    /// What is called, with weights above 0.
    pub calls: Vec<Call>,
    /// When.
    pub drive: Drive,
    /// Connections, 1 to [`CONNECTIONS_MAX`].
    pub connections: u32,
    /// Seconds that count.
    pub duration_s: f64,
    /// Seconds before them that do not.
    pub warm_up_s: f64,
    /// Seconds that answers are waited for after the last call.
    pub drain_s: f64,
    /// One result of this many is compared; 0: none.
    pub check: u32,
    /// Documents of each kind, which take turns.
    pub distinct: u32,
    /// Whether calls are sent while the engine has told the caller to wait.
    pub ignore_retry: bool,
    /// Beginning of the random numbers.
    pub seed: u64,
    /// Microseconds between two looks at the connections; `None`: as the rate needs.
    pub tick_us: Option<u32>,
}

/// When calls are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Drive {
    /// By a clock, whatever the answers do.
    Open {
        /// Calls each second.
        per_s: f64,
        /// How they are spread.
        arrivals: Arrivals,
    },
    /// When an answer has come: so many calls are always under way.
    Closed {
        /// How many.
        callers: u32,
    },
}

/// How the calls of an open loop are spread over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// At random, as from many callers that know nothing of each other (a Poisson process)
    Poisson,
    /// One after the same time as the other
    Even,
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Fields become envelopes
    Encrypt,
    /// Envelopes, made before the load begins, become fields
    Decrypt,
    /// Fields become tokens, which are kept
    Tokenize,
    /// Tokens, made before the load begins, become fields
    Detokenize,
}

impl Method {
    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }
}

/// The curve that seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Curve {
    /// P-256
    R1,
    /// secp256k1
    K1,
}

/// How far one ephemeral key reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// All fields of a call
    Request,
    /// One field
    Field,
    /// All calls of the app's present epoch, where its operator allows that
    Epoch,
}

/// Calls of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// What it is called in tables.
    pub name: String,
    /// What it asks for.
    pub method: Method,
    /// Fields, 1 to [`FIELDS_MAX`].
    pub fields: u32,
    /// Bytes of a field.
    pub field_bytes: u32,
    /// How often it comes, beside the others.
    pub weight: f64,
    /// The curve that seals.
    pub curve: Curve,
    /// How far one ephemeral key reaches.
    pub scope: Scope,
    /// Where tokens are kept.
    pub collection: String,
    /// The engine is to give up after so many milliseconds.
    pub deadline_ms: Option<u32>,
    /// It is cancelled when so many milliseconds have brought no answer.
    pub cancel_after_ms: Option<u32>,
}

/// A kind of call in a file: what is absent is as the command line says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    method: Option<Method>,
    fields: Option<u32>,
    field_bytes: Option<u32>,
    weight: f64,
    curve: Option<Curve>,
    scope: Option<Scope>,
    collection: Option<String>,
    deadline_ms: Option<u32>,
    cancel_after_ms: Option<u32>,
}

impl Call {
    /// The founding mix of production: mostly small calls, and a few that are large.
    pub fn founding(base: &Self) -> Vec<Self> {
        let of = |(fields, weight)| Self { name: format!("{fields} fields"), fields, weight, ..base.clone() };
        [(30, 0.8), (150, 0.18), (2_000, 0.02)].map(of).into()
    }

    /// A mix from a JSON file: an array of kinds, each with a `weight` and what differs from `base`.
    ///
    /// # Errors
    /// [`Fault::Failed`] if it cannot be read or says something that no call can be.
    pub fn from_file(file: &Path, base: &Self) -> Result<Vec<Self>, Fault> {
        let named = |what: String| Fault::Failed(format!("{}: {what}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
        let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|error| named(error.to_string()))?;
        let calls: Vec<Self> = entries.into_iter().map(|entry| entry.over(base)).collect();
        check(&calls).map_err(|fault| named(fault.to_string()))?;
        Ok(calls)
    }
}

impl Entry {
    fn over(self, base: &Call) -> Call {
        let fields = self.fields.unwrap_or(base.fields);
        Call {
            name: self.name.unwrap_or_else(|| format!("{fields} fields")),
            method: self.method.unwrap_or(base.method),
            fields,
            field_bytes: self.field_bytes.unwrap_or(base.field_bytes),
            weight: self.weight,
            curve: self.curve.unwrap_or(base.curve),
            scope: self.scope.unwrap_or(base.scope),
            collection: self.collection.unwrap_or_else(|| base.collection.clone()),
            deadline_ms: self.deadline_ms.or(base.deadline_ms),
            cancel_after_ms: self.cancel_after_ms.or(base.cancel_after_ms),
        }
    }
}

/// Refuses kinds that cannot be called or drawn.
fn check(calls: &[Call]) -> Result<(), Fault> {
    let refuse = |what: String| Err(Fault::Failed(what));
    if calls.is_empty() || calls.len() > 64 {
        return refuse("a mix has 1 to 64 kinds of call".to_owned());
    }
    for call in calls {
        if !(call.weight.is_finite() && call.weight > 0.0) {
            return refuse(format!("{}: a weight is a number above 0", call.name));
        }
        if !(1..=FIELDS_MAX).contains(&call.fields) {
            return refuse(format!("{}: a call has 1 to {FIELDS_MAX} fields", call.name));
        }
        if call.field_bytes == 0 || u64::from(call.fields) * u64::from(call.field_bytes) > 60 << 20 {
            return refuse(format!("{}: fields have at least 1 byte, and 60 MiB in all at most", call.name));
        }
    }
    Ok(())
}

impl Load {
    /// Refuses a load that cannot be run.
    ///
    /// # Errors
    /// [`Fault::Failed`] with what is wrong.
    pub fn check(&self) -> Result<(), Fault> {
        check(&self.calls)?;
        let refuse = |what: &str| Err(Fault::Failed(what.to_owned()));
        let drive = match self.drive {
            Drive::Open { per_s, .. } => (1e-3..=1e8).contains(&per_s),
            Drive::Closed { callers } => (1..=CALLERS_MAX).contains(&callers),
        };
        if !drive {
            return refuse("a rate is 0.001 to 100,000,000 calls/s, and there are 1 to 100,000 callers");
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) || self.distinct == 0 {
            return refuse("there are 1 to 1,024 connections and at least one document");
        }
        if !(0.05..=86_400.0).contains(&self.duration_s) || !(0.0..=86_400.0).contains(&self.warm_up_s) {
            return refuse("a load lasts 0.05 s to a day, and warms up for a day at most");
        }
        if !(0.0..=3_600.0).contains(&self.drain_s) {
            return refuse("answers are waited for an hour at most");
        }
        Ok(())
    }

    /// What the load is called if nobody names it.
    pub fn describe(&self) -> String {
        let what = match &*self.calls {
            [one] => format!("{} {} fields", one.method.name(), one.fields),
            _ => "mix".to_owned(),
        };
        let curve = self.curves();
        match self.drive {
            Drive::Open { per_s, .. } => format!("{what}, {curve}, {per_s} calls/s"),
            Drive::Closed { callers } => format!("{what}, {curve}, {callers} callers"),
        }
    }

    /// The curves of its calls, with a plus between.
    pub fn curves(&self) -> String {
        names(self.calls.iter().map(|call| match call.curve {
            Curve::R1 => "r1",
            Curve::K1 => "k1",
        }))
    }

    /// The key scopes of its calls, with a plus between.
    pub fn scopes(&self) -> String {
        names(self.calls.iter().map(|call| match call.scope {
            Scope::Request => "request",
            Scope::Field => "field",
            Scope::Epoch => "epoch",
        }))
    }
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut found: Vec<&str> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found.join("+")
}
