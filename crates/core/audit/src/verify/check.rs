//! Checks the lines of an audit log against the hash chain, in order. A line that does not fit is
//! compared with its neighbours, to determine the kind and location of the problem.
//!
//! A line is judged when the next line is known. A line that does not fit is classified as inserted
//! if the next line follows from the previous line. The line is classified as edited or forged if
//! the next line follows from its hash, or if it has the expected record number. In all other
//! cases, its record number shows whether the line was moved, was inserted, or comes after missing
//! records.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Anchor, CheckpointResult, FINDINGS_MAX, Finding, Problem, Range, Report};
use crate::chain::{Checkpoint, Line};
use crate::checkpoint::CHECKPOINT_FILE;
use crate::digest::Digest;
use crate::files::Segment;
use crate::key::{AuditKey, same};
use crate::note::NoteError;
use crate::segment::{Header, RawRecord};
use crate::statement::{ARCHIVED_FILE, Archived};

/// Maximum number of early lines, and of missing ranges, that are kept to be matched with later
/// lines.
const UNMATCHED_MAX: usize = 10_000;

/// The verification state between two lines.
pub(super) struct Check<'a> {
    key: Option<&'a AuditKey>,
    /// The given anchors, with the records that were found for them.
    anchors: Vec<(Anchor, Option<FoundRecord>)>,
    /// The record that the checkpoint names.
    checkpoint: Option<Anchor>,
    /// True if the hash in the checkpoint matches. `None`: the record has not been found.
    checkpoint_matches: Option<bool>,
    /// The archive statement. Records up to its last record can be absent.
    archived: Option<Archived>,
    range: Range,
    /// The name of the current file.
    file: String,
    /// Number of the current line in its file.
    line_number: u64,
    /// The previous line, which is judged when the next line is known.
    pending: Option<PendingLine>,
    /// A buffer that is reused for the next pending line.
    spare_buffer: Vec<u8>,
    /// The number of the next expected record.
    expected: u64,
    /// Possible hashes of the record before the next expected record; empty if unknown.
    predecessors: Vec<Digest>,
    /// The chain's random name, from the last header.
    chain: Option<[u8; 16]>,
    /// True if this segment names another key than `key`, so that its MACs cannot be checked.
    has_other_key: bool,
    /// Lines that came too early, by record number: index of their finding, and hash.
    early: BTreeMap<u64, (usize, Digest)>,
    /// Missing ranges so far: first record, last record, index of the finding.
    missing: Vec<(u64, u64, usize)>,
    findings: Vec<Option<Finding>>,
    findings_omitted: u64,
    /// Number of files so far.
    segments: usize,
    /// Number of complete lines so far.
    lines: u64,
    /// Number of the first record found.
    first: Option<u64>,
    /// Number of the last record found; 0 if none was found.
    last: u64,
    /// Hash of the last record found.
    last_hash: Digest,
    /// True if the first record is the first of its chain.
    from_beginning: bool,
    /// Number of records that engines reported as lost.
    lost: u64,
    /// Number of engine starts.
    starts: u64,
    /// Bytes of an incomplete last line.
    torn_bytes: u64,
    /// Offset of the current line's end in its file.
    line_end: u64,
}

/// The position of an anchor's record, and whether the hash matches.
#[derive(Clone)]
struct FoundRecord {
    file: String,
    line: u64,
    hash_matches: bool,
}

/// A copy of a line that has not been judged yet.
struct PendingLine {
    bytes: Vec<u8>,
    /// True if the line has the audit format.
    is_line: bool,
    line_number: u64,
}

/// Result of checking the hash and the MAC of a line.
struct LineVerdict {
    /// True if the line follows from the previous hash. `None`: the previous hash is unknown.
    follows: Option<bool>,
    /// True if the MAC is valid. `None`: the key to check the MAC is missing.
    is_mac_valid: Option<bool>,
}

impl LineVerdict {
    /// Returns true if no check failed. A check that is not possible does not fail.
    fn is_acceptable(&self) -> bool {
        self.follows != Some(false) && self.is_mac_valid != Some(false)
    }

