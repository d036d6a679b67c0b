//! Draws the team: who may send, what to look at, a table, and the selected row in full.
//!
//! Colours are the terminal's own, and nothing is told by colour alone.

use ratatui::layout::{Alignment, Constraint, Layout, Margin, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{self, Block, Clear, Paragraph, Row, Sparkline, SparklineBar, TableState};
use ratatui::Frame;

use super::grid::{bars, Cell, Grid, Sort, GAP};
use super::model::{Model, Robot};
use super::view::{counts, Over, Table, View};
use crate::live::watch;
use crate::live::web::lane;
use crate::table::DASH;

/// The least height with the selected row below the table, and of what is shown of it.
const SPLIT_MIN: u16 = 20;
const DETAIL: u16 = 13;
/// The most lines of a chart, with its title.
const LINE_HEIGHT: u16 = 4;
/// The least width at which two charts are side by side.
const WIDE: u16 = 100;
/// What the lanes of a robot show.
const PART_MS: f64 = 300.0;
/// A share of late loops that is marked.
const LATE_PERCENT: f64 = 10.0;

const LANES: [(&str, &str, Color); 6] = [
    (lane::PERMIT, "permit", Color::Green),
    (lane::WINDOW, "window", Color::Yellow),
    (lane::HOLD, "held", Color::Red),
    (lane::BULK, "bulk", Color::Blue),
    (lane::CONTROL, "control", Color::Magenta),
    (lane::LOOP, "loop", Color::Cyan),
];

const KEYS: [(&str, &str); 11] = [
    ("q", "quit"),
    ("?", "help"),
    ("\u{2191}\u{2193}", "select"),
    ("\u{2190}\u{2192}", "sort by"),
    ("r", "reverse"),
    ("Enter", "all of the row"),
    ("Tab", "next table"),
    ("Space", "pause"),
    ("/", "filter"),
    ("a", "alarms"),
    ("Esc", "back"),
];

/// What columns mean.
const MEANINGS: [&str; 9] = [
    "permit: leave to send bulk. 'waits' has asked the leader for it.",
    "reaction: median of the robot's control loops of the last 10 s; late: the share of them over the bound.",
    "age: median age of the control that arrived there within the last 10 s.",
    "Lines are the last minute, a second each, the newest at the right. Loops and ages: the slowest and the oldest of each \
     second. The scale is the same for all robots; for loops it ends at 1.25 times the bound, and over the bound is red.",
    "in the card: bulk packets that the card has taken, as far as the robot knows (known by). 'held': the gate waits for a \
     window.",
    "clock: how well its clock is known here. lost events: overwritten before they were asked for.",
    "The last 0.3 s of a robot: its permit, its protection windows, when the gate holds bulk for one, bulk and control in the \
     card or on the air, and its loops. The height is the share of a column's time.",
    "Ages and late messages of the table 'control' are those of the last 10 s.",
    "What is shown is some tenths of a second old. Each robot is asked five times a second, and less often in teams of more \
     than 20.",
];

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, view: &View, live: &Model) {
    let model = view.shown(live);
    let area = frame.area();
    let (summary, state) = head(view, live, model);
    let state_width = width_of(&state) as u16;
    let head = wrap(&summary, usize::from(area.width.saturating_sub(state_width + 1)));
    let head_height = head.len().min(2) as u16;
    let alarms = model.alarms();
    let room = if view.over == Over::Detail { 1 } else { area.height / 4 };
    let told = alarm_lines(&alarms, area.width, usize::from(room));
    let rows = [
        Constraint::Length(head_height),
        Constraint::Length(told.len() as u16),
        // The detail has a title of its own.
        Constraint::Length(u16::from(view.over != Over::Detail)),
        Constraint::Min(0),
        Constraint::Length(1),
    ];
    let [top, middle, tabs_at, body, foot] = Layout::vertical(rows).areas(area);
    frame.render_widget(
        Text::from_iter(head.into_iter().map(|line| Line::from(line).bold())),
        top,
    );
    frame.render_widget(Line::from(state).alignment(Alignment::Right), Rect { height: 1, ..top });
    frame.render_widget(Text::from(told), middle);
    let notes = notes(model);
    let (tabs, attention) = (tabs(view, model), attention(alarms.len(), notes.len()));
    if tabs.width() + attention.width() < usize::from(area.width) {
        frame.render_widget(attention, tabs_at);
    }
    frame.render_widget(tabs, tabs_at);
    let grid = view.grid(model);
    let row = view.row(&grid);
    match view.over {
        Over::Detail => detail(frame, body, model, &grid, row, view.table),
        _ => tables(frame, body, view, model, &grid, row),
    }
    frame.render_widget(footer(view), foot);
    match view.over {
        Over::Help => over(frame, "help", help(), view.scroll),
        Over::Alarms => over(
            frame,
            "alarms and notes",
            alarms_and_notes(&alarms, &notes, &summary),
            view.scroll,
        ),
        Over::Nothing | Over::Detail => {}
    }
}

