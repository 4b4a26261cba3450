//! `audit`: shows the audit log, and verifies that it is unchanged.

use std::collections::VecDeque;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Subcommand;
use indicatif::{ProgressBar, ProgressStyle};
use sealwire_audit::{
    Anchor, AuditKey, CHECKPOINT_FILE, Checkpoint, CheckpointResult, Filter, Follow, Move, Moved,
    Range, RecordView, Report, Timestamp, archive, verify,
};
use sealwire_service::output::outln;
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{Failure, default_config, dev_folder};
use sealwire_engine::root::audit_kek;

/// Interval at which `show --follow` polls for new records.
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);
/// Most records of `--tail`.
const TAIL_MAX: u64 = 100_000;

/// Arguments of `audit`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: AuditCommand,
}

#[derive(Debug, Subcommand)]
enum AuditCommand {
    /// Verify an audit log: report records that were changed, removed, moved, added, forged or
    /// cut off
    ///
    /// Exit status 0: the trail is sound. All records must exist from record 1, or from the end of
    /// the last `audit archive`, unless --from names the first. With the configured key-encryption
    /// key, every record is checked to be from an engine. Without the key, only the chain from
    /// record to record is checked.
    Verify {
        #[command(flatten)]
        place: AuditSource,
        /// First record to verify, with all records of the same file; earlier files need not exist
        #[arg(long, value_name = "SEQ")]
        from: Option<u64>,
        /// Last record to verify; the end of the trail is then not checked
        #[arg(long, value_name = "SEQ")]
        to: Option<u64>,
        /// A record that must be there, as `audit checkpoint` or a log line named it; may be given
        /// again
        #[arg(long, value_name = "SEQ:HASH")]
        expect: Vec<Anchor>,
        /// Verify without the key: only check that each record follows from the one before
        #[arg(long)]
        plain: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show records, oldest first
    Show {
        #[command(flatten)]
        place: AuditSource,
        #[command(flatten)]
        wanted: RecordFilterArgs,
        /// Only the last records, at most this many
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=TAIL_MAX))]
        tail: Option<u64>,
        /// Continue with new records as they are written, until Ctrl-C
        #[arg(long, short)]
        follow: bool,
        /// Print the raw lines
        #[arg(long)]
        json: bool,
    },
    /// Move complete segments to another folder, and record the move so that archived records are
    /// not reported as missing
    ///
    /// Segments are verified before they are moved. An authenticated statement stays behind. The
    /// other folder is a separate trail, which verifies by itself and receives later moves. The
    /// engine can run meanwhile. If the command is killed, no record is lost: run it again.
    Archive {
        #[command(flatten)]
        place: AuditSource,
        /// Folder to move to: a new folder, or that of earlier moves
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
        /// Only segments with all records older than this: 2026-11-22T00:34:24Z, or 90s, 15m, 2h,
        /// 7d ago [default: all but the last]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        before: Option<Timestamp>,
        /// Also move segments that do not verify; `audit verify` reports them from then on
        #[arg(long)]
        despite_findings: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the last record's number and hash for `audit verify --expect`. Keep them where nobody
    /// can change them
    Checkpoint {
        #[command(flatten)]
        place: AuditSource,
        /// Print the whole checkpoint, in JSON
        #[arg(long)]
        json: bool,
    },
}

/// Location of the trail and its key.
#[derive(Debug, clap::Args)]
pub(super) struct AuditSource {
    /// Folder of the trail [default: `audit.folder` of the configuration]
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Configuration file; names the key-encryption key and, without FOLDER, the folder [default:
    /// that of `sealwire dev`, without FOLDER]
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Selects the records to show. A record must match all given filters.
#[derive(Debug, clap::Args)]
struct RecordFilterArgs {
    /// Only records of this principal, by its full name
    #[arg(long, value_name = "NAME")]
    principal: Option<String>,
    /// Only records of this app
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// Only records of this collection
    #[arg(long, value_name = "NAME")]
    collection: Option<String>,
    /// Only records of this method, such as decrypt or apps.rotate
    #[arg(long, value_name = "NAME")]
    method: Option<String>,
    /// Only records with this outcome: ok, an error's code, or failed for every error
    #[arg(long, value_name = "CODE")]
    outcome: Option<String>,
    /// Only records that name this data subject, by the id that `sealwire subjects find` prints
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only records of this kind: call, start, stop, segment, gap, refused, sweep, provider or
    /// reload
    #[arg(long, value_name = "KIND")]
    event: Option<String>,
    /// No records before this time: 2026-11-22T00:34:24Z, or 90s, 15m, 2h, 7d ago
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// No records after this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    until: Option<Timestamp>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        AuditCommand::Verify {
            place,
            from,
            to,
            expect,
            plain,
            json,
        } => {
            let (folder, key) = place.open(!plain)?;
            let report = verify_trail(
                &folder,
                key.as_ref(),
                Range {
                    from: *from,
                    to: *to,
                },
                expect,
            )?;
            if *json {
                outln!("{}", of_report(&folder, &report));
            } else {
                print_report(&folder, &report);
            }
            if report.is_sound() {
                Ok(())
            } else {
                Err(summary_of(&report).into())
            }
        }
        AuditCommand::Show {
            place,
            wanted,
            tail,
            follow,
            json,
        } => {
            let (folder, _) = place.open(false)?;
            Ok(show_records(
                folder,
                &wanted.to_filter(),
                *tail,
                *follow,
                *json,
            )?)
        }
        AuditCommand::Archive {
            place,
            to,
            before,
            despite_findings,
            json,
        } => {
            let (folder, key) = place.open(true)?;
            let key =
                key.ok_or("the key is needed: --config names the configuration that has it")?;
            archive_segments(
                &Move {
                    folder,
                    to: to.clone(),
                    before: *before,
                    despite_findings: *despite_findings,
                },
                &key,
                *json,
            )
        }
        AuditCommand::Checkpoint { place, json } => {
            let (folder, key) = place.open(true)?;
            print_checkpoint(&folder, key.as_ref(), *json)
        }
    }
}

