//! A robot's end of the MPC loop: decides when it samples, and which samples it sends.

use coorp_core::{Duration, Instant, RobotId};
use coorp_team::{Control, JitterShape, Team};
use rand::SeedableRng;
use rand_distr::{Distribution, StandardNormal};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A robot that perceives and is commanded.
///
/// Call [`Worker::on_deadline`] at [`Worker::next_deadline`], pass it commands, and after each call send the perception
/// that [`Worker::poll`] returns.
#[derive(Debug)]
pub struct Worker {
    period: Duration,
    jitter: Duration,
    jitter_shape: JitterShape,
    /// Whether the robot samples only by its clock.
    overlap: bool,
    patience: Duration,
    start: Instant,
    phase: Duration,
    rng: Xoshiro256PlusPlus,
    /// The number of samples scheduled so far. All except the last, due at `next`, have fallen due.
    ticks: u64,
    next: Instant,
    /// When the robot made the perception for which it has no command yet.
    waiting_since: Option<Instant>,
    /// Whether a sample fell due while the robot waited.
    put_off: bool,
    alive: bool,
    /// The sample whose perception has to be sent.
    perceive: Option<u64>,
}

impl Worker {
    /// Creates the worker of `robot`, in a team whose loops begin at `start`. The same seed gives the same phases and
    /// jitter.
    pub fn new(team: &Team, control: Control, robot: RobotId, start: Instant, seed: u64) -> Self {
        let place = usize::from(robot.0);
        let own = seed ^ 0x7365_6e73_6500 ^ u64::from(robot.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut worker = Worker {
            period: control.period,
            jitter: control.jitter,
            jitter_shape: control.jitter_shape,
            overlap: control.overlap,
            patience: super::patience(&control),
            start,
            phase: super::phases(team, &control, seed)[place],
            rng: Xoshiro256PlusPlus::seed_from_u64(own),
            ticks: 0,
            next: start,
            waiting_since: None,
            put_off: false,
            alive: true,
            perceive: None,
        };
        worker.schedule();
        worker
    }

    /// Sets the instant of the next sample: its place on the grid, shifted by the sensor's jitter.
    fn schedule(&mut self) {
        // One period of margin, so that jitter never reaches before the start.
        let nominal = self.start + self.period * (self.ticks + 1) + self.phase;
        self.ticks += 1;
        let deviations: f64 = match self.jitter_shape {
            JitterShape::Normal => StandardNormal.sample(&mut self.rng),
            JitterShape::Uniform => (2.0 * super::uniform(&mut self.rng) - 1.0) * 3.0_f64.sqrt(),
        };
        let off = Duration::from_secs_f64(deviations.abs() * self.jitter.as_secs_f64());
        self.next = if deviations < 0.0 { nominal - off } else { nominal + off };
    }

    /// Returns when the sensor next samples.
    pub fn next_deadline(&self) -> Instant {
        self.next
    }

    /// Lets the sensor sample.
    pub fn on_deadline(&mut self, now: Instant) {
        if self.alive {
            match self.waiting_since {
                Some(since) if now.since(since) < self.patience && !self.overlap => self.put_off = true,
                _ => self.sense(self.ticks, now),
            }
        }
        self.schedule();
    }

    /// Handles a command of a round whose newest sample was `newest`. If a sample fell due meanwhile, the next loop
    /// starts at once, unless the others' samples of that instant were in the round. In that case the robot had fallen
    /// out of step, and waits.
    pub fn on_command(&mut self, newest: u64, now: Instant) {
        self.waiting_since = None;
        let put_off = self.ticks - 1;
        if std::mem::take(&mut self.put_off) && self.alive && newest < put_off {
            self.sense(put_off, now);
        }
    }

    fn sense(&mut self, sample: u64, now: Instant) {
        self.waiting_since = Some(now);
        self.put_off = false;
        self.perceive = Some(sample);
    }

    /// Returns the sample whose perception goes to the leader now. Samples count from 1.
    pub fn poll(&mut self) -> Option<u64> {
        self.perceive.take()
    }

    /// Returns the sensor's phase, below the period.
    pub fn phase(&self) -> Duration {
        self.phase
    }

    /// Moves the sampling grid later. Samples keep the number of the period that they fall into.
    pub fn shift_phase(&mut self, by: Duration) {
        let phase = (self.phase + by).as_nanos();
        let period = self.period.as_nanos().max(1);
        self.phase = Duration::from_nanos(phase % period);
        self.ticks += phase / period;
    }

    /// Lets the robot die or come back. The sensor keeps its grid.
    pub fn set_alive(&mut self, alive: bool) {
        self.alive = alive;
        self.waiting_since = None;
        self.put_off = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_millis(30);

    fn worker(jitter: &str) -> Worker {
        let text = format!(
            "robot = [{{ name = 'l', leader = true }}, {{ name = 'a', phase = '4ms' }}]\n[control]\nperiod = '30ms'\n\
             bound = '30ms'\njitter = '{jitter}'"
        );
        let team = coorp_team::parse(&text, "test.toml", std::path::Path::new(".")).expect("a valid team");
        let control = team.control.expect("a control loop");
        Worker::new(&team, control, RobotId(1), Instant::ZERO + PERIOD * 10, 1)
    }

    /// Lets the next sample fall due.
    fn tick(worker: &mut Worker) -> Option<u64> {
        worker.on_deadline(worker.next_deadline());
        worker.poll()
    }

    #[test]
    fn samples_lie_on_the_grid_but_for_jitter() {
        let (mut exact, mut rough) = (worker("0ms"), worker("1ms"));
        let mut off = 0;
        for sample in 1..50 {
            let due = Instant::ZERO + PERIOD * (10 + sample) + Duration::from_millis(4);
            assert_eq!(exact.next_deadline(), due);
            let next = rough.next_deadline();
            assert!(next.since(due).max(due.since(next)) < Duration::from_millis(8));
            off += u32::from(next != due);
            exact.on_deadline(due);
            rough.on_deadline(next);
        }
        assert!(off > 40, "{off} of 49");
    }

    #[test]
    fn a_late_command_starts_the_next_loop_at_once() {
        let mut worker = worker("0ms");
        assert_eq!(tick(&mut worker), Some(1));
        assert_eq!(tick(&mut worker), None, "sample 2 waits for the command");
        let late = worker.next_deadline() - Duration::from_millis(5);
        worker.on_command(1, late);
        assert_eq!(worker.poll(), Some(2));
        assert_eq!(tick(&mut worker), None, "and is awaited in turn");
    }

    #[test]
    fn a_robot_out_of_step_waits_for_the_next_sample() {
        let mut worker = worker("0ms");
        assert_eq!(tick(&mut worker), Some(1));
        assert_eq!(tick(&mut worker), None);
        worker.on_command(2, worker.next_deadline() - Duration::from_millis(5));
        assert_eq!(worker.poll(), None, "others' sample 2 was in this round");
        assert_eq!(tick(&mut worker), Some(3));
    }

    #[test]
    fn patience_ends_the_wait_for_a_command_that_never_comes() {
        let mut worker = worker("0ms");
        let sent: Vec<Option<u64>> = (0..5).map(|_| tick(&mut worker)).collect();
        assert_eq!(sent, [Some(1), None, None, Some(4), None]);
    }

    #[test]
    fn the_dead_send_nothing_and_come_back_awaiting_nothing() {
        let mut worker = worker("0ms");
        assert_eq!(tick(&mut worker), Some(1));
        worker.set_alive(false);
        assert_eq!(tick(&mut worker), None);
        worker.on_command(1, worker.next_deadline());
        assert_eq!(worker.poll(), None);
        worker.set_alive(true);
        assert_eq!(tick(&mut worker), Some(3));
    }

    #[test]
    fn a_shifted_grid_keeps_the_samples_numbers() {
        let mut worker = worker("0ms");
        worker.shift_phase(Duration::from_millis(29));
        assert_eq!(worker.phase(), Duration::from_millis(3));
        let before = worker.next_deadline();
        worker.on_deadline(before);
        assert_eq!(worker.next_deadline().since(before), Duration::from_millis(59));
    }
}
