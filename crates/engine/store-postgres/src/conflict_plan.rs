//! Decides, in memory and without I/O, the result of each group, given the existing rows.

use std::collections::HashMap;

use sealwire_store::{Fingerprint, Group, MapId, Row, SubjectId, TokenId, Written};

/// Existing rows with the ids and fingerprints of the groups.
#[derive(Debug, Default)]
pub(super) struct ExistingRows {
    /// Holders of fingerprints, including expired ones.
    pub(super) holders: HashMap<(MapId, Fingerprint), Row>,
    /// Sealed content by id.
    pub(super) ids: HashMap<(MapId, TokenId), bytes::Bytes>,
    /// Versions of the keys of subjects, by app.
    pub(super) subjects: HashMap<(u32, SubjectId), u64>,
}

impl ExistingRows {
    /// Returns the version of the key of the row's subject, if the row has a subject with a key.
    fn key_version(&self, app: u32, row: &Row) -> Option<u64> {
        self.subjects.get(&(app, row.subject?)).copied()
    }
}

/// The rows to write, and the results after writing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan<'a> {
    /// Result per group; `None` if the group must be written after this plan.
    pub(super) results: Vec<Option<Written>>,
    /// Rows to insert, in the order of maps, fingerprints and ids, so that concurrent writers of
    /// the same keys wait and do not deadlock.
    pub(super) insert: Vec<(MapId, &'a Row)>,
    /// Expired holders to archive.
    pub(super) archive: Vec<(MapId, Fingerprint)>,
}

/// Decision about one row.
enum RowDecision<'a> {
    /// A live row holds the fingerprint.
    Existing(Row),
    /// An earlier attempt wrote the row.
    WrittenBefore,
    /// Another row has the id.
    IdTaken,
    /// The row to insert, and true if an expired row holds its fingerprint.
    Insert(&'a Row, bool),
    /// The row can only be written after this plan.
    Later,
}

/// Decides about the groups in sequence. `is_retry` is true if an earlier attempt may have taken
/// effect. Existing rows that are equal to the byte then count as written by that attempt.
pub(super) fn plan_writes<'a>(
    now: u64,
    groups: &[&'a Group],
    mut existing: ExistingRows,
    is_retry: bool,
) -> Plan<'a> {
    let mut plan = Plan {
        results: Vec::with_capacity(groups.len()),
        insert: Vec::new(),
        archive: Vec::new(),
    };

    for group in groups {
        let has_keys = group
            .rows
            .iter()
            .all(|row| row.has_key(existing.key_version(group.map.app, row)));
        if !has_keys {
            plan.results.push(Some(Written::SubjectsChanged));
            continue;
        }

        let decisions: Vec<RowDecision<'a>> = group
            .rows
            .iter()
            .map(|row| decide_row(now, group.map, row, &existing, &plan.insert, is_retry))
            .collect();
        let taken: Vec<usize> = decisions
            .iter()
            .enumerate()
            .filter(|(_, decision)| matches!(decision, RowDecision::IdTaken))
            .map(|(at, _)| at)
            .collect();
        if decisions
            .iter()
            .any(|decision| matches!(decision, RowDecision::Later))
        {
            plan.results.push(None);
            continue;
        }
        if !taken.is_empty() {
            plan.results.push(Some(Written::Taken(taken)));
            continue;
        }
        let mut known = Vec::with_capacity(decisions.len());
        for decision in decisions {
            known.push(match decision {
                RowDecision::Existing(row) => Some(row),
                RowDecision::Insert(row, expired) => {
                    if let Some(print) = row.fingerprint {
                        existing.holders.insert((group.map, print), row.clone());
                        plan.archive.extend(expired.then_some((group.map, print)));
                    }
                    existing.ids.insert((group.map, row.id), row.sealed.clone());
                    plan.insert.push((group.map, row));
                    None
                }
                RowDecision::WrittenBefore | RowDecision::IdTaken | RowDecision::Later => None,
            });
        }

        plan.results.push(Some(Written::Done(known)));
    }

    plan.insert.sort_unstable_by_key(|(map, row)| {
        (*map, row.fingerprint.is_none(), row.fingerprint, row.id)
    });
    plan.archive.sort_unstable();
    plan
}

