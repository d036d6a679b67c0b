//! The HTML report: one file that opens offline, with the table, the curves and one second of each run in detail.
//!
//! The page's text and table are made here, so that they are there without scripts too; the charts are drawn in
//! the browser by `assets/report.js` over uPlot (docs/decisions/0003-report-charts.md), from the data that
//! `data` embeds. Names from the team file are user input: all text goes through [`escape`], all data through
//! JSON that cannot close its own tag, and a content policy keeps the page from loading or sending anything.

mod data;

use coorp_sim::results::{Charts, PolicyResult, Report};

use crate::summary;
use crate::table::{Sheet, DASH};

const UPLOT_SCRIPT: &str = include_str!("../../assets/uplot/uPlot.iife.min.js");
const UPLOT_STYLE: &str = include_str!("../../assets/uplot/uPlot.min.css");
const OWN_SCRIPT: &str = include_str!("../../assets/report.js");
const OWN_STYLE: &str = include_str!("../../assets/report.css");

/// What a report is made of.
pub struct Page<'a> {
    /// The numbers, one entry a policy.
    pub numbers: &'a Report,
    /// The series, in the same order.
    pub charts: &'a [Charts],
    /// The reaction bound, ms; none without a control loop.
    pub bound_ms: Option<f64>,
    /// The command line that made the report.
    pub command: &'a str,
}

impl Page<'_> {
    /// The whole file.
    pub fn render(&self) -> String {
        let team = escape(&self.numbers.team);
        let embedded = data::embed(self);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
             <title>{team}: Coorp report</title>\n<style>{UPLOT_STYLE}</style>\n<style>{OWN_STYLE}</style>\n\
             </head>\n<body>\n<main>\n{head}{tables}{sections}</main>\n\
             <script type=\"application/json\" id=\"data\">{embedded}</script>\n\
             <script>{UPLOT_SCRIPT}</script>\n<script>{OWN_SCRIPT}</script>\n</body>\n</html>\n",
            head = self.head(),
            tables = self.tables(),
            sections = self.sections(),
        )
    }

    fn head(&self) -> String {
        let virtual_s = self.numbers.results.first().map_or(0.0, |result| result.virtual_s);
        let bound = self.bound_ms.map(|bound| format!(", reaction bound {bound} ms")).unwrap_or_default();
        format!(
            "<header>\n<h1>{team}</h1>\n<p>{virtual_s} virtual seconds a policy, seed {seed}{bound}. \
             Made by coorp {version} with</p>\n<pre><code>{command}</code></pre>\n</header>\n",
            team = escape(&self.numbers.team),
            seed = self.numbers.seed,
            version = env!("CARGO_PKG_VERSION"),
            command = escape(self.command),
        )
    }

    fn tables(&self) -> String {
        let results = &self.numbers.results;
        let mut html = String::new();
        if summary::has_team_work(results) {
            html += "<section>\n<h2>Policies</h2>\n";
            html += &table(&summary::policies(results), |row| results.get(row));
            html += "<p class=\"note\">Violation rate: share of control loops over the reaction bound. WNIC ahead: bulk \
                     packets in the sender's WNIC when a control packet reaches it. A dash: does not apply, or \
                     was not run.</p>\n</section>\n";
        }
        if results.iter().any(|result| !result.flows.is_empty()) {
            let owners: Vec<&PolicyResult> =
                results.iter().flat_map(|result| result.flows.iter().map(move |_| result)).collect();
            html += "<section>\n<h2>Flows</h2>\n";
            html += &table(&summary::flows(results), |row| owners.get(row).copied());
            html += "</section>\n";
        }
        html
    }

    /// Places for the charts that have something to show.
    fn sections(&self) -> String {
        let any = |has: fn(&Charts) -> bool| self.charts.iter().any(has);
        let mut html = String::from("<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>\n");
        let mut curves = String::new();
        if any(|charts| !charts.reaction_cdf.is_empty()) {
            curves += &section("reaction", "Reaction time", "Share of control loops that took at most so long.");
        }
        if any(|charts| !charts.control_cdf.is_empty()) {
            let what = "Share of control messages that arrived within so long, sender's stack to receiver's.";
            curves += &section("control", "Control latency", what);
        }
        if !curves.is_empty() {
            html += &format!("<div class=\"pair\">\n{curves}</div>\n");
        }
        if any(|charts| !charts.throughput.is_empty()) {
            html += &section("throughput", "Bulk throughput", "<span id=\"throughput-note\"></span>");
        }
        if any(|charts| !charts.timeline.spans.is_empty()) {
            let what = "Drag over a stretch to zoom in on it, in all policies at once; double-click to see all again. \
                        Point at something to read what it is.";
            html += &section("timeline", "One second, robot by robot", what);
        }
        html
    }
}

fn section(id: &str, title: &str, what: &str) -> String {
    format!("<section id=\"{id}\">\n<h2>{title}</h2>\n<p class=\"note\">{what}</p>\n<div class=\"chart\"></div>\n</section>\n")
}

/// A sheet as an HTML table; `owner` gives the result that a row belongs to, for its colour.
fn table<'r>(sheet: &Sheet, owner: impl Fn(usize) -> Option<&'r PolicyResult>) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead>\n");
    html += &header(sheet);
    html += "</thead>\n<tbody>\n";
    for (index, row) in sheet.rows.iter().enumerate() {
        html += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let text = if cell == DASH { "\u{2013}".to_owned() } else { escape(cell) };
            if column == 0 {
                let policy = owner(index).map(|result| escape(&result.policy)).unwrap_or_default();
                html += &format!("<th scope=\"row\"><i class=\"swatch\" data-policy=\"{policy}\"></i>{text}</th>");
            } else if column < sheet.names {
                html += &format!("<th scope=\"row\">{text}</th>");
            } else {
                html += &format!("<td>{text}</td>");
            }
        }
        html += "</tr>\n";
    }
    html + "</tbody>\n</table></div>\n"
}

/// Two rows of titles: a group over its members. A title whose first line is empty continues the group before it.
fn header(sheet: &Sheet) -> String {
    let split = |title: &String| {
        let (group, member) = title.split_once('\n').unwrap_or((title.as_str(), ""));
        (escape(group), escape(member))
    };
    let titles: Vec<(String, String)> = sheet.titles.iter().map(split).collect();
    let (mut upper, mut lower) = (String::new(), String::new());
    let mut index = 0;
    while let Some((group, member)) = titles.get(index) {
        let is_more = |(next, _): &&(String, String)| next.is_empty();
        let more = titles.iter().skip(index + 1).take_while(is_more).count();
        let members = titles.iter().skip(index).take(more + 1).filter(|(_, member)| !member.is_empty()).count();
        let name = if index < sheet.names { " class=\"name\"" } else { "" };
        if index < sheet.names || more == 0 || group.is_empty() || members <= 1 {
            // Standing alone: one cell over both rows.
            let gap = if group.is_empty() || member.is_empty() { "" } else { "<br>" };
            upper += &format!("<th scope=\"col\" rowspan=\"2\"{name}>{group}{gap}{member}</th>");
            index += 1;
        } else {
            upper += &format!("<th scope=\"colgroup\" colspan=\"{}\" class=\"group\">{group}</th>", more + 1);
            for (_, member) in titles.iter().skip(index).take(more + 1) {
                lower += &format!("<th scope=\"col\">{member}</th>");
            }
            index += more + 1;
        }
    }
    format!("<tr>{upper}</tr>\n<tr>{lower}</tr>\n")
}

/// Text as HTML shows it, in an element or between double quotes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}
