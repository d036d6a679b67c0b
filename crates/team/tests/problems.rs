//! What a user sees for each kind of mistake: file, line, column, the problem, and the fix.

#![allow(clippy::unwrap_used)] // a test may fail by panicking

use coorp_core::paths::Duplicate;
use coorp_core::protect::{Class, Rule};
use coorp_team::{load, parse, LoadError};
use std::path::Path;

/// Two robots, to which a test appends its own text. Ten lines, so the appended text starts on line 11.
const TEAM: &str = "\
[[robot]]
name = \"alpha\"
leader = true
#
#
#
[[robot]]
name = \"bravo\"
#
#
";

fn refused(text: &str) -> LoadError {
    match parse(text, "team.toml", Path::new("")) {
        Ok(team) => panic!("accepted:\n{text}\n{team:?}"),
        Err(error) => error,
    }
}

/// Asserts that the text is refused for one problem, and that the message contains every part.
fn one(text: &str, parts: &[&str]) {
    let error = refused(text);
    let shown = error.to_string();
    for part in parts {
        assert!(shown.contains(part), "no `{part}` in:\n{shown}");
    }
    assert_eq!(error.problems(), 1, "{shown}");
}

/// Asserts that `TEAM` with `text` appended is refused for one problem.
fn with(text: &str, parts: &[&str]) {
    one(&format!("{TEAM}{text}"), parts);
}

#[test]
fn a_message_reads_so() {
    let shown = refused(&format!("{TEAM}[control]\nperid = \"33ms\"\n")).to_string();
    let expected = "\
error: unknown key `perid` in [control]
   ┌─ team.toml:12:1
   │
12 │ perid = \"33ms\"
   │ ^^^^^
   │
   = did you mean `period`?";
    assert_eq!(shown, expected);
}

#[test]
fn all_problems_are_shown_in_the_order_of_lines() {
    let text = format!(
        "{TEAM}[air]\nwidth_mhz = 30\nlos = 0.1\n[control]\nbound = 33\n[[flow]]\nname = \"f\"\nfrom = \"bravo\"\nto = \"alfa\"\nsize = -1\nperiod = \"0ms\"\n"
    );
    let error = refused(&text);
    let shown = error.to_string();
    let places: Vec<_> = ["12:13", "13:1", "15:9", "19:6", "20:8", "21:10"]
        .iter()
        .map(|place| {
            shown
                .find(&format!("team.toml:{place}\n"))
                .unwrap_or_else(|| panic!("no {place} in:\n{shown}"))
        })
        .collect();
    assert!(places.is_sorted(), "{shown}");
    assert!(shown.ends_with("6 problems found"), "{shown}");
    assert_eq!(error.problems(), 6);
}

#[test]
fn robots() {
    one("", &["team.toml:1:1", "no robots", "start each with [[robot]]"]);
    one(
        "[[robot]]\nname = \"a\"\nleader = true",
        &["team.toml:1:1", "only one robot", "add another"],
    );
    one(
        "robot = 3",
        &["team.toml:1:9", "`robot` is a whole number", "[[robot]]"],
    );
    one(
        "robot = [3, {name = \"a\", leader = true}, {name = \"b\"}]",
        &["team.toml:1:10", "not a table"],
    );
    one(
        &TEAM.replace("leader = true", "#"),
        &["team.toml:1:1", "no robot leads", "`leader = true`", "grants permits"],
    );
    one(
        &TEAM.replace("leader = true", "leader = \"yes\""),
        &["team.toml:3:10", "`leader` is a string", "without quotes"],
    );
    with(
        "leader = true",
        &[
            "team.toml:11:10",
            "two robots lead",
            "team.toml",
            "the first is here",
            "keep `leader",
        ],
    );
    one(
        &TEAM.replace("bravo", "alpha"),
        &[
            "team.toml:8:8",
            "two [[robot]] tables are named \"alpha\"",
            "its own name",
        ],
    );
    one(
        &TEAM.replace("bravo", "b/*"),
        &["team.toml:8:8", "\"b/*\" is not a valid name", "letters, digits"],
    );
    one(
        &TEAM.replace("name = \"bravo\"", ""),
        &["team.toml:7:1", "[[robot]] has no `name`", "add `name"],
    );
    with("mcs = 3\nsnr_db = 20", &["both `mcs` and `snr_db`", "remove one"]);
    with("streams = 5", &["team.toml:11:11", "`streams` is 5, outside 1 to 4"]);
    with("speed_mps = 1", &["team.toml:11:13", "nowhere to go", "waypoints_m"]);
    let placed = TEAM.replacen('#', "position_m = [1, 1]", 1);
    let text = placed + "waypoints_m = [[1, 2]]\nposition_m = [0, 0]";
    one(&text, &["team.toml:7:1", "no `speed_mps`", "its speed"]);
    with(
        "position_m = [1.0]",
        &["team.toml:11:14", "not a point", "as in [2.5, 0.0]"],
    );
    with("position_m = [1.0, nan]", &["not a point"]);
    with(
        "position_m = [1.0, 2.0]",
        &["team.toml:1:1", "no position", "or fix the rates"],
    );
    with(
        "phase = \"1ms\"",
        &["team.toml:11:9", "phase without a control loop", "add [control]"],
    );
    with(
        "phase = \"50ms\"\n[control]",
        &["team.toml:11:9", "not less than the control period of 33.33"],
    );
    with("training = \"1s\"", &["team.toml:11:12", "add [learning]"]);
    with(
        "clock_skew = \"-2h\"",
        &["team.toml:11:14", "unknown unit `h`", "-900s to 900s"],
    );
    with("clock_skew = \"-16min\"", &["team.toml:11:14", "more than 900s"]);
}

