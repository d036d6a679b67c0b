//! The command from the view of users and scripts: output, files, exit codes.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{coorp, text, Folder};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

fn example(name: &str) -> String {
    format!("{EXAMPLES}/{name}.toml")
}

/// Returns the JSON of a short run, without the values from the wall clock.
fn json_of(folder: &Folder, name: &str, more: &[&str]) -> serde_json::Value {
    let path = folder.path(name);
    let file = example("navigation");
    let mut arguments = vec!["sim", &file, "--duration", "2s", "--quiet", "--json", &path];
    arguments.extend(more);
    let output = coorp(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for result in json["results"].as_array_mut().unwrap() {
        assert!(result["wall_s"].is_number());
        result["wall_s"] = serde_json::Value::Null;
    }
    json
}

#[test]
fn a_run_gives_a_table_and_both_files() {
    let folder = Folder::new("files");
    let (file, json, html) = (
        example("navigation"),
        folder.path("out.json"),
        folder.path("report.html"),
    );
    // Long enough to collect the first batch, so that there is bulk.
    let policies = "mpc-only,bulk-only,edca";
    let output = coorp(&[
        "sim",
        &file,
        "--policy",
        policies,
        "--policy",
        "coorp",
        "--duration",
        "20s",
        "--seed",
        "3",
        "--json",
        &json,
        "--html",
        &html,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let rows: Vec<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let wanted = ["mpc-only", "bulk-only", "edca", "coorp"];
    assert!(rows.windows(4).any(|rows| rows == wanted), "{table}");
    assert!(table.contains("no epoch ended in 20s: use --duration 600s"), "{table}");
    assert!(!table.contains('\u{1b}'), "escape codes in a pipe");
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report["seed"], 3);
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 4);
    assert_eq!(results[1]["bulk_share"], 1.0, "bulk-only has all of its own throughput");
    assert!(results[0]["bulk_share"].is_null() && results[0]["violation_rate"].is_number());
    let page = fs::read_to_string(&html).unwrap();
    assert!(page.contains("--seed 3") && page.ends_with("</html>\n"));
    assert_eq!(
        fs::read_dir(&folder.0).unwrap().count(),
        2,
        "only the two files are left"
    );
}

#[test]
fn the_same_seed_gives_the_same_on_one_thread_and_on_many() {
    let folder = Folder::new("threads");
    let policies = ["--policy", "edca,coorp,mpc-only"];
    let one = json_of(&folder, "one.json", &[&policies[..], &["--threads", "1"]].concat());
    let many = json_of(&folder, "many.json", &[&policies[..], &["--threads", "8"]].concat());
    assert_eq!(one.to_string(), many.to_string());
    let other = json_of(&folder, "other.json", &[&policies[..], &["--seed", "2"]].concat());
    assert_ne!(
        one["results"].to_string(),
        other["results"].to_string(),
        "the seed has no effect"
    );
}

#[test]
fn a_policy_named_twice_runs_once() {
    let folder = Folder::new("twice");
    let json = json_of(
        &folder,
        "twice.json",
        &["--policy", "edca,edca", "--policy", "coorp,edca"],
    );
    let names: Vec<&str> = json["results"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|result| result["policy"].as_str())
        .collect();
    assert_eq!(names, ["edca", "coorp"]);
}

#[test]
fn the_long_help_says_what_the_policies_are() {
    let output = coorp(&["sim", "--help"]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    assert!(said.contains("schedwifi:") && said.contains("stock WiFi"), "{said}");
}

#[test]
fn a_policy_that_does_not_fit_leaves_the_others_their_results() {
    let folder = Folder::new("unfit");
    let (file, json, html) = (example("low"), folder.path("out.json"), folder.path("out.html"));
    let policies = "mpc-only,bulk-only,edca,schedwifi,coorp";
    let arguments = ["sim", &file, "--policy", policies, "--duration", "1s"];
    let output = coorp(&[&arguments[..], &["--quiet", "--json", &json, "--html", &html]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let row = table.lines().find(|line| line.starts_with("schedwifi")).unwrap();
    assert!(row.split_whitespace().skip(1).all(|cell| cell == "-"), "{row}");
    assert!(
        table.contains("'schedwifi' does not fit this team: ST windows"),
        "{table}"
    );
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let results = report["results"].as_array().unwrap();
    let names: Vec<&str> = results.iter().filter_map(|result| result["policy"].as_str()).collect();
    assert_eq!(names, ["mpc-only", "bulk-only", "edca", "coorp"]);
    assert!(fs::read_to_string(&html).unwrap().contains("does not fit this team"));

    let seeds = coorp(&[&arguments[..], &["--seeds", "2"]].concat());
    assert!(seeds.status.success(), "{}", text(&seeds.stderr));
    assert!(text(&seeds.stdout).contains("does not fit this team"));

    for more in [&[][..], &["--seeds", "2"]] {
        let alone = coorp(&[&["sim", &file, "--policy", "schedwifi", "--duration", "1s"], more].concat());
        assert_eq!(alone.status.code(), Some(2));
        assert!(text(&alone.stderr).contains("does not fit this team"));
    }
}

#[test]
fn without_policies_a_team_with_bulk_is_held_against_bulk_alone() {
    let output = coorp(&["sim", &example("navigation"), "--duration", "1s"]);
    let table = text(&output.stdout);
    for policy in ["mpc-only", "bulk-only", "edca", "coorp"] {
        assert!(table.lines().any(|line| line.starts_with(policy)), "{table}");
    }
    assert!(table.contains("bulk never started in 1s"), "{table}");
}

#[test]
fn flows_alone_get_a_table_of_flows() {
    let output = coorp(&["sim", &example("flows"), "--duration", "1s", "--policy", "edca"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("delivered") && !table.contains("violation"), "{table}");
}

#[test]
fn check_says_fine_in_one_line() {
    let output = coorp(&["check", &example("navigation")]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    assert!(
        said.contains("navigation.toml: valid: 5 robots") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn bad_input_exits_with_2_and_says_what_to_mend() {
    let folder = Folder::new("bad");
    let typo = folder.path("typo.toml");
    fs::write(
        &typo,
        fs::read_to_string(example("navigation"))
            .unwrap()
            .replace("[control]", "[contrl]"),
    )
    .unwrap();
    let good = example("navigation");
    let nowhere = folder.path("nowhere/out.json");
    let cases: &[(&[&str], &str)] = &[
        (&["check", &typo], "typo.toml:"),
        (&["sim", &typo], "control"),
        (&["sim", "no-such-team.toml"], "no-such-team.toml"),
        (&["sim", &good, "--policy", "edac"], "'edca'"),
        (&["sim", &good, "--duration", "600"], "600s"),
        (&["sim", &good, "--duration", "-1s"], "duration"),
        (&["sim", &good, "--json", &nowhere], "mkdir -p"),
        (&["sim", &good, "--html", EXAMPLES], "is a folder"),
        (&["sim", &good, "--seeds", "2", "--json", "x.json"], "leave out --seeds"),
        (&["sim", &good, "--threads", "0"], "threads"),
        (
            &["sim", &good, "--seed", "18446744073709551615", "--seeds", "2"],
            "largest seed",
        ),
        (&["plan", &example("flows")], "[control]"),
        (&["plan", &good, "--policy", "bulk-only"], "another policy"),
        (&["plan", &good, "--quantile", "95"], "0.95"),
        (&["plan", &good, "--bulk-min", "25"], "0.25"),
    ];
    for (arguments, mend) in cases {
        let output = coorp(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(mend), "{arguments:?} does not say {mend}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn one_name_for_two_files_is_refused() {
    let folder = Folder::new("same");
    let path = folder.path("out");
    let output = coorp(&["sim", &example("navigation"), "--json", &path, "--html", &path]);
    assert_eq!(output.status.code(), Some(2));
    assert!(!Path::new(&path).exists());
}

#[cfg(unix)]
#[test]
fn inputs_are_never_written_over() {
    let folder = Folder::new("inputs");
    let (team, card, link) = (folder.path("team.toml"), folder.path("card.toml"), folder.path("link"));
    let ideal = concat!(env!("CARGO_MANIFEST_DIR"), "/../team/profiles/ideal.toml");
    fs::copy(ideal, &card).unwrap();
    let text_of_team = fs::read_to_string(example("navigation"))
        .unwrap()
        .replace("\"mt7612u\"", "\"card.toml\"");
    fs::write(&team, &text_of_team).unwrap();
    std::os::unix::fs::symlink(&team, &link).unwrap();
    let round = folder.path("../") + &format!("{}/team.toml", folder.0.file_name().unwrap().to_str().unwrap());
    for (command, option, path, what) in [
        ("sim", "--json", &team, "it is the team file; give another path"),
        ("sim", "--html", &link, "it is the team file"),
        ("sim", "--json", &round, "it is the team file"),
        ("sim", "--html", &card, "it is the WNIC profile"),
        ("plan", "--json", &link, "it is the team file"),
        ("plan", "--json", &card, "it is the WNIC profile"),
    ] {
        let output = coorp(&[command, &team, option, path, "--duration", "1s"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{path}: {said}");
        assert!(said.contains(what), "{said}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(fs::read_to_string(&team).unwrap(), text_of_team);
    assert_eq!(fs::read(&card).unwrap(), fs::read(ideal).unwrap());
}

#[test]
fn a_dash_writes_json_on_stdout_and_no_table() {
    let output = coorp(&["sim", &example("flows"), "--duration", "1s", "--json", "-"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["results"].is_array());
    let both = coorp(&["sim", &example("flows"), "--json", "-", "--html", "-"]);
    assert_eq!(both.status.code(), Some(2));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_with_the_path() {
    let output = coorp(&["sim", &example("flows"), "--duration", "1s", "--json", "/dev/full"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(said.contains("/dev/full") && said.contains("disk is full"), "{said}");
    let table = text(&output.stdout);
    assert!(table.contains("delivered"), "the results are lost: {table}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_told_too() {
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let file = example("flows");
    let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
    let output = command
        .args(["check", &file])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("disk is full"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let file = example("flows");
    let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
    command
        .args(["sim", &file, "--duration", "1s", "--quiet"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn fault_runs_over_several_seeds_say_how_they_went() {
    let file = example("navigation");
    let output = coorp(&[
        "sim",
        &file,
        "--faults",
        "--seeds",
        "6",
        "--policy",
        "coorp",
        "--duration",
        "2s",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("coorp"));
    assert!(text(&output.stderr).contains("6 runs"));
}

#[test]
fn plan_marks_the_limit() {
    let folder = Folder::new("plan");
    let json = folder.path("plan.json");
    let output = coorp(&[
        "plan",
        &example("navigation"),
        "--duration",
        "1s",
        "--policy",
        "edca",
        "--json",
        &json,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("fit by simulation"));
    let plan: serde_json::Value = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
    let rows = plan["rows"].as_array().unwrap();
    assert!(
        rows.iter().any(|row| row["robots"] == 5),
        "the file's own size is always tried"
    );
    if let Some(limit) = plan["robots_max_simulated"].as_u64() {
        assert!(rows
            .iter()
            .all(|row| row["fits"] == true || row["robots"].as_u64() > Some(limit)));
    }
}

#[test]
fn plan_tells_how_many_interfaces_as_lee_counts_and_as_simulated() {
    let folder = Folder::new("paths");
    let team = folder.path("team.toml");
    let robots =
        "[[robot]]\nname = \"base\"\nleader = true\n[[robot]]\nname = \"drone\"\n[air]\nwidth_mhz = 20\nmcs = 0\n\
                  [control]\nrate_hz = 30\nperception = \"1KiB\"\n";
    fs::write(&team, robots).unwrap();
    let plan = |more: &[&str]| -> serde_json::Value {
        let fixed = [
            "plan",
            &team,
            "--paths",
            "--policy",
            "mpc-only",
            "--duration",
            "10s",
            "--quiet",
        ];
        let output = coorp(&[&fixed[..], &["--json", "-"], more].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let number = |plan: &serde_json::Value, of: &str| plan["interfaces"][0][of].as_f64().unwrap();
    let calm = plan(&[]);
    assert_eq!((number(&calm, "loss"), number(&calm, "failures")), (0.0, 0.0));
    assert!(calm["answers"]
        .as_array()
        .unwrap()
        .iter()
        .all(|answer| answer["simulated"] == 1));
    // What Lee says of losses of 0.2, 0.35 and 0.4 with one interface and two, at a target that Lee gives as a time between two
    // packets of which we know no more: 2.45 tries make all three true.
    let target = format!("{:.6}ms", 2.45 * number(&calm, "try_ms"));
    let lee = |loss: &str| {
        let found = plan(&["--loss", loss, "--target", &target]);
        assert!((number(&found, "loss") - loss.parse::<f64>().unwrap()).abs() < 1e-9);
        // The card's own repeats end sooner than the target in time, so less fails than is lost, and something does.
        let failures = number(&found, "failures");
        assert!(failures > 0.0 && failures < number(&found, "loss"), "{found}");
        let answers = found["answers"].as_array().unwrap();
        let counts = answers.iter().map(|answer| answer["lee"].as_u64().unwrap());
        counts.collect::<Vec<u64>>()
    };
    assert_eq!(lee("0.2"), [1, 1, 2], "'under 0.2, about 95 %'");
    assert_eq!(lee("0.35")[..2], [1, 2], "'0.35, only about 68 %'");
    assert_eq!(lee("0.4")[1], 2, "'0.4, most of the packets' with two");
    let output = coorp(&["plan", &example("two-links"), "--paths", "--duration", "2s", "--quiet"]);
    let said = text(&output.stdout);
    assert!(
        output.status.success() && said.contains("wlan1") && said.contains("40.0 %"),
        "{said}"
    );
    for (more, why) in [
        (&["--loss", "1"][..], "below 1"),
        (&["--quantile", "0.9"], "cannot be used"),
    ] {
        let output = coorp(&[&["plan", &team, "--paths"], more].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn plan_refuses_a_team_whose_bulk_starves() {
    let folder = Folder::new("starved");
    let team = folder.path("team.toml");
    // Batches so short that bulk starts within the run.
    let text_of_team = fs::read_to_string(example("navigation")).unwrap();
    fs::write(&team, text_of_team.replace("batch_loops = 300", "batch_loops = 30")).unwrap();
    let plan = |bulk_min: &str| -> (serde_json::Value, String) {
        let json = folder.path("plan.json");
        let output = coorp(&[
            "plan",
            &team,
            "--duration",
            "5s",
            "--quantile",
            "0.01",
            "--bulk-min",
            bulk_min,
            "--json",
            &json,
        ]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let plan = serde_json::from_str(&fs::read_to_string(&json).unwrap()).unwrap();
        (plan, text(&output.stdout))
    };
    let (strict, said) = plan("0.98");
    let (loose, _) = plan("0");
    let least = strict["bulk_mbps_min"].as_f64().unwrap();
    assert!(least > 0.0 && loose["bulk_mbps_min"].is_null());
    for row in strict["rows"].as_array().unwrap() {
        let enough = row["bulk_mbps"].as_f64().is_some_and(|mbps| mbps >= least);
        assert_eq!(row["bulk_enough"], enough, "{row}");
        assert_eq!(row["fits"], enough && row["on_time"] == true, "{row}");
    }
    let limit = |plan: &serde_json::Value| plan["robots_max_simulated"].as_u64().unwrap();
    assert!(limit(&strict) < limit(&loose), "{strict}");
    assert!(
        said.contains("98.0 % of what 2 robots move") && said.contains("Model columns"),
        "{said}"
    );
}

#[test]
fn learning_is_sent_to_the_python_package() {
    for arguments in [
        &["learn"][..],
        &["learn", "team.toml", "--minutes", "30"],
        &["learn", "--help"],
    ] {
        let output = coorp(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("pip install '.[learn]'"));
    }
}

#[test]
fn sweeps_are_sent_to_the_python_package() {
    for arguments in [
        &["sim", "teams", "--sweep", "--out", "runs"][..],
        &["sim", "--sweep", "--help"],
    ] {
        let output = coorp(arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains("'coorp sim --sweep' needs the Python package"));
    }
    assert!(text(&coorp(&["sim", "--help"]).stdout).contains("--sweep"));
}
