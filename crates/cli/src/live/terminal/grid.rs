//! Tables as a terminal shows them: sorted by what a column shows, filtered, and with as many columns as there is room
//! for.

use std::cmp::Ordering;

use crate::table::{Sheet, DASH};

/// The width of a line of figures, at the least and at the most: one a second of a minute.
const LINE_MIN: usize = 10;
const LINE_MAX: usize = 60;
/// Between two columns, beside the room for the mark of the order.
pub const GAP: usize = 1;

/// A cell.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    /// Figures over time, the oldest first, with how high the scale goes and what is too much.
    Line {
        values: Vec<Option<f64>>,
        unit: &'static str,
        top: f64,
        bound: Option<f64>,
    },
}

impl Cell {
    /// What it shows as text: of figures, the newest.
    pub fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Line { values, .. } => {
                let newest = values.iter().rev().flatten().next();
                newest.map_or_else(|| DASH.to_owned(), |value| format!("{value:.3}"))
            }
        }
    }
}

/// A table: see [`Sheet`].
#[derive(Clone, Debug, Default)]
pub struct Grid {
    pub titles: Vec<String>,
    pub names: usize,
    pub rows: Vec<Vec<Cell>>,
}

impl From<Sheet> for Grid {
    fn from(sheet: Sheet) -> Grid {
        let row = |row: Vec<String>| row.into_iter().map(Cell::Text).collect();
        Grid {
            titles: sheet.titles,
            names: sheet.names,
            rows: sheet.rows.into_iter().map(row).collect(),
        }
    }
}

/// By which column a table is sorted, and whether the highest comes first.
pub type Sort = (usize, bool);

impl Grid {
    /// The names of a row, which tell it from all others.
    pub fn key(&self, row: &[Cell]) -> Vec<String> {
        row.iter().take(self.names).map(Cell::text).collect()
    }

    /// Keeps rows with this text in one of their cells, and puts them into order.
    pub fn arrange(&mut self, sort: Option<Sort>, filter: &str) {
        let wanted = filter.to_lowercase();
        let has = |cell: &Cell| matches!(cell, Cell::Text(text) if text.to_lowercase().contains(&wanted));
        self.rows.retain(|row| wanted.is_empty() || row.iter().any(has));
        let Some((column, descends)) = sort else { return };
        let text = |row: &[Cell]| row.get(column).map(Cell::text).unwrap_or_default();
        // Stable: rows that show the same stay in the team file's order.
        self.rows.sort_by(|a, b| by_shown(&text(a), &text(b), descends));
    }

    /// The columns that fit into a width, with their widths: the names, `wanted`, and the others from the left.
    pub fn fit(&self, width: usize, wanted: Option<usize>) -> Vec<(usize, usize)> {
        let needs: Vec<usize> = (0..self.titles.len()).map(|column| self.width(column)).collect();
        let first = (0..self.names).chain(wanted.filter(|wanted| *wanted >= self.names));
        let rest = (self.names..self.titles.len()).filter(|column| Some(*column) != wanted);
        let mut left = width + GAP;
        let mut fit = Vec::new();
        for column in first.chain(rest) {
            let Some(need) = needs.get(column) else { continue };
            if column >= self.names && need + GAP > left {
                break;
            }
            left = left.saturating_sub(need + GAP);
            fit.push((column, *need));
        }
        fit.sort_unstable();
        // The remaining width goes to the lines.
        let lines = fit.iter().filter(|(column, _)| self.is_line(*column)).count();
        for (_, width) in fit.iter_mut().filter(|(column, _)| self.is_line(*column)) {
            *width = (*width + left / lines.max(1)).min(LINE_MAX);
        }
        fit
    }

    fn is_line(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.any(|cell| matches!(cell, Cell::Line { .. }))
    }

    fn width(&self, column: usize) -> usize {
        let titles = self.titles.get(column).into_iter().flat_map(|title| title.lines());
        let title = titles.map(console::measure_text_width).max().unwrap_or(0);
        let cells = self
            .rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| match cell {
                Cell::Text(text) => console::measure_text_width(text),
                Cell::Line { .. } => LINE_MIN,
            });
        // One more for the mark of the order.
        (title + 1).max(cells.max().unwrap_or(0))
    }
}

/// Numbers by their value, then texts, then what is not known. Only numbers and texts turn round.
fn by_shown(a: &str, b: &str, descends: bool) -> Ordering {
    let rank = |text: &str| match (text == DASH || text.is_empty(), number(text)) {
        (true, _) => 2,
        (false, None) => 1,
        (false, Some(_)) => 0,
    };
    let within = match (number(a), number(b)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    };
    let within = if descends { within.reverse() } else { within };
    rank(a).cmp(&rank(b)).then(within)
}

