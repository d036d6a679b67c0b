//! The fuzz targets that strangers and other programs can reach, with random inputs: `fuzz/` drives the same targets
//! with libFuzzer, which follows coverage. Each runs for a second, or for `COORP_FUZZ_SECONDS`. A failing target prints
//! its input's number; with that, `COORP_FUZZ_INPUT` runs only this input.

use std::time::{Duration, Instant, SystemTime};

#[allow(dead_code)] // a team file comes from no stranger
#[path = "../../../fuzz/src/lib.rs"]
mod targets;

const INPUT_BYTES_MAX: u64 = 300;

#[test]
fn any_frames() {
    drive(targets::wire::run);
}

#[test]
fn any_datagrams_to_discovery() {
    drive(targets::discovery::run);
}

#[test]
fn any_datagrams_at_the_door() {
    drive(targets::door::run);
}

#[test]
fn any_message_of_dds() {
    drive(targets::rtps::run);
}

#[test]
fn any_wrapped_packets() {
    drive(targets::wrapped::run);
}

fn drive(target: fn(&[u8])) {
    if let Some(number) = variable("COORP_FUZZ_INPUT") {
        return target(&input(number));
    }
    let time = Duration::from_secs(variable("COORP_FUZZ_SECONDS").unwrap_or(1));
    let first = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos() as u64);
    let began = Instant::now();
    for number in (0..).map(|count| first.wrapping_add(count)) {
        let failed = Failed(number);
        target(&input(number));
        std::mem::forget(failed);
        if began.elapsed() >= time {
            return;
        }
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Prints which input has failed.
struct Failed(u64);

impl Drop for Failed {
    fn drop(&mut self) {
        eprintln!("run it again with COORP_FUZZ_INPUT={}", self.0);
    }
}

/// Returns random bytes, half of them small, because small ones choose valid branches.
fn input(number: u64) -> Vec<u8> {
    let mut random = number;
    let mut next = move || {
        // SplitMix64 (Steele 2014).
        random = random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    let length = next() % INPUT_BYTES_MAX;
    let byte = |bits: u64| {
        if bits >> 32 & 1 == 0 {
            bits as u8 % 8
        } else {
            bits as u8
        }
    };
    (0..length).map(|_| byte(next())).collect()
}
