//! Reads a document ahead of its job, so that idle crypto threads make the key agreements that the
//! job will need.
//!
//! If each field was sealed under its own ephemeral key, opening takes one Diffie-Hellman per
//! field, about 36 us. The walk alone takes less than 1 us per field. A second walk over the same
//! document therefore finds the next envelopes long before the job does.
//!
//! Only crypto threads without a queued slice do this, in steps of about one agreement. Another
//! request therefore waits for at most one step. The tenant of the request pays for the agreements
//! that the job uses.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

use bytes::Bytes;
use sealwire_crypto::{AgreementQueue, looks_like_binary, looks_like_text};
use sealwire_msgpack::Token;
use sealwire_payload::{Budget, Field, Outcome, Path, Progress, Transform, Walk};

use crate::jobs::scheduler::{HelpStep, RequestHelp};

/// Limits of one step of the walk: about the time of one agreement. A string above `bytes_max` is
/// still scanned in one step, as in a slice of a job.
const STEP: Budget = Budget {
    fields_max: 32,
    bytes_max: 16 << 10,
};

/// Number of queued agreements up to which helpers read on. Helpers make the last queued agreement
/// only when this many are queued or the document has no more.
const WAITING_MIN: usize = 32;

/// The walk ahead of one job.
pub struct ReadAhead {
    payload: Bytes,
    agreements: Arc<AgreementQueue>,
    scan: Mutex<Scan>,
    /// True once the job has ended. Helpers hold an `Arc` during a step. Without this flag, helpers
    /// that overlap could go on with the work of a job that has ended.
    has_ended: AtomicBool,
}

struct Scan {
    walk: Walk,
    /// True at the end of the document or at a malformed token, which the job reports.
    is_over: bool,
}

impl ReadAhead {
    /// Creates a scan that starts at the position of the job's `walk`.
    pub fn new(payload: Bytes, walk: &Walk, agreements: Arc<AgreementQueue>) -> Self {
        let scan = Scan {
            walk: walk.clone().without_output(),
            is_over: false,
        };
        Self {
            payload,
            agreements,
            scan: Mutex::new(scan),
            has_ended: AtomicBool::new(false),
        }
    }

    /// Ends the help, because the job has ended.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Skips the fields that the job has passed. Returns false if helpers have nothing to do.
    /// Returns true without skipping while a helper reads.
    pub fn catch_up_with(&self, walk: &Walk) -> bool {
        let mut scan = match self.scan.try_lock() {
            Ok(scan) => scan,
            Err(TryLockError::WouldBlock) => return true,
            Err(TryLockError::Poisoned(_)) => return false,
        };
        if !scan.is_over && scan.walk.position() < walk.position() {
            scan.walk = walk.clone().without_output();
            self.agreements.clear();
        }
        !scan.is_over && self.agreements.has_room() || self.agreements.waiting() > 0
    }

    /// Returns the number of key agreements that helpers started, including those whose fields were
    /// never opened.
    pub fn agreements_started(&self) -> u64 {
        self.agreements.started()
    }

    /// Adds envelopes to the queue, unless the document has no more or the queue is full. One
    /// thread at a time reads. Another thread does not wait for it, because a slice can need that
    /// thread.
    fn read_on(&self) -> HelpStep {
        let mut scan = match self.scan.try_lock() {
            Ok(scan) => scan,
            Err(TryLockError::WouldBlock) => return HelpStep::Busy,
            // A walk that panicked reads no further.
            Err(TryLockError::Poisoned(_)) => return HelpStep::Nothing,
        };

        if scan.is_over || !self.agreements.has_room() {
            return HelpStep::Nothing;
        }

        let mut envelopes = Envelopes(&self.agreements);
        let progress = scan
            .walk
            .advance(&self.payload, &mut Vec::new(), &mut envelopes, STEP);
        scan.is_over = progress != Ok(Progress::More);
        HelpStep::Done
    }
}

