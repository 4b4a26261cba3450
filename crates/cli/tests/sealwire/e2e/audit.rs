//! The audit log over real calls: one record each, with the right numbers and nothing of what
//! they carry; and what callers see when it cannot be written.

mod full;

use sealwire_client::control::{
    AppOperation, AppSettings, CensusRequest, CollectionOperation, CreateCollection, Kind,
    RewrapRowsRequest, RotateKind, Scope, TokenFormat,
};
use sealwire_client::{
    Client, ClientConfig, CollectionTarget, Decrypt, Detokenize, Encrypt, ErrorCode, Format,
    Inspect, Listing, OnError, Page, Pem, Rewrap, Suite, Sweep, Tokenize,
};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sealwire_access::PrincipalKind;
use sealwire_audit::{AuditKey, Filter, Follow, Range, RecordView, verify};
use sealwire_crypto::Kek;
use sealwire_dev_ca::Issued;
use sealwire_settings::{Config, ControlListen, KekSource};

use crate::e2e::harness::{APP, Harness, code, fields, run};
use crate::e2e::raw::{Heard, Raw, cancel, health, heavy};

/// A value that no file may contain.
const CANARY: &str = "canary-7f3a9d";

fn audited(config: &mut Config) {
    let folder = config.state.folder.parent().unwrap().join("audit");
    config.audit.folder = Some(folder);
    config.control = Some(ControlListen {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        client_ca: None,
        client_crl: None,
        principals: vec![(PrincipalKind::Dns, "operator".to_owned())],
    });
}

fn folder(harness: &Harness) -> PathBuf {
    harness.config.audit.folder.clone().unwrap()
}

pub(crate) fn records(folder: &Path) -> Vec<RecordView> {
    let (filter, mut found) = (Filter::default(), Vec::new());
    let mut take = |line: &[u8]| {
        found.extend(filter.take(line));
        Ok(())
    };
    Follow::new(folder.to_owned()).poll(&mut take).unwrap();
    found
}

/// Verifies the trail with the key of the configuration.
fn verified(config: &Config, folder: &Path) {
    let KekSource::File(file) = &config.kek else {
        panic!("the default is a file")
    };
    let kek = Kek::from_hex(&std::fs::read_to_string(file).unwrap()).unwrap();
    let key = AuditKey::new(kek.audit_secret());
    let report = verify(folder, Some(&key), Range::default(), &[], &mut |_, _| ()).unwrap();
    assert!(
        report.is_sound() && report.from_beginning,
        "{:?}",
        report.findings
    );
}

