//! Discovery in a file: NDJSON, JSON or CSV, and the entry for Parquet.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use sealwire_discover::{
    DiscoverOptions, Discovery, FieldVerdict, MergedFields, PathPart, RULE_STEPS_MAX, Sample,
    Trial, ValueType, decide_field, is_value_like, merge_maps, names_of, path_text,
};
use sealwire_mask_rules::{Rules, Target, Unknown};

use super::parquet::discover_parquet;
use crate::mask_job::batch::Batch;
use crate::mask_job::chunker::ChunkReader;
use crate::mask_job::error::JobError;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::limits::Limits;
use crate::mask_job::output::Input;
use crate::mask_job::plan::{Plan, Step};
use crate::mask_job::report::{Progress, RunningReport};
use crate::mask_job::scan::csv::Columns;
use crate::mask_job::scan::json::{ItemKind, Memory, Scan, Visitor};
use crate::mask_job::scan::text::unescaped;
use crate::mask_job::scan::tree::{NodeId, Tree};

/// Maximum number of bytes of a file that are read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of distinct paths before maps are recognized.
const PATHS_MAX: usize = 5_000;
const CHUNK_BYTES: usize = 64 << 10;

/// The merged fields of documents.
pub(crate) struct MergedDocuments {
    pub(crate) merged: MergedFields,
    /// True if paths were ignored, because there were too many.
    pub(crate) is_full: bool,
}

/// The fields of documents with their samples.
pub(crate) struct Documents {
    by_node: HashMap<NodeId, Option<usize>>,
    by_path: HashMap<Vec<PathPart>, usize>,
    samples: Vec<(Vec<PathPart>, Sample)>,
    nodes: usize,
    options: DiscoverOptions,
    is_full: bool,
}

impl Documents {
    pub(crate) fn new(options: DiscoverOptions) -> Self {
        Self {
            by_node: HashMap::new(),
            by_path: HashMap::new(),
            samples: Vec::new(),
            nodes: 0,
            options,
            is_full: false,
        }
    }

