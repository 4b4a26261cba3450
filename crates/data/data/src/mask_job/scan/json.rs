//! Validates a JSON text and applies rules to its leaves by path. Builds no document; unmasked
//! leaves are only skipped.
//!
//! Unmasked numbers, escapes and white space can have any form and length. If a key occurs twice in
//! an object, both values are masked. The scanner does not recurse.

use std::ops::Range;

use sealwire_msgpack::write;

use super::text::{number, string, unescaped};
use super::tree::{NodeId, PathRule, ROOT, Tree};
use super::{Fault, utf8};
use crate::mask_job::batch::{Batch, Form, FoundValue, absent};
use crate::mask_job::error::UNKNOWN_LISTED_MAX;
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
    ledger: &'a RunningReport,
    memory: &'a mut Memory,
    batch: &'a mut Batch,
    /// If set, the visitor gets every key and every leaf except null, and rules are not applied.
    pub(crate) visitor: Option<Visitor<'a>>,
    pub(crate) unknown: Unknown,
}

/// A callback for a leaf or a key, with its node and raw text.
pub(crate) type Visitor<'a> = &'a mut dyn FnMut(&mut Tree, NodeId, Shown, &[u8]);

/// The type of item that a visitor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Leaf,
    /// A key of the object at the node.
    Key,
}

impl<'a> Scan<'a> {
    /// Creates a scan of a chunk, which must be UTF-8.
    pub(crate) fn new(
        text: &'a [u8],
        plan: &'a Plan,
        ledger: &'a RunningReport,
        memory: &'a mut Memory,
        batch: &'a mut Batch,
    ) -> Result<Self, Fault> {
        utf8(text)?;
        Ok(Self {
            text,
            plan,
            ledger,
            memory,
            batch,
            visitor: None,
            unknown: Unknown::default(),
        })
    }

    /// Scans lines; each line is one document or blank.
    pub(crate) fn lines(&mut self, mut begin: usize) -> Result<(), Fault> {
        let whole = self.text;
        while begin < whole.len() {
            let end = memchr::memchr(b'\n', &whole[begin..])
                .map_or(whole.len(), |newline| begin + newline);
            // The text is limited to one line, so that an unclosed object does not continue on the
            // next line.
            self.text = &whole[..end];
            let at = self.blank(begin);
            if at < end {
                let behind = self.record(at, ROOT)?;
                self.end(behind, "more than one value on a line")?;
            }
            begin = end + 1;
        }
        self.text = whole;
        Ok(())
    }

    /// Scans the whole text as one document.
    pub(crate) fn document(&mut self, begin: usize) -> Result<(), Fault> {
        let begin = self.blank(begin);
        let behind = self.record(begin, ROOT)?;
        self.end(behind, "more behind the document")
    }

    /// Scans elements of a document that is an array. A comma follows each element, except that the
    /// last chunk ends with the array's end.
    pub(crate) fn elements(
        &mut self,
        begin: usize,
        first_index: u64,
        is_last: bool,
    ) -> Result<(), Fault> {
        let mut at = self.blank(begin);
        if is_last && first_index == 0 && self.text.get(at) == Some(&b']') {
            return self.end(at + 1, "more behind the document");
        }
        for index in first_index.. {
            let index = u32::try_from(index)
                .map_err(|_| Fault::new(at, "more than 4294967295 elements"))?;
            let node = self.memory.tree.element(ROOT, index, self.plan);
            at = self.record(at, node)?;
            at = self.blank(at);
            match self.text.get(at) {
                Some(b',') => {
                    at = self.blank(at + 1);
                    if at == self.text.len() && !is_last {
                        break;
                    }
                }
                Some(b']') if is_last => return self.end(at + 1, "more behind the document"),
                _ => return Err(Fault::new(at, "`,` or `]` expected")),
            }
        }
        Ok(())
    }

    fn end(&self, at: usize, what: &'static str) -> Result<(), Fault> {
        let at = self.blank(at);
        if at == self.text.len() {
            Ok(())
        } else {
            Err(Fault::new(at, what))
        }
    }

