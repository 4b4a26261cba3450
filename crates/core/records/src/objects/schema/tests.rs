//! Tables of valid and invalid schemas and changes, and any sequence of changes.

use std::collections::HashSet;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::objects::PropertyType;

fn name(name: &str) -> PropertyName {
    PropertyName::new(name).unwrap()
}

fn spec(of: &str, property_type: PropertyType) -> PropertySpec {
    PropertySpec::new(name(of), property_type)
}

fn unique(of: &str) -> PropertySpec {
    PropertySpec {
        unique: true,
        nullable: false,
        ..spec(of, PropertyType::Email)
    }
}

fn indexed(of: &str) -> PropertySpec {
    PropertySpec {
        index: true,
        ..spec(of, PropertyType::Name)
    }
}

fn people() -> Schema {
    Schema::new(
        Suite::P256,
        &[
            unique("email"),
            indexed("surname"),
            spec("notes", PropertyType::String),
        ],
    )
    .unwrap()
}

#[test]
fn names() {
    let longest = "a".repeat(40);
    for valid in ["a", "email", "line_2", "z9_", &longest] {
        assert_eq!(PropertyName::new(valid).unwrap().as_str(), valid);
    }
    let longer = "a".repeat(41);
    for invalid in [
        "",
        "_a",
        "9a",
        "Email",
        "e-mail",
        "e mail",
        "émail",
        "email.mask",
        &longer,
    ] {
        assert_eq!(
            PropertyName::new(invalid),
            Err(SchemaError::InvalidName),
            "{invalid}"
        );
    }
    for reserved in PropertyName::RESERVED {
        assert_eq!(
            PropertyName::new(reserved),
            Err(SchemaError::ReservedName(reserved))
        );
    }
}

#[test]
fn a_new_schema_numbers_properties_and_indexes() {
    let schema = people();
    let numbers: Vec<_> = schema
        .properties
        .iter()
        .map(|of| (of.number, of.index.as_ref().map(|index| index.number)))
        .collect();
    assert_eq!(numbers, [(1, Some(2)), (3, Some(4)), (5, None)]);
    assert_eq!(schema.next_number, 6);
    assert_eq!(schema.property("surname").unwrap().number, 3);
    assert_eq!(schema.property_of_number(5).unwrap().name.as_str(), "notes");
    assert!(schema.property("name").is_none() && schema.property_of_number(4).is_none());
}

