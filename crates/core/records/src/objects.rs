//! Typed collections of objects: property types, schema rules, index terms, and sealed values.
//!
//! An object is a set of typed property values. [`check`] validates a value and returns the form
//! that is stored. [`normalize()`] returns the form that is compared. A [`Schema`] says which
//! properties objects have, and [`Schema::change`] how that can change. [`ObjectKeys`] make the
//! index terms by which a store finds objects. [`seal`] and [`open`] keep the values of an object
//! in one record.
//!
//! Bytes in, bytes out: no I/O, clock, async or logging. Values never appear in errors or in
//! `Debug` output.

mod keys;
mod normalize;
mod property_type;
mod schema;
mod sealed;
mod terms;
mod value;
mod values;

pub use keys::ObjectKeys;
pub use normalize::{NORMALIZATION_VERSION, normalize, normalize_prefix};
pub use property_type::PropertyType;
pub use schema::{
    AcceptedRecords, Changed, DROPPED_MAX, DroppedProperty, INDEXES_MAX, Index, PROPERTIES_MAX,
    Property, PropertyName, PropertySpec, Schema, SchemaChange, SchemaError,
};
pub use sealed::{
    ObjectBinding, OpenedObject, RecordFormat, SealError, key_of, old, open, read_content, seal,
    subject_version, token_key_id,
};
pub use terms::IndexTerm;
pub use value::{
    ADDRESS_BYTES_MAX, INDEXED_STRING_BYTES_MAX, JSON_DEPTH_MAX, NAME_BYTES_MAX, VALUE_BYTES_MAX,
    ValueError, check, check_indexed,
};
pub use values::{VALUES_BYTES_MAX, Values};
