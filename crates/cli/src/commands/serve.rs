//! `serve` and `config check`: the engine from a configuration file.

use std::sync::Arc;

use sealwire_apps::Control;
pub(super) use sealwire_command_line::program::StopSignals;
use sealwire_service::output::{errln, outln};
use sealwire_store::StoreError;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{ConfigArgs, Failure, chain};
use crate::doctor::{self, Level};
use crate::systemd::Supervisor;
use sealwire_engine::root::Unsealer;
use sealwire_engine::stores::{Access, Stores, postgres_options};
use sealwire_server::runtime;
use sealwire_server::server::{Server, StartError};
use sealwire_service::bearer::{TokenVerifier, UnixClock};
pub(super) use sealwire_service::core_dumps::forbid as no_core_dumps;
use sealwire_settings::{Config, LogFormat, Mode};
use sealwire_telemetry::panics;

/// Arguments of `serve` and `config check`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let config = args.config.load()?;
    let log = log(&config)?;
    no_core_dumps();
    raise_file_limit();
    let runtime = runtime::start(&config)?;
    let ended = runtime.block_on(async {
        let supervisor = Supervisor::of_process();
        // Registered before any slow step, because until then SIGHUP ends the process.
        let mut hangups = signal(SignalKind::hangup())?;
        let mut server = Server::start_closed(&config).await?;
        // Before the first connection, a signal ends the start at once; later, it drains the
        // engine.
        let mut stop = StopSignals::listen()?;
        server.open();
        let serving = match (server.address(), server.control_address()) {
            (Some(address), _) => format!("takes calls on {address}"),
            (None, Some(control)) => format!("takes control calls on {control}"),
            (None, None) => "listens nowhere".to_owned(),
        };
        supervisor.report_ready(&serving);
        let _alive = supervisor.start_watchdog();
        loop {
            tokio::select! {
                () = stop.next() => break,
                _ = hangups.recv() => {
                    supervisor.report_reloading();
                    tokio::select! {
                        () = stop.next() => break,
                        () = reload_config(args, &server, &log) => supervisor.report_ready(&serving),
                    }
                }
            }
        }
        supervisor.report_stopping();
        stop.unless_again(server.shutdown()).await
    });
    if ended.is_err() {
        // Does not wait for crypto threads, whose results are no longer needed.
        runtime.shutdown_background();
    }
    ended
}

/// Raises the limit of open files to the maximum that the system allows this process. Shells and
/// service managers often set a soft limit of 1,024, while each connection takes a file.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                ..limit
            },
        )
        .is_err()
    {
        tracing::warn!(limit = ?limit.current, "the limit of open files could not be raised");
    }
}

/// Applies configuration changes that need no restart. Applies all of them, or none if there is an
/// error.
async fn reload_config(args: &Args, server: &Server, log: &LogFilter) {
    let reloaded = async {
        let config = args.config.load().map_err(|error| chain(&*error))?;
        let filter: Targets = config
            .log
            .filter
            .parse()
            .map_err(|error| format!("log.filter: {error}"))?;
        let left = server
            .reload(&config)
            .await
            .map_err(|error| chain(&error))?;
        log(filter);
        Ok::<_, String>(left)
    };
    match reloaded.await {
        Ok(left) if left.is_empty() => tracing::info!("configuration reloaded"),
        Ok(left) => {
            tracing::warn!(
                takes_a_restart = left.join(", "),
                "configuration reloaded, except for settings that need a restart"
            );
        }
        Err(why) => tracing::warn!(
            why,
            "the configuration is invalid and was not reloaded; run `sealwire config check`"
        ),
    }
}

pub(super) fn check(args: &Args) -> Result<(), Failure> {
    let config = args.config.load()?;
    no_core_dumps();
    let tls = sealwire_server::tls::load(&config.tls, config.control.as_ref())?;
    TokenVerifier::open(&config.issuers.0, UnixClock::system())?;
    if config.state.mode == Mode::Postgres {
        postgres_options(&config.postgres).check()?;
    }
    let files = doctor::check_files(&config);
    for finding in &files.findings {
        match finding.level {
            Level::Good => {}
            Level::Warning => errln!("warning: {finding}"),
            Level::Wrong => errln!("{finding}"),
        }
    }
    if files.worst_level() == Level::Wrong {
        let count = files.count_level(Level::Wrong);
        return Err(format!(
            "{}: {count} problems in the files that it names",
            args.config.config.display()
        )
        .into());
    }
    let apps = if config.state.mode == Mode::Postgres {
        // Reads the key-encryption key and the settings of providers. Connecting to the database
        // would upgrade its schema.
        Unsealer::open(&config)?;
        "the database is not checked".to_owned()
    } else {
        match runtime::start(&config)?.block_on(count_apps(&config)) {
            Ok(1) => "1 app".to_owned(),
            Ok(count) => format!("{count} apps"),
            Err(StartError::Store(StoreError::InUse { .. })) => {
                "the apps are not checked while an engine uses the state".to_owned()
            }
            Err(error) => return Err(error.into()),
        }
    };
    outln!("{} is valid: {apps}", args.config.config.display());
    for certificate in &tls.certificates {
        outln!("  {certificate}");
    }
    Ok(())
}

/// Loads every app as an engine would. Creates nothing that is missing.
async fn count_apps(config: &Config) -> Result<usize, StartError> {
    let unsealer = Unsealer::open(config)?;
    if config.state.mode == Mode::Embedded && !config.state.folder.exists() {
        return Ok(0);
    }
    let stores = Stores::open(config, Access::Serve).await?;
    let loaded = Control::with_finder(Arc::clone(&stores.control), Arc::new(unsealer))
        .load()
        .await;
    stores.close().await;
    Ok(loaded?.apps.len())
}

/// Replaces the log's filter.
pub(super) type LogFilter = Box<dyn Fn(Targets)>;

/// Sends log lines to standard error, in the configured format.
pub(super) fn log(config: &Config) -> Result<LogFilter, Failure> {
    let filter: Targets = config
        .log
        .filter
        .parse()
        .map_err(|error| format!("log.filter: {error}"))?;
    let (filter, handle) = reload::Layer::new(filter);
    // Printing internal errors would panic if standard error is closed.
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    match config.log.format {
        LogFormat::Human => tracing_subscriber::registry()
            .with(filter)
            .with(lines.with_ansi(false))
            .try_init()?,
        LogFormat::Json => tracing_subscriber::registry()
            .with(filter)
            .with(lines.json())
            .try_init()?,
    }
    panics::log();
    // The reload fails only if the log has ended, and then there is nowhere to report the failure.
    Ok(Box::new(move |filter| drop(handle.reload(filter))))
}
