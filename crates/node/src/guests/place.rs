//! Finds an agent's socket, and decides who may use it.
//!
//! The socket is `agent.sock` in the robot's state folder, which only its user can access. If other users must reach
//! it, it is `/run/coorp/ROBOT/TEAM.sock`: for a service with that `RuntimeDirectory=`, and for root with the default
//! state folder. Only root can create a socket there. The agent's user, root, the user who has called `sudo`, and
//! members of the agent's group (unless that is root's) may join.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::unistd::{getegid, geteuid, getgrouplist, Gid, Uid, User};

use crate::file_name::file_name;
use crate::state;

/// The folder of agents that other users may reach.
const RUN: &str = "/run/coorp";
/// The socket's name in a state folder.
const NAME: &str = "agent.sock";
/// The variable by which `coorp emu` tells programs where their robot's agent is.
const GIVEN: &str = "COORP_AGENT";
/// The longest path of a socket that Linux accepts, bytes.
const PATH_BYTES_MAX: usize = 107;

/// A socket's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// Returns the place at which a robot's agent listens, given its state folder.
    pub fn to_listen(team: &str, robot: &str, state: &Path) -> Place {
        let run = Path::new(RUN).join(file_name(robot));
        let is_service = std::env::var_os("RUNTIME_DIRECTORY").is_some_and(|folder| Path::new(&folder) == run);
        let is_default = || {
            let is_moved = std::env::var_os("XDG_STATE_HOME").is_some_and(|folder| !folder.is_empty());
            !is_moved && state::folder(team, robot).is_ok_and(|folder| folder == state)
        };
        if is_service || (geteuid().is_root() && is_default()) {
            return Place::run(team, robot);
        }
        Place(state.join(NAME))
    }

    /// Returns the places at which a program looks for a robot's agent.
    pub fn to_find(team: &str, robot: &str, state: Option<&Path>) -> Vec<Place> {
        let given = || std::env::var_os(GIVEN).filter(|folder| !folder.is_empty());
        let own = match state {
            Some(state) => Some(state.to_owned()),
            None => given().map(PathBuf::from).or_else(|| state::folder(team, robot).ok()),
        };
        let own = own.map(|state| Place(state.join(NAME)));
        // A program that names a state folder means that robot, and no other robot of the machine.
        let run = state.is_none().then(|| Place::run(team, robot));
        own.into_iter().chain(run).collect()
    }

    fn run(team: &str, robot: &str) -> Place {
        let socket = format!("{}.sock", file_name(team));
        Place(Path::new(RUN).join(file_name(robot)).join(socket))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Connects to the agent that listens at this place.
    pub fn connect(&self) -> io::Result<UnixStream> {
        self.shortly(|path| UnixStream::connect(path))
    }

    /// Listens at this place, and replaces an agent that has died.
    ///
    /// # Errors
    /// If another agent lives there, or the socket cannot be created.
    pub fn listen(&self) -> io::Result<UnixListener> {
        if let Some(folder) = self.0.parent().filter(|folder| folder.starts_with(RUN)) {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        }
        if self.connect().is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens there"));
        }
        self.remove();
        let listener = self.shortly(|path| UnixListener::bind(path))?;
        // Anyone may connect; the agent then checks the peer's credentials.
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o666))?;
        Ok(listener)
    }

    /// Removes the socket, so that programs do not wait for its agent to come back.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.0);
    }

    /// Calls `what` with the path, or with a short alias if the path is too long.
    fn shortly<T>(&self, what: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        let (folder, name) = (self.0.parent(), self.0.file_name());
        match (folder, name) {
            (Some(folder), Some(name)) if self.0.as_os_str().len() > PATH_BYTES_MAX => {
                let folder: File = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(folder)?;
                let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string());
                what(&short.join(name))
            }
            _ => what(&self.0),
        }
    }
}

/// Returns whether a user may join this process's robot.
pub(super) fn admits(user: u32, group: u32) -> bool {
    let own = geteuid();
    let caller = std::env::var("SUDO_UID").ok().filter(|_| own.is_root());
    let is_caller = caller.is_some_and(|caller| caller == user.to_string());
    user == 0 || user == own.as_raw() || is_caller || is_member(Uid::from_raw(user), Gid::from_raw(group))
}

/// Returns whether a user is in this process's group.
fn is_member(user: Uid, group: Gid) -> bool {
    let own = getegid();
    if own.as_raw() == 0 {
        return false;
    }
    let by_database = || {
        let name = User::from_uid(user).ok()??.name;
        getgrouplist(&CString::new(name).ok()?, group).ok()
    };
    group == own || by_database().is_some_and(|groups| groups.contains(&own))
}
