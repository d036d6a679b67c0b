//! The progress bar: virtual seconds done over all runs, on stderr, only if stderr is a terminal.

use std::sync::atomic::{AtomicU64, Ordering};

use coorp_core::{Duration, Instant};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The progress of several runs, which report from their own threads.
pub struct Progress {
    bar: ProgressBar,
    reached_ms: Vec<AtomicU64>,
    each: Duration,
}

impl Progress {
    /// Returns a bar for `runs` runs of `each` virtual time; invisible if `quiet` or if stderr is not a terminal.
    pub fn new(runs: usize, each: Duration, quiet: bool) -> Progress {
        let target = if quiet {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        };
        let bar = ProgressBar::with_draw_target(Some(millis(each.as_nanos()).saturating_mul(runs as u64)), target);
        // No colours, so NO_COLOR has nothing to disable.
        if let Ok(style) = ProgressStyle::with_template("simulating {wide_bar} {percent:>3} %, {eta} left") {
            bar.set_style(style.progress_chars("##-"));
        }
        Progress {
            bar,
            reached_ms: (0..runs).map(|_| AtomicU64::new(0)).collect(),
            each,
        }
    }

    /// Run `index` has reached `now`.
    pub fn reach(&self, index: usize, now: Instant) {
        let Some(slot) = self.reached_ms.get(index) else { return };
        let now_ms = millis(now.as_nanos().min(self.each.as_nanos()));
        let before_ms = slot.fetch_max(now_ms, Ordering::Relaxed);
        if now_ms > before_ms {
            self.bar.inc(now_ms - before_ms);
        }
    }

    /// Run `index` has ended, successfully or not.
    pub fn finish(&self, index: usize) {
        self.reach(index, Instant::ZERO + self.each);
    }

    /// All runs have ended: removes the bar.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

fn millis(nanos: u64) -> u64 {
    nanos / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_counts_every_run_once_and_never_past_its_end() {
        let progress = Progress::new(2, Duration::from_secs(10), true);
        progress.reach(0, Instant::from_nanos(4_000_000_000));
        progress.reach(0, Instant::from_nanos(3_000_000_000));
        progress.reach(1, Instant::from_nanos(99_000_000_000));
        assert_eq!(progress.bar.position(), 14_000);
        progress.finish(0);
        progress.finish(0);
        assert_eq!(progress.bar.position(), 20_000);
        progress.reach(7, Instant::FAR_FUTURE);
        assert_eq!(progress.bar.position(), 20_000);
    }
}
