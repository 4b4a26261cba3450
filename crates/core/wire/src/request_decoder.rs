//! Decodes one complete message into a request that borrows from the message.
//!
//! The scan has already found the method. A method that the listener does not serve counts as
//! unknown. The decoder rejects everything that the method's table does not list: an unknown,
//! missing or repeated key, a wrong type, a value that breaks its rule, text that is not UTF-8.
//!
//! The decoder does not look into `payload`. The scan has found the end of the payload, and the
//! payload walk reads it once. The time to decode a request is therefore independent of its
//! payload's length. Error messages name keys and rules. Of the peer's text they repeat only the
//! name of an unknown key or method, sanitized and truncated.

use sealwire_msgpack::{Token, TokenReader};

use crate::error::ErrorFormat;
use crate::frame::{FrameLayout, MessageHeader, Preview};
use crate::invalid_request::InvalidRequest;
use crate::method::{Method, Notification};
use crate::params::declare::{Parameter, Parameters, Writer};
use crate::params::{
    AppRequest, CensusRequest, CheckRequest, CollectionRequest, CollectionsRequest, CommonParams,
    Contexts, Decrypt, Detokenize, Encrypt, Inspect, Mask, MaskList, MaskRule, MigrateRequest,
    ObjectsRequest, Page, PrincipalRequest, PublicKeysRequest, Rewrap, RewrapRowsRequest,
    RoleRequest, RootOperation, SubjectsRequest, Tokenize, TokensRequest,
};
use crate::reading::{Params, sanitized_name};

