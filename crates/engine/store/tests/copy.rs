//! Copies between all kinds of stores.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sealwire_crypto::Kek;

use sealwire_apps::Control;
use sealwire_store::copy::{Copied, CopyError, End, How, MARK, Progress, Side, copy};
use sealwire_store::{
    Clause, ControlStore, Filter, Fingerprint, FoundRow, Group, Instance, MapId, MapView,
    MemoryStore, ObjectGroup, ObjectId, ObjectRow, ObjectStore, ObjectsWritten, Page, Reseal, Row,
    Snapshot, StoreError, SubjectId, Sweep, Term, TokenId, TokenStore, Written,
};
use sealwire_store_embedded::{EmbeddedStore, embedded};
use sealwire_store_postgres::{PostgresOptions, PostgresStore, distribute};
use sealwire_testkit::{Citus, Database, Options, Postgres};

/// Returns rows of several maps in every state, more than two pages.
fn rows() -> Vec<(MapId, Row)> {
    let row = |number: u32| {
        let map = MapId {
            app: number % 3,
            collection: number % 2,
        };
        let archived = number.is_multiple_of(7).then_some(9);
        let row = Row {
            subject: None,
            id: TokenId(u128::from(number.wrapping_mul(0x9e37_79b9)).to_be_bytes()),
            fingerprint: (!number.is_multiple_of(5) && archived.is_none())
                .then(|| Fingerprint(u128::from(number).to_be_bytes())),
            sealed: number.to_string().into_bytes().into(),
            tags: (0..number % 3).map(|tag| tag.to_string()).collect(),
            expires: number.is_multiple_of(4).then_some(5),
            created: u64::from(number),
            archived,
        };
        (map, row)
    };
    (0..2_500).map(row).collect()
}

/// Returns objects of several maps in every state, more than a page.
fn objects() -> Vec<(MapId, ObjectRow)> {
    let term = |index, number: u32| Term {
        index,
        hash: u128::from(number).to_be_bytes(),
    };
    let object = |number: u32| {
        let archived = number.is_multiple_of(7).then_some(9);
        let (unique, terms) = match archived {
            None => (
                vec![term(1, number)],
                vec![term(1, number % 5), term(2, number % 2)],
            ),
            Some(_) => (Vec::new(), Vec::new()),
        };
        let object = ObjectRow {
            id: ObjectId(u128::from(number.wrapping_mul(0x9e37_79b9)).to_be_bytes()),
            version: u64::from(number) + 1,
            created: u64::from(number),
            updated: u64::from(number) + 5,
            expires: number.is_multiple_of(4).then_some(5),
            archived,
            subject: number.is_multiple_of(3).then_some(SubjectId([3; 16])),
            key: [number as u8; 5],
            tags: (0..number % 3).map(|tag| tag.to_string()).collect(),
            unique,
            terms,
            sealed: number.to_string().into_bytes().into(),
        };
        (
            MapId {
                app: number % 3,
                collection: 2 + number % 2,
            },
            object,
        )
    };
    (0..1_500).map(object).collect()
}

/// Fences, one of them of a map without objects.
const FENCES: [(MapId, u64); 2] = [
    (
        MapId {
            app: 0,
            collection: 2,
        },
        3,
    ),
    (
        MapId {
            app: 7,
            collection: 1,
        },
        12,
    ),
];

async fn filled() -> MemoryStore {
    let store = MemoryStore::default();
    store.put(&rows()).await.expect("writes");
    store.put_objects(&objects()).await.expect("writes");
    for (map, generation) in FENCES {
        store.raise_fence(map, generation).await.expect("writes");
    }
    let records = ["app/a", "app/b", "principal/cn/a", "principal/dns/b"]
        .map(|key| (key.to_owned(), key.as_bytes().to_vec()))
        .into();
    store
        .replace(
            0,
            &Snapshot {
                generation: 12,
                records,
            },
        )
        .await
        .expect("writes");
    store
}

