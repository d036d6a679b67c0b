//! A layout for Foxglove: what the page shows of a team, as plots, state transitions and a log.
//!
//! A layout names robots, so each team has its own. `examples/foxglove.json` is that of `examples/navigation.toml`.

use coorp_team::Team;
use serde_json::{json, Value};

/// How many robots it shows, in the team file's order; others can be added by hand.
const ROBOTS_MAX: usize = 16;
/// How much time plots show, and states, which change faster; seconds.
const PLOTS_S: u32 = 20;
const STATES_S: u32 = 3;

/// Panels by the name that the arrangement below has for them. `RosOut` is Foxglove's name of the log.
const REACTION: &str = "Plot!reaction";
const AGES: &str = "Plot!ages";
const BULK: &str = "Plot!bulk";
const STATES: &str = "StateTransitions!states";
const ALARMS: &str = "RosOut!alarms";

/// A team's layout, as Foxglove imports it.
pub fn layout(team: &Team) -> String {
    let robots = || team.robots.iter().take(ROBOTS_MAX).map(|robot| robot.name.as_str());
    let of_each = |topic: &str, field: &str, lines: bool| -> Vec<Value> {
        let path = |name: &str| series(&of(topic, name, field), name, lines);
        robots().map(path).collect()
    };
    let mut reaction = of_each("/coorp/loops", "reaction_ms", false);
    if let Some(control) = &team.control {
        let bound_ms = control.bound.as_millis_f64();
        reaction.push(series(&bound_ms.to_string(), "bound", true));
    }
    let states = [
        ("permits", "event", "permit"),
        ("window", "open", "window"),
        ("gate", "open", "gate open"),
    ];
    let states: Vec<Value> = robots()
        .flat_map(|name| {
            states.map(|(topic, field, label)| {
                let path = of(&format!("/coorp/{topic}"), name, field);
                json!({"value": path, "label": format!("{name} {label}"), "enabled": true, "timestampMethod": "receiveTime"})
            })
        })
        .collect();
    let panels = json!({
        REACTION: plot("Reaction time, ms", reaction),
        AGES: plot("Age of control, ms", of_each("/coorp/ages", "age_ms", false)),
        BULK: plot("Bulk sent, Mbit/s", of_each("/coorp/bulk", "sent_mbps", true)),
        STATES: titled("Permits, windows, gates", json!({"paths": states, "isSynced": false, "xAxisRange": STATES_S})),
        ALARMS: titled("Alarms", json!({
            "topicToRender": "/coorp/alarms", "minLogLevel": 1, "searchTerms": [], "nameFilter": {},
        })),
    });
    let arrangement = json!({
        "direction": "row",
        "splitPercentage": 50,
        "first": {
            "direction": "column", "splitPercentage": 34, "first": REACTION,
            "second": {"direction": "column", "first": AGES, "second": BULK},
        },
        "second": {"direction": "column", "splitPercentage": 76, "first": STATES, "second": ALARMS},
    });
    let layout = json!({
        "configById": panels, "globalVariables": {}, "userNodes": {}, "playbackConfig": {"speed": 1},
        "layout": arrangement,
    });
    format!("{layout:#}\n")
}

/// The path of a robot's messages.
fn of(topic: &str, robot: &str, field: &str) -> String {
    format!("{topic}{{robot==\"{robot}\"}}.{field}")
}

fn series(path: &str, label: &str, lines: bool) -> Value {
    json!({"value": path, "label": label, "enabled": true, "timestampMethod": "receiveTime", "showLine": lines})
}

fn plot(title: &str, paths: Vec<Value>) -> Value {
    titled(
        title,
        json!({
            "paths": paths, "minYValue": 0, "showLegend": false, "legendDisplay": "floating", "showPlotValuesInLegend": false,
            "showXAxisLabels": true, "showYAxisLabels": true, "isSynced": true, "xAxisVal": "timestamp",
            "followingViewWidth": PLOTS_S, "sidebarDimension": 240,
        }),
    )
}

/// A panel with a title, for Foxglove and for Lichtblick, which has another name for it.
fn titled(title: &str, mut panel: Value) -> Value {
    for name in ["foxglovePanelTitle", "lichtblickPanelTitle"] {
        panel[name] = title.into();
    }
    panel
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::web::stream::Channel;

    fn example(name: &str) -> std::path::PathBuf {
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).join(name)
    }

    /// `COORP_WRITE=1 cargo test -p coorp-cli the_example_is_a_layout` writes it.
    #[test]
    fn the_example_is_a_layout_of_the_example_team() {
        let team = coorp_team::load(&example("navigation.toml")).unwrap();
        let layout = layout(&team);
        if std::env::var_os("COORP_WRITE").is_some() {
            std::fs::write(example("foxglove.json"), &layout).unwrap();
        }
        assert_eq!(std::fs::read_to_string(example("foxglove.json")).unwrap(), layout);
    }

    #[test]
    fn each_path_leads_to_a_field_of_a_channel() {
        let team = coorp_team::load(&example("navigation.toml")).unwrap();
        let layout: Value = serde_json::from_str(&layout(&team)).unwrap();
        let mut paths = 0;
        for panel in layout["configById"].as_object().unwrap().values() {
            for path in panel["paths"].as_array().into_iter().flatten() {
                let path = path["value"].as_str().unwrap();
                let Some((topic, rest)) = path.split_once('{') else {
                    assert_eq!(path, "33", "the bound");
                    continue;
                };
                let field = rest.split("}.").nth(1).unwrap();
                let channel = Channel::all().find(|channel| channel.topic() == topic).unwrap();
                assert!(channel.schema()["properties"].get(field).is_some(), "{path}");
                paths += 1;
            }
        }
        assert_eq!(paths, 6 * team.robots.len());
    }
}
