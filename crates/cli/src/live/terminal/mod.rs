//! `coorp watch` in a terminal: tables to sort and to filter, lines of the last minute, what to look at and what to do.
//!
//! | file | what |
//! | --- | --- |
//! | `model.rs` | from robots' answers to a minute of each |
//! | `grid.rs` | tables: sorted, filtered, with the columns that fit |
//! | `view.rs` | what the operator has chosen, and what each key changes |
//! | `draw.rs` | from both to the screen |
//!
//! The terminal is as it was before on every way out: a key, a signal, an error, a panic of any thread. Left out: the
//! mouse, whose reports would take the terminal's own selection away, and a stop by SIGSTOP, which nobody can catch.

mod draw;
mod grid;
mod model;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, stdout, IsTerminal, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use coorp_node::watch::{Follower, Watch};
use coorp_team::Team;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::{disable_raw_mode, enable_raw_mode, EnterAlternateScreen, LeaveAlternateScreen};
use ratatui::crossterm::{cursor, execute};
use ratatui::Terminal;
use signal_hook::consts::SIGTSTP;
use signal_hook::low_level::{emulate_default_handler, raise};

use self::model::Model;
use self::view::{Ask, Table, View};
use super::up::Signals;
use super::web::feed::{ask_every, status_every, Feed};
use crate::failure::Failure;

/// Time between two pictures, if no key changes one.
const DRAW_EVERY: Duration = Duration::from_millis(250);
/// Time between two looks for signals and panics.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// If nothing was drawn for so long, because the terminal takes no output, nobody is asked.
const STALLED: Duration = Duration::from_secs(2);
/// Keys handled before the next picture.
const KEYS_MAX: usize = 64;

/// Whether the terminal is ours. Left twice, it would put the cursor back, and a panic's message would be overwritten.
static OURS: AtomicBool = AtomicBool::new(false);
/// A thread has panicked while the terminal was ours.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// Returns whether there is a terminal to draw on and to read keys from.
pub fn is_possible() -> bool {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    io::stdin().is_terminal() && stdout().is_terminal() && !is_dumb
}

/// Shows the team until the operator quits.
///
/// # Errors
/// The terminal takes no output or gives no keys, or a thread has panicked.
pub fn run(team: &Team, watch: Watch) -> Result<(), Failure> {
    let signals = Signals::watch()?;
    let robots = team.robots.len();
    let (began, taken) = (watch.now(), Arc::new(Mutex::new(Instant::now())));
    let wanted = taken.clone();
    let feed = Arc::new(Feed::new(team, began, move || lock(&wanted).elapsed() < STALLED));
    let follower: Arc<dyn Follower> = feed.clone();
    watch.follow(ask_every(robots), status_every(robots), &follower);
    let screen = Screen::open().map_err(|error| unusable(&error))?;
    let ended = show(screen, team, &watch, (&feed, &taken), &signals);
    drop(watch);
    match ended {
        Err(error) => Err(unusable(&error)),
        Ok(End::Quit) => Ok(()),
        Ok(End::Panic) => Err(Failure::Found(
            "failed: a thread has panicked; its message is above, please report it".to_owned(),
        )),
        // The terminal is back: end as the signal asks, so that a shell knows.
        Ok(End::Signal(signal)) => emulate_default_handler(signal).map_err(|error| unusable(&error)),
    }
}

fn unusable(error: &io::Error) -> Failure {
    Failure::Found(format!(
        "failed: cannot use this terminal: {error}; 'coorp watch | cat' prints the same as text"
    ))
}

/// Why it ends.
enum End {
    Quit,
    Panic,
    Signal(i32),
}

/// Draws until it ends. The terminal is restored when this returns.
fn show(
    mut screen: Screen,
    team: &Team,
    watch: &Watch,
    (feed, taken): (&Feed, &Mutex<Instant>),
    signals: &Signals,
) -> io::Result<End> {
    let (mut model, mut view) = (Model::new(team), View::of(Table::Robots));
    for number in 0.. {
        *lock(taken) = Instant::now();
        model.update(feed.batch(number, watch.now(), &watch.refusals()));
        if let Some(end) = asked_to_end(signals) {
            return Ok(end);
        }
        screen.0.draw(|frame| draw::draw(frame, &view, &model))?;
        let until = Instant::now() + DRAW_EVERY;
        loop {
            if let Some(end) = asked_to_end(signals) {
                return Ok(end);
            }
            let left = until.saturating_duration_since(Instant::now());
            if event::poll(left.min(LOOK_EVERY))? {
                match keys(&mut view, &model)? {
                    Ask::Nothing => break,
                    Ask::Quit => return Ok(End::Quit),
                    Ask::Suspend => screen.suspend()?,
                }
            }
            if left.is_zero() {
                break;
            }
        }
    }
    Ok(End::Quit)
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn asked_to_end(signals: &Signals) -> Option<End> {
    if PANICKED.load(Ordering::Acquire) {
        return Some(End::Panic);
    }
    signals.caught().map(End::Signal)
}

/// Handles the keys that have come, up to the first that asks for something.
fn keys(view: &mut View, model: &Model) -> io::Result<Ask> {
    for _ in 0..KEYS_MAX {
        if let Event::Key(key) = event::read()? {
            let ask = if key.is_release() {
                Ask::Nothing
            } else {
                view.on_key(key, model)
            };
            if ask != Ask::Nothing {
                return Ok(ask);
            }
        }
        if !event::poll(Duration::ZERO)? {
            break;
        }
    }
    Ok(Ask::Nothing)
}

/// The terminal while it is ours. Dropping it restores the terminal.
struct Screen(Terminal<CrosstermBackend<Stdout>>);

impl Screen {
    fn open() -> io::Result<Screen> {
        restore_on_panic();
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        let screen = Screen(terminal);
        enter()?;
        Ok(screen)
    }

    /// Stops this process as Ctrl-Z does, until the shell continues it.
    fn suspend(&mut self) -> io::Result<()> {
        leave();
        // Not SIGSTOP: without a shell that could continue it, the kernel ignores this one.
        raise(SIGTSTP)?;
        enter()?;
        self.0.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

fn enter() -> io::Result<()> {
    OURS.store(true, Ordering::Release);
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen, cursor::Hide)
}

/// Restores the terminal as far as possible: it may be gone.
fn leave() {
    if !OURS.swap(false, Ordering::AcqRel) {
        return;
    }
    let _ = execute!(stdout(), LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
}

/// Lets a panic of any thread restore the terminal before its message, and end the program.
fn restore_on_panic() {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, Ordering::Release);
            leave();
            usual(info);
        }));
    });
}
