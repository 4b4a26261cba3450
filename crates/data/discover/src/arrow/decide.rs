//! The choice of functions for judged columns.

use std::convert::Infallible;
use std::fmt;

use arrow_schema::{DataType, Schema};
use sealwire_columns::{holds, resolve, schema_leaves};
use sealwire_mask_rules::{
    Column, Function, FunctionKind, Kind, RuleText, Rules, Target, Unknown, Value,
    limits::RULES_MAX,
};
use sealwire_msgpack::TokenReader;

use super::leaf::SampledLeaf;
use crate::choose::{DemandSource, Demands, candidates};
use crate::judge::Judgement;
use crate::path::{PathPart, path_text};
use crate::{
    ColumnPaths, DiscoverOptions, DiscoveredField, Discovery, FieldClass, FieldVerdict,
    RULE_STEPS_MAX, Trial, UNCERTAIN_MIN,
};

/// Width in bits from which integers can hold the results of numeric functions, except for values
/// near the ends of their range.
const WIDE_BITS: usize = 32;

/// Applies a function to the values of a column. Returns the masks as consecutive MessagePack
/// scalars, or `None` if the function does not fit some value.
pub type ColumnTrial<'t, E> = &'t mut dyn FnMut(&Function, &Column) -> Result<Option<Vec<u8>>, E>;

/// Creates a trial of columns from a trial of values.
pub fn column_trial(
    trial: Trial<'_>,
) -> impl FnMut(&Function, &Column) -> Result<Option<Vec<u8>>, Infallible> {
    move |function, column| {
        let mut values = TokenReader::new(&column.values);
        let mut out = Vec::with_capacity(column.values.len());
        let all_fit = (0..column.count).all(|_| {
            let value = values.value().ok().and_then(Value::read);
            value.is_some_and(|value| trial(function, value, &mut out))
        });
        Ok(all_fit.then_some(out))
    }
}

/// The columns of Arrow data with their judgements but without functions. `Debug` shows no names.
pub struct JudgedColumns {
    pub(super) schema: Schema,
    pub(super) columns: Vec<JudgedColumn>,
    pub(super) notes: Vec<String>,
    pub(super) options: DiscoverOptions,
}

impl fmt::Debug for JudgedColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgedColumns")
            .field("columns", &self.columns.len())
            .finish_non_exhaustive()
    }
}

/// The leaves of one path. A path has several leaves if columns share a name, or if the names of
/// members are data.
pub(super) struct JudgedColumn {
    pub(super) parts: Vec<PathPart>,
    pub(super) leaves: Vec<SampledLeaf>,
    pub(super) judgement: Judgement,
    pub(super) class: FieldClass,
}

impl JudgedColumns {
    /// Chooses a function for each sensitive column: the first function whose results fit the type
    /// of the column, and that `trial` can apply to all sampled values. Without a trial, the type
    /// and form of the values decide.
    ///
    /// # Errors
    /// The first error of `trial`.
    pub fn decide<E>(self, mut trial: Option<ColumnTrial<'_, E>>) -> Result<Discovery, E> {
        let Self {
            schema,
            columns,
            notes,
            options,
        } = self;
        let mut discovery = Discovery {
            notes,
            ..Discovery::default()
        };
        if trial.is_none() {
            let note = "no function was tried on values: type and form decided, so later values can need other functions";
            discovery.notes.push(note.to_owned());
        }
        let names: Vec<Vec<PathPart>> = schema_leaves(&schema)
            .iter()
            .map(|leaf| {
                leaf.keys
                    .iter()
                    .map(|key| key.clone().map_or(PathPart::Any, PathPart::Key))
                    .collect()
            })
            .collect();
        let mut steps = 0;
        for column in columns {
            let mut field = column.decide(options, &mut trial)?;
            if field.verdict == FieldVerdict::Sensitive {
                steps += column.parts.len() + 1;
                if steps > RULE_STEPS_MAX {
                    by_name(&mut field, &column.parts, &names);
                }
            }
            discovery.fields.push(field);
        }
        resolved(&schema, &mut discovery);
        Ok(discovery)
    }
}

