//! The writing half of a connection.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::InFlightPermit;
use crate::network_scheduler::{NetworkSlice, PIECE_BYTES};
use sealwire_engine::jobs::scheduler::AdmissionPermit;
use sealwire_http::ResultMemory;

/// Responses up to this many bytes are written together, in one TLS record where they fit.
const BATCH_BYTES: usize = 16 << 10;
/// Minimum average rate at which a peer must read a response, in bytes per second. A message must
/// arrive at about the same rate. A slower peer would occupy the memory of the response for days.
const RESPONSE_BYTES_PER_S_MIN: u64 = 1 << 20;

/// A response for the writer, and the permits that are released after it is written.
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) _admission: Option<AdmissionPermit>,
    pub(super) _in_flight: Option<InFlightPermit>,
}

/// Writes responses in the order of the queue. Combines small responses, and flushes when the queue
/// is empty. With `results`, memory is taken before a response is written; until then the response
/// keeps its permits, and no other response is written.
pub(super) async fn write_responses(
    mut write: impl AsyncWrite + Unpin,
    mut outgoing: mpsc::Receiver<Outgoing>,
    stall: Duration,
    results: Option<ResultMemory>,
    count: impl Fn(u64),
) -> io::Result<()> {
    let mut slice = NetworkSlice::default();
    let mut batch = Vec::with_capacity(BATCH_BYTES);
    let mut batched = Vec::new();
    while let Some(first) = outgoing.recv().await {
        let mut next = Some(first);
        while let Some(response) = next {
            let len = response.bytes.len();
            count(len as u64);
            if let Some(results) = &results
                && !results.try_take(len)
            {
                // The batch is written first, because its memory is released only when the client
                // has read it.
                write_all(&mut write, &batch, stall, &mut slice).await?;
                batch.clear();
                batched.clear();
                results.take(len).await;
            }
            if batch.len() + len > BATCH_BYTES {
                write_all(&mut write, &batch, stall, &mut slice).await?;
                batch.clear();
                batched.clear();
            }
            if len > BATCH_BYTES {
                write_all(&mut write, &response.bytes, stall, &mut slice).await?;
            } else {
                batch.extend_from_slice(&response.bytes);
                batched.push(response);
            }
            slice.count_unit(0).await;
            next = outgoing.try_recv().ok();
        }
        write_all(&mut write, &batch, stall, &mut slice).await?;
        timeout(stall, write.flush()).await??;
        batch.clear();
        batched.clear();
    }
    timeout(stall, write.shutdown()).await?
}

/// Writes all bytes. Fails if the peer reads nothing for the time `stall`, or reads too slowly on
/// average.
async fn write_all(
    write: &mut (impl AsyncWrite + Unpin),
    mut bytes: &[u8],
    stall: Duration,
    slice: &mut NetworkSlice,
) -> io::Result<()> {
    let time_limit = stall + Duration::from_secs(bytes.len() as u64 / RESPONSE_BYTES_PER_S_MIN);
    let all = async {
        while !bytes.is_empty() {
            match timeout(stall, write.write(&bytes[..bytes.len().min(PIECE_BYTES)])).await?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => {
                    bytes = &bytes[written..];
                    slice.count_unit(written).await;
                }
            }
        }
        Ok(())
    };
    timeout(time_limit, all).await?
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::time::Instant;

    use super::*;

    /// The peer reads one byte per second, so it never stalls completely.
    #[tokio::test(start_paused = true)]
    async fn slow_reading_of_a_response_times_out() {
        let (mut ours, mut theirs) = tokio::io::duplex(1);
        let reader = tokio::spawn(async move {
            while theirs.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let started = Instant::now();
        let written = write_all(
            &mut ours,
            &[0; 5 << 20],
            Duration::from_secs(10),
            &mut NetworkSlice::default(),
        )
        .await;
        assert_eq!(
            written.map_err(|error| error.kind()),
            Err(io::ErrorKind::TimedOut)
        );
        assert_eq!(started.elapsed().as_secs(), 15, "10 s, plus one per MiB");
        drop(ours);
        reader.await.unwrap();
    }
}
