//! A context for each item of a document.
//!
//! The items are those of the document if it is an array; otherwise the document is the one item.
//! The request lists the contexts, or names a path at which each item contains its context. Such
//! contexts are found by a walk of their own, in slices, before the walk over the fields.
//!
//! All items are sealed by one sealer and opened by one opener. This loses nothing, since a context
//! is additional data of each field and no input of a key: see `Sealer::set_context`.

use std::fmt;
use std::io::Write as _;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sealwire_msgpack::{Token, TokenReader};
use sealwire_payload::{
    Containers, ExtraWork, Field, Outcome, Path, Selection, Transform, Walk, WalkLimits,
};
use sealwire_wire::{CONTEXT_BYTES_MAX, CONTEXT_RESERVED, Contexts};

use crate::jobs::cost::authenticated;
use crate::jobs::error::RequestFailure;
use crate::jobs::field_errors::{FieldFailure, FieldProblem};
use crate::jobs::job::{WalkSlice, walk_on};

/// The reason why a field has no context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextProblem {
    /// The item has no value at the path, or nil.
    #[error("the item of this field has no value at the path of contexts")]
    Missing,
    /// The item has a key twice, so that the path leads to several values, of which one can be nil.
    /// Readers would differ on which of them is the context. Only values at the path count: an equal
    /// key before the end of the path, whose value has no such value, is not noticed.
    #[error(
        "the item of this field has several values at the path of contexts, because a key occurs twice"
    )]
    Repeated,
    /// The value at the path is neither a string nor an integer.
    #[error("the value at the path of contexts is neither a string nor an integer")]
    WrongType,
    /// The value at the path is an empty string, which binds nothing.
    #[error("the value at the path of contexts is empty, so it would bind nothing")]
    Empty,
    /// The value at the path is too long.
    #[error("the value at the path of contexts is longer than {CONTEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The value at the path is a context of the engine.
    #[error(
        "the value at the path of contexts begins with sealwire/, which is reserved for the engine; use another path"
    )]
    Reserved,
    /// The field is or contains the context. Nobody could read the context to open the field.
    #[error("this field contains its own context, which must stay readable; select other fields")]
    Selected,
    /// The field is the whole array.
    #[error("this field is the whole array, whose items have a context each; select the items")]
    WholeArray,
}

/// The contexts that a request lists, in one allocation.
#[derive(Default)]
pub(crate) struct ContextList {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl ContextList {
    fn new(contexts: &[&[u8]]) -> Self {
        let mut list = Self {
            bytes: Vec::with_capacity(contexts.iter().map(|context| context.len()).sum()),
            ends: Vec::with_capacity(contexts.len()),
        };
        for context in contexts {
            list.bytes.extend_from_slice(context);
            list.ends.push(list.bytes.len());
        }
        list
    }

    fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let before = index
            .checked_sub(1)
            .and_then(|before| self.ends.get(before));
        self.bytes.get(before.copied().unwrap_or_default()..end)
    }
}

/// The contexts of a request, before its document is known.
#[derive(Clone)]
pub(crate) enum ContextSource {
    Listed(Arc<ContextList>),
    Path(Arc<str>),
}

impl ContextSource {
    /// Copies the parameter of a request. The copy is at most as long as the decoder accepts.
    pub(crate) fn new(contexts: &Contexts<'_>) -> Self {
        match contexts {
            Contexts::Listed(contexts) => Self::Listed(Arc::new(ContextList::new(contexts))),
            Contexts::Path(path) => Self::Path((*path).into()),
        }
    }

    /// Returns the predicted work of finding the contexts in a message of this length, and of
    /// authenticating them with its fields. An estimate, as if each field had a context of the mean
    /// length: a long context beside most of the fields takes more.
    pub(crate) fn extra_work(&self, message_bytes: usize, fields: u64) -> ExtraWork {
        match self {
            Self::Listed(list) => {
                let mean = list.bytes.len() / list.ends.len().max(1);
                authenticated(fields, mean)
            }
            Self::Path(_) => {
                // Each context is a value of the message.
                let mean = message_bytes as u64 / fields.max(1);
                let mean = usize::try_from(mean).unwrap_or(usize::MAX);
                authenticated(fields, mean.min(CONTEXT_BYTES_MAX)).plus(ExtraWork {
                    fields: 0,
                    bytes: message_bytes as u64,
                })
            }
        }
    }
}