    /// Scans one record from `at` and adds its values to be masked to the batch.
    fn record(&mut self, at: usize, root: NodeId) -> Result<usize, Fault> {
        self.memory.frames.clear();
        self.memory.leaves.clear();
        self.memory.subjects.clear();
        let end = self.value(at, root)?;
        self.batch.records += 1;
        let leaves = std::mem::take(&mut self.memory.leaves);
        let outcome = leaves.iter().try_for_each(|leaf| self.push(leaf));
        self.memory.leaves = leaves;
        outcome?;
        if self.memory.tree.is_full() {
            self.memory.tree.settle(self.plan, self.ledger);
            self.memory.tree = Tree::new();
        }
        Ok(end)
    }

    fn push(&mut self, leaf: &Leaf) -> Result<(), Fault> {
        let subject = self.plan.subject(leaf.rule).map(|_| match &leaf.subject {
            None => Ok(absent()),
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

    fn value(&mut self, mut at: usize, mut node: NodeId) -> Result<usize, Fault> {
        loop {
            at = self.blank(at);
            match self.text.get(at) {
                Some(&open @ (b'{' | b'[')) => {
                    self.open(node, open == b'{', at)?;
                    at = self.blank(at + 1);
                    let closing = if open == b'{' { b'}' } else { b']' };
                    if self.text.get(at) == Some(&closing) {
                        at += 1;
                        self.close();
                    } else {
                        (node, at) = self.child(at)?;
                        continue;
                    }
                }
                Some(b'"') => {
                    let (end, has_escapes) = string(self.text, at)?;
                    self.string_leaf(node, at..end, has_escapes);
                    at = end;
                }
                Some(b'-' | b'0'..=b'9') => {
                    let end = number(self.text, at)?;
                    self.leaf(node, at..end);
                    at = end;
                }
                Some(b't') => at = self.word(node, at, b"true")?,
                Some(b'f') => at = self.word(node, at, b"false")?,
                Some(b'n') => {
                    at = self.literal(at, b"null")?;
                    self.memory.tree.node(node).nulls += 1;
                }
                Some(_) => return Err(Fault::new(at, "not JSON")),
                None => return Err(Fault::new(at, "JSON ends too early")),
            }
            if self.memory.leaves.len() > RECORD_VALUES_MAX {
                return Err(Fault::new(
                    at,
                    format!("a record with more than {RECORD_VALUES_MAX} values to mask"),
                ));
            }
            loop {
                let Some(&JsonFrame { is_object, .. }) = self.memory.frames.last() else {
                    return Ok(at);
                };
                at = self.blank(at);
                match (self.text.get(at), is_object) {
                    (Some(b','), _) => {
                        at = self.blank(at + 1);
                        (node, at) = self.child(at)?;
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        at += 1;
                        self.close();
                    }
                    (None, _) => return Err(Fault::new(at, "JSON ends too early")),
                    (Some(_), true) => return Err(Fault::new(at, "`,` or `}` expected")),
                    (Some(_), false) => return Err(Fault::new(at, "`,` or `]` expected")),
                }
            }
        }
    }

    /// Starts the next child of the innermost container and returns its node and offset. In an
    /// object, the key is consumed.
    #[inline]
    fn child(&mut self, at: usize) -> Result<(NodeId, usize), Fault> {
        let Some(frame) = self.memory.frames.last_mut() else {
            return Ok((ROOT, at));
        };
        let cursor = frame.count;
        frame.count += 1;
        if !frame.is_object {
            let index = u32::try_from(cursor)
                .map_err(|_| Fault::new(at, "more than 4294967295 elements"))?;
            return Ok((self.memory.tree.element(frame.node, index, self.plan), at));
        }
        if self.text.get(at) != Some(&b'"') {
            return Err(Fault::new(at, "a key in double quotes expected"));
        }
        let object = frame.node;
        let (node, end) = match self
            .memory
            .tree
            .expected_key(object, self.text, at + 1, cursor)
        {
            Some(expected) => expected,
            None => {
                let (end, _) = string(self.text, at)?;
                (
                    self.memory
                        .tree
                        .key(object, &self.text[at + 1..end - 1], self.plan),
                    end,
                )
            }
        };
        if let Some(visitor) = &mut self.visitor {
            visitor(
                &mut self.memory.tree,
                object,
                Shown::Key,
                &self.text[at..end],
            );
        }
        let colon = self.blank(end);
        if self.text.get(colon) != Some(&b':') {
            return Err(Fault::new(colon, "`:` expected"));
        }
        Ok((node, colon + 1))
    }

    fn open(&mut self, node: NodeId, is_object: bool, at: usize) -> Result<(), Fault> {
        if self.memory.frames.len() >= DEPTH_MAX {
            return Err(Fault::new(at, format!("nested deeper than {DEPTH_MAX}")));
        }
        let (leaves_before, subjects_before) =
            (self.memory.leaves.len(), self.memory.subjects.len());
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
            leaves_before,
            subjects_before,
        });
        Ok(())
    }

    fn close(&mut self) {
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
            let mut beside = subjects[frame.subjects_before..]
                .iter()
                .filter(|subject| subject.depth == depth);
            // If a key occurs twice, the first occurrence counts, as in the engine.
            let subject = beside.find(|subject| tree.is_key(subject.node, name));
            leaf.subject = subject.map(|subject| subject.span.clone());
        }
        subjects.truncate(frame.subjects_before);
    }

