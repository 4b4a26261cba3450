use proptest::prelude::*;

use super::Function;

#[track_caller]
fn check(text: &str, canonical: &str) {
    let function: Function = text
        .parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(function.to_string(), canonical, "{text}");
    assert_eq!(canonical.parse(), Ok(function), "{canonical}");
}

#[test]
fn a_text_becomes_canonical() {
    check("redact", "redact");
    check(" redact ( ) ", "redact");
    check("redact(with=\"\")", "redact(with=\"\")");
    check("redact(with=X)", "redact(with=\"X\")");
    check("fixed(\"n/a\")", "fixed(\"n/a\")");
    check("fixed(word)", "fixed(\"word\")");
    check("fixed(value=7)", "fixed(7)");
    check("fixed(-1.50)", "fixed(-1.5)");
    check("fixed(1e300)", "fixed(1e300)");
    check("fixed(true)", "fixed(true)");
    check(
        "fixed(\"\\\"\\\\\\n\\r\\t\\u{1}\\u{1F600}é\")",
        "fixed(\"\\\"\\\\\\n\\r\\t\\u{1}😀é\")",
    );
    check("null", "null");
    check("keep", "keep");
    check("partial(first=1,last=4)", "partial(first=1, last=4)");
    check("partial(first=0, last=4, with=\"*\")", "partial(last=4)");
    check(
        "partial(first=2, with=\"•\")",
        "partial(first=2, with=\"•\")",
    );
    check("email", "email");
    check("email(keep=domain)", "email(keep=domain)");
    check("email(keep=none, domain=\"email\")", "email");
    check(
        "email(domain=\"customer mails\")",
        "email(domain=\"customer mails\")",
    );
    check("phone(last=2)", "phone(last=2)");
    check("card", "card");
    check(
        "card(first=6, last=4, luhn=invalid)",
        "card(first=6, luhn=invalid)",
    );
    check("hash(length=64)", "hash(length=64)");
    check("pseudonym(list=first_names)", "pseudonym(list=first_names)");
    check(
        "pseudonym(list=\"7 dwarfs\", domain=x)",
        "pseudonym(list=\"7 dwarfs\", domain=x)",
    );
    check("pseudonym(list=\"true\")", "pseudonym(list=\"true\")");
    check("fpe", "fpe");
    check("fpe(alphabet=alphanumeric)", "fpe(alphabet=alphanumeric)");
    check("date_shift(days=-30)", "date_shift(days=-30)");
    check(
        "date_shift(within=365, subject=customer_id)",
        "date_shift(within=365, subject=customer_id)",
    );
    check("generalize(step=10)", "generalize(step=10)");
    check("generalize(keep=3)", "generalize(keep=3)");
    check("generalize(date=year)", "generalize(date=year)");
    check("noise(percent=10)", "noise(percent=10)");
    check(
        "noise(percent=2.5, subject=id, domain=pay)",
        "noise(percent=2.5, subject=id, domain=pay)",
    );
    check("noise(percent=0.0001)", "noise(percent=0.0001)");
    check("noise(by=3)", "noise(by=3)");
    check(
        "noise(max=90, min=-90, by=1)",
        "noise(by=1, min=-90, max=90)",
    );
    check(
        "noise(percent=10, max=9, subject=id)",
        "noise(percent=10, max=9, subject=id)",
    );
}

#[track_caller]
fn refused(text: &str, at: usize, needle: &str) {
    let error = text.parse::<Function>().expect_err(text);
    assert!(
        error.message.contains(needle) && error.at == at,
        "{text}: {} {error}",
        error.at
    );
}