impl AuditSource {
    pub(super) fn new(folder: Option<PathBuf>, config: Option<PathBuf>) -> Self {
        Self { folder, config }
    }

    /// Returns the folder and, if `keyed` and a configuration is used, the key.
    fn open(&self, keyed: bool) -> Result<(PathBuf, Option<AuditKey>), Failure> {
        let config = match (&self.config, &self.folder) {
            (None, Some(_)) => None,
            (file, _) => {
                if file.is_none() {
                    dev_folder::reject_untrusted(Path::new(dev_folder::DEFAULT_PATH))?;
                }
                let file = file.clone().unwrap_or_else(default_config);
                Some(super::load_config(&file)?)
            }
        };
        let folder = self
            .folder
            .clone()
            .or_else(|| config.as_ref()?.audit.folder.clone());
        let folder = folder
            .ok_or("audit.folder is not set in this configuration, so it has no audit log")?;
        let key = match config.filter(|_| keyed) {
            Some(config) => {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                Some(AuditKey::new(
                    runtime
                        .block_on(audit_kek(&config, Some(&folder)))?
                        .audit_secret(),
                ))
            }
            None => None,
        };
        Ok((folder, key))
    }
}

/// Prints the records of a trail that a filter selects, and returns their number.
pub(super) fn print_selected(
    source: &AuditSource,
    filter: &Filter,
    json: bool,
) -> Result<usize, Failure> {
    let (folder, _) = source.open(false)?;
    let mut out = BufWriter::new(sealwire_service::output::Output);
    let mut count = 0;
    Follow::new(folder).poll(&mut |line| {
        let Some(record) = filter.take(line) else {
            return Ok(());
        };
        count += 1;
        print_record(&mut out, line, &record, json)
    })?;
    out.flush()?;
    Ok(count)
}

/// Returns the records of a trail that a filter selects.
pub(super) fn selected(source: &AuditSource, filter: &Filter) -> Result<Vec<RecordView>, Failure> {
    let (folder, _) = source.open(false)?;
    let mut records = Vec::new();
    Follow::new(folder).poll(&mut |line| {
        records.extend(filter.take(line));
        Ok(())
    })?;
    Ok(records)
}

impl RecordFilterArgs {
    fn to_filter(&self) -> Filter {
        Filter {
            principal: self.principal.clone(),
            app: self.app.clone(),
            collection: self.collection.clone(),
            method: self.method.clone(),
            outcome: self.outcome.clone(),
            subject: self.subject.clone(),
            event: self.event.clone(),
            since: self.since,
            until: self.until,
        }
    }
}

/// Parses a time, or an age such as `15m`.
fn parse_time(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = OffsetDateTime::parse(text, &Rfc3339) {
        return Ok(Timestamp::of(time.into()));
    }
    parse_age(text)
        .and_then(|age| SystemTime::now().checked_sub(age))
        .map(Timestamp::of)
        .ok_or_else(|| {
            "must be a time such as 2026-11-22T00:34:24Z, or an age such as 90s, 15m, 2h or 7d"
                .to_owned()
        })
}

/// Parses a number of seconds, minutes, hours or days.
fn parse_age(text: &str) -> Option<Duration> {
    let unit = match text.as_bytes().last()? {
        b's' => 1,
        b'm' => 60,
        b'h' => 3_600,
        b'd' => 86_400,
        _ => return None,
    };
    let count: u64 = text[..text.len() - 1].parse().ok()?;
    count.checked_mul(unit).map(Duration::from_secs)
}