    fn add_value(&mut self, tree: &Tree, node: NodeId, raw: &[u8]) {
        // The tree starts anew when it has too many nodes.
        if tree.count() < self.nodes {
            self.by_node.clear();
        }
        self.nodes = tree.count();
        let at = match self.by_node.get(&node) {
            Some(at) => *at,
            None => {
                let parts: Vec<PathPart> = tree
                    .steps_of(node)
                    .into_iter()
                    .map(|step| match step {
                        Step::Key(key) => PathPart::Key(key),
                        Step::Index(_) => PathPart::Any,
                    })
                    .collect();
                let at = self.field_index(parts);
                self.by_node.insert(node, at);
                at
            }
        };
        let Some(at) = at else { return };
        let (r#type, text) = match raw.first() {
            Some(b'"') => {
                let inside = &raw[1..raw.len() - 1];
                (
                    ValueType::Text,
                    unescaped(inside).unwrap_or_else(|| String::from_utf8_lossy(inside)),
                )
            }
            Some(b't' | b'f') => (ValueType::Boolean, String::from_utf8_lossy(raw)),
            _ => (ValueType::Number, String::from_utf8_lossy(raw)),
        };
        self.samples[at].1.add(r#type, &text);
    }

    fn field_index(&mut self, parts: Vec<PathPart>) -> Option<usize> {
        if let Some(at) = self.by_path.get(&parts) {
            return Some(*at);
        }
        if self.samples.len() >= PATHS_MAX {
            self.is_full = true;
            return None;
        }
        let at = self.samples.len();
        let seed = self
            .options
            .seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(at as u64);
        self.samples
            .push((parts.clone(), Sample::new(self.options.sample, seed)));
        self.by_path.insert(parts, at);
        Some(at)
    }

    /// Scans one JSON document. Invalid JSON is skipped.
    pub(crate) fn scan_document(
        &mut self,
        text: &[u8],
        memory: &mut Memory,
        plan: &Plan,
        running_report: &RunningReport,
    ) {
        let mut batch = Batch::new(Limits::default());
        if let Ok(scan) = Scan::new(text, plan, running_report, memory, &mut batch) {
            let _ = scan.with_visitor(self).scan_document(0);
        }
    }

    /// Merges the fields of maps, whose keys are data.
    pub(crate) fn merge(self) -> MergedDocuments {
        MergedDocuments {
            merged: merge_maps(self.samples),
            is_full: self.is_full,
        }
    }
}

impl Visitor for Documents {
    fn visit(&mut self, tree: &mut Tree, node: NodeId, kind: ItemKind, raw: &[u8]) {
        if kind == ItemKind::Leaf {
            self.add_value(tree, node, raw);
        }
    }
}

/// Samples a file, or an object that is Parquet, and proposes rules. Blocks while it reads.
///
/// # Errors
/// [`JobError`] if the file cannot be read or is invalid, without values. A CSV header with the
/// form of data is an error.
pub fn discover_file(
    input: &Input,
    format: FileFormat,
    options: DiscoverOptions,
    trial: Trial<'_>,
    progress: &Progress,
) -> Result<Discovery, JobError> {
    match format {
        FileFormat::Parquet => discover_parquet(input, options, trial, progress),
        _ => discover_text(input.text_file()?, format, options, trial, progress),
    }
}

fn discover_text(
    path: &Path,
    format: FileFormat,
    options: DiscoverOptions,
    trial: Trial<'_>,
    progress: &Progress,
) -> Result<Discovery, JobError> {
    let rules = Rules::new(Unknown::Keep, Vec::new(), Vec::new());
    let plan = Plan::new(Arc::new(
        rules.map_err(|error| JobError::Plan(error.to_string()))?,
    ));
    let running_report = RunningReport::default();
    let name = path.display().to_string();
    let file = File::open(path).map_err(JobError::io(path))?;
    let length = file.metadata().map_err(JobError::io(path))?.len();
    progress.set_totals(length.min(FILE_BYTES_MAX), 0);

    let limits = Limits {
        chunk_bytes: CHUNK_BYTES,
        ..Limits::default()
    };
    let mut cutter = ChunkReader::new(file, format.record_boundary(), limits, name.clone());
    let mut memory = Memory::new();
    let mut columns = None;
    let mut documents = Documents::new(options);
    let mut cells: Vec<(String, Sample)> = Vec::new();
    let mut read_bytes = 0;
    while let Some(chunk) = cutter.next()? {
        if let FileFormat::Csv { delimiter } = format {
            let mut start = chunk.skipped;
            let columns = match &columns {
                Some(columns) => columns,
                None => {
                    let read =
                        Columns::read(&chunk.bytes, start, delimiter, &plan, &running_report)
                            .map_err(|error| error.in_chunk(&name, &chunk))?;
                    let (read, end) = read.map_err(JobError::Plan)?;
                    start = end;
                    for (at, name) in read.names().enumerate() {
                        if is_value_like(name) {
                            return Err(JobError::Plan(format!(
                                "{}: the name of column {} has the form of a value, so the first line may be data: \
                                 write a header with names",
                                path.display(),
                                at + 1
                            )));
                        }
                        let seed = options
                            .seed
                            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                            .wrapping_add(at as u64);
                        cells.push((name.to_owned(), Sample::new(options.sample, seed)));
                    }
                    columns.insert(read)
                }
            };
            let scanned = columns.values(&chunk.bytes, start, &mut |at, _, _, text| {
                if let Some((_, sample)) = cells.get_mut(at) {
                    sample.add(ValueType::Text, text);
                }
            });
            scanned.map_err(|error| error.in_chunk(&name, &chunk))?;
        } else {
            let mut batch = Batch::new(limits);
            Scan::new(
                &chunk.bytes,
                &plan,
                &running_report,
                &mut memory,
                &mut batch,
            )
            .and_then(|scan| scan.with_visitor(&mut documents).scan_chunk(format, &chunk))
            .map_err(|error| error.in_chunk(&name, &chunk))?;
        }

        read_bytes += chunk.bytes.len() as u64;
        progress.add(chunk.bytes.len() as u64, 0);
        if read_bytes >= FILE_BYTES_MAX || documents.is_full {
            break;
        }
    }

    let mut discovery = Discovery {
        read_whole: read_bytes >= length,
        ..Discovery::default()
    };
    if read_bytes < length && read_bytes >= FILE_BYTES_MAX {
        let mib = FILE_BYTES_MAX >> 20;
        discovery.notes.push(format!(
            "only the first {mib} MiB were read; later values can need other functions"
        ));
    }

    let stem = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    if let FileFormat::Csv { .. } = format {
        discovery.fields = cells
            .into_iter()
            .map(|(name, sample)| {
                let target = Target::Column(name.clone());
                decide_field(
                    (&name, &stem),
                    target,
                    name.clone(),
                    &sample,
                    options,
                    trial,
                )
            })
            .collect();
        return Ok(discovery);
    }

    let MergedDocuments {
        merged: MergedFields { fields, maps },
        is_full,
    } = documents.merge();
    if is_full {
        let note =
            format!("more than {PATHS_MAX} distinct paths: the rest of the file was not read");
        discovery.notes.push(note);
    }
    for (prefix, is_personal) in maps {
        let path = path_text(&prefix);
        discovery.notes.push(match is_personal {
            true => format!("keys of the map {path} have the form of personal data, and masking never changes keys"),
            false => format!("keys of the map {path} count as data and are not shown"),
        });
    }
    let mut steps = 0;
    for (parts, sample) in fields {
        let (name, parent) = names_of(&parts);
        let parent = if parent.is_empty() { &stem } else { parent };
        let path = path_text(&parts);
        let mut field = decide_field(
            (name, parent),
            Target::Path(path.clone()),
            path,
            &sample,
            options,
            trial,
        );
        if field.verdict == FieldVerdict::Sensitive {
            steps += parts.len() + 1;
            // The path rules together have a limit of steps. A rule by key does not count towards
            // this limit, but applies to that key at any depth.
            if steps > RULE_STEPS_MAX && matches!(parts.last(), Some(PathPart::Key(_))) {
                field.target = Some(Target::Column(name.to_owned()));
                field.mask = Some("redact".to_owned());
                field
                    .evidence
                    .push("too many path rules, so the key at any depth and `redact`".to_owned());
            }
        }
        discovery.fields.push(field);
    }
    Ok(discovery)
}
