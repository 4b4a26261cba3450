//! Properties that every masking job must have, regardless of the format.

use std::sync::{Arc, LazyLock};

use sealwire_data::mask_job::fuzzing::Masked;
use sealwire_data::mask_job::{Column, JobError, Limits};
use sealwire_mask::Rules;

/// The masked values that a simulated engine returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MaskChoice {
    /// Returns each value unchanged.
    Same,
    /// Returns text that every format must quote or escape.
    Text,
    /// Returns an integer.
    Integer,
    /// Returns nil.
    Nil,
}

impl MaskChoice {
    /// Selects by a setting.
    pub(crate) fn of(setting: u8) -> Self {
        [Self::Same, Self::Text, Self::Integer, Self::Nil][usize::from(setting % 4)]
    }

    /// Returns the masked values for a column.
    pub(crate) fn mask(self, column: &Column) -> Vec<u8> {
        match self {
            Self::Same => column.values.clone(),
            Self::Text => b"\xa8\",\\\t\n\xc3\xa9;".repeat(column.count),
            Self::Integer => vec![7; column.count],
            Self::Nil => vec![0xc0; column.count],
        }
    }
}

/// Rules to select from.
pub(crate) struct Choice(Vec<Arc<Rules>>);

impl Choice {
    /// Parses the rules.
    pub(crate) fn new(texts: &[&str]) -> Self {
        Self(
            texts
                .iter()
                .map(|text| Arc::new(Rules::from_toml(text).expect("rules")))
                .collect(),
        )
    }

    /// Selects by a setting.
    pub(crate) fn of(&self, setting: u8) -> &Arc<Rules> {
        &self.0[usize::from(setting) % self.0.len()]
    }
}

/// Rules without any field.
pub(crate) static NOTHING: LazyLock<Arc<Rules>> =
    LazyLock::new(|| Arc::new(Rules::from_toml("unknown = \"keep\"\n").expect("rules")));

/// Runs a job on the whole text and in chunks, compares both outputs, and returns the output. With
/// `is_fixed`, masking the output again with the same masked values must not change it.
pub(crate) fn check(
    text: &[u8],
    (chunk_bytes, answer, is_fixed): (u8, MaskChoice, bool),
    job: impl Fn(&[u8], Limits, &mut dyn FnMut(&Column) -> Vec<u8>) -> Result<Masked, JobError>,
) -> Option<Masked> {
    let run = |text: &[u8], chunk_bytes, batch_values_max| {
        let limits = Limits {
            chunk_bytes,
            batch_values_max,
            workers: 1,
            ..Limits::default()
        };
        let mut sent = 0;
        let masked = job(text, limits, &mut |column| {
            sent += column.count as u64;
            answer.mask(column)
        });
        if let Ok(masked) = &masked {
            let counted: u64 = masked.fields.iter().map(|field| field.masked).sum();
            assert_eq!(counted, sent, "{masked:?}");
        }
        masked
    };
    let whole = run(text, text.len() + 1, 10_000);
    let cut = run(text, usize::from(chunk_bytes) + 1, 3);
    match (whole, cut) {
        (Ok(whole), Ok(cut)) => {
            assert_eq!(
                String::from_utf8_lossy(&whole.text),
                String::from_utf8_lossy(&cut.text)
            );
            assert_eq!(whole, cut);
            if answer == MaskChoice::Same {
                let again = run(&whole.text, whole.text.len() + 1, 10_000)
                    .expect("the output is input of its format");
                assert_eq!(whole.records, again.records);
                if is_fixed {
                    assert_eq!(
                        String::from_utf8_lossy(&whole.text),
                        String::from_utf8_lossy(&again.text)
                    );
                }
            }
            Some(whole)
        }
        (Err(whole), Err(cut)) => {
            for error in [whole, cut] {
                assert!(!error.to_string().is_empty());
            }
            None
        }
        (whole, cut) => panic!("whole: {whole:?}\nin chunks: {cut:?}"),
    }
}
