//! A made-up team, drawn into a buffer; and a panic in a real terminal.

use coorp_core::alarms::Alarm;
use coorp_core::clock::Offset;
use coorp_core::robot::{ClockId, Look, Seen};
use coorp_core::{Duration, Instant, RobotId};
use coorp_node::status::{Bulk, Heard, Path, PathState, Permit, Status};
use coorp_node::watch::{Follower, Glance};
use coorp_team::Team;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Modifier;
use ratatui::Terminal;

use super::draw::draw;
use super::model::Model;
use super::view::{Ask, Over, Table, View};
use crate::live::web::feed::Feed;

#[path = "../../../tests/common/pty.rs"]
#[cfg(target_os = "linux")]
#[allow(dead_code)] // tests/terminal.rs uses all of it
mod pty;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(1_000_000_000_000 + ms * 1_000_000)
}

fn team(robots: usize) -> Team {
    let robot = |place: usize| format!("[[robot]]\nname = \"robot-{place}\"\nleader = {}\n", place == 0);
    let robots: String = (0..robots).map(robot).collect();
    let text = format!("{robots}[control]\nrate_hz = 30\nbound = \"33ms\"\n[[place]]\nname = \"visitor\"\n");
    let team = coorp_team::parse(&text, "fleet.toml", std::path::Path::new("")).unwrap();
    team.with_places()
}

/// What a robot tells: its first one leads, its second one holds the permit and is late, the third has no disk.
fn status(place: u16, second: u64) -> Status {
    let sent_bytes = u64::from(place) * 1_250_000 * second;
    Status {
        robot: format!("robot-{place}"),
        leads: place == 0,
        secure: true,
        up_ms: 1_000 * second,
        alive: vec![0, 1, 2],
        permit: if place == 1 { Permit::Holding } else { Permit::Idle },
        holders: if place == 0 { vec![1] } else { Vec::new() },
        paths: vec!["wlan0".to_owned(), "wlan1".to_owned()],
        alarms: if place == 2 { vec![Alarm::DiskShort] } else { Vec::new() },
        bulk: Some(Bulk {
            sent_bytes,
            ..Bulk::default()
        }),
        heard: vec![Heard {
            topic: "command".to_owned(),
            from: 0,
            count: 30 * second,
            aged: 30 * second,
            // The first seconds' were old, those since are 2 ms old.
            ages_us: 600_000 + 60_000 * second,
            ..Heard::default()
        }],
        choices: vec![Path {
            to: 0,
            path: 1,
            state: PathState::Dead,
            ..Path::default()
        }],
        ..Status::default()
    }
}

/// The team after so many seconds, told by its robots once a second.
fn model(robots: usize, seconds: u64) -> (Model, Feed) {
    let team = team(robots);
    let feed = Feed::new(&team, at(0), || true);
    let mut model = Model::new(&team);
    for second in 1..=seconds {
        tell(&feed, robots, second);
        model.update(feed.batch(0, at(1_000 * second), &[]));
    }
    (model, feed)
}

fn tell(feed: &Feed, robots: usize, second: u64) {
    for place in (0..robots as u16).filter(|place| *place != 3) {
        let took_us = if place == 1 { 40_000 } else { 30_000 };
        let (path, packets) = (0, 5);
        let age_us = Some(1_500);
        let (from, flow) = (RobotId(0), 0);
        let events = vec![
            (900_000, Seen::Permitted(place == 1)),
            (500_000, Seen::Loop { took_us }),
            (100_000, Seen::Bulk { path, took_us, packets }),
            (300_000, Seen::Arrived { from, flow, age_us }),
        ];
        let look = Look {
            clock: ClockId(7),
            now: at(1_000 * second),
            next: 4 * second,
            lost: 0,
            events,
        };
        let offset = Offset {
            ahead_ns: 0,
            within: Duration::from_micros(300),
        };
        let status = Some(Box::new(status(place, second)));
        feed.on_glance(RobotId(place), Some(Glance { look, offset, status }));
    }
}

fn drawn(view: &View, model: &Model, width: u16, height: u16) -> (String, Terminal<TestBackend>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, model)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |row: u16| -> String { (0..width).map(|column| buffer[(column, row)].symbol()).collect() };
    let text = (0..height).map(|row| line(row).trim_end().to_owned() + "\n").collect();
    (text, terminal)
}

fn shown(view: &View, model: &Model, width: u16, height: u16) -> String {
    drawn(view, model, width, height).0
}

fn press(view: &mut View, model: &Model, keys: &[KeyCode]) {
    for key in keys {
        assert_eq!(
            view.on_key(KeyEvent::new(*key, KeyModifiers::NONE), model),
            Ask::Nothing
        );
    }
}

/// The names of the robots in the table, in order.
fn order(text: &str) -> Vec<&str> {
    let rows = text
        .lines()
        .skip_while(|line| !(line.starts_with("robot") && line.contains("permit")));
    let names = rows
        .skip(1)
        .map_while(|line| line.split(' ').next().filter(|name| name.starts_with("robot-")));
    names.collect()
}

