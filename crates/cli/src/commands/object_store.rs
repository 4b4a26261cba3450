//! Names of files that can be objects: `s3://bucket/key`.

use std::path::{Path, PathBuf};

use sealwire_data::mask_job::{Input, Output, S3Object, S3Settings, S3Store};

use super::Failure;

/// How object stores are reached. Where they are, and the account, are in the standard variables.
#[derive(Debug, clap::Args)]
pub(super) struct ObjectStoreArgs {
    /// Authority that issued the certificate of the object store, for names such as
    /// s3://bucket/file.parquet [default: AWS_CA_BUNDLE]. The store and the account are
    /// AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN
    #[arg(long, value_name = "FILE")]
    s3_ca: Option<PathBuf>,
    /// Permit an object store at http:// on another machine: all on the way can read the data
    #[arg(long)]
    s3_plain: bool,
}

impl ObjectStoreArgs {
    /// Returns the file of certificates that a connection to the object store reads.
    pub(super) fn files(&self) -> Option<PathBuf> {
        self.s3_ca
            .clone()
            .or_else(|| std::env::var_os("AWS_CA_BUNDLE").map(PathBuf::from))
    }

    /// Returns the input of this name.
    pub(super) fn input(&self, name: &Path) -> Result<Input, Failure> {
        Ok(match self.object(name)? {
            Some(object) => Input::Object(object),
            None => Input::File(name.to_owned()),
        })
    }

    /// Returns the output of this name.
    pub(super) fn output(&self, name: &Path, replace: bool) -> Result<Output, Failure> {
        Ok(match self.object(name)? {
            Some(object) => Output::Object { object, replace },
            None => Output::File {
                path: name.to_owned(),
                replace,
            },
        })
    }

    fn object(&self, name: &Path) -> Result<Option<S3Object>, Failure> {
        let Some(name) = name.to_str().filter(|name| S3Store::is_object_name(name)) else {
            return Ok(None);
        };
        let mut settings = S3Settings::from_variables(|name| std::env::var(name).ok());
        if let Some(ca) = &self.s3_ca {
            settings.ca = Some(ca.clone());
        }
        settings.plain = self.s3_plain;
        Ok(Some(S3Store::new(settings)?.object(name)?))
    }
}

/// Returns true if a file's name is one of an object.
pub(super) fn is_object(name: &Path) -> bool {
    name.to_str().is_some_and(S3Store::is_object_name)
}
