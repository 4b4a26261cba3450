//! An engine with the real masking functions in this process, without the RPC, and a database to
//! mask.

#![allow(dead_code, reason = "the example `measure` uses only a part")]

#[path = "common/shop.rs"]
pub(crate) mod shop;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sealwire_data::mask_job::{Column, Engine, EngineError, Progress};
use sealwire_mask::{MaskSecret, Masks, Rules, Value};
use sealwire_msgpack::TokenReader;
use tokio::sync::watch;
use zeroize::Zeroizing;

/// An engine that masks in this process.
pub(crate) struct Local {
    masks: Masks,
    values: AtomicUsize,
    /// Number of values after which requests fail.
    fails_after: usize,
    stall: Option<Stall>,
}

/// Blocks requests after the job has masked a record.
struct Stall {
    progress: Arc<Progress>,
    has_resumed: watch::Sender<bool>,
}

impl Local {
    pub(crate) fn new(rules: &Rules) -> Arc<Self> {
        Self::limited(rules, usize::MAX, None)
    }

    /// Creates an engine that fails midway: every request beyond a number of values is an error.
    pub(crate) fn failing(rules: &Rules, after: usize) -> Arc<Self> {
        Self::limited(rules, after, None)
    }

    /// Creates an engine that stalls midway: after the job has masked a record, every request waits
    /// for [`Self::resume`]. A job larger than its chunks in flight cannot complete before that,
    /// regardless of speed.
    pub(crate) fn stalling(rules: &Rules, progress: &Arc<Progress>) -> Arc<Self> {
        let stall = Stall {
            progress: Arc::clone(progress),
            has_resumed: watch::Sender::new(false),
        };
        Self::limited(rules, usize::MAX, Some(stall))
    }

    fn limited(rules: &Rules, fails_after: usize, stall: Option<Stall>) -> Arc<Self> {
        let masks = Masks::new(rules, &MaskSecret::new(Zeroizing::new([7; 32])));
        Arc::new(Self {
            masks,
            values: AtomicUsize::new(0),
            fails_after,
            stall,
        })
    }

    pub(crate) fn resume(&self) {
        self.stall
            .as_ref()
            .expect("this engine stalls")
            .has_resumed
            .send_replace(true);
    }

    /// Masks a JSON document as the engine does for a request. Returns the document without blanks.
    pub(crate) fn document(&self, json: &str) -> Result<String, String> {
        let limits = sealwire_payload::WalkLimits::default();
        let input = sealwire_payload::json::to_msgpack(json.as_bytes(), limits)
            .map_err(|error| error.to_string())?;
        let selection = Arc::clone(self.masks.rules().selection());
        let mut walk =
            sealwire_payload::Walk::new(selection, sealwire_payload::Containers::Descend, limits);
        let mut out = Vec::new();
        let mut text = Vec::new();
        let mut masking = sealwire_mask::Masking::new(&self.masks);
        walk.advance(
            &input,
            &mut out,
            &mut masking,
            sealwire_payload::Budget::UNLIMITED,
        )
        .map_err(|error| error.to_string())?;
        sealwire_payload::json::from_msgpack(&out, &mut text, false, limits)
            .map_err(|error| error.to_string())?;
        Ok(String::from_utf8(text).expect("UTF-8"))
    }

    fn answer(&self, at: usize, column: &Column) -> Result<Vec<u8>, EngineError> {
        let mut values = TokenReader::new(&column.values);
        let mut subjects = column.subjects.as_deref().map(TokenReader::new);
        let mut out = Vec::with_capacity(column.values.len());
        for index in 0..column.count {
            let value = Value::of(values.token().expect("a value")).expect("a scalar");
            let subject = subjects
                .as_mut()
                .map(|it| Value::of(it.token().expect("a subject")).expect("a scalar"));
            let masked = self.masks.apply(column.rule, value, subject, &mut out);
            masked.map_err(|unfit| EngineError::Unfit {
                column: at,
                value: index,
                why: unfit.to_string(),
            })?;
        }
        assert!(values.is_at_end());
        Ok(out)
    }
}

impl Engine for Local {
    async fn mask(&self, columns: Vec<Column>) -> Result<Vec<Vec<u8>>, EngineError> {
        let count: usize = columns.iter().map(|column| column.count).sum();
        if self.values.fetch_add(count, Ordering::Relaxed) + count > self.fails_after {
            return Err(EngineError::Failed("the engine is gone".to_owned()));
        }
        if let Some(stall) = self
            .stall
            .as_ref()
            .filter(|stall| stall.progress.snapshot().records > 0)
        {
            let resumed = stall
                .has_resumed
                .subscribe()
                .wait_for(|has_resumed| *has_resumed)
                .await
                .map(drop);
            resumed.expect("the sender lives as long as the engine");
        }
        tokio::task::block_in_place(|| {
            columns
                .iter()
                .enumerate()
                .map(|(at, column)| self.answer(at, column))
                .collect()
        })
    }
}

/// Waits until a job has masked a record.
pub(crate) async fn some_records(progress: &Progress) {
    while progress.snapshot().records == 0 {
        tokio::task::yield_now().await;
    }
}

pub(crate) fn rules(text: &str) -> Arc<Rules> {
    Arc::new(Rules::from_toml(text).expect("rules"))
}
