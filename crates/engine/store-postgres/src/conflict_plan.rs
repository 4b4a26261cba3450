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

/// The rows to write, and the results after writing.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan<'a> {
    /// Result per group; `None` if the group must be written after this plan.
    pub(super) answers: Vec<Option<Written>>,
    /// Rows to insert, in the order of maps, fingerprints and ids, so that concurrent writers of
    /// the same keys wait and do not deadlock.
    pub(super) insert: Vec<(MapId, &'a Row)>,
    /// Expired holders to archive.
    pub(super) archive: Vec<(MapId, Fingerprint)>,
}

/// Decision about one row.
enum RowDecision<'a> {
    Given(Row),
    Mine,
    Taken,
    Written(&'a Row, bool),
    Later,
}

/// Decides about the groups in sequence. `again` is true if an earlier attempt may have taken
/// effect. Existing rows that are equal to the byte then count as written by that attempt.
pub(super) fn plan<'a>(
    now: u64,
    groups: &[&'a Group],
    mut there: ExistingRows,
    again: bool,
) -> Plan<'a> {
    let mut plan = Plan {
        answers: Vec::with_capacity(groups.len()),
        insert: Vec::new(),
        archive: Vec::new(),
    };
    for group in groups {
        let stored = |row: &Row| there.subjects.get(&(group.map.app, row.subject?)).copied();
        if !group.rows.iter().all(|row| row.has_key(stored(row))) {
            plan.answers.push(Some(Written::SubjectsChanged));
            continue;
        }
        let fates: Vec<RowDecision<'a>> = {
            let fate = |row| fate(now, group.map, row, &there, &plan.insert, again);
            group.rows.iter().map(fate).collect()
        };
        let taken: Vec<usize> = fates
            .iter()
            .enumerate()
            .filter(|(_, fate)| matches!(fate, RowDecision::Taken))
            .map(|(at, _)| at)
            .collect();
        if fates.iter().any(|fate| matches!(fate, RowDecision::Later)) {
            plan.answers.push(None);
            continue;
        }
        if !taken.is_empty() {
            plan.answers.push(Some(Written::Taken(taken)));
            continue;
        }
        let mut known = Vec::with_capacity(fates.len());
        for fate in fates {
            known.push(match fate {
                RowDecision::Given(row) => Some(row),
                RowDecision::Written(row, expired) => {
                    if let Some(print) = row.fingerprint {
                        there.holders.insert((group.map, print), row.clone());
                        plan.archive.extend(expired.then_some((group.map, print)));
                    }
                    there.ids.insert((group.map, row.id), row.sealed.clone());
                    plan.insert.push((group.map, row));
                    None
                }
                RowDecision::Mine | RowDecision::Taken | RowDecision::Later => None,
            });
        }
        plan.answers.push(Some(Written::Done(known)));
    }
    plan.insert.sort_unstable_by_key(|(map, row)| {
        (*map, row.fingerprint.is_none(), row.fingerprint, row.id)
    });
    plan.archive.sort_unstable();
    plan
}

fn fate<'a>(
    now: u64,
    map: MapId,
    row: &'a Row,
    there: &ExistingRows,
    planned: &[(MapId, &Row)],
    again: bool,
) -> RowDecision<'a> {
    let holder = row
        .fingerprint
        .and_then(|print| there.holders.get(&(map, print)));
    if let Some(holder) = holder {
        if again && holder.id == row.id && holder.sealed == row.sealed {
            return RowDecision::Mine;
        }
        if holder.is_live(now) {
            return RowDecision::Given(holder.clone());
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
    match there.ids.get(&(map, row.id)) {
        Some(sealed) if again && *sealed == row.sealed => RowDecision::Mine,
        Some(_) => RowDecision::Taken,
        None => RowDecision::Written(row, holder.is_some()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_store::suite::tokens::{id, print, printed, row};

    const MAP: MapId = MapId {
        app: 1,
        collection: 1,
    };

    fn there(rows: &[Row]) -> ExistingRows {
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
        there_is: &[Row],
        groups: &[&[Row]],
        again: bool,
    ) -> (Vec<Option<Written>>, Vec<TokenId>, Vec<Fingerprint>) {
        let groups: Vec<Group> = groups
            .iter()
            .map(|rows| Group {
                map: MAP,
                rows: rows.to_vec(),
            })
            .collect();
        let plan = plan(
            10,
            &groups.iter().collect::<Vec<_>>(),
            there(there_is),
            again,
        );
        let ids = plan.insert.iter().map(|(_, row)| row.id).collect();
        (
            plan.answers,
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
    fn groups_see_what_those_before_them_write_unless_that_is_refused() {
        let groups: [&[Row]; 4] = [
            &[printed(1, 1), row(7)],
            &[printed(2, 1)],
            &[row(2)],
            &[printed(3, 1)],
        ];
        let (answers, ids, _) = check(&[row(7)], &groups, false);
        assert_eq!(answers[0], Some(Written::Taken(vec![1])));
        assert_eq!(answers[1], Some(Written::Done(vec![None])));
        assert_eq!(answers[2], Some(Written::Taken(vec![0])));
        assert_eq!(answers[3], Some(Written::Done(vec![Some(printed(2, 1))])));
        assert_eq!(ids, [id(2)]);
    }

    #[test]
    fn an_expired_holder_gives_way_once() {
        let old = [expired(printed(1, 1)), expired(printed(2, 2))];
        let (answers, ids, archive) = check(
            &old,
            &[&[printed(11, 1)], &[printed(12, 1)], &[printed(2, 2)]],
            false,
        );
        assert_eq!(answers[0], Some(Written::Done(vec![None])));
        assert_eq!(answers[1], Some(Written::Done(vec![Some(printed(11, 1))])));
        assert_eq!(answers[2], Some(Written::Taken(vec![0])));
        assert_eq!((ids, archive), (vec![id(11)], vec![print(1)]));
        // A row that is expired when it is written must exist before it can be archived.
        let (answers, ids, _) = check(&[], &[&[expired(printed(1, 1))], &[printed(2, 1)]], false);
        assert_eq!(
            (answers[0].clone(), answers[1].clone()),
            (Some(Written::Done(vec![None])), None)
        );
        assert_eq!(ids, [id(1)]);
    }

    #[test]
    fn what_an_earlier_attempt_wrote_is_written() {
        let mine = [printed(1, 1), row(2)];
        for (again, expected) in [
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
            let (answers, ids, archive) = check(&mine, &[&mine[..1], &mine[1..]], again);
            assert_eq!(answers, expected, "{again}");
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
