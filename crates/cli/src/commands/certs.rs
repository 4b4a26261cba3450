//! `certs`: creates an authority in a folder, and issues certificates and tokens under it.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::json;

use super::Failure;
use sealwire_dev_ca::{
    Access, Authority, Existing, Leaf, Name, SecretPem, TokenClaims, TokenIssuer, Usage, Validity,
};
use sealwire_service::output::outln;

/// Base name of an authority's files.
pub(super) const CA: &str = "ca";
/// Validity in days of an authority that this command creates.
pub(super) const CA_DAYS: u32 = 3_650;
/// Validity in days of a certificate that this command issues.
pub(super) const LEAF_DAYS: u32 = 365;

/// File with the key of the issuer of tokens.
const TOKEN_ISSUER_KEY: &str = "token-issuer-key.pem";
/// File with the key set of the issuer of tokens.
pub(super) const JWKS_FILE: &str = "jwks.json";
/// The claims `iss` and `aud` of tokens, unless others are given.
pub(super) const TOKEN_ISSUER: &str = "sealwire-dev";
pub(super) const TOKEN_AUDIENCE: &str = "sealwire";

/// Arguments of `certs`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: CertsCommand,
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Create an authority: ca.pem and ca-key.pem
    Authority {
        #[command(flatten)]
        common: Common,
        /// The authority's common name
        #[arg(long, default_value = "Sealwire")]
        name: String,
        /// Days that the authority is valid
        #[arg(long, default_value_t = CA_DAYS)]
        days: u32,
    },
    /// Issue a certificate for an engine: NAME.pem and NAME-key.pem
    Server {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        leaf: LeafArgs,
    },
    /// Issue a certificate for a client: NAME.pem and NAME-key.pem
    Client {
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        leaf: LeafArgs,
    },
    /// Print a bearer token for HTTP requests without a certificate, for tests. Creates
    /// token-issuer-key.pem and jwks.json, for the setting jwks_file, if they are missing
    Token {
        /// Folder with the key of the issuer
        #[arg(long, value_name = "DIR", default_value = ".")]
        folder: PathBuf,
        /// Name of the client: the claim sub
        subject: String,
        /// The claim iss: `issuer` in the configuration
        #[arg(long, value_name = "TEXT", default_value = TOKEN_ISSUER)]
        issuer: String,
        /// The claim aud: one of `audiences` in the configuration
        #[arg(long, value_name = "TEXT", default_value = TOKEN_AUDIENCE)]
        audience: String,
        /// Days that the token is valid
        #[arg(long, default_value_t = 1)]
        days: u32,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Folder with the authority, to which new files are written
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct LeafArgs {
    /// Common name, and base name of the files
    name: String,
    /// DNS names [default: NAME, without --ip and --uri]
    #[arg(long, value_name = "NAME")]
    dns: Vec<String>,
    /// IP addresses
    #[arg(long, value_name = "ADDRESS")]
    ip: Vec<IpAddr>,
    /// URIs, such as spiffe://example.org/relay; in a client's certificate, the engine prefers the
    /// URI as the client's name
    #[arg(long, value_name = "URI")]
    uri: Vec<String>,
    /// Days that the certificate is valid
    #[arg(long, default_value_t = LEAF_DAYS)]
    days: u32,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        CertsCommand::Authority { common, name, days } => {
            let authority = Authority::create(name, Validity::days(*days))?;
            let (cert, key) = write_pair(
                &common.folder,
                CA,
                authority.cert_pem(),
                authority.key_pem(),
            )?;
            common.print_paths(&cert, &key);
        }
        CertsCommand::Server { common, leaf } => common.issue_certificate(leaf, Usage::Server)?,
        CertsCommand::Client { common, leaf } => common.issue_certificate(leaf, Usage::Client)?,
        CertsCommand::Token {
            folder,
            subject,
            issuer,
            audience,
            days,
        } => {
            let claims = TokenClaims {
                issuer,
                subject,
                audience,
                days: *days,
            };
            outln!("{}", load_token_issuer(folder)?.issue(&claims)?);
        }
    }
    Ok(())
}

