//! Objects under load and kills. Each task makes groups of changes in a fixed sequence. After a
//! kill its objects must be those after some number of whole groups. Every term must lead to the
//! objects that hold the term.

use std::collections::HashMap;

use sealwire_store::{
    Clause, MapId, MapView, ObjectConflict, ObjectGroup, ObjectId, ObjectRow, ObjectStore as _,
    ObjectWrite, ObjectsWritten, StoreError, Term,
};
use sealwire_store_embedded::EmbeddedStore;
use sealwire_testkit::child::report;

const MAP: MapId = MapId {
    app: 3,
    collection: 5,
};
/// Map of objects that tasks contest.
const CONTESTED: MapId = MapId {
    app: 3,
    collection: 6,
};
const GENERATION: u64 = 1 << 40;
pub(super) const TASKS: u64 = 4;

/// The changes of objects that children reported as acknowledged.
#[derive(Default)]
pub(super) struct Acknowledged {
    /// Number of groups by round and task.
    groups: HashMap<(u64, u64), u64>,
    /// Holders of contested terms.
    holders: HashMap<u128, ObjectId>,
    fence: u64,
}

impl Acknowledged {
    /// Returns the number of acknowledged groups.
    pub(super) fn count(&self) -> u64 {
        self.groups.values().sum()
    }

    /// Adds a reported line, split at spaces. Returns false if the line is not of objects.
    pub(super) fn add(&mut self, line: &[&str]) -> bool {
        let number = |text: &str| text.parse().expect("a number");
        let wide = |text: &str| u128::from_str_radix(text, 16).expect("hexadecimal");
        match *line {
            ["group", round, task, count] => drop(
                self.groups
                    .insert((number(round), number(task)), number(count)),
            ),
            ["holder", term, id] => {
                let id = ObjectId(wide(id).to_be_bytes());
                assert_eq!(
                    *self.holders.entry(wide(term)).or_insert(id),
                    id,
                    "two objects got one unique term"
                );
            }
            ["fence", generation] => self.fence = number(generation),
            _ => return false,
        }
        true
    }
}

/// Makes the groups of one task without end, and reports those that are acknowledged.
pub(super) async fn load(store: &EmbeddedStore, round: u64, task: u64) -> Result<(), StoreError> {
    for count in 0.. {
        let written = write(store, MAP, changes(round, task, count)).await?;
        assert_eq!(
            written,
            ObjectsWritten::Done,
            "nobody else writes these objects"
        );
        report(&format!("group {round} {task} {}", count + 1));

        // All tasks want the term of this count.
        let term = u128::from(round) << 64 | u128::from(count);
        let contested = ObjectRow {
            unique: vec![Term {
                index: 1,
                hash: term.to_be_bytes(),
            }],
            ..object(round, task, count)
        };
        let id = contested.id;
        match write(store, CONTESTED, vec![ObjectWrite::Add(contested)]).await? {
            ObjectsWritten::Done => {
                report(&format!("holder {term:x} {:x}", u128::from_be_bytes(id.0)))
            }
            ObjectsWritten::Conflicts(conflicts) => {
                assert_eq!(conflicts, [(0, ObjectConflict::Unique { index: 1 })]);
            }
            ObjectsWritten::SubjectsChanged => unreachable!("no group claims a subject"),
        }
        if task == 0 {
            let generation = round << 32 | count;
            store.raise_fence(MAP, generation).await?;
            report(&format!("fence {generation}"));
        }
    }
    Ok(())
}

async fn write(
    store: &EmbeddedStore,
    map: MapId,
    writes: Vec<ObjectWrite>,
) -> Result<ObjectsWritten, StoreError> {
    let group = ObjectGroup {
        view: MapView {
            map,
            generation: GENERATION,
        },
        writes,
        subjects: Vec::new(),
    };
    store
        .write_objects(1, vec![group])
        .await
        .pop()
        .expect("one result")
}

/// Returns the changes of a group: two new objects, a replaced object and a removed object. The
/// first new object takes the unique term of the replaced object.
fn changes(round: u64, task: u64, count: u64) -> Vec<ObjectWrite> {
    let mut writes = Vec::new();
    if let Some(old) = count.checked_sub(1) {
        writes.push(ObjectWrite::Replace(replaced(round, task, old)));
    }
    if let Some(old) = count.checked_sub(2) {
        let id = replaced(round, task, old).id;
        let remove = ObjectWrite::Delete {
            id,
            version: Some(2),
        };
        writes.extend((!old.is_multiple_of(4)).then_some(remove));
    }
    let mut first = object(round, task, 2 * count);
    first.unique = vec![moving(round, task), own(&first)];
    let mut second = object(round, task, 2 * count + 1);
    second.unique = vec![own(&second)];
    writes.extend([first, second].map(ObjectWrite::Add));
    writes
}

/// Returns the first object of a group as the next group leaves it: without the term that moves on.
fn replaced(round: u64, task: u64, count: u64) -> ObjectRow {
    let first = object(round, task, 2 * count);
    let terms = vec![Term {
        index: 5,
        hash: u128::from(count % 5).to_be_bytes(),
    }];
    ObjectRow {
        version: 2,
        unique: vec![own(&first)],
        terms,
        ..first
    }
}

/// Returns the objects of a task after a number of groups, by id.
fn expected(round: u64, task: u64, groups: u64) -> HashMap<ObjectId, ObjectRow> {
    let mut objects = HashMap::new();
    for write in (0..groups).flat_map(|count| changes(round, task, count)) {
        match write {
            ObjectWrite::Add(row) | ObjectWrite::Replace(row) => drop(objects.insert(row.id, row)),
            ObjectWrite::Delete { id, .. } => drop(objects.remove(&id)),
            ObjectWrite::Expire { .. } | ObjectWrite::Erase { .. } => {
                unreachable!("no object expires or is erased")
            }
        }
    }
    objects
}

