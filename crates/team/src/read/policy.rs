//! `[policy]`: overrides of the named policies. The core knows which policy has which part.

use super::{HOUR, SECOND};
use crate::model::PolicyOverrides;
use crate::sheet::Sheet;
use coorp_core::gate::SAMPLES_MAX;
use coorp_core::policy::Completions;
use coorp_core::Duration;

/// Valid shares for quantiles: above the median, and below certainty, which no sample shows.
const QUANTILE: std::ops::RangeInclusive<f64> = 0.5..=0.9999;

/// What the completion time table keeps for one depth.
const COMPLETION_SAMPLES_MAX: u16 = SAMPLES_MAX as u16;

/// The sources of completions by name.
const COMPLETIONS: [(&str, Completions); 4] = [
    ("hook", Completions::Hook),
    ("status", Completions::Status),
    ("out-queue", Completions::OutQueue),
    ("acknowledgements", Completions::Acknowledgements),
];

pub(super) fn overrides(root: &mut Sheet<'_>) -> PolicyOverrides {
    let Some(mut sheet) = root.table("policy", "[policy]") else {
        return PolicyOverrides::default();
    };
    let read = PolicyOverrides {
        limit: sheet.integer("limit", 1..=1_000),
        slice: sheet.duration("slice", Duration::from_millis(20)..=HOUR),
        lease: sheet.duration("lease", Duration::from_millis(50)..=HOUR),
        accuracy: sheet.number("accuracy", QUANTILE),
        extension: sheet.duration("extension", Duration::ZERO..=SECOND),
        protection_percentile: sheet.number("protection_percentile", QUANTILE),
        protection_percentile_max: sheet.number("protection_percentile_max", QUANTILE),
        completion_samples: sheet.integer("completion_samples", 1..=COMPLETION_SAMPLES_MAX),
        completions_stale: sheet.duration("completions_stale", Duration::from_millis(1)..=HOUR),
        backlog_max: sheet.duration("backlog_max", Duration::from_micros(10)..=SECOND),
        early_release: sheet.flag("early_release"),
        command_windows: sheet.flag("command_windows"),
        shared_windows: sheet.flag("shared_windows"),
        steered_phases: sheet.flag("steered_phases"),
        turns: sheet.flag("turns"),
        completions: sheet.choice("completions", &COMPLETIONS),
        scheduling_delay: sheet.duration("scheduling_delay", Duration::ZERO..=SECOND),
        window_share_max: sheet.number("window_share_max", 0.01..=1.0),
        rts_over: sheet.duration("rts_over", Duration::ZERO..=SECOND),
        ack_every: sheet.integer("ack_every", 1..=256),
    };
    sheet.finish();
    read
}