/// Loads the issuer of tokens in a folder. Creates its key and key set if they are missing.
pub(super) fn load_token_issuer(folder: &Path) -> Result<TokenIssuer, Failure> {
    let key = folder.join(TOKEN_ISSUER_KEY);
    let issuer = match std::fs::read_to_string(&key) {
        Ok(pem) => TokenIssuer::load(SecretPem::new(pem))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let issuer = TokenIssuer::create()?;
            let pem = issuer.key_pem().expose().as_bytes();
            sealwire_dev_ca::write(&key, pem, Access::Owner, Existing::Keep)?;
            issuer
        }
        Err(error) => return Err(format!("{}: {error}", key.display()).into()),
    };
    let jwks = folder.join(JWKS_FILE);
    let exists = jwks.try_exists();
    if !exists.map_err(|error| format!("{}: {error}", jwks.display()))? {
        let text = issuer.jwks();
        sealwire_dev_ca::write(&jwks, text.as_bytes(), Access::Everyone, Existing::Keep)?;
    }
    Ok(issuer)
}

impl Common {
    fn issue_certificate(&self, args: &LeafArgs, usage: Usage) -> Result<(), Failure> {
        if args.name.contains(['/', '\\']) || args.name.starts_with('.') {
            return Err(
                "the name is also a file name: it must not contain a slash or start with a dot"
                    .into(),
            );
        }
        let mut names: Vec<Name> = args.dns.iter().cloned().map(Name::Dns).collect();
        if names.is_empty() && args.ip.is_empty() && args.uri.is_empty() {
            names.push(Name::Dns(args.name.clone()));
        }
        names.extend(args.ip.iter().copied().map(Name::Ip));
        names.extend(args.uri.iter().cloned().map(Name::Uri));
        let leaf = Leaf {
            common_name: args.name.clone(),
            names,
            usage,
            validity: Validity::days(args.days),
        };
        let (cert, key) = issue_certificate(
            &self.folder,
            &args.name,
            &load_authority(&self.folder)?,
            &leaf,
        )?;
        self.print_paths(&cert, &key);
        Ok(())
    }

    fn print_paths(&self, cert: &Path, key: &Path) {
        let cert = cert.display().to_string();
        let key = key.display().to_string();
        if self.json {
            outln!("{}", json!({ "certificate": cert, "key": key }));
        } else {
            outln!("certificate  {cert}\nkey          {key}");
        }
    }
}

/// Loads the authority in a folder.
pub(super) fn load_authority(folder: &Path) -> Result<Authority, Failure> {
    let cert = read_authority_file(folder, "ca.pem")?;
    let key = read_authority_file(folder, "ca-key.pem")?;
    Ok(Authority::load(&cert, SecretPem::new(key))?)
}

fn read_authority_file(folder: &Path, name: &str) -> Result<String, Failure> {
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!(
            "{}: {error}; `sealwire certs authority` creates an authority in a new folder",
            path.display()
        )
    })?;
    Ok(text)
}

/// Issues a certificate and writes it to the authority's folder.
pub(super) fn issue_certificate(
    folder: &Path,
    name: &str,
    authority: &Authority,
    leaf: &Leaf,
) -> Result<(PathBuf, PathBuf), Failure> {
    let issued = authority.issue(leaf)?;
    write_pair(folder, name, &issued.cert_pem, &issued.key_pem)
}

/// Writes NAME.pem and NAME-key.pem. Never overwrites an existing file.
pub(super) fn write_pair(
    folder: &Path,
    name: &str,
    cert: &str,
    key: &SecretPem,
) -> Result<(PathBuf, PathBuf), Failure> {
    let cert_path = folder.join(format!("{name}.pem"));
    let key_path = folder.join(format!("{name}-key.pem"));
    // Writes the key first: a certificate without its key would look complete.
    sealwire_dev_ca::write(
        &key_path,
        key.expose().as_bytes(),
        Access::Owner,
        Existing::Keep,
    )?;
    sealwire_dev_ca::write(
        &cert_path,
        cert.as_bytes(),
        Access::Everyone,
        Existing::Keep,
    )?;
    Ok((cert_path, key_path))
}
