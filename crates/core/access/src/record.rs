//! Stored records of roles and bindings: JSON with a format number. Unknown fields are errors.

use serde::{Deserialize, Serialize};

use crate::mask::MaskText;
use crate::operation::{Operation, Operations};
use crate::principal::{Principal, PrincipalKind};
use crate::role::{Grant, Names, Role, RoleName};

/// Format number of records.
const FORMAT: u32 = 1;
/// Maximum number of roles per principal.
pub const ROLES_MAX: usize = 64;

/// The reason why a record cannot be read. The text can quote names from the record, and nothing
/// else of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RecordError(String);

/// Returns the store key of a role.
pub fn role_key(name: &RoleName) -> String {
    format!("role/{name}")
}

/// Returns the store key of a principal's binding. The key includes the kind, so that equal names
/// of different kinds have different keys.
pub fn principal_key(principal: &Principal) -> String {
    let kind = match principal.kind() {
        PrincipalKind::Spiffe => "spiffe",
        PrincipalKind::Dns => "dns",
        PrincipalKind::CommonName => "cn",
        PrincipalKind::Jwt => "jwt",
    };
    format!("principal/{kind}/{}", principal.as_str())
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleRecord {
    format: u32,
    role: String,
    grants: Vec<GrantRecord>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrantRecord {
    operations: Vec<String>,
    /// A single `*` means all.
    apps: Vec<String>,
    collections: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    properties: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    reason: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mask: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hourly: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BindingRecord {
    format: u32,
    principal: String,
    roles: Vec<String>,
}

#[derive(Deserialize)]
struct FormatField {
    format: u32,
}

fn read<'a, T: Deserialize<'a>>(record: &'a [u8]) -> Result<T, RecordError> {
    let FormatField { format } = serde_json::from_slice(record)?;
    if format != FORMAT {
        return Err(RecordError(format!("format {format} is not {FORMAT}")));
    }
    Ok(serde_json::from_slice(record)?)
}

impl From<serde_json::Error> for RecordError {
    /// Keeps serde's error text, which can quote names from the record. An operator wrote those
    /// names, so they can be shown.
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

impl From<crate::RoleError> for RecordError {
    fn from(error: crate::RoleError) -> Self {
        Self(error.to_string())
    }
}

impl GrantRecord {
    fn of(grant: &Grant) -> Self {
        Self {
            operations: grant
                .operations
                .iter()
                .map(|operation| operation.name().to_owned())
                .collect(),
            apps: owned_texts(&grant.apps),
            collections: owned_texts(&grant.collections),
            properties: grant.properties.as_ref().map(owned_texts),
            reason: grant.reason,
            mask: grant.mask.as_ref().map(ToString::to_string),
            hourly: grant.hourly,
            until: grant.until,
        }
    }

    fn to_grant(&self) -> Result<Grant, RecordError> {
        let mut operations = Operations::NONE;
        for name in &self.operations {
            let known = Operation::from_name(name).ok_or_else(|| {
                RecordError(format!(
                    "a later version of Sealwire wrote the operation {name:?}; upgrade this program"
                ))
            })?;
            operations = operations.and(known.into());
        }

        Ok(Grant {
            operations,
            apps: parse_names(&self.apps)?,
            collections: parse_names(&self.collections)?,
            mask: self.mask.as_deref().map(MaskText::new).transpose()?,
            properties: self.properties.as_deref().map(parse_names).transpose()?,
            reason: self.reason,
            hourly: self.hourly,
            until: self.until,
        })
    }
}

fn owned_texts(names: &Names) -> Vec<String> {
    names.texts().into_iter().map(str::to_owned).collect()
}

fn parse_names(names: &[String]) -> Result<Names, crate::RoleError> {
    Names::of(names.iter().map(String::as_str))
}

impl Role {
    /// Serializes the role to a record.
    pub fn to_record(&self) -> Vec<u8> {
        let grants = self.grants().iter().map(GrantRecord::of).collect();
        let record = RoleRecord {
            format: FORMAT,
            role: self.name().as_str().into(),
            grants,
        };
        serde_json::to_vec(&record).expect("lists of text are JSON")
    }

    /// Parses the record of a role and checks that the record belongs to that key.
    ///
    /// # Errors
    /// [`RecordError`], also if the record names an operation that this program does not know.
    /// Skipping an unknown operation would silently change the role when an operator edits it.
    pub fn from_record(key: &str, record: &[u8]) -> Result<Self, RecordError> {
        let RoleRecord { role, grants, .. } = read(record)?;
        let grants: Result<_, RecordError> = grants.iter().map(GrantRecord::to_grant).collect();
        let role = Self::new(&role, grants?)?;
        if role_key(role.name()) == key {
            Ok(role)
        } else {
            Err(RecordError(
                "the record names another role than its key in the store".into(),
            ))
        }
    }
}

/// The roles of a principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The principal.
    pub principal: Principal,
    /// The roles, sorted, 1 to [`ROLES_MAX`]. A role need not exist.
    pub roles: Vec<RoleName>,
}

impl Binding {
    /// Serializes the binding to a record.
    pub fn to_record(&self) -> Vec<u8> {
        let roles = self
            .roles
            .iter()
            .map(|role| role.as_str().to_owned())
            .collect();
        let record = BindingRecord {
            format: FORMAT,
            principal: self.principal.to_text(),
            roles,
        };
        serde_json::to_vec(&record).expect("lists of text are JSON")
    }

    /// Parses the record of a binding and checks that the record belongs to that key.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn from_record(key: &str, record: &[u8]) -> Result<Self, RecordError> {
        let BindingRecord {
            principal, roles, ..
        } = read(record)?;
        let principal = Principal::from_text(&principal)
            .ok_or_else(|| RecordError("not a principal's name".into()))?;
        if principal_key(&principal) != key {
            return Err(RecordError(
                "the record names another principal than its key in the store".into(),
            ));
        }
        if !(1..=ROLES_MAX).contains(&roles.len()) {
            return Err(RecordError(format!(
                "a principal has 1 to {ROLES_MAX} roles"
            )));
        }
        let roles = roles
            .iter()
            .map(|role| RoleName::new(role))
            .collect::<Result<_, _>>();
        Ok(Self {
            principal,
            roles: roles.map_err(|error| RecordError(error.to_string()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_round_trip_through_json() {
        let operations = || {
            [Operation::Decrypt, Operation::Encrypt]
                .into_iter()
                .collect()
        };
        let grant = |names: &[&str], reason| {
            let apps = Names::of(names.iter().copied()).unwrap();
            Grant {
                apps,
                reason,
                ..Grant::on_all(operations())
            }
        };
        let objects =
            Grant::from_text("objects.get apps=a properties=name until=2027-01-31T00:00:00Z")
                .unwrap();
        let masked = Grant {
            mask: Some(MaskText::new("fixed(\"n/a\")").unwrap()),
            ..Grant::on_all(Operation::Decrypt.into())
        };
        let masked = Grant {
            hourly: Some(100),
            ..masked
        };
        let role = Role::new(
            "support",
            vec![
                grant(&["shop"], true),
                grant(&["*"], false),
                masked,
                objects,
            ],
        )
        .unwrap();
        let text = String::from_utf8(role.to_record()).unwrap();
        assert_eq!(
            text,
            "{\"format\":1,\"role\":\"support\",\"grants\":[\
             {\"operations\":[\"encrypt\",\"decrypt\"],\"apps\":[\"shop\"],\"collections\":[\"*\"],\"reason\":true},\
             {\"operations\":[\"encrypt\",\"decrypt\"],\"apps\":[\"*\"],\"collections\":[\"*\"]},\
             {\"operations\":[\"decrypt\"],\"apps\":[\"*\"],\"collections\":[\"*\"],\"mask\":\"fixed(\\\"n/a\\\")\",\"hourly\":100},\
             {\"operations\":[\"objects.get\"],\"apps\":[\"a\"],\"collections\":[\"*\"],\"properties\":[\"name\"],\"until\":1801353600}]}"
        );
        assert_eq!(Role::from_record("role/support", text.as_bytes()), Ok(role));
    }

    #[test]
    fn invalid_role_records_are_errors() {
        let record = |grant: &str| format!("{{\"format\":1,\"role\":\"r\",\"grants\":[{grant}]}}");
        let good = "{\"operations\":[\"encrypt\"],\"apps\":[\"*\"],\"collections\":[\"*\"]}";
        assert!(Role::from_record("role/r", record(good).as_bytes()).is_ok());
        for (key, text) in [
            ("role/x", record(good)),
            ("role/r", record(good).replace(":1", ":2")),
            ("role/r", record(&good.replace("encrypt", "fly"))),
            ("role/r", record(&good.replace("encrypt", "tokens.*"))),
            ("role/r", record(&good.replacen("[\"*\"]", "[]", 1))),
            ("role/r", record(&good.replacen("[\"encrypt\"]", "[]", 1))),
            ("role/r", record(&good.replace("}", ",\"deny\":true}"))),
            (
                "role/r",
                record(&good.replace("}", ",\"mask\":\"redact\"}")),
            ),
            (
                "role/r",
                record(
                    &good
                        .replace("encrypt", "decrypt")
                        .replace("}", ",\"mask\":\"\"}"),
                ),
            ),
            (
                "role/r",
                record("{\"operations\":[\"encrypt\"],\"apps\":[\"*\"]}"),
            ),
            ("role/r", record(&good.replace("}", ",\"hourly\":0}"))),
            (
                "role/r",
                record(&good.replace("}", ",\"properties\":[\"*\"]}")),
            ),
            ("role/r", record(&good.replace("encrypt", "objects.get"))),
            (
                "role/r",
                record(
                    &good
                        .replace("encrypt", "apps.list")
                        .replace("}", ",\"hourly\":5}"),
                ),
            ),
            (
                "role/administrator",
                record(good).replace("\"r\"", "\"administrator\""),
            ),
            ("role/r", "{".into()),
        ] {
            assert!(Role::from_record(key, text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_binding_is_of_its_key_alone() {
        let spiffe = Principal::from_text("spiffe://org/relay").unwrap();
        let relay = Principal::from_text("relay").unwrap();
        let same = Principal::from_text("cn:relay").unwrap();
        let roles = vec![RoleName::new("a").unwrap(), RoleName::new("b").unwrap()];
        for (principal, key) in [
            (&relay, "principal/dns/relay"),
            (&same, "principal/cn/relay"),
            (&spiffe, "principal/spiffe/spiffe://org/relay"),
        ] {
            assert_eq!(principal_key(principal), key);
            let binding = Binding {
                principal: principal.clone(),
                roles: roles.clone(),
            };
            assert_eq!(
                Binding::from_record(key, &binding.to_record()),
                Ok(binding.clone())
            );
            for other in [&relay, &same, &spiffe]
                .into_iter()
                .filter(|other| *other != principal)
            {
                assert!(
                    Binding::from_record(&principal_key(other), &binding.to_record()).is_err(),
                    "{key}"
                );
            }
        }
        let none = Binding {
            principal: relay,
            roles: vec![],
        };
        assert!(Binding::from_record("principal/dns/relay", &none.to_record()).is_err());
    }
}
