//! Compares the maintained implementations of the engine's cryptography, with one file per
//! implementation.
//!
//! `cargo bench -p sealwire-curves --bench curves` measures, prints tables and draws plots.
//! `-- FILTER` measures only matching benches again, and a filter without matches only prints.
//! `-- --compare A.json B.json` compares two result files and measures nothing. `benches/README.md`
//! explains the output.

mod base64url;
mod engine;
mod libsecp256k1;
mod ring_api;
mod rust_crypto;

use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

use sealwire_curves::compare::CompareRequest;
use sealwire_curves::openssl::{OneShot, OpenSsl, ReusedContext};
use sealwire_curves::{Comparison, CpuTime, Curve, measure, report, say};

use crate::libsecp256k1::LibSecp256k1;
use crate::ring_api::{AwsLc, AwsLcAead, Ring, RingAead};
use crate::rust_crypto::{AesGcm, RustCrypto, RustCryptoHkdf};

fn main() -> ExitCode {
    let result = match CompareRequest::parse(std::env::args_os().skip(1)) {
        Ok(Some(request)) => request.run(),
        Ok(None) => measure_all().map_err(|error| error.to_string()),
        Err(usage) => Err(usage),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // There is no other place for the error.
            let _ = writeln!(io::stderr(), "curves: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures all implementations, and prints and draws the results.
fn measure_all() -> io::Result<()> {
    let mut criterion = sealwire_curves::criterion().with_measurement(CpuTime);
    messages(&mut criterion);
    engine::measure(&mut criterion);

    measure::hkdf::<RustCryptoHkdf>(&mut criterion, "hkdf");
    measure::hkdf::<AwsLc>(&mut criterion, "aws_lc_rs");
    measure::hkdf::<Ring>(&mut criterion, "ring");
    measure::hkdf::<OpenSsl>(&mut criterion, "openssl");

    measure::aead::<AwsLcAead>(&mut criterion, "aws_lc_rs");
    measure::aead::<RingAead>(&mut criterion, "ring");
    measure::aead::<AesGcm>(&mut criterion, "aes_gcm");
    measure::aead::<ReusedContext>(&mut criterion, "openssl");
    measure::aead::<OneShot>(&mut criterion, "openssl_one_shot");

    base64url::measure(&mut criterion);
    criterion.final_summary();
    if sealwire_curves::is_smoke_run() {
        return Ok(());
    }
    system_openssl()?;
    report::print()
}

/// Measures a whole message on each curve. Primitives that a library lacks are taken from the
/// engine's libraries.
fn messages(criterion: &mut Comparison) {
    for curve in [Curve::P256, Curve::Secp256k1] {
        measure::message::<_, OpenSsl, ReusedContext>(
            criterion,
            curve,
            "openssl",
            &OpenSsl::new(curve),
        );
    }
    measure::message::<_, AwsLc, AwsLcAead>(criterion, Curve::P256, "aws_lc_rs", &AwsLc);
    measure::message::<_, Ring, RingAead>(criterion, Curve::P256, "ring", &Ring);
    let p256 = RustCrypto::<p256::NistP256>::new();
    measure::message::<_, RustCryptoHkdf, AesGcm>(criterion, Curve::P256, "p256", &p256);

    let k256 = RustCrypto::<k256::Secp256k1>::new();
    measure::message::<_, RustCryptoHkdf, AesGcm>(criterion, Curve::Secp256k1, "k256", &k256);
    for (name, library) in [
        ("libsecp256k1", LibSecp256k1::BINDING),
        ("sealwire_blinding", LibSecp256k1::ENGINE),
    ] {
        measure::message::<_, RustCryptoHkdf, AwsLcAead>(
            criterion,
            Curve::Secp256k1,
            name,
            &library,
        );
    }
}

/// Runs the bench of the system's OpenSSL, which cannot be linked into this program together with
/// the vendored one.
fn system_openssl() -> io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Cargo passes its own `--bench` to both.
    let arguments = std::env::args_os()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let status = Command::new(cargo)
        .args([
            "bench",
            "--package",
            "sealwire-curves",
            "--no-default-features",
            "--bench",
            "system_openssl",
            "--",
        ])
        .args(arguments)
        .status()?;
    if !status.success() {
        say(
            "The system's OpenSSL is not measured: its bench did not build or run (libssl-dev, pkg-config?).",
        )?;
    }
    Ok(())
}

/// Returns random bytes from the engine's random source.
fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).expect("random source");
    bytes
}
