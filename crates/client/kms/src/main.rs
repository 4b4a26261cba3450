//! The `sealwire-kms` program.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use sealwire_kms::config::{self, Config, LogFormat, LogLevel};
use sealwire_kms::plugin::Plugin;
use sealwire_kms::server::Server;
use sealwire_kms::socket;
use sealwire_service::core_dumps;
use sealwire_service::output::{self, errln, out};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tracing::level_filters::LevelFilter;

/// Exit code for invalid arguments, as the argument parser uses it.
const BAD_ARGUMENTS: u8 = 2;
/// Exit code for an invalid configuration (sysexits.h, EX_USAGE).
const BAD_CONFIG: u8 = 64;

/// A Kubernetes KMS v2 plugin: the API server encrypts the objects in etcd with keys that only
/// a Sealwire engine has.
///
/// Without a command, the plugin serves the API server on a Unix socket until SIGTERM or SIGINT.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "First steps:

  sealwire apps create kubernetes
  sealwire roles set kms 'encrypt,decrypt apps=kubernetes'
  sealwire principals grant kms.cluster-1.internal kms
  sealwire-kms config template > kms.toml
  sealwire-kms check --config kms.toml
  sealwire-kms --config kms.toml

Then name the socket in the API server's EncryptionConfiguration:

  - kms: {apiVersion: v2, name: sealwire, endpoint: unix:///run/sealwire-kms/kms.sock}

Never delete keys of the app, and never change plugin.cluster, while etcd has objects that
were encrypted with them. docs/kubernetes.md describes rotation and recovery."
)]
struct Arguments {
    /// Configuration file
    #[arg(long, value_name = "FILE", env = config::FILE_VARIABLE, global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Check a configuration and everything that it names: files, the socket's folder, and that
    /// each engine encrypts and decrypts
    Check,
    /// Print a configuration
    #[command(subcommand)]
    Config(ConfigCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print a commented configuration with every key, its range and default
    Template {
        /// Print keys and metrics as Markdown: docs/kubernetes-configuration.md
        #[arg(long)]
        markdown: bool,
    },
}

/// A message for people, and the exit code.
type Failure = (String, u8);

fn main() -> ExitCode {
    output::run("sealwire-kms", run)
}

fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match (arguments.command, arguments.config) {
        (Some(Command::Config(ConfigCommand::Template { markdown: true })), _) => {
            out!("{}", config::markdown());
            Ok(())
        }
        (Some(Command::Config(ConfigCommand::Template { markdown: false })), _) => {
            out!("{}", config::template());
            Ok(())
        }
        (Some(Command::Check), Some(file)) => read_config(&file).and_then(|config| check(&config)),
        (None, Some(file)) => read_config(&file).and_then(|config| serve(&config)),
        (_, None) => {
            let usage = Arguments::command().render_help();
            let missing = format!("--config FILE or {} is missing", config::FILE_VARIABLE);
            Err((format!("{missing}\n\n{usage}"), BAD_ARGUMENTS))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, code)) => {
            errln!("sealwire-kms: {message}");
            ExitCode::from(code)
        }
    }
}

fn read_config(file: &Path) -> Result<Config, Failure> {
    config::load(file).map_err(|errors| {
        let lines: String = errors.iter().map(|error| format!("\n  {error}")).collect();
        let message = format!("{} cannot be used:{lines}", file.display());
        (message, BAD_CONFIG)
    })
}

fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(failed)
}

fn failed(error: impl ToString) -> Failure {
    (error.to_string(), 1)
}

/// Checks files, the socket's folder, and each engine.
fn check(config: &Config) -> Result<(), Failure> {
    socket::check_path(&config.plugin.socket)
        .map_err(|error| failed(format!("plugin.socket: {error}")))?;
    out!(
        "{}: the folder is private\n",
        config.plugin.socket.display()
    );

    runtime()?.block_on(async {
        let plugin = Plugin::new(config).map_err(|error| failed(format!("engine: {error}")))?;
        let mut key_ids: Vec<String> = Vec::new();
        let mut failures = 0;
        for engine in plugin.engines().iter() {
            let deadline = Instant::now() + plugin.deadline();
            match plugin.probe_engine(engine, deadline).await {
                Ok(sealed) => {
                    out!("{}: encrypts and decrypts, key {}\n", engine.address, sealed.key_id());
                    key_ids.push(sealed.key_id().to_owned());
                }
                Err(failure) => {
                    out!("{}: {}\n", engine.address, failure.text(plugin.app()));
                    failures += 1;
                }
            }
        }

        key_ids.dedup();
        if key_ids.len() > 1 {
            let message = "the engines use different keys: one has not loaded the newest state, or they do not share a store";
            return Err(failed(message));
        }
        match failures {
            0 => Ok(()),
            1 => Err(failed("1 engine failed")),
            count => Err(failed(format!("{count} engines failed"))),
        }
    })
}

fn serve(config: &Config) -> Result<(), Failure> {
    start_log(config);
    core_dumps::forbid();
    runtime()?.block_on(async {
        let mut term = signal(SignalKind::terminate()).map_err(failed)?;
        let mut int = signal(SignalKind::interrupt()).map_err(failed)?;
        let server = Server::start(config).map_err(failed)?;
        tracing::info!(socket = %config.plugin.socket.display(), "listening");
        if let Some(address) = server.admin_address() {
            tracing::info!(%address, "probes and metrics");
        }
        wait_for(&mut term, &mut int).await;

        tracing::info!("draining; a second signal stops the plugin at once");
        tokio::select! {
            () = server.shutdown() => {}
            () = wait_for(&mut term, &mut int) => {}
        }
        Ok(())
    })
}

async fn wait_for(term: &mut Signal, int: &mut Signal) {
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
}

fn start_log(config: &Config) {
    let level = match config.log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    sealwire_service::log::start(config.log.format == LogFormat::Json, level, &[]);
}
