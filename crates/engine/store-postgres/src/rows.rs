//! Conversion of rows to statement parameters and from results.

use bytes::Bytes;

use super::session::Params;
use super::sqlstate::{SqlFault, damaged};
use sealwire_store::{Fingerprint, MapId, Row, SECONDS_MAX, StoreError, SubjectId, TokenId};

/// Columns of the table alias `t`, in the order that [`read_row`] expects.
macro_rules! columns {
    () => {
        "t.id, t.fingerprint, t.sealed, t.tags, t.expires, t.created, t.archived, t.subject"
    };
}
pub(super) use columns;

/// Returns a map's numbers in the database's types.
///
/// # Errors
/// If a number exceeds `i32::MAX`.
pub(super) fn map_numbers(map: MapId) -> Result<(i32, i32), StoreError> {
    match (map.app.try_into(), map.collection.try_into()) {
        (Ok(app), Ok(collection)) => Ok((app, collection)),
        _ => Err(damaged(
            "the number of an app or a collection is beyond 2147483647",
        )),
    }
}

/// Converts a time for comparisons. Times beyond the last valid row time are replaced by that time.
pub(super) fn db_seconds(time: u64) -> i64 {
    time.min(SECONDS_MAX) as i64
}

/// Maps and 16-byte keys, as parameters of `unnest`.
#[derive(Default)]
pub(super) struct Keys<'a> {
    apps: Vec<i32>,
    collections: Vec<i32>,
    keys: Vec<&'a [u8]>,
}

impl<'a> Keys<'a> {
    pub(super) fn push(&mut self, map: MapId, key: &'a [u8; 16]) -> Result<(), StoreError> {
        let (app, collection) = map_numbers(map)?;
        self.apps.push(app);
        self.collections.push(collection);
        self.keys.push(key);
        Ok(())
    }

    pub(super) fn params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 3] {
        [&self.apps, &self.collections, &self.keys]
    }

    /// Returns the parameters for a single key.
    pub(super) fn single_params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 3] {
        [&self.apps[0], &self.collections[0], &self.keys[0]]
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Rows as parameters of `unnest`: app, collection, id, fingerprint, sealed, tags, expires,
/// created, archived, subject.
pub(super) struct Columns<'a> {
    apps: Vec<i32>,
    collections: Vec<i32>,
    ids: Vec<&'a [u8]>,
    fingerprints: Vec<Option<&'a [u8]>>,
    sealed: Vec<&'a [u8]>,
    tags: Vec<Option<String>>,
    expires: Vec<Option<i64>>,
    created: Vec<i64>,
    archived: Vec<Option<i64>>,
    subjects: Vec<Option<&'a [u8]>>,
}

impl<'a> Columns<'a> {
    fn with_capacity(rows: usize) -> Self {
        Self {
            apps: Vec::with_capacity(rows),
            collections: Vec::with_capacity(rows),
            ids: Vec::with_capacity(rows),
            fingerprints: Vec::with_capacity(rows),
            sealed: Vec::with_capacity(rows),
            tags: Vec::with_capacity(rows),
            expires: Vec::with_capacity(rows),
            created: Vec::with_capacity(rows),
            archived: Vec::with_capacity(rows),
            subjects: Vec::with_capacity(rows),
        }
    }

