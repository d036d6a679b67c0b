//! The policies on the command line: each name with one line that describes it (Deng 2022, section VI, for the systems
//! compared there). `coorp_core::policy` defines the policies and `coorp_node` knows which run live; nothing is decided here.

use clap::builder::{PossibleValue, PossibleValuesParser};
use coorp_core::policy::Policy;
#[cfg(feature = "live")]
use coorp_node::live_policies;

use crate::failure::Failure;

/// Every policy and its description, in the order of [`coorp_core::policy::Policy::NAMES`].
const ABOUT: [(&str, &str); 9] = [
    ("mpc-only", "control alone: the best result possible on this channel"),
    ("bulk-only", "bulk alone: the maximum throughput"),
    ("best-effort", "both in one access category, without any priority"),
    (
        "edca",
        "stock WiFi: control goes as voice (AC_VO), bulk as best effort (AC_BE)",
    ),
    ("edca+global", "edca, with bulk only by permit from the leader"),
    (
        "edca+local",
        "edca, with a gate on each robot that holds bulk while control is expected",
    ),
    ("schedwifi", "edca with fixed time windows for control (SchedWiFi)"),
    ("coorp-paper", "permits and gates together, exactly as in the paper"),
    (
        "coorp",
        "the same, improved: windows shared by all robots, also for commands, and only while bulk makes control late",
    ),
];

/// Parses a policy's name; the long help describes each.
pub fn parser() -> PossibleValuesParser {
    PossibleValuesParser::new(ABOUT.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// Parses the name of a policy that a live robot runs.
#[cfg(feature = "live")]
pub fn live_parser() -> PossibleValuesParser {
    let names: Vec<&str> = live_policies().collect();
    let live = ABOUT.into_iter().filter(|(name, _)| names.contains(name));
    PossibleValuesParser::new(live.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// Returns the policy of this name.
///
/// # Errors
/// There is none; the message lists the names.
pub fn named(name: &str) -> Result<Policy, Failure> {
    Policy::named(name).ok_or_else(|| {
        let names = Policy::NAMES.join(", ");
        Failure::Input(format!("error: there is no policy '{name}'; choose one of {names}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_explained_in_a_line() {
        assert_eq!(ABOUT.map(|(name, _)| name), Policy::NAMES);
        assert!(ABOUT.iter().all(|(_, about)| !about.is_empty() && about.len() < 110));
    }
}