/// How the items of one document get their contexts.
#[derive(Clone)]
pub struct ContextSpec {
    source: ItemSource,
    /// Number of items in the document's array. `None`: the document is the one item.
    items: Option<u32>,
    /// True if a field that is the context of its item stays as it is. Otherwise it is an error.
    keeps_source: bool,
}

#[derive(Clone)]
enum ItemSource {
    Listed(Arc<ContextList>),
    Path(Arc<Selection>),
}

impl ContextSpec {
    /// Resolves the contexts of a request for its document. `selects_all`: the request selects no
    /// fields, so it concerns every field but the contexts.
    ///
    /// # Errors
    ///
    /// The list has another number of contexts than the document has items, or the path is invalid.
    pub(crate) fn new(
        source: &ContextSource,
        payload: &[u8],
        selects_all: bool,
    ) -> Result<Self, RequestFailure> {
        let items = match TokenReader::new(payload).token() {
            Ok(Token::Array(items)) => Some(items),
            _ => None,
        };
        let source = match source {
            ContextSource::Listed(list) => {
                let is_complete = items.is_some_and(|items| items as usize == list.ends.len());
                if !is_complete {
                    return Err(RequestFailure::Param {
                        name: "contexts",
                        rule: "must have one context for each item of the payload, which must be an array",
                    });
                }
                ItemSource::Listed(Arc::clone(list))
            }
            ContextSource::Path(path) => {
                let selection = Selection::one_value(path, items.is_some());
                ItemSource::Path(Arc::new(selection.map_err(RequestFailure::ContextPath)?))
            }
        };
        Ok(Self {
            source,
            items,
            keeps_source: selects_all,
        })
    }

    /// Returns the bytes to reserve for the contexts.
    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.source {
            ItemSource::Listed(list) => {
                list.bytes.len() + list.ends.len().saturating_mul(size_of::<usize>())
            }
            ItemSource::Path(_) => {
                // A vector that grows takes twice its memory.
                let items = self.items.unwrap_or(1) as usize;
                items.saturating_mul(2 * size_of::<FoundContext>())
            }
        }
    }
}

/// The place of the context of an item in the document.
struct FoundContext {
    item: u32,
    is_repeated: bool,
    value: Range<usize>,
}

/// Finds the contexts of a document, before the walk over its fields.
pub(crate) struct ContextScan {
    spec: ContextSpec,
    /// `None` if the request lists the contexts.
    walk: Option<Walk>,
    found: ContextCollector,
}

impl ContextScan {
    pub(crate) fn new(spec: ContextSpec, depth_max: usize) -> Self {
        let walk = match &spec.source {
            ItemSource::Listed(_) => None,
            ItemSource::Path(selection) => {
                let limits = WalkLimits {
                    depth_max,
                    out_bytes_max: usize::MAX,
                };
                let walk = Walk::new(Arc::clone(selection), Containers::Whole, limits);
                // A reader that takes the last of equal keys sees nil, if that is the last value.
                Some(walk.without_output().with_nil())
            }
        };
        Self {
            spec,
            walk,
            found: ContextCollector(Vec::new()),
        }
    }

    /// Reads on within the budget of a slice. Returns true at the end of the document.
    ///
    /// # Errors
    ///
    /// The document is malformed.
    pub(crate) fn advance(
        &mut self,
        payload: &[u8],
        slice: WalkSlice,
    ) -> Result<bool, RequestFailure> {
        match &mut self.walk {
            None => Ok(true),
            Some(walk) => walk_on(walk, payload, &mut Vec::new(), &mut self.found, slice),
        }
    }

    /// Returns the fields and bytes that the scan has read so far.
    pub(crate) fn work(&self) -> [usize; 2] {
        self.walk
            .as_ref()
            .map_or([0, 0], |walk| [walk.fields(), walk.work()])
    }

    /// Returns the contexts, at the end of the document.
    pub(crate) fn finish(self, payload: Bytes) -> Box<ItemContexts> {
        Box::new(ItemContexts {
            spec: self.spec,
            payload,
            found: self.found.0,
            next: 0,
            item: None,
            is_applied: false,
            context: Vec::new(),
            source: 0..0,
            problem: None,
            field_bytes: 0,
            item_bytes: 0,
        })
    }
}

