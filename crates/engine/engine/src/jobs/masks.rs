//! Masks of requests, and of roles that can see values only through a mask.
//!
//! Mask keys are derived from the app's token secret, here only. The rules of a request are parsed
//! and its keys derived on a crypto thread, in its first slice. A role's mask is parsed when the
//! role is set, and built once per an app and generation.
//!
//! `disclosure` writes opened values: in the clear, or masked for the principal's role.

pub mod disclosure;

use sealwire_mask::{
    Function, Kind, MaskSecret, Masks, MasksBuilder, RuleText, Rules, RulesBuilder, RulesError,
    Target, Unknown, detection_work, work_of_text,
};
use sealwire_payload::ExtraWork;
use sealwire_wire::{MaskList, MaskRule, Masking, RuleFields, UnknownFields};

use crate::jobs::error::RequestFailure;
use crate::jobs::slice_timer::SliceTimer;

/// The unparsed rules and lists of a request, which a crypto thread will parse.
#[derive(Debug)]
pub struct MaskSpec {
    unknown: Unknown,
    rules: Vec<RuleText>,
    lists: Vec<(String, Vec<String>)>,
}

impl MaskSpec {
    /// Copies the rules and lists from the message.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Rules`] for an unknown kind.
    pub fn of(masking: &Masking<'_>) -> Result<Self, RequestFailure> {
        Ok(Self {
            unknown: match masking.unknown {
                UnknownFields::Refuse => Unknown::Refuse,
                UnknownFields::Keep => Unknown::Keep,
            },
            rules: masking
                .rules
                .iter()
                .enumerate()
                .map(|(at, rule)| rule_text(at, rule))
                .collect::<Result<_, RequestFailure>>()?,
            lists: masking.lists.iter().map(owned_list).collect(),
        })
    }

    /// Starts to read the rules and to derive their keys. Must run on a crypto thread.
    pub fn prepare(self, secret: MaskSecret) -> MaskPreparation {
        let stage =
            PreparationStage::Reading(RulesBuilder::new(self.unknown, self.rules, self.lists));
        MaskPreparation { secret, stage }
    }

    /// Reads the rules and derives their keys.
    ///
    /// # Errors
    ///
    /// As [`MaskPreparation::advance`].
    pub fn into_masks(self, secret: MaskSecret) -> Result<Masks, RequestFailure> {
        let mut preparation = self.prepare(secret);
        preparation.advance(&SliceTimer::UNLIMITED)?;
        preparation.finish()
    }

    /// Returns an upper bound of the work on a document that is not proportional to its `fields` or
    /// `bytes`.
    pub fn extra_work(&self, fields: u64, bytes: u64) -> ExtraWork {
        let kinds = Kind::ALL.into_iter().filter(|kind| {
            self.rules
                .iter()
                .any(|rule| rule.target == Target::Kind(*kind))
        });
        let mut extra =
            detection_work(kinds.count() as u64, fields, bytes).plus(self.preparation_work());

        if self.rules.iter().any(|rule| rule.mask.contains("subject")) {
            // Map keys are not counted as fields, so there can be twice as many tokens.
            let tokens = fields.saturating_mul(2 * TOKEN_BYTES_MIN);
            extra = extra.plus(ExtraWork {
                fields: 0,
                bytes: bytes.saturating_add(tokens),
            });
        }

        // Each field has one function, so the most expensive function bounds the work.
        let works = self
            .rules
            .iter()
            .map(|rule| work_of_text(&rule.mask, fields, bytes));
        let most = works.fold(ExtraWork::default(), |most, work| ExtraWork {
            fields: most.fields.max(work.fields),
            bytes: most.bytes.max(work.bytes),
        });
        extra.plus(most)
    }

    /// Returns the work of reading the rules and deriving their keys.
    pub fn preparation_work(&self) -> ExtraWork {
        let rules = (self.rules.len() as u64)
            .saturating_sub(1)
            .saturating_mul(RULE_WORK);
        let entries: usize = self.lists.iter().map(|(_, entries)| entries.len()).sum();
        ExtraWork {
            fields: rules.saturating_add(entries as u64 / ENTRIES_PER_FIELD),
            bytes: 0,
        }
    }

    /// Returns an upper bound of the bytes that masking adds to a document.
    pub fn growth(&self, fields: usize, bytes: usize) -> usize {
        let entries = self
            .lists
            .iter()
            .flat_map(|(_, entries)| entries)
            .map(String::len);
        growth(
            self.rules.iter().map(|rule| &*rule.mask),
            entries.max().unwrap_or(0),
            fields,
            bytes,
        )
    }
}

/// Parses rules and derives their keys, in slices.
pub struct MaskPreparation {
    secret: MaskSecret,
    stage: PreparationStage,
}

