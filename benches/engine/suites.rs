//! `suites`: what each cipher suite costs, in alternating rounds on the same engines.

use std::io::{self, Write as _};
use std::time::Duration;

use sealwire_benches::stats::{Interval, Verdict, bootstrap, median};
use sealwire_benches::{is_smoke_run, say};
use serde_json::{Value, json};

use crate::child::Setting;
use crate::cpu::load::{BenchOperation as Operation, CpuLoad, LOADS, Measured, measure};
use crate::cpu::place::Place;
use crate::cpu::{PRODUCTION, WARM_UP, callers};

const HELP: &str = "\
CPU time of the engine by cipher suite, beside each other.

    cargo bench -p sealwire-benches --bench engine -- suites [OPTIONS]

    --rounds N     In which each suite has one turn per load; 10 by default.
    --seconds N    Of each turn; 1 by default.
    --only TEXT    Loads whose name contains this text.
    --json         JSON on standard output instead of tables.
    --help         This.

The engine is a process of its own, with embedded state, roles and an audit record of every request. P-256 has its
table and ready keys. `other requests`: each field was sealed by another request, and no opened key is cached. Figures are
medians over the rounds; ranges and verdicts are 90 % intervals of a bootstrap over the rounds.
";

/// The greatest CPU time for opening a field of another request with `xaes`, and for encrypting one
/// field with it, in microseconds.
const XAES_ROW_US_MAX: f64 = 0.6;
const XAES_ONE_FIELD_US_MAX: f64 = 12.0;
/// The greatest cost of a field of 2,000 with `xaes`, as a multiple of that with `p256`.
const XAES_FACTOR_MAX: f64 = 1.0;
/// The greatest CPU time that a request costs more with `p256-mlkem768` than with `p256`, in
/// microseconds.
const HYBRID_EXTRA_US_MAX: f64 = 30.0;
/// The greatest CPU time that a request costs more with `p256-psk` than with `p256`, in
/// microseconds, and of a field, as a multiple: a key schedule of either hashes as many blocks.
const PSK_EXTRA_US_MAX: f64 = 1.0;
const PSK_FACTOR_MAX: f64 = 1.02;

/// One kind of work, with several suites.
struct Comparison {
    name: &'static str,
    fields: usize,
    callers: usize,
    /// True if no opened key may be cached.
    is_cold: bool,
    /// By suite. The first is the one that others are compared with.
    suites: &'static [(&'static str, Operation)],
}

const ENCRYPT: &[(&str, Operation)] = &[
    ("p256", Operation::EncryptText),
    ("xaes", Operation::EncryptXaes),
    ("p256-mlkem768", Operation::EncryptHybrid),
    ("secp256k1", Operation::EncryptK1),
    ("p256-psk", Operation::EncryptPsk),
    ("secp256k1-psk", Operation::EncryptPskK1),
];

const COMPARISONS: [Comparison; 4] = [
    Comparison {
        name: "encrypt, 1 field",
        fields: 1,
        callers: 64,
        is_cold: false,
        suites: ENCRYPT,
    },
    Comparison {
        name: "encrypt, 2,000 fields",
        fields: 2_000,
        callers: 4,
        is_cold: false,
        suites: ENCRYPT,
    },
    Comparison {
        name: "decrypt, 2,000 fields of one request",
        fields: 2_000,
        callers: 4,
        is_cold: false,
        suites: &[
            ("p256", Operation::DecryptText),
            ("xaes", Operation::DecryptXaes),
            ("p256-mlkem768", Operation::DecryptHybrid),
            ("p256-psk", Operation::DecryptPsk),
        ],
    },
    Comparison {
        name: "decrypt, 2,000 fields of other requests",
        fields: 2_000,
        callers: 4,
        is_cold: true,
        suites: &[
            ("p256", Operation::DecryptKeyed),
            ("xaes", Operation::DecryptXaesKeyed),
            ("p256-psk", Operation::DecryptPskKeyed),
        ],
    },
];

struct Options {
    rounds: usize,
    time: Duration,
    only: String,
    json: bool,
}

/// Measurements of one comparison, by suite and round.
struct Compared {
    comparison: &'static Comparison,
    rounds: Vec<Vec<Measured>>,
}

