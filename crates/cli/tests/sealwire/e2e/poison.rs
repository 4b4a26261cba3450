//! Tests of text that claims to be an envelope and is none. Whoever can write a field of a document
//! can put it there.

use sealwire_client::{Client, Decrypt, Encrypt, Error};
use sealwire_msgpack::{TokenReader, write};
use sealwire_wire::{ErrorCode, OnError};

use crate::e2e::harness::{APP, Harness, code, run};

/// Returns a string as a document.
fn text(value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write::str(&mut out, value);
    out
}

async fn sealed(client: &Client, app: &str, context: &[u8], value: &str) -> String {
    let document = client
        .encrypt(Encrypt::new(app, &text(value)).context(context))
        .await
        .unwrap()
        .payload;
    TokenReader::new(&document).str_utf8().unwrap().to_owned()
}

/// Returns a document with each poison in a list, in a map within a list, and as a key, around
/// fields with the text `field`.
fn document(poisons: &[String], field: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write::map_len(&mut out, 3);
    write::str(&mut out, "first");
    write::str(&mut out, field);
    write::str(&mut out, "list");
    write::array_len(&mut out, poisons.len() as u32);
    for poison in poisons {
        write::array_len(&mut out, 3);
        write::str(&mut out, poison);
        write::map_len(&mut out, 2);
        write::str(&mut out, "inner");
        write::str(&mut out, poison);
        // No key of a map is opened.
        write::str(&mut out, poison);
        write::str(&mut out, field);
        write::str(&mut out, field);
    }
    write::str(&mut out, "last");
    write::str(&mut out, field);
    out
}

#[test]
fn with_report_text_that_claims_to_be_an_envelope_stays_and_the_rest_opens() {
    run(async {
        let harness = Harness::start().await;
        harness.serve_app("other").await;
        let client = harness.client().await;
        let field = sealed(&client, APP, b"", "a value").await;
        let cut = field[..field.len() - 8].to_owned();
        let middle = field.len() / 2;
        let other = if &field[middle..=middle] == "A" {
            "B"
        } else {
            "A"
        };
        let damaged = format!("{}{other}{}", &field[..middle], &field[middle + 1..]);
        let elsewhere = sealed(&client, "other", b"", "a value").await;
        let bound = sealed(&client, APP, b"another place", "a value").await;
        let poisons = [
            ("the prefix alone", "sw1:".to_owned()),
            ("the prefix and words", "sw1: is how it begins".to_owned()),
            ("cut", cut),
            ("damaged", damaged),
            ("of another app", elsewhere),
            ("under another context", bound),
            ("Evervault's prefix and end", "ev:no value:$".to_owned()),
            ("both prefixes", "sw1:ev:no value:$".to_owned()),
        ];
        for (name, poison) in &poisons {
            let document = document(std::slice::from_ref(poison), &field);
            let failed = code(client.decrypt(Decrypt::new(APP, &document)).await);
            assert_eq!(failed, ErrorCode::CannotOpen, "{name}: without report");
        }
        let texts = poisons.map(|(_, text)| text);
        let call = document(&texts, &field);
        let opened = client
            .decrypt(Decrypt::new(APP, &call).on_error(OnError::Report))
            .await
            .unwrap();
        assert_eq!(opened.payload, document(&texts, "a value"));
        let expected: Vec<_> = (0..texts.len())
            .flat_map(|at| [format!("$.list[{at}][0]"), format!("$.list[{at}][1].inner")])
            .map(|path| (path, ErrorCode::CannotOpen))
            .collect();
        let listed: Vec<_> = opened
            .errors
            .into_iter()
            .map(|error| (error.path, error.code))
            .collect();
        assert_eq!(listed, expected);
        assert_eq!(opened.errors_omitted, 0);

        // Text that only resembles the prefixes is data.
        let data = ["ev:", "ev:no end", "SW1:", " sw1:", "sw2:", "sw1"].map(str::to_owned);
        let opened = client
            .decrypt(Decrypt::new(APP, &document(&data, &field)))
            .await
            .unwrap();
        assert_eq!(opened.payload, document(&data, "a value"));
        harness.settles().await;
    });
}

#[test]
fn a_list_of_errors_that_is_cut_says_how_many_more_there_are() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let mut document = Vec::new();
        write::array_len(&mut document, 2_500);
        (0..2_500).for_each(|_| write::str(&mut document, "sw1:"));
        let call = Decrypt::new(APP, &document).on_error(OnError::Report);
        let opened = client.decrypt(call).await.unwrap();
        assert_eq!(opened.payload, document);
        assert_eq!((opened.errors.len(), opened.errors_omitted), (1_000, 1_500));
        harness.settles().await;
    });
}

#[test]
fn a_value_that_looks_like_an_envelope_is_sealed_like_any_other() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let real = sealed(&client, APP, b"", "a value").await;
        for value in ["sw1:", "sw1:no envelope", "ev:no value:$", "sw1h:", &real] {
            let document = text(value);
            let once: Result<_, Error> = client.encrypt(Encrypt::new(APP, &document)).await;
            let once = once.unwrap().payload;
            assert_ne!(once, document, "{value}");
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &once))
                    .await
                    .unwrap()
                    .payload,
                document,
                "{value}"
            );
        }
        harness.settles().await;
    });
}
