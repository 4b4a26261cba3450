//! The walk: reads input bytes, keeps frames on an explicit stack, and appends output bytes.
//!
//! A [`Walk`] keeps offsets and counts, never the input. A walk can therefore wait in a queue
//! between two calls of [`Walk::advance`] while the bytes stay in place. The bytes after the
//! document are not validated: the caller compares `consumed` with the expected length.
//!
//! Unchanged bytes are not copied value by value. `copied_to` lags behind, and each run between two
//! replaced fields is copied at once.

use std::sync::Arc;

use sealwire_msgpack::{Malformed, Token, TokenReader};
use thiserror::Error;

use crate::Path;
use crate::frame::Frame;
use crate::limits::{Budget, TOKEN_BYTES_MIN, WalkLimits};
use crate::select::{EVERYTHING, NOTHING, Selection, States};
use crate::transform::{Containers, Field, Outcome, Transform};

/// Room for a field near [`WalkLimits::out_bytes_max`], in addition to twice the field's size.
/// Within this room, fields are written to a separate output first.
const FIELD_ROOM_BYTES: usize = 64 << 10;
/// Bytes without a field after which the transform is asked whether to pause, counted as in
/// [`Budget::bytes_max`].
const IDLE_BYTES: usize = 4 << 10;

/// Progress of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The budget is used up; call [`Walk::advance`] again.
    More,
    /// The document ended.
    Done {
        /// Length of the document in bytes. Input after the document was not read.
        consumed: usize,
    },
}

/// The reason why a walk ended early. The output so far must then be discarded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalkError<E> {
    /// The document is not MessagePack, or has a string that is not UTF-8. An error of the client.
    #[error("{source} at byte {at}")]
    Malformed {
        /// Offset in the input of the first byte of the invalid value.
        at: usize,
        /// The error.
        source: Malformed,
    },
    /// More than [`WalkLimits::depth_max`] containers inside each other.
    #[error("nested deeper than {depth_max} at byte {at}")]
    TooDeep {
        /// Offset in the input of the first container that is nested too deep.
        at: usize,
        /// The limit.
        depth_max: usize,
    },
    /// The result is longer than [`WalkLimits::out_bytes_max`].
    #[error("result longer than {out_bytes_max} bytes")]
    OutTooLarge {
        /// The limit.
        out_bytes_max: usize,
    },
    /// The transform failed.
    #[error("{0}")]
    Transform(E),
}

/// The state of one walk over one document, between two slices. A clone continues from the same
/// place.
#[derive(Clone, Debug)]
pub struct Walk {
    selection: Arc<Selection>,
    containers: Containers,
    limits: WalkLimits,
    /// Offset of the next unread input byte.
    position: usize,
    /// Input before this offset was already copied to the output or replaced.
    copied_to: usize,
    /// True if nothing is copied to the output.
    discards: bool,
    /// True if nil is passed to the transform.
    passes_nil: bool,
    /// Start of the current container that is one field. The bytes of the field must not be copied
    /// yet.
    whole_at: Option<usize>,
    fields: usize,
    work: usize,
    /// States of all processed values, and of the containers that were selected as a whole.
    met: States,
    within: States,
    out_bytes: usize,
    root_started: bool,
    frames: Vec<Frame>,
}

/// Borrows of one call of `advance`.
struct WalkPass<'a, T> {
    input: &'a [u8],
    out: &'a mut Vec<u8>,
    transform: &'a mut T,
    /// As `copied_to` of the walk, for the duration of the call.
    copied_to: usize,
    discards: bool,
    /// Maximum length of `out`.
    out_len_max: usize,
    out_bytes_max: usize,
}

impl Walk {
    /// Creates a walk that starts at the first byte of the input given to [`Walk::advance`].
    pub fn new(selection: Arc<Selection>, containers: Containers, limits: WalkLimits) -> Self {
        Self {
            selection,
            containers,
            limits,
            position: 0,
            copied_to: 0,
            discards: false,
            passes_nil: false,
            whole_at: None,
            fields: 0,
            work: 0,
            met: NOTHING,
            within: NOTHING,
            out_bytes: 0,
            root_started: false,
            frames: Vec::with_capacity(limits.depth_max.min(16)),
        }
    }

