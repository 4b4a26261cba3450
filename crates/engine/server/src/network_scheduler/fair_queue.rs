//! Deficit round robin (Shreedhar and Varghese, 1995) among principals over the time of network
//! threads.
//!
//! This module only does the accounting. It uses no clock, threads or wakers, so that tests
//! simulate exactly the code that production runs. The caller chooses the type of a task: see
//! [`FairQueue::begin_round`].
//!
//! In each round, the tasks of a flow can use [`QUANTUM`] per network thread. A flow that has used
//! more must skip rounds until its excess is repaid. Unused credit is lost, so an idle flow cannot
//! save credit for a burst.

use std::collections::VecDeque;
use std::time::Duration;

/// Time per network thread that the tasks of one principal can use in a round. A round also polls
/// the sockets once, which takes about 1 us. A request of another principal waits for at most this
/// time and one unit of work, which can be longer: see [`CHARGE_MAX`].
pub(super) const QUANTUM: Duration = Duration::from_micros(50);
/// Maximum charge for one unit of work. A longer time usually means that the system suspended the
/// thread.
///
/// Few units really take longer, since loops yield. Exceptions move or free tens of MiB at once: a
/// growing buffer of a long message, or a response whose connection ends. Other principals wait for
/// the whole unit, but only this much is charged.
const CHARGE_MAX: Duration = Duration::from_millis(2);

/// Identifies a flow. Valid until [`FairQueue::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowId(usize);

/// A task that may run now.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Granted<T> {
    /// The task.
    pub(super) task: T,
    /// Network time for which other tasks of the same principal delayed the task: see
    /// [`FairQueue::charge`].
    pub(super) delay: Duration,
}

/// Tasks that wait for network time, by flow.
#[derive(Debug)]
pub(super) struct FairQueue<T> {
    flows: Vec<FlowState<T>>,
    free: Vec<usize>,
    /// Flows in the order in which rounds serve them. The list contains every flow with queued
    /// tasks. A flow whose queue became empty stays until the next round removes it, so that no
    /// search is needed.
    listed: VecDeque<usize>,
    /// Number of flows with queued tasks.
    waiting: usize,
    round: u64,
    /// Nanoseconds used by all flows.
    used: u64,
    threads: usize,
}

#[derive(Debug)]
struct FlowState<T> {
    /// Nanoseconds that the flow can still use in this round. A negative value is its excess.
    credit: i64,
    /// The last round that gave credit.
    refilled: u64,
    /// Nanoseconds used by the flow's tasks.
    used: u64,
    /// Queued tasks, each with `used` at the time when it was queued.
    queue: VecDeque<(T, u64)>,
    /// True if the flow is in [`FairQueue::listed`].
    is_listed: bool,
}

impl<T> FairQueue<T> {
    /// Creates a queue for `threads` network threads.
    pub(super) fn new(threads: usize) -> Self {
        Self {
            flows: Vec::new(),
            free: Vec::new(),
            listed: VecDeque::new(),
            waiting: 0,
            round: 0,
            used: 0,
            threads: threads.max(1),
        }
    }

    /// Adds a flow with the credit of one round.
    pub(super) fn add(&mut self) -> FlowId {
        let index = self.free.pop().unwrap_or(self.flows.len());
        let credit = self.quantum();
        let refilled = self.round;
        let queue = VecDeque::new();
        let is_listed = self.flows.get(index).is_some_and(|free| free.is_listed);
        let flow = FlowState {
            credit,
            refilled,
            used: 0,
            queue,
            is_listed,
        };

        match self.flows.get_mut(index) {
            Some(free) => *free = flow,
            None => self.flows.push(flow),
        }
        FlowId(index)
    }

    /// Removes a flow that has no tasks.
    pub(super) fn remove(&mut self, id: FlowId) {
        let queue = std::mem::take(&mut self.flows[id.0].queue);
        self.waiting -= usize::from(!queue.is_empty());
        self.free.push(id.0);
    }

    /// Returns true if a task of the flow can run now without being queued. This requires that the
    /// flow has credit and no queued task.
    pub(super) fn may_run(&mut self, id: FlowId) -> bool {
        let round = self.round;
        let quantum = self.quantum();
        let flow = &mut self.flows[id.0];
        flow.refill(round, quantum);
        flow.credit > 0 && flow.queue.is_empty()
    }

