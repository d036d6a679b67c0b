//! The effective policy: a named one with the overrides from the team file's `[policy]`.

use crate::model::PolicyOverrides;
use coorp_core::policy::Policy;

impl PolicyOverrides {
    /// Returns `policy` with these overrides applied, if it has the parts that they concern.
    pub fn apply(&self, policy: &Policy) -> Policy {
        let mut policy = policy.clone();
        replace(&mut policy.ack_every, self.ack_every);
        replace(&mut policy.rts_over, self.rts_over);
        replace(&mut policy.sight.completions, self.completions);
        replace(&mut policy.sight.scheduling_delay, self.scheduling_delay);
        if let Some(global) = &mut policy.global {
            replace(&mut policy.turns, self.turns);
            replace(&mut global.limit, self.limit);
            replace(&mut global.slice, self.slice);
            replace(&mut global.lease, self.lease);
        }
        if let Some(local) = &mut policy.local {
            replace(&mut local.accuracy, self.accuracy);
            replace(&mut local.extension, self.extension);
            replace(&mut local.protection_percentile, self.protection_percentile);
            let percentile_max = self.protection_percentile_max.map(Some);
            replace(&mut local.protection_percentile_max, percentile_max);
            replace(&mut local.completion_samples, self.completion_samples.map(usize::from));
            replace(&mut local.completions_stale, self.completions_stale.map(Some));
            replace(&mut local.early_release, self.early_release);
            replace(&mut local.command_windows, self.command_windows);
            replace(&mut local.shared_windows, self.shared_windows);
            replace(&mut local.steered_phases, self.steered_phases);
            replace(&mut local.window_share_max, self.window_share_max);
            replace(&mut local.backlog_max, self.backlog_max.map(Some));
        }
        policy
    }
}

fn replace<T>(value: &mut T, by: Option<T>) {
    if let Some(by) = by {
        *value = by;
    }
}
