//! `coorp up`: one robot takes part in its team, until it is stopped.

use std::path::PathBuf;

use coorp_node::{Node, Options};

use super::{load, log, INSECURE};
use crate::failure::Failure;
use crate::{output, policies};

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
    /// Serve metrics for Prometheus at http://127.0.0.1:PORT/metrics
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    metrics: Option<u16>,
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
    // Served for as long as the process lasts.
    let _metrics = args.metrics.map(|port| node.serve_metrics(port)).transpose()?;
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
