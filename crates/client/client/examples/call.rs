//! One call from Rust, against an engine that `sealwire dev` started in this folder:
//! `cargo run --release -p sealwire-client --example call`

use sealwire_client::{Client, ClientConfig, Decrypt, Encrypt, Pem, to_payload};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = |name: &str| Pem::File(format!("sealwire-dev/{name}").into());
    let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client-key.pem"));
    let client = Client::connect(ClientConfig::new(
        "127.0.0.1:7443",
        "localhost",
        ca,
        certificate,
        key,
    ))
    .await?;

    let document = std::collections::BTreeMap::from([("name", "Zoë"), ("pan", "4242424242424242")]);
    let payload = to_payload(&document)?;
    let call = Encrypt::new("demo", &payload).select(["$.pan"]);
    let sealed = client.encrypt(call).await?;
    let opened = client
        .decrypt(Decrypt::new("demo", &sealed.payload))
        .await?;
    assert_eq!(opened.payload, payload);
    Ok(())
}
