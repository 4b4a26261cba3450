//! Which thread runs a request.

use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, ThreadId};

use sealwire_schedule::{Coefficients, CostModel};
use sealwire_settings::Config;

use super::*;
use crate::jobs::slice_timer::testing::{standing, stepping};

const KIND: OperationKind = OperationKind::HASH_TOKENS;
/// The budget of a network thread in these tests. A request of one field costs 6 us, and each field
/// 1 us.
const BUDGET: Cost = Cost::from_nanos(30_000);

/// Work that says where each of its slices runs.
struct Probe {
    fields: u64,
    /// Needs no Diffie-Hellman.
    is_ready: bool,
    slices: u32,
    panics: bool,
    /// Holds its thread until something comes.
    holds: Option<mpsc::Receiver<()>>,
    ran_on: mpsc::Sender<ThreadId>,
}

impl Slices for Probe {
    fn kind(&self) -> OperationKind {
        KIND
    }

    fn work_size(&self) -> WorkSize {
        size(self.fields)
    }

    fn field_bytes(&self) -> u64 {
        0
    }

    fn has_started(&self) -> bool {
        false
    }

    fn needs_no_agreement(&mut self) -> bool {
        self.is_ready
    }

    fn slice(&mut self, _: &SliceBudget) -> Slice {
        self.ran_on.send(thread::current().id()).unwrap();
        if let Some(release) = self.holds.take() {
            release.recv().unwrap();
        }
        assert!(!self.panics, "on purpose");
        self.slices -= 1;
        Slice {
            done: size(self.fields),
            more: self.slices > 0,
        }
    }

    fn deliver(self: Box<Self>) {}
}

fn size(fields: u64) -> WorkSize {
    WorkSize {
        requests: 1,
        key_agreements: 0,
        fields,
        bytes: 0,
    }
}

fn scheduler() -> Scheduler {
    scheduler_of(1)
}

/// A scheduler of some crypto threads, whose costs do not depend on this machine.
fn scheduler_of(threads: u32) -> Scheduler {
    let threads = NonZeroU32::new(threads).unwrap();
    let each = Coefficients {
        request: 5_000.0,
        key_agreement: 50_000.0,
        field: 1_000.0,
        byte: 0.0,
    };
    let costs = Costs::new(|_| CostModel::new(each));
    let config = Config::defaults(Path::new("nowhere")).schedule;
    // No slice takes longer than predicted.
    Scheduler::start_with_clock(threads, &config, costs, Arc::new(|| false), standing)
}

fn permit(scheduler: &Scheduler, fields: u64) -> AdmissionPermit {
    let principal = Principal::from_text("relay").unwrap();
    let since = Instant::now();
    let offer = AdmissionRequest {
        principal: &principal,
        kind: KIND,
        work_size: size(fields),
        bytes: 0,
        since,
        deadline: None,
        has_body: true,
        has_waited: false,
    };
    scheduler
        .offer(&offer, &ConnectionMemory::new(1 << 20))
        .unwrap()
}

