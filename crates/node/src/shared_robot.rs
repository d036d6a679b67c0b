//! The robot, shared by all threads and callbacks: they pass inputs to it, and query it.
//!
//! The robot is behind one lock, which is never held while something is sent. Only one worker carries out its actions
//! ([`SharedRobot::round`]), so that the order of its actions is the order on the wire.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration as StdDuration;

use coorp_core::clock::Offset;
use coorp_core::robot::{Action, ClockId, Input, Robot, RobotConfig};
use coorp_core::{Duration, Instant};
use coorp_team::Team;

use crate::clock::Clock;
use crate::flight::{About, Flown};
use crate::ground::{Ground, Signal};
use crate::pulse::Pulse;
use crate::sync::lock;
use crate::Error;

/// The robot's time at its start: far enough above zero that no offset reaches below it.
pub(crate) const STARTED: Instant = Instant::from_nanos(Duration::from_secs(1_000).as_nanos());
/// The driver wakes at least this often, whatever the robot's deadline.
const LOOK_UP_EVERY: Duration = Duration::from_nanos(Pulse::ROUND_MAX.as_nanos() as u64);

/// A robot with its clock, its flight recorder and the state of its driver.
pub(crate) struct SharedRobot {
    clock: Clock,
    robot: Arc<Mutex<Flown>>,
    /// Wakes the driver, once there is one.
    driver: OnceLock<Signal>,
    stop: AtomicBool,
    /// The number of wishes.
    wishes: Mutex<usize>,
    /// The number of the driver's rounds.
    rounds: AtomicU64,
    /// The reason why it no longer decides.
    failed: Mutex<Option<String>>,
    failing: Condvar,
}

/// Notices a panic while the robot is locked, which leaves it in an unknown state.
struct Watched<'a> {
    robot: &'a SharedRobot,
    /// Whether a panic had already begun, which has nothing to do with the robot.
    before: bool,
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.before {
            self.robot.fail("something panicked while it decided");
        }
    }
}

/// A wish to send bulk: while there is one, the robot requests permits.
#[derive(Debug)]
pub struct Wish(Arc<SharedRobot>);

impl Wish {
    /// Gives back the permit and asks for the next one, in one frame. Beside another wish it changes nothing.
    pub fn ask_again(&self) {
        let wishes = lock(&self.0.wishes);
        if *wishes == 1 {
            self.0.tell(|robot, now| {
                robot.handle(Input::WantBulk(false), now);
                robot.handle(Input::WantBulk(true), now)
            });
        }
    }
}

impl Drop for Wish {
    fn drop(&mut self) {
        let mut wishes = lock(&self.0.wishes);
        *wishes -= 1;
        if *wishes == 0 {
            self.0.tell(|robot, now| robot.handle(Input::WantBulk(false), now));
        }
    }
}

impl fmt::Debug for SharedRobot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRobot").finish_non_exhaustive()
    }
}

impl SharedRobot {
    /// Creates the robot and its clock.
    pub fn start(ground: &Arc<dyn Ground>, team: &Team, config: RobotConfig) -> Result<Arc<Self>, Error> {
        let clock = Clock::start(ground);
        let robot = Robot::new(config.clone(), STARTED).map_err(Error::Config)?;
        let (elapsed, unix_ns) = clock.moment();
        let about = About {
            team: team.name.clone(),
            robots: team.robots.iter().map(|robot| robot.name.clone()).collect(),
            config,
            origin: (STARTED, unix_ns.saturating_sub(elapsed.as_nanos())),
        };
        Ok(Arc::new(SharedRobot {
            clock,
            robot: Arc::new(Mutex::new(Flown::new(robot, about))),
            driver: OnceLock::new(),
            stop: AtomicBool::new(false),
            wishes: Mutex::default(),
            rounds: AtomicU64::new(0),
            failed: Mutex::default(),
            failing: Condvar::new(),
        }))
    }

    /// Returns the time at which the robot's clock began, since the machine's start.
    pub fn began(&self) -> Duration {
        self.clock.started()
    }

    /// Returns the time on the robot's clock.
    pub fn now(&self) -> Instant {
        STARTED + self.clock.elapsed()
    }

    /// Returns one moment on the robot's clock, and as Unix time in nanoseconds.
    pub fn moment(&self) -> (Instant, u64) {
        let (elapsed, unix_ns) = self.clock.moment();
        (STARTED + elapsed, unix_ns)
    }

    /// Passes an input to the robot, and wakes the driver for its consequences.
    pub fn tell<T>(&self, what: impl FnOnce(&mut Flown, Instant) -> T) -> T {
        let _watched = self.watched();
        let mut robot = lock(&self.robot);
        // Read the clock under the lock, so that the robot's time never goes back.
        let now = self.now();
        let before = robot.next_deadline();
        let told = what(&mut robot, now);
        if robot.is_pressing(before) {
            self.wake();
        }
        told
    }

