//! Decodes one complete message into a call, borrowing everything from it.
//!
//! Its method is the one that the scan has found, so that a method that the listener does not serve
//! is none. Refuses whatever the method's table does not list: an unknown, missing or repeated key,
//! a wrong type, a value beyond its rule, text that is not UTF-8. Does not look into `payload`: the
//! scan has found where it ends, wherever it stands, and the payload walk reads it once. So a call
//! costs the same to decode however long its payload is. Messages name keys and rules; the only
//! text of the peer's they repeat is the name of an unknown key or method, cut and cleaned.

use sealwire_msgpack::{Token, TokenReader};

use crate::call_error::CallError;
use crate::error::ErrorFormat;
use crate::frame::{FrameLayout, MessageHeader, Preview};
use crate::method::{Method, Notification};
use crate::params::declare::{Parameter, Parameters, Writer};
use crate::params::{
    AppCall, CallOptions, CensusCall, CheckCall, CollectionCall, CollectionsCall, Decrypt,
    Detokenize, Encrypt, Inspect, Mask, MaskList, MaskRule, MigrateCall, ObjectsCall, Page,
    PrincipalCall, PublicKeysCall, Rewrap, RewrapRowsCall, RoleCall, RootOperation, SubjectsCall,
    Tokenize, TokensCall,
};
use crate::reading::{Params, cleaned};

/// Declares requests, each with its parameters and, where it is that of one method, the method.
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
            /// Which method it calls.
            pub const fn method(&self) -> Method {
                match self {
                    $(Self::$variant $(($call))? => method!($($call)?, $($method)?),)*
                }
            }

            /// The options of the request, if its method has any.
            pub fn options(&self) -> Option<&CallOptions<'a>> {
                match self {
                    $(Self::$variant $(($call))? => optional!($($call.options())?),)*
                }
            }

            /// The text that the request names under a key, such as `app`.
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

/// The method of a request: of its declaration, or of its operation.
macro_rules! method {
    ($($call:ident)?, $method:ident) => {{
        $(let _ = $call;)?
        Method::$method
    }};
    ($call:ident,) => { $call.method() };
}

/// What a request has of something, if it has parameters.
macro_rules! optional {
    () => {
        None
    };
    ($found:expr) => {
        $found
    };
}

