//! A machine of a trial: it starts a robot repeatedly, is killed, freezes, loses its power, and runs out of descriptors
//! and of room on its disk.

use std::ffi::OsString;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration as StdDuration;

use coorp_core::{Duration, RobotId};
use coorp_team::{Robot, Team};
use nix::errno::Errno;
use rand::{Rng, RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;
use tokio::runtime::EnterGuard;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::disk::{Mounted, Platter};
use super::network::{Network, Unused};
use crate::discovery::Place;
use crate::ground::{Bound, Disk, Ground, Signal, Spawn, Task, Threads, Work, Worker};
use crate::sync::lock;
use crate::{Error, Node, Options};

/// The maximum drift of a clock, ahead or behind, in parts per million.
const DRIFT_MAX_PPM: i64 = 40;
/// The Unix time at the beginning, in seconds.
const UNIX_S: u64 = 1_790_000_000;
const MTU: u16 = 1_500;
/// The power fails after at most this many changes of the disk, or at any moment.
const FUSE_MAX: u32 = 24;

/// A machine.
#[derive(Debug)]
pub struct Machine {
    robot: RobotId,
    began: Instant,
    network: Arc<Network>,
    rng: Mutex<Xoshiro256PlusPlus>,
    drift_ppm: i64,
    clocks: Mutex<Clocks>,
    /// The process that runs.
    life: Mutex<Option<Life>>,
    disk: Arc<Platter>,
    /// Notified when the power has failed while the disk was written.
    dark: Notify,
}

/// The offsets of a machine's clocks.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    boot: Duration,
    unix: StdDuration,
}

impl Machine {
    pub(super) fn new(robot: RobotId, seed: u64, began: Instant, network: &Arc<Network>) -> Arc<Machine> {
        let own = seed ^ u64::from(robot.0) << 48 ^ 0x006d_6163_6869;
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(own);
        Arc::new_cyclic(|machine: &Weak<Machine>| Machine {
            disk: Arc::new(Platter::new(own, began, {
                let machine = machine.clone();
                move || machine.upgrade().iter().for_each(|machine| machine.go_dark())
            })),
            dark: Notify::new(),
            robot,
            began,
            network: network.clone(),
            drift_ppm: rng.random_range(-DRIFT_MAX_PPM..=DRIFT_MAX_PPM),
            rng: Mutex::new(rng),
            clocks: Mutex::default(),
            life: Mutex::default(),
        })
    }

    /// Starts a process: `program` gets what it needs to open its node and to start tasks.
    pub fn start<F>(self: &Arc<Self>, program: impl FnOnce(Process) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let life = Life::default();
        *lock(&self.life) = Some(life.clone());
        let ground = Arc::new(Simulated {
            machine: self.clone(),
            life: life.clone(),
        });
        let task = program(Process(ground));
        life.spawn(Box::pin(task));
    }

    /// Kills the process, which notifies nobody.
    pub fn kill(&self) {
        if let Some(life) = lock(&self.life).take() {
            life.end();
        }
    }

    /// Freezes the process, or resumes it.
    pub fn freeze(&self, frozen: bool) {
        let life = lock(&self.life).clone();
        if let Some(life) = life {
            life.freeze(frozen);
        }
    }

    /// Cuts the power within `within`, often while something is written: the process ends, the cards fall silent, and
    /// the disk may have lost what was not synced.
    pub async fn cut(&self, within: StdDuration) {
        let fuse = {
            let mut rng = lock(&self.rng);
            rng.random::<bool>().then(|| rng.random_range(0..FUSE_MAX))
        };
        if fuse.is_some() {
            self.disk.set_fuse(fuse);
            if tokio::time::timeout(within, self.dark.notified()).await.is_ok() {
                return;
            }
        }
        self.disk.cut();
        self.go_dark();
    }

    fn go_dark(&self) {
        self.kill();
        self.network.switch(self.robot, true);
        self.dark.notify_waiters();
    }

    /// Switches the power on again.
    pub fn switch_on(&self) {
        self.network.switch(self.robot, false);
    }

    /// Fills the disk until this many bytes are left, or frees it again.
    pub fn fill_disk(&self, room: Option<u64>) {
        self.disk.fill(room);
    }

    /// Sets whether there are descriptors left for files and sockets.
    pub fn set_descriptors(&self, some: bool) {
        self.disk.set_descriptors(some);
    }

    /// Creates a folder on the disk, which survives power cuts.
    ///
    /// # Errors
    /// If a file is in its place.
    pub fn make_folder(&self, folder: &Path) -> io::Result<()> {
        self.disk.make(folder)
    }

