//! Small requests whose work the network thread does itself.

use sealwire_client::{Client, Decrypt, Encrypt, EnvelopeOptions, KeyScope, Mask, MaskRule};
use sealwire_crypto::EpochLifetime;

use crate::e2e::harness::{APP, Harness, run};

const INLINE: &str = "sealwire_requests_inline_total";
const PAYLOAD: &[u8] = b"\x81\xa3pan\xb04242424242424242";

async fn mask(client: &Client) -> Vec<u8> {
    let rules = vec![MaskRule::path("$.pan", "partial(last=4)")];
    let call = Mask::new(APP, PAYLOAD, rules);
    client.mask(call).await.unwrap().payload.to_vec()
}

async fn encrypt(client: &Client, key_scope: KeyScope) -> Vec<u8> {
    let writing = EnvelopeOptions::new().key_scope(key_scope);
    client
        .encrypt(Encrypt::new(APP, PAYLOAD).envelope_options(writing))
        .await
        .unwrap()
        .payload
        .to_vec()
}

#[test]
fn work_without_a_key_agreement_needs_no_crypto_thread() {
    run(async {
        // A slice that a busy machine interrupts ends by time, and its rest would need a crypto
        // thread.
        let harness = Harness::with(|config| config.schedule.slice_us = 100_000).await;
        harness.set_epoch(EpochLifetime::MS_MAX).await;
        let client = harness.client().await;
        let runs = async || harness.metric(INLINE).await;
        let sealed = encrypt(&client, KeyScope::Request).await;
        let in_epoch = encrypt(&client, KeyScope::Epoch).await;
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &sealed))
                .await
                .unwrap()
                .payload,
            PAYLOAD
        );
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &in_epoch))
                .await
                .unwrap()
                .payload,
            PAYLOAD
        );
        assert_eq!(runs().await, 0.0, "each of these made or agreed on a key");
        // With every crypto thread held, nothing is answered but what needs none.
        let hold = harness.hold_crypto().await;
        assert_eq!(mask(&client).await, b"\x81\xa3pan\xb0************4242");
        let again = encrypt(&client, KeyScope::Epoch).await;
        // Both were opened before, so their keys are cached. The third was sealed under the
        // second's.
        for envelope in [&sealed, &in_epoch, &again] {
            assert_eq!(
                client
                    .decrypt(Decrypt::new(APP, envelope))
                    .await
                    .unwrap()
                    .payload,
                PAYLOAD
            );
        }
        assert_eq!(runs().await, 5.0);
        drop(hold);
        let fresh = encrypt(&client, KeyScope::Request).await;
        assert_eq!(
            client
                .decrypt(Decrypt::new(APP, &fresh))
                .await
                .unwrap()
                .payload,
            PAYLOAD
        );
        assert_eq!(runs().await, 5.0);
    });
}