    /// Queues a task. The caller must ensure that a round starts soon.
    pub(super) fn push(&mut self, id: FlowId, task: T) {
        let flow = &mut self.flows[id.0];
        self.waiting += usize::from(flow.queue.is_empty());
        if !std::mem::replace(&mut flow.is_listed, true) {
            self.listed.push_back(id.0);
        }
        flow.queue.push_back((task, flow.used));
    }

    /// Removes a queued task that is no longer needed.
    pub(super) fn withdraw(&mut self, id: FlowId, is_withdrawn: impl Fn(&T) -> bool) {
        let queue = &mut self.flows[id.0].queue;
        let Some(at) = queue.iter().position(|(task, _)| is_withdrawn(task)) else {
            return;
        };
        queue.remove(at);
        self.waiting -= usize::from(queue.is_empty());
    }

    /// Charges a flow for a unit of work that took `time`. Returns the flow's next task if the flow
    /// still has credit.
    ///
    /// The delay of that task is the network time that its flow used since the task was queued,
    /// times the number of flows with queued tasks. A suspended thread or a flood of another
    /// principal therefore adds little to the delay.
    pub(super) fn charge(&mut self, id: FlowId, time: Duration) -> Option<Granted<T>> {
        let round = self.round;
        let quantum = self.quantum();
        let nanos = time.min(CHARGE_MAX).as_nanos() as u64;
        let flow = &mut self.flows[id.0];
        flow.used += nanos;
        self.used += nanos;
        flow.credit = flow.credit.saturating_sub_unsigned(nanos);
        flow.refill(round, quantum);
        if flow.credit > 0 {
            self.pop(id.0)
        } else {
            None
        }
    }

    /// Starts a round. Gives every waiting flow credit, and grants each flow with credit one task
    /// per network thread. [`FairQueue::charge`] grants the other tasks. Returns true if tasks
    /// remain queued, so that another round must follow.
    pub(super) fn begin_round(&mut self, mut grant: impl FnMut(Granted<T>)) -> bool {
        self.round += 1;
        let round = self.round;
        let quantum = self.quantum();
        for _ in 0..self.listed.len() {
            let Some(index) = self.listed.pop_front() else {
                break;
            };
            let flow = &mut self.flows[index];
            flow.refill(round, quantum);
            let tasks = if flow.credit > 0 { self.threads } else { 0 };
            for _ in 0..tasks {
                let Some(granted) = self.pop(index) else {
                    break;
                };
                grant(granted);
            }
            let flow = &mut self.flows[index];
            flow.is_listed = !flow.queue.is_empty();
            if flow.is_listed {
                self.listed.push_back(index);
            }
        }
        self.waiting > 0
    }

    /// Starts a round because a thread was idle.
    pub(super) fn thread_woke(&mut self) {
        self.round += 1;
    }

    /// Returns the time used by a flow, and the time used by all others.
    pub(super) fn used(&self, id: FlowId) -> [Duration; 2] {
        let own = self.flows[id.0].used;
        [own, self.used - own].map(Duration::from_nanos)
    }

    fn pop(&mut self, index: usize) -> Option<Granted<T>> {
        let waiting = self.waiting as u64;
        let flow = &mut self.flows[index];
        let (task, used) = flow.queue.pop_front()?;
        let delay = Duration::from_nanos((flow.used - used).saturating_mul(waiting));
        self.waiting -= usize::from(flow.queue.is_empty());
        Some(Granted { task, delay })
    }

    fn quantum(&self) -> i64 {
        QUANTUM.as_nanos() as i64 * self.threads as i64
    }
}

