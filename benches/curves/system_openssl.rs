//! Benches of the system's OpenSSL, which cannot be linked into one program with the vendored one.
//!
//! Run with `cargo bench -p sealwire-curves --no-default-features`; the `curves` bench runs this
//! too. Needs libssl-dev and pkg-config. `OPENSSL_STATIC=1` with `OPENSSL_LIB_DIR` and
//! `OPENSSL_INCLUDE_DIR` measures a static library of your own instead.

use std::io::{self, Write};

use sealwire_curves::openssl::{OneShot, OpenSsl, ReusedContext};
use sealwire_curves::openssl_build::{Linkage, OpenSslBuild};
use sealwire_curves::{CpuTime, Curve, measure};

fn main() -> io::Result<()> {
    // With the feature `rivals`, or if built together with the engine, this program has the
    // vendored OpenSSL.
    let build = OpenSslBuild::of_this_program()?;
    if build.linkage == Linkage::Vendored {
        return writeln!(
            io::stdout(),
            "the system's OpenSSL: not measured, this program is not linked with it"
        );
    }
    writeln!(io::stdout(), "openssl_system: {build}")?;
    if !sealwire_curves::is_smoke_run() {
        build.save_as_system()?;
    }
    let mut criterion = sealwire_curves::criterion().with_measurement(CpuTime);
    for curve in [Curve::P256, Curve::Secp256k1] {
        measure::message::<_, OpenSsl, ReusedContext>(
            &mut criterion,
            curve,
            "openssl_system",
            &OpenSsl::new(curve),
        );
    }
    measure::hkdf::<OpenSsl>(&mut criterion, "openssl_system");
    measure::aead::<OneShot>(&mut criterion, "openssl_system_one_shot");
    measure::aead::<ReusedContext>(&mut criterion, "openssl_system");
    criterion.final_summary();
    Ok(())
}