/// Collects the places of contexts.
struct ContextCollector(Vec<FoundContext>);

impl Transform for ContextCollector {
    type Error = FieldFailure;

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
        let item = field.path.item().unwrap_or_default();
        match self.0.last_mut().filter(|last| last.item == item) {
            Some(last) => last.is_repeated = true,
            None => self.0.push(FoundContext {
                item,
                is_repeated: false,
                value: field.range(),
            }),
        }
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
        Err(failure)
    }
}

/// The contexts of the items of one document, during a walk over its fields.
pub struct ItemContexts {
    spec: ContextSpec,
    payload: Bytes,
    found: Vec<FoundContext>,
    /// Position in `found` of the first context that is not of an earlier item.
    next: usize,
    /// The item of the field before.
    item: Option<u32>,
    /// True if a field of the item was processed, so that the context of the item is in use.
    is_applied: bool,
    context: Vec<u8>,
    /// The place of the context in the document; empty if the request lists it.
    source: Range<usize>,
    /// Why the item has no context.
    problem: Option<ContextProblem>,
    /// Bytes of the contexts of all fields so far, and of all items.
    field_bytes: u64,
    item_bytes: u64,
}

/// What a transform must do with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemStep {
    /// Process the field under the context in use.
    Same,
    /// Use [`ItemContexts::context`], then process the field.
    Changed,
    /// Keep the field: it is the context of its item.
    Source,
}

impl ItemContexts {
    /// Finds the context of a field that is about to be processed.
    ///
    /// # Errors
    ///
    /// The field has no context.
    pub fn enter(&mut self, field: &Field<'_>) -> Result<ItemStep, FieldProblem> {
        let item = match self.spec.items {
            None => 0,
            Some(_) => field.path.item().ok_or(ContextProblem::WholeArray)?,
        };
        if self.item != Some(item) {
            self.item = Some(item);
            self.is_applied = false;
            self.problem = self.load(item).err();
        }
        if let Some(problem) = self.problem {
            return Err(problem.into());
        }

        let range = field.range();
        let has_source = range.start <= self.source.start && self.source.end <= range.end;
        if has_source && !self.source.is_empty() {
            return if self.spec.keeps_source {
                Ok(ItemStep::Source)
            } else {
                Err(ContextProblem::Selected.into())
            };
        }

        self.field_bytes += self.context.len() as u64;
        if self.is_applied {
            return Ok(ItemStep::Same);
        }
        self.is_applied = true;
        self.item_bytes += self.context.len() as u64;
        Ok(ItemStep::Changed)
    }

    /// Returns the context of the item.
    pub fn context(&self) -> &[u8] {
        &self.context
    }

    /// Starts the next walk over the document.
    pub fn restart(&mut self) {
        self.next = 0;
        self.item = None;
    }

    /// Returns the work so far of authenticating the context with each field.
    pub fn work_of_fields(&self) -> ExtraWork {
        authenticated(1, usize::try_from(self.field_bytes).unwrap_or(usize::MAX))
    }

    /// Returns the work so far of hashing the context of each item.
    pub fn work_of_items(&self) -> ExtraWork {
        authenticated(1, usize::try_from(self.item_bytes).unwrap_or(usize::MAX))
    }

    /// Puts the context of an item into `context`.
    fn load(&mut self, item: u32) -> Result<(), ContextProblem> {
        self.context.clear();
        self.source = 0..0;
        if let ItemSource::Listed(list) = &self.spec.source {
            // The list has a context for each item.
            let context = list.get(item as usize).ok_or(ContextProblem::Missing)?;
            self.context.extend_from_slice(context);
            return Ok(());
        }

        while self
            .found
            .get(self.next)
            .is_some_and(|found| found.item < item)
        {
            self.next += 1;
        }
        let found = self.found.get(self.next).filter(|found| found.item == item);
        let found = found.ok_or(ContextProblem::Missing)?;
        if found.is_repeated {
            return Err(ContextProblem::Repeated);
        }
        self.source = found.value.clone();
        let token = TokenReader::at(&self.payload, found.value.start).token();
        write_context(
            token.map_err(|_| ContextProblem::Missing)?,
            &mut self.context,
        )
    }
}

