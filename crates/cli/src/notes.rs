//! The notes below the table: why a policy has no figures, and how a figure might be misread. Each note appears only if
//! it applies.
//!
//! Left out: judgements on the team itself; the figures speak for themselves.

use coorp_core::policy::{Completions, Policy, Sight};
use coorp_core::Duration;
use coorp_sim::results::PolicyResult;
use coorp_team::{Change, Team};

use crate::number::DURATION_MAX;

/// Long enough for learning epochs as in the papers, with ten seconds per batch.
const LEARNING_DURATION: Duration = Duration::from_secs(600);

/// A policy that cannot run for this team.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfit {
    /// The index among the requested policies.
    pub place: usize,
    /// The name.
    pub policy: String,
    /// Why not, and how to fix it.
    pub why: String,
}

/// Returns the notes on a run of `duration`.
pub fn notes(team: &Team, duration: Duration, results: &[PolicyResult]) -> Vec<String> {
    let mut notes: Vec<String> = results.iter().filter_map(more_than_bulk_only).collect();
    notes.extend(idle_bulk(team, duration, results));
    notes.extend(left_out(team));
    notes.extend(sight(team, results));
    notes
}

/// Returns what robots see that differs from a stock kernel's view.
fn sight(team: &Team, results: &[PolicyResult]) -> Vec<String> {
    let policies = results.iter().filter_map(|result| Policy::named(&result.policy));
    let policies: Vec<Policy> = policies.map(|policy| team.policy.apply(&policy)).collect();
    let sources = [
        (Completions::Hook, "a hook in a patched driver; no stock kernel has one"),
        (
            Completions::Status,
            "transmit status, which some drivers cannot report without harm",
        ),
        (Completions::OutQueue, "the kernel's send queue"),
        (Completions::Acknowledgements, "acknowledgements"),
    ];
    let mut notes = Vec::new();
    for (source, what) in sources.iter().filter(|(source, _)| *source != Sight::STOCK.completions) {
        let gated = |policy: &&Policy| policy.local.is_some() || policy.schedwifi.is_some();
        let seeing = policies
            .iter()
            .filter(gated)
            .filter(|policy| policy.sight.completions == *source);
        let names: Vec<&str> = seeing.map(|policy| &*policy.name).collect();
        if !names.is_empty() {
            let learns = if names.len() == 1 { "learns" } else { "learn" };
            notes.push(format!(
                "{} {learns} that bulk has left from {what}",
                names.join(" and ")
            ));
        }
    }
    let delay = policies.iter().map(|policy| policy.sight.scheduling_delay).max();
    if let Some(delay) = delay.filter(|delay| *delay > Duration::ZERO) {
        notes.push(format!("programs wait {delay} for a core on average, as [policy] says"));
    }
    notes
}

/// Returns what the team file describes but only `coorp emu` implements.
fn left_out(team: &Team) -> Option<String> {
    let happens = |kind: fn(&Change) -> bool| team.events.iter().any(|event| kind(&event.change));
    let left_out = [
        (!team.interfaces.is_empty(), "[[interface]]"),
        (happens(|change| matches!(change, Change::Partition(_))), "partitions"),
        (happens(|change| matches!(change, Change::Death(_))), "deaths"),
    ];
    let left_out: Vec<&str> = left_out
        .iter()
        .filter(|(there, _)| *there)
        .map(|(_, what)| *what)
        .collect();
    (!left_out.is_empty()).then(|| {
        format!(
            "the simulation ignores {}; 'coorp emu' supports them",
            left_out.join(" and ")
        )
    })
}

/// A throughput above that of bulk-only needs an explanation.
fn more_than_bulk_only(result: &PolicyResult) -> Option<String> {
    // Only if the table shows more than 100.0 %.
    result.bulk_share.filter(|share| *share >= 1.0005)?;
    let name = &result.policy;
    Some(format!(
        "{name} moves slightly more than bulk-only: by chance, or because control spreads its bulk over time"
    ))
}

/// Bulk that never started, or learning without a complete epoch, in any policy with bulk.
fn idle_bulk(team: &Team, duration: Duration, results: &[PolicyResult]) -> Option<String> {
    let has_bulk = |result: &&PolicyResult| Policy::named(&result.policy).is_some_and(|policy| policy.bulk);
    let with_bulk: Vec<&PolicyResult> = results.iter().filter(has_bulk).collect();
    if with_bulk.is_empty() {
        return None;
    }
    let never_started = with_bulk.iter().all(|result| result.bulk_mbps.is_none());
    if let Some(learning) = &team.learning {
        let period = team.control.as_ref().map_or(Duration::ZERO, |control| control.period);
        let batch = Duration::from_secs_f64(period.as_secs_f64() * f64::from(learning.batch_loops));
        let mend = longer(duration, batch).map_or(String::new(), |longer| format!(": use --duration {longer}"));
        if never_started {
            let seconds = batch.as_secs_f64();
            return Some(format!(
                "bulk never started in {duration}, because the first batch takes {seconds:.1}s to collect{mend}"
            ));
        }
        let no_epoch = with_bulk.iter().all(|result| result.epochs == 0);
        return no_epoch.then(|| format!("no epoch ended in {duration}{mend}"));
    }
    let first = team
        .flows
        .iter()
        .filter(|flow| flow.bulk)
        .map(|flow| flow.start)
        .min()?;
    never_started.then(|| format!("bulk never started in {duration}: its first flow starts at {first}"))
}