/// Everything that a store holds.
#[derive(Debug, PartialEq)]
struct Content {
    control: Snapshot,
    rows: Vec<(MapId, Row)>,
    objects: Vec<(MapId, ObjectRow)>,
    fences: Vec<(MapId, u64)>,
}

async fn everything(store: &(impl ControlStore + TokenStore + ObjectStore)) -> Content {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(after, 1_000).await.expect("reads");
        let Some(last) = page.last().map(|(map, row)| (*map, row.id)) else {
            break;
        };
        after = Some(last);
        rows.extend(page);
    }
    let (mut objects, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan_objects(after, 1_000).await.expect("reads");
        let Some(last) = page.last().map(|(map, object)| (*map, object.id)) else {
            break;
        };
        after = Some(last);
        objects.extend(page);
    }
    let control = sealwire_store::everything(store).await.expect("reads");
    Content {
        control,
        rows,
        objects,
        fences: store.fences().await.expect("reads"),
    }
}

/// The terms of the copied objects find them.
async fn check_terms(store: &impl ObjectStore) {
    for (map, object) in objects().into_iter().step_by(50) {
        let view = MapView {
            map,
            generation: 100,
        };
        for (unique, term) in object
            .unique
            .iter()
            .map(|term| (true, term))
            .chain(object.terms.iter().map(|term| (false, term)))
        {
            let clause = Clause {
                unique,
                shared: !unique,
                terms: vec![*term],
            };
            let found = store
                .clause_ids(view, &clause, None, 10_000)
                .await
                .expect("reads");
            assert!(
                found.contains(&object.id) && (!unique || found.len() == 1),
                "{clause:?}"
            );
        }
    }
}

async fn copied(from: Side<'_>, to: Side<'_>) -> Result<Copied, CopyError> {
    copy(from, to, &mut |_| {}).await
}

