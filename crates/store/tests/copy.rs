//! Copies between all kinds of stores.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sealwire_crypto::Kek;

use sealwire_apps::Control;
use sealwire_store::copy::{Copied, CopyError, End, How, MARK, Progress, Side, copy};
use sealwire_store::{
    ControlStore, Filter, Fingerprint, Group, Instance, MapId, MemoryStore, Page, Row, Snapshot, StoreError, Sweep,
    TokenId, TokenStore, Written,
};
use sealwire_store_embedded::{EmbeddedStore, embedded};
use sealwire_store_postgres::{PostgresOptions, PostgresStore};
use sealwire_testkit::{Options, Postgres};

/// Returns rows of several maps in every state, more than two pages.
fn rows() -> Vec<(MapId, Row)> {
    let row = |number: u32| {
        let map = MapId { app: number % 3, collection: number % 2 };
        let archived = number.is_multiple_of(7).then_some(9);
        let row = Row {
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

async fn filled() -> MemoryStore {
    let store = MemoryStore::default();
    store.put(&rows()).await.expect("writes");
    let records = ["app/a", "app/b", "principal/cn/a", "principal/dns/b"]
        .map(|key| (key.to_owned(), key.as_bytes().to_vec()))
        .into();
    store.replace(0, &Snapshot { generation: 12, records }).await.expect("writes");
    store
}

async fn everything(store: &(impl ControlStore + TokenStore)) -> (Snapshot, Vec<(MapId, Row)>) {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = store.scan(after, 1_000).await.expect("reads");
        let Some(last) = page.last().map(|(map, row)| (*map, row.id)) else {
            return (sealwire_store::everything(store).await.expect("reads"), rows);
        };
        after = Some(last);
        rows.extend(page);
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
    let done = copy(Side::of(&source), Side::of(&target), &mut |step| steps.push(step)).await.expect("copies");
    assert_eq!(done, Copied { records: 4, rows: 2_500, generation: 12, resumed: false });
    assert_eq!(everything(&target).await, everything(&source).await);
    let of = |step: fn(u64) -> Progress| [1_000, 2_000, 2_500].map(step);
    assert_eq!(steps, [of(Progress::Copied), of(Progress::Compared)].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_goes_from_embedded_to_postgresql_and_back() {
    let folder = tempfile::tempdir().expect("makes one");
    let source = EmbeddedStore::open(folder.path(), &embedded::Options::default()).expect("opens");
    copied(Side::of(&filled().await), Side::of(&source)).await.expect("copies");
    let server = Postgres::start(Options { fsync: false, ..Options::default() }).expect("starts");
    let database = server.database().expect("starts");
    let options = PostgresOptions::new(database.socket_url());
    let (password, timeout) = (Some(server.password().to_owned()), Duration::from_secs(60));
    let options = PostgresOptions { password, timeout, ..options };
    let target = PostgresStore::connect(options).await.expect("connects");
    let done = copied(Side::of(&source), Side::of(&target)).await.expect("copies");
    assert_eq!(done, Copied { records: 4, rows: 2_500, generation: 12, resumed: false });
    assert_eq!(everything(&target).await, everything(&source).await);
    let error = copied(Side::of(&source), Side::of(&target)).await.expect_err("not empty any more");
    assert!(matches!(error, CopyError::NotEmpty { .. }), "{error}");

    let back = MemoryStore::default();
    copied(Side::of(&target), Side::of(&back)).await.expect("copies");
    assert_eq!(everything(&back).await, everything(&source).await);
}

#[tokio::test]
async fn a_generation_never_goes_back() {
    for (of_source, of_target, after) in [(0, 0, 2), (1, 0, 2), (9, 0, 9), (9, 30, 32)] {
        let (source, target) = (MemoryStore::default(), MemoryStore::default());
        for (store, generation) in [(&source, of_source), (&target, of_target)] {
            if generation > 0 {
                store.replace(0, &Snapshot { generation, ..Snapshot::default() }).await.expect("writes");
            }
        }
        let done = copied(Side::of(&source), Side::of(&target)).await.expect("copies");
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
    for (target, names) in [(record, "app/x"), (row, "rows of token maps")] {
        let before = everything(&target).await;
        let error = copied(Side::of(&source), Side::of(&target)).await.expect_err("not empty");
        assert!(matches!(&error, CopyError::NotEmpty { what } if what.contains(names)), "{error}");
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
        let error = copied(Side::of(&source), Side::of(&target)).await.expect_err("it is served");
        assert!(matches!(&error, CopyError::Served { end, address } if *end == served && address == "10.0.0.1:7443"));
        store.leave("1").await.expect("leaves");
    }
    copied(Side::of(&source), Side::of(&target)).await.expect("nobody serves them any more");
}

/// A target whose writes fail after some pages, or that alters the rows.
struct Faulty<'a> {
    store: &'a MemoryStore,
    puts_left: std::sync::atomic::AtomicUsize,
    tampers: bool,
}

impl<'a> Faulty<'a> {
    fn new(store: &'a MemoryStore, puts: usize, tampers: bool) -> Self {
        Self { store, puts_left: puts.into(), tampers }
    }

    fn side(&'a self) -> Side<'a> {
        Side { control: self.store, tokens: self }
    }
}

#[async_trait]
impl TokenStore for Faulty<'_> {
    async fn write(&self, now: u64, groups: Vec<Group>) -> Vec<Result<Written, StoreError>> {
        self.store.write(now, groups).await
    }
    async fn get(&self, now: u64, keys: &[(MapId, TokenId)]) -> Result<Vec<Option<Row>>, StoreError> {
        self.store.get(now, keys).await
    }
    async fn find(&self, now: u64, keys: &[(MapId, Fingerprint)]) -> Result<Vec<Option<Row>>, StoreError> {
        self.store.find(now, keys).await
    }
    async fn delete(&self, map: MapId, ids: &[TokenId]) -> Result<Vec<bool>, StoreError> {
        self.store.delete(map, ids).await
    }
    async fn expire(&self, now: u64, map: MapId, ids: &[TokenId], to: Option<u64>) -> Result<Vec<bool>, StoreError> {
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
        self.store.archive(now, map, before, after, limit, dry_run).await
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
    async fn next_map(&self, after: Option<MapId>) -> Result<Option<MapId>, StoreError> {
        self.store.next_map(after).await
    }
    async fn scan(&self, after: Option<(MapId, TokenId)>, limit: usize) -> Result<Vec<(MapId, Row)>, StoreError> {
        self.store.scan(after, limit).await
    }
    async fn put(&self, rows: &[(MapId, Row)]) -> Result<(), StoreError> {
        use std::sync::atomic::Ordering::Relaxed;
        if self.puts_left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err() {
            return Err(StoreError::Unavailable("cut off".to_owned()));
        }
        if !self.tampers {
            return self.store.put(rows).await;
        }
        let mut rows = rows.to_vec();
        rows[3].1.sealed = b"other".as_slice().into();
        rows[4].1.id.0[0] ^= 0xff;
        self.store.put(&rows).await
    }
}

#[tokio::test]
async fn a_copy_that_was_cut_short_goes_on_where_it_was() {
    let (source, target) = (filled().await, MemoryStore::default());
    for pages in 0..3 {
        // Each attempt writes one page: earlier pages are read, not written.
        let faulty = Faulty::new(&target, 1.min(pages), false);
        let error = copied(Side::of(&source), faulty.side()).await.expect_err("cut off");
        assert!(matches!(error, CopyError::Store { end: End::Target, error: StoreError::Unavailable(_) }));
        let there = everything(&target).await;
        assert_eq!(there.1.len(), 1_000 * pages);
        assert_eq!(there.0.records.keys().collect::<Vec<_>>(), [MARK], "no engine takes it for a store");
        let error = copied(Side::of(&target), Side::of(&MemoryStore::default())).await.expect_err("unfinished");
        assert!(matches!(error, CopyError::SourceUnfinished));
    }
    let kek = Kek::from_hex(&Kek::generate_hex().expect("random")).expect("whole");
    let refused = Control::new(Arc::new(target.clone()), kek).load().await.expect_err("nothing to serve").to_string();
    assert!(refused.contains("was not finished; run it again"), "{refused}");
    let done = copied(Side::of(&source), Faulty::new(&target, 1, false).side()).await.expect("copies the last page");
    assert_eq!(done, Copied { records: 4, rows: 2_500, generation: 12, resumed: true });
    assert_eq!(everything(&target).await, everything(&source).await);
}

#[tokio::test]
async fn a_part_of_another_copy_is_refused() {
    let (source, target) = (filled().await, MemoryStore::default());
    copied(Side::of(&source), Faulty::new(&target, 1, false).side()).await.expect_err("cut off");
    source.commit(12, "app/c", Some(b"c")).await.expect("writes");
    let error = copied(Side::of(&source), Side::of(&target)).await.expect_err("of another state");
    assert!(matches!(error, CopyError::OtherCopy), "{error}");
}

#[tokio::test]
async fn what_differs_is_named_and_the_mark_stays() {
    let (source, target) = (filled().await, MemoryStore::default());
    let error = copied(Side::of(&source), Faulty::new(&target, 9, true).side()).await.expect_err("it differs");
    let CopyError::Differs(differences) = &error else { panic!("{error}") };
    let of = |wanted| differences.first.iter().filter(|(how, _)| *how == wanted).count();
    assert_eq!((differences.count, of(How::Other), of(How::Missing), of(How::Extra)), (9, 3, 3, 3), "{error}");
    let (map, row) = &everything(&source).await.1[3];
    let named = format!(
        "row {:032x} of collection {} of app {} is not the same",
        u128::from_be_bytes(row.id.0),
        map.collection,
        map.app
    );
    assert!(error.to_string().contains(&named), "{error}");
    assert!(target.load().await.expect("reads").records.contains_key(MARK));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_source_that_changes_meanwhile_is_found_out() {
    let (source, target) = (filled().await, MemoryStore::default());
    let writes = source.clone();
    let once = Some(move || {
        let records = Snapshot { generation: 13, ..Snapshot::default() };
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(writes.replace(12, &records))).expect("writes");
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
    assert!(matches!(error.await.expect("ends"), CopyError::Changed(End::Source)));
}
