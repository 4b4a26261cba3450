//! Macros that declare parameters. Each struct or operation is declared once, in the order of the
//! contract's table. The macros generate its rows, its decoder and its encoder.
//!
//! ```text
//! params! {
//!     /// A page of a list.
//!     Page<'a> {
//!         /// Most entries of the page; `None` is 100.
//!         limit: Option<u32> = optional(ENTRIES "100");
//!     }
//! }
//! ```
//!
//! A line has a field, its Rust type, and one of
//!
//! - `required(RULE)`,
//! - `optional(RULE "meaning of an absent key")`: the type is an `Option`,
//! - `default(RULE "meaning of an absent key")`: the type's `Default` if the key is absent,
//! - `part`, `operation` or `options`: the parameters of another declaration.
//!
//! After a rule, `as "key"` sets the key if it differs from the field's name. `in METHOD ..` and
//! `not METHOD ..` select the methods that have the row. `|` separates alternatives, and a method
//! has the first alternative that applies to it. `checked by` before the lines names a function that
//! checks rules of several parameters.

use crate::invalid_request::InvalidRequest;
use crate::map::Map;
use crate::method::Method;
use crate::params::CommonParams;
use crate::params::rule::{Form, Param, Part};
use crate::reading::Params;

/// A value of a parameter.
pub(crate) trait Parameter<'a>: Sized {
    /// Returns a placeholder for a required value until it is read.
    fn blank() -> Self;

    /// Reads the value and checks the rule of its row.
    fn read(params: &mut Params<'a>, row: &'static Param) -> Result<Self, InvalidRequest>;

    /// Appends the value.
    fn write(&self, form: Form, out: &mut Vec<u8>);

    /// Returns the value if it is one text.
    fn as_text(&self) -> Option<&'a str> {
        None
    }
}

/// A text of a request, borrowed from the message.
pub(crate) trait TextValue<'a>: Parameter<'a> + From<&'a str> + PartialEq {}

impl<'a> TextValue<'a> for &'a str {}

/// Bytes of a request, borrowed from the message.
pub(crate) trait BytesValue<'a>: Parameter<'a> + Default + PartialEq {}

impl<'a> BytesValue<'a> for &'a [u8] {}

/// Shares texts and bytes of the message from which a request was decoded.
#[cfg_attr(not(feature = "exhaustive"), doc(hidden))]
pub trait Source {
    /// A text that does not borrow the message.
    type Text;
    /// Bytes that do not borrow the message.
    type Bytes;

    /// Shares a text of the message.
    fn text(&self, text: &str) -> Self::Text;

    /// Shares bytes of the message.
    fn bytes(&self, bytes: &[u8]) -> Self::Bytes;
}

/// Parameters that can outlive the borrow of their message.
#[cfg_attr(not(feature = "exhaustive"), doc(hidden))]
pub trait Own<S: Source> {
    /// The same parameters with the texts and bytes of the source.
    type Owned;

    /// Shares the parameters.
    fn own(&self, source: &S) -> Self::Owned;
}

impl<S: Source> Own<S> for &str {
    type Owned = S::Text;

    fn own(&self, source: &S) -> S::Text {
        source.text(self)
    }
}

impl<S: Source> Own<S> for &[u8] {
    type Owned = S::Bytes;

    fn own(&self, source: &S) -> S::Bytes {
        source.bytes(self)
    }
}

impl<S: Source, T: Own<S>> Own<S> for Option<T> {
    type Owned = Option<T::Owned>;

    fn own(&self, source: &S) -> Self::Owned {
        self.as_ref().map(|value| value.own(source))
    }
}

impl<S: Source, T: Own<S>> Own<S> for Vec<T> {
    type Owned = Vec<T::Owned>;

    fn own(&self, source: &S) -> Self::Owned {
        self.iter().map(|value| value.own(source)).collect()
    }
}

/// Implements [`Own`] for values that borrow nothing.
macro_rules! owned {
    ($($type:ty),+) => {
        $(impl<S: $crate::params::declare::Source> $crate::params::declare::Own<S> for $type {
            type Owned = Self;

            fn own(&self, _: &S) -> Self {
                *self
            }
        })+
    };
}

owned!(bool, u32, u64);

