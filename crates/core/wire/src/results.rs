//! The results of the methods without a document. The server encodes and the client decodes the
//! same struct.
//!
//! Decoding ignores unknown keys and rejects a result without a required key.

use sealwire_msgpack::{Malformed, TokenReader, write};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::map::Map;
use crate::params::{Encapsulation, Encoding, Format, Suite, names};
use crate::response_decoder::expect_end;

mod control;
mod keys;
mod objects;
mod tokens;

pub use control::{
    App, AppChanged, Apps, Checked, Collection, CollectionChanged, Collections, Instance,
    Instances, Key, Principal, PrincipalChanged, Principals, Property, PublicKeys, Record, Records,
    Role, RoleChanged, Roles, RootKeyState, RootProvider, RootSlotState, RootState, TokenKey,
};
pub use keys::{Census, CensusCount, CensusKey, MigratedObjects, RewrappedRows};
pub use objects::{
    Object, ObjectVersion, Objects, ObjectsChanged, SubjectErased, SubjectExport, SubjectFound,
    SubjectToken,
};
pub use tokens::{Counted, Found, Token, Tokens};

/// The codec of a result. It is a trait because applications get results from `sealwire-client`, and
/// must not depend on the codec.
#[cfg_attr(not(feature = "exhaustive"), doc(hidden))]
pub trait ResultCodec: Sized {
    /// Appends the result as one map.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the result of a response. Ignores unknown keys.
    ///
    /// # Errors
    /// Returns [`Malformed`] if a required key is missing or a value has another type.
    fn decode(result: &[u8]) -> Result<Self, Malformed>;
}

names! {
    /// The datatype in the header of an envelope.
    #[derive(Default)]
    ValueKind {
        /// A string's UTF-8 bytes.
        #[default]
        String = "string",
        /// Binary.
        Binary = "binary",
        /// Any other value, as MessagePack.
        Value = "value",
        /// A number in decimal; Evervault strings only.
        Number = "number",
        /// `true` or `false`; Evervault strings only.
        Boolean = "boolean",
    }
}

/// The result of `inspect`. The fields come from the envelope and are not authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Inspection {
    /// The envelope's format. [`Format::Evervault`] for every Evervault string and file.
    pub format: Format,
    /// The version of the format. An Evervault string has a tag instead of a version.
    pub version: Option<u32>,
    /// The tag of an Evervault string; empty for a string without a tag.
    pub tag: Option<String>,
    /// The suite. For an Evervault value, the suite of its kind of key.
    pub suite: Suite,
    /// The id of the key in hexadecimal. Only native envelopes name their key.
    pub key_id: Option<String>,
    /// True if the key belongs to a served app and its public key is published, so that anybody can
    /// have sealed the envelope. The server knows this field; every other field comes from the
    /// envelope.
    pub outside: bool,
    /// The datatype of the plaintext.
    pub datatype: ValueKind,
    /// The sequence number under the ephemeral key. Only native envelopes have one.
    pub sequence: Option<u64>,
    /// The encoding of the envelope in the request.
    pub encoding: Encoding,
    /// Length of the plaintext in bytes; for an Evervault string, including its metadata.
    pub plaintext_bytes: u64,
    /// The position of the encapsulation, if the suite has one.
    pub encapsulation: Option<Encapsulation>,
    /// True if the envelope was sealed to Evervault's published debug key, so that it never opens.
    /// `None` for native envelopes.
    pub debug: Option<bool>,
}

impl ResultCodec for Inspection {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut map = Map::begin(out);
        map.text("format", self.format.name());
        map.number("version", self.version.map(u64::from));
        map.optional_text("tag", self.tag.as_deref());
        map.text("suite", self.suite.name());
        map.optional_text("key_id", self.key_id.as_deref());
        map.flag("outside", self.outside.then_some(true));
        map.text("datatype", self.datatype.name());
        map.number("sequence", self.sequence);
        map.text("encoding", self.encoding.name());
        map.number("plaintext_bytes", Some(self.plaintext_bytes));
        map.optional_text("encapsulation", self.encapsulation.map(Encapsulation::name));
        map.flag("debug", self.debug);
    }

    fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let mut format = None;
        let mut version = None;
        let mut tag = None;
        let mut suite = None;
        let mut key_id = None;
        let mut outside = false;
        let mut datatype = None;
        let mut sequence = None;
        let mut encoding = None;
        let mut plaintext_bytes = None;
        let mut encapsulation = None;
        let mut debug = None;

        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "format" => format = Some(read_name(&mut reader, Format::from_name)?),
                "version" => version = Some(reader.u32()?),
                "tag" => tag = Some(reader.str_utf8()?.to_owned()),
                "suite" => suite = Some(read_name(&mut reader, Suite::from_name)?),
                "key_id" => key_id = Some(reader.str_utf8()?.to_owned()),
                "outside" => outside = read_flag(&mut reader)?,
                "datatype" => datatype = Some(read_name(&mut reader, ValueKind::from_name)?),
                "sequence" => sequence = Some(reader.u64()?),
                "encoding" => encoding = Some(read_name(&mut reader, Encoding::from_name)?),
                "plaintext_bytes" => plaintext_bytes = Some(reader.u64()?),
                "encapsulation" => {
                    encapsulation = Some(read_name(&mut reader, Encapsulation::from_name)?)
                }
                "debug" => debug = Some(read_flag(&mut reader)?),
                _ => reader.skip_value()?,
            }
        }
        expect_end(&reader)?;
        Ok(Self {
            format: format.ok_or(MISSING)?,
            version,
            tag,
            suite: suite.ok_or(MISSING)?,
            key_id,
            outside,
            datatype: datatype.ok_or(MISSING)?,
            sequence,
            encoding: encoding.ok_or(MISSING)?,
            plaintext_bytes: plaintext_bytes.ok_or(MISSING)?,
            encapsulation,
            debug,
        })
    }
}

