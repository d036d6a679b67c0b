//! A robot's own clock: monotonic, and running while the machine sleeps, as decision 9 requires.
//!
//! `std::time::Instant` reads `CLOCK_MONOTONIC`, which stops in suspend: a robot that held a permit, or led, when it
//! went to sleep would wake up believing that no time has passed. `CLOCK_BOOTTIME` counts that time. NTP slews both
//! alike, by at most 500 ppm. Left out: virtual machines that are paused together with their clocks.

use std::sync::Arc;

use coorp_core::Duration;
use rustix::time::{clock_gettime, ClockId};

use crate::ground::Ground;

/// The number of times that both clocks are read to find one moment on them.
const READINGS: usize = 5;

/// A clock of the time since its start, on a ground.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    ground: Arc<dyn Ground>,
    started: Duration,
}

impl Clock {
    /// Returns a clock that starts now.
    pub fn start(ground: &Arc<dyn Ground>) -> Self {
        Clock {
            ground: ground.clone(),
            started: ground.now(),
        }
    }

    /// Returns the time of its start, since the ground's start.
    pub fn started(&self) -> Duration {
        self.started
    }

    /// Returns the time since its start, including sleep.
    pub fn elapsed(&self) -> Duration {
        self.ground.now().saturating_sub(self.started)
    }

    /// Returns one moment on this clock, and as Unix time in nanoseconds. A busy machine may pause between two
    /// readings, so the closest pair of a few is used.
    pub fn moment(&self) -> (Duration, u64) {
        let (elapsed, unix) = moment(|| self.elapsed(), || self.ground.unix());
        (elapsed, u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX))
    }
}

/// Returns the times of two clocks that were read most closely together.
fn moment<T>(one: impl Fn() -> Duration, other: impl Fn() -> T) -> (Duration, T) {
    let read = |_| {
        let (before, other) = (one(), other());
        (one().saturating_sub(before), before, other)
    };
    let first = read(0);
    let (_, one, other) = (1..READINGS)
        .map(read)
        .fold(first, |best, next| if next.0 < best.0 { next } else { best });
    (one, other)
}

/// Returns the time since this machine's start, including sleep.
pub(crate) fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u64::try_from(now.tv_nsec));
    Duration::from_secs(seconds.unwrap_or(0)) + Duration::from_nanos(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::process::Command;

    const SLEPT_S: u64 = 100_000;

    #[test]
    fn a_pause_between_two_readings_does_not_part_the_clocks() {
        // The other clock is an hour ahead. The machine pauses after each reading of the first clock, except one.
        let (now, reading) = (Cell::new(Duration::ZERO), Cell::new(0));
        let one = || {
            let at = now.get();
            let pause = if reading.replace(reading.get() + 1) == 4 { 0 } else { 50 };
            now.set(at + Duration::from_millis(pause));
            at
        };
        let hour = Duration::from_secs(3_600);
        let (at, other) = moment(one, || now.get() + hour);
        assert_eq!(other, at + hour);
    }

    #[test]
    #[ignore = "the program of the other test"]
    fn program() {
        println!("\nclock: {}", since_boot().as_nanos());
    }

    /// In a time namespace, the boot-time clock is ahead by what a sleep would have added; the monotonic clock is not.
    #[test]
    fn time_asleep_counts() {
        let program = std::env::current_exe().unwrap();
        let mut unshare = Command::new("unshare");
        unshare.args(["--time", "--monotonic", "0", "--boottime", &SLEPT_S.to_string(), "--"]);
        unshare.arg(program);
        unshare.args(["--exact", "clock::tests::program", "--ignored", "--nocapture"]);
        let before = since_boot();
        let output = unshare.output().ok().filter(|output| output.status.success());
        let Some(output) = output else {
            assert!(std::env::var_os("CI").is_none(), "CI is to have root and unshare");
            return eprintln!("SKIPPED time_asleep_counts: not root, or no unshare");
        };
        let said = String::from_utf8(output.stdout).unwrap();
        let shown = said.lines().find_map(|line| line.strip_prefix("clock: ")).unwrap();
        let slept = Duration::from_nanos(shown.parse().unwrap()).saturating_sub(before);
        assert!(slept >= Duration::from_secs(SLEPT_S), "{slept}");
    }
}
