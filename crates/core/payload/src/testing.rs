//! Helpers of unit tests: a transform that records, and a run of a whole walk.

use std::sync::Arc;

use sealwire_msgpack::write;

use crate::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkError,
    WalkLimits,
};

/// Lists the paths of all fields. Fails every field, and then keeps it unchanged.
#[derive(Default)]
pub(crate) struct Paths(pub(crate) Vec<String>);

impl Transform for Paths {
    type Error = ();

    fn field(&mut self, _: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, ()> {
        out.extend_from_slice(b"half a replacement");
        Err(())
    }

    fn failed(&mut self, path: &Path<'_>, (): ()) -> Result<(), ()> {
        self.0.push(path.to_string());
        Ok(())
    }
}

/// Replaces every field by binary data that holds the field's raw bytes.
pub(crate) struct Wrap;

impl Transform for Wrap {
    type Error = String;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, String> {
        write::bin(out, field.raw);
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, _: &Path<'_>, error: String) -> Result<(), String> {
        Err(error)
    }
}

/// Converts JSON text to MessagePack.
pub(crate) fn doc(json: &str) -> Vec<u8> {
    crate::json::to_msgpack(json.as_bytes(), WalkLimits::default()).expect("test JSON converts")
}

/// Runs one walk to the end in steps of `budget`. Returns the output and the number of bytes
/// consumed.
pub(crate) fn walk<T: Transform>(
    selection: Selection,
    containers: Containers,
    limits: WalkLimits,
    budget: Budget,
    input: &[u8],
    transform: &mut T,
) -> Result<(Vec<u8>, usize), WalkError<T::Error>> {
    let mut walk = Walk::new(Arc::new(selection), containers, limits);
    let mut out = Vec::new();
    loop {
        let fields_before = walk.fields();
        let progress = walk.advance(input, &mut out, transform, budget)?;
        assert!(walk.fields() - fields_before <= budget.fields_max.max(1));
        if let Progress::Done { consumed } = progress {
            assert_eq!(walk.position(), consumed);
            return Ok((out, consumed));
        }
    }
}

/// Returns the positions of the paths of a selection that match nothing in a document.
pub(crate) fn unmatched(selection: Selection, containers: Containers, input: &[u8]) -> Vec<u32> {
    let mut walk = Walk::new(Arc::new(selection), containers, WalkLimits::default());
    while let Progress::More = walk
        .advance(
            input,
            &mut Vec::new(),
            &mut Paths::default(),
            Budget::fields(1),
        )
        .expect("test document walks")
    {}
    walk.unmatched()
}

pub(crate) fn fields(selection: Selection, containers: Containers, input: &[u8]) -> Vec<String> {
    let mut paths = Paths::default();
    let (out, consumed) = walk(
        selection,
        containers,
        WalkLimits::default(),
        Budget::UNLIMITED,
        input,
        &mut paths,
    )
    .expect("test document walks");
    assert_eq!(out, input);
    assert_eq!(consumed, input.len());
    paths.0
}
