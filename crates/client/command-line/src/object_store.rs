//! Arguments for object stores, and file names that name objects: `s3://bucket/key`.

use std::path::{Path, PathBuf};

/// Access to object stores. Their address and the account are in the standard variables.
#[derive(Debug, clap::Args)]
pub struct ObjectStoreArgs {
    /// Authority that issued the certificate of the object store, for names such as
    /// s3://bucket/file.parquet [default: AWS_CA_BUNDLE]. The store and the account are
    /// AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
    #[arg(long, value_name = "FILE")]
    pub s3_ca: Option<PathBuf>,
    /// Permit an object store at http:// on another machine: anyone on the network path can read
    /// the data
    #[arg(long)]
    pub s3_plain: bool,
}

impl ObjectStoreArgs {
    /// Returns the certificate file that a connection to the object store reads.
    pub fn files(&self) -> Option<PathBuf> {
        self.s3_ca
            .clone()
            .or_else(|| std::env::var_os("AWS_CA_BUNDLE").map(PathBuf::from))
    }
}

/// Returns true if a file's name is the name of an object.
pub fn is_object(name: &Path) -> bool {
    name.to_str().is_some_and(|name| name.starts_with("s3://"))
}