fn decide_row<'a>(
    now: u64,
    map: MapId,
    row: &'a Row,
    existing: &ExistingRows,
    planned: &[(MapId, &Row)],
    is_retry: bool,
) -> RowDecision<'a> {
    let holder = row
        .fingerprint
        .and_then(|print| existing.holders.get(&(map, print)));
    if let Some(holder) = holder {
        if is_retry && holder.id == row.id && holder.sealed == row.sealed {
            return RowDecision::WrittenBefore;
        }
        if holder.is_live(now) {
            return RowDecision::Existing(holder.clone());
        }
        // The holder is in this plan and already expired. A row can be archived only after it is
        // written.
        if planned
            .iter()
            .any(|(at, row)| (*at, row.id) == (map, holder.id))
        {
            return RowDecision::Later;
        }
    }

    match existing.ids.get(&(map, row.id)) {
        Some(sealed) if is_retry && *sealed == row.sealed => RowDecision::WrittenBefore,
        Some(_) => RowDecision::IdTaken,
        None => RowDecision::Insert(row, holder.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_store::contract_tests::tokens::{id, print, printed, row};

    const MAP: MapId = MapId {
        app: 1,
        collection: 1,
    };

    fn existing_rows(rows: &[Row]) -> ExistingRows {
        let holders = rows
            .iter()
            .filter_map(|row| Some(((MAP, row.fingerprint?), row.clone())))
            .collect();
        let ids = rows
            .iter()
            .map(|row| ((MAP, row.id), row.sealed.clone()))
            .collect();
        ExistingRows {
            holders,
            ids,
            subjects: HashMap::new(),
        }
    }

    fn check(
        existing: &[Row],
        groups: &[&[Row]],
        is_retry: bool,
    ) -> (Vec<Option<Written>>, Vec<TokenId>, Vec<Fingerprint>) {
        let groups: Vec<Group> = groups
            .iter()
            .map(|rows| Group {
                map: MAP,
                rows: rows.to_vec(),
            })
            .collect();
        let plan = plan_writes(
            10,
            &groups.iter().collect::<Vec<_>>(),
            existing_rows(existing),
            is_retry,
        );
        let ids = plan.insert.iter().map(|(_, row)| row.id).collect();
        (
            plan.results,
            ids,
            plan.archive.iter().map(|(_, print)| *print).collect(),
        )
    }

    fn expired(row: Row) -> Row {
        Row {
            expires: Some(10),
            ..row
        }
    }

    #[test]
    fn rows_are_written_by_key_in_the_order_of_fingerprints() {
        let found = check(
            &[],
            &[&[row(9), printed(1, 5)], &[printed(2, 4)], &[]],
            false,
        );
        let done = |n| Some(Written::Done(vec![None; n]));
        assert_eq!(
            found,
            (
                vec![done(2), done(1), done(0)],
                vec![id(2), id(1), id(9)],
                vec![]
            )
        );
    }

    #[test]
    fn groups_see_rows_of_earlier_groups_unless_these_fail() {
        let groups: [&[Row]; 4] = [
            &[printed(1, 1), row(7)],
            &[printed(2, 1)],
            &[row(2)],
            &[printed(3, 1)],
        ];
        let (results, ids, _) = check(&[row(7)], &groups, false);
        assert_eq!(results[0], Some(Written::Taken(vec![1])));
        assert_eq!(results[1], Some(Written::Done(vec![None])));
        assert_eq!(results[2], Some(Written::Taken(vec![0])));
        assert_eq!(results[3], Some(Written::Done(vec![Some(printed(2, 1))])));
        assert_eq!(ids, [id(2)]);
    }

    #[test]
    fn expired_holder_is_replaced_once() {
        let old = [expired(printed(1, 1)), expired(printed(2, 2))];
        let (results, ids, archive) = check(
            &old,
            &[&[printed(11, 1)], &[printed(12, 1)], &[printed(2, 2)]],
            false,
        );
        assert_eq!(results[0], Some(Written::Done(vec![None])));
        assert_eq!(results[1], Some(Written::Done(vec![Some(printed(11, 1))])));
        assert_eq!(results[2], Some(Written::Taken(vec![0])));
        assert_eq!((ids, archive), (vec![id(11)], vec![print(1)]));
        // A row that is expired when it is written must exist before it can be archived.
        let (results, ids, _) = check(&[], &[&[expired(printed(1, 1))], &[printed(2, 1)]], false);
        assert_eq!(
            (results[0].clone(), results[1].clone()),
            (Some(Written::Done(vec![None])), None)
        );
        assert_eq!(ids, [id(1)]);
    }

    #[test]
    fn rows_of_an_earlier_attempt_count_as_written() {
        let mine = [printed(1, 1), row(2)];
        for (is_retry, expected) in [
            (
                true,
                [
                    Some(Written::Done(vec![None])),
                    Some(Written::Done(vec![None])),
                ],
            ),
            (
                false,
                [
                    Some(Written::Done(vec![Some(printed(1, 1))])),
                    Some(Written::Taken(vec![0])),
                ],
            ),
        ] {
            let (results, ids, archive) = check(&mine, &[&mine[..1], &mine[1..]], is_retry);
            assert_eq!(results, expected, "{is_retry}");
            assert!(ids.is_empty() && archive.is_empty());
        }
        let other = [Row {
            sealed: "other".into(),
            ..row(2)
        }];
        assert_eq!(
            check(&mine, &[&other], true).0,
            [Some(Written::Taken(vec![0]))]
        );
    }
}
