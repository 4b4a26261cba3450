//! Encodes calls, for clients. Values at their default are left out, since that is the same call.
//!
//! Does not check limits: the server does, and its answer names the rule. Does not check payloads
//! either unless asked, with [`check_payload`].

use sealwire_msgpack::{Malformed, TokenReader, write};

use crate::answer::at_end;
use crate::map::Map;
use crate::method::{Method, Notification};
use crate::params::{
    AddObjects, AlterCollection, AppOperation, CollectionOperation, Control, Decrypt, Detokenize,
    DocumentCall, Encapsulation, Encoding, Encrypt, Envelope, Format, Inspect, KeyScope, Mask,
    Masking, ObjectsCall, ObjectsOperation, OnError, Outside, Page, PrincipalOperation,
    PropertyDisclosure, PropertySpec, Rewrap, RoleOperation, RootOperation, Scope, SubjectName,
    SubjectsCall, SubjectsOperation, Suite, TokenFormat, TokenSearch, Tokenize, TokenizeOptions,
    TokensCall, TokensOperation, Unbound, UnknownFields, Unmatched, Writing,
};

/// Appends an `encrypt` request. `call.payload` must be one MessagePack value.
pub fn encrypt(out: &mut Vec<u8>, msgid: u32, call: &Encrypt<'_>) {
    document(out, msgid, Method::Encrypt, call, |map| {
        writing(map, &call.writing)
    });
}

/// Appends a `decrypt` request. `call.payload` must be one MessagePack value.
pub fn decrypt(out: &mut Vec<u8>, msgid: u32, call: &Decrypt<'_>) {
    document(out, msgid, Method::Decrypt, call, |map| {
        map.name("outside", call.writing.outside, Outside::name)
    });
}

/// Appends a `rewrap` request. `call.payload` must be one MessagePack value.
pub fn rewrap(out: &mut Vec<u8>, msgid: u32, call: &Rewrap<'_>) {
    document(out, msgid, Method::Rewrap, call, |map| {
        writing(map, &call.writing)
    });
}

/// Appends a `tokenize` request. `call.payload` must be one MessagePack value.
pub fn tokenize(out: &mut Vec<u8>, msgid: u32, call: &Tokenize<'_>) {
    let TokenizeOptions {
        collection,
        tags,
        expires_s,
        idempotency_key,
        subject,
    } = &call.writing;
    document(out, msgid, Method::Tokenize, call, |map| {
        map.text("collection", collection);
        if !tags.is_empty() {
            map.texts("tags", tags);
        }
        map.number("expires_s", *expires_s);
        if let Some(key) = idempotency_key {
            map.binary("idempotency_key", key);
        }
        map.optional_text("subject", *subject);
    });
}

/// Appends a `detokenize` request. `call.payload` must be one MessagePack value.
pub fn detokenize(out: &mut Vec<u8>, msgid: u32, call: &Detokenize<'_>) {
    document(out, msgid, Method::Detokenize, call, |map| {
        map.text("collection", call.writing.collection)
    });
}

/// Appends a `mask` request. `call.payload` must be one MessagePack value.
pub fn mask(out: &mut Vec<u8>, msgid: u32, call: &Mask<'_>) {
    let Masking {
        rules,
        unknown,
        lists,
    } = &call.writing;
    document(out, msgid, Method::Mask, call, |map| {
        map.key("rules");
        // The server refuses many fewer, so a count that does not fit is refused as well.
        write::array_len(map.out, u32::try_from(rules.len()).unwrap_or(u32::MAX));
        for rule in rules {
            let (key, text) = rule.fields.pair();
            write::map_len(map.out, 2);
            [key, text, "mask", rule.mask]
                .iter()
                .for_each(|text| write::str(map.out, text));
        }
        map.name("unknown", *unknown, UnknownFields::name);
        if !lists.is_empty() {
            map.key("lists");
            write::map_len(map.out, u32::try_from(lists.len()).unwrap_or(u32::MAX));
            for list in lists {
                write::str(map.out, list.name);
                write::array_len(
                    map.out,
                    u32::try_from(list.entries.len()).unwrap_or(u32::MAX),
                );
                list.entries
                    .iter()
                    .for_each(|entry| write::str(map.out, entry));
            }
        }
    });
}

