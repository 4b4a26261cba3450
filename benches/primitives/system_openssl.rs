//! The system's OpenSSL under the same benches as the vendored one, which cannot be in one program with it.
//!
//! `cargo bench -p sealwire-bench-primitives`, which the `curves` bench runs too; needs libssl-dev and pkg-config.

use std::io::{self, Write};

use sealwire_bench_primitives::openssl::{OneShot, OpenSsl, ReusedContext};
use sealwire_bench_primitives::{CpuTime, Curve, measure};

fn main() -> io::Result<()> {
    // Linked beside the vendored one's users this program has that one too, and must not call it the system's.
    if !std::fs::read_to_string("/proc/self/maps")?.contains("libcrypto.so") {
        return writeln!(io::stdout(), "the system's OpenSSL: not measured, this program is not linked with it");
    }
    let mut criterion = sealwire_bench_primitives::criterion().with_measurement(CpuTime);
    for curve in [Curve::P256, Curve::Secp256k1] {
        measure::message::<_, OpenSsl, ReusedContext>(&mut criterion, curve, "openssl_system", &OpenSsl::new(curve));
    }
    measure::hkdf::<OpenSsl>(&mut criterion, "openssl_system");
    measure::aead::<OneShot>(&mut criterion, "openssl_system_one_shot");
    measure::aead::<ReusedContext>(&mut criterion, "openssl_system");
    criterion.final_summary();
    Ok(())
}