    /// Returns the files in a folder of the disk, with their names.
    ///
    /// # Errors
    /// If there is no such folder.
    pub fn files(&self, folder: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>> {
        self.disk.files(folder)
    }

    /// Returns the memory that the files on the disk take, in bytes.
    pub fn disk_bytes(&self) -> usize {
        self.disk.bytes()
    }

    /// Removes a file from the disk, also after power cuts.
    pub fn lose(&self, file: &Path) {
        self.disk.lose(file);
    }

    /// Sets all clocks ahead, as seen by the next process.
    pub fn set_clocks(&self, ahead: StdDuration) {
        let mut clocks = lock(&self.clocks);
        clocks.boot += Duration::from_secs(ahead.as_secs());
        clocks.unix += ahead;
    }
}

/// A process of a machine. It ends with its machine's next [`Machine::kill`].
#[derive(Clone, Debug)]
pub struct Process(Arc<Simulated>);

impl Process {
    /// Opens its node. The state folder is on the machine's disk, the keys are on the real one.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open(&self, options: Options) -> Result<Node, Error> {
        Node::open_on(self.0.clone(), options)
    }

    /// Returns whether it has been killed, or has lost its power.
    pub fn is_over(&self) -> bool {
        self.0.life.is_over()
    }

    /// Starts a task of the process.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.life.spawn(Box::pin(task));
    }
}

/// The ground of one process.
#[derive(Debug)]
struct Simulated {
    machine: Arc<Machine>,
    life: Life,
}

impl Ground for Simulated {
    fn now(&self) -> Duration {
        let machine = &self.machine;
        let elapsed = i128::try_from(machine.began.elapsed().as_nanos()).unwrap_or(i128::MAX);
        let own = elapsed + elapsed * i128::from(machine.drift_ppm) / 1_000_000;
        // Every machine has been up for a while.
        Duration::from_secs(1_000) + Duration::from_nanos(u64::try_from(own).unwrap_or(0)) + lock(&machine.clocks).boot
    }

    fn unix(&self) -> StdDuration {
        StdDuration::from_secs(UNIX_S) + self.machine.began.elapsed() + lock(&self.machine.clocks).unix
    }

    fn random(&self) -> u64 {
        lock(&self.machine.rng).next_u64()
    }

    fn quic_seed(&self) -> Option<[u8; 32]> {
        let mut seed = [0; 32];
        lock(&self.machine.rng).fill_bytes(&mut seed);
        Some(seed)
    }

    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(Mounted {
            disk: self.machine.disk.clone(),
            life: self.life.clone(),
        })
    }

    fn threads(&self, _: usize, _: &str, _: fn()) -> io::Result<Threads> {
        Ok(Threads::new(Arc::new(self.life.clone()), None))
    }

    fn worker(&self, _: &str, _: fn(), mut work: Work) -> io::Result<Worker> {
        let woken = Arc::new(Notify::new());
        let signal = Signal::Task(woken.clone());
        self.life.spawn(Box::pin(async move {
            while let Some(rest) = work() {
                let _ = tokio::time::timeout(rest, woken.notified()).await;
            }
        }));
        Ok(Worker::new(signal, None))
    }

    fn bind(&self, at: SocketAddr, _: Option<&String>) -> io::Result<Box<dyn Bound>> {
        if !self.machine.disk.has_descriptors() {
            return Err(Errno::EMFILE.into());
        }
        let udp = self.machine.network.bind(at)?;
        Ok(Box::new(Unused(udp)))
    }

    fn mtu(&self, _: SocketAddr, _: (IpAddr, Option<&String>)) -> Option<u16> {
        Some(MTU)
    }

    fn check_here(&self, _: &Robot, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn places(&self, _: &Team, _: Option<RobotId>, _: usize) -> Vec<Place> {
        Vec::new()
    }
}

/// The tasks of a process.
#[derive(Clone, Default)]
pub(super) struct Life(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    is_over: bool,
    is_frozen: bool,
    /// The tasks that were woken while the process was frozen.
    waiting: Vec<Waker>,
    tasks: Vec<AbortHandle>,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Life").finish_non_exhaustive()
    }
}

impl Life {
    pub fn is_over(&self) -> bool {
        lock(&self.0).is_over
    }

    fn end(&self) {
        let tasks = {
            let mut state = lock(&self.0);
            state.is_over = true;
            state.waiting.clear();
            std::mem::take(&mut state.tasks)
        };
        tasks.iter().for_each(AbortHandle::abort);
    }

    fn freeze(&self, frozen: bool) {
        let waiting = {
            let mut state = lock(&self.0);
            state.is_frozen = frozen;
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Spawn for Life {
    fn spawn(&self, task: Task) {
        let mut state = lock(&self.0);
        if state.is_over {
            return;
        }
        if state.tasks.len() >= 64 && state.tasks.len().is_power_of_two() {
            state.tasks.retain(|task| !task.is_finished());
        }
        let life = self.clone();
        let task = tokio::spawn(Living { life, task });
        state.tasks.push(task.abort_handle());
    }

    fn enter(&self) -> Option<EnterGuard<'_>> {
        None
    }
}

/// A task of a process, which freezes with it.
struct Living {
    life: Life,
    task: Task,
}

impl Future for Living {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = lock(&self.life.0);
            if state.is_over {
                return Poll::Ready(());
            }
            if state.is_frozen {
                state.waiting.push(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.task.as_mut().poll(cx)
    }
}