#[test]
fn ten_thousand_robots_are_one_problem() {
    let robots: String = (0..10_000).map(|n| format!("[[robot]]\nname = \"r{n}\"\n")).collect();
    one(
        &robots,
        &[
            "team.toml:2001:1",
            "10000 [[robot]] tables",
            "first beyond the limit of 1000",
        ],
    );
    let robots: String = (0..1_000)
        .map(|n| format!("[[robot]]\nname = \"r{n}\"\nleader = {}\n", n == 7))
        .collect();
    assert_eq!(parse(&robots, "team.toml", Path::new("")).unwrap().robots.len(), 1_000);
}

#[test]
fn interfaces() {
    with(
        "[[interface]]\nmcs = 3",
        &[
            "team.toml:11:1",
            "wlan1 on channel 44 at 20 MHz overlaps wlan0 on channel 44",
            "another `channel`",
        ],
    );
    with(
        "[air]\nchannel = 36\nwidth_mhz = 80\n[[interface]]\nchannel = 149\n[[interface]]\nchannel = 48",
        &["team.toml:17:11", "wlan2 on channel 48", "overlaps wlan0"],
    );
    with(
        "[[interface]]\nchannel = 100\nrobots = [\"bravo\"]",
        &["team.toml:13:10", "the leader", "add \"alpha\""],
    );
    with(
        "[[interface]]\nchannel = 100\nrobots = [\"alpha\", \"brava\"]",
        &["team.toml:13:20", "no robot \"brava\"", "did you mean \"bravo\"?"],
    );
    with("[[interface]]\nchannel = 100\nmcs = 9", &["has no MCS 9"]);
    with(
        "[[interface]]\nchannel = 100\n[[interface.link]]\nfrom = \"alpha\"\nto = \"bravo\"",
        &["[[interface.link]] changes nothing"],
    );
    let text = format!("{TEAM}[[interface]]\nchannel = 100\nrobots = [\"bravo\", \"alpha\"]\nloss = 0.2\n");
    let team = parse(&text, "team.toml", Path::new("")).unwrap();
    assert_eq!(
        team.interfaces[0].robots,
        [coorp_core::RobotId(0), coorp_core::RobotId(1)]
    );
    assert_eq!((team.air.loss, team.interfaces[0].air.loss), (0.0, 0.2));
}

#[test]
fn events() {
    with(
        "[[event]]\nloss = 0.1",
        &["team.toml:11:1", "no `at`", "add `at = \"60s\"`"],
    );
    with(
        "[[event]]\nat = \"1s\"",
        &["team.toml:11:1", "changes nothing", "`death`"],
    );
    with(
        "[[event]]\nat = \"1s\"\nfrom = \"bravo\"",
        &["names links but changes nothing"],
    );
    with(
        "[[event]]\nat = \"2s\"\nuntil = \"2s\"\nloss = 0.1",
        &["team.toml:13:9", "not after `at`"],
    );
    with(
        "[[event]]\nat = \"2s\"\nloss = 0.1\ndeath = [\"bravo\"]",
        &["both `loss` and `death`", "one [[event]] for each"],
    );
    with("[[event]]\nat = \"2s\"\ndeath = []", &["names no robots"]);
    with("[[event]]\nat = \"2s\"\ndeath = \"bravo\"", &["not a list of strings"]);
    with("[[event]]\nat = \"2s\"\ndeath = [3]", &["not a string"]);
    with(
        "[[event]]\nat = \"2s\"\nloss = 0.1\ninterface = \"wlan1\"",
        &["team.toml:14:13", "no interface \"wlan1\"", "[[interface]]"],
    );
    with("[[event]]\nat = \"2s\"\nmcs = 9", &["has no MCS 9"]);
    with(
        "mcs = 9\nstreams = 3\n[[event]]\nat = \"2s\"\nstreams = 2",
        &["team.toml:15:11", "no MCS 9 at 20 MHz with 2 streams"],
    );
    with(
        "[[event]]\nat = \"2s\"\nmcs = 1\nfrom = \"alpha\"\nto = \"alpha\"",
        &["to itself"],
    );
}