/// Runs work, inline if it may. Returns true if this thread ran its first slice.
fn run(permit: &mut AdmissionPermit, probe: Probe, ran_on: &mpsc::Receiver<ThreadId>) -> bool {
    if let Err(work) = permit.run_inline(Box::new(probe)) {
        permit.submit(work);
    }
    ran_on.recv().unwrap() == thread::current().id()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn network_thread_runs_small_ready_work_while_the_queue_is_empty() {
    let (ran, ran_on) = mpsc::channel();
    let probe = |fields, is_ready| Probe {
        fields,
        is_ready,
        slices: 1,
        panics: false,
        holds: None,
        ran_on: ran.clone(),
    };
    for (name, fields, is_ready, budget, inline) in [
        ("small", 1, true, BUDGET, true),
        ("needs a Diffie-Hellman", 1, false, BUDGET, false),
        ("as much as the budget", 25, true, BUDGET, true),
        ("more than the budget", 26, true, BUDGET, false),
        ("no budget", 1, true, Cost::default(), false),
    ] {
        // A new one each time, because slices correct the costs.
        let scheduler = scheduler();
        inline_budget::renew(budget);
        assert_eq!(
            run(
                &mut permit(&scheduler, fields),
                probe(fields, is_ready),
                &ran_on
            ),
            inline,
            "{name}"
        );
    }
    let scheduler = scheduler();
    inline_budget::renew(BUDGET);
    let mut permits = [(); 3].map(|()| permit(&scheduler, 10));
    let inline: Vec<bool> = permits
        .iter_mut()
        .map(|permit| run(permit, probe(10, true), &ran_on))
        .collect();
    assert_eq!(inline, [true, true, false], "15 us each of 30");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn queued_slices_run_before_helpers() {
    let scheduler = scheduler();
    let (ran, ran_on) = mpsc::channel();
    let probe = || Probe {
        fields: 1,
        is_ready: true,
        slices: 1,
        panics: false,
        holds: None,
        ran_on: ran.clone(),
    };
    let (release, holds) = mpsc::channel();
    let mut running = permit(&scheduler, 1);
    let mut queued = permit(&scheduler, 1);
    let mut late = permit(&scheduler, 1);
    running.submit(Box::new(Probe {
        holds: Some(holds),
        ..probe()
    }));
    let crypto = ran_on.recv().unwrap();
    inline_budget::renew(BUDGET);
    // A running slice is not queued.
    assert!(run(&mut permit(&scheduler, 1), probe(), &ran_on));
    queued.submit(Box::new(probe()));
    assert!(late.run_inline(Box::new(probe())).is_err_and(|work| {
        late.submit(work);
        true
    }));
    release.send(()).unwrap();
    assert_eq!(
        [ran_on.recv().unwrap(), ran_on.recv().unwrap()],
        [crypto; 2]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn work_that_is_not_done_continues_on_a_crypto_thread_and_a_panic_fails_only_its_own() {
    let scheduler = scheduler();
    let (ran, ran_on) = mpsc::channel();
    let probe = |slices, panics| Probe {
        fields: 1,
        is_ready: true,
        slices,
        panics,
        holds: None,
        ran_on: ran.clone(),
    };
    let network = thread::current().id();
    for (slices, panics) in [(3, false), (1, true), (2, false)] {
        inline_budget::renew(BUDGET);
        let mut permit = permit(&scheduler, 1);
        assert!(run(&mut permit, probe(slices, panics), &ran_on));
        for _ in 1..slices {
            assert_ne!(ran_on.recv().unwrap(), network);
        }
        drop(permit);
    }
    while scheduler.gauges().requests > 0 {
        thread::yield_now();
    }
    assert_eq!(scheduler.gauges().running, 0);
}

/// Key agreements that helpers had made for each slice of assisted work.
const AGREEMENTS_AHEAD: u64 = 4;

/// Work of two slices that offers help for the second, which does not begin before something comes.
struct Assisted {
    help: Arc<Help>,
    slices: u32,
    holds: mpsc::Receiver<()>,
    events: mpsc::Sender<&'static str>,
}

impl Slices for Assisted {
    fn kind(&self) -> OperationKind {
        KIND
    }

    fn work_size(&self) -> WorkSize {
        size(1)
    }

    fn field_bytes(&self) -> u64 {
        0
    }

    fn has_started(&self) -> bool {
        self.slices < 2
    }

    fn slice(&mut self, _: &SliceBudget) -> Slice {
        self.slices -= 1;
        if self.slices == 0 {
            self.holds.recv().unwrap();
        }
        Slice {
            done: size(1),
            more: self.slices > 0,
        }
    }

    fn help(&mut self) -> Option<Weak<dyn RequestHelp>> {
        let help: Weak<Help> = Arc::downgrade(&self.help);
        Some(help)
    }

    fn take_agreements_ahead(&mut self) -> u64 {
        AGREEMENTS_AHEAD
    }

    fn deliver(self: Box<Self>) {
        self.help.has_ended.store(true, Ordering::Relaxed);
        self.events.send("delivered").unwrap();
    }
}

/// Steps that each wait for their outcome: `None` panics.
struct Help {
    outcomes: Mutex<mpsc::Receiver<Option<HelpStep>>>,
    events: mpsc::Sender<&'static str>,
    has_ended: AtomicBool,
}

impl RequestHelp for Help {
    fn step(&self) -> HelpStep {
        if self.has_ended.load(Ordering::Relaxed) {
            return HelpStep::Nothing;
        }
        self.events.send("step").unwrap();
        let outcome = self.outcomes.lock().unwrap().recv().unwrap();
        outcome.expect("on purpose")
    }
}

/// Two crypto threads, of which one holds assisted work and the other is in the first step of its
/// help.
struct Assistance {
    scheduler: Scheduler,
    _permit: AdmissionPermit,
    release: mpsc::Sender<()>,
    outcomes: mpsc::Sender<Option<HelpStep>>,
    events: mpsc::Receiver<&'static str>,
    sender: mpsc::Sender<&'static str>,
}

/// Fields of the assisted work: 1 us each, and 5 us for the request.
const FIELDS: u64 = 1_000;

impl Assistance {
    fn start() -> Self {
        let scheduler = scheduler_of(2);
        while scheduler.0.0.lock().idle < 2 {
            thread::yield_now();
        }
        let (sender, events) = mpsc::channel();
        let (outcomes, steps) = mpsc::channel();
        let (release, holds) = mpsc::channel();
        let help = Arc::new(Help {
            outcomes: Mutex::new(steps),
            events: sender.clone(),
            has_ended: AtomicBool::new(false),
        });
        let mut permit = permit(&scheduler, FIELDS);
        permit.submit(Box::new(Assisted {
            help,
            slices: 2,
            holds,
            events: sender.clone(),
        }));
        assert_eq!(events.recv().unwrap(), "step");
        Self {
            scheduler,
            _permit: permit,
            release,
            outcomes,
            events,
            sender,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_idle_thread_helps_until_there_is_nothing_to_do() {
    let it = Assistance::start();
    for _ in 0..3 {
        it.outcomes.send(Some(HelpStep::Done)).unwrap();
        assert_eq!(it.events.recv().unwrap(), "step");
    }
    it.outcomes.send(Some(HelpStep::Nothing)).unwrap();
    while !it.scheduler.0.0.lock().help_offers.is_empty() {
        thread::yield_now();
    }
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_tenant_pays_for_agreements_that_helpers_made() {
    let it = Assistance::start();
    let left: u64 = it.scheduler.gauges().backlog.iter().sum();
    // The first slice did one field, and used four agreements of 50 us.
    assert_eq!(
        left,
        5_000 + FIELDS * 1_000 - 6_000 - AGREEMENTS_AHEAD * 50_000
    );
    it.outcomes.send(Some(HelpStep::Nothing)).unwrap();
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn help_that_panics_ends_and_the_request_does_not() {
    let it = Assistance::start();
    it.outcomes.send(None).unwrap();
    while !it.scheduler.0.0.lock().help_offers.is_empty() {
        thread::yield_now();
    }
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_queued_slice_goes_before_help() {
    struct Queued(mpsc::Sender<&'static str>);
    impl Slices for Queued {
        fn kind(&self) -> OperationKind {
            KIND
        }
        fn work_size(&self) -> WorkSize {
            size(1)
        }
        fn field_bytes(&self) -> u64 {
            0
        }
        fn has_started(&self) -> bool {
            false
        }
        fn slice(&mut self, _: &SliceBudget) -> Slice {
            self.0.send("slice").unwrap();
            Slice {
                done: size(1),
                more: false,
            }
        }
        fn deliver(self: Box<Self>) {}
    }
    let it = Assistance::start();
    let mut queued = permit(&it.scheduler, 1);
    queued.submit(Box::new(Queued(it.sender.clone())));
    it.outcomes.send(Some(HelpStep::Done)).unwrap();
    assert_eq!(
        [it.events.recv().unwrap(), it.events.recv().unwrap()],
        ["slice", "step"]
    );
    it.outcomes.send(Some(HelpStep::Nothing)).unwrap();
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn help_ends_with_its_request() {
    let it = Assistance::start();
    it.release.send(()).unwrap();
    assert_eq!(it.events.recv().unwrap(), "delivered");
    // The step under way is the last one.
    it.outcomes.send(Some(HelpStep::Done)).unwrap();
    while !it.scheduler.0.0.lock().help_offers.is_empty() {
        thread::yield_now();
    }
    assert!(it.events.try_recv().is_err());
}

/// Work of steps of 10 us by the tests' clock. Only the time ends its slices.
struct Stepping {
    left: u32,
    ran: mpsc::Sender<(ThreadId, u32)>,
}

impl Slices for Stepping {
    fn kind(&self) -> OperationKind {
        KIND
    }

    fn work_size(&self) -> WorkSize {
        size(1)
    }

    fn field_bytes(&self) -> u64 {
        0
    }

    fn has_started(&self) -> bool {
        false
    }

    fn needs_no_agreement(&mut self) -> bool {
        true
    }

    fn slice(&mut self, budget: &SliceBudget) -> Slice {
        let before = self.left;
        while self.left > 0 {
            self.left -= 1;
            if budget.timer.is_over() {
                break;
            }
        }
        self.ran
            .send((thread::current().id(), before - self.left))
            .unwrap();
        Slice {
            done: size(1),
            more: self.left > 0,
        }
    }

    fn deliver(self: Box<Self>) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_slice_ends_by_time_and_on_a_network_thread_with_its_budget() {
    let each = Coefficients {
        request: 5_000.0,
        key_agreement: 50_000.0,
        field: 1_000.0,
        byte: 0.0,
    };
    let costs = Costs::new(|_| CostModel::new(each));
    let config = Config::defaults(Path::new("nowhere")).schedule;
    let threads = NonZeroU32::new(1).unwrap();
    let spare: IdleTask = Arc::new(|| false);
    let scheduler = Scheduler::start_with_clock(threads, &config, costs, spare, stepping);
    let network = thread::current().id();
    let (ran, ran_on) = mpsc::channel();
    // Modelled as 6 us, it takes 1,000 us.
    inline_budget::renew(BUDGET);
    let mut permit = permit(&scheduler, 1);
    assert!(
        permit
            .run_inline(Box::new(Stepping { left: 100, ran }))
            .is_ok()
    );
    let mut slices = Vec::new();
    while slices.iter().map(|(_, steps)| steps).sum::<u32>() < 100 {
        slices.push(ran_on.recv().unwrap());
    }
    assert_eq!(slices[0], (network, 3), "30 us on the network thread");
    for (thread, steps) in &slices[1..] {
        // A slice of a request that was estimated too low is whole or a half.
        assert!(*thread != network && *steps <= 10, "{slices:?}");
    }
}

/// A scheduler's state without threads.
fn state() -> SchedulerState {
    let each = Coefficients {
        request: 5_000.0,
        key_agreement: 50_000.0,
        field: 1_000.0,
        byte: 0.0,
    };
    SchedulerState {
        core: Core::new(SchedulerOptions::new(NonZeroU32::new(2).unwrap())),
        costs: Costs::new(|_| CostModel::new(each)),
        corrections: Corrections::new(CORRECTED_MAX),
        help_offers: VecDeque::new(),
        idle: 0,
        closed: false,
    }
}

/// Runs a request of a principal that takes so much time, beside the model's 6 us.
fn take(
    state: &mut SchedulerState,
    principal: &Principal,
    now: &mut u64,
    micros: u64,
    is_measured: bool,
) {
    let cost = state.estimate(principal, KIND, size(1)).total;
    let time = Time::from_nanos(*now);
    let request = OfferedRequest {
        tenant: principal,
        weight: 1,
        cost,
        bytes: 0,
        since: time,
        deadline: Time::NEVER,
        has_body: true,
        has_waited: false,
    };
    let decision = state.core.offer(time, &request, || oneshot::channel().0);
    let AdmissionDecision::Admitted { id, .. } = decision else {
        panic!("{decision:?}")
    };
    let (ran_on, _) = mpsc::channel();
    let work = Probe {
        fields: 1,
        is_ready: true,
        slices: 1,
        panics: false,
        holds: None,
        ran_on,
    };
    assert!(state.core.submit(id, cost, Box::new(work)).is_ok());
    let taken = state.take_slice(time).unwrap();
    let passed = Duration::from_micros(micros);
    let took = Duration::from_micros(micros);
    *now += micros * 1_000;
    let result = SliceResult {
        id,
        kind: KIND,
        done: size(1),
        passed,
        took: (is_measured || taken.is_watched).then_some(took),
        is_sample: is_measured,
        unfinished: None,
        ended: None,
        agreements_ahead: 0,
        help: None,
    };
    state.finish_slice(Time::from_nanos(*now), result);
    state.core.close(Time::from_nanos(*now), id);
}

#[test]
fn time_beyond_the_model_corrects_its_principal_and_nobody_else() {
    let [dear, other] = ["dear", "other"].map(|name| Principal::from_text(name).unwrap());
    for is_measured in [true, false] {
        let mut state = state();
        let mut now = 0;
        for _ in 0..200 {
            take(&mut state, &dear, &mut now, 1_500, is_measured);
            take(&mut state, &other, &mut now, 6, true);
        }
        let estimate = |principal| {
            state
                .estimate(principal, KIND, size(1))
                .first_walk
                .as_nanos()
        };
        let of_dear = estimate(&dear);
        let of_other = estimate(&other);
        assert!(of_dear > 60 * 6_000, "{of_dear}");
        // The shared model learned nothing of it.
        assert!((5_500..=6_500).contains(&of_other), "{of_other}");
        let speed = state.core.gauges().speed;
        assert!(
            (0.8..=1.2).contains(&speed),
            "the workers are no slower: {speed}"
        );
        assert_eq!(
            state
                .estimate(&dear, OperationKind::OPEN_OBJECTS, size(1))
                .total
                .as_nanos(),
            6_000
        );
    }
}

#[test]
fn the_model_follows_most_principals_and_never_one() {
    let names = ["a", "b", "c", "d"].map(|name| Principal::from_text(name).unwrap());
    // A request of one field is estimated at 6 us. Long work is 32 us or more.
    for (name, micros, expected) in [
        (
            "all take four times as long",
            [50, 50, 50, 50],
            20_000..=24_000,
        ),
        ("one is dear", [6, 6, 6, 1_500], 5_900..=6_100),
        (
            "one is dear, but its slices are not long",
            [6, 6, 6, 11],
            5_900..=6_100,
        ),
        ("one is cheap", [6, 6, 6, 1], 5_900..=6_100),
        ("all are cheap", [3, 3, 3, 3], 3_000..=3_300),
    ] {
        let mut state = state();
        let mut now = 0;
        for _ in 0..500 {
            for (principal, micros) in names.iter().zip(micros) {
                take(&mut state, principal, &mut now, micros, true);
            }
        }
        let modelled = state.costs.estimate(KIND, size(1)).as_nanos();
        assert!(expected.contains(&modelled), "{name}: {modelled}");
    }
}
