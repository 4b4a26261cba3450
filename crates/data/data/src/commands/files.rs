//! Files of a job that can be objects: `s3://bucket/key`.

use std::path::Path;

use sealwire_command_line::Failure;
use sealwire_command_line::object_store::ObjectStoreArgs;

use crate::mask_job::{Input, Output, S3Object, S3Settings, S3Store};

/// Returns the input of this name.
pub(super) fn parse_input(store: &ObjectStoreArgs, name: &Path) -> Result<Input, Failure> {
    Ok(match parse_object(store, name)? {
        Some(object) => Input::Object(object),
        None => Input::File(name.to_owned()),
    })
}

/// Returns the output of this name.
pub(super) fn parse_output(
    store: &ObjectStoreArgs,
    name: &Path,
    replace: bool,
) -> Result<Output, Failure> {
    Ok(match parse_object(store, name)? {
        Some(object) => Output::Object { object, replace },
        None => Output::File {
            path: name.to_owned(),
            replace,
        },
    })
}

fn parse_object(store: &ObjectStoreArgs, name: &Path) -> Result<Option<S3Object>, Failure> {
    let Some(name) = name.to_str().filter(|name| S3Store::is_object_name(name)) else {
        return Ok(None);
    };
    let mut settings = S3Settings::from_variables(|name| std::env::var(name).ok());
    if let Some(ca) = &store.s3_ca {
        settings.ca = Some(ca.clone());
    }
    settings.plain = store.s3_plain;
    Ok(Some(S3Store::new(settings)?.object(name)?))
}
