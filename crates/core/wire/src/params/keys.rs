//! Params of the methods on the rows of key versions, and on old records.

/// The params of `keys.census`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CensusCall<'a> {
    /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// Fail with `conflict` while an engine could still write under an older key version.
    pub prove: bool,
    /// The `next` of the page before.
    pub after: Option<&'a str>,
    /// Rows to look at, 1 to 10,000; `None` is 1,000.
    pub limit: Option<u32>,
}

/// The params of `keys.rewrap`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RewrapRowsCall<'a> {
    /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// The collection; `None`: all of them.
    pub collection: Option<&'a str>,
    /// The `next` of the page before.
    pub after: Option<&'a str>,
    /// Rows to seal again, 1 to 500; `None` is 100.
    pub limit: Option<u32>,
}

/// The params of `collections.migrate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrateCall<'a> {
    /// The app. `[A-Za-z0-9._-]`, 1 to 64 bytes.
    pub app: &'a str,
    /// The collection of objects.
    pub collection: &'a str,
    /// Also convert records that do not prove who sealed them.
    pub accept_unauthenticated: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// The `next` of the page before.
    pub after: Option<&'a str>,
    /// Rows to look at, 1 to 500; `None` is 100.
    pub limit: Option<u32>,
}
