//! The outcome of a run: how the programs ended, what happened to the frames, and how late the emulator was.

use std::fmt::{self, Write};

use serde::Serialize;

pub use crate::channel::{ByCategory, Counters};
pub use crate::timing::{Timing, P99_MAX};

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The duration in seconds.
    pub seconds: f64,
    /// The reason for its end.
    pub ended: Ended,
    /// The robots in the team file's order.
    pub robots: Vec<Robot>,
    /// The channels, wlan0's first.
    pub interfaces: Vec<Interface>,
    /// The lateness of deliveries.
    pub timing: Timing,
    /// Whether the emulator's thread had real-time priority.
    pub real_time: bool,
    /// Whether the machine was fast enough for the results to count.
    pub kept_up: bool,
}

/// The reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All programs had ended.
    Programs,
    /// The requested duration was over.
    Duration,
    /// A signal.
    Signal,
}

/// One robot's program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Robot {
    /// The name.
    pub name: String,
    /// The way its program ended; for several starts, the last one.
    pub program: Fate,
    /// The way its companion ended: a failure if it ever failed by itself.
    pub companion: Fate,
    /// The number of times that the script killed the robot.
    pub deaths: u32,
    /// Frames that the kernel discarded because the emulator fetched them too late.
    pub frames_missed: u64,
}

/// The way a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// There was no program.
    None,
    /// By itself, with this exit code.
    Exit(i32),
    /// By itself, by this signal.
    Signal(i32),
    /// The script killed it.
    Death,
    /// It was ended together with the run.
    Stopped,
}

impl Fate {
    /// Returns whether the program failed.
    pub fn failed(self) -> bool {
        matches!(self, Fate::Exit(1..) | Fate::Exit(..=-1) | Fate::Signal(_))
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::None => write!(f, "no program"),
            Fate::Exit(code) => write!(f, "ended with exit code {code}"),
            Fate::Signal(signal) => write!(f, "was killed by signal {signal}"),
            Fate::Death => write!(f, "was killed by the script"),
            Fate::Stopped => write!(f, "was stopped"),
        }
    }
}

/// One channel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interface {
    /// `wlan0` and so on.
    pub name: String,
    /// The share of the run in which the channel was in use: frames, acknowledgements, and the gaps inside an exchange.
    pub used: f64,
    /// PPDUs with data on the air, except collided ones.
    pub ppdus: ByCategory,
    /// MPDUs in these PPDUs. Frames that were sent again, or relayed by the access point, count again.
    pub mpdus: ByCategory,
    /// How long frames took, from their card's queue to their receivers.
    pub transit: ByCategory<Timing>,
    /// The counts of its frames.
    #[serde(flatten)]
    pub frames: Counters,
}

impl Report {
    /// Returns whether a program or a companion failed.
    pub fn failed(&self) -> bool {
        let failed = |robot: &Robot| robot.program.failed() || robot.companion.failed();
        self.robots.iter().any(failed)
    }

    /// Returns the report as lines of text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |line: fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
        };
        for robot in &self.robots {
            for (what, fate) in [("program", robot.program), ("companion", robot.companion)] {
                if fate.failed() {
                    line(format_args!("{}: the {what} {fate}", robot.name));
                }
            }
        }
        for interface in &self.interfaces {
            let Interface { name, used, frames, .. } = interface;
            line(format_args!(
                "{name}: in use for {:.0} % of the time; {} frames sent{}, {} delivered, {} dropped by queues, {} lost on the air, {} refused",
                100.0 * used,
                frames.sent,
                categories(interface),
                frames.delivered,
                frames.dropped_by_queue,
                frames.given_up,
                frames.refused
            ));
        }
        for Interface { name, transit, .. } in &self.interfaces {
            let took = |(category, Timing { p50_us, p99_us, .. }): (&str, Timing)| {
                format!("{category} {:.1} ms (p50), {:.1} ms (p99)", p50_us / 1e3, p99_us / 1e3)
            };
            let used = transit.named().into_iter().filter(|(_, timing)| timing.deliveries > 0);
            let took: Vec<String> = used.map(took).collect();
            if !took.is_empty() {
                line(format_args!("{name}: from card to receiver: {}", took.join("; ")));
            }
        }
        let Timing {
            p50_us, p99_us, max_us, ..
        } = self.timing;
        line(format_args!(
            "emulator: {:.1} s, {} deliveries late by {p50_us:.0} us (p50), {p99_us:.0} us (p99), {max_us:.0} us (max)",
            self.seconds, self.timing.deliveries
        ));
        if !self.kept_up {
            line(format_args!("{}", self.warning()));
        }
        text
    }

    fn warning(&self) -> String {
        let missed: u64 = self.robots.iter().map(|robot| robot.frames_missed).sum();
        let mut reasons = Vec::new();
        if self.timing.p99_us > P99_MAX.as_micros_f64() {
            reasons.push(format!(
                "deliveries were late by {:.0} us at p99, but at most {:.0} us count as realistic",
                self.timing.p99_us,
                P99_MAX.as_micros_f64()
            ));
        }
        if missed > 0 {
            reasons.push(format!(
                "{missed} frames were lost before the emulator could fetch them"
            ));
        }
        let priority = if self.real_time {
            ""
        } else {
            ", and let it have real-time priority (CAP_SYS_NICE)"
        };
        format!(
            "WARNING: THIS MACHINE DID NOT KEEP UP: {}. The figures of this run do not count. Run fewer other \
             programs, or fewer robots, or use a faster machine{priority}.",
            reasons.join("; ")
        )
    }
}

