//! Finds the metrics and labels in a Prometheus expression, and checks them against the metrics of
//! the engine and the prober.
//!
//! This is not a parser of the whole language. It knows names, selectors and grouping labels, and
//! rejects any other name that is neither a function nor a metric, so that no mistake is skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::vec::IntoIter;

use sealwire_load::ProbeMetrics;
use sealwire_telemetry::metrics::Metrics;
use sealwire_telemetry::metrics::exposition::{Family, parse};

const FUNCTIONS: [&str; 9] = [
    "rate",
    "increase",
    "changes",
    "histogram_quantile",
    "clamp_min",
    "time",
    "abs",
    "absent",
    "predict_linear",
];
const AGGREGATIONS: [&str; 7] = ["sum", "min", "max", "avg", "count", "topk", "quantile"];
const GROUPINGS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
const OPERATORS: [&str; 4] = ["and", "or", "unless", "bool"];
/// Labels that the scraper adds.
const OF_SCRAPES: [&str; 2] = ["instance", "job"];

#[derive(Clone, Debug, PartialEq, Eq)]
enum PromqlToken {
    Name(String),
    Text(String),
    Sign(char),
}

/// Checks expressions against the metrics of the engine and of `sealwire-load probe`.
pub(crate) struct Checker {
    families: BTreeMap<String, Family>,
}

/// Metrics and labels of an expression.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) metrics: BTreeSet<String>,
    /// Labels that the results can have, as far as the names in the expression show.
    pub(crate) labels: BTreeSet<String>,
}

impl Checker {
    pub(crate) fn new() -> Self {
        let mut families = parse(&Metrics::example().encode());
        families.extend(parse(&ProbeMetrics::new().encode()));
        // Prometheus sets it for each target.
        families.extend(parse("# TYPE up gauge\nup 1\n"));
        Self { families }
    }

    /// Returns the metrics of an expression, or the reason for which the program cannot answer it.
    pub(crate) fn check(&self, expression: &str) -> Result<Asked, String> {
        let mut tokens = tokens(expression)?.into_iter().peekable();
        let (mut asked, mut grouped) = (Asked::default(), Vec::new());
        // Function names of the open parentheses.
        let mut open: Vec<String> = Vec::new();
        let mut has_buckets = false;
        while let Some(token) = tokens.next() {
            match token {
                PromqlToken::Name(name) if GROUPINGS.contains(&&*name) => {
                    grouped.extend(list(&mut tokens)?)
                }
                PromqlToken::Name(name) if OPERATORS.contains(&&*name) => {}
                PromqlToken::Name(name) => {
                    let is_call = FUNCTIONS.contains(&&*name) || AGGREGATIONS.contains(&&*name);
                    if is_call {
                        open.push(name);
                        // In `sum by (a) (...)`, the grouping precedes the parenthesis of the
                        // function.
                        if let Some(PromqlToken::Name(next)) = tokens.peek().cloned()
                            && GROUPINGS.contains(&&*next)
                        {
                            tokens.next();
                            grouped.extend(list(&mut tokens)?);
                        }
                        expect(&mut tokens, '(')?;
                        continue;
                    }
                    let (family, is_bucket) = self.family(&name)?;
                    has_buckets |= is_bucket;
                    let is_rated = open
                        .last()
                        .is_some_and(|call| matches!(&**call, "rate" | "increase"));
                    let grows = family.kind == "counter" || family.kind == "histogram";
                    if grows != is_rated {
                        return Err(format!(
                            "{name}: a {} and rate do not go together as they stand",
                            family.kind
                        ));
                    }
                    asked.metrics.insert(name.clone());
                    asked.labels.extend(family.labels.keys().cloned());
                    if tokens.peek() == Some(&PromqlToken::Sign('{')) {
                        tokens.next();
                        selectors(&mut tokens, &name, family)?;
                    }
                }
                PromqlToken::Sign('(') => open.push(String::new()),
                PromqlToken::Sign(')') => drop(open.pop().ok_or("one parenthesis too many")?),
                PromqlToken::Sign(_) | PromqlToken::Text(_) => {}
            }
        }
        if !open.is_empty() {
            return Err("a parenthesis is open".into());
        }
        asked.labels.extend(OF_SCRAPES.map(str::to_owned));
        for label in &grouped {
            if label == "le" && has_buckets {
                continue;
            }
            if !asked.labels.contains(label) {
                return Err(format!("by {label}: no metric here has that label"));
            }
        }
        if expression.contains("histogram_quantile") && !grouped.iter().any(|label| label == "le") {
            return Err("a quantile needs the label le".into());
        }
        if !grouped.is_empty() {
            asked.labels = grouped.into_iter().collect();
        }
        if asked.metrics.is_empty() {
            Err("asks for no metric".into())
        } else {
            Ok(asked)
        }
    }

    /// Returns the family of a scraped name, and true if the name is of its buckets.
    fn family(&self, name: &str) -> Result<(&Family, bool), String> {
        if let Some(family) = self.families.get(name) {
            return if family.kind == "histogram" {
                Err(format!("{name}: a histogram is asked by its parts"))
            } else {
                Ok((family, false))
            };
        }
        let part = ["_bucket", "_sum", "_count"]
            .into_iter()
            .find_map(|part| Some((name.strip_suffix(part)?, part)));
        let family =
            part.and_then(|(family, part)| Some((self.families.get(family)?, part == "_bucket")));
        family
            .filter(|(family, _)| family.kind == "histogram")
            .ok_or_else(|| format!("{name}: no such metric or function"))
    }
}

