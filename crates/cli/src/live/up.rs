//! `coorp up`: runs one robot of a team until it is stopped.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use coorp_core::RobotId;
use coorp_node::bulk::BulkReceiver;
use coorp_node::{Node, Options};
use coorp_team::Team;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{load, log, note_insecure, rights, supervise};
use crate::failure::Failure;
use crate::{output, policies};

/// Time between two attempts to move a message to its destination.
const TAKE_AGAIN: Duration = Duration::from_secs(5);

/// Options of `coorp up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML)
    #[arg(default_value = "team.toml")]
    file: PathBuf,
    /// The name of this robot in the team file
    #[arg(long, value_name = "NAME")]
    robot: String,
    /// The policy to run: one that exists outside the simulator
    #[arg(long, value_name = "NAME", default_value = "coorp", value_parser = policies::live_parser())]
    policy: String,
    /// Folder for received bulk [default: below $XDG_STATE_HOME, ~/.local/state, or without a home
    /// /var/lib/coorp]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Move received bulk into this folder, as SENDER/NUMBER-NAME [default: it waits below --state for a program]
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
    /// Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    metrics: Option<u16>,
    /// Record all decisions of this robot, as MCAP
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Protect what this machine's other programs send over the robot's interfaces: control leaves at once, bulk waits
    /// for its permit. 'off' protects nothing, and first undoes what a killed agent has left. Both need root
    #[arg(long, value_name = "WHETHER", num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    protect: Option<Whether>,
    /// Run without keys: only for networks that nobody else can reach
    #[arg(long)]
    insecure: bool,
}

/// Whether to protect other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Whether {
    On,
    Off,
}

/// Runs `coorp up`; returns only on failure.
///
/// # Errors
/// The robot cannot take part: no such robot, no keys, ports taken.
pub fn run(args: &Args) -> Result<(), Failure> {
    let team = load(&args.file)?;
    let policy = policies::named(&args.policy)?;
    log();
    if args.insecure {
        note_insecure();
    }
    let state = match &args.state {
        Some(state) => state.clone(),
        None => coorp_node::state_folder(&team.name, &args.robot)?,
    };
    let protects = args.protect == Some(Whether::On);
    if args.protect == Some(Whether::Off) {
        leave_no_trace()?;
    }
    if protects {
        // This must run before any other thread starts.
        let keys = (!args.insecure).then_some(&team.live.keys);
        let written = [Some(&state), args.into.as_ref(), args.record.as_ref()];
        let places: Vec<&Path> = [keys]
            .into_iter()
            .chain(written)
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        rights::drop_most(&places, &team.protect)?;
    }
    let node = Node::open_agent(Options {
        team: team.clone(),
        robot: args.robot.clone(),
        policy,
        insecure: args.insecure,
        state: Some(state),
    })?;
    // Watch signals before changing anything that an orderly end undoes.
    let signals = Signals::watch()?;
    if protects {
        node.protect()?;
    }
    if let Some(into) = &args.into {
        take_into(into, &team, node.bulk_receiver()?)?;
    }
    // Served until the process ends.
    let _metrics = args.metrics.map(|port| node.serve_metrics(port)).transpose()?;
    let recording = args.record.as_ref().map(|path| node.record(path)).transpose()?;
    let status = node.status()?;
    // If no program can join, the log has said why.
    let joined = node.joined_at();
    let joined = joined.map_or_else(String::new, |at| format!("programs join it at {}; ", at.display()));
    output::print(&format!(
        "{} is up with policy {} over {}; {joined}'coorp watch' shows the team\n",
        status.robot,
        status.policy,
        status.paths.join(", ")
    ))?;
    supervise::start(node.pulse()?)?;
    let signal = signals.wait()?;
    if let Some(Err(error)) = recording.map(|recording| recording.finish()) {
        output::note(&format!("note: {error}"));
    }
    // This closes its links, so the other robots notice at once.
    drop(node);
    signal_hook::low_level::emulate_default_handler(signal).map_err(|error| unwatched(&error))
}

