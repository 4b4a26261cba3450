//! The leak check: searches the target for originals of masked values.
//!
//! The check reads source and target again. The rules of the check name the sensitive fields and
//! can differ from the rules of the job. If the job lacked one of these rules, the check fails.
//!
//! Values are stored as 64-bit hashes, keyed per run, in tables of bounded size. Hashes that do not
//! fit are checked in further passes, so the result is exact except for hash collisions. The
//! strength of the check depends on the function:
//!
//! * `redact`, `fixed`, `null`, `partial`, `hash` and `email` never return an original. A single
//!   original in its own field of the target is therefore a leak. An original of at least
//!   [`ELSEWHERE_CHARS_MIN`] characters is a leak everywhere else in the target, too. The check
//!   finds the original as a whole value, a key, an array element, or a quoted string in a text.
//!   The check also finds it in a text as a word with a digit or `@`, or as a key or value.
//! * `card`, `phone`, `iban`, `mac` and `fpe` can return another original by chance; `pseudonym`,
//!   `date_shift`, `generalize` and `noise` often do. Such a field leaks if most of its rows hold
//!   values that occur exactly as often as in the source. For `card`, `phone`, `iban`, `mac` and
//!   `fpe`, originals in other fields are a leak, too, if their share exceeds a limit. The limit is
//!   twice the share of originals that the own field has by chance, but at least 1 % and at most
//!   10 %.

mod file;
mod pieces;
mod postgres;
mod window;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use sealwire_discover::hide_map_keys;
use sealwire_mask_rules::{Function, FunctionKind, Literal, REDACTED};
use serde::Serialize;

pub use file::verify_files;
pub use postgres::verify_databases;

use crate::mask_job::plan::Plan;
use pieces::Piece;
use window::TextWindow;

/// Originals of fewer characters occur elsewhere by chance, so they are searched for only in their
/// own field.
pub const ELSEWHERE_CHARS_MIN: usize = 8;
/// Minimum share of rows with unmoved values at which a field counts as not masked.
const UNMOVED_MAX: f64 = 0.9;
/// Minimum number of rows for which shares are meaningful.
const ROWS_MIN: u64 = 10;
/// Maximum share of originals in other fields that chance explains.
const ELSEWHERE_MAX: f64 = 0.01;
/// Maximum share of originals in other fields that is attributed to chance, regardless of the share
/// in the own field.
const CHANCE_MAX: f64 = 0.1;
/// Maximum number of target fields that are listed per source field.
const NAMED_MAX: usize = 5;

/// Limits of a leak check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakLimits {
    /// Maximum number of values in each of two tables. Default 3,600,000, which takes 180 MB for
    /// both tables. Slightly higher limits double the memory, since tables grow by doubling.
    pub values_max: usize,
}

impl Default for LeakLimits {
    fn default() -> Self {
        Self {
            values_max: 3_600_000,
        }
    }
}

/// The result of a leak check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LeakReport {
    /// True if no field leaks and the source has an original. Fields that could not be checked do
    /// not affect this result.
    pub passed: bool,
    /// Number of passes over source and target.
    pub passes: u32,
    /// Results by source field that the rules mask.
    pub fields: Vec<LeakField>,
    /// Columns that the check skipped, or searched only in part. Such columns can hold originals.
    pub skipped: Vec<SkippedColumn>,
}

/// A column that the check skipped, or searched only in part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SkippedColumn {
    /// The column.
    pub field: String,
    /// The reason, such as the column's type.
    pub why: String,
}

/// The result for one field.
#[derive(Clone, Debug, Serialize)]
pub struct LeakField {
    /// Path, or `schema.table.column`.
    pub field: String,
    /// The function by which the rules mask the field.
    pub function: String,
    /// Number of non-null values in the source.
    pub values: u64,
    /// Number of distinct values in the source.
    pub originals: u64,
    /// Number of distinct originals that are in the same field of the target.
    pub found_in_field: u64,
    /// Number of non-null source rows whose value occurs exactly as often in the target's field.
    pub unmoved: u64,
    /// Number of originals that were searched for in other fields.
    pub looked_for_elsewhere: u64,
    /// Number of originals that were found in other fields.
    pub found_elsewhere: u64,
    /// Fields where originals were found; at most five.
    pub elsewhere: Vec<String>,
    /// The outcome.
    pub verdict: LeakVerdict,
}

/// The outcome for one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeakVerdict {
    /// No leak.
    Clean,
    /// Originals are in the target.
    Leak,
    /// No values, or too few to distinguish a leak from chance under this function.
    NotChecked,
}

