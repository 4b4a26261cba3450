//! Memory of the HTTP listener: for bodies of requests, and for results of the engine.
//!
//! The two have separate parts. A request whose body is held waits for its result, so bodies must
//! never take the memory of results. Each principal can have three quarters of a part, and of a part
//! for bodies at most three quarters of the memory that other principals leave.
//!
//! Memory for a result is taken before the engine writes the result into the connection inside the
//! process. Without memory the result stays in the engine, as for a client that does not read its
//! socket. The memory is released when the client has taken the response, or when the response is
//! ended because the client does not read it.

use std::sync::Arc;

use sealwire_service::memory::{Account, Budget};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Bytes of one permit for the memory of results. Bodies have the larger units of their budget.
const RESULT_UNIT: usize = 1 << 10;
/// Memory for heads, in addition to that for bodies.
const HEADS: usize = 1 << 20;
/// Detail of the error if the memory of a principal or of all is in use.
const IN_USE: &str = "too many long requests at once";

/// Budgets of a principal and of all principals, for heads and bodies of requests.
pub type BodyAccount = Account<2>;

/// Permits of threads or of memory.
#[derive(Clone, Debug)]
pub struct Permits {
    /// Permits that all principals share.
    pub all: Arc<Semaphore>,
    /// Permits of this principal.
    pub principal: Arc<Semaphore>,
}

/// Memory of the listener, which all principals share.
#[derive(Clone, Debug)]
pub struct Memory {
    bodies: Budget,
    body_bytes: usize,
    results: Arc<Semaphore>,
    result_bytes: usize,
}

/// Memory of one principal, on all its connections.
#[derive(Debug)]
pub struct PrincipalMemory {
    bodies: Budget,
    results: Arc<Semaphore>,
}

impl Memory {
    /// Divides `bytes` in proportion to the longest request, which takes `message_bytes_max` as
    /// received and as much as a message, and to the longest result.
    ///
    /// The settings give half of `bytes` to `message_bytes_max` plus `reply_bytes_max`, and
    /// `reply_bytes_max` is not the smaller one. Then three quarters of each part are enough for the
    /// longest request and its result.
    pub fn new(bytes: usize, message_bytes_max: usize, reply_bytes_max: usize) -> Self {
        let request = 2 * message_bytes_max as u128;
        let body_bytes = bytes as u128 * request / (request + reply_bytes_max as u128).max(1);
        let body_bytes = usize::try_from(body_bytes).unwrap_or(bytes).min(bytes);
        let result_bytes = bytes - body_bytes;
        let body_bytes = body_bytes.saturating_add(HEADS);
        Self {
            bodies: Budget::new(body_bytes, IN_USE),
            body_bytes,
            results: Arc::new(Semaphore::new(count_permits(result_bytes))),
            result_bytes,
        }
    }

    /// Creates the memory of a principal without connections.
    pub fn of_principal(&self) -> PrincipalMemory {
        PrincipalMemory {
            bodies: Budget::new(share(self.body_bytes), IN_USE),
            results: Arc::new(Semaphore::new(count_permits(share(self.result_bytes)))),
        }
    }

    /// Returns the budgets for bodies of a principal's requests.
    pub fn body_account(&self, principal: &PrincipalMemory) -> BodyAccount {
        Account {
            budgets: [principal.bodies.clone(), self.bodies.clone()],
        }
    }

    /// Creates the memory for the results of a connection, and the part that learns which memory
    /// was taken.
    pub fn result_memory(&self, principal: &PrincipalMemory) -> (ResultMemory, TakenMemory) {
        let (taken, receiver) = mpsc::unbounded_channel();
        let permits = Permits {
            all: Arc::clone(&self.results),
            principal: Arc::clone(&principal.results),
        };
        let most = count_permits(share(self.result_bytes));
        (
            ResultMemory {
                permits,
                most: u32::try_from(most).unwrap_or(u32::MAX),
                taken,
            },
            TakenMemory(receiver),
        )
    }
}

/// Returns the bytes that one principal can have: three quarters.
const fn share(bytes: usize) -> usize {
    bytes - bytes / 4
}

const fn count_permits(bytes: usize) -> usize {
    let permits = bytes.div_ceil(RESULT_UNIT);
    if permits > Semaphore::MAX_PERMITS {
        Semaphore::MAX_PERMITS
    } else {
        permits
    }
}

/// Memory for the results of one connection. The engine takes it before it writes a message.
#[derive(Clone, Debug)]
pub struct ResultMemory {
    permits: Permits,
    /// Permits of the longest result.
    most: u32,
    taken: mpsc::UnboundedSender<ResultReservation>,
}