#[test]
fn invalid_properties() {
    use PropertyType::*;
    let a = || name("a");
    let of = |property_type| spec("a", property_type);
    let leaking = |prefixes: &[u8]| PropertySpec {
        prefixes: prefixes.to_vec(),
        accept_leak: true,
        ..indexed("a")
    };
    let cases: Vec<(PropertySpec, Option<SchemaError>)> = vec![
        (indexed("a"), None),
        (leaking(&[1, 2, 3, 16]), None),
        (
            PropertySpec {
                bits: Some(8),
                ..indexed("a")
            },
            None,
        ),
        (
            PropertySpec {
                bits: Some(16),
                ..leaking(&[3])
            },
            None,
        ),
        (
            PropertySpec {
                encrypted: false,
                ..indexed("a")
            },
            None,
        ),
        (
            PropertySpec {
                description: "d".repeat(256),
                ..of(String)
            },
            None,
        ),
        (
            PropertySpec {
                index: true,
                ..of(Boolean)
            },
            Some(SchemaError::CannotIndex(a(), Boolean)),
        ),
        (
            PropertySpec {
                index: true,
                ..of(Json)
            },
            Some(SchemaError::CannotIndex(a(), Json)),
        ),
        (
            PropertySpec {
                unique: true,
                ..of(Blob)
            },
            Some(SchemaError::CannotIndex(a(), Blob)),
        ),
        (
            PropertySpec {
                index: true,
                ..of(Address)
            },
            Some(SchemaError::CannotIndex(a(), Address)),
        ),
        (
            PropertySpec {
                bits: Some(7),
                ..indexed("a")
            },
            Some(SchemaError::InvalidBits(a())),
        ),
        (
            PropertySpec {
                bits: Some(17),
                ..indexed("a")
            },
            Some(SchemaError::InvalidBits(a())),
        ),
        (
            PropertySpec {
                bits: Some(8),
                ..unique("a")
            },
            Some(SchemaError::BitsOfUnique(a())),
        ),
        (
            PropertySpec {
                bits: Some(8),
                ..of(Name)
            },
            Some(SchemaError::NeedsIndex(a())),
        ),
        (
            PropertySpec {
                prefixes: vec![3],
                accept_leak: true,
                ..of(Name)
            },
            Some(SchemaError::NeedsIndex(a())),
        ),
        (
            PropertySpec {
                accept_leak: false,
                ..leaking(&[3])
            },
            Some(SchemaError::PrefixesLeak(a())),
        ),
        (
            PropertySpec {
                property_type: Integer,
                ..leaking(&[3])
            },
            Some(SchemaError::CannotPrefix(a(), Integer)),
        ),
        (leaking(&[0]), Some(SchemaError::InvalidPrefixes(a()))),
        (leaking(&[17]), Some(SchemaError::InvalidPrefixes(a()))),
        (leaking(&[2, 1]), Some(SchemaError::InvalidPrefixes(a()))),
        (leaking(&[2, 2]), Some(SchemaError::InvalidPrefixes(a()))),
        (
            leaking(&[1, 2, 3, 4, 5]),
            Some(SchemaError::InvalidPrefixes(a())),
        ),
        (
            PropertySpec {
                encrypted: false,
                ..of(Card)
            },
            Some(SchemaError::MustEncrypt(a(), Card)),
        ),
        (
            PropertySpec {
                encrypted: false,
                ..of(Iban)
            },
            Some(SchemaError::MustEncrypt(a(), Iban)),
        ),
        (
            PropertySpec {
                encrypted: false,
                ..of(NationalId)
            },
            Some(SchemaError::MustEncrypt(a(), NationalId)),
        ),
        (
            PropertySpec {
                description: "d".repeat(257),
                ..of(String)
            },
            Some(SchemaError::InvalidDescription(a())),
        ),
        (
            PropertySpec {
                description: "a\nb".into(),
                ..of(String)
            },
            Some(SchemaError::InvalidDescription(a())),
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(
            Schema::new(Suite::P256, std::slice::from_ref(&spec)).err(),
            expected,
            "{spec:?}"
        );
    }
}

#[test]
fn errors_advise() {
    let message = SchemaError::PrefixesLeak(name("a")).to_string();
    assert!(
        message.contains("see which values begin alike") && message.contains("`accept_leak`"),
        "{message}"
    );
    assert!(
        SchemaError::NotInPlace
            .to_string()
            .ends_with("add a new property, copy the values, drop the old one")
    );
}

#[test]
fn limits() {
    let many = |count: usize, of: fn(&str) -> PropertySpec| -> Vec<_> {
        (0..count).map(|at| of(&format!("p{at}"))).collect()
    };
    let plain = |of: &str| spec(of, PropertyType::String);
    let new = |specs: Vec<PropertySpec>| Schema::new(Suite::P256, &specs).err();
    assert_eq!(new(many(PROPERTIES_MAX, plain)), None);
    assert_eq!(
        new(many(PROPERTIES_MAX + 1, plain)),
        Some(SchemaError::TooManyProperties)
    );
    assert_eq!(new(many(INDEXES_MAX, indexed)), None);
    assert_eq!(
        new(many(INDEXES_MAX + 1, indexed)),
        Some(SchemaError::TooManyIndexes)
    );
    assert_eq!(
        new(vec![plain("a"), indexed("a")]),
        Some(SchemaError::Repeated(name("a")))
    );
    assert_eq!(new(vec![]), None);
}

#[test]
fn damaged_schemas() {
    type Damage = fn(&mut Schema);
    let damage: [(Damage, SchemaError); 8] = [
        (
            |schema| schema.properties[1].number = 1,
            SchemaError::InvalidNumbers,
        ),
        (
            |schema| schema.properties[1].number = 0,
            SchemaError::InvalidNumbers,
        ),
        (
            |schema| schema.properties.swap(0, 1),
            SchemaError::InvalidNumbers,
        ),
        (|schema| schema.next_number = 5, SchemaError::InvalidNumbers),
        (
            |schema| schema.properties[2].name = schema.properties[1].name.clone(),
            SchemaError::Repeated(name("surname")),
        ),
        (
            |schema| schema.properties[0].index = None,
            SchemaError::UniqueNeedsIndex(name("email")),
        ),
        (
            |schema| {
                schema.dropped = vec![DroppedProperty {
                    name: name("x"),
                    number: 1,
                    generation: 1,
                }]
            },
            SchemaError::InvalidNumbers,
        ),
        (
            |schema| {
                schema.dropped = vec![
                    DroppedProperty {
                        name: name("x"),
                        number: 6,
                        generation: 1
                    };
                    257
                ]
            },
            SchemaError::TooManyDropped,
        ),
    ];
    for (at, (damage, expected)) in damage.into_iter().enumerate() {
        let mut schema = people();
        damage(&mut schema);
        assert_eq!(schema.check(), Err(expected), "damage {at}");
    }
}

#[test]
fn changes_relax_and_describe() {
    let change = SchemaChange {
        relax_unique: vec![name("email")],
        relax_not_null: vec![name("email")],
        drop_index: vec![name("surname")],
        describe: vec![(name("notes"), "free text".into())],
        expires_s: Some(Some(60)),
        retention_s: Some(Some(3600)),
        suite: Some(Suite::Xaes),
        ..SchemaChange::default()
    };
    let Changed { schema, reused } = people().change(&change, 7).unwrap();
    assert_eq!(reused, None);
    let email = schema.property("email").unwrap();
    assert!(!email.unique && email.nullable && email.index.as_ref().unwrap().was_unique);
    assert_eq!(schema.property("surname").unwrap().index, None);
    assert_eq!(schema.property("notes").unwrap().description, "free text");
    assert_eq!(
        (schema.expires_s, schema.retention_s, schema.suite),
        (Some(60), Some(3600), Suite::Xaes)
    );
    let back = SchemaChange {
        expires_s: Some(None),
        ..SchemaChange::default()
    };
    assert_eq!(schema.change(&back, 8).unwrap().schema.expires_s, None);
    assert_eq!(
        people().change(&SchemaChange::default(), 8).unwrap().schema,
        people()
    );
}

#[test]
fn a_dropped_name_can_come_back_under_another_number() {
    let drop = SchemaChange {
        drop: vec![name("surname")],
        ..SchemaChange::default()
    };
    let dropped = people().change(&drop, 7).unwrap();
    assert_eq!(dropped.reused, None);
    assert_eq!(
        dropped.schema.dropped,
        [DroppedProperty {
            name: name("surname"),
            number: 3,
            generation: 7
        }]
    );
    let add = SchemaChange {
        add: vec![indexed("surname"), indexed("given")],
        ..SchemaChange::default()
    };
    let added = dropped.schema.change(&add, 8).unwrap();
    assert_eq!(added.reused, Some(7));
    assert_eq!(added.schema.property("surname").unwrap().number, 6);
    let again = added
        .schema
        .change(&drop, 9)
        .unwrap()
        .schema
        .change(&add, 10);
    assert_eq!(again.err(), Some(SchemaError::Repeated(name("given"))));
}

#[test]
fn a_forgotten_name_counts_as_dropped_with_the_oldest() {
    let mut schema = people();
    for generation in 1..=DROPPED_MAX as u64 + 10 {
        let of = format!("p{generation}");
        let add = SchemaChange {
            add: vec![spec(&of, PropertyType::String)],
            ..SchemaChange::default()
        };
        let changed = schema.change(&add, 2 * generation).unwrap();
        let oldest = changed
            .schema
            .dropped
            .first()
            .map(|dropped| dropped.generation);
        assert_eq!(
            changed.reused,
            oldest.filter(|_| generation > DROPPED_MAX as u64)
        );
        let drop = SchemaChange {
            drop: vec![name(&of)],
            ..SchemaChange::default()
        };
        schema = changed
            .schema
            .change(&drop, 2 * generation + 1)
            .unwrap()
            .schema;
    }
    assert_eq!(schema.dropped.len(), DROPPED_MAX);
    assert_eq!(schema.dropped[0].name, name("p11"));
}

#[test]
fn invalid_changes() {
    use SchemaError::*;
    let none = SchemaChange::default;
    let (email, surname, notes, x) = (
        || name("email"),
        || name("surname"),
        || name("notes"),
        || name("x"),
    );
    let cases: Vec<(SchemaChange, SchemaError)> = vec![
        (
            SchemaChange {
                add: vec![unique("x")],
                ..none()
            },
            AddedNotNullable(x()),
        ),
        (
            SchemaChange {
                add: vec![indexed("surname")],
                ..none()
            },
            Repeated(surname()),
        ),
        (
            SchemaChange {
                add: vec![indexed("x"), indexed("x")],
                ..none()
            },
            Repeated(x()),
        ),
        (
            SchemaChange {
                add: vec![indexed("surname")],
                drop: vec![surname()],
                ..none()
            },
            DroppedAndAdded(surname()),
        ),
        (
            SchemaChange {
                drop: vec![x()],
                ..none()
            },
            Unknown(x()),
        ),
        (
            SchemaChange {
                drop: vec![notes(), notes()],
                ..none()
            },
            Repeated(notes()),
        ),
        (
            SchemaChange {
                drop: vec![email()],
                relax_unique: vec![email()],
                ..none()
            },
            DroppedAndChanged(email()),
        ),
        (
            SchemaChange {
                drop: vec![notes()],
                describe: vec![(notes(), "x".into())],
                ..none()
            },
            DroppedAndChanged(notes()),
        ),
        (
            SchemaChange {
                relax_unique: vec![surname()],
                ..none()
            },
            NothingToChange(surname(), "is not unique"),
        ),
        (
            SchemaChange {
                relax_not_null: vec![surname()],
                ..none()
            },
            NothingToChange(surname(), "is nullable"),
        ),
        (
            SchemaChange {
                drop_index: vec![notes()],
                ..none()
            },
            NothingToChange(notes(), "has no index"),
        ),
        (
            SchemaChange {
                drop_index: vec![email()],
                ..none()
            },
            IndexOfUnique(email()),
        ),
        (
            SchemaChange {
                drop_index: vec![surname(), surname()],
                ..none()
            },
            Repeated(surname()),
        ),
        (
            SchemaChange {
                describe: vec![(notes(), "a\tb".into())],
                ..none()
            },
            InvalidDescription(notes()),
        ),
        (
            SchemaChange {
                describe: vec![(x(), "a".into())],
                ..none()
            },
            Unknown(x()),
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(
            people().change(&change, 7).err(),
            Some(expected),
            "{change:?}"
        );
    }
    let last = Schema {
        next_number: u32::MAX,
        ..people()
    };
    let add = SchemaChange {
        add: vec![indexed("x")],
        ..none()
    };
    assert_eq!(last.change(&add, 7).err(), Some(NumbersUsedUp));
}

/// Makes changes that often fit: few names, and all kinds of lists.
fn changes() -> impl Strategy<Value = SchemaChange> {
    let names = || vec((0u8..8).prop_map(|at| name(&format!("p{at}"))), 0..2);
    let specs = vec(
        (
            0u8..8,
            0usize..16,
            any::<bool>(),
            any::<bool>(),
            any::<bool>(),
        ),
        0..3,
    );
    let specs = specs.prop_map(|all| {
        let spec = |(at, of, index, unique, prefix): (u8, usize, bool, bool, bool)| PropertySpec {
            index,
            unique,
            prefixes: if prefix { vec![1, 3] } else { Vec::new() },
            accept_leak: true,
            ..spec(&format!("p{at}"), PropertyType::ALL[of])
        };
        all.into_iter().map(spec).collect()
    });
    (specs, names(), names(), names(), names()).prop_map(
        |(add, drop, relax_unique, relax_not_null, drop_index)| SchemaChange {
            add,
            drop,
            relax_unique,
            relax_not_null,
            drop_index,
            ..SchemaChange::default()
        },
    )
}

proptest! {
    #[test]
    fn numbers_never_repeat_and_every_schema_is_valid(all in vec(changes(), 1..60)) {
        let mut schema = people();
        let mut used: HashSet<u32> = (1..schema.next_number).collect();
        for (change, generation) in all.iter().zip(1..) {
            let Ok(Changed { schema: next, reused }) = schema.change(change, generation) else { continue };
            prop_assert_eq!(next.check(), Ok(()));
            let is_old = |number: u32| number < schema.next_number;
            for property in &next.properties {
                let before = schema.property_of_number(property.number);
                prop_assert_eq!(before.is_some(), is_old(property.number));
                let mut numbers = vec![property.number];
                numbers.extend(property.index.as_ref().map(|index| index.number));
                match before {
                    Some(before) => {
                        // An existing property keeps its name, type and index, or loses the index.
                        prop_assert_eq!((&before.name, before.property_type), (&property.name, property.property_type));
                        let number = |of: &Property| of.index.as_ref().map(|index| index.number);
                        prop_assert!(number(property).is_none() || number(property) == number(before));
                        prop_assert!(!property.unique || before.unique);
                        prop_assert!(property.nullable || !before.nullable);
                    }
                    None => prop_assert!(numbers.into_iter().all(|number| used.insert(number))),
                }
            }
            let was_dropped = |spec: &PropertySpec| schema.dropped.iter().any(|dropped| dropped.name == spec.name);
            prop_assert_eq!(reused.is_some(), change.add.iter().any(was_dropped));
            prop_assert!(reused.is_none_or(|reused| reused < generation));
            schema = next;
        }
    }
}
