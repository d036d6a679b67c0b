//! `coorp replay`: feeds the inputs in a flight recording to a robot again, and reports whether it decides the same.
//!
//! Each file contains a robot's state and all inputs since then, so the decisions run here as they ran on the robot.
//! Left out: the topics' names, which no decision reads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coorp_core::robot::{Answer, Event, FlowKey, Hold, Input, Led, PermitState, Robot};
use coorp_core::windows::Window;
use coorp_core::{permits, Duration, Instant, RobotId};
use coorp_node::flight::{self, Header, Record, Segment};

use crate::failure::Failure;
use crate::number::parse_duration;
use crate::summary::count;
use crate::{jobs, output};

/// Maximum number of lines shown of a list.
const LINES_MAX: usize = 1_000;

/// Options of `coorp replay`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A flight recorder file of a robot, or the folder of its files: flight/ below the robot's --state
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Show the robot's state at this time since the file's start, and why bulk was held then
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    at: Option<Duration>,
    /// List every time that bulk was held, and why
    #[arg(long)]
    why: bool,
}

/// Runs `coorp replay`.
///
/// # Errors
/// A file cannot be used (exit code 2), or the robot now decides differently (exit code 1).
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut differs = Vec::new();
    for file in flight::files(&args.file)? {
        let segment = flight::read(&file)?;
        let cut = segment.cut;
        let replay = jobs::guarded(|| Ok(Replay::of(segment, args.at))).map_err(|why| {
            Failure::Input(format!(
                "error: {}: the recorded robot cannot continue ({}); replay it with the coorp that wrote it",
                file.display(),
                why.text()
            ))
        })?;
        output::print(&replay.text(&file, cut, args))?;
        differs.extend(replay.differs.map(|what| format!("failed: {}: {what}", file.display())));
    }
    if differs.is_empty() {
        return Ok(());
    }
    Err(Failure::Found(differs.join("\n")))
}

/// A span in which bulk was held for one reason.
struct Held {
    from: Instant,
    to: Instant,
    /// `None`: on all paths.
    path: Option<usize>,
    why: Hold,
}

/// The replay of a file.
struct Replay {
    names: Names,
    coorp: String,
    began: Instant,
    ended: Instant,
    unix_ns: u64,
    lost: u64,
    /// Number of inputs by kind.
    inputs: BTreeMap<&'static str, u64>,
    passed: u64,
    asked: u64,
    timeline: Vec<(Instant, String)>,
    windows: u64,
    held: Vec<Held>,
    /// The first answer that now differs.
    differs: Option<String>,
    /// The robot's state at the requested time.
    at: Option<String>,
}

impl Replay {
    fn of(segment: Segment, at: Option<Duration>) -> Self {
        let Header {
            config,
            robots,
            coorp,
            at: began,
            unix_ns,
            lost,
            mut robot,
            ..
        } = segment.header;
        robot.begin_journal();
        let mut replay = Replay {
            names: Names { robots, me: config.me },
            coorp,
            began,
            ended: began,
            unix_ns,
            lost,
            inputs: BTreeMap::new(),
            passed: 0,
            asked: 0,
            timeline: Vec::new(),
            windows: 0,
            held: Vec::new(),
            differs: None,
            at: None,
        };
        let mut in_flight = vec![0; config.paths];
        let moment = at.map(|after| began + after);
        for (place, record) in segment.records.into_iter().enumerate() {
            if let Some(moment) = moment.filter(|moment| record.at > *moment && replay.at.is_none()) {
                replay.at = Some(replay.moment(&robot, &in_flight, moment));
            }
            if let Some((path, n)) = asked(&record.input) {
                if let Some(known) = in_flight.get_mut(path) {
                    *known = n;
                }
            }
            if !replay.tell(&mut robot, place, record) {
                break;
            }
        }
        if let Some(moment) = moment.filter(|_| replay.at.is_none()) {
            replay.at = Some(if moment > replay.ended {
                format!("it ends before {}\n", replay.since(moment))
            } else {
                replay.moment(&robot, &in_flight, moment)
            });
        }
        replay
    }

    /// Passes a record's input to the robot. Returns whether it gives the same answer.
    fn tell(&mut self, robot: &mut Robot, place: usize, record: Record) -> bool {
        let Record { at, input, answer } = record;
        self.ended = at;
        *self.inputs.entry(name(&input)).or_default() += 1;
        let told = input.clone();
        let now = robot.handle(input, at);
        if now != answer {
            self.differs = Some(format!(
                "input {} at {}, {told:?}, was answered {answer:?}, but is now answered {now:?}",
                place + 1,
                self.since(at)
            ));
            return false;
        }
        if let Some((path, n)) = asked(&told) {
            self.asked += 1;
            self.passed += u64::from(answer == Answer::Yes);
            // A robot without a permit never asks this, unless its permit has just ended.
            let why = robot
                .hold(path, n, at)
                .filter(|_| answer == Answer::No && robot.is_permitted(at));
            self.hold(Some(path), why, at);
        }
        let waits = robot.permit(at) == PermitState::Waiting;
        self.hold(None, robot.hold(0, 0, at).filter(|_| waits), at);
        for (at, event) in robot.take_journal().0 {
            self.event(at, &event);
        }
        true
    }

