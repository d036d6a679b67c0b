//! Reads one TOML table: typed values with ranges, and a problem for everything invalid.
//!
//! This replaces serde, which stops at the first mistake; a user with five mistakes wants to see five. An invalid value
//! counts as absent for the reader, which continues with the default. `Sheet::sound` tells whether that happened.

use crate::problem::Problems;
use crate::units::{self, clip};
use coorp_core::Duration;
use std::ops::{Range, RangeInclusive};
use toml::de::{DeTable, DeValue};
use toml::Spanned;

/// A TOML table, the keys requested so far, and where problems are reported.
pub(crate) struct Sheet<'t> {
    table: &'t DeTable<'t>,
    span: Range<usize>,
    /// The table's name in messages, such as `[air]`.
    title: String,
    asked: Vec<&'static str>,
    problems: &'t Problems,
    problems_before: usize,
    file: usize,
}

/// A value and its place in the file.
pub(crate) type Placed<T> = (T, Range<usize>);

impl<'t> Sheet<'t> {
    /// Creates a sheet over `table`, which messages call `title`.
    pub(crate) fn new(
        table: &'t DeTable<'t>,
        span: Range<usize>,
        title: impl Into<String>,
        problems: &'t Problems,
        file: usize,
    ) -> Self {
        let problems_before = problems.count();
        Sheet {
            table,
            span,
            title: title.into(),
            asked: Vec::new(),
            problems,
            problems_before,
            file,
        }
    }

    /// Returns the table's name in messages.
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    /// Returns where the table starts.
    pub(crate) fn span(&self) -> Range<usize> {
        self.span.clone()
    }

    /// Returns where the value of `key` is, or the table if the key is absent.
    pub(crate) fn span_of(&self, key: &str) -> Range<usize> {
        self.table.get(key).map_or_else(|| self.span(), Spanned::span)
    }

    /// Returns whether the key is present, valid or not.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Returns whether no problem was found since this sheet was opened. Only then may values be compared with each
    /// other.
    pub(crate) fn sound(&self) -> bool {
        self.problems.count() == self.problems_before
    }

    /// Returns where this sheet's problems are reported, and their file.
    pub(crate) fn problems(&self) -> (&'t Problems, usize) {
        (self.problems, self.file)
    }

    /// Records a problem with the value of `key`.
    pub(crate) fn problem(&self, key: &str, message: impl Into<String>, mend: impl Into<String>) {
        self.problems.add(self.file, self.span_of(key), message, mend);
    }

    /// Records a problem if `key` is required and absent. A key with an invalid value already has its own problem.
    pub(crate) fn missing(&self, key: &str, mend: impl Into<String>) {
        if !self.has(key) {
            let message = format!("{} has no `{key}`", self.title);
            self.problems.add(self.file, self.span(), message, mend);
        }
    }

    /// Records a problem if both keys are set; they exclude each other.
    pub(crate) fn exclude(&self, key: &str, other: &str, why: &str) {
        if self.has(key) && self.has(other) {
            let message = format!("{} sets both `{key}` and `{other}`", self.title);
            self.problem(key, message, format!("remove one of them: {why}"));
        }
    }

    fn value(&mut self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        self.asked.push(key);
        self.table.get(key)
    }

    fn wrong_type(&self, key: &str, value: &DeValue<'_>, wanted: &str) {
        let message = format!("`{key}` is {}, not {wanted}", kind(value));
        self.problem(key, message, format!("write {wanted}"));
    }