impl RequestHelp for ReadAhead {
    fn step(&self) -> HelpStep {
        if self.has_ended.load(Ordering::Relaxed) {
            return HelpStep::Nothing;
        }

        // Reading comes first. With few agreements in the queue, the last one is just ahead of the
        // job, and the job would reach it before it is made.
        let must_read = self.agreements.waiting() < WAITING_MIN;
        let step = if must_read {
            self.read_on()
        } else {
            HelpStep::Nothing
        };

        if step == HelpStep::Done || self.agreements.agree_next() {
            HelpStep::Done
        } else {
            step
        }
    }
}

/// A transform that queues the agreement of each envelope and changes no field.
struct Envelopes<'a>(&'a AgreementQueue);

impl Transform for Envelopes<'_> {
    type Error = Infallible;

    fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        match field.token {
            Token::Str(text) if looks_like_text(text) => self.0.add_text(text),
            Token::Bin(bytes) if looks_like_binary(bytes) => self.0.add_binary(bytes),
            _ => (),
        }
        Ok(Outcome::Keep)
    }

    fn pauses(&mut self) -> bool {
        !self.0.has_room()
    }

    fn failed(&mut self, _: &Path<'_>, never: Infallible) -> Result<(), Infallible> {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sealwire_crypto::{
        AppId, AppKeys, Curve, Datatype, Encoding, KeyPair, KeyScope, KeyState, KeyVersion, Opener,
        Sealer,
    };
    use sealwire_msgpack::write;
    use sealwire_payload::{Containers, Selection, WalkLimits};

    use super::*;

    const FIELDS: usize = 200;

    struct Document {
        keys: Arc<AppKeys>,
        payload: Bytes,
    }

    /// An array of text envelopes, each under a key of its own.
    fn document() -> Document {
        let version = KeyVersion::new(
            1,
            KeyState::Active,
            KeyPair::from_scalar(Curve::P256, &[7; 32]).unwrap(),
        );
        let keys = Arc::new(AppKeys::new(AppId::new("shop").unwrap(), vec![version]).unwrap());
        let version = Arc::clone(keys.newest(sealwire_crypto::Suite::P256).unwrap());
        let mut sealer =
            Sealer::new(keys.app(), version, KeyScope::Field, Encoding::Text, b"").unwrap();
        let mut payload = Vec::new();
        write::array_len(&mut payload, FIELDS as u32);
        for field in 0..FIELDS {
            let mut text = Vec::new();
            sealer
                .seal(Datatype::String, field.to_string().as_bytes(), &mut text)
                .unwrap();
            write::str(&mut payload, std::str::from_utf8(&text).unwrap());
        }
        Document {
            keys,
            payload: payload.into(),
        }
    }

    /// Opens each text field, as a job does.
    struct Opens<'a>(&'a mut Opener);

    impl Transform for Opens<'_> {
        type Error = Infallible;

        fn field(&mut self, field: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Infallible> {
            let Token::Str(text) = field.token else {
                panic!("only texts")
            };
            assert!(self.0.open_text(text).is_ok());
            Ok(Outcome::Keep)
        }

        fn failed(&mut self, _: &Path<'_>, never: Infallible) -> Result<(), Infallible> {
            match never {}
        }
    }

    fn walk(paths: &[&str]) -> Walk {
        let selection = Selection::parse(paths.iter().copied()).unwrap();
        Walk::new(
            Arc::new(selection),
            Containers::Descend,
            WalkLimits::default(),
        )
    }

    fn advance(walk: &mut Walk, document: &Document, opener: &mut Opener, fields: usize) {
        let budget = Budget {
            fields_max: fields,
            ..Budget::UNLIMITED
        };
        walk.advance(
            &document.payload,
            &mut Vec::new(),
            &mut Opens(opener),
            budget,
        )
        .unwrap();
    }

    /// Steps until there is nothing to do. Returns their number.
    fn help(ahead: &ReadAhead) -> usize {
        (0..10 * FIELDS)
            .take_while(|_| ahead.step() == HelpStep::Done)
            .count()
    }

    #[test]
    fn agreements_ahead_are_not_made_again() {
        // Fields of the first slice, and agreements that are left to the job if it always waits for
        // help.
        for (first, paths, own) in [
            (2, &["$[*]"][..], 2),
            (150, &["$[*]"], 150),
            (1, &["$[5]", "$[9]", "$[190]"], 1),
        ] {
            let document = document();
            let mut opener = Opener::new(Arc::clone(&document.keys), b"");
            let mut job = walk(paths);
            advance(&mut job, &document, &mut opener, first);
            let ahead = ReadAhead::new(document.payload.clone(), &job, opener.share_agreements());
            while help(&ahead) > 0 {
                advance(&mut job, &document, &mut opener, 16);
                ahead.catch_up_with(&job);
            }
            advance(&mut job, &document, &mut opener, usize::MAX);
            let selected = if paths == ["$[*]"] { FIELDS } else { 3 };
            assert_eq!(
                (job.fields(), opener.agreements()),
                (selected, own),
                "{paths:?}"
            );
            assert_eq!(opener.agreements_ahead(), selected - own, "{paths:?}");
            assert_eq!(
                ahead.agreements_started(),
                (selected - own) as u64,
                "{paths:?}"
            );
            assert!(!ahead.catch_up_with(&job), "nothing is left");
        }
    }

    #[test]
    fn a_job_that_overtook_its_help_is_followed() {
        let document = document();
        let mut opener = Opener::new(Arc::clone(&document.keys), b"");
        let mut job = walk(&["$[*]"]);
        advance(&mut job, &document, &mut opener, 2);
        let ahead = ReadAhead::new(document.payload.clone(), &job, opener.share_agreements());
        // Steps queue fields from the third on. The job passes them all before another step.
        assert_eq!(ahead.step(), HelpStep::Done);
        advance(&mut job, &document, &mut opener, 148);
        assert!(ahead.catch_up_with(&job));
        help(&ahead);
        advance(&mut job, &document, &mut opener, usize::MAX);
        assert_eq!((opener.agreements(), opener.agreements_ahead()), (150, 50));
    }

    #[test]
    fn a_thread_does_not_wait_for_another_that_reads() {
        let document = document();
        let mut opener = Opener::new(Arc::clone(&document.keys), b"");
        let ahead = ReadAhead::new(
            document.payload.clone(),
            &walk(&["$[*]"]),
            opener.share_agreements(),
        );
        let reading = ahead.scan.lock().unwrap();
        assert_eq!(
            ahead.step(),
            HelpStep::Busy,
            "nothing is queued that this thread could do"
        );
        drop(reading);
        assert_eq!(ahead.step(), HelpStep::Done);
        let _reading = ahead.scan.lock().unwrap();
        assert_eq!(
            (ahead.step(), ahead.agreements_started()),
            (HelpStep::Done, 1),
            "it agrees meanwhile"
        );
    }

    #[test]
    fn the_end_of_the_job_ends_the_help() {
        let document = document();
        let mut opener = Opener::new(Arc::clone(&document.keys), b"");
        let ahead = ReadAhead::new(
            document.payload.clone(),
            &walk(&["$[*]"]),
            opener.share_agreements(),
        );
        assert_eq!([ahead.step(), ahead.step()], [HelpStep::Done; 2]);
        ahead.end();
        assert_eq!(
            (ahead.step(), ahead.agreements_started()),
            (HelpStep::Nothing, 1)
        );
    }

    #[test]
    fn a_malformed_document_ends_the_help() {
        let document = document();
        let mut opener = Opener::new(Arc::clone(&document.keys), b"");
        let job = walk(&["$[*]"]);
        let cut = document.payload.slice(..document.payload.len() / 2);
        let ahead = ReadAhead::new(cut, &job, opener.share_agreements());
        let steps = help(&ahead);
        assert!(steps > 0 && steps < FIELDS, "{steps}");
        assert!(!ahead.catch_up_with(&job) && ahead.step() == HelpStep::Nothing);
    }
}
