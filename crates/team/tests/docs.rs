//! The format's page stays accurate: its samples are valid, and it lists every key that the reader knows.
#![allow(clippy::unwrap_used)] // a test may fail by panicking

use std::path::Path;

const PAGE: &str = include_str!("../../../docs/team-file.md");

/// Returns the page's samples: a whole file, then parts of others.
fn samples() -> Vec<&'static str> {
    let samples = PAGE.split("```toml\n").skip(1);
    samples.map(|sample| sample.split("```").next().unwrap()).collect()
}

#[test]
fn the_samples_are_valid() {
    let read = |text: &str| coorp_team::parse(text, "sample.toml", Path::new("")).unwrap_or_else(|why| panic!("{why}"));
    let samples = samples();
    let (whole, parts) = samples.split_first().unwrap();
    assert_eq!(read(whole).robots.len(), 2);
    for part in parts {
        let team = read(&format!("{whole}{part}"));
        assert!(team != read(whole), "{part}");
    }
}

#[test]
fn every_key_is_on_the_page() {
    // For an unknown key unlike any other, the reader lists the table's known keys.
    let robots = "[[robot]]\nname = \"a\"\nleader = true\n[[robot]]\nname = \"b\"\n";
    let tables = [
        "[[robot]]\n",
        "[air]\n",
        "[air.ac_vo]\n",
        "[[air.link]]\nmcs = 1\n",
        "[[interface]]\nchannel = 100\n",
        "[[event]]\nat = \"1s\"\nloss = 0.1\n",
        "[control]\n",
        "[learning]\n",
        "[[flow]]\n",
        "[policy]\n",
        "[live]\n",
        "[[protect]]\nas = \"bulk\"\n",
        "[[place]]\nname = \"c\"\n",
    ];
    for table in tables {
        let shown = coorp_team::parse(&format!("{robots}{table}qqqqqqqq = 1\n"), "t.toml", Path::new(""));
        let shown = shown.unwrap_err().to_string();
        let (_, known) = shown.split_once(" knows ").unwrap_or_else(|| panic!("{shown}"));
        for key in known.lines().next().unwrap().split(", ") {
            // [[air.link]] is listed in [air] under its own title.
            let written = if key == "link" {
                "`[[air.link]]`".to_owned()
            } else {
                format!("`{key}`")
            };
            let table = format!("`[air.{key}]`");
            assert!(
                PAGE.contains(&written) || PAGE.contains(&table),
                "{key} of {table} is not on the page"
            );
        }
    }
}