    /// Makes the walk copy nothing to the output: for transforms that only read fields, and keep
    /// them.
    #[must_use]
    pub fn without_output(self) -> Self {
        Self {
            discards: true,
            ..self
        }
    }

    /// Makes the walk pass selected nil values to the transform too.
    #[must_use]
    pub fn with_nil(self) -> Self {
        Self {
            passes_nil: true,
            ..self
        }
    }

    /// Returns the number of fields passed to the transform so far, including failed and unchanged
    /// fields.
    pub const fn fields(&self) -> usize {
        self.fields
    }

    /// Returns the positions of the selection's paths that matched nothing so far. At the end,
    /// these are the unmatched paths.
    pub fn unmatched(&self) -> Vec<u32> {
        self.selection.unmatched(self.met, self.within)
    }

    /// Returns the number of input bytes processed so far.
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Returns the amount of work so far, in bytes of the input. A token outside of fields counts
    /// as at least 16 bytes.
    pub const fn work(&self) -> usize {
        self.work
    }

    /// Returns the location of the value that the walk is at.
    pub fn path<'a>(&'a self, input: &'a [u8]) -> Path<'a> {
        Path {
            frames: &self.frames,
            input,
        }
    }

    /// Continues the walk for one `budget`. `input` must be identical on every call, and can
    /// continue after the document. The result is appended to `out`. The slicing does not change
    /// the result, and `out` can be emptied between calls.
    ///
    /// # Errors
    /// [`WalkError`]. The walk is then over and must not be advanced again.
    pub fn advance<T: Transform>(
        &mut self,
        input: &[u8],
        out: &mut Vec<u8>,
        transform: &mut T,
        budget: Budget,
    ) -> Result<Progress, WalkError<T::Error>> {
        let out_len_before = out.len();
        let out_bytes_left = self.limits.out_bytes_max.saturating_sub(self.out_bytes);
        let mut pass = WalkPass {
            input,
            out_len_max: out_len_before.saturating_add(out_bytes_left),
            out_bytes_max: self.limits.out_bytes_max,
            out,
            transform,
            copied_to: self.copied_to,
            discards: self.discards,
        };
        let progress = self.run(&mut pass, budget)?;
        pass.flush_to(self.whole_at.unwrap_or(self.position))?;
        pass.transform.complete(pass.out);
        self.copied_to = pass.copied_to;
        self.out_bytes += pass.out.len().saturating_sub(out_len_before);
        Ok(progress)
    }

    fn run<T: Transform>(
        &mut self,
        pass: &mut WalkPass<'_, T>,
        budget: Budget,
    ) -> Result<Progress, WalkError<T::Error>> {
        let fields_end = self.fields.saturating_add(budget.fields_max);
        let mut bytes_left = budget.bytes_max;
        let mut idle_left = IDLE_BYTES;
        loop {
            let before = self.position;
            let fields = self.fields;
            if !self.step(pass)? {
                return Ok(Progress::Done {
                    consumed: self.position,
                });
            }
            let bytes = self.position - before;
            let cost = bytes.max(TOKEN_BYTES_MIN);
            let is_field = self.fields > fields;
            self.work += if is_field { bytes } else { cost };
            let pauses = if is_field {
                pass.transform.pauses()
            } else if idle_left <= cost {
                idle_left = IDLE_BYTES;
                pass.transform.pauses_between()
            } else {
                idle_left -= cost;
                false
            };
            if pauses || self.fields >= fields_end || bytes_left <= cost {
                return Ok(Progress::More);
            }
            bytes_left -= cost;
        }
    }

    /// Processes the token of one value, together with its key if the key is a scalar, or leaves
    /// one container. Returns `false` at the end.
    #[inline]
    fn step<T: Transform>(
        &mut self,
        pass: &mut WalkPass<'_, T>,
    ) -> Result<bool, WalkError<T::Error>> {
        let Some(frame) = self.frames.last_mut() else {
            if self.root_started {
                return Ok(false);
            }
            self.root_started = true;
            self.value(pass, self.selection.start())?;
            return Ok(true);
        };
        if frame.remaining == 0 {
            self.leave(pass)?;
            return Ok(true);
        }
        frame.remaining -= 1;
        let states = if !frame.is_map {
            let index = frame.index().unwrap_or_default();
            self.selection.at_index(frame.states, index)
        } else if frame.remaining % 2 == 0 {
            // Reached only after a key that is a container. A scalar key and its value are one
            // step.
            self.selection.at_other_key(frame.states)
        } else {
            frame.key_start = self.position;
            let token = read_token(pass.input, &mut self.position)?;
            let states = match token {
                Token::Str(key) => self.selection.at_key(frame.states, key),
                Token::Array(_) | Token::Map(_) => {
                    let start = frame.key_start;
                    self.enter(token, start, NOTHING)?;
                    return Ok(true);
                }
                _ => self.selection.at_other_key(frame.states),
            };
            frame.remaining -= 1;
            states
        };
        self.value(pass, states)?;
        Ok(true)
    }

