//! Requests from Rust, against an engine that `sealwire dev` started in this folder:
//! `cargo run --release -p sealwire-client --example call`
//!
//! Another folder and another address can be given as arguments.

#![allow(clippy::print_stdout, reason = "the output of a program")]

use std::collections::BTreeMap;
use std::time::Duration;

use sealwire_client::{
    Client, ClientConfig, CollectionTarget, Decrypt, Detokenize, Encrypt, Error, ErrorCode, Pem,
    Tokenize, to_payload,
};

const APP: &str = "demo";
const CARD: &str = "4242424242424242";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let folder = args.next().unwrap_or_else(|| "sealwire-dev".to_owned());
    let address = args.next().unwrap_or_else(|| "127.0.0.1:7443".to_owned());

    let client = connect(&folder, address).await?;
    encrypt_and_decrypt(&client).await?;
    tokenize_and_detokenize(&client).await?;
    handle_errors(&client).await?;

    println!("{} attempts", client.stats().attempts);
    Ok(())
}

async fn connect(folder: &str, address: String) -> Result<Client, Error> {
    let file = |name: &str| Pem::File(format!("{folder}/{name}").into());
    let (ca, certificate, key) = (file("ca.pem"), file("client.pem"), file("client-key.pem"));
    let mut config = ClientConfig::new(address, "localhost", ca, certificate, key);
    config.deadline = Duration::from_secs(10);
    Client::connect(config).await
}

async fn encrypt_and_decrypt(client: &Client) -> Result<(), Error> {
    let document = BTreeMap::from([("name", "Zoë"), ("pan", CARD)]);
    let payload = to_payload(&document)?;
    let request = Encrypt::new(APP, &payload)
        .select(["$.pan"])
        .context("orders");
    let sealed = client.encrypt(request).await?;
    let fields: BTreeMap<String, String> = sealed.to_value()?;
    assert_eq!(fields["name"], "Zoë");
    println!("encrypted: {}", fields["pan"]);

    let request = Decrypt::new(APP, &sealed.payload).context("orders");
    assert_eq!(client.decrypt(request).await?.payload, payload);
    Ok(())
}

async fn tokenize_and_detokenize(client: &Client) -> Result<(), Error> {
    let payload = to_payload(&[CARD])?;
    let request = Tokenize::new(APP, "cards", &payload).tags(["example"]);
    let tokenized = client.tokenize(request).await?;
    let tokens: Vec<String> = tokenized.to_value()?;
    println!("token: {}", tokens[0]);

    let request = Detokenize::new(APP, "cards", &tokenized.payload);
    assert_eq!(client.detokenize(request).await?.payload, payload);

    let cards = CollectionTarget::new(APP, "cards").deadline(Duration::from_secs(5));
    let found = client.tokens_get(cards, &[&tokens[0]]).await?;
    assert!(found.tokens[0].is_some());
    Ok(())
}

async fn handle_errors(client: &Client) -> Result<(), Error> {
    let payload = to_payload(&[CARD])?;
    let sealed = client
        .encrypt(Encrypt::new(APP, &payload).context("row 7"))
        .await?;

    let elsewhere = Decrypt::new(APP, &sealed.payload).context("row 8");
    let error = client.decrypt(elsewhere).await.expect_err("another row");
    assert_eq!(code(&error), Some(ErrorCode::CannotOpen));
    println!("in another row: {error}: {}", advice(&error));

    let nowhere = Encrypt::new("no-such-app", &payload);
    let error = client.encrypt(nowhere).await.expect_err("no such app");
    assert_eq!(code(&error), Some(ErrorCode::NotFound));
    println!("without an app: {error}: {}", advice(&error));
    Ok(())
}

fn code(error: &Error) -> Option<ErrorCode> {
    error.rpc().map(|error| error.code)
}

/// Returns what the user of an application can do about an error.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::Rpc(error) => match error.code {
            ErrorCode::CannotOpen => "check the context",
            ErrorCode::Forbidden | ErrorCode::NotFound => "ask the operator",
            code if code.is_retryable() => "try again later",
            _ => "report a bug",
        },
        Error::Deadline | Error::Disconnected { .. } | Error::Connect(_) => "try again later",
        Error::Tls(_) | Error::Config(_) => "check the certificates and the configuration",
        _ => "report a bug",
    }
}