fn row<'t>(text: &'t str, name: &str) -> &'t str {
    text.lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

#[test]
fn a_wide_terminal_shows_the_team_with_everything_about_the_selected_robot() {
    let (model, _) = model(4, 20);
    let mut view = View::of(Table::Robots);
    press(&mut view, &model, &[KeyCode::Down]);
    let text = shown(&view, &model, 200, 60);
    for part in [
        "fleet: 3 of 4 robots here, robot-0 leads; permits: robot-1; waiting: nobody",
        "live",
        "! robot-2: the disk has less than its reserve free",
        "  Free space on the disk of the robot's state folder",
        "! robot-3 does not answer",
        "alarms: 2 (a)",
        "\u{2500} robot-1, its last 0.3 s, to 0.0 s ago",
        "slowest loop 40.0 ms (scale 41, bound 33 ms)",
        "bulk out 10.0 Mbit/s (scale 20 Mbit/s)",
        "\u{2500} control ",
        "\u{2500} paths ",
        "nothing yet",
        "q quit",
    ] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
    let late = row(&text, "robot-1 ");
    for part in [
        "holds",
        "40.0 ms",
        "100.0 %",
        "1.5 ms",
        "10.0",
        "\u{b1} 0.3 ms",
        "wlan0, wlan1",
    ] {
        assert!(late.contains(part), "no '{part}' in {late}");
    }
    assert!(!text.contains("visitor"), "nobody has taken that place:\n{text}");
    assert!(row(&text, "robot-3 ").contains("absent") && row(&text, "robot-0 ").contains("leads"));
    // Since the start they were 40 ms old on average, within the last 10 s they are 2.
    let topic = row(&text, "command ");
    assert!(topic.contains("2.0 ms") && topic.contains("0.0 %"), "{topic}");
    // 40 ms of 300.
    let bulk = row(&text, "bulk ");
    let count = |mark| bulk.chars().filter(|c| *c == mark).count() as f64;
    let (full, none) = (count('\u{2588}'), count('\u{b7}'));
    assert!((0.11..0.15).contains(&(full / (full + none))), "{text}");
    assert_eq!(
        row(&text, "permit ").chars().filter(|c| *c == '\u{b7}').count(),
        0,
        "{text}"
    );
}

#[test]
fn a_small_terminal_shows_what_matters_most() {
    let (model, _) = model(4, 20);
    let mut view = View::of(Table::Robots);
    let text = shown(&view, &model, 60, 15);
    for part in [
        "robot-0 leads",
        "! robot-3 does not answer",
        "press a",
        "reaction",
        "out",
        "q quit",
        "? help",
    ] {
        assert!(text.contains(part), "no '{part}' in\n{text}");
    }
    assert_eq!(order(&text).len(), 4, "{text}");
    assert!(!text.contains("known by"), "{text}");
    press(&mut view, &model, &[KeyCode::Enter]);
    let text = shown(&view, &model, 60, 15);
    assert!(
        text.contains("paths wlan0, wlan1") && text.contains("\ncontrol "),
        "{text}"
    );
    press(&mut view, &model, &[KeyCode::Char('a')]);
    let text = shown(&view, &model, 60, 15);
    assert!(
        text.contains("Is 'coorp up' running there") && text.contains("Esc back"),
        "{text}"
    );
}

#[test]
fn nothing_breaks_at_any_size() {
    let (model, _) = model(4, 5);
    let early = Model::new(&team(2));
    let mut views = Table::ALL.map(View::of).to_vec();
    for over in [Over::Detail, Over::Alarms, Over::Help] {
        for table in [Table::Robots, Table::Topics] {
            let mut view = View::of(table);
            (view.over, view.scroll) = (over, 500);
            views.push(view);
        }
    }
    for width in [1, 3, 20, 60, 100, 200] {
        for height in [1, 2, 4, 15, 21, 60] {
            for view in &views {
                for model in [&model, &early] {
                    let text = shown(view, model, width, height);
                    assert_eq!(text.lines().count(), usize::from(height));
                }
            }
        }
    }
}

