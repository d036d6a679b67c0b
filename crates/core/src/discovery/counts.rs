//! Counts of hints, attempts and refusals.

use serde::{Deserialize, Serialize};

use super::Outcome;

/// The reason for refusing a message from the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The message could not be parsed, or is of another version.
    Garbled,
    /// The message is about another team.
    OtherTeam,
    /// The message names no robot of the team.
    UnknownRobot,
    /// The message lacks the team's proof.
    Unproved,
    /// The address is on no network of that path.
    Elsewhere,
    /// Somebody else answered there a short time ago.
    Misfit,
    /// Too many addresses are stored for one robot.
    TooMany,
}

impl Refusal {
    /// All reasons.
    pub const ALL: [Refusal; 7] = [
        Refusal::Garbled,
        Refusal::OtherTeam,
        Refusal::UnknownRobot,
        Refusal::Unproved,
        Refusal::Elsewhere,
        Refusal::Misfit,
        Refusal::TooMany,
    ];

    /// Returns the reason's name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Garbled => "garbled",
            Refusal::OtherTeam => "other_team",
            Refusal::UnknownRobot => "unknown_robot",
            Refusal::Unproved => "unproved",
            Refusal::Elsewhere => "elsewhere",
            Refusal::Misfit => "misfit",
            Refusal::TooMany => "too_many",
        }
    }
}

/// Totals since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Hints accepted.
    pub hints: u64,
    /// Attempts begun.
    pub attempts: u64,
    /// Attempts that ended in a connection.
    pub connected: u64,
    /// Attempts that met a wrong certificate.
    pub misfits: u64,
    /// Attempts without an answer.
    pub unanswered: u64,
    /// Attempts that were refused.
    pub rejected: u64,
    /// Messages refused, per reason in the order of [`Refusal::ALL`].
    pub refused: [u64; Refusal::ALL.len()],
}

impl Counts {
    /// Returns the number of messages refused for a reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize]
    }

    /// Returns the number of attempts that did not reach a member of the team.
    pub fn failed(&self) -> u64 {
        self.misfits + self.unanswered + self.rejected
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        self.refused[refusal as usize] += 1;
    }

    pub(super) fn end(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Connected(_) => self.connected += 1,
            Outcome::Misfit => self.misfits += 1,
            Outcome::NoAnswer => self.unanswered += 1,
            Outcome::Refused => self.rejected += 1,
        }
    }
}
