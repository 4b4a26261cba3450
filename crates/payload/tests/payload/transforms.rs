//! Transforms that stand in for encryption, and runs of a whole walk.

use std::convert::Infallible;
use std::sync::Arc;

use sealwire_msgpack::{Token, write};
use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkError, WalkLimits,
};

/// Binary that holds the field's raw bytes: as reversible as encryption.
pub(crate) struct Wrap;

/// The inverse of [`Wrap`]; keeps what is not binary.
pub(crate) struct Unwrap;

/// Changes nothing.
pub(crate) struct Keep;

/// Fails every field, goes on, and lists their paths.
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

/// One walk to its end: the output and the bytes consumed. The budgets are used in turn, over and over.
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

/// The budget of a walk that is not sliced.
pub(crate) const AT_ONCE: &[Budget] = &[Budget::UNLIMITED];
