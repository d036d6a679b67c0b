//! The content of the tables, the same on the terminal and in the HTML report.
//!
//! Left out: everything that needs a chart (the report draws it), and what only scripts need (the JSON has it).

use coorp_sim::results::{PolicyResult, Quantiles};

use crate::notes::Unfit;
use crate::number::{figure, grouped, percent};
use crate::table::{Sheet, DASH};

const TITLES: [&str; 13] = [
    "policy",
    "violation\nrate",
    "reaction ms\np50",
    "\np90",
    "\np99",
    "control ms\np50",
    "\np99",
    "bulk\nMbit/s",
    "of\nbulk-only",
    "epochs\n",
    "epoch\nvs edca",
    "WNIC ahead\nmean",
    "\np99",
];
const SPEED_TITLE: &str = "virtual s\nper wall s";

/// A policy's name and result; `None` if it does not fit the team.
pub type Entry<'a> = (&'a str, Option<&'a PolicyResult>);

/// Returns all policies in the requested order.
pub fn entries<'a>(results: &'a [PolicyResult], unfit: &'a [Unfit]) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = results
        .iter()
        .map(|result| (result.policy.as_str(), Some(result)))
        .collect();
    // In order of their indices, so that the ones before are already in place.
    for missing in unfit {
        entries.insert(missing.place.min(entries.len()), (&missing.policy, None));
    }
    entries
}

/// Returns a row of dashes.
fn empty_row(policy: &str, columns: usize) -> Vec<String> {
    let mut row = vec![DASH.to_owned(); columns];
    if let Some(name) = row.first_mut() {
        *name = policy.to_owned();
    }
    row
}

/// One row per policy. Cells that do not apply show a dash.
pub fn policies(entries: &[Entry<'_>]) -> Sheet {
    let edca_epoch_s = entries
        .iter()
        .find(|(policy, _)| *policy == "edca")
        .and_then(|(_, result)| result.and_then(|result| result.epoch_s));
    let titles: Vec<String> = TITLES
        .iter()
        .chain(&[SPEED_TITLE])
        .map(|title| (*title).to_owned())
        .collect();
    let row = |(policy, result): &Entry<'_>| match result {
        Some(result) => policy_row(result, edca_epoch_s),
        None => empty_row(policy, titles.len()),
    };
    Sheet {
        names: 1,
        rows: entries.iter().map(row).collect(),
        titles,
    }
}

fn policy_row(result: &PolicyResult, edca_epoch_s: Option<f64>) -> Vec<String> {
    let reaction = |pick: fn(&Quantiles) -> f64| shown(result.reaction_ms.as_ref().map(pick), figure);
    let control = |pick: fn(&Quantiles) -> f64| shown(result.control_latency_ms.as_ref().map(pick), figure);
    let learns = result.epochs > 0 || result.epoch_s.is_some();
    let relative = result
        .epoch_s
        .zip(edca_epoch_s)
        .filter(|(_, edca)| *edca > 0.0)
        .map(|(own, edca)| own / edca);
    vec![
        result.policy.clone(),
        shown(result.violation_rate, percent),
        reaction(|q| q.p50),
        reaction(|q| q.p90),
        reaction(|q| q.p99),
        control(|q| q.p50),
        control(|q| q.p99),
        shown(result.bulk_mbps, figure),
        shown(result.bulk_share, percent),
        shown(learns.then_some(result.epochs), count),
        shown(relative, |ratio| format!("{ratio:.2}x")),
        shown(result.wnic_ahead.map(|ahead| ahead.mean), figure),
        shown(result.wnic_ahead.map(|ahead| ahead.p99), figure),
        shown(speed(result.virtual_s, result.wall_s), figure),
    ]
}

