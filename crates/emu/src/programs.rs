//! Starts the robots' programs in their namespaces, forwards their output line by line, and ends them with the run.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::process::{kill_process_group, Pid, Signal};

use crate::ffi;
use crate::namespace::Namespace;
use crate::report::Fate;

/// One of a program's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// Receives output lines: the robot's name, the stream, and the line without its line ending.
pub type Lines = Arc<dyn Fn(&str, Stream, &[u8]) + Send + Sync>;

/// Robots are separate machines: data in shared memory must not reach other robots without the air. `ip netns exec`
/// gives each program its own mounts.
const OWN_MEMORY: &str = "mount -t tmpfs tmpfs /dev/shm && exec \"$@\"";

/// A longer line is forwarded in pieces.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Stack size of a thread that only copies lines.
const STACK_BYTES: usize = 256 << 10;

/// A robot's program, started or not.
pub struct Program {
    robot: String,
    environment: Vec<(String, OsString)>,
    child: Option<Child>,
    readers: Vec<JoinHandle<()>>,
    pub fate: Fate,
}

impl Program {
    pub fn new(robot: &str, environment: Vec<(String, OsString)>) -> Self {
        Program {
            robot: robot.to_owned(),
            environment,
            child: None,
            readers: Vec::new(),
            fate: Fate::None,
        }
    }

    /// Starts it in its namespace and in its own process group, so that Ctrl-C in the terminal reaches only the
    /// emulator.
    pub fn start(&mut self, namespace: &Namespace, program: &[OsString], lines: &Lines) -> io::Result<()> {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", namespace.name(), "sh", "-c", OWN_MEMORY, "sh"])
            .args(program)
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        ffi::die_with_parent(&mut command);
        let mut child = command.spawn()?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        self.child = Some(child);
        if let Some(stdout) = stdout {
            self.readers
                .push(reader(self.robot.clone(), Stream::Stdout, stdout, lines.clone())?);
        }
        if let Some(stderr) = stderr {
            self.readers
                .push(reader(self.robot.clone(), Stream::Stderr, stderr, lines.clone())?);
        }
        Ok(())
    }

    /// Returns whether it is running. If it ended by itself, records how.
    pub fn runs(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                self.child = None;
                self.fate = fate(status);
                false
            }
            // No other code waits for it, so this does not happen; it then counts as ended.
            Err(_) => {
                self.child = None;
                false
            }
        }
    }

    /// Sends a signal to it and to everything that it started.
    pub fn signal(&self, signal: Signal) {
        let process = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let Some(group) = process {
            // It may have ended by itself.
            let _ = kill_process_group(group, signal);
        }
    }

    /// Kills it and everything else in its namespace, and records why.
    pub fn kill(&mut self, namespace: &Namespace, why: Fate) {
        namespace.kill();
        if self.runs() {
            // The program may have left its namespace.
            let _ = self.child.as_mut().map(Child::kill);
        }
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
        self.fate = why;
    }

    /// Waits until all of its output has been forwarded. All processes that kept it open have been killed.
    pub fn finish(&mut self) {
        for reader in self.readers.drain(..) {
            // A panic there has already been reported.
            let _ = reader.join();
        }
    }
}

fn fate(status: ExitStatus) -> Fate {
    match (status.code(), status.signal()) {
        (Some(code), _) => Fate::Exit(code),
        (None, signal) => Fate::Signal(signal.unwrap_or(0)),
    }
}

fn reader(robot: String, stream: Stream, pipe: impl Read + Send + 'static, lines: Lines) -> io::Result<JoinHandle<()>> {
    let copy = move || copy_lines(BufReader::new(pipe), |line| lines(&robot, stream, line));
    thread::Builder::new().stack_size(STACK_BYTES).spawn(copy)
}

fn copy_lines(mut from: impl BufRead, mut to: impl FnMut(&[u8])) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => to(line.strip_suffix(b"\n").unwrap_or(&line)),
        }
    }
}

/// Returns whether the program at the start of a command line exists and is executable.
pub fn exists(program: &Path) -> bool {
    let runnable = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    if program.as_os_str().as_encoded_bytes().contains(&b'/') {
        return runnable(program);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).any(|folder| runnable(&folder.join(program)));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_handed_on_whole_and_endless_ones_in_pieces() {
        let endless = vec![b'x'; LINE_BYTES_MAX as usize + 10];
        let text = [b"one\n\ntwo\r\n".as_slice(), &endless, b"\nlast"].concat();
        let mut lines = Vec::new();
        copy_lines(text.as_slice(), |line| lines.push(line.to_vec()));
        let lengths: Vec<usize> = lines.iter().map(Vec::len).collect();
        assert_eq!(lengths, [3, 0, 4, LINE_BYTES_MAX as usize, 10, 4]);
        assert_eq!(lines[5], b"last");
    }

    #[test]
    fn programs_are_looked_for_as_a_shell_does() {
        assert!(exists(Path::new("sh")) && exists(Path::new("/bin/sh")));
        assert!(
            !exists(Path::new("no-such-program")) && !exists(Path::new("./sh")) && !exists(Path::new("/proc/version"))
        );
    }
}
