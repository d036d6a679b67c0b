//! `coorp emu`: real programs, one per robot, over the team's emulated WiFi.
//!
//! The programs' lines go to stdout and stderr, prefixed with their robot's name; the emulator's own messages go to
//! stderr. Left out: a terminal for the programs, which read from /dev/null.

use std::ffi::OsString;
use std::path::PathBuf;

use coorp_core::Duration;
#[cfg(target_os = "linux")]
use coorp_core::RobotId;
#[cfg(target_os = "linux")]
use coorp_team::{Team, PATHS_MAX};

use crate::failure::Failure;
use crate::number::parse_duration;

/// Options of `coorp emu`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Environment of the program: COORP_ROBOT, its robot's name; COORP_LEADER, the \
    leader's; COORP_TEAM, the team file; COORP_ADDRESSES, its own addresses, wlan0's first; COORP_NETWORK, all \
    robots' addresses; COORP_OUTQUEUE, interfaces that report what was sent. Robots' names resolve. Different \
    programs: coorp emu team.toml -- sh -c 'case $COORP_ROBOT in base) ./serve;; *) ./drive;; esac'"
)]
pub struct Args {
    /// The team file (TOML)
    file: PathBuf,
    /// When to end the run [default: when the last program has ended]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Write the run's results as JSON
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// Run the team file's own traffic live under each policy, and print the table of 'coorp sim'; --duration is the
    /// measured time per policy [default: 60s]
    #[cfg(feature = "live")]
    #[arg(long, conflicts_with = "program")]
    demo: bool,
    /// Policies of the demo, separated by commas [default: mpc-only,bulk-only,edca,coorp]
    #[cfg(feature = "live")]
    #[arg(long, value_name = "NAMES", value_delimiter = ',', requires = "demo", value_parser = crate::policies::parser())]
    policy: Vec<String>,
    /// Run Coorp's own robots while a schedule drawn from the seed kills, freezes and cuts them off and degrades paths,
    /// and check the invariants
    #[cfg(feature = "live")]
    #[arg(long, conflicts_with_all = ["program", "demo", "duration"])]
    faults: bool,
    /// The seed of the faults
    #[cfg(feature = "live")]
    #[arg(long, value_name = "N", default_value_t = 1, requires = "faults")]
    seed: u64,
    /// Run this many seeds, starting at --seed
    #[cfg(feature = "live")]
    #[arg(long, value_name = "COUNT", default_value_t = 1, requires = "faults", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    seeds: u32,
    /// Seeds to run at once [default: twice the number of cores]
    #[cfg(feature = "live")]
    #[arg(long, value_name = "N", requires = "faults", value_parser = clap::value_parser!(u16).range(1..=64))]
    at_once: Option<u16>,
    /// Keep each run's files in this folder, including flight recordings [default: only those of failed runs]
    #[cfg(feature = "live")]
    #[arg(long, value_name = "FOLDER", requires = "faults")]
    keep: Option<PathBuf>,
    /// Run Coorp's agent beside each program, which protects what the program sends: 'coorp up --protect'
    #[cfg(feature = "live")]
    #[arg(long, requires = "program")]
    protect: bool,
    /// Print only the programs' output, failures and warnings
    #[arg(long)]
    quiet: bool,
    /// The program and its arguments, run once for each robot; without it the network exists until Ctrl-C
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs `coorp emu`.
///
/// # Errors
/// Something is missing or has to be fixed (exit code 2); a program failed, or the emulator was aborted (exit code 1).
#[cfg(target_os = "linux")]
pub fn run(args: &Args) -> Result<(), Failure> {
    use crate::output::{self, Destination, Inputs};
    use coorp_emu::{Options, Stream};
    use std::io::Write;
    use std::sync::Arc;

    let team = coorp_team::load(&args.file).map_err(|error| Failure::Input(error.to_string()))?;
    let inputs = Inputs::of(&args.file, &team);
    let json = args
        .json
        .as_deref()
        .map(|path| Destination::check(path, &inputs))
        .transpose()?;
    let too_many = too_many_paths(&team);
    #[cfg(feature = "live")]
    if let Some(why) = too_many.as_ref().filter(|_| args.demo || args.faults) {
        return Err(Failure::Input(format!("error: {}: {why}", args.file.display())));
    }
    #[cfg(feature = "live")]
    if args.demo {
        return crate::live::demo::run(&crate::live::demo::Demo {
            file: &args.file,
            team: &team,
            policies: &args.policy,
            length: args.duration,
            json: json.as_ref(),
            quiet: args.quiet,
        });
    }
    #[cfg(feature = "live")]
    if args.faults {
        return crate::live::faults::run(&crate::live::faults::Asked {
            ground: crate::live::faults::Ground::Emulator,
            file: &args.file,
            team: &team,
            seed: args.seed,
            seeds: args.seeds,
            at_once: args.at_once.map_or_else(|| 2 * crate::jobs::cores(), usize::from),
            keep: args.keep.as_deref(),
            json: json.as_ref(),
            quiet: args.quiet,
        });
    }
    #[cfg_attr(not(feature = "live"), allow(unused_mut))]
    let mut options = Options {
        team_file: args.file.clone(),
        program: args.program.clone(),
        duration: args.duration,
        ..coorp_emu::Options::default()
    };
    // Agents write below it until the run ends.
    #[cfg(feature = "live")]
    let states = args.protect.then(States::new).transpose()?;
    #[cfg(feature = "live")]
    if let Some(states) = &states {
        options.companion = Some(agent(&args.file, &states.0)?);
    }
    let lines = Arc::new(|robot: &str, stream: Stream, line: &[u8]| {
        let line = [b"[", robot.as_bytes(), b"] ", line, b"\n"].concat();
        // A reader that has gone away is no reason to end the programs.
        let _ = match stream {
            Stream::Stdout => std::io::stdout().lock().write_all(&line),
            Stream::Stderr => std::io::stderr().lock().write_all(&line),
        };
    });
    let told = |text: &str| {
        if !args.quiet {
            output::note(text);
        }
    };
    // Other programs may use all interfaces.
    if let Some(why) = too_many.filter(|_| !args.program.is_empty()) {
        output::note(&format!("Note: {}: {why}", args.file.display()));
    }
    let report = coorp_emu::run(&team, &options, lines, &told)?;
    if !args.quiet || report.failed() || !report.kept_up {
        output::note(&report.text());
    }
    if let Some(json) = json {
        output::write_json(&json, &report)?;
    }
    if report.failed() {
        return Err(Failure::Found("failed: a program failed".to_owned()));
    }
    Ok(())
}

/// The state folders of a run's agents, deleted with it.
#[cfg(all(feature = "live", target_os = "linux"))]
struct States(PathBuf);

#[cfg(all(feature = "live", target_os = "linux"))]
impl States {
    fn new() -> Result<States, Failure> {
        let folder = std::env::temp_dir().join(format!("coorp-protect-{}", std::process::id()));
        match std::fs::create_dir(&folder) {
            Ok(()) => Ok(States(folder)),
            Err(error) => Err(Failure::Input(format!(
                "error: cannot make {}: {error}",
                folder.display()
            ))),
        }
    }
}

#[cfg(all(feature = "live", target_os = "linux"))]
impl Drop for States {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            crate::output::note(&format!("note: cannot delete {}: {error}", self.0.display()));
        }
    }
}

