//! Sans-I/O MessagePack-RPC for Sealwire: frames, requests, responses and error codes.
//!
//! Converts bytes to types and back. This crate never sees a socket, a clock or a key. The
//! decoder does not look inside a payload: it returns the payload's bytes, and the payload walk
//! checks them.
//! `proto/README.md` is the contract in prose. The tests of this crate compare its tables with this
//! code.
//!
//! A server feeds a [`Scanner`] until it yields a [`FrameLayout`], then calls [`Request::decode`] on
//! those bytes and writes the response with [`response`]. While the body of a request is still
//! arriving, [`Scanner::header`] returns its message header and [`Scanner::preview`] predicts its
//! size. A client writes with [`request`] and reads with a [`Scanner`] and [`Response::decode`].

mod error;
mod frame;
mod header;
mod invalid_request;
mod limits;
mod map;
mod method;
mod params;
mod reading;
pub mod request;
mod request_decoder;
pub mod response;
mod response_decoder;
mod results;
mod scan;
mod trace;

/// The bounds of parameters, for descriptions of the methods in other notations.
pub mod rules {
    pub use crate::params::{Accepts, Bounds, Form};
}

/// The parameters and results of the control methods.
pub mod control {
    pub use crate::params::{
        AlterCollection, AppOperation, AppRequest, CensusRequest, CheckRequest,
        CollectionOperation, CollectionRequest, CollectionsRequest, CreateCollection, Kind,
        MigrateRequest, Page, PrincipalOperation, PrincipalRequest, PropertySpec,
        PublicKeysRequest, RewrapRowsRequest, RoleOperation, RoleRequest, RootOperation,
        RotateKind, Scope, Secret, TokenFormat,
    };
    pub use crate::request_decoder::Control;
    pub use crate::results::{
        App, AppChanged, Apps, Census, CensusCount, CensusKey, Checked, Collection,
        CollectionChanged, Collections, Instance, Instances, Key, MigratedObjects, Principal,
        PrincipalChanged, Principals, Property, PublicKeys, Record, Records, RewrappedRows, Role,
        RoleChanged, Roles, RootKeyState, RootProvider, RootSlotState, RootState, TokenKey,
    };
}

pub use error::{Detail, DetailValue, ErrorCode, ErrorFormat, ItemError, OverloadReason, RpcError};
pub use frame::{
    Disposition, Estimate, FrameLayout, MessageHeader, Preview, Scan, ScanError, Span,
};
pub use invalid_request::InvalidRequest;
pub use limits::{
    APP_BYTES_MAX, CLAUSES_MAX, CONTEXT_BYTES_MAX, CONTEXT_RESERVED, CONTEXTS_BYTES_MAX,
    CONTEXTS_MAX, CURSOR_BYTES_MAX, DEADLINE_MS_MAX, DELAY_S_DEFAULT, DELAY_S_MAX,
    DESCRIPTION_BYTES_MAX, ENCAPSULATION_BYTES_MAX, ENCAPSULATIONS_MAX, EPOCH_MS_MAX,
    EXPIRES_S_MAX, FIELD_ERRORS_MAX, FIELD_PATH_BYTES_MAX, GRANT_BYTES_MAX, GRANTS_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX, LONG_CURSOR_BYTES_MAX, Limits, MASK_BYTES_MAX, MASK_ENTRIES_MAX,
    MASK_ENTRY_BYTES_MAX, MASK_LISTS_BYTES_MAX, MASK_LISTS_MAX, MASK_RULES_MAX, METHOD_BYTES_MAX,
    OBJECTS_MAX, PREFIXES_MAX, PRINCIPAL_BYTES_MAX, PRIVATE_KEY_BYTES_MAX, PROPERTIES_MAX,
    REASON_BYTES_MAX, ROLE_BYTES_MAX, SELECT_PATH_BYTES_MAX, SELECT_PATHS_MAX, SUBJECT_BYTES_MAX,
    SWEEP_ROWS_MAX, TAG_BYTES_MAX, TAGS_MAX, TOKEN_BYTES_MAX, TOKENS_MAX, TRACEPARENT_BYTES_MAX,
    VALUE_BYTES_MAX,
};
pub use method::{Method, Methods, Notification};
pub use params::{
    AddObjects, CommonParams, Contexts, Decrypt, Detokenize, DocumentParams, Encapsulation,
    Encoding, Encrypt, Envelope, Format, Inspect, KeyScope, Listing, Mask, MaskList, MaskRule,
    Masking, ObjectsOperation, ObjectsRequest, OnError, Outside, Param, PropertyDisclosure,
    Reading, Rewrap, RuleFields, SubjectName, SubjectTarget, SubjectsOperation, SubjectsRequest,
    Suite, Sweep, TokenLookupScope, TokenMap, TokenSearch, Tokenize, TokenizeOptions,
    TokensOperation, TokensRequest, Unbound, UnknownFields, Unmatched, Writing, shared,
};
pub use request_decoder::{Request, decode_cancel, decode_errors};
pub use response_decoder::{Document, FieldError, Response, decode_protocol_error};
pub use results::{
    Counted, Found, Health, Info, Inspection, Object, ObjectVersion, Objects, ObjectsChanged,
    ResultCodec, SubjectErased, SubjectExport, SubjectFound, SubjectToken, Token, Tokens,
    ValueKind,
};
pub use scan::Scanner;
pub use trace::TraceContext;

/// The error of the response decoders: the bytes are not the expected value.
pub use sealwire_msgpack::Malformed;

/// The version of the contract in `proto/README.md`, as `info` reports it.
pub const PROTOCOL: u32 = 1;
