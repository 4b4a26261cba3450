//! A model of a collection whose property `level` is dropped and added again with another type.
//!
//! The schema of each generation is known after the changes. Each written value has its own number,
//! so a value that is read tells which request wrote it, and the response to that request tells by
//! which schema.

use std::collections::HashMap;

/// The types of `level`, in turn.
pub(super) const TYPES: [&str; 3] = ["integer", "string", "date"];

/// A value of `level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Level {
    /// Index in [`TYPES`].
    pub(super) kind: usize,
    /// Unique in a round of the test.
    pub(super) number: u64,
}

impl Level {
    pub(super) fn json(self) -> String {
        let Self { kind, number } = self;
        match kind {
            0 => number.to_string(),
            1 => format!("\"level {number}\""),
            _ => format!(
                "\"{:04}-{:02}-{:02}\"",
                1_000 + number / 336,
                1 + number / 28 % 12,
                1 + number % 28
            ),
        }
    }

    /// Parses what [`Level::json`] returns, or `null`.
    pub(super) fn parse(json: &str) -> Option<Self> {
        if json == "null" {
            return None;
        }
        let Some(text) = json.strip_prefix('"') else {
            return Some(Self {
                kind: 0,
                number: json.parse().unwrap(),
            });
        };
        let text = text.strip_suffix('"').unwrap();
        if let Some(number) = text.strip_prefix("level ") {
            return Some(Self {
                kind: 1,
                number: number.parse().unwrap(),
            });
        }
        let parts: Vec<u64> = text.split('-').map(|part| part.parse().unwrap()).collect();
        Some(Self {
            kind: 2,
            number: (parts[0] - 1_000) * 336 + (parts[1] - 1) * 28 + parts[2] - 1,
        })
    }
}

/// The schemas of a round: generations from which on `level` is absent, or there for the n-th time.
#[derive(Default)]
pub(super) struct History(pub(super) Vec<(u64, Option<usize>)>);

impl History {
    /// Returns the incarnation of `level` at a generation.
    pub(super) fn at(&self, generation: u64) -> Option<usize> {
        let changes = self.0.partition_point(|(since, _)| *since <= generation);
        self.0[changes
            .checked_sub(1)
            .expect("a response is older than the collection")]
        .1
    }
}

/// An object as its only writer knows it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) id: String,
    pub(super) version: u64,
    pub(super) email: String,
    pub(super) group: u64,
    /// The last acknowledged value, with the generation of the response.
    pub(super) level: Option<(Level, u64)>,
}

/// An object as a response showed it. `level`: `None` without the property.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) generation: u64,
    pub(super) id: String,
    pub(super) level: Option<Option<Level>>,
}

/// Acknowledged writes of `level` by the number of the value: the value, the object and the
/// generation.
pub(super) type Written = HashMap<u64, (Level, String, u64)>;

/// Checks an object of a response against the schema of its generation and the write of the value.
///
/// # Errors
/// The rule that is broken.
pub(super) fn check(seen: &Seen, history: &History, written: &Written) -> Result<(), &'static str> {
    let Seen {
        generation,
        id,
        level,
    } = seen;
    let incarnation = history.at(*generation);
    if level.is_some() != incarnation.is_some() {
        return Err("the property of another schema");
    }
    let (Some(Some(level)), Some(incarnation)) = (level, incarnation) else {
        return Ok(());
    };
    let Some((wrote, of, at)) = written.get(&level.number) else {
        return Err("the value of a rejected request");
    };
    if level.kind != incarnation % TYPES.len() {
        Err("a value of the wrong type")
    } else if (wrote, of) != (level, id) {
        Err("the value of another object")
    } else if history.at(*at) != Some(incarnation) {
        Err("a value of a dropped property")
    } else {
        Ok(())
    }
}

#[test]
fn levels_come_back_from_their_text() {
    for kind in 0..TYPES.len() {
        for number in [0, 27, 28, 335, 336, 123_456] {
            let level = Level { kind, number };
            assert_eq!(Level::parse(&level.json()), Some(level));
        }
    }
    assert_eq!(Level::parse("null"), None);
}

#[test]
fn the_model_finds_what_must_not_be_seen() {
    let history = History(vec![
        (5, Some(0)),
        (7, None),
        (9, Some(1)),
        (11, None),
        (13, Some(2)),
        (15, None),
        (17, Some(3)),
    ]);
    let level = |kind, number| Level { kind, number };
    let written: Written = [
        (1, (level(0, 1), "a".to_owned(), 6)),
        (2, (level(0, 2), "a".to_owned(), 17)),
    ]
    .into();
    let seen = |generation, level| Seen {
        generation,
        id: "a".to_owned(),
        level,
    };
    let other = |seen: Seen| Seen {
        id: "b".to_owned(),
        ..seen
    };
    for (seen, expected) in [
        (seen(5, Some(Some(level(0, 1)))), Ok(())),
        (seen(8, None), Ok(())),
        (seen(9, Some(None)), Ok(())),
        (seen(20, Some(Some(level(0, 2)))), Ok(())),
        (seen(6, None), Err("the property of another schema")),
        (seen(7, Some(None)), Err("the property of another schema")),
        (
            seen(10, Some(Some(level(0, 1)))),
            Err("a value of the wrong type"),
        ),
        (
            seen(17, Some(Some(level(0, 1)))),
            Err("a value of a dropped property"),
        ),
        (
            seen(6, Some(Some(level(0, 3)))),
            Err("the value of a rejected request"),
        ),
        (
            other(seen(6, Some(Some(level(0, 1))))),
            Err("the value of another object"),
        ),
    ] {
        assert_eq!(check(&seen, &history, &written), expected, "{seen:?}");
    }
}
