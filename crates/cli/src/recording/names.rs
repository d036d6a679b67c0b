//! The name of a topic in a team file, whose names are shorter than topics and contain no `/`.
//!
//! A name depends only on its topic, so that `coorp sim --replay` finds the topic of a flow named by `coorp import`.

use std::path::Path;

const NAME_CHARS_MAX: usize = 64;
/// A dash and eight digits.
const TAIL_CHARS: usize = 9;

/// `/robot_1/cmd_vel` becomes `robot_1.cmd_vel`. If that is not unique, eight digits at the end distinguish such
/// topics.
pub fn flow_name(topic: &str) -> String {
    let path = topic.strip_prefix('/').unwrap_or(topic);
    let name: String = path.chars().map(|c| if c == '/' { '.' } else { fit(c) }).collect();
    let exact = name
        .chars()
        .zip(path.chars())
        .all(|(ours, theirs)| ours == theirs || theirs == '/');
    if exact && !path.contains('.') && !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX {
        name
    } else {
        marked(&name, topic)
    }
}

/// Returns the names that `coorp import` may have given to this topic: the second one if another topic has the first.
pub fn flow_names(topic: &str) -> [String; 2] {
    let name = flow_name(topic);
    let second = marked(&name, topic);
    [name, second]
}

/// Returns a team's name from the path of its recording.
pub fn team_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name: String = stem.chars().take(NAME_CHARS_MAX).map(fit).collect();
    if name.is_empty() {
        "recording".to_owned()
    } else {
        name
    }
}

fn fit(c: char) -> char {
    if c.is_alphanumeric() || matches!(c, '-' | '_' | '.') {
        c
    } else {
        '_'
    }
}

fn marked(name: &str, topic: &str) -> String {
    let kept: String = name.chars().take(NAME_CHARS_MAX - TAIL_CHARS).collect();
    format!("{kept}-{:08x}", hash(topic))
}

/// FNV-1a, 32 bits.
fn hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_topics_as_far_as_a_team_file_allows() {
        assert_eq!(flow_name("/robot_1/cmd_vel"), "robot_1.cmd_vel");
        assert_eq!(flow_name("odom"), "odom");
        assert_eq!(flow_name("/größe/x-y"), "größe.x-y");
    }

    #[test]
    fn what_does_not_fit_is_told_apart() {
        let long = "/a".repeat(50);
        let names = ["/a b", "/a_b ", "/a.b", "", "/", &long, &format!("{long}a"), "/\n\"/x"].map(flow_name);
        for (place, name) in names.iter().enumerate() {
            assert!(!names[..place].contains(name), "{name}");
            let length = name.chars().count();
            assert!((1..=64).contains(&length), "{name}");
            assert!(name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c)), "{name}");
        }
        assert_eq!(flow_name("/a b"), flow_name("/a b"));
    }

    #[test]
    fn a_team_is_called_like_its_recording() {
        assert_eq!(team_name(Path::new("a/my run.mcap")), "my_run");
        assert_eq!(team_name(Path::new("/")), "recording");
    }
}