fn object(round: u64, task: u64, index: u64) -> ObjectRow {
    // An odd factor spreads ids over the key space, as real ids are, and keeps them distinct.
    let number = u128::from(round) << 96 | u128::from(task) << 64 | u128::from(index);
    let id = ObjectId(
        number
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
            .to_be_bytes(),
    );
    let mut sealed = [round, task, index].map(u64::to_be_bytes).concat();
    sealed.resize(120, 0xa5);
    let shared = |term: u64| Term {
        index: 4,
        hash: u128::from(term).to_be_bytes(),
    };
    ObjectRow {
        id,
        version: 1,
        created: 1,
        updated: 1,
        expires: None,
        archived: None,
        subject: None,
        key: [0; 5],
        tags: Vec::new(),
        unique: Vec::new(),
        terms: vec![shared(task), shared(TASKS + index % 7)],
        sealed: sealed.into(),
    }
}

/// The unique term that moves from object to object of a task.
fn moving(round: u64, task: u64) -> Term {
    Term {
        index: 2,
        hash: (u128::from(round) << 64 | u128::from(task)).to_be_bytes(),
    }
}

/// The unique term that an object holds as long as it exists.
fn own(object: &ObjectRow) -> Term {
    Term {
        index: 3,
        hash: object.id.0,
    }
}

/// Checks objects, terms and fences. Returns the number of objects.
pub(super) async fn verify(store: &EmbeddedStore, acknowledged: &Acknowledged) -> usize {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan_objects(after, 1_000).await.expect("reads");
        let Some((map, last)) = page.last() else {
            break;
        };
        after = Some((*map, last.id));
        all.extend(page);
    }
    let of = |map| {
        all.iter()
            .filter(move |(at, _)| *at == map)
            .map(|(_, row)| row)
    };
    check_groups(of(MAP), acknowledged);
    check_terms(store, MAP, &of(MAP).collect::<Vec<_>>(), acknowledged).await;
    check_terms(
        store,
        CONTESTED,
        &of(CONTESTED).collect::<Vec<_>>(),
        acknowledged,
    )
    .await;
    let held: HashMap<_, _> = of(CONTESTED)
        .map(|row| (u128::from_be_bytes(row.unique[0].hash), row.id))
        .collect();
    assert_eq!(
        held.len(),
        of(CONTESTED).count(),
        "two objects hold one unique term"
    );
    for (term, id) in &acknowledged.holders {
        assert_eq!(held.get(term), Some(id), "lost: the holder of {term:x}");
    }
    let fence = store
        .fences()
        .await
        .expect("reads")
        .first()
        .map_or(0, |(_, fence)| *fence);
    assert!(
        fence >= acknowledged.fence,
        "the fence {} is lost",
        acknowledged.fence
    );
    all.len()
}

/// The objects of each task must be those after all acknowledged groups, or after one more.
fn check_groups<'a>(rows: impl Iterator<Item = &'a ObjectRow>, acknowledged: &Acknowledged) {
    let mut found: HashMap<(u64, u64), HashMap<ObjectId, ObjectRow>> = HashMap::new();
    for row in rows {
        let number =
            |at: usize| u64::from_be_bytes(row.sealed[at..at + 8].try_into().expect("eight bytes"));
        found
            .entry((number(0), number(8)))
            .or_default()
            .insert(row.id, row.clone());
    }
    // A task whose first group was not acknowledged can have objects, too.
    for (round, task) in found.keys().chain(acknowledged.groups.keys()).copied() {
        let count = acknowledged
            .groups
            .get(&(round, task))
            .copied()
            .unwrap_or(0);
        let objects = found.get(&(round, task)).cloned().unwrap_or_default();
        let is_whole = [count, count + 1]
            .into_iter()
            .any(|groups| expected(round, task, groups) == objects);
        assert!(
            is_whole,
            "round {round}, task {task}: not the objects after {count} groups"
        );
    }
}

/// Every term leads to the objects that hold the term, also the terms of objects that are gone.
async fn check_terms(
    store: &EmbeddedStore,
    map: MapId,
    rows: &[&ObjectRow],
    acknowledged: &Acknowledged,
) {
    let mut holders: HashMap<(bool, Term), Vec<ObjectId>> = HashMap::new();
    for row in rows {
        row.unique
            .iter()
            .for_each(|term| holders.entry((true, *term)).or_default().push(row.id));
        row.terms
            .iter()
            .for_each(|term| holders.entry((false, *term)).or_default().push(row.id));
    }
    for (round, task) in acknowledged.groups.keys() {
        let gone = (0..=acknowledged.groups[&(*round, *task)])
            .flat_map(|count| changes(*round, *task, count));
        for row in gone.filter_map(|write| write.row().cloned()) {
            let unique = row.unique.iter().map(|term| (true, *term));
            for key in unique.chain(row.terms.iter().map(|term| (false, *term))) {
                holders.entry(key).or_default();
            }
        }
    }
    let view = MapView {
        map,
        generation: GENERATION,
    };
    for ((unique, term), ids) in &mut holders {
        ids.sort_unstable();
        let clause = Clause {
            unique: *unique,
            shared: !unique,
            terms: vec![*term],
        };
        let found = store
            .clause_ids(view, &clause, None, rows.len() + 10)
            .await
            .expect("reads");
        assert_eq!(found, *ids, "{term:?}");
    }
}
