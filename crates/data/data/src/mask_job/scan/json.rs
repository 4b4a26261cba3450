//! Validates a JSON text and applies rules to its leaves by path. Builds no document; unmasked
//! leaves are only skipped.
//!
//! Unmasked numbers, escapes and white space can have any form and length. If a key occurs twice in
//! an object, both values are masked. The scanner does not recurse.

use std::ops::Range;

use sealwire_msgpack::write;

use super::text::{number_end, string_end, unescaped};
use super::tree::{NodeId, PathRule, ROOT, Tree};
use super::{ScanError, utf8};
use crate::mask_job::batch::{Batch, Form, FoundValue, missing_subject};
use crate::mask_job::chunker::Chunk;
use crate::mask_job::error::UNKNOWN_LISTED_MAX;
use crate::mask_job::file_format::FileFormat;
use crate::mask_job::limits::RECORD_VALUES_MAX;
use crate::mask_job::plan::Plan;
use crate::mask_job::report::{Label, RunningReport};

/// Maximum nesting depth of containers, equal to the engine's limit.
const DEPTH_MAX: usize = 128;

/// State that a scanner keeps across records and chunks.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) tree: Tree,
    frames: Vec<JsonFrame>,
    /// Values of the current record that are to be masked.
    leaves: Vec<Leaf>,
    subjects: Vec<Subject>,
}

impl Memory {
    pub(crate) fn new() -> Self {
        Self {
            tree: Tree::new(),
            frames: Vec::new(),
            leaves: Vec::new(),
            subjects: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct JsonFrame {
    node: NodeId,
    is_object: bool,
    /// Number of keys or elements so far.
    count: usize,
    /// Nesting depth of the innermost object, which can be this container; 0 outside of any object.
    object_depth: usize,
    /// Number of leaves and subjects before the container.
    leaves_before: usize,
    subjects_before: usize,
}

#[derive(Debug)]
struct Leaf {
    span: Range<usize>,
    rule: usize,
    label: Label,
    /// Nesting depth of the innermost object around the leaf. The leaf's subject is a value of that
    /// object.
    object_depth: usize,
    subject: Option<Range<usize>>,
}

/// A value that can be the subject of other values in its object.
#[derive(Debug)]
struct Subject {
    node: NodeId,
    depth: usize,
    span: Range<usize>,
}

/// Fields that no rule names, if the rules reject such fields.
#[derive(Debug, Default)]
pub(crate) struct Unknown {
    pub(crate) first_at: Option<usize>,
    pub(crate) fields: Vec<String>,
    pub(crate) more: bool,
}

impl Unknown {
    pub(crate) fn add(&mut self, at: usize, field: String) {
        self.first_at.get_or_insert(at);
        if self.fields.contains(&field) {
        } else if self.fields.len() < UNKNOWN_LISTED_MAX {
            self.fields.push(field);
        } else {
            self.more = true;
        }
    }
}

/// A scan of one chunk.
pub(crate) struct Scan<'a> {
    text: &'a [u8],
    plan: &'a Plan,
    running_report: &'a RunningReport,
    memory: &'a mut Memory,
    batch: &'a mut Batch,
    /// If set, the visitor gets every key and every leaf except null, and rules are not applied.
    visitor: Option<&'a mut dyn Visitor>,
    pub(crate) unknown: Unknown,
}

/// Receives the leaves and keys of a text.
pub(crate) trait Visitor {
    /// Handles a leaf or a key, with its node and raw text.
    fn visit(&mut self, tree: &mut Tree, node: NodeId, kind: ItemKind, raw: &[u8]);
}

/// The type of item that a visitor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    Leaf,
    /// A key of the object at the node.
    Key,
}

impl<'a> Scan<'a> {
    /// Creates a scan of a chunk, which must be UTF-8.
    pub(crate) fn new(
        text: &'a [u8],
        plan: &'a Plan,
        running_report: &'a RunningReport,
        memory: &'a mut Memory,
        batch: &'a mut Batch,
    ) -> Result<Self, ScanError> {
        utf8(text)?;
        Ok(Self {
            text,
            plan,
            running_report,
            memory,
            batch,
            visitor: None,
            unknown: Unknown::default(),
        })
    }

    /// Passes keys and leaves to a visitor, instead of applying rules.
    pub(crate) fn with_visitor(mut self, visitor: &'a mut dyn Visitor) -> Self {
        self.visitor = Some(visitor);
        self
    }

    /// Scans the chunk from which this scan was created.
    pub(crate) fn scan_chunk(
        &mut self,
        format: FileFormat,
        chunk: &Chunk,
    ) -> Result<(), ScanError> {
        match format {
            FileFormat::Ndjson => self.scan_lines(chunk.skipped),
            _ if chunk.is_array => {
                self.scan_elements(chunk.skipped, chunk.first_record, chunk.is_last)
            }
            _ => self.scan_document(chunk.skipped),
        }
    }