/// Returns a duration that would show more, if there is one.
fn longer(duration: Duration, batch: Duration) -> Option<Duration> {
    let several = |times: f64, of: Duration| Duration::from_secs_f64((of.as_secs_f64() * times).ceil());
    let wanted = LEARNING_DURATION.max(several(10.0, duration)).max(several(10.0, batch));
    Some(wanted.min(DURATION_MAX)).filter(|longer| *longer > duration)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::result;
    use std::path::Path;

    fn team(more: &str) -> Team {
        let text =
            format!("[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n[control]\nrate_hz = 30\n{more}");
        coorp_team::parse(&text, "t.toml", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
    }

    const LEARNING: &str = "[learning]\nparameters = 1000\nbatch_loops = 300\n";
    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_share_over_the_whole_is_explained_and_a_share_below_is_not() {
        let mut coorp = result("coorp");
        (coorp.bulk_share, coorp.epochs) = (Some(1.08), 1);
        let told = notes(&team(LEARNING), MINUTE, &[coorp.clone()]);
        assert_eq!(
            told,
            ["coorp moves slightly more than bulk-only: by chance, or because control spreads its bulk over time"]
        );
        coorp.bulk_share = Some(1.0);
        assert!(notes(&team(LEARNING), MINUTE, &[coorp]).is_empty());
        let mut edca = result("edca");
        edca.bulk_share = Some(1.01);
        assert!(notes(&team(""), MINUTE, &[edca])[0].contains("chance"));
    }

    #[test]
    fn learning_without_an_epoch_gets_a_longer_duration() {
        let (mut edca, mut coorp) = (result("edca"), result("coorp"));
        (edca.epochs, coorp.epochs) = (0, 0);
        let told = notes(&team(LEARNING), MINUTE, &[edca.clone(), coorp.clone()]);
        assert_eq!(told, ["no epoch ended in 60s: use --duration 600s"]);
        let told = notes(&team(LEARNING), Duration::from_secs(600), &[edca.clone()]);
        assert_eq!(told, ["no epoch ended in 600s: use --duration 6000s"]);
        let told = notes(&team(LEARNING), DURATION_MAX, &[edca.clone()]);
        assert_eq!(told, ["no epoch ended in 86400s"]);
        coorp.epochs = 1;
        assert!(notes(&team(LEARNING), MINUTE, &[edca, coorp]).is_empty());
    }

    #[test]
    fn what_only_the_emulator_does_is_named() {
        let told = notes(&team("[[event]]\nat = \"1s\"\nloss = 0.1\n"), MINUTE, &[]);
        assert!(told.is_empty(), "links change in the simulation too");
        let more = "[[interface]]\nchannel = 100\n[[event]]\nat = \"1s\"\ndeath = [\"b\"]\n";
        let told = notes(&team(more), MINUTE, &[]);
        assert_eq!(
            told,
            ["the simulation ignores [[interface]] and deaths; 'coorp emu' supports them"]
        );
    }

    #[test]
    fn a_view_that_no_stock_kernel_gives_is_named() {
        let results = ["mpc-only", "edca", "coorp-paper", "coorp"].map(result);
        let told = notes(&team(""), MINUTE, &results);
        let hook = "learns that bulk has left from a hook in a patched driver; no stock kernel has one";
        assert_eq!(told, [format!("coorp-paper {hook}")]);
        let asked = team("[policy]\ncompletions = \"status\"\nscheduling_delay = \"2ms\"\n");
        let told = notes(&asked, MINUTE, &results);
        assert!(told[0].starts_with("coorp-paper and coorp learn that bulk has left from transmit status"));
        assert_eq!(told[1], "programs wait 2ms for a core on average, as [policy] says");
    }

    #[test]
    fn bulk_that_never_started_says_when_it_would() {
        let mut edca = result("edca");
        (edca.bulk_mbps, edca.epochs) = (None, 0);
        let told = notes(&team(LEARNING), Duration::from_secs(2), &[edca.clone()]);
        assert_eq!(
            told,
            ["bulk never started in 2s, because the first batch takes 10.0s to collect: use --duration 600s"]
        );
        let flow = "[[flow]]\nname = \"log\"\nfrom = \"b\"\nto = \"a\"\nsaturated = true\nstart = \"5s\"\n";
        let told = notes(&team(flow), Duration::from_secs(2), &[edca.clone()]);
        assert_eq!(told, ["bulk never started in 2s: its first flow starts at 5s"]);
        assert!(notes(&team(""), MINUTE, &[edca]).is_empty(), "a team without bulk");
        let mut alone = result("mpc-only");
        (alone.bulk_mbps, alone.epochs) = (None, 0);
        assert!(
            notes(&team(LEARNING), MINUTE, &[alone]).is_empty(),
            "no bulk was asked for"
        );
    }
}
