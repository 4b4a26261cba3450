//! Inserts objects and terms in one statement, which also checks fences.

use std::collections::{BTreeMap, HashSet};

use super::rows::{HeldTerm, ObjectColumns, TermColumns, generation};
use crate::rows::{column, joined, map, numbers};
use crate::session::{Params, Session};
use crate::sqlstate::SqlFault;
use crate::write::refused;
use sealwire_store::{MapId, ObjectGroup, ObjectRow, ObjectWrite, SubjectClaim};

/// `$1` to `$3`: maps and the lowest generation that uses each. Returns a line without a map, and the fences above these
/// generations. If there is a fence, nothing is written. The counts fix the order in which the tables are written.
pub(super) static INSERT: &str = "WITH fenced AS MATERIALIZED (
        SELECT f.app, f.collection, f.generation
        FROM unnest($1::int4[], $2::int4[], $3::int8[]) AS i(app, collection, generation)
        JOIN sealwire.object_fences f ON f.app = i.app AND f.collection = i.collection
        WHERE f.generation > i.generation
    ), objects AS (
        INSERT INTO sealwire.objects (app, collection, id, version, created, updated, expires, archived, subject, key,
            tags, terms, sealed)
        SELECT i.app, i.collection, i.id, i.version, i.created, i.updated, i.expires, i.archived, i.subject, i.key,
            i.tags::text[], i.terms, i.sealed
        FROM unnest($4::int4[], $5::int4[], $6::bytea[], $7::int8[], $8::int8[], $9::int8[], $10::int8[], $11::int8[],
                $12::bytea[], $13::bytea[], $14::text[], $15::bytea[], $16::bytea[])
            AS i(app, collection, id, version, created, updated, expires, archived, subject, key, tags, terms, sealed)
        WHERE NOT EXISTS (SELECT 1 FROM fenced)
        RETURNING 1
    ), unique_terms AS (
        INSERT INTO sealwire.object_unique (app, collection, index_number, hash, id)
        SELECT i.app, i.collection, i.index_number, i.hash, i.id
        FROM unnest($17::int4[], $18::int4[], $19::int8[], $20::bytea[], $21::bytea[])
            AS i(app, collection, index_number, hash, id)
        WHERE NOT EXISTS (SELECT 1 FROM fenced)
        RETURNING 1
    ), terms AS (
        INSERT INTO sealwire.object_terms (app, collection, index_number, hash, id)
        SELECT i.app, i.collection, i.index_number, i.hash, i.id
        FROM unnest($22::int4[], $23::int4[], $24::int8[], $25::bytea[], $26::bytea[])
            AS i(app, collection, index_number, hash, id)
        WHERE NOT EXISTS (SELECT 1 FROM fenced)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM objects), (SELECT count(*) FROM unique_terms), (SELECT count(*) FROM terms),
        f.app, f.collection, f.generation
    FROM (SELECT 1) AS one LEFT JOIN fenced f ON true";

/// Fences of maps.
pub(super) type Fences = BTreeMap<MapId, u64>;

/// Inserts objects in the given order, and terms. Writes nothing if the fence of a map is above the generation that is
/// given for the map. Returns these fences.
pub(super) async fn insert(
    session: &Session,
    maps: &[(MapId, u64)],
    rows: Vec<(MapId, &ObjectRow)>,
    unique: Vec<HeldTerm<'_>>,
    terms: Vec<HeldTerm<'_>>,
) -> Result<Fences, SqlFault> {
    let (mut apps, mut collections, mut generations) = (Vec::new(), Vec::new(), Vec::new());
    for (map, lowest) in maps {
        let (app, collection) = numbers(*map).map_err(refused)?;
        apps.push(app);
        collections.push(collection);
        generations.push(generation(*lowest));
    }
    let rows = ObjectColumns::of(rows).map_err(refused)?;
    let unique = TermColumns::sorted(unique).map_err(refused)?;
    let terms = TermColumns::sorted(terms).map_err(refused)?;
    let maps: Params<'_> = &[&apps, &collections, &generations];
    let all = [maps, &rows.params(), &unique.params(), &terms.params()];
    let mut fences = Fences::new();
    for line in session.query(INSERT, &joined(&all)).await? {
        if column::<Option<i32>>(&line, 3)?.is_some() {
            fences.insert(map(&line, 3)?, column::<i64>(&line, 5)?.try_into().unwrap_or(0));
        }
    }
    Ok(fences)
}

