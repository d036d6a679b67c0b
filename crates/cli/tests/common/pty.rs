//! A terminal for a test: a program runs in it, gets keys, and draws on a screen that can be read.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::pty::{grantpt, openpt, ptsname, unlockpt, OpenptFlags};
use rustix::termios::{tcgetattr, tcsetwinsize, LocalModes, Winsize};

/// Limit on every wait; no test measures it.
const LONG: Duration = Duration::from_secs(60);

/// A program in a terminal.
pub struct Pty {
    ours: File,
    /// Kept open, so that the terminal stays when the program ends.
    theirs: File,
    output: Receiver<Vec<u8>>,
    pub screen: Screen,
    pub child: Child,
}

impl Pty {
    /// Starts a program in a terminal of this size, as a session of its own.
    pub fn start(program: &Command, columns: u16, rows: u16) -> Pty {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&ours, size).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let ours = File::from(ours);
        // In a session of its own, Ctrl-C and a stop reach this program alone.
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(program.get_program())
            .args(program.get_args());
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        for (name, value) in program.get_envs() {
            command.env(name, value.unwrap());
        }
        if let Some(folder) = program.get_current_dir() {
            command.current_dir(folder);
        }
        let end = || theirs.try_clone().unwrap();
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let (sends, output) = mpsc::channel();
        let mut reads = ours.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4_096];
            while let Ok(count @ 1..) = reads.read(&mut bytes) {
                if sends.send(bytes[..count].to_vec()).is_err() {
                    break;
                }
            }
        });
        Pty {
            ours,
            theirs,
            output,
            screen: Screen::new(usize::from(columns), usize::from(rows)),
            child,
        }
    }

    /// Types.
    pub fn type_in(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen is as wanted.
    pub fn until(&mut self, what: &str, is_so: impl Fn(&Screen) -> bool) {
        let began = Instant::now();
        while !is_so(&self.screen) {
            assert!(began.elapsed() < LONG, "not {what}:\n{}", self.screen.text());
            self.take(Duration::from_millis(100));
        }
    }

    /// Waits until the screen shows this text.
    pub fn until_shown(&mut self, text: &str) {
        self.until(text, |screen| screen.text().contains(text));
    }

    /// Waits until the program ends.
    pub fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < LONG, "it does not end:\n{}", self.screen.text());
            self.take(Duration::from_millis(20));
        }
    }

    /// Whether the terminal reads lines and echoes them, as a shell expects.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.theirs).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits until the terminal is as it was before a program took it.
    pub fn until_restored(&mut self) {
        self.until("restored", |screen| !screen.is_alternate && !screen.is_cursor_hidden);
        assert!(self.is_cooked());
    }

    fn take(&mut self, within: Duration) -> bool {
        match self.output.recv_timeout(within) {
            Ok(bytes) => {
                self.screen.write(&bytes);
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a terminal shows: as much of its language as `coorp watch` speaks.
#[derive(Default)]
pub struct Screen {
    lines: Vec<Vec<char>>,
    columns: usize,
    at: (usize, usize),
    pub is_alternate: bool,
    pub is_cursor_hidden: bool,
    /// The bytes of an unfinished sequence.
    rest: Vec<u8>,
}

impl Screen {
    fn new(columns: usize, rows: usize) -> Screen {
        Screen {
            lines: vec![vec![' '; columns]; rows],
            columns,
            ..Screen::default()
        }
    }

    /// The lines, without spaces at their ends.
    pub fn text(&self) -> String {
        let lines = self.lines.iter().map(|line| line.iter().collect::<String>());
        lines.map(|line| line.trim_end().to_owned() + "\n").collect()
    }

    fn clear(&mut self) {
        let rows = self.lines.len();
        self.lines = vec![vec![' '; self.columns]; rows];
    }

    fn write(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(text) => text.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = String::from_utf8(self.rest[..whole].to_vec()).unwrap();
        let mut used = 0;
        while let Some(length) = self.take(&text[used..]) {
            used += length;
        }
        self.rest.drain(..used);
    }

    /// Takes one character or sequence; returns its length, if it is whole.
    fn take(&mut self, text: &str) -> Option<usize> {
        let first = text.chars().next()?;
        if first != '\x1b' {
            self.put(first);
            return Some(first.len_utf8());
        }
        let rest = &text[1..];
        let Some(sequence) = rest.strip_prefix('[') else {
            // Two characters, such as those that save the cursor.
            return rest.chars().next().map(|second| 1 + second.len_utf8());
        };
        let end = sequence.find(|c: char| c.is_ascii_alphabetic() || c == '~')?;
        self.control(&sequence[..end], &sequence[end..=end]);
        Some(2 + end + 1)
    }

    fn put(&mut self, character: char) {
        let (row, column) = self.at;
        match character {
            '\r' => self.at.1 = 0,
            '\n' if row + 1 < self.lines.len() => self.at.0 += 1,
            '\n' => {
                self.lines.remove(0);
                self.lines.push(vec![' '; self.columns]);
            }
            character if !character.is_control() => {
                if let Some(cell) = self.lines.get_mut(row).and_then(|line| line.get_mut(column)) {
                    *cell = character;
                }
                self.at.1 += 1;
            }
            _ => {}
        }
    }

    fn control(&mut self, parameters: &str, end: &str) {
        match (parameters, end) {
            ("?1049", "h") => {
                self.is_alternate = true;
                self.clear();
            }
            ("?1049", "l") => {
                self.is_alternate = false;
                self.clear();
                self.at = (0, 0);
            }
            ("?25", "l") => self.is_cursor_hidden = true,
            ("?25", "h") => self.is_cursor_hidden = false,
            ("2", "J") => self.clear(),
            (place, "H") => {
                let mut numbers = place.split(';').map(|number| number.parse::<usize>().unwrap_or(1) - 1);
                self.at = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
            }
            // Colours and the like.
            _ => {}
        }
    }
}
