//! Delays inside a robot: in its network stack, and of its programs while they wait for a core.

use coorp_core::Duration;
use rand::SeedableRng;
use rand_distr::{Distribution, Exp1};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Independent exponential delays. A mean of zero draws nothing.
#[derive(Debug)]
pub(crate) struct Delay {
    mean: Duration,
    rng: Xoshiro256PlusPlus,
}

impl Delay {
    pub fn new(mean: Duration, seed: u64) -> Self {
        Delay {
            mean,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
        }
    }

    pub fn draw(&mut self) -> Duration {
        if self.mean == Duration::ZERO {
            return Duration::ZERO;
        }
        let draw: f64 = Exp1.sample(&mut self.rng);
        Duration::from_secs_f64(draw * self.mean.as_secs_f64())
    }
}
