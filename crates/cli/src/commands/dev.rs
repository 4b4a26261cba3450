//! `dev`: starts an engine with a ready-made setup, and demonstrates it on a document.
//!
//! Only the folder is special to development. The engine is the same as in `serve`, and the
//! document goes through its own mTLS port.

use sealwire_client::{Client, ClientConfig, Decrypt, Encrypt, Error, ErrorCode, Page, Pem};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sealwire_access::Principal;
use sealwire_client::control::{
    AppOperation, CollectionOperation, CreateCollection, Kind, PrincipalOperation, RoleOperation,
    TokenFormat,
};
use sealwire_payload::{WalkLimits, json};
use sealwire_service::output::{out, outln};
use sealwire_wire::Method;

use super::dev_relay::{self, DevRelay};
use super::{Failure, dev_folder, serve};
use sealwire_server::server::Server;
use sealwire_service::core_dumps;

const SAMPLE: &str = include_str!("sample.json");
/// Paths of the sensitive fields in the sample.
const SELECT: [&str; 3] = ["$.customer", "$.card.number", "$.card.cvc"];

/// Collections of the app.
const COLLECTIONS: [(&str, Kind, TokenFormat); 2] = [
    ("people", Kind::Random, TokenFormat::Opaque),
    ("cards", Kind::Deterministic, TokenFormat::Card),
];

/// Arguments of `dev`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Folder for the authority, certificates, key-encryption key, configuration and apps
    #[arg(long, value_name = "DIR", default_value = dev_folder::DEFAULT_PATH)]
    folder: PathBuf,
    /// Address for requests [default: that of the existing folder, or 127.0.0.1:7443]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Address of /live, /ready and /metrics [default: that of the existing folder, or
    /// 127.0.0.1:7444]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,
    /// Address for changes of apps, keys and collections [default: that of the existing folder, or
    /// 127.0.0.1:7445]
    #[arg(long, value_name = "ADDRESS")]
    control: Option<SocketAddr>,
    /// Address for HTTP and JSON [default: that of the existing folder; 127.0.0.1:7446 in a new one]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<SocketAddr>,
    /// Also start a relay, an HTTP proxy that encrypts and decrypts fields, and a small upstream of
    /// the relay
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, default_missing_value = dev_relay::DEFAULT_ADDRESS)]
    relay: Option<SocketAddr>,
    /// Stop after the demonstration
    #[arg(long)]
    demo_only: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let at = dev_folder::ListenAddresses {
        listen: args.listen,
        admin: args.admin,
        control: args.control,
        http: args.http,
    };
    let mut config = dev_folder::create_and_load(&args.folder, &at)?;
    if config.access.administrators.is_empty() {
        // The folder can be older than roles.
        config
            .access
            .administrators
            .extend(Principal::from_text(dev_folder::OPERATOR_PRINCIPAL));
    }
    drop(serve::log(&config)?);
    core_dumps::forbid_files();
    let runtime = sealwire_server::runtime::start(&config)?;
    let ended = runtime.block_on(async {
        // The engine opens its listener only after the client's role exists, so no client is denied
        // for its absence.
        let mut server = Server::start_closed(&config).await?;
        create_demo_state(&args.folder, &server).await?;
        // A program that reads the engine's address can stop the engine at once, without losing a
        // request.
        let mut stop = serve::StopSignals::listen()?;
        server.open();
        let demonstration = async {
            run_demonstration(&args.folder, &server).await?;
            let relay = match (args.relay, server.address()) {
                (Some(listen), Some(engine)) => {
                    Some(DevRelay::start(&args.folder, engine, listen).await?)
                }
                _ => None,
            };
            if let Some(relay) = &relay {
                relay.run_demonstration().await?;
            }
            Ok::<_, Failure>(relay)
        };
        let relay = tokio::select! {
            relay = demonstration => relay?,
            () = stop.next() => return stop.unless_again(shut_down(server, None)).await,
        };
        if !args.demo_only {
            let has_issuer = config
                .issuers
                .0
                .iter()
                .any(|issuer| issuer.name == dev_folder::ISSUER_NAME);
            print_commands(&args.folder, &server, has_issuer);
            if let Some(relay) = &relay {
                relay.print_commands(&args.folder);
            }
            stop.next().await;
            return stop.unless_again(shut_down(server, relay)).await;
        }
        shut_down(server, relay).await;
        Ok(())
    });
    if ended.is_err() {
        // Does not wait for crypto threads, whose results are no longer needed.
        runtime.shutdown_background();
    }
    ended
}

