//! Masking jobs over rows in COPY's text format.

use std::sync::LazyLock;

use sealwire_data::mask_job::fuzzing;

use crate::job::{Choice, MaskChoice, NOTHING, check};
use crate::seed::words as list;
use crate::{Input, Seed};

static RULES: LazyLock<Choice> = LazyLock::new(|| {
    Choice::new(&[
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"name\"\nmask = \"redact\"\n[[rule]]\ncolumn = \"notes\"\nmask = \"redact\"\n",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"people.born\"\nmask = \"date_shift(within=30, subject=id)\"\n[[rule]]\ncolumn = \"id\"\nmask = \"fpe\"\n[[rule]]\ncolumn = \"active\"\nmask = \"redact\"\n",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"shop.people.paid\"\nmask = \"noise(percent=10)\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n[[rule]]\nkind = \"email\"\nmask = \"keep\"\n",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"paid\"\nmask = \"generalize(step=10)\"\n[[rule]]\ncolumn = \"name\"\nmask = \"date_shift(within=9, subject=notes)\"\n",
    ])
});

/// Masks rows. Settings: bytes of a chunk, rules, masked values.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let chunk = input.byte();
    let rules = input.byte();
    let answer = MaskChoice::of(input.byte());
    // A masked value of a JSON column becomes a JSON string. Masking this string again makes it
    // longer, so the output is not fixed.
    let setting = (chunk, answer, rules % 4 != 0);
    let text = input.0;
    let rules = RULES.of(rules);
    let masked = check(text, setting, |text, limits, mask| {
        fuzzing::rows(text, rules, limits, mask)
    });
    let kept = check(text, setting, |text, limits, mask| {
        fuzzing::rows(text, &NOTHING, limits, mask)
    });
    assert!(kept.as_ref().is_none_or(|kept| kept.text == text));
    if let (Some(masked), Some(kept)) = (&masked, &kept) {
        assert_eq!(masked.records, kept.records);
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let texts = [
        (
            "rows",
            "1\tAnn\t1.50\tt\t{\"a\":1}\t2024-01-31\n2\t\\N\t-3\tf\t\\N\t1999-12-31\n",
        ),
        (
            "escapes",
            "-7\ta\\tb\\n\\\\\\b\\f\\v\\r\\x\t1e300\t\\N\t\"\\\\u0041\"\tinfinity\n",
        ),
        (
            "numbers",
            "18446744073709551615\t4111111111111111\tNaN\tt\t[]\t\n9223372036854775808\tb@example.com\t0.10\tx\t1\t0\n",
        ),
        ("empty", ""),
        ("short", "1\t2\n"),
        ("no-newline", "1\tä\t2\tt\t3\t4"),
        ("backslash-end", "1\t\\\t2\tt\t3\t4\n"),
    ];
    let mut seeds = Vec::new();
    for (name, text) in texts {
        for rules in 0..4 {
            seeds.push(Seed::new(
                format!("{name}-{rules}"),
                &[9, rules, rules],
                text,
            ));
        }
    }
    let mut bytes = b"1\t\xff\t2\tt\t3\t4\n".to_vec();
    bytes.extend(b"2\tx\t2\tt\t3\t4\n");
    seeds.push(Seed::new("not-utf8", &[9, 0, 1], bytes));
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    let row = "1\tAnn\t1.5\tt\t{}\t2024-01-31\n";
    list([
        row,
        "\\N",
        "\\t",
        "\\n",
        "\\\\",
        "\\b",
        "\t\t",
        "\tt\t",
        "1e5",
        "NaN",
        "4111111111111111",
        "b@example.com",
    ])
}
