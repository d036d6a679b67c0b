//! Problems with a team file, and how they are shown: file, line, column, the line itself, and the fix.
//!
//! All problems of a file are collected, so that one run shows them all. Left out: colours (the text is the same on a
//! terminal, in a log and in a test).

use crate::units::clip;
use codespan_reporting::diagnostic::{Diagnostic, Label};
use codespan_reporting::files::{Files, SimpleFiles};
use codespan_reporting::term;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

/// Maximum number of problems shown; the rest are only counted.
const SHOWN_MAX: usize = 25;
/// Maximum number of problems kept, so that a file full of mistakes cannot use unlimited memory.
const KEPT_MAX: usize = 1_000;
/// Maximum length of a source line worth showing, in bytes.
const LINE_BYTES_MAX: usize = 300;

/// The reason why a team file could not be used. `Display` returns the complete text for the user, in several lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    text: String,
    problems: usize,
}

impl LoadError {
    /// Returns the number of problems found, at least one.
    pub fn problems(&self) -> usize {
        self.problems
    }

    /// Creates the error for a file that could not even be read.
    pub(crate) fn plain(message: impl fmt::Display, mend: &str) -> Self {
        LoadError {
            text: format!("error: {message}\n  = {mend}\n"),
            problems: 1,
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.trim_end())
    }
}

impl std::error::Error for LoadError {}

/// One problem: its place, its description, and how to fix it.
#[derive(Clone, Debug)]
struct Problem {
    file: usize,
    span: Range<usize>,
    message: String,
    mend: String,
    /// Another relevant place, such as the first of two equal names.
    other: Option<(Range<usize>, &'static str)>,
}

/// Collects problems while a file is read.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: RefCell<Vec<Problem>>,
    /// Names and texts of the files that spans refer to: the team file first, then its WNIC profile.
    files: RefCell<Vec<(String, String)>>,
}

impl Problems {
    /// Registers a text and returns its number for `add`.
    pub(crate) fn file(&self, name: &str, text: &str) -> usize {
        let mut files = self.files.borrow_mut();
        files.push((name.chars().filter(|c| !c.is_control()).collect(), text.to_owned()));
        files.len() - 1
    }

    /// Records a problem.
    pub(crate) fn add(&self, file: usize, span: Range<usize>, message: impl Into<String>, mend: impl Into<String>) {
        self.push(Problem {
            file,
            span,
            message: message.into(),
            mend: mend.into(),
            other: None,
        });
    }

    /// Records a problem that involves two places of a file.
    pub(crate) fn add_pair(
        &self,
        file: usize,
        span: Range<usize>,
        other: (Range<usize>, &'static str),
        message: impl Into<String>,
        mend: impl Into<String>,
    ) {
        self.push(Problem {
            file,
            span,
            message: message.into(),
            mend: mend.into(),
            other: Some(other),
        });
    }

    fn push(&self, problem: Problem) {
        let mut found = self.found.borrow_mut();
        if found.len() < KEPT_MAX {
            found.push(problem);
        }
    }

    /// Returns whether the limit is reached, so that searching for fixes is wasted from here on.
    pub(crate) fn full(&self) -> bool {
        self.count() >= KEPT_MAX
    }

    /// Returns the number of problems so far.
    pub(crate) fn count(&self) -> usize {
        self.found.borrow().len()
    }

    /// Returns the error that shows the problems ordered by file and line, or `None` without problems.
    pub(crate) fn into_error(self) -> Option<LoadError> {
        let mut found = self.found.into_inner();
        if found.is_empty() {
            return None;
        }
        found.sort_by_key(|problem| (problem.file, problem.span.start));
        let mut files = SimpleFiles::new();
        for (name, text) in self.files.into_inner() {
            // TOML refuses control characters, but the line that contains one is still shown.
            let shown = text
                .chars()
                .map(|c| if c.is_ascii_control() && c != '\n' { ' ' } else { c });
            files.add(name, shown.collect::<String>());
        }
        let mut text = String::new();
        for problem in found.iter().take(SHOWN_MAX) {
            text.push_str(&problem.render(&files));
        }
        match found.len() {
            1 => {}
            count @ 2..=SHOWN_MAX => text.push_str(&format!("{count} problems found\n")),
            count => text.push_str(&format!("{count} problems found; the first {SHOWN_MAX} are shown\n")),
        }
        Some(LoadError {
            text,
            problems: found.len(),
        })
    }
}

impl Problem {
    fn render(&self, files: &SimpleFiles<String, String>) -> String {
        let source = files.source(self.file).unwrap_or_default();
        let span = within(source, &self.span);
        let long = |span: &Range<usize>| {
            let start = source[..span.start].rfind('\n').map_or(0, |at| at + 1);
            let end = source[span.start..]
                .find('\n')
                .map_or(source.len(), |at| span.start + at);
            end - start > LINE_BYTES_MAX
        };
        let other = self
            .other
            .as_ref()
            .map(|(place, label)| (within(source, place), *label));
        if long(&span) || other.as_ref().is_some_and(|(place, _)| long(place)) {
            let place = files.location(self.file, span.start).unwrap_or(BEGINNING);
            let name = files.name(self.file).unwrap_or_default();
            let quoted = clip(&source[span.clone()]);
            let (line, column) = (place.line_number, place.column_number);
            return format!(
                "error: {}\n  --> {name}:{line}:{column}: {quoted}\n  = {}\n\n",
                self.message, self.mend
            );
        }
        let mut labels = vec![Label::primary(self.file, span)];
        if let Some((place, label)) = other {
            labels.push(Label::secondary(self.file, place).with_message(label));
        }
        let diagnostic = Diagnostic::error()
            .with_message(&self.message)
            .with_labels(labels)
            .with_notes(vec![self.mend.clone()]);
        // The renderer fails only on an unknown file or place, and both are created here.
        term::emit_into_string(&term::Config::default(), files, &diagnostic)
            .unwrap_or_else(|_| format!("error: {}\n  = {}\n\n", self.message, self.mend))
    }
}

/// The place reported if the real one cannot be found.
const BEGINNING: codespan_reporting::files::Location = codespan_reporting::files::Location {
    line_number: 1,
    column_number: 1,
};

/// Returns the span adjusted to the text: inside it, on character boundaries, and on one line, so that a table is shown
/// by its first line.
fn within(text: &str, span: &Range<usize>) -> Range<usize> {
    let floor = |mut at: usize| {
        at = at.min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = floor(span.start);
    let end = floor(span.end).max(start);
    let line = text[start..end].find('\n').map_or(end, |at| start + at);
    start..line
}