    /// Returns true if the line is valid and its predecessor is known.
    fn is_proven(&self) -> bool {
        self.follows == Some(true) && self.is_mac_valid != Some(false)
    }
}

impl<'a> Check<'a> {
    pub(super) fn new(
        key: Option<&'a AuditKey>,
        anchors: &[Anchor],
        checkpoint: Option<Anchor>,
        archived: Result<Archived, NoteError>,
        range: Range,
    ) -> Self {
        let mut check = Self {
            key,
            anchors: anchors.iter().map(|anchor| (*anchor, None)).collect(),
            checkpoint,
            checkpoint_matches: None,
            archived: None,
            range,
            file: String::new(),
            line_number: 0,
            pending: None,
            spare_buffer: Vec::new(),
            expected: 0,
            predecessors: Vec::new(),
            chain: None,
            has_other_key: false,
            early: BTreeMap::new(),
            missing: Vec::new(),
            findings: Vec::new(),
            findings_omitted: 0,
            segments: 0,
            lines: 0,
            first: None,
            last: 0,
            last_hash: Digest([0; 32]),
            from_beginning: false,
            lost: 0,
            starts: 0,
            torn_bytes: 0,
            line_end: 0,
        };

        match archived {
            Ok(archived) => check.apply_archive_statement(archived),
            Err(NoteError::Missing) => (),
            Err(error) => {
                check.add_finding_in(
                    ARCHIVED_FILE.into(),
                    0,
                    None,
                    Problem::Archived(error.to_string()),
                );
            }
        }

        check
    }

    /// Applies the archive statement: reports its findings, and compares it with the anchors of its
    /// last record.
    fn apply_archive_statement(&mut self, archived: Archived) {
        let last = archived.last();
        if archived.findings > 0 {
            let problem = Problem::ArchivedFindings(archived.findings);
            self.add_finding_in(ARCHIVED_FILE.into(), 0, Some(last.seq), problem);
        }

        for (anchor, found) in self
            .anchors
            .iter_mut()
            .filter(|(anchor, _)| anchor.seq == last.seq)
        {
            let hash_matches = anchor.hash == last.hash;
            *found = Some(FoundRecord {
                file: ARCHIVED_FILE.into(),
                line: 0,
                hash_matches,
            });
        }
        // Without segments, this is the next number. Otherwise the first segment replaces it, and
        // `check_first_header` compares that segment with the archive.
        self.expected = last.seq + 1;
        self.archived = Some(archived);
    }

    /// Starts the next segment file.
    pub(super) fn begin_segment(&mut self, segment: &Segment) {
        self.file.clone_from(&segment.name);
        (self.line_number, self.line_end, self.has_other_key) = (0, 0, false);
        if self.segments == 0 {
            self.expected = segment.first;
        }
        self.segments += 1;
    }

    /// Takes the next line, and judges the line before it.
    pub(super) fn check_line(&mut self, raw: &RawRecord<'_>) {
        let start = std::mem::replace(&mut self.line_end, raw.end);
        self.line_number += 1;
        let line = raw.line();
        if !raw.is_whole {
            self.judge_pending(None);
            self.torn_bytes = raw.end - start;
            return;
        }

        self.lines += 1;
        self.judge_pending(line.as_ref());
        if self.line_number == 1 {
            self.check_header(line.as_ref());
        }

        let mut bytes = std::mem::take(&mut self.spare_buffer);
        bytes.clear();
        bytes.extend_from_slice(raw.bytes());
        self.pending = Some(PendingLine {
            bytes,
            is_line: line.is_some(),
            line_number: self.line_number,
        });
    }

    /// Finishes a segment file. Only the last file can end with an incomplete line.
    pub(super) fn end_segment(&mut self, is_last: bool) {
        self.judge_pending(None);
        let torn = self.torn_bytes > 0;
        if torn && !is_last {
            self.torn_bytes = 0;
            self.add_finding(self.line_number, None, Problem::Unreadable);
        }
    }

