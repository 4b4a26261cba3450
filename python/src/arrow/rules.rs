//! Masking of columns by the rules of masking jobs.
//!
//! Rules are resolved against the schema here ([`sealwire_columns::resolve`]): only values that a
//! rule names, or that have the form of a kind, are sent. Each request has values of one rule.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use arrow_pyarrow::FromPyArrow;
use arrow_schema::Schema;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sealwire_client::{Error, Malformed};
use sealwire_columns::{
    LeafDecision, LeafMask, LeafPlan, MaskPieces, ResolveError, put_leaves, resolve,
};
use sealwire_mask_rules::{Column, Target, answers, payload, place};

use super::exchange::ArrowData;
use super::{Batching, NOT_FOR_COLUMNS, PieceError, column_error, failed_path, piece_error};
use crate::client::{NativeClient, Running};
use crate::options::Options;
use crate::request::DocumentRequest;

/// Size of the values in a request, in bytes, after which no further value is added.
const PIECE_BYTES: usize = 1 << 20;
/// Largest file of rules or of a list.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Rules of `docs/masking.md`. Can be pickled: the text and the entries of lists go along.
#[pyclass(frozen, module = "sealwire.arrow")]
pub(crate) struct Rules {
    text: String,
    /// The files of lists that the text names, with their content.
    files: HashMap<String, String>,
    rules: sealwire_mask_rules::Rules,
}

impl Rules {
    fn parse(
        text: String,
        mut read: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Self, String> {
        let mut files = HashMap::new();
        let rules = sealwire_mask_rules::Rules::from_toml_with(&text, |name| {
            let content = read(name)?;
            files.insert(name.to_owned(), content.clone());
            Ok(content)
        });
        Ok(Self {
            rules: rules.map_err(|error| error.to_string())?,
            text,
            files,
        })
    }
}

#[pymethods]
impl Rules {
    /// Parses rules. `files` has the content of files that lists name.
    #[new]
    #[pyo3(signature = (text, files=None))]
    fn new(text: String, files: Option<HashMap<String, String>>) -> PyResult<Self> {
        let files = files.unwrap_or_default();
        let rules = Self::parse(text, |name| {
            files
                .get(name)
                .cloned()
                .ok_or_else(|| format!("files has no {name}"))
        });
        rules.map_err(PyValueError::new_err)
    }

    /// Reads a file of rules, and the lists that it names.
    #[staticmethod]
    fn from_file(path: std::path::PathBuf) -> PyResult<Self> {
        let text = read_file(&path)
            .map_err(|error| PyValueError::new_err(format!("{}: {error}", path.display())))?;
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let rules = Self::parse(text, |name| {
            read_file(&folder.join(name)).map_err(|error| format!("{name}: {error}"))
        });
        rules.map_err(|error| PyValueError::new_err(format!("{}: {error}", path.display())))
    }

    fn __getnewargs__(&self) -> (String, HashMap<String, String>) {
        (self.text.clone(), self.files.clone())
    }

    fn __repr__(&self) -> String {
        format!("Rules({} rules)", self.rules.iter().len())
    }

    /// Returns the target of each rule: `path`, `column` or `kind`, and the text.
    fn targets(&self) -> Vec<(&'static str, String)> {
        let targets = self.rules.iter().map(|rule| match &rule.target {
            Target::Path(path) => ("path", path.clone()),
            Target::Column(column) => ("column", column.clone()),
            Target::Kind(kind) => ("kind", kind.to_string()),
        });
        targets.collect()
    }