    /// Reads a text value.
    pub(crate) fn string(&mut self, key: &'static str) -> Option<Placed<&'t str>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::String(text) => Some((text.as_ref(), value.span())),
            other => {
                self.wrong_type(key, other, "a string in quotes");
                None
            }
        }
    }

    /// Reads a list of at most `most` texts, each with its place.
    pub(crate) fn strings(&mut self, key: &'static str, most: usize, example: &str) -> Vec<Placed<&'t str>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let wanted = format!("a list of strings, such as {example}");
        let DeValue::Array(list) = value.get_ref() else {
            self.wrong_type(key, value.get_ref(), &wanted);
            return Vec::new();
        };
        if list.len() > most {
            let message = format!("`{key}` has {} entries", list.len());
            self.problem(key, message, format!("use at most {most}"));
            return Vec::new();
        }
        let mut texts = Vec::with_capacity(list.len());
        for entry in list.iter() {
            match entry.get_ref() {
                DeValue::String(text) => texts.push((text.as_ref(), entry.span())),
                other => {
                    let message = format!("`{key}` contains {}, not a string", kind(other));
                    self.problems
                        .add(self.file, entry.span(), message, format!("write {wanted}"));
                }
            }
        }
        texts
    }

    /// Reads `true` or `false`.
    pub(crate) fn flag(&mut self, key: &'static str) -> Option<bool> {
        let value = self.value(key)?.get_ref();
        if let DeValue::Boolean(flag) = value {
            return Some(*flag);
        }
        self.wrong_type(key, value, "`true` or `false`, without quotes");
        None
    }

    /// Reads an integer within `range`.
    pub(crate) fn integer<T>(&mut self, key: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: Copy + TryFrom<i128> + Into<i128> + PartialOrd,
    {
        let value = self.value(key)?.get_ref();
        let DeValue::Integer(number) = value else {
            self.wrong_type(key, value, "a whole number");
            return None;
        };
        let (least, most): (i128, i128) = ((*range.start()).into(), (*range.end()).into());
        let read = i128::from_str_radix(number.as_str(), number.radix()).ok();
        let fits = read
            .and_then(|read| T::try_from(read).ok())
            .filter(|read| range.contains(read));
        if fits.is_none() {
            let message = format!("`{key}` is {}, outside {least} to {most}", clip(number.as_str()));
            self.problem(key, message, format!("choose a whole number from {least} to {most}"));
        }
        fits
    }

    /// Reads a number within `range`, integer or not; never NaN or infinite.
    pub(crate) fn number(&mut self, key: &'static str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.value(key)?.get_ref();
        let Some(number) = as_number(value) else {
            self.wrong_type(key, value, "a number");
            return None;
        };
        if range.contains(&number) {
            return Some(number);
        }
        let (least, most) = (range.start(), range.end());
        let message = format!("`{key}` is {number}, outside {least} to {most}");
        self.problem(key, message, format!("choose a number from {least} to {most}"));
        None
    }

    /// Reads a point in the plane, in metres.
    pub(crate) fn point(&mut self, key: &'static str) -> Option<[f64; 2]> {
        let value = self.value(key)?;
        self.as_point(key, value)
    }

    /// Reads a list of at most `most` points in the plane, in metres.
    pub(crate) fn points(&mut self, key: &'static str, most: usize) -> Vec<[f64; 2]> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(list) = value.get_ref() else {
            self.wrong_type(
                key,
                value.get_ref(),
                "a list of points in metres, such as [[0.0, 1.5], [4.0, 1.5]]",
            );
            return Vec::new();
        };
        if list.len() > most {
            self.problem(
                key,
                format!("`{key}` has {} points", list.len()),
                format!("use at most {most} points"),
            );
            return Vec::new();
        }
        list.iter().filter_map(|value| self.as_point(key, value)).collect()
    }

    fn as_point(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<[f64; 2]> {
        const REACH_M: f64 = 1e5;
        let numbers: Option<Vec<f64>> = match value.get_ref() {
            DeValue::Array(list) if list.len() == 2 => list.iter().map(|number| as_number(number.get_ref())).collect(),
            _ => None,
        };
        match numbers.as_deref() {
            Some(&[x, y]) if x.abs() <= REACH_M && y.abs() <= REACH_M => Some([x, y]),
            _ => {
                let message = format!("`{key}` contains something that is not a point");
                let mend = "write x and y in metres, within 100 km of the origin, as in [2.5, 0.0]";
                self.problems.add(self.file, value.span(), message, mend);
                None
            }
        }
    }

    /// Reads a time such as `"33ms"`, within `range`.
    pub(crate) fn duration(&mut self, key: &'static str, range: RangeInclusive<Duration>) -> Option<Duration> {
        let value = self.value(key)?.get_ref();
        let DeValue::String(text) = value else {
            let message = format!("`{key}` is {}, not a time", kind(value));
            self.problem(key, message, time_mend(value));
            return None;
        };
        let (least, most) = (range.start(), range.end());
        match units::duration(text) {
            Err(message) => {
                self.problem(
                    key,
                    format!("`{key}`: {message}"),
                    format!("choose a time from {least} to {most}"),
                );
                None
            }
            Ok(time) if range.contains(&time) => Some(time),
            Ok(time) => {
                let message = format!("`{key}` is {time}, outside {least} to {most}");
                self.problem(key, message, format!("choose a time from {least} to {most}"));
                None
            }
        }
    }

    /// Reads a signed time such as `"-150us"`, with an absolute value of at most `most`. Returns it in nanoseconds.
    pub(crate) fn signed_duration(&mut self, key: &'static str, most: Duration) -> Option<i64> {
        let value = self.value(key)?.get_ref();
        let DeValue::String(text) = value else {
            let message = format!("`{key}` is {}, not a time", kind(value));
            self.problem(key, message, time_mend(value));
            return None;
        };
        let (negative, size) = match text.trim().strip_prefix('-') {
            Some(size) => (true, size),
            None => (false, text.as_ref()),
        };
        let mend = format!("choose a time from -{most} to {most}");
        let time = match units::duration(size) {
            Err(message) => {
                self.problem(key, format!("`{key}`: {message}"), mend);
                return None;
            }
            Ok(time) => time,
        };
        match i64::try_from(time.as_nanos()) {
            Ok(ns) if time <= most => Some(if negative { -ns } else { ns }),
            _ => {
                self.problem(key, format!("`{key}` is {time}, more than {most}"), mend);
                None
            }
        }
    }

    /// Reads a size such as `"12KiB"`, or an integer number of bytes, within `range`.
    pub(crate) fn size(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let value = self.value(key)?.get_ref();
        let (least, most) = (range.start(), range.end());
        let mend = format!("choose a size from {least} to {most} bytes, such as \"12KiB\" or 1500");
        let bytes = match value {
            DeValue::String(text) => units::size(text),
            DeValue::Integer(number) => {
                let read = i128::from_str_radix(number.as_str(), number.radix()).ok();
                let sign = if number.as_str().starts_with('-') {
                    "negative"
                } else {
                    "too large"
                };
                let read = read.and_then(|read| u64::try_from(read).ok());
                read.ok_or_else(|| format!("`{}` is {sign}", clip(number.as_str())))
            }
            other => Err(format!("this is {}, not a size", kind(other))),
        };
        match bytes {
            Err(message) => self.problem(key, format!("`{key}`: {message}"), mend),
            Ok(bytes) if range.contains(&bytes) => return Some(bytes),
            Ok(bytes) => self.problem(
                key,
                format!("`{key}` is {bytes} bytes, outside {least} to {most}"),
                mend,
            ),
        }
        None
    }

    /// Reads one of several names, or an integer within `range`.
    pub(crate) fn name_or_integer(
        &mut self,
        key: &'static str,
        names: &[(&str, u8)],
        range: RangeInclusive<u8>,
    ) -> Option<u8> {
        if let Some(DeValue::Integer(_)) = self.table.get(key).map(Spanned::get_ref) {
            return self.integer(key, range);
        }
        let numbers = format!(", or a number from {} to {}", range.start(), range.end());
        self.choice_or(key, names, &numbers)
    }

    /// Reads one of several names.
    pub(crate) fn choice<T: Copy>(&mut self, key: &'static str, names: &[(&str, T)]) -> Option<T> {
        self.choice_or(key, names, "")
    }

    /// Reads one of several names; messages add `or`, the other possible values.
    fn choice_or<T: Copy>(&mut self, key: &'static str, names: &[(&str, T)], or: &str) -> Option<T> {
        let (text, _) = self.string(key)?;
        let found = names
            .iter()
            .find(|(name, _)| *name == text)
            .map(|(_, meaning)| *meaning);
        if found.is_none() {
            let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
            let mend = match nearest(text, known.iter().copied()) {
                Some(near) => format!("did you mean \"{near}\"? {}{or}", one_of(&known)),
                None => format!("{}{or}", one_of(&known)),
            };
            self.problem(key, format!("`{key}` cannot be \"{}\"", clip(text)), mend);
        }
        found
    }

    /// Reads one of several integers.
    pub(crate) fn member(&mut self, key: &'static str, numbers: &[u16]) -> Option<u16> {
        let number = self.integer(key, 0..=u16::MAX)?;
        if numbers.contains(&number) {
            return Some(number);
        }
        let known: Vec<String> = numbers.iter().map(u16::to_string).collect();
        self.problem(
            key,
            format!("`{key}` cannot be {number}"),
            format!("choose one of {}", known.join(", ")),
        );
        None
    }

    /// Returns a table inside this one, such as `[air.ac_vo]` in `[air]`.
    pub(crate) fn table(&mut self, key: &'static str, title: &str) -> Option<Sheet<'t>> {
        let value = self.value(key)?;
        match value.get_ref() {
            DeValue::Table(table) => Some(Sheet::new(table, value.span(), title, self.problems, self.file)),
            other => {
                self.wrong_type(key, other, &format!("a table; start it with {title}"));
                None
            }
        }
    }

    /// Returns a list of tables, such as `[[robot]]`. More than `most` tables are one problem, and none is read.
    pub(crate) fn tables(&mut self, key: &'static str, title: &str, most: usize) -> Vec<Sheet<'t>> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let DeValue::Array(list) = value.get_ref() else {
            self.wrong_type(
                key,
                value.get_ref(),
                &format!("a list of tables; start each with {title}"),
            );
            return Vec::new();
        };
        if let Some(beyond) = list.get(most) {
            let message = format!(
                "{} {title} tables; this is the first beyond the limit of {most}",
                list.len()
            );
            self.problems.add(
                self.file,
                beyond.span(),
                message,
                format!("a team file may contain {most} of them"),
            );
            return Vec::new();
        }
        let mut sheets = Vec::with_capacity(list.len());
        for value in list.iter() {
            match value.get_ref() {
                DeValue::Table(table) => {
                    sheets.push(Sheet::new(table, value.span(), title, self.problems, self.file));
                }
                other => {
                    let message = format!("`{key}` contains {}, not a table", kind(other));
                    self.problems.add(
                        self.file,
                        value.span(),
                        message,
                        format!("start each table with {title}"),
                    );
                }
            }
        }
        sheets
    }

    /// Finishes reading: every key that was never requested is a problem.
    pub(crate) fn finish(&self) {
        for key in self.table.keys() {
            let name = key.get_ref().as_ref();
            if self.asked.contains(&name) || self.problems.full() {
                continue;
            }
            let message = format!("unknown key `{}` in {}", clip(name), self.title);
            let mend = match nearest(name, self.asked.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("{} knows {}", self.title, self.asked.join(", ")),
            };
            self.problems.add(self.file, key.span(), message, mend);
        }
    }
}

/// Returns a number, integer or not; `None` for anything else, including NaN and infinities.
fn as_number(value: &DeValue<'_>) -> Option<f64> {
    let number = match value {
        DeValue::Integer(number) => i128::from_str_radix(number.as_str(), number.radix()).ok()? as f64,
        DeValue::Float(number) => number.as_str().parse().ok()?,
        _ => return None,
    };
    number.is_finite().then_some(number)
}

/// Returns the kind of a value, in user terms.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(number) if number.as_str().contains("nan") => "nan",
        DeValue::Float(number) if number.as_str().contains("inf") => "infinite",
        DeValue::Float(_) => "a number with a decimal point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or a time of day",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// Returns the fix for a time without quotes: the written number with a unit.
fn time_mend(value: &DeValue<'_>) -> String {
    match value {
        DeValue::Integer(number) if number.as_str().len() <= 9 => {
            format!(
                "write the unit, in quotes: \"{}ms\" or \"{}s\"",
                number.as_str(),
                number.as_str()
            )
        }
        _ => "write a number with a unit, in quotes, such as \"33ms\"".to_owned(),
    }
}

/// Returns `choose one of "a", "b"`.
fn one_of(names: &[&str]) -> String {
    format!(
        "choose one of {}",
        names
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(", ")
    )
}

/// Returns the name that `text` most likely abbreviates or misspells.
pub(crate) fn nearest<'n>(text: &str, names: impl Iterator<Item = &'n str> + Clone) -> Option<&'n str> {
    const TEXT_BYTES_MAX: usize = 64;
    if text.len() > TEXT_BYTES_MAX {
        return None;
    }
    let lower = text.to_lowercase();
    let mut whole = names
        .clone()
        .filter(|name| lower.len() > 1 && name.to_lowercase().contains(&lower));
    if let (Some(name), None) = (whole.next(), whole.next()) {
        return Some(name);
    }
    let distance = |name: &str| strsim::damerau_levenshtein(&lower, &name.to_lowercase());
    let (distance, name) = names
        .map(|name| (distance(name), name))
        .min_by_key(|(distance, _)| *distance)?;
    let longest = text.chars().count().max(name.chars().count());
    (distance <= (longest / 3).max(1)).then_some(name)
}
