//! Seeded faults.
use coorp_core::policy::Policy;
use coorp_core::{Duration, Instant, RobotId};
use coorp_team::Team;
pub(crate) enum Strike {
    Down(RobotId),
    Up(RobotId, u32),
    ClockStep(RobotId, i64),
    None,
}
pub(crate) struct Faults;
impl Faults {
    pub fn new(_: &Team, _: &Policy, _: u64) -> Self {
        Faults
    }
    pub fn next(&mut self) -> Instant {
        Instant::FAR_FUTURE
    }
    pub fn strike(&mut self, _now: Instant) -> Strike {
        Strike::None
    }
    pub fn permit_message(&mut self) -> Vec<Duration> {
        vec![Duration::ZERO]
    }
}
