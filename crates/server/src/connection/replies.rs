//! The writing half of a connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;

use sealwire_engine::io_fairness::{IoFairness, PIECE_BYTES};
use sealwire_engine::scheduler::AdmissionPermit;

/// Replies up to this many bytes are written together, in one TLS record where they fit.
const BATCH_BYTES: usize = 16 << 10;
/// A reply must be taken at least this fast on average, in bytes per second, about as fast as a message must arrive:
/// a peer that takes a little now and then would hold its memory for days.
const REPLY_BYTES_PER_S_MIN: u64 = 1 << 20;

/// A reply on its way to the writer, and what is given back once it is written.
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) _place: Option<AdmissionPermit>,
    pub(super) _seat: Option<OwnedSemaphorePermit>,
}

/// Writes replies as they come, small ones together, and flushes whenever the queue runs empty.
pub(super) async fn write_replies(
    mut write: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Outgoing>,
    stall: Duration,
    turns: &IoFairness,
    count: impl Fn(u64),
) -> io::Result<()> {
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    let mut held = Vec::new();
    while let Some(first) = outgoing.recv().await {
        let mut next = Some(first);
        while let Some(reply) = next {
            count(reply.bytes.len() as u64);
            if batch.len() + reply.bytes.len() > BATCH_BYTES {
                write_all(&mut write, &batch, stall, turns).await?;
                batch.clear();
                held.clear();
            }
            if reply.bytes.len() > BATCH_BYTES {
                write_all(&mut write, &reply.bytes, stall, turns).await?;
            } else {
                batch.extend_from_slice(&reply.bytes);
                held.push(reply);
            }
            next = outgoing.try_recv().ok();
        }
        write_all(&mut write, &batch, stall, turns).await?;
        timeout(stall, write.flush()).await??;
        batch.clear();
        held.clear();
    }
    timeout(stall, write.shutdown()).await?
}

/// Writes everything; fails when nothing of it is taken for as long as `stall`, or all of it too slowly.
async fn write_all(
    write: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    stall: Duration,
    turns: &IoFairness,
) -> io::Result<()> {
    let patience = stall + Duration::from_secs(bytes.len() as u64 / REPLY_BYTES_PER_S_MIN);
    let all = async {
        while !bytes.is_empty() {
            match timeout(stall, write.write(&bytes[..bytes.len().min(PIECE_BYTES)])).await?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                taken => bytes = &bytes[taken..],
            }
            if !bytes.is_empty() {
                turns.next().await;
            }
        }
        Ok(())
    };
    timeout(patience, all).await?
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::time::Instant;

    use super::*;

    /// Takes one byte a second: never stalls, never ends.
    #[tokio::test(start_paused = true)]
    async fn a_reply_that_is_taken_too_slowly_is_given_up() {
        let (mut ours, mut theirs) = tokio::io::duplex(1);
        let reader = tokio::spawn(async move {
            while theirs.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let begun = Instant::now();
        let written = write_all(&mut ours, &[0; 5 << 20], Duration::from_secs(10), &IoFairness::new(1)).await;
        assert_eq!(written.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
        assert_eq!(begun.elapsed().as_secs(), 15, "10 s and one for each MiB");
        drop(ours);
        reader.await.unwrap();
    }
}
