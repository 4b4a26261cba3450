//! Inserts objects and terms in one statement, which also checks fences and claims of subject keys.

use std::collections::{BTreeMap, HashSet};

use tokio::time::Instant;

use super::insert_apart;
use super::rows::{HeldTerm, ObjectColumns, TermColumns, to_db_generation, to_db_version};
use crate::rows::{Keys, join_params, map_numbers, read_column};
use crate::session::{Params, Session};
use crate::sqlstate::SqlFault;
use crate::write::invalid_fault;
use sealwire_store::{
    MapId, ObjectGroup, ObjectId, ObjectRow, ObjectWrite, StoreError, SubjectClaim,
};

/// `$1` to `$3`: maps, and the lowest generation that uses each map. `$27` to `$30`: rows of
/// subject keys, and the version that each must have. The last column is true if no fence is above
/// these generations and all keys have these versions. Otherwise nothing is written. The locks
/// prevent changes of the keys until the objects are committed. The counts fix the order in which
/// the tables are written.
pub(super) static INSERT: &str = "WITH fenced AS MATERIALIZED (
        SELECT 1
        FROM unnest($1::int4[], $2::int4[], $3::int8[]) AS i(app, collection, generation)
        JOIN sealwire.object_fences f ON f.app = i.app AND f.collection = i.collection
        WHERE f.generation > i.generation
    ), claimed AS MATERIALIZED (
        SELECT 1
        FROM unnest($27::int4[], $28::int4[], $29::bytea[], $30::int8[]) AS i(app, collection, id, version)
        JOIN sealwire.objects t ON t.app = i.app AND t.collection = i.collection AND t.id = i.id AND t.version = i.version
        ORDER BY t.app, t.collection, t.id FOR SHARE OF t
    ), permitted AS MATERIALIZED (
        SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM fenced)
            AND (SELECT count(*) FROM claimed) = cardinality($27::int4[])
    ), objects AS (
        INSERT INTO sealwire.objects (app, collection, id, version, created, updated, expires, archived, subject, key,
            tags, terms, sealed)
        SELECT i.app, i.collection, i.id, i.version, i.created, i.updated, i.expires, i.archived, i.subject, i.key,
            i.tags::text[], i.terms, i.sealed
        FROM unnest($4::int4[], $5::int4[], $6::bytea[], $7::int8[], $8::int8[], $9::int8[], $10::int8[], $11::int8[],
                $12::bytea[], $13::bytea[], $14::text[], $15::bytea[], $16::bytea[])
            AS i(app, collection, id, version, created, updated, expires, archived, subject, key, tags, terms, sealed)
        WHERE EXISTS (SELECT 1 FROM permitted)
        RETURNING 1
    ), unique_terms AS (
        INSERT INTO sealwire.object_unique (app, collection, index_number, hash, id)
        SELECT i.app, i.collection, i.index_number, i.hash, i.id
        FROM unnest($17::int4[], $18::int4[], $19::int8[], $20::bytea[], $21::bytea[])
            AS i(app, collection, index_number, hash, id)
        WHERE EXISTS (SELECT 1 FROM permitted)
        RETURNING 1
    ), terms AS (
        INSERT INTO sealwire.object_terms (app, collection, index_number, hash, id)
        SELECT i.app, i.collection, i.index_number, i.hash, i.id
        FROM unnest($22::int4[], $23::int4[], $24::int8[], $25::bytea[], $26::bytea[])
            AS i(app, collection, index_number, hash, id)
        WHERE EXISTS (SELECT 1 FROM permitted)
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM objects), (SELECT count(*) FROM unique_terms), (SELECT count(*) FROM terms),
        EXISTS (SELECT 1 FROM permitted)";

/// Fences of maps.
pub(super) type Fences = BTreeMap<MapId, u64>;

/// Conditions under which objects are inserted.
#[derive(Debug, Default)]
pub(super) struct Conditions {
    /// Maps, and the generation that the map's fence must not exceed.
    maps: BTreeMap<MapId, u64>,
    /// Rows of subject keys, and the version that each must have.
    claims: BTreeMap<(MapId, ObjectId), u64>,
}

/// Everything that an insert sends to the database.
pub(super) struct InsertParams<'a> {
    pub(super) apps: Vec<i32>,
    pub(super) collections: Vec<i32>,
    pub(super) generations: Vec<i64>,
    pub(super) rows: ObjectColumns<'a>,
    pub(super) unique: TermColumns<'a>,
    pub(super) terms: TermColumns<'a>,
    pub(super) keys: Keys<'a>,
    pub(super) versions: Vec<i64>,
}

