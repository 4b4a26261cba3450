//! Ten cores run a hundred thousand slices per second: in a steady state, slices do not allocate.

use std::num::NonZeroU32;
use std::time::Duration;

use sealwire_schedule::{
    AdmissionDecision, Core, Cost, OfferedRequest, SchedulerOptions, Slice, Time,
};

/// `tenants` with `requests` each, of 10 s of work.
fn loaded(tenants: u32, requests: u32) -> Core<u32, (), u32> {
    let options = SchedulerOptions {
        wait_max: Duration::from_secs(1 << 30),
        ..SchedulerOptions::new(NonZeroU32::MIN.saturating_add(1))
    };
    let mut core = Core::new(options);
    for tenant in (0..tenants).flat_map(|tenant| std::iter::repeat_n(tenant, requests as usize)) {
        let cost = Cost::from_nanos(10_000_000_000);
        let (since, deadline) = (Time::default(), Time::NEVER);
        let request = OfferedRequest {
            tenant: &tenant,
            weight: 1,
            cost,
            bytes: 0,
            since,
            deadline,
            has_body: true,
            has_waited: false,
        };
        let AdmissionDecision::Admitted { id, .. } = core.offer(Time::default(), &request, || ())
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
            .next_slice(Time::from_nanos(slice * 100_000))
            .expect("there is always more");
        core.finish_slice(
            Time::from_nanos(slice * 100_000 + 99_000),
            id,
            budget,
            Some(work),
        );
    }
}

#[test]
fn a_slice_allocates_nothing() {
    for (tenants, requests) in [(1, 1), (1, 8), (20, 1), (1_000, 3)] {
        let mut core = loaded(tenants, requests);
        run(&mut core, 20_000);
        let allocated = allocation_counter::measure(|| run(&mut core, 20_000));
        assert_eq!(
            allocated.count_total, 0,
            "{tenants} tenants, {requests} requests each"
        );
    }
}