/// Returns the contents of all files of the trail.
fn bytes(folder: &Path) -> Vec<u8> {
    std::fs::read_dir(folder)
        .unwrap()
        .flat_map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

async fn operator(harness: &Harness, identity: &Issued) -> Client {
    let bytes = |text: &str| Pem::Bytes(text.as_bytes().to_vec());
    let (ca, cert) = (
        bytes(harness.authority.cert_pem()),
        bytes(&identity.cert_pem),
    );
    let address = harness.control_address().to_string();
    let config = ClientConfig::new(
        address,
        "localhost",
        ca,
        cert,
        bytes(identity.key_pem.expose()),
    );
    Client::connect(ClientConfig {
        connections: 1,
        attempts_max: 1,
        ..config
    })
    .await
    .unwrap()
}

fn doc(count: usize) -> Vec<u8> {
    let texts: Vec<String> = (0..count)
        .map(|field| format!("\"{CANARY}-{field}\""))
        .collect();
    let json = format!("[{}]", texts.join(","));
    sealwire_payload::json::to_msgpack(json.as_bytes(), sealwire_payload::WalkLimits::default())
        .unwrap()
}

/// Method, outcome, app, collection, fields and errors of a request, as in its record.
type Row = (String, String, Option<String>, Option<String>, u64, u64);

fn row(
    method: &str,
    outcome: &str,
    app: Option<&str>,
    collection: Option<&str>,
    fields: u64,
    errors: u64,
) -> Row {
    (
        method.into(),
        outcome.into(),
        app.map(Into::into),
        collection.map(Into::into),
        fields,
        errors,
    )
}

fn rows(records: &[RecordView]) -> Vec<Row> {
    let calls = records
        .iter()
        .filter(|record| record.event == "call")
        .cloned();
    calls
        .map(|call| {
            let (method, outcome) = (call.method.unwrap(), call.outcome.unwrap());
            (
                method,
                outcome,
                call.app,
                call.collection,
                call.fields,
                call.errors,
            )
        })
        .collect()
}

#[test]
fn data_requests_leave_one_record_with_numbers_without_values() {
    run(async {
        let mut harness = Harness::with(audited).await;
        let chief = operator(&harness, &harness.another_caller("operator")).await;
        let operation = CollectionOperation::create(
            CreateCollection::new(Kind::Deterministic).scope(Scope::Context),
        );
        let made = chief
            .change_collection(APP, "people", operation)
            .await
            .unwrap();
        let relay = harness.client().await;
        let payload = doc(7);

        let sealed = relay.encrypt(Encrypt::new(APP, &payload)).await.unwrap();
        relay
            .decrypt(Decrypt::new(APP, &sealed.payload))
            .await
            .unwrap();
        relay
            .rewrap(Rewrap::new(APP, &sealed.payload))
            .await
            .unwrap();
        // With a context that nothing was sealed under, every field fails on its own.
        let other = Decrypt::new(APP, &sealed.payload)
            .context(CANARY.as_bytes())
            .on_error(OnError::Report);
        assert_eq!(relay.decrypt(other).await.unwrap().errors.len(), 7);
        let failing = Decrypt::new(APP, &sealed.payload).context(CANARY.as_bytes());
        assert_eq!(code(relay.decrypt(failing).await), ErrorCode::CannotOpen);
        assert_eq!(
            code(relay.encrypt(Encrypt::new("nobody", &payload)).await),
            ErrorCode::NotFound
        );
        let later = Encrypt::new(APP, &payload).min_generation(u64::MAX);
        assert_eq!(code(relay.encrypt(later).await), ErrorCode::Conflict);
        let first: Vec<String> = strings(&sealed.payload);
        relay.inspect(Inspect::text(&first[0])).await.unwrap();
        assert_eq!(
            code(relay.inspect(Inspect::text(CANARY)).await),
            ErrorCode::BadRequest
        );

        let tokenize = || Tokenize::new(APP, "people", &payload).tags([]);
        let tokens = relay
            .tokenize(tokenize().min_generation(made.generation))
            .await
            .unwrap();
        let names: Vec<String> = strings(&tokens.payload);
        relay
            .detokenize(Detokenize::new(APP, "people", &tokens.payload))
            .await
            .unwrap();
        let elsewhere = CANARY.as_bytes();
        let absent = Detokenize::new(APP, "people", &tokens.payload)
            .context(elsewhere)
            .on_error(OnError::Report);
        assert_eq!(relay.detokenize(absent).await.unwrap().errors.len(), 7);
        let map = CollectionTarget::new(APP, "people");
        let some: Vec<&str> = names
            .iter()
            .take(3)
            .map(String::as_str)
            .chain(["tok_0000000000000000000000"])
            .collect();
        relay.tokens_get(map, &some).await.unwrap();
        relay
            .tokens_list(map, Listing::new().limit(5))
            .await
            .unwrap();
        relay.tokens_expire(map, &some[..2], None).await.unwrap();
        relay.tokens_delete(map, &some).await.unwrap();
        relay.tokens_archive(map, Sweep::default()).await.unwrap();
        relay.tokens_prune(map, Sweep::default()).await.unwrap();
        let nowhere = CollectionTarget::new(APP, "nowhere");
        assert_eq!(
            code(relay.tokens_get(nowhere, &some).await),
            ErrorCode::NotFound
        );
        // These requests are not recorded.
        relay.health().await.unwrap();
        relay.info().await.unwrap();
        // A malformed request, an unknown method, and a second message on the same connection.
        let mut raw = harness.raw().await;
        raw.send(&[
            0x94, 0x00, 0x01, 0xa7, b'd', b'e', b'c', b'r', b'y', b'p', b't', 0x91, 0x80,
        ])
        .await;
        assert!(
            matches!(raw.hear().await, Heard::Response(1, Err(error)) if error.code == ErrorCode::BadRequest)
        );
        raw.send(&[0x94, 0x00, 0x02, 0xa3, b'f', b'o', b'o', 0x91, 0x80])
            .await;
        assert!(
            matches!(raw.hear().await, Heard::Response(2, Err(error)) if error.code == ErrorCode::NotFound)
        );
        raw.send(&health(3)).await;
        assert!(matches!(raw.hear().await, Heard::Response(3, Ok(_))));

        harness.take_server().shutdown().await;
        let (folder, app, people) = (folder(&harness), Some(APP), Some("people"));
        let found = records(&folder);
        assert_eq!(
            rows(&found),
            [
                row("collections.create", "ok", app, people, 0, 0),
                row("encrypt", "ok", app, None, 7, 0),
                row("decrypt", "ok", app, None, 7, 0),
                row("rewrap", "ok", app, None, 7, 0),
                row("decrypt", "ok", app, None, 7, 7),
                row("decrypt", "cannot_open", app, None, 1, 0),
                row("encrypt", "not_found", Some("nobody"), None, 0, 0),
                row("encrypt", "conflict", app, None, 0, 0),
                row("inspect", "ok", None, None, 0, 0),
                row("inspect", "bad_request", None, None, 0, 0),
                row("tokenize", "ok", app, people, 7, 0),
                row("detokenize", "ok", app, people, 7, 0),
                row("detokenize", "ok", app, people, 7, 7),
                row("tokens.get", "ok", app, people, 4, 1),
                row("tokens.list", "ok", app, people, 5, 0),
                row("tokens.expire", "ok", app, people, 2, 0),
                row("tokens.delete", "ok", app, people, 4, 1),
                row("tokens.archive", "ok", app, people, 0, 0),
                row("tokens.prune", "ok", app, people, 0, 0),
                row("tokens.get", "not_found", app, Some("nowhere"), 0, 0),
                row("decrypt", "bad_request", None, None, 0, 0),
                row("unknown", "not_found", None, None, 0, 0),
            ]
        );
        let by_event: BTreeMap<&str, usize> =
            found.iter().fold(BTreeMap::new(), |mut counts, record| {
                *counts.entry(&*record.event).or_default() += 1;
                counts
            });
        assert_eq!(
            by_event,
            BTreeMap::from([("call", 22), ("segment", 1), ("start", 1), ("stop", 1)])
        );
        for record in found.iter().filter(|record| record.event == "call").skip(1) {
            assert_eq!(
                (record.principal.as_deref(), record.kind.as_deref()),
                (Some("relay"), Some("dns"))
            );
            // The shortest message is the one with the unknown method.
            assert!(record.bytes_in >= 9 && record.generation >= 1, "{record:?}");
            assert_eq!(record.instance, found[0].instance);
        }
        verified(&harness.config, &folder);
        let bytes = bytes(&folder);
        for secret in names
            .iter()
            .chain(&first)
            .map(String::as_str)
            .chain([CANARY, "tok_"])
        {
            assert!(!holds(&bytes, secret), "{secret}");
        }
        assert!(!holds(&bytes, &first[0][..20]));
    });
}

/// Returns the strings in an array.
fn strings(payload: &[u8]) -> Vec<String> {
    let mut text = Vec::new();
    sealwire_payload::json::from_msgpack(
        payload,
        &mut text,
        false,
        sealwire_payload::WalkLimits::default(),
    )
    .unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn control_calls_are_recorded_with_what_was_changed_and_strangers_with_their_names() {
    run(async {
        let mut harness = Harness::with(audited).await;
        let chief = operator(&harness, &harness.another_caller("operator")).await;
        let scalar = format!("{:064x}", 0x5eed_cafe_u64);
        chief
            .change_app("new", AppOperation::create())
            .await
            .unwrap();
        assert_eq!(
            code(chief.change_app("new", AppOperation::create()).await),
            ErrorCode::Conflict
        );
        chief
            .change_app("new", AppOperation::rotate(RotateKind::Secp256k1))
            .await
            .unwrap();
        let import = AppOperation::import(Suite::P256, &scalar, false);
        let imported = chief.change_app("new", import).await.unwrap().key.unwrap();
        chief
            .change_app("new", AppOperation::disable(&*imported))
            .await
            .unwrap();
        chief
            .change_app(
                "new",
                AppOperation::set(
                    AppSettings::new()
                        .format(Format::Evervault)
                        .epoch(Duration::from_millis(500))
                        .write_suite(Suite::Xaes)
                        .read_suites([Suite::P256, Suite::Secp256k1, Suite::Xaes]),
                ),
            )
            .await
            .unwrap();
        chief
            .change_app("new", AppOperation::delete(None, Duration::from_secs(60)))
            .await
            .unwrap();
        chief.apps(Page::default()).await.unwrap();
        chief.instances().await.unwrap();
        chief.health().await.unwrap();
        let stranger = harness.another_caller("stranger");
        let stranger = Raw::connect(
            harness.control_address(),
            harness.authority.cert_pem(),
            Some(&stranger),
        )
        .await;
        let mut stranger = stranger.unwrap();
        stranger.send(b"\x94\x00\x07\xa9apps.list\x91\x80").await;
        let Heard::Response(7, Err(error)) = stranger.hear().await else {
            panic!("no answer")
        };
        assert_eq!(error.code, ErrorCode::Forbidden);
        harness.take_server().shutdown().await;

        let found = records(&folder(&harness));
        let calls: Vec<_> = found
            .iter()
            .filter(|record| record.event == "call")
            .collect();
        let change = |pairs: serde_json::Value| pairs.as_object().cloned();
        let expected = [
            ("operator", "apps.create", "ok", None),
            ("operator", "apps.create", "conflict", None),
            (
                "operator",
                "apps.rotate",
                "ok",
                change(
                    serde_json::json!({"kind": "secp256k1", "key": calls[2].change.as_ref().unwrap()["key"]}),
                ),
            ),
            (
                "operator",
                "apps.import",
                "ok",
                change(serde_json::json!({"suite": "p256", "seals": false, "key": imported})),
            ),
            (
                "operator",
                "apps.disable",
                "ok",
                change(serde_json::json!({"key": imported})),
            ),
            (
                "operator",
                "apps.set",
                "ok",
                change(serde_json::json!({
                    "format": "evervault", "epoch_ms": 500, "write_suite": "xaes",
                    "read_suites": ["p256", "secp256k1", "xaes"],
                })),
            ),
            (
                "operator",
                "apps.delete",
                "ok",
                change(serde_json::json!({"delay_s": 60})),
            ),
            ("operator", "apps.list", "ok", None),
            ("operator", "instances.list", "ok", None),
            ("stranger", "apps.list", "forbidden", None),
        ];
        assert_eq!(calls.len(), expected.len(), "{calls:?}");
        for (call, (principal, method, outcome, change)) in calls.iter().zip(expected) {
            assert_eq!(call.principal.as_deref(), Some(principal), "{call:?}");
            assert_eq!(
                (call.method.as_deref(), call.outcome.as_deref()),
                (Some(method), Some(outcome)),
                "{call:?}"
            );
            assert_eq!(call.change, change, "{call:?}");
        }
        let generations: Vec<_> = [0, 2, 3, 4, 5, 6]
            .iter()
            .map(|at| calls[*at].generation)
            .collect();
        assert!(
            generations.windows(2).all(|pair| pair[0] < pair[1]),
            "{generations:?}"
        );
        assert!(
            !holds(&bytes(&folder(&harness)), &scalar),
            "the private key"
        );
        verified(&harness.config, &folder(&harness));
    });
}

#[test]
fn a_rewrap_is_recorded_with_the_rows_that_it_sealed() {
    run(async {
        let mut harness = Harness::with(audited).await;
        let chief = operator(&harness, &harness.another_caller("operator")).await;
        let (expires_s, retention_s) = (None, None);
        let (kind, format, scope) = (Kind::Random, TokenFormat::Opaque, Scope::Collection);
        let operation = CollectionOperation::create(
            CreateCollection::new(kind)
                .format(format)
                .scope(scope)
                .expires_after(expires_s.map(Duration::from_secs))
                .retention(retention_s.map(Duration::from_secs)),
        );
        chief
            .change_collection(APP, "people", operation)
            .await
            .unwrap();
        let (relay, payload) = (harness.client().await, doc(7));
        relay
            .tokenize(Tokenize::new(APP, "people", &payload))
            .await
            .unwrap();
        chief
            .change_app(APP, AppOperation::rotate(RotateKind::Token))
            .await
            .unwrap();
        let call = RewrapRowsRequest::new(APP).collection("people");
        assert_eq!(chief.keys_rewrap(call).await.unwrap().rewrapped, 7);
        chief.keys_census(CensusRequest::new(APP)).await.unwrap();
        harness.take_server().shutdown().await;
        let found = records(&folder(&harness));
        let expected = [
            row("keys.rewrap", "ok", Some(APP), Some("people"), 7, 0),
            row("keys.census", "ok", Some(APP), None, 0, 0),
        ];
        assert!(rows(&found).ends_with(&expected), "{found:?}");
    });
}

#[test]
fn requests_that_are_cancelled_rejected_or_cut_off_leave_one_record() {
    run(async {
        let mut harness = Harness::with(|config| {
            audited(config);
            config.crypto.threads = 1;
            config.limits.in_flight_per_connection_max = 4;
        })
        .await;
        let mut raw = harness.raw().await;
        let mut batch = Vec::new();
        for msgid in 0..12 {
            batch.extend(heavy(msgid, 200));
        }
        for msgid in 0..12 {
            batch.extend(cancel(msgid));
        }
        raw.send(&batch).await;
        let mut codes: BTreeMap<String, usize> = BTreeMap::new();
        for _ in 0..12 {
            let Heard::Response(_, outcome) = raw.hear().await else {
                panic!("an answer to each")
            };
            let code =
                outcome.map_or_else(|error| error.code.name().to_owned(), |_| "ok".to_owned());
            *codes.entry(code).or_default() += 1;
        }
        harness.take_server().shutdown().await;
        let mut recorded: BTreeMap<String, usize> = BTreeMap::new();
        for (method, outcome, ..) in rows(&records(&folder(&harness))) {
            assert_eq!(method, "encrypt");
            *recorded.entry(outcome).or_default() += 1;
        }
        assert_eq!(recorded, codes, "as they were answered");
        verified(&harness.config, &folder(&harness));
    });
}

#[test]
fn two_engines_do_not_share_a_trail_and_a_restart_goes_on_with_it() {
    run(async {
        let mut harness = Harness::with(|config| {
            crate::e2e::harness::stateless(config);
            audited(config);
            config.control = None;
        })
        .await;
        let error = sealwire_server::server::Server::start(&harness.config)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("audit.folder: ") && error.contains("another engine"),
            "{error}"
        );
        for round in 1..=3 {
            harness
                .client()
                .await
                .encrypt(Encrypt::new(APP, &fields(round)))
                .await
                .unwrap();
            let sequence = harness.metric("sealwire_audit_sequence").await;
            harness.take_server().shutdown().await;
            let found = records(&folder(&harness));
            assert_eq!(
                found.len() as u32,
                3 * round + 1,
                "a segment's first, and of each round a start, a call and a stop"
            );
            assert_eq!(sequence as usize, found.len() - 1, "the stop came behind");
            assert!(
                found
                    .iter()
                    .all(|record| record.event != "start"
                        || record.found.as_deref() != Some("broken"))
            );
            verified(&harness.config, &folder(&harness));
            harness.restart().await;
        }
    });
}

#[test]
fn a_flood_of_refused_requests_leaves_some_records_and_their_count() {
    const FLOOD: u32 = 5_000;
    run(async {
        let mut harness = Harness::with(|config| {
            audited(config);
            config.limits.rejected_per_s_max = 1_000_000;
        })
        .await;
        let stranger = harness.another_caller("stranger");
        let relay = harness.client().await;
        let mut data = harness.raw().await;
        for at in 0..FLOOD {
            // A method that does not exist.
            data.send(&[0x94, 0, 7, 0xa3, b'f', b'o', b'o', 0x91, 0x80])
                .await;
            assert!(matches!(data.hear().await, Heard::Response(7, Err(_))));
            if at % 100 == 0 {
                relay.encrypt(Encrypt::new(APP, &doc(1))).await.unwrap();
            }
        }
        // The control listener serves an unauthorized client for a few seconds per connection, so
        // the test reconnects.
        let mut denied = 0;
        while denied < 100 {
            let raw = Raw::connect(
                harness.control_address(),
                harness.authority.cert_pem(),
                Some(&stranger),
            )
            .await;
            let mut raw = raw.unwrap();
            while denied < 100
                && raw
                    .try_send(b"\x94\x00\x07\xa9apps.list\x91\x80")
                    .await
                    .is_ok()
            {
                let Heard::Response(7, Err(error)) = raw.hear().await else {
                    break;
                };
                assert_eq!(error.code, ErrorCode::Forbidden);
                denied += 1;
            }
        }
        harness.take_server().shutdown().await;

        let found = records(&folder(&harness));
        let of = |event: &str, outcome: &str| {
            let is = |record: &&RecordView| {
                record.event == event && record.outcome.as_deref() == Some(outcome)
            };
            found
                .iter()
                .filter(is)
                .cloned()
                .collect::<Vec<RecordView>>()
        };
        assert_eq!(
            of("call", "ok").len(),
            FLOOD as usize / 100,
            "each permitted call has its record"
        );
        for (outcome, principal, method, sent) in [
            ("forbidden", "stranger", "apps.list", denied),
            ("not_found", "relay", "unknown", u64::from(FLOOD)),
        ] {
            let (single, counted) = (of("call", outcome), of("refused", outcome));
            let sum: u64 = counted.iter().filter_map(|record| record.count).sum();
            // The last response to an unauthorized client can be missing.
            assert!(
                (sent..sent + 10).contains(&(single.len() as u64 + sum)),
                "{outcome}: {} and {sum}",
                single.len()
            );
            assert!(
                single.len() >= 20 && sum >= sent / 2,
                "{outcome}: {} and {sum}",
                single.len()
            );
            for record in single.iter().chain(&counted) {
                assert_eq!(record.principal.as_deref(), Some(principal), "{record:?}");
                assert_eq!(record.method.as_deref(), Some(method), "{record:?}");
            }
        }
        verified(&harness.config, &folder(&harness));
    });
}
