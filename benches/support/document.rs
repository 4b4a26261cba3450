//! Documents of a given number of fields, 16 bytes each, in rows of ten as in a batch job.

use std::sync::Arc;

use sealwire_crypto::{AppId, AppKeys, KeyMaterial, KeyState, KeyVersion, Suite};
use sealwire_msgpack::write;

/// The app that documents are sealed for.
pub const APP: &str = "bench";
/// Bytes of one field.
pub const FIELD_BYTES: usize = 16;

/// The keys of a row, in order.
const COLUMNS: [&str; 10] = [
    "id", "number", "name", "street", "city", "postcode", "country", "email", "phone", "note",
];

/// Makes `{"rows": [{"id": .., "number": .., ..}, ..]}` with `fields` strings in total.
///
/// # Panics
/// If `fields` does not fit 32 bits.
#[must_use]
pub fn document(fields: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(32 + fields * (FIELD_BYTES + 8));
    write::map_len(&mut out, 1);
    write::str(&mut out, "rows");
    write::array_len(
        &mut out,
        u32::try_from(fields.div_ceil(COLUMNS.len())).expect("fits"),
    );
    for row in (0..fields).step_by(COLUMNS.len()) {
        let columns = &COLUMNS[..COLUMNS.len().min(fields - row)];
        write::map_len(&mut out, u32::try_from(columns.len()).expect("fits"));
        for (column, name) in columns.iter().enumerate() {
            write::str(&mut out, name);
            write::str(&mut out, &format!("{:016}", row + column));
        }
    }
    out
}

/// Makes `[{"id": .., "number": ..}, ..]` with `rows` rows of an integer and a string.
///
/// # Panics
/// If `rows` does not fit 32 bits.
#[must_use]
pub fn rows(rows: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(8 + rows * (FIELD_BYTES + 20));
    write::array_len(&mut out, u32::try_from(rows).expect("fits"));
    for row in 0..rows {
        write::map_len(&mut out, 2);
        write::str(&mut out, COLUMNS[0]);
        write::uint(&mut out, 1_000_000 + row as u64);
        write::str(&mut out, COLUMNS[1]);
        write::str(&mut out, &format!("{row:016}"));
    }
    out
}

/// Makes keys of [`APP`], one version of each suite.
///
/// # Panics
/// If the random source fails.
#[must_use]
pub fn app_keys() -> Arc<AppKeys> {
    let app = AppId::new(APP).expect("a good name");
    let versions = Suite::ALL.map(|suite| {
        KeyVersion::new(
            1,
            KeyState::Active,
            KeyMaterial::generate(&app, suite).expect("makes a key"),
        )
    });
    Arc::new(AppKeys::new(app, versions.into()).expect("ids differ"))
}
