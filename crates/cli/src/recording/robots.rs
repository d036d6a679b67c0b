//! The robots in a recording, by the namespaces of its topics: `/robot_1/odom` belongs to `robot_1`.
//!
//! A namespace is a robot if another one next to it has the same topic, and one of two conditions holds. Either only
//! whole robots have that topic (odometry, pose, velocity command, …), or both namespaces are a name and a number. So
//! the two costmaps of a navigation stack are not robots, nor are the four lenses of a depth camera. Without two of a
//! kind, everything belongs to one robot. This is a guess, and the written file says how to correct it.

use std::collections::{BTreeMap, BTreeSet};

use super::names::flow_name;

/// Last parts of topics that a robot has once.
const OF_A_ROBOT: [&str; 15] = [
    "odom",
    "odometry",
    "pose",
    "amcl_pose",
    "cmd_vel",
    "scan",
    "joint_states",
    "imu",
    "battery_state",
    "battery",
    "robot_description",
    "tf",
    "velocity",
    "twist",
    "state",
];
/// Name parts of devices of which a robot may have several.
const OF_A_PART: [&str; 22] = [
    "cam",
    "lidar",
    "laser",
    "radar",
    "scan",
    "imu",
    "gps",
    "gnss",
    "sonar",
    "stereo",
    "depth",
    "color",
    "infra",
    "rgb",
    "wheel",
    "motor",
    "arm",
    "gripper",
    "joint",
    "leg",
    "controller",
    "costmap",
];
/// Topics of the whole system, outside of every namespace.
const OF_ALL: [&str; 6] = ["rosout", "tf", "tf_static", "clock", "parameter_events", "diagnostics"];

/// Robots by namespace.
#[derive(Debug)]
pub struct Robots {
    /// Namespaces, without the surrounding `/`, and the robots' names. Empty if all topics belong to one robot.
    namespaces: BTreeMap<String, String>,
}

impl Robots {
    /// Returns the robots in these topics.
    pub fn of(topics: &[&str]) -> Robots {
        let found = (0..2)
            .map(|depth| several(topics, depth))
            .find(|found| !found.is_empty())
            .or_else(|| Some(BTreeSet::from([only(topics)?])))
            .unwrap_or_default();
        let name = |namespace: String| {
            let name = flow_name(&namespace);
            (namespace, name)
        };
        Robots {
            namespaces: found.into_iter().map(name).collect(),
        }
    }

    /// Returns the robots' names; empty if no namespace distinguishes robots.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.namespaces.values().map(String::as_str)
    }

    /// Returns the robot of a topic, if its namespace tells.
    pub fn robot(&self, topic: &str) -> Option<&str> {
        let topic = topic.trim_start_matches('/');
        let ends = topic.match_indices('/').map(|(at, _)| at).take(2);
        let mut namespaces = ends.filter_map(|end| self.namespaces.get(topic.get(..end)?));
        namespaces.next().map(String::as_str)
    }
}

/// Returns the robots, if the namespace level below `depth` levels distinguishes several.
fn several(topics: &[&str], depth: usize) -> BTreeSet<String> {
    // By the levels above and the topic below: the namespaces that have such a topic.
    let mut owners: BTreeMap<(String, String), BTreeSet<&str>> = BTreeMap::new();
    for topic in topics {
        let levels: Vec<&str> = topic.split('/').filter(|level| !level.is_empty()).collect();
        let (Some(name), Some(below)) = (levels.get(depth), levels.get(depth + 1..)) else {
            continue;
        };
        let whole = levels.iter().take(depth + 1).all(|level| !is_part(level));
        if whole && !below.is_empty() {
            let above = levels[..depth].join("/");
            owners.entry((above, below.join("/"))).or_default().insert(name);
        }
    }
    let mut found = BTreeSet::new();
    for ((above, below), names) in owners {
        let last = below.rsplit('/').next().unwrap_or_default();
        let of_a_robot = OF_A_ROBOT.contains(&last);
        let alike = |name: &&str| {
            let others = names.iter().filter(|other| other != &name);
            of_a_robot && names.len() > 1 || others.into_iter().any(|other| numbered(name, other))
        };
        let whole = |name: &&str| {
            if above.is_empty() {
                (*name).to_owned()
            } else {
                format!("{above}/{name}")
            }
        };
        found.extend(names.iter().filter(|name| alike(name)).map(whole));
    }
    found
}