    /// Converts rows in the given order. The caller must have checked the numbers of the maps.
    pub(super) fn from_rows(
        rows: impl IntoIterator<Item = (MapId, &'a Row), IntoIter: ExactSizeIterator>,
    ) -> Result<Self, StoreError> {
        let rows = rows.into_iter();
        let mut columns = Self::with_capacity(rows.len());
        for (map, row) in rows {
            let (app, collection) = map_numbers(map)?;
            columns.apps.push(app);
            columns.collections.push(collection);
            columns.ids.push(&row.id.0);
            columns
                .fingerprints
                .push(row.fingerprint.as_ref().map(|print| print.0.as_slice()));
            columns.sealed.push(&row.sealed);
            columns.tags.push(array_literal(&row.tags));
            columns.expires.push(row.expires.map(db_seconds));
            columns.created.push(db_seconds(row.created));
            columns.archived.push(row.archived.map(db_seconds));
            columns
                .subjects
                .push(row.subject.as_ref().map(|subject| subject.0.as_slice()));
        }

        Ok(columns)
    }

    pub(super) fn params(&self) -> [&(dyn tokio_postgres::types::ToSql + Sync); 10] {
        [
            &self.apps,
            &self.collections,
            &self.ids,
            &self.fingerprints,
            &self.sealed,
            &self.tags,
            &self.expires,
            &self.created,
            &self.archived,
            &self.subjects,
        ]
    }

    pub(super) fn apps(&self) -> &[i32] {
        &self.apps
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Formats tags as a PostgreSQL array literal, because `unnest` cannot take arrays of arrays.
pub(super) fn array_literal(tags: &[String]) -> Option<String> {
    if tags.is_empty() {
        return None;
    }

    let mut text = String::from("{");
    for tag in tags {
        text.push_str(if text.len() == 1 { "\"" } else { ",\"" });
        for symbol in tag.chars() {
            if matches!(symbol, '"' | '\\') {
                text.push('\\');
            }
            text.push(symbol);
        }

        text.push('"');
    }

    text.push('}');
    Some(text)
}

/// Number of [`columns`].
pub(super) const COLUMNS: usize = 8;

/// Reads the row whose [`columns`] start at index `at`.
pub(super) fn read_row(row: &tokio_postgres::Row, at: usize) -> Result<Row, SqlFault> {
    Ok(Row {
        id: TokenId(read_key(row, at)?),
        fingerprint: read_column::<Option<&[u8]>>(row, at + 1)?
            .map(to_key)
            .transpose()?
            .map(Fingerprint),
        sealed: Bytes::copy_from_slice(read_column(row, at + 2)?),
        tags: read_column::<Option<Vec<String>>>(row, at + 3)?.unwrap_or_default(),
        expires: read_column::<Option<i64>>(row, at + 4)?
            .map(to_time)
            .transpose()?,
        created: to_time(read_column(row, at + 5)?)?,
        archived: read_column::<Option<i64>>(row, at + 6)?
            .map(to_time)
            .transpose()?,
        subject: read_column::<Option<&[u8]>>(row, at + 7)?
            .map(to_key)
            .transpose()?
            .map(SubjectId),
    })
}

/// Reads the map whose app is at index `at`, followed by its collection.
pub(super) fn read_map(row: &tokio_postgres::Row, at: usize) -> Result<MapId, SqlFault> {
    Ok(MapId {
        app: read_number(row, at)?,
        collection: read_number(row, at + 1)?,
    })
}

fn read_number(row: &tokio_postgres::Row, at: usize) -> Result<u32, SqlFault> {
    u32::try_from(read_column::<i32>(row, at)?).map_err(|_| row_fault())
}

/// Reads a map and a row of the map. The map starts at index `at`.
pub(super) fn read_pair(row: &tokio_postgres::Row, at: usize) -> Result<(MapId, Row), SqlFault> {
    Ok((read_map(row, at)?, read_row(row, at + 2)?))
}

pub(super) fn read_key(row: &tokio_postgres::Row, at: usize) -> Result<[u8; 16], SqlFault> {
    to_key(read_column(row, at)?)
}

/// Reads a value of a result.
pub(super) fn read_column<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a tokio_postgres::Row,
    at: usize,
) -> Result<T, SqlFault> {
    row.try_get(at).map_err(|_| row_fault())
}

pub(super) fn to_key(bytes: &[u8]) -> Result<[u8; 16], SqlFault> {
    bytes.try_into().map_err(|_| row_fault())
}

pub(super) fn to_time(seconds: i64) -> Result<u64, SqlFault> {
    seconds.try_into().map_err(|_| row_fault())
}

pub(super) fn row_fault() -> SqlFault {
    SqlFault::Invalid("a row does not have the form in which this version writes rows".into())
}

/// Concatenates parameter lists.
pub(super) fn join_params<'a>(
    parts: &[Params<'a>],
) -> Vec<&'a (dyn tokio_postgres::types::ToSql + Sync)> {
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::array_literal;

    #[test]
    fn tags_are_written_as_an_array() {
        for (tags, expected) in [
            (&[][..], None),
            (&[""], Some(r#"{""}"#)),
            (&["a", "b,c"], Some(r#"{"a","b,c"}"#)),
            (
                &["NULL", "{}", r#"say "\""#, "ü \n"],
                Some("{\"NULL\",\"{}\",\"say \\\"\\\\\\\"\",\"ü \n\"}"),
            ),
        ] {
            let tags: Vec<String> = tags.iter().map(ToString::to_string).collect();
            assert_eq!(array_literal(&tags).as_deref(), expected, "{tags:?}");
        }
    }
}
