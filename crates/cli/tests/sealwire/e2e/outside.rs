//! Tests of public keys: who gets them, and what becomes of values that were sealed to them without an engine.

use sealwire_apps::{KeyKind, Target};
use sealwire_client::control::PublicKeysCall;
use sealwire_client::public_keys::{Expected, KeysError, PublicKeys, SealOptions};
use sealwire_client::{Client, Encoding, Encrypt, Envelope, Error, Inspect, Outside, Reading, Rewrap, Writing};
use sealwire_crypto::{KeyId, Suite};
use sealwire_msgpack::{TokenReader, write};
use sealwire_wire::{Decrypt, ErrorCode, Format, KeyScope};

use crate::e2e::access::{self, FULL, NOBODY, connect, grant_role};
use crate::e2e::documents::value;
use crate::e2e::harness::{APP, Harness, code, rpc_error, run, shop};

const CALL: PublicKeysCall<'static> = PublicKeysCall { app: APP, min_generation: None, reason: None };

/// Publishes a key of the app. Returns its id.
async fn publish(harness: &Harness) -> KeyId {
    let rotated =
        harness.change(async |control, app| control.rotate(app, KeyKind::Outside(Suite::P256)).await.unwrap()).await;
    rotated.key().unwrap().id
}

/// Fetches the keys and checks them with the signer that the engine's state has.
async fn fetch(harness: &Harness, client: &Client) -> PublicKeys {
    let signing_key = harness.control().await.load().await.unwrap().signing_key.unwrap();
    let expected = Expected { signer: signing_key.verifying_key(), app: APP, min_generation: 0, now_unix_s: 0 };
    client.signed_public_keys(CALL).await.unwrap().verify(&expected).unwrap()
}

async fn key_of(client: &Client, document: &[u8]) -> (String, bool) {
    let text = TokenReader::new(document).str_utf8().unwrap();
    let said = client.inspect(Inspect { envelope: Envelope::Text(text) }).await.unwrap();
    (said.key_id.unwrap(), said.outside)
}

#[test]
fn those_who_may_get_the_keys_on_either_listener() {
    run(async {
        let harness = access::start().await;
        let operator = connect(&harness, harness.control_address(), FULL).await;
        let client = connect(&harness, harness.address, NOBODY).await;
        let relay = connect(&harness, harness.address, FULL).await;
        let refused = rpc_error(client.signed_public_keys(CALL).await);
        assert_eq!(refused.code, ErrorCode::Forbidden);
        for full in [&operator, &relay] {
            let refused = rpc_error(full.signed_public_keys(CALL).await);
            assert_eq!(refused.code, ErrorCode::NotFound);
            assert!(refused.message.contains("apps rotate APP --outside"), "{refused}");
        }
        let first = publish(&harness).await;
        // Neither a role on other operations nor one on another app is enough.
        for (role, grant) in [("data", "encrypt apps=shop"), ("elsewhere2", "apps.public_keys apps=other")] {
            grant_role(&operator, NOBODY, role, &[grant]).await;
            assert_eq!(code(client.signed_public_keys(CALL).await), ErrorCode::Forbidden, "{grant}");
        }
        grant_role(&operator, NOBODY, "seals", &["apps.public_keys apps=shop"]).await;
        let [by_client, by_relay, by_operator] =
            [&client, &relay, &operator].map(async |of| of.signed_public_keys(CALL).await.unwrap());
        let (by_client, by_relay, by_operator) = (by_client.await, by_relay.await, by_operator.await);
        assert_eq!((&by_client, &by_relay), (&by_operator, &by_operator), "a text is signed once an hour");
        assert_eq!(fetch(&harness, &client).await.key_id(), first);

        let second = publish(&harness).await;
        let keys = fetch(&harness, &client).await;
        assert_eq!(keys.key_id(), second);
        let signer = by_client.signer;
        let expected = Expected { signer: &signer, app: APP, min_generation: keys.generation(), now_unix_s: 0 };
        assert!(matches!(by_client.verify(&expected), Err(KeysError::Old { .. })));
        // A generation that is still to come.
        let ahead = PublicKeysCall { min_generation: Some(keys.generation() + 1), ..CALL };
        for of in [&client, &operator] {
            assert_eq!(code(of.signed_public_keys(ahead).await), ErrorCode::Conflict);
        }
        let nobody = PublicKeysCall { app: "nobody", ..CALL };
        assert_eq!(code(relay.signed_public_keys(nobody).await), ErrorCode::NotFound);
        for key in [first, second] {
            harness.change(async |control, app| control.disable(app, Target::Key(key)).await.unwrap()).await;
        }
        assert_eq!(code(relay.signed_public_keys(CALL).await), ErrorCode::NotFound);
        harness.settles().await;
    });
}