/// Names a column by its name at any depth if no other column has that name. Such rules save steps,
/// since all path rules together have a limit.
fn by_name(field: &mut DiscoveredField, parts: &[PathPart], all: &[Vec<PathPart>]) {
    let Some(PathPart::Key(name)) = parts.last() else {
        return unsure(field, "too many path rules");
    };
    let columns_of_name = all.iter().filter(|parts| {
        parts
            .iter()
            .any(|part| matches!(part, PathPart::Key(key) if key == name))
    });
    if columns_of_name.count() == 1 {
        field.target = Some(Target::Column(name.clone()));
    } else {
        unsure(
            field,
            "too many path rules, and other columns share its name",
        );
    }
}

fn unsure(field: &mut DiscoveredField, why: &str) {
    field.verdict = FieldVerdict::Uncertain;
    field.evidence.push(why.to_owned());
}

/// Ensures that the rules resolve on the schema.
fn resolved(schema: &Schema, discovery: &mut Discovery) {
    let sensitive = discovery
        .fields
        .iter_mut()
        .filter(|field| field.verdict == FieldVerdict::Sensitive);
    for field in sensitive.skip(RULES_MAX) {
        unsure(field, "a file of rules has too many rules");
    }

    let rules: Vec<_> = discovery
        .fields
        .iter()
        .filter(|field| field.verdict == FieldVerdict::Sensitive)
        .collect();
    if rules_resolve(schema, &rules) {
        return;
    }
    for field in &mut discovery.fields {
        if field.verdict == FieldVerdict::Sensitive && !rules_resolve(schema, &[field]) {
            unsure(field, "its rule names columns that it cannot mask");
        }
    }
}

/// Returns true if the rules of some fields apply to the schema.
fn rules_resolve(schema: &Schema, fields: &[&DiscoveredField]) -> bool {
    let rules = fields.iter().filter_map(|field| {
        Some(RuleText {
            target: field.target.clone()?,
            mask: field.mask.clone()?,
        })
    });
    Rules::new(Unknown::Keep, rules.collect(), Vec::new())
        .is_ok_and(|rules| resolve(&rules, schema).is_ok())
}

impl JudgedColumn {
    fn decide<E>(
        &self,
        options: DiscoverOptions,
        trial: &mut Option<ColumnTrial<'_, E>>,
    ) -> Result<DiscoveredField, E> {
        let mut field = self.field();
        let is_confident = field.confidence >= UNCERTAIN_MIN.min(options.min_confidence);
        let Some(category) = field.category.filter(|_| is_confident) else {
            return Ok(field);
        };
        field.verdict = FieldVerdict::Uncertain;
        if let Some(obstacle) = self.leaves.iter().find_map(|leaf| leaf.obstacle.as_ref()) {
            field.evidence.push(obstacle.clone());
            return Ok(field);
        }
        let functions = self.candidates(category);
        field.fallback = functions
            .iter()
            .find(|function| is_constant(function))
            .map(Function::to_string);
        field.mask = self
            .choose(functions, trial)?
            .map(|function| function.to_string());
        if field.confidence >= options.min_confidence && field.mask.is_some() {
            field.verdict = FieldVerdict::Sensitive;
        }
        Ok(field)
    }

    fn field(&self) -> DiscoveredField {
        let path = path_text(&self.parts);
        DiscoveredField {
            field: path.clone(),
            verdict: FieldVerdict::Harmless,
            category: self.judgement.category,
            confidence: self.judgement.confidence,
            evidence: self.judgement.evidence.clone(),
            mask: None,
            values: self
                .leaves
                .iter()
                .map(|leaf| leaf.sample.values.len())
                .sum(),
            target: Some(Target::Path(path)),
            fallback: None,
            columns: ColumnPaths(
                self.leaves
                    .iter()
                    .map(|leaf| leaf.leaf.path.text().to_owned())
                    .collect(),
            ),
        }
    }

