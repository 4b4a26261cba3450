//! The leak check: whether originals of masked values are in the target.
//!
//! It reads source and target again, by rules that name what is sensitive, which need not be those that the target was
//! made by: a target made without one of them fails. Values are held as keyed hashes of 64 bits, under a key of this run,
//! in a table of bounded size; what does not fit it is checked in further passes, so that the outcome is exact but for
//! collisions of hashes. What it can tell hangs on the function:
//!
//! * `redact`, `fixed`, `null`, `partial`, `hash` and `email` give nothing that is an original: one original in its own
//!   field of the target is a leak, and so is one of [`ELSEWHERE_CHARS_MIN`] characters or more anywhere else: as a whole
//!   value, a key, an element of an array or a quoted string of a text or, with a digit or an `@` in it, as a word of a text,
//!   or as a key or value in it.
//! * `card`, `phone` and `fpe` may turn one original into another's by chance; `pseudonym`, `date_shift`, `generalize` and
//!   `noise` do it all the time. A field of these leaks when most of its rows hold values that occur exactly as often as
//!   in the source. Of the first three, originals elsewhere are a leak too when they are more than one in a hundred.

mod file;
mod pieces;
mod postgres;
mod window;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use serde::Serialize;

pub use file::verify_files;
pub use postgres::verify_databases;

use crate::plan::Plan;
use pieces::Piece;
use window::Window;

/// Originals of fewer characters occur elsewhere by chance, and are looked for in their own field only.
pub const ELSEWHERE_CHARS_MIN: usize = 8;
/// The share of rows with unmoved values from which a field counts as not masked.
const UNMOVED_MAX: f64 = 0.9;
/// Rows below which shares say nothing.
const ROWS_MIN: u64 = 10;
/// The share of originals elsewhere from which it is not chance.
const ELSEWHERE_MAX: f64 = 0.01;
/// Fields of the target that are named for one field of the source.
const NAMED_MAX: usize = 5;

/// Bounds of a leak check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakLimits {
    /// Values held at once, in each of two tables. Default 3,600,000, which are 180 MB in both; a few more would double
    /// that, for tables grow by doubling.
    pub values_max: usize,
}

impl Default for LeakLimits {
    fn default() -> Self {
        Self { values_max: 3_600_000 }
    }
}

/// What a leak check found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LeakReport {
    /// Whether no field leaks. Fields that could not be checked do not fail it.
    pub passed: bool,
    /// How often source and target were read.
    pub passes: u32,
    /// By field of the source that the rules mask.
    pub fields: Vec<LeakField>,
}

/// What was found of one field.
#[derive(Clone, Debug, Serialize)]
pub struct LeakField {
    /// Path, or `schema.table.column`.
    pub field: String,
    /// What the rules mask it by.
    pub function: String,
    /// Values in the source that are not null.
    pub values: u64,
    /// Different ones.
    pub originals: u64,
    /// Of those, how many are in the same field of the target.
    pub found_in_field: u64,
    /// Values of the source that occur exactly as often in the target's field.
    pub unmoved: u64,
    /// Originals that were looked for in other fields.
    pub looked_for_elsewhere: u64,
    /// Of those, how many were found there.
    pub found_elsewhere: u64,
    /// Fields where they were found; at most five.
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
    /// Too few values to tell apart from chance under this function.
    NotChecked,
}

/// What a function promises about originals in the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    /// None at all. `constant`: but for the one text that it always gives.
    Absent { constant: bool },
    /// Another's original by chance.
    Rare,
    /// Nothing of single values.
    Moved,
}

fn promise(name: &str) -> Promise {
    match name {
        "redact" | "fixed" | "null" => Promise::Absent { constant: true },
        "partial" | "hash" | "email" => Promise::Absent { constant: false },
        "card" | "phone" | "fpe" => Promise::Rare,
        _ => Promise::Moved,
    }
}

/// Source and target, read as often as is asked.
#[derive(Debug)]
pub(crate) struct Check {
    plan: Arc<Plan>,
    keys: RandomState,
    fields: Vec<LeakField>,
    promises: Vec<Promise>,
    /// Fields by name and rule.
    by_rule: HashMap<(String, usize), usize>,
    /// Fields by name alone; a name has one for each rule that hits its values by kind.
    by_name: HashMap<String, Vec<usize>>,
    /// By field and value, how often it occurs on either side.
    own: Window<Occurrences>,
    /// By value, whether it was met outside of its field.
    anywhere: Window<Sought>,
    /// Values in the target's fields that are not null; of the first pass.
    target_values: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Occurrences {
    field: u32,
    source: u32,
    target: u32,
}

#[derive(Clone, Copy, Debug)]
struct Sought {
    field: u32,
    is_found: bool,
}

impl Check {
    pub(crate) fn new(plan: Arc<Plan>, limits: LeakLimits) -> Self {
        Self {
            plan,
            keys: RandomState::new(),
            fields: Vec::new(),
            promises: Vec::new(),
            by_rule: HashMap::new(),
            by_name: HashMap::new(),
            own: Window::new(limits.values_max),
            anywhere: Window::new(limits.values_max),
            target_values: Vec::new(),
        }
    }

    pub(crate) fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// The number of a field whose values a rule masks.
    pub(crate) fn field(&mut self, name: &str, rule: usize) -> usize {
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
        self.promises.push(promise(self.plan.name(rule)));
        self.target_values.push(0);
        self.by_rule.insert((name.to_owned(), rule), at);
        self.by_name.entry(name.to_owned()).or_default().push(at);
        at
    }

