//! Leak checks of given source and target values.

use sealwire_mask_rules::Rules;

use super::*;

/// Checks a field `f` under a function, with its source and target values. `other` are target
/// values of a field `g` without a rule.
fn check(function: &str, source: &[&str], target: &[&str], other: &[&str]) -> LeakField {
    let text = format!("unknown = \"keep\"\n[[rule]]\ncolumn = \"f\"\nmask = '{function}'\n");
    let plan = Arc::new(Plan::new(Arc::new(
        Rules::from_toml(&text).expect(function),
    )));
    let run = |values_max| {
        let mut check = Check::new(Arc::clone(&plan), LeakLimits { values_max });
        for passes in 1.. {
            let field = check.field_number("f", 0);
            source
                .iter()
                .for_each(|value| check.add_original(field, value));
            let fields = check.fields_named("f");
            target
                .iter()
                .for_each(|value| check.check_value("f", &fields, value));
            other
                .iter()
                .for_each(|value| check.check_value("g", &[], value));
            if !check.end_pass() {
                return check.into_report(passes);
            }
        }
        unreachable!("passes end")
    };
    let one = run(1_000_000);
    let many = run(3);
    assert_eq!(
        format!("{:?}", one.fields),
        format!("{:?}", many.fields),
        "in several passes"
    );
    assert_eq!(
        one.passed,
        !source.is_empty() && one.fields[0].verdict != LeakVerdict::Leak
    );
    one.fields.into_iter().next().expect("one field")
}

fn verdict_of(function: &str, source: &[&str], target: &[&str], other: &[&str]) -> LeakVerdict {
    check(function, source, target, other).verdict
}

#[test]
fn functions_without_originals_leak_by_a_single_one() {
    use LeakVerdict::{Clean, Leak};
    for function in ["email", "hash", "partial(last=1)"] {
        assert_eq!(
            verdict_of(function, &["a", "b"], &["x", "y"], &[]),
            Clean,
            "{function}"
        );
        assert_eq!(
            verdict_of(function, &["a", "b"], &["x", "b"], &[]),
            Leak,
            "{function}"
        );
        assert_eq!(
            verdict_of(function, &[], &["x"], &["y"]),
            LeakVerdict::NotChecked,
            "{function}"
        );
    }
    for function in ["redact", "fixed(\"n/a\")", "null"] {
        assert_eq!(
            verdict_of(function, &["a", "b"], &["n/a", "b"], &[]),
            Leak,
            "{function}"
        );
        // The constant text can already occur in the source.
        assert_eq!(
            verdict_of(function, &["a", "n/a"], &["n/a", "n/a"], &[]),
            Clean,
            "{function}"
        );
    }
}

#[test]
fn long_originals_are_looked_for_everywhere() {
    let source = ["anna@mail.test", "short", "aaaaaaaaaa"];
    let leaks =
        |other: &[&str]| check("email", &source, &["x"], other).verdict == LeakVerdict::Leak;
    assert!(leaks(&["anna@mail.test"]));
    assert!(leaks(&["write to <anna@mail.test>, or call"]));
    assert!(leaks(&["line\nanna@mail.test\tline"]));
    assert!(!leaks(&[
        "anna@mail.tes",
        "bob.anna@mail.test",
        "short",
        "aaaaaaaaaa"
    ]));
    let field = check(
        "email",
        &source,
        &["x"],
        &["to anna@mail.test", "anna@mail.test"],
    );
    assert_eq!(
        (
            field.looked_for_elsewhere,
            field.found_elsewhere,
            field.elsewhere
        ),
        (1, 1, vec!["g".to_owned()])
    );
    // A word without a digit or `@` is an ordinary word that can occur anywhere.
    assert!(!{
        check("hash", &["Eisenhower"], &["x"], &["Mr Eisenhower called"]).verdict
            == LeakVerdict::Leak
    });
}

