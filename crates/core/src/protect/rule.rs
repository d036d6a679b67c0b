//! The rules of the team file: which flows they cover, by address, port, DSCP, DDS topic and program.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::{Class, Flow};

/// Prefixes that ROS 2 adds to the names of topics, and of services' requests and replies.
const ROS: [&str; 3] = ["rt/", "rq/", "rr/"];
/// Suffixes that ROS 2 adds to the names of services.
const SERVICE: [&str; 2] = ["Request", "Reply"];

/// A rule of the team file that assigns a class to flows. All conditions that are set must hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The class of these flows.
    pub class: Class,
    /// The IP protocol's number.
    pub protocol: Option<u8>,
    /// The first and last port of a range for either end. Port 0, which stands for no port, is in no range.
    pub ports: Option<(u16, u16)>,
    /// The address of the receiver.
    pub to: Option<IpAddr>,
    /// The DSCP that the program sets, 0 to 63.
    pub dscp: Option<u8>,
    /// The topic's name, in DDS; `*` stands for any characters. A name that begins with '/' is the name of a topic,
    /// service or action in ROS 2.
    pub topic: Option<String>,
    /// The sending program's file; `*` stands for any characters. A name without '/' is the file's name in any folder.
    pub executable: Option<String>,
    /// The control group of the sending program, or one above it: a path of cgroup v2; `*` stands for any characters.
    pub cgroup: Option<String>,
}

/// A program that holds a socket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The path of its file, if known.
    pub executable: Option<String>,
    /// Its control group: a path of cgroup v2, if known.
    pub cgroup: Option<String>,
}

impl Rule {
    /// Returns whether the rule covers a flow of this topic, from one of these programs, whose packets have this DSCP.
    pub fn covers(&self, flow: &Flow, dscp: u8, topic: Option<&str>, programs: &[Program]) -> bool {
        self.covers_packets(flow, dscp, topic)
            && (!self.needs_program() || programs.iter().any(|program| self.covers_program(program)))
    }

    /// Returns the same, whatever program sends.
    pub(super) fn covers_packets(&self, flow: &Flow, dscp: u8, topic: Option<&str>) -> bool {
        let in_range = |(first, last): (u16, u16)| {
            let within = |port: u16| port != 0 && (first..=last).contains(&port);
            within(flow.from.1) || within(flow.to.1)
        };
        self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.ports.is_none_or(in_range)
            && self.to.is_none_or(|to| to == flow.to.0)
            && self.dscp.is_none_or(|wanted| wanted == dscp)
            && self
                .topic
                .as_deref()
                .is_none_or(|pattern| topic.is_some_and(|topic| is_match(pattern, topic)))
    }

    /// Returns whether the rule only covers flows whose program is known.
    pub fn needs_program(&self) -> bool {
        self.executable.is_some() || self.cgroup.is_some()
    }

    fn covers_program(&self, program: &Program) -> bool {
        let is_file = |pattern: &str, path: &str| match pattern.contains('/') {
            true => is_alike(pattern, path),
            false => is_alike(pattern, path.rsplit('/').next().unwrap_or(path)),
        };
        let is_in = |pattern: &str, path: &str| {
            let above = path.char_indices().filter(|(at, sign)| *sign == '/' && *at > 0);
            let mut groups = above.map(|(at, _)| &path[..at]).chain([path]);
            groups.any(|group| is_alike(pattern, group))
        };
        let holds = |pattern: &Option<String>, of: &Option<String>, holds: fn(&str, &str) -> bool| {
            pattern
                .as_deref()
                .is_none_or(|pattern| of.as_deref().is_some_and(|of| holds(pattern, of)))
        };
        holds(&self.executable, &program.executable, is_file) && holds(&self.cgroup, &program.cgroup, is_in)
    }
}

/// Returns whether the name of a DDS topic matches this pattern. A pattern that begins with '/' is matched with the
/// name in ROS 2.
pub(crate) fn is_match(pattern: &str, topic: &str) -> bool {
    if !pattern.starts_with('/') {
        return is_alike(pattern, topic);
    }
    let Some(name) = ROS.iter().find_map(|prefix| topic.strip_prefix(prefix)) else {
        return false;
    };
    let service = SERVICE.iter().find_map(|end| name.strip_suffix(end));
    let service = service.filter(|_| !topic.starts_with(ROS[0]));
    is_alike(&pattern[1..], service.unwrap_or(name))
}

/// Returns whether a name matches a pattern in which `*` stands for any characters.
fn is_alike(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(first) else {
        return false;
    };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        match left.find(piece) {
            Some(at) => left = &left[at + piece.len()..],
            None => return false,
        }
    }
    left.len() >= last.len() && left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_of_dds_and_of_ros_2() {
        for (pattern, topic, matches) in [
            ("pose", "pose", true),
            ("pose", "poses", false),
            ("rt/cam*", "rt/camera/image", true),
            ("*image", "rt/camera/image", true),
            ("*image", "rt/image/raw", false),
            ("rt/*/image/*w", "rt/left/image/raw", true),
            ("rt/*/image/*w", "rt/image/raw", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("/pose", "rt/pose", true),
            ("/pose", "pose", false),
            ("/pose", "rt/arm/pose", false),
            ("/*/pose", "rt/arm/pose", true),
            ("/plan", "rq/planRequest", true),
            ("/plan", "rr/planReply", true),
            ("/planReply", "rt/planReply", true),
            ("/plan", "rt/planReply", false),
            ("/fibonacci/_action/*", "rt/fibonacci/_action/feedback", true),
        ] {
            assert_eq!(is_match(pattern, topic), matches, "{pattern} {topic}");
        }
    }
}