/// Appends the context that a value is: the bytes of a string or the digits of an integer.
fn write_context(token: Token<'_>, out: &mut Vec<u8>) -> Result<(), ContextProblem> {
    // Writing to a vector cannot fail.
    match token {
        Token::Str(text) if text.len() > CONTEXT_BYTES_MAX => return Err(ContextProblem::TooLong),
        // A client must not name contexts of the engine, or the engine's own envelopes would open.
        Token::Str(text) if text.starts_with(CONTEXT_RESERVED.as_bytes()) => {
            return Err(ContextProblem::Reserved);
        }
        Token::Str([]) => return Err(ContextProblem::Empty),
        Token::Str(text) => out.extend_from_slice(text),
        Token::Uint(number) => drop(write!(out, "{number}")),
        Token::Int(number) => drop(write!(out, "{number}")),
        Token::Nil => return Err(ContextProblem::Missing),
        _ => return Err(ContextProblem::WrongType),
    }
    Ok(())
}

impl From<ContextProblem> for FieldProblem {
    fn from(problem: ContextProblem) -> Self {
        Self::NoContext(problem)
    }
}

/// Omits the contexts, which can identify people.
impl fmt::Debug for ItemContexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemContexts")
            .field("items", &self.spec.items)
            .finish_non_exhaustive()
    }
}

/// Returns the work so far of authenticating contexts with fields, if items have contexts.
#[inline]
pub fn context_work(contexts: Option<&ItemContexts>) -> ExtraWork {
    contexts.map_or(ExtraWork::default(), ItemContexts::work_of_fields)
}

#[cfg(test)]
mod tests {
    use sealwire_payload::{Budget, Progress, json};

    use super::*;
    use crate::jobs::slice_timer::SliceTimer;

    /// Notes the path of each field with its context, and the context that is in use.
    struct Noted {
        contexts: Box<ItemContexts>,
        in_use: String,
        fields: Vec<String>,
    }

    impl Transform for Noted {
        type Error = FieldFailure;

        fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, FieldFailure> {
            let step = self.contexts.enter(&field)?;
            if step == ItemStep::Changed {
                self.in_use = String::from_utf8_lossy(self.contexts.context()).into_owned();
            }
            let context = match step {
                ItemStep::Source => "source",
                ItemStep::Same | ItemStep::Changed => &self.in_use,
            };
            self.fields.push(format!("{} {context}", field.path));
            Ok(Outcome::Keep)
        }

        fn failed(&mut self, path: &Path<'_>, failure: FieldFailure) -> Result<(), FieldFailure> {
            self.fields.push(format!("{path} ! {failure}"));
            Ok(())
        }
    }

    /// Returns the fields of two walks with their contexts. Budgets bound each slice.
    fn walk(
        document: &[u8],
        contexts: &Contexts<'_>,
        select: Option<&str>,
        budget: Budget,
    ) -> Vec<String> {
        let source = ContextSource::new(contexts);
        let spec = ContextSpec::new(&source, document, select.is_none()).unwrap();
        let mut scan = ContextScan::new(spec, 64);
        let slice = WalkSlice {
            budget,
            timer: SliceTimer::UNLIMITED,
        };
        while !scan.advance(document, slice).unwrap() {}

        let selection = select.map_or(Selection::everything(), |path| {
            Selection::parse([path]).unwrap()
        });
        let selection = Arc::new(selection);
        let mut noted = Noted {
            contexts: scan.finish(Bytes::copy_from_slice(document)),
            in_use: String::new(),
            fields: Vec::new(),
        };
        let mut both = Vec::new();
        for _ in 0..2 {
            let mut walk = Walk::new(
                Arc::clone(&selection),
                Containers::Whole,
                WalkLimits::default(),
            );
            while walk
                .advance(document, &mut Vec::new(), &mut noted, budget)
                .unwrap()
                == Progress::More
            {}
            noted.contexts.restart();
            both.push(std::mem::take(&mut noted.fields));
        }
        assert_eq!(both[0], both[1], "a second walk has the same contexts");
        both.remove(0)
    }