/// The result of `info`. Lists contain names, so that an older client can print names that it does
/// not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Info {
    /// The program's name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// The version of the contract that the server follows.
    pub protocol: u32,
    /// The current generation.
    pub generation: u64,
    /// Methods that the server serves.
    pub methods: Vec<String>,
    /// Cipher suites that the server supports.
    pub suites: Vec<String>,
    /// Envelope formats that the server writes.
    pub formats: Vec<String>,
    /// Envelope encodings that the server writes.
    pub encodings: Vec<String>,
    /// Key scopes that the server supports.
    pub key_scopes: Vec<String>,
    /// Limits by name, as in the contract; sizes in bytes, times in milliseconds.
    pub limits: Vec<(String, u64)>,
}

impl ResultCodec for Info {
    fn encode(&self, out: &mut Vec<u8>) {
        write::map_len(out, 10);
        write_text(out, "name", &self.name);
        write_text(out, "version", &self.version);
        write_number(out, "protocol", u64::from(self.protocol));
        write_number(out, "generation", self.generation);
        let lists = [
            ("methods", &self.methods),
            ("suites", &self.suites),
            ("formats", &self.formats),
            ("encodings", &self.encodings),
            ("key_scopes", &self.key_scopes),
        ];
        for (key, list) in lists {
            write::str(out, key);
            write::array_len(out, wire_len(list.len()));
            list.iter().for_each(|entry| write::str(out, entry));
        }
        write::str(out, "limits");
        write::map_len(out, wire_len(self.limits.len()));
        self.limits
            .iter()
            .for_each(|(key, limit)| write_number(out, key, *limit));
    }

    fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let mut info = Self::default();
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "name" => info.name = reader.str_utf8()?.to_owned(),
                "version" => info.version = reader.str_utf8()?.to_owned(),
                "protocol" => info.protocol = reader.u32()?,
                "generation" => info.generation = reader.u64()?,
                "methods" => info.methods = read_strings(&mut reader)?,
                "suites" => info.suites = read_strings(&mut reader)?,
                "formats" => info.formats = read_strings(&mut reader)?,
                "encodings" => info.encodings = read_strings(&mut reader)?,
                "key_scopes" => info.key_scopes = read_strings(&mut reader)?,
                "limits" => {
                    for _ in 0..reader.map_len()? {
                        info.limits
                            .push((reader.str_utf8()?.to_owned(), reader.u64()?));
                    }
                }
                _ => reader.skip_value()?,
            }
        }
        expect_end(&reader)?;
        Ok(info)
    }
}

/// The result of `health`: the server handles requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "exhaustive"), non_exhaustive)]
pub struct Health;

impl ResultCodec for Health {
    fn encode(&self, out: &mut Vec<u8>) {
        write::map_len(out, 1);
        write_text(out, "status", "ok");
    }

    fn decode(result: &[u8]) -> Result<Self, Malformed> {
        let mut reader = TokenReader::new(result);
        let mut status = None;
        for _ in 0..reader.map_len()? {
            match reader.str_utf8()? {
                "status" => status = Some(reader.str_utf8()?),
                _ => reader.skip_value()?,
            }
        }
        expect_end(&reader)?;
        if status == Some("ok") {
            Ok(Self)
        } else {
            Err(MISSING)
        }
    }
}

const MISSING: Malformed = Malformed::Expected {
    expected: "a complete result",
    found: "a map without a key",
};

fn write_text(out: &mut Vec<u8>, key: &str, value: &str) {
    write::str(out, key);
    write::str(out, value);
}

fn write_number(out: &mut Vec<u8>, key: &str, value: u64) {
    write::str(out, key);
    write::uint(out, value);
}