    fn word(&mut self, node: NodeId, at: usize, word: &'static [u8]) -> Result<usize, Fault> {
        let end = self.literal(at, word)?;
        self.leaf(node, at..end);
        Ok(end)
    }

    fn literal(&self, at: usize, word: &'static [u8]) -> Result<usize, Fault> {
        match self.text.get(at..at + word.len()) {
            Some(found) if found == word => Ok(at + word.len()),
            _ => Err(Fault::new(at, "not JSON")),
        }
    }

    /// Handles a number or a boolean.
    #[inline]
    fn leaf(&mut self, node: NodeId, span: Range<usize>) {
        if let Some(visitor) = &mut self.visitor {
            return visitor(&mut self.memory.tree, node, Shown::Leaf, &self.text[span]);
        }
        match self.judge(node, &span) {
            PathRule::Mask(rule, label) => self.found(span, rule, label),
            PathRule::Keep => self.memory.tree.node(node).kept += 1,
            PathRule::None => self.unnamed(node, span),
        }
    }

    #[inline]
    fn string_leaf(&mut self, node: NodeId, span: Range<usize>, has_escapes: bool) {
        if let Some(visitor) = &mut self.visitor {
            return visitor(&mut self.memory.tree, node, Shown::Leaf, &self.text[span]);
        }
        match self.judge(node, &span) {
            PathRule::Mask(rule, label) => self.found(span, rule, label),
            PathRule::Keep => self.memory.tree.node(node).kept += 1,
            PathRule::None if self.plan.has_kinds() => self.by_kind(node, span, has_escapes),
            PathRule::None => self.unnamed(node, span),
        }
    }

    #[inline]
    fn judge(&mut self, node: NodeId, span: &Range<usize>) -> PathRule {
        if self.memory.tree.node(node).is_subject {
            let depth = self.memory.frames.len();
            self.memory.subjects.push(Subject {
                node,
                depth,
                span: span.clone(),
            });
        }
        self.memory.tree.verdict(node, self.plan, self.ledger)
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
                    .kind_label(node, rule, self.plan, self.ledger);
                self.found(span, rule, label);
            }
            None => self.unnamed(node, span),
        }
    }

    fn found(&mut self, span: Range<usize>, rule: usize, label: Label) {
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
    fn unnamed(&mut self, node: NodeId, span: Range<usize>) {
        if self.plan.refuses_unknown() {
            self.unknown.add(span.start, self.memory.tree.path(node));
        } else {
            self.memory.tree.node(node).kept += 1;
        }
    }

    #[inline]
    fn blank(&self, mut at: usize) -> usize {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(at) {
            at += 1;
        }
        at
    }
}

/// Appends one scanned scalar as MessagePack.
pub(crate) fn scalar(text: &[u8], span: &Range<usize>, out: &mut Vec<u8>) -> Result<(), Fault> {
    let raw = &text[span.clone()];
    match raw.first() {
        Some(b'"') => {
            let inside = unescaped(&raw[1..raw.len() - 1]);
            let inside = inside.ok_or_else(|| {
                Fault::new(span.start, "half of a surrogate pair in a value to mask")
            })?;
            write::str(out, &inside);
        }
        Some(b't') => write::bool(out, true),
        Some(b'f') => write::bool(out, false),
        _ => {
            let digits = std::str::from_utf8(raw).unwrap_or_default();
            if !sealwire_payload::json::append_number(digits, out) {
                return Err(Fault::new(
                    span.start,
                    "a number to mask that no 64-bit integer or float holds exactly",
                ));
            }
        }
    }
    Ok(())
}