    /// Scans lines; each line is one document or blank.
    pub(crate) fn scan_lines(&mut self, mut start: usize) -> Result<(), ScanError> {
        let whole = self.text;
        while start < whole.len() {
            let end = memchr::memchr(b'\n', &whole[start..])
                .map_or(whole.len(), |newline| start + newline);
            // The text is limited to one line, so that an unclosed object does not continue on the
            // next line.
            self.text = &whole[..end];
            let at = self.skip_blanks(start);
            if at < end {
                let end = self.scan_record(at, ROOT)?;
                self.expect_end(end, "more than one value on a line")?;
            }
            start = end + 1;
        }
        self.text = whole;
        Ok(())
    }

    /// Scans the whole text as one document.
    pub(crate) fn scan_document(&mut self, start: usize) -> Result<(), ScanError> {
        let start = self.skip_blanks(start);
        let end = self.scan_record(start, ROOT)?;
        self.expect_end(end, "more behind the document")
    }

    /// Scans elements of a document that is an array. A comma follows each element, except that the
    /// last chunk ends with the array's end.
    pub(crate) fn scan_elements(
        &mut self,
        start: usize,
        first_index: u64,
        is_last: bool,
    ) -> Result<(), ScanError> {
        let mut at = self.skip_blanks(start);
        if is_last && first_index == 0 && self.text.get(at) == Some(&b']') {
            return self.expect_end(at + 1, "more behind the document");
        }
        for index in first_index.. {
            let index = u32::try_from(index)
                .map_err(|_| ScanError::new(at, "more than 4294967295 elements"))?;
            let node = self.memory.tree.element(ROOT, index, self.plan);
            at = self.scan_record(at, node)?;
            at = self.skip_blanks(at);
            match self.text.get(at) {
                Some(b',') => {
                    at = self.skip_blanks(at + 1);
                    if at == self.text.len() && !is_last {
                        break;
                    }
                }
                Some(b']') if is_last => {
                    return self.expect_end(at + 1, "more behind the document");
                }
                _ => return Err(ScanError::new(at, "`,` or `]` expected")),
            }
        }
        Ok(())
    }

    fn expect_end(&self, at: usize, what: &'static str) -> Result<(), ScanError> {
        let at = self.skip_blanks(at);
        if at == self.text.len() {
            Ok(())
        } else {
            Err(ScanError::new(at, what))
        }
    }

    /// Scans one record from `at` and adds its values to be masked to the batch.
    fn scan_record(&mut self, at: usize, root: NodeId) -> Result<usize, ScanError> {
        self.memory.frames.clear();
        self.memory.leaves.clear();
        self.memory.subjects.clear();
        let end = self.scan_value(at, root)?;
        self.batch.records += 1;

        let leaves = std::mem::take(&mut self.memory.leaves);
        let outcome = leaves.iter().try_for_each(|leaf| self.push_leaf(leaf));
        self.memory.leaves = leaves;
        outcome?;

        if self.memory.tree.is_full() {
            self.memory
                .tree
                .report_counts(self.plan, self.running_report);
            self.memory.tree = Tree::new();
        }
        Ok(end)
    }

    fn push_leaf(&mut self, leaf: &Leaf) -> Result<(), ScanError> {
        let subject = self.plan.subject(leaf.rule).map(|_| match &leaf.subject {
            None => Ok(missing_subject()),
            Some(span) => {
                let mut out = Vec::new();
                scalar(self.text, span, &mut out).map(|()| out)
            }
        });
        let subject = subject.transpose()?;
        let found = FoundValue {
            span: leaf.span.clone(),
            rule: leaf.rule,
            label: leaf.label,
            form: Form::Json,
        };
        let text = self.text;
        self.batch.push(found, subject.as_deref(), |out| {
            scalar(text, &leaf.span, out)
        })
    }

