//! The `coorp` command: reads a team file and hands it to the simulator, the emulator, the planner or the checker.
//!
//! One file a command; each is thin. What is decided here is only how a person meets the machine: options,
//! messages, tables, the report, exit codes.
//!
//! A library and a program: the `coorp` of the Python package is this library too (`crates/py`), and its native
//! module says no to bad input in the same words.

#![cfg_attr(test, allow(clippy::unwrap_used))]

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

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use failure::Failure;

/// Said where the program is not that of the Python package, which takes `learn` before it comes here.
const LEARN_IS_ELSEWHERE: &str = "error: 'coorp learn' is in the Python package, and this is the program without it; \
                                  in Coorp's source: pip install '.[learn]'";

/// Control on time and bulk at full speed for robot teams on one WiFi channel.
#[derive(Debug, Parser)]
#[command(name = "coorp", version, about, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 fine, 1 the run found a failure, 2 bad input or unusable files.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Simulate a team under one or more policies
    Sim(sim::Args),
    /// Run real programs, one a robot, over the team's WiFi, emulated on this machine (needs root)
    Emu(emu::Args),
    /// Find how many robots fit on the channel, from the model and from simulation
    Plan(plan::Args),
    /// Say what is wrong with a team file, and where
    Check(check::Args),
    /// Make a team file of a recording (MCAP or ROS 2 bag)
    Import(import::Args),
    /// Make the team's keys
    #[cfg(feature = "live")]
    Keys(live::keys::Args),
    /// Take part in a team as one of its robots
    #[cfg(feature = "live")]
    Up(live::up::Args),
    /// Show what a live team does
    #[cfg(feature = "live")]
    Watch(live::watch::Args),
    /// One robot of 'coorp emu --demo', which starts it
    #[cfg(all(feature = "live", target_os = "linux"))]
    #[command(hide = true)]
    DemoRobot(live::demo::RobotArgs),
    /// One robot of 'coorp emu --faults', which starts it
    #[cfg(all(feature = "live", target_os = "linux"))]
    #[command(hide = true)]
    FaultRobot(live::faults::RobotArgs),
    /// Let the robots learn while they drive (of the Python package)
    #[command(disable_help_flag = true)]
    Learn {
        /// See 'coorp learn --help' of the Python package
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        _arguments: Vec<OsString>,
    },
}

/// Runs the command that `arguments` give, the program's name left out, and returns its exit code. What there is to
/// say has then been said on stdout and stderr.
pub fn run(arguments: &[OsString]) -> u8 {
    let named = std::iter::once(OsString::from("coorp")).chain(arguments.iter().cloned());
    let cli = match Cli::try_parse_from(named) {
        Ok(cli) => cli,
        Err(usage) => {
            // Help and version come this way too. A closed stdout is no failure of theirs.
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
        Command::Watch(args) => live::watch::run(&args),
        #[cfg(all(feature = "live", target_os = "linux"))]
        Command::DemoRobot(args) => live::demo::take_part(&args),
        #[cfg(all(feature = "live", target_os = "linux"))]
        Command::FaultRobot(args) => live::faults::take_part(&args),
        Command::Learn { .. } => Err(Failure::Input(LEARN_IS_ELSEWHERE.to_owned())),
    };
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            output::note(&failure.to_string());
            failure.exit_code()
        }
    }
}
