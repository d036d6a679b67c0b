//! The `coorp` command: reads a team file and passes it to the simulator, the emulator, the planner or the checker.
//!
//! One thin file per command. Only the user interface is decided here: options, messages, tables, the report, exit
//! codes.
//!
//! Both a library and a program: the Python package's `coorp` is this library too (`crates/py`), and its native module
//! rejects bad input with the same messages.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod charts;
mod check;
mod emu;
pub mod failure;
mod import;
pub mod jobs;
#[cfg(feature = "live")]
mod live;
#[cfg(feature = "live")]
pub use live::log;
mod notes;
pub mod number;
mod output;
mod plan;
pub mod policies;
mod progress;
mod recording;
mod replay;
mod report;
mod sim;
mod summary;
mod table;

/// The robots of `coorp emu --demo` with content in their messages, for `coorp learn --live`.
#[cfg(all(feature = "live", target_os = "linux"))]
pub mod content {
    pub use crate::live::demo::{figures, prepare, Content, Member};
}

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Printed if the program is not part of the Python package, which handles these itself.
const LEARN_IS_ELSEWHERE: &str = "error: 'coorp learn' needs the Python package, which this program is not part of; \
                                  in Coorp's source: pip install '.[learn]'";
const RUN_IS_ELSEWHERE: &str = "error: 'coorp run' needs the Python package, which this program is not part of; \
                                in Coorp's source: pip install .";
const SWEEP_IS_ELSEWHERE: &str =
    "error: 'coorp sim --sweep' needs the Python package, which this program is not part of; \
                                  in Coorp's source: pip install .";

/// Commands of the live half, whose names a program without it knows only for its message.
const LIVE: [&str; 6] = ["doctor", "keys", "replay", "unprotect", "up", "watch"];

/// Options of the live half, with their commands.
const LIVE_OPTIONS: [(&str, &str); 4] = [
    ("emu", "--demo"),
    ("emu", "--faults"),
    ("emu", "--protect"),
    ("sim", "--nodes"),
];

/// Returns what to say if the arguments ask for something that this program was built without.
fn built_without(arguments: &[OsString]) -> Option<String> {
    let name = arguments.first()?.to_str()?;
    let has = |option: &str| arguments.iter().take_while(|it| *it != "--").any(|it| it == option);
    let option = LIVE_OPTIONS.iter().find(|(of, option)| *of == name && has(option));
    let asked = match option {
        Some((_, option)) => format!("{name} {option}"),
        None if LIVE.contains(&name) => name.to_owned(),
        None => return None,
    };
    Some(format!(
        "error: 'coorp {asked}' needs the live half, which this coorp does not have; in Coorp's source: \
         pip install . ./live, or cargo install --path crates/cli"
    ))
}

/// Control on time and bulk at full speed for robot teams on one WiFi channel.
#[derive(Debug, Parser)]
#[command(name = "coorp", version, about, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 success, 1 the run found a failure, 2 bad input or unusable files.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate a team under one or more policies
    Sim(sim::Args),
    /// Run real programs, one per robot, over the team's WiFi, emulated on this machine (needs root)
    Emu(emu::Args),
    /// Find how many robots fit on the channel, or how many interfaces they need, from a model and from simulation
    Plan(plan::Args),
    /// Report what is wrong with a team file, and where
    Check(check::Args),
    /// Create a team file from a recording (MCAP or ROS 2 bag)
    Import(import::Args),
    /// Create the team's keys and bring them to the robots
    #[cfg(feature = "live")]
    Keys(live::keys::Args),
    /// Take part in a team as one of its robots
    #[cfg(feature = "live")]
    Up(live::up::Args),
    /// Undo what an agent that was killed has left on this machine (needs root)
    #[cfg(feature = "live")]
    Unprotect,
    /// Show the state of a live team
    #[cfg(feature = "live")]
    Watch(live::watch::Args),
    /// Report what this machine's card and kernel offer, and how to fix what is missing
    #[cfg(all(feature = "live", target_os = "linux"))]
    Doctor(live::doctor::Args),
    /// Replay a robot's flight recorder, and show what it decides and why
    #[cfg(feature = "live")]
    Replay(live::replay::Args),
    /// One robot of 'coorp emu --demo'; started by it
    #[cfg(all(feature = "live", target_os = "linux"))]
    #[command(hide = true)]
    DemoRobot(live::demo::RobotArgs),
    /// One robot of 'coorp emu --faults'; started by it
    #[cfg(all(feature = "live", target_os = "linux"))]
    #[command(hide = true)]
    FaultRobot(live::faults::RobotArgs),
    /// Train the robots while they drive (Python package only)
    #[command(disable_help_flag = true)]
    Learn {
        /// See 'coorp learn --help' in the Python package
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _arguments: Vec<OsString>,
    },
    /// Run a program of reactors (Python package only)
    #[command(disable_help_flag = true)]
    Run {
        /// See 'coorp run --help' in the Python package
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _arguments: Vec<OsString>,
    },
}

