//! Sans-I/O MessagePack-RPC for Sealwire: frames, calls, replies and error codes.
//!
//! Bytes in, types out, and back. This crate never sees a socket, a clock or a key, and it never
//! looks inside a payload: it hands on the payload's bytes and the payload walk judges them. The
//! contract in words is `proto/README.md`; the tests here read its tables and compare them with
//! this code, so the two cannot drift.
//!
//! A server feeds a [`Scanner`] until it yields a [`FrameLayout`], then calls [`Call::decode`] on
//! those bytes and answers through [`reply`]. Of a call whose body is still to come,
//! [`Scanner::head`] and [`Scanner::outlook`] tell what to expect. A client writes with [`request`]
//! and reads with a [`Scanner`] and [`Reply::decode`].

mod answer;
mod call;
mod call_error;
mod error;
mod frame;
mod header;
mod limits;
mod map;
mod method;
mod params;
mod reading;
pub mod reply;
pub mod request;
mod results;
mod scan;
mod trace;

/// The control methods: what they ask for and what they give.
pub mod control {
    pub use crate::call::Control;
    pub use crate::params::{
        AlterCollection, AppCall, AppOperation, CensusCall, CheckCall, CollectionCall,
        CollectionOperation, CollectionsCall, CreateCollection, Kind, MigrateCall, Page,
        PrincipalCall, PrincipalOperation, PropertySpec, PublicKeysCall, RewrapRowsCall, RoleCall,
        RoleOperation, RootOperation, RotateKind, Scope, Secret, TokenFormat,
    };
    pub use crate::results::{
        App, AppChanged, Apps, Census, CensusCount, CensusKey, Checked, Collection,
        CollectionChanged, Collections, Instance, Instances, Key, MigratedObjects, Principal,
        PrincipalChanged, Principals, Property, PublicKeys, Record, Records, RewrappedRows, Role,
        RoleChanged, Roles, RootKeyState, RootProvider, RootSlotState, RootState, TokenKey,
    };
}

pub use answer::{Document, FieldError, Reply, decode_protocol_error};
pub use call::{Call, decode_cancel, decode_errors};
pub use call_error::CallError;
pub use error::{Detail, DetailValue, ErrorCode, ErrorFormat, ItemError, OverloadReason, RpcError};
pub use frame::{
    Disposition, Estimate, FrameLayout, MessageHeader, Preview, Scan, ScanError, Span,
};
pub use limits::{
    APP_BYTES_MAX, CLAUSES_MAX, CONTEXT_BYTES_MAX, CONTEXT_RESERVED, CURSOR_BYTES_MAX,
    DEADLINE_MS_MAX, DELAY_S_DEFAULT, DELAY_S_MAX, DESCRIPTION_BYTES_MAX, ENCAPSULATION_BYTES_MAX,
    ENCAPSULATIONS_MAX, EPOCH_MS_MAX, EXPIRES_S_MAX, FIELD_ERRORS_MAX, FIELD_PATH_BYTES_MAX,
    GRANT_BYTES_MAX, GRANTS_MAX, IDEMPOTENCY_KEY_BYTES_MAX, LONG_CURSOR_BYTES_MAX, Limits,
    MASK_BYTES_MAX, MASK_ENTRIES_MAX, MASK_ENTRY_BYTES_MAX, MASK_LISTS_BYTES_MAX, MASK_LISTS_MAX,
    MASK_RULES_MAX, METHOD_BYTES_MAX, OBJECTS_MAX, PREFIXES_MAX, PRINCIPAL_BYTES_MAX,
    PRIVATE_KEY_BYTES_MAX, PROPERTIES_MAX, REASON_BYTES_MAX, ROLE_BYTES_MAX, SELECT_PATH_BYTES_MAX,
    SELECT_PATHS_MAX, SUBJECT_BYTES_MAX, SWEEP_ROWS_MAX, TAG_BYTES_MAX, TAGS_MAX, TOKEN_BYTES_MAX,
    TOKENS_MAX, TRACEPARENT_BYTES_MAX, VALUE_BYTES_MAX,
};
pub use method::{Method, Methods, Notification};
pub use params::{
    AddObjects, CallOptions, Decrypt, Detokenize, DocumentCall, Encapsulation, Encoding, Encrypt,
    Envelope, Format, Inspect, KeyScope, Listing, Mask, MaskList, MaskRule, Masking, ObjectsCall,
    ObjectsOperation, OnError, Outside, Param, PropertyDisclosure, Reading, Rewrap, RuleFields,
    SubjectName, SubjectTarget, SubjectsCall, SubjectsOperation, Suite, Sweep, TokenLookupScope,
    TokenMap, TokenSearch, Tokenize, TokenizeOptions, TokensCall, TokensOperation, Unbound,
    UnknownFields, Unmatched, Writing, shared,
};
pub use results::{
    Counted, Found, Health, Info, Inspection, Object, ObjectVersion, Objects, ObjectsChanged,
    SubjectErased, SubjectExport, SubjectFound, SubjectToken, Token, Tokens, ValueKind,
};
pub use scan::Scanner;
pub use trace::TraceContext;

/// Bytes that are not the value they should be, from the decoders of replies.
pub use sealwire_msgpack::Malformed;

/// The version of the contract in `proto/README.md`, as `info` reports it.
pub const PROTOCOL: u32 = 1;
