//! Samples as OpenMetrics text, version 1.0 (<https://openmetrics.io>, section "Text format"): a group of lines for
//! each metric of the table, whether it has samples or not, and `# EOF`, by which a reader knows that it has all.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::table::{Kind, Metric, TABLE};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What was measured so far.
#[derive(Default)]
pub struct Exposition {
    /// By the metric's name.
    lines: BTreeMap<&'static str, String>,
}

/// How often calls took at most so long: of each bound the number of those above the one before it.
pub struct Distribution<'a> {
    pub bounds_s: &'a [f64],
    /// One more than bounds: the last holds what took longer.
    pub counts: &'a [u64],
    pub sum_s: f64,
}

impl Exposition {
    /// A sample; its labels' values in the order of the table.
    pub fn set(&mut self, metric: &'static Metric, values: &[&str], number: impl Into<Number>) {
        let suffix = match metric.kind {
            Kind::Counter => "_total",
            Kind::Info => "_info",
            Kind::Gauge | Kind::Histogram | Kind::StateSet => "",
        };
        self.line(metric, suffix, &labels(metric, values), number.into());
    }

    /// That `present` is the one of all states.
    pub fn set_state(&mut self, metric: &'static Metric, values: &[&str], states: &[&str], present: &str) {
        for state in states {
            let mut labels = labels(metric, values);
            labels.push((metric.name, state));
            self.line(metric, "", &labels, Number::from(*state == present));
        }
    }

    pub fn set_distribution(&mut self, metric: &'static Metric, values: &[&str], told: &Distribution<'_>) {
        let mut sum = 0;
        let bounds = told.bounds_s.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
        for (bound, count) in bounds.zip(told.counts) {
            sum += count;
            let mut labels = labels(metric, values);
            labels.push(("le", &bound));
            self.line(metric, "_bucket", &labels, Number::Whole(sum));
        }
        self.line(metric, "_count", &labels(metric, values), Number::Whole(sum));
        self.line(metric, "_sum", &labels(metric, values), Number::Real(told.sum_s));
    }

    fn line(&mut self, metric: &'static Metric, suffix: &str, labels: &[(&str, &str)], number: Number) {
        let lines = self.lines.entry(metric.name).or_default();
        let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = match number {
            Number::Whole(number) => writeln!(lines, "{}{suffix}{labels} {number}", metric.name),
            Number::Real(number) => writeln!(lines, "{}{suffix}{labels} {number}", metric.name),
        };
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        for metric in TABLE {
            let Metric { name, kind, unit, help, .. } = metric;
            let _ = writeln!(text, "# TYPE {name} {}", word(*kind));
            if !unit.is_empty() {
                let _ = writeln!(text, "# UNIT {name} {unit}");
            }
            let _ = writeln!(text, "# HELP {name} {}", escaped(help));
            text.push_str(self.lines.get(name).map(String::as_str).unwrap_or_default());
        }
        text.push_str("# EOF\n");
        text
    }
}

/// Whole where it can be: a count of bytes has more digits than a real number keeps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Number {
        Number::Whole(number)
    }
}

impl From<usize> for Number {
    fn from(number: usize) -> Number {
        Number::Whole(u64::try_from(number).unwrap_or(u64::MAX))
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Number {
        Number::Real(number)
    }
}

impl From<bool> for Number {
    fn from(is: bool) -> Number {
        Number::Whole(u64::from(is))
    }
}

fn labels<'a>(metric: &'static Metric, values: &[&'a str]) -> Vec<(&'static str, &'a str)> {
    debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
    metric.labels.iter().copied().zip(values.iter().copied()).collect()
}

fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
        Kind::Info => "info",
        Kind::StateSet => "stateset",
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::super::table::{BUILD, DAEMON_MEMORY, ENGINE_TIME, LINK_STATE, SERVER_RESTARTS};
    use super::*;

    #[test]
    fn each_kind_has_the_lines_that_the_format_wants() {
        let mut exposition = Exposition::default();
        exposition.set(&BUILD, &["0.1.0"], true);
        exposition.set(&DAEMON_MEMORY, &[], 4096_u64);
        exposition.set(&SERVER_RESTARTS, &["shop", "a\"b\\c\nd"], 3_u64);
        exposition.set_state(&LINK_STATE, &["n2", "0"], &["up", "down"], "up");
        let told = Distribution { bounds_s: &[0.001, 1.0], counts: &[2, 3, 1], sum_s: 2.5 };
        exposition.set_distribution(&ENGINE_TIME, &["read"], &told);
        let text = exposition.text();
        for lines in [
            "# TYPE dvs_build info\n# HELP dvs_build Version of the daemon.\ndvs_build_info{version=\"0.1.0\"} 1\n",
            "# UNIT dvs_daemon_resident_memory_bytes bytes\n",
            "dvs_daemon_resident_memory_bytes 4096\n",
            "dvs_server_restarts_total{dc=\"shop\",server=\"a\\\"b\\\\c\\nd\"} 3\n",
            "dvs_link_state{peer=\"n2\",pair=\"0\",dvs_link_state=\"up\"} 1\n",
            "dvs_link_state{peer=\"n2\",pair=\"0\",dvs_link_state=\"down\"} 0\n",
            "dvs_engine_call_seconds_bucket{call=\"read\",le=\"0.001\"} 2\n",
            "dvs_engine_call_seconds_bucket{call=\"read\",le=\"1\"} 5\n",
            "dvs_engine_call_seconds_bucket{call=\"read\",le=\"+Inf\"} 6\n",
            "dvs_engine_call_seconds_count{call=\"read\"} 6\n",
            "dvs_engine_call_seconds_sum{call=\"read\"} 2.5\n",
        ] {
            assert!(text.contains(lines), "{lines}\nis not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
        assert_eq!(text.matches("# TYPE ").count(), TABLE.len());
    }
}