    /// Checks the first line of a file, which must be a segment header. An unreadable line is
    /// reported when it is judged.
    fn check_header(&mut self, line: Option<&Line<'_>>) {
        let Some(line) = line else { return };
        let Some(header) = Header::parse(line) else {
            self.add_finding(1, Some(line.seq), Problem::NoHeader);
            return;
        };

        if self.file != Segment::from(line.seq).name {
            self.add_finding(1, Some(line.seq), Problem::Renamed);
        }

        if self.key.is_some_and(|key| key.id() != header.key) {
            self.has_other_key = true;
            self.add_finding(1, Some(line.seq), Problem::OtherKey(header.key.clone()));
        }

        let is_contiguous = header.previous.seq + 1 == line.seq;
        if self.segments == 1 {
            self.from_beginning = header.previous.seq == 0;
            self.check_first_header(&header);
            self.expected = line.seq;
            self.predecessors = vec![header.previous.hash];
        } else if is_contiguous && line.seq > self.expected {
            // The header names the hash of the record before it. The MAC of the header is checked
            // when the line is judged.
            self.report_missing(line.seq, 1);
            self.predecessors = vec![header.previous.hash];
        } else if self.chain != Some(header.chain)
            || (line.seq == self.expected
                && !self.predecessors.is_empty()
                && !self.predecessors.contains(&header.previous.hash))
        {
            self.add_finding(1, Some(line.seq), Problem::Spliced);
            self.predecessors = vec![header.previous.hash];
        }
        self.chain = Some(header.chain);
    }

    /// Checks the header of the first segment: its position, and whether it continues from the
    /// archived records.
    fn check_first_header(&mut self, header: &Header) {
        let before = header.previous;
        let (from, is_other) = match &self.archived {
            None => (1, false),
            Some(archived) => {
                let last = archived.link();
                let is_other = archived.last.chain != header.chain
                    || (before.seq == last.seq && before != last);
                (last.seq + 1, is_other)
            }
        };

        if is_other {
            self.add_finding(1, Some(before.seq + 1), Problem::Spliced);
        }

        if self.range.from.is_none() && before.seq >= from {
            self.add_finding(
                0,
                None,
                Problem::BeginningMissing {
                    from,
                    to: before.seq,
                },
            );
        }
    }

    /// Judges the pending line, if any. `next` is the line after it, if that line is readable.
    fn judge_pending(&mut self, next: Option<&Line<'_>>) {
        let Some(pending) = self.pending.take() else {
            return;
        };

        match Line::parse(&pending.bytes).filter(|_| pending.is_line) {
            Some(line) => self.check_readable(&line, pending.line_number, next),
            None => {
                self.add_finding(pending.line_number, None, Problem::Unreadable);
                // The unreadable line counts as the expected record, unless the next line has that
                // number.
                if next.is_none_or(|next| next.seq != self.expected) {
                    self.expected += 1;
                    self.predecessors.clear();
                }
            }
        }

        self.spare_buffer = pending.bytes;
    }

    /// Returns true if the line has the number `seq` and provably follows one of the predecessors.
    fn is_successor(&self, line: &Line<'_>, seq: u64, predecessors: &[Digest]) -> bool {
        line.seq == seq && self.verdict(line, predecessors).is_proven()
    }

