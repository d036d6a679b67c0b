//! Tables for a terminal: one row per policy if it fits, otherwise one column per policy, otherwise several
//! blocks.
//!
//! No colours are used, so NO_COLOR has nothing to disable.

use comfy_table::{presets, CellAlignment, ContentArrangement, Table, TableComponent};
use console::Term;

/// The content of a cell that does not apply.
pub const DASH: &str = "-";

/// A table before it is laid out.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// Column titles. A line break separates a group ("reaction ms") from its member ("p50").
    pub titles: Vec<String>,
    /// The number of columns at the left that name the row; the others contain figures.
    pub names: usize,
    /// The rows, each as long as `titles`.
    pub rows: Vec<Vec<String>>,
}

/// Returns the terminal's width in columns; `None` if stdout is a file or a pipe, which accept any width.
pub fn terminal_width() -> Option<usize> {
    let term = Term::stdout();
    term.is_term()
        .then(|| term.size_checked())
        .flatten()
        .map(|(_rows, columns)| usize::from(columns))
}

impl Sheet {
    /// Returns the table as text, with no line longer than `width` if possible.
    pub fn layout(&self, width: Option<usize>) -> String {
        let upright = self.draw();
        let Some(width) = width else { return upright };
        if fits(&upright, width) {
            return upright;
        }
        // As many rows per block as fit side by side, but at least one.
        for per_block in (1..=self.rows.len()).rev() {
            let blocks: Vec<String> = self
                .rows
                .chunks(per_block)
                .map(|rows| self.turned(rows).draw())
                .collect();
            if per_block == 1 || blocks.iter().all(|block| fits(block, width)) {
                return blocks.join("\n");
            }
        }
        upright
    }

    /// Swaps columns and rows: the names of a row become the title of its column.
    fn turned(&self, rows: &[Vec<String>]) -> Sheet {
        let name_of = |row: &[String]| row.get(..self.names).unwrap_or(row).join("\n");
        let own_titles = self.flat_titles();
        let turned_row = |(index, title): (usize, String)| {
            let cells = rows.iter().map(|row| row.get(index).cloned().unwrap_or_default());
            std::iter::once(title).chain(cells).collect()
        };
        Sheet {
            titles: std::iter::once(name_of(&own_titles))
                .chain(rows.iter().map(|row| name_of(row)))
                .collect(),
            names: 1,
            rows: own_titles
                .into_iter()
                .enumerate()
                .skip(self.names)
                .map(turned_row)
                .collect(),
        }
    }

    /// Returns each title on one line, with its group's name.
    fn flat_titles(&self) -> Vec<String> {
        let mut group = "";
        let mut flat = Vec::with_capacity(self.titles.len());
        for (index, title) in self.titles.iter().enumerate() {
            let (own_group, member) = title.split_once('\n').unwrap_or((title.as_str(), ""));
            if !own_group.is_empty() {
                group = own_group;
            }
            flat.push(format!("{group} {member}").trim().to_owned());
            // The name columns are not a group for the following columns.
            if index < self.names {
                group = "";
            }
        }
        flat
    }

    fn draw(&self) -> String {
        let mut table = Table::new();
        table
            .load_preset(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled);
        table.set_style(TableComponent::HeaderLines, '\u{2500}');
        table.set_header(&self.titles);
        table.add_rows(&self.rows);
        for (index, column) in table.column_iter_mut().enumerate() {
            column.set_padding((if index == 0 { 0 } else { 1 }, 1));
            column.set_cell_alignment(if index < self.names {
                CellAlignment::Left
            } else {
                CellAlignment::Right
            });
        }
        let mut text = table.trim_fmt();
        text.push('\n');
        text
    }
}

fn fits(text: &str, width: usize) -> bool {
    text.lines().all(|line| console::measure_text_width(line) <= width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet(rows: usize) -> Sheet {
        Sheet {
            titles: ["policy", "reaction ms\np50", "bulk\nMbit/s"]
                .map(str::to_owned)
                .to_vec(),
            names: 1,
            rows: (0..rows)
                .map(|row| vec![format!("policy-{row}"), "31.2".to_owned(), DASH.to_owned()])
                .collect(),
        }
    }

    #[test]
    fn a_pipe_gets_one_row_a_policy() {
        let text = sheet(2).layout(None);
        assert!(
            text.lines()
                .any(|line| line.contains("policy-1") && line.contains("31.2")),
            "{text}"
        );
    }

    #[test]
    fn a_narrow_terminal_gets_one_column_a_policy() {
        let text = sheet(1).layout(Some(28));
        assert!(
            text.lines()
                .any(|line| line.contains("reaction ms p50") && line.contains("31.2")),
            "{text}"
        );
        assert!(fits(&text, 28), "{text}");
    }

    #[test]
    fn a_turned_table_names_each_figure_in_full() {
        let mut sheet = sheet(1);
        sheet.titles = ["policy\n", "reaction ms\np50", "\np90"].map(str::to_owned).to_vec();
        assert_eq!(sheet.flat_titles(), ["policy", "reaction ms p50", "reaction ms p90"]);
        sheet.names = 2;
        assert_eq!(sheet.flat_titles(), ["policy", "reaction ms p50", "p90"]);
        assert_eq!(
            sheet.turned(&sheet.rows).titles,
            ["policy\nreaction ms p50", "policy-0\n31.2"]
        );
    }

    #[test]
    fn many_policies_go_in_blocks_and_none_is_lost() {
        let text = sheet(9).layout(Some(40));
        assert!(fits(&text, 40), "{text}");
        for row in 0..9 {
            assert_eq!(text.matches(&format!("policy-{row}")).count(), 1, "{text}");
        }
    }

    #[test]
    fn a_terminal_too_narrow_for_anything_still_gets_the_figures() {
        assert!(sheet(3).layout(Some(1)).contains("policy-2"));
        assert_eq!(
            sheet(0)
                .layout(Some(1))
                .lines()
                .filter(|line| line.contains("policy-"))
                .count(),
            0
        );
    }
}
