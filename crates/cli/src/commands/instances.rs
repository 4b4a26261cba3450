//! `instances`: lists the engines that share one control state, and how far each has followed it.

use super::Failure;
use super::operator::EngineArgs;
use sealwire_service::output::outln;

/// Arguments of `instances`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    engine: EngineArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let found = args
        .engine
        .run(async |client| Ok(client.instances().await?))?;
    if args.engine.json {
        outln!("{}", serde_json::to_string(&found)?);
        return Ok(());
    }
    outln!(
        "{:<34} {:<22} {:<10} {:<11} SEEN",
        "INSTANCE",
        "ADDRESS",
        "VERSION",
        "GENERATION"
    );
    for instance in &found.instances {
        // Texts of the database must not control a terminal.
        let [id, address, version] = [&instance.id, &instance.address, &instance.version]
            .map(|text| text.escape_debug().to_string());
        let behind = found.generation.saturating_sub(instance.generation);
        let behind = if behind == 0 {
            String::new()
        } else {
            format!(", {behind} behind")
        };
        let seen = std::time::Duration::from_millis(instance.age_ms);
        outln!(
            "{id:<34} {address:<22} {version:<10} {:<11} {seen:.1?} ago{behind}",
            instance.generation
        );
    }
    Ok(())
}