    /// Resolves the rules for a schema with the Arrow PyCapsule interface. Returns for each leaf
    /// its path, the position of its column, the function or `None`, whether kinds are looked for,
    /// and the positions of columns with its subjects.
    fn resolve(&self, schema: &Bound<'_, PyAny>) -> PyResult<Vec<ResolvedLeaf>> {
        let schema = Schema::from_pyarrow_bound(schema)?;
        let plans = resolve(&self.rules, &schema).map_err(resolve_error)?;
        let of = |plan: &LeafPlan| {
            let function = match plan.decision {
                LeafDecision::Rule(rule) => {
                    self.rules.get(rule).map(|rule| rule.function.to_string())
                }
                LeafDecision::Kinds | LeafDecision::Keep => None,
            };
            let subjects = plan
                .subject_leaves()
                .map(|(_, leaf)| plans[leaf].path.column())
                .collect();
            let is_examined = plan.decision == LeafDecision::Kinds;
            (
                plan.path.text().to_owned(),
                plan.path.column(),
                function,
                is_examined,
                subjects,
            )
        };
        Ok(plans.iter().map(of).collect())
    }
}

/// Path, position of the column, function, whether kinds are looked for, positions of columns with
/// subjects.
type ResolvedLeaf = (String, usize, Option<String>, bool, Vec<usize>);

fn read_file(path: &Path) -> Result<String, String> {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > FILE_BYTES_MAX {
        return Err(format!("longer than {FILE_BYTES_MAX} bytes"));
    }
    fs::read_to_string(path).map_err(|error| error.to_string())
}

fn resolve_error(error: ResolveError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Masks a table or a record batch by rules.
#[pyfunction]
pub(crate) fn mask_by_rules<'py>(
    py: Python<'py>,
    client: &NativeClient,
    app: &str,
    data: &Bound<'py, PyAny>,
    rules: &Rules,
    options: &Bound<'py, PyDict>,
    batching: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let batching = Batching::read("mask", batching)?;
    let running = client.running(py)?;
    let data = ArrowData::import(data)?;
    let schema = data.schema();
    let mut batches = data.batches();
    let rules = &rules.rules;
    let plans = resolve(rules, &schema).map_err(resolve_error)?;
    let masked = plans
        .iter()
        .filter(|plan| plan.decision != LeafDecision::Keep);
    let masked: Vec<&LeafPlan> = masked.collect();
    let select = || {
        let of_plan = |plan: &&LeafPlan| {
            batches
                .iter()
                .map(|batch| plan.select(rules, batch))
                .collect::<Vec<_>>()
        };
        masked
            .iter()
            .flat_map(of_plan)
            .collect::<Result<Vec<_>, _>>()
    };
    let masks = py.detach(select).map_err(resolve_error)?;
    let used: BTreeSet<usize> = masks
        .iter()
        .flat_map(LeafMask::rules)
        .map(|(rule, _)| rule)
        .collect();
    let request = |rule| Ok((rule, request_of_rule("mask", rules, rule, app, options)?));
    let requests = used
        .into_iter()
        .map(request)
        .collect::<PyResult<HashMap<_, _>>>()?;
    let sent = send_all(
        &running,
        &masked,
        &masks,
        rules,
        &requests,
        &batching,
        batches.len(),
    );
    let results = running
        .wait(py, sent)?
        .map_err(|failed| piece_error(py, &failed))?;
    let put_back = || {
        let arrays = masks
            .iter()
            .zip(&results)
            .map(|(mask, results)| mask.put_back(results));
        let mut arrays = arrays.collect::<Result<Vec<_>, _>>()?.into_iter();
        let leaves: Vec<_> = masked
            .iter()
            .map(|plan| (*plan, arrays.by_ref().take(batches.len()).collect()))
            .collect();
        put_leaves(&schema, &mut batches, leaves)
    };
    let schema = py.detach(put_back).map_err(column_error)?;
    data.export(py, schema, batches)
}

/// Returns the request for values of one rule, without the values.
pub(super) fn request_of_rule(
    method: &str,
    rules: &sealwire_mask_rules::Rules,
    rule: usize,
    app: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<DocumentRequest> {
    let function = &rules
        .get(rule)
        .ok_or_else(|| PyValueError::new_err("no such rule"))?
        .function;
    let subjects = function.subject().is_some().then(Vec::new);
    let (_, paths) = payload(
        &[Column {
            rule,
            subjects,
            ..Column::default()
        }],
        |_| function.subject(),
    );
    let py = options.py();
    let entry = PyDict::new(py);
    entry.set_item("path", &paths[0])?;
    entry.set_item("mask", function.to_string())?;
    let own = options.copy()?;
    for name in NOT_FOR_COLUMNS.iter().chain(&["rules", "unknown", "lists"]) {
        if own.contains(name)? {
            return Err(PyTypeError::new_err(format!(
                "{method}() got an unexpected keyword argument '{name}'"
            )));
        }
    }
    own.set_item("rules", vec![entry])?;
    own.set_item("unknown", "keep")?;
    let lists = PyDict::new(py);
    for (name, entries) in rules
        .lists()
        .filter(|(name, _)| function.list() == Some(name))
    {
        lists.set_item(name, entries.collect::<Vec<_>>())?;
    }
    own.set_item("lists", lists)?;
    let options = Options::new(method, &own)?;
    let request = DocumentRequest::read("mask", app.to_owned(), &options)?;
    options.finish()?;
    request.ok_or_else(|| PyTypeError::new_err("no method mask"))
}

/// The values of one request.
struct Part {
    /// The number of the mask that the values belong to.
    number: usize,
    /// The number of the first value among those of its rule and mask.
    first: usize,
    column: Column,
}

/// The parts of all masks, created one by one, so that only those in flight take memory.
struct Parts<'m> {
    masks: &'m [LeafMask],
    batch_fields: usize,
    number: usize,
    pieces: Option<MaskPieces<'m>>,
    /// The rule of the last part, and the number of its values so far. The pieces of one rule are
    /// consecutive.
    last: Option<(usize, usize)>,
}

impl<'m> Parts<'m> {
    fn new(masks: &'m [LeafMask], batch_fields: usize) -> Self {
        Self {
            masks,
            batch_fields,
            number: 0,
            pieces: None,
            last: None,
        }
    }
}

impl Iterator for Parts<'_> {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        loop {
            let mask = self.masks.get(self.number)?;
            let pieces = self
                .pieces
                .get_or_insert_with(|| mask.pieces(self.batch_fields, PIECE_BYTES));
            if let Some(column) = pieces.next() {
                let first = self
                    .last
                    .filter(|(rule, _)| *rule == column.rule)
                    .map_or(0, |(_, count)| count);
                self.last = Some((column.rule, first + column.count));
                return Some(Part {
                    number: self.number,
                    first,
                    column,
                });
            }
            self.number += 1;
            (self.pieces, self.last) = (None, None);
        }
    }
}