#[test]
fn nine_thousand_wrong_flows_end() {
    // For its fix, each name is compared with a thousand others, which must not happen for every one of them.
    let robots: String = (0..1_000)
        .map(|n| format!("[[robot]]\nname = \"robot{n}\"\nleader = {}\n", n == 0))
        .collect();
    let flow = |n| format!("[[flow]]\nname = \"f{n}\"\nfrom = \"robt{n}\"\nto = \"rbot{n}\"\nsaturated = true\n");
    let flows: String = (0..9_000).map(flow).collect();
    assert_eq!(refused(&(robots + &flows)).problems(), 1_000);
}

#[test]
fn air() {
    with(
        "[air]\nstandard = \"802.11g\"",
        &["team.toml:12:12", "cannot be \"802.11g\"", "did you mean \"802.11n\"?"],
    );
    with(
        "[air]\nstandard = \"802.11n\"\nwidth_mhz = 80",
        &["team.toml:13:13", "no 80 MHz channels", "20 or 40"],
    );
    with(
        "[air]\nchannel = 6",
        &["team.toml:12:11", "`channel` cannot be 6", "choose one of 36, 40"],
    );
    with(
        "[air]\nmcs = 9",
        &["team.toml:12:7", "no MCS 9 at 20 MHz with 1 streams", "choose MCS 8"],
    );
    with(
        "mcs = 10\n[air]\nwidth_mhz = 40",
        &["team.toml:11:7", "802.11ac has no MCS 10", "from 0 to 9"],
    );
    with(
        "streams = 3\n[air]\nwidth_mhz = 80\nmcs = 6",
        &["team.toml:11:11", "no MCS 6 at 80 MHz with 3 streams"],
    );
    with("[air]\nloss = nan", &["team.toml:12:8", "`loss` is nan, not a number"]);
    with("[air]\nloss = 1", &["`loss` is 1, outside 0 to 0.99"]);
    with("[air]\ntx_power_dbm = 1e400", &["team.toml:12:16", "tx_power_dbm"]);
    with(
        "[air]\nguard_interval_ns = 1600",
        &["team.toml:12:21", "choose one of 400, 800"],
    );
    with(
        "[air]\nmcs = 99999999999999999999999999999999999999999",
        &["team.toml:12:7", "outside 0 to 31"],
    );
    with(
        "[air.ac_vo]\ncw_min = 8",
        &["team.toml:12:10", "a power of two minus one", "choose 7 or 15"],
    );
    with(
        "[air.ac_be]\ncw_min = 15\ncw_max = 7",
        &["team.toml:12:10", "above `cw_max` of 7"],
    );
    with(
        "[air.ac_be]\nampdu_frames = 128",
        &["team.toml:12:16", "outside 1 to 64"],
    );
    with(
        "[air.ac_bee]\n",
        &[
            "team.toml:11:6",
            "unknown key `ac_bee` in [air]",
            "did you mean `ac_be`?",
        ],
    );
    with(
        "[air.ac_be]\ntxop = \"1s\"",
        &["team.toml:12:8", "`txop` is 1s, outside 0ns to 8.16ms"],
    );
    with(
        "[[air.link]]\nfrom = \"alpha\"\nto = \"bravo\"",
        &["team.toml:11:1", "changes nothing", "set `mcs`"],
    );
    let link = "[[air.link]]\nfrom = \"alpha\"\nto = \"bravo\"\nmcs = 1\n";
    with(
        &format!("{link}{link}"),
        &["team.toml:15:1", "same direction", "the first is here", "merge them"],
    );
    with(
        &link.replace("bravo", "alpha"),
        &["team.toml:13:6", "to itself", "two different"],
    );
    with(&link.replace("mcs = 1", "mcs = 9"), &["team.toml:14:7", "no MCS 9"]);
}

