//! `recovery` and `root recover`: splits a recovery key into shares, and opens a store with them.
//!
//! The recovery key exists only in memory, while it is split or joined. No share and no key is
//! printed; shares go to files that only their owner can read.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use sealwire_apps::{RootKeyCopies, RootRecord, SlotChange};
use sealwire_crypto::RootKey;
use sealwire_engine::root::{KnownRoots, RootKnowledge};
use sealwire_kek::recovery::recovery_key_of;
use sealwire_kek::{RecoveryKey, Share, WrapSlot};
use sealwire_service::output::{errln, outln};
use sealwire_service::trusted_file::FileKind;
use sealwire_store::CommitSteps;
use serde_json::json;
use zeroize::Zeroizing;

use super::{CommandOutput, Failure, RootStore, StoreArgs};

/// File with the public key, in the folder of the shares.
const PUBLIC_KEY_FILE: &str = "recovery.pub";
/// Maximum bytes of a file with a share, or of all shares on standard input: 255 shares take 24
/// KiB.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Arguments of `recovery`.
#[derive(Debug, clap::Args)]
pub(in super::super) struct RecoveryArgs {
    #[command(subcommand)]
    command: RecoveryCommand,
}

/// Where shares are read from.
#[derive(Debug, clap::Args)]
pub(super) struct ShareArgs {
    /// File with one share, given once per share; `-` reads shares from standard input, one per
    /// line [default: -]
    #[arg(long = "share", value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// How a key is split.
#[derive(Debug, clap::Args)]
struct SplitArgs {
    /// Number of shares that open the store together, at least 2
    #[arg(long, value_name = "NUMBER")]
    threshold: u8,
    /// Number of shares to make, one per holder, at most 255
    #[arg(long, value_name = "NUMBER")]
    shares: u8,
    /// Folder to create, for the public key and one file per share. Choose one in memory
    /// (`/dev/shm`), hand the shares out, and delete it
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

#[derive(Debug, Subcommand)]
enum RecoveryCommand {
    /// Create a recovery key for this store: a public key that wraps, and shares of the private key
    /// that unwrap
    ///
    /// The store must have a root key (`kek init`). Afterwards, add a table of kind `shares` with
    /// the public key to the file of `kek.providers`, and run `kek add` with its name. Rotations
    /// then need no holder. The private key is never written or printed: without enough shares
    /// nobody has it.
    Create {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        split: SplitArgs,
    },
    /// Join shares, and split the same recovery key anew, for other holders or another threshold
    ///
    /// The slot stays unchanged. Shares of the earlier split still open it, and cannot be combined
    /// with the new shares: have their holders destroy them. If a former holder is not trusted,
    /// create another recovery key instead.
    Split {
        #[command(flatten)]
        given: ShareArgs,
        #[command(flatten)]
        split: SplitArgs,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Check that shares open their slot, and record the time in it. Changes nothing else
    ///
    /// Run this with the holders once a year: it is the only proof that the shares still exist and
    /// are right.
    Check {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        shares: ShareArgs,
        #[command(flatten)]
        root: RootKeyArgs,
    },
}

/// The root key that an operator expects.
#[derive(Debug, clap::Args)]
pub(super) struct RootKeyArgs {
    /// Id of the store's root key, as you kept it before the loss: from the output of the last
    /// `kek init` or `root rotate`, or from anchor.json or root.json of a machine with an engine.
    /// Never from a command that reads the store now: anyone who can write to the store and read
    /// the recovery public key can make a store of their own that the shares open. Needed where
    /// nothing on this machine confirms the root key
    #[arg(long = "root-key-id", value_name = "ID")]
    id: Option<String>,
}

impl RootKeyArgs {
    /// Rejects a root key unless the operator or a file of this machine names it. Returns its id.
    fn check_root_key(&self, store: &RootStore, record: &RootRecord) -> Result<String, Failure> {
        let id = record.active.to_string();
        let known = KnownRoots::read(&store.config)?.look_up(record);
        if let Some(given) = &self.id {
            if !given.trim().eq_ignore_ascii_case(&id) {
                return Err(format!(
                    "the store names root key {id}, and --root-key-id another one. Nothing was changed. Compare \
                     the id with the output of the last `kek init` or `root rotate`, also of other operators. If it is \
                     right, the store may have been replaced: copy the store before you restore a backup"
                )
                .into());
            }
            if let RootKnowledge::Other(file) = known {
                errln!(
                    "warning: {} names another root key than {id}. The command continues, because --root-key-id names {id}",
                    file.display()
                );
            }
            return Ok(id);
        }
        let reason = match known {
            RootKnowledge::Confirmed => return Ok(id),
            RootKnowledge::Unknown => {
                "nothing on this machine confirms that it is yours (no anchor file with ids of root keys, and no root.json beside the audit log)"
                    .to_owned()
            }
            RootKnowledge::Other(file) => format!("{} names another one", file.display()),
        };
        Err(format!(
            "the store names root key {id}, and {reason}. Nothing was changed. Anyone who can write to the store can have put it \
             there. Compare the id with your own records, not with this message: the output of your last `kek init` or `root \
             rotate`, or anchor.json or root.json of a machine with an engine. Only if it is the same, repeat the command with \
             --root-key-id and the id from your records"
        )
        .into())
    }
}

pub(in super::super) fn run_recovery(args: &RecoveryArgs) -> Result<(), Failure> {
    // A core dump could contain the recovery key.
    super::super::serve::no_core_dumps();
    match &args.command {
        RecoveryCommand::Create { store, split } => {
            store.run_and_print(async |store| create_recovery_key(store, split).await)
        }
        RecoveryCommand::Split { given, split, json } => split_again(&given.read()?, split, *json),
        RecoveryCommand::Check {
            store,
            shares,
            root,
        } => {
            let shares = shares.read()?;
            store.run_and_print(async |store| check_shares(store, &shares, root).await)
        }
    }
}

/// Creates a recovery key for the store, and writes its public key and shares.
async fn create_recovery_key(
    store: &RootStore,
    split: &SplitArgs,
) -> Result<CommandOutput, Failure> {
    let record = store.admin.stored_record().await?;
    let key = RecoveryKey::generate(record.set)?;
    let made = write_shares(&key, split)?;

    let text = format!(
        "{}\nNext: give {PUBLIC_KEY_FILE} a table of kind \"shares\" in the file of kek.providers, run `sealwire kek add` with its \
         name, hand each share to another person, run `sealwire recovery check` with them, and delete the share files.",
        made.text
    );
    Ok((text, made.values))
}

fn split_again(shares: &[Share], split: &SplitArgs, json: bool) -> Result<(), Failure> {
    let made = write_shares(&RecoveryKey::join(shares)?, split)?;
    if json {
        outln!("{}", made.values);
    } else {
        outln!(
            "{}\nShares of the earlier split still open the slot: have their holders destroy them.",
            made.text
        );
    }
    Ok(())
}

/// The result of [`write_shares`], as text and as JSON.
struct Written {
    text: String,
    values: serde_json::Value,
}

/// Splits a key, and writes its public key and one file per share into a new folder.
fn write_shares(key: &RecoveryKey, split: &SplitArgs) -> Result<Written, Failure> {
    let SplitArgs {
        threshold,
        shares: total,
        out,
    } = split;
    let shares = key.split(*threshold, *total)?;
    let public = key.public()?;

    DirBuilder::new()
        .mode(0o700)
        .create(out)
        .map_err(|error| file_error(out, &error))?;
    let mut files = Vec::new();
    for share in &shares {
        let path = out.join(format!("share-{}-of-{total}", share.index()));
        write_new(&path, &share.to_text(), 0o600).map_err(|error| file_error(&path, &error))?;
        files.push(path.display().to_string());
    }
    let path = out.join(PUBLIC_KEY_FILE);
    write_new(&path, &public.to_text(), 0o644).map_err(|error| file_error(&path, &error))?;
    File::open(out)
        .and_then(|folder| folder.sync_all())
        .map_err(|error| file_error(out, &error))?;

    let id = public.id();
    let public_key = path.display().to_string();
    let text = format!(
        "recovery key {id}: any {threshold} of {total} shares open its slot\n\
         public key: {public_key}\nshares: {}",
        files.join(", ")
    );
    let values = json!({"key": id.to_string(), "threshold": threshold, "public_key": public_key, "shares": files});
    Ok(Written { text, values })
}

fn file_error(file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{}: {error}", file.display())
}

/// Writes a line into a new file.
fn write_new(path: &Path, line: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(path)?;
    file.write_all(line.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()
}

/// Checks that shares open a slot of every root key, and records the time in these slots.
async fn check_shares(
    store: &RootStore,
    shares: &[Share],
    expected: &RootKeyArgs,
) -> Result<CommandOutput, Failure> {
    let record = store.admin.stored_record().await?;
    let opened = open_roots(&record, shares)?;
    let id = expected.check_root_key(store, &record)?;

    let mut opened_slots = Vec::new();
    for (root, (slot, key)) in record.roots().zip(opened) {
        store
            .admin
            .unsealer()
            .set_unwrapped(record.set, root, key)?;
        opened_slots.push((root.id, slot));
    }

    let mut steps = CommitSteps::default();
    for (root, slot) in &opened_slots {
        let change = SlotChange {
            verified: vec![*slot],
            ..SlotChange::default()
        };
        steps.made(store.control.set_slots(*root, change).await)?;
    }
    steps.end()?;

    let slots: Vec<u32> = opened_slots.into_iter().map(|(_, slot)| slot).collect();
    let named = slots
        .iter()
        .map(|slot| format!("slot {slot}"))
        .collect::<Vec<_>>()
        .join(" and ");
    let count = shares.len();
    let text = format!("{count} shares open {named} of root key {id}");
    Ok((
        text,
        json!({"slots": slots, "shares": count, "root_key_id": id}),
    ))
}

/// Unwraps every root key of the store with shares, gives it a slot of each named provider, and
/// unseals the store. Replaces the slots of these providers, which no longer unwrap.
pub(super) async fn recover_root(
    store: &RootStore,
    shares: &[Share],
    expected: &RootKeyArgs,
    names: &[String],
) -> Result<CommandOutput, Failure> {
    let record = store.admin.stored_record_if_sealed().await?;
    let opened = open_roots(&record, shares)?;
    let id = expected.check_root_key(store, &record)?;

    let mut changes = Vec::new();
    let mut next = record.next_slot;
    for (root, (shares_slot, key)) in record.roots().zip(opened) {
        let remove = replaced_slots(store, &record, root, names).await?;
        let add = store
            .admin
            .new_slots(names.iter().map(String::as_str), record.set, &key, next)
            .await?;

        if let Some(slot) = add
            .iter()
            .find(|slot| store.admin.unsealer().providers().needs_holders(slot))
        {
            return Err(format!(
                "provider {} is of kind shares, which cannot unwrap without its holders. Nothing was changed. Name a provider that unwraps by itself",
                slot.provider
            )
            .into());
        }

        next += u32::try_from(add.len())?;
        store
            .admin
            .unsealer()
            .set_unwrapped(record.set, root, key)?;
        changes.push((
            root.id,
            SlotChange {
                add,
                remove,
                verified: vec![shares_slot],
            },
        ));
    }

    let mut steps = CommitSteps::default();
    if record.sealed_unix_s.is_some() {
        // The root keys of the store are already unwrapped, so unsealing needs no provider.
        steps.made(store.control.unseal().await)?;
    }

    let mut generation = 0;
    for (root, change) in changes {
        generation = steps.made(store.control.set_slots(root, change).await)?;
    }
    steps.end()?;

    let named = names.join(", ");
    let text = format!(
        "recovered the root key {id}: {named} unwraps it, from generation {generation} on\n\
         Engines can start again, also if the store was sealed. Remove the slots of lost providers (`kek remove`). If others may have \
         the keys of these providers, run `root rotate` afterwards."
    );
    Ok((
        text,
        json!({"generation": generation, "providers": names, "root_key_id": id}),
    ))
}

/// Returns the slots of the named providers, which new slots replace. Fails if such a slot still
/// unwraps.
async fn replaced_slots(
    store: &RootStore,
    record: &RootRecord,
    root: &RootKeyCopies,
    names: &[String],
) -> Result<Vec<u32>, Failure> {
    let mut numbers = Vec::new();
    for slot in root
        .slots
        .iter()
        .filter(|slot| names.contains(&slot.provider))
    {
        if store
            .admin
            .unsealer()
            .providers()
            .unwrap_slot(record.set, root, slot)
            .await
            .is_ok()
        {
            return Err(format!(
                "provider {} still unwraps the root key, so there is nothing to recover. Nothing was changed",
                slot.provider
            )
            .into());
        }
        numbers.push(slot.number);
    }
    Ok(numbers)
}

/// Unwraps every root key of a store by shares. Returns the slots that opened, in the order of
/// [`RootRecord::roots`].
fn open_roots(record: &RootRecord, shares: &[Share]) -> Result<Vec<(u32, RootKey)>, Failure> {
    // The set is the random id of the store's root keys.
    if shares.iter().any(|share| *share.set() != record.set) {
        return Err("a share belongs to the recovery key of another store".into());
    }
    let key = RecoveryKey::join(shares)?;
    record
        .roots()
        .map(|root| open_root(record.set, root, &key))
        .collect()
}

fn open_root(
    set: [u8; 16],
    root: &RootKeyCopies,
    key: &RecoveryKey,
) -> Result<(u32, RootKey), Failure> {
    let mut reasons = Vec::new();
    for slot in root
        .slots
        .iter()
        .filter(|slot| recovery_key_of(&slot.wrapped) == Some(key.id()))
    {
        match key.unwrap(
            &slot.wrapped,
            &WrapSlot {
                set,
                root: root.id,
                number: slot.number,
            },
        ) {
            Ok(bytes) => {
                let found = RootKey::from_bytes(bytes);
                if found.id(&set)? == root.id {
                    return Ok((slot.number, found));
                }
                reasons.push(format!(
                    "slot {}: the copy unwraps to another root key",
                    slot.number
                ));
            }
            Err(error) => reasons.push(format!("slot {}: {error}", slot.number)),
        }
    }
    if reasons.is_empty() {
        return Err(format!(
            "root key {root} has no slot that is sealed to recovery key {}",
            key.id()
        )
        .into());
    }
    Err(format!("root key {root}: {}", reasons.join("; ")).into())
}

impl ShareArgs {
    /// Reads the shares. Errors name files and lines, and no part of a share.
    pub(super) fn read(&self) -> Result<Vec<Share>, Failure> {
        let standard_input = [PathBuf::from("-")];
        let files = if self.files.is_empty() {
            &standard_input[..]
        } else {
            &self.files
        };
        let mut shares = Vec::new();
        for file in files {
            if file == Path::new("-") {
                shares.extend(standard_shares()?);
            } else {
                // The errors of this function name the file.
                let bytes = sealwire_service::trusted_file::read(
                    file,
                    FileKind::Secret,
                    INPUT_BYTES_MAX as u64,
                )?;
                let text = std::str::from_utf8(&bytes)
                    .map_err(|_| file_error(file, &"must be UTF-8 text"))?;
                shares.push(Share::parse(text).map_err(|error| file_error(file, &error))?);
            }
        }
        if shares.is_empty() {
            Err("no share of the recovery key was given. Name the holders' files, or enter the shares on standard input".into())
        } else {
            Ok(shares)
        }
    }
}

/// Reads shares from standard input, one per line. A terminal does not show them.
fn standard_shares() -> Result<Vec<Share>, Failure> {
    let terminal = io::stdin().is_terminal();
    let _echo = terminal.then(EchoOff::new).transpose()?;
    if terminal {
        errln!(
            "Type or paste one share per line, and an empty line after the last. The terminal does not show the shares."
        );
    }
    let text = read_text(
        |buffer| Ok(rustix::io::read(io::stdin(), buffer)?),
        terminal,
    );
    let lines = text.map_err(|error| format!("standard input: {error}"))?;
    let shares = lines
        .lines()
        .zip(1..)
        .filter(|(line, _)| !line.trim().is_empty());
    let shares = shares.map(|(line, at)| {
        Share::parse(line)
            .map_err(|error| Failure::from(format!("standard input, line {at}: {error}")))
    });
    shares.collect()
}

/// Reads text to its end, or to an empty line. Allocates the full size once: a growing buffer would
/// leave copies of shares behind.
fn read_text(
    mut read: impl FnMut(&mut [u8]) -> io::Result<usize>,
    to_empty_line: bool,
) -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new(vec![0; INPUT_BYTES_MAX]);
    let mut length = 0;
    loop {
        if length == bytes.len() {
            return Err(io::Error::other(
                "more than 64 KiB, which is too long for shares",
            ));
        }
        match read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        let read = &bytes[..length];
        if to_empty_line && (read == b"\n" || read.ends_with(b"\n\n")) {
            break;
        }
    }
    let text = std::str::from_utf8(&bytes[..length])
        .map_err(|_| io::Error::other("must be UTF-8 text"))?;

    Ok(Zeroizing::new(text.to_owned()))
}

/// A terminal without echo, until it is dropped.
struct EchoOff(Termios);

impl EchoOff {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Self(before))
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        // If the terminal is gone, its settings no longer matter.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