/// A function's guarantee about originals in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guarantee {
    /// No originals occur. `constant`: except for the constant text that the function returns.
    Absent { constant: bool },
    /// Originals of other values occur by chance.
    Rare,
    /// No guarantee for single values.
    Moved,
}

fn guarantee_of(name: &str) -> Guarantee {
    match name {
        "redact" | "fixed" | "null" => Guarantee::Absent { constant: true },
        "partial" | "hash" | "email" => Guarantee::Absent { constant: false },
        "card" | "phone" | "fpe" | "iban" | "mac" => Guarantee::Rare,
        _ => Guarantee::Moved,
    }
}

/// Returns the text that a function gives for every string.
fn constant_text(function: &Function) -> Option<String> {
    match function.kind() {
        FunctionKind::Redact { with } => Some(with.as_deref().unwrap_or(REDACTED).to_owned()),
        FunctionKind::Fixed(Literal::Text(text) | Literal::Word(text)) => Some(text.to_string()),
        _ => None,
    }
}

/// The state of a leak check over several passes.
#[derive(Debug)]
pub(crate) struct Check {
    plan: Arc<Plan>,
    keys: RandomState,
    fields: Vec<LeakField>,
    guarantees: Vec<Guarantee>,
    /// The text that a field's function gives for every string, if the function has such a
    /// constant.
    constants: Vec<Option<String>>,
    /// Field numbers by name and rule.
    by_rule: HashMap<(String, usize), usize>,
    /// Field numbers by name. A name has several fields if several kind rules apply to its values.
    by_name: HashMap<String, Vec<usize>>,
    /// Occurrences in source and target, by field and value.
    own_values: TextWindow<Occurrences>,
    /// Values searched for in other fields, with a flag for values that were found.
    search_terms: TextWindow<SearchTerms>,
    /// Per field, the number of non-null values in the target during the current pass.
    target_values: Vec<u64>,
    skipped: Vec<SkippedColumn>,
}