    /// Checks a readable line: accepts it, or classifies it in the order of the module comment.
    fn check_readable(&mut self, line: &Line<'_>, line_number: u64, next: Option<&Line<'_>>) {
        let verdict = self.verdict(line, &self.predecessors);
        if line.seq == self.expected && verdict.is_acceptable() {
            return self.accept(line, line_number);
        }

        // Without this line, the next line would be valid.
        let inserted =
            next.is_some_and(|next| self.is_successor(next, self.expected, &self.predecessors));
        if inserted {
            return self.handle_inserted(line, line_number, &verdict);
        }

        let changed = next.is_some_and(|next| {
            // The next line follows from this line: from the stored hash, or from the hash that is
            // recomputed from the text of the line.
            let recomputed = self
                .predecessors
                .first()
                .map(|before| before.with(line.sealed));
            let hashes: Vec<_> = [Some(line.hash), recomputed]
                .into_iter()
                .flatten()
                .collect();
            self.is_successor(next, self.expected + 1, &hashes)
        });
        if line.seq == self.expected || changed {
            let problem = self.classify(line, &verdict, line.seq == self.expected);
            self.add_finding(line_number, Some(self.expected), problem);
            let recomputed = self
                .predecessors
                .iter()
                .map(|before| before.with(line.sealed));
            self.predecessors = recomputed.chain([line.hash]).collect();
            return self.advance(self.expected, line.hash);
        }

        if line.seq < self.expected {
            return self.handle_late(line, line_number, &verdict);
        }

        let before = self.report_missing(line.seq, line_number);
        self.predecessors = before.into_iter().collect();
        let verdict = self.verdict(line, &self.predecessors);
        if verdict.is_acceptable() {
            return self.accept(line, line_number);
        }

        let problem = self.classify(line, &verdict, true);
        self.add_finding(line_number, Some(line.seq), problem);
        self.predecessors = vec![line.hash];
        self.advance(line.seq, line.hash);
    }

    /// Checks if the line follows from one of the hashes, and if its MAC is valid.
    fn verdict(&self, line: &Line<'_>, predecessors: &[Digest]) -> LineVerdict {
        let follows = predecessors
            .iter()
            .any(|before| before.with(line.sealed) == line.hash);
        let key = self.key.filter(|_| !self.has_other_key);
        LineVerdict {
            follows: (!predecessors.is_empty()).then_some(follows),
            is_mac_valid: key.map(|key| same(&key.line_mac(&line.hash), &line.mac)),
        }
    }

    /// Returns the problem of an invalid line that stands in the place of the expected record:
    /// edited if part of it is original, or else forged.
    fn classify(
        &self,
        line: &Line<'_>,
        verdict: &LineVerdict,
        has_expected_number: bool,
    ) -> Problem {
        let key = self.key.filter(|_| !self.has_other_key);
        let is_text_original = self.predecessors.iter().any(|before| {
            let hash = before.with(line.sealed);
            key.is_none_or(|key| same(&key.line_mac(&hash), &line.mac))
        });
        let is_mac_valid = verdict.is_mac_valid != Some(false);
        match verdict.follows {
            Some(true) if has_expected_number => Problem::Forged,
            // With the key, the hash or the rest of the line is original. Without the key, every
            // change counts as an edit, because nothing can prove a forgery.
            Some(_) if is_mac_valid || is_text_original => Problem::Edited,
            _ => Problem::Forged,
        }
    }

    /// Accepts a valid line.
    fn accept(&mut self, line: &Line<'_>, line_number: u64) {
        for (anchor, found) in &mut self.anchors {
            if anchor.seq == line.seq {
                let hash_matches = anchor.hash == line.hash;
                *found = Some(FoundRecord {
                    file: self.file.clone(),
                    line: line_number,
                    hash_matches,
                });
            }
        }

        if let Some(checkpoint) = self
            .checkpoint
            .filter(|checkpoint| checkpoint.seq == line.seq)
        {
            self.checkpoint_matches = Some(checkpoint.hash == line.hash);
        }
        if matches!(line.event(), Some("start" | "gap")) {
            self.read_log_event(line, line_number);
        }

        self.predecessors.clear();
        self.predecessors.push(line.hash);
        self.advance(line.seq, line.hash);
    }

    /// Advances the state past a record.
    fn advance(&mut self, seq: u64, hash: Digest) {
        self.first.get_or_insert(seq);
        (self.last, self.last_hash) = (seq, hash);
        self.expected = seq.saturating_add(1);
    }

