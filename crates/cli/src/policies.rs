//! The policies as the command line offers them: each name with one line on what it does (001 section VI for the
//! systems compared there). What a policy is made of stands in `coorp_core::policy`; nothing is decided here.

use clap::builder::{PossibleValue, PossibleValuesParser};
use coorp_core::policy::Policy;

use crate::failure::Failure;

/// Every policy and what it is, in the order of [`coorp_core::policy::Policy::NAMES`].
const ABOUT: [(&str, &str); 9] = [
    ("mpc-only", "control alone: the best that it can get on this air"),
    ("bulk-only", "bulk alone: the most that it can move"),
    ("best-effort", "both in one access category, as without any priority"),
    (
        "edca",
        "stock WiFi: control goes as voice (AC_VO), bulk as best effort (AC_BE)",
    ),
    ("edca+global", "edca, and bulk needs a permit from the leader"),
    (
        "edca+local",
        "edca, and each robot's gate holds bulk back while it expects control",
    ),
    ("schedwifi", "edca with windows of fixed times for control (SchedWiFi)"),
    (
        "coorp-paper",
        "permits and gates together, exactly as the paper has them",
    ),
    (
        "coorp",
        "the same and better: shared windows, steered phases, fewer acknowledgements, RTS before long frames",
    ),
];

/// Takes a policy's name; the long help says what each of them is.
pub fn parser() -> PossibleValuesParser {
    PossibleValuesParser::new(ABOUT.map(|(name, about)| PossibleValue::new(name).help(about)))
}

/// The policy of this name.
///
/// # Errors
/// There is none: says which there are.
pub fn named(name: &str) -> Result<Policy, Failure> {
    Policy::named(name).ok_or_else(|| {
        let names = Policy::NAMES.join(", ");
        Failure::Input(format!("error: there is no policy called '{name}'; there are {names}"))
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