/// The objects of groups that only add objects, in the order of keys.
pub(super) struct NewObjects<'a> {
    rows: Vec<(MapId, &'a ObjectRow)>,
    maps: Vec<(MapId, u64)>,
}

impl<'a> NewObjects<'a> {
    /// Returns `None` if one statement cannot write the groups. Such groups have other writes or invalid rows, two rows
    /// with the same id or unique term, or claims of subject keys that must be compared.
    pub(super) fn of(groups: &[&'a ObjectGroup]) -> Option<Self> {
        let (mut rows, mut maps) = (Vec::new(), BTreeMap::new());
        let (mut ids, mut terms) = (HashSet::new(), HashSet::new());
        for group in groups {
            let map = group.view.map;
            for view in group.views() {
                let lowest = maps.entry(view.map).or_insert(view.generation);
                *lowest = view.generation.min(*lowest);
            }
            let subjects = MapId::of_subjects(map.app);
            let new_keys = group.subjects.iter().map(|claim| match claim {
                SubjectClaim::New(row) if row.version == 1 => Some((subjects, row)),
                _ => None,
            });
            let objects = group.writes.iter().map(|write| match write {
                ObjectWrite::Add(row) => Some((map, row)),
                _ => None,
            });
            for new in new_keys.chain(objects) {
                let (map, row) = new?;
                let is_new = ids.insert((map, row.id)) && row.unique.iter().all(|term| terms.insert((map, term)));
                if !is_new || row.archived.is_some() || row.check_times().is_err() {
                    return None;
                }
                rows.push((map, row));
            }
        }
        rows.sort_unstable_by_key(|(map, row)| (*map, row.id));
        Some(Self { rows, maps: maps.into_iter().collect() })
    }

    /// Writes all objects in one statement, unless a fence keeps out one of the groups. Returns such fences.
    pub(super) async fn insert(self, session: &Session) -> Result<Fences, SqlFault> {
        let held = |terms: fn(&ObjectRow) -> &Vec<sealwire_store::Term>| {
            let of_row = |(map, row): &(MapId, &'a ObjectRow)| {
                let (map, id) = (*map, &row.id);
                terms(row).iter().map(move |term| (map, term, id))
            };
            self.rows.iter().flat_map(of_row).collect::<Vec<_>>()
        };
        let (unique, terms) = (held(|row| &row.unique), held(|row| &row.terms));
        insert(session, &self.maps, self.rows, unique, terms).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_store::suite::objects::{id, object, unique};
    use sealwire_store::{MapView, SECONDS_MAX};

    fn map(collection: u32) -> MapId {
        MapId { app: 1, collection }
    }

    #[test]
    fn one_statement_takes_valid_new_objects_only() {
        let add = |row: &ObjectRow| ObjectWrite::Add(row.clone());
        let one = unique(1, &[(1, 1)]);
        let cases: [(u32, ObjectWrite, bool); 8] = [
            (1, add(&unique(2, &[(1, 2)])), true),
            (2, add(&one), true),
            (1, add(&object(1)), false),
            (1, add(&unique(2, &[(1, 1)])), false),
            (1, add(&ObjectRow { archived: Some(1), ..object(2) }), false),
            (1, add(&ObjectRow { updated: SECONDS_MAX + 1, ..object(2) }), false),
            (1, ObjectWrite::Replace(object(2)), false),
            (1, ObjectWrite::Delete { id: id(2), version: None }, false),
        ];
        for (collection, write, fits) in cases {
            let group = |collection, generation, writes| ObjectGroup {
                view: MapView { map: map(collection), generation },
                writes,
                subjects: Vec::new(),
            };
            let groups = [group(collection, 6, vec![write]), group(1, 5, vec![]), group(1, 7, vec![add(&one)])];
            let new = NewObjects::of(&groups.iter().collect::<Vec<_>>());
            assert_eq!(new.is_some(), fits, "{groups:?}");
            if let Some(new) = new {
                assert!(new.rows.is_sorted_by_key(|(map, row)| (*map, row.id)));
                assert_eq!(new.maps[0], (map(1), 5));
            }
        }
    }
}
