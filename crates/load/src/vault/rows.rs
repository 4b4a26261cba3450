//! The rows that engines have acknowledged: tokens, and the values that they stand for.
//!
//! A value is computed from the number of its row, so only the token is kept: 32 bytes per row.

use crate::fault::Fault;
use crate::random::Random;
use crate::results::{Phase, RowCheck};

/// Length of a token in the format `opaque`.
pub(crate) const TOKEN_BYTES: usize = 26;
/// Length of a value.
pub(crate) const VALUE_BYTES: usize = 16;
/// Maximum number of rows, so that a row number has four bytes.
pub(crate) const ROWS_MAX: u64 = 4_000_000_000;

/// A token as text.
pub(crate) type RowToken = [u8; TOKEN_BYTES];
/// A value as text.
pub(crate) type RowValue = [u8; VALUE_BYTES];

/// One acknowledged row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenRow {
    pub(crate) token: RowToken,
    /// Index of the engine that acknowledged the row.
    pub(crate) engine: u8,
    pub(crate) phase: Phase,
    /// Number of the row's value.
    pub(crate) number: u32,
}

/// All acknowledged rows.
#[derive(Debug)]
pub(crate) struct TokenRows {
    seed: u64,
    rows: Vec<TokenRow>,
    next_number: u32,
}

impl TokenRows {
    /// Returns the seed of the values.
    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// Creates an empty table. Tables of one seed have the same values.
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            seed,
            rows: Vec::new(),
            next_number: 0,
        }
    }

    /// Returns the value of a row number.
    pub(crate) fn value(&self, number: u32) -> RowValue {
        value(self.seed, number)
    }

    /// Reserves row numbers for new values and returns the first.
    pub(crate) fn reserve(&mut self, count: u32) -> u32 {
        let first = self.next_number;
        self.next_number += count;
        first
    }

    /// Adds an acknowledged row.
    pub(crate) fn acknowledge(&mut self, row: TokenRow) {
        self.rows.push(row);
    }

    /// Returns the number of acknowledged rows.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns an acknowledged row.
    pub(crate) fn get(&self, index: usize) -> &TokenRow {
        &self.rows[index]
    }

    /// Chooses one of all acknowledged rows, each with the same probability. There must be a row.
    pub(crate) fn choose(&self, random: &mut Random) -> usize {
        random.below(self.rows.len())
    }

    /// Lists the rows that each engine must look up: those that its predecessor acknowledged, so
    /// that no engine checks its own rows if there are several.
    pub(crate) fn check_lists(&self, engines: usize) -> Vec<Vec<u32>> {
        let mut lists = vec![Vec::new(); engines];
        for (index, row) in self.rows.iter().enumerate() {
            lists[(usize::from(row.engine) + 1) % engines].push(index as u32);
        }
        lists
    }
}