enum PreparationStage {
    Reading(RulesBuilder),
    Deriving(MasksBuilder),
    Over,
}

impl MaskPreparation {
    /// Continues until the time of the slice is over. Returns true if no work is left.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Rules`], which names the rule, the position and the valid alternatives.
    pub fn advance(&mut self, timer: &SliceTimer) -> Result<bool, RequestFailure> {
        loop {
            let is_over = match &mut self.stage {
                PreparationStage::Reading(rules) => !rules.step().map_err(rules_failure)?,
                PreparationStage::Deriving(masks) => {
                    if !masks.step(&self.secret) {
                        return Ok(true);
                    }
                    false
                }
                PreparationStage::Over => return Ok(true),
            };
            if is_over
                && let PreparationStage::Reading(rules) =
                    std::mem::replace(&mut self.stage, PreparationStage::Over)
            {
                self.stage = PreparationStage::Deriving(MasksBuilder::new(
                    rules.finish().map_err(rules_failure)?,
                ));
            }
            if timer.is_over() {
                return Ok(false);
            }
        }
    }

    /// Returns the masks.
    ///
    /// # Errors
    ///
    /// [`RequestFailure::Internal`] if they are not prepared.
    pub fn finish(self) -> Result<Masks, RequestFailure> {
        match self.stage {
            PreparationStage::Deriving(masks) => Ok(masks.finish(&self.secret)),
            PreparationStage::Reading(_) | PreparationStage::Over => Err(RequestFailure::Internal(
                "masks are used before they are prepared",
            )),
        }
    }
}

fn rules_failure(error: RulesError) -> RequestFailure {
    RequestFailure::Rules(error.to_string())
}

/// Copies a rule. `at`: its position, from 0.
fn rule_text(at: usize, rule: &MaskRule<'_>) -> Result<RuleText, RequestFailure> {
    let target = match rule.fields {
        RuleFields::Path(path) => Target::Path(path.to_owned()),
        RuleFields::Column(column) => Target::Column(column.to_owned()),
        RuleFields::Kind(kind) => Target::Kind(
            kind.parse::<Kind>()
                .map_err(|message| RequestFailure::Rules(format!("rule {}: {message}", at + 1)))?,
        ),
    };
    Ok(RuleText {
        target,
        mask: rule.mask.to_owned(),
    })
}

fn owned_list(list: &MaskList<'_>) -> (String, Vec<String>) {
    let entries = list.entries.iter().map(|entry| (*entry).to_owned());
    (list.name.to_owned(), entries.collect())
}

/// Work of reading one rule and deriving its key, in fields.
const RULE_WORK: u64 = 3;
/// List entries whose copies take as long as one field.
const ENTRIES_PER_FIELD: u64 = 32;
/// Least work per token of a search, in bytes.
const TOKEN_BYTES_MIN: u64 = 16;

/// Longest result of a mask whose text does not tell its length: a hash, an address, an entry of a
/// built-in list, with its MessagePack header.
const MASK_BYTES: usize = 128;

/// Returns an upper bound of the bytes that the functions `masks` add to values. `entry`: bytes of
/// the longest list entry. A replacement is not longer than the text of its function. A long value
/// grows only if a character of several bytes replaces each character of one byte.
fn growth<'a>(
    masks: impl Iterator<Item = &'a str>,
    entry: usize,
    fields: usize,
    bytes: usize,
) -> usize {
    let mut longest = 0;
    let mut wide = false;
    for mask in masks {
        longest = longest.max(mask.len());
        wide |= !mask.is_ascii() || mask.contains("\\u");
    }
    let wide_bytes = if wide { bytes.saturating_mul(3) } else { 0 };
    fields
        .saturating_mul(longest.saturating_add(entry).saturating_add(MASK_BYTES))
        .saturating_add(wide_bytes)
}

/// Parses the function of a role's mask.
///
/// # Errors
///
/// A message: the text is invalid, or a role cannot have this mask.
pub fn parse_role_mask(text: &str) -> Result<Function, String> {
    let function: Function = text
        .parse()
        .map_err(|error: sealwire_mask::FunctionError| error.to_string())?;
    if function.is_keep() {
        return Err("`keep` masks nothing: leave the mask out".to_owned());
    }

    if let Some(subject) = function.subject() {
        return Err(format!(
            "subject `{subject}`: a role masks values one by one, whatever stands beside them"
        ));
    }

    if function.list().is_some() {
        // A role can use only the built-in lists.
        let rule = RuleText {
            target: Target::Path("$".to_owned()),
            mask: text.to_owned(),
        };
        Rules::new(Unknown::Keep, vec![rule], Vec::new()).map_err(|error| error.to_string())?;
    }
    Ok(function)
}

/// Returns the secret of an app's masks.
pub fn mask_secret(keys: &sealwire_records::token::TokenKeys) -> MaskSecret {
    MaskSecret::new(keys.mask_secret())
}

