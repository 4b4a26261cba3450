//! Transforms that replace encryption in tests, and functions that run a whole walk.

use std::convert::Infallible;
use std::sync::Arc;

use sealwire_msgpack::{Token, write};
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkError,
    WalkLimits,
};

/// Replaces a field by binary data that holds its raw bytes: reversible, as encryption is.
pub(crate) struct Wrap;

/// The inverse of [`Wrap`]; keeps values that are not binary.
pub(crate) struct Unwrap;

/// Keeps every field.
pub(crate) struct Keep;

/// Fails every field, continues, and lists the paths.
#[derive(Default)]
pub(crate) struct Paths(pub(crate) Vec<String>);

impl Transform for Wrap {
    type Error = Infallible;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        write::bin(out, field.raw);
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, _: &Path<'_>, error: Infallible) -> Result<(), Infallible> {
        Err(error)
    }
}

impl Transform for Unwrap {
    type Error = Infallible;

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        let Token::Bin(raw) = field.token else {
            return Ok(Outcome::Keep);
        };
        out.extend_from_slice(raw);
        Ok(Outcome::Replaced)
    }

    fn failed(&mut self, _: &Path<'_>, error: Infallible) -> Result<(), Infallible> {
        Err(error)
    }
}

impl Transform for Keep {
    type Error = Infallible;

    fn field(&mut self, _: Field<'_>, _: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, error: Infallible) -> Result<(), Infallible> {
        Err(error)
    }
}

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

/// Runs one walk to its end. Returns the output and the number of bytes consumed. The budgets are
/// used cyclically.
pub(crate) fn run<T: Transform>(
    selection: &Arc<Selection>,
    containers: Containers,
    budgets: &[Budget],
    input: &[u8],
    transform: &mut T,
) -> Result<(Vec<u8>, usize), WalkError<T::Error>> {
    let mut walk = Walk::new(Arc::clone(selection), containers, WalkLimits::default());
    let mut out = Vec::new();
    for budget in budgets.iter().cycle() {
        if let Progress::Done { consumed } = walk.advance(input, &mut out, transform, *budget)? {
            return Ok((out, consumed));
        }
    }
    unreachable!("there is at least one budget");
}

/// The budget of a walk without slicing.
pub(crate) const AT_ONCE: &[Budget] = &[Budget::UNLIMITED];
