//! What an operator has chosen to see, and what each key changes.

use coorp_node::status::Permit;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::grid::{Cell, Grid, Sort};
use super::model::{quantile, Model, Robot, Second};
use crate::live::watch;
use crate::table::DASH;

/// The length of a filter.
const FILTER_MAX: usize = 40;

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Robots,
    Topics,
    Paths,
    Gathered,
    Flows,
}

impl Table {
    pub const ALL: [Table; 5] = [
        Table::Robots,
        Table::Topics,
        Table::Paths,
        Table::Gathered,
        Table::Flows,
    ];

    pub fn title(self) -> &'static str {
        match self {
            Table::Robots => "robots",
            Table::Topics => "control",
            Table::Paths => "paths",
            Table::Gathered => "gathered",
            Table::Flows => "flows",
        }
    }
}

/// What lies over the tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Over {
    #[default]
    Nothing,
    /// The selected row in full.
    Detail,
    Alarms,
    Help,
}

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    Nothing,
    Quit,
    Suspend,
}

/// The operator's choices.
#[derive(Clone, Debug)]
pub struct View {
    pub table: Table,
    /// Of each table, its order and the names of the selected row.
    sorts: [Option<Sort>; Table::ALL.len()],
    selected: [Option<Vec<String>>; Table::ALL.len()],
    pub over: Over,
    /// By how many lines what lies over the tables is moved.
    pub scroll: u16,
    pub filter: String,
    /// Whether keys go to the filter.
    pub typing: bool,
    /// The team as it was when the operator paused.
    pub paused: Option<Box<Model>>,
}

impl View {
    /// A table, with nothing chosen.
    pub fn of(table: Table) -> View {
        View {
            table,
            sorts: Default::default(),
            selected: Default::default(),
            over: Over::Nothing,
            scroll: 0,
            filter: String::new(),
            typing: false,
            paused: None,
        }
    }

    /// The team as it is to be shown.
    pub fn shown<'m>(&'m self, live: &'m Model) -> &'m Model {
        self.paused.as_deref().unwrap_or(live)
    }

    pub fn sort(&self) -> Option<Sort> {
        self.sorts[self.table as usize]
    }

    /// The shown table, in order.
    pub fn grid(&self, model: &Model) -> Grid {
        let mut grid = grid(model, self.table);
        grid.arrange(self.sort(), &self.filter);
        grid
    }

    /// The selected row: the first one, unless another was chosen and is still there.
    pub fn row(&self, grid: &Grid) -> Option<usize> {
        let chosen = self.selected[self.table as usize].as_ref();
        let row = chosen.and_then(|key| grid.rows.iter().position(|row| grid.key(row) == *key));
        row.or((!grid.rows.is_empty()).then_some(0))
    }

