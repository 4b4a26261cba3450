//! Work that occupies crypto threads until a test releases it, so that no test depends on the speed
//! of real work.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use sealwire_access::Principal;
use sealwire_engine::engine::Engine;
use sealwire_engine::jobs::connection_memory::ConnectionMemory;
use sealwire_engine::jobs::cost::{OperationKind, SliceBudget};
use sealwire_engine::jobs::job::{Slice, Slices};
use sealwire_engine::jobs::scheduler::{AdmissionPermit, AdmissionRequest};
use sealwire_schedule::WorkSize;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Occupies every crypto thread until dropped. Requests that arrive meanwhile wait in the
/// scheduler.
pub(crate) struct CryptoHold {
    engine: Arc<Engine>,
    blocked: Vec<Blocked>,
}

/// One held thread. The thread continues when the sender is dropped.
struct Blocked {
    _place: AdmissionPermit,
    _release: mpsc::Sender<()>,
}

impl CryptoHold {
    /// Returns when each of `threads` threads is held.
    pub(crate) async fn start(engine: &Arc<Engine>, threads: usize) -> Self {
        let mut blocked = Vec::new();
        for _ in 0..threads {
            let (thread, started) = block(engine);
            started.await.unwrap();
            blocked.push(thread);
        }
        Self {
            engine: Arc::clone(engine),
            blocked,
        }
    }

    /// Keeps a slice queued while the threads are held, so that network threads run no work
    /// themselves.
    pub(crate) fn keep_queue(&mut self) {
        let (thread, _) = block(&self.engine);
        self.blocked.push(thread);
    }

    /// Lets the only crypto thread run one slice of a waiting large request, then holds the thread
    /// again.
    ///
    /// The request must be from a client named `relay`. Small work precedes large work, and one
    /// pick in 16 goes to the oldest request. So this function hands the thread from one blocker to
    /// the next until that pick has come.
    pub(crate) async fn run_one_slice(&mut self) {
        let before = self.large_work_left();
        assert!(before > 0, "no large request waits");
        while self.large_work_left() >= before {
            let (thread, started) = block(&self.engine);
            self.blocked.clear();
            started.await.unwrap();
            self.blocked.push(thread);
        }
    }

    /// Returns the nanoseconds of admitted work in all size classes except the smallest, which the
    /// blockers belong to.
    fn large_work_left(&self) -> u64 {
        self.engine.scheduler.gauges().backlog[1..].iter().sum()
    }
}

struct Blocker {
    started: Option<oneshot::Sender<()>>,
    release: mpsc::Receiver<()>,
}

impl Slices for Blocker {
    fn kind(&self) -> OperationKind {
        OperationKind::HASH_TOKENS
    }

    fn work_size(&self) -> WorkSize {
        WorkSize::default()
    }

    fn field_bytes(&self) -> u64 {
        0
    }

    fn has_started(&self) -> bool {
        true
    }

    fn slice(&mut self, _: &SliceBudget) -> Slice {
        if let Some(started) = self.started.take() {
            let _ = started.send(());
        }
        // An error means that the hold was dropped.
        let _ = self.release.recv();
        Slice {
            done: WorkSize::default(),
            more: false,
        }
    }

    fn deliver(self: Box<Self>) {}
}

fn block(engine: &Engine) -> (Blocked, oneshot::Receiver<()>) {
    let mut place = offer(engine, WorkSize::default());
    assert!(!place.is_waiting(), "a blocker has to wait for admission");
    let ((start, started), (release, released)) = (oneshot::channel(), mpsc::channel());
    place.submit(Box::new(Blocker {
        started: Some(start),
        release: released,
    }));
    (
        Blocked {
            _place: place,
            _release: release,
        },
        started,
    )
}

/// Admits work under the principal of the harness's clients.
fn offer(engine: &Engine, work_size: WorkSize) -> AdmissionPermit {
    let principal = Principal::from_text("relay").unwrap();
    let since = std::time::Instant::now();
    let offer = AdmissionRequest {
        principal: &principal,
        kind: OperationKind::HASH_TOKENS,
        work_size,
        bytes: 0,
        since,
        deadline: None,
        has_body: true,
        has_waited: false,
    };
    engine
        .scheduler
        .offer(&offer, &ConnectionMemory::new(usize::MAX))
        .unwrap()
}

/// Requests of the largest size class that occupy crypto threads with slices until dropped.
pub(crate) struct EndlessWork {
    stop: Arc<AtomicBool>,
    slices: Arc<AtomicU64>,
    _requests: JoinSet<()>,
}

impl EndlessWork {
    /// Starts the requests, and returns when `running` slices run at once.
    pub(crate) async fn start(engine: &Arc<Engine>, requests: usize, running: u32) -> Self {
        let (stop, slices, mut tasks) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicU64>::default(),
            JoinSet::new(),
        );
        for _ in 0..requests {
            let mut place = offer(engine, Spinning::WORK_SIZE);
            let work = Spinning {
                stop: Arc::clone(&stop),
                slices: Arc::clone(&slices),
            };
            tasks.spawn(async move {
                place.wait_until_admitted().await;
                place.submit(Box::new(work));
                pending::<()>().await;
            });
        }
        while slices.load(Ordering::Relaxed) == 0 || engine.scheduler.gauges().running < running {
            sleep(Duration::from_millis(1)).await;
        }
        Self {
            stop,
            slices,
            _requests: tasks,
        }
    }

    /// Returns the number of slices run so far.
    pub(crate) fn slices(&self) -> u64 {
        self.slices.load(Ordering::Relaxed)
    }
}

impl Drop for EndlessWork {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Spinning {
    stop: Arc<AtomicBool>,
    slices: Arc<AtomicU64>,
}

impl Spinning {
    /// Work of at least an hour by any estimate.
    const WORK_SIZE: WorkSize = WorkSize {
        requests: 1,
        key_agreements: 0,
        fields: 1 << 48,
        bytes: 0,
    };
}

impl Slices for Spinning {
    fn kind(&self) -> OperationKind {
        OperationKind::HASH_TOKENS
    }

    fn work_size(&self) -> WorkSize {
        Self::WORK_SIZE
    }

    fn field_bytes(&self) -> u64 {
        16
    }

    fn has_started(&self) -> bool {
        self.slices.load(Ordering::Relaxed) > 0
    }

    fn slice(&mut self, allowance: &SliceBudget) -> Slice {
        for _ in 0..20_000 {
            std::hint::spin_loop();
        }
        self.slices.fetch_add(1, Ordering::Relaxed);
        let done = WorkSize {
            fields: allowance.fields as u64,
            ..WorkSize::default()
        };
        Slice {
            done,
            more: !self.stop.load(Ordering::Relaxed),
        }
    }

    fn deliver(self: Box<Self>) {}
}