calls! {
    /// A request that is valid as far as the wire can tell.
    Call {
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
        /// Something about the tokens of a collection.
        Tokens(call: TokensCall<'a>),
        /// An operation on the objects of a collection.
        Objects(call: ObjectsCall<'a>),
        /// An operation on a data subject.
        Subjects(call: SubjectsCall<'a>),
        /// A control method.
        Control(call: Control<'a>),
        /// Describe the server.
        Info = Info,
        /// Answer.
        Health = Health,
    }
}

calls! {
    /// A call of a control method.
    Control {
        /// `apps.list`.
        Apps(call: Page<'a>) = AppsList,
        /// `apps.export`.
        Export(call: Page<'a>) = AppsExport,
        /// A change of one app.
        App(call: AppCall<'a>),
        /// `collections.list`.
        Collections(call: CollectionsCall<'a>) = CollectionsList,
        /// A change of one collection.
        Collection(call: CollectionCall<'a>),
        /// `keys.census`.
        Census(call: CensusCall<'a>) = KeysCensus,
        /// `keys.rewrap`.
        RewrapRows(call: RewrapRowsCall<'a>) = KeysRewrap,
        /// `collections.migrate`.
        Migrate(call: MigrateCall<'a>) = CollectionsMigrate,
        /// `instances.list`.
        Instances = InstancesList,
        /// `roles.list`.
        Roles(call: Page<'a>) = RolesList,
        /// A change of one role.
        Role(call: RoleCall<'a>),
        /// `principals.list`.
        Principals(call: Page<'a>) = PrincipalsList,
        /// A change of the roles of one principal.
        Principal(call: PrincipalCall<'a>),
        /// `principals.check`.
        Check(call: CheckCall<'a>) = PrincipalsCheck,
        /// A request on the store's root key.
        Root(call: RootOperation<'a>),
        /// `apps.public_keys`, which the data listener answers as well.
        PublicKeys(call: PublicKeysCall<'a>) = AppsPublicKeys,
    }
}

impl<'a> From<Control<'a>> for Call<'a> {
    fn from(call: Control<'a>) -> Self {
        Self::Control(call)
    }
}

impl<'a> Call<'a> {
    /// Decodes a whole request: exactly the bytes of `boundary`, whose head is a request. Takes
    /// time that does not grow with the payload.
    ///
    /// # Errors
    /// [`CallError`]; answer it to the head's msgid. [`CallError::Malformed`] if the boundary is
    /// another message's.
    pub fn decode(message: &'a [u8], boundary: &FrameLayout) -> Result<Self, CallError> {
        if message.len() != boundary.bytes {
            return Err(CallError::Malformed);
        }
        let MessageHeader::Request { method, .. } = boundary.head else {
            return Err(CallError::Malformed);
        };
        let (name, reader) = name(message)?;
        let Some(method) = method else {
            return Err(CallError::UnknownMethod {
                method: cleaned(name),
            });
        };
        if method.name().as_bytes() != name {
            return Err(CallError::Malformed);
        }
        let mut params = Params::open(method, message, reader, boundary.payload)?;
        let call = method.read(&mut params)?;
        params.close()?;
        Ok(call)
    }
}

/// A request's method, and what follows it.
fn name(message: &[u8]) -> Result<(&[u8], TokenReader<'_>), CallError> {
    let mut reader = TokenReader::new(message);
    if reader.array_len()? != 4 || reader.u64()? != 0 {
        return Err(CallError::Malformed);
    }
    reader.u32()?;
    match reader.token()? {
        Token::Str(name) => Ok((name, reader)),
        _ => Err(CallError::Malformed),
    }
}

/// Previews the work of a document request from its beginning. Reads up to the payload, the end of
/// the bytes, or an invalid param. The decoder will reject the invalid request later; the preview
/// uses the params before it.
pub(crate) fn params_so_far(method: Method, message: &[u8]) -> Preview {
    let mut outlook = Preview {
        method,
        deadline_ms: None,
        suite: None,
        key_scope: None,
        format: None,
        whole: None,
    };
    let _ = name(message)
        .and_then(|(_, reader)| Params::open(method, message, reader, None))
        .and_then(|mut params| preview(&mut params, &mut outlook));
    outlook
}

/// Reads the params up to the payload. Each param occurs at most once and is bounded by its rule,
/// so the work is bounded for any input.
fn preview(params: &mut Params<'_>, outlook: &mut Preview) -> Result<(), CallError> {
    while let Some(param) = params.next()? {
        match param.name {
            "payload" => break,
            "deadline_ms" => outlook.deadline_ms = Some(Parameter::read(params, param)?),
            "suite" => outlook.suite = Some(Parameter::read(params, param)?),
            "key_scope" => outlook.key_scope = Some(Parameter::read(params, param)?),
            "format" => outlook.format = Some(Parameter::read(params, param)?),
            "select" | "encapsulations" | "tags" => drop(params.checked_texts(param)?),
            "rules" => drop(Vec::<MaskRule<'_>>::read(params, param)?),
            "lists" => drop(Vec::<MaskList<'_>>::read(params, param)?),
            _ => params.scalar()?,
        }
    }
    Ok(())
}

/// The msgid that a whole `cancel` notification names.
///
/// # Errors
/// [`CallError::Malformed`]; a notification gets no answer, so ignore it.
pub fn decode_cancel(message: &[u8]) -> Result<u32, CallError> {
    let mut reader = TokenReader::new(message);
    let head = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    let name = Token::Str(Notification::Cancel.name().as_bytes());
    let msgid = reader.u32()?;
    if head == (3, 2, name, 1) && reader.is_at_end() {
        Ok(msgid)
    } else {
        Err(CallError::Malformed)
    }
}

/// The form of errors that a whole `errors` notification asks for.
///
/// # Errors
/// [`CallError::Malformed`], also for a form that does not exist; a notification gets no answer, so
/// ignore it.
pub fn decode_errors(message: &[u8]) -> Result<ErrorFormat, CallError> {
    let mut reader = TokenReader::new(message);
    let head = (
        reader.array_len()?,
        reader.u64()?,
        reader.token()?,
        reader.array_len()?,
    );
    let name = Token::Str(Notification::Errors.name().as_bytes());
    let format = reader.token()?;
    let is_text = format == Token::Str(ErrorFormat::Text.name().as_bytes());
    if head == (3, 2, name, 1) && is_text && reader.is_at_end() {
        Ok(ErrorFormat::Text)
    } else {
        Err(CallError::Malformed)
    }
}
