//! The clock by which a program starts; its logical time stays behind this clock.

use coorp_core::Instant;
use rustix::time::{clock_gettime, ClockId};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The clock of a program, the same for all its federates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// The clock of one machine, which nobody sets (`CLOCK_MONOTONIC`).
    #[default]
    Machine,
    /// The time of day (`CLOCK_REALTIME`), for programs on several machines whose clocks are synchronised. Within a
    /// process, it stops while it is set back.
    TimeOfDay,
}

impl Clock {
    /// Returns the time.
    pub fn now(self) -> Instant {
        static LATEST: AtomicU64 = AtomicU64::new(0);
        match self {
            Clock::Machine => read(ClockId::Monotonic),
            Clock::TimeOfDay => {
                let now = read(ClockId::Realtime);
                let latest = LATEST.fetch_max(now.as_nanos(), Relaxed);
                now.max(Instant::from_nanos(latest))
            }
        }
    }
}

fn read(clock: ClockId) -> Instant {
    let time = clock_gettime(clock);
    Instant::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_the_systems() {
        let system = std::time::SystemTime::now();
        let system = system.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let (now, machine) = (Clock::TimeOfDay.now(), Clock::Machine.now());
        assert!(now.as_nanos().abs_diff(system) < 1_000_000_000);
        assert!(Clock::TimeOfDay.now() >= now && Clock::Machine.now() >= machine);
        assert_ne!(
            now.as_nanos() / 3_600_000_000_000,
            machine.as_nanos() / 3_600_000_000_000
        );
    }
}