/// Ends the relay before the engine that it needs.
async fn shut_down(server: Server, relay: Option<DevRelay>) {
    if let Some(relay) = relay {
        relay.shutdown().await;
    }
    server.shutdown().await;
}

/// Connects to the folder's engine with the certificate `name`.
async fn connect_client(folder: &Path, address: SocketAddr, name: &str) -> Result<Client, Failure> {
    Ok(Client::connect(ClientConfig::new(
        address.to_string(),
        "localhost",
        Pem::File(folder.join("ca.pem")),
        Pem::File(folder.join(format!("{name}.pem"))),
        Pem::File(folder.join(format!("{name}-key.pem"))),
    ))
    .await?)
}

/// Permissions of the client's role.
const CLIENT_GRANT: &str =
    "encrypt,decrypt,rewrap,tokenize,detokenize,mask,tokens.*,apps.public_keys apps=*";

/// Creates the app, its collections and the client's role over the engine's control listener.
/// Existing ones are kept.
async fn create_demo_state(folder: &Path, server: &Server) -> Result<(), Failure> {
    let Some(control) = server.control_address() else {
        return Err(format!(
            "{} does not set control.address, which the demonstration needs to create its app",
            folder.join(dev_folder::CONFIG_FILE).display()
        )
        .into());
    };
    let operator = connect_client(folder, control, dev_folder::OPERATOR_CERT).await?;
    accept_existing(
        operator
            .change_app(dev_folder::DEMO_APP, AppOperation::create())
            .await,
    )?;
    for (collection, kind, format) in COLLECTIONS {
        let operation = CollectionOperation::create(CreateCollection::new(kind).format(format));
        accept_existing(
            operator
                .change_collection(dev_folder::DEMO_APP, collection, operation)
                .await,
        )?;
    }
    let roles = operator.roles(Page::new().limit(1_000)).await?.roles;
    if roles
        .iter()
        .all(|role| role.role != dev_folder::CLIENT_ROLE)
    {
        let operation = RoleOperation::set([CLIENT_GRANT]);
        operator
            .change_role(dev_folder::CLIENT_ROLE, operation)
            .await?;
        let operation = PrincipalOperation::grant(dev_folder::CLIENT_ROLE);
        for principal in [dev_folder::CLIENT_PRINCIPAL, dev_folder::TOKEN_PRINCIPAL] {
            operator.change_principal(principal, operation).await?;
        }
    }
    Ok(())
}

