//! `coorp import`: creates a team file from a recording of what robots send.
//!
//! Every topic becomes a plain flow. The rule that classifies a flow as **control** is numeric and is stated in the
//! written file, so that a user can check it. A topic is control if it is small (99 % of its messages have at most
//! [`CONTROL_BYTES_MAX`]), periodic, at least every [`CONTROL_PERIOD_MAX`], and not over [`CONTROL_MBPS_MAX`]. Small
//! commands (a velocity command, a goal) are control whatever their timing: an operator's joystick is not periodic, but
//! it cannot wait. Everything else is bulk. The limits are those of the papers' workload with some margin: perceptions
//! of 12 KiB, thirty times a second.
//!
//! A recording contains neither the receivers nor the channel. Robots are guessed from namespaces, and everything goes
//! between them and one base; the file says what to edit. Left out: the control loop and learning, which no topic
//! shows.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use coorp_core::Duration;

use crate::failure::Failure;
use crate::number::grouped;
use crate::output::{self, Destination, Inputs};
use crate::recording::{self, Rhythm, Robots, Topic, Topics};

/// Maximum size of control messages, except for one in a hundred.
const CONTROL_BYTES_MAX: u64 = 16 << 10;
/// A topic with a longer period can wait.
const CONTROL_PERIOD_MAX: Duration = Duration::from_millis(200);
/// A larger rate cannot always go first.
const CONTROL_MBPS_MAX: f64 = 5.0;
/// The minimum and maximum period in a team file.
const PERIODS: (Duration, Duration) = (Duration::from_micros(10), Duration::from_secs(3600));
/// Maximum length of a quoted topic name or type.
const QUOTED_CHARS_MAX: usize = 200;
/// Types of commands, without their packages.
const COMMAND_TYPES: [&str; 5] = [
    "Twist",
    "TwistStamped",
    "AckermannDrive",
    "AckermannDriveStamped",
    "JointTrajectory",
];
/// Parts of names of commands.
const COMMAND_NAMES: [&str; 3] = ["cmd", "command", "goal"];

/// Options of `coorp import`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The recording: an MCAP file, or the folder (or a file) of a ROS 2 bag
    recording: PathBuf,
    /// Write the team file here; '-' is stdout
    #[arg(short, long, value_name = "PATH", default_value = "-")]
    output: PathBuf,
}

/// Runs `coorp import`.
///
/// # Errors
/// The recording cannot be used, or the team file cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let inputs = Inputs::recording(&recording::files(&args.recording)?);
    let destination = Destination::check(&args.output, &inputs)?;
    let mut topics = Topics::default();
    let notes = recording::read(&args.recording, &mut |message| topics.see(message))?;
    notes.iter().for_each(|note| output::note(&format!("Note: {note}")));
    let text = team_file(&args.recording, &topics, &notes)?;
    destination.write(text.as_bytes())?;
    if !destination.is_stdout() {
        output::note(&format!("wrote {}", destination.shown().display()));
    }
    Ok(())
}

/// A topic that is about to become a flow.
struct Draft<'t> {
    topic: &'t str,
    seen: &'t Topic,
    /// The robot at one end; the base is at the other.
    robot: &'t str,
    /// Whether the base sends it.
    command: bool,
    control: bool,
    period: Duration,
    jitter: Duration,
}

fn team_file(path: &Path, topics: &Topics, notes: &[String]) -> Result<String, Failure> {
    let names: Vec<&str> = topics.iter().map(|(name, _)| name).collect();
    let robots = Robots::of(&names);
    let found: Vec<&str> = robots.names().collect();
    let (mut drafts, mut nobodys, mut few) = (Vec::new(), Vec::new(), Vec::new());
    for (topic, seen) in topics.iter() {
        let robot = if found.is_empty() {
            Some("robot")
        } else {
            robots.robot(topic)
        };
        match draft(topic, seen, robot.or(found.first().copied()).unwrap_or("robot")) {
            None => few.push((topic, seen)),
            Some(draft) if robot.is_some() => drafts.push(draft),
            Some(draft) => nobodys.push(draft),
        }
    }
    if drafts.is_empty() {
        return Err(Failure::Input(format!(
            "error: {}: no topic of a robot has ten messages or more, too few to find a period; record for longer",
            path.display()
        )));
    }
    let base = if found.contains(&"base") {
        "base-station"
    } else {
        "base"
    };
    let mut text = heading(path, topics, notes, found.is_empty());
    let _ = write!(text, "\nname = \"{}\"\n", recording::team_name(path));
    let _ = write!(text, "\n[[robot]]\nname = \"{base}\"\nleader = true\n");
    for robot in if found.is_empty() { vec!["robot"] } else { found } {
        let _ = write!(text, "\n[[robot]]\nname = \"{robot}\"\n");
    }
    text += "\n# The channel, which a recording does not contain.\n[air]\nstandard = \"802.11ac\"\nwidth_mhz = 20\n";
    let mut taken = Vec::new();
    for draft in &drafts {
        let _ = write!(text, "\n{}", draft.flow(base, &mut taken));
    }
    if !nobodys.is_empty() {
        text +=
            "\n# These topics contain no robot's name. For those that go over the air, set both ends and remove the \
                 '# '.\n";
        for draft in &nobodys {
            let flow = draft.flow(base, &mut taken);
            text.push('\n');
            flow.lines().for_each(|line| {
                let _ = writeln!(text, "# {}", line.trim_start_matches("# "));
            });
        }
    }
    if !few.is_empty() {
        text += "\n# Left out: fewer than ten messages, or all at one instant:\n";
        for (topic, seen) in few {
            let _ = writeln!(text, "#   {}: {}", titled(topic, &seen.schema), messages(seen.count));
        }
    }
    // The written text must be readable by the other commands.
    match coorp_team::parse(&text, "the team file", Path::new("")) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::Input(format!(
            "error: {}: its topics exceed the limits of a team file; record fewer topics\n{error}",
            path.display()
        ))),
    }
}

