//! What a packet of a program that knows nothing of Coorp is taken for, and when it may go: control at once, bulk by permit
//! and gate, the rest as it came.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What a flow is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Sent at once in AC_VO, and predicted.
    Control,
    /// Neither: sent as it came.
    Ordinary,
    /// Waits for the permit and for the gate.
    Bulk,
}

/// One direction of a conversation between two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// The IP protocol's number (6 is TCP, 17 UDP).
    pub protocol: u8,
    /// The sender's address and port; port 0 if the protocol has none.
    pub from: (IpAddr, u16),
    /// The receiver's address and port; port 0 if the protocol has none.
    pub to: (IpAddr, u16),
}

/// A rule of the team file: which flows are of a class. All conditions that are set must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The class of these flows.
    pub class: Class,
    /// The IP protocol's number.
    pub protocol: Option<u8>,
    /// The port of either end, first and last.
    pub ports: Option<(u16, u16)>,
    /// The address of the receiver.
    pub to: Option<IpAddr>,
    /// The DSCP that the program sets, 0 to 63.
    pub dscp: Option<u8>,
}