    /// The numbers of the fields of that name.
    pub(crate) fn fields_named(&self, name: &str) -> Vec<usize> {
        self.by_name.get(name).cloned().unwrap_or_default()
    }

    /// A value of the source that a rule masks.
    pub(crate) fn original(&mut self, field: usize, text: &str) {
        let own = self.keys.hash_one((field, text));
        let fresh = Occurrences { field: field as u32, source: 0, target: 0 };
        if let Some(entry) = self.own.entry(own, fresh) {
            entry.source = entry.source.saturating_add(1);
        }
        if self.promises[field] != Promise::Moved && is_telling(text) {
            let fresh = Sought { field: field as u32, is_found: false };
            let _ = self.anywhere.entry(self.keys.hash_one(text), fresh);
        }
        if self.promises[field] != Promise::Moved {
            let Self { keys, anywhere, .. } = self;
            pieces::elements(text, &mut |element| {
                if is_telling(element) {
                    let fresh = Sought { field: field as u32, is_found: false };
                    let _ = anywhere.entry(keys.hash_one(element), fresh);
                }
            });
        }
    }

    /// A value of the target; `fields` are the numbers of the fields of its name.
    pub(crate) fn seen(&mut self, name: &str, fields: &[usize], text: &str) {
        for field in fields {
            self.target_values[*field] += 1;
            if let Some(entry) = self.own.find(self.keys.hash_one((*field, text))) {
                entry.target = entry.target.saturating_add(1);
            }
        }
        self.sought_with_pieces(name, fields, text);
    }

    /// A key of an object of the target, in the object `name`.
    pub(crate) fn seen_key(&mut self, name: &str, key: &str) {
        self.sought_with_pieces(name, &[], key);
    }

    fn sought_with_pieces(&mut self, name: &str, fields: &[usize], text: &str) {
        self.sought(name, fields, text);
        if text.len() > ELSEWHERE_CHARS_MIN {
            pieces::each(text, &mut |piece, kind| {
                // A word without a digit or a sign is a word of anybody.
                if kind == Piece::Value || piece.contains(|c: char| c == '@' || c.is_ascii_digit()) {
                    self.sought(name, fields, piece);
                }
            });
        }
    }

    fn sought(&mut self, name: &str, fields: &[usize], text: &str) {
        if !is_telling(text) {
            return;
        }
        let Some(entry) = self.anywhere.find(self.keys.hash_one(text)) else { return };
        let at = entry.field as usize;
        // In fields of the same function, chance and the field's own account are told elsewhere.
        let function = &self.fields[at].function;
        if entry.is_found || fields.iter().any(|field| &self.fields[*field].function == function) {
            return;
        }
        entry.is_found = true;
        let elsewhere = &mut self.fields[at].elsewhere;
        if elsewhere.len() < NAMED_MAX && !elsewhere.iter().any(|known| known == name) {
            elsewhere.push(name.to_owned());
        }
    }

    /// Adds up what was held; whether another pass is needed.
    pub(crate) fn end_pass(&mut self) -> bool {
        for entry in self.own.values() {
            let field = &mut self.fields[entry.field as usize];
            field.values += u64::from(entry.source);
            field.originals += 1;
            let is_constant = self.promises[entry.field as usize] == Promise::Absent { constant: true }
                && u64::from(entry.target) == self.target_values[entry.field as usize];
            if entry.target > 0 && !is_constant {
                field.found_in_field += 1;
            }
            if entry.target == entry.source {
                field.unmoved += u64::from(entry.source);
            }
        }
        for entry in self.anywhere.values() {
            let field = &mut self.fields[entry.field as usize];
            field.looked_for_elsewhere += 1;
            field.found_elsewhere += u64::from(entry.is_found);
        }
        self.target_values.fill(0);
        let (own, anywhere) = (self.own.advance(), self.anywhere.advance());
        own || anywhere
    }

    pub(crate) fn report(mut self, passes: u32) -> LeakReport {
        for (field, promise) in self.fields.iter_mut().zip(&self.promises) {
            field.verdict = verdict(field, *promise);
        }
        let passed = self.fields.iter().all(|field| field.verdict != LeakVerdict::Leak);
        LeakReport { passed, passes, fields: self.fields }
    }
}

fn verdict(field: &LeakField, promise: Promise) -> LeakVerdict {
    let share = |part: u64, of: u64| if of == 0 { 0.0 } else { part as f64 / of as f64 };
    let leaks = match promise {
        Promise::Absent { .. } => field.found_in_field > 0 || field.found_elsewhere > 0,
        Promise::Rare | Promise::Moved => {
            field.values >= ROWS_MIN
                && (share(field.unmoved, field.values) >= UNMOVED_MAX
                    || share(field.found_elsewhere, field.looked_for_elsewhere) > ELSEWHERE_MAX)
        }
    };
    match promise {
        _ if leaks => LeakVerdict::Leak,
        Promise::Rare | Promise::Moved if field.values < ROWS_MIN => LeakVerdict::NotChecked,
        _ => LeakVerdict::Clean,
    }
}

/// Whether a text is long and various enough not to occur elsewhere by chance.
fn is_telling(text: &str) -> bool {
    if text.len() < ELSEWHERE_CHARS_MIN {
        return false;
    }
    let first = text.chars().next();
    text.chars().count() >= ELSEWHERE_CHARS_MIN && text.chars().any(|c| Some(c) != first)
}

#[cfg(test)]
mod tests;