fn document<W>(
    out: &mut Vec<u8>,
    msgid: u32,
    method: Method,
    call: &DocumentCall<'_, W>,
    own: impl FnOnce(&mut Map<'_>),
) {
    begin(out, msgid, method);
    let mut map = Map::begin(out);
    map.text("app", call.app);
    if let Some(paths) = &call.select {
        map.texts("select", paths);
    }
    map.name("unmatched", call.unmatched, Unmatched::name);
    if !call.encapsulations.is_empty() {
        map.texts("encapsulations", &call.encapsulations);
    }
    own(&mut map);
    map.context(call.context);
    map.name("on_error", call.on_error, OnError::name);
    map.number("deadline_ms", call.deadline_ms.map(u64::from));
    map.number("min_generation", call.min_generation);
    map.optional_text("reason", call.reason);
    map.optional_text("traceparent", call.traceparent);
    map.payload(call.payload);
}

fn writing(map: &mut Map<'_>, writing: &Writing<'_>) {
    map.optional_text("suite", writing.suite.map(Suite::name));
    map.name("key_scope", writing.key_scope, KeyScope::name);
    map.optional_text("format", writing.format.map(Format::name));
    map.optional_text("role", writing.role);
    map.name("encoding", writing.encoding, Encoding::name);
    map.name("encapsulation", writing.encapsulation, Encapsulation::name);
    map.name("unbound", writing.unbound, Unbound::name);
    map.name("outside", writing.outside, Outside::name);
}

/// Appends a request of one of the methods on tokens without a document. A value must be one
/// MessagePack value.
pub fn tokens(out: &mut Vec<u8>, msgid: u32, call: &TokensCall<'_>) {
    begin(out, msgid, call.ask.method());
    let mut map = Map::begin(out);
    map.text("app", call.map.app);
    map.text("collection", call.map.collection);
    map.number("deadline_ms", call.map.deadline_ms.map(u64::from));
    map.number("min_generation", call.map.min_generation);
    map.optional_text("reason", call.map.reason);
    map.optional_text("traceparent", call.map.traceparent);
    let (sweep, older) = match &call.ask {
        TokensOperation::Get(tokens) | TokensOperation::Delete(tokens) => {
            return map.texts("tokens", tokens);
        }
        TokensOperation::Expire { tokens, expires_s } => {
            map.texts("tokens", tokens);
            return map.number_or_nil("expires_s", *expires_s);
        }
        TokensOperation::Find(TokenSearch {
            value,
            context,
            subject,
        }) => {
            map.optional_text("subject", *subject);
            map.key("value");
            map.out.extend_from_slice(value);
            return map.context(context);
        }
        TokensOperation::List(list) => {
            map.optional_text("tag", list.tag);
            map.number("expired_before", list.expired_before);
            map.flag("archived", list.archived.then_some(true));
            return page(&mut map, list.after, list.limit);
        }
        TokensOperation::Archive(sweep) => (sweep, "expired_s"),
        TokensOperation::Prune(sweep) => (sweep, "archived_s"),
    };
    map.number(older, sweep.older_s);
    map.flag("dry_run", sweep.dry_run.then_some(true));
    page(&mut map, sweep.after, sweep.limit);
}

/// Appends a request of one of the methods on objects. A payload must be one MessagePack value.
pub fn objects(out: &mut Vec<u8>, msgid: u32, call: &ObjectsCall<'_>) {
    begin(out, msgid, call.ask.method());
    let mut map = Map::begin(out);
    map.text("app", call.map.app);
    map.text("collection", call.map.collection);
    map.number("deadline_ms", call.map.deadline_ms.map(u64::from));
    map.number("min_generation", call.map.min_generation);
    map.optional_text("reason", call.map.reason);
    map.optional_text("traceparent", call.map.traceparent);
    let (sweep, older) = match &call.ask {
        ObjectsOperation::Add(AddObjects {
            objects,
            tags,
            expires_s,
            idempotency_key,
            subjects,
        }) => {
            for (name, texts) in [("tags", tags), ("subjects", subjects)] {
                if !texts.is_empty() {
                    map.texts(name, texts);
                }
            }
            map.number("expires_s", *expires_s);
            if let Some(key) = idempotency_key {
                map.binary("idempotency_key", key);
            }
            return map.payload(objects);
        }
        ObjectsOperation::Get { ids, disclosure } => {
            map.texts("ids", ids);
            return disclosed(&mut map, disclosure);
        }
        ObjectsOperation::Update { changes } => return map.payload(changes),
        ObjectsOperation::Delete { ids, versions } => {
            map.texts("ids", ids);
            if let Some(versions) = versions {
                map.numbers("versions", versions);
            }
            return;
        }
        ObjectsOperation::Query {
            clauses,
            disclosure,
            after,
            limit,
        } => {
            disclosed(&mut map, disclosure);
            page(&mut map, *after, *limit);
            return map.payload(clauses);
        }
        ObjectsOperation::List {
            tag,
            expired_before,
            archived,
            disclosure,
            after,
            limit,
        } => {
            map.optional_text("tag", *tag);
            map.number("expired_before", *expired_before);
            map.flag("archived", archived.then_some(true));
            disclosed(&mut map, disclosure);
            return page(&mut map, *after, *limit);
        }
        ObjectsOperation::Expire { ids, expires_s } => {
            map.texts("ids", ids);
            return map.number_or_nil("expires_s", *expires_s);
        }
        ObjectsOperation::Archive(sweep) => (sweep, "expired_s"),
        ObjectsOperation::Prune(sweep) => (sweep, "archived_s"),
    };
    map.number(older, sweep.older_s);
    map.flag("dry_run", sweep.dry_run.then_some(true));
    page(&mut map, sweep.after, sweep.limit);
}

/// Appends a request of one of the methods on a data subject.
pub fn subjects(out: &mut Vec<u8>, msgid: u32, call: &SubjectsCall<'_>) {
    begin(out, msgid, call.ask.method());
    let mut map = Map::begin(out);
    map.text("app", call.target.app);
    match call.target.subject {
        SubjectName::Name(name) => map.text("subject", name),
        SubjectName::Id(id) => {
            map.text("subject", id);
            map.flag("by_id", Some(true));
        }
    }
    map.number("deadline_ms", call.target.deadline_ms.map(u64::from));
    map.number("min_generation", call.target.min_generation);
    map.optional_text("reason", call.target.reason);
    map.optional_text("traceparent", call.target.traceparent);
    match call.ask {
        SubjectsOperation::Find => {}
        SubjectsOperation::Export { after, limit } => page(&mut map, after, limit),
        SubjectsOperation::Erase { version, created } => {
            map.number("version", version);
            map.number("created", created);
        }
    }
}

fn disclosed(map: &mut Map<'_>, disclosure: &PropertyDisclosure<'_>) {
    if let Some(properties) = &disclosure.properties {
        map.texts("properties", properties);
    }
    map.flag("masked", disclosure.masked.then_some(true));
}

fn properties(map: &mut Map<'_>, key: &str, properties: &[PropertySpec<'_>]) {
    map.key(key);
    // The server refuses many fewer, so a count that does not fit is refused as well.
    write::array_len(map.out, u32::try_from(properties.len()).unwrap_or(u32::MAX));
    for property in properties {
        let mut map = Map::begin(map.out);
        map.text("name", property.name);
        map.text("type", property.property_type);
        map.flag("nullable", (!property.nullable).then_some(false));
        map.flag("unique", property.unique.then_some(true));
        map.flag("index", property.index.then_some(true));
        map.number("bits", property.bits.map(u64::from));
        if !property.prefixes.is_empty() {
            map.numbers(
                "prefixes",
                &property
                    .prefixes
                    .iter()
                    .map(|length| u64::from(*length))
                    .collect::<Vec<_>>(),
            );
        }
        map.flag("accept_leak", property.accept_leak.then_some(true));
        map.flag("encrypted", (!property.encrypted).then_some(false));
        map.optional_text(
            "description",
            Some(property.description).filter(|text| !text.is_empty()),
        );
    }
}