struct Promise {
    text: String,
    measured: Interval,
    unit: &'static str,
    verdict: Verdict,
}

pub(crate) fn run(arguments: &[String]) -> io::Result<()> {
    if arguments
        .iter()
        .any(|argument| argument == "--help" || argument == "-h")
    {
        return write!(io::stdout(), "{HELP}");
    }
    let options = options(arguments)
        .map_err(|wrong| io::Error::other(format!("{wrong}; --help tells more")))?;
    let callers = callers()?;
    let no_cache: Setting = ("crypto.open_key_cache_entries", "0");
    let [warm, cold] = [
        Place::process(&PRODUCTION)?,
        Place::process(&[&PRODUCTION[..], &[no_cache]].concat())?,
    ];
    if !is_smoke_run() {
        measure(&callers, &warm, LOADS[1], WARM_UP)?;
    }
    let mut compared = Vec::new();
    for comparison in COMPARISONS
        .iter()
        .filter(|comparison| comparison.name.contains(&options.only))
    {
        let engine = if comparison.is_cold { &cold } else { &warm };
        let mut rounds = vec![Vec::new(); comparison.suites.len()];
        for round in 0..options.rounds {
            for turn in 0..rounds.len() {
                let suite = if round % 2 == 0 {
                    turn
                } else {
                    rounds.len() - 1 - turn
                };
                let operation = comparison.suites[suite].1;
                let load = CpuLoad {
                    operation,
                    fields: comparison.fields,
                    callers: comparison.callers,
                };
                rounds[suite].push(measure(&callers, engine, load, options.time)?);
            }
        }
        compared.push(Compared { comparison, rounds });
    }
    [warm, cold].into_iter().for_each(Place::stop);
    if is_smoke_run() {
        return say("suites: every request was answered");
    }
    let promises: Vec<Promise> = compared.iter().flat_map(Compared::promises).collect();
    if options.json {
        let compared: Vec<Value> = compared.iter().flat_map(Compared::json).collect();
        let promises: Vec<Value> = promises.iter().map(Promise::json).collect();
        return say(&format!(
            "{:#}",
            json!({ "loads": compared, "promises": promises })
        ));
    }
    let mut text =
        "| load | suite | CPU per field, us | of the first suite | CPU per request, us | p50, us | fields/s |\n"
            .to_owned();
    text += "| --- | --- | --- | --- | --- | --- | --- |\n";
    compared
        .iter()
        .for_each(|compared| text += &compared.table());
    text += "\n";
    promises.iter().for_each(|promise| text += &promise.line());
    say(text.trim_end())
}

impl Compared {
    fn interval(&self, suite: usize, statistic: impl Fn(&Measured, &Measured) -> f64) -> Interval {
        let (first, of) = (&self.rounds[0], &self.rounds[suite]);
        bootstrap(of.len(), |chosen| {
            median(
                chosen
                    .iter()
                    .map(|round| statistic(&of[*round], &first[*round]))
                    .collect(),
            )
        })
    }

    fn per_field_us(&self, suite: usize) -> Interval {
        self.interval(suite, |one, _| one.cpu_ns() / 1e3)
    }

    fn ratio(&self, suite: usize) -> Interval {
        self.interval(suite, |one, first| one.cpu_ns() / first.cpu_ns())
    }