#[test]
fn keys_sort_select_filter_and_pause() {
    let (mut model, feed) = model(3, 10);
    let mut view = View::of(Table::Robots);
    assert_eq!(order(&shown(&view, &model, 120, 30)), ["robot-0", "robot-1", "robot-2"]);
    // By bulk out, the highest first.
    press(&mut view, &model, &[KeyCode::Right; 7]);
    press(&mut view, &model, &[KeyCode::Char('r')]);
    let text = shown(&view, &model, 120, 30);
    assert_eq!(order(&text), ["robot-2", "robot-1", "robot-0"], "{text}");
    assert!(text.contains("out\u{25bc}"), "{text}");
    press(&mut view, &model, &[KeyCode::Left; 7]);
    assert_eq!(
        order(&shown(&view, &model, 120, 30))[0],
        "robot-0",
        "as in the team file again"
    );
    // The selection stays with its robot.
    press(&mut view, &model, &[KeyCode::Down, KeyCode::Right, KeyCode::Char('r')]);
    let (text, terminal) = drawn(&view, &model, 120, 30);
    let place = text.lines().position(|line| line.starts_with("robot-1")).unwrap();
    let cell = &terminal.backend().buffer()[(0, place as u16)];
    assert!(cell.modifier.contains(Modifier::REVERSED), "{text}");
    assert!(text.contains("\u{2500} robot-1, its"), "{text}");
    press(
        &mut view,
        &model,
        &[KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Enter],
    );
    assert!(shown(&view, &model, 120, 30).contains("No row shows this text"));
    press(&mut view, &model, &[KeyCode::Esc, KeyCode::Char('/')]);
    press(
        &mut view,
        &model,
        &"holds".chars().map(KeyCode::Char).collect::<Vec<_>>(),
    );
    assert_eq!(order(&shown(&view, &model, 120, 30)), ["robot-1"]);
    press(&mut view, &model, &[KeyCode::Esc, KeyCode::Char(' ')]);
    tell(&feed, 3, 14);
    model.update(feed.batch(0, at(14_000), &[]));
    let text = shown(&view, &model, 120, 30);
    assert!(text.contains("PAUSED 4 s") && text.contains("resume"), "{text}");
    assert!(row(&text, "robot-1 ").contains(" 10.0 "), "{text}");
    press(&mut view, &model, &[KeyCode::Char(' '), KeyCode::Tab]);
    let text = shown(&view, &model, 120, 30);
    let words: Vec<&str> = row(&text, "command ").split_whitespace().take(3).collect();
    assert!(
        text.contains("live") && words == ["command", "robot-0", "robot-0"],
        "{text}"
    );
    let key = |code, modifiers| KeyEvent::new(code, modifiers);
    assert_eq!(
        view.on_key(key(KeyCode::Char('c'), KeyModifiers::CONTROL), &model),
        Ask::Quit
    );
    assert_eq!(
        view.on_key(key(KeyCode::Char('z'), KeyModifiers::CONTROL), &model),
        Ask::Suspend
    );
    assert_eq!(
        view.on_key(key(KeyCode::Char('q'), KeyModifiers::NONE), &model),
        Ask::Quit
    );
}

#[test]
fn of_many_robots_the_selected_one_is_in_sight() {
    let (model, _) = model(50, 3);
    let mut view = View::of(Table::Robots);
    press(&mut view, &model, &[KeyCode::End]);
    for (width, height) in [(60, 15), (120, 40)] {
        let (text, terminal) = drawn(&view, &model, width, height);
        let place = text.lines().position(|line| line.starts_with("robot-49 ")).unwrap();
        let cell = &terminal.backend().buffer()[(0, place as u16)];
        assert!(cell.modifier.contains(Modifier::REVERSED), "{text}");
    }
}

#[test]
fn a_robot_that_starts_anew_counts_from_zero() {
    let (mut model, feed) = model(2, 5);
    assert_eq!(model.robots[1].rates.map(|(sent, _)| sent.round()), Some(10.0));
    tell(&feed, 2, 1);
    model.update(feed.batch(0, at(6_000), &[]));
    assert_eq!(
        model.robots[1].rates.map(|(sent, _)| sent.round()),
        Some(10.0),
        "no rate from such a pair"
    );
    let topics = &model.robots[1].topics;
    let heard = topics.values().next().unwrap().recent().unwrap();
    assert_eq!(heard.aged, 30);
    // What refuses the operator says why.
    model.update(feed.batch(0, at(60_000), &[(RobotId(1), "too many operators watch it")]));
    let alarms = model.alarms();
    assert!(alarms
        .iter()
        .any(|(says, _)| says == "robot-1 does not answer: too many operators watch it"));
    assert!(
        alarms.iter().any(|(says, _)| says == "robot-0 does not answer"),
        "{alarms:?}"
    );
    assert!(model.here().is_empty());
}

/// The program that the test below runs in a terminal.
#[test]
#[ignore = "a program in another test"]
fn program() {
    let team = team(2);
    let watch = coorp_node::watch::Watch::open(&team, true).unwrap();
    std::thread::spawn(|| {
        let pause = std::time::Duration::from_millis(100);
        while !ratatui::crossterm::terminal::is_raw_mode_enabled().unwrap() {
            std::thread::sleep(pause);
        }
        std::thread::sleep(pause);
        panic!("a thread that nobody waits for");
    });
    let error = super::run(&team, watch).unwrap_err().to_string();
    println!("{error}\r");
}

#[cfg(target_os = "linux")]
#[test]
fn a_panic_of_any_thread_restores_the_terminal_and_ends_the_watch() {
    let mut program = std::process::Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "live::terminal::tests::program", "--ignored", "--nocapture"]);
    let mut terminal = pty::Pty::start(&program, 100, 30);
    terminal.until("its own screen", |screen| screen.is_alternate);
    assert_eq!(terminal.ended().code(), Some(0), "{}", terminal.screen.text());
    terminal.until_restored();
    terminal.until_shown("a thread that nobody waits for");
    terminal.until_shown("a thread has panicked");
}