/// Sends the selected values. Returns the masked values of each piece of each mask. The first error
/// ends the work, even while earlier requests are in flight.
async fn send_all(
    running: &Running,
    plans: &[&LeafPlan],
    masks: &[LeafMask],
    rules: &sealwire_mask_rules::Rules,
    requests: &HashMap<usize, DocumentRequest>,
    batching: &Batching,
    batches: usize,
) -> Result<Vec<Vec<(usize, Bytes)>>, PieceError> {
    let subject = |rule: usize| rules.get(rule).and_then(|rule| rule.function.subject());
    let send = async |(
        order,
        Part {
            number,
            first,
            column,
        },
    ): (usize, Part)| {
        let rule = column.rule;
        running.count_values(column.count);
        let columns = [column];
        let (document, _) = payload(&columns, subject);
        let masked = requests[&rule]
            .send_paced(running, batching.retry_timeout, &document, None)
            .await;
        let failed = |error: Error| {
            let plan = plans[number / batches];
            let nth = failed_path(&error).and_then(place).map(|(_, nth)| nth);
            let row = nth
                .and_then(|nth| masks[number].row(rule, first + nth))
                .filter(|_| !plan.path.is_in_list());
            let earlier = masks[number / batches * batches..number]
                .iter()
                .map(|mask| mask.leaf().rows());
            let row = row.map(|row| row + earlier.sum::<usize>());
            PieceError {
                error,
                column: plan.path.text().to_owned(),
                row,
            }
        };
        let masked = masked.map_err(failed)?;
        let mut values = answers(&masked.payload, &columns)
            .map_err(|_| failed(Error::Protocol(Malformed::Truncated)))?;
        Ok((order, number, rule, Bytes::from(values.swap_remove(0))))
    };
    let parts = stream::iter(Parts::new(masks, batching.batch_fields).enumerate()).map(send);
    let mut arrived: Vec<_> = parts
        .buffer_unordered(batching.in_flight)
        .try_collect()
        .await?;
    arrived.sort_unstable_by_key(|(order, ..)| *order);
    let mut results = vec![Vec::new(); masks.len()];
    for (_, number, rule, values) in arrived {
        results[number].push((rule, values));
    }
    Ok(results)
}
