//! The output of `coorp plan`: the table, the answer, the meaning of the model's columns, and where model and
//! simulation differ.

use coorp_team::Team;

use super::{has_bulk, model, Plan, Row, ROBOTS_MAX};
use crate::number::{figure, percent};
use crate::summary::shown;
use crate::table::Sheet;

/// A larger ratio between model and simulation is reported.
const RATIO_MAX: f64 = 2.0;

/// One row per size.
pub fn sheet(plan: &Plan<'_>) -> Sheet {
    let share = format!("p{}", figure_of_share(plan.quantile));
    let titles = [
        "robots\n",
        &format!("model reaction\n{share} ms"),
        "model bulk\nMbit/s",
        "violation\nrate",
    ];
    let simulated = ["reaction ms\np50", "\np99", "bulk\nMbit/s", "fits\n"];
    Sheet {
        titles: titles.into_iter().chain(simulated).map(str::to_owned).collect(),
        names: 1,
        rows: plan
            .rows
            .iter()
            .map(|row| cells(row, plan.robots_max_simulated))
            .collect(),
    }
}

fn cells(row: &Row, limit: Option<usize>) -> Vec<String> {
    let ran = row.violation_rate.is_some();
    let fits = match (row.on_time, row.bulk_enough) {
        (true, true) if Some(row.robots) == limit => "limit",
        (true, true) => "yes",
        (false, true) => "no: late",
        (true, false) => "no: bulk",
        (false, false) if ran => "no: both",
        (false, false) => "no",
    };
    vec![
        row.robots.to_string(),
        figure(row.model_reaction_ms),
        figure(row.model_bulk_mbps),
        shown(row.violation_rate, percent),
        shown(row.reaction_p50_ms, figure),
        shown(row.reaction_p99_ms, figure),
        shown(row.bulk_mbps, figure),
        fits.to_owned(),
    ]
}

/// 0.95 as 95, 0.999 as 99.9.
fn figure_of_share(share: f64) -> f64 {
    (share * 1e5).round() / 1e3
}

/// Returns the lines below the table.
pub fn below(plan: &Plan<'_>, team: &Team) -> String {
    let mut text = format!("{}\n\n{}\n", verdict(plan, team), about_model(plan, team));
    if has_bulk(team) && plan.bulk_min > 0.0 && plan.bulk_mbps_min.is_none() {
        text +=
            "Note: bulk never started in the smallest team, so only control was evaluated; use a longer --duration\n";
    }
    if let Some(warning) = apart(&plan.rows) {
        text += &format!("Warning: {warning}\n");
    }
    text
}

fn verdict(plan: &Plan<'_>, team: &Team) -> String {
    let mut asked = format!(
        "{} % of loops within {} ms",
        figure_of_share(plan.quantile),
        plan.bound_ms
    );
    if let (true, Some(least), Some(smallest)) = (has_bulk(team), plan.bulk_mbps_min, plan.rows.first()) {
        asked += &format!(
            ", and bulk at {} Mbit/s or more ({} of what {} robots move),",
            figure(least),
            percent(plan.bulk_min),
            smallest.robots
        );
    }
    let none = "no team".to_owned();
    let simulated = match plan.robots_max_simulated {
        None => none.clone(),
        Some(limit) if limit >= ROBOTS_MAX => format!("at least {ROBOTS_MAX} robots"),
        Some(limit) => format!("{limit} robots"),
    };
    let modelled = plan.robots_max_model.map_or(none, |limit| format!("{limit} robots"));
    let policy = plan.policy;
    format!(
        "{asked} under {policy}: {simulated} fit by simulation, and {modelled} by the model, which considers only \
         control (counts include the leader)."
    )
}

fn about_model(plan: &Plan<'_>, team: &Team) -> String {
    let how = if model::is_spread(team) {
        "on average, each alone"
    } else {
        "all together"
    };
    format!(
        "Model columns: equations 1 to 3 of the paper at {} Mbit/s, the TCP throughput of the file's robots to the \
         leader, {how}, measured for {}; losses, the WNIC's queues and movement are ignored.",
        figure(plan.model_bandwidth_mbps),
        model::PROBE
    )
}

/// Returns the sizes at which the model is of little use, if any.
fn apart(rows: &[Row]) -> Option<String> {
    // The model's quantile lies near or between the simulation's median and its p99.
    let reaction = |row: &Row| {
        let (low, high) = row.reaction_p50_ms.zip(row.reaction_p99_ms)?;
        Some(row.model_reaction_ms > high * RATIO_MAX || row.model_reaction_ms * RATIO_MAX < low)
    };
    let bulk = |row: &Row| {
        let simulated = row.bulk_mbps?;
        let (low, high) = (simulated.min(row.model_bulk_mbps), simulated.max(row.model_bulk_mbps));
        Some(high > low * RATIO_MAX)
    };
    let at = |what: &str, is_apart: &dyn Fn(&Row) -> Option<bool>| {
        let sizes: Vec<String> = rows
            .iter()
            .filter(|row| is_apart(row) == Some(true))
            .map(|row| row.robots.to_string())
            .collect();
        (!sizes.is_empty()).then(|| format!("in {what} at {} robots", sizes.join(", ")))
    };
    let found: Vec<String> = [at("reaction time", &reaction), at("bulk", &bulk)]
        .into_iter()
        .flatten()
        .collect();
    (!found.is_empty()).then(|| {
        format!(
            "model and simulation differ by more than {RATIO_MAX} times {}; trust the simulation",
            found.join(", and ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::row;
    use super::*;

    #[test]
    fn why_a_size_does_not_fit_stands_in_its_row() {
        let (_, mut starved) = row(9, false);
        (starved.on_time, starved.bulk_enough) = (true, false);
        assert_eq!(cells(&starved, Some(5)).last().map(String::as_str), Some("no: bulk"));
        let (_, late) = row(9, false);
        assert_eq!(cells(&late, Some(5)).last().map(String::as_str), Some("no: late"));
        let (_, fits) = row(5, true);
        assert_eq!(cells(&fits, Some(5)).last().map(String::as_str), Some("limit"));
    }

    #[test]
    fn a_model_that_is_far_off_is_told_with_its_sizes() {
        let (_, mut near) = row(2, true);
        (near.model_reaction_ms, near.reaction_p50_ms, near.reaction_p99_ms) = (30.0, Some(28.0), Some(33.0));
        (near.model_bulk_mbps, near.bulk_mbps) = (200.0, Some(180.0));
        assert_eq!(apart(&[near.clone(), row(3, true).1]), None);
        let mut far = near.clone();
        (far.robots, far.model_reaction_ms, far.bulk_mbps) = (17, 200.0, Some(90.0));
        let told = apart(&[near, far]).unwrap();
        assert!(
            told.contains("reaction time at 17 robots, and in bulk at 17 robots"),
            "{told}"
        );
    }
}