/// Declared parameters of a request, or of a part that several requests include.
pub(crate) trait Parameters<'a>: Sized {
    /// The rows of the contract.
    const PARTS: &'static [Part];

    /// Returns the parameters of a method before the first one is read, or `None` if the method is
    /// not in this declaration.
    fn blank(method: Method) -> Option<Self>;

    /// Reads the value of a row. Returns false if the row belongs to no field.
    fn read(
        &mut self,
        row: &'static Param,
        params: &mut Params<'a>,
    ) -> Result<bool, InvalidRequest>;

    /// Checks rules that involve several parameters.
    fn check(&self) -> Result<(), InvalidRequest>;

    /// Writes the parameters that differ from their defaults.
    fn write(&self, writer: &mut Writer<'_>);

    /// Returns the text of a key, if the request has it.
    fn text(&self, key: &str) -> Option<&'a str>;

    /// Returns the options of the request, if it has any.
    fn options(&self) -> Option<&CommonParams<'a>> {
        None
    }
}

/// Reads the parameters of a method. The result is complete, since [`Params::next`] fails if a
/// required parameter is missing.
pub(crate) fn read<'a, P: Parameters<'a>>(
    method: Method,
    params: &mut Params<'a>,
) -> Result<P, InvalidRequest> {
    let mut parameters = P::blank(method).ok_or(InvalidRequest::Malformed)?;
    while let Some(row) = params.next()? {
        if !parameters.read(row, params)? {
            return Err(params.unknown_key(row.name.as_bytes()));
        }
    }
    parameters.check()?;
    Ok(parameters)
}

/// Writes a params map.
pub(crate) struct Writer<'o> {
    map: Map<'o>,
    method: Method,
    /// True while only the document is written. The document comes last, so that a server knows the
    /// other parameters before the document has arrived.
    is_document_pass: bool,
}

impl<'o> Writer<'o> {
    pub(crate) fn begin(out: &'o mut Vec<u8>, method: Method) -> Self {
        Self {
            map: Map::begin(out),
            method,
            is_document_pass: false,
        }
    }

    /// Starts the second pass, which writes only the document.
    pub(crate) fn start_document(&mut self) {
        self.is_document_pass = true;
    }

    /// Writes a value under the key that its field has in the method. If the method lacks the
    /// field, the server rejects the key.
    pub(crate) fn parameter<'a>(&mut self, rows: &[Param], value: &impl Parameter<'a>) {
        let of_method = rows.iter().find(|row| row.methods.contains(self.method));
        let row = of_method.unwrap_or(&rows[0]);
        let form = row.bounds.form;
        if matches!(form, Form::Document | Form::Array) == self.is_document_pass {
            self.map.key(row.name);
            value.write(form, self.map.out);
        }
    }
}

/// Returns the value if it differs from its default, so that the key must be written.
pub(crate) fn unless_default<T: Default + PartialEq>(value: &T) -> Option<&T> {
    (*value != T::default()).then_some(value)
}

