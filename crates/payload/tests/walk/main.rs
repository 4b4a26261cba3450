//! The walk from outside: what holds for any document, any selection and any slicing.

mod documents;
mod exactness;
mod properties;
mod reference;
mod transforms;