    /// Returns the functions whose results fit the types.
    fn candidates(&self, category: crate::Category) -> Vec<Function> {
        let is_nullable = self.leaves.iter().all(|leaf| leaf.leaf.field.is_nullable());
        let name = crate::names_of(&self.parts).0;
        let demands = Demands {
            name,
            class: &self.class,
            is_unique: false,
            is_nullable,
            source: DemandSource::Arrow,
        };
        let mut functions = candidates(category, demands);
        functions.retain(|function| self.leaves.iter().all(|leaf| leaf.fits_type(function)));
        functions
    }

    fn choose<E>(
        &self,
        functions: Vec<Function>,
        trial: &mut Option<ColumnTrial<'_, E>>,
    ) -> Result<Option<Function>, E> {
        let values: Vec<Column> = self.leaves.iter().map(SampledLeaf::column).collect();
        'functions: for function in functions {
            for (leaf, values) in self
                .leaves
                .iter()
                .zip(&values)
                .filter(|(_, values)| values.count > 0)
            {
                let fits = match trial {
                    None => fits_by_form(&function, leaf),
                    Some(trial) => {
                        let masks = trial(&function, values)?;
                        masks.is_some_and(|masks| {
                            holds(leaf.leaf.field.data_type(), values.count, masks)
                        })
                    }
                };
                if !fits {
                    continue 'functions;
                }
            }
            return Ok(Some(function));
        }
        Ok(None)
    }
}

fn is_constant(function: &Function) -> bool {
    matches!(
        function.kind(),
        FunctionKind::Redact { .. } | FunctionKind::Fixed(_) | FunctionKind::Null
    )
}

/// Returns true if the type and form of the sampled values guarantee that a function accepts them.
fn fits_by_form(function: &Function, sampled: &SampledLeaf) -> bool {
    let data_type = sampled.leaf.field.data_type();
    match function.kind() {
        FunctionKind::Email { .. } => are_all_of(sampled, Kind::Email),
        FunctionKind::Phone { .. } => are_all_of(sampled, Kind::Phone),
        FunctionKind::Card { .. } => are_all_of(sampled, Kind::Card),
        // The required number of digits depends on the letters between them.
        FunctionKind::Iban | FunctionKind::Mac | FunctionKind::PostalCode => false,
        // The required number of characters depends on the alphabet and on other characters between
        // them.
        FunctionKind::Fpe(_) => false,
        FunctionKind::ShiftBy { .. }
        | FunctionKind::ShiftWithin { .. }
        | FunctionKind::Coarsen(_) => {
            matches!(data_type, DataType::Date32 | DataType::Timestamp(..))
        }
        FunctionKind::Step { .. }
        | FunctionKind::NoisePercent { .. }
        | FunctionKind::NoiseBy { .. } => {
            let is_wide = data_type
                .primitive_width()
                .is_some_and(|bytes| bytes * 8 >= WIDE_BITS);
            let mut texts = sampled.sample.values.iter().map(|(_, text)| &**text);
            is_wide
                && data_type.is_numeric()
                && texts.all(|text| is_moved_surely(function.kind(), text))
        }
        _ => true,
    }
}

fn are_all_of(sampled: &SampledLeaf, kind: Kind) -> bool {
    sampled
        .sample
        .values
        .iter()
        .all(|(_, text)| kind.knows(text))
}

/// Returns true if the bounds of a numeric function guarantee that it accepts the number with this
/// text.
fn is_moved_surely(function: &FunctionKind, text: &str) -> bool {
    let Some(value) = text.parse::<f64>().ok().filter(|value| value.is_finite()) else {
        return false;
    };
    let (FunctionKind::NoisePercent { bounds, .. } | FunctionKind::NoiseBy { bounds, .. }) =
        function
    else {
        return true;
    };
    bounds.min.is_none_or(|min| min as f64 <= value)
        && bounds.max.is_none_or(|max| value <= max as f64)
}
