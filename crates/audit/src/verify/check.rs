//! Checks one line after another against the chain. A line that does not fit is compared with its neighbours, to
//! determine the kind and location of the problem.
//!
//! Each line is judged when the next one is known. One that is wrong is taken for changed where the next one follows
//! from its hash, for inserted where the next one follows from what was before it, else for what its number says.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Anchor, CheckpointStatus, FINDINGS_MAX, Finding, Problem, Range, Report};
use crate::chain::{Checkpoint, Line};
use crate::checkpoint::CHECKPOINT_FILE;
use crate::digest::Digest;
use crate::files::Segment;
use crate::key::{AuditKey, same};
use crate::note::NoteError;
use crate::segment::{Header, RawRecord};
use crate::statement::{ARCHIVED_FILE, Archived};

/// Maximum number of early lines, and of missing ranges, that are kept to match them with later lines.
const OPEN_MAX: usize = 10_000;

/// The verification state between two lines.
pub(super) struct Check<'a> {
    key: Option<&'a AuditKey>,
    anchors: Vec<(Anchor, Option<FoundRecord>)>,
    named: Option<Anchor>,
    named_is: Option<bool>,
    /// The archive statement. Records up to its last record can be absent.
    archived: Option<Archived>,
    range: Range,
    file: String,
    number: u64,
    /// The previous line, which is judged when the next line is known.
    held: Option<Held>,
    spare: Vec<u8>,
    /// The number of the next expected record.
    expected: u64,
    /// Hashes that it can follow; empty if unknown.
    before: Vec<Digest>,
    chain: Option<[u8; 16]>,
    /// True if the MACs of this segment cannot be checked.
    other_key: bool,
    /// Lines that came too early, by record number: index of their finding, and hash.
    early: BTreeMap<u64, (usize, Digest)>,
    /// Missing ranges so far: first record, last record, index of the finding.
    missing: Vec<(u64, u64, usize)>,
    findings: Vec<Option<Finding>>,
    omitted: u64,
    segments: u64,
    lines: u64,
    first: Option<u64>,
    last: u64,
    hash: Digest,
    from_beginning: bool,
    lost: u64,
    starts: u64,
    torn_bytes: u64,
    end: u64,
}

/// The position of an anchor's record, and whether the hash matches.
#[derive(Clone)]
struct FoundRecord {
    file: String,
    line: u64,
    is_same: bool,
}

struct Held {
    bytes: Vec<u8>,
    /// True if the line has the audit format.
    is_line: bool,
    number: u64,
}

/// The relation of a line to the previous line.
struct SegmentVerdict {
    /// True if the line follows from the previous hash. `None`: the previous hash is unknown.
    follows: Option<bool>,
    /// True if the MAC is valid. `None`: there is no key to check it.
    is_sealed: Option<bool>,
}

impl SegmentVerdict {
    fn is_good(&self) -> bool {
        self.follows != Some(false) && self.is_sealed != Some(false)
    }

    /// Returns true if the line is valid and its predecessor is known.
    fn is_proven(&self) -> bool {
        self.follows == Some(true) && self.is_sealed != Some(false)
    }
}

impl<'a> Check<'a> {
    pub(super) fn new(
        key: Option<&'a AuditKey>,
        anchors: &[Anchor],
        named: Option<Anchor>,
        archived: Result<Archived, NoteError>,
        range: Range,
    ) -> Self {
        let mut check = Self {
            key,
            anchors: anchors.iter().map(|anchor| (*anchor, None)).collect(),
            named,
            named_is: None,
            archived: None,
            range,
            file: String::new(),
            number: 0,
            held: None,
            spare: Vec::new(),
            expected: 0,
            before: Vec::new(),
            chain: None,
            other_key: false,
            early: BTreeMap::new(),
            missing: Vec::new(),
            findings: Vec::new(),
            omitted: 0,
            segments: 0,
            lines: 0,
            first: None,
            last: 0,
            hash: Digest([0; 32]),
            from_beginning: false,
            lost: 0,
            starts: 0,
            torn_bytes: 0,
            end: 0,
        };
        match archived {
            Ok(archived) => check.follow(archived),
            Err(NoteError::Missing) => (),
            Err(error) => drop(check.find_in(ARCHIVED_FILE.into(), 0, None, Problem::Archived(error.to_string()))),
        }
        check
    }

    /// Applies the archive statement, which determines the first record that must be here.
    fn follow(&mut self, archived: Archived) {
        let last = archived.last();
        if archived.findings > 0 {
            let problem = Problem::ArchivedFindings(archived.findings);
            self.find_in(ARCHIVED_FILE.into(), 0, Some(last.seq), problem);
        }
        for (anchor, found) in self.anchors.iter_mut().filter(|(anchor, _)| anchor.seq == last.seq) {
            let is_same = anchor.hash == last.hash;
            *found = Some(FoundRecord { file: ARCHIVED_FILE.into(), line: 0, is_same });
        }
        self.expected = last.seq + 1;
        self.archived = Some(archived);
    }