fn verify_trail(
    folder: &Path,
    key: Option<&AuditKey>,
    range: Range,
    expect: &[Anchor],
) -> Result<Report, Failure> {
    let bar = progress_bar("verified");
    let report = verify(folder, key, range, expect, &mut |done, all| {
        show_progress(&bar, done, all)
    });
    bar.finish_and_clear();
    Ok(report?)
}

fn archive_segments(this: &Move, key: &AuditKey, json: bool) -> Result<(), Failure> {
    let bar = progress_bar("verified and moved");
    let moved = archive(this, key, &mut |done, all| show_progress(&bar, done, all));
    bar.finish_and_clear();
    let Moved {
        segments,
        bytes,
        records,
        findings,
    } = moved?;
    let from = this.folder.display();
    let to = this.to.display();
    if json {
        let values = json!({
            "folder": this.folder, "to": this.to, "files": segments, "bytes": bytes, "first": records.map(|records| records.0),
            "last": records.map(|records| records.1), "findings": findings,
        });
        outln!("{values}");
    } else if let Some((first, last)) = records {
        outln!(
            "{from}: records {first} to {last}, {segments} files, {bytes} bytes, are in {to} now"
        );
        if findings > 0 {
            outln!(
                "{findings} findings in these records; `sealwire audit verify` reports them from now on"
            );
        }
    } else {
        outln!("{from}: nothing to move; the segment that is written always stays");
    }
    Ok(())
}

fn progress_bar(done: &str) -> ProgressBar {
    let bar = if io::stderr().is_terminal() {
        ProgressBar::new(0)
    } else {
        ProgressBar::hidden()
    };
    if let Ok(style) = ProgressStyle::with_template(&format!(
        "{{bar:40}} {{bytes}}/{{total_bytes}} {done} ({{eta}})"
    )) {
        bar.set_style(style);
    }
    bar
}

fn show_progress(bar: &ProgressBar, done: u64, all: u64) {
    bar.set_length(all);
    bar.set_position(done);
}

fn print_report(folder: &Path, report: &Report) {
    let Report {
        first,
        last,
        lines,
        segments,
        ..
    } = report;
    for finding in &report.findings {
        outln!("{finding}");
    }
    if report.findings_omitted > 0 {
        outln!("and {} more", report.findings_omitted);
    }
    outln!(
        "{}: {lines} lines in {segments} files, records {first} to {last}",
        folder.display()
    );
    match report.archived {
        Some(Anchor { seq, hash }) => outln!("archived: records up to {seq}:{hash}"),
        None if !report.from_beginning => outln!("records before {first} are not in this folder"),
        None => (),
    }
    if !report.keyed {
        outln!(
            "verified without the key: a trail whose lines were all rewritten is not detected; --config names the key"
        );
    }
    match report.head {
        CheckpointResult::NotChecked => outln!("the end of the trail was not checked"),
        CheckpointResult::Found { behind } if behind > 0 => {
            outln!("{behind} records follow the checkpoint: written since, or before a kill")
        }
        CheckpointResult::Found { .. } | CheckpointResult::Invalid => (),
    }
    if report.torn_bytes > 0 {
        outln!(
            "{} bytes at the end are an incomplete line: an engine writes it now, or was killed while it wrote",
            report.torn_bytes
        );
    }
    if report.lost > 0 {
        outln!(
            "{} records were lost when the files could not be written, and their gaps are recorded",
            report.lost
        );
    }
    outln!("last: {}:{}", report.last, report.hash);
}

fn summary_of(report: &Report) -> String {
    let count = report.findings.len() as u64 + report.findings_omitted;
    match count {
        1 => "the audit log did not verify: 1 finding, listed above".to_owned(),
        count => format!("the audit log did not verify: {count} findings, listed above"),
    }
}

fn of_report(folder: &Path, report: &Report) -> serde_json::Value {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|one| json!({"file": one.file, "line": one.line, "seq": one.seq, "problem": one.problem.to_string()}))
        .collect();
    json!({
        "folder": folder, "sound": report.is_sound(), "keyed": report.keyed, "files": report.segments,
        "lines": report.lines, "first": report.first, "last": report.last, "hash": report.hash.to_string(),
        "from_beginning": report.from_beginning, "archived": report.archived.map(|last| last.seq), "lost": report.lost, "starts": report.starts,
        "torn_bytes": report.torn_bytes, "end_checked": matches!(report.head, CheckpointResult::Found { .. }),
        "findings": findings, "findings_omitted": report.findings_omitted,
    })
}

