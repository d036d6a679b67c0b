//! Measures how long loops took. No robot knows this, because commands arrive on other robots, but a run does.

use std::collections::VecDeque;

use coorp_core::{Duration, Instant};

/// Maximum number of loops whose commands are under way. Patience keeps the number far below.
const ROUNDS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Round {
    number: u64,
    start: Instant,
    outstanding: u16,
    lost: bool,
}

/// A loop whose commands have all arrived or are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub start: Instant,
    pub reaction: Duration,
    pub lost: bool,
}

/// Loops under way.
#[derive(Debug)]
pub(crate) struct Rounds {
    patience: Duration,
    rounds: VecDeque<Round>,
}

impl Rounds {
    pub fn new(patience: Duration) -> Self {
        Rounds {
            patience,
            rounds: VecDeque::new(),
        }
    }

    /// Begins a loop that started at `start` and will send `outstanding` commands.
    pub fn begin(&mut self, number: u64, start: Instant, outstanding: u16) {
        if self.rounds.len() == ROUNDS_MAX {
            self.rounds.pop_front();
        }
        self.rounds.push_back(Round {
            number,
            start,
            outstanding,
            lost: false,
        });
    }

    /// Records that a command of this loop has arrived or is lost. Returns the loop if it was the last command.
    pub fn on_command(&mut self, number: u64, lost: bool, now: Instant) -> Option<Ended> {
        let place = self.rounds.iter().position(|round| round.number == number)?;
        let round = &mut self.rounds[place];
        round.lost |= lost;
        round.outstanding = round.outstanding.saturating_sub(1);
        if round.outstanding > 0 {
            return None;
        }
        let Round { start, lost, .. } = self.rounds.remove(place)?;
        let took = now.since(start);
        let reaction = if lost { took.max(self.patience) } else { took };
        Some(Ended { start, reaction, lost })
    }

    /// Forgets all loops, because the leader died and none of its loops will end.
    pub fn clear(&mut self) {
        self.rounds.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_loop_ends_with_its_last_command_and_a_lost_one_counts_as_patience() {
        let mut rounds = Rounds::new(MS * 99);
        let start = Instant::ZERO + MS;
        rounds.begin(0, start, 2);
        rounds.begin(1, start + MS * 33, 2);
        assert_eq!(rounds.on_command(1, true, start + MS * 40), None);
        assert_eq!(rounds.on_command(0, false, start + MS * 41), None);
        let ended = |reaction, lost, start| Some(Ended { start, reaction, lost });
        assert_eq!(
            rounds.on_command(0, false, start + MS * 42),
            ended(MS * 42, false, start)
        );
        assert_eq!(
            rounds.on_command(1, false, start + MS * 43),
            ended(MS * 99, true, start + MS * 33)
        );
        assert_eq!(rounds.on_command(1, false, start + MS * 44), None, "it is over");
    }

    #[test]
    fn loops_that_never_end_make_room() {
        let mut rounds = Rounds::new(MS);
        for number in 0..=ROUNDS_MAX as u64 {
            rounds.begin(number, Instant::ZERO, 1);
        }
        assert_eq!(rounds.rounds.len(), ROUNDS_MAX);
        assert_eq!(rounds.on_command(0, false, Instant::ZERO), None);
        assert!(rounds.on_command(1, false, Instant::ZERO).is_some());
    }
}