    /// Starts the next file.
    pub(super) fn begin(&mut self, segment: &Segment) {
        self.file.clone_from(&segment.name);
        (self.number, self.end, self.other_key) = (0, 0, false);
        if self.segments == 0 {
            self.expected = segment.first;
        }
        self.segments += 1;
    }

    /// Processes the next line.
    pub(super) fn line(&mut self, raw: &RawRecord<'_>) {
        let began = std::mem::replace(&mut self.end, raw.end);
        self.number += 1;
        let line = raw.line();
        if !raw.is_whole {
            self.judge_held(None);
            self.torn_bytes = raw.end - began;
            return;
        }
        self.lines += 1;
        self.judge_held(line.as_ref());
        if self.number == 1 {
            self.header(line.as_ref());
        }
        let mut bytes = std::mem::take(&mut self.spare);
        bytes.clear();
        bytes.extend_from_slice(raw.bytes());
        self.held = Some(Held { bytes, is_line: line.is_some(), number: self.number });
    }

    /// Finishes a file. Only the last file can end with an incomplete line.
    pub(super) fn end(&mut self, is_last: bool) {
        self.judge_held(None);
        let torn = self.torn_bytes > 0;
        if torn && !is_last {
            self.torn_bytes = 0;
            self.find(self.number, None, Problem::Unreadable);
        }
    }

    /// Checks the first line of a file.
    fn header(&mut self, line: Option<&Line<'_>>) {
        let Some(line) = line else { return };
        let Some(header) = Header::parse(line) else {
            self.find(1, Some(line.seq), Problem::NoHeader);
            return;
        };
        if self.file != Segment::from(line.seq).name {
            self.find(1, Some(line.seq), Problem::Renamed);
        }
        if self.key.is_some_and(|key| key.id() != header.key) {
            self.other_key = true;
            self.find(1, Some(line.seq), Problem::OtherKey(header.key.clone()));
        }
        let goes_on = header.previous.seq + 1 == line.seq;
        if self.segments == 1 {
            self.from_beginning = header.previous.seq == 0;
            self.beginning(&header);
            self.expected = line.seq;
            self.before = vec![header.previous.hash];
        } else if goes_on && line.seq > self.expected {
            // The header names the record before it, and the MAC authenticates the header.
            self.miss(line.seq, 1);
            self.before = vec![header.previous.hash];
        } else if self.chain != Some(header.chain)
            || (line.seq == self.expected && !self.before.is_empty() && !self.before.contains(&header.previous.hash))
        {
            self.find(1, Some(line.seq), Problem::Spliced);
            self.before = vec![header.previous.hash];
        }
        self.chain = Some(header.chain);
    }

    /// Checks the very first line: its position, and whether it continues from the archived records.
    fn beginning(&mut self, header: &Header) {
        let before = header.previous;
        let (from, is_other) = match &self.archived {
            None => (1, false),
            Some(archived) => {
                let last = archived.link();
                let is_other = archived.last.chain != header.chain || (before.seq == last.seq && before != last);
                (last.seq + 1, is_other)
            }
        };
        if is_other {
            self.find(1, Some(before.seq + 1), Problem::Spliced);
        }
        if self.range.from.is_none() && before.seq >= from {
            self.find(0, None, Problem::BeginningMissing { from, to: before.seq });
        }
    }

    fn judge_held(&mut self, next: Option<&Line<'_>>) {
        let Some(held) = self.held.take() else { return };
        match Line::parse(&held.bytes).filter(|_| held.is_line) {
            Some(line) => self.judge(&line, held.number, next),
            None => {
                self.find(held.number, None, Problem::Unreadable);
                // If the next line does not have the expected number, the unreadable line was a record.
                if next.is_none_or(|next| next.seq != self.expected) {
                    self.expected += 1;
                    self.before.clear();
                }
            }
        }
        self.spare = held.bytes;
    }