    #[inline]
    fn value<T: Transform>(
        &mut self,
        pass: &mut WalkPass<'_, T>,
        states: States,
    ) -> Result<(), WalkError<T::Error>> {
        let start = self.position;
        let token = read_token(pass.input, &mut self.position)?;
        self.met |= states;
        match token {
            Token::Array(_) | Token::Map(_) => self.enter(token, start, states),
            Token::Nil if !self.passes_nil => Ok(()),
            _ if states & EVERYTHING != 0 || self.selection.accepts(states) => {
                self.field(pass, token, start, states)
            }
            _ => Ok(()),
        }
    }

    /// Enters a container whose header was just read.
    fn enter<E>(
        &mut self,
        token: Token<'_>,
        start: usize,
        states: States,
    ) -> Result<(), WalkError<E>> {
        if self.frames.len() >= self.limits.depth_max {
            return Err(WalkError::TooDeep {
                at: start,
                depth_max: self.limits.depth_max,
            });
        }
        let is_selected = states & EVERYTHING == 0
            && !self.selection.is_ranked()
            && self.selection.accepts(states);
        let is_whole = is_selected && self.containers == Containers::Whole;
        if is_selected {
            self.within |= states;
        }
        let states = match (is_selected, is_whole) {
            (true, true) => NOTHING,
            (true, false) => EVERYTHING,
            (false, _) => states,
        };
        if is_whole {
            self.whole_at = Some(start);
        }
        self.frames.push(Frame::new(token, start, states, is_whole));
        Ok(())
    }

    /// Leaves the innermost container, and passes it to the transform if it is one field.
    fn leave<T: Transform>(
        &mut self,
        pass: &mut WalkPass<'_, T>,
    ) -> Result<(), WalkError<T::Error>> {
        let Some(frame) = self.frames.pop() else {
            return Ok(());
        };
        if !frame.is_whole {
            return Ok(());
        }
        self.whole_at = None;
        self.field(pass, frame.token(), frame.start, NOTHING)
    }

    /// Passes the value from `start` to the current position to the transform. `states` are those
    /// of a leaf.
    #[inline]
    fn field<T: Transform>(
        &mut self,
        pass: &mut WalkPass<'_, T>,
        token: Token<'_>,
        start: usize,
        states: States,
    ) -> Result<(), WalkError<T::Error>> {
        pass.flush_to(start)?;
        self.fields += 1;
        let out_len = pass.out.len();
        let raw = pass.input.get(start..self.position).unwrap_or_default();
        let path = Path {
            frames: &self.frames,
            input: pass.input,
        };
        let selection = &*self.selection;
        if pass.is_near_limit(raw.len()) {
            return pass.transform_separately(
                Field {
                    token,
                    raw,
                    path,
                    start,
                    selection,
                    states,
                },
                self.position,
            );
        }
        match pass.transform.field(
            Field {
                token,
                raw,
                path,
                start,
                selection,
                states,
            },
            pass.out,
        ) {
            Ok(Outcome::Replaced) => {
                pass.copied_to = self.position;
                pass.check_out_len()
            }
            Ok(Outcome::Keep) => {
                pass.out.truncate(out_len);
                Ok(())
            }
            Err(error) => {
                pass.out.truncate(out_len);
                pass.transform
                    .failed(&path, error)
                    .map_err(WalkError::Transform)
            }
        }
    }
}

