//! `dev`: an engine with everything made for you, shown at work on a document.
//!
//! Nothing here is special to development but the folder: the engine is the one that `serve` starts, and the
//! document goes through its own mTLS port.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealwire_client::{Client, ClientConfig, Decrypt, Encrypt, Pem};
use sealwire_payload::{Limits, json};

use super::{Failure, folder, serve};
use crate::server::Server;

const SAMPLE: &str = include_str!("sample.json");
/// What of the sample is sensitive.
const SELECT: [&str; 3] = ["$.customer", "$.card.number", "$.card.cvc"];

/// Arguments of `dev`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder for the authority, certificates, key-encryption key, configuration and apps
    #[arg(long, value_name = "DIR", default_value = folder::DEFAULT)]
    folder: PathBuf,
    /// Where to take calls; used when the folder is made
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7443")]
    listen: SocketAddr,
    /// Where to serve /live, /ready and /metrics; used when the folder is made
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7444")]
    admin: SocketAddr,
    /// Stop after the demonstration
    #[arg(long)]
    demo_only: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let config = folder::prepare(&args.folder, args.listen, args.admin)?;
    serve::log(&config)?;
    serve::no_core_dumps();
    serve::runtime(&config)?.block_on(async {
        folder::create_app(&config).await?;
        let server = Server::start(&config).await?;
        demonstrate(&args.folder, server.address()).await?;
        if !args.demo_only {
            invite(&args.folder, &server);
            serve::stop_signal().await?;
        }
        server.shutdown().await;
        Ok(())
    })
}

/// Encrypts and decrypts the sample through the engine's own port, and shows it.
async fn demonstrate(folder: &Path, address: SocketAddr) -> Result<(), Failure> {
    let file = |name: &str| Pem::File(folder.join(name));
    let names = ("ca.pem", "client.pem", "client-key.pem");
    let client = Client::connect(ClientConfig::new(
        address.to_string(),
        "localhost",
        file(names.0),
        file(names.1),
        file(names.2),
    ))
    .await?;
    let limits = Limits::default();
    let payload = json::to_msgpack(SAMPLE.as_bytes(), limits)?;
    println!("The engine listens on {address} (TLS 1.3, client certificate required). A document:\n");
    println!("{}", SAMPLE.trim_end());

    let call = Encrypt { select: Some(SELECT.to_vec()), ..Encrypt::new(folder::APP, &payload) };
    let (sealed, sealing) = timed(client.encrypt(call)).await?;
    println!("\nThe same, with {} encrypted for app `{}`:\n", SELECT.join(", "), folder::APP);
    println!("{}", shortened(&text_of(&sealed.payload, limits)?));

    let (opened, opening) = timed(client.decrypt(Decrypt::new(folder::APP, &sealed.payload))).await?;
    if opened.payload != payload {
        return Err("the document that came back is not the one that went in".into());
    }
    println!("\nDecrypted again: identical, byte for byte.");
    println!("Encrypting took {} us, decrypting {} us, round trip included.", sealing.as_micros(), opening.as_micros());
    println!("Everything is in {}: delete it and nothing is left.", folder.display());
    Ok(())
}

async fn timed<T, E>(call: impl Future<Output = Result<T, E>>) -> Result<(T, Duration), E> {
    let start = Instant::now();
    Ok((call.await?, start.elapsed()))
}

fn text_of(payload: &[u8], limits: Limits) -> Result<String, Failure> {
    let mut text = Vec::new();
    json::from_msgpack(payload, &mut text, true, limits)?;
    Ok(String::from_utf8(text)?)
}

/// Cuts the middle out of long envelopes, so that lines stay readable.
fn shortened(text: &str) -> String {
    let shorten = |part: &str| match part.strip_prefix("sw1:") {
        Some(rest) if rest.len() > 40 && rest.is_ascii() => {
            format!("sw1:{}...{} ({} characters)", &rest[..20], &rest[rest.len() - 12..], part.len())
        }
        _ => part.to_owned(),
    };
    text.split('"').map(shorten).collect::<Vec<_>>().join("\"")
}

fn invite(folder: &Path, server: &Server) {
    let program = std::env::args().next().unwrap_or_else(|| "sealwire".into());
    let at =
        if folder == Path::new(folder::DEFAULT) { String::new() } else { format!(" --folder {}", folder.display()) };
    println!("\nServing until Ctrl-C. From another shell in this folder:\n");
    println!("  {program} encrypt mine.json{at} --output sealed.json");
    println!("  {program} decrypt sealed.json{at}");
    println!("  {program} inspect{at} 'sw1:...'");
    println!("  {program} info{at}");
    println!("  curl http://{}/ready\n", server.admin_address());
}
