//! Admission to the listener: a valid certificate of the right authority, over TLS 1.3.

use sealwire_dev_ca::{Authority, Usage, Validity};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::e2e::harness::{Harness, leaf, run};
use crate::e2e::raw::{Heard, health};

const TLS_FAILED: &str = "sealwire_connections_total{outcome=\"tls_failed\"}";

#[test]
fn strangers_are_turned_away_and_the_server_goes_on() {
    run(async {
        let harness = Harness::start().await;
        let mut known = harness.raw().await;
        let stranger = Authority::create("e2e", Validity::days(1)).unwrap();
        let stranger = stranger.issue(&leaf(Usage::Client, "relay")).unwrap();
        let expired = harness.expired_caller();
        let a_server = harness
            .authority
            .issue(&leaf(Usage::Server, "relay"))
            .unwrap();
        let cases = [
            ("another authority's", Some(&stranger)),
            ("none", None),
            ("expired", Some(&expired)),
            ("a server's", Some(&a_server)),
        ];
        for (nth, (name, identity)) in cases.into_iter().enumerate() {
            // Under TLS 1.3, the client's handshake ends before the server has seen its
            // certificate. The alert comes later.
            if let Ok(mut raw) = harness.raw_as(identity).await {
                let _ = raw.try_send(&health(1)).await;
                assert_eq!(raw.hear().await, Heard::End, "{name}");
            }
            harness
                .metric_becomes(TLS_FAILED, |failed| failed == (nth + 1) as f64)
                .await;
            known.is_alive().await;
        }
        // Plain text, as from a client with the wrong URL scheme, and as from a client without TLS.
        for (nth, text) in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), health(1)]
            .into_iter()
            .enumerate()
        {
            let mut stream = TcpStream::connect(harness.address).await.unwrap();
            stream.write_all(&text).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut heard = Vec::new();
            let _ = stream.read_to_end(&mut heard).await;
            assert!(heard.len() < 16, "an alert at most: {heard:02x?}");
            harness
                .metric_becomes(TLS_FAILED, |failed| {
                    failed == (cases.len() + nth + 1) as f64
                })
                .await;
        }
        known.is_alive().await;
        harness.raw().await.is_alive().await;
        assert_eq!(
            harness
                .metric("sealwire_connections_total{outcome=\"accepted\"}")
                .await,
            2.0
        );
    });
}