fn head(view: &View, live: &Model, model: &Model) -> (String, String) {
    let head = watch::summary(&model.team, &model.here());
    let state = match view.paused {
        Some(_) => format!("PAUSED {:.0} s", (live.now - model.now) / 1e3),
        None if live.is_early() => "looks for robots".to_owned(),
        None => "live".to_owned(),
    };
    (head, state)
}

/// The tables, and which one is shown.
fn tabs(view: &View, model: &Model) -> Line<'static> {
    let mut parts = Vec::new();
    for (table, count) in Table::ALL.into_iter().zip(counts(model)) {
        let text = format!(" {} {count} ", table.title());
        parts.push(match table == view.table {
            true => Span::from(text).reversed(),
            false if count == 0 => Span::from(text).dim(),
            false => Span::from(text),
        });
    }
    if view.typing || !view.filter.is_empty() {
        let end = if view.typing { "_" } else { " " };
        parts.push(Span::from(format!(" /{}{end}", view.filter)).yellow().bold());
    }
    Line::from(parts)
}

fn attention(alarms: usize, notes: usize) -> Line<'static> {
    let text = match (alarms, notes) {
        (0, 0) => String::new(),
        (0, notes) => format!("notes: {notes} (a)"),
        (alarms, 0) => format!("alarms: {alarms} (a)"),
        (alarms, notes) => format!("alarms: {alarms}, notes: {notes} (a)"),
    };
    let style = if alarms > 0 {
        Style::new().red().bold()
    } else {
        Style::new().dim()
    };
    Line::from(Span::styled(text, style)).alignment(Alignment::Right)
}