/// Converts the length of a list. The code adds a few entries to each list, so the length fits.
fn wire_len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn read_flag(reader: &mut TokenReader<'_>) -> Result<bool, Malformed> {
    match reader.token()? {
        sealwire_msgpack::Token::Bool(flag) => Ok(flag),
        _ => Err(Malformed::Expected {
            expected: "a boolean",
            found: "another value",
        }),
    }
}

fn read_name<T>(
    reader: &mut TokenReader<'_>,
    from_name: fn(&str) -> Option<T>,
) -> Result<T, Malformed> {
    let unknown = Malformed::Expected {
        expected: "a name of this contract",
        found: "another",
    };
    from_name(reader.str_utf8()?).ok_or(unknown)
}

fn read_strings(reader: &mut TokenReader<'_>) -> Result<Vec<String>, Malformed> {
    // The capacity does not follow the announced count, since a peer can announce more than it
    // sends.
    let mut entries = Vec::new();
    for _ in 0..reader.array_len()? {
        entries.push(reader.str_utf8()?.to_owned());
    }
    Ok(entries)
}

/// Appends a result as one map.
fn encode_map<T: Serialize>(result: &T, out: &mut Vec<u8>) {
    let written = rmp_serde::encode::write_named(out, result);
    debug_assert!(
        written.is_ok(),
        "writing to memory cannot fail, and every type has an encoding"
    );
}

/// Decodes a result. Ignores unknown keys.
fn decode_map<T: DeserializeOwned>(result: &[u8]) -> Result<T, Malformed> {
    let mut reader = TokenReader::new(result);
    reader.skip_value()?;
    expect_end(&reader)?;
    rmp_serde::from_slice(result).map_err(|_| Malformed::Expected {
        expected: "a result of this contract",
        found: "another value",
    })
}

/// Implements the codec of results that are maps of the fields of their type.
macro_rules! maps {
    ($($result:ident),+) => {$(
        impl super::ResultCodec for $result {
            fn encode(&self, out: &mut Vec<u8>) {
                super::encode_map(self, out);
            }

            fn decode(result: &[u8]) -> Result<Self, sealwire_msgpack::Malformed> {
                super::decode_map(result)
            }
        }
    )+};
}
use maps;

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    #[test]
    fn results_round_trip() {
        for (datatype, suite) in ValueKind::ALL
            .iter()
            .zip(Suite::ALL.iter().copied().cycle())
        {
            let is_native = *datatype != ValueKind::Number;
            let inspection = Inspection {
                format: if is_native {
                    Format::Native
                } else {
                    Format::Evervault
                },
                version: is_native.then_some(1),
                tag: (!is_native).then(|| "QkTC".to_owned()),
                suite,
                key_id: is_native.then(|| "0123456789".to_owned()),
                outside: is_native && *datatype == ValueKind::String,
                datatype: *datatype,
                sequence: is_native.then_some(u64::from(u32::MAX)),
                encoding: Encoding::Binary,
                plaintext_bytes: 16,
                encapsulation: (suite == Suite::P256MlKem768).then_some(Encapsulation::Apart),
                debug: (!is_native).then_some(true),
            };
            let bytes = encoded(|out| inspection.encode(out));
            assert_eq!(Inspection::decode(&bytes), Ok(inspection));
            for key in 1..bytes[0] & 15 {
                // A map with fewer pairs: trailing bytes and each missing key are rejected.
                let mut cut = bytes.clone();
                cut[0] = 0x80 | key;
                assert!(Inspection::decode(&cut).is_err());
            }
        }
        let info = Info {
            name: "sealwire".to_owned(),
            version: "0.1.0".to_owned(),
            protocol: 1,
            generation: 9,
            methods: vec!["encrypt".to_owned()],
            suites: vec!["p256".to_owned(), "xaes".to_owned()],
            formats: vec!["native".to_owned()],
            encodings: vec![],
            key_scopes: vec!["request".to_owned()],
            limits: vec![("message_bytes_max".to_owned(), 64 << 20)],
        };
        assert_eq!(Info::decode(&encoded(|out| info.encode(out))), Ok(info));
        assert_eq!(
            Health::decode(&encoded(|out| Health.encode(out))),
            Ok(Health)
        );
    }

    #[test]
    fn results_ignore_unknown_keys_and_reject_wrong_types() {
        assert_eq!(
            Health::decode(b"\x82\xa4more\x91\x01\xa6status\xa2ok"),
            Ok(Health)
        );
        assert!(Health::decode(b"\x81\xa6status\xa3bad").is_err());
        assert!(Health::decode(&[0x80]).is_err());
        assert_eq!(Info::decode(b"\x81\xa4more\xc0"), Ok(Info::default()));
        assert!(Info::decode(b"\x81\xa4name\x01").is_err());
        assert!(Inspection::decode(b"\x81\xa5suite\xa4p521").is_err());
        assert!(Inspection::decode(b"\x81\xa5debug\x01").is_err());
    }
}
