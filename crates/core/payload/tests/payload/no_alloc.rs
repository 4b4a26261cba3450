//! The walk allocates per document, never per field: 10 fields cost as many allocations as 10,000.

use std::sync::Arc;

use allocation_counter::measure;
use sealwire_msgpack::write;
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkLimits,
};

/// Replaces even fields, and fails odd fields but continues.
#[derive(Default)]
struct Alternate {
    count: usize,
}

impl Transform for Alternate {
    type Error = ();

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, ()> {
        self.count += 1;
        write::bin(out, field.raw);
        if self.count.is_multiple_of(2) {
            Ok(Outcome::Replaced)
        } else {
            Err(())
        }
    }

    fn failed(&mut self, _: &Path<'_>, (): ()) -> Result<(), ()> {
        Ok(())
    }
}

/// `{"list": [{"pan": "4111111111111111", "other": 7}, ...]}` with `fields` maps.
fn document(fields: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::map_len(&mut out, 1);
    write::str(&mut out, "list");
    write::array_len(&mut out, fields);
    for _ in 0..fields {
        write::map_len(&mut out, 2);
        write::str(&mut out, "pan");
        write::str(&mut out, "4111111111111111");
        write::str(&mut out, "other");
        write::uint(&mut out, 7);
    }
    out
}

fn allocations(fields: u32, selection: &Arc<Selection>, containers: Containers) -> u64 {
    let input = document(fields);
    let mut out = Vec::with_capacity(input.len() * 2);
    let mut fields_seen = 0;
    let info = measure(|| {
        let mut walk = Walk::new(Arc::clone(selection), containers, WalkLimits::default());
        let mut transform = Alternate::default();
        while walk.advance(&input, &mut out, &mut transform, Budget::fields(100))
            == Ok(Progress::More)
        {}
        fields_seen = walk.fields();
    });
    assert!(fields_seen >= fields as usize);
    info.count_total
}

#[test]
fn ten_fields_cost_as_many_allocations_as_ten_thousand() {
    let paths = [
        "$.list[*].pan",
        "$..pan",
        "$.list[0,1,2].other",
        "$.list[*]['x','y']",
    ];
    let narrow = Arc::new(Selection::parse(paths).expect("paths parse"));
    let maps = Arc::new(Selection::parse(["$.list[*]"]).expect("path parses"));
    let cases = [
        (Arc::new(Selection::everything()), Containers::Whole),
        (narrow, Containers::Descend),
        (Arc::clone(&maps), Containers::Descend),
        (maps, Containers::Whole),
    ];
    for (selection, containers) in cases {
        let few = allocations(10, &selection, containers);
        assert_eq!(few, allocations(10_000, &selection, containers));
        assert!(few <= 1, "one stack per walk, not {few} allocations");
    }
}