    fn judge(&mut self, line: &Line<'_>, number: u64, next: Option<&Line<'_>>) {
        let verdict = self.verdict(line, &self.before);
        if line.seq == self.expected && verdict.is_good() {
            return self.accept(line, number);
        }
        let is_next = |this: &Self, line: &Line<'_>, seq, before: &[Digest]| {
            line.seq == seq && this.verdict(line, before).is_proven()
        };
        let inserted = next.is_some_and(|next| is_next(self, next, self.expected, &self.before));
        if inserted {
            return self.stray(line, number, &verdict);
        }
        let changed = next.is_some_and(|next| {
            let own = self.before.first().map(|before| before.with(line.sealed));
            let after: Vec<_> = [Some(line.hash), own].into_iter().flatten().collect();
            is_next(self, next, self.expected + 1, &after)
        });
        if line.seq == self.expected || changed {
            let problem = self.wrong(line, &verdict, line.seq == self.expected);
            self.find(number, Some(self.expected), problem);
            let own = self.before.iter().map(|before| before.with(line.sealed));
            self.before = own.chain([line.hash]).collect();
            return self.step(self.expected, line.hash);
        }
        if line.seq < self.expected {
            return self.late(line, number, &verdict);
        }
        let before = self.miss(line.seq, number);
        self.before = before.into_iter().collect();
        let verdict = self.verdict(line, &self.before);
        if verdict.is_good() {
            return self.accept(line, number);
        }
        let problem = self.wrong(line, &verdict, true);
        self.find(number, Some(line.seq), problem);
        self.before = vec![line.hash];
        self.step(line.seq, line.hash);
    }

    fn verdict(&self, line: &Line<'_>, before: &[Digest]) -> SegmentVerdict {
        let follows = before.iter().any(|before| before.with(line.sealed) == line.hash);
        let key = self.key.filter(|_| !self.other_key);
        SegmentVerdict {
            follows: (!before.is_empty()).then_some(follows),
            is_sealed: key.map(|key| same(&key.line_mac(&line.hash), &line.mac)),
        }
    }

    /// Returns the problem of a line at its right position.
    fn wrong(&self, line: &Line<'_>, verdict: &SegmentVerdict, is_numbered: bool) -> Problem {
        let key = self.key.filter(|_| !self.other_key);
        let vouched = |hash: &Digest| key.is_none_or(|key| same(&key.line_mac(hash), &line.mac));
        let own = self.before.iter().any(|before| vouched(&before.with(line.sealed)));
        let sealed = verdict.is_sealed != Some(false);
        match verdict.follows {
            Some(true) if is_numbered => Problem::Forged,
            // Either the hash is the original hash, or the rest of the line is the original text.
            Some(_) if sealed || own => Problem::Edited,
            _ => Problem::Forged,
        }
    }

    /// Accepts a valid line.
    fn accept(&mut self, line: &Line<'_>, number: u64) {
        for (anchor, found) in &mut self.anchors {
            if anchor.seq == line.seq {
                let is_same = anchor.hash == line.hash;
                *found = Some(FoundRecord { file: self.file.clone(), line: number, is_same });
            }
        }
        if let Some(named) = self.named.filter(|named| named.seq == line.seq) {
            self.named_is = Some(named.hash == line.hash);
        }
        if matches!(line.event(), Some("start" | "gap")) {
            self.told(line, number);
        }
        self.before.clear();
        self.before.push(line.hash);
        self.step(line.seq, line.hash);
    }

    fn step(&mut self, seq: u64, hash: Digest) {
        self.first.get_or_insert(seq);
        (self.last, self.hash) = (seq, hash);
        self.expected = seq.saturating_add(1);
    }

    /// Takes in a record about the trail itself.
    fn told(&mut self, line: &Line<'_>, number: u64) {
        #[derive(Deserialize)]
        struct Told {
            #[serde(default)]
            found: String,
            #[serde(default)]
            lost: u64,
        }
        let mut object = line.sealed.to_vec();
        object.push(b'}');
        let Ok(told) = serde_json::from_slice::<Told>(&object) else { return };
        self.lost = self.lost.saturating_add(told.lost);
        if line.event() == Some("start") {
            self.starts += 1;
            if !matches!(&*told.found, "new" | "clean" | "ahead") {
                self.find(number, Some(line.seq), Problem::FoundAtStart(told.found));
            }
        }
    }

    /// Reports all records before `seq` as missing, except lines that came too early. Returns the hash of the record
    /// directly before `seq`, if known.
    fn miss(&mut self, seq: u64, number: u64) -> Option<Digest> {
        let early: Vec<_> = self.early.range(self.expected..seq).map(|(seq, early)| (*seq, *early)).collect();
        let mut from = self.expected;
        for (moved, (finding, _)) in &early {
            self.early.remove(moved);
            self.missing_range(from, *moved, seq, number);
            if let Some(Some(finding)) = self.findings.get_mut(*finding) {
                finding.problem = Problem::Moved;
            }
            from = moved + 1;
        }
        self.missing_range(from, seq, seq, number);
        self.expected = seq;
        early.last().filter(|(last, _)| last + 1 == seq).map(|(_, (_, hash))| *hash)
    }

    /// Reports the records from `from` to before `until` as missing before a line.
    fn missing_range(&mut self, from: u64, until: u64, seq: u64, number: u64) {
        if from < until {
            let to = until - 1;
            let finding = self.find(number, Some(seq), Problem::Missing { from, to });
            if let Some(finding) = finding.filter(|_| self.missing.len() < OPEN_MAX) {
                self.missing.push((from, to, finding));
            }
        }
    }

    /// Handles a line that precedes the expected record.
    fn stray(&mut self, line: &Line<'_>, number: u64, verdict: &SegmentVerdict) {
        if line.seq < self.expected {
            return self.late(line, number, verdict);
        }
        let finding = self.find(number, Some(line.seq), Problem::Inserted);
        if let Some(finding) = finding.filter(|_| line.seq > self.expected && verdict.is_sealed != Some(false))
            && self.early.len() < OPEN_MAX
        {
            self.early.insert(line.seq, (finding, line.hash));
        }
    }

    /// Handles a line with a record number lower than the expected one.
    fn late(&mut self, line: &Line<'_>, number: u64, verdict: &SegmentVerdict) {
        let open = self.missing.iter().position(|(from, to, _)| (*from..=*to).contains(&line.seq));
        let Some(open) = open.filter(|_| verdict.is_sealed != Some(false)) else {
            self.find(number, Some(line.seq), Problem::Inserted);
            return;
        };
        self.find(number, Some(line.seq), Problem::Moved);
        let (from, to, finding) = self.missing.swap_remove(open);
        let rest = [(from, line.seq - 1), (line.seq + 1, to)].into_iter().filter(|(from, to)| from <= to);
        let told = self.findings[finding].take();
        for (from, to) in rest {
            let Some(mut told) = told.clone() else { continue };
            told.problem = Problem::Missing { from, to };
            self.missing.push((from, to, self.findings.len()));
            self.findings.push(Some(told));
        }
    }

    /// Adds a finding. Returns its index, if it is listed.
    fn find(&mut self, line: u64, seq: Option<u64>, problem: Problem) -> Option<usize> {
        self.find_in(self.file.clone(), line, seq, problem)
    }

    fn find_in(&mut self, file: String, line: u64, seq: Option<u64>, problem: Problem) -> Option<usize> {
        if self.findings.len() >= FINDINGS_MAX {
            self.omitted += 1;
            return None;
        }
        self.findings.push(Some(Finding { file, line, seq, problem }));
        Some(self.findings.len() - 1)
    }

    /// Returns the report.
    pub(super) fn report(mut self, head: Result<Checkpoint, NoteError>, segments: usize) -> Report {
        let range = self.range;
        let seen = self.head(head);
        for (anchor, found) in std::mem::take(&mut self.anchors) {
            match found {
                Some(found) if found.is_same => None,
                Some(found) => self.find_in(found.file, found.line, Some(anchor.seq), Problem::AnchorDiffers),
                None => self.find(0, Some(anchor.seq), Problem::AnchorAbsent),
            };
        }
        let first = self.first.unwrap_or(self.expected);
        if let Some(from) = range.from.filter(|from| *from < first) {
            self.find(0, None, Problem::NotHere { from, to: first - 1 });
        }
        if let Some(to) = range.to.filter(|to| *to > self.last) {
            self.find(0, None, Problem::NotHere { from: self.last + 1, to });
        }
        Report {
            keyed: self.key.is_some(),
            segments,
            lines: self.lines,
            first,
            last: self.last,
            hash: self.hash,
            chain: self.chain.unwrap_or_default(),
            archived: self.archived.map(|archived| archived.last()),
            from_beginning: self.from_beginning,
            lost: self.lost,
            starts: self.starts,
            torn_bytes: self.torn_bytes,
            head: seen,
            findings: self.findings.into_iter().flatten().collect(),
            findings_omitted: self.omitted,
        }
    }

    fn head(&mut self, head: Result<Checkpoint, NoteError>) -> CheckpointStatus {
        if self.range.to.is_some() {
            return CheckpointStatus::NotAsked;
        }
        let head = match head {
            Ok(head) => head,
            Err(error) => {
                self.find_in(CHECKPOINT_FILE.into(), 0, None, Problem::Checkpoint(error.to_string()));
                return CheckpointStatus::Bad;
            }
        };
        let is_empty = self.first.is_none();
        if head.seq > self.last && !(is_empty && head.seq == 0) {
            let from = if is_empty { self.expected.max(1) } else { self.last + 1 };
            self.find(self.number, None, Problem::CutTail { from, to: head.seq });
            return CheckpointStatus::Bad;
        }
        if self.named_is == Some(false) || self.chain.is_some_and(|chain| chain != head.chain) {
            self.find_in(CHECKPOINT_FILE.into(), 0, Some(head.seq), Problem::HeadDiffers);
            return CheckpointStatus::Bad;
        }
        CheckpointStatus::Named { behind: self.last - head.seq }
    }
}
