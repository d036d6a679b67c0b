//! The commands of the live system: `coorp keys`, `coorp up`, `coorp watch`. Behind the feature `live`, which is on
//! unless one builds without it.

#[cfg(target_os = "linux")]
pub mod demo;
pub mod keys;
pub mod up;
pub mod watch;

use std::path::Path;

use coorp_node::Error;
use coorp_team::Team;

use crate::failure::Failure;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Input(text) => Failure::Input(format!("error: {text}")),
            Error::Failed(text) => Failure::Found(format!("failed: {text}")),
        }
    }
}

fn load(file: &Path) -> Result<Team, Failure> {
    coorp_team::load(file).map_err(|error| Failure::Input(error.to_string()))
}

/// Said where keys are left out.
const INSECURE: &str =
    "WARNING: --insecure: nothing is encrypted and nobody proves who they are; whoever reaches this \
                        network can read, speak for any robot and hand out permits";
