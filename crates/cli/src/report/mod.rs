//! The HTML report: one file that opens offline, with the table, the curves and one second of each run in detail.
//!
//! The page's text and tables are created here, so they also work without scripts. The charts are drawn in the browser
//! by `assets/report.js` (`crate::charts`, docs/decisions/0003-report-charts.md), from the data that `data` embeds. Names
//! from the team file are user input: all text is passed through [`escape`], and all data through JSON that cannot
//! close its own tag. A content security policy keeps the page from loading or sending anything.

mod data;

use coorp_sim::results::{Charts, Report};

use crate::charts;
use crate::notes::Unfit;
use crate::summary;
use crate::table::{Sheet, DASH};

const SCRIPT: &str = include_str!("../../assets/report.js");

/// The contents of a report.
pub struct Page<'a> {
    /// The numbers, one entry per policy.
    pub numbers: &'a Report,
    /// The series, in the same order.
    pub charts: &'a [Charts],
    /// Requested policies that do not fit the team.
    pub unfit: &'a [Unfit],
    /// The notes below the tables.
    pub notes: &'a [String],
    /// The reaction bound in ms; `None` without a control loop.
    pub bound_ms: Option<f64>,
    /// The command line that created the report.
    pub command: &'a str,
}

impl Page<'_> {
    /// Returns the complete file.
    pub fn render(&self) -> String {
        let team = escape(&self.numbers.team);
        let embedded = data::embed(self);
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
             style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
             <title>{team}: Coorp report</title>\n<style>{styles}</style>\n\
             </head>\n<body>\n<main>\n{head}{tables}{sections}</main>\n\
             <script type=\"application/json\" id=\"data\">{embedded}</script>\n\
             <script>{scripts}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
            styles = charts::STYLES,
            scripts = charts::SCRIPTS,
            head = self.head(),
            tables = self.tables(),
            sections = self.sections(),
        )
    }

    fn head(&self) -> String {
        let virtual_s = self.numbers.results.first().map_or(0.0, |result| result.virtual_s);
        let bound = self
            .bound_ms
            .map(|bound| format!(", reaction bound {bound} ms"))
            .unwrap_or_default();
        format!(
            "<header>\n<h1>{team}</h1>\n<p>{virtual_s} virtual seconds per policy, seed {seed}{bound}. \
             Created by coorp {version} with this command:</p>\n<pre><code>{command}</code></pre>\n</header>\n",
            team = escape(&self.numbers.team),
            seed = self.numbers.seed,
            version = env!("CARGO_PKG_VERSION"),
            command = escape(self.command),
        )
    }

    fn tables(&self) -> String {
        let results = &self.numbers.results;
        let entries = summary::entries(results, self.unfit);
        let mut html = String::new();
        if summary::has_team_work(results) {
            html += "<section>\n<h2>Policies</h2>\n";
            html += &table(&summary::policies(&entries));
            html +=
                "<p class=\"note\">Violation rate: share of control loops over the reaction bound. WNIC ahead: bulk \
                     packets in the sender's WNIC when a control packet arrives there. A dash: not applicable, or \
                     not run.</p>\n</section>\n";
        }
        if results.iter().any(|result| !result.flows.is_empty()) {
            html += "<section>\n<h2>Flows</h2>\n";
            html += &table(&summary::flows(&entries));
            html += "</section>\n";
        }
        if !self.notes.is_empty() {
            html += "<ul class=\"notes\">\n";
            for note in self.notes {
                html += &format!("<li>{}</li>\n", escape(note));
            }
            html += "</ul>\n";
        }
        html
    }

    /// Placeholders for the charts that have data.
    fn sections(&self) -> String {
        let any = |has: fn(&Charts) -> bool| self.charts.iter().any(has);
        let mut html = String::from("<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>\n");
        let mut curves = String::new();
        if any(|charts| !charts.reaction_cdf.is_empty()) {
            curves += &section(
                "reaction",
                "Reaction time",
                "Share of control loops that took at most this long.<span id=\"reaction-note\"></span>",
            );
        }
        if any(|charts| !charts.control_cdf.is_empty()) {
            let what =
                "Share of control messages that arrived within this time, from the sender's stack to the receiver's.";
            curves += &section("control", "Control latency", what);
        }
        if !curves.is_empty() {
            html += &format!("<div class=\"pair\">\n{curves}</div>\n");
        }
        if any(|charts| charts.throughput.iter().any(|(_, mbps)| *mbps > 0.0)) {
            html += &section("throughput", "Bulk throughput", "<span id=\"throughput-note\"></span>");
        }
        if any(|charts| !charts.timeline.spans.is_empty()) {
            let what = "Shows the first 100 ms: drag to zoom, double-click for the whole second, in all policies at \
                        once. Hover over an item to see what it is.";
            html += &section("timeline", "One second, robot by robot", what);
        }
        html
    }
}

fn section(id: &str, title: &str, what: &str) -> String {
    format!("<section id=\"{id}\">\n<h2>{title}</h2>\n<p class=\"note\">{what}</p>\n<div class=\"chart\"></div>\n</section>\n")
}

