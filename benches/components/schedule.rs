//! `sealwire-schedule`: the workers' operations under the lock, and the overhead of a request.

use std::num::NonZeroU32;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use sealwire_schedule::{
    AdmissionDecision, Core, Cost, OfferedRequest, SchedulerOptions, Slice, Time,
};

/// Numbers of tenants, and of requests of each tenant.
const LOADS: [(u32, u32); 3] = [(1, 1), (20, 10), (1_000, 3)];
const SLICE: Cost = Cost::from_nanos(50_000);

pub(crate) fn benches(criterion: &mut Criterion) {
    slices(criterion);
    calls(criterion);
}

fn core() -> Core<u32, (), u32> {
    Core::new(SchedulerOptions {
        wait_max: Duration::MAX,
        ..SchedulerOptions::new(NonZeroU32::MIN.saturating_add(1))
    })
}

fn begin(core: &mut Core<u32, (), u32>, now: Time, tenant: u32, cost: Cost) {
    let (since, deadline) = (Time::default(), Time::NEVER);
    let call = OfferedRequest {
        tenant: &tenant,
        weight: 1,
        cost,
        bytes: 0,
        since,
        deadline,
        has_body: true,
        has_waited: false,
    };
    let AdmissionDecision::Admitted { id, .. } = core.offer(now, &call, || ()) else {
        panic!("nothing holds it back")
    };
    core.submit(id, cost, tenant).expect("just admitted");
}

/// Makes a scheduler in which each tenant has requests of one hour each.
fn loaded(tenants: u32, calls: u32) -> Core<u32, (), u32> {
    let mut core = core();
    for tenant in (0..tenants).flat_map(|tenant| std::iter::repeat_n(tenant, calls as usize)) {
        begin(
            &mut core,
            Time::default(),
            tenant,
            Cost::from_nanos(3_600_000_000_000),
        );
    }
    core
}

/// Measures picking a slice and finishing it.
fn slices(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule/slice");
    for (tenants, calls) in LOADS {
        group.bench_function(
            BenchmarkId::from_parameter(format!("{tenants}x{calls}")),
            |b| {
                let (mut core, mut now) = (loaded(tenants, calls), Time::default());
                b.iter(|| {
                    let Slice { id, work, .. } =
                        core.next_slice(now).expect("there is always more");
                    now = now + Duration::from_micros(51);
                    core.finish_slice(now, id, SLICE, Some(work))
                });
            },
        );
    }
}

/// Measures a request of one slice from offer to close, by each tenant in turn, under such loads.
fn calls(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("schedule/call");
    for (tenants, calls) in LOADS {
        group.bench_function(
            BenchmarkId::from_parameter(format!("beside_{tenants}x{calls}")),
            |b| {
                let (mut core, mut now) = (loaded(tenants, calls), Time::default());
                let mut turns = (0..tenants).cycle();
                b.iter(|| {
                    begin(&mut core, now, turns.next().expect("without end"), SLICE);
                    // Repeats until the small request was picked. Now and then the guard picks
                    // another one.
                    loop {
                        let Slice { id, work, budget } = core.next_slice(now).expect("it is ready");
                        now = now + Duration::from_micros(51);
                        let small = budget > SLICE;
                        core.finish_slice(now, id, SLICE, (!small).then_some(work));
                        if small {
                            break core.close(now, id);
                        }
                    }
                });
            },
        );
    }
}
