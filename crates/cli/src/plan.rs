//! placeholder
use crate::failure::Failure;
#[derive(Debug, clap::Args)]
pub struct Args { file: std::path::PathBuf }
pub fn run(_a: &Args) -> Result<(), Failure> { Ok(()) }