    /// Records that bulk on a path is held for this reason from now on, or is no longer held.
    fn hold(&mut self, path: Option<usize>, why: Option<Hold>, at: Instant) {
        let last = self.held.iter_mut().rev().find(|held| held.path == path);
        if let Some(last) = last.filter(|last| last.to == Instant::FAR_FUTURE) {
            if why.as_ref().is_some_and(|why| same(&last.why, why)) {
                return;
            }
            last.to = at;
        }
        let (from, to) = (at, Instant::FAR_FUTURE);
        self.held.extend(why.map(|why| Held { from, to, path, why }));
    }

    fn event(&mut self, at: Instant, event: &Event) {
        let line = match event {
            Event::Permitted(true) => "bulk is permitted".to_owned(),
            Event::Permitted(false) => "bulk is no longer permitted".to_owned(),
            Event::Led(led, epoch) => {
                let does = match led {
                    Led::Leads => "leads",
                    Led::Follows => "is followed",
                    Led::Deposed => "is deposed",
                };
                format!("{} {does}, round {}", self.names.robot(epoch.robot), epoch.round)
            }
            Event::Said { from, to, message, .. } => {
                let (from, to) = (self.names.robot(*from), self.names.robot(*to));
                format!("{from} to {to}: {}", said(message))
            }
            Event::Window(_) => {
                self.windows += 1;
                return;
            }
            Event::Gate(_) => return,
        };
        self.timeline.push((at, line));
    }

    /// Returns the robot's state at a time, in words.
    fn moment(&self, robot: &Robot, in_flight: &[usize], at: Instant) -> String {
        let leader = robot
            .leader(at)
            .map_or("nobody".to_owned(), |leader| self.names.robot(leader));
        let permit = match robot.permit(at) {
            PermitState::NotNeeded => "no permit is needed",
            PermitState::Idle => "there is no bulk",
            PermitState::Waiting => "bulk waits for a permit",
            PermitState::Holding => "it holds a permit",
        };
        let mut text = format!("at {}: {leader} leads; {permit}\n", self.since(at));
        for (path, n) in in_flight.iter().enumerate() {
            let why = robot.hold(path, *n, at);
            let why = why.map_or("would pass".to_owned(), |why| format!("is held: {}", self.reason(&why)));
            text += &format!("  path {path}: bulk behind {n} packets {why}\n");
        }
        text
    }

    fn reason(&self, why: &Hold) -> String {
        match why {
            Hold::NoPermit { leader, holders } => {
                let names = holders.iter().map(|robot| self.names.robot(*robot)).collect::<Vec<_>>();
                match leader {
                    None => "no permit, and nobody leads".to_owned(),
                    Some(leader) if names.is_empty() => format!("no permit; {} leads", self.names.robot(*leader)),
                    Some(_) => format!("no permit; held by {}", names.join(", ")),
                }
            }
            Hold::Window { window, flows } => {
                let flows: Vec<String> = flows.iter().map(|flow| self.names.flow(*flow)).collect();
                let of = if flows.is_empty() {
                    "a plan".to_owned()
                } else {
                    flows.join(", ")
                };
                format!("window {} of {of}", self.span(*window))
            }
            Hold::Backlog { n, takes, most } => format!("backlog: behind {n} packets it takes {takes}, {most} at most"),
        }
    }

    fn span(&self, window: Window) -> String {
        format!("{} to {}", self.since(window.start), self.since(window.end))
    }

    /// Returns a time relative to the file's start.
    fn since(&self, at: Instant) -> String {
        let (after, before) = (at.since(self.began), self.began.since(at));
        if before > Duration::ZERO {
            return format!("-{:.6}s", before.as_secs_f64());
        }
        format!("{:.6}s", after.as_secs_f64())
    }

