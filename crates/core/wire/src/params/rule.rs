//! The rules of parameters, in the words of `proto/README.md` and with the bounds that the decoder
//! checks.

use crate::limits::{
    APP_BYTES_MAX, CLAUSES_MAX, CONTEXT_BYTES_MAX, CONTEXTS_MAX, CURSOR_BYTES_MAX, DEADLINE_MS_MAX,
    DELAY_S_MAX, ENCAPSULATION_BYTES_MAX, ENCAPSULATIONS_MAX, EPOCH_MS_MAX, EXPIRES_S_MAX,
    GRANT_BYTES_MAX, GRANTS_MAX, IDEMPOTENCY_KEY_BYTES_MAX, LONG_CURSOR_BYTES_MAX, MASK_LISTS_MAX,
    MASK_RULES_MAX, NAME_BYTES_MAX, OBJECTS_MAX, PRINCIPAL_BYTES_MAX, PRIVATE_KEY_BYTES_MAX,
    PROPERTIES_MAX, REASON_BYTES_MAX, ROLE_BYTES_MAX, SELECT_PATH_BYTES_MAX, SELECT_PATHS_MAX,
    SLOTS_MAX, SUBJECT_BYTES_MAX, SWEEP_ROWS_MAX, TAG_BYTES_MAX, TAGS_MAX, TOKEN_BYTES_MAX,
    TOKENS_MAX, TRACEPARENT_BYTES_MAX, VALUE_BYTES_MAX,
};
use crate::method::{Method, Methods};

/// A row of a method's parameter table, as in `proto/README.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// The key in the params map.
    pub name: &'static str,
    /// The accepted MessagePack types.
    pub types: &'static str,
    /// The meaning of an absent key; `None` if the key is required.
    pub default: Option<&'static str>,
    /// The rule besides the type, in words that follow "must be".
    pub rule: &'static str,
    /// The bounds that the decoder checks, which `rule` states in words.
    pub bounds: Bounds,
    /// The methods that have this row.
    pub(crate) methods: Methods,
}

impl Param {
    /// Returns true if nil has its own meaning. Everywhere else in the data methods a nil means
    /// that an optional key is absent.
    pub(crate) fn takes_nil(&self) -> bool {
        self.types.contains("nil") || matches!(self.bounds.form, Form::Value | Form::Document)
    }

    pub(crate) const fn new(
        name: &'static str,
        rule: Rule,
        default: &[&'static str],
        methods: Methods,
    ) -> Self {
        Self {
            name,
            types: rule.types,
            default: default.first().copied(),
            rule: rule.text,
            bounds: rule.bounds,
            methods,
        }
    }
}

/// A part of a declaration of parameters.
pub(crate) enum Part {
    /// The rows of one field. A method has the first row that lists the method.
    Field(&'static [Param]),
    /// A declaration that other declarations include.
    Group(&'static [Part]),
    /// The options, which come last in the table of a method.
    Options(&'static [Part]),
    /// The parameters of one of several methods.
    Of(Method, &'static [Part]),
}

/// Returns the number of rows of a method in these parts.
pub(crate) const fn row_count(parts: &[Part], method: Method) -> usize {
    let mut rows = [PLACEHOLDER; ROWS_MAX];
    let index = write_rows(&mut rows, 0, parts, method, false);
    write_rows(&mut rows, index, parts, method, true)
}

/// Returns the rows of a method in these parts, with the options at the end.
pub(crate) const fn method_rows<const N: usize>(parts: &[Part], method: Method) -> [Param; N] {
    let mut rows = [PLACEHOLDER; N];
    let index = write_rows(&mut rows, 0, parts, method, false);
    write_rows(&mut rows, index, parts, method, true);
    rows
}

/// Most parameters of a method: the decoder stores one bit per parameter in 32 bits.
const ROWS_MAX: usize = 32;
const PLACEHOLDER: Param = Param::new("", FLAG, &[], Methods::ALL);

/// Writes the rows of a method in these parts to `rows`, from index `at`. Writes either the options
/// or the other rows. Returns the index behind the last row.
const fn write_rows(
    rows: &mut [Param],
    mut at: usize,
    parts: &[Part],
    method: Method,
    options: bool,
) -> usize {
    let mut index = 0;
    while index < parts.len() {
        match &parts[index] {
            Part::Field(alternatives) if !options => {
                let mut row = 0;
                while row < alternatives.len() {
                    if alternatives[row].methods.contains(method) {
                        rows[at] = alternatives[row];
                        at += 1;
                        break;
                    }
                    row += 1;
                }
            }
            Part::Options(parts) if options => at = write_rows(rows, at, parts, method, false),
            Part::Field(_) | Part::Options(_) => (),
            Part::Group(parts) => at = write_rows(rows, at, parts, method, options),
            Part::Of(only, parts) => {
                if *only as u32 == method as u32 {
                    at = write_rows(rows, at, parts, method, options);
                }
            }
        }
        index += 1;
    }
    at
}

/// Bounds of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Least number, length of a text in bytes or length of a list.
    pub least: u64,
    /// Greatest number, length of a text in bytes or length of a list.
    pub most: u64,
    /// Greatest length of each text in a list, in bytes.
    pub item_bytes_max: usize,
    /// The texts that are accepted, or the texts of a list.
    pub accepts: Accepts,
    /// The form of bytes in the message.
    pub form: Form,
}

/// The texts that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepts {
    /// Every text.
    Any,
    /// `A-Z a-z 0-9 . _ -`.
    Names,
    /// `a-z 0-9 -`.
    Roles,
    /// Visible ASCII.
    Visible,
    /// No control characters.
    Printable,
    /// Contexts that do not belong to the engine.
    Contexts,
    /// Only these names of a closed set.
    Only(&'static [&'static str]),
}

/// The form of bytes in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The bytes of a string or binary.
    Bytes,
    /// A MessagePack value.
    Value,
    /// The document, a MessagePack value whose extent the scan has found.
    Document,
    /// A document that is an array.
    Array,
}

/// Types and bounds of a parameter.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    types: &'static str,
    text: &'static str,
    bounds: Bounds,
}