    /// Handles a key.
    pub fn on_key(&mut self, key: KeyEvent, live: &Model) -> Ask {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Ask::Quit,
                KeyCode::Char('z') => Ask::Suspend,
                _ => Ask::Nothing,
            };
        }
        if self.typing {
            self.on_typed(key.code);
            return Ask::Nothing;
        }
        match key.code {
            KeyCode::Char('q') => return Ask::Quit,
            KeyCode::Char('?') | KeyCode::F(1) => self.toggle(Over::Help),
            KeyCode::Char('a') => self.toggle(Over::Alarms),
            KeyCode::Enter => self.toggle(Over::Detail),
            KeyCode::Esc => self.back(),
            KeyCode::Char(' ') => {
                self.paused = match self.paused {
                    Some(_) => None,
                    None => Some(Box::new(live.clone())),
                }
            }
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Tab => self.step(1),
            KeyCode::BackTab => self.step(Table::ALL.len() - 1),
            KeyCode::Char(digit @ '1'..='5') => self.table = Table::ALL[digit as usize - '1' as usize],
            _ if self.over == Over::Help || self.over == Over::Alarms => self.on_scroll(key.code),
            _ => self.on_table(key.code, live),
        }
        Ask::Nothing
    }

    fn on_typed(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => (self.typing, self.filter) = (false, String::new()),
            KeyCode::Backspace => _ = self.filter.pop(),
            KeyCode::Char(typed) if self.filter.chars().count() < FILTER_MAX => self.filter.push(typed),
            _ => {}
        }
    }

    fn toggle(&mut self, over: Over) {
        self.over = if self.over == over { Over::Nothing } else { over };
        self.scroll = 0;
    }

    /// Leaves what was entered last.
    fn back(&mut self) {
        if self.over == Over::Nothing {
            self.filter.clear();
        }
        self.over = Over::Nothing;
    }

    fn step(&mut self, by: usize) {
        self.table = Table::ALL[(self.table as usize + by) % Table::ALL.len()];
    }

    fn on_scroll(&mut self, code: KeyCode) {
        match code {
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            _ => {}
        }
    }

    fn on_table(&mut self, code: KeyCode, live: &Model) {
        let grid = self.grid(self.shown(live));
        let last = grid.rows.len().saturating_sub(1);
        let row = self.row(&grid).unwrap_or(0);
        let row = match code {
            KeyCode::Down | KeyCode::Char('j') => row + 1,
            KeyCode::Up | KeyCode::Char('k') => row.saturating_sub(1),
            KeyCode::PageDown => row + 10,
            KeyCode::PageUp => row.saturating_sub(10),
            KeyCode::Home | KeyCode::Char('g') => 0,
            KeyCode::End | KeyCode::Char('G') => last,
            KeyCode::Right | KeyCode::Char('l' | '>') => return self.sort_by(grid.titles.len(), 1),
            KeyCode::Left | KeyCode::Char('h' | '<') => return self.sort_by(grid.titles.len(), -1),
            KeyCode::Char('r') => {
                let sort = &mut self.sorts[self.table as usize];
                let (column, descends) = sort.unwrap_or((0, false));
                *sort = Some((column, !descends));
                return;
            }
            _ => return,
        };
        let key = grid.rows.get(row.min(last)).map(|row| grid.key(row));
        self.selected[self.table as usize] = key;
    }

    /// Sorts by the column beside; left of the first one is the team file's order.
    fn sort_by(&mut self, columns: usize, by: isize) {
        let sort = &mut self.sorts[self.table as usize];
        let places = columns as isize + 1;
        let place = sort.map_or(0, |(column, _)| column as isize + 1);
        let place = (place + by).rem_euclid(places);
        let descends = sort.is_some_and(|(_, descends)| descends);
        *sort = usize::try_from(place - 1).ok().map(|column| (column, descends));
    }
}

/// A table of the team.
fn grid(model: &Model, table: Table) -> Grid {
    let name = |place| model.name(place);
    match table {
        Table::Robots => robots(model),
        Table::Topics => topics(model),
        Table::Paths => watch::choices(&model.here(), name).into(),
        Table::Gathered => watch::gathered(&model.here(), name).into(),
        Table::Flows => watch::flows(&model.here()).into(),
    }
}

/// How many rows each table has.
pub fn counts(model: &Model) -> [usize; Table::ALL.len()] {
    Table::ALL.map(|table| grid(model, table).rows.len())
}

/// The slowest loop and the oldest control of a second.
pub fn slowest(second: &Second) -> Option<f64> {
    second.took.iter().copied().reduce(f64::max)
}

pub fn oldest(second: &Second) -> Option<f64> {
    second.aged.iter().copied().reduce(f64::max)
}

/// The highest figure of all robots within the last minute, and at least 1.
fn highest(model: &Model, figure: fn(&Second) -> Option<f64>) -> f64 {
    let all = model
        .robots
        .iter()
        .flat_map(|robot| robot.minute.line(model.now, figure));
    all.flatten().fold(1.0, f64::max)
}

/// One row per robot. The last columns are the first to go if there is no room.
fn robots(model: &Model) -> Grid {
    let titles = [
        "robot",
        "is",
        "permit",
        "reaction",
        "late",
        "age",
        "Mbit/s\nout",
        "Mbit/s\nin",
        "slowest\nloop",
        "oldest\ncontrol",
        "bulk\nout",
        "bulk\nwaits",
        "in the\ncard",
        "hears",
        "clock",
        "refused",
        "lost\nevents",
        "known by",
        "paths",
    ];
    let bound = model.bound_ms();
    let loops = bound.map_or_else(|| highest(model, slowest), |bound| 1.25 * bound);
    let tops = [loops, highest(model, oldest), highest(model, |second| second.sent)];
    Grid {
        titles: titles.map(str::to_owned).to_vec(),
        names: 1,
        rows: model
            .shown()
            .map(|(of, robot)| row(model, &of.name, robot, tops))
            .collect(),
    }
}