    /// Queries the robot without changing it.
    pub fn ask<T>(&self, what: impl FnOnce(&Robot, Instant) -> T) -> T {
        let _watched = self.watched();
        what(&lock(&self.robot), self.now())
    }

    /// Returns the offset of a clock, if it is this robot's or was a leader's recently.
    pub fn clock(&self, clock: ClockId) -> Option<Offset> {
        self.ask(|robot, now| robot.clock(clock, now))
    }

    /// Adds a wish to send bulk.
    pub fn wish(self: &Arc<Self>) -> Wish {
        let mut wishes = lock(&self.wishes);
        *wishes += 1;
        if *wishes == 1 {
            self.tell(|robot, now| robot.handle(Input::WantBulk(true), now));
        }
        Wish(self.clone())
    }

    /// Returns the robot with the notes that the flight recorder writes.
    pub fn flown(&self) -> Arc<Mutex<Flown>> {
        self.robot.clone()
    }

    /// Runs one round of the driver: calls the robot if its deadline has come, and carries out its actions with `act`.
    /// Returns how long the driver rests unless it is woken; `None` once it is stopped.
    pub fn round(&self, act: impl Fn(Action)) -> Option<StdDuration> {
        let _watched = self.watched();
        loop {
            self.rounds.fetch_add(1, Ordering::Relaxed);
            let mut robot = lock(&self.robot);
            let now = self.now();
            let answer = robot.handle(Input::Deadline, now);
            let until = robot.next_deadline().min(now + LOOK_UP_EVERY);
            drop(robot);
            if let Some(actions) = answer.actions().filter(|actions| !actions.is_empty()) {
                actions.into_iter().for_each(&act);
                if self.failed().is_some() {
                    return None;
                }
                continue;
            }
            // Any input from now on wakes the driver.
            return (!self.is_stopped()).then(|| StdDuration::from_nanos(until.since(self.now()).as_nanos()));
        }
    }

    /// Sets the signal that wakes the driver from now on.
    pub fn driven_by(&self, driver: Signal) {
        // This is set only here.
        let _ = self.driver.set(driver);
        self.wake();
    }

    fn wake(&self) {
        if let Some(driver) = self.driver.get() {
            driver.wake();
        }
    }

    /// Stops the driver, once no actions are left.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    fn watched(&self) -> Watched<'_> {
        Watched {
            robot: self,
            before: std::thread::panicking(),
        }
    }

    /// Handles a panic in a task or thread that the robot needs. While the node closes, a panic is not a failure.
    pub fn on_panic(&self, why: &str) {
        if !self.is_stopped() {
            self.fail(why);
        }
    }

    /// Ends the robot's decisions forever.
    fn fail(&self, why: &str) {
        let why = format!("the robot has failed: {why}; it has stopped sending, and its process must be restarted");
        lock(&self.failed).get_or_insert(why.clone());
        self.failing.notify_all();
        self.stop();
        // This goes last, because the log itself may panic.
        tracing::error!("{why}");
    }

    /// Returns why it no longer decides, if it has failed.
    pub fn failed(&self) -> Option<String> {
        lock(&self.failed).clone()
    }

    /// Waits until it has failed, for at most `timeout`.
    pub fn failed_within(&self, timeout: StdDuration) -> Option<String> {
        let failed = lock(&self.failed);
        let waited = self
            .failing
            .wait_timeout_while(failed, timeout, |failed| failed.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Returns the number of the driver's rounds.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::Path;
    use std::thread;
    use std::time::Instant as StdInstant;

    use coorp_core::policy::Policy;
    use coorp_core::RobotId;

    use super::*;
    use crate::ground::Linux;

    const PATIENCE: StdDuration = StdDuration::from_secs(30);

    /// Returns how the permit changes in a round.
    fn changes(robot: &SharedRobot) -> Vec<bool> {
        let seen = RefCell::new(Vec::new());
        robot.round(|action| {
            if let Action::Permitted(permitted) = action {
                seen.borrow_mut().push(permitted);
            }
        });
        seen.into_inner()
    }

    #[test]
    fn a_permit_that_somebody_else_uses_is_not_asked_for_again() {
        // The other robot is off, so this one leads.
        let text = "[[robot]]\nname = \"one\"\nleader = true\n[[robot]]\nname = \"two\"\n";
        let team = coorp_team::parse(text, "t.toml", Path::new("")).unwrap();
        let config = team.robot_config(&Policy::named("coorp").unwrap(), RobotId(0), 1);
        let ground: Arc<dyn Ground> = Arc::new(Linux);
        let robot = SharedRobot::start(&ground, &team, config).unwrap();
        let (wish, began) = (robot.wish(), StdInstant::now());
        while !changes(&robot).contains(&true) {
            assert!(began.elapsed() < PATIENCE);
            thread::sleep(StdDuration::from_millis(5));
        }
        wish.ask_again();
        assert_eq!(changes(&robot), [false, true]);
        let other = robot.wish();
        wish.ask_again();
        assert!(changes(&robot).is_empty());
        drop(other);
    }
}