fn page(map: &mut Map<'_>, after: Option<&str>, limit: Option<u32>) {
    map.optional_text("after", after);
    map.number("limit", limit.map(u64::from));
}

/// Appends a request of a control method.
pub fn control(out: &mut Vec<u8>, msgid: u32, call: &Control<'_>) {
    begin(out, msgid, call.method());
    let mut map = Map::begin(out);
    match call {
        Control::Apps(Page { after, limit })
        | Control::Export(Page { after, limit })
        | Control::Roles(Page { after, limit })
        | Control::Principals(Page { after, limit }) => page(&mut map, *after, *limit),
        Control::App(call) => {
            map.text("app", call.app);
            app(&mut map, &call.ask);
        }
        Control::Collections {
            app,
            page: Page { after, limit },
        } => {
            map.text("app", app);
            page(&mut map, *after, *limit);
        }
        Control::Collection(call) => {
            map.text("app", call.app);
            map.text("collection", call.collection);
            collection(&mut map, &call.ask);
        }
        Control::Census(call) => {
            map.text("app", call.app);
            map.flag("prove", call.prove.then_some(true));
            page(&mut map, call.after, call.limit);
        }
        Control::RewrapRows(call) => {
            map.text("app", call.app);
            map.optional_text("collection", call.collection);
            page(&mut map, call.after, call.limit);
        }
        Control::Migrate(call) => {
            map.text("app", call.app);
            map.text("collection", call.collection);
            map.flag(
                "accept_unauthenticated",
                call.accept_unauthenticated.then_some(true),
            );
            map.flag("dry_run", call.dry_run.then_some(true));
            page(&mut map, call.after, call.limit);
        }
        Control::Instances => (),
        Control::Root(ask) => match ask {
            RootOperation::Init {
                providers: Some(providers),
            } => map.texts("providers", providers),
            RootOperation::Rotate { abandon } => map.flag("abandon", abandon.then_some(true)),
            RootOperation::AddSlot { provider } => map.text("provider", provider),
            RootOperation::RemoveSlot { slot } => map.number("slot", Some(u64::from(*slot))),
            _ => (),
        },
        Control::Role(call) => {
            map.text("role", call.role);
            if let RoleOperation::Set { grants } = &call.ask {
                map.texts("grants", grants);
            }
        }
        Control::Principal(call) => {
            map.text("principal", call.principal);
            match call.ask {
                PrincipalOperation::Grant { role } => map.text("role", role),
                PrincipalOperation::Revoke { role } => map.optional_text("role", role),
            }
        }
        Control::Check(call) => {
            map.text("principal", call.principal);
            map.text("operation", call.operation);
            map.optional_text("app", call.app);
            map.optional_text("collection", call.collection);
            map.optional_text("property", call.property);
            map.optional_text("reason", call.reason);
        }
        Control::PublicKeys(call) => {
            map.text("app", call.app);
            map.number("min_generation", call.min_generation);
            map.optional_text("reason", call.reason);
        }
    }
}

