//! A parser of the exposition: metric families with their types, labels and label values.
//!
//! Every series exists from the start, so the exposition of a fresh engine contains every value
//! that a label can have.

use std::collections::{BTreeMap, BTreeSet};

/// A metric family of the exposition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// `counter`, `gauge`, `histogram` or `info`.
    pub kind: String,
    /// Help text, without the full stop that the encoder adds.
    pub help: String,
    /// Values by label, without the label `le`.
    pub labels: BTreeMap<String, BTreeSet<String>>,
}

/// Parses an exposition. The keys are the documented names of the families: the name of a counter
/// ends in `_total`, the name of an info in `_info`.
pub fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.entry(name.to_owned()).or_default().help =
                help.trim_end_matches('.').to_owned();
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') {
            read_series(line, &mut families);
        }
    }
    families
        .into_iter()
        .map(|(name, family)| (format!("{name}{}", name_suffix(&family.kind)), family))
        .collect()
}

/// Returns the suffix that documented names of a metric type have.
fn name_suffix(kind: &str) -> &'static str {
    match kind {
        "counter" => "_total",
        "info" => "_info",
        _ => "",
    }
}

fn read_series(line: &str, families: &mut BTreeMap<String, Family>) {
    let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let of = families
        .iter_mut()
        .filter(|(family, _)| name.starts_with(family.as_str()));
    let Some((_, family)) = of.max_by_key(|(family, _)| family.len()) else {
        return;
    };
    for pair in labels.trim_end_matches('}').split(',') {
        let Some((label, value)) = pair.split_once('=') else {
            continue;
        };
        if label != "le" {
            family
                .labels
                .entry(label.to_owned())
                .or_default()
                .insert(value.trim_matches('"').to_owned());
        }
    }
}
