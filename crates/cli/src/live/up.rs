//! `coorp up`: one robot takes part in its team, until it is stopped.

use std::io::IsTerminal;
use std::path::PathBuf;

use coorp_node::{Node, Options};
use tracing_subscriber::EnvFilter;

use super::{load, INSECURE};
use crate::failure::Failure;
use crate::{output, policies};

/// What is logged unless RUST_LOG says otherwise: what the robot does, and of the fabric what is wrong for good.
const LOG_DEFAULT: &str = "coorp_node=info,zenoh=error,error";

/// Options of `coorp up`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The team file (TOML)
    #[arg(default_value = "team.toml")]
    file: PathBuf,
    /// Which of the team's robots this is
    #[arg(long, value_name = "NAME")]
    robot: String,
    /// What runs
    #[arg(long, value_name = "NAME", default_value = "coorp", value_parser = policies::parser())]
    policy: String,
    /// Folder for bulk that comes [default: below $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, value_name = "FOLDER")]
    state: Option<PathBuf>,
    /// Without keys: for networks that nobody else reaches
    #[arg(long)]
    insecure: bool,
}

/// Runs `coorp up`; returns only where it cannot go on.
///
/// # Errors
/// Where the robot cannot take part: no such robot, no keys, ports taken.
pub fn run(args: &Args) -> Result<(), Failure> {
    let team = load(&args.file)?;
    let policy = policies::named(&args.policy)?;
    log();
    if args.insecure {
        output::note(INSECURE);
    }
    let node = Node::open(Options {
        team,
        robot: args.robot.clone(),
        policy,
        insecure: args.insecure,
        state: args.state.clone(),
    })?;
    let status = node.status();
    let part = if status.leads { ", the leader," } else { "" };
    output::print(&format!(
        "{}{part} is up with policy {} over {}; 'coorp watch' shows the team\n",
        status.robot,
        status.policy,
        status.paths.join(", ")
    ))?;
    // Until a signal ends the process. The kernel then closes its links, by which the others know at once.
    loop {
        std::thread::park();
    }
}

fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours);
    if log.try_init().is_err() {
        output::note("note: the log was set up before, and stays as it is");
    }
}