/// The number that a text begins with.
fn number(text: &str) -> Option<f64> {
    let text = text.trim_start_matches("\u{b1} ");
    let end = text
        .find(|c: char| !matches!(c, '0'..='9' | '.' | ',' | '-'))
        .unwrap_or(text.len());
    text[..end].replace(',', "").parse().ok()
}

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The newest figures of a line as characters, each with whether it is over the bound.
pub fn bars(values: &[Option<f64>], top: f64, bound: Option<f64>, width: usize) -> Vec<(char, bool)> {
    let bar = |value: &Option<f64>| match value {
        None => (' ', false),
        Some(value) => {
            let share = if top > 0.0 { value / top } else { 0.0 };
            let level = (share * LEVELS.len() as f64).ceil() as usize;
            let level = level.clamp(1, LEVELS.len()) - 1;
            (LEVELS[level], bound.is_some_and(|bound| *value > bound))
        }
    };
    let shown = values.len().min(width);
    let blank = std::iter::repeat_n((' ', false), width - shown);
    blank.chain(values[values.len() - shown..].iter().map(bar)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(rows: &[&[&str]]) -> Grid {
        let titles = ["robot", "age", "Mbit/s\nout"].map(str::to_owned).to_vec();
        let rows = rows
            .iter()
            .map(|row| row.iter().map(|cell| (*cell).to_owned()).collect());
        Grid::from(Sheet {
            titles,
            names: 1,
            rows: rows.collect(),
        })
    }

    fn names(grid: &Grid) -> String {
        grid.rows.iter().map(|row| row[0].text()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn rows_are_sorted_by_the_numbers_that_they_show() {
        let rows: &[&[&str]] = &[
            &["a", "12.0 ms", "1,000"],
            &["b", "-", "9"],
            &["c", "3.5 ms", "not yet"],
            &["d", "12.0 ms", "-"],
        ];
        let sorted = |sort| {
            let mut grid = grid(rows);
            grid.arrange(sort, "");
            names(&grid)
        };
        assert_eq!(sorted(None), "a b c d", "as in the team file");
        assert_eq!(sorted(Some((1, false))), "c a d b");
        assert_eq!(sorted(Some((1, true))), "a d c b", "what is not known stays last");
        assert_eq!(sorted(Some((2, true))), "a b c d");
        assert_eq!(sorted(Some((0, true))), "d c b a");
        assert_eq!(sorted(Some((9, true))), "a b c d", "there is no such column");
    }

    #[test]
    fn a_filter_keeps_rows_with_its_text() {
        let mut grid = grid(&[&["Base", "1 ms", "2"], &["scout", "1 ms", "2"]]);
        grid.arrange(None, "bAs");
        assert_eq!(names(&grid), "Base");
        grid.arrange(None, "nothing");
        assert_eq!(names(&grid), "");
    }

    #[test]
    fn names_and_the_sorted_column_come_first_and_lines_take_what_is_left() {
        let mut grid = grid(&[&["base", "12.0 ms", "3"]]);
        assert_eq!(grid.fit(80, None), [(0, 6), (1, 7), (2, 7)]);
        assert_eq!(grid.fit(21, None), [(0, 6), (1, 7)]);
        assert_eq!(grid.fit(14, Some(2)), [(0, 6), (2, 7)]);
        assert_eq!(grid.fit(1, Some(2)), [(0, 6)], "a row without its name says nothing");
        let (values, unit, top, bound) = (vec![Some(1.0)], "ms", 1.0, None);
        grid.rows[0][2] = Cell::Line {
            values,
            unit,
            top,
            bound,
        };
        assert_eq!(grid.fit(40, None), [(0, 6), (1, 7), (2, 25)]);
        assert_eq!(grid.fit(200, None)[2], (2, LINE_MAX));
    }

    #[test]
    fn the_newest_figures_are_drawn_to_scale() {
        let values = [Some(9.0), None, Some(0.0), Some(4.0), Some(8.0), Some(80.0)];
        let drawn = |width| -> String { bars(&values, 8.0, None, width).iter().map(|(bar, _)| *bar).collect() };
        assert_eq!(drawn(5), " ▁▄██");
        assert_eq!(drawn(8), "  █ ▁▄██");
        let late = bars(&values, 8.0, Some(7.0), 3);
        assert_eq!(
            late.iter().map(|(_, late)| *late).collect::<Vec<_>>(),
            [false, true, true]
        );
    }
}
