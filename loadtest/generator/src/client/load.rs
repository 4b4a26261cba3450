//! Description of a load: target, kinds of requests, timing. Also the input of a child process.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::target::Target;

/// Maximum connections of one process; each is a socket that every iteration polls.
pub(crate) const CONNECTIONS_MAX: u32 = 1_024;
/// Maximum clients of a closed loop.
pub(crate) const CALLERS_MAX: u32 = 100_000;
/// Maximum fields of a request, from the engine's limit on values in a message.
pub(crate) const FIELDS_MAX: u32 = 1_500_000;

/// Description of a load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    /// The engine under load.
    pub(crate) target: Target,
    /// The app whose keys seal.
    pub(crate) app: String,
    /// Kinds of requests, with weights above 0.
    pub(crate) calls: Vec<Request>,
    /// Timing of requests.
    pub(crate) drive: ArrivalRule,
    /// Connections, 1 to [`CONNECTIONS_MAX`].
    pub(crate) connections: u32,
    /// Length of the measurement window, in seconds.
    pub(crate) duration_s: f64,
    /// Length of the warm-up before the window, in seconds.
    pub(crate) warm_up_s: f64,
    /// Maximum time to wait for responses after the last request, in seconds.
    pub(crate) drain_s: f64,
    /// Compare one of this many results; 0: none.
    pub(crate) check: u32,
    /// Number of different documents per kind, used in rotation.
    pub(crate) distinct: u32,
    /// Send requests even while the engine has asked the client to wait.
    pub(crate) ignore_retry: bool,
    /// Seed of the random numbers.
    pub(crate) seed: u64,
    /// Interval between polls of the connections, in microseconds; `None`: chosen by rate.
    pub(crate) tick_us: Option<u32>,
}

/// Rule that decides when requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ArrivalRule {
    /// By a clock, regardless of responses.
    Open {
        /// Requests per second.
        per_s: f64,
        /// Distribution of the requests over time.
        arrivals: Arrivals,
    },
    /// After each response, with a fixed number of requests in flight.
    Closed {
        /// Number of clients, each with one request in flight.
        callers: u32,
    },
}

/// Distribution of the requests of an open loop over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Arrivals {
    /// At random, as from many independent clients (a Poisson process)
    Poisson,
    /// At equal intervals
    Even,
}

/// The method of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Method {
    /// Fields become envelopes
    Encrypt,
    /// Envelopes, created before the load starts, become fields
    Decrypt,
    /// Fields become stored tokens
    Tokenize,
    /// Tokens, created before the load starts, become fields
    Detokenize,
}

impl Method {
    /// Returns the method name on the wire.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Encrypt => "encrypt",
            Self::Decrypt => "decrypt",
            Self::Tokenize => "tokenize",
            Self::Detokenize => "detokenize",
        }
    }
}

/// The cipher suite of sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Suite {
    /// HPKE in base mode to a P-256 key pair
    P256,
    /// HPKE in base mode to a secp256k1 key pair
    Secp256k1,
    /// XAES-256-GCM under a symmetric key
    Xaes,
    /// HPKE in PSK mode to a P-256 key pair
    #[serde(rename = "p256-psk")]
    P256Psk,
}

/// The scope of one ephemeral key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Scope {
    /// All fields of a request
    Request,
    /// One field
    Field,
    /// All requests of the app's current epoch, if the operator allows epochs
    Epoch,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// Name in tables.
    pub(crate) name: String,
    /// The method.
    pub(crate) method: Method,
    /// Fields per request, 1 to [`FIELDS_MAX`].
    pub(crate) fields: u32,
    /// Bytes per field.
    pub(crate) field_bytes: u32,
    /// Frequency relative to the other kinds.
    pub(crate) weight: f64,
    /// The cipher suite of sealing.
    pub(crate) suite: Suite,
    /// The scope of one ephemeral key.
    pub(crate) scope: Scope,
    /// The collection that stores tokens.
    pub(crate) collection: String,
    /// Deadline sent to the engine, in milliseconds.
    pub(crate) deadline_ms: Option<u32>,
    /// Cancel the request if no response has arrived after this many milliseconds.
    pub(crate) cancel_after_ms: Option<u32>,
}

/// A kind of request in a file. Absent values default to those of the command line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    method: Option<Method>,
    fields: Option<u32>,
    field_bytes: Option<u32>,
    weight: f64,
    suite: Option<Suite>,
    scope: Option<Scope>,
    collection: Option<String>,
    deadline_ms: Option<u32>,
    cancel_after_ms: Option<u32>,
}

impl Request {
    /// The mix of the first production system: mostly small requests and a few large ones.
    pub(crate) fn founding(base: &Self) -> Vec<Self> {
        let of = |(fields, weight)| Self {
            name: format!("{fields} fields"),
            fields,
            weight,
            ..base.clone()
        };
        [(30, 0.8), (150, 0.18), (2_000, 0.02)].map(of).into()
    }

