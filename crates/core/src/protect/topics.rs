//! The topics of DDS writers, as their programs have announced them.

use std::collections::{BTreeMap, VecDeque};

use super::Flow;
use crate::rtps::Guid;

/// Maximum number of known topics. Beyond it, the oldest is forgotten.
const TOPICS_MAX: usize = 4_096;

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

#[cfg(test)]
mod tests {
    use super::*;

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