#[test]
fn wnic() {
    with(
        "[air]\nwnic = \"mt7612\"",
        &[
            "team.toml:12:8",
            "no WNIC profile \"mt7612\"",
            "did you mean \"mt7612u\"?",
        ],
    );
    with(
        "[air]\nwnic = \"no-such.toml\"",
        &["team.toml:12:8", "cannot read the WNIC profile no-such.toml"],
    );
    with(
        "[air]\nwnic = \"/etc/card.toml\"",
        &["team.toml:12:8", "not a relative path"],
    );
    let folder = std::env::temp_dir().join(format!("coorp-team-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("card.toml"), "queue_frames = 16\ncommit_frames = 32\n").unwrap();
    let text = format!("{TEAM}[air]\nwnic = \"card.toml\"\n");
    let shown = parse(&text, "team.toml", &folder).unwrap_err().to_string();
    assert!(
        shown.contains("card.toml:2:17") && shown.contains("more than `queue_frames` of 16"),
        "{shown}"
    );
    std::fs::write(folder.join("card.toml"), "queue_frames = 16\n").unwrap();
    let team = parse(&text, "team.toml", &folder).unwrap();
    assert_eq!((team.air.wnic.queue_frames, team.air.wnic.commit_frames), (16, None));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn control_and_learning() {
    with(
        "[control]\nbound = \"40ms\"",
        &[
            "team.toml:12:9",
            "`bound` is 40ms, longer than the period",
            "choose a bound",
        ],
    );
    with(
        "[control]\nperiod = \"0ms\"",
        &["team.toml:12:10", "`period` is 0ns, outside 1ms to 10s"],
    );
    with(
        "[control]\nperiod = \"33ms\"\nrate_hz = 30",
        &["both `period` and `rate_hz`", "remove one"],
    );
    with(
        "[control]\nperiod = 33",
        &[
            "team.toml:12:10",
            "not a time",
            "write the unit, in quotes: \"33ms\" or \"33s\"",
        ],
    );
    with(
        "[control]\nrate_hz = inf",
        &["team.toml:12:11", "`rate_hz` is infinite"],
    );
    with(
        "[control]\nperception = -5",
        &["team.toml:12:14", "`-5` is negative", "choose a size from 1"],
    );
    with("[control]\nperception = \"12KB/s\"", &["unknown unit `KB/s`", "KiB"]);
    with(
        "[control]\njitter = \"34ms\"",
        &["team.toml:12:10", "not less than the period"],
    );
    with(
        "[learning]\nparameters = 1",
        &["team.toml:11:1", "there is none", "add [control]"],
    );
    with(
        "[control]\n[learning]",
        &["team.toml:12:1", "no `parameters`", "add `parameters"],
    );
    with(
        "[control]\n[learning]\nparameters = 9\nsync = \"SPP\"",
        &["team.toml:14:8", "did you mean \"SSP\"?"],
    );
    with(
        "[control]\n[learning]\nparameters = 9\nstaleness = 2",
        &["team.toml:14:13", "only to SSP", "sync = \"SSP\""],
    );
    one(
        &format!("control = 1979-05-27\n{TEAM}"),
        &["team.toml:1:11", "`control` is a date"],
    );
    let alone = "[[robot]]\nname = \"a\"\nleader = true\n[control]\n";
    one(alone, &["team.toml:1:1", "only one robot"]);
}

#[test]
fn flows() {
    let flow = "[[flow]]\nname = \"f\"\nfrom = \"alpha\"\nto = \"bravo\"\n";
    let this = |more: &str, parts: &[&str]| with(&format!("{flow}{more}"), parts);
    this(
        "saturated = true\nperiod = \"1ms\"",
        &["team.toml:16:10", "both `period` and `saturated`", "remove one"],
    );
    this(
        "size = 100",
        &["team.toml:11:1", "no `period`", "or `saturated = true`"],
    );
    this("period = \"5ms\"", &["team.toml:11:1", "no `size`", "\"1KiB\""]);
    this("size = 100\nperiod = \"0s\"", &["team.toml:16:10", "`period` is 0ns"]);
    this(
        "saturated = true\nsize = 1500",
        &["team.toml:16:8", "`size` is 1500 bytes, outside 1 to 1472"],
    );
    this(
        "saturated = true\nac = \"BE\"",
        &["team.toml:16:6", "did you mean \"AC_BE\"?", "\"AC_VO\""],
    );
    this(
        "saturated = true\nstart = \"5s\"\nstop = \"5s\"",
        &["team.toml:17:8", "not after `start`"],
    );
    this(
        "saturated = true\ntransport = \"quic\"",
        &["team.toml:16:13", "choose one of \"udp\", \"tcp\""],
    );
    this(
        "size = 99999999999999999999\nperiod = \"1s\"",
        &["team.toml:15:8", "is too large"],
    );
    let saturated = flow.to_owned() + "saturated = true\n";
    with(
        &format!("{saturated}{saturated}"),
        &["team.toml:17:8", "two [[flow]] tables are named \"f\""],
    );
    with(
        &saturated.replace("\"bravo\"", "\"brovo\""),
        &["team.toml:14:6", "no robot \"brovo\"", "did you mean \"bravo\"?"],
    );
    with(
        &saturated.replace("\"bravo\"", "\"zulu\""),
        &["team.toml:14:6", "the robots are \"alpha\", \"bravo\""],
    );
    with(
        &saturated.replace("to = \"bravo\"", ""),
        &["team.toml:11:1", "[[flow]] has no `to`"],
    );
}

#[test]
fn policy() {
    with("[policy]\nlimit = 0", &["team.toml:12:9", "outside 1 to 1000"]);
    with("[policy]\ncompletion_samples = 257", &["outside 1 to 256"]);
    with("[policy]\naccuracy = 95", &["team.toml:12:12", "outside 0.5 to 0.9999"]);
    with("[policy]\nslise = \"5s\"", &["team.toml:12:1", "did you mean `slice`?"]);
    with("[policy]\nnonsense = 1", &["[policy] knows limit, slice, lease"]);
}

#[test]
fn syntax() {
    let shown = refused("[[robot]]\nname = \"a\nleader = = true\n").to_string();
    assert!(
        shown.contains("team.toml:2:") && shown.contains("team.toml:3:"),
        "both are shown:\n{shown}"
    );
    with("[air]\nmcs = 1\nmcs = 2", &["team.toml:13:1", "duplicate key"]);
    let deep = format!("a = {}", "[".repeat(100_000));
    assert!(refused(&deep).to_string().contains("team.toml:1:"));
    let wide = format!("{TEAM}x = \"{}\"", "y".repeat(100_000));
    let shown = refused(&wide).to_string();
    assert!(
        shown.contains("team.toml:11:1: x") && shown.len() < 1_000,
        "a long line is not printed:\n{shown}"
    );
    let many: String = (0..5_000).map(|n| format!("k{n} = 1\n")).collect();
    let error = refused(&(many + TEAM));
    assert!(
        error
            .to_string()
            .ends_with("1000 problems found; the first 25 are shown"),
        "{error}"
    );
    let control = refused("x = \"\u{1b}[31m\"").to_string();
    assert!(
        !control.contains('\u{1b}'),
        "escapes do not reach the terminal: {control:?}"
    );
}

#[test]
fn files() {
    let missing = load(Path::new("no/such/team.toml")).unwrap_err().to_string();
    assert!(missing.contains("cannot read no/such/team.toml") && missing.contains("examples/navigation.toml"));
    assert!(load(Path::new(".")).unwrap_err().to_string().contains("cannot read ."));

    let path = std::env::temp_dir().join(format!("coorp-team-{}.toml", std::process::id()));
    std::fs::write(&path, b"[[robot]]\nname = \"\xff\"\n").unwrap();
    let binary = load(&path).unwrap_err().to_string();
    assert!(
        binary.contains(".toml:2:9: the file is not UTF-8") && binary.contains("save it as UTF-8"),
        "{binary}"
    );
    std::fs::write(&path, vec![b'\n'; (1 << 20) + 1]).unwrap();
    assert!(load(&path).unwrap_err().to_string().contains("is larger than 1 MiB"));
    std::fs::remove_file(&path).unwrap();
    #[cfg(target_os = "linux")]
    assert!(load(Path::new("/dev/zero"))
        .unwrap_err()
        .to_string()
        .contains("is larger than 1 MiB"));
}

#[test]
fn a_network_that_cannot_be_is_named() {
    with("[live]\nport = 80\n", &["`port` is 80, outside 1024 to", ":12:8"]);
    with("[live]\nkeyz = \"k\"\n", &["did you mean `keys`?"]);
    with(
        "[live]\nduplicate = \"sometimes\"\n",
        &["`duplicate` cannot be \"sometimes\"", "\"adaptive\""],
    );
    let robot = |text: &str| format!("{TEAM}{text}\n");
    one(
        &robot("addresses = [\"10.0.0.300\"]"),
        &["\"10.0.0.300\" is not an IP address", "names are not resolved"],
    );
    one(
        &robot("addresses = [\"0.0.0.0\"]"),
        &["0.0.0.0 cannot be a robot's address"],
    );
    one(&robot("addresses = [\"::1\", \"::1\"]"), &["::1 is listed twice"]);
    one(
        &robot("addresses = \"10.0.0.1\""),
        &["`addresses` is a string, not a list of strings"],
    );
    one(
        &robot("interfaces = [7]"),
        &["`interfaces` contains a whole number, not a string"],
    );
    one(
        &robot("interfaces = [\"wlan0#dscp=0\"]"),
        &["is not a valid interface name", "`ip link`"],
    );
    one(
        &robot("interfaces = [\"wlan0\", \"wlan1\"]\naddresses = [\"10.0.0.1\"]"),
        &["2 interfaces and 1 addresses", ":12:13"],
    );
    let both = TEAM
        .replace('#', "")
        .replacen("name = \"alpha\"", "name = \"alpha\"\naddresses = [\"10.0.0.1\"]", 1);
    one(
        &format!("{both}addresses = [\"10.0.0.1\"]\nport = 7470\n"),
        &["two robots have the same address and ports", "at least 16 apart"],
    );
}

#[test]
fn a_live_team_is_read_with_its_defaults() {
    let text = format!("{TEAM}interfaces = [\"wlan0\"]\naddresses = [\"10.0.0.2\"]\nport = 7600\n");
    let team = parse(&text, "team.toml", Path::new("/team")).unwrap();
    assert_eq!(
        (team.live.port, team.live.keys.as_path()),
        (7460, Path::new("/team/keys"))
    );
    let (alpha, bravo) = (team.robot_named("alpha").unwrap(), team.robot_named("bravo").unwrap());
    assert_eq!((team.port(alpha), team.port(bravo)), (7460, 7600));
    assert_eq!(team.robots[1].interfaces, ["wlan0"]);
    assert_eq!(team.robot_named("charlie"), None);
    let told = |team: &coorp_team::Team| (team.live.duplicate, team.live.zenoh, team.live.protect_all);
    assert_eq!(told(&team), (Duplicate::Adaptive, false, false));
    let text = format!("{TEAM}[live]\nduplicate = \"never\"\nzenoh = true\nprotect_all = true\n");
    let team = parse(&text, "team.toml", Path::new("/team")).unwrap();
    assert_eq!(told(&team), (Duplicate::Never, true, true));
}

#[test]
fn an_access_point_is_a_robot_and_where_there_is_none_it_is_not_named() {
    with(
        "[air]\naccess_point = \"bravi\"\n",
        &["there is no robot \"bravi\"", "did you mean \"bravo\"?"],
    );
    with(
        "[air]\ndirect = true\naccess_point = \"bravo\"\n",
        &["no access point", "remove `access_point`, or `direct`"],
    );
    with(
        "[[interface]]\nchannel = 100\nrobots = [\"alpha\"]\naccess_point = \"bravo\"\n",
        &["the access point \"bravo\" is not among `robots`", "add \"bravo\""],
    );
    let point = |air: &str| {
        let team = parse(&format!("{TEAM}[air]\n{air}"), "team.toml", Path::new("")).unwrap();
        team.air.access_point.map(|robot| robot.0)
    };
    assert_eq!(
        ["", "access_point = \"bravo\"\n", "direct = true\n"].map(point),
        [Some(0), Some(1), None]
    );
}

#[test]
fn what_to_protect_is_read_in_the_files_order() {
    let text = format!(
        "{TEAM}[[protect]]\nas = \"control\"\nport = 5005\nprotocol = \"udp\"\nto = \"fd00::7\"\n\
         [[protect]]\nas = \"bulk\"\nports = \"5000-5010\"\n\
         [[protect]]\nas = \"control\"\ndscp = \"EF\"\n\
         [[protect]]\nas = \"ordinary\"\nprotocol = 132\ndscp = 0x3f\n\
         [[protect]]\nas = \"bulk\"\ntopic = \"/camera/*\"\n\
         [[protect]]\nas = \"bulk\"\nexecutable = \"rsync\"\ncgroup = \"/system.slice/*\"\n"
    );
    let rule = |class| Rule {
        class,
        protocol: None,
        ports: None,
        to: None,
        dscp: None,
        topic: None,
        executable: None,
        cgroup: None,
    };
    let expected = [
        Rule {
            protocol: Some(17),
            ports: Some((5_005, 5_005)),
            to: Some("fd00::7".parse().unwrap()),
            ..rule(Class::Control)
        },
        Rule {
            ports: Some((5_000, 5_010)),
            ..rule(Class::Bulk)
        },
        Rule {
            dscp: Some(46),
            ..rule(Class::Control)
        },
        Rule {
            protocol: Some(132),
            dscp: Some(63),
            ..rule(Class::Ordinary)
        },
        Rule {
            topic: Some("/camera/*".to_owned()),
            ..rule(Class::Bulk)
        },
        Rule {
            executable: Some("rsync".to_owned()),
            cgroup: Some("/system.slice/*".to_owned()),
            ..rule(Class::Bulk)
        },
    ];
    let mut team = parse(&text, "team.toml", Path::new("")).unwrap();
    assert_eq!(team.protect, expected);
    assert_eq!(
        parse(TEAM, "team.toml", Path::new("")).unwrap().protect,
        Vec::<Rule>::new()
    );
    // Rules made in code obey the same limits.
    let bad = [
        rule(Class::Bulk),
        Rule {
            ports: Some((9, 8)),
            ..rule(Class::Bulk)
        },
        Rule {
            ports: Some((0, 8)),
            ..rule(Class::Bulk)
        },
        Rule {
            protocol: Some(1),
            ports: Some((8, 8)),
            ..rule(Class::Bulk)
        },
        Rule {
            dscp: Some(64),
            ..rule(Class::Bulk)
        },
        Rule {
            topic: Some(String::new()),
            ..rule(Class::Bulk)
        },
        Rule {
            executable: Some("a".repeat(256)),
            ..rule(Class::Bulk)
        },
    ];
    for rule in bad {
        team.protect = vec![expected[0].clone(), rule.clone()];
        let why = team.check().expect_err(&format!("{rule:?}"));
        assert!(why.contains("protection rule 2"), "{why}");
    }
    team.protect = vec![expected[0].clone(); 65];
    assert!(team.check().is_err());
}

#[test]
fn what_to_protect() {
    let rule = |text: &str, parts: &[&str]| with(&format!("[[protect]]\nas = \"bulk\"\n{text}"), parts);
    rule(
        "",
        &[
            "team.toml:11:1",
            "no condition, so it would match every packet",
            "add `port`",
        ],
    );
    with(
        "[[protect]]\nport = 22\n",
        &["team.toml:11:1", "[[protect]] has no `as`", "`as = \"bulk\"`"],
    );
    with(
        "[[protect]]\nas = \"contrl\"\nport = 22\n",
        &[
            "team.toml:12:6",
            "`as` cannot be \"contrl\"",
            "did you mean \"control\"?",
        ],
    );
    rule(
        "prot = 22\nport = 22\n",
        &["team.toml:13:1", "unknown key `prot` in [[protect]]", "did you mean"],
    );
    rule("port = 0\n", &["team.toml:13:8", "`port` is 0, outside 1 to 65535"]);
    rule(
        "port = 22\nports = \"1-2\"\n",
        &["team.toml:13:8", "both `port` and `ports`", "a single port, or a range"],
    );
    for wrong in ["5000", "5000-", "0-10", "1-65536", "1-2-3", "a-b", "+1-2", "1 - 2", ""] {
        rule(
            &format!("ports = \"{wrong}\"\n"),
            &[
                "team.toml:13:9",
                "`ports` cannot be",
                "as in \"5000-5010\"",
                "use `port`",
            ],
        );
    }
    rule("ports = \"9-8\"\n", &["starts at 9 and ends at 8", "`ports = \"8-9\"`"]);
    for (key, value) in [("port", "8"), ("ports", "\"8-9\"")] {
        rule(
            &format!("{key} = {value}\nprotocol = \"icmp\"\n"),
            &[
                "team.toml:13:",
                &format!("`{key}` with a `protocol` that has no ports"),
                "\"udp\"",
            ],
        );
    }
    rule(
        "protocol = \"sctp\"\n",
        &[
            "team.toml:13:12",
            "`protocol` cannot be \"sctp\"",
            "\"icmp\", or a number from 0 to 255",
        ],
    );
    rule("protocol = 256\n", &["`protocol` is 256, outside 0 to 255"]);
    rule("protocol = true\n", &["`protocol` is true or false"]);
    rule("dscp = 64\n", &["team.toml:13:8", "`dscp` is 64, outside 0 to 63"]);
    rule(
        "dscp = \"AF44\"\n",
        &[
            "`dscp` cannot be \"AF44\"",
            "did you mean \"AF4",
            "or a number from 0 to 63",
        ],
    );
    for (key, example) in [
        ("executable", "/usr/bin/rsync"),
        ("cgroup", "/system.slice/maps.service"),
    ] {
        rule(
            &format!("{key} = \"\"\n"),
            &["team.toml:13:", &format!("`{key}` has 0 characters"), example],
        );
    }
    for path in ["maps.service", "/system.slice/", "/"] {
        rule(
            &format!("cgroup = \"{path}\"\n"),
            &["team.toml:13:10", "no control group's path", "/proc/PID/cgroup"],
        );
    }
    rule(
        "executable = \"bin/rsync\"\n",
        &["team.toml:13:14", "no file's path", "the file's name alone"],
    );
    rule(
        "executable = \"ping\"\nprotocol = \"icmp\"\n",
        &["team.toml:13:", "whose sender is not known", "or remove `executable`"],
    );
    rule(
        "to = \"10.0.0.300\"\n",
        &[
            "team.toml:13:6",
            "\"10.0.0.300\" is not an IP address",
            "such as \"10.0.0.7\"",
        ],
    );
    rule("to = \"::\"\n", &[":: cannot receive packets", "or remove `to`"]);
    rule(
        "to = \"bravo\"\n",
        &["\"bravo\" is not an IP address", "this robot's interface"],
    );
    let text = format!("{TEAM}addresses = [\"10.0.0.2\"]\n[[protect]]\nas = \"bulk\"\nto = \"bravo\"\n");
    one(
        &text,
        &["team.toml:14:6", "write the robot's address, `to = \"10.0.0.2\"`"],
    );
    with("protect = \"on\"\n[air]\n", &["unknown key `protect` in [[robot]]"]);
    with(
        "[protect]\nas = \"bulk\"\n",
        &["`protect` is a table", "start each with [[protect]]"],
    );
    let rules = |count| "[[protect]]\nas = \"bulk\"\nport = 22\n".repeat(count);
    with(&rules(65), &["65 [[protect]] tables", "beyond the limit of 64"]);
    assert!(parse(&format!("{TEAM}{}", rules(64)), "team.toml", Path::new("")).is_ok());
}

#[test]
fn places() {
    with("[[place]]\ncount = 3\n", &["[[place]] has no `name`", "add `name"]);
    with("[[place]]\nname = \"a b\"\n", &["\"a b\" is not a valid name", ":12:8"]);
    with(
        "[[place]]\nname = \"bravo\"\n",
        &["there is already a robot \"bravo\"", "give the place another name"],
    );
    let twice = "[[place]]\nname = \"scout\"\ncount = 2\n[[place]]\nname = \"scout-2\"\n";
    with(twice, &["there is already a robot \"scout-2\"", ":15:8"]);
    with(
        "[[place]]\nname = \"scout\"\ncount = 0\n",
        &["`count` is 0", "from 1 to"],
    );
    with(
        "[[place]]\nname = \"scout\"\ncount = 999\n",
        &["the team has 1001 robots", "leave room for 1000"],
    );
    with(
        "[[place]]\nname = \"scout\"\ncount = 40\nport = 65000\n",
        &["not enough ports after `port` for 40 robots", "choose a lower port"],
    );
    let place = "[[place]]\nname = \"scout\"\ncount = 2\naddresses = [\"10.0.0.1\"]\n";
    with(
        place,
        &[
            "two robots have the same address and ports",
            "16 ports each from there on",
            ":14:13",
        ],
    );
    // Nothing that is simulated can be a robot that may not be there.
    with(
        "[[place]]\nname = \"scout\"\n[[flow]]\nname = \"f\"\nfrom = \"scout\"\nto = \"alpha\"\nsaturated = true\n",
        &["there is no robot \"scout\""],
    );
}

#[test]
fn places_become_robots_of_the_live_team_alone() {
    let text = format!(
        "{TEAM}[[place]]\nname = \"scout\"\ncount = 2\naddresses = [\"10.0.0.1\"]\nport = 8000\n[[place]]\nname = \"spare\"\n"
    );
    let team = parse(&text, "team.toml", Path::new("")).unwrap();
    assert_eq!((team.robots.len(), team.places.len()), (2, 3));
    team.check().unwrap();
    let live = team.with_places();
    live.check().unwrap();
    let of = |name: &str| {
        let robot = live.robot_named(name).unwrap();
        (robot.0, live.port(robot), live.robots[usize::from(robot.0)].may_join)
    };
    let seen = ["alpha", "bravo", "scout-1", "scout-2", "spare"].map(of);
    assert_eq!(
        seen,
        [
            (0, 7460, false),
            (1, 7460, false),
            (2, 8000, true),
            (3, 8016, true),
            (4, 7460, true)
        ]
    );
    assert_eq!(live.clone().with_places(), live);
    let policy = coorp_core::policy::Policy::named("coorp").unwrap();
    let config = live.robot_config(&policy, coorp_core::RobotId(3), 1);
    assert_eq!((config.robots, config.paths_to.len()), (5, 5));
    let voters = config.permits.unwrap().0.voters;
    assert_eq!(voters, [coorp_core::RobotId(0), coorp_core::RobotId(1)]);
}