    /// Reads a record about the log: an engine start or a gap.
    fn read_log_event(&mut self, line: &Line<'_>, line_number: u64) {
        #[derive(Deserialize)]
        struct LogEvent {
            #[serde(default)]
            found: String,
            #[serde(default)]
            lost: u64,
        }
        // The hashed bytes are a JSON object without its end.
        let mut object = line.sealed.to_vec();
        object.push(b'}');
        let Ok(event) = serde_json::from_slice::<LogEvent>(&object) else {
            return;
        };

        self.lost = self.lost.saturating_add(event.lost);
        if line.event() == Some("start") {
            self.starts += 1;
            // The names of the sound states: see `FoundSegment::is_sound`.
            if !matches!(&*event.found, "new" | "clean" | "ahead") {
                self.add_finding(
                    line_number,
                    Some(line.seq),
                    Problem::FoundAtStart(event.found),
                );
            }
        }
    }

    /// Reports all records before `seq` as missing, except those whose lines came too early, which
    /// are reported as moved. Returns the hash of the record directly before `seq`, if known.
    fn report_missing(&mut self, seq: u64, line_number: u64) -> Option<Digest> {
        let early: Vec<_> = self
            .early
            .range(self.expected..seq)
            .map(|(seq, early)| (*seq, *early))
            .collect();
        let mut from = self.expected;
        for (moved, (finding, _)) in &early {
            self.early.remove(moved);
            self.report_missing_range(from, *moved, seq, line_number);
            if let Some(Some(finding)) = self.findings.get_mut(*finding) {
                finding.problem = Problem::Moved;
            }
            from = moved + 1;
        }

        self.report_missing_range(from, seq, seq, line_number);
        self.expected = seq;
        early
            .last()
            .filter(|(last, _)| last + 1 == seq)
            .map(|(_, (_, hash))| *hash)
    }

    /// Reports the records `from..until`, if any, as missing before the line of record `seq`.
    fn report_missing_range(&mut self, from: u64, until: u64, seq: u64, line_number: u64) {
        if from < until {
            let to = until - 1;
            let finding = self.add_finding(line_number, Some(seq), Problem::Missing { from, to });
            if let Some(finding) = finding.filter(|_| self.missing.len() < UNMATCHED_MAX) {
                self.missing.push((from, to, finding));
            }
        }
    }

    /// Handles a line whose neighbours follow from each other. Remembers it in `early` if its
    /// record is expected later.
    fn handle_inserted(&mut self, line: &Line<'_>, line_number: u64, verdict: &LineVerdict) {
        if line.seq < self.expected {
            return self.handle_late(line, line_number, verdict);
        }
        let finding = self.add_finding(line_number, Some(line.seq), Problem::Inserted);
        if let Some(finding) =
            finding.filter(|_| line.seq > self.expected && verdict.is_mac_valid != Some(false))
            && self.early.len() < UNMATCHED_MAX
        {
            self.early.insert(line.seq, (finding, line.hash));
        }
    }

    /// Handles a line with a record number lower than the expected one.
    fn handle_late(&mut self, line: &Line<'_>, line_number: u64, verdict: &LineVerdict) {
        let index = self
            .missing
            .iter()
            .position(|(from, to, _)| (*from..=*to).contains(&line.seq));
        let Some(index) = index.filter(|_| verdict.is_mac_valid != Some(false)) else {
            self.add_finding(line_number, Some(line.seq), Problem::Inserted);
            return;
        };

        self.add_finding(line_number, Some(line.seq), Problem::Moved);
        let (from, to, finding) = self.missing.swap_remove(index);
        self.split_missing_range(finding, [(from, line.seq - 1), (line.seq + 1, to)]);
    }

    /// Replaces the finding of a missing range by findings of its two parts, of which each can be
    /// empty.
    fn split_missing_range(&mut self, finding: usize, parts: [(u64, u64); 2]) {
        let Some(whole) = self.findings[finding].take() else {
            return;
        };

        for (from, to) in parts.into_iter().filter(|(from, to)| from <= to) {
            let part = Finding {
                problem: Problem::Missing { from, to },
                ..whole.clone()
            };
            // The first part takes the place of the whole range, which is free even in a full list.
            let index = if self.findings[finding].is_none() {
                self.findings[finding] = Some(part);
                Some(finding)
            } else {
                self.push_finding(part)
            };
            if let Some(index) = index.filter(|_| self.missing.len() < UNMATCHED_MAX) {
                self.missing.push((from, to, index));
            }
        }
    }