    fn scan_value(&mut self, mut at: usize, mut node: NodeId) -> Result<usize, ScanError> {
        loop {
            at = self.skip_blanks(at);
            match self.text.get(at) {
                Some(&open @ (b'{' | b'[')) => {
                    self.open_container(node, open == b'{', at)?;
                    at = self.skip_blanks(at + 1);
                    let closing = if open == b'{' { b'}' } else { b']' };
                    if self.text.get(at) == Some(&closing) {
                        at += 1;
                        self.close_container();
                    } else {
                        (node, at) = self.start_child(at)?;
                        continue;
                    }
                }
                Some(b'"') => {
                    let (end, has_escapes) = string_end(self.text, at)?;
                    self.string_leaf(node, at..end, has_escapes);
                    at = end;
                }
                Some(b'-' | b'0'..=b'9') => {
                    let end = number_end(self.text, at)?;
                    self.leaf(node, at..end);
                    at = end;
                }
                Some(b't') => at = self.boolean(node, at, b"true")?,
                Some(b'f') => at = self.boolean(node, at, b"false")?,
                Some(b'n') => {
                    at = self.literal(at, b"null")?;
                    self.memory.tree.node(node).nulls += 1;
                }
                Some(_) => return Err(ScanError::new(at, "not JSON")),
                None => return Err(ScanError::new(at, "JSON ends too early")),
            }
            if self.memory.leaves.len() > RECORD_VALUES_MAX {
                return Err(ScanError::new(
                    at,
                    format!("a record with more than {RECORD_VALUES_MAX} values to mask"),
                ));
            }
            loop {
                let Some(&JsonFrame { is_object, .. }) = self.memory.frames.last() else {
                    return Ok(at);
                };
                at = self.skip_blanks(at);
                match (self.text.get(at), is_object) {
                    (Some(b','), _) => {
                        at = self.skip_blanks(at + 1);
                        (node, at) = self.start_child(at)?;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        at += 1;
                        self.close_container();
                    }
                    (None, _) => return Err(ScanError::new(at, "JSON ends too early")),
                    (Some(_), true) => return Err(ScanError::new(at, "`,` or `}` expected")),
                    (Some(_), false) => return Err(ScanError::new(at, "`,` or `]` expected")),
                }
            }
        }
    }

    /// Starts the next child of the innermost container and returns its node and offset. In an
    /// object, the key is consumed.
    #[inline]
    fn start_child(&mut self, at: usize) -> Result<(NodeId, usize), ScanError> {
        let Some(frame) = self.memory.frames.last_mut() else {
            return Ok((ROOT, at));
        };
        let cursor = frame.count;
        frame.count += 1;
        if !frame.is_object {
            let index = u32::try_from(cursor)
                .map_err(|_| ScanError::new(at, "more than 4294967295 elements"))?;
            return Ok((self.memory.tree.element(frame.node, index, self.plan), at));
        }
        if self.text.get(at) != Some(&b'"') {
            return Err(ScanError::new(at, "a key in double quotes expected"));
        }
        let object = frame.node;
        let (node, end) = match self
            .memory
            .tree
            .expected_key(object, self.text, at + 1, cursor)
        {
            Some(expected) => expected,
            None => {
                let (end, _) = string_end(self.text, at)?;
                (
                    self.memory
                        .tree
                        .key(object, &self.text[at + 1..end - 1], self.plan),
                    end,
                )
            }
        };
        if let Some(visitor) = &mut self.visitor {
            visitor.visit(
                &mut self.memory.tree,
                object,
                ItemKind::Key,
                &self.text[at..end],
            );
        }
        let colon = self.skip_blanks(end);
        if self.text.get(colon) != Some(&b':') {
            return Err(ScanError::new(colon, "`:` expected"));
        }
        Ok((node, colon + 1))
    }

    fn open_container(
        &mut self,
        node: NodeId,
        is_object: bool,
        at: usize,
    ) -> Result<(), ScanError> {
        if self.memory.frames.len() >= DEPTH_MAX {
            return Err(ScanError::new(
                at,
                format!("nested deeper than {DEPTH_MAX}"),
            ));
        }
        let around = self
            .memory
            .frames
            .last()
            .map_or(0, |frame| frame.object_depth);
        let object_depth = if is_object {
            self.memory.frames.len() + 1
        } else {
            around
        };
        self.memory.frames.push(JsonFrame {
            node,
            is_object,
            count: 0,
            object_depth,
            leaves_before: self.memory.leaves.len(),
            subjects_before: self.memory.subjects.len(),
        });
        Ok(())
    }

    fn close_container(&mut self) {
        let depth = self.memory.frames.len();
        let Some(frame) = self.memory.frames.pop() else {
            return;
        };
        if frame.is_object && self.plan.has_subjects() {
            self.settle_subjects(frame, depth);
        }
    }

    /// Assigns subjects to the leaves of an object that has ended.
    fn settle_subjects(&mut self, frame: JsonFrame, depth: usize) {
        let Memory {
            tree,
            leaves,
            subjects,
            ..
        } = &mut *self.memory;
        for leaf in leaves[frame.leaves_before..]
            .iter_mut()
            .filter(|leaf| leaf.object_depth == depth)
        {
            let Some(name) = self.plan.subject(leaf.rule) else {
                continue;
            };
            // If a key occurs twice, the first occurrence counts, as in the engine.
            let subject = subjects[frame.subjects_before..]
                .iter()
                .find(|subject| subject.depth == depth && tree.is_key(subject.node, name));
            leaf.subject = subject.map(|subject| subject.span.clone());
        }
        subjects.truncate(frame.subjects_before);
    }