/// Returns the access categories in which anything was sent, and how many frames each aggregate had.
fn categories(interface: &Interface) -> String {
    let Interface {
        frames, ppdus, mpdus, ..
    } = interface;
    let on_air = ppdus.named().into_iter().zip(mpdus.named());
    let all = frames.sent_as.named().into_iter().zip(on_air);
    let used: Vec<String> = all
        .filter(|((_, sent), _)| *sent > 0)
        // Aggregates of 1.0 say nothing.
        .map(
            |((name, sent), ((_, ppdus), (_, mpdus)))| match mpdus * 20 >= ppdus * 21 && ppdus > 0 {
                true => format!("{name} {sent} in aggregates of {:.1}", mpdus as f64 / ppdus as f64),
                false => format!("{name} {sent}"),
            },
        )
        .collect();
    if used.is_empty() {
        return String::new();
    }
    format!(" ({})", used.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_apart_by_their_category() {
        let mut interface = Interface {
            name: "wlan0".to_owned(),
            used: 0.5,
            ppdus: [5, 0, 2, 0].into(),
            mpdus: [5, 0, 7, 0].into(),
            transit: ByCategory::default(),
            frames: Counters::default(),
        };
        assert_eq!(categories(&interface), "");
        interface.frames.sent_as = ByCategory {
            voice: 5,
            best_effort: 7,
            ..ByCategory::default()
        };
        assert_eq!(categories(&interface), " (AC_VO 5, AC_BE 7 in aggregates of 3.5)");
    }

    fn report(p99_us: f64, frames_missed: u64) -> Report {
        Report {
            seconds: 10.0,
            ended: Ended::Duration,
            robots: vec![Robot {
                name: "rover".to_owned(),
                program: Fate::Exit(3),
                companion: Fate::None,
                deaths: 0,
                frames_missed,
            }],
            interfaces: Vec::new(),
            timing: Timing {
                deliveries: 5,
                p50_us: 10.0,
                p99_us,
                max_us: 2_000.0,
            },
            real_time: false,
            kept_up: p99_us <= P99_MAX.as_micros_f64() && frames_missed == 0,
        }
    }

    #[test]
    fn a_machine_that_is_too_slow_is_told_of_loudly_and_another_is_not() {
        assert!(!report(400.0, 0).text().contains("WARNING"));
        let slow = report(600.0, 0).text();
        assert!(
            slow.contains("WARNING") && slow.contains("600 us at p99") && slow.contains("CAP_SYS_NICE"),
            "{slow}"
        );
        let lost = report(20.0, 7).text();
        assert!(
            lost.contains("WARNING") && lost.contains("7 frames were lost"),
            "{lost}"
        );
    }

    #[test]
    fn a_failing_program_or_companion_is_named() {
        let mut report = report(1.0, 0);
        assert!(report.failed() && report.text().contains("rover: the program ended with exit code 3"));
        report.robots[0].program = Fate::Exit(0);
        assert!(!report.failed());
        report.robots[0].companion = Fate::Exit(4);
        assert!(report.failed() && report.text().contains("rover: the companion ended with exit code 4"));
        assert!(
            !Fate::Exit(0).failed() && !Fate::Stopped.failed() && !Fate::Death.failed() && Fate::Signal(9).failed()
        );
    }
}