#[derive(Clone, Copy, Debug)]
struct Occurrences {
    field: u32,
    source: u32,
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct SearchTerms {
    field: u32,
    is_found: bool,
}

impl Check {
    pub(crate) fn new(plan: Arc<Plan>, limits: LeakLimits) -> Self {
        Self {
            plan,
            keys: RandomState::new(),
            fields: Vec::new(),
            guarantees: Vec::new(),
            constants: Vec::new(),
            by_rule: HashMap::new(),
            by_name: HashMap::new(),
            own_values: TextWindow::new(limits.values_max),
            search_terms: TextWindow::new(limits.values_max),
            target_values: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Records a skipped column.
    pub(crate) fn skip_column(&mut self, field: &str, why: &str) {
        if !self.skipped.iter().any(|column| column.field == field) {
            self.skipped.push(SkippedColumn {
                field: field.to_owned(),
                why: why.to_owned(),
            });
        }
    }

    pub(crate) fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the number of a field whose values a rule masks, and adds the field if it is new.
    pub(crate) fn field_number(&mut self, name: &str, rule: usize) -> usize {
        if let Some(at) = self.by_rule.get(&(name.to_owned(), rule)) {
            return *at;
        }
        let at = self.fields.len();
        self.fields.push(LeakField {
            field: name.to_owned(),
            function: self.plan.function(rule).to_owned(),
            values: 0,
            originals: 0,
            found_in_field: 0,
            unmoved: 0,
            looked_for_elsewhere: 0,
            found_elsewhere: 0,
            elsewhere: Vec::new(),
            verdict: LeakVerdict::Clean,
        });
        self.guarantees.push(guarantee_of(self.plan.name(rule)));
        self.constants.push(
            self.plan
                .rules()
                .get(rule)
                .and_then(|rule| constant_text(&rule.function)),
        );
        self.target_values.push(0);
        self.by_rule.insert((name.to_owned(), rule), at);
        self.by_name.entry(name.to_owned()).or_default().push(at);
        at
    }

    /// Returns the numbers of the fields with that name.
    pub(crate) fn fields_named(&self, name: &str) -> Vec<usize> {
        self.by_name.get(name).cloned().unwrap_or_default()
    }

    /// Records a value of the source that a rule masks.
    pub(crate) fn add_original(&mut self, field: usize, text: &str) {
        // An empty text proves nothing: functions that keep the length of a text return it.
        if text.is_empty() {
            return;
        }
        let hash = self.keys.hash_one((field, text));
        let new_entry = Occurrences {
            field: field as u32,
            source: 0,
            target: 0,
        };
        if let Some(entry) = self.own_values.entry(hash, new_entry) {
            entry.source = entry.source.saturating_add(1);
        }
        if self.guarantees[field] == Guarantee::Moved {
            return;
        }
        self.add_search_term(field, text);
        pieces::for_each_element(text, &mut |element| self.add_search_term(field, element));
    }

    /// Adds an original to the values that are searched for in other fields. If several fields
    /// share this original, a field whose function never returns originals takes precedence.
    fn add_search_term(&mut self, field: usize, text: &str) {
        if !is_distinctive(text) {
            return;
        }
        let new_entry = SearchTerms {
            field: field as u32,
            is_found: false,
        };
        let Some(entry) = self.search_terms.entry(self.keys.hash_one(text), new_entry) else {
            return;
        };
        if self.guarantees[entry.field as usize] == Guarantee::Rare
            && self.guarantees[field] != Guarantee::Rare
        {
            entry.field = field as u32;
        }
    }

    /// Checks a value of the target. `fields` are the numbers of the fields with its name.
    pub(crate) fn check_value(&mut self, name: &str, fields: &[usize], text: &str) {
        for field in fields {
            self.target_values[*field] += 1;
            if let Some(entry) = self.own_values.find(self.keys.hash_one((*field, text))) {
                entry.target = entry.target.saturating_add(1);
            }
        }
        // In a field whose mask is this constant, the constant proves nothing.
        if !fields
            .iter()
            .any(|field| self.constants[*field].as_deref() == Some(text))
        {
            self.search_with_pieces(name, fields, text);
        }
    }

    /// Checks an object key of the target; `name` is the object's path.
    pub(crate) fn check_key(&mut self, name: &str, key: &str) {
        self.search_with_pieces(name, &[], key);
    }

    /// Checks a definition or comment of a schema, which `name` identifies.
    pub(crate) fn check_definition(&mut self, name: &str, text: &str) {
        self.search_with_pieces(name, &[], text);
        // A text between single quotes can be an SQL literal. An apostrophe in a comment must not
        // shift the pairs of quotes. A doubled quote stands for one quote in the literal.
        text.split('\'')
            .for_each(|literal| self.search_unpadded(name, &[], literal));
        if text.contains("''") {
            let text = text.replace("''", "\0");
            text.split('\'')
                .for_each(|literal| self.search_unpadded(name, &[], &literal.replace('\0', "'")));
        }
    }

    fn search_with_pieces(&mut self, name: &str, fields: &[usize], text: &str) {
        self.search_unpadded(name, fields, text);
        if text.len() > ELSEWHERE_CHARS_MIN {
            pieces::for_each_piece(text, &mut |piece, kind| {
                // A word without a digit or `@` is an ordinary word that can occur anywhere.
                if kind == Piece::Value || piece.contains(|c: char| c == '@' || c.is_ascii_digit())
                {
                    self.search_unpadded(name, fields, piece);
                }
            });
        }
    }

    fn search_unpadded(&mut self, name: &str, fields: &[usize], text: &str) {
        self.search_exactly(name, fields, text);
        // A document can hold the value of a `char(n)` column with its padding.
        let unpadded = text.trim_end_matches(' ');
        if unpadded.len() < text.len() {
            self.search_exactly(name, fields, unpadded);
        }
    }

    fn search_exactly(&mut self, name: &str, fields: &[usize], text: &str) {
        if !is_distinctive(text) {
            return;
        }
        let Some(entry) = self.search_terms.find(self.keys.hash_one(text)) else {
            return;
        };
        let at = entry.field as usize;
        // A field's own originals are counted per field.
        if entry.is_found || fields.contains(&at) {
            return;
        }
        entry.is_found = true;
        let elsewhere = &mut self.fields[at].elsewhere;
        if elsewhere.len() < NAMED_MAX && !elsewhere.iter().any(|known| known == name) {
            elsewhere.push(name.to_owned());
        }
    }

    /// Adds the results of a pass. Returns true if another pass is necessary.
    pub(crate) fn end_pass(&mut self) -> bool {
        for entry in self.own_values.values() {
            let field = &mut self.fields[entry.field as usize];
            field.values += u64::from(entry.source);
            field.originals += 1;
            let is_constant = self.guarantees[entry.field as usize]
                == Guarantee::Absent { constant: true }
                && u64::from(entry.target) == self.target_values[entry.field as usize];
            if entry.target > 0 && !is_constant {
                field.found_in_field += 1;
            }
            if entry.target == entry.source {
                field.unmoved += u64::from(entry.source);
            }
        }
        for entry in self.search_terms.values() {
            let field = &mut self.fields[entry.field as usize];
            field.looked_for_elsewhere += 1;
            field.found_elsewhere += u64::from(entry.is_found);
        }
        self.target_values.fill(0);
        let has_more_values = self.own_values.advance();
        let has_more_terms = self.search_terms.advance();
        has_more_values || has_more_terms
    }

    pub(crate) fn into_report(mut self, passes: u32) -> LeakReport {
        for (field, guarantee) in self.fields.iter_mut().zip(&self.guarantees) {
            field.verdict = decide_verdict(field, *guarantee);
        }
        // A check that found no original in the source, such as in an emptied source, proves
        // nothing.
        let passed = self.fields.iter().any(|field| field.values > 0)
            && self
                .fields
                .iter()
                .all(|field| field.verdict != LeakVerdict::Leak);
        LeakReport {
            passed,
            passes,
            fields: without_map_keys(self.fields),
            skipped: self.skipped,
        }
    }
}

/// Counts the fields of maps together, since keys of maps are data. Hides these keys in the names
/// of the fields where originals were found.
fn without_map_keys(fields: Vec<LeakField>) -> Vec<LeakField> {
    let names: Vec<String> = fields
        .iter()
        .flat_map(|field| std::iter::once(&field.field).chain(&field.elsewhere))
        .cloned()
        .collect();
    let mut visible = hide_map_keys(&names).into_iter();
    let mut merged: Vec<LeakField> = Vec::new();
    let mut known = HashMap::new();
    for mut field in fields {
        field.field = visible.next().unwrap_or_default();
        field.elsewhere = visible.by_ref().take(field.elsewhere.len()).collect();
        field.elsewhere.dedup();
        let at = *known
            .entry((field.field.clone(), field.function.clone()))
            .or_insert(merged.len());
        let Some(other) = merged.get_mut(at) else {
            merged.push(field);
            continue;
        };
        other.values += field.values;
        other.originals += field.originals;
        other.found_in_field += field.found_in_field;
        other.unmoved += field.unmoved;
        other.looked_for_elsewhere += field.looked_for_elsewhere;
        other.found_elsewhere += field.found_elsewhere;
        for place in field.elsewhere {
            if other.elsewhere.len() < NAMED_MAX && !other.elsewhere.contains(&place) {
                other.elsewhere.push(place);
            }
        }
        other.verdict = match (other.verdict, field.verdict) {
            (LeakVerdict::Leak, _) | (_, LeakVerdict::Leak) => LeakVerdict::Leak,
            (LeakVerdict::Clean, _) | (_, LeakVerdict::Clean) => LeakVerdict::Clean,
            _ => LeakVerdict::NotChecked,
        };
    }
    merged
}

fn decide_verdict(field: &LeakField, guarantee: Guarantee) -> LeakVerdict {
    // Masks are as likely to be originals in another field under the same function as in the field
    // itself.
    let chance =
        ELSEWHERE_MAX.max((2.0 * share(field.found_in_field, field.originals)).min(CHANCE_MAX));
    let leaks = match guarantee {
        Guarantee::Absent { .. } => field.found_in_field > 0 || field.found_elsewhere > 0,
        Guarantee::Rare | Guarantee::Moved => {
            field.values >= ROWS_MIN
                && (share(field.unmoved, field.values) >= UNMOVED_MAX
                    || share(field.found_elsewhere, field.looked_for_elsewhere) > chance)
        }
    };
    match guarantee {
        _ if leaks => LeakVerdict::Leak,
        _ if field.values == 0 => LeakVerdict::NotChecked,
        Guarantee::Rare | Guarantee::Moved if field.values < ROWS_MIN => LeakVerdict::NotChecked,
        _ => LeakVerdict::Clean,
    }
}

fn share(part: u64, total: u64) -> f64 {
    if total == 0 {
        0.0
    } else {
        part as f64 / total as f64
    }
}

/// Returns true if a text is long and varied enough not to occur elsewhere by chance.
fn is_distinctive(text: &str) -> bool {
    if text.len() < ELSEWHERE_CHARS_MIN {
        return false;
    }
    let first = text.chars().next();
    text.chars().count() >= ELSEWHERE_CHARS_MIN && text.chars().any(|c| Some(c) != first)
}

#[cfg(test)]
mod tests;
