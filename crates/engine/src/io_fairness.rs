//! Network threads take turns over bytes: between two pieces of a long message or reply, others are served.
//!
//! Connections with much to move wait here, outside the runtime's queue, so that at any time only as many of their
//! pieces as there are network threads stand between a small call and its thread. Turns are by connection: who opens
//! many gets many.

use tokio::sync::Semaphore;

/// Most bytes written in one turn: two TLS records, about 20 us. A read brings one.
pub const PIECE_BYTES: usize = 32 << 10;

/// The queue of connections that have more to move.
#[derive(Debug)]
pub struct IoFairness(Semaphore);

impl IoFairness {
    /// For so many network threads.
    pub fn new(threads: usize) -> Self {
        Self(Semaphore::new(threads.max(1)))
    }

    /// Waits for the next turn. Safe to drop midway.
    pub async fn next(&self) {
        // Never closed. The permit is kept over the yield, so that the others wait for it and not for a thread.
        let _turn = self.0.acquire().await;
        tokio::task::yield_now().await;
    }
}