impl<T: Transform> WalkPass<'_, T> {
    /// Copies the pending input before offset `end` unchanged.
    #[inline]
    fn flush_to(&mut self, end: usize) -> Result<(), WalkError<T::Error>> {
        if self.discards {
            return Ok(());
        }
        let run = self.input.get(self.copied_to..end).unwrap_or_default();
        if run.len() > self.out_len_max.saturating_sub(self.out.len()) {
            return Err(self.out_too_large());
        }
        self.out.extend_from_slice(run);
        self.copied_to = end;
        Ok(())
    }

    /// Returns true if a field of `field_bytes` bytes could take the output beyond its limit.
    #[inline]
    fn is_near_limit(&self, field_bytes: usize) -> bool {
        self.out_len_max.saturating_sub(self.out.len())
            < field_bytes
                .saturating_mul(2)
                .saturating_add(FIELD_ROOM_BYTES)
    }

    /// Passes a field that ends at `end` to the transform with a separate output, and copies that
    /// output if it fits. So the output never grows beyond its limit: a vector that grows takes
    /// twice its memory.
    #[cold]
    fn transform_separately(
        &mut self,
        field: Field<'_>,
        end: usize,
    ) -> Result<(), WalkError<T::Error>> {
        let path = field.path;
        // Earlier fields in `out` are completed here, so that `complete` below affects the new field
        // only.
        self.transform.complete(self.out);

        let mut replacement = Vec::new();
        match self.transform.field(field, &mut replacement) {
            Ok(Outcome::Replaced) => {
                self.transform.complete(&mut replacement);
                if replacement.len() > self.out_len_max.saturating_sub(self.out.len()) {
                    return Err(self.out_too_large());
                }
                self.out.extend_from_slice(&replacement);
                self.copied_to = end;
                Ok(())
            }
            Ok(Outcome::Keep) => Ok(()),
            Err(error) => self
                .transform
                .failed(&path, error)
                .map_err(WalkError::Transform),
        }
    }

    #[inline]
    fn check_out_len(&self) -> Result<(), WalkError<T::Error>> {
        if self.out.len() > self.out_len_max {
            return Err(self.out_too_large());
        }
        Ok(())
    }

    #[cold]
    fn out_too_large(&self) -> WalkError<T::Error> {
        WalkError::OutTooLarge {
            out_bytes_max: self.out_bytes_max,
        }
    }
}

/// Reads the token at `position` and advances to its end. Validates that strings are UTF-8.
#[inline(always)] // Like `TokenReader::token`.
fn read_token<'a, E>(input: &'a [u8], position: &mut usize) -> Result<Token<'a>, WalkError<E>> {
    let at = *position;
    let mut reader = TokenReader::at(input, at);
    let token = reader
        .token()
        .map_err(|source| WalkError::Malformed { at, source })?;
    if let Token::Str(bytes) = token
        // Most strings are ASCII. Checking for ASCII first saves a third of the cost of a short
        // string.
        && !bytes.is_ascii()
        && std::str::from_utf8(bytes).is_err()
    {
        let source = Malformed::NotUtf8;
        return Err(WalkError::Malformed { at, source });
    }
    *position = reader.position();
    Ok(token)
}

#[cfg(test)]
mod tests {
    use sealwire_msgpack::write;

    use super::*;
    use crate::testing::{Paths, Wrap, doc, walk};

    const WIDE: Budget = Budget::UNLIMITED;

    fn selection(path: &str) -> Selection {
        Selection::parse([path]).expect("path parses")
    }

    /// Returns the output of [`Wrap`] over every leaf. Asserts that one run and single steps give
    /// the same output.
    fn wrapped(input: &[u8], limits: WalkLimits) -> Result<Vec<u8>, WalkError<String>> {
        let steps = Budget {
            fields_max: 0,
            bytes_max: 0,
        };
        let run = |budget| {
            walk(
                Selection::everything(),
                Containers::Whole,
                limits,
                budget,
                input,
                &mut Wrap,
            )
        };
        let outcome = run(WIDE);
        assert_eq!(outcome, run(steps), "{input:02x?}");
        outcome.map(|(out, _)| out)
    }

    #[test]
    fn fields_are_replaced_and_the_rest_is_kept() {
        // An array16 of two, the second an empty map32: both headers longer than they need to be.
        let input = [0xdc, 0, 2, 0x05, 0xdf, 0, 0, 0, 0];
        let expected = [0xdc, 0, 2, 0xc4, 1, 0x05, 0xdf, 0, 0, 0, 0];
        assert_eq!(
            wrapped(&input, WalkLimits::default()),
            Ok(expected.to_vec())
        );
    }

