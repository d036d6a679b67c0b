//! A process's membership of a domain, from which it opens senders and receivers.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::attendant::Attendant;
use crate::bell::{after, Bell};
use crate::name::Name;
use crate::receiver::{Incoming, Receiver, ReceiverOptions};
use crate::sender::{Outgoing, Sender, SenderOptions};
use crate::sync::lock;
use crate::wire::EndpointId;
use crate::{socket, Error};

/// The options for joining a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DomainOptions {
    /// Time limit for joining, and for opening a channel.
    pub timeout: Duration,
}

impl Default for DomainOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(5),
        }
    }
}

/// Membership of a domain: the processes of one application, one user and one machine that exchange payloads.
///
/// The membership ends when this, and every sender and receiver opened from it, are dropped.
#[derive(Debug)]
pub struct Domain {
    core: Arc<Core>,
}

impl Domain {
    /// Joins a domain. The first process to join creates it.
    ///
    /// # Errors
    ///
    /// If the name is invalid, another user or version has the domain, or its host does not answer in time.
    pub fn join(name: &str, options: DomainOptions) -> Result<Self, Error> {
        let name = Name::new(name)?;
        let address = socket::address(&name).map_err(|source| Error::System {
            what: "name a socket",
            source,
        })?;
        let wake = Bell::new()?;
        let shared = Arc::new(Shared {
            wake,
            commands: Mutex::new(Vec::new()),
            board: Mutex::new(Board::default()),
            changed: Condvar::new(),
        });
        let label = format!("coorp-local/{}", name.as_str());
        let attendant = Attendant::new(shared.clone(), label.clone(), address);
        let thread = std::thread::Builder::new()
            .name("coorp-local".to_owned())
            .spawn(move || attendant.run());
        let thread = thread.map_err(|source| Error::System {
            what: "start a thread",
            source,
        })?;
        let core = Core {
            shared,
            label,
            options,
            thread: Mutex::new(Some(thread)),
            process: std::process::id(),
        };
        core.await_joined()?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Opens the writing end of a channel, connected to all its receivers that answer.
    ///
    /// # Errors
    ///
    /// If the name or the options are invalid, the domain is full, or its host does not answer in time.
    pub fn sender(&self, channel: &str, options: SenderOptions) -> Result<Sender, Error> {
        let id = EndpointId::random()?;
        let label = format!("{}/payloads", self.core.label);
        let outgoing = Arc::new(Outgoing::new(id, Name::new(channel)?, options, &label)?);
        self.core.open(id, Command::OpenSender(outgoing.clone()))?;
        Ok(Sender::new(outgoing, self.core.clone()))
    }

    /// Opens the reading end of a channel, connected to all its senders that answer.
    ///
    /// # Errors
    ///
    /// As for [`Domain::sender`].
    pub fn receiver(&self, channel: &str, options: ReceiverOptions) -> Result<Receiver, Error> {
        options.check()?;
        let id = EndpointId::random()?;
        let incoming = Arc::new(Incoming::new(id, Name::new(channel)?)?);
        self.core.open(id, Command::OpenReceiver(incoming.clone()))?;
        Ok(Receiver::new(incoming, self.core.clone(), options))
    }
}

/// A request to the attendant.
#[derive(Debug)]
pub(crate) enum Command {
    OpenSender(Arc<Outgoing>),
    OpenReceiver(Arc<Incoming>),
    Close(EndpointId),
    CloseLink { endpoint: EndpointId, peer: EndpointId },
    Stop,
}

/// An endpoint that is being opened.
#[derive(Debug, Default)]
struct Opening {
    /// Whether the host has answered.
    answered: bool,
    /// The number of peers whose links are not complete.
    linking: i64,
    error: Option<Error>,
}

/// The state that the attendant shows to the threads that wait for it.
#[derive(Debug, Default)]
struct Board {
    joined: bool,
    /// The reason why the domain can never be joined.
    refusal: Option<Error>,
    /// The current obstacle.
    problem: String,
    opening: HashMap<EndpointId, Opening>,
}

/// The state that the attendant shares with the process's other threads.
#[derive(Debug)]
pub(crate) struct Shared {
    pub wake: Bell,
    commands: Mutex<Vec<Command>>,
    board: Mutex<Board>,
    changed: Condvar,
}

impl Shared {
    pub fn take_commands(&self) -> Vec<Command> {
        std::mem::take(&mut *lock(&self.commands))
    }