#[test]
fn fields_of_one_function_do_not_hide_the_originals_of_each_other() {
    let digits = |from: usize| {
        (from..from + 40)
            .map(|n| format!("{:012}", n * 7_919))
            .collect::<Vec<_>>()
    };
    let of_f = digits(10);
    let of_g = digits(100);
    let masks = digits(1000);
    for (function, expected) in [
        ("email", true),
        ("redact", true),
        ("hash", true),
        ("fpe", true),
        ("fixed(\"a longer constant\")", true),
        ("pseudonym(list=cities)", false),
    ] {
        let text = format!(
            "unknown = \"keep\"\n[[rule]]\ncolumn = \"f\"\nmask = '{function}'\n[[rule]]\ncolumn = \"g\"\nmask = '{function}'\n"
        );
        let plan = Arc::new(Plan::new(Arc::new(
            Rules::from_toml(&text).expect(function),
        )));
        for is_swapped in [true, false] {
            let mut check = Check::new(Arc::clone(&plan), LeakLimits::default());
            let f = check.field_number("f", 0);
            let g = check.field_number("g", 1);
            of_f.iter().for_each(|value| check.add_original(f, value));
            of_g.iter().for_each(|value| check.add_original(g, value));
            // Both also hold the constant, in source and target.
            for field in [f, g] {
                check.add_original(field, "a longer constant");
                check.add_original(field, "[redacted]");
            }
            let into_g = if is_swapped { &of_f } else { &masks };
            masks
                .iter()
                .for_each(|value| check.check_value("f", &[f], value));
            into_g
                .iter()
                .for_each(|value| check.check_value("g", &[g], value));
            let constant = if function == "redact" {
                "[redacted]"
            } else {
                "a longer constant"
            };
            if matches!(
                guarantee_of(plan.name(0)),
                Guarantee::Absent { constant: true }
            ) {
                check.check_value("g", &[g], constant);
            }
            while check.end_pass() {}
            let report = check.into_report(1);
            let found = &report.fields[f];
            assert_eq!(
                found.elsewhere.contains(&"g".to_owned()),
                is_swapped && expected,
                "{function} {is_swapped}: {report:#?}"
            );
            assert_eq!(
                found.verdict == LeakVerdict::Leak,
                is_swapped && expected,
                "{function} {is_swapped}: {report:#?}"
            );
        }
    }
}

