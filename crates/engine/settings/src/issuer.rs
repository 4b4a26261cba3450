//! `[issuer.NAME]`: issuers of bearer tokens.

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use sealwire_service::bearer::{Algorithm, IssuerOptions, JwksUrl, KeySource, is_quotable};
use sealwire_service::settings::{Kind, ListKind, Problem, Problems};
use toml::{Table, Value};

use crate::key::Values;

/// Name of the section.
const SECTION: &str = "issuer";
/// Largest number of issuers.
const ISSUERS_MAX: usize = 16;
/// Algorithms of an issuer whose settings name none.
const ALGORITHMS_DEFAULT: [Algorithm; 2] = [Algorithm::Es256, Algorithm::Rs256];

/// A list of audiences.
pub(crate) const AUDIENCES: Kind = Kind::List(&ListKind {
    takes: "a list of texts",
    expected: "must be a list of at least one text of visible ASCII without quotes and backslashes, such as [\"sealwire\"]",
    is_valid: |audiences| {
        !audiences.is_empty() && audiences.iter().all(|audience| is_quotable(audience))
    },
});

/// A list of algorithms.
pub(crate) const ALGORITHMS: Kind = Kind::List(&ListKind {
    takes: "a list of texts",
    expected: "must be a list of ES256, ES384, EdDSA, RS256, RS384, RS512, PS256, PS384 and PS512, each once at most. \
               Algorithms with a shared secret (HS256) and none are not accepted",
    is_valid: |names| {
        let mut known = HashSet::new();
        names
            .iter()
            .all(|name| Algorithm::from_name(name).is_some() && known.insert(*name))
    },
});

/// The issuers of a configuration, in the order of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issuers(pub Vec<IssuerOptions>);

impl Issuers {
    /// Takes all sections out of checked values. Settings of the source of keys that contradict each
    /// other become problems.
    pub(crate) fn take(values: &mut Values, folder: &Path, problems: &mut Problems) -> Self {
        let Some(Value::Table(tables)) = values.0.remove(SECTION) else {
            return Self::default();
        };
        let mut issuers = Vec::new();
        for (name, table) in tables {
            let mut own = Values(Table::from_iter([(SECTION.to_owned(), table)]));
            issuers.extend(take_one(name, &mut own, folder, problems));
        }
        let issuers = Self(issuers);
        issuers.check(problems);
        issuers
    }

    fn check(&self, problems: &mut Problems) {
        if self.0.len() > ISSUERS_MAX {
            let message = format!("has more than {ISSUERS_MAX} tables. Remove some");
            problems.push(Problem::new(SECTION, message));
        }
        let mut known = HashSet::new();
        for options in &self.0 {
            if !known.insert(&options.issuer) {
                problems.push(Problem::new(
                    format!("{SECTION}.{}.issuer", options.name),
                    "is that of another table too, so a token would have two principals. Use one table with several audiences",
                ));
            }
        }
    }
}

fn take_one(
    name: String,
    own: &mut Values,
    folder: &Path,
    problems: &mut Problems,
) -> Option<IssuerOptions> {
    let mut complain = |key: &str, message: &str| {
        problems.push(Problem::new(format!("{SECTION}.{name}.{key}"), message));
    };
    let issuer = own.text(SECTION, "issuer");
    if !is_quotable(&issuer) {
        complain(
            "issuer",
            "must be 1 to 1,024 visible ASCII characters without quotes and backslashes: the exact claim iss of the tokens",
        );
    }
    let principal_claim = own.text(SECTION, "principal_claim");
    if !is_quotable(&principal_claim) {
        complain(
            "principal_claim",
            "must be the name of a claim, such as \"sub\"",
        );
    }
    let names = own.list(SECTION, "algorithms");
    let algorithms = if names.is_empty() {
        ALGORITHMS_DEFAULT.to_vec()
    } else {
        names
            .iter()
            .filter_map(|name| Algorithm::from_name(name))
            .collect()
    };

    let file = own.optional_path(SECTION, "jwks_file", folder);
    let url = own.text(SECTION, "jwks_url");
    let ca = own.optional_path(SECTION, "jwks_ca", folder);
    let refresh = Duration::from_secs(own.number(SECTION, "jwks_refresh_s"));
    let stale = Duration::from_secs(own.number(SECTION, "jwks_stale_s"));
    if !url.is_empty() && stale <= refresh {
        complain(
            "jwks_stale_s",
            "must be greater than jwks_refresh_s. Otherwise keys become too old between two fetches",
        );
    }
    let keys = match (file, &*url, ca) {
        (Some(file), "", None) => Some(KeySource::File(file)),
        (Some(_), "", Some(_)) => {
            complain("jwks_ca", "is for jwks_url only. Remove it");
            None
        }
        (Some(_), _, _) => {
            complain("jwks_url", "is set, and so is jwks_file. Set one of them");
            None
        }
        (None, "", _) => {
            complain(
                "jwks_file",
                "is empty, and so is jwks_url, so no token could be verified. Set one of them",
            );
            None
        }
        (None, _, None) => {
            complain(
                "jwks_ca",
                "is empty, so the server of jwks_url is not trusted. Set it to the PEM file of its authorities, such as /etc/ssl/certs/ca-certificates.crt",
            );
            None
        }
        (None, text, Some(ca)) => match JwksUrl::parse(text) {
            Some(url) => Some(KeySource::Url {
                url,
                ca,
                refresh,
                stale,
            }),
            None => {
                complain(
                    "jwks_url",
                    "must be a URL such as https://issuer.example/keys, without a user or password",
                );
                None
            }
        },
    };
    Some(IssuerOptions {
        issuer,
        audiences: own.list(SECTION, "audiences"),
        algorithms,
        principal_claim,
        skew_s: own.number(SECTION, "skew_s"),
        keys: keys?,
        name,
    })
}