    fn command(&self, command: Command) {
        lock(&self.commands).push(command);
        self.wake.ring();
    }

    fn change(&self, change: impl FnOnce(&mut Board)) {
        change(&mut lock(&self.board));
        self.changed.notify_all();
    }

    pub fn joined(&self) {
        self.change(|board| (board.joined, board.refusal) = (true, None));
    }

    pub fn lost(&self, problem: String) {
        self.change(|board| (board.joined, board.problem) = (false, problem));
    }

    pub fn refuse(&self, error: Error) {
        self.change(|board| {
            board.problem = error.to_string();
            board.refusal = Some(error);
        });
    }

    /// Records that the host has answered, or that the endpoint cannot be opened.
    pub fn opened(&self, endpoint: EndpointId, error: Option<Error>) {
        self.change(|board| {
            if let Some(opening) = board.opening.get_mut(&endpoint) {
                opening.answered = true;
                opening.error = error.or(opening.error.take());
            }
        });
    }

    /// Adds `more` to the number of an endpoint's links that are not complete.
    pub fn linking(&self, endpoint: EndpointId, more: i64) {
        self.change(|board| {
            if let Some(opening) = board.opening.get_mut(&endpoint) {
                opening.linking += more;
            }
        });
    }

    /// Waits until `look` finds something on the board, or the time is over.
    fn wait<T>(&self, deadline: Instant, mut look: impl FnMut(&mut Board) -> Option<T>) -> Option<T> {
        let mut board = lock(&self.board);
        loop {
            if let Some(seen) = look(&mut board) {
                return Some(seen);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            let woken = self.changed.wait_timeout(board, left);
            board = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The membership itself.
#[derive(Debug)]
pub(crate) struct Core {
    shared: Arc<Shared>,
    label: String,
    options: DomainOptions,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// The process that joined. A forked child has no attendant.
    process: u32,
}

impl Core {
    #[inline]
    pub fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    pub fn wake(&self) {
        self.shared.wake.ring();
    }

    pub fn close(&self, endpoint: EndpointId) {
        if !self.is_forked() {
            self.shared.command(Command::Close(endpoint));
        }
    }

    pub fn close_link(&self, endpoint: EndpointId, peer: EndpointId) {
        self.shared.command(Command::CloseLink { endpoint, peer });
    }

    pub fn wait_until(&self, deadline: Instant, mut condition: impl FnMut() -> bool) -> bool {
        self.shared.wait(deadline, |_| condition().then_some(())).is_some()
    }

    fn await_joined(&self) -> Result<(), Error> {
        let deadline = after(self.options.timeout);
        let outcome = self.shared.wait(deadline, |board| match board.refusal.take() {
            Some(refusal) => Some(Err(refusal)),
            None => board.joined.then_some(Ok(())),
        });
        outcome.unwrap_or_else(|| Err(self.unreachable()))
    }

    fn unreachable(&self) -> Error {
        Error::Unreachable {
            waited: self.options.timeout,
            problem: lock(&self.shared.board).problem.clone(),
        }
    }

    /// Opens an endpoint, and waits until it is connected to its peers. A peer that does not answer, for example
    /// because it is stopped, is connected later.
    fn open(&self, id: EndpointId, command: Command) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let deadline = after(self.options.timeout);
        lock(&self.shared.board).opening.insert(id, Opening::default());
        self.shared.command(command);
        let complete = self.shared.wait(deadline, |board| {
            let opening = board.opening.get_mut(&id)?;
            match board.refusal.take().or(opening.error.take()) {
                Some(error) => Some(Err(error)),
                None => (opening.answered && opening.linking <= 0).then_some(Ok(())),
            }
        });
        let opening = lock(&self.shared.board).opening.remove(&id).unwrap_or_default();
        let outcome = complete.unwrap_or_else(|| {
            if opening.answered {
                Ok(())
            } else {
                Err(self.unreachable())
            }
        });
        if outcome.is_err() {
            self.close(id);
        }
        outcome
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let thread = lock(&self.thread).take();
        if self.is_forked() {
            // The thread belongs to the parent.
            std::mem::forget(thread);
            return;
        }
        self.shared.command(Command::Stop);
        // A panic of the attendant was already printed.
        let _ = thread.map(JoinHandle::join);
    }
}
