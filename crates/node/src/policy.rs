//! Decides which policies a robot on real sockets runs, and what it leaves out of them.
//!
//! Left out: steered phases. Programs own their sensors, and this library cannot tell them when to sample. Each shift
//! would only restart the flow's model.

use coorp_core::policy::{Access, Policy};

use crate::Error;

/// Returns the names of the policies that run live.
pub fn live_policies() -> impl Iterator<Item = &'static str> {
    let live = |name: &&str| Policy::named(name).is_some_and(|policy| why_not_live(&policy).is_none());
    Policy::NAMES.into_iter().filter(live)
}

/// Returns why a robot on real sockets cannot run a policy; `None` if it can.
pub fn why_not_live(policy: &Policy) -> Option<&'static str> {
    if policy.schedwifi.is_some() {
        Some("only the simulator has its windows")
    } else if policy.access == Access::BestEffort {
        Some("live control is always marked")
    } else if !policy.control || !policy.bulk {
        Some("a live robot's programs decide whether control and bulk run")
    } else {
        None
    }
}

/// Returns the policy as this robot runs it; the log names what it leaves out.
///
/// # Errors
/// If it would run as another policy.
pub(crate) fn as_run(mut policy: Policy) -> Result<Policy, Error> {
    if let Some(why) = why_not_live(&policy) {
        let names: Vec<&str> = live_policies().collect();
        return Err(Error::Config(format!(
            "policy '{}' does not run on real sockets: {why}; choose one of {}",
            policy.name,
            names.join(", ")
        )));
    }
    if let Some(local) = policy.local.as_mut().filter(|local| local.steered_phases) {
        local.steered_phases = false;
        tracing::warn!("steered_phases has no effect here: only the simulator can tell programs when to sample");
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_not_steered() {
        let policy = Policy::named("coorp").unwrap();
        let mut steered = policy.clone();
        steered.local.as_mut().unwrap().steered_phases = true;
        assert_eq!(as_run(steered).unwrap(), policy);
        assert_eq!(as_run(policy.clone()).unwrap(), policy);
    }

    #[test]
    fn a_policy_runs_as_itself_or_not_at_all() {
        let live = ["edca", "edca+global", "edca+local", "coorp-paper", "coorp"];
        assert_eq!(live_policies().collect::<Vec<_>>(), live);
        for name in Policy::NAMES {
            assert_eq!(
                as_run(Policy::named(name).unwrap()).is_ok(),
                live.contains(&name),
                "{name}"
            );
        }
    }
}