#[tokio::test]
async fn a_copy_is_whole_and_says_how_far_it_is() {
    let source = filled().await;
    let folder = tempfile::tempdir().expect("makes one");
    let target = EmbeddedStore::open(folder.path(), &embedded::Options::default()).expect("opens");
    let mut steps = Vec::new();
    let done = copy(Side::of(&source), Side::of(&target), &mut |step| {
        steps.push(step)
    })
    .await
    .expect("copies");
    assert_eq!(
        done,
        Copied {
            records: 4,
            rows: 2_500,
            objects: 1_500,
            generation: 12,
            resumed: false
        }
    );
    assert_eq!(everything(&target).await, everything(&source).await);
    check_terms(&target).await;
    let copied = [1_000, 2_000, 2_500, 3_500, 4_000].map(Progress::Copied);
    let compared = [1_000, 2_000, 2_500, 3_000, 4_000, 4_000].map(Progress::Compared);
    assert_eq!(steps, [&copied[..], &compared].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_goes_from_embedded_to_postgresql_and_back() {
    let folder = tempfile::tempdir().expect("makes one");
    let source = EmbeddedStore::open(folder.path(), &embedded::Options::default()).expect("opens");
    copied(Side::of(&filled().await), Side::of(&source))
        .await
        .expect("copies");
    let server = Postgres::start(Options {
        fsync: false,
        ..Options::default()
    })
    .expect("starts");
    goes_there_and_back(&source, &server, &server.database().expect("starts"), false).await;
}

/// A copy to and from tables that Citus distributes. Runs on one server if there is no Citus.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_goes_to_citus_and_back() {
    let citus = Citus::start(
        &Options {
            fsync: false,
            ..Options::default()
        },
        3,
    )
    .expect("starts");
    match &citus {
        Some(citus) => {
            let database = citus.database().expect("starts");
            goes_there_and_back(&filled().await, citus.coordinator(), &database, true).await;
        }
        None => {
            let server = Postgres::start(Options {
                fsync: false,
                ..Options::default()
            })
            .expect("starts");
            goes_there_and_back(
                &filled().await,
                &server,
                &server.database().expect("starts"),
                false,
            )
            .await;
        }
    }
}

async fn goes_there_and_back(
    source: &(impl ControlStore + TokenStore + ObjectStore),
    server: &Postgres,
    database: &Database<'_>,
    distributes: bool,
) {
    let options = PostgresOptions::new(database.socket_url());
    let (password, timeout) = (Some(server.password().to_owned()), Duration::from_secs(60));
    let options = PostgresOptions {
        password,
        timeout,
        ..options
    };
    if distributes {
        distribute(options.clone(), None, false)
            .await
            .expect("distributes");
    }
    let target = PostgresStore::connect(options).await.expect("connects");
    let done = copied(Side::of(source), Side::of(&target))
        .await
        .expect("copies");
    assert_eq!(
        done,
        Copied {
            records: 4,
            rows: 2_500,
            objects: 1_500,
            generation: 12,
            resumed: false
        }
    );
    assert_eq!(everything(&target).await, everything(source).await);
    check_terms(&target).await;
    let error = copied(Side::of(source), Side::of(&target))
        .await
        .expect_err("not empty any more");
    assert!(matches!(error, CopyError::NotEmpty { .. }), "{error}");

    let back = MemoryStore::default();
    copied(Side::of(&target), Side::of(&back))
        .await
        .expect("copies");
    assert_eq!(everything(&back).await, everything(source).await);
    check_terms(&back).await;
}

#[tokio::test]
async fn a_generation_never_goes_back() {
    for (of_source, of_target, after) in [(0, 0, 2), (1, 0, 2), (9, 0, 9), (9, 30, 32)] {
        let (source, target) = (MemoryStore::default(), MemoryStore::default());
        for (store, generation) in [(&source, of_source), (&target, of_target)] {
            if generation > 0 {
                store
                    .replace(
                        0,
                        &Snapshot {
                            generation,
                            ..Snapshot::default()
                        },
                    )
                    .await
                    .expect("writes");
            }
        }
        let done = copied(Side::of(&source), Side::of(&target))
            .await
            .expect("copies");
        assert_eq!(done.generation, after, "{of_source}, {of_target}");
    }
}

#[tokio::test]
async fn a_target_that_is_not_empty_is_left_as_it_is() {
    let source = filled().await;
    let record = MemoryStore::default();
    record.commit(0, "app/x", Some(b"x")).await.expect("writes");
    let row = MemoryStore::default();
    row.put(&rows()[..1]).await.expect("writes");
    let object = MemoryStore::default();
    object.put_objects(&objects()[..1]).await.expect("writes");
    let fence = MemoryStore::default();
    fence.raise_fence(FENCES[0].0, 1).await.expect("writes");
    let cases = [
        (record, "app/x"),
        (row, "rows of token"),
        (object, "objects of coll"),
        (fence, "fences of coll"),
    ];
    for (target, names) in cases {
        let before = everything(&target).await;
        let error = copied(Side::of(&source), Side::of(&target))
            .await
            .expect_err("not empty");
        assert!(
            matches!(&error, CopyError::NotEmpty { what } if what.contains(names)),
            "{error}"
        );
        assert_eq!(everything(&target).await, before);
    }
}

#[tokio::test]
async fn a_side_that_is_served_is_refused() {
    let (source, target) = (filled().await, MemoryStore::default());
    let instance = Instance {
        id: "1".to_owned(),
        address: "10.0.0.1:7443".to_owned(),
        version: "0".to_owned(),
        generation: 1,
        age: Duration::ZERO,
    };
    for (store, served) in [(&source, End::Source), (&target, End::Target)] {
        store.beat(&instance).await.expect("beats");
        let error = copied(Side::of(&source), Side::of(&target))
            .await
            .expect_err("it is served");
        assert!(
            matches!(&error, CopyError::Served { end, address } if *end == served && address == "10.0.0.1:7443")
        );
        store.leave("1").await.expect("leaves");
    }
    copied(Side::of(&source), Side::of(&target))
        .await
        .expect("nobody serves them any more");
}

/// Content that a faulty target alters.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Altered {
    Nothing,
    Rows,
    Objects,
    Fences,
}