/// Returns the comment at the file's head: what its reader needs to know, and what only the reader can fill in.
fn heading(path: &Path, topics: &Topics, notes: &[String], alone: bool) -> String {
    let count = i64::try_from(topics.messages).unwrap_or(i64::MAX);
    let mut lines = vec![format!(
        "Made by `coorp import` from {}: {} messages of {} topics in {:.1} s.",
        quoted(&path.display().to_string()),
        grouped(count),
        topics.iter().count(),
        topics.length().as_secs_f64()
    )];
    lines.extend(notes.iter().map(|note| format!("Incomplete: {}.", quoted(note))));
    if topics.more {
        lines.push("It has more topics than a team can have flows; only the first ones are included.".to_owned());
    }
    let whole = [
        "",
        "A recording does not contain the following; edit it as needed:",
        if alone {
            "- Robots: no namespaces distinguish several, so everything belongs to one, `robot`. Copy it and its flows for more."
        } else {
            "- Robots: each namespace is one. If one of them leads, give it `leader = true` and remove `base`."
        },
        "- Directions: commands come from the base, everything else goes to it. Remove flows that stay on their robot.",
        "- Names: `coorp sim --replay` finds a flow's topic by its name.",
        "",
        "Control and bulk: a topic is control if it is small (99 % of the messages at most 16 KiB), periodic, at",
        "least every 200 ms and at most 5 Mbit/s. So are small commands (`cmd`, `command` or `goal` in the name, or a type such",
        "as Twist), whatever their timing. To make a flow control, replace `transport` and `bulk` by `ac = \"AC_VO\"`;",
        "to make it bulk, do the reverse.",
    ];
    lines.extend(whole.map(str::to_owned));
    let line = |line: String| {
        if line.is_empty() {
            "#\n".to_owned()
        } else {
            format!("# {line}\n")
        }
    };
    lines.into_iter().map(line).collect()
}

/// Turns a topic into a flow; `None` if its period cannot be determined.
fn draft<'t>(topic: &'t str, seen: &'t Topic, robot: &'t str) -> Option<Draft<'t>> {
    let (period, jitter, periodic) = match seen.rhythm() {
        Rhythm::Periodic { period, jitter } => (period, jitter, true),
        Rhythm::Irregular { mean } => (mean, Duration::ZERO, false),
        Rhythm::Few => return None,
    };
    let command = is_command(topic, &seen.schema);
    let small = seen.size_quantile(0.99) <= CONTROL_BYTES_MAX;
    let mbps = seen.size_mean() as f64 * 8e-6 / period.as_secs_f64().max(1e-9);
    let regular = periodic && period <= CONTROL_PERIOD_MAX;
    Some(Draft {
        topic,
        seen,
        robot,
        command,
        control: small && mbps <= CONTROL_MBPS_MAX && (regular || command),
        period: period.clamp(PERIODS.0, PERIODS.1),
        jitter,
    })
}

fn is_command(topic: &str, schema: &str) -> bool {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let name = last(topic).to_ascii_lowercase();
    let kind = last(schema);
    COMMAND_TYPES.contains(&kind.as_str()) || COMMAND_NAMES.iter().any(|part| name.contains(part))
}