#[test]
fn what_a_client_seals_without_an_engine_opens_and_tells_its_origin() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let outside = publish(&harness).await;
        let keys = fetch(&harness, &client).await;
        let document = value(|out| {
            write::map_len(out, 3);
            write::str(out, "card");
            write::str(out, "4111111111111111");
            write::str(out, "list");
            write::array_len(out, 3);
            write::bin(out, b"\x00\xff");
            write::f64(out, 1.5);
            write::bool(out, true);
            write::str(out, "none");
            out.push(0xc0);
        });
        for (encoding, key_scope) in [
            (sealwire_crypto::Encoding::Text, sealwire_crypto::KeyScope::Request),
            (sealwire_crypto::Encoding::Binary, sealwire_crypto::KeyScope::Field),
        ] {
            let options = SealOptions { context: b"row 7", encoding, key_scope, ..SealOptions::default() };
            let sealed = keys.seal(&document, &options).unwrap().document;
            let open = async |context| client.decrypt(Decrypt { context, ..Decrypt::new(APP, &sealed) }).await;
            assert_eq!(open(b"row 7").await.unwrap().payload, document);
            assert_eq!(code(open(b"row 8").await), ErrorCode::CannotOpen);
        }
        let plain = value(|out| write::str(out, "value"));
        let sealed = keys.seal(&plain, &SealOptions::default()).unwrap().document;
        assert_eq!(key_of(&client, &sealed).await, (outside.to_string(), true));
        let inside = client.encrypt(Encrypt::new(APP, &plain)).await.unwrap().payload;
        assert!(!key_of(&client, &inside).await.1, "engines do not seal to a published key");
        let app = harness.control().await.app(&shop()).await.unwrap();
        assert!(app.keys.iter().any(|key| key.id == outside));
        harness.settles().await;
    });
}

#[test]
fn a_request_can_refuse_what_was_sealed_outside() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        publish(&harness).await;
        let plain = value(|out| write::str(out, "value"));
        let sealed = fetch(&harness, &client).await.seal(&plain, &SealOptions::default()).unwrap().document;
        let inside = client.encrypt(Encrypt::new(APP, &plain)).await.unwrap().payload;
        let evervault = Writing { format: Some(Format::Evervault), ..Writing::default() };
        let evervault = client.encrypt(Encrypt { writing: evervault, ..Encrypt::new(APP, &plain) }).await.unwrap();
        let open = async |document: &[u8], outside| {
            client.decrypt(Decrypt { writing: Reading { outside }, ..Decrypt::new(APP, document) }).await
        };
        // Twice: the second time the key schedule is cached.
        for _ in 0..2 {
            for document in [&sealed[..], &inside, &evervault.payload] {
                assert_eq!(open(document, Outside::Accept).await.unwrap().payload, plain);
            }
            assert_eq!(open(&inside, Outside::Refuse).await.unwrap().payload, plain);
            for document in [&sealed[..], &evervault.payload] {
                assert_eq!(code(open(document, Outside::Refuse).await), ErrorCode::CannotOpen);
            }
        }
        // The error is that of an altered value, path and all.
        let mut altered = inside.to_vec();
        *altered.last_mut().unwrap() ^= 1;
        let [refused, cannot] = [&sealed[..], &altered].map(|document| open(document, Outside::Refuse));
        assert_eq!(rpc_error(refused.await), rpc_error(cannot.await));
        harness.settles().await;
    });
}

