//! A common trait for token rows and objects, so that the same code copies both.

use super::Side;
use crate::{MapId, ObjectId, ObjectRow, Row, StoreError, TokenId};

/// Position of a row in the order of maps and ids.
pub(super) type Position<R> = (MapId, <R as CopiedRow>::Id);

/// A row that is copied unchanged, in the order of maps and ids.
pub(super) trait CopiedRow: PartialEq + Send + Sync + Sized {
    /// Id of a row; unique in its map.
    type Id: Copy + Ord + Send;
    /// Noun for messages.
    const NAME: &str;

    /// Returns the id.
    fn id(&self) -> Self::Id;

    /// Returns the bytes of an id.
    fn bytes(id: Self::Id) -> [u8; 16];

    /// Returns at most `limit` rows that follow `after`. An empty page means the end.
    fn scan(
        side: Side<'_>,
        after: Option<Position<Self>>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<(MapId, Self)>, StoreError>> + Send;

    /// Writes rows unchanged. Writes all rows or none.
    fn put(
        side: Side<'_>,
        rows: &[(MapId, Self)],
    ) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl CopiedRow for Row {
    type Id = TokenId;
    const NAME: &str = "row";

    fn id(&self) -> TokenId {
        self.id
    }

    fn bytes(id: TokenId) -> [u8; 16] {
        id.0
    }

    async fn scan(
        side: Side<'_>,
        after: Option<(MapId, TokenId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Self)>, StoreError> {
        side.tokens.scan(after, limit).await
    }

    async fn put(side: Side<'_>, rows: &[(MapId, Self)]) -> Result<(), StoreError> {
        side.tokens.put(rows).await
    }
}

impl CopiedRow for ObjectRow {
    type Id = ObjectId;
    const NAME: &str = "object";

    fn id(&self) -> ObjectId {
        self.id
    }

    fn bytes(id: ObjectId) -> [u8; 16] {
        id.0
    }

    async fn scan(
        side: Side<'_>,
        after: Option<(MapId, ObjectId)>,
        limit: usize,
    ) -> Result<Vec<(MapId, Self)>, StoreError> {
        side.objects.scan_objects(after, limit).await
    }

    async fn put(side: Side<'_>, rows: &[(MapId, Self)]) -> Result<(), StoreError> {
        side.objects.put_objects(rows).await
    }
}

/// Returns the position of the last row of a page.
pub(super) fn end_of<R: CopiedRow>(page: &[(MapId, R)]) -> Option<Position<R>> {
    page.last().map(|(map, row)| (*map, row.id()))
}
