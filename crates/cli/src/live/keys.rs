//! `coorp keys init`: creates the team's keys.

use std::path::PathBuf;

use coorp_node::keys::{self, OPERATOR};

use super::load;
use crate::failure::Failure;
use crate::output;

/// Options of `coorp keys`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Create the team's keys: one authority, a certificate for each robot, and one for the operator
    Init {
        /// The team file (TOML); it names the folder of the keys
        #[arg(default_value = "team.toml")]
        file: PathBuf,
    },
}

/// Runs `coorp keys`.
///
/// # Errors
/// Keys exist already, or files cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let Command::Init { file } = &args.command;
    let team = load(file)?;
    let made = keys::init(&team)?;
    let folder = team.live.keys.display();
    let (mut text, mut copies) = (String::new(), String::new());
    if made.authority {
        text += &format!("{folder}/ca.key: the team's authority. Anyone with it can join: keep it off the robots.\n");
    }
    for name in &made.certificates {
        if name == OPERATOR {
            text += &format!("{folder}/operator.key: for 'coorp watch', and anyone who may see the team's state.\n");
        } else {
            copies += &format!("  {name}: {folder}/ca.pem {folder}/robots/{name}.pem {folder}/robots/{name}.key\n");
        }
    }
    if !copies.is_empty() {
        text += &format!("Copy to each robot, into the same folder beside its team file:\n{copies}");
    }
    output::print(&text)
}