/// Returns a sheet as an HTML table. Its first column is the policy, which determines the row's colour.
fn table(sheet: &Sheet) -> String {
    let mut html = String::from("<div class=\"wide\"><table>\n<thead>\n");
    html += &header(sheet);
    html += "</thead>\n<tbody>\n";
    for row in &sheet.rows {
        html += "<tr>";
        for (column, cell) in row.iter().enumerate() {
            let text = if cell == DASH {
                "\u{2013}".to_owned()
            } else {
                escape(cell)
            };
            if column == 0 {
                html += &format!("<th scope=\"row\"><i class=\"swatch\" data-policy=\"{text}\"></i>{text}</th>");
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

/// Two rows of titles: a group above its members. A title with an empty first line continues the previous group.
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
        let members = titles
            .iter()
            .skip(index)
            .take(more + 1)
            .filter(|(_, member)| !member.is_empty())
            .count();
        let name = if index < sheet.names { " class=\"name\"" } else { "" };
        if index < sheet.names || more == 0 || group.is_empty() || members <= 1 {
            // A single title: one cell over both rows.
            let gap = if group.is_empty() || member.is_empty() {
                ""
            } else {
                "<br>"
            };
            upper += &format!("<th scope=\"col\" rowspan=\"2\"{name}>{group}{gap}{member}</th>");
            index += 1;
        } else {
            upper += &format!(
                "<th scope=\"colgroup\" colspan=\"{}\" class=\"group\">{group}</th>",
                more + 1
            );
            for (_, member) in titles.iter().skip(index).take(more + 1) {
                lower += &format!("<th scope=\"col\">{member}</th>");
            }
            index += more + 1;
        }
    }
    format!("<tr>{upper}</tr>\n<tr>{lower}</tr>\n")
}

/// Text escaped for HTML, in an element or between double quotes.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::tests::result;
    use coorp_sim::results::{FlowResult, PolicyResult, Span, SpanKind, Timeline};

    const EVIL: &str = "</script><script>alert('1')</script>&\"";

    fn charts() -> Charts {
        let span = Span {
            robot: 0,
            kind: SpanKind::Bulk,
            start_ms: 1.0,
            end_ms: 2.00049,
            frames: 32,
        };
        Charts {
            reaction_cdf: vec![(20.0, 0.1), (40.0, 1.0)],
            control_cdf: vec![(1.0, 1.0)],
            throughput: vec![(0.0, 160.0)],
            timeline: Timeline {
                start_s: 30.0,
                length_s: 1.0,
                robots: vec![EVIL.to_owned()],
                spans: vec![span],
            },
        }
    }

    fn render(team: &str, results: Vec<PolicyResult>, charts: &[Charts], command: &str) -> String {
        let numbers = Report {
            team: team.to_owned(),
            seed: 7,
            results,
        };
        Page {
            numbers: &numbers,
            charts,
            unfit: &[],
            notes: &["edca & co".to_owned()],
            bound_ms: Some(33.0),
            command,
        }
        .render()
    }

    fn embedded(page: &str) -> serde_json::Value {
        let from = page.split_once("id=\"data\">").unwrap().1;
        serde_json::from_str(from.split_once("</script>").unwrap().0).unwrap()
    }

    #[test]
    fn names_from_the_team_file_cannot_leave_their_place() {
        let mut with_flow = result("coorp");
        with_flow.flows.push(FlowResult {
            name: EVIL.to_owned(),
            mbps: 1.0,
            sent: 1,
            delivered: 1,
            latency_ms: None,
            violation_rate: None,
        });
        let page = render(EVIL, vec![with_flow], &[charts()], EVIL);
        assert!(!page.contains("<script>alert"), "a name became a script");
        assert_eq!(page.matches("</script>").count(), 3);
        assert_eq!(embedded(&page)["policies"][0]["timeline"]["robots"][0], EVIL);
    }

    #[test]
    fn the_page_holds_the_run_and_loads_nothing() {
        let page = render(
            "nav",
            vec![result("edca"), result("coorp")],
            &[charts(), charts()],
            "coorp sim nav.toml",
        );
        assert!(page.contains("<li>edca &amp; co</li>"));
        assert!(page.contains("with this command:</p>\n<pre><code>coorp sim nav.toml</code>"));
        assert!(page.contains("<span id=\"reaction-note\">") && page.contains("double-click for the whole second"));
        assert!(page.contains("coorp sim nav.toml") && page.contains("seed 7") && page.contains("168.2"));
        for section in ["reaction", "control", "throughput", "timeline"] {
            assert!(page.contains(&format!("<section id=\"{section}\">")), "{section}");
        }
        for outside in ["src=", "href=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside} would load something");
        }
        let data = embedded(&page);
        assert_eq!(data["bound_ms"], 33.0);
        assert_eq!(data["policies"][1]["name"], "coorp");
        assert_eq!(
            data["policies"][1]["timeline"]["end"][0], 2.0,
            "rounded to the microsecond"
        );
    }

    #[test]
    fn what_there_is_nothing_of_has_no_place() {
        let page = render("t", vec![result("edca")], &[Charts::default()], "coorp sim t.toml");
        assert!(!page.contains("<section id="), "an empty chart has a place");
    }

    #[test]
    fn titles_are_grouped_over_their_members() {
        let html = header(&summary::policies(&[]));
        assert!(
            html.contains("<th scope=\"colgroup\" colspan=\"3\" class=\"group\">reaction ms</th>"),
            "{html}"
        );
        assert!(html.contains("bulk<br>Mbit/s"), "{html}");
        let flows = header(&summary::flows(&[]));
        assert_eq!(flows.matches("rowspan=\"2\"").count(), 5, "{flows}");
    }
}