/// One row per policy and `[[flow]]`.
pub fn flows(entries: &[Entry<'_>]) -> Sheet {
    let bounded = |(_, result): &Entry<'_>| {
        let flows = result.iter().flat_map(|result| &result.flows);
        flows.into_iter().any(|flow| flow.violation_rate.is_some())
    };
    let mut titles = vec![
        "policy\n",
        "flow\n",
        "\nMbit/s",
        "\nsent",
        "\ndelivered",
        "latency ms\np50",
        "\np90",
        "\np99",
    ];
    let any_bound = entries.iter().any(bounded);
    if any_bound {
        titles.push("over\nbound");
    }
    let row = |result: &PolicyResult, flow: &coorp_sim::results::FlowResult| {
        let latency = |pick: fn(&Quantiles) -> f64| shown(flow.latency_ms.as_ref().map(pick), figure);
        let mut row = vec![
            result.policy.clone(),
            flow.name.clone(),
            figure(flow.mbps),
            count(flow.sent),
            count(flow.delivered),
            latency(|q| q.p50),
            latency(|q| q.p90),
            latency(|q| q.p99),
        ];
        if any_bound {
            row.push(shown(flow.violation_rate, percent));
        }
        row
    };
    let rows = |(policy, result): &Entry<'_>| match result {
        Some(result) => result.flows.iter().map(|flow| row(result, flow)).collect(),
        None => vec![empty_row(policy, titles.len())],
    };
    Sheet {
        titles: titles.iter().map(|title| (*title).to_owned()).collect(),
        names: 2,
        rows: entries.iter().flat_map(rows).collect(),
    }
}

/// Returns whether the table of policies has any content: there is a control loop or learning.
pub fn has_team_work(results: &[PolicyResult]) -> bool {
    results
        .iter()
        .any(|result| result.violation_rate.is_some() || result.epoch_s.is_some() || result.epochs > 0)
        || results.iter().all(|result| result.flows.is_empty())
}

/// Computes each result's share of `bulk-only`, which a single policy's run cannot know.
pub fn share_of_bulk_only(results: &mut [PolicyResult]) {
    let whole = results
        .iter()
        .find(|result| result.policy == "bulk-only")
        .and_then(|result| result.bulk_mbps);
    for result in results {
        result.bulk_share = result
            .bulk_mbps
            .zip(whole)
            .filter(|(_, whole)| *whole > 0.0)
            .map(|(own, whole)| own / whole);
    }
}

/// Returns a count for a table.
pub fn count(value: u64) -> String {
    grouped(i64::try_from(value).unwrap_or(i64::MAX))
}

/// Returns a value if it is finite, otherwise a dash.
pub fn shown<T>(value: Option<T>, format: impl Fn(T) -> String) -> String {
    value.map_or_else(|| DASH.to_owned(), format)
}

/// Virtual seconds per wall-clock second; `None` if the run took no measurable time.
pub fn speed(virtual_s: f64, wall_s: f64) -> Option<f64> {
    (wall_s > 0.0).then(|| virtual_s / wall_s)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use coorp_sim::results::{AirtimeShare, MacResult};

    /// Returns a successful run.
    pub fn result(policy: &str) -> PolicyResult {
        let quantiles = Quantiles {
            p10: 20.0,
            p50: 22.0,
            p90: 31.0,
            p99: 40.0,
            p999: 50.0,
            mean: 24.0,
        };
        PolicyResult {
            policy: policy.to_owned(),
            violation_rate: Some(0.035),
            loops: 1800,
            reaction_ms: Some(quantiles),
            control_latency_ms: Some(quantiles),
            perception_latency_ms: Some(quantiles),
            command_latency_ms: Some(quantiles),
            bulk_mbps: Some(168.2),
            bulk_share: None,
            epochs: 4,
            epoch_s: Some(12.0),
            wnic_ahead: None,
            window_share: 0.1,
            virtual_s: 60.0,
            wall_s: 0.2,
            events: 1,
            flows: Vec::new(),
            mac: MacResult {
                collisions: 0,
                retries: 0,
                airtime_share: AirtimeShare {
                    data: 0.5,
                    control: 0.1,
                    idle: 0.4,
                },
            },
        }
    }

    #[test]
    fn a_policy_that_does_not_fit_keeps_its_place_with_dashes() {
        let results = [result("edca"), result("coorp")];
        let missing = |place, policy: &str| Unfit {
            place,
            policy: policy.to_owned(),
            why: String::new(),
        };
        let unfit = [missing(1, "schedwifi"), missing(3, "edca+local")];
        let sheet = policies(&entries(&results, &unfit));
        let names: Vec<&str> = sheet.rows.iter().map(|row| row[0].as_str()).collect();
        assert_eq!(names, ["edca", "schedwifi", "coorp", "edca+local"]);
        assert!(sheet.rows[1][1..].iter().all(|cell| cell == DASH));
        assert!(sheet.rows.iter().all(|row| row.len() == sheet.titles.len()));
        assert_eq!(flows(&entries(&results, &unfit)).rows.len(), 2);
    }
}