#[cfg(test)]
mod tests {
    use sealwire_crypto::KeyState;
    use sealwire_records::token::{TokenKeyVersion, TokenKeys, TokenSecret};

    use super::*;

    #[test]
    fn role_masks_hide_values_and_depend_on_no_other_field() {
        for (text, error) in [
            ("partial(last=4)", None),
            ("hash", None),
            ("fixed(\"n/a\")", None),
            ("date_shift(within=30)", None),
            ("keep", Some("masks nothing")),
            ("date_shift(within=30, subject=id)", Some("one by one")),
            ("pseudonym(list=cities)", None),
            ("pseudonym(list=mine)", Some("unknown list `mine`")),
            ("fly", Some("fly")),
            ("partial(last=x)", Some("column")),
        ] {
            match (parse_role_mask(text), error) {
                (Ok(_), None) => (),
                (Err(found), Some(error)) => assert!(found.contains(error), "{text}: {found}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }

    #[test]
    fn rules_are_prepared_in_slices() {
        use crate::jobs::slice_timer::testing::{STEP, stepping};

        let secret = || MaskSecret::new(zeroize::Zeroizing::new([7; 32]));
        let lists = vec![("own".to_owned(), vec!["a".to_owned(), "b".to_owned()])];
        let spec = MaskSpec {
            unknown: Unknown::Keep,
            rules: (0..256)
                .map(|at| RuleText {
                    target: Target::Column(format!("c{at}")),
                    mask: format!("fpe(domain=\"{at}\")"),
                })
                .collect(),
            lists,
        };
        let mut preparation = spec.prepare(secret());
        let mut slices = 1;
        while !preparation
            .advance(&SliceTimer::start(10 * STEP, stepping))
            .unwrap()
        {
            slices += 1;
        }
        // One step for each list, for the end of the list of rules, and two for each rule; ten in a
        // slice.
        assert_eq!(slices, (1 + 256 + 1 + 256_usize).div_ceil(10));
        assert_eq!(preparation.finish().unwrap().rules().iter().len(), 256);
        let invalid = RuleText {
            target: Target::Column("c".to_owned()),
            mask: "fly".to_owned(),
        };
        let spec = MaskSpec {
            unknown: Unknown::Keep,
            rules: vec![invalid],
            lists: Vec::new(),
        };
        assert!(spec.into_masks(secret()).is_err_and(
            |error| matches!(error, RequestFailure::Rules(text) if text.contains("fly"))
        ));
    }

    #[test]
    fn masks_fit_their_reserved_bytes() {
        let secret = TokenSecret::generate().unwrap();
        let keys = TokenKeys::new(
            1,
            vec![TokenKeyVersion {
                number: 1,
                state: KeyState::Active,
                secret,
            }],
        )
        .unwrap();
        let long = "e".repeat(256);
        let lists = vec![("own".to_owned(), vec![long.clone(), "x".to_owned()])];
        let values = [
            "",
            "a",
            "4111 1111 1111 1111",
            "someone@example.org",
            "+49 30 1234567",
            "2026-11-22",
            "x y z",
            &long,
        ];
        let fixed = format!("fixed(\"{}\")", "f".repeat(200));
        for mask in [
            "redact",
            "redact(with=\"long text in place of a short one\")",
            &fixed,
            "null",
            "partial(first=1)",
            "partial(last=1, with=\"\u{1f600}\")",
            "partial(last=1, with=\"\\u{1f600}\")",
            "email",
            "email(keep=domain)",
            "phone",
            "card",
            "hash",
            "hash(length=64)",
            "pseudonym(list=first_names)",
            "pseudonym(list=own)",
            "fpe",
            "date_shift(days=30)",
            "generalize(keep=3)",
            "generalize(date=month)",
        ] {
            let target = Target::Path("$".to_owned());
            let rule = RuleText {
                target,
                mask: mask.to_owned(),
            };
            let wanted = MaskSpec {
                unknown: Unknown::Keep,
                rules: vec![rule],
                lists: lists.clone(),
            };
            let room = |bytes| wanted.growth(1, bytes) + bytes;
            let rooms: Vec<_> = values.iter().map(|value| room(value.len() + 1)).collect();
            let masks = wanted
                .into_masks(super::mask_secret(&keys))
                .unwrap_or_else(|error| panic!("{mask}: {error}"));
            for (value, room) in values.iter().zip(rooms) {
                let mut out = Vec::new();
                if masks
                    .apply(0, sealwire_mask::Value::Str(value), None, &mut out)
                    .is_ok()
                {
                    assert!(
                        out.len() <= room,
                        "{mask} of {value:?}: {} > {room}",
                        out.len()
                    );
                }
            }
        }
    }
}