impl Rule {
    const fn new(types: &'static str, least: u64, most: u64, text: &'static str) -> Self {
        let bounds = Bounds {
            least,
            most,
            item_bytes_max: 0,
            accepts: Accepts::Any,
            form: Form::Bytes,
        };
        Self {
            types,
            text,
            bounds,
        }
    }

    /// Creates a rule without bounds. A call of `of` sets the type.
    const fn unbounded(text: &'static str) -> Self {
        Self::new("", 0, u64::MAX, text)
    }

    /// Creates a rule whose text must quote the upper bound.
    const fn with_quoted_bound(
        types: &'static str,
        least: u64,
        most: u64,
        text: &'static str,
    ) -> Self {
        assert!(
            most == u64::MAX || quotes_number(text, most),
            "the text quotes the bound"
        );
        Self::new(types, least, most, text)
    }

    const fn number(least: u64, most: u64, text: &'static str) -> Self {
        Self::with_quoted_bound("integer", least, most, text)
    }

    const fn text(least: u64, bytes_max: usize, text: &'static str) -> Self {
        Self::with_quoted_bound("string", least, bytes_max as u64, text)
    }

    const fn bytes(least: u64, bytes_max: usize, text: &'static str) -> Self {
        Self::with_quoted_bound("string or binary", least, bytes_max as u64, text)
    }

    /// Creates a rule for a list of 1 to `count_max` values. A call of `of` sets the type.
    const fn list(count_max: usize, text: &'static str) -> Self {
        Self::with_quoted_bound("", 1, count_max as u64, text)
    }

    /// Creates a rule for a list of 1 to `count_max` texts of 1 to `bytes_max` bytes. The text must
    /// quote one of the two bounds.
    const fn texts(count_max: usize, bytes_max: usize, text: &'static str) -> Self {
        assert!(quotes_number(text, count_max as u64) || quotes_number(text, bytes_max as u64));
        let mut rule = Self::new("array of strings", 1, count_max as u64, text);
        rule.bounds.item_bytes_max = bytes_max;
        rule
    }

    /// Creates a rule for a name of a closed set.
    pub(crate) const fn named(text: &'static str) -> Self {
        Self::new("string", 0, NAME_BYTES_MAX as u64, text)
    }

    const fn of(mut self, types: &'static str) -> Self {
        self.types = types;
        self
    }

    const fn at_least(mut self, least: u64) -> Self {
        self.bounds.least = least;
        self
    }

