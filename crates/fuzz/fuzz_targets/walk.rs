//! A walk gives the same result however it is sliced, and keeping every field keeps every byte.
#![no_main]

use std::convert::Infallible;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sealwire_payload::{
    Budget, Containers, Field, Limits, Outcome, Path, Progress, Selection, Transform, Walk, WalkError,
};

/// Keeps every field, having written rubbish that must not stay; counts them.
#[derive(Default)]
struct Keep(usize);

impl Transform for Keep {
    type Error = Infallible;

    fn field(&mut self, _: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, Infallible> {
        self.0 += 1;
        out.extend_from_slice(b"rubbish");
        Ok(Outcome::Keep)
    }

    fn failed(&mut self, _: &Path<'_>, never: Infallible) -> Result<(), Infallible> {
        match never {}
    }
}

/// Replaces some fields, keeps some, fails on some and forgives; collects their paths.
#[derive(Default)]
struct Mixed(Vec<String>);

impl Transform for Mixed {
    type Error = ();

    fn field(&mut self, field: Field<'_>, out: &mut Vec<u8>) -> Result<Outcome, ()> {
        match field.raw.len() % 3 {
            0 => Ok(Outcome::Keep),
            1 => {
                out.push(0xc0);
                Ok(Outcome::Replaced)
            }
            _ => Err(()),
        }
    }

    fn failed(&mut self, path: &Path<'_>, (): ()) -> Result<(), ()> {
        self.0.push(path.to_string());
        Ok(())
    }
}

type Walked<E> = Result<(Vec<u8>, usize, usize), WalkError<E>>;

fn walk<T: Transform>(
    setting: (&Arc<Selection>, Containers, Limits),
    input: &[u8],
    transform: &mut T,
    budgets: &[(u8, u16)],
) -> Walked<T::Error> {
    let mut walk = Walk::new(Arc::clone(setting.0), setting.1, setting.2);
    let (mut out, mut budgets) = (Vec::new(), budgets.iter().cycle());
    loop {
        let budget = budgets.next().map_or(Budget::UNLIMITED, |(fields, bytes)| Budget {
            fields_max: usize::from(*fields),
            bytes_max: usize::from(*bytes),
        });
        let before = walk.position();
        match walk.advance(input, &mut out, transform, budget)? {
            Progress::Done { consumed } => return Ok((out, consumed, walk.fields())),
            Progress::More => assert!(walk.position() >= before),
        }
    }
}

fuzz_target!(|input: (Option<Vec<&str>>, bool, u8, u16, Vec<(u8, u16)>, &[u8])| {
    let (paths, whole, depth_max, out_bytes_max, budgets, document) = input;
    let selection = match paths.map_or(Ok(Selection::everything()), Selection::parse) {
        Ok(selection) => Arc::new(selection),
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let containers = if whole { Containers::Whole } else { Containers::Descend };
    let wide = Limits { depth_max: usize::from(depth_max), ..Limits::default() };

    let mut kept = Keep::default();
    if let Ok((out, consumed, fields)) = walk((&selection, containers, wide), document, &mut kept, &budgets) {
        assert_eq!(out, document[..consumed]);
        assert_eq!(fields, kept.0);
    }

    let tight = Limits { out_bytes_max: usize::from(out_bytes_max), ..wide };
    let (mut once, mut sliced) = (Mixed::default(), Mixed::default());
    let at_once = walk((&selection, containers, tight), document, &mut once, &[]);
    let in_slices = walk((&selection, containers, tight), document, &mut sliced, &budgets);
    if at_once.is_ok() || in_slices.is_ok() {
        assert_eq!(at_once, in_slices);
        assert_eq!(once.0, sliced.0);
    }
    if let Ok((out, consumed, _)) = at_once {
        assert!(out.len() <= tight.out_bytes_max && consumed <= document.len());
    }
});