/// Treats an "already exists" error as success.
fn accept_existing<T>(made: Result<T, Error>) -> Result<(), Failure> {
    match made {
        Ok(_) => Ok(()),
        Err(Error::Rpc(error)) if error.code == ErrorCode::Conflict => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Encrypts and decrypts the sample through the engine's own port, and prints the steps.
async fn run_demonstration(folder: &Path, server: &Server) -> Result<(), Failure> {
    let address = server
        .address()
        .ok_or("listen.address is empty: the demonstration needs a data listener")?;
    let client = connect_client(folder, address, dev_folder::CLIENT_CERT).await?;
    let limits = WalkLimits::default();
    let payload = json::to_msgpack(SAMPLE.as_bytes(), limits)?;
    out!("The engine listens on {address} (TLS 1.3, client certificate required)");
    if let Some(control) = server.control_address() {
        out!("; its operators change apps on {control}");
    }
    if let Some(http) = server.http_address() {
        out!(". It serves HTTP on https://{}", url_host(http));
    }
    outln!(". A document:\n");
    outln!("{}", SAMPLE.trim_end());

    let call = Encrypt::new(dev_folder::DEMO_APP, &payload).select(SELECT.to_vec());
    let (sealed, sealing) = measure_time(client.encrypt(call)).await?;
    outln!(
        "\nThe same, with {} encrypted for app `{}`:\n",
        SELECT.join(", "),
        dev_folder::DEMO_APP
    );
    outln!("{}", shorten_envelopes(&text_of(&sealed.payload, limits)?));

    let (opened, opening) =
        measure_time(client.decrypt(Decrypt::new(dev_folder::DEMO_APP, &sealed.payload))).await?;
    if opened.payload != payload {
        return Err("the decrypted document differs from the original".into());
    }
    outln!("\nDecrypted again: identical, byte for byte.");
    outln!(
        "Encrypting took {} us, decrypting {} us, round trip included.",
        sealing.as_micros(),
        opening.as_micros()
    );
    outln!(
        "Everything is in {}: delete it and nothing is left.",
        folder.display()
    );
    Ok(())
}

async fn measure_time<T, E>(call: impl Future<Output = Result<T, E>>) -> Result<(T, Duration), E> {
    let start = Instant::now();
    Ok((call.await?, start.elapsed()))
}

fn text_of(payload: &[u8], limits: WalkLimits) -> Result<String, Failure> {
    let mut text = Vec::new();
    json::from_msgpack(payload, &mut text, true, limits)?;
    Ok(String::from_utf8(text)?)
}

/// Shortens long envelopes in the middle, so that lines stay readable.
pub(super) fn shorten_envelopes(text: &str) -> String {
    text.split('"')
        .map(shorten_envelope)
        .collect::<Vec<_>>()
        .join("\"")
}

fn shorten_envelope(text: &str) -> String {
    match text.strip_prefix("sw1:") {
        Some(rest) if rest.len() > 40 && rest.is_ascii() => format!(
            "sw1:{}...{} ({} characters)",
            &rest[..20],
            &rest[rest.len() - 12..],
            text.len()
        ),
        _ => text.to_owned(),
    }
}

/// Returns an address with a host name of the engine's certificate.
fn url_host(address: SocketAddr) -> String {
    if address.ip() == IpAddr::V4(Ipv4Addr::LOCALHOST) {
        format!("localhost:{}", address.port())
    } else {
        address.to_string()
    }
}

/// Prints commands that encrypt, decrypt and tokenize a document over HTTP.
fn print_curl_commands(folder: &Path, http: SocketAddr, has_issuer: bool) {
    let file = |name: &str| shell_word(&folder.join(name).display().to_string());
    let curl = format!(
        "curl --cacert {} --cert {} --key {}",
        file("ca.pem"),
        file(&format!("{}.pem", dev_folder::CLIENT_CERT)),
        file(&format!("{}-key.pem", dev_folder::CLIENT_CERT)),
    );
    let url = format!(
        "https://{}/v1/apps/{}",
        url_host(http),
        dev_folder::DEMO_APP
    );
    outln!("Or over HTTP, with documents as JSON (docs/http.md):\n");
    outln!(
        "  {curl} --json '{{\"card\": {{\"number\": \"4242424242424242\"}}}}' -H 'sealwire-select: $.card.number' {url}/encrypt | tee sealed.json"
    );
    outln!("  {curl} --json @sealed.json {url}/decrypt");
    outln!(
        "  {curl} --json '{{\"name\": \"Zoe\"}}' -H 'sealwire-collection: {}' {url}/tokenize\n",
        COLLECTIONS[0].0
    );
    if has_issuer {
        outln!("Or with a bearer token instead of a certificate:\n");
        outln!(
            "  curl --cacert {} -H \"Authorization: Bearer $(cat {})\" --json @sealed.json {url}/decrypt\n",
            file("ca.pem"),
            file(dev_folder::TOKEN_FILE),
        );
    }
}

/// Quotes a word for a shell if it needs quotes.
fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+:,@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

fn print_commands(folder: &Path, server: &Server, has_issuer: bool) {
    let program = std::env::args().next().unwrap_or_else(|| "sealwire".into());
    let at = if folder == Path::new(dev_folder::DEFAULT_PATH) {
        String::new()
    } else {
        format!(" --folder {}", folder.display())
    };
    outln!("\nServing until Ctrl-C. From another shell in this folder:\n");
    outln!("  {program} encrypt mine.json{at} --output sealed.json");
    outln!("  {program} decrypt sealed.json{at}");
    outln!("  {program} inspect{at} 'sw1:...'");
    if server.engine().methods().contains(Method::Tokenize) {
        outln!("  {program} tokenize mine.json{at} --collection people --output tokens.json");
        outln!("  {program} detokenize tokens.json{at} --collection people");
    }
    outln!("  {program} info{at}");
    outln!("  {program} apps list{at}");
    outln!("  {program} collections list {}{at}", dev_folder::DEMO_APP);
    outln!("  {program} principals list{at}");
    outln!("  curl http://{}/ready\n", server.admin_address());
    if let Some(http) = server.http_address() {
        print_curl_commands(folder, http, has_issuer);
    }
}