fn app(map: &mut Map<'_>, ask: &AppOperation<'_>) {
    match *ask {
        AppOperation::Create => (),
        AppOperation::Rotate { kind } => map.text("kind", kind.name()),
        AppOperation::Import {
            suite,
            private_key,
            seals,
        } => {
            map.text("suite", suite.name());
            map.text("private_key", private_key.0);
            map.flag("seals", seals.then_some(true));
        }
        AppOperation::Disable { key }
        | AppOperation::Enable { key }
        | AppOperation::Restore { key } => map.optional_text("key", key),
        AppOperation::Delete { key, delay_s } => {
            map.optional_text("key", key);
            map.number("delay_s", delay_s);
        }
        AppOperation::Set {
            format,
            epoch_ms,
            write_suite,
            ref read_suites,
        } => {
            map.optional_text("format", format.map(Format::name));
            map.number("epoch_ms", epoch_ms.map(u64::from));
            map.optional_text("write_suite", write_suite.map(Suite::name));
            if let Some(suites) = read_suites {
                map.texts(
                    "read_suites",
                    &suites.iter().map(|suite| suite.name()).collect::<Vec<_>>(),
                );
            }
        }
    }
}

fn collection(map: &mut Map<'_>, ask: &CollectionOperation<'_>) {
    match *ask {
        CollectionOperation::CreateObjects {
            suite,
            properties: ref specs,
            expires_s,
            retention_s,
        } => {
            map.text("kind", "objects");
            properties(map, "properties", specs);
            map.optional_text("suite", suite.map(Suite::name));
            map.number("expires_s", expires_s);
            map.number("retention_s", retention_s);
        }
        CollectionOperation::Alter(AlterCollection {
            ref add,
            ref drop,
            ref allow_duplicates,
            ref allow_null,
            ref drop_index,
            suite,
        }) => {
            if !add.is_empty() {
                properties(map, "add", add);
            }
            let lists = [
                ("drop", drop),
                ("allow_duplicates", allow_duplicates),
                ("allow_null", allow_null),
                ("drop_index", drop_index),
            ];
            for (key, names) in lists.into_iter().filter(|(_, names)| !names.is_empty()) {
                map.texts(key, names);
            }
            map.optional_text("suite", suite.map(Suite::name));
        }
        CollectionOperation::Create {
            kind,
            format,
            first,
            last,
            scope,
            expires_s,
            retention_s,
        } => {
            map.text("kind", kind.name());
            map.name("format", format, TokenFormat::name);
            map.number("first", first.map(u64::from));
            map.number("last", last.map(u64::from));
            map.name("scope", scope, Scope::name);
            map.number("expires_s", expires_s);
            map.number("retention_s", retention_s);
        }
        CollectionOperation::Set {
            expires_s,
            retention_s,
        } => {
            for (name, seconds) in [("expires_s", expires_s), ("retention_s", retention_s)] {
                if let Some(seconds) = seconds {
                    map.number_or_nil(name, seconds);
                }
            }
        }
        CollectionOperation::Delete => (),
    }
}