/// Coorp's agent, beside each robot's program.
#[cfg(all(feature = "live", target_os = "linux"))]
fn agent(file: &std::path::Path, states: &std::path::Path) -> Result<coorp_emu::Companion, Failure> {
    let own = crate::live::this_program()
        .map_err(|error| Failure::Found(format!("failed: cannot find this program's file: {error}")))?;
    // Only the agent's environment names its robot.
    let script = r#"exec "$@" --robot "$COORP_ROBOT" --protect --state "$COORP_AGENT""#;
    let shell = ["sh", "-c", script, "coorp"].map(OsString::from);
    Ok(coorp_emu::Companion {
        command: [shell.to_vec(), own, vec!["up".into(), file.into()]].concat(),
        interface: coorp_node::protect_interface(0),
        folder: states.to_owned(),
    })
}

/// Returns why Coorp's own robots cannot use all of a team's interfaces, if a robot has more than a live robot
/// supports. Live robots use the interfaces from wlan0 up to the first one that some robot lacks.
#[cfg(target_os = "linux")]
fn too_many_paths(team: &Team) -> Option<String> {
    let robots = (0u16..).map(RobotId).zip(&team.robots);
    let paths = |robot| {
        let numbers = 0..team.channels().count();
        numbers.take_while(|number| team.has_interface(robot, *number)).count()
    };
    let (most, robot) = robots
        .map(|(id, robot)| (paths(id), robot))
        .find(|(paths, _)| *paths > PATHS_MAX)?;
    Some(format!(
        "{} has {most} interfaces, but Coorp's live robots use at most {PATHS_MAX}: remove [[interface]] tables to run \
         such robots",
        robot.name
    ))
}

#[cfg(target_os = "linux")]
impl From<coorp_emu::Error> for Failure {
    fn from(error: coorp_emu::Error) -> Self {
        match error {
            coorp_emu::Error::Unable(text) => Failure::Input(format!("error: {text}")),
            coorp_emu::Error::Broken(text) => Failure::Found(format!("failed: {text}")),
        }
    }
}

/// Reports that this is not Linux.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn run(_: &Args) -> Result<(), Failure> {
    Err(Failure::Input(
        "error: coorp emu needs Linux, for its network namespaces".to_owned(),
    ))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn more_interfaces_than_a_live_robot_uses_are_told_of() {
        let team = |interfaces: &[u16]| {
            let robots = "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"rover\"\n";
            let tables = interfaces
                .iter()
                .map(|channel| format!("[[interface]]\nchannel = {channel}\n"));
            let text = robots.to_owned() + &tables.collect::<String>();
            coorp_team::parse(&text, "team.toml", Path::new("")).unwrap()
        };
        assert_eq!(too_many_paths(&team(&[100, 104, 108])), None);
        let why = too_many_paths(&team(&[100, 104, 108, 112])).unwrap();
        assert!(
            why.contains("base has 5 interfaces") && why.contains("use at most 4"),
            "{why}"
        );
    }
}
