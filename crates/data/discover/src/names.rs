//! Votes by the name of a column or key, in the context of its table.
//!
//! Names are split into lower-case words. Evidence shows only words of the tables below.

use crate::Category;

/// A vote by name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NameVote {
    pub(crate) category: Category,
    pub(crate) weight: f64,
    pub(crate) word: &'static str,
}

/// Words of a name by category, with a weight. Underscores separate words. English, German, Spanish
/// and French.
const PATTERNS: &[(Category, f64, &[&str])] = &[
    (
        Category::Email,
        0.9,
        &[
            "email",
            "e_mail",
            "email_address",
            "mail_address",
            "email_addr",
            "correo",
            "correo_electronico",
            "courriel",
            "email_adresse",
            "mail_adresse",
            "adresse_mail",
            "adresse_email",
            "emailadresse",
            "direccion_correo",
        ],
    ),
    (Category::Email, 0.6, &["mail"]),
    (
        Category::Phone,
        0.9,
        &[
            "phone",
            "phone_number",
            "telephone",
            "mobile",
            "mobile_number",
            "cell",
            "cell_phone",
            "fax",
            "fax_number",
            "telefon",
            "telefonnummer",
            "telefono",
            "handy",
            "handynummer",
            "mobil",
            "mobilnummer",
            "rufnummer",
            "movil",
            "celular",
            "msisdn",
            "numero_telephone",
            "numero_telefono",
            "home_phone",
            "work_phone",
        ],
    ),
    (Category::Phone, 0.8, &["tel", "extension", "portable"]),
    (
        Category::FirstName,
        0.9,
        &[
            "first_name",
            "fname",
            "forename",
            "given_name",
            "middle_name",
            "middle_initial",
            "vorname",
            "vornamen",
            "prenom",
            "prenoms",
            "primer_nombre",
            "segundo_nombre",
            "rufname",
        ],
    ),
    (
        Category::FirstName,
        0.8,
        &["first", "middle", "given", "nombre_pila"],
    ),
    (
        Category::LastName,
        0.9,
        &[
            "last_name",
            "lname",
            "surname",
            "family_name",
            "maiden_name",
            "maiden",
            "nachname",
            "familienname",
            "geburtsname",
            "apellido",
            "apellidos",
            "primer_apellido",
            "segundo_apellido",
            "nom_famille",
            "nom_de_famille",
            "second_name",
            "mothers_maiden_name",
        ],
    ),
    (Category::LastName, 0.7, &["last", "family"]),
    (
        Category::FullName,
        0.9,
        &[
            "full_name",
            "contact_name",
            "person_name",
            "customer_name",
            "employee_name",
            "patient_name",
            "user_full_name",
            "card_holder",
            "cardholder",
            "cardholder_name",
            "card_holder_name",
            "holder_name",
            "account_holder",
            "recipient_name",
            "ship_name",
            "ship_to_name",
            "display_name",
            "kundenname",
            "ansprechpartner",
            "kontoinhaber",
            "karteninhaber",
            "nombre_completo",
            "nom_complet",
            "emergency_contact",
            "signatory",
            "guest_name",
            "titulaire",
            "titular",
            "beneficiary",
            "beneficiario",
            "passenger_name",
            "student_name",
            "nombre_cliente",
            "nom_client",
        ],
    ),
    (
        Category::FullName,
        0.75,
        &["holder", "recipient", "addressee", "spouse", "next_of_kin"],
    ),
    (
        Category::Username,
        0.85,
        &[
            "user_name",
            "username",
            "login",
            "login_name",
            "login_id",
            "nickname",
            "nick_name",
            "screen_name",
            "benutzername",
            "nombre_usuario",
            "nom_utilisateur",
            "pseudo",
            "identifiant",
        ],
    ),
    (
        Category::Street,
        0.9,
        &[
            "address",
            "address_line",
            "addr",
            "street",
            "street_address",
            "street_name",
            "street_line",
            "strasse",
            "hausnummer",
            "house_number",
            "anschrift",
            "adresse",
            "rue",
            "calle",
            "direccion",
            "domicilio",
            "ship_address",
            "billing_address",
            "shipping_address",
            "home_address",
            "po_box",
            "postfach",
            "apartment",
        ],
    ),
    (
        Category::City,
        0.85,
        &[
            "city",
            "town",
            "wohnort",
            "ville",
            "ciudad",
            "municipality",
            "municipio",
            "commune",
            "birth_place",
            "birthplace",
            "place_of_birth",
            "geburtsort",
            "lugar_nacimiento",
            "lieu_naissance",
            "ship_city",
        ],
    ),
    (
        Category::City,
        0.75,
        &[
            "ort",
            "stadt",
            "county",
            "district",
            "suburb",
            "borough",
            "neighborhood",
            "localidad",
        ],
    ),
    (
        Category::PostalCode,
        0.85,
        &[
            "postal_code",
            "post_code",
            "postcode",
            "zip",
            "zip_code",
            "plz",
            "postleitzahl",
            "codigo_postal",
            "code_postal",
            "ship_postal_code",
        ],
    ),
    (
        Category::BirthDate,
        0.93,
        &[
            "birth_date",
            "date_of_birth",
            "dob",
            "birthday",
            "birthdate",
            "born",
            "birth_day",
            "year_of_birth",
            "birth_year",
            "geburtsdatum",
            "geburtstag",
            "geboren",
            "fecha_nacimiento",
            "fecha_de_nacimiento",
            "nacimiento",
            "date_naissance",
            "date_de_naissance",
            "naissance",
            "death_date",
            "deathdate",
            "date_of_death",
        ],
    ),
    (
        Category::NationalId,
        0.92,
        &[
            "ssn",
            "social_security",
            "social_security_number",
            "national_id",
            "national_id_number",
            "national_number",
            "passport",
            "passport_number",
            "passport_no",
            "drivers",
            "drivers_license",
            "driver_license",
            "driving_licence",
            "license_number",
            "tax_id",
            "tax_number",
            "tin",
            "steuer_id",
            "steuernummer",
            "steueridentifikationsnummer",
            "sozialversicherungsnummer",
            "ausweisnummer",
            "personalausweis",
            "reisepass",
            "dni",
            "nie",
            "nif",
            "cpf",
            "curp",
            "pesel",
            "nino",
            "personnummer",
            "bsn",
            "aadhaar",
            "nir",
            "numero_securite_sociale",
            "securite_sociale",
            "num_secu",
            "pasaporte",
            "passeport",
            "codice_fiscale",
            "hetu",
            "id_card_number",
            "national_identifier",
        ],
    ),
    (
        Category::Card,
        0.9,
        &[
            "card_number",
            "credit_card",
            "credit_card_number",
            "creditcard",
            "cc_number",
            "pan",
            "ccnum",
            "card_no",
            "kreditkarte",
            "kreditkartennummer",
            "kartennummer",
            "tarjeta",
            "numero_tarjeta",
            "numero_carte",
            "carte_bancaire",
        ],
    ),
    (
        Category::Secret,
        0.9,
        &[
            "cvv",
            "cvc",
            "password",
            "passwd",
            "pwd",
            "password_hash",
            "password_salt",
            "passwort",
            "kennwort",
            "contrasena",
            "mot_de_passe",
            "secret",
            "client_secret",
            "api_key",
            "apikey",
            "access_key",
            "secret_key",
            "private_key",
            "access_token",
            "refresh_token",
            "auth_token",
            "session_token",
            "salt",
            "otp",
            "pin_code",
            "security_answer",
            "recovery_code",
        ],
    ),
    (Category::Secret, 0.75, &["token", "pin", "session_id"]),
    (
        Category::BankAccount,
        0.92,
        &[
            "iban",
            "bank_account",
            "bank_account_number",
            "account_number",
            "kontonummer",
            "bankverbindung",
            "cuenta_bancaria",
            "numero_cuenta",
            "numero_compte",
            "compte_bancaire",
            "routing_number",
        ],
    ),
    (
        Category::IpAddress,
        0.85,
        &[
            "ip",
            "ip_address",
            "ip_addr",
            "client_ip",
            "remote_addr",
            "remote_ip",
            "last_ip",
            "ip_adresse",
            "direccion_ip",
            "adresse_ip",
        ],
    ),
    (
        Category::Identifier,
        0.85,
        &[
            "mac_address",
            "imei",
            "license_plate",
            "kennzeichen",
            "vin",
            "matricula",
            "plaque",
            "device_id",
            "advertising_id",
            "medical_record_number",
            "mrn",
            "versichertennummer",
            "policy_number",
            "user_agent",
            "personalnummer",
        ],
    ),
    (
        Category::Pay,
        0.85,
        &[
            "salary",
            "income",
            "wage",
            "gehalt",
            "lohn",
            "salaire",
            "salario",
            "bonus",
            "net_worth",
            "monthly_income",
        ],
    ),
    (
        Category::Special,
        0.85,
        &[
            "gender",
            "sex",
            "race",
            "ethnicity",
            "religion",
            "marital_status",
            "marital",
            "geschlecht",
            "genero",
            "sexo",
            "sexe",
            "familienstand",
            "estado_civil",
            "etat_civil",
            "nationality",
            "disability",
            "blood_type",
            "diagnosis",
            "konfession",
            "staatsangehoerigkeit",
            "staatsangehorigkeit",
            "nacionalidad",
            "nationalite",
            "sexual_orientation",
        ],
    ),
    (
        Category::Location,
        0.75,
        &[
            "latitude",
            "longitude",
            "lat",
            "lon",
            "lng",
            "geo_location",
            "coordinates",
        ],
    ),
    (
        Category::FreeText,
        0.5,
        &[
            "notes",
            "note",
            "comment",
            "comments",
            "remark",
            "remarks",
            "bio",
            "biography",
            "message",
            "bemerkung",
            "notiz",
            "notas",
            "comentario",
            "commentaire",
            "memo",
            "transcript",
            "about_me",
        ],
    ),
    (
        Category::Photo,
        0.8,
        &[
            "photo",
            "picture",
            "avatar",
            "portrait",
            "foto",
            "signature",
            "fingerprint",
            "photo_path",
        ],
    ),
];