#[test]
fn half_masked_numbers_hide_no_originals_elsewhere() {
    let source: Vec<String> = (0..40).map(|n| format!("{:012}", n * 7_919)).collect();
    // Half of the rows are not masked, and another field holds all originals.
    let half: Vec<String> = (0..40)
        .map(|n| {
            if n % 2 == 0 {
                source[n].clone()
            } else {
                format!("9{:011}", n * 104_729)
            }
        })
        .collect();
    let texts = |values: &[String]| {
        values
            .iter()
            .map(String::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let [source, half] = [texts(&source), texts(&half)];
    let source: Vec<&str> = source.iter().map(String::as_str).collect();
    let half: Vec<&str> = half.iter().map(String::as_str).collect();
    assert_eq!(
        verdict_of("fpe", &source, &half, &source),
        LeakVerdict::Leak
    );
}

#[test]
fn originals_of_padded_columns_are_found_with_their_padding() {
    let field = check(
        "redact",
        &["Hans Meier"],
        &["[redacted]"],
        &[r#"{"name": "Hans Meier          "}"#],
    );
    assert_eq!(
        (field.found_elsewhere, field.verdict),
        (1, LeakVerdict::Leak)
    );
}

#[test]
fn originals_of_two_fields_have_the_stronger_guarantee() {
    let text = "unknown = \"keep\"\n[[rule]]\ncolumn = \"f\"\nmask = 'fpe'\n[[rule]]\ncolumn = \"g\"\nmask = 'redact'\n";
    let plan = Arc::new(Plan::new(Arc::new(Rules::from_toml(text).expect("rules"))));
    let mut check = Check::new(plan, LeakLimits::default());
    let f = check.field_number("f", 0);
    let g = check.field_number("g", 1);
    (0..1_000).for_each(|n| check.add_original(f, &format!("{:012}", n * 7_919)));
    (0..5).for_each(|n| check.add_original(g, &format!("{:012}", n * 7_919)));
    check.check_value("h", &[], "000000007919");
    check.end_pass();
    let report = check.into_report(1);
    assert_eq!(
        (report.fields[f].verdict, report.fields[g].verdict),
        (LeakVerdict::Clean, LeakVerdict::Leak)
    );
}

#[test]
fn literals_of_definitions_are_found_behind_apostrophes() {
    for definition in [
        "CREATE FUNCTION f() -- don't touch\n IF n = 'Johannes Meier' THEN",
        "DEFAULT 'Johannes Meier'::text",
        "CHECK (n <> 'it''s' AND n <> 'Johannes Meier')",
    ] {
        let text = "unknown = \"keep\"\n[[rule]]\ncolumn = \"f\"\nmask = 'redact'\n";
        let plan = Arc::new(Plan::new(Arc::new(Rules::from_toml(text).expect("rules"))));
        let mut check = Check::new(plan, LeakLimits::default());
        let field = check.field_number("f", 0);
        check.add_original(field, "Johannes Meier");
        check.add_original(field, "Anna O'Brien");
        check.check_definition("a definition", definition);
        check.check_definition("another", "DEFAULT 'Anna O''Brien'");
        check.end_pass();
        assert_eq!(
            check.into_report(1).fields[field].found_elsewhere,
            2,
            "{definition}"
        );
    }
}

#[test]
fn originals_are_found_inside_structured_text() {
    let cases: &[(&str, &str, &str, bool)] = &[
        (
            "array",
            "anna@mail.test",
            "{bob@mail.test,anna@mail.test}",
            true,
        ),
        (
            "array of texts with spaces",
            "Anna Maria Eisenhower",
            "{Bob,\"Anna Maria Eisenhower\"}",
            true,
        ),
        ("array of names", "Eisenhower", "{Bob,Eisenhower}", true),
        (
            "array with escapes",
            "Anna \"Ike\" Eisenhower",
            r#"{"Anna \"Ike\" Eisenhower"}"#,
            true,
        ),
        (
            "array in an array",
            "4242424242424242",
            "{{1,2},{3,4242424242424242}}",
            true,
        ),
        (
            "composite",
            "Anna Eisenhower",
            "(7,\"Anna Eisenhower\",t)",
            true,
        ),
        (
            "composite with doubled quotes",
            "Anna \"Ike\" E.",
            r#"(7,"Anna ""Ike"" E.",t)"#,
            true,
        ),
        ("JSON array", "Eisenhower", "[\"Bob\",\"Eisenhower\"]", true),
        (
            "compact JSON",
            "anna@mail.test",
            "{\"email\":\"anna@mail.test\",\"n\":1}",
            true,
        ),
        (
            "compact JSON, a number",
            "4242424242424242",
            "{\"n\":4242424242424242}",
            true,
        ),
        (
            "compact JSON, several words",
            "Anna Maria Eisenhower",
            "{\"n\":\"Anna Maria Eisenhower\"}",
            true,
        ),
        (
            "compact JSON, escapes",
            "Zo\u{eb} Eisenhower",
            r#"{"n":"Zo\u00eb Eisenhower"}"#,
            true,
        ),
        (
            "JSON in JSON",
            "Zo\u{eb} \"Ike\" E.",
            r#"{"n":"{\"m\":\"Zo\\u00eb \\\"Ike\\\" E.\"}"}"#,
            true,
        ),
        (
            "JSON key",
            "anna@mail.test",
            "{\"anna@mail.test\":true}",
            true,
        ),
        (
            "JSON within a text",
            "anna@mail.test",
            "received {\"email\":\"anna@mail.test\"}",
            true,
        ),
        (
            "key and value",
            "anna@mail.test",
            "email=anna@mail.test",
            true,
        ),
        (
            "several keys and values",
            "anna@mail.test",
            "id=7;email=anna@mail.test;ok",
            true,
        ),
        (
            "query",
            "anna@mail.test",
            "https://host.test/a?email=anna@mail.test&n=1",
            true,
        ),
        (
            "key, value and spaces",
            "anna@mail.test",
            "id=7 email=anna@mail.test",
            true,
        ),
        (
            "quoted value",
            "Anna Maria Eisenhower",
            "name=\"Anna Maria Eisenhower\" id=7",
            true,
        ),
        (
            "key and value by a colon",
            "anna@mail.test",
            "email:anna@mail.test",
            true,
        ),
        (
            "hstore",
            "Anna Eisenhower",
            "\"name\"=>\"Anna Eisenhower\"",
            true,
        ),
        (
            "address with colons",
            "2001:db8::17:1",
            "peer=2001:db8::17:1;",
            true,
        ),
        (
            "number with a sign",
            "+4917012345678",
            "phone=+4917012345678,",
            true,
        ),
        (
            "list with commas",
            "anna@mail.test",
            "bob@mail.test,anna@mail.test",
            true,
        ),
        (
            "another's address",
            "anna@mail.test",
            "{\"email\":\"bob.anna@mail.test\"}",
            false,
        ),
        (
            "longer address",
            "anna@mail.test",
            "email=anna@mail.test.org",
            false,
        ),
        ("name as a word", "Eisenhower", "name=Eisenhower", false),
        (
            "part of a name",
            "Eisenhower",
            "{\"n\":\"Mr Eisenhower\"}",
            false,
        ),
        ("short", "a@b.c", "{a@b.c}", false),
        (
            "unclosed",
            "anna@mail.test",
            "{\"email\":\"anna@mail.te",
            false,
        ),
        (
            "only structure",
            "anna@mail.test",
            "{[(\"\\\"{{{}}}\\",
            false,
        ),
    ];
    let found =
        |original, other| check("hash", &[original], &["x"], &[other]).verdict == LeakVerdict::Leak;
    let wrong: Vec<&str> = cases
        .iter()
        .filter(|case| found(case.1, case.2) != case.3)
        .map(|(name, ..)| *name)
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn backslashes_escape_any_character() {
    let found = check(
        "hash",
        &["Zoë \"Ike\" E."],
        &["x"],
        &[r#"{"Zo\ë \"Ike\" E."}"#],
    );
    assert_eq!(found.verdict, LeakVerdict::Leak);
}

proptest::proptest! {
    /// Texts with brackets, escapes and multi-byte characters.
    #[test]
    fn pieces_of_any_text_are_found_without_panic(text in "[\"\\\\{}()\\[\\],:=aëu0 ]{0,40}") {
        pieces::for_each_piece(&text, &mut |_, _| ());
        pieces::for_each_element(&text, &mut |_| ());
    }
}

#[test]
fn elements_of_a_masked_array_are_originals_too() {
    let leaks = |source: &str, other: &str| {
        check("fixed(\"{}\")", &[source, "{}"], &["{}", "{}"], &[other]).verdict
            == LeakVerdict::Leak
    };
    assert!(leaks("{bob@mail.test,anna@mail.test}", "anna@mail.test"));
    assert!(leaks("{Bob,\"Anna Eisenhower\"}", "Anna Eisenhower"));
    assert!(leaks(
        "[\"Bob\",\"Anna Eisenhower\"]",
        "to \"Anna Eisenhower\""
    ));
    assert!(leaks(
        "{bob@mail.test,anna@mail.test}",
        "{\"email\":\"anna@mail.test\"}"
    ));
    // The keys and values of an object can be ordinary words.
    assert!(!leaks("{\"delivery\":\"in transit\"}", "in transit"));
    assert!(!leaks("{bob@mail.test}", "anna@mail.test"));
}

#[test]
fn functions_that_move_values_leak_when_nothing_moved() {
    use LeakVerdict::{Clean, Leak, NotChecked};
    let names = [
        "Anna", "Anna", "Anna", "Bob", "Bob", "Chloé", "Dan", "Dan", "Dan", "Dan", "Eve", "Eve",
    ];
    let moved = [
        "Bob", "Bob", "Bob", "Dan", "Dan", "Eve", "Anna", "Anna", "Anna", "Anna", "Chloé", "Chloé",
    ];
    for function in [
        "pseudonym(list=first_names)",
        "date_shift(within=9)",
        "generalize(step=5)",
        "noise(by=3)",
    ] {
        assert_eq!(
            verdict_of(function, &names, &moved, &[]),
            Clean,
            "{function}"
        );
        assert_eq!(
            verdict_of(function, &names, &names, &[]),
            Leak,
            "{function}"
        );
        assert_eq!(
            verdict_of(function, &names[..3], &names[..3], &[]),
            NotChecked,
            "{function}"
        );
    }
    let numbers: Vec<String> = (0..200).map(|at| format!("{:010}", at * 7)).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    let others: Vec<String> = (0..200)
        .map(|at| format!("{:010}", at * 11 + 5_000))
        .collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    for function in ["fpe", "phone", "card"] {
        assert_eq!(
            verdict_of(function, &numbers, &others, &[]),
            Clean,
            "{function}"
        );
        assert_eq!(
            verdict_of(function, &numbers, &numbers, &[]),
            Leak,
            "{function}"
        );
        // One in two hundred is chance; one in ten is a leak.
        assert_eq!(
            verdict_of(function, &numbers, &others, &numbers[..1]),
            Clean,
            "{function}"
        );
        assert_eq!(
            verdict_of(function, &numbers, &others, &numbers[..20]),
            Leak,
            "{function}"
        );
    }
}
