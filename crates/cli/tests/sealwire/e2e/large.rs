//! Tests of large documents, and of a slow reader.

use sealwire_client::{Decrypt, Encrypt};
use sealwire_msgpack::write;
use sealwire_wire::Document;

use crate::e2e::harness::{APP, Dice, Harness, fields, run};
use crate::e2e::raw::encrypt;

/// Makes a document of about `bytes` bytes: maps of short and long strings, numbers, binary, lists.
fn mixed(bytes: usize) -> Vec<u8> {
    let mut dice = Dice::new(20);
    let mut records = Vec::new();
    let mut count = 0;
    while records.len() < bytes {
        let out = &mut records;
        write::map_len(out, 6);
        write::str(out, "id");
        write::uint(out, dice.roll(u64::MAX));
        write::str(out, "name");
        write::str(out, &"name".repeat(1 + dice.roll(20) as usize));
        write::str(out, "note");
        write::str(
            out,
            &"a note of some length. ".repeat(dice.roll(60) as usize),
        );
        write::str(out, "photo");
        write::bin(out, &vec![0x5a; dice.roll(2_000) as usize]);
        write::str(out, "flags");
        write::array_len(out, 3);
        write::bool(out, true);
        write::nil(out);
        write::f64(out, 0.1);
        write::str(out, "amount");
        write::int(out, -(dice.roll(1 << 40) as i64));
        count += 1;
    }
    let mut out = Vec::with_capacity(records.len() + 5);
    write::array_len(&mut out, count);
    out.extend_from_slice(&records);
    out
}

#[test]
fn sixty_thousand_fields_come_back() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = fields(60_000);
        let sealed = client
            .encrypt(Encrypt::new(APP, &document))
            .await
            .unwrap()
            .payload;
        assert!(sealed.len() > 6_000_000);
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed))
                .await
                .unwrap()
                .payload,
            document
        );
        harness.settles().await;
    });
}

#[test]
fn twenty_megabytes_come_back() {
    run(async {
        let harness = Harness::start().await;
        let client = harness.client().await;
        let document = mixed(20 << 20);
        for _ in 0..2 {
            let sealed = client
                .encrypt(Encrypt::new(APP, &document))
                .await
                .unwrap()
                .payload;
            assert!(
                client
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload
                    == document
            );
        }
        harness.settles().await;
    });
}

#[test]
fn a_reader_that_pauses_holds_up_nobody() {
    run(async {
        // The large response is not read while the small requests run.
        let harness = Harness::with(|config| config.limits.write_stall_ms_max = 3_600_000).await;
        let client = harness.client().await;
        let document = mixed(20 << 20);
        let mut slow = harness.raw().await;
        slow.send(&encrypt(1, &Encrypt::new(APP, &document).into_wire()))
            .await;
        // The response has over 27 MB, far more than the system's buffers: half of it waits in the
        // server.
        let whole = slow.hear_part(10 << 20).await;
        for call in 0..50 {
            let small = fields(1 + call % 7);
            let sealed = client
                .encrypt(Encrypt::new(APP, &small))
                .await
                .unwrap()
                .payload;
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, &sealed))
                    .await
                    .unwrap()
                    .payload,
                small
            );
        }
        assert!(
            !whole,
            "the large reply was complete before the small calls began"
        );
        let result = slow.answer(1).await.unwrap();
        let sealed = Document::decode(&result).unwrap().payload;
        assert!(
            client
                .decrypt(Decrypt::new(APP, sealed))
                .await
                .unwrap()
                .payload
                == document
        );
        slow.is_alive().await;
        harness.settles().await;
    });
}