    /// Reads a mix from a JSON file: an array of kinds, each with a `weight` and the values that
    /// differ from `base`.
    ///
    /// # Errors
    /// [`Fault::Failed`] if the file cannot be read or has invalid values.
    pub(crate) fn from_file(file: &Path, base: &Self) -> Result<Vec<Self>, Fault> {
        let named = |what: String| Fault::Failed(format!("{}: {what}", file.display()));
        let text = fs::read_to_string(file).map_err(|error| named(error.to_string()))?;
        let entries: Vec<Entry> =
            serde_json::from_str(&text).map_err(|error| named(error.to_string()))?;
        let calls: Vec<Self> = entries.into_iter().map(|entry| entry.over(base)).collect();
        check(&calls).map_err(|fault| named(fault.to_string()))?;
        Ok(calls)
    }
}

impl Entry {
    fn over(self, base: &Request) -> Request {
        let fields = self.fields.unwrap_or(base.fields);
        Request {
            name: self.name.unwrap_or_else(|| format!("{fields} fields")),
            method: self.method.unwrap_or(base.method),
            fields,
            field_bytes: self.field_bytes.unwrap_or(base.field_bytes),
            weight: self.weight,
            suite: self.suite.unwrap_or(base.suite),
            scope: self.scope.unwrap_or(base.scope),
            collection: self.collection.unwrap_or_else(|| base.collection.clone()),
            deadline_ms: self.deadline_ms.or(base.deadline_ms),
            cancel_after_ms: self.cancel_after_ms.or(base.cancel_after_ms),
        }
    }
}

/// Checks that every kind can be sent and has a valid weight.
fn check(calls: &[Request]) -> Result<(), Fault> {
    let refuse = |what: String| Err(Fault::Failed(what));
    if calls.is_empty() || calls.len() > 64 {
        return refuse("a mix has 1 to 64 kinds of call".to_owned());
    }
    for call in calls {
        if !(call.weight.is_finite() && call.weight > 0.0) {
            return refuse(format!("{}: a weight is a number above 0", call.name));
        }
        if !(1..=FIELDS_MAX).contains(&call.fields) {
            return refuse(format!(
                "{}: a call has 1 to {FIELDS_MAX} fields",
                call.name
            ));
        }
        if call.field_bytes == 0 || u64::from(call.fields) * u64::from(call.field_bytes) > 60 << 20
        {
            return refuse(format!(
                "{}: fields have at least 1 byte, and 60 MiB in all at most",
                call.name
            ));
        }
    }
    Ok(())
}

impl Load {
    /// Checks that the load can run.
    ///
    /// # Errors
    /// [`Fault::Failed`] with the invalid value.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        check(&self.calls)?;
        let refuse = |what: &str| Err(Fault::Failed(what.to_owned()));
        let drive = match self.drive {
            ArrivalRule::Open { per_s, .. } => (1e-3..=1e8).contains(&per_s),
            ArrivalRule::Closed { callers } => (1..=CALLERS_MAX).contains(&callers),
        };
        if !drive {
            return refuse(
                "a rate is 0.001 to 100,000,000 calls/s, and there are 1 to 100,000 callers",
            );
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) || self.distinct == 0 {
            return refuse("there are 1 to 1,024 connections and at least one document");
        }
        if !(0.05..=86_400.0).contains(&self.duration_s)
            || !(0.0..=86_400.0).contains(&self.warm_up_s)
        {
            return refuse("a load lasts 0.05 s to a day, and warms up for a day at most");
        }
        if !(0.0..=3_600.0).contains(&self.drain_s) {
            return refuse("answers are waited for an hour at most");
        }
        Ok(())
    }

    /// Returns the default name of the load.
    pub(crate) fn describe(&self) -> String {
        let what = match &*self.calls {
            [one] => format!("{} {} fields", one.method.name(), one.fields),
            _ => "mix".to_owned(),
        };
        let suites = self.suites();
        match self.drive {
            ArrivalRule::Open { per_s, .. } => format!("{what}, {suites}, {per_s} calls/s"),
            ArrivalRule::Closed { callers } => format!("{what}, {suites}, {callers} callers"),
        }
    }

    /// Returns the suites of the requests, joined by a plus sign.
    pub(crate) fn suites(&self) -> String {
        names(self.calls.iter().map(|call| match call.suite {
            Suite::P256 => "p256",
            Suite::Secp256k1 => "secp256k1",
            Suite::Xaes => "xaes",
            Suite::P256Psk => "p256-psk",
        }))
    }

    /// Returns the key scopes of the requests, joined by a plus sign.
    pub(crate) fn scopes(&self) -> String {
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
