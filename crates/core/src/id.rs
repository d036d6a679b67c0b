//! Identities shared by several crates.

use serde::{Deserialize, Serialize};

/// A robot of the team, by its zero-based place in the team file. The leader has one too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RobotId(pub u16);

/// A flow of the team, unique over all robots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct FlowId(pub u32);
