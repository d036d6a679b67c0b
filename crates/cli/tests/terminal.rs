//! `coorp watch` in a terminal, from an operator's view.
#![cfg(all(feature = "live", target_os = "linux"))]
#![allow(clippy::unwrap_used)] // a test may fail by panicking

#[path = "common/pty.rs"]
mod pty;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use pty::Pty;
use rustix::process::{kill_process, Pid, Signal};

struct Field(PathBuf);

impl Field {
    fn new(name: &str, port: u16) -> Field {
        let folder = std::env::temp_dir().join(format!("coorp-terminal-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let network = "addresses = [\"127.0.0.1\"]";
        let team = format!(
            "[[robot]]\nname = \"base\"\nleader = true\n{network}\nport = {port}\n\
             [[robot]]\nname = \"scout\"\n{network}\nport = {}\n",
            port + 20
        );
        std::fs::write(folder.join("team.toml"), team).unwrap();
        Field(folder)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coorp"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .env("XDG_STATE_HOME", &self.0);
        command
    }

    fn up(&self, robot: &str) -> Up {
        let mut command = self.command(&["up", "--robot", robot]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut up = Up(child.unwrap());
        let mut line = String::new();
        BufReader::new(up.0.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("is up"), "{robot}: {line}");
        up
    }

    /// Watches in a terminal; a team without robots if it has no keys.
    fn watch(&self, more: &[&str]) -> Pty {
        Pty::start(&self.command(&[&["watch"], more].concat()), 80, 24)
    }
}

impl Drop for Field {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_operator_watches_a_team_by_keys() {
    let field = Field::new("keys", 29_300);
    assert!(field.command(&["keys", "init"]).output().unwrap().status.success());
    let _base = field.up("base");
    let scout = field.up("scout");
    let mut terminal = field.watch(&[]);
    terminal.until_shown("2 of 2 robots here, base leads; permits: nobody");
    assert!(terminal.screen.is_alternate && terminal.screen.is_cursor_hidden && !terminal.is_cooked());
    // A picture comes in parts.
    terminal.until_shown("known by");
    terminal.type_in("?");
    terminal.until_shown("\u{250c} help");
    terminal.type_in("?");
    terminal.until("the help is gone", |screen| !screen.text().contains("\u{250c} help"));
    terminal.type_in("/scout\r");
    terminal.until("only scout", |screen| {
        let text = screen.text();
        text.contains("/scout") && !text.lines().any(|line| line.starts_with("base "))
    });
    terminal.type_in("\x1b");
    terminal.until("both again", |screen| {
        screen.text().lines().any(|line| line.starts_with("base "))
    });
    drop(scout);
    // A robot that is gone is told, with what to do, and the rest goes on.
    terminal.until_shown("! scout does not answer");
    terminal.until_shown("Is 'coorp up' running there");
    terminal.until_shown("absent");
    terminal.type_in("q");
    assert_eq!(terminal.ended().code(), Some(0));
    terminal.until_restored();
}

#[test]
fn a_terminal_is_restored_whoever_ends_the_watch() {
    let field = Field::new("signals", 29_340);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut terminal = field.watch(&["--insecure"]);
        terminal.until_shown("0 of 2 robots here");
        let id = i32::try_from(terminal.child.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
        assert_eq!(terminal.ended().signal(), Some(signal.as_raw()), "as a shell expects");
        terminal.until_restored();
    }
    // Raw mode makes Ctrl-C a key.
    let mut terminal = field.watch(&["--insecure"]);
    terminal.until_shown("0 of 2 robots here");
    terminal.type_in("\x03");
    assert_eq!(terminal.ended().code(), Some(0));
    terminal.until_restored();
}

#[test]
fn without_a_terminal_it_prints_text() {
    let field = Field::new("text", 29_380);
    let child = field.command(&["watch", "--insecure"]).stdout(Stdio::piped()).spawn();
    let mut watch = Up(child.unwrap());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let mut line = || lines.next().unwrap().unwrap();
        assert_eq!(
            line(),
            "team: 0 of 2 robots here, nobody leads, so nobody gets a permit"
        );
        assert!(std::iter::repeat_with(line)
            .take(6)
            .any(|line| line.contains("scout") && line.contains("absent")));
    }
}
