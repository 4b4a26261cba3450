//! The budgets of the design, as ratios to what bare cryptography takes in the same run.

use crate::cpu::load::{BenchOperation, CpuLoad, Measured};

/// Budget for a field in a request of 2,000, as a multiple of a bare AES-256-GCM seal.
const SEALS_MAX: f64 = 4.0;
/// Least throughput in fields per core of server time, in requests of 2,000.
const FIELDS_PER_CPU_SECOND_MIN: f64 = 1_500_000.0;
/// Budget for a cold request of one field, as a multiple of a bare key generation with a
/// Diffie-Hellman.
const KEYGENS_MAX: f64 = 1.5;
/// Budget for a request of one field if warm or in an epoch, in that unit.
const WARM_SHARE_MAX: f64 = 0.5;
/// Budget for a field on secp256k1, as a multiple of its cost on P-256.
const K1_FACTOR_MAX: f64 = 2.0;
/// Budget for opening a field of a request, as a multiple of sealing it.
const DECRYPT_FACTOR_MAX: f64 = 1.3;
/// CPU time in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Floors {
    pub(super) seal: f64,
    pub(super) keygen_ecdh: f64,
}

/// One budget, its measured value and its verdict.
pub(super) struct FloorVerdict {
    pub(super) budget: String,
    pub(super) measured: String,
    pub(super) met: bool,
}

pub(super) fn verdicts(measured: &[Measured], floors: Floors, cold: bool) -> Vec<FloorVerdict> {
    let of = |operation: BenchOperation, fields: usize| {
        measured
            .iter()
            .filter(move |one| one.load.operation == operation && one.load.fields == fields)
    };
    let encrypt = |fields| of(BenchOperation::EncryptText, fields);
    let mut verdicts = Vec::new();
    for one in encrypt(2_000) {
        let seals = one.cpu_ns() / floors.seal;
        verdicts.push(FloorVerdict {
            budget: format!("2,000 fields: CPU per field <= {SEALS_MAX} seals"),
            measured: format!("{seals:.2} seals"),
            met: seals <= SEALS_MAX,
        });
        let rate = one.fields_per_cpu_second();
        verdicts.push(FloorVerdict {
            budget: format!(
                "2,000 fields: >= {:.1}M fields per server core and second",
                FIELDS_PER_CPU_SECOND_MIN / 1e6
            ),
            measured: format!("{:.2}M", rate / 1e6),
            met: rate >= FIELDS_PER_CPU_SECOND_MIN,
        });
    }
    for one in encrypt(1).chain(of(BenchOperation::EncryptEpoch, 1)) {
        let keygens = one.cpu_ns() / floors.keygen_ecdh;
        let (max, state) = match one.load.operation {
            BenchOperation::EncryptEpoch => (KEYGENS_MAX * WARM_SHARE_MAX, "epoch"),
            _ if cold => (KEYGENS_MAX, "cold"),
            _ => (KEYGENS_MAX * WARM_SHARE_MAX, "warm"),
        };
        verdicts.push(FloorVerdict {
            budget: format!(
                "1 field, {} callers, {state}: CPU <= {max}x (keygen + ECDH)",
                one.load.callers
            ),
            measured: format!("{keygens:.2}x"),
            met: keygens <= max,
        });
    }
    for (operation, what, factor_max) in [
        (
            BenchOperation::EncryptK1,
            "on secp256k1: CPU <= {}x P-256",
            K1_FACTOR_MAX,
        ),
        (
            BenchOperation::DecryptText,
            "to decrypt: CPU <= {}x encrypt",
            DECRYPT_FACTOR_MAX,
        ),
    ] {
        for one in measured
            .iter()
            .filter(|one| one.load.operation == operation)
        {
            let CpuLoad {
                fields, callers, ..
            } = one.load;
            for text in encrypt(fields).filter(|text| text.load.callers == callers) {
                let factor = one.cpu_ns() / text.cpu_ns();
                verdicts.push(FloorVerdict {
                    budget: format!(
                        "{fields} fields, {callers} callers, {}",
                        what.replace("{}", &factor_max.to_string())
                    ),
                    measured: format!("{factor:.2}x"),
                    met: factor <= factor_max,
                });
            }
        }
    }
    verdicts
}