    const fn at_most(mut self, most: usize) -> Self {
        self.bounds.most = most as u64;
        self
    }

    const fn accepting(mut self, accepts: Accepts) -> Self {
        self.bounds.accepts = accepts;
        self
    }

    const fn formed(mut self, form: Form) -> Self {
        self.bounds.form = form;
        self
    }
}

/// Returns true if the text contains the number in decimal digits.
const fn quotes_number(text: &str, number: u64) -> bool {
    let text = text.as_bytes();
    let mut at = 0;
    while at < text.len() {
        let mut found = 0;
        let start = at;
        while at < text.len() && text[at].is_ascii_digit() {
            found = found * 10 + (text[at] - b'0') as u64;
            at += 1;
        }
        if at > start && found == number {
            return true;
        }
        at += 1;
    }
    false
}

/// Declares constants for rules: form and bounds, accepted texts, and the words of the contract.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $form:ident($($bound:expr),*) $($then:ident($of:expr))* $text:literal;)+) => {
        $($(#[$doc])* pub(crate) const $name: Rule = Rule::$form($($bound,)* $text)$(.$then($of))*;)+
    };
}

rules! {
    FLAG = unbounded() of("boolean") "true or false";
    NUMBER = number(0, u64::MAX) "0 or more";
    NAME = text(1, APP_BYTES_MAX) accepting(Accepts::Names) "1 to 64 bytes of A-Z a-z 0-9 . _ -";

    // Control.
    PRINCIPAL = text(1, PRINCIPAL_BYTES_MAX) "1 to 2048 bytes";
    GRANTS = texts(GRANTS_MAX, GRANT_BYTES_MAX) "1 to 64 grants of 1 to 65536 bytes";
    OPERATION = text(0, APP_BYTES_MAX) "the name of an operation, at most 64 bytes";
    KEY = text(0, APP_BYTES_MAX) "a key's id, at most 64 bytes";
    PROVIDER = text(0, APP_BYTES_MAX) "at most 64 bytes";
    PROVIDERS = texts(SLOTS_MAX, APP_BYTES_MAX) "1 to 8 names of 1 to 64 bytes";
    SLOT = number(1, u32::MAX as u64) "1 to 4294967295";
    PRIVATE_KEY = text(0, PRIVATE_KEY_BYTES_MAX) "at most 65536 bytes";
    DELAY = number(0, DELAY_S_MAX) "0 to 31536000";
    EPOCH = number(0, EPOCH_MS_MAX as u64) "0 to 15000";
    FIRST = number(0, 6) "0 to 6";
    LAST = number(0, 4) "0 to 4";
    /// Suites whose keys can be imported.
    SUITE_OF_IMPORT = named() accepting(Accepts::Only(&["p256", "secp256k1"]))
        "\"p256\" or \"secp256k1\"";
    /// Formats that an app may write by default.
    FORMAT_OF_APP = named() accepting(Accepts::Only(&["native", "evervault"]))
        "\"native\" or \"evervault\"";
    READ_SUITES = texts(6, NAME_BYTES_MAX)
        "1 to 6 of \"p256-psk\" or \"p256\" or \"secp256k1\" or \"xaes\" or \"p256-mlkem768\" or \"secp256k1-psk\"";

    // Pages and times.
    CURSOR = text(0, CURSOR_BYTES_MAX) "the next of an answer, at most 128 bytes";
    LONG_CURSOR = text(0, LONG_CURSOR_BYTES_MAX) "the next of an answer, at most 2112 bytes";
    ENTRIES = number(1, TOKENS_MAX as u64) "1 to 1000";
    OBJECTS = number(1, OBJECTS_MAX as u64) "1 to 500";
    ROWS = number(1, SWEEP_ROWS_MAX as u64) "1 to 10000";
    EXPIRY = number(1, EXPIRES_S_MAX) "1 to 3155760000";
    EXPIRY_OR_NIL = number(1, EXPIRES_S_MAX) of("integer or nil") "1 to 3155760000, or nil";
    SECONDS_OR_NIL = number(0, EXPIRES_S_MAX) of("integer or nil") "0 to 3155760000, or nil";
    RETENTION = number(0, EXPIRES_S_MAX) "0 to 3155760000";

    // Options.
    DEADLINE = number(1, DEADLINE_MS_MAX as u64) "1 to 3600000";
    REASON = text(1, REASON_BYTES_MAX) accepting(Accepts::Printable)
        "1 to 256 bytes without control characters";
    TRACEPARENT = text(0, TRACEPARENT_BYTES_MAX) "at most 256 bytes";

    // Documents.
    DOCUMENT = unbounded() of("any value") formed(Form::Document) "one MessagePack value";
    PATHS = texts(SELECT_PATHS_MAX, SELECT_PATH_BYTES_MAX) "1 to 64 paths of 1 to 1024 bytes";
    CONTEXT = bytes(0, CONTEXT_BYTES_MAX) accepting(Accepts::Contexts)
        "at most 4096 bytes, and must not begin with sealwire/";
    CONTEXTS = list(CONTEXTS_MAX) of("array or map") at_least(0) accepting(Accepts::Contexts)
        "a list of contexts, as many as items, at most 10000 of 1 to 4096 bytes, none beginning with sealwire/, 262144 bytes in all; or a map of path, 1 to 1024 bytes";
    ROLE = text(1, ROLE_BYTES_MAX) accepting(Accepts::Roles) "1 to 20 bytes of a-z 0-9 -";
    ENCAPSULATIONS = texts(ENCAPSULATIONS_MAX, ENCAPSULATION_BYTES_MAX)
        "1 to 32 texts of 1 to 1551 bytes";
    /// The values of `outside` for methods that only open, which cannot adopt a value.
    OUTSIDE_OF_READING = named() accepting(Accepts::Only(&["accept", "refuse"]))
        "\"accept\" or \"refuse\"";
    MASK_RULES = list(MASK_RULES_MAX) of("array of maps")
        "1 to 256 rules, each a mask and one of path, column, kind, of 1 to 1024 bytes";
    MASK_LISTS = list(MASK_LISTS_MAX) of("map of arrays of strings") at_least(0)
        "at most 16 lists of 10000 texts of 1 to 256 bytes, 262144 bytes in all";
    ENVELOPE = bytes(0, usize::MAX) "one envelope in either encoding";

    // Tokens and objects.
    TAG = text(1, TAG_BYTES_MAX) accepting(Accepts::Visible) "1 to 64 bytes of visible ASCII";
    TAGS = texts(TAGS_MAX, TAG_BYTES_MAX) accepting(Accepts::Visible)
        "1 to 16 tags of 1 to 64 bytes of visible ASCII";
    IDEMPOTENCY_KEY = bytes(1, IDEMPOTENCY_KEY_BYTES_MAX) "1 to 64 bytes";
    TOKENS = texts(TOKENS_MAX, TOKEN_BYTES_MAX) "1 to 1000 tokens of 1 to 1024 bytes";
    VALUE = bytes(0, VALUE_BYTES_MAX) of("any value") formed(Form::Value)
        "one MessagePack value of at most 65536 bytes";
    SUBJECT = text(1, SUBJECT_BYTES_MAX) "1 to 256 bytes";
    SUBJECT_OR_ID = text(1, SUBJECT_BYTES_MAX)
        "1 to 256 bytes, with by_id 32 hexadecimal digits";
    SUBJECTS = texts(OBJECTS_MAX, SUBJECT_BYTES_MAX)
        "1 name of 1 to 256 bytes, or as many as objects";
    IDS = texts(OBJECTS_MAX, TOKEN_BYTES_MAX) "1 to 500 ids of objects";
    VERSIONS = unbounded() of("array of integers") at_least(1) at_most(OBJECTS_MAX)
        "as many as ids, each 1 or more";
    PROPERTY_NAMES = texts(PROPERTIES_MAX, NAME_BYTES_MAX) "1 to 64 names of properties";
    PROPERTIES = list(PROPERTIES_MAX) of("array of maps") "1 to 64 properties";
    NEW_OBJECTS = list(OBJECTS_MAX) of("array of maps") formed(Form::Array)
        "1 to 500 maps of property names to values";
    CHANGES = list(OBJECTS_MAX) of("array of maps") formed(Form::Array)
        "1 to 500 maps of id, set, and optionally if_version";
    CLAUSES = list(CLAUSES_MAX) of("array of maps") formed(Form::Array)
        "1 to 8 maps of property and one of eq, in, prefix";
}