/// Checks selectors `{label="value", ...}`: the metric must have the labels, with the values in
/// their closed sets.
fn selectors(
    tokens: &mut Peekable<IntoIter<PromqlToken>>,
    name: &str,
    family: &Family,
) -> Result<(), String> {
    loop {
        let label = match tokens.next() {
            Some(PromqlToken::Sign('}')) => return Ok(()),
            Some(PromqlToken::Sign(',')) => continue,
            Some(PromqlToken::Name(label)) => label,
            other => return Err(format!("{name}: {other:?} in its selector")),
        };
        let mut sign = String::new();
        while let Some(PromqlToken::Sign(c)) = tokens.peek() {
            sign.push(*c);
            tokens.next();
        }
        let Some(PromqlToken::Text(value)) = tokens.next() else {
            return Err(format!("{name}: {label} has no value"));
        };
        match family.labels.get(&label) {
            Some(values) if matches!(&*sign, "=" | "!=") && !values.contains(&value) => {
                return Err(format!("{name}: {label} is never {value}"));
            }
            Some(_) => {}
            None if OF_SCRAPES.contains(&&*label) => {}
            None => return Err(format!("{name}: has no label {label}")),
        }
    }
}

fn list(tokens: &mut Peekable<IntoIter<PromqlToken>>) -> Result<Vec<String>, String> {
    expect(tokens, '(')?;
    let mut names = Vec::new();
    loop {
        match tokens.next() {
            Some(PromqlToken::Sign(')')) => return Ok(names),
            Some(PromqlToken::Sign(',')) => {}
            Some(PromqlToken::Name(name)) => names.push(name),
            other => return Err(format!("{other:?} among labels")),
        }
    }
}

fn expect(tokens: &mut Peekable<IntoIter<PromqlToken>>, sign: char) -> Result<(), String> {
    match tokens.next() {
        Some(PromqlToken::Sign(found)) if found == sign => Ok(()),
        other => Err(format!("{other:?} where {sign} should be")),
    }
}

/// Returns names, strings and symbols. Skips numbers and ranges in brackets.
fn tokens(expression: &str) -> Result<Vec<PromqlToken>, String> {
    let mut tokens = Vec::new();
    let mut chars = expression.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => {
                let text: String = chars.by_ref().take_while(|c| *c != '"').collect();
                tokens.push(PromqlToken::Text(text));
            }
            '[' => {
                if !chars.by_ref().any(|c| c == ']') {
                    return Err("a range is open".into());
                }
            }
            c if c.is_ascii_digit() => {
                while chars
                    .next_if(|c| c.is_ascii_alphanumeric() || *c == '.')
                    .is_some()
                {}
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let mut name = String::from(c);
                while let Some(c) =
                    chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == ':')
                {
                    name.push(c);
                }
                tokens.push(PromqlToken::Name(name));
            }
            c if c.is_whitespace() => {}
            c => tokens.push(PromqlToken::Sign(c)),
        }
    }
    Ok(tokens)
}

#[test]
fn existing_metrics_pass_and_missing_metrics_are_named() {
    let checker = Checker::new();
    for good in [
        "sealwire_ready == 0",
        "sum by (method) (rate(sealwire_requests_total{code!=\"ok\",instance=~\"$instance\"}[5m])) > 0",
        "histogram_quantile(0.99, sum by (le, class) (rate(sealwire_request_queue_seconds_bucket[$__rate_interval])))",
        "rate(sealwire_store_seconds_sum[5m]) / rate(sealwire_store_seconds_count[5m])",
        "count(count by (version) (sealwire_build_info))",
        "time() - process_start_time_seconds{job=~\".*\"}",
        "sum by (outcome) (rate(sealwire_probe_total{outcome!=\"ok\"}[5m])) > 0",
    ] {
        assert!(
            checker.check(good).is_ok(),
            "{good}: {:?}",
            checker.check(good)
        );
    }
    for (bad, says) in [
        ("sealwire_raedy", "no such metric"),
        ("sum(sealwire_calls{code=\"ok\"})", "no such metric"),
        (
            "rate(sealwire_requests_total{kode=\"ok\"}[5m])",
            "has no label kode",
        ),
        (
            "rate(sealwire_requests_total{code=\"okay\"}[5m])",
            "is never okay",
        ),
        (
            "rate(sealwire_probe_total{outcome=\"refused\"}[5m])",
            "is never refused",
        ),
        (
            "sum by (clas) (rate(sealwire_requests_total[5m]))",
            "no metric here has that label",
        ),
        (
            "sum by (le) (rate(sealwire_requests_total[5m]))",
            "no metric here has that label",
        ),
        ("sealwire_requests_total", "do not go together"),
        ("rate(sealwire_ready[5m])", "do not go together"),
        ("sealwire_request_queue_seconds", "by its parts"),
        (
            "histogram_quantile(0.9, sum by (class) (rate(sealwire_request_queue_seconds_bucket[5m])))",
            "needs the label le",
        ),
        (
            "rates(sealwire_requests_total[5m])",
            "no such metric or function",
        ),
        ("sum(rate(sealwire_requests_total[5m])", "is open"),
        ("sum(rate(sealwire_requests_total[5m])))", "too many"),
        ("1 + 1", "no metric"),
    ] {
        let error = checker.check(bad).expect_err(bad);
        assert!(error.contains(says), "{bad}: {error}");
    }
}
