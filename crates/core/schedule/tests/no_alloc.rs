//! Slices come a hundred thousand times a second on ten cores: in a steady state they allocate
//! nothing.

use std::num::NonZeroU32;
use std::time::Duration;

use sealwire_schedule::{
    AdmissionDecision, Core, Cost, OfferedRequest, SchedulerOptions, Slice, Time,
};

/// `tenants` with `calls` each, of 10 s of work.
fn loaded(tenants: u32, calls: u32) -> Core<u32, (), u32> {
    let knobs = SchedulerOptions {
        wait_max: Duration::from_secs(1 << 30),
        ..SchedulerOptions::new(NonZeroU32::MIN.saturating_add(1))
    };
    let mut core = Core::new(knobs);
    for tenant in (0..tenants).flat_map(|tenant| std::iter::repeat_n(tenant, calls as usize)) {
        let cost = Cost::from_nanos(10_000_000_000);
        let (since, deadline) = (Time::default(), Time::NEVER);
        let call = OfferedRequest {
            tenant: &tenant,
            weight: 1,
            cost,
            bytes: 0,
            since,
            deadline,
            whole: true,
            has_waited: false,
        };
        let AdmissionDecision::Admitted { id, .. } = core.offer(Time::default(), &call, || ())
        else {
            panic!("nothing holds it back")
        };
        core.submit(id, cost, tenant).expect("just admitted");
    }
    core
}

fn run(core: &mut Core<u32, (), u32>, slices: u64) {
    for slice in 0..slices {
        let Slice { id, work, budget } = core
            .pick(Time::from_nanos(slice * 100_000))
            .expect("there is always more");
        core.done(
            Time::from_nanos(slice * 100_000 + 99_000),
            id,
            budget,
            Some(work),
        );
    }
}

#[test]
fn a_slice_allocates_nothing() {
    for (tenants, calls) in [(1, 1), (1, 8), (20, 1), (1_000, 3)] {
        let mut core = loaded(tenants, calls);
        run(&mut core, 20_000);
        let allocated = allocation_counter::measure(|| run(&mut core, 20_000));
        assert_eq!(
            allocated.count_total, 0,
            "{tenants} tenants, {calls} calls each"
        );
    }
}
