//! The syntax of a placement file: processes with the names of their reactors, and lines for the front end's messages.

use pyo3::prelude::*;
use toml::de::{DeTable, DeValue};
use toml::Spanned;

/// Robot, process, its line, and its reactors with their lines.
type Entry = (Option<String>, String, usize, Vec<(String, usize)>);
/// A line and the problem there.
type Problem = (usize, String);

/// Returns all processes in the order of the file, and everything that is not a process.
#[pyfunction]
pub fn placement_entries(text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let mut reader = Reader {
        text,
        entries: Vec::new(),
        problems: Vec::new(),
    };
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.problem(error.span().map_or(0, |span| span.start), error.message());
    }
    // After a syntax error, every further problem may be a consequence of it.
    if reader.problems.is_empty() {
        reader.file(table.get_ref());
    }
    reader.entries.sort_by_key(|(_, _, line, _)| *line);
    (reader.entries, reader.problems)
}

struct Reader<'t> {
    text: &'t str,
    entries: Vec<Entry>,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    fn problem(&mut self, at: usize, what: impl Into<String>) {
        self.problems.push((self.line(at), what.into()));
    }

    fn file(&mut self, table: &DeTable<'_>) {
        let has_robots = table.iter().any(|(_, value)| value.get_ref().as_table().is_some());
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            match value.get_ref() {
                DeValue::Table(processes) => {
                    if processes.is_empty() {
                        self.problem(
                            key.span().start,
                            format!("{name} has no processes; add some or remove it"),
                        );
                    }
                    for (process, reactors) in processes {
                        let at = process.span().start;
                        self.process(Some(name), process.get_ref(), at, reactors);
                    }
                }
                DeValue::Array(_) if has_robots => {
                    let mend = "move it into the table of a robot";
                    self.problem(key.span().start, format!("{name} is outside of all robots; {mend}"));
                }
                _ => self.process(None, name, key.span().start, value),
            }
        }
    }

    fn process(&mut self, robot: Option<&str>, process: &str, at: usize, value: &Spanned<DeValue<'_>>) {
        let example = r#"write the names of reactors, such as ["camera", "fusion"]"#;
        let DeValue::Array(array) = value.get_ref() else {
            self.problem(value.span().start, format!("{process} is not an array; {example}"));
            return;
        };
        let problems_before = self.problems.len();
        let mut reactors = Vec::new();
        for item in array {
            let start = item.span().start;
            match item.get_ref() {
                DeValue::String(name) => reactors.push((name.clone().into_owned(), self.line(start))),
                _ => self.problem(start, format!("not a name in quotes; {example}")),
            }
        }
        if self.problems.len() == problems_before {
            let entry = (robot.map(str::to_owned), process.to_owned(), self.line(at), reactors);
            self.entries.push(entry);
        }
    }
}
