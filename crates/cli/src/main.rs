//! The `coorp` command: reads a team file and hands it to the simulator, the planner or the checker.
//!
//! One file a command; each is thin. What is decided here is only how a person meets the machine: options,
//! messages, tables, the report, exit codes. Left out: everything that the live system needs.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod check;
mod failure;
mod jobs;
mod notes;
mod number;
mod output;
mod plan;
mod policies;
mod progress;
mod report;
mod sim;
mod summary;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Find how many robots fit on the channel, from the model and from simulation
    Plan(plan::Args),
    /// Say what is wrong with a team file, and where
    Check(check::Args),
}

fn main() -> ExitCode {
    jobs::record_panics();
    let outcome = match Cli::parse().command {
        Command::Sim(args) => sim::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Check(args) => check::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::note(&failure.to_string());
            failure.exit_code()
        }
    }
}