impl<T> FlowState<T> {
    /// Adds the credit of the rounds since the last refill, up to the credit of one round.
    fn refill(&mut self, round: u64, quantum: i64) {
        let rounds = i64::try_from(round - self.refilled).unwrap_or(i64::MAX);
        self.refilled = round;
        self.credit = self
            .credit
            .saturating_add(quantum.saturating_mul(rounds))
            .min(quantum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// A task of a simulation: the flow's position in the list, and the connection.
    type Task = (usize, usize);

    /// A network thread and its principals. Each connection of a principal always has more to do,
    /// in units of a fixed time. The run queue is that of tokio: first in, first out.
    struct Simulation {
        queue: FairQueue<Task>,
        flows: Vec<(FlowId, Duration)>,
        ready: VecDeque<Task>,
        /// Tasks that have yielded, for the next round.
        yielded: Vec<Task>,
        granted: Vec<Task>,
        /// Units and time of each principal.
        done: Vec<(u64, Duration)>,
        /// Time that others used between two units of a principal, at most.
        gap: Vec<Duration>,
        gap_max: Vec<Duration>,
    }

    impl Simulation {
        /// `principals`: number of connections, and the time of a unit of their work.
        fn new(principals: &[(usize, Duration)]) -> Self {
            let mut queue = FairQueue::new(1);
            let flows = principals
                .iter()
                .map(|(_, unit)| (queue.add(), *unit))
                .collect();
            let ready = principals.iter().enumerate();
            let ready = ready
                .flat_map(|(at, (count, _))| (0..*count).map(move |connection| (at, connection)));
            let zero = vec![Duration::ZERO; principals.len()];
            Self {
                queue,
                flows,
                ready: ready.collect(),
                yielded: Vec::new(),
                granted: Vec::new(),
                done: vec![(0, Duration::ZERO); principals.len()],
                gap: zero.clone(),
                gap_max: zero,
            }
        }

        fn work(&mut self, task: Task) {
            let (flow, unit) = self.flows[task.0];
            self.done[task.0].0 += 1;
            self.done[task.0].1 += unit;
            for (other, gap) in self.gap.iter_mut().enumerate() {
                *gap = if other == task.0 {
                    Duration::ZERO
                } else {
                    *gap + unit
                };
                self.gap_max[other] = self.gap_max[other].max(*gap);
            }
            if let Some(next) = self.queue.charge(flow, unit) {
                self.granted.push(next.task);
                self.ready.push_front(next.task);
            }
            self.yielded.push(task);
        }

        /// Polls all ready tasks, then begins a round.
        fn round(&mut self) {
            while let Some(task) = self.ready.pop_front() {
                let flow = self.flows[task.0].0;
                if let Some(at) = self.granted.iter().position(|granted| *granted == task) {
                    self.granted.swap_remove(at);
                    self.work(task);
                } else if self.queue.may_run(flow) {
                    self.work(task);
                } else {
                    self.queue.push(flow, task);
                }
            }
            self.ready.extend(self.yielded.drain(..));
            let granted = &mut self.granted;
            let ready = &mut self.ready;
            self.queue.begin_round(|next| {
                granted.push(next.task);
                ready.push_back(next.task);
            });
        }
    }

    #[test]
    fn time_is_shared_by_principal_whatever_its_connections_and_units() {
        for (name, flood) in [
            ("one connection", (1, us(50))),
            ("a hundred connections", (100, us(50))),
            ("small units", (100, us(1))),
            ("large units", (10, us(500))),
        ] {
            for neighbour in [us(5), us(50), us(120)] {
                let mut simulation = Simulation::new(&[flood, (1, neighbour)]);
                for _ in 0..10_000 {
                    simulation.round();
                }
                let [hostile, other] = [0, 1].map(|at| simulation.done[at].1.as_secs_f64());
                // One connection can do no more than a unit per round.
                let share = other / (hostile + other);
                let possible = neighbour.min(QUANTUM).as_secs_f64() / QUANTUM.as_secs_f64();
                assert!(share >= 0.45 * possible, "{name}, {neighbour:?}: {share}");
                // The rest of one round, and one round for each share that the neighbour's own unit
                // takes.
                let rounds = 1 + neighbour.as_micros().div_ceil(QUANTUM.as_micros()) as u32;
                assert!(
                    simulation.gap_max[1] <= rounds * (QUANTUM + flood.1),
                    "{name}, {neighbour:?}: {:?}",
                    simulation.gap_max
                );
            }
        }
    }

    #[test]
    fn connections_of_one_principal_share_evenly() {
        let mut simulation = Simulation::new(&[(100, us(20)), (1, us(20))]);
        for _ in 0..1_000 {
            simulation.round();
        }
        assert_eq!(
            simulation.done[1].0, 1_000,
            "each round serves the neighbour"
        );
        let units = simulation.done[0].0;
        assert!((2_000..=3_100).contains(&units), "{units}");
    }

    #[test]
    fn a_principal_alone_uses_all_time() {
        let mut queue = FairQueue::new(1);
        let flow = queue.add();
        let mut rounds = 0;
        for _ in 0..1_000 {
            while !queue.may_run(flow) {
                rounds += 1;
                queue.begin_round(|_: Granted<Task>| ());
            }
            queue.charge(flow, us(10));
        }
        assert_eq!(rounds, 199, "one round for each 50 us and no more");
    }

    #[test]
    fn credit_is_not_saved() {
        let mut queue = FairQueue::<Task>::new(1);
        let flow = queue.add();
        for _ in 0..1_000 {
            queue.begin_round(|_: Granted<Task>| ());
        }
        let mut units = 0;
        while queue.may_run(flow) {
            queue.charge(flow, us(10));
            units += 1;
        }
        assert_eq!(units, 5);
    }

    #[test]
    fn excess_is_repaid_by_rounds_and_a_suspension_is_not_charged_in_full() {
        for (took, rounds) in [
            (us(50), 1),
            (us(99), 1),
            (us(100), 2),
            (us(500), 10),
            (Duration::from_secs(9), 40),
        ] {
            let mut queue = FairQueue::<Task>::new(1);
            let flow = queue.add();
            assert!(queue.may_run(flow));
            queue.charge(flow, took);
            queue.push(flow, (0, 0));
            let mut rounds_started = 0;
            let mut granted = 0;
            while granted == 0 {
                queue.begin_round(|_| granted += 1);
                rounds_started += 1;
            }
            assert_eq!(rounds_started, rounds, "{took:?}");
        }
    }

    #[test]
    fn delay_counts_the_time_that_the_principal_itself_used() {
        let mut queue = FairQueue::<Task>::new(1);
        let [hostile, other] = [queue.add(), queue.add()];
        queue.charge(hostile, us(60));
        queue.charge(other, us(60));
        (0..10).for_each(|connection| queue.push(hostile, (0, connection)));
        queue.push(other, (1, 0));
        let mut delays = [Vec::new(), Vec::new()];
        loop {
            let mut granted = Vec::new();
            let more = queue.begin_round(|next| granted.push(next));
            for next in granted {
                delays[next.task.0].push(next.delay);
                queue.charge(if next.task.0 == 0 { hostile } else { other }, us(60));
            }
            if !more {
                break;
            }
        }
        assert_eq!(delays[1], [Duration::ZERO], "its own time alone counts");
        assert_eq!(delays[0].len(), 10);
        assert_eq!(delays[0].last(), Some(&us(9 * 60)), "nine units before it");
    }

    #[test]
    fn withdrawn_tasks_are_not_granted() {
        let mut queue = FairQueue::<Task>::new(1);
        let flow = queue.add();
        queue.charge(flow, us(60));
        (0..3).for_each(|connection| queue.push(flow, (0, connection)));
        [0, 2, 7]
            .iter()
            .for_each(|withdrawn| queue.withdraw(flow, |task| task.1 == *withdrawn));
        let mut granted = Vec::new();
        for _ in 0..5 {
            queue.begin_round(|next| granted.push(next.task));
        }
        assert_eq!(granted, [(0, 1)]);
        queue.push(flow, (0, 3));
        queue.remove(flow);
        assert!(!queue.begin_round(|_| panic!("removed")));
        assert_eq!(queue.add(), flow, "identifiers are used again");
        // Of a flow that was served, emptied or removed while it was listed, the next tasks are
        // granted once each.
        queue.charge(flow, us(60));
        queue.push(flow, (0, 4));
        queue.withdraw(flow, |_| true);
        queue.push(flow, (0, 5));
        queue.remove(flow);
        assert_eq!(queue.add(), flow);
        queue.charge(flow, us(60));
        queue.push(flow, (0, 6));
        let mut granted = Vec::new();
        while queue.begin_round(|next| granted.push(next.task)) {}
        assert_eq!(
            (granted, queue.waiting, queue.listed.len()),
            (vec![(0, 6)], 0, 0)
        );
    }

    #[test]
    fn network_threads_get_a_task_each() {
        let mut queue = FairQueue::<Task>::new(4);
        let flow = queue.add();
        queue.charge(flow, us(200));
        (0..10).for_each(|connection| queue.push(flow, (0, connection)));
        let mut granted = 0;
        queue.begin_round(|_| granted += 1);
        assert_eq!(granted, 4);
        assert!(
            queue.charge(flow, us(10)).is_some(),
            "and the next when it is done"
        );
        let other = queue.add();
        queue.charge(other, us(3));
        assert_eq!(
            (queue.used(flow), queue.used(other)),
            ([us(210), us(3)], [us(3), us(210)])
        );
    }
}
