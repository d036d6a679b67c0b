//! Decides, for ROS 2 over Zenoh, which connection carries a message from one robot's router to another's.
//!
//! The messages within one connection cannot be separated from outside. So the routers of two robots have several
//! connections, one for each [`Link`], with different Zenoh priorities. Each is a separate TCP flow in the path of
//! [`crate::protect`]. A router changes the priority of its messages by [`overwrites`]:
//!
//! 1. A [`Rule`] of the team file that names only a topic.
//! 2. The priority that the program set, if it is not Zenoh's default. `rmw_zenoh` sets none.
//! 3. The length of the message: up to 4 kB it is control, above 64 kB bulk. [`crate::protect`] has the same bounds.
//!
//! Only rules apply to requests, and to replies, which have the priority of their request, because the length of the
//! reply is not known yet.
//!
//! A key of `rmw_zenoh` is `<domain>/<name>/<type>/<hash>`. The name has no leading '/', as in
//! `0/camera/left/sensor_msgs::msg::dds_::Image_/RIHS01_...` (rmw_zenoh, docs/design.md).
//!
//! Left out: the times at which messages arrive. A Zenoh router does not show what it forwards, so regular messages
//! cannot be distinguished from others, and all small ones share a connection. Also left out: rules with further
//! conditions, such as a port.

use crate::protect::{Class, Rule};

/// The longest control message and the shortest bulk message, in bytes of payload.
const SMALL_BYTES_MAX: u64 = 4 << 10;
const LARGE_BYTES_MIN: u64 = (64 << 10) + 1;
/// Zenoh's priorities. 0 is the most urgent, and is for Zenoh's own declarations.
const REAL_TIME: u8 = 1;
const INTERACTIVE_HIGH: u8 = 2;
const DATA: u8 = 5;
const DATA_LOW: u8 = 6;
/// Maximum number of `*` in a pattern. Each doubles the number of key expressions.
const STARS_MAX: usize = 6;

/// A kind of connection between two routers: one for reliable messages and one for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Link {
    /// For Zenoh's declarations and control.
    Control,
    /// For messages that are neither control nor bulk.
    Ordinary,
    /// For bulk.
    Bulk,
}

impl Link {
    /// All links.
    pub const ALL: [Link; 3] = [Link::Control, Link::Ordinary, Link::Bulk];

    /// Returns the first and last of Zenoh's priorities that the link carries. Together, the links carry all
    /// priorities.
    pub const fn priorities(self) -> (u8, u8) {
        match self {
            Link::Control => (0, 3),
            Link::Ordinary => (4, DATA),
            Link::Bulk => (DATA_LOW, 7),
        }
    }
}

/// A change of the messages that a router sends. If several match a message, the last one applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overwrite {
    /// The key expressions, which need not be canonical. No expression stands for all keys.
    pub keys: Vec<String>,
    /// The minimum and maximum length of payloads, inclusive; absent means no limit.
    pub bytes: (Option<u64>, Option<u64>),
    /// Whether the change applies only to messages without a priority.
    pub unset: bool,
    /// Whether the change applies to requests too.
    pub requests: bool,
    /// The change.
    pub to: To,
}

/// What a router changes in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The priority.
    Priority(u8),
    /// The handling of full queues. A message that may be dropped waits for room separately from later messages, and
    /// later ones of its priority are dropped meanwhile. If it kept the router waiting, it would delay everything that
    /// its program sends.
    Aside,
}

/// A counter of the batches in a TCP connection of Zenoh. Each batch begins with its length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batches {
    whole: u32,
    /// The lower byte of a length whose upper byte is still missing.
    lower: Option<u8>,
    /// The number of bytes missing from the current batch.
    left: usize,
}

impl Batches {
    /// Adds bytes of the connection.
    pub fn add(&mut self, mut bytes: &[u8]) {
        while let Some((&byte, rest)) = bytes.split_first() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                (self.left, bytes) = (self.left - taken, &bytes[taken..]);
                self.whole = self.whole.saturating_add(u32::from(self.left == 0));
                continue;
            }
            bytes = rest;
            match self.lower.take() {
                None => self.lower = Some(byte),
                Some(lower) => {
                    self.left = usize::from(u16::from_le_bytes([lower, byte]));
                    self.whole = self.whole.saturating_add(u32::from(self.left == 0));
                }
            }
        }
    }

    /// Returns the number of complete batches.
    pub fn whole(&self) -> u32 {
        self.whole
    }
}