    fn promises(&self) -> Vec<Promise> {
        let Comparison {
            name,
            fields,
            is_cold,
            suites,
            ..
        } = self.comparison;
        let encrypts = name.starts_with("encrypt");
        let at_most = |text: &str, measured, max: f64, unit| Promise {
            text: format!("{name}, {text} <= {max} {unit}"),
            measured,
            unit,
            verdict: Verdict::at_most(measured, max),
        };
        let of = |at: usize, suite: &str| match suite {
            "xaes" if *is_cold => Some(at_most(
                "xaes: CPU per field",
                self.per_field_us(at),
                XAES_ROW_US_MAX,
                "us",
            )),
            "xaes" if encrypts && *fields == 1 => Some(at_most(
                "xaes: CPU per field",
                self.per_field_us(at),
                XAES_ONE_FIELD_US_MAX,
                "us",
            )),
            "xaes" if encrypts => Some(at_most(
                "xaes: CPU",
                self.ratio(at),
                XAES_FACTOR_MAX,
                "x p256",
            )),
            "p256-mlkem768" if encrypts => {
                let extra = self.interval(at, |one, first| {
                    one.per_request_us() - first.per_request_us()
                });
                Some(at_most(
                    "p256-mlkem768: CPU per request on top of p256",
                    extra,
                    HYBRID_EXTRA_US_MAX,
                    "us",
                ))
            }
            "p256-psk" if encrypts && *fields == 1 => {
                let extra = self.interval(at, |one, first| {
                    one.per_request_us() - first.per_request_us()
                });
                Some(at_most(
                    "p256-psk: CPU per request on top of p256",
                    extra,
                    PSK_EXTRA_US_MAX,
                    "us",
                ))
            }
            "p256-psk" => Some(at_most(
                "p256-psk: CPU",
                self.ratio(at),
                PSK_FACTOR_MAX,
                "x p256",
            )),
            _ => None,
        };
        suites
            .iter()
            .enumerate()
            .filter_map(|(at, (suite, _))| of(at, suite))
            .collect()
    }

    fn table(&self) -> String {
        let Comparison { name, suites, .. } = self.comparison;
        let row = |(at, (suite, _)): (usize, &(&str, Operation))| {
            let Interval { low, value, high } = self.per_field_us(at);
            let of =
                |figure: fn(&Measured) -> f64| median(self.rounds[at].iter().map(figure).collect());
            format!(
                "| {name} | {suite} | {value:.3} ({low:.3} to {high:.3}) | {:.2} | {:.1} | {:.0} | {:.0} |\n",
                self.ratio(at).value,
                of(Measured::per_request_us),
                of(|one| one.latency_us[0]),
                of(Measured::fields_per_second),
            )
        };
        suites.iter().enumerate().map(row).collect()
    }

    fn json(&self) -> Vec<Value> {
        let Comparison {
            name,
            suites,
            fields,
            callers,
            ..
        } = self.comparison;
        let row = |(at, (suite, _)): (usize, &(&str, Operation))| {
            let Interval { low, value, high } = self.per_field_us(at);
            let of =
                |figure: fn(&Measured) -> f64| median(self.rounds[at].iter().map(figure).collect());
            json!({
                "load": name, "suite": suite, "fields": fields, "callers": callers, "cpu_us_per_field": [low, value, high],
                "ratio": self.ratio(at).value, "cpu_us_per_request": of(Measured::per_request_us),
                "p50_us": of(|one| one.latency_us[0]), "fields_per_s": of(Measured::fields_per_second),
            })
        };
        suites.iter().enumerate().map(row).collect()
    }
}

impl Promise {
    fn line(&self) -> String {
        let Interval { low, value, high } = self.measured;
        format!(
            "{}: {}, {value:.2} {} ({low:.2} to {high:.2})\n",
            self.text,
            self.verdict.name(),
            self.unit
        )
    }

    fn json(&self) -> Value {
        let Interval { low, value, high } = self.measured;
        json!({ "promise": self.text, "measured": [low, value, high], "unit": self.unit, "verdict": self.verdict.name() })
    }
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let (rounds, seconds) = if is_smoke_run() { (1, 0.02) } else { (10, 1.0) };
    let mut options = Options {
        rounds,
        time: Duration::from_secs_f64(seconds),
        only: String::new(),
        json: false,
    };
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--json" => options.json = true,
            "--only" => options.only.clone_from(value()?),
            "--rounds" => {
                let rounds = value()?
                    .parse()
                    .ok()
                    .filter(|rounds| (1..=10_000).contains(rounds));
                options.rounds = rounds.ok_or("--rounds is a number from 1 to 10000")?;
            }
            "--seconds" => {
                let seconds = value()?
                    .parse()
                    .ok()
                    .filter(|seconds: &f64| *seconds > 0.0 && *seconds < 1e4);
                options.time =
                    Duration::from_secs_f64(seconds.ok_or("--seconds is a number above 0")?);
            }
            other => return Err(format!("{other} is not an option")),
        }
    }
    Ok(options)
}