/// Returns the only namespace of all topics, ignoring those of the system.
fn only(topics: &[&str]) -> Option<String> {
    let mut namespaces = BTreeSet::new();
    for topic in topics.iter().map(|topic| topic.trim_start_matches('/')) {
        match topic.split_once('/') {
            Some((namespace, _)) => namespaces.insert(namespace),
            None if OF_ALL.contains(&topic) => false,
            None => return None,
        };
    }
    let namespace = *namespaces.first()?;
    (namespaces.len() == 1 && !is_part(namespace)).then(|| namespace.to_owned())
}

/// Returns whether both are the same name with different numbers: `robot_1` and `robot_2`.
fn numbered(one: &str, other: &str) -> bool {
    let stem = |name: &str| name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (ours, theirs) = (stem(one), stem(other));
    ours > 0 && ours < one.len() && theirs < other.len() && one[..ours] == other[..theirs]
}

fn is_part(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    // "swarm1" is not an arm.
    let words = name.split(|c: char| !c.is_ascii_alphabetic());
    let mut words = words.filter(|word| !word.is_empty());
    words.any(|word| {
        OF_A_PART
            .iter()
            .any(|part| word == *part || (part.len() > 3 && word.contains(part)) || word == "camera")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(topics: &[&str]) -> Vec<String> {
        Robots::of(topics).names().map(str::to_owned).collect()
    }

    #[test]
    fn robots_are_told_by_what_only_a_robot_has_or_by_their_numbers() {
        assert_eq!(names(&["/alice/odom", "/bob/odom", "/rosout"]), ["alice", "bob"]);
        assert_eq!(names(&["/uav1/points", "/uav2/points"]), ["uav1", "uav2"]);
        assert_eq!(names(&["/fleet/r1/odom", "/fleet/r2/odom"]), ["fleet.r1", "fleet.r2"]);
        assert_eq!(names(&["robot_0/pose", "robot_1/pose"]), ["robot_0", "robot_1"]);
        assert_eq!(names(&["/swarm1/x", "/swarm2/x"]), ["swarm1", "swarm2"]);
    }

    #[test]
    fn parts_of_one_robot_are_no_robots() {
        for topics in [
            &["/local_costmap/costmap", "/global_costmap/costmap", "/odom"][..],
            &["/camera/color/image_raw", "/camera/depth/image_raw", "/cmd_vel"],
            &["/camera1/image_raw", "/camera2/image_raw", "/scan"],
            &[
                "/planner_server/transition_event",
                "/controller_server/transition_event",
            ],
            &["/odom", "/scan"],
            &["", "/", "//", "no topic"],
            &["/camera/color/image_raw", "/camera/depth/image_raw"],
        ] {
            assert!(names(topics).is_empty(), "{topics:?}: {:?}", names(topics));
        }
    }

    #[test]
    fn one_namespace_around_everything_is_a_robot() {
        assert_eq!(names(&["/tb3/odom", "/tb3/camera/image", "/tf", "/rosout"]), ["tb3"]);
        assert!(names(&["/tb3/odom", "/map"]).is_empty());
    }

    #[test]
    fn topics_outside_of_the_namespaces_are_nobodys() {
        let robots = Robots::of(&["/fleet/r1/odom", "/fleet/r2/odom", "/map"]);
        assert_eq!(robots.robot("/fleet/r1/camera/image"), Some("fleet.r1"));
        for topic in ["/fleet/r3/odom", "/fleet/r1", "/map", "", "/é/é/é"] {
            assert_eq!(robots.robot(topic), None, "{topic}");
        }
    }
}
