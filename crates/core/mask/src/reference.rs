//! Properties of each function: accepted values and information that a masked value reveals. The
//! table appears in `docs/masking.md`, and the tests check the functions against it.

use std::fmt::Write as _;

/// The uniqueness of masked values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unique {
    /// Different values can have equal masked values.
    No,
    /// Different values always have different masked values.
    Yes,
    /// Different values have different masked values, except with probability 2^-`0` per pair.
    Nearly(u32),
}

/// A function with typical arguments.
#[derive(Debug)]
pub(crate) struct FunctionRow {
    /// The function as written in rules.
    pub(crate) function: &'static str,
    /// Accepted values.
    pub(crate) takes: &'static str,
    /// True if equal values always have equal masked values, under the same key if the function
    /// uses a key.
    pub(crate) is_consistent: bool,
    pub(crate) unique: Unique,
    /// The condition under which `unique` holds.
    pub(crate) unique_for: &'static str,
    pub(crate) reversible: &'static str,
    pub(crate) form: &'static str,
    /// Information for an attacker who has the masked values but not the key.
    pub(crate) learns: &'static str,
}

const NO: &str = "no";
const BY_KEY: &str = "with the key, by the engine alone; no call does it";

/// All rows, in the order of the documentation.
pub(crate) const ROWS: [FunctionRow; 26] = [
    FunctionRow {
        function: "keep",
        takes: "any value",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: "",
        reversible: "it is the value",
        form: "the value itself",
        learns: "the value",
    },
    FunctionRow {
        function: "redact",
        takes: "any value",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "type kept: `[redacted]` or the text of `with`, 0, false, empty binary",
        learns: "that there was a value, and its type",
    },
    FunctionRow {
        function: "fixed(\"n/a\")",
        takes: "any value",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "that string, integer, float or boolean",
        learns: "that there was a value",
    },
    FunctionRow {
        function: "null",
        takes: "any value",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "nil",
        learns: "nothing, not even whether there was a value",
    },
    FunctionRow {
        function: "partial(first=1, last=4)",
        takes: "strings",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "as many characters; a value too short to hide any is hidden whole",
        learns: "the characters shown, and how many there are",
    },
    FunctionRow {
        function: "email",
        takes: "strings with `@`",
        is_consistent: true,
        unique: Unique::Nearly(80),
        unique_for: "; 2^20 for spellings of one address in different case",
        reversible: NO,
        form: "an address of `example.com`, `.net` or `.org`",
        learns: "which addresses are equal, and which differ only in case",
    },
    FunctionRow {
        function: "email(keep=domain)",
        takes: "strings with `@`",
        is_consistent: true,
        unique: Unique::Nearly(80),
        unique_for: "; as above",
        reversible: NO,
        form: "an address of the same domain: mail to it may reach a mailbox there",
        learns: "as above, and the domain, which may name a family or a firm",
    },
    FunctionRow {
        function: "phone",
        takes: "strings of 3 to 20 digits, spaces and `-./()`, `+` in front",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: ", where 6 digits or more are replaced; separators do not count",
        reversible: BY_KEY,
        form: "kept; calling code behind `+` or `00`, and one leading zero, stay. May be somebody's number",
        learns: "calling code, count of digits, separators, which numbers are equal",
    },
    FunctionRow {
        function: "phone(last=2)",
        takes: "as above",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: ", as above",
        reversible: BY_KEY,
        form: "as above",
        learns: "as above, and the last digits",
    },
    FunctionRow {
        function: "card",
        takes: "strings of 12 to 19 digits, spaces and hyphens",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: " among numbers that pass Luhn, where 6 digits or more are free: length - `first` - `last` - 1",
        reversible: BY_KEY,
        form: "kept, passes Luhn; the last 4 digits stay. May be somebody's card",
        learns: "the digits that stay, the length, which cards are equal",
    },
    FunctionRow {
        function: "card(first=6, luhn=invalid)",
        takes: "as above",
        is_consistent: true,
        unique: Unique::No,
        unique_for: ": of 16 digits 5 are free, 100,000 cards for each bank and last 4 digits",
        reversible: NO,
        form: "kept, never passes Luhn, so it is nobody's card; the first 6 and last 4 digits stay",
        learns: "as above; of the first 6 digits the bank",
    },
    FunctionRow {
        function: "iban",
        takes: "strings that are valid IBANs, with 6 to 22 digits behind the check digits",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: "; spaces do not count",
        reversible: BY_KEY,
        form: "kept, with valid check digits; country and letters stay, in some countries the bank's. May be somebody's account",
        learns: "the country, the letters, the spaces, which accounts are equal",
    },
    FunctionRow {
        function: "mac",
        takes: "strings of 12 or 16 hexadecimal digits, with `:`, `-` and `.` between them",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: "; separators and case do not count",
        reversible: BY_KEY,
        form: "kept; the bits for groups and for local administration stay. May be somebody's device",
        learns: "these two bits, the separators, which addresses are equal",
    },
    FunctionRow {
        function: "postal_code",
        takes: "strings of 2 to 12 letters (`A-Z`, `a-z`) and digits, with spaces and hyphens between them",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "letters stay letters and digits stay digits; it need not be a code of the country",
        learns: "the form, and which codes are equal",
    },
    FunctionRow {
        function: "hash",
        takes: "strings, integers, binary",
        is_consistent: true,
        unique: Unique::Nearly(128),
        unique_for: ": 4 bits for each character of `length`",
        reversible: NO,
        form: "32 hexadecimal digits, or `length`",
        learns: "which values are equal, and how often each is there",
    },
    FunctionRow {
        function: "pseudonym(list=full_names)",
        takes: "strings, integers, binary",
        is_consistent: true,
        unique: Unique::No,
        unique_for: ": a list is finite",
        reversible: NO,
        form: "an entry of the list",
        learns: "what may be equal: values of different entries are not",
    },
    FunctionRow {
        function: "fpe",
        takes: "strings of 6 to 56 characters of `alphabet`, which is `digits`, and separators ` -_./:()+,#`; integers of 7 digits or more, which are masked otherwise than their digits as a string",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: "",
        reversible: BY_KEY,
        form: "kept: length, separators, type",
        learns: "length, separators, which values are equal",
    },
    FunctionRow {
        function: "fpe(alphabet=alphanumeric)",
        takes: "strings of 4 to 32 letters and digits, and separators. `hex` takes 5 to 48, `lower` and `upper` 5 to 40, `alphanumeric_lower` and `alphanumeric_upper` 4 to 36, `letters` 4 to 32",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: "",
        reversible: BY_KEY,
        form: "kept: length, separators; letters and digits change places",
        learns: "as above",
    },
    FunctionRow {
        function: "date_shift(days=30)",
        takes: "strings: ISO dates, RFC 3339 date-times, SQL timestamps",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: "",
        reversible: "by whoever knows or guesses the shift",
        form: "kept; the time of day and its offset stay",
        learns: "with one date known, all of them; order, intervals, time of day",
    },
    FunctionRow {
        function: "date_shift(within=365)",
        takes: "as above",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "as above",
        learns: "the date to within 365 days; equal dates; time of day",
    },
    FunctionRow {
        function: "date_shift(within=365, subject=id)",
        takes: "as above, with a string or integer under `id` in the same map",
        is_consistent: true,
        unique: Unique::Yes,
        unique_for: " for each subject",
        reversible: "of a subject of whom one date is known",
        form: "as above",
        learns: "dates to within 365 days; the intervals between one subject's dates, to the second",
    },
    FunctionRow {
        function: "generalize(step=10)",
        takes: "integers, floats, strings of plain decimal numbers",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "kept: type, digits behind the point",
        learns: "the value to within `step`: much",
    },
    FunctionRow {
        function: "generalize(keep=3)",
        takes: "strings",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "the first characters, nothing behind them",
        learns: "those characters: all of a value that is no longer",
    },
    FunctionRow {
        function: "generalize(date=month)",
        takes: "dates, as `date_shift`",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "kept: the first of the month, or with `year` of January, at midnight",
        learns: "month or year: much",
    },
    FunctionRow {
        function: "noise(percent=10)",
        takes: "integers, floats, strings of plain decimal numbers of at most 30 digits; with `subject` as `date_shift`",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "kept: type, sign, digits behind the point",
        learns: "the value to within 10 percent or one unit of its last digit, but never the value itself; how many decimals are not zero; sums nearly",
    },
    FunctionRow {
        function: "noise(by=3)",
        takes: "as above",
        is_consistent: true,
        unique: Unique::No,
        unique_for: "",
        reversible: NO,
        form: "as above",
        learns: "the value to within 3, as above; sums nearly",
    },
];

/// Returns the table as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut table = String::from(
        "| function | takes | consistent | unique | reversible | form | who has the masked data learns |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for row in &ROWS {
        let unique = match row.unique {
            Unique::No => "no".to_owned(),
            Unique::Yes => "yes".to_owned(),
            Unique::Nearly(bits) => format!("yes, except one pair in 2^{bits}"),
        };
        let consistent = if row.is_consistent { "yes" } else { "no" };
        writeln!(
            table,
            "| `{}` | {} | {consistent} | {unique}{} | {} | {} | {} |",
            row.function, row.takes, row.unique_for, row.reversible, row.form, row.learns
        )
        .expect("a string takes all");
    }
    table
}

#[cfg(test)]
mod tests;
