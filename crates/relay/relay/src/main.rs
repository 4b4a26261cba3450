//! The `sealwire-relay` program.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sealwire_relay::config::{self, Compiled, Config, ListenKind, LogFormat, LogLevel};
use sealwire_relay::doctor::{self, Level};
use sealwire_relay::egress::authority;
use sealwire_relay::metrics;
use sealwire_relay::serve::Server;
use sealwire_service::core_dumps;
use sealwire_service::settings::Problems;
use time::OffsetDateTime;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Exit code for an invalid configuration (sysexits.h, EX_USAGE).
const BAD_CONFIG: u8 = 64;

/// An HTTP proxy that encrypts, decrypts, tokenizes and masks fields of traffic through a Sealwire
/// engine.
#[derive(Debug, Parser)]
#[command(
    version,
    arg_required_else_help = true,
    after_help = "A first configuration:\n\n  sealwire-relay config template > relay.toml\n  sealwire-relay config check relay.toml\n  sealwire-relay doctor --config relay.toml\n  sealwire-relay serve --config relay.toml\n\n`sealwire dev --relay` starts an engine, a relay and an upstream to try it."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the relay until SIGTERM or SIGINT
    Serve {
        /// Configuration file
        #[arg(long, value_name = "FILE", env = config::FILE_VARIABLE)]
        config: PathBuf,
    },
    /// Print a configuration, or check one
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check a configuration and everything that it names: files, certificates, addresses,
    /// upstreams and the engine
    Doctor {
        /// Configuration file
        #[arg(long, value_name = "FILE", env = config::FILE_VARIABLE)]
        config: PathBuf,
    },
    /// Create the certificate authority of a CONNECT proxy, which the proxy's clients must trust
    Authority {
        /// Hosts that the proxy can intercept, such as api.example.com; the authority can issue
        /// certificates for these hosts only
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        /// File for the certificate
        #[arg(long, value_name = "FILE", default_value = "egress-ca.pem")]
        certificate: PathBuf,
        /// File for the private key, created with mode 0600
        #[arg(long, value_name = "FILE", default_value = "egress-ca-key.pem")]
        key: PathBuf,
        /// Validity
        #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u16).range(1..=3_650))]
        days: u16,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print a commented configuration with every key, its range and default
    Template {
        /// Print the keys as Markdown: docs/relay-configuration.md
        #[arg(long, conflicts_with = "metrics")]
        markdown: bool,
        /// Print the metrics instead, as Markdown: docs/relay-metrics.md
        #[arg(long)]
        metrics: bool,
    },
    /// Check a configuration, and list its listeners, routes, rules and warnings. The files that it
    /// names are not opened: `sealwire-relay doctor` checks them
    Check {
        /// Configuration file
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    sealwire_service::output::run("sealwire-relay", run)
}

fn run() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve { config } => {
            read_config(&config).and_then(|(config, compiled)| serve(&config, compiled))
        }
        Command::Config(ConfigCommand::Template { metrics: true, .. }) => {
            print_text(&metrics::to_markdown())
        }
        Command::Config(ConfigCommand::Template { markdown: true, .. }) => {
            print_text(&config::markdown())
        }
        Command::Config(ConfigCommand::Template { .. }) => print_text(&config::template()),
        Command::Config(ConfigCommand::Check { file }) => {
            read_config(&file).and_then(|(config, compiled)| check_config(&config, &compiled))
        }
        Command::Doctor { config } => {
            read_config(&config).and_then(|(config, compiled)| run_doctor(&config, &compiled))
        }
        Command::Authority {
            hosts,
            certificate,
            key,
            days,
        } => create_authority(&hosts, &certificate, &key, days),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err((message, code)) => {
            sealwire_service::errln!("sealwire-relay: {message}");
            ExitCode::from(code)
        }
    }
}

/// A message for people, and the exit code.
type Failure = (String, u8);

fn print_text(text: &str) -> Result<(), Failure> {
    sealwire_service::out!("{text}");
    Ok(())
}

fn read_config(file: &Path) -> Result<(Config, Compiled), Failure> {
    let config = config::load(file).map_err(|errors| config_failure(file, &errors))?;
    let compiled = config::compile(&config).map_err(|errors| config_failure(file, &errors))?;
    Ok((config, compiled))
}

