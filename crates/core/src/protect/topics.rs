//! The topics of DDS writers, as their programs have announced them.

use std::collections::{BTreeMap, VecDeque};

use super::Flow;
use crate::rtps::Guid;

/// Maximum number of known topics. Beyond it, the oldest is forgotten.
const TOPICS_MAX: usize = 4_096;
/// Prefixes that ROS 2 adds to the names of topics, and of services' requests and replies.
const ROS: [&str; 3] = ["rt/", "rq/", "rr/"];
/// Suffixes that ROS 2 adds to the names of services.
const SERVICE: [&str; 2] = ["Request", "Reply"];

/// The known topics.
#[derive(Clone, Debug, Default)]
pub(super) struct Topics {
    names: BTreeMap<Guid, String>,
    /// The writers, oldest first.
    order: VecDeque<Guid>,
}

impl Topics {
    /// Adds a writer's topic. Returns whether it is new.
    pub fn add(&mut self, writer: Guid, topic: &str) -> bool {
        if self.names.get(&writer).is_some_and(|known| known == topic) {
            return false;
        }
        if self.names.insert(writer, topic.to_owned()).is_none() {
            self.order.push_back(writer);
        }
        if self.order.len() > TOPICS_MAX {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.names.remove(&oldest));
        }
        true
    }

    /// Returns the topic of a flow.
    pub fn of(&self, flow: &Flow) -> Option<&str> {
        self.names.get(&flow.writer?).map(String::as_str)
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
pub(super) fn is_alike(pattern: &str, name: &str) -> bool {
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

    #[test]
    fn the_oldest_topic_makes_room() {
        let guid = |number: u16| {
            let mut guid = [0; 16];
            guid[..2].copy_from_slice(&number.to_be_bytes());
            Guid(guid)
        };
        let flow = |number| Flow {
            protocol: 17,
            from: ([10, 0, 0, 1].into(), 7_411),
            to: ([10, 0, 0, 2].into(), 7_411),
            writer: Some(guid(number)),
        };
        let mut topics = Topics::default();
        assert!(topics.add(guid(0), "a") && !topics.add(guid(0), "a") && topics.add(guid(0), "b"));
        assert_eq!(topics.of(&flow(0)), Some("b"));
        for number in 1..=TOPICS_MAX as u16 {
            topics.add(guid(number), "c");
        }
        assert_eq!((topics.of(&flow(0)), topics.of(&flow(1))), (None, Some("c")));
        assert_eq!((topics.names.len(), topics.order.len()), (TOPICS_MAX, TOPICS_MAX));
    }
}