/// Returns the value of a row number. Different numbers have different values.
pub(crate) fn value(seed: u64, number: u32) -> RowValue {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    // Different states of the generator give different bits, because its output function is a
    // bijection.
    let bits =
        Random::new(seed.wrapping_add(u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .bits();
    std::array::from_fn(|at| DIGITS[(bits >> (60 - 4 * at)) as usize & 15])
}

/// Reads a token; fails if it does not have the format `opaque`.
pub(crate) fn token(text: &[u8]) -> Result<RowToken, Fault> {
    text.try_into().map_err(|_| {
        Fault::Failed("the collection must have tokens of the format opaque".to_owned())
    })
}

/// Compares the text that engine `by` returned for a row's token. A token that is not there comes
/// back unchanged.
pub(crate) fn compare(
    check: &mut RowCheck,
    rows: &TokenRows,
    index: usize,
    by: usize,
    found: &[u8],
) {
    let row = rows.get(index);
    let counts = &mut check.phases[row.phase as usize];
    counts.checked += 1;
    if found == rows.value(row.number) {
        return;
    }
    let is_lost = found == row.token;
    if is_lost {
        counts.lost += 1;
    } else {
        counts.wrong += 1;
    }
    if check.examples.len() < RowCheck::EXAMPLES_MAX {
        let what = if is_lost {
            "is not there"
        } else {
            "has another value"
        };
        let (number, phase, engine) = (row.number, row.phase.name(), row.engine + 1);
        check.examples.push(format!(
            "row {number}, acknowledged by engine {engine} (phase {phase}), {what} through engine {}",
            by + 1
        ));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Creates a table whose tokens are made from the row numbers.
    fn table(rows: u32) -> TokenRows {
        let mut table = TokenRows::new(7);
        for number in table.reserve(rows)..rows {
            let token = token(format!("tok_{number:022}").as_bytes()).unwrap();
            let phase = Phase::ALL[number as usize % 4];
            table.acknowledge(TokenRow {
                token,
                engine: (number % 3) as u8,
                phase,
                number,
            });
        }
        table
    }

    #[test]
    fn a_row_takes_32_bytes_and_values_differ() {
        assert_eq!(size_of::<TokenRow>(), 32);
        let table = table(0);
        let values: HashSet<RowValue> = (0..100_000).map(|number| table.value(number)).collect();
        assert_eq!(values.len(), 100_000);
        assert!(
            values
                .iter()
                .all(|value| value.iter().all(u8::is_ascii_hexdigit))
        );
        assert_eq!(TokenRows::new(7).value(5), table.value(5));
        assert_ne!(TokenRows::new(8).value(5), table.value(5));
    }

    #[test]
    fn choices_cover_the_whole_table_evenly() {
        let (table, mut random) = (table(1_000), Random::new(3));
        let mut counts = vec![0_u32; table.len()];
        (0..200_000).for_each(|_| counts[table.choose(&mut random)] += 1);
        // 200 choices per row on average, with a standard deviation of 14.
        assert!(
            counts.iter().all(|count| (120..=280).contains(count)),
            "{:?}",
            (counts.iter().min(), counts.iter().max())
        );
    }

    #[test]
    fn rows_added_during_a_load_are_chosen_too() {
        let (mut table, mut random) = (table(10), Random::new(3));
        assert_eq!(table.reserve(1), 10);
        // A reserved number is no row before its acknowledgement.
        assert!((0..1_000).all(|_| table.choose(&mut random) < 10));
        table.acknowledge(TokenRow {
            token: [b'x'; TOKEN_BYTES],
            engine: 0,
            phase: Phase::During,
            number: 10,
        });
        assert!((0..1_000).any(|_| table.choose(&mut random) == 10));
    }

    #[test]
    fn no_engine_checks_its_own_rows() {
        let table = table(100);
        for engines in [2, 3, 5] {
            let lists = table.check_lists(engines);
            assert_eq!(lists.iter().map(Vec::len).sum::<usize>(), 100);
            for (engine, list) in lists.iter().enumerate() {
                let own = |index: &&u32| usize::from(table.get(**index as usize).engine) == engine;
                assert_eq!(list.iter().filter(own).count(), 0, "{engines} engines");
            }
        }
        assert_eq!(
            TokenRows {
                rows: table.rows,
                ..TokenRows::new(7)
            }
            .check_lists(3)[1]
                .len(),
            34
        );
    }

    #[test]
    fn lost_and_wrong_rows_are_counted_by_phase_and_named() {
        let table = table(8);
        let of = |index: usize, what: &str| -> Vec<u8> {
            match what {
                "value" => table.value(index as u32).to_vec(),
                "token" => table.get(index).token.to_vec(),
                other => other.as_bytes().to_vec(),
            }
        };
        for (found, lost, wrong, said) in [
            (["value"; 8], [0; 4], [0; 4], None),
            (
                [
                    "value", "value", "token", "value", "value", "value", "value", "value",
                ],
                [0, 0, 1, 0],
                [0; 4],
                Some(
                    "row 2, acknowledged by engine 3 (phase during), is not there through engine 1",
                ),
            ),
            (
                [
                    "other", "token", "value", "value", "value", "token", "value", "",
                ],
                [0, 2, 0, 0],
                [1, 0, 0, 1],
                Some(
                    "row 0, acknowledged by engine 1 (phase fill), has another value through engine 2",
                ),
            ),
        ] {
            let mut check = RowCheck::new();
            for (index, found) in found.iter().enumerate() {
                let by = (usize::from(table.get(index).engine) + 1) % 3;
                compare(&mut check, &table, index, by, &of(index, found));
            }
            assert_eq!(
                check
                    .phases
                    .iter()
                    .map(|rows| rows.lost)
                    .collect::<Vec<_>>(),
                lost
            );
            assert_eq!(
                check
                    .phases
                    .iter()
                    .map(|rows| rows.wrong)
                    .collect::<Vec<_>>(),
                wrong
            );
            assert_eq!(
                (check.checked(), check.examples.first().map(String::as_str)),
                (8, said)
            );
            let mut sum = check.clone();
            sum.add(&check);
            assert_eq!((sum.checked(), sum.lost()), (16, 2 * check.lost()));
        }
    }
}
