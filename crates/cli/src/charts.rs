//! The charts' script and style, which the report and the live page share: uPlot and `assets/charts.js`. Both are in the
//! binary, so that the pages open offline.

/// Before a page's own script.
pub const SCRIPTS: &str = concat!(
    include_str!("../assets/uplot/uPlot.iife.min.js"),
    "\n",
    include_str!("../assets/charts.js")
);
/// Before a page's own style.
pub const STYLES: &str = concat!(
    include_str!("../assets/uplot/uPlot.min.css"),
    "\n",
    include_str!("../assets/charts.css")
);
