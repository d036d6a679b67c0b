//! What a robot on real sockets runs of a policy.
//!
//! Left out: phases that are steered. Programs own their sensors, and this library cannot tell them when to sample. Each
//! shift would only start the flow's model anew.

use coorp_core::policy::Policy;

/// The policy as this robot runs it; the log names what it leaves out.
pub(crate) fn as_run(mut policy: Policy) -> Policy {
    if let Some(local) = policy.local.as_mut().filter(|local| local.steered_phases) {
        local.steered_phases = false;
        tracing::warn!("steered_phases has no effect here: only the simulator can tell programs when to sample");
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_not_steered() {
        let policy = Policy::named("coorp").unwrap();
        let mut steered = policy.clone();
        steered.local.as_mut().unwrap().steered_phases = true;
        assert_eq!(as_run(steered), policy);
        assert_eq!(as_run(policy.clone()), policy);
    }
}
