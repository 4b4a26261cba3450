//! The paths that occurred so far, as a tree of keys, with the verdict for each path.
//!
//! Records of one file mostly have equal keys in equal order. The child at the expected position is
//! tried first, so a leaf usually costs one comparison of its key. A rule is looked up once per
//! path, not once per value. Elements of an array share one path, unless a rule names elements by
//! index.

use std::collections::HashMap;

use super::text::unescaped;
use crate::mask_job::plan::{Plan, Step};
use crate::mask_job::report::{FieldReport, Label, RunningReport};

/// Index of a node.
pub(crate) type NodeId = usize;

/// The root of the document.
pub(crate) const ROOT: NodeId = 0;

/// Maximum number of paths before the tree is cleared. Documents reach this limit if their keys are
/// data.
const NODES_MAX: usize = 50_000;
/// Maximum number of children that are searched linearly.
const CHILDREN_SEARCHED_MAX: usize = 16;

/// The treatment of values at one path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathRule {
    /// A rule masks the values.
    Mask(usize, Label),
    /// A rule keeps the values.
    Keep,
    /// No rule names the values.
    None,
}

#[derive(Debug)]
pub(crate) struct Node {
    parent: NodeId,
    step: RawStep,
    children: Vec<NodeId>,
    /// Children by key. Filled only if there are many children.
    by_key: HashMap<Box<[u8]>, NodeId>,
    verdict: Option<PathRule>,
    /// Labels of kind rules that matched values at this path.
    kinds: Vec<(usize, Label)>,
    /// True if values at this path can be the subject of other values in their object.
    pub(crate) is_subject: bool,
    pub(crate) kept: u64,
    pub(crate) nulls: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum RawStep {
    Root,
    /// A key without its quotes, with escapes unchanged.
    Key(Box<[u8]>),
    Element(Option<u32>),
}

/// The paths that occurred so far.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let mut tree = Self { nodes: Vec::new() };
        tree.add(ROOT, RawStep::Root, false);
        tree
    }

    pub(crate) fn is_full(&self) -> bool {
        self.nodes.len() > NODES_MAX
    }

    pub(crate) fn node(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id]
    }

    fn add(&mut self, parent: NodeId, step: RawStep, is_subject: bool) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(Node {
            parent,
            step,
            children: Vec::new(),
            by_key: HashMap::new(),
            verdict: None,
            kinds: Vec::new(),
            is_subject,
            kept: 0,
            nulls: 0,
        });
        if id != parent {
            self.nodes[parent].children.push(id);
        }
        id
    }

    /// Returns the child at position `cursor` if the key at `at` is equal to its key, and the
    /// offset after the closing quote. Keys in the expected order are only compared, not scanned.
    #[inline]
    pub(crate) fn expected_key(
        &self,
        parent: NodeId,
        text: &[u8],
        at: usize,
        cursor: usize,
    ) -> Option<(NodeId, usize)> {
        let guess = *self.nodes[parent].children.get(cursor)?;
        let RawStep::Key(key) = &self.nodes[guess].step else {
            return None;
        };
        let end = at + key.len();
        // A known key contains quotes only after a backslash, so the next quote is the closing
        // quote.
        (text.get(at..end)? == key.as_ref() && text.get(end) == Some(&b'"'))
            .then_some((guess, end + 1))
    }

    /// Returns the child with a key, and adds the child if it is new.
    pub(crate) fn key(&mut self, parent: NodeId, raw: &[u8], plan: &Plan) -> NodeId {
        let node = &self.nodes[parent];
        let known = if node.by_key.is_empty() {
            node.children.iter().copied().find(
                |id| matches!(&self.nodes[*id].step, RawStep::Key(key) if key.as_ref() == raw),
            )
        } else {
            node.by_key.get(raw).copied()
        };
        if let Some(id) = known {
            return id;
        }
        let is_subject =
            plan.has_subjects() && unescaped(raw).is_some_and(|key| plan.is_subject(&key));
        let id = self.add(parent, RawStep::Key(raw.into()), is_subject);
        if !self.nodes[parent].by_key.is_empty() {
            self.nodes[parent].by_key.insert(raw.into(), id);
        } else if self.nodes[parent].children.len() > CHILDREN_SEARCHED_MAX {
            let children = &self.nodes[parent].children;
            let keys = children
                .iter()
                .filter_map(|id| match &self.nodes[*id].step {
                    RawStep::Key(key) => Some((key.clone(), *id)),
                    _ => None,
                });
            self.nodes[parent].by_key = keys.collect();
        }
        id
    }

    /// Returns the child for an array element. Elements share one child, except for indexes that
    /// rules can name.
    #[inline]
    pub(crate) fn element(&mut self, parent: NodeId, index: u32, plan: &Plan) -> NodeId {
        let step = RawStep::Element(plan.index_max().filter(|max| index <= *max).map(|_| index));
        let children = &self.nodes[parent].children;
        match children.iter().find(|id| self.nodes[**id].step == step) {
            Some(id) => *id,
            None => self.add(parent, step, false),
        }
    }

    /// Returns true if the node is the child with `key`.
    pub(crate) fn is_key(&self, id: NodeId, key: &str) -> bool {
        matches!(&self.nodes[id].step, RawStep::Key(raw) if key_text(raw) == key)
    }

    /// Returns the verdict for leaves at this path.
    #[inline]
    pub(crate) fn verdict(
        &mut self,
        id: NodeId,
        plan: &Plan,
        running_report: &RunningReport,
    ) -> PathRule {
        match self.nodes[id].verdict {
            Some(verdict) => verdict,
            None => self.find_rule(id, plan, running_report),
        }
    }

    #[cold]
    fn find_rule(&mut self, id: NodeId, plan: &Plan, running_report: &RunningReport) -> PathRule {
        let verdict = match plan.path_rule(&self.steps(id, plan)) {
            None => PathRule::None,
            Some(rule) if plan.keeps(rule) => PathRule::Keep,
            Some(rule) => PathRule::Mask(
                rule,
                running_report.label(plan.field(self.path(id), Some(rule), None)),
            ),
        };
        self.nodes[id].verdict = Some(verdict);
        verdict
    }

    /// Returns the label for values at this path to which a kind rule applies.
    pub(crate) fn kind_label(
        &mut self,
        id: NodeId,
        rule: usize,
        plan: &Plan,
        running_report: &RunningReport,
    ) -> Label {
        if let Some((_, label)) = self.nodes[id]
            .kinds
            .iter()
            .find(|(known, _)| *known == rule)
        {
            return *label;
        }
        let label =
            running_report.label(plan.field(self.path(id), Some(rule), plan.kind_name(rule)));
        self.nodes[id].kinds.push((rule, label));
        label
    }

    /// Returns a label of the path alone, from a report that is used only for names.
    pub(crate) fn name_label(&mut self, id: NodeId, plan: &Plan, names: &RunningReport) -> Label {
        self.kind_label(id, usize::MAX, plan, names)
    }

    /// Returns the number of nodes.
    pub(crate) fn count(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the steps to a node. The indexes in the steps are placeholders.
    pub(crate) fn steps_of(&self, id: NodeId) -> Vec<Step> {
        let mut steps: Vec<Step> = self
            .ancestors(id)
            .map(|id| match &self.nodes[id].step {
                RawStep::Key(raw) => Step::Key(key_text(raw)),
                RawStep::Root | RawStep::Element(_) => Step::Index(0),
            })
            .collect();
        steps.reverse();
        steps
    }

    fn steps(&self, id: NodeId, plan: &Plan) -> Vec<Step> {
        let mut steps: Vec<Step> = self
            .ancestors(id)
            .map(|id| match &self.nodes[id].step {
                RawStep::Key(raw) => Step::Key(key_text(raw)),
                RawStep::Element(Some(index)) => Step::Index(*index),
                // An array index that no rule names.
                _ => Step::Index(plan.index_max().map_or(0, |max| max.saturating_add(1))),
            })
            .collect();
        steps.reverse();
        steps
    }

    /// Returns the path as written in rules, with `[*]` for elements.
    pub(crate) fn path(&self, id: NodeId) -> String {
        let mut ids: Vec<NodeId> = self.ancestors(id).collect();
        ids.reverse();
        let mut path = String::from("$");
        for id in ids {
            match &self.nodes[id].step {
                RawStep::Key(raw) => sealwire_payload::push_name(&mut path, &key_text(raw)),
                RawStep::Element(Some(index)) => path.push_str(&format!("[{index}]")),
                _ => path.push_str("[*]"),
            }
        }
        path
    }

    /// Returns the node and its ancestors, without the root.
    fn ancestors(&self, id: NodeId) -> impl Iterator<Item = NodeId> {
        std::iter::successors(Some(id), |id| Some(self.nodes[*id].parent))
            .take_while(|id| *id != ROOT)
    }

    /// Adds the counts of kept and null values to the report and resets them.
    pub(crate) fn report_counts(&mut self, plan: &Plan, running_report: &RunningReport) {
        let mut counts = crate::mask_job::report::Counts::default();
        for id in 0..self.nodes.len() {
            let node = &mut self.nodes[id];
            let kept = std::mem::take(&mut node.kept);
            let nulls = std::mem::take(&mut node.nulls);
            if kept + nulls == 0 {
                continue;
            }
            let rule = plan.path_rule(&self.steps(id, plan));
            let field: FieldReport = plan.field(self.path(id), rule, None);
            let label = running_report.label(field);
            counts.add_kept(label, kept);
            counts.add_nulls(label, nulls);
        }
        running_report.add(&counts);
    }
}

fn key_text(raw: &[u8]) -> String {
    unescaped(raw).map_or_else(
        || String::from_utf8_lossy(raw).into_owned(),
        |text| text.into_owned(),
    )
}