/// Words of tables that hold persons.
const PERSONS: &[&str] = &[
    "customer",
    "user",
    "employee",
    "person",
    "people",
    "patient",
    "staff",
    "actor",
    "contact",
    "member",
    "client",
    "student",
    "teacher",
    "author",
    "guest",
    "owner",
    "subscriber",
    "passenger",
    "doctor",
    "nurse",
    "applicant",
    "candidate",
    "driver",
    "recipient",
    "kunde",
    "kunden",
    "mitarbeiter",
    "personen",
    "patienten",
    "benutzer",
    "cliente",
    "empleado",
    "persona",
    "usuario",
    "paciente",
    "employe",
    "personne",
    "utilisateur",
    "individual",
    "worker",
    "tenant_contact",
    "beneficiary",
    "insured",
    "voter",
    "schueler",
    "alumno",
    "salarie",
    "adherent",
];

/// Words for a bare name, which is a person's name only in a table of persons.
const BARE_NAMES: &[&str] = &["name", "nombre", "nom", "names"];

/// Last words of names that describe a thing instead of holding its value.
const DESCRIBES: &[&str] = &[
    "id",
    "type",
    "status",
    "count",
    "flag",
    "verified",
    "format",
    "code",
    "at",
    "on",
    "enabled",
    "template",
    "typ",
    "tipo",
    "anzahl",
    "confirmed",
    "optin",
    "length",
    "expires",
    "expiry",
    "expiration",
    "updated",
    "created",
    "sent",
    "limit",
    "method",
    "uuid",
    "guid",
    "key",
    "ts",
    "timestamp",
    "promotion",
    "verification",
    "required",
    "attempts",
];
const ASKS: &[&str] = &[
    "is", "has", "allow", "num", "total", "needs", "max", "min", "ist", "hat", "es",
];