/// Runs the command given by `arguments`, which exclude the program's name, and returns its exit code. All output has
/// been written to stdout and stderr by then.
pub fn run(arguments: &[OsString]) -> u8 {
    // Its options are known in Python only.
    if arguments.first().is_some_and(|name| name == "sim") && arguments.iter().any(|option| option == "--sweep") {
        output::note(SWEEP_IS_ELSEWHERE);
        return 2;
    }
    let named = std::iter::once(OsString::from("coorp")).chain(arguments.iter().cloned());
    let cli = match Cli::try_parse_from(named) {
        Ok(cli) => cli,
        Err(usage) => {
            if let Some(text) = built_without(arguments).filter(|_| cfg!(not(feature = "live"))) {
                output::note(&text);
                return 2;
            }
            // Help and version also end up here. A closed stdout is not a failure.
            let _ = usage.print();
            return usage.exit_code() as u8;
        }
    };
    jobs::record_panics();
    let outcome = match cli.command {
        Command::Sim(args) => sim::run(&args, arguments),
        Command::Emu(args) => emu::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Import(args) => import::run(&args),
        #[cfg(feature = "live")]
        Command::Keys(args) => live::keys::run(&args),
        #[cfg(feature = "live")]
        Command::Up(args) => live::up::run(&args),
        #[cfg(feature = "live")]
        Command::Unprotect => live::up::leave_no_trace(),
        #[cfg(feature = "live")]
        Command::Watch(args) => live::watch::run(&args),
        #[cfg(feature = "live")]
        Command::Replay(args) => live::replay::run(&args),
        #[cfg(all(feature = "live", target_os = "linux"))]
        Command::Doctor(args) => live::doctor::run(&args),
        #[cfg(all(feature = "live", target_os = "linux"))]
        Command::DemoRobot(args) => live::demo::take_part(&args),
        #[cfg(all(feature = "live", target_os = "linux"))]
        Command::FaultRobot(args) => live::faults::take_part(&args),
        Command::Learn { .. } => Err(Failure::Input(LEARN_IS_ELSEWHERE.to_owned())),
        Command::Run { .. } => Err(Failure::Input(RUN_IS_ELSEWHERE.to_owned())),
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            output::note(&failure.to_string());
            failure.exit_code()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_the_live_half_says_so_of_its_commands_only() {
        let said = |line: &str| built_without(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        let of_up = said("up team.toml --robot r1").unwrap();
        assert!(
            of_up.contains("'coorp up'") && of_up.contains("cargo install"),
            "{of_up}"
        );
        assert!(said("sim team.toml --faults --nodes")
            .unwrap()
            .contains("'coorp sim --nodes'"));
        for other in [
            "sim team.toml --faults",
            "emu team.toml --demos",
            "emu team.toml -- run --demo",
            "upp",
        ] {
            assert_eq!(said(other), None, "{other}");
        }
    }

    #[cfg(all(feature = "live", target_os = "linux"))]
    #[test]
    fn the_commands_and_options_of_the_live_half_are_those() {
        use clap::CommandFactory;
        let all = Cli::command();
        let missing: Vec<_> = LIVE.iter().filter(|name| all.find_subcommand(name).is_none()).collect();
        assert!(missing.is_empty(), "{missing:?}");
        for (name, option) in LIVE_OPTIONS {
            let command = all.find_subcommand(name).unwrap();
            let has = command
                .get_arguments()
                .any(|it| it.get_long() == option.strip_prefix("--"));
            assert!(has, "{name} {option}");
        }
    }
}
