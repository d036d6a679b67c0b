//! `[control]` and `[learning]`: the MPC loop and the DRLC of Deng 2022, section III.
//!
//! Defaults for sizes, rate and bound are the workload of Deng 2022, section VI. Times that the paper does
//! not give (inference, training, jitter) are round guesses; a team that depends on them should set its own.

use super::{HOUR, SECOND};
use crate::model::{Control, JitterShape, Learning, Sync};
use crate::sheet::Sheet;
use coorp_core::Duration;

const MESSAGE_BYTES_MAX: u64 = 16 << 20;
const PARAMETERS_MAX: u64 = 1_000_000_000_000;
const BOUND_DEFAULT: Duration = Duration::from_millis(33);

pub(super) fn control(root: &mut Sheet<'_>) -> Option<Control> {
    let mut sheet = root.table("control", "[control]")?;
    sheet.exclude("period", "rate_hz", "one follows from the other");
    let by_rate = sheet
        .number("rate_hz", 0.1..=1_000.0)
        .map(|hz| Duration::from_secs_f64(1.0 / hz));
    let given = sheet.duration("period", Duration::from_millis(1)..=SECOND * 10);
    let period = given.or(by_rate).unwrap_or(Duration::from_secs_f64(1.0 / 30.0));
    let shapes = [("normal", JitterShape::Normal), ("uniform", JitterShape::Uniform)];
    let control = Control {
        period,
        bound: sheet
            .duration("bound", Duration::from_micros(100)..=SECOND * 10)
            .unwrap_or(BOUND_DEFAULT.min(period)),
        perception_bytes: sheet.size("perception", 1..=MESSAGE_BYTES_MAX).unwrap_or(12 << 10),
        command_bytes: sheet.size("command", 1..=MESSAGE_BYTES_MAX).unwrap_or(1 << 10),
        jitter: sheet
            .duration("jitter", Duration::ZERO..=SECOND)
            .unwrap_or(Duration::from_micros(500)),
        jitter_shape: sheet.choice("jitter_shape", &shapes).unwrap_or(JitterShape::Normal),
        overlap: sheet.flag("overlap").unwrap_or(false),
        send_jitter: sheet
            .duration("stack_delay", Duration::ZERO..=SECOND)
            .unwrap_or(Duration::from_micros(100)),
        inference: sheet
            .duration("inference", Duration::ZERO..=SECOND * 10)
            .unwrap_or(Duration::from_millis(5)),
        inference_sigma: sheet.number("inference_spread", 0.0..=2.0).unwrap_or(0.1),
        synchronised_phases: sheet.flag("synchronised").unwrap_or(true),
    };
    if sheet.sound() && control.bound > control.period && !control.overlap {
        let message = format!(
            "`bound` is {}, longer than the period of {}",
            control.bound, control.period
        );
        let mend = format!(
            "a loop must end before the next begins: choose a bound up to {}, or set `overlap = true`",
            control.period
        );
        sheet.problem("bound", message, mend);
    }
    if sheet.sound() && control.jitter >= control.period {
        let message = format!(
            "`jitter` is {}, not less than the period of {}",
            control.jitter, control.period
        );
        sheet.problem(
            "jitter",
            message,
            "write the standard deviation of the sampling instant, a small part of the period",
        );
    }
    sheet.finish();
    Some(control)
}

pub(super) fn learning(root: &mut Sheet<'_>, control: Option<&Control>, robots: usize) -> Option<Learning> {
    let controls = root.has("control");
    let mut sheet = root.table("learning", "[learning]")?;
    if !controls {
        let (problems, file) = sheet.problems();
        let mend = "add [control], or describe plain bulk as a [[flow]] with `saturated = true`";
        problems.add(
            file,
            sheet.span(),
            "[learning] collects its data in a control loop, but there is none",
            mend,
        );
    }
    let parameters = sheet.integer("parameters", 1..=PARAMETERS_MAX);
    sheet.missing("parameters", "add `parameters = 10_000_000`, the size of the model");
    let staleness = sheet.integer("staleness", 1..=1_000_000_u32);
    let names = [
        ("BSP", Sync::Bsp),
        (
            "SSP",
            Sync::Ssp {
                staleness: staleness.unwrap_or(1),
            },
        ),
        ("ASP", Sync::Asp),
    ];
    let sync = sheet.choice("sync", &names).unwrap_or(Sync::Bsp);
    if sheet.has("staleness") && !matches!(sync, Sync::Ssp { .. }) && sheet.sound() {
        sheet.problem(
            "staleness",
            "`staleness` applies only to SSP",
            "set `sync = \"SSP\"`, or remove `staleness`",
        );
    }
    let perception_bytes = control.map_or(0, |control| control.perception_bytes);
    let learning = Learning {
        parameters: parameters.unwrap_or(1),
        bytes_per_parameter: sheet.integer("bytes_per_parameter", 1..=16).unwrap_or(4),
        sync,
        batch_loops: sheet.integer("batch_loops", 1..=1_000_000).unwrap_or(300),
        rounds: sheet.integer("rounds", 1..=1_000_000).unwrap_or(10),
        training: sheet.duration("training", Duration::ZERO..=HOUR).unwrap_or(SECOND),
        training_sigma: sheet.number("training_spread", 0.0..=2.0).unwrap_or(0.1),
        item_bytes: sheet
            .size("item", 1..=1 << 30)
            .unwrap_or(perception_bytes.saturating_mul(robots as u64)),
    };
    sheet.finish();
    Some(learning)
}