    #[test]
    fn contexts_of_items_do_not_depend_on_slices() {
        const ROWS: &str = r#"[{"v": 1, "id": "a", "w": 2}, 3, {"v": 4}, {"id": -5, "v": [6, 7]}]"#;
        let missing = "the item of this field has no value at the path of contexts";
        let selected =
            "this field contains its own context, which must stay readable; select other fields";
        let id = Contexts::Path("$.id");
        let listed = Contexts::Listed(vec![b"k", b"l", b"m", b"n"]);
        for (document, contexts, select, expected) in [
            (
                ROWS,
                &id,
                None,
                &[
                    "$[0].v a",
                    "$[0].id source",
                    "$[0].w a",
                    &format!("$[1] ! {missing}")[..],
                    &format!("$[2].v ! {missing}"),
                    "$[3].id source",
                    "$[3].v[0] -5",
                    "$[3].v[1] -5",
                ][..],
            ),
            (
                ROWS,
                &id,
                Some("$[*].v"),
                &["$[0].v a", &format!("$[2].v ! {missing}"), "$[3].v -5"],
            ),
            (
                ROWS,
                &id,
                Some("$[0].*"),
                &["$[0].v a", &format!("$[0].id ! {selected}"), "$[0].w a"],
            ),
            (
                ROWS,
                &listed,
                Some("$[*].v"),
                &["$[0].v k", "$[2].v m", "$[3].v n"],
            ),
            (
                ROWS,
                &listed,
                Some("$[*]"),
                &["$[0] k", "$[1] l", "$[2] m", "$[3] n"],
            ),
            (
                r#"{"rows": [{"id": 8}, 9], "id": 0}"#,
                &id,
                None,
                &["$.rows[0].id 0", "$.rows[1] 0", "$.id source"],
            ),
            (
                "[[1, 2], []]",
                &Contexts::Path("$[1]"),
                None,
                &["$[0][0] 2", "$[0][1] source"],
            ),
            ("7", &id, None, &[&format!("$ ! {missing}")[..]]),
        ] {
            let document = json::to_msgpack(document.as_bytes(), WalkLimits::default()).unwrap();
            for fields_max in [0, 1, 2, usize::MAX] {
                for bytes_max in [0, 20, usize::MAX] {
                    let budget = Budget {
                        fields_max,
                        bytes_max,
                    };
                    let fields = walk(&document, contexts, select, budget);
                    assert_eq!(fields, expected, "{contexts:?} {select:?}");
                }
            }
        }
    }

    #[test]
    fn predicted_work_contains_the_authentication() {
        let id = Contexts::Path("$.id");
        let listed = Contexts::Listed(vec![&b"four"[..], b"and eight", b"more"]);
        for (contexts, message_bytes, fields, bytes) in [
            (&id, 300, 0, 300),
            (&id, 300, 10, 300 + 100),
            (&id, 20_000_000, 4_000_000, 20_000_000 + 6_666_666),
            // No context is longer than 4,096 bytes.
            (&id, 1_000_000, 2, 1_000_000 + 2_730),
            (&listed, 300, 30, 50),
        ] {
            let predicted = ContextSource::new(contexts).extra_work(message_bytes, fields);
            assert_eq!(
                predicted.bytes, bytes,
                "{contexts:?} {message_bytes} {fields}"
            );
            assert_eq!(predicted.fields, 0);
        }
    }

    #[test]
    fn values_that_occur_twice_are_no_context() {
        let repeated = "the item of this field has several values at the path of contexts, because a key occurs twice";
        let missing = "the item of this field has no value at the path of contexts";
        for (document, problem) in [
            // {"id": "a", "id": "b", "v": 1}
            (&b"\x91\x83\xa2id\xa1a\xa2id\xa1b\xa1v\x01"[..], repeated),
            (b"\x91\x83\xa2id\xa1a\xa2id\xc0\xa1v\x01", repeated),
            (b"\x91\x83\xa2id\xc0\xa2id\xa1a\xa1v\x01", repeated),
            (b"\x91\x83\xa2id\xc0\xa2id\xc0\xa1v\x01", repeated),
            (b"\x91\x82\xa2id\xc0\xa1v\x01", missing),
        ] {
            let id = Contexts::Path("$.id");
            let fields = walk(document, &id, Some("$[*].v"), Budget::UNLIMITED);
            assert_eq!(fields, [format!("$[0].v ! {problem}")], "{document:x?}");
        }
    }
}