impl<'t> Draft<'t> {
    /// Returns the flow as written to the team file, with the measurements of its topic.
    fn flow(&self, base: &str, taken: &mut Vec<String>) -> String {
        let names = recording::flow_names(self.topic);
        let name = names
            .iter()
            .find(|name| !taken.contains(name))
            .unwrap_or(&names[0])
            .clone();
        let (from, to) = if self.command {
            (base, self.robot)
        } else {
            (self.robot, base)
        };
        let kind = if self.control {
            "ac = \"AC_VO\""
        } else {
            "transport = \"tcp\"\nbulk = true"
        };
        let mut text = format!("# {}\n# {}\n", titled(self.topic, &self.seen.schema), self.measured());
        let _ = write!(
            text,
            "[[flow]]\nname = \"{name}\"\nfrom = \"{from}\"\nto = \"{to}\"\n{kind}\nsize = {}\nperiod = \"{}\"\n",
            self.seen.size_mean(),
            shown(self.period)
        );
        if self.jitter >= Duration::from_micros(1) {
            let _ = writeln!(text, "jitter = \"{}\"", shown(self.jitter));
        }
        taken.push(name);
        text
    }

    fn measured(&self) -> String {
        let rhythm = match self.seen.rhythm() {
            Rhythm::Periodic { period, jitter } => format!("every {}, jitter {}", shown(period), shown(jitter)),
            _ => format!("irregular, every {} on average", shown(self.period)),
        };
        let bytes = |share: f64| grouped(i64::try_from(self.seen.size_quantile(share)).unwrap_or(i64::MAX));
        format!(
            "{}, {rhythm}; half of them up to {} B, 99 % up to {} B",
            messages(self.seen.count),
            bytes(0.5),
            bytes(0.99)
        )
    }
}

fn messages(count: u64) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} message{plural}", grouped(i64::try_from(count).unwrap_or(i64::MAX)))
}

fn titled(topic: &str, schema: &str) -> String {
    if schema.is_empty() {
        quoted(topic)
    } else {
        format!("{} ({})", quoted(topic), quoted(schema))
    }
}

/// Text of a recording in a comment, which must stay on one line.
fn quoted(text: &str) -> String {
    text.chars()
        .take(QUOTED_CHARS_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Returns a time, to the microsecond, as the team file reads it.
fn shown(time: Duration) -> String {
    let us = (time.as_nanos() + 500) / 1_000;
    let unit = |value: f64, name: &str| format!("{value}{name}");
    match us {
        0..=999 => format!("{us}us"),
        1_000..=999_999 => unit(us as f64 / 1e3, "ms"),
        _ => unit(us as f64 / 1e6, "s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Message;

    fn draft_of(topic: &str, schema: &str, every_ms: f64, bytes: u64) -> (bool, bool) {
        let mut topics = Topics::default();
        for tick in 0..100 {
            let at_ns = (f64::from(tick) * every_ms * 1e6) as u64;
            topics.see(Message {
                topic,
                schema,
                at_ns,
                bytes,
            });
        }
        let (_, seen) = topics.iter().next().unwrap();
        let draft = draft(topic, seen, "robot").unwrap();
        (draft.control, draft.command)
    }

    #[test]
    fn control_is_small_and_often() {
        assert_eq!(
            draft_of("/r/camera", "sensor_msgs/msg/Image", 33.3, 12_400),
            (true, false)
        );
        assert_eq!(draft_of("/r/pose", "", 200.0, 100), (true, false));
        assert_eq!(
            draft_of("/r/diagnostics", "", 1000.0, 100),
            (false, false),
            "it can wait"
        );
        assert_eq!(draft_of("/r/image_raw", "", 33.3, 900_000), (false, false), "large");
        assert_eq!(draft_of("/r/audio", "", 5.0, 8_000), (false, false), "13 Mbit/s");
    }

    #[test]
    fn commands_are_control_whatever_their_rhythm() {
        assert_eq!(draft_of("/r/cmd_vel", "", 33.3, 60), (true, true));
        assert_eq!(
            draft_of("/r/drive", "geometry_msgs/msg/Twist", 2000.0, 60),
            (true, true)
        );
        assert_eq!(
            draft_of("/r/goal_pose", "geometry_msgs/msg/PoseStamped", 9000.0, 100),
            (true, true)
        );
        assert_eq!(
            draft_of("/r/trajectory", "trajectory_msgs/msg/JointTrajectory", 900.0, 90_000),
            (false, true)
        );
    }

    #[test]
    fn times_are_written_as_the_team_file_reads_them() {
        assert_eq!(shown(Duration::from_nanos(33_333_333)), "33.333ms");
        assert_eq!(shown(Duration::from_nanos(499)), "0us");
        assert_eq!(shown(Duration::from_micros(999)), "999us");
        assert_eq!(shown(Duration::from_nanos(1_500_000_400)), "1.5s");
    }
}