    fn boolean(
        &mut self,
        node: NodeId,
        at: usize,
        word: &'static [u8],
    ) -> Result<usize, ScanError> {
        let end = self.literal(at, word)?;
        self.leaf(node, at..end);
        Ok(end)
    }

    fn literal(&self, at: usize, word: &'static [u8]) -> Result<usize, ScanError> {
        match self.text.get(at..at + word.len()) {
            Some(found) if found == word => Ok(at + word.len()),
            _ => Err(ScanError::new(at, "not JSON")),
        }
    }

    /// Handles a number or a boolean.
    #[inline]
    fn leaf(&mut self, node: NodeId, span: Range<usize>) {
        if let Some(visitor) = &mut self.visitor {
            return visitor.visit(
                &mut self.memory.tree,
                node,
                ItemKind::Leaf,
                &self.text[span],
            );
        }
        match self.path_rule(node, &span) {
            PathRule::Mask(rule, label) => self.add_leaf(span, rule, label),
            PathRule::Keep => self.memory.tree.node(node).kept += 1,
            PathRule::None => self.keep_or_reject(node, span),
        }
    }

    #[inline]
    fn string_leaf(&mut self, node: NodeId, span: Range<usize>, has_escapes: bool) {
        if let Some(visitor) = &mut self.visitor {
            return visitor.visit(
                &mut self.memory.tree,
                node,
                ItemKind::Leaf,
                &self.text[span],
            );
        }
        match self.path_rule(node, &span) {
            PathRule::Mask(rule, label) => self.add_leaf(span, rule, label),
            PathRule::Keep => self.memory.tree.node(node).kept += 1,
            PathRule::None if self.plan.has_kinds() => self.by_kind(node, span, has_escapes),
            PathRule::None => self.keep_or_reject(node, span),
        }
    }

    #[inline]
    fn path_rule(&mut self, node: NodeId, span: &Range<usize>) -> PathRule {
        if self.memory.tree.node(node).is_subject {
            let depth = self.memory.frames.len();
            self.memory.subjects.push(Subject {
                node,
                depth,
                span: span.clone(),
            });
        }
        self.memory
            .tree
            .verdict(node, self.plan, self.running_report)
    }

    fn by_kind(&mut self, node: NodeId, span: Range<usize>, has_escapes: bool) {
        let inside = &self.text[span.start + 1..span.end - 1];
        let rule = if has_escapes {
            unescaped(inside).and_then(|text| self.plan.kind_rule(&text))
        } else {
            std::str::from_utf8(inside)
                .ok()
                .and_then(|text| self.plan.kind_rule(text))
        };
        match rule {
            Some(rule) if self.plan.keeps(rule) => self.memory.tree.node(node).kept += 1,
            Some(rule) => {
                let label = self
                    .memory
                    .tree
                    .kind_label(node, rule, self.plan, self.running_report);
                self.add_leaf(span, rule, label);
            }
            None => self.keep_or_reject(node, span),
        }
    }

    fn add_leaf(&mut self, span: Range<usize>, rule: usize, label: Label) {
        let object_depth = self
            .memory
            .frames
            .last()
            .map_or(0, |frame| frame.object_depth);
        self.memory.leaves.push(Leaf {
            span,
            rule,
            label,
            object_depth,
            subject: None,
        });
    }

    #[inline]
    fn keep_or_reject(&mut self, node: NodeId, span: Range<usize>) {
        if self.plan.rejects_unknown() {
            self.unknown.add(span.start, self.memory.tree.path(node));
        } else {
            self.memory.tree.node(node).kept += 1;
        }
    }

    #[inline]
    fn skip_blanks(&self, mut at: usize) -> usize {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(at) {
            at += 1;
        }
        at
    }
}

/// Appends one scanned scalar as MessagePack.
pub(crate) fn scalar(text: &[u8], span: &Range<usize>, out: &mut Vec<u8>) -> Result<(), ScanError> {
    let raw = &text[span.clone()];
    match raw.first() {
        Some(b'"') => {
            let inside = unescaped(&raw[1..raw.len() - 1]);
            let inside = inside.ok_or_else(|| {
                ScanError::new(span.start, "half of a surrogate pair in a value to mask")
            })?;
            write::str(out, &inside);
        }
        Some(b't') => write::bool(out, true),
        Some(b'f') => write::bool(out, false),
        _ => {
            let digits = std::str::from_utf8(raw).unwrap_or_default();
            if !sealwire_payload::json::append_number(digits, out) {
                return Err(ScanError::new(
                    span.start,
                    "a number to mask that no 64-bit integer or float holds exactly",
                ));
            }
        }
    }
    Ok(())
}
