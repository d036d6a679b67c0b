//! The capacity model (Deng 2022, equations 1 to 3) with one team's figures.
//!
//! B is not the nominal rate, but the throughput of the robots' TCP to the leader, measured on the team's own air. With
//! fixed rates on one channel, all robots are measured together. Robots with positions come and go. Together, the
//! farthest would set the pace for all, because stations win the channel equally often. There the mean over the robots,
//! each measured alone, represents a moving team. Left out: changes by movement after the measurement.

use coorp_core::capacity::{bulk_first_probability, Capacity};
use coorp_core::policy::Policy;
use coorp_core::{Duration, RobotId};
use coorp_sim::Options;
use coorp_team::{Category, Control, Flow, Team, Traffic, Transport};

use super::{has_bulk, scale, Args};
use crate::failure::{Failure, NoResult};
use crate::jobs;

/// Duration of the measurement of the channel's rate.
pub const PROBE: Duration = Duration::from_secs(5);
/// Maximum number of robots measured one by one; if there are more, a sample from the whole file is measured.
const PROBED_MAX: usize = 32;
/// Size of a full frame of bulk in an A-MPDU, including headers.
const FRAME_BYTES: u64 = 1_540;
/// The longest PPDU (aPPDUMaxTime of 802.11n, ac and ax).
const PPDU_MAX: Duration = Duration::from_micros(5_484);

/// Returns whether the robots' rates depend on their positions.
pub fn is_spread(team: &Team) -> bool {
    team.robots.iter().any(|robot| robot.position_m.is_some())
}

/// Returns the model of `team`.
///
/// # Errors
/// Nothing reaches the leader, or the measurement violated an invariant.
pub fn measure(args: &Args, team: &Team, control: &Control) -> Result<Capacity, Failure> {
    let bandwidth_mbps = bandwidth_mbps(args, team)?;
    if bandwidth_mbps <= 0.0 {
        let file = args.file.display();
        return Err(Failure::Input(format!(
            "error: {file}: no data reaches the leader; check [air]"
        )));
    }
    let [voice, _, best_effort, _] = &team.air.edca;
    Ok(Capacity {
        bandwidth_bps: bandwidth_mbps * 1e6,
        frequency_hz: 1.0 / control.period.as_secs_f64(),
        perception_bytes: control.perception_bytes,
        control_bytes: control.command_bytes,
        ampdu_bytes: ampdu_bytes(team, bandwidth_mbps),
        inference: control.inference,
        bulk_first: if has_bulk(team) {
            bulk_first_probability(u32::from(voice.cw_min), u32::from(best_effort.cw_min))
        } else {
            0.0
        },
    })
}

/// Returns the maximum that bulk transmits at once: limited by bytes, by frames, and by time.
fn ampdu_bytes(team: &Team, bandwidth_mbps: f64) -> u64 {
    let ([_, _, best_effort, _], wnic) = (&team.air.edca, &team.air.wnic);
    let bytes = best_effort.ampdu_bytes.min(wnic.ampdu_bytes_max.unwrap_or(u32::MAX));
    let frames = best_effort.ampdu_frames.min(wnic.ampdu_frames_max.unwrap_or(u16::MAX));
    let in_time = bandwidth_mbps * 1e6 / 8.0 * PPDU_MAX.as_secs_f64();
    u64::from(bytes)
        .min(u64::from(frames) * FRAME_BYTES)
        .min((in_time as u64).max(FRAME_BYTES))
}

fn bandwidth_mbps(args: &Args, team: &Team) -> Result<f64, Failure> {
    let led: Vec<RobotId> = scale::ids(team).filter(|id| *id != team.leader).collect();
    let groups: Vec<Vec<RobotId>> = if is_spread(team) {
        let step = led.len().div_ceil(PROBED_MAX).max(1);
        led.iter().step_by(step).map(|id| vec![*id]).collect()
    } else {
        vec![led]
    };
    let threads = args.threads.map_or_else(jobs::cores, usize::from);
    let measured = jobs::run(&groups, threads, |_, senders| together_mbps(args, team, senders));
    let name = || args.file.display().to_string();
    let rates: Vec<f64> = measured
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|why| why.ends(&name()))?;
    Ok(rates.iter().sum::<f64>() / rates.len().max(1) as f64)
}

/// Returns the throughput of `senders` to the leader together, with nothing else on the air.
fn together_mbps(args: &Args, team: &Team, senders: &[RobotId]) -> Result<f64, NoResult> {
    let mut probe = team.clone();
    (probe.control, probe.learning) = (None, None);
    let flow = |from: &RobotId| Flow {
        name: format!("probe-{from:?}"),
        from: *from,
        to: team.leader,
        category: Category::BestEffort,
        transport: Transport::Tcp,
        traffic: Traffic::Saturated { packet_bytes: 1448 },
        start: Duration::ZERO,
        stop: None,
        bulk: true,
        bound: None,
        recorded: None,
    };
    probe.flows = senders.iter().map(flow).collect();
    let options = Options {
        duration: PROBE,
        seed: args.seed,
        ..Options::default()
    };
    let edca = Policy::named("edca").ok_or_else(|| NoResult::Broken("the policy edca is missing".to_owned()))?;
    let run = coorp_sim::run(&probe, &edca, &options, &|_| ())?;
    Ok(run.result.flows.iter().map(|flow| flow.mbps).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn team(air: &str) -> Team {
        let text = format!(
            "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n[control]\nrate_hz = 30\n[air]\n{air}"
        );
        coorp_team::parse(&text, "t.toml", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn an_aggregate_is_bounded_by_frames_by_bytes_and_by_time() {
        let ax = team("standard = \"802.11ax\"");
        assert_eq!(ampdu_bytes(&ax, 1e6), 64 * FRAME_BYTES);
        assert_eq!(ampdu_bytes(&ax, 8.0), 5_484, "a megabyte a second for the longest PPDU");
        assert_eq!(ampdu_bytes(&ax, 0.001), FRAME_BYTES);
        let short = team("[air.ac_be]\nampdu_bytes = 20000");
        assert_eq!(ampdu_bytes(&short, 1e6), 20_000);
    }
}
