//! `coorp sim --replay`: a team's periodic flows send at the times and sizes of their topics in a recording.
//!
//! A flow's topic is the one that `coorp import` would give this name. The first recorded message of such a topic is
//! the start of the run (or of the flow, if it has a `start`). A run that outlasts the recording repeats it, all topics
//! together, so that their relative phases stay the same. Left out: flows without a topic, saturated flows and the
//! control loop behave as the team file describes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use coorp_core::Duration;
use coorp_team::{Recorded, Team, Traffic};

use crate::failure::Failure;
use crate::recording;

/// Maximum number of replayed messages: some 256 MB of memory.
const MESSAGES_MAX: u64 = 16_000_000;
/// Maximum number of a recording's topics named in a message.
const NAMED_MAX: usize = 5;

/// Puts the recording at `path` into `team`'s flows. Returns notes about it.
///
/// # Errors
/// The recording cannot be used, or none of its topics has a flow.
pub fn into_team(team: &mut Team, file: &Path, path: &Path) -> Result<Vec<String>, Failure> {
    let flows = team.flows.iter().enumerate();
    let periodic = flows.filter(|(_, flow)| matches!(flow.traffic, Traffic::Periodic { .. }));
    let places: HashMap<String, usize> = periodic.map(|(place, flow)| (flow.name.clone(), place)).collect();
    let mut heard: HashMap<String, Option<usize>> = HashMap::new();
    let mut messages: Vec<Vec<(u64, u64)>> = vec![Vec::new(); team.flows.len()];
    let mut count = 0u64;
    let mut notes = recording::read(path, &mut |message| {
        let place = match heard.get(message.topic) {
            Some(place) => *place,
            None => {
                let names = recording::flow_names(message.topic);
                let place = names.iter().find_map(|name| places.get(name).copied());
                heard.insert(message.topic.to_owned(), place);
                place
            }
        };
        if let Some(messages) = place.and_then(|place| messages.get_mut(place)) {
            count += 1;
            if count <= MESSAGES_MAX {
                messages.push((message.at_ns, message.bytes));
            }
        }
    })?;
    if count == 0 {
        return Err(Failure::Input(nothing(file, path, heard.into_keys().collect())));
    }
    if count > MESSAGES_MAX {
        return Err(Failure::Input(format!(
            "error: {} has more than {MESSAGES_MAX} messages for the flows of {}; replay a part of it, or fewer flows",
            path.display(),
            file.display()
        )));
    }
    let length = assign(team, &messages).map_err(|why| Failure::Input(format!("error: {}: {why}", path.display())))?;
    let replayed = team.flows.iter().filter(|flow| flow.recorded.is_some()).count();
    notes.push(format!(
        "{replayed} of {} flows replay {}, which repeats every {:.1} s",
        team.flows.len(),
        path.display(),
        length.as_secs_f64()
    ));
    Ok(notes)
}

/// Gives each flow its messages, all with the same start and length, and returns that length.
fn assign(team: &mut Team, messages: &[Vec<(u64, u64)>]) -> Result<Duration, String> {
    let times = || messages.iter().flatten().map(|(at_ns, _)| *at_ns);
    let (first, last) = (times().min().unwrap_or(0), times().max().unwrap_or(0));
    // After the last message, the gap of the most frequent flow, as it would have continued.
    let gap = |messages: &Vec<(u64, u64)>| {
        let from = messages.iter().map(|(at_ns, _)| at_ns).min()?;
        let to = messages.iter().map(|(at_ns, _)| at_ns).max()?;
        let gaps = (messages.len() as u64).checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some((to - from) / gaps)
    };
    // Messages at a single instant, or a single message, repeat once a second.
    let gap = messages.iter().filter_map(gap).filter(|gap| *gap > 0).min();
    let length = Duration::from_nanos((last - first).saturating_add(gap.unwrap_or(1_000_000_000)));
    for (flow, messages) in team.flows.iter_mut().zip(messages) {
        if !messages.is_empty() {
            let since = |(at_ns, bytes): &(u64, u64)| (Duration::from_nanos(at_ns - first), (*bytes).max(1));
            let recorded = Recorded::new(messages.iter().map(since).collect(), length)?;
            flow.recorded = Some(Arc::new(recorded));
        }
    }
    Ok(length)
}

fn nothing(file: &Path, path: &Path, mut topics: Vec<String>) -> String {
    topics.sort_unstable();
    let more = if topics.len() > NAMED_MAX { ", …" } else { "" };
    let named: Vec<String> = topics
        .iter()
        .take(NAMED_MAX)
        .map(|topic| recording::flow_name(topic))
        .collect();
    format!(
        "error: no periodic flow of {} is named after a topic of {}, which has {}{more}; 'coorp import {}' writes a team \
         with such flows",
        file.display(),
        path.display(),
        named.join(", "),
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn team() -> Team {
        let flow = |name: &str| {
            format!("[[flow]]\nname = \"{name}\"\nfrom = \"b\"\nto = \"a\"\nsize = 10\nperiod = \"10ms\"\n")
        };
        let robots = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n";
        let text = format!("{robots}{}{}{}", flow("one"), flow("two"), flow("three"));
        coorp_team::parse(&text, "t.toml", Path::new(".")).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn flows_share_the_beginning_and_the_length() {
        let mut team = team();
        let ms = |ms: u64| 7_000_000_000 + ms * 1_000_000;
        let one = vec![(ms(20), 5), (ms(0), 0), (ms(10), 5)];
        let length = assign(&mut team, &[one, vec![(ms(15), 9)], Vec::new()]).unwrap();
        assert_eq!(length, Duration::from_millis(30));
        let [one, two, three] = [0, 1, 2].map(|place: usize| team.flows[place].recorded.clone());
        let one = one.unwrap();
        assert_eq!(
            one.message(0),
            (Duration::ZERO, 1),
            "nothing is a message of one byte on the air"
        );
        assert_eq!(one.message(3).0, Duration::from_millis(30));
        assert_eq!(two.unwrap().message(1), (Duration::from_millis(45), 9));
        assert!(three.is_none());
    }

    #[test]
    fn a_message_alone_does_not_come_without_end() {
        let mut team = team();
        let length = assign(&mut team, &[vec![(5, 1), (5, 1)], Vec::new(), Vec::new()]).unwrap();
        assert_eq!(length, Duration::from_secs(1));
    }
}