    fn text(&self, file: &Path, cut: bool, args: &Args) -> String {
        let told: u64 = self.inputs.values().sum();
        let mut text = format!(
            "{}: {} by coorp {}, {} from Unix time {:.3}\n",
            file.display(),
            self.names.robot(self.names.me),
            self.coorp,
            self.since(self.ended),
            self.unix_ns as f64 / 1e9,
        );
        let same = if self.differs.is_some() {
            "differs"
        } else {
            "agrees bit for bit"
        };
        text += &format!("  {} inputs; the replay {same}\n", count(told));
        if cut {
            text += "  its end is missing, because the robot's process was killed\n";
        }
        if self.lost > 0 {
            text += &format!(
                "  {} inputs were left out before it: the disk was too slow\n",
                count(self.lost)
            );
        }
        let inputs = self
            .inputs
            .iter()
            .map(|(name, times)| format!("{name} {}", count(*times)));
        text += &format!("  told: {}\n", inputs.collect::<Vec<_>>().join(", "));
        text += &format!(
            "  bulk asked {} times and passed {}; {} windows\n",
            count(self.asked),
            count(self.passed),
            count(self.windows)
        );
        if let Some(at) = &self.at {
            return text + at;
        }
        let lines = self
            .timeline
            .iter()
            .map(|(at, line)| format!("  {}  {line}\n", self.since(*at)));
        text += &shown(lines);
        if args.why {
            text += "bulk was held:\n";
            let held = self.held.iter().map(|held| {
                let (from, to) = (self.since(held.from), self.since(held.to.min(self.ended)));
                let path = held.path.map_or(String::new(), |path| format!(", path {path}"));
                format!("  {from} to {to}{path}: {}\n", self.reason(&held.why))
            });
            text += &shown(held);
        }
        text
    }
}

/// Returns the first lines, and the number of remaining ones.
fn shown(lines: impl ExactSizeIterator<Item = String>) -> String {
    let more = lines.len().saturating_sub(LINES_MAX);
    let mut text: String = lines.take(LINES_MAX).collect();
    if more > 0 {
        text += &format!("  and {} more\n", count(more as u64));
    }
    text
}

/// Returns whether it is the same reason, regardless of its current details.
fn same(one: &Hold, other: &Hold) -> bool {
    match (one, other) {
        (Hold::Window { window, .. }, Hold::Window { window: again, .. }) => window == again,
        (Hold::Backlog { .. }, Hold::Backlog { .. }) => true,
        (one, other) => one == other,
    }
}

/// The team's names.
struct Names {
    robots: Vec<String>,
    me: RobotId,
}

impl Names {
    fn robot(&self, robot: RobotId) -> String {
        let name = self.robots.get(usize::from(robot.0)).cloned();
        name.unwrap_or_else(|| format!("robot {}", robot.0))
    }

    fn flow(&self, flow: FlowKey) -> String {
        match flow {
            FlowKey::Own(number) => format!("its own flow {number}"),
            FlowKey::Of(robot, number) => format!("{}'s flow {number}", self.robot(robot)),
            FlowKey::LoopEnd => "the end of the control loop".to_owned(),
        }
    }
}

fn said(message: &permits::Message) -> String {
    match message {
        permits::Message::Request { request, .. } => format!("request {}", request.0),
        permits::Message::Grant {
            request, token, slice, ..
        } => format!("grant {} for request {}, {slice}", token.0, request.0),
        permits::Message::Release { token } => format!("release of grant {}", token.0),
        permits::Message::Renew { token, .. } => format!("renewal of grant {}", token.0),
        permits::Message::Refuse { request, retry_after } => {
            format!("refusal of request {}, again after {retry_after}", request.0)
        }
    }
}

/// Returns the path over which bulk asks to pass, and the number of packets on their way over it.
fn asked(input: &Input) -> Option<(usize, usize)> {
    match *input {
        Input::MayPass { path, n } | Input::PassesGate { path, n } | Input::MayForward { path, n } => Some((path, n)),
        _ => None,
    }
}

fn name(input: &Input) -> &'static str {
    match input {
        Input::Deadline => "deadline",
        Input::MayPass { .. } => "may-pass",
        Input::PassesGate { .. } => "passes-gate",
        Input::MayForward { .. } => "may-forward",
        Input::MayAcknowledge => "may-acknowledge",
        Input::Protects(_) => "protects",
        Input::Left { .. } | Input::Completed { .. } => "bulk-left",
        Input::Control(_) => "control",
        Input::ControlLeft(_) => "control-left",
        Input::Arrived { .. } => "control-arrived",
        Input::Assign(_) | Input::Riders(_) => "assign",
        Input::Copy { .. } => "copy",
        Input::State(_) => "state",
        Input::Message { .. } | Input::Gathering { .. } => "message",
        Input::WantBulk(_) | Input::BulkPaths(_) | Input::Bulk { .. } | Input::BulkSent { .. } => "bulk",
        Input::AddFlow(_)
        | Input::AddForeignFlow
        | Input::RemoveFlow(_)
        | Input::SetBound(..)
        | Input::Publish(_)
        | Input::Unpublish(_) => "flows",
        Input::TellModelsAgain | Input::Gone(_) | Input::Dead { .. } | Input::Gatherer { .. } => "peers",
        Input::Resign => "resign",
    }
}