/// Declares an enum of requests. Each variant has its parameters and, if it belongs to one method,
/// this method.
macro_rules! calls {
    (
        $(#[$doc:meta])*
        $name:ident {
            $(
                $(#[$variant_doc:meta])*
                $variant:ident $(($call:ident: $type:ty))? $(= $method:ident)?,
            )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name<'a> { $($(#[$variant_doc])* $variant $(($type))?,)* }

        impl<'a> $name<'a> {
            /// Returns the method of the request.
            pub const fn method(&self) -> Method {
                match self {
                    $(Self::$variant $(($call))? => method!($($call)?, $($method)?),)*
                }
            }

            /// Returns the options of the request, if its method has any.
            pub fn options(&self) -> Option<&CommonParams<'a>> {
                match self {
                    $(Self::$variant $(($call))? => optional!($($call.options())?),)*
                }
            }

            /// Returns the text of the parameter `key`, such as `app`.
            pub fn text(&self, key: &str) -> Option<&'a str> {
                match self {
                    $(Self::$variant $(($call))? => optional!($($call.text(key))?),)*
                }
            }

            pub(crate) fn write(&self, writer: &mut Writer<'_>) {
                match self {
                    $(Self::$variant $(($call))? => { $($call.write(writer);)? })*
                }
            }
        }
    };
}

/// Returns the method of a request, from the declaration or from the operation.
macro_rules! method {
    ($($call:ident)?, $method:ident) => {{
        $(let _ = $call;)?
        Method::$method
    }};
    ($call:ident,) => { $call.method() };
}

/// Evaluates an expression on the parameters of a request, or returns `None` for a request without
/// parameters.
macro_rules! optional {
    () => {
        None
    };
    ($found:expr) => {
        $found
    };
}

calls! {
    /// A decoded request. Only the rules of the wire contract are checked.
    Request {
        /// Replace leaves by envelopes.
        Encrypt(call: Encrypt<'a>) = Encrypt,
        /// Open envelopes.
        Decrypt(call: Decrypt<'a>) = Decrypt,
        /// Open envelopes and seal them again.
        Rewrap(call: Rewrap<'a>) = Rewrap,
        /// Describe an envelope.
        Inspect(call: Inspect<'a>) = Inspect,
        /// Replace leaves by tokens.
        Tokenize(call: Tokenize<'a>) = Tokenize,
        /// Replace tokens by their values.
        Detokenize(call: Detokenize<'a>) = Detokenize,
        /// Mask fields.
        Mask(call: Mask<'a>) = Mask,
        /// An operation on the tokens of a collection.
        Tokens(call: TokensRequest<'a>),
        /// An operation on the objects of a collection.
        Objects(call: ObjectsRequest<'a>),
        /// An operation on a data subject.
        Subjects(call: SubjectsRequest<'a>),
        /// A control method.
        Control(call: Control<'a>),
        /// Describe the server.
        Info = Info,
        /// Report that the server is healthy.
        Health = Health,
    }
}

calls! {
    /// A request of a control method.
    Control {
        /// `apps.list`.
        Apps(call: Page<'a>) = AppsList,
        /// `apps.export`.
        Export(call: Page<'a>) = AppsExport,
        /// A change of one app.
        App(call: AppRequest<'a>),
        /// `collections.list`.
        Collections(call: CollectionsRequest<'a>) = CollectionsList,
        /// A change of one collection.
        Collection(call: CollectionRequest<'a>),
        /// `keys.census`.
        Census(call: CensusRequest<'a>) = KeysCensus,
        /// `keys.rewrap`.
        RewrapRows(call: RewrapRowsRequest<'a>) = KeysRewrap,
        /// `collections.migrate`.
        Migrate(call: MigrateRequest<'a>) = CollectionsMigrate,
        /// `instances.list`.
        Instances = InstancesList,
        /// `roles.list`.
        Roles(call: Page<'a>) = RolesList,
        /// A change of one role.
        Role(call: RoleRequest<'a>),
        /// `principals.list`.
        Principals(call: Page<'a>) = PrincipalsList,
        /// A change of the roles of one principal.
        Principal(call: PrincipalRequest<'a>),
        /// `principals.check`.
        Check(call: CheckRequest<'a>) = PrincipalsCheck,
        /// A request on the store's root key.
        Root(call: RootOperation<'a>),
        /// `apps.public_keys`, which the data listener serves as well.
        PublicKeys(call: PublicKeysRequest<'a>) = AppsPublicKeys,
    }
}

impl<'a> From<Control<'a>> for Request<'a> {
    fn from(call: Control<'a>) -> Self {
        Self::Control(call)
    }
}

impl<'a> Request<'a> {
    /// Decodes a whole request. `message` must be exactly the bytes of `layout`, whose header must
    /// be a request. The time is independent of the payload's length.
    ///
    /// # Errors
    /// Returns a [`InvalidRequest`]; respond with it to the header's msgid. Returns
    /// [`InvalidRequest::Malformed`] if the layout belongs to another message.
    pub fn decode(message: &'a [u8], layout: &FrameLayout) -> Result<Self, InvalidRequest> {
        if message.len() != layout.bytes {
            return Err(InvalidRequest::Malformed);
        }
        let MessageHeader::Request { method, .. } = layout.header else {
            return Err(InvalidRequest::Malformed);
        };
        let (name, reader) = read_method_name(message)?;
        let Some(method) = method else {
            return Err(InvalidRequest::UnknownMethod {
                method: sanitized_name(name),
            });
        };
        if method.name().as_bytes() != name {
            return Err(InvalidRequest::Malformed);
        }
        let mut params = Params::open(method, message, reader, layout.payload)?;
        let call = method.read(&mut params)?;
        params.expect_end()?;
        Ok(call)
    }
}

/// Returns the method name of a request, and a reader of the following bytes.
fn read_method_name(message: &[u8]) -> Result<(&[u8], TokenReader<'_>), InvalidRequest> {
    let mut reader = TokenReader::new(message);
    if reader.array_len()? != 4 || reader.u64()? != 0 {
        return Err(InvalidRequest::Malformed);
    }
    reader.u32()?;
    match reader.token()? {
        Token::Str(name) => Ok((name, reader)),
        _ => Err(InvalidRequest::Malformed),
    }
}

/// Previews a document request of which only the beginning has arrived. Reads up to the payload,
/// the end of the bytes, or an invalid param. The decoder rejects an invalid request later; the
/// preview uses the params before the invalid one.
pub(crate) fn preview_request(method: Method, message: &[u8]) -> Preview {
    let mut result = Preview {
        method,
        deadline_ms: None,
        suite: None,
        key_scope: None,
        format: None,
        whole: None,
    };
    let _ = read_method_name(message)
        .and_then(|(_, reader)| Params::open(method, message, reader, None))
        .and_then(|mut params| preview_params(&mut params, &mut result));
    result
}

/// Reads the params up to the payload. Each param occurs at most once and is bounded by its rule,
/// so the work is bounded for any input.
fn preview_params(params: &mut Params<'_>, preview: &mut Preview) -> Result<(), InvalidRequest> {
    while let Some(param) = params.next()? {
        match param.name {
            "payload" => break,
            "deadline_ms" => preview.deadline_ms = Some(Parameter::read(params, param)?),
            "suite" => preview.suite = Some(Parameter::read(params, param)?),
            "key_scope" => preview.key_scope = Some(Parameter::read(params, param)?),
            "format" => preview.format = Some(Parameter::read(params, param)?),
            "select" | "encapsulations" | "tags" => drop(params.checked_texts(param)?),
            "rules" => drop(Vec::<MaskRule<'_>>::read(params, param)?),
            "lists" => drop(Vec::<MaskList<'_>>::read(params, param)?),
            "contexts" => Contexts::check(params, param)?,
            _ => params.skip_scalar()?,
        }
    }
    Ok(())
}

/// Returns the msgid in a whole `cancel` notification.
///
/// # Errors
/// Returns [`InvalidRequest::Malformed`]. A notification gets no response, so ignore it.
pub fn decode_cancel(message: &[u8]) -> Result<u32, InvalidRequest> {
    let mut reader = TokenReader::new(message);
    let header = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    let name = Token::Str(Notification::Cancel.name().as_bytes());
    let msgid = reader.u32()?;
    if header == (3, 2, name, 1) && reader.is_at_end() {
        Ok(msgid)
    } else {
        Err(InvalidRequest::Malformed)
    }
}

/// Returns the error format that a whole `errors` notification requests.
///
/// # Errors
/// Returns [`InvalidRequest::Malformed`], also for an unknown format. A notification gets no response,
/// so ignore it.
pub fn decode_errors(message: &[u8]) -> Result<ErrorFormat, InvalidRequest> {
    let mut reader = TokenReader::new(message);
    let header = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    let name = Token::Str(Notification::Errors.name().as_bytes());
    let format = reader.token()?;
    let is_text = format == Token::Str(ErrorFormat::Text.name().as_bytes());
    if header == (3, 2, name, 1) && is_text && reader.is_at_end() {
        Ok(ErrorFormat::Text)
    } else {
        Err(InvalidRequest::Malformed)
    }
}