/// Alarms with what to do, as far as there is room; at least that there are some.
fn alarm_lines(alarms: &[(String, &'static str)], width: u16, room: usize) -> Vec<Line<'static>> {
    let in_full = in_full(alarms, usize::from(width));
    if in_full.len() <= room {
        return in_full;
    }
    let kept = alarms.len().min(room.saturating_sub(1));
    let mut lines: Vec<Line<'_>> = alarms.iter().take(kept).map(|(says, _)| says_line(says)).collect();
    if room > 0 {
        let more = match (kept, alarms.len() - kept) {
            (0, all) => format!("alarms: {all}; "),
            (_, 0) => String::new(),
            (_, more) => format!("{more} more, and "),
        };
        lines.push(Line::from(format!("! {more}what to do: press a")).red());
    }
    lines
}

fn says_line(says: &str) -> Line<'static> {
    Line::from(format!("! {says}")).red().bold()
}

fn in_full(alarms: &[(String, &'static str)], width: usize) -> Vec<Line<'static>> {
    let indented = |(place, line): (usize, String)| {
        if place == 0 {
            format!("! {line}")
        } else {
            format!("  {line}")
        }
    };
    let mut lines = Vec::new();
    for (says, todo) in alarms {
        let room = width.saturating_sub(2);
        let says = wrap(says, room).into_iter().enumerate().map(indented);
        lines.extend(says.map(|line| Line::from(line).red().bold()));
        let todo = wrap(todo, room).into_iter().filter(|line| !line.is_empty());
        lines.extend(todo.map(|line| Line::from(format!("  {line}"))));
    }
    lines
}

/// What `coorp watch` prints below its tables.
fn notes(model: &Model) -> Vec<String> {
    let here = model.here();
    let text = watch::revoked(&here) + &watch::refused(&here) + &watch::found(&here);
    text.lines().map(str::to_owned).collect()
}

/// With the summary, whose lists the head may have no room for.
fn alarms_and_notes(alarms: &[(String, &'static str)], notes: &[String], summary: &str) -> Vec<(String, Style)> {
    let mut lines: Vec<(String, Style)> = Vec::new();
    for (says, todo) in alarms {
        lines.push((says.clone(), Style::new().red().bold()));
        if !todo.is_empty() {
            lines.push(((*todo).to_owned(), Style::new()));
        }
        lines.push((String::new(), Style::new()));
    }
    if alarms.is_empty() {
        lines.push(("No alarm.".to_owned(), Style::new().green()));
        lines.push((String::new(), Style::new()));
    }
    let notes = notes.iter().map(String::as_str).chain([summary]);
    lines.extend(notes.map(|note| (note.to_owned(), Style::new())));
    lines
}

fn help() -> Vec<(String, Style)> {
    let keys = KEYS
        .iter()
        .map(|(key, does)| (format!("{key:7}{does}"), Style::new().bold()));
    let more = ["1 to 5 choose a table; Home, End and pages move; Ctrl-Z suspends.", ""];
    let more = more
        .iter()
        .chain(&MEANINGS)
        .map(|text| ((*text).to_owned(), Style::new()));
    keys.chain(more).collect()
}

/// Draws text over everything.
fn over(frame: &mut Frame<'_>, title: &str, lines: Vec<(String, Style)>, scroll: u16) {
    let all = frame.area();
    let width = all.width.saturating_sub(4).min(100);
    let inside = usize::from(width.saturating_sub(4));
    let wrapped = lines.into_iter().flat_map(|(text, style)| {
        let lines = wrap(&text, inside).into_iter();
        lines.map(move |line| Line::styled(line, style))
    });
    let wrapped: Vec<Line<'_>> = wrapped.collect();
    let height = (wrapped.len() as u16)
        .saturating_add(2)
        .min(all.height.saturating_sub(1));
    let hidden = (wrapped.len() as u16).saturating_sub(height.saturating_sub(2));
    let area = all.centered(Constraint::Length(width), Constraint::Length(height));
    let foot = if hidden > 0 {
        " \u{2191}\u{2193} more, Esc back "
    } else {
        " Esc back "
    };
    let block = Block::bordered().title(format!(" {title} ")).title_bottom(foot);
    let text = Paragraph::new(wrapped).scroll((scroll.min(hidden), 0));
    frame.render_widget(Clear, area);
    frame.render_widget(&block, area);
    frame.render_widget(text, block.inner(area).inner(Margin::new(1, 0)));
}

fn footer(view: &View) -> Line<'static> {
    if view.typing {
        return Line::from("Type what rows have to show. Enter keeps it, Esc drops it.").yellow();
    }
    let keys = KEYS.iter().flat_map(|(key, does)| {
        let does = if view.paused.is_some() && *key == "Space" {
            "resume"
        } else {
            does
        };
        [
            Span::from(format!("{key} ")).bold(),
            Span::from(format!("{does}  ")).dim(),
        ]
    });
    Line::from_iter(keys)
}

/// The shown table, the selected row, and the other tables below if there is room.
fn tables(frame: &mut Frame<'_>, body: Rect, view: &View, model: &Model, grid: &Grid, row: Option<usize>) {
    if grid.rows.is_empty() {
        let why = if view.filter.is_empty() {
            empty(view.table)
        } else {
            "No row shows this text. Esc drops the filter."
        };
        let lines = wrap(why, usize::from(body.width));
        return frame.render_widget(
            Text::from_iter(lines.into_iter().map(|line| Line::from(line).dim())),
            body,
        );
    }
    if body.height < SPLIT_MIN {
        return table(frame, body, grid, view.sort(), row);
    }
    let needs = grid.rows.len() as u16 + header_height(&grid.titles) + 1;
    let rows = [
        Constraint::Length(needs.min(body.height - DETAIL)),
        Constraint::Length(DETAIL),
        Constraint::Min(0),
    ];
    let [upper, middle, mut rest] = Layout::vertical(rows).areas(body);
    table(frame, upper, grid, view.sort(), row);
    detail(frame, middle, model, grid, row, view.table);
    for other in Table::ALL.into_iter().filter(|other| *other != view.table) {
        let grid = View::of(other).grid(model);
        let needs = grid.rows.len() as u16 + header_height(&grid.titles) + 2;
        if grid.rows.is_empty() || rest.height < header_height(&grid.titles) + 3 {
            continue;
        }
        let [upper, below] = Layout::vertical([Constraint::Length(needs), Constraint::Min(0)]).areas(rest);
        let [title, upper] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(upper);
        frame.render_widget(rule(other.title(), title.width), title);
        table(frame, upper, &grid, None, None);
        rest = below;
    }
}

fn empty(table: Table) -> &'static str {
    match table {
        Table::Robots => "There are no robots.",
        Table::Topics => "No robot has received control.",
        Table::Paths => "No robot sends to another one over several paths.",
        Table::Gathered => "No robot gathers states.",
        Table::Flows => "No robot protects other programs ('coorp up --protect').",
    }
}

fn rule(title: &str, width: u16) -> Line<'static> {
    let title = format!("\u{2500} {title} ");
    let rest = usize::from(width).saturating_sub(width_of(&title));
    Line::from(title + &"\u{2500}".repeat(rest)).dim()
}

fn header_height<'t>(titles: impl IntoIterator<Item = &'t String>) -> u16 {
    let lines = titles.into_iter().map(|title| title.split('\n').count());
    lines.max().unwrap_or(1) as u16
}

fn table(frame: &mut Frame<'_>, area: Rect, grid: &Grid, sort: Option<Sort>, row: Option<usize>) {
    let columns = grid.fit(usize::from(area.width), sort.map(|(column, _)| column));
    let height = header_height(columns.iter().map(|(column, _)| &grid.titles[*column]));
    let side = |column: usize| {
        if column < grid.names {
            Alignment::Left
        } else {
            Alignment::Right
        }
    };
    let title = |(column, _): &(usize, usize)| {
        let of = sort
            .filter(|(sorted, _)| sorted == column)
            .map(|(_, descends)| descends);
        let mark = match of {
            None => "",
            Some(true) => "\u{25bc}",
            Some(false) => "\u{25b2}",
        };
        let title = format!("{}{mark}", grid.titles[*column]);
        let above = usize::from(height) - title.split('\n').count().min(usize::from(height));
        let lines = std::iter::repeat_n("", above).chain(title.split('\n'));
        let style = if of.is_some() {
            Style::new().bold().yellow()
        } else {
            Style::new().bold()
        };
        Text::from_iter(lines.map(|line| Line::styled(line.to_owned(), style))).alignment(side(*column))
    };
    let cells = |(place, cells): (usize, &Vec<Cell>)| {
        let is_chosen = row == Some(place);
        let cell = |(column, width): &(usize, usize)| {
            let text = match cells.get(*column) {
                Some(Cell::Text(text)) => {
                    Text::styled(text.clone(), tone(&grid.titles[*column], text)).alignment(side(*column))
                }
                Some(Cell::Line { values, top, bound, .. }) => Text::from(line(values, *top, *bound, *width)),
                None => Text::default(),
            };
            // The names alone: turned round, a line of figures could not be read.
            match is_chosen && *column < grid.names {
                true => widgets::Cell::from(text).reversed(),
                false => widgets::Cell::from(text),
            }
        };
        let row = Row::new(columns.iter().map(cell));
        if is_chosen {
            row.bold()
        } else {
            row
        }
    };
    let widths = columns.iter().map(|(_, width)| Constraint::Length(*width as u16));
    let drawn = widgets::Table::new(grid.rows.iter().enumerate().map(cells), widths)
        .header(Row::new(columns.iter().map(title)).height(height))
        .column_spacing(GAP as u16);
    frame.render_stateful_widget(drawn, area, &mut TableState::new().with_selected(row));
}

fn line(values: &[Option<f64>], top: f64, bound: Option<f64>, width: usize) -> Line<'static> {
    let bars = bars(values, top, bound, width);
    let pieces = bars.chunk_by(|a, b| a.1 == b.1).map(|piece| {
        let text: String = piece.iter().map(|(bar, _)| *bar).collect();
        Span::styled(text, line_style(piece[0].1))
    });
    Line::from_iter(pieces)
}

fn line_style(is_late: bool) -> Style {
    if is_late {
        Style::new().red().bold()
    } else {
        Style::new().cyan()
    }
}

fn tone(title: &str, text: &str) -> Style {
    let percent = || text.strip_suffix(" %").and_then(|number| number.parse::<f64>().ok());
    match text {
        DASH => Style::new().dim(),
        "leads" | "holds" | "alive" => Style::new().green(),
        "waits" => Style::new().yellow(),
        "absent" | "dead" => Style::new().red().bold(),
        _ if title == "late" && percent().is_some_and(|percent| percent > LATE_PERCENT) => Style::new().red().bold(),
        _ => Style::new(),
    }
}

/// The selected row: its other columns if the table has no room for them, the last moment of a robot, and lines of the last
/// minute.
fn detail(frame: &mut Frame<'_>, area: Rect, model: &Model, grid: &Grid, row: Option<usize>, of: Table) {
    let Some(row) = row.and_then(|row| grid.rows.get(row)) else {
        return;
    };
    let key = grid.key(row);
    let robot = model.team.robots.iter().position(|robot| key == [robot.name.as_str()]);
    let robot = robot
        .filter(|_| of == Table::Robots)
        .and_then(|place| model.robots.get(place));
    let lines = row
        .iter()
        .enumerate()
        .filter(|(_, cell)| matches!(cell, Cell::Line { .. }));
    let lines: Vec<(String, &Cell)> = lines
        .map(|(at, cell)| (grid.titles[at].replace('\n', " "), cell))
        .collect();
    let texts = facts(grid, row, usize::from(area.width));
    let lanes = if robot.is_some() { LANES.len() as u16 } else { 0 };
    let rows = [
        Constraint::Length(1),
        Constraint::Length(texts.len() as u16),
        Constraint::Length(lanes),
        Constraint::Min(0),
    ];
    let [title, upper, mut left, mut right] = Layout::vertical(rows).areas(area);
    if area.width >= WIDE && robot.is_some() {
        let both = left.union(right);
        let columns = [Constraint::Fill(5), Constraint::Length(2), Constraint::Fill(4)];
        [left, _, right] = Layout::horizontal(columns).areas(both);
    }
    let ago = robot
        .filter(|robot| robot.status.is_some())
        .map(|robot| (model.now - robot.until) / 1e3);
    let ago = ago.map_or_else(String::new, |ago| {
        format!(", its last {:.1} s, to {ago:.1} s ago", PART_MS / 1e3)
    });
    frame.render_widget(rule(&format!("{}{ago}", key.join(" ")), title.width), title);
    frame.render_widget(Text::from(texts), upper);
    if let Some(robot) = robot {
        last_part(frame, left, robot);
    }
    let high = right.height / (lines.len() as u16).max(1);
    let each = Layout::vertical(lines.iter().map(|_| Constraint::Length(high.min(LINE_HEIGHT)))).split(right);
    for ((title, cell), at) in lines.into_iter().zip(each.iter()) {
        minute(frame, *at, &title, cell);
    }
}

/// All text columns of a row but its names: title and text, as many on a line as fit.
fn facts(grid: &Grid, row: &[Cell], width: usize) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let mut used = usize::MAX;
    for (title, cell) in grid.titles.iter().zip(row).skip(grid.names) {
        let Cell::Text(text) = cell else { continue };
        let (title, tone) = (title.replace('\n', " "), tone(title, text));
        let needs = width_of(&title) + width_of(text) + 4;
        if used.saturating_add(needs) > width {
            lines.push(Line::default());
            used = 0;
        }
        used += needs;
        if let Some(line) = lines.last_mut() {
            line.push_span(Span::from(format!("{title} ")).dim());
            line.push_span(Span::styled(format!("{text}   "), tone));
        }
    }
    lines
}

/// What a robot did within the last part of a second that is known: the share of each column's time.
fn last_part(frame: &mut Frame<'_>, area: Rect, robot: &Robot) {
    const LABEL: usize = 8;
    let room = usize::from(area.width).saturating_sub(LABEL);
    if robot.status.is_none() || room == 0 {
        return frame.render_widget(Line::from("No answer from this robot yet.").dim(), area);
    }
    let from = robot.until - PART_MS;
    let step = PART_MS / room as f64;
    let lines = LANES.map(|(kind, label, color)| {
        let mut shares: Vec<Option<f64>> = vec![None; room];
        let open = robot
            .open
            .iter()
            .map(|(of, start, end)| (*of, *start, end.unwrap_or(robot.until)));
        for (_, start, end) in robot.spans.iter().copied().chain(open).filter(|(of, ..)| *of == kind) {
            let (start, end) = ((start - from).max(0.0), (end - from).min(PART_MS));
            let columns = (start / step) as usize..((end / step).ceil().max(0.0) as usize).min(room);
            for column in columns {
                let left = column as f64 * step;
                let covered = (end.min(left + step) - start.max(left)) / step;
                *shares[column].get_or_insert(0.0) += covered.max(0.0);
            }
        }
        let bars = bars(&shares, 1.0, None, room);
        let marks = bars
            .chunk_by(|a, b| (a.0 == ' ') == (b.0 == ' '))
            .map(|piece| match piece[0].0 {
                ' ' => Span::from("\u{b7}".repeat(piece.len())).dim(),
                _ => Span::from(piece.iter().map(|(bar, _)| *bar).collect::<String>()).fg(color),
            });
        Line::from_iter(std::iter::once(Span::from(format!("{label:LABEL$}"))).chain(marks))
    });
    frame.render_widget(Text::from_iter(lines), area);
}

/// A line of the last minute, as high as there is room.
fn minute(frame: &mut Frame<'_>, area: Rect, title: &str, cell: &Cell) {
    let Cell::Line {
        values,
        unit,
        top,
        bound,
    } = cell
    else {
        return;
    };
    let newest = values.iter().rev().flatten().next();
    let newest = newest.map_or_else(|| DASH.to_owned(), |value| format!("{value:.1} {unit}"));
    let bound_text = bound.map_or_else(String::new, |bound| format!(", bound {bound:.0}"));
    let text = format!("{title} {newest} (scale {top:.0}{bound_text} {unit})");
    let [head, chart] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(Line::from(text).dim(), head);
    // In thousandths, as the chart takes whole numbers.
    let whole = |value: f64| (value.max(0.0) * 1e3) as u64;
    let wide = usize::from(chart.width);
    let values: Vec<Option<f64>> = match values.len() {
        0 => Vec::new(),
        // As wide as there is room: each second some columns.
        length => (0..wide).map(|place| values[place * length / wide.max(1)]).collect(),
    };
    let bar = |value: Option<f64>| {
        let is_late = value.zip(*bound).is_some_and(|(value, bound)| value > bound);
        SparklineBar::from(value.map(whole)).style(line_style(is_late))
    };
    let drawn = Sparkline::default()
        .data(values.into_iter().map(bar))
        .max(whole(*top))
        .absent_value_symbol(" ");
    frame.render_widget(drawn, chart);
}

fn width_of(text: &str) -> usize {
    console::measure_text_width(text)
}

/// Breaks a text into lines of at most `width` columns, between words if possible.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word;
        loop {
            let line = lines.last_mut().map(|line| (width_of(line), line));
            let Some((used, line)) = line else { return lines };
            let gap = usize::from(used > 0);
            if used + gap + width_of(word) <= width {
                line.push_str(if gap > 0 { " " } else { "" });
                line.push_str(word);
                break;
            }
            if used == 0 {
                // Longer than a line.
                let end = word.char_indices().nth(width).map_or(word.len(), |(end, _)| end);
                line.push_str(&word[..end]);
                word = &word[end..];
                if word.is_empty() {
                    break;
                }
            }
            lines.push(String::new());
        }
    }
    lines
}