    #[test]
    fn a_document_ends_where_it_ends() {
        for input in [&[0x07, 0xc1][..], &[0x90, 0xc1], &[0xc0, 0xff, 0xff]] {
            let mut paths = Paths::default();
            let selection = Selection::everything();
            let outcome = walk(
                selection,
                Containers::Whole,
                WalkLimits::default(),
                WIDE,
                input,
                &mut paths,
            );
            assert_eq!(outcome, Ok((input[..1].to_vec(), 1)));
        }
    }

    #[test]
    fn a_walk_without_output_reads_the_same_fields() {
        let input = [0x93, 0x01, 0x92, 0x02, 0xa1, b'x', 0x03];
        let limits = WalkLimits {
            out_bytes_max: 0,
            ..WalkLimits::default()
        };
        let mut whole = Walk::new(Arc::new(Selection::everything()), Containers::Whole, limits)
            .without_output();
        let mut seen = Paths::default();
        let mut out = Vec::new();
        assert_eq!(
            whole.advance(&input, &mut out, &mut seen, Budget::fields(2)),
            Ok(Progress::More)
        );
        // A clone goes on from the same place.
        let (mut rest, mut seen_by_rest) = (whole.clone(), Paths::default());
        assert_eq!(
            rest.advance(&input, &mut out, &mut seen_by_rest, WIDE),
            Ok(Progress::Done { consumed: 7 })
        );
        assert_eq!(
            (seen.0.len(), seen_by_rest.0, whole.fields(), rest.fields()),
            (
                2,
                vec!["$[1][1]", "$[2]"]
                    .into_iter()
                    .map(str::to_owned)
                    .collect(),
                2,
                4
            )
        );
        assert!(out.is_empty());
    }

    #[test]
    fn nil_is_a_field_only_of_a_walk_with_nil() {
        let input = [0x94, 0xc0, 0x01, 0xc0, 0x91, 0xc0];
        for (passes_nil, select, fields) in [
            (false, "$", 1),
            (true, "$", 1),
            (false, "$[0]", 0),
            (true, "$[0]", 1),
            (false, "$[*]", 2),
            (true, "$[*]", 4),
            (true, "$[3][0]", 1),
            (true, "$[3][1]", 0),
        ] {
            let selection = Arc::new(Selection::parse([select]).unwrap());
            let walk = Walk::new(selection, Containers::Whole, WalkLimits::default());
            let mut walk = if passes_nil { walk.with_nil() } else { walk };
            let mut out = Vec::new();
            let done = walk.advance(&input, &mut out, &mut Paths::default(), WIDE);
            assert_eq!(done, Ok(Progress::Done { consumed: 6 }), "{select}");
            assert_eq!(walk.fields(), fields, "{passes_nil} {select}");
        }
    }

    #[test]
    fn a_finished_walk_stays_finished() {
        let mut walk = Walk::new(
            Arc::new(Selection::everything()),
            Containers::Whole,
            WalkLimits::default(),
        );
        let mut out = Vec::new();
        for _ in 0..3 {
            let progress = walk.advance(&[0x91, 0x07], &mut out, &mut Wrap, WIDE);
            assert_eq!(progress, Ok(Progress::Done { consumed: 2 }));
            assert_eq!(out, [0x91, 0xc4, 1, 0x07]);
        }
        assert_eq!(walk.fields(), 1);
    }

    /// Replaces 1, keeps 2 after a partial write, and fails on all other values.
    struct Mixed {
        goes_on: bool,
    }

    impl Transform for Mixed {
        type Error = String;

        fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, String> {
            write::str(out, "one");
            match field.token {
                Token::Uint(1) => Ok(Outcome::Replaced),
                Token::Uint(2) => Ok(Outcome::Keep),
                _ => Err("bad".to_owned()),
            }
        }

        fn failed(&mut self, path: &Path<'_>, error: String) -> Result<(), String> {
            if self.goes_on {
                Ok(())
            } else {
                Err(format!("{error} at {path}"))
            }
        }
    }