    /// Adds a finding in the current file. Returns its index, or `None` if the list is full.
    fn add_finding(&mut self, line: u64, seq: Option<u64>, problem: Problem) -> Option<usize> {
        self.add_finding_in(self.file.clone(), line, seq, problem)
    }

    /// Adds a finding in a file, like [`Self::add_finding`].
    fn add_finding_in(
        &mut self,
        file: String,
        line: u64,
        seq: Option<u64>,
        problem: Problem,
    ) -> Option<usize> {
        self.push_finding(Finding {
            file,
            line,
            seq,
            problem,
        })
    }

    /// Appends a finding. Returns its index, or `None` if the list is full.
    fn push_finding(&mut self, finding: Finding) -> Option<usize> {
        if self.findings.len() >= FINDINGS_MAX {
            self.findings_omitted += 1;
            return None;
        }
        self.findings.push(Some(finding));
        Some(self.findings.len() - 1)
    }

    /// Compares the state with the checkpoint, the anchors and the range, and returns the report.
    pub(super) fn into_report(mut self, checkpoint: Result<Checkpoint, NoteError>) -> Report {
        let range = self.range;
        let checkpoint_result = self.check_checkpoint(checkpoint);
        for (anchor, found) in std::mem::take(&mut self.anchors) {
            match found {
                Some(found) if found.hash_matches => None,
                Some(found) => self.add_finding_in(
                    found.file,
                    found.line,
                    Some(anchor.seq),
                    Problem::AnchorDiffers,
                ),
                None => self.add_finding(0, Some(anchor.seq), Problem::AnchorAbsent),
            };
        }

        let first = self.first.unwrap_or(self.expected);
        if let Some(from) = range.from.filter(|from| *from < first) {
            self.add_finding(
                0,
                None,
                Problem::NotHere {
                    from,
                    to: first - 1,
                },
            );
        }

        if let Some(to) = range.to.filter(|to| *to > self.last) {
            self.add_finding(
                0,
                None,
                Problem::NotHere {
                    from: self.last + 1,
                    to,
                },
            );
        }

        Report {
            keyed: self.key.is_some(),
            segments: self.segments,
            lines: self.lines,
            first,
            last: self.last,
            hash: self.last_hash,
            chain: self.chain.unwrap_or_default(),
            archived: self.archived.map(|archived| archived.last()),
            from_beginning: self.from_beginning,
            lost: self.lost,
            starts: self.starts,
            torn_bytes: self.torn_bytes,
            head: checkpoint_result,
            findings: self.findings.into_iter().flatten().collect(),
            findings_omitted: self.findings_omitted,
        }
    }

    /// Checks that the log reaches the record that the checkpoint names, with the same hash.
    fn check_checkpoint(&mut self, checkpoint: Result<Checkpoint, NoteError>) -> CheckpointResult {
        if self.range.to.is_some() {
            return CheckpointResult::NotChecked;
        }

        let checkpoint = match checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(error) => {
                self.add_finding_in(
                    CHECKPOINT_FILE.into(),
                    0,
                    None,
                    Problem::Checkpoint(error.to_string()),
                );
                return CheckpointResult::Invalid;
            }
        };

        let is_empty = self.first.is_none();
        if checkpoint.seq > self.last && !(is_empty && checkpoint.seq == 0) {
            let from = if is_empty {
                self.expected.max(1)
            } else {
                self.last + 1
            };

            self.add_finding(
                self.line_number,
                None,
                Problem::CutTail {
                    from,
                    to: checkpoint.seq,
                },
            );
            return CheckpointResult::Invalid;
        }

        if self.checkpoint_matches == Some(false)
            || self.chain.is_some_and(|chain| chain != checkpoint.chain)
        {
            self.add_finding_in(
                CHECKPOINT_FILE.into(),
                0,
                Some(checkpoint.seq),
                Problem::HeadDiffers,
            );
            return CheckpointResult::Invalid;
        }
        CheckpointResult::Found {
            behind: self.last - checkpoint.seq,
        }
    }
}