/// Returns what a router changes by the rules of the team file, or the index of a rule whose pattern is too complex.
pub fn overwrites(rules: &[Rule]) -> Result<Vec<Overwrite>, usize> {
    let by_length = |bytes, to| Overwrite {
        keys: Vec::new(),
        bytes,
        unset: true,
        requests: false,
        to,
    };
    let large = (Some(LARGE_BYTES_MIN), None);
    let mut all = vec![
        by_length((None, Some(SMALL_BYTES_MAX)), To::Priority(INTERACTIVE_HIGH)),
        by_length(large, To::Aside),
        by_length(large, To::Priority(DATA_LOW)),
    ];
    // The first rule applies, so it comes last.
    for (index, rule) in rules.iter().enumerate().rev() {
        let Some(topic) = named(rule) else { continue };
        let keys = key_expressions(topic).ok_or(index)?;
        if keys.is_empty() {
            continue;
        }
        let to = |to| Overwrite {
            keys: keys.clone(),
            bytes: (None, None),
            unset: false,
            requests: !matches!(to, To::Aside),
            to,
        };
        match rule.class {
            Class::Control => all.push(to(To::Priority(REAL_TIME))),
            Class::Ordinary => all.push(to(To::Priority(DATA))),
            Class::Bulk => all.extend([to(To::Aside), to(To::Priority(DATA_LOW))]),
        }
    }
    Ok(all)
}

/// Returns the topic that a rule names, if it names nothing else.
fn named(rule: &Rule) -> Option<&str> {
    let of_packets = rule.protocol.is_some() || rule.ports.is_some() || rule.to.is_some() || rule.dscp.is_some();
    rule.topic.as_deref().filter(|_| !of_packets && !rule.needs_program())
}

/// Returns the key expressions of a rule's pattern, in which `*` stands for any characters. A pattern that begins with
/// '/' is a name in ROS 2, any other a key of Zenoh. Returns an empty list if no key can match, and `None` if there
/// would be too many.
fn key_expressions(pattern: &str) -> Option<Vec<String>> {
    // Names never contain characters that are special in key expressions.
    if pattern.contains(['$', '#', '?']) {
        return Some(Vec::new());
    }
    let (ros, name) = match pattern.strip_prefix('/') {
        Some(name) => (true, name),
        None => (false, pattern),
    };
    let pieces: Vec<&str> = split_at_stars(name);
    if pieces.len() > STARS_MAX + 1 {
        return None;
    }
    // A star covers part of one chunk of the key, or extends over several.
    let mut texts = vec![String::new()];
    for (index, piece) in pieces.iter().enumerate() {
        let gaps: &[&str] = if index == 0 { &[""] } else { &["\0", "\0/**/\0"] };
        let longer = |text: &String| -> Vec<String> { gaps.iter().map(|gap| format!("{text}{gap}{piece}")).collect() };
        texts = texts.iter().flat_map(longer).collect();
    }
    let mut all: Vec<String> = texts.iter().filter_map(|text| chunked(text)).collect();
    all.sort_unstable();
    all.dedup();
    Some(match ros {
        true => all.iter().map(|key| format!("*/{key}/*/*")).collect(),
        false => all,
    })
}

/// Returns the pieces between a pattern's stars. Consecutive stars count as one.
fn split_at_stars(name: &str) -> Vec<&str> {
    let mut pieces: Vec<&str> = name.split('*').collect();
    let last = pieces.len() - 1;
    let mut index = 0;
    pieces.retain(|piece| {
        let inner = index > 0 && index < last;
        index += 1;
        !(inner && piece.is_empty())
    });
    pieces
}