/// Declares a struct of parameters.
macro_rules! params {
    (
        $(#[$meta:meta])*
        $name:ident $(<$($arg:tt $(: $bound:ident)?),+>)? $(checked by $check:ident)? {
            $($(#[$doc:meta])* $field:ident: $type:ty = $word:ident $(($($rows:tt)*))?;)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name $(<$($arg),+>)? {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl<'a $($($(, $arg: $bound<'a>)?)+)?> Parameters<'a> for $name $(<$($arg),+>)? {
            const PARTS: &'static [Part] = &[$(field!(part $word $field $type, $(($($rows)*))?)),*];

            fn blank(_method: Method) -> Option<Self> {
                Some(Self { $($field: field!(blank $word $type, _method)),* })
            }

            fn read(
                &mut self,
                row: &'static Param,
                params: &mut Params<'a>,
            ) -> Result<bool, InvalidRequest> {
                let Self { $($field),* } = self;
                $(field!(read $word $field, row, params, $(($($rows)*))?);)*
                Ok(false)
            }

            fn check(&self) -> Result<(), InvalidRequest> {
                $($check(self)?;)?
                $(field!(check $word &self.$field);)*
                Ok(())
            }

            fn write(&self, writer: &mut Writer<'_>) {
                let Self { $($field),* } = self;
                $(field!(write $word $field, writer, $(($($rows)*))?);)*
            }

            fn text(&self, key: &str) -> Option<&'a str> {
                let Self { $($field),* } = self;
                $(field!(text $word $field, key, $(($($rows)*))?);)*
                None
            }

            fn options(&self) -> Option<&crate::params::CommonParams<'a>> {
                None$(.or(field!(options $word &self.$field)))*
            }
        }

        $(field!(item $word $name $field);)*
        own!([$($($arg $(: $bound)?),+)?] struct $name { $($field),* });
    };
}

/// Declares the operations of several methods, one variant per method.
macro_rules! operations {
    (
        $(#[$meta:meta])*
        $name:ident<$($arg:tt $(: $bound:ident)?),+> {
            $(
                $(#[$variant_doc:meta])*
                $variant:ident $(($part:ident: $part_type:ty))? = $method:ident
                $(checked by $check:ident)?
                $({
                    $($(#[$doc:meta])* $field:ident: $type:ty = $word:ident $(($($rows:tt)*))?;)*
                })?,
            )*
        }
    ) => {
        $(#[$meta])*
        pub enum $name<$($arg),+> {
            $(
                $(#[$variant_doc])*
                $variant $(($part_type))? $({ $($(#[$doc])* $field: $type,)* })?,
            )*
        }

        impl<$($arg),+> $name<$($arg),+> {
            /// The method of the operation.
            pub const fn method(&self) -> Method {
                match self { $(Self::$variant { .. } => Method::$method,)* }
            }
        }

        #[allow(unused_variables)]
        impl<'a $($(, $arg: $bound<'a>)?)+> Parameters<'a> for $name<$($arg),+> {
            const PARTS: &'static [Part] = &[$(Part::Of(Method::$method, &[
                $(Part::Group(<$part_type as Parameters<'a>>::PARTS),)?
                $($(field!(part $word $field $type, $(($($rows)*))?)),*)?
            ])),*];

            fn blank(method: Method) -> Option<Self> {
                Some(match method {
                    $(Method::$method => Self::$variant
                        $((<$part_type as Parameters<'a>>::blank(method)?))?
                        $({ $($field: field!(blank $word $type, method)),* })?,)*
                    _ => return None,
                })
            }

            fn read(
                &mut self,
                row: &'static Param,
                params: &mut Params<'a>,
            ) -> Result<bool, InvalidRequest> {
                match self {
                    $(Self::$variant $(($part))? $({ $($field),* })? => {
                        $(field!(read part $part, row, params,);)?
                        $($(field!(read $word $field, row, params, $(($($rows)*))?);)*)?
                    })*
                }
                Ok(false)
            }

            fn check(&self) -> Result<(), InvalidRequest> {
                match self {
                    $(Self::$variant $(($part))? $({ $($field),* })? => {
                        $($check(self)?;)?
                        $(field!(check part $part);)?
                        $($(field!(check $word $field);)*)?
                    })*
                }
                Ok(())
            }

            fn write(&self, writer: &mut Writer<'_>) {
                match self {
                    $(Self::$variant $(($part))? $({ $($field),* })? => {
                        $(field!(write part $part, writer,);)?
                        $($(field!(write $word $field, writer, $(($($rows)*))?);)*)?
                    })*
                }
            }

            fn text(&self, key: &str) -> Option<&'a str> {
                match self {
                    $(Self::$variant $(($part))? $({ $($field),* })? => {
                        $(field!(text part $part, key,);)?
                        $($(field!(text $word $field, key, $(($($rows)*))?);)*)?
                    })*
                }
                None
            }
        }

        own!([$($arg $(: $bound)?),+] enum $name {
            $($variant $(($part))? $({ $($field),* })?,)*
        });
    };
}

/// Copies parameters whose texts and bytes are generic into those of a [`Source`].
macro_rules! own {
    ([$($arg:ident: $bound:ident),+] struct $name:ident { $($field:ident),* }) => {
        impl<S: Source, $($arg: Own<S>),+> Own<S> for $name<$($arg),+> {
            type Owned = $name<$(<$arg as Own<S>>::Owned),+>;

            fn own(&self, source: &S) -> Self::Owned {
                $name { $($field: self.$field.own(source)),* }
            }
        }
    };
    ([$($arg:ident: $bound:ident),+] enum $name:ident {
        $($variant:ident $(($part:ident))? $({ $($field:ident),* })?,)*
    }) => {
        impl<S: Source, $($arg: Own<S>),+> Own<S> for $name<$($arg),+> {
            type Owned = $name<$(<$arg as Own<S>>::Owned),+>;

            fn own(&self, source: &S) -> Self::Owned {
                match self {
                    $(Self::$variant $(($part))? $({ $($field),* })? => $name::$variant
                        $(($part.own(source)))? $({ $($field: $field.own(source)),* })?,)*
                }
            }
        }
    };
    ($($borrowed:tt)*) => {};
}

/// Expands to the rows of a field: its alternatives in the contract.
macro_rules! rows {
    ($field:ident ($(
        $rule:ident $($default:literal)? $(as $key:literal)?
        $(in $($in:ident)+)? $(not $($not:ident)+)?
    )|+)) => {
        &[$(Param::new(
            [$($key,)? stringify!($field)][0],
            $rule,
            &[$($default)?],
            Methods::or_all(&[$($(Method::$in),+)?]).without(Methods::of(&[$($(Method::$not),+)?])),
        )),+]
    };
}

/// Expands to the part of a field in each generated item. The first word selects the item, the
/// second the kind of field.
macro_rules! field {
    (item operation $name:ident $field:ident) => {
        impl $name<'_> {
            /// The method of the operation.
            pub const fn method(&self) -> Method {
                self.$field.method()
            }
        }
    };
    (item $word:ident $name:ident $field:ident) => {};

    (part options $field:ident $type:ty,) => { Part::Options(<$type as Parameters<'a>>::PARTS) };
    (part $word:ident $field:ident $type:ty,) => { Part::Group(<$type as Parameters<'a>>::PARTS) };
    (part $word:ident $field:ident $type:ty, $rows:tt) => { Part::Field(rows!($field $rows)) };

    (blank required $type:ty, $method:ident) => { Parameter::blank() };
    (blank optional $type:ty, $method:ident) => { None };
    (blank default $type:ty, $method:ident) => { Default::default() };
    (blank $word:ident $type:ty, $method:ident) => { <$type as Parameters<'a>>::blank($method)? };

    (read $word:ident $field:ident, $row:ident, $params:ident,) => {
        if Parameters::read($field, $row, $params)? {
            return Ok(true);
        }
    };
    (read $word:ident $field:ident, $row:ident, $params:ident, $rows:tt) => {
        {
            const ROWS_OF_FIELD: &[Param] = rows!($field $rows);
            if ROWS_OF_FIELD.iter().any(|of_field| of_field.name == $row.name) {
                *$field = field!(value $word Parameter::read($params, $row)?);
                return Ok(true);
            }
        }
    };
    (value optional $value:expr) => { Some($value) };
    (value $word:ident $value:expr) => { $value };

    (check part $field:expr) => { Parameters::check($field)? };
    (check operation $field:expr) => { Parameters::check($field)? };
    (check $word:ident $field:expr) => {};

    (write $word:ident $field:ident, $writer:ident,) => { Parameters::write($field, $writer) };
    (write $word:ident $field:ident, $writer:ident, $rows:tt) => {
        if let Some(value) = field!(given $word $field) {
            const ROWS_OF_FIELD: &[Param] = rows!($field $rows);
            $writer.parameter(ROWS_OF_FIELD, value);
        }
    };
    (given required $field:ident) => { Some($field) };
    (given optional $field:ident) => { $field.as_ref() };
    (given default $field:ident) => { crate::params::declare::unless_default($field) };

    (text $word:ident $field:ident, $key:ident,) => {
        if let Some(text) = Parameters::text($field, $key) {
            return Some(text);
        }
    };
    (text $word:ident $field:ident, $key:ident, $rows:tt) => {
        {
            const ROWS_OF_FIELD: &[Param] = rows!($field $rows);
            if ROWS_OF_FIELD.iter().any(|of_field| of_field.name == $key) {
                return field!(given $word $field).and_then(Parameter::as_text);
            }
        }
    };

    (options options $field:expr) => { Some($field) };
    (options part $field:expr) => { Parameters::options($field) };
    (options $word:ident $field:expr) => { None };
}

pub(crate) use {field, operations, own, owned, params, rows};
