//! Masking jobs over CSV.

use std::sync::LazyLock;

use sealwire_data::mask_job::{FileFormat, fuzzing};

use crate::job::{Choice, MaskChoice, NOTHING, check};
use crate::seed::words as list;
use crate::{Input, Seed};

static RULES: LazyLock<Choice> = LazyLock::new(|| {
    Choice::new(&[
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"a\"\nmask = \"redact\"\n",
        "unknown = \"refuse\"\n[[rule]]\ncolumn = \"a\"\nmask = \"date_shift(within=30, subject=b)\"\n[[rule]]\ncolumn = \"b\"\nmask = \"keep\"\n",
        "unknown = \"keep\"\n[[rule]]\ncolumn = \"b\"\nmask = \"hash\"\n[[rule]]\nkind = \"card\"\nmask = \"card\"\n[[rule]]\nkind = \"email\"\nmask = \"keep\"\n",
        "unknown = \"refuse\"\n[[rule]]\nkind = \"email\"\nmask = \"email\"\n[[rule]]\nkind = \"card\"\nmask = \"keep\"\n",
    ])
});

/// Masks a text. Settings: delimiter, bytes of a chunk, rules, masked values.
pub(crate) fn check_input(input: &[u8]) {
    let mut input = Input(input);
    let format = FileFormat::Csv {
        delimiter: [b',', b';', b'\t'][usize::from(input.byte() % 3)],
    };
    let chunk = input.byte();
    let rules = input.byte();
    let answer = MaskChoice::of(input.byte());
    let setting = (chunk, answer, true);
    let text = input.0;
    let rules = RULES.of(rules);
    let masked = check(text, setting, |text, limits, mask| {
        fuzzing::file(text, format, rules, limits, mask)
    });
    let kept = check(text, setting, |text, limits, mask| {
        fuzzing::file(text, format, &NOTHING, limits, mask)
    });
    assert!(kept.as_ref().is_none_or(|kept| kept.text == text));
    assert!(
        masked.is_none() || kept.is_some(),
        "rules make no text valid"
    );
    if let (Some(masked), MaskChoice::Same) = (&masked, answer) {
        assert_eq!(masked.text, text, "the same answers leave every byte");
    }
    if let (Some(masked), Some(kept)) = (&masked, &kept) {
        assert_eq!(masked.records, kept.records);
    }
}

pub(crate) fn make_seeds() -> Vec<Seed> {
    let texts = [
        ("plain", 0, "a,b\n1,2\n3,4\n"),
        (
            "quoted",
            0,
            "a,b\r\n\"x,\"\"y\"\"\n\",\"\"\r\n,z\r\n\n\"\n\",\"4111111111111111\"\r\n",
        ),
        (
            "semicolon",
            1,
            "\u{feff}b;a;c\n7;2024-01-31;\n8;\"2024-02-01\";é\n",
        ),
        ("tabs", 2, "a\tb\nx@example.com\t4111 1111 1111 1111\n"),
        ("one-column", 0, "a\nx\n\"\"\ny"),
        (
            "kinds",
            0,
            "x,y\nx@example.com,4111111111111111\n,5555555555554444\n",
        ),
        ("broken-quote", 0, "a,b\n1,\"2\n3,4\n"),
        ("broken-count", 0, "a,b\n1,2,3\n"),
        ("carriage-return", 0, "a,b\n1\r,2\n"),
    ];
    let mut seeds = Vec::new();
    for (name, delimiter, text) in texts {
        for rules in 0..4 {
            seeds.push(Seed::new(
                format!("{name}-{rules}"),
                &[delimiter, 5, rules, rules + 1],
                text,
            ));
        }
    }
    seeds
}

pub(crate) fn dictionary_words() -> Vec<Vec<u8>> {
    list([
        "a,b\n",
        "\"\"",
        "\",\"",
        "\"\n\"",
        "\r\n",
        "\n\n",
        ",,",
        "\"\"\"",
        "4111111111111111",
        "x@example.com",
        "\u{feff}",
    ])
}