/// A target whose writes fail after some pages, or that alters its content.
struct Faulty<'a> {
    store: &'a MemoryStore,
    puts_left: std::sync::atomic::AtomicUsize,
    alters: Altered,
}

impl<'a> Faulty<'a> {
    fn new(store: &'a MemoryStore, puts: usize, alters: Altered) -> Self {
        Self {
            store,
            puts_left: puts.into(),
            alters,
        }
    }

    fn side(&'a self) -> Side<'a> {
        Side {
            control: self.store,
            tokens: self,
            objects: self,
        }
    }

    fn take_put(&self) -> Result<(), StoreError> {
        use std::sync::atomic::Ordering::Relaxed;
        let taken = self
            .puts_left
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        taken
            .map(drop)
            .map_err(|_| StoreError::Unavailable("cut off".to_owned()))
    }
}

#[async_trait]
impl TokenStore for Faulty<'_> {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        self.store.write(now, groups).await
    }
    async fn get(
        &self,
        now: u64,
        keys: &[(MapId, TokenId)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.store.get(now, keys).await
    }
    async fn find(
        &self,
        now: u64,
        keys: &[(MapId, Fingerprint)],
    ) -> Result<Vec<Option<FoundRow>>, StoreError> {
        self.store.find(now, keys).await
    }
    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        self.store.delete(map, ids).await
    }
    async fn expire(
        &self,
        now: u64,
        map: MapId,
        ids: &[TokenId],
        to: Option<u64>,
    ) -> Result<Vec<bool>, StoreError> {
        self.store.expire(now, map, ids, to).await
    }
    async fn list(
        &self,
        map: MapId,
        filter: &Filter,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.store.list(map, filter, after, limit).await
    }
    async fn archive(
        &self,
        now: u64,
        map: MapId,
        before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.store
            .archive(now, map, before, after, limit, dry_run)
            .await
    }
    async fn prune(
        &self,
        map: MapId,
        before: u64,
        after: Option<TokenId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64>, StoreError> {
        self.store.prune(map, before, after, limit, dry_run).await
    }
    async fn sweep(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<u64>, StoreError> {
        self.store.sweep(now, map, sweep, after, limit).await
    }
    async fn count_keys(
        &self,
        map: MapId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<u32, u64>>, StoreError> {
        self.store.count_keys(map, after, limit).await
    }
    async fn rows_of_other_keys(
        &self,
        map: MapId,
        number: u32,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Page<Vec<Row>>, StoreError> {
        self.store
            .rows_of_other_keys(map, number, after, limit)
            .await
    }
    async fn reseal(&self, map: MapId, rows: &[Reseal<TokenId>]) -> Result<Vec<bool>, StoreError> {
        self.store.reseal(map, rows).await
    }
    async fn subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.store.subject_rows(app, subject, after, limit).await
    }

    async fn erase_subject_rows(
        &self,
        app: u32,
        subject: SubjectId,
        version: u64,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Page<u64, (MapId, TokenId)>, StoreError> {
        self.store
            .erase_subject_rows(app, subject, version, after, limit)
            .await
    }

    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.store.next_map(after).await
    }
    async fn scan(
        &self,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.store.scan(after, limit).await
    }
    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        self.take_put()?;
        if self.alters != Altered::Rows {
            return self.store.put(rows).await;
        }
        let mut rows = rows.to_vec();
        rows[3].1.sealed = b"other".as_slice().into();
        rows[4].1.id.0[0] ^= 0xff;
        self.store.put(&rows).await
    }
}

#[async_trait]
impl ObjectStore for Faulty<'_> {
    async fn write_objects(
        &self,
        now: u64,
        groups: Vec<ObjectGroup>,
    ) -> Vec<Result<ObjectsWritten, StoreError>> {
        self.store.write_objects(now, groups).await
    }
    async fn get_objects(
        &self,
        now: u64,
        view: MapView,
        ids: &[ObjectId],
    ) -> Result<Vec<Option<ObjectRow>>, StoreError> {
        self.store.get_objects(now, view, ids).await
    }
    async fn count_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        cap: u32,
    ) -> Result<Vec<u32>, StoreError> {
        self.store.count_clauses(view, clauses, cap).await
    }
    async fn clause_ids(
        &self,
        view: MapView,
        clause: &Clause,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Vec<ObjectId>, StoreError> {
        self.store.clause_ids(view, clause, after, limit).await
    }
    async fn probe_clauses(
        &self,
        view: MapView,
        clauses: &[Clause],
        ids: &[ObjectId],
    ) -> Result<Vec<bool>, StoreError> {
        self.store.probe_clauses(view, clauses, ids).await
    }
    async fn list_objects(
        &self,
        view: MapView,
        filter: &Filter,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        self.store.list_objects(view, filter, after, limit).await
    }
    async fn subject_objects(
        &self,
        generation: u64,
        app: u32,
        subject: SubjectId,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        self.store
            .subject_objects(generation, app, subject, after, limit)
            .await
    }
    async fn sweep_objects(
        &self,
        now: u64,
        map: MapId,
        sweep: Sweep,
        after: Option<ObjectId>,
        limit: usize,
        dry_run: bool,
    ) -> Result<Page<u64, ObjectId>, StoreError> {
        self.store
            .sweep_objects(now, map, sweep, after, limit, dry_run)
            .await
    }
    async fn count_object_keys(
        &self,
        map: MapId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<BTreeMap<[u8; 5], u64>, ObjectId>, StoreError> {
        self.store.count_object_keys(map, after, limit).await
    }
    async fn objects_of_other_keys(
        &self,
        view: MapView,
        key: [u8; 5],
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<Page<Vec<ObjectRow>, ObjectId>, StoreError> {
        self.store
            .objects_of_other_keys(view, key, after, limit)
            .await
    }
    async fn reseal_objects(
        &self,
        view: MapView,
        key: [u8; 5],
        rows: &[Reseal<ObjectId>],
    ) -> Result<Vec<bool>, StoreError> {
        self.store.reseal_objects(view, key, rows).await
    }
    async fn next_object_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.store.next_object_map(after).await
    }
    async fn scan_objects(
        &self,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, ObjectRow)>, StoreError> {
        // Pages that are shorter than those of the other side, as of a store that counts other
        // bytes.
        self.store.scan_objects(after, limit.min(300)).await
    }
    async fn put_objects(&self, rows: &[(MapId, ObjectRow)]) -> Result<(), StoreError> {
        self.take_put()?;
        if self.alters != Altered::Objects {
            return self.store.put_objects(rows).await;
        }
        let mut rows = rows.to_vec();
        rows[3].1.sealed = b"other".as_slice().into();
        rows[4].1.id.0[0] ^= 0xff;
        self.store.put_objects(&rows).await
    }
    async fn raise_fence(&self, map: MapId, generation: u64) -> Result<(), StoreError> {
        let more = u64::from(self.alters == Altered::Fences);
        self.store.raise_fence(map, generation + more).await
    }
    async fn fences(&self) -> Result<Vec<(MapId, u64)>, StoreError> {
        self.store.fences().await
    }
}

#[tokio::test]
async fn a_copy_that_was_cut_short_goes_on_where_it_was() {
    let (source, target) = (filled().await, MemoryStore::default());
    for pages in 0..5_usize {
        // Each attempt writes one page: earlier pages are read, not written.
        let faulty = Faulty::new(&target, 1.min(pages), Altered::Nothing);
        let error = copied(Side::of(&source), faulty.side())
            .await
            .expect_err("cut off");
        assert!(matches!(
            error,
            CopyError::Store {
                end: End::Target,
                error: StoreError::Unavailable(_)
            }
        ));
        let there = everything(&target).await;
        // Three pages of rows come before two of objects.
        assert_eq!(
            (there.rows.len(), there.objects.len()),
            (2_500.min(1_000 * pages), 1_000 * pages.saturating_sub(3))
        );
        assert_eq!(
            there.fences, FENCES,
            "no engine with an old schema may use a part of a copy"
        );
        assert_eq!(
            there.control.records.keys().collect::<Vec<_>>(),
            [MARK],
            "no engine takes it for a store"
        );
        let error = copied(Side::of(&target), Side::of(&MemoryStore::default()))
            .await
            .expect_err("unfinished");
        assert!(matches!(error, CopyError::SourceUnfinished));
    }
    let kek = Kek::from_hex(&Kek::generate_hex().expect("random")).expect("whole");
    let refused = Control::new(Arc::new(target.clone()), kek)
        .load()
        .await
        .expect_err("nothing to serve")
        .to_string();
    assert!(
        refused.contains("was not finished; run it again"),
        "{refused}"
    );
    let done = copied(
        Side::of(&source),
        Faulty::new(&target, 1, Altered::Nothing).side(),
    )
    .await
    .expect("copies the last page");
    assert_eq!(
        done,
        Copied {
            records: 4,
            rows: 2_500,
            objects: 1_500,
            generation: 12,
            resumed: true
        }
    );
    assert_eq!(everything(&target).await, everything(&source).await);
}

#[tokio::test]
async fn a_part_of_another_copy_is_refused() {
    let (source, target) = (filled().await, MemoryStore::default());
    copied(
        Side::of(&source),
        Faulty::new(&target, 1, Altered::Nothing).side(),
    )
    .await
    .expect_err("cut off");
    source
        .commit(12, "app/c", Some(b"c"))
        .await
        .expect("writes");
    let error = copied(Side::of(&source), Side::of(&target))
        .await
        .expect_err("of another state");
    assert!(matches!(error, CopyError::OtherCopy), "{error}");
}

#[tokio::test]
async fn differences_are_named_and_the_mark_stays() {
    let source = filled().await;
    let Content { rows, objects, .. } = everything(&source).await;
    let place = |id: [u8; 16], map: MapId| {
        format!(
            "{:032x} of collection {} of app {}",
            u128::from_be_bytes(id),
            map.collection,
            map.app
        )
    };
    // Three pages of rows, two of objects and two fences, and numbers of content that is other,
    // missing and extra.
    let cases = [
        (
            Altered::Rows,
            (3, 3, 3),
            format!("row {} is not the same", place(rows[3].1.id.0, rows[3].0)),
        ),
        (
            Altered::Objects,
            (2, 2, 2),
            format!(
                "object {} is missing",
                place(objects[4].1.id.0, objects[4].0)
            ),
        ),
        (
            Altered::Fences,
            (2, 0, 0),
            "fence of collection 2 of app 0 is not the same".to_owned(),
        ),
    ];
    for (alters, (other, missing, extra), named) in cases {
        let target = MemoryStore::default();
        let faulty = Faulty::new(&target, 9, alters);
        let error = copied(Side::of(&source), faulty.side())
            .await
            .expect_err("it differs");
        let CopyError::Differs(differences) = &error else {
            panic!("{error}")
        };
        let of = |wanted| {
            differences
                .first
                .iter()
                .filter(|(how, _)| *how == wanted)
                .count()
        };
        assert_eq!(
            (of(How::Other), of(How::Missing), of(How::Extra)),
            (other, missing, extra),
            "{error}"
        );
        assert_eq!(
            differences.count,
            (other + missing + extra) as u64,
            "{error}"
        );
        assert!(error.to_string().contains(&named), "{error}");
        assert!(
            target
                .load()
                .await
                .expect("reads")
                .records
                .contains_key(MARK)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_source_that_changes_meanwhile_is_found_out() {
    let (source, target) = (filled().await, MemoryStore::default());
    let writes = source.clone();
    let once = Some(move || {
        let records = Snapshot {
            generation: 13,
            ..Snapshot::default()
        };
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(writes.replace(12, &records)))
            .expect("writes");
    });
    let error = tokio::spawn(async move {
        let mut change = once;
        copy(Side::of(&source), Side::of(&target), &mut |_| {
            if let Some(change) = change.take() {
                change();
            }
        })
        .await
        .expect_err("it changed")
    });
    assert!(matches!(
        error.await.expect("ends"),
        CopyError::Changed(End::Source)
    ));
}