fn row(model: &Model, name: &str, robot: &Robot, tops: [f64; 3]) -> Vec<Cell> {
    let (now, bound) = (model.now, model.bound_ms());
    let status = robot.here();
    let dash = || DASH.to_owned();
    let took = robot.minute.recent(now, |second| &second.took);
    let aged = robot.minute.recent(now, |second| &second.aged);
    let late = bound.filter(|_| !took.is_empty()).map(|bound| {
        let late = took.iter().filter(|took| **took > bound).count();
        format!("{:.1} %", 100.0 * late as f64 / took.len() as f64)
    });
    let median = |values: Vec<f64>| quantile(values, 0.5).map_or_else(dash, |ms| format!("{ms:.1} ms"));
    let is = match status {
        Some(status) if status.leads => "leads",
        Some(_) => "here",
        None if model.is_early() => "...",
        None => "absent",
    };
    let permit = status.map_or(DASH, |status| match status.permit {
        Permit::NotNeeded => "any time",
        Permit::Idle => DASH,
        Permit::Waiting => "waits",
        Permit::Holding => "holds",
    });
    let rates = robot.rates.filter(|_| status.is_some());
    let bulk = status.and_then(|status| status.bulk.as_ref());
    let counted = |count: u64| if count > 0 { count.to_string() } else { dash() };
    let text = |text: Option<String>| Cell::Text(text.unwrap_or_else(dash));
    let line = |figure: fn(&Second) -> Option<f64>, unit, top, bound| Cell::Line {
        values: robot.minute.line(now, figure),
        unit,
        top,
        bound,
    };
    vec![
        text(Some(name.to_owned())),
        text(Some(is.to_owned())),
        text(Some(permit.to_owned())),
        text(Some(median(took))),
        text(late),
        text(Some(median(aged))),
        text(rates.map(|(sent, _)| format!("{sent:.1}"))),
        text(rates.map(|(_, received)| format!("{received:.1}"))),
        line(slowest, "ms", tops[0], bound),
        line(oldest, "ms", tops[1], None),
        line(|second| second.sent, "Mbit/s", tops[2], None),
        text(bulk.map(|bulk| counted(bulk.waiting))),
        text(bulk.map(|bulk| format!("{}{}", bulk.in_flight, if bulk.held { ", held" } else { "" }))),
        text(status.map(|status| format!("{} of {}", status.alive.len(), model.shown().count()))),
        text(status.map(|_| format!("\u{b1} {:.1} ms", robot.within_ms))),
        text(status.map(|status| counted(status.refused.total()))),
        text(Some(counted(robot.lost))),
        text(bulk.map(|bulk| bulk.completions.to_string())),
        text(status.map(|status| status.paths.join(", "))),
    ]
}

/// One row per control topic, sender and receiver: as `coorp watch` prints it, with the ages of the last minute.
fn topics(model: &Model) -> Grid {
    let here = model.here();
    let mut grid: Grid = watch::heard(&here, |place| model.name(place), model.team.control.is_some()).into();
    let heard = here
        .iter()
        .flat_map(|status| status.heard.iter().map(move |heard| (status, heard)));
    grid.titles.insert(3, "mean age".to_owned());
    let ages: Vec<Vec<Option<f64>>> = heard
        .map(|(status, heard)| {
            let place = model.team.robots.iter().position(|robot| robot.name == status.robot);
            let robot = place.and_then(|place| model.robots.get(place));
            let topic = robot.and_then(|robot| robot.topics.get(&(heard.from, heard.topic.clone())));
            topic
                .map(|topic| topic.ages.iter().copied().collect())
                .unwrap_or_default()
        })
        .collect();
    let top = ages.iter().flatten().flatten().copied().fold(1.0, f64::max);
    for (row, values) in grid.rows.iter_mut().zip(ages) {
        let (unit, bound) = ("ms", None);
        row.insert(
            3,
            Cell::Line {
                values,
                unit,
                top,
                bound,
            },
        );
    }
    grid
}