fn config_failure(file: &Path, errors: &Problems) -> Failure {
    let lines: String = errors.iter().map(|error| format!("\n  {error}")).collect();
    (
        format!("{} cannot be used:{lines}", file.display()),
        BAD_CONFIG,
    )
}

fn check_config(config: &Config, compiled: &Compiled) -> Result<(), Failure> {
    let mut out = String::new();
    for listener in &compiled.listeners {
        let kind = match listener.config.kind {
            ListenKind::Reverse => "reverse proxy",
            ListenKind::Forward => "CONNECT proxy",
            ListenKind::ExtProc => "external processor of Envoy",
        };
        out += &format!(
            "listener {} on {} ({kind})\n",
            listener.name, listener.config.address
        );
        for route in config
            .route
            .iter()
            .filter(|route| *route.listen == *listener.name)
        {
            let methods = if route.methods.is_empty() {
                "any method".to_owned()
            } else {
                route.methods.join(", ")
            };
            let upstream = route.upstream.as_deref().unwrap_or("Envoy's upstream");
            out += &format!(
                "  route {}: {methods} {} {} -> {upstream}\n",
                route.name, route.host, route.path
            );
            for (direction, rules) in [("request", &route.request), ("response", &route.response)] {
                for rule in rules {
                    let places = [&rule.select, &rule.headers, &rule.query, &rule.segments];
                    let places: Vec<&str> =
                        places.into_iter().flatten().map(String::as_str).collect();
                    out += &format!(
                        "    {direction}: {} {}\n",
                        rule.action.name(),
                        places.join(", ")
                    );
                }
            }
            if route.pass {
                out += "    passes unchanged\n";
            }
        }
    }
    for warning in &compiled.warnings {
        out += &format!("warning: {warning}\n");
    }
    print_text(&out)
}

fn run_doctor(config: &Config, compiled: &Compiled) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| (error.to_string(), 1))?;

    let findings = runtime.block_on(doctor::check_all(config, compiled));
    let lines: String = findings
        .iter()
        .map(|finding| format!("{finding}\n"))
        .collect();
    print_text(&lines)?;

    match findings
        .iter()
        .filter(|finding| finding.level == Level::Wrong)
        .count()
    {
        0 => Ok(()),
        1 => Err(("1 check failed".to_owned(), 1)),
        count => Err((format!("{count} checks failed"), 1)),
    }
}

fn serve(config: &Config, compiled: Compiled) -> Result<(), Failure> {
    start_log(config);
    core_dumps::forbid();
    for warning in &compiled.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| (error.to_string(), 1))?;
    runtime.block_on(async {
        let (mut term, mut int) = match (
            signal(SignalKind::terminate()),
            signal(SignalKind::interrupt()),
        ) {
            (Ok(term), Ok(int)) => (term, int),
            (Err(error), _) | (_, Err(error)) => return Err((error.to_string(), 1)),
        };
        let server = Server::start(config, compiled)
            .await
            .map_err(|error| (error.to_string(), 1))?;

        for (name, address) in server.addresses() {
            tracing::info!(listener = %name, %address, "listening");
        }
        tracing::info!(address = %server.admin_address(), "probes and metrics");
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }

        tracing::info!("draining; a second signal stops the relay at once");
        tokio::select! {
            () = server.shutdown() => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        Ok(())
    })
}

fn start_log(config: &Config) {
    let level = match config.log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    sealwire_service::log::start(config.log.format == LogFormat::Json, level, &["access"]);
}

fn create_authority(
    hosts: &[String],
    certificate: &Path,
    key: &Path,
    days: u16,
) -> Result<(), Failure> {
    let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let new = authority::create_authority(&names, days, OffsetDateTime::now_utc())
        .map_err(|error| (error.to_string(), 1))?;
    write_new_file(key, 0o600, &new.key_pem)?;
    write_new_file(certificate, 0o644, &new.cert_pem)?;
    print_text(&format!(
        "Clients of the relay must trust {}. Keep {} secret.\n",
        certificate.display(),
        key.display()
    ))
}

/// Writes a file that must not exist yet.
fn write_new_file(path: &Path, mode: u32, text: &str) -> Result<(), Failure> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| (format!("{}: {error}", path.display()), 1))
}
