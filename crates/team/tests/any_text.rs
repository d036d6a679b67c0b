//! No text makes the reader panic, and every team that it returns is consistent.

#![allow(clippy::unwrap_used)] // a test may fail by panicking

use coorp_team::parse;
use proptest::prelude::*;
use std::path::Path;

/// Parses a text; if it is accepted, it must pass the checks for teams built in code.
fn read(text: &str) -> bool {
    match parse(text, "team.toml", Path::new("/nowhere")) {
        Ok(team) => {
            assert_eq!(team.check(), Ok(()), "{text}");
            true
        }
        Err(error) => {
            assert!(error.problems() > 0);
            let shown = error.to_string();
            assert!(shown.contains("error: ") && shown.len() < 200_000, "{shown}");
            false
        }
    }
}

/// Generates values of every kind, some of which are valid for some key.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "true",
            "false",
            "nan",
            "-inf",
            "1e400",
            "[]",
            "{}",
            "[1.5, -2]",
            "[[0, 1], [2, 3]]",
            "1979-05-27",
            "''",
            "\"1ms\"",
            "\"20ms\"",
            "\"33ms\"",
            "\"5s\"",
            "\"-3us\"",
            "\"0.25us\"",
            "\"12KiB\"",
            "\"1B\"",
            "\"alpha\"",
            "[\"alpha\"]",
            "[\"bravo\", \"alpha\", \"bravo\"]",
            "\"wlan1\"",
            "\"bravo\"",
            "\"AC_VI\"",
            "\"AC_BE\"",
            "\"udp\"",
            "\"tcp\"",
            "\"SSP\"",
            "\"ASP\"",
            "\"ideal\"",
            "\"mt7612u\"",
            "\"802.11n\"",
            "\"802.11ac\"",
            "\"802.11ax\"",
            "\"../x.toml\"",
            "\"5000-5010\"",
            "\"10.0.0.7\"",
            "\"EF\"",
        ])
        .prop_map(str::to_owned),
        prop::sample::select(vec![
            0, 1, 2, 3, 4, 7, 9, 11, 15, 20, 31, 36, 40, 80, 100, 400, 800, 1_023, 1_600
        ])
        .prop_map(|number: i64| number.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        (0.0..1.0).prop_map(|number: f64| format!("{number:?}")),
        any::<f64>().prop_map(|number| format!("{number:e}")),
    ]
}

/// A table and its known keys.
const TABLES: [(&str, &[&str]); 12] = [
    (
        "[[robot]]",
        &[
            "leader",
            "position_m",
            "waypoints_m",
            "speed_mps",
            "mcs",
            "streams",
            "snr_db",
            "loss",
            "training",
            "phase",
            "clock_skew",
        ],
    ),
    (
        "[air]",
        &[
            "standard",
            "channel",
            "width_mhz",
            "streams",
            "guard_interval_ns",
            "mcs",
            "snr_db",
            "loss",
            "rts_cts",
            "control_rate_mbps",
            "direct",
            "access_point",
            "eifs",
            "block_ack_request",
            "tx_power_dbm",
            "noise_dbm",
            "path_loss_exponent",
            "wnic",
        ],
    ),
    (
        "[air.ac_vo]",
        &["aifsn", "cw_min", "cw_max", "txop", "ampdu_frames", "ampdu_bytes"],
    ),
    (
        "[air.ac_be]",
        &["aifsn", "cw_min", "cw_max", "txop", "ampdu_frames", "ampdu_bytes"],
    ),
    ("[[air.link]]", &["from", "to", "mcs", "streams", "snr_db", "loss"]),
    (
        "[[interface]]",
        &["channel", "width_mhz", "standard", "mcs", "streams", "robots", "link"],
    ),
    (
        "[[event]]",
        &[
            "until",
            "from",
            "to",
            "mcs",
            "streams",
            "loss",
            "partition",
            "death",
            "interface",
        ],
    ),
    (
        "[control]",
        &[
            "period",
            "rate_hz",
            "bound",
            "perception",
            "command",
            "jitter",
            "stack_delay",
            "inference",
            "inference_spread",
            "jitter_shape",
            "overlap",
            "synchronised",
        ],
    ),
    (
        "[learning]",
        &[
            "parameters",
            "bytes_per_parameter",
            "sync",
            "staleness",
            "batch_loops",
            "rounds",
            "training",
            "training_spread",
            "item",
        ],
    ),
    (
        "[[flow]]",
        &[
            "ac",
            "transport",
            "size",
            "period",
            "jitter",
            "saturated",
            "start",
            "stop",
            "bulk",
            "bound",
        ],
    ),
    (
        "[policy]",
        &[
            "limit",
            "slice",
            "lease",
            "accuracy",
            "extension",
            "protection_percentile",
            "protection_percentile_max",
            "completions",
            "scheduling_delay",
            "completion_samples",
            "completions_stale",
            "backlog_max",
            "early_release",
            "command_windows",
            "shared_windows",
            "steered_phases",
            "turns",
        ],
    ),
    (
        "[[protect]]",
        &[
            "protocol",
            "port",
            "ports",
            "to",
            "dscp",
            "topic",
            "executable",
            "cgroup",
        ],
    ),
];

/// Generates tables with some of their keys and with values that may or may not be valid, after two valid robots.
fn plausible() -> impl Strategy<Value = String> {
    let line = (0..TABLES.len(), any::<prop::sample::Index>(), value());
    prop::collection::vec(line, 0..6).prop_map(|lines| {
        let mut text = String::from("[[robot]]\nname = \"alpha\"\nleader = true\n[[robot]]\nname = \"bravo\"\n");
        let mut at = usize::MAX;
        let mut lines = lines;
        lines.sort_by_key(|(table, ..)| *table);
        for (index, (table, key, value)) in lines.iter().enumerate() {
            let Some((title, keys)) = TABLES.get(*table) else {
                continue;
            };
            if at != *table {
                at = *table;
                text += &format!("{title}\n");
                text += match *title {
                    "[[flow]]" => "name = \"f\"\nfrom = \"alpha\"\nto = \"bravo\"\n",
                    "[[robot]]" => "name = \"charlie\"\n",
                    "[[event]]" => "at = \"1ms\"\n",
                    "[[protect]]" => "as = \"bulk\"\n",
                    _ => "",
                };
            }
            // Mostly each key once, so that most texts are valid TOML.
            let key = keys[(key.index(keys.len()) + index) % keys.len()];
            text += &format!("{key} = {value}\n");
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_characters(text in ".{0,200}") {
        read(&text);
    }

    #[test]
    fn any_toml_characters(text in "[\\[\\]a-z_=\"'.,{}# \n\r\t0-9\u{0}\u{7f}é🤖-]{0,120}") {
        read(&text);
    }

    #[test]
    fn plausible_teams(text in plausible()) {
        read(&text);
    }

    #[test]
    fn a_valid_file_with_one_part_exchanged(
        from in any::<prop::sample::Index>(), cut in 0..12usize, put in "[ -~\n]{0,12}"
    ) {
        let text = include_str!("../../../examples/warehouse.toml");
        let start = from.index(text.len());
        let end = (start + cut).min(text.len());
        if text.is_char_boundary(start) && text.is_char_boundary(end) {
            read(&format!("{}{put}{}", &text[..start], &text[end..]));
        }
    }
}

#[test]
fn the_plausible_are_often_accepted() {
    use proptest::strategy::ValueTree;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let accepted = (0..500)
        .filter(|_| read(&plausible().new_tree(&mut runner).unwrap().current()))
        .count();
    assert!(
        (25..475).contains(&accepted),
        "{accepted} of 500: the property would test one side only"
    );
}
