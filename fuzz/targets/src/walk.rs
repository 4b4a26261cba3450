//! Walks over documents: a walk in slices gives the same result as a walk in one run. A walk that
//! keeps every field keeps every byte.

use std::convert::Infallible;
use std::sync::Arc;

use sealwire_payload::{
    Budget, Containers, Field, Outcome, Path, Progress, Selection, Transform, Walk, WalkError,
    WalkLimits,
};

use crate::input::text;
use crate::seed::{packed, words as list};
use crate::{Input, Seed};

/// Keeps every field, after writing bytes that must not remain. Counts the fields.
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

/// Replaces some fields, keeps some, and fails on some. Collects the paths that failed.
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
    setting: (&Arc<Selection>, Containers, WalkLimits),
    input: &[u8],
    transform: &mut T,
    budgets: &[(u8, u16)],
) -> Walked<T::Error> {
    let mut walk = Walk::new(Arc::clone(setting.0), setting.1, setting.2);
    let mut out = Vec::new();
    let mut budgets = budgets.iter().cycle();
    // A budget of zero fields and zero bytes makes no progress.
    let mut idle = 0;
    loop {
        let budget =
            budgets
                .next()
                .filter(|_| idle < 32)
                .map_or(Budget::UNLIMITED, |(fields, bytes)| Budget {
                    fields_max: usize::from(*fields),
                    bytes_max: usize::from(*bytes),
                });
        let before = walk.position();
        match walk.advance(input, &mut out, transform, budget)? {
            Progress::Done { consumed } => return Ok((out, consumed, walk.fields())),
            Progress::More => {
                assert!(walk.position() >= before);
                idle += usize::from(walk.position() == before);
            }
        }
    }
}

/// Walks over a document. Settings: flags, depth, bytes of output, budgets, paths up to a zero
/// byte.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let flags = input.byte();
    let depth_max = input.byte();
    let out_bytes_max = input.short();
    let budgets = input.list(|input| (input.byte(), input.short()));
    let paths = (flags & 1 != 0).then(|| input.until(0).split(|byte| *byte == b'\n').map(text));
    let document = input.0;
    let selection = match paths.map_or(Ok(Selection::everything()), Selection::parse) {
        Ok(selection) => Arc::new(selection),
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let containers = if flags & 2 != 0 {
        Containers::Whole
    } else {
        Containers::Descend
    };
    let wide = WalkLimits {
        depth_max: usize::from(depth_max),
        ..WalkLimits::default()
    };

    let mut kept = Keep::default();
    if let Ok((out, consumed, fields)) = walk(
        (&selection, containers, wide),
        document,
        &mut kept,
        &budgets,
    ) {
        assert_eq!(out, document[..consumed]);
        assert_eq!(fields, kept.0);
    }

    let tight = WalkLimits {
        out_bytes_max: usize::from(out_bytes_max),
        ..wide
    };
    let mut once = Mixed::default();
    let mut sliced = Mixed::default();
    let at_once = walk((&selection, containers, tight), document, &mut once, &[]);
    let in_slices = walk(
        (&selection, containers, tight),
        document,
        &mut sliced,
        &budgets,
    );
    if at_once.is_ok() || in_slices.is_ok() {
        assert_eq!(at_once, in_slices);
        assert_eq!(once.0, sliced.0);
    }
    if let Ok((out, consumed, _)) = at_once {
        assert!(out.len() <= tight.out_bytes_max && consumed <= document.len());
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let documents = [
        r#"{"a":{"b":[1,2,{"c":"x"}]},"d":[[],{}],"e":-5}"#,
        r#"[[1,2.5],[true,null],["aa","bbb"]]"#,
        r#"{"orders":[{"pan":"4111","total":12},{"pan":"4242","total":70000}]}"#,
    ];
    let paths = [
        "$.a.b[*].c\n$.d",
        "$[0][1]\n$[*][0]",
        "$.orders[*].pan\n$.orders[1]\n$..total\n$['orders']",
    ];
    let mut seeds = Vec::new();
    for (at, (document, paths)) in documents.iter().zip(paths).enumerate() {
        let everything = [0, 20, 4, 0, 1, 1, 0, 9];
        seeds.push(Seed::new(
            format!("everything-{at}"),
            &everything,
            packed(document),
        ));
        for flags in [1, 3] {
            let settings = [
                &[flags, 20, 4, 0, 2, 1, 0, 9, 2, 1, 0],
                paths.as_bytes(),
                &[0],
            ]
            .concat();
            seeds.push(Seed::new(
                format!("paths-{flags}-{at}"),
                &settings,
                packed(document),
            ));
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let paths = [
        "$.", "$[", "[*]", "$..", "['", "']", ".a", "[0]", "\n$", "\u{81}", "\u{93}",
    ];
    list(paths)
        .into_iter()
        .chain([vec![0xdc, 0, 2], vec![0xde, 0, 2], vec![0xc7], vec![0xdf]])
        .collect()
}
