//! Displays flows and classes.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::{Class, Flow, Reason, Status, TCP, UDP};

const ICMP: u8 = 1;

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Control => "control",
            Class::Ordinary => "ordinary",
            Class::Bulk => "bulk",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule(index) => write!(f, "rule {} of the team file", index + 1),
            Reason::Own => f.write_str("the agent's own"),
            Reason::Marked => f.write_str("its program marks it"),
            Reason::Periodic => f.write_str("small and periodic"),
            Reason::Steady => f.write_str("small, at a steady rate"),
            Reason::Backlog => f.write_str("keeps a backlog"),
            Reason::Large => f.write_str("its messages are large"),
            Reason::TooFast => f.write_str("too fast for control"),
            Reason::Undecided => f.write_str("nothing else known"),
            Reason::Silent => f.write_str("silent"),
        }
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |(address, port): (IpAddr, u16)| match (address, port) {
            (address, 0) => address.to_string(),
            (address, port) => SocketAddr::new(address, port).to_string(),
        };
        match self.protocol {
            ICMP => f.write_str("icmp")?,
            TCP => f.write_str("tcp")?,
            UDP => f.write_str("udp")?,
            other => write!(f, "protocol {other}")?,
        }
        write!(f, " {} > {}", end(self.from), end(self.to))?;
        match self.writer {
            Some(writer) => write!(f, " writer {writer:#}"),
            None => Ok(()),
        }
    }
}

/// Displays the flow, with its topic in place of the writer if that is known.
impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(topic) = &self.topic else {
            return self.flow.fmt(f);
        };
        let flow = Flow {
            writer: None,
            ..self.flow
        };
        write!(f, "{flow} {topic}")
    }
}
