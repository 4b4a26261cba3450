//! E-mail addresses: RFC 5321 without quoted local parts, comments and address literals.

pub(super) fn is_email(text: &str) -> bool {
    let Some((local, domain)) = text.rsplit_once('@') else {
        return false;
    };
    is_local(local) && is_domain(domain)
}

fn is_local(local: &str) -> bool {
    (1..=64).contains(&local.len())
        && local.split('.').all(|atom| {
            !atom.is_empty()
                && atom.chars().all(|c: char| {
                    c.is_ascii_alphanumeric()
                        || "!#$%&'*+-/=?^_`{|}~".contains(c)
                        || is_international(c)
                })
        })
}

fn is_domain(domain: &str) -> bool {
    let Some((_, top)) = domain.rsplit_once('.') else {
        return false;
    };

    domain.len() <= 255
        && domain.split('.').all(|label: &str| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .chars()
                    .all(|c: char| c.is_ascii_alphanumeric() || c == '-' || is_international(c))
        })
        && top.chars().count() >= 2
        && !top.chars().all(|c| c.is_ascii_digit())
}

fn is_international(c: char) -> bool {
    !c.is_ascii() && c.is_alphanumeric()
}