fn show_records(
    folder: PathBuf,
    filter: &Filter,
    tail: Option<u64>,
    follow: bool,
    json: bool,
) -> io::Result<()> {
    let mut out = BufWriter::new(sealwire_service::output::Output);
    let mut last: VecDeque<Vec<u8>> = VecDeque::new();
    let mut trail = Follow::new(folder);
    trail.poll(&mut |line| {
        let Some(record) = filter.take(line) else {
            return Ok(());
        };
        let Some(most) = tail else {
            return print_record(&mut out, line, &record, json);
        };
        if last.len() as u64 == most {
            last.pop_front();
        }
        last.push_back(line.to_vec());
        Ok(())
    })?;
    for line in last {
        if let Some(record) = filter.take(&line) {
            print_record(&mut out, &line, &record, json)?;
        }
    }
    out.flush()?;
    if !follow {
        return Ok(());
    }
    loop {
        std::thread::sleep(FOLLOW_PAUSE);
        trail.poll(&mut |line| match filter.take(line) {
            Some(record) => print_record(&mut out, line, &record, json),
            None => Ok(()),
        })?;
        out.flush()?;
    }
}

fn text_or_empty(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or_default()
}

fn print_record(
    out: &mut impl Write,
    line: &[u8],
    record: &RecordView,
    json: bool,
) -> io::Result<()> {
    if json {
        out.write_all(line)?;
        return out.write_all(b"\n");
    }
    write!(out, "{} {} ", record.time, record.seq)?;
    if record.event != "call" {
        write!(out, "{} of engine {}", record.event, record.instance)?;
        if let Some(found) = &record.found {
            write!(out, ", trail found {found}")?;
        }
        if let Some(lost) = record.lost {
            write!(
                out,
                ", {lost} records lost: {}",
                text_or_empty(&record.error)
            )?;
        }
        if let Some(count) = record.count {
            let principal = text_or_empty(&record.principal);
            let method = text_or_empty(&record.method);
            let outcome = text_or_empty(&record.outcome);
            let first = text_or_empty(&record.first);
            let last = text_or_empty(&record.last);
            write!(
                out,
                ", {count} more requests of {principal} for {method}: {outcome}, from {first} to {last}"
            )?;
        }
        if let (Some(provider), Some(slot)) = (&record.provider, record.slot) {
            let operation = text_or_empty(&record.operation);
            let kind = text_or_empty(&record.provider_kind);
            let outcome = text_or_empty(&record.outcome);
            write!(
                out,
                ", {operation} of slot {slot} by provider {provider} ({kind}): {outcome}, {} us",
                record.took_us
            )?;
        }
        if let Some(what) = &record.what {
            write!(out, ", {what}: {}", text_or_empty(&record.outcome))?;
        }
        return writeln!(out);
    }
    write!(
        out,
        "{} {} {}",
        text_or_empty(&record.outcome),
        text_or_empty(&record.principal),
        text_or_empty(&record.method)
    )?;
    if let Some(app) = &record.app {
        write!(out, " {app}")?;
    }
    if let Some(collection) = &record.collection {
        write!(out, "/{collection}")?;
    }
    write!(
        out,
        ", {} field{}",
        record.fields,
        if record.fields == 1 { "" } else { "s" }
    )?;
    if record.errors > 0 {
        write!(out, ", {} failed", record.errors)?;
    }
    if let Some(mask) = &record.mask {
        write!(out, ", through {mask}")?;
    }
    if let Some(reason) = &record.reason {
        write!(out, ", because {reason:?}")?;
    }
    if let Some(change) = &record.change {
        write!(out, ", {}", serde_json::Value::Object(change.clone()))?;
    }
    writeln!(out, ", {} us", record.took_us)
}

fn print_checkpoint(folder: &Path, key: Option<&AuditKey>, json: bool) -> Result<(), Failure> {
    let head = Checkpoint::read(folder, key)
        .map_err(|error| format!("{} {error}", folder.join(CHECKPOINT_FILE).display()))?;
    if json {
        let values = json!({
            "seq": head.seq, "hash": head.hash.to_string(), "file": head.file, "key": head.key, "sealed": key.is_some(),
        });
        outln!("{values}");
    } else {
        outln!("{}:{}", head.seq, head.hash);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        assert_eq!(
            parse_time("2026-11-22T00:34:24Z"),
            Ok(Timestamp::parse(b"2026-11-22T00:34:24.000Z").unwrap())
        );
        assert_eq!(
            parse_time("2026-11-22T01:34:24.5+01:00"),
            Ok(Timestamp::parse(b"2026-11-22T00:34:24.500Z").unwrap())
        );
        let hour = parse_time("1h").unwrap();
        assert!(
            Timestamp::now().since(hour) >= Duration::from_secs(3_600)
                && hour > parse_time("2h").unwrap()
        );
        for wrong in [
            "",
            "yesterday",
            "h",
            "-1h",
            "1w",
            "2026-11-22",
            "99999999999999999999d",
            "9999999999999999d",
            "é",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
