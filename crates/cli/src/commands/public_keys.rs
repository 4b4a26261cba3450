//! `public-keys` and `apps public-keys`: fetch the public keys of an app, for clients that seal
//! without an engine. `seal` reads the files that these commands write.
use std::fs;
use std::path::PathBuf;

use sealwire_client::Client;
use sealwire_client::control::PublicKeysRequest;
use sealwire_client::public_keys::{
    Expected, PublicKeys, Signed, VerifyingKey, signer_from_base64,
};
use sealwire_service::output::outln;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::connect::ConnectArgs;
use super::documents::explained;
use super::operator::{EngineArgs, unix_s};
use super::{Failure, dev_folder};

/// Arguments of `public-keys`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The app
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    app: String,
    /// Check that this key signed: 32 bytes in base64, which an operator reads with
    /// `sealwire apps public-keys APP`
    #[arg(long, value_name = "KEY", value_parser = signer)]
    signer: Option<VerifyingKey>,
    /// Reason, for the audit log; a role may require it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print JSON; `sealwire seal` reads it from a file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Public keys in a file, and how they are checked.
#[derive(Debug, clap::Args)]
pub(super) struct PublicKeysArgs {
    /// File with the output of `sealwire public-keys --json`
    #[arg(long, value_name = "FILE")]
    public_keys: PathBuf,
    /// Key that must have signed them: 32 bytes in base64. Take it from the engine's operator, not
    /// from where the file is from
    #[arg(long, value_name = "KEY", value_parser = signer)]
    signer: VerifyingKey,
    /// App whose keys they must be
    #[arg(long, short, default_value = dev_folder::DEMO_APP)]
    app: String,
    /// Refuse keys of an older generation: that of the newest file so far
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_generation: u64,
}

impl PublicKeysArgs {
    /// Returns the files that are read.
    pub(super) fn files(&self) -> [PathBuf; 1] {
        [self.public_keys.clone()]
    }
}

/// The content of a file that `--json` writes.
#[derive(Serialize, Deserialize)]
struct SignedFile {
    keys: String,
    signature: String,
    signer: String,
}

fn signer(text: &str) -> Result<VerifyingKey, String> {
    signer_from_base64(text).map_err(|error| error.to_string())
}

/// Fetches the keys as a client of the data listener.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let fetched = args.connect.run(async {
        fetch(
            &args.connect.client().await?,
            &args.app,
            args.reason.as_deref(),
        )
        .await
    });
    print(
        &args.app,
        &fetched.map_err(explained)?,
        args.signer.as_ref(),
        args.json,
    )
}

/// Fetches the keys as an operator.
pub(super) fn run_as_operator(app: &str, engine: &EngineArgs) -> Result<(), Failure> {
    let signed = engine.run(async |client| fetch(&client, app, None).await)?;
    print(app, &signed, None, engine.json)
}

async fn fetch(client: &Client, app: &str, reason: Option<&str>) -> Result<Signed, Failure> {
    Ok(client
        .signed_public_keys(PublicKeysRequest::new(app).reason(reason))
        .await?)
}

/// Prints keys. `signer` is the pinned signer. Without it, the keys are checked with the signer
/// that they name.
fn print(
    app: &str,
    signed: &Signed,
    signer: Option<&VerifyingKey>,
    as_json: bool,
) -> Result<(), Failure> {
    let signer = signer.unwrap_or(&signed.signer);
    let keys = signed.verify(&Expected {
        signer,
        app,
        min_generation: 0,
        now_unix_s: unix_s()?,
    })?;
    let (signature, signer) = signed.to_base64();
    if as_json {
        outln!(
            "{}",
            serde_json::to_string(&SignedFile {
                keys: signed.keys.clone(),
                signature,
                signer
            })?
        );
        return Ok(());
    }
    let expires = OffsetDateTime::from_unix_timestamp(i64::try_from(keys.expires_unix_s())?)?
        .format(&Rfc3339)?;
    let ids = keys
        .keys()
        .map(|(suite, id)| ("key", format!("{id} {}", suite.name())));
    for (name, value) in [("app", keys.app().to_owned())]
        .into_iter()
        .chain(ids)
        .chain([
            ("generation", keys.generation().to_string()),
            ("expires", expires),
            ("signer", signer),
        ])
    {
        outln!("{name:<12}{value}");
    }
    Ok(())
}

impl PublicKeysArgs {
    /// Reads the file and checks it.
    pub(super) fn load(&self) -> Result<PublicKeys, Failure> {
        self.read_file().map_err(|error| {
            format!(
                "{}: {error}; the file must contain the output of `sealwire public-keys --json`",
                self.public_keys.display()
            )
            .into()
        })
    }

    fn read_file(&self) -> Result<PublicKeys, Failure> {
        let text = fs::read_to_string(&self.public_keys)?;
        let SignedFile {
            keys,
            signature,
            signer,
        } = serde_json::from_str(&text)?;
        let expected = Expected {
            signer: &self.signer,
            app: &self.app,
            min_generation: self.min_generation,
            now_unix_s: unix_s()?,
        };
        let signed = Signed::from_base64(keys, &signature, &signer)?;
        Ok(signed.verify(&expected)?)
    }
}
