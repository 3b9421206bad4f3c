//! Test helpers: reproducible random numbers, and hostile bytes made by mutating valid ones.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Extreme values for lengths and revisions.
const NUMBERS: [u64; 6] = [0, 1, 127, u32::MAX as u64, i64::MAX as u64, u64::MAX];

/// The seed to repeat: `SEED`.
pub(crate) fn chosen() -> Option<u64> {
    std::env::var("SEED").ok().map(|seed| seed.parse().unwrap())
}

/// Returns `count` consecutive seeds, or only the chosen one.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    chosen().map_or_else(
        || {
            let first = rand::random::<u64>();
            (0..count).map(|number| first.wrapping_add(number)).collect()
        },
        |seed| vec![seed],
    )
}

/// A random generator that prints its seed.
pub(crate) fn seeded() -> StdRng {
    let seed = chosen().unwrap_or_else(rand::random);
    println!("SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Number of runs; `FUZZ_TIMES` multiplies it.
pub(crate) fn fuzz_runs(usual: u64) -> u64 {
    let times = std::env::var("FUZZ_TIMES").map_or(1, |times| times.parse().unwrap());
    usual * times
}

/// Changes bytes in one to three places.
pub(crate) fn mutate(bytes: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(1..4) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..7) {
            0 => bytes.truncate(at),
            1 => bytes.extend((0..random.random_range(0..9)).map(|_| random.random::<u8>())),
            2 => bytes.insert(at, random.random()),
            3 => {
                // A piece twice, as protobuf fields may occur.
                let end = random.random_range(at..=bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.extend(piece);
            }
            4 => {
                let number = NUMBERS[random.random_range(0..NUMBERS.len())].to_le_bytes();
                for (byte, new) in bytes.iter_mut().skip(at).zip(number) {
                    *byte = new;
                }
            }
            5 => {
                let mut varint = Vec::new();
                prost::encoding::encode_varint(NUMBERS[random.random_range(0..NUMBERS.len())], &mut varint);
                bytes.splice(at..at, varint);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
        }
    }
}