/// Undoes what a killed agent has left on this machine, and prints what that was.
///
/// # Errors
/// An agent protects this machine now, or this needs root.
pub fn leave_no_trace() -> Result<(), Failure> {
    let undone = coorp_node::unprotect()?;
    if undone.is_empty() {
        output::note("nothing was left of an agent that protected this machine");
    }
    for what in undone {
        output::note(&format!("undone: {what}"));
    }
    Ok(())
}

/// Moves each bulk message into its own file until the process ends.
fn take_into(into: &Path, team: &Team, receiver: BulkReceiver) -> Result<(), Failure> {
    let cannot = |folder: &Path, error: &std::io::Error| {
        Failure::Input(format!("error: cannot put bulk into {}: {error}", folder.display()))
    };
    let mut next = BTreeMap::new();
    for (id, robot) in (0u16..).map(RobotId).zip(&team.robots) {
        let folder = into.join(coorp_node::file_name(&robot.name));
        let last = fs::create_dir_all(&folder).and_then(|()| last_number(&folder));
        let last = last.map_err(|error| cannot(&folder, &error))?;
        next.insert(id, (folder, last + 1));
    }
    let take = move || {
        while let Some(message) = receiver.recv(None) {
            let Some((folder, number)) = next.get_mut(&message.from) else {
                continue;
            };
            let file = folder.join(format!("{number}-{}", coorp_node::file_name(&message.name)));
            // The folder may have been deleted in the meantime.
            while let Err(error) = fs::create_dir_all(&*folder).and_then(|()| message.take_to(&file)) {
                if !message.path().exists() {
                    output::note(&format!(
                        "note: {} for {} is gone from below --state",
                        message.name,
                        folder.display()
                    ));
                    break;
                }
                output::note(&format!(
                    "note: bulk stays below --state, because it cannot be put into {}: {error}",
                    file.display()
                ));
                std::thread::sleep(TAKE_AGAIN);
            }
            *number += 1;
        }
    };
    let thread = std::thread::Builder::new().name("coorp-into".to_owned()).spawn(take);
    thread.map(|_| ()).map_err(|error| cannot(into, &error))
}

/// Returns the highest number at the start of a file name in the folder.
fn last_number(folder: &Path) -> std::io::Result<u64> {
    let mut last = 0;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.split_once('-')?.0.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    Ok(last)
}

/// The signals that end a process cleanly.
pub struct Signals {
    which: Arc<AtomicUsize>,
    came: UnixStream,
}

impl Signals {
    /// Catches them from now on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn watch() -> Result<Signals, Failure> {
        let which = Arc::new(AtomicUsize::new(0));
        let (came, tells) = UnixStream::pair().map_err(|error| unwatched(&error))?;
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            // Register the flag first, so that the signal's number is known before the wake-up.
            let known = signal_hook::flag::register_usize(signal, which.clone(), signal.unsigned_abs() as usize);
            let told = known.and_then(|_| signal_hook::low_level::pipe::register(signal, tells.try_clone()?));
            told.map_err(|error| unwatched(&error))?;
        }
        Ok(Signals { which, came })
    }

    /// Waits for one of these signals.
    fn wait(mut self) -> Result<i32, Failure> {
        self.came.read_exact(&mut [0]).map_err(|error| unwatched(&error))?;
        Ok(self.caught().unwrap_or(SIGTERM))
    }

    /// The newest of these signals, if one has come.
    pub fn caught(&self) -> Option<i32> {
        let which = i32::try_from(self.which.load(Ordering::Acquire)).ok();
        which.filter(|signal| *signal != 0)
    }
}

fn unwatched(error: &std::io::Error) -> Failure {
    Failure::Found(format!("failed: cannot wait for signals: {error}"))
}
