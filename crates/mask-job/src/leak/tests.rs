//! Values on either side, and what the check makes of them.

use sealwire_mask::Rules;

use super::*;

/// A field `f` under a function: its values in the source, those in the target, and values of a field `g` that no rule names.
fn check(function: &str, source: &[&str], target: &[&str], other: &[&str]) -> LeakField {
    let text = format!("unknown = \"keep\"\n[[rule]]\ncolumn = \"f\"\nmask = '{function}'\n");
    let plan = Arc::new(Plan::new(Arc::new(Rules::from_toml(&text).expect(function))));
    let run = |values_max| {
        let mut check = Check::new(Arc::clone(&plan), LeakLimits { values_max });
        for passes in 1.. {
            let field = check.field("f", 0);
            source.iter().for_each(|value| check.original(field, value));
            let fields = check.fields_named("f");
            target.iter().for_each(|value| check.seen("f", &fields, value));
            other.iter().for_each(|value| check.seen("g", &[], value));
            if !check.end_pass() {
                return check.report(passes);
            }
        }
        unreachable!("passes end")
    };
    let (one, many) = (run(1_000_000), run(3));
    assert_eq!(format!("{:?}", one.fields), format!("{:?}", many.fields), "in several passes");
    assert_eq!(one.passed, one.fields[0].verdict != LeakVerdict::Leak);
    one.fields.into_iter().next().expect("one field")
}

fn verdict_of(function: &str, source: &[&str], target: &[&str], other: &[&str]) -> LeakVerdict {
    check(function, source, target, other).verdict
}

#[test]
fn functions_without_originals_leak_by_a_single_one() {
    use LeakVerdict::{Clean, Leak};
    for function in ["email", "hash", "partial(last=1)"] {
        assert_eq!(verdict_of(function, &["a", "b"], &["x", "y"], &[]), Clean, "{function}");
        assert_eq!(verdict_of(function, &["a", "b"], &["x", "b"], &[]), Leak, "{function}");
        assert_eq!(verdict_of(function, &[], &["x"], &["y"]), Clean, "{function}");
    }
    for function in ["redact", "fixed(\"n/a\")", "null"] {
        assert_eq!(verdict_of(function, &["a", "b"], &["n/a", "b"], &[]), Leak, "{function}");
        // The text that it always gives may have been there before.
        assert_eq!(verdict_of(function, &["a", "n/a"], &["n/a", "n/a"], &[]), Clean, "{function}");
    }
}

#[test]
fn long_originals_are_looked_for_everywhere() {
    let source = ["anna@mail.test", "short", "aaaaaaaaaa"];
    let leaks = |other: &[&str]| check("email", &source, &["x"], other).verdict == LeakVerdict::Leak;
    assert!(leaks(&["anna@mail.test"]));
    assert!(leaks(&["write to <anna@mail.test>, or call"]));
    assert!(leaks(&["line\nanna@mail.test\tline"]));
    assert!(!leaks(&["anna@mail.tes", "bob.anna@mail.test", "short", "aaaaaaaaaa"]));
    let field = check("email", &source, &["x"], &["to anna@mail.test", "anna@mail.test"]);
    assert_eq!((field.looked_for_elsewhere, field.found_elsewhere, field.elsewhere), (1, 1, vec!["g".to_owned()]));
    // A word without a digit or a sign is a word of anybody.
    assert!(!{ check("hash", &["Eisenhower"], &["x"], &["Mr Eisenhower called"]).verdict == LeakVerdict::Leak });
}

#[test]
fn functions_that_move_values_leak_when_nothing_moved() {
    use LeakVerdict::{Clean, Leak, NotChecked};
    let names = ["Anna", "Anna", "Anna", "Bob", "Bob", "Chloé", "Dan", "Dan", "Dan", "Dan", "Eve", "Eve"];
    let moved = ["Bob", "Bob", "Bob", "Dan", "Dan", "Eve", "Anna", "Anna", "Anna", "Anna", "Chloé", "Chloé"];
    for function in ["pseudonym(list=first_names)", "date_shift(within=9)", "generalize(step=5)", "noise(by=3)"] {
        assert_eq!(verdict_of(function, &names, &moved, &[]), Clean, "{function}");
        assert_eq!(verdict_of(function, &names, &names, &[]), Leak, "{function}");
        assert_eq!(verdict_of(function, &names[..3], &names[..3], &[]), NotChecked, "{function}");
    }
    let numbers: Vec<String> = (0..200).map(|at| format!("{:010}", at * 7)).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    let others: Vec<String> = (0..200).map(|at| format!("{:010}", at * 11 + 5_000)).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    for function in ["fpe", "phone", "card"] {
        assert_eq!(verdict_of(function, &numbers, &others, &[]), Clean, "{function}");
        assert_eq!(verdict_of(function, &numbers, &numbers, &[]), Leak, "{function}");
        // One in two hundred is chance, a tenth is not.
        assert_eq!(verdict_of(function, &numbers, &others, &numbers[..1]), Clean, "{function}");
        assert_eq!(verdict_of(function, &numbers, &others, &numbers[..20]), Leak, "{function}");
    }
}