/// Splits a name into lower-case words without accents and digits.
pub(crate) fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let chars: Vec<char> = name.chars().collect();
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let after = chars.get(at + 1);
        let starts_word = c.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_ascii_digit()
                    || before.is_uppercase() && after.is_some_and(|after| after.is_lowercase())
            });
        if starts_word || !c.is_alphabetic() {
            words.push(std::mem::take(&mut word));
        }
        if c.is_alphabetic() {
            c.to_lowercase().for_each(|c| match c {
                'ä' | 'á' | 'à' | 'â' | 'ã' | 'å' => word.push('a'),
                'é' | 'è' | 'ê' | 'ë' => word.push('e'),
                'í' | 'ì' | 'î' | 'ï' => word.push('i'),
                'ö' | 'ó' | 'ò' | 'ô' | 'õ' => word.push('o'),
                'ü' | 'ú' | 'ù' | 'û' => word.push('u'),
                'ñ' => word.push('n'),
                'ç' => word.push('c'),
                'ß' => word.push_str("ss"),
                c => word.push(c),
            });
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

/// Returns true if a table or parent object holds persons.
#[must_use]
pub fn is_of_persons(table: &str) -> bool {
    let words = words(table);
    words.iter().any(|word| is_person_word(word))
        && !words.iter().any(|word| word == "type" || word == "status")
}

/// Returns true for a word for persons, in the singular or plural.
fn is_person_word(word: &str) -> bool {
    PERSONS.iter().any(|known| {
        word == *known
            || word.strip_suffix('s') == Some(known)
            || word.strip_suffix("en") == Some(known)
    })
}

/// Last words of names of tables whose rows are not persons but belong to persons, as in
/// `user_attribute`.
const OF_PERSONS: &[&str] = &[
    "attribute",
    "property",
    "setting",
    "preference",
    "role",
    "group",
    "permission",
    "privilege",
    "option",
    "field",
    "feature",
    "flag",
    "tag",
    "label",
    "category",
    "level",
    "plan",
    "event",
    "action",
    "config",
];

/// Returns true if the rows of a table with a person's word are not persons.
fn is_of_attributes(table: &str) -> bool {
    let words = words(table);
    let Some(last) = words.last() else {
        return false;
    };
    OF_PERSONS.iter().any(|known| {
        let plural = match known.strip_suffix('y') {
            Some(stem) => format!("{stem}ies"),
            None => format!("{known}s"),
        };
        last == known || *last == plural
    })
}

/// Names without a meaning unless the table or object is known, as in `card.number`.
const NEEDS_TABLE: &[&str] = &["number", "no", "nr", "num", "line", "nummer", "numero"];

/// Judges a name. `table` is the table, file or parent key.
pub(crate) fn vote(name: &str, table: &str) -> Option<NameVote> {
    if let [word] = words(name).as_slice()
        && NEEDS_TABLE.contains(&word.as_str())
    {
        return vote_by_words(&format!("{}_number", table.trim_end_matches('s')), "");
    }
    vote_by_words(name, table)
}

fn vote_by_words(name: &str, table: &str) -> Option<NameVote> {
    let words = words(name);
    let table_words = self::words(table);
    let joined = format!("_{}_", words.join("_"));
    let mut best: Option<(usize, NameVote)> = None;
    // A table that only lists cities is reference data.
    let is_reference = words == table_words;
    for (category, weight, patterns) in PATTERNS {
        if is_reference && *category == Category::City {
            continue;
        }
        for pattern in *patterns {
            let compact: String = pattern.chars().filter(|c| *c != '_').collect();
            let whole = joined.contains(&format!("_{pattern}_"));
            let is_in_word = words
                .iter()
                .any(|word| *word == compact || compact.len() >= 7 && word.contains(&compact));
            if !whole && !is_in_word {
                continue;
            }
            // A single common word decides only if it is the whole name.
            if matches!(
                *pattern,
                "first"
                    | "last"
                    | "given"
                    | "family"
                    | "middle"
                    | "extension"
                    | "portable"
                    | "pseudo"
                    | "drivers"
                    | "born"
                    | "ort"
                    | "pan"
            ) && words.len() > 1
            {
                continue;
            }
            let mut weight = *weight;
            let last = words.last().map_or("", String::as_str);
            if DESCRIBES.contains(&last) && !pattern.ends_with(last)
                || words
                    .first()
                    .is_some_and(|first| ASKS.contains(&first.as_str()))
            {
                weight *= 0.3;
            }
            if *category == Category::FreeText && is_of_persons(table) {
                weight += 0.25;
            }
            if *category == Category::Photo && !is_of_persons(table) && compact.len() <= 7 {
                weight -= 0.3;
            }
            if best.is_none_or(|(length, vote)| (compact.len(), weight) > (length, vote.weight)) {
                best = Some((
                    compact.len(),
                    NameVote {
                        category: *category,
                        weight,
                        word: pattern,
                    },
                ));
            }
        }
    }
    let best = best.map(|(_, vote)| vote);
    if best.is_some() {
        return best;
    }
    let [rest @ .., last] = words.as_slice() else {
        return None;
    };
    let bare = BARE_NAMES.iter().find(|bare| *bare == last)?;
    let is_persons = if rest.is_empty() {
        is_of_persons(table) && !is_of_attributes(table)
    } else {
        is_of_persons(&rest.join("_"))
    };
    is_persons.then_some(NameVote {
        category: Category::FullName,
        weight: 0.85,
        word: bare,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_into_words() {
        for (name, expected) in [
            ("first_name", "first name"),
            ("FirstName", "first name"),
            ("HTTPServer", "http server"),
            ("address2", "address"),
            ("Straße", "strasse"),
            ("fecha-de-nacimiento", "fecha de nacimiento"),
            ("prénom", "prenom"),
            ("", ""),
            ("12", ""),
        ] {
            assert_eq!(words(name).join(" "), expected, "{name}");
        }
    }

    #[test]
    fn names_vote_in_the_context_of_their_table() {
        let yes = [
            ("email", "t", Category::Email),
            ("EmailAddress", "t", Category::Email),
            ("ip_address", "t", Category::IpAddress),
            ("address2", "t", Category::Street),
            ("mac_address", "t", Category::Identifier),
            ("name", "customers", Category::FullName),
            ("customer_name", "orders", Category::FullName),
            ("Geburtsdatum", "kunden", Category::BirthDate),
            ("apellidos", "clientes", Category::LastName),
            ("nom_de_famille", "t", Category::LastName),
            ("password_hash", "users", Category::Secret),
            ("homePhone", "t", Category::Phone),
            ("notes", "employees", Category::FreeText),
            ("number", "card", Category::Card),
            ("nr", "phones", Category::Phone),
        ];
        for (name, table, category) in yes {
            let vote = vote(name, table).unwrap_or_else(|| panic!("{table}.{name}"));
            assert!(
                vote.category == category && vote.weight >= 0.7,
                "{table}.{name}: {vote:?}"
            );
        }
        for (name, table) in [
            ("name", "products"),
            ("company_name", "customers"),
            ("city", "city"),
            ("address_id", "customers"),
            ("email_verified", "users"),
            ("phone_type", "t"),
            ("is_mobile", "t"),
            ("last_update", "actor"),
            ("created_at", "users"),
            ("quantity", "orders"),
            ("span", "t"),
            ("title", "film"),
            ("number", "orders"),
            ("line", "invoice"),
        ] {
            assert!(
                vote(name, table).is_none_or(|vote| vote.weight < 0.5),
                "{table}.{name}"
            );
        }
    }
}