#[test]
fn malformed_functions_are_rejected_at_their_position() {
    refused("", 0, "begins with the name");
    refused("  (", 2, "begins with the name");
    refused(
        "Redact",
        0,
        "`Redact` is not a function: write one of `keep`, `redact`",
    );
    refused("redact x", 7, "`(` or the end");
    refused("redact(", 7, "a value is missing");
    refused("redact(x)", 7, "an argument has a name");
    refused("redact(with=1)", 12, "quoted string");
    refused("redact(with=\"a", 13, "closing quote");
    refused("redact(with=\"\\x\")", 13, "an escape is one of");
    refused("redact(with=\"\\u{d800}\")", 13, "an escape is one of");
    refused("redact(with=\"\n\")", 13, "a control character");
    refused("redact(with=a b)", 14, "`,` or `)`");
    refused("redact(with=a-b)", 12, "a word has letters");
    refused("redact(with=\"a\", with=\"b\")", 17, "there twice");
    refused(
        "redact(colour=red)",
        7,
        "`colour` is unknown: `redact` takes `with`",
    );
    refused("null(1)", 5, "`null` takes no arguments");
    refused("keep(domain=x)", 5, "`keep` takes no arguments");
    refused("fixed", 5, "needs its value");
    refused("fixed(1, 2)", 9, "an argument has a name");
    refused("fixed(1x)", 6, "neither a number nor a word");
    refused("fixed(1e999)", 6, "neither a number nor a word");
    refused("partial", 7, "`first`, `last` or both");
    refused("partial(first=65)", 14, "from 0 to 64");
    refused("partial(first=-1)", 14, "from 0 to 64");
    refused("partial(first=1.5)", 14, "from 0 to 64");
    refused("partial(first=1, with=\"**\")", 22, "one character");
    refused(
        "partial(first=1, domain=x)",
        17,
        "`partial` takes `first`, `last` and `with`",
    );
    refused("email(keep=all)", 11, "`none` or `domain`");
    refused("email(domain=\"\")", 13, "1 to 256 bytes");
    refused("email(subject=id)", 6, "`email` takes `keep` and `domain`");
    refused("card(last=5)", 10, "from 0 to 4");
    refused("card(luhn=maybe)", 10, "`valid` or `invalid`");
    refused("hash(length=15)", 12, "from 16 to 64");
    refused("pseudonym", 9, "pseudonym(list=first_names)");
    refused("fpe(alphabet=greek)", 13, "`digits`, `hex`");
    refused("date_shift", 10, "either `days`");
    refused("date_shift(days=1, within=2)", 10, "either `days`");
    refused("date_shift(days=0)", 16, "not 0");
    refused(
        "date_shift(days=1, subject=x)",
        19,
        "`subject` does not go with",
    );
    refused("fixed(1, value=2)", 9, "`value` does not go with");
    refused("date_shift(within=0)", 18, "from 1 to 36500");
    refused("generalize", 10, "one of `step`");
    refused("generalize(step=0)", 16, "from 1");
    refused("generalize(date=day)", 16, "`month` or `year`");
    refused("noise", 5, "either `percent`");
    refused("noise(by=1, min=2, max=1)", 23, "from 2 to");
    refused("noise(by=1, min=0.5)", 16, "whole number");
    refused("noise(percent=0)", 14, "0.0001 to 100");
    refused("noise(percent=100.5)", 14, "0.0001 to 100");
    refused("noise(percent=1.00001)", 14, "0.0001 to 100");
    refused(
        &format!("redact(with=\"{}\")", "x".repeat(257)),
        13,
        "more than 256 bytes",
    );
    refused(
        &format!("redact{}", " ".repeat(1_100)),
        0,
        "more than 1024 bytes",
    );
}

proptest! {
    #[test]
    fn any_text_parses_to_what_prints_the_same_or_is_refused_inside_itself(
        text in "(redact|fixed|partial|noise|email|pseudonym)\\(?[a-z_]{0,8}=?[-0-9a-z.\"\\\\u{} é]{0,12}\\)?",
    ) {
        match text.parse::<Function>() {
            Ok(function) => prop_assert_eq!(function.to_string().parse::<Function>(), Ok(function)),
            Err(error) => prop_assert!(error.at <= text.len() && text.is_char_boundary(error.at)),
        }
    }

    #[test]
    fn any_replacement_reads_back(text: String) {
        prop_assume!(text.len() <= 60);
        let function: Function = format!("redact(with=\"{}\")", text.replace('\\', "\\\\").replace('"', "\\\""))
            .chars().flat_map(|c| if c.is_control() { c.escape_unicode().collect::<Vec<_>>() } else { vec![c] })
            .collect::<String>().parse().expect("an escaped text");
        prop_assert_eq!(function.to_string().parse::<Function>(), Ok(function));
    }
}