#[test]
fn a_rewrap_does_not_hide_where_a_value_is_from() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let plain = value(|out| write::str(out, "value"));
        let first = publish(&harness).await;
        let sealed = fetch(&harness, &client).await.seal(&plain, &SealOptions::default()).unwrap().document;
        let second = publish(&harness).await;
        let rewrap = async |document: &[u8], writing| {
            client.rewrap(Rewrap { writing, ..Rewrap::new(APP, document) }).await.map(|done| done.payload)
        };
        assert_eq!(key_of(&client, &sealed).await, (first.to_string(), true));
        for writing in [
            Writing::default(),
            Writing { suite: Some(sealwire_client::Suite::Xaes), ..Writing::default() },
            Writing { format: Some(Format::Evervault), ..Writing::default() },
            Writing { key_scope: KeyScope::Field, ..Writing::default() },
        ] {
            let moved = rewrap(&sealed, writing).await.unwrap();
            assert_eq!(key_of(&client, &moved).await, (second.to_string(), true), "{writing:?}");
            assert_eq!(client.decrypt(Decrypt::new(APP, &moved)).await.unwrap().payload, plain);
        }
        let refuse = Writing { outside: Outside::Refuse, ..Writing::default() };
        assert_eq!(code(rewrap(&sealed, refuse).await), ErrorCode::CannotOpen);
        let adopt = Writing { outside: Outside::Adopt, ..Writing::default() };
        let adopted = rewrap(&sealed, adopt).await.unwrap();
        assert!(!key_of(&client, &adopted).await.1);
        let strict = Decrypt { writing: Reading { outside: Outside::Refuse }, ..Decrypt::new(APP, &adopted) };
        assert_eq!(client.decrypt(strict).await.unwrap().payload, plain);

        // Both kinds in one document, text and binary.
        let inside = client.encrypt(Encrypt::new(APP, &plain)).await.unwrap().payload;
        let both = [&[0x92][..], &sealed, &inside].concat();
        for encoding in [Encoding::Text, Encoding::Binary] {
            let moved = rewrap(&both, Writing { encoding, ..Writing::default() }).await.unwrap();
            let opened = client.decrypt(Decrypt::new(APP, &moved)).await.unwrap().payload;
            assert_eq!(opened, [&[0x92][..], &plain, &plain].concat());
        }
        let moved = rewrap(&both, Writing::default()).await.unwrap();
        let mut reader = TokenReader::new(&moved);
        reader.array_len().unwrap();
        let mut origins = Vec::new();
        for _ in 0..2 {
            origins.push(key_of(&client, reader.value().unwrap()).await.1);
        }
        assert_eq!(origins, [true, false]);
        // A client that was sealed to a key before it was disabled has lost its value, as with every key.
        harness.change(async |control, app| control.disable(app, Target::Key(first)).await.unwrap()).await;
        assert_eq!(code(rewrap(&sealed, Writing::default()).await), ErrorCode::CannotOpen);
        harness.settles().await;
    });
}

#[test]
fn a_client_refuses_keys_that_it_does_not_trust() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        publish(&harness).await;
        let signed = client.signed_public_keys(CALL).await.unwrap();
        let other = *sealwire_crypto::SigningKey::generate().unwrap().verifying_key();
        let expected = Expected { signer: &other, app: APP, min_generation: 0, now_unix_s: 0 };
        assert!(matches!(signed.verify(&expected), Err(KeysError::Signature)));
        let late = Expected { signer: &signed.signer, now_unix_s: u64::MAX, ..expected };
        assert!(matches!(signed.verify(&late), Err(KeysError::Expired { .. })));
        let missing = client.signed_public_keys(PublicKeysCall { app: "nobody", ..CALL }).await;
        assert!(matches!(missing, Err(Error::Rpc(error)) if error.code == ErrorCode::NotFound));
    });
}
