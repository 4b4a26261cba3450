//! All integration tests of the payload walk, as one executable that is linked and started once.
//!
//! | module | what it tests |
//! | --- | --- |
//! | `exactness` | every kind of leaf reaches a transform unchanged |
//! | `no_alloc` | allocations per document, not per field |
//! | `properties` | invariants for any bytes, any selection and any slicing |
//! | `reference` | selection, compared with a naive search |
//!
//! `documents` generates documents, and `transforms` replaces encryption.

mod documents;
mod exactness;
mod no_alloc;
mod properties;
mod reference;
mod transforms;
