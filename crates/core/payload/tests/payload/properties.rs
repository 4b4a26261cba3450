//! Properties for any bytes, selection and slicing.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use sealwire_payload::{Budget, Containers, Selection};

use crate::documents::{broken_document, document};
use crate::reference::{segments, text};
use crate::transforms::{AT_ONCE, Keep, Paths, Unwrap, Wrap, run};

fn selection() -> impl Strategy<Value = Arc<Selection>> {
    let paths = vec(segments(), 0..4).prop_map(|paths| {
        let texts: Vec<_> = paths.iter().map(|segments| text(segments)).collect();
        Arc::new(Selection::parse(texts.iter().map(String::as_str)).expect("paths parse"))
    });
    prop_oneof![Just(Arc::new(Selection::everything())), paths]
}

fn containers() -> impl Strategy<Value = Containers> {
    prop_oneof![Just(Containers::Whole), Just(Containers::Descend)]
}

fn budgets() -> impl Strategy<Value = Vec<Budget>> {
    let budget = prop_oneof![
        (0..8_usize).prop_map(Budget::fields),
        (0..8_usize, 0..100_usize).prop_map(|(fields_max, bytes_max)| Budget {
            fields_max,
            bytes_max
        }),
    ];
    vec(budget, 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn kept_documents_are_byte_identical(
        input in document(), selection in selection(), containers in containers(), budgets in budgets(),
    ) {
        let expected = Ok((input.clone(), input.len()));
        prop_assert_eq!(&run(&selection, containers, &budgets, &input, &mut Keep), &expected);
        let failed = run(&selection, containers, &budgets, &input, &mut Paths::default());
        prop_assert_eq!(failed.ok(), expected.ok());
    }

    #[test]
    fn slicing_changes_nothing(
        input in document(), tail in vec(any::<u8>(), 0..4), selection in selection(), containers in containers(),
        budgets in budgets(),
    ) {
        let framed = [input.clone(), tail].concat();
        let at_once = run(&selection, containers, AT_ONCE, &input, &mut Wrap);
        prop_assert_eq!(at_once.as_ref().map(|(_, consumed)| *consumed), Ok(input.len()));
        prop_assert_eq!(&run(&selection, containers, &budgets, &input, &mut Wrap), &at_once);
        prop_assert_eq!(&run(&selection, containers, &budgets, &framed, &mut Wrap), &at_once);

        let mut paths = [Paths::default(), Paths::default()];
        let _ = run(&selection, containers, AT_ONCE, &input, &mut paths[0]);
        let _ = run(&selection, containers, &budgets, &framed, &mut paths[1]);
        prop_assert_eq!(&paths[0].0, &paths[1].0);
    }

    #[test]
    fn a_reversible_transform_reverses(
        input in document(), selection in selection(), containers in containers(), budgets in budgets(),
    ) {
        let (wrapped, _) = run(&selection, containers, &budgets, &input, &mut Wrap).expect("walks");
        let (unwrapped, _) = run(&selection, containers, &budgets, &wrapped, &mut Unwrap).expect("walks");
        prop_assert_eq!(unwrapped, input);
    }

    #[test]
    fn broken_documents_fail_alike_however_sliced(
        input in broken_document(), selection in selection(), containers in containers(), budgets in budgets(),
    ) {
        let at_once = run(&selection, containers, AT_ONCE, &input, &mut Wrap);
        prop_assert_eq!(run(&selection, containers, &budgets, &input, &mut Wrap), at_once);
        let _ = run(&selection, containers, &budgets, &input, &mut Paths::default());
    }

    #[test]
    fn random_bytes_walk_or_fail_without_panic(
        input in vec(any::<u8>(), 0..200), selection in selection(), containers in containers(), budgets in budgets(),
    ) {
        let at_once = run(&selection, containers, AT_ONCE, &input, &mut Wrap);
        prop_assert_eq!(run(&selection, containers, &budgets, &input, &mut Wrap), at_once);
    }
}
