//! Worked examples that the published clients were checked against, byte for byte, in both
//! directions.

use super::*;
use crate::CannotOpen;

/// String, curve, role, origin, datatype, text, value.
type Example = (
    &'static str,
    Curve,
    Option<(Option<&'static str>, u8)>,
    Datatype,
    &'static str,
    OpenedValue<'static>,
);

const STRINGS: [Example; 5] = [
    (
        "ev:RFVC:AAECAwQFBgcICQoL:AkZtf8rlY+XLCaDRhwu1gDRIBGF4eaFJSc8iKF8brj8n:IMG3MCrR2YRlEklKmZa7BJs6yKjS:$",
        Curve::Secp256k1,
        None,
        Datatype::String,
        "hello",
        OpenedValue::Text("hello"),
    ),
    (
        "ev:S0lS:boolean:AAECAwQFBgcICQoL:AkZtf8rlY+XLCaDRhwu1gDRIBGF4eaFJSc8iKF8brj8n:yUK5t2HmcsqtznUkNNDB89kz08JkuE6ErpzQrBL0OYGuR6hbA6uX7kuUaJf2Do7T2+Q:$",
        Curve::Secp256k1,
        Some((Some("card-number"), 5)),
        Datatype::Boolean,
        "true",
        OpenedValue::Boolean(true),
    ),
    (
        "ev:Tk9D:number:AAECAwQFBgcICQoL:A9Zak5d8qj0bCBhS/1ennkZfFmBXcwS66tUF3TpIWJzz:lbqjC1tTcq/K6wWsY0/imAn7:$",
        Curve::P256,
        None,
        Datatype::Number,
        "42",
        OpenedValue::Number(Number::Unsigned(42)),
    ),
    (
        "ev:QkTC:AAECAwQFBgcICQoL:A9Zak5d8qj0bCBhS/1ennkZfFmBXcwS66tUF3TpIWJzz:rIj4I5auy+8tnqCmbBtxBU9HRIyqaNDhYCVfr2r9LycVfk5/:$",
        Curve::P256,
        Some((None, 9)),
        Datatype::String,
        "hello",
        OpenedValue::Text("hello"),
    ),
    (
        "ev:QkTC:number:AAECAwQFBgcICQoL:A9Zak5d8qj0bCBhS/1ennkZfFmBXcwS66tUF3TpIWJzz:vYj5I5ezaS4pmAruUZ8cD09ZioaTsR35ZbaHYSUxmBENbp1oSK5KlH3DLus2q6ss:$",
        Curve::P256,
        Some((Some("card-number"), 7)),
        Datatype::Number,
        "42",
        OpenedValue::Number(Number::Unsigned(42)),
    ),
];

const FILES: [(Curve, &str); 2] = [
    (
        Curve::Secp256k1,
        "254556454e4302370002466d7fcae563e5cb09a0d1870bb580344804617879a14949cf22285f1bae3f27000102030405060708090a0b0020c1b7302ad1d9846512494a9996bb049b3ac8a8d24a16bc0f",
    ),
    (
        Curve::P256,
        "254556454e4303370003d65a93977caa3d1b081852ff57a79e465f1660577304baead505dd3a48589cf3000102030405060708090a0b00c9ed16ed9c753b40c14c04dc81346a44526bb51c94dc44eaee",
    ),
];

#[test]
fn strings_open_and_are_made_again() {
    let keys = app([0x11; 32]);
    let other = app([0x12; 32]);
    for (string, curve, metadata, datatype, text, value) in STRINGS {
        let mut opener = Opener::new(&keys, Legacy::Refused);
        let opened = opener.open(string.as_bytes()).unwrap();
        let (role, origin) = metadata.map_or((None, None), |(role, origin)| {
            (role, Some(u64::from(origin)))
        });
        let encrypted_at = metadata.map(|_| u64::from(TIME));
        let expected = Opened {
            value,
            datatype,
            text,
            role,
            origin,
            encrypted_at,
        };
        assert_eq!(opened, expected, "{string}");
        assert_eq!(
            Opener::new(&other, Legacy::Allowed).open(string.as_bytes()),
            Err(CannotOpen)
        );

        let form = metadata.map_or(Form::Plain, |(role, _)| with_metadata(role));
        let ephemeral = KeyPair::from_scalar(curve, &[0x22; 32]).unwrap();
        let origin = metadata.map_or(ORIGIN, |(_, origin)| origin);
        let mut sealer =
            Sealer::fixed(newest(&keys, curve), &form, &ephemeral, IV, origin).unwrap();
        let mut out = b"before ".to_vec();
        sealer.seal(datatype, text, &mut out).unwrap();
        assert_eq!(std::str::from_utf8(&out[7..]).unwrap(), string);
        assert_eq!(sealer.sealed_bytes(datatype, text.len()), string.len());
    }
}

#[test]
fn files_open_and_are_made_again() {
    let keys = app([0x11; 32]);
    for (curve, file) in FILES {
        let file = unhex(file);
        let mut opener = Opener::new(&keys, Legacy::Refused);
        assert_eq!(
            opener.open_file(&file).unwrap(),
            OpenedFile {
                content: b"hello",
                role: None
            }
        );
        assert_eq!(
            Opener::new(&app([0x12; 32]), Legacy::Allowed).open_file(&file),
            Err(CannotOpen)
        );

        let ephemeral = KeyPair::from_scalar(curve, &[0x22; 32]).unwrap();
        let recipient = newest(&keys, curve);
        let mut sealer =
            Sealer::fixed(recipient.clone(), &Form::Plain, &ephemeral, IV, ORIGIN).unwrap();
        let mut out = Vec::new();
        sealer.seal_file(b"hello", &mut out).unwrap();
        assert_eq!(hex(&out), hex(&file));
        assert_eq!(sealer.sealed_file_bytes(5), file.len());

        let x = ephemeral.agree(recipient.pair().unwrap().public()).unwrap();
        let (mut sealer, header) =
            FileSealer::with_ephemeral(&recipient, ephemeral.public().uncompressed(), x, IV)
                .unwrap();
        let mut content = *b"hello";
        sealer.update(&mut content[..2]).unwrap();
        sealer.update(&mut content[2..]).unwrap();
        let again = [&header[..], &content, &sealer.finish().unwrap()].concat();
        assert_eq!(hex(&again), hex(&file));
    }
}

/// The derivation on its own, so that a failure above has an address.
#[test]
fn keys_are_those_of_the_examples() {
    for (curve, x, key) in [
        (
            Curve::Secp256k1,
            "77e0510d5042e2f5e9e59c977b81eeed590cf7d20c1c51da451a8eaa9fdc45ff",
            "8456d2944c105e2e6d865a10795690756d70ce2ff2950b5a5911d86c4f2d104d",
        ),
        (
            Curve::P256,
            "ccfc261f58193c98ca4ad4a53bbac6f0ee29bc4d48438090446908622ca79af6",
            "13e3fadc94cc566dadb3a209e95dd6e437d4dc5a3b7404148e7c6cf744c26b04",
        ),
    ] {
        let [app, ephemeral] =
            [[0x11; 32], [0x22; 32]].map(|scalar| KeyPair::from_scalar(curve, &scalar).unwrap());
        let derived = Derived::new(ephemeral.agree(app.public()).unwrap());
        let point = ephemeral.public().uncompressed();
        assert_eq!(hex(&derived.key_bytes(Kdf::None, curve, point)[..]), x);
        assert_eq!(hex(&derived.key_bytes(Kdf::X963, curve, point)[..]), key);
    }
}