impl<'a> InsertParams<'a> {
    fn new(
        conditions: &'a Conditions,
        rows: Vec<(MapId, &'a ObjectRow)>,
        unique: Vec<HeldTerm<'a>>,
        terms: Vec<HeldTerm<'a>>,
    ) -> Result<Self, StoreError> {
        let mut apps = Vec::new();
        let mut collections = Vec::new();
        let mut generations = Vec::new();
        for (map, lowest) in &conditions.maps {
            let (app, collection) = map_numbers(*map)?;
            apps.push(app);
            collections.push(collection);
            generations.push(to_db_generation(*lowest));
        }

        let mut keys = Keys::default();
        let mut versions = Vec::new();
        for ((map, id), claimed) in &conditions.claims {
            keys.push(*map, &id.0)?;
            versions.push(to_db_version(*claimed)?);
        }

        let rows = ObjectColumns::from_rows(rows)?;
        let unique = TermColumns::from_unsorted(unique)?;
        let terms = TermColumns::from_unsorted(terms)?;
        Ok(Self {
            apps,
            collections,
            generations,
            rows,
            unique,
            terms,
            keys,
            versions,
        })
    }
}

/// Inserts objects in the given order, and terms. Returns false, and writes nothing, if a condition
/// does not hold. If Citus distributes the tables, a transaction must be open and `conditions` must
/// be empty.
pub(super) async fn insert_objects(
    session: &Session,
    conditions: &Conditions,
    rows: Vec<(MapId, &ObjectRow)>,
    unique: Vec<HeldTerm<'_>>,
    terms: Vec<HeldTerm<'_>>,
) -> Result<bool, SqlFault> {
    let params = InsertParams::new(conditions, rows, unique, terms).map_err(invalid_fault)?;
    if session.is_distributed() {
        return insert_apart::insert_by_table(session, &params)
            .await
            .map(|()| true);
    }

    let maps: Params<'_> = &[&params.apps, &params.collections, &params.generations];
    let versions: Params<'_> = &[&params.versions];
    let InsertParams {
        rows,
        unique,
        terms,
        keys,
        ..
    } = &params;
    let all = [
        maps,
        &rows.params(),
        &unique.params(),
        &terms.params(),
        &keys.params(),
        versions,
    ];
    let lines = session.query(INSERT, &join_params(&all)).await?;
    lines.first().map_or(Ok(false), |line| read_column(line, 3))
}

/// The objects of groups that only add objects, in the order of keys.
pub(super) struct NewObjects<'a> {
    rows: Vec<(MapId, &'a ObjectRow)>,
    conditions: Conditions,
}

impl<'a> NewObjects<'a> {
    /// Returns `None` if one statement cannot write the groups. Such groups have other writes or
    /// invalid rows, two rows with the same id or unique term, or claims that change subject keys
    /// or contradict each other.
    pub(super) fn from_groups(groups: &[&'a ObjectGroup]) -> Option<Self> {
        let mut rows = Vec::new();
        let Conditions {
            mut maps,
            mut claims,
        } = Conditions::default();
        let mut ids = HashSet::new();
        let mut terms = HashSet::new();
        for group in groups {
            let map = group.view.map;
            for view in group.views() {
                let lowest = maps.entry(view.map).or_insert(view.generation);
                *lowest = view.generation.min(*lowest);
            }
            let subjects = MapId::of_subjects(map.app);
            let mut added = Vec::with_capacity(group.len());
            for claim in &group.subjects {
                match claim {
                    SubjectClaim::New(row) if row.version == 1 => added.push((subjects, row)),
                    SubjectClaim::Current { version, .. } if version % 2 == 1 => {
                        let claimed = claims.entry((subjects, claim.row_id())).or_insert(*version);
                        if claimed != version {
                            return None;
                        }
                    }
                    _ => return None,
                }
            }

            for write in &group.writes {
                let ObjectWrite::Add(row) = write else {
                    return None;
                };
                added.push((map, row));
            }

            for (map, row) in added {
                let is_new = ids.insert((map, row.id))
                    && row.unique.iter().all(|term| terms.insert((map, term)));
                if !is_new || row.archived.is_some() || row.check_times().is_err() {
                    return None;
                }
                rows.push((map, row));
            }
        }

        rows.sort_unstable_by_key(|(map, row)| (*map, row.id));
        Some(Self {
            rows,
            conditions: Conditions { maps, claims },
        })
    }

    /// Writes all objects in one statement, or in one transaction if Citus distributes the tables.
    /// Returns false, and writes nothing, if a fence rejects one of the groups or a claim does not
    /// hold.
    pub(super) async fn insert_all(
        self,
        session: &Session,
        deadline: Instant,
    ) -> Result<bool, SqlFault> {
        let mut unique = Vec::new();
        let mut terms = Vec::new();
        for (map, row) in &self.rows {
            unique.extend(row.unique.iter().map(|term| (*map, term, &row.id)));
            terms.extend(row.terms.iter().map(|term| (*map, term, &row.id)));
        }

        if !session.is_distributed() {
            return insert_objects(session, &self.conditions, self.rows, unique, terms).await;
        }

        let params =
            InsertParams::new(&self.conditions, self.rows, unique, terms).map_err(invalid_fault)?;
        insert_apart::insert_in_transaction(session, &params, deadline).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealwire_store::contract_tests::objects::{id, object, unique};
    use sealwire_store::{MapView, SECONDS_MAX, SubjectId};

    fn map(collection: u32) -> MapId {
        MapId { app: 1, collection }
    }

    #[test]
    fn single_statement_accepts_claims_that_it_can_check() {
        let current = |n: u8, version| SubjectClaim::Current {
            id: SubjectId([n; 16]),
            version,
        };
        let key = |n: u8, version| ObjectRow {
            id: ObjectId([n; 16]),
            version,
            ..object(0)
        };
        // Claims of two groups, and the claims and rows of the statement, if there is one.
        type Case = (Vec<SubjectClaim>, Vec<SubjectClaim>, Option<(usize, usize)>);
        let cases: [Case; 9] = [
            (vec![current(1, 1)], vec![current(2, 3)], Some((2, 2))),
            (vec![current(1, 1)], vec![current(1, 1)], Some((1, 2))),
            (vec![current(1, 1)], vec![current(1, 3)], None),
            (
                vec![SubjectClaim::New(key(1, 1))],
                vec![current(2, 1)],
                Some((1, 3)),
            ),
            (
                vec![SubjectClaim::New(key(1, 1))],
                vec![SubjectClaim::New(key(1, 1))],
                None,
            ),
            (vec![SubjectClaim::New(key(1, 3))], vec![], None),
            (vec![current(1, 2)], vec![], None),
            (vec![SubjectClaim::Erased(key(1, 2))], vec![], None),
            (vec![], vec![], Some((0, 2))),
        ];
        for (first, second, expected) in cases {
            let group = |n, subjects| ObjectGroup {
                view: MapView {
                    map: map(1),
                    generation: 5,
                },
                writes: vec![ObjectWrite::Add(object(n))],
                subjects,
            };
            let groups = [group(1, first), group(2, second)];
            let new = NewObjects::from_groups(&groups.iter().collect::<Vec<_>>());
            let found = new
                .as_ref()
                .map(|new| (new.conditions.claims.len(), new.rows.len()));
            assert_eq!(found, expected, "{groups:?}");
            let fences = new.map(|new| new.conditions.maps.len());
            let has_claims = groups.iter().any(|group| !group.subjects.is_empty());
            assert!(
                fences.is_none_or(|fences| fences == 1 + usize::from(has_claims)),
                "{groups:?}"
            );
        }
    }

    #[test]
    fn single_statement_accepts_only_valid_new_objects() {
        let add = |row: &ObjectRow| ObjectWrite::Add(row.clone());
        let one = unique(1, &[(1, 1)]);
        let cases: [(u32, ObjectWrite, bool); 8] = [
            (1, add(&unique(2, &[(1, 2)])), true),
            (2, add(&one), true),
            (1, add(&object(1)), false),
            (1, add(&unique(2, &[(1, 1)])), false),
            (
                1,
                add(&ObjectRow {
                    archived: Some(1),
                    ..object(2)
                }),
                false,
            ),
            (
                1,
                add(&ObjectRow {
                    updated: SECONDS_MAX + 1,
                    ..object(2)
                }),
                false,
            ),
            (1, ObjectWrite::Replace(object(2)), false),
            (
                1,
                ObjectWrite::Delete {
                    id: id(2),
                    version: None,
                },
                false,
            ),
        ];
        for (collection, write, fits) in cases {
            let group = |collection, generation, writes| ObjectGroup {
                view: MapView {
                    map: map(collection),
                    generation,
                },
                writes,
                subjects: Vec::new(),
            };
            let groups = [
                group(collection, 6, vec![write]),
                group(1, 5, vec![]),
                group(1, 7, vec![add(&one)]),
            ];
            let new = NewObjects::from_groups(&groups.iter().collect::<Vec<_>>());
            assert_eq!(new.is_some(), fits, "{groups:?}");
            if let Some(new) = new {
                assert!(new.rows.is_sorted_by_key(|(map, row)| (*map, row.id)));
                assert_eq!(new.conditions.maps[&map(1)], 5);
            }
        }
    }
}