/// Appends an `inspect` request.
pub fn inspect(out: &mut Vec<u8>, msgid: u32, call: &Inspect<'_>) {
    begin(out, msgid, Method::Inspect);
    let mut map = Map::begin(out);
    map.key("envelope");
    match call.envelope {
        Envelope::Text(text) => write::str(map.out, text),
        Envelope::Binary(bytes) => write::bin(map.out, bytes),
    }
}

/// Appends an `info` request.
pub fn info(out: &mut Vec<u8>, msgid: u32) {
    begin(out, msgid, Method::Info);
    write::map_len(out, 0);
}

/// Appends a `health` request.
pub fn health(out: &mut Vec<u8>, msgid: u32) {
    begin(out, msgid, Method::Health);
    write::map_len(out, 0);
}

/// Checks that `payload` is exactly one MessagePack value. A client must check before it sends: two
/// values, or half of one, would shift every later message of the connection.
///
/// # Errors
/// [`Malformed`] if it is not.
pub fn check_payload(payload: &[u8]) -> Result<(), Malformed> {
    let mut reader = TokenReader::new(payload);
    reader.skip_value()?;
    at_end(&reader)
}

/// Appends a `cancel` notification for the call `msgid`.
pub fn cancel(out: &mut Vec<u8>, msgid: u32) {
    write::array_len(out, 3);
    write::uint(out, 2);
    write::str(out, Notification::Cancel.name());
    write::array_len(out, 1);
    write::uint(out, u64::from(msgid));
}

/// Appends a request up to its params map.
fn begin(out: &mut Vec<u8>, msgid: u32, method: Method) {
    write::array_len(out, 4);
    write::uint(out, 0);
    write::uint(out, u64::from(msgid));
    write::str(out, method.name());
    write::array_len(out, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_one_value() {
        for payload in [&[0x01][..], &[0x80], &[0x92, 0x01, 0xc0], b"\xa2ok"] {
            assert_eq!(check_payload(payload), Ok(()), "{payload:02x?}");
        }
        for payload in [&[][..], &[0x01, 0x01], &[0x92, 0x01], &[0xc1], b"\xa3ok"] {
            assert!(check_payload(payload).is_err(), "{payload:02x?}");
        }
    }
}
