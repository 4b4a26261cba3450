//! Packs the groups of one call into batches, and collects the results of the groups.

use sealwire_store::StoreError;

/// Maximum rows of one batch, unless a single group has more. Groups are never split.
const ROWS_MAX: usize = 512;

/// Maximum bytes of one batch, unless a single group has more.
const BYTES_MAX: usize = 1 << 20;

/// The batches that remain to be written, and the results so far. `R` is the result of a group.
pub(super) struct Batches<R> {
    results: Vec<Option<Result<R, StoreError>>>,
    /// Positions of groups, by batch. The next batch is the last element.
    left: Vec<Vec<usize>>,
}

impl<R> Batches<R> {
    /// Packs the groups that are not `invalid`, in their order. `size` returns rows and bytes of
    /// the group at a position.
    pub(super) fn new(
        invalid: impl Iterator<Item = Option<StoreError>>,
        size: impl Fn(usize) -> (usize, usize),
    ) -> Self {
        let results: Vec<_> = invalid.map(|error| error.map(Err)).collect();
        let (mut left, mut rows, mut bytes): (Vec<Vec<usize>>, usize, usize) = (Vec::new(), 0, 0);
        for at in (0..results.len()).filter(|at| results[*at].is_none()) {
            let more = size(at);
            (rows, bytes) = (rows + more.0, bytes + more.1);
            match left.last_mut() {
                Some(batch) if rows <= ROWS_MAX && bytes <= BYTES_MAX => batch.push(at),
                _ => {
                    left.push(vec![at]);
                    (rows, bytes) = more;
                }
            }
        }

        left.reverse();
        Self { results, left }
    }

    /// Returns the positions of the groups to write next.
    pub(super) fn next(&mut self) -> Option<Vec<usize>> {
        self.left.pop()
    }

    /// Records the result of a batch. If one group of the batch cannot be written, halves the batch
    /// until that group is alone.
    pub(super) fn record(
        &mut self,
        mut batch: Vec<usize>,
        written: Result<Vec<Result<R, StoreError>>, StoreError>,
    ) {
        match written {
            Ok(written) => batch
                .iter()
                .zip(written)
                .for_each(|(at, written)| self.results[*at] = Some(written)),
            Err(StoreError::Damaged { .. }) if batch.len() > 1 => {
                self.left.push(batch.split_off(batch.len() / 2));
                self.left.push(batch);
            }
            Err(error) => batch
                .iter()
                .for_each(|at| self.results[*at] = Some(Err(error.repeated()))),
        }
    }

    /// Records that no further batch can be written.
    pub(super) fn fail(&mut self, error: &StoreError) {
        let left = std::mem::take(&mut self.left);
        left.into_iter()
            .flatten()
            .for_each(|at| self.results[at] = Some(Err(error.repeated())));
    }

    /// Returns the results in the order of the groups.
    pub(super) fn into_results(self) -> Vec<Result<R, StoreError>> {
        self.results
            .into_iter()
            .map(|result| {
                result.unwrap_or_else(|| Err(StoreError::Unavailable("not written".into())))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged() -> StoreError {
        StoreError::Damaged {
            place: String::new(),
            what: String::new(),
        }
    }

    fn check(sizes: &[(usize, usize)], expected: &[&[usize]]) {
        let mut batches = Batches::<()>::new(sizes.iter().map(|_| None), |at| sizes[at]);
        let found: Vec<_> = std::iter::from_fn(|| batches.next()).collect();
        assert_eq!(found, expected, "{sizes:?}");
    }

    #[test]
    fn batches_are_bounded_in_rows_and_bytes() {
        check(&[], &[]);
        check(&[(512, 0), (0, 9), (1, 0)], &[&[0, 1], &[2]]);
        check(&[(1, BYTES_MAX - 1), (1, 1), (1, 1)], &[&[0, 1], &[2]]);
        check(&[(1, 0), (600, 0), (1, 0)], &[&[0], &[1], &[2]]);
        check(&[(1, 3 * BYTES_MAX), (1, 0)], &[&[0], &[1]]);
        check(&[(300, 0), (300, 0), (200, 0)], &[&[0], &[1, 2]]);
    }

    #[test]
    fn damage_is_isolated_and_other_errors_are_shared() {
        let invalid = |at| (at == 3).then(damaged);
        let mut batches = Batches::new((0..9).map(invalid), |_| (1, 1));
        while let Some(batch) = batches.next() {
            let written = if batch.contains(&5) {
                Err(damaged())
            } else {
                Ok(batch.iter().map(|at| Ok(*at)).collect())
            };
            batches.record(batch, written);
        }
        for (at, result) in batches.into_results().into_iter().enumerate() {
            assert_eq!(result.ok(), (at != 3 && at != 5).then_some(at), "{at}");
        }
        let mut batches = Batches::<()>::new((0..2).map(|_| None), |_| (1, 1));
        let batch = batches.next().unwrap();
        batches.record(batch, Err(StoreError::Unavailable("x".into())));
        assert!(batches.next().is_none());
        assert!(
            batches
                .into_results()
                .iter()
                .all(|result| matches!(result, Err(StoreError::Unavailable(_))))
        );
    }
}