/// Memory that the engine has taken, one reservation per message, in the order of the messages.
#[derive(Debug)]
pub struct TakenMemory(mpsc::UnboundedReceiver<ResultReservation>);

/// Memory of one result, which is released on drop.
#[derive(Debug)]
pub(crate) struct ResultReservation {
    _permits: [OwnedSemaphorePermit; 2],
}

impl ResultMemory {
    /// Takes memory for a message. Returns false if no memory is left now.
    pub fn try_take(&self, bytes: usize) -> bool {
        let permits = self.permits_for(bytes);
        let take =
            |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).try_acquire_many_owned(permits).ok();
        let Some(principal) = take(&self.permits.principal) else {
            return false;
        };
        let Some(all) = take(&self.permits.all) else {
            return false;
        };
        self.pass([principal, all]);
        true
    }

    /// Waits until memory for a message is left, and takes it.
    pub async fn take(&self, bytes: usize) {
        let permits = self.permits_for(bytes);
        let Permits { all, principal } = self.permits.clone();
        // A principal that waits for its own memory takes none of the shared memory. The semaphores
        // are never closed.
        let Ok(principal) = principal.acquire_many_owned(permits).await else {
            return;
        };
        if let Ok(all) = all.acquire_many_owned(permits).await {
            self.pass([principal, all]);
        }
    }

    fn permits_for(&self, bytes: usize) -> u32 {
        u32::try_from(count_permits(bytes))
            .unwrap_or(u32::MAX)
            .min(self.most)
    }

    fn pass(&self, permits: [OwnedSemaphorePermit; 2]) {
        // A closed connection needs no memory.
        let _ = self.taken.send(ResultReservation { _permits: permits });
    }
}

impl TakenMemory {
    /// Returns the memory of the next message. The engine took it before it wrote the message.
    pub(crate) async fn next(&mut self) -> Option<ResultReservation> {
        self.0.recv().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn longest_request_and_its_result_fit_into_the_shares_of_a_principal() {
        // The settings demand that half of the memory holds the longest request and result.
        for (message, reply) in [
            (64 * MIB, 256 * MIB),
            (64 * MIB, 64 * MIB),
            (1 << 10, 1 << 10),
            (1 << 10, 1 << 32),
            (1 << 30, 1 << 32),
        ] {
            let total = 2 * (message + reply).div_ceil(MIB / 2) * (MIB / 2);
            let memory = Memory::new(total, message, reply);
            let principal = memory.of_principal();
            let mut body = memory.body_account(&principal).new_reservation();
            body.grow_to(2 * message + (16 << 10)).unwrap();
            let (results, mut taken) = memory.result_memory(&principal);
            assert!(results.try_take(reply), "{message} {reply}");
            assert!(taken.0.try_recv().is_ok());
            assert!(memory.body_bytes + memory.result_bytes <= total + HEADS);
        }
    }

    #[test]
    fn principals_leave_memory_to_others() {
        let memory = Memory::new(64 * MIB, MIB, MIB);
        let [first, second] = [memory.of_principal(), memory.of_principal()];
        let mut reservation = memory.body_account(&first).new_reservation();
        let most = (1..64).take_while(|mib| reservation.grow_to(mib * MIB).is_ok());
        let most = most.last().unwrap();
        assert!(most < memory.body_bytes / MIB && most > memory.body_bytes / MIB / 2);
        assert!(
            memory
                .body_account(&second)
                .new_reservation()
                .grow_to(MIB)
                .is_ok()
        );
    }

    #[tokio::test]
    async fn results_wait_until_earlier_ones_are_read() {
        let memory = Memory::new(10 * MIB, MIB, MIB);
        let principal = memory.of_principal();
        // Two connections of one principal.
        let (results, mut taken) = memory.result_memory(&principal);
        let (others, _taken) = memory.result_memory(&principal);
        let len = share(memory.result_bytes);
        assert!(results.try_take(len));
        assert!(!others.try_take(1));
        let mut waiting = Box::pin(others.take(1));
        tokio::select! {
            biased;
            () = &mut waiting => panic!("the memory is in use"),
            () = tokio::task::yield_now() => {}
        }
        // Another principal gets a result meanwhile.
        let other = memory.of_principal();
        assert!(memory.result_memory(&other).0.try_take(1));
        drop(taken.next().await);
        waiting.await;
    }

    #[tokio::test]
    async fn result_longer_than_the_share_waits_for_the_share_only() {
        let memory = Memory::new(MIB, MIB, MIB);
        let (results, _taken) = memory.result_memory(&memory.of_principal());
        results.take(64 * MIB).await;
        assert!(!results.try_take(1));
    }
}