    #[test]
    fn a_failed_or_kept_field_leaves_no_trace() {
        let input = doc(r#"[1, 2, {"x": 3}, 1]"#);
        let run = |goes_on, budget| {
            let mut mixed = Mixed { goes_on };
            let selection = Selection::everything();
            walk(
                selection,
                Containers::Whole,
                WalkLimits::default(),
                budget,
                &input,
                &mut mixed,
            )
        };
        for fields_max in [1, 2, 3, 100] {
            let (out, _) = run(true, Budget::fields(fields_max)).expect("goes on");
            assert_eq!(out, doc(r#"["one", 2, {"x": 3}, "one"]"#));
            let error = run(false, Budget::fields(fields_max)).expect_err("gives up");
            assert_eq!(error.to_string(), "bad at $[2].x");
        }
    }

    #[test]
    fn a_whole_container_is_one_field_however_it_is_sliced() {
        let input = doc(r#"{"a": 1, "b": [1, {"c": [2, 3]}], "d": [], "e": "x"}"#);
        let paths = ["$.b", "$.d", "$..c"];
        let mut expected = vec![0xdf, 0, 0, 0, 4];
        for (key, value, is_field) in [
            ("a", "1", false),
            ("b", r#"[1, {"c": [2, 3]}]"#, true),
            ("d", "[]", true),
            ("e", r#""x""#, false),
        ] {
            write::str(&mut expected, key);
            if is_field {
                write::bin(&mut expected, &doc(value));
            } else {
                expected.extend(doc(value));
            }
        }
        for bytes_max in [0, 1, 16, 17, 40, 100, usize::MAX] {
            for fields_max in [0, 1, 2, usize::MAX] {
                let budget = Budget {
                    fields_max,
                    bytes_max,
                };
                let selection = Selection::parse(paths).expect("paths parse");
                let outcome = walk(
                    selection,
                    Containers::Whole,
                    WalkLimits::default(),
                    budget,
                    &input,
                    &mut Wrap,
                );
                assert_eq!(outcome, Ok((expected.clone(), input.len())), "{budget:?}");
            }
        }
    }

    #[test]
    fn malformed_input_is_refused_where_it_begins() {
        let check = |input: &[u8], at, source| {
            assert_eq!(
                wrapped(input, WalkLimits::default()),
                Err(WalkError::Malformed { at, source }),
                "{input:02x?}"
            );
        };
        check(&[], 0, Malformed::Truncated);
        check(&[0xc1], 0, Malformed::ReservedMarker);
        check(&[0x92, 0x01], 2, Malformed::Truncated);
        check(&[0x92, 0x01, 0xc1], 2, Malformed::ReservedMarker);
        check(&[0x92, 0x01, 0xa2, b'a'], 2, Malformed::Truncated);
        check(&[0xdd, 255, 255, 255, 255, 0xc0], 6, Malformed::Truncated);
        check(
            &[0xdf, 255, 255, 255, 255, 0xc0, 0xc0],
            7,
            Malformed::Truncated,
        );
        check(&[0x81, 0xa1, b'a'], 3, Malformed::Truncated);
        check(&[0x91, 0xa1, 0xff], 1, Malformed::NotUtf8);
        check(&[0x81, 0xa1, 0xff, 0x01], 1, Malformed::NotUtf8);
        check(&[0x81, 0x91, 0xa1, 0xff, 0x01], 2, Malformed::NotUtf8);
        check(&[0x91, 0xd9, 3, 0xed, 0xa0, 0x80], 1, Malformed::NotUtf8);
    }

    #[test]
    fn strings_are_checked_where_nothing_is_selected_too() {
        for (input, at) in [
            (&[0x92, 0x01, 0xa1, 0xff][..], 2),
            (&[0x81, 0xa1, 0xc0, 0x01], 1),
        ] {
            for (path, containers) in [("$.x", Containers::Descend), ("$", Containers::Whole)] {
                let outcome = walk(
                    selection(path),
                    containers,
                    WalkLimits::default(),
                    WIDE,
                    input,
                    &mut Wrap,
                );
                let source = Malformed::NotUtf8;
                assert_eq!(outcome, Err(WalkError::Malformed { at, source }), "{path}");
            }
        }
    }

    #[test]
    fn nesting_ends_at_its_limit() {
        let nested = |depth| [vec![0x91; depth], vec![0x01]].concat();
        let limits = WalkLimits {
            depth_max: 3,
            ..WalkLimits::default()
        };
        let too_deep = |at, depth_max| Err(WalkError::TooDeep { at, depth_max });
        assert!(wrapped(&nested(3), limits).is_ok());
        assert_eq!(wrapped(&nested(4), limits), too_deep(3, 3));
        // The limit also holds inside a key, and inside a container selected whole.
        assert_eq!(
            wrapped(&[0x81, 0x91, 0x91, 0x91, 1, 2], limits),
            too_deep(3, 3)
        );
        let outcome = walk(
            selection("$"),
            Containers::Whole,
            limits,
            WIDE,
            &nested(4),
            &mut Wrap,
        );
        assert_eq!(outcome.map(|(out, _)| out), too_deep(3, 3));
        assert_eq!(
            wrapped(&nested(10_000), WalkLimits::default()),
            too_deep(128, 128)
        );
        assert_eq!(
            wrapped(
                &[0x90],
                WalkLimits {
                    depth_max: 0,
                    ..limits
                }
            ),
            too_deep(0, 0)
        );
        let deep = WalkLimits {
            depth_max: 10_000,
            ..WalkLimits::default()
        };
        assert!(wrapped(&nested(10_000), deep).is_ok());
    }

    #[test]
    fn output_ends_at_its_limit() {
        let input = doc(r#"[1, "abc", [2]]"#);
        let whole = wrapped(&input, WalkLimits::default()).expect("walks");
        for out_bytes_max in 0..whole.len() + 2 {
            let outcome = wrapped(
                &input,
                WalkLimits {
                    out_bytes_max,
                    ..WalkLimits::default()
                },
            );
            if out_bytes_max < whole.len() {
                assert_eq!(outcome, Err(WalkError::OutTooLarge { out_bytes_max }));
            } else {
                assert_eq!(outcome, Ok(whole.clone()));
            }
        }
    }

    #[test]
    fn output_takes_no_memory_beyond_its_limit() {
        let input = doc(&format!(
            "[{}]",
            vec![format!("{:?}", "x".repeat(100)); 2_000].join(",")
        ));
        let whole = wrapped(&input, WalkLimits::default()).expect("walks");
        for (out_bytes_max, fits) in [
            (whole.len(), true),
            (whole.len() - 1, false),
            (150_001, false),
            (70, false),
        ] {
            for budget in [WIDE, Budget::fields(7)] {
                let limits = WalkLimits {
                    out_bytes_max,
                    ..WalkLimits::default()
                };
                let mut walk =
                    Walk::new(Arc::new(Selection::everything()), Containers::Whole, limits);
                let mut out = Vec::with_capacity(out_bytes_max);
                let room = out.capacity();
                let outcome = loop {
                    match walk.advance(&input, &mut out, &mut Wrap, budget) {
                        Ok(Progress::More) => (),
                        outcome => break outcome,
                    }
                };
                assert_eq!(outcome.is_ok(), fits, "{out_bytes_max}");
                assert_eq!(out.capacity(), room, "{out_bytes_max}");
                assert!(!fits || out == whole, "{out_bytes_max}");
            }
        }
    }

    #[test]
    fn only_appended_bytes_count_as_output() {
        let input = doc(r#"[1, "abc", [2]]"#);
        let whole = wrapped(&input, WalkLimits::default()).expect("walks");
        for (out_bytes_max, fits) in [(whole.len(), true), (whole.len() - 1, false)] {
            let limits = WalkLimits {
                out_bytes_max,
                ..WalkLimits::default()
            };
            let mut walk = Walk::new(Arc::new(Selection::everything()), Containers::Whole, limits);
            let (mut out, mut drained) = (b"prefix".to_vec(), Vec::new());
            let outcome = loop {
                match walk.advance(&input, &mut out, &mut Wrap, Budget::fields(1)) {
                    Ok(Progress::More) => drained.append(&mut out),
                    outcome => break outcome,
                }
            };
            drained.append(&mut out);
            assert_eq!(outcome.is_ok(), fits);
            if fits {
                assert_eq!(drained, [b"prefix", whole.as_slice()].concat());
            }
        }
    }

    /// Appends a placeholder for each field, and fills it in later.
    #[derive(Default)]
    struct Later(Vec<usize>);

    impl Transform for Later {
        type Error = String;

        fn field(&mut self, _: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, String> {
            write::str(out, "?");
            self.0.push(out.len() - 1);
            Ok(Outcome::Replaced)
        }

        fn failed(&mut self, _: &Path<'_>, error: String) -> Result<(), String> {
            Err(error)
        }

        fn complete(&mut self, out: &mut [u8]) {
            self.0.drain(..).for_each(|at| out[at] = b'!');
        }
    }

    #[test]
    fn fields_near_the_limit_end_complete() {
        let input = doc(r#"[1, {"x": 2, "y": [3, 4]}, null, 5]"#);
        let run = |limits| {
            walk(
                Selection::everything(),
                Containers::Whole,
                limits,
                WIDE,
                &input,
                &mut Later::default(),
            )
            .map(|(out, _)| out)
        };
        let whole = run(WalkLimits::default()).expect("walks");
        assert_eq!(
            run(WalkLimits {
                out_bytes_max: whole.len(),
                ..WalkLimits::default()
            }),
            Ok(whole)
        );
    }

    #[test]
    fn slices_end_with_completed_fields() {
        let input = doc(r#"[1, {"x": 2, "y": [3, 4]}, null, 5]"#);
        for fields_max in [1, 2, 3, 100] {
            let mut walk = Walk::new(
                Arc::new(Selection::everything()),
                Containers::Whole,
                WalkLimits::default(),
            );
            let (mut out, mut later) = (Vec::new(), Later::default());
            loop {
                let progress = walk
                    .advance(&input, &mut out, &mut later, Budget::fields(fields_max))
                    .expect("walks");
                assert!(!out.contains(&b'?'), "{fields_max}");
                if progress != Progress::More {
                    break;
                }
            }
            assert_eq!(out, doc(r#"["!", {"x": "!", "y": ["!", "!"]}, null, "!"]"#));
        }
    }

    /// Pauses after every third field.
    struct Slow(usize);

    impl Transform for Slow {
        type Error = ();

        fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, ()> {
            self.0 += 1;
            Ok(Outcome::Keep)
        }

        fn pauses(&mut self) -> bool {
            self.0.is_multiple_of(3)
        }

        fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_field_ends_its_slice() {
        // A nil follows each field; nil is not a field.
        let input = [&[0x9c][..], &[0x01, 0xc0].repeat(6)].concat();
        let mut walk = Walk::new(
            Arc::new(Selection::everything()),
            Containers::Whole,
            WalkLimits::default(),
        );
        let (mut out, mut slow) = (Vec::new(), Slow(0));
        let mut fields = || {
            let progress = walk
                .advance(&input, &mut out, &mut slow, WIDE)
                .expect("walks");
            (walk.fields(), progress)
        };
        assert_eq!(fields(), (3, Progress::More));
        assert_eq!(fields(), (6, Progress::More));
        assert_eq!(
            fields(),
            (
                6,
                Progress::Done {
                    consumed: input.len()
                }
            )
        );
    }

    #[test]
    fn a_slice_ends_within_its_budget() {
        // 10,000 one-byte values, none selected: each counts 16 bytes.
        let input = [&[0xdc, 0x27, 0x10][..], &[0x01; 10_000]].concat();
        let budget = Budget {
            fields_max: usize::MAX,
            bytes_max: 1600,
        };
        let mut walk = Walk::new(
            Arc::new(selection("$.x")),
            Containers::Whole,
            WalkLimits::default(),
        );
        let (mut out, mut slices) = (Vec::new(), 1);
        loop {
            let before = walk.position();
            let progress = walk
                .advance(&input, &mut out, &mut Wrap, budget)
                .expect("walks");
            assert!(walk.position() - before <= 102);
            // Kept bytes are written at once: the output is never behind by more than a slice.
            assert_eq!(out.len(), walk.position());
            match progress {
                Progress::More => slices += 1,
                Progress::Done { .. } => break,
            }
        }
        assert_eq!(slices, 101);
        assert_eq!(walk.fields(), 0);

        let mut walk = Walk::new(
            Arc::new(Selection::everything()),
            Containers::Whole,
            WalkLimits::default(),
        );
        for fields in 1..=20 {
            let progress = walk.advance(&input, &mut out, &mut Wrap, Budget::fields(1));
            assert_eq!(progress, Ok(Progress::More));
            assert_eq!(walk.fields(), fields);
        }
    }
}