/// Returns the key expression for a text in which zero bytes stand for any part of a chunk; `None` if no key has these
/// chunks.
fn chunked(text: &str) -> Option<String> {
    let chunks: Option<Vec<String>> = text
        .split('/')
        .map(|chunk| match chunk {
            "" => None,
            "\0" => Some("*".to_owned()),
            chunk => Some(chunk.replace('\0', "$*")),
        })
        .collect();
    Some(chunks?.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rule(class: Class, topic: &str) -> Rule {
        Rule {
            class,
            protocol: None,
            ports: None,
            to: None,
            dscp: None,
            topic: Some(topic.to_owned()),
            executable: None,
            cgroup: None,
        }
    }

    /// Returns whether a key expression of Zenoh includes a key without wildcards, by Zenoh's specification.
    fn includes(expression: &str, key: &str) -> bool {
        let expression: Vec<&str> = expression.split('/').collect();
        let key: Vec<&str> = key.split('/').collect();
        chunks_include(&expression, &key)
    }

    fn chunks_include(expression: &[&str], key: &[&str]) -> bool {
        match expression.split_first() {
            None => key.is_empty(),
            Some((&"**", rest)) => (0..=key.len()).any(|taken| chunks_include(rest, &key[taken..])),
            Some((&chunk, rest)) => key
                .split_first()
                .is_some_and(|(first, left)| chunk_includes(chunk, first) && chunks_include(rest, left)),
        }
    }

    fn chunk_includes(chunk: &str, text: &str) -> bool {
        if chunk == "*" {
            return !text.is_empty();
        }
        match chunk.split_once("$*") {
            None => chunk == text,
            Some((first, rest)) => text
                .strip_prefix(first)
                .is_some_and(|left| (0..=left.len()).any(|at| chunk_includes(rest, &left[at..]) || rest.is_empty())),
        }
    }

    fn key_of(name: &str) -> String {
        format!("0/{name}/sensor_msgs::msg::dds_::Image_/RIHS01_d31d41a9")
    }

    fn matches(pattern: &str, name: &str) -> bool {
        let keys = key_expressions(pattern).unwrap();
        keys.iter().any(|expression| includes(expression, &key_of(name)))
    }

    #[test]
    fn a_topic_has_the_keys_of_rmw_zenoh() {
        assert_eq!(key_expressions("/pose").unwrap(), ["*/pose/*/*"]);
        assert_eq!(key_expressions("/cam*").unwrap(), ["*/cam$*/*/*", "*/cam$*/**/*/*/*"]);
        assert_eq!(key_expressions("/r1/**/image").unwrap().len(), 2);
        for (pattern, name, like) in [
            ("/camera/*", "camera/left/image", true),
            ("/camera/*", "camera", false),
            ("/camera/*", "r1/camera/left", false),
            ("/*", "pose", true),
            ("/*/pose", "r1/arm/pose", true),
            ("/*/pose", "pose", false),
            ("/*image*", "left/image/raw", true),
            ("/*image*", "image", true),
            ("/pose", "poses", false),
            ("/a*b*c", "axbyc", true),
            ("/a*b*c", "ab", false),
        ] {
            assert_eq!(matches(pattern, name), like, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_without_a_slash_is_a_key_of_zenoh() {
        assert_eq!(key_expressions("demo/*").unwrap(), ["demo/*", "demo/*/**/*"]);
    }

    #[test]
    fn names_that_no_key_has_match_nothing() {
        for pattern in ["/", "/a//b", "/a/", "/a$b", "/a#", "/a?"] {
            assert!(key_expressions(pattern).unwrap().is_empty(), "{pattern}");
        }
    }

    #[test]
    fn the_first_rule_that_names_a_topic_holds() {
        let other = Rule {
            ports: Some((5_000, 5_000)),
            ..rule(Class::Control, "/a")
        };
        let all = overwrites(&[other, rule(Class::Control, "/pose"), rule(Class::Bulk, "/*")]).unwrap();
        let of_rules: Vec<(usize, To)> = all[3..].iter().map(|one| (one.keys.len(), one.to)).collect();
        assert_eq!(
            of_rules,
            [
                (2, To::Aside),
                (2, To::Priority(DATA_LOW)),
                (1, To::Priority(REAL_TIME))
            ]
        );
        assert!(all[..3]
            .iter()
            .all(|one| one.unset && !one.requests && one.keys.is_empty()));
        assert!(all[3..].iter().all(|one| !one.unset));
    }

    #[test]
    fn a_pattern_with_too_many_stars_is_told() {
        let many = "/a*b*c*d*e*f*g*h";
        assert_eq!(
            overwrites(&[rule(Class::Bulk, "/pose"), rule(Class::Bulk, many)]),
            Err(1)
        );
        assert_eq!(key_expressions("/a*b*c*d*e*f*g").unwrap().len(), 64);
    }

    #[test]
    fn the_links_carry_each_priority_once() {
        let mut carried: Vec<u8> = Link::ALL
            .iter()
            .flat_map(|link| link.priorities().0..=link.priorities().1)
            .collect();
        carried.sort_unstable();
        assert_eq!(carried, (0..=7).collect::<Vec<u8>>());
        for (priority, link) in [
            (REAL_TIME, Link::Control),
            (INTERACTIVE_HIGH, Link::Control),
            (DATA, Link::Ordinary),
            (DATA_LOW, Link::Bulk),
        ] {
            let (first, last) = link.priorities();
            assert!((first..=last).contains(&priority), "{priority}");
        }
    }

    proptest! {
        /// Whatever pieces a connection's bytes arrive in, batches are counted once they are complete.
        #[test]
        fn batches_are_counted_wherever_they_are_cut(
            lengths in prop::collection::vec(0usize..600, 0..6),
            cuts in prop::collection::vec(1usize..300, 1..40),
        ) {
            let mut bytes = Vec::new();
            let mut ends = Vec::new();
            for length in lengths {
                bytes.extend((length as u16).to_le_bytes());
                bytes.resize(bytes.len() + length, 1);
                ends.push(bytes.len());
            }
            let (mut batches, mut at) = (Batches::default(), 0);
            for cut in cuts.into_iter().cycle() {
                let next = (at + cut).min(bytes.len());
                batches.add(&bytes[at..next]);
                at = next;
                prop_assert_eq!(batches.whole() as usize, ends.iter().filter(|end| **end <= at).count());
                if at == bytes.len() {
                    break;
                }
            }
        }

        /// A pattern matches a topic of ROS 2 over Zenoh exactly if it matches that topic over DDS.
        #[test]
        fn patterns_mean_the_same_over_dds(
            pattern in "/[ab]{0,2}(\\*[ab/]{0,2}){0,4}",
            name in "[ab]{1,3}(/[ab]{1,2}){0,3}",
        ) {
            let over_dds = crate::protect::is_match(&pattern, &format!("rt/{name}"));
            prop_assert_eq!(matches(&pattern, &name), over_dds);
        }
    }
}
