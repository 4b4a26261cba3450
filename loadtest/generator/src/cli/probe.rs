//! The `probe` command: probes a running engine at a fixed rate, all day.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use super::Failure;
use crate::fault::Fault;
use crate::probe::{ProbeReport, ProbeSettings, Prober};
use crate::target::Connect;
use sealwire_service::output::errln;

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Examples:
  Probe the engine of `sealwire dev` once a second, and print a line each minute:
    sealwire-load probe

  Probe an engine in production for Prometheus, with a client certificate of the prober's own:
    sealwire-load probe --connect engine.internal:7443 --ca pki/ca.pem \\
      --cert pki/prober.pem --key pki/prober-key.pem --app probe --metrics 127.0.0.1:9464

  Check an engine after an upgrade: 20 probes, exit status 1 if any fails:
    sealwire-load probe --connect engine.internal:7443 --folder pki --rate 10 --count 20

  List the intervals with failures:
    sealwire-load probe --json | jq -c 'select(.ok < .probes)'

The principal of the certificate needs a role that grants `encrypt` and `decrypt` on the app. Use an app that holds
nothing else. `ops/prometheus/sealwire.rules.yml` has alerts for the metrics.";

/// Arguments of `probe`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct ProbeArgs {
    /// Probes per second. Each probe starts when it is due, whether or not earlier probes have
    /// ended
    #[arg(long, value_name = "PER_S", default_value_t = 1.0, value_parser = within::<1, 1_000_000>)]
    rate: f64,
    /// Fields of each probe
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    fields: u32,
    /// App whose keys seal the fields
    #[arg(long, value_name = "NAME", default_value = "demo")]
    app: String,
    /// Time limit of a probe, from its due time
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=60_000))]
    timeout_ms: u32,
    /// Stop after this many probes, with exit status 1 if any failed [default: SIGINT or SIGTERM
    /// stops]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Time between two lines
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = within::<100, 86_400_000>)]
    report_s: f64,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Serve metrics for Prometheus at this address, under /metrics. Port 0 selects a free port
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    connect: Connect,
}

/// Parses a number between two limits, given in thousandths.
fn within<const MIN: u32, const MAX: u32>(text: &str) -> Result<f64, String> {
    let min = f64::from(MIN) / 1e3;
    let max = f64::from(MAX) / 1e3;
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (min..=max).contains(&number) {
        Ok(number)
    } else {
        Err(format!("must be in {min}..={max}"))
    }
}

pub(super) fn run(args: &ProbeArgs) -> Result<(), Failure> {
    let prober = Prober::new(ProbeSettings {
        target: args.connect.target()?,
        app: args.app.clone(),
        fields: args.fields,
        per_s: args.rate,
        timeout: Duration::from_millis(args.timeout_ms.into()),
        count: args.count,
        report_every: Duration::from_secs_f64(args.report_s),
        metrics: args.metrics,
    })?;
    if let Some(address) = prober.metrics_address() {
        errln!("metrics at http://{address}/metrics");
    }
    let totals = prober.run(|report: &ProbeReport| {
        let line = if args.json {
            serde_json::to_string(report)?
        } else {
            report.line()
        };
        let mut out = std::io::stdout();
        writeln!(out, "{line}")?;
        out.flush()
    })?;
    if totals.failed > 0 {
        return Err(Fault::Failed(format!(
            "{} of {} probes failed",
            totals.failed, totals.probes
        ))
        .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_limits_are_invalid() {
        for (text, expected) in [
            ("0.001", Ok(0.001)),
            ("1", Ok(1.0)),
            ("1000", Ok(1_000.0)),
            ("0", Err("must be in 0.001..=1000")),
            ("-1", Err("must be in 0.001..=1000")),
            ("1000.1", Err("must be in 0.001..=1000")),
            ("nan", Err("must be in 0.001..=1000")),
            ("inf", Err("must be in 0.001..=1000")),
            ("one", Err("not a number")),
        ] {
            assert_eq!(
                within::<1, 1_000_000>(text),
                expected.map_err(str::to_owned),
                "{text}"
            );
        }
    }
}
