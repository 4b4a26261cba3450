//! The decision on a field of a file.

use sealwire_mask_rules::{Target, Value};

use crate::choose::{DemandSource, Demands, candidates};
use crate::sample::{Sample, ValueType};
use crate::{
    ColumnPaths, DiscoverOptions, DiscoveredField, FieldVerdict, Trial, UNCERTAIN_MIN,
    first_fitting, judge,
};

/// Judges a field by its name, the name of its table or parent key, and its values, and chooses its
/// function. `shown` is the field's name in the result.
#[must_use]
pub fn decide_field(
    (name, table): (&str, &str),
    target: Target,
    shown: String,
    sample: &Sample,
    options: DiscoverOptions,
    trial: Trial<'_>,
) -> DiscoveredField {
    let class = judge::class_of(sample);
    let judged = judge::judge(name, table, &class, sample, options.this_year);
    let mut field = DiscoveredField {
        field: shown,
        verdict: FieldVerdict::Harmless,
        category: judged.category,
        confidence: judged.confidence,
        evidence: judged.evidence,
        mask: None,
        values: sample.values.len(),
        target: Some(target),
        fallback: Some("redact".to_owned()),
        columns: ColumnPaths::default(),
    };
    if let Some(category) = judged
        .category
        .filter(|_| judged.confidence >= UNCERTAIN_MIN.min(options.min_confidence))
    {
        let demands = Demands {
            name,
            class: &class,
            is_unique: false,
            is_nullable: true,
            source: DemandSource::File,
        };
        let values = sample
            .values
            .iter()
            .map(|(r#type, text)| scalar(*r#type, text));
        field.mask = first_fitting(candidates(category, demands), values, trial)
            .map(|function| function.to_string());
        let is_sensitive = judged.confidence >= options.min_confidence && field.mask.is_some();
        field.verdict = if is_sensitive {
            FieldVerdict::Sensitive
        } else {
            FieldVerdict::Uncertain
        };
    }
    field
}

fn scalar(r#type: ValueType, text: &str) -> Value<'_> {
    match r#type {
        ValueType::Text => Value::Str(text),
        ValueType::Boolean => Value::Bool(text == "true"),
        ValueType::Number => text
            .parse()
            .map(Value::Int)
            .or_else(|_| text.parse().map(Value::Float))
            .unwrap_or(Value::Str(text)),
    }
}
