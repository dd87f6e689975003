//! The figures of all rounds, as tables and as JSON.

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::case::{Case, Ratio, Unit};

/// One case's figures.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    samples: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct RatioFigure<'a> {
    name: &'a str,
    numerator: &'a str,
    denominator: &'a str,
    ratio: f64,
    aim: f64,
}

/// The machine and the date.
#[derive(Debug, Serialize)]
struct Machine {
    date: String,
    processor: String,
    cores: usize,
    kernel: String,
}

/// All results.
#[derive(Debug)]
pub(crate) struct Figures {
    machine: Machine,
    seconds: f64,
    cases: Vec<(Figure, Unit)>,
    ratios: Vec<Ratio>,
    missing: Vec<String>,
}

impl Figures {
    pub(crate) fn new(seconds: f64, ratios: Vec<Ratio>) -> Self {
        let machine = Machine::this();
        Self { machine, seconds, cases: Vec::new(), ratios, missing: Vec::new() }
    }

    /// Adds one round's figure of a case.
    pub(crate) fn add(&mut self, case: &Case, sample: f64) {
        let at = self.cases.iter().position(|(figure, _)| figure.name == case.name);
        let at = at.unwrap_or_else(|| {
            let (name, unit) = (case.name.clone(), case.unit.name());
            let figure =
                Figure { name, unit, median: 0.0, min: 0.0, max: 0.0, samples: Vec::new() };
            self.cases.push((figure, case.unit));
            self.cases.len() - 1
        });
        let figure = &mut self.cases[at].0;
        figure.samples.push(sample);
        let mut sorted = figure.samples.clone();
        sorted.sort_by(f64::total_cmp);
        figure.median = sorted[sorted.len() / 2];
        (figure.min, figure.max) = (sorted[0], sorted[sorted.len() - 1]);
    }

    /// Records a case that cannot be measured here.
    pub(crate) fn leave_out(&mut self, case: &Case, program: &str, package: &str) {
        self.missing.push(format!("{}: no {program}; apt install {package}", case.name));
    }

    pub(crate) fn missing(&self) -> &[String] {
        &self.missing
    }

    /// The cases with this unit.
    pub(crate) fn of(&self, unit: Unit) -> impl Iterator<Item = &Figure> {
        self.cases.iter().filter(move |(_, of)| *of == unit).map(|(figure, _)| figure)
    }

    /// Returns machine and date in one line.
    pub(crate) fn place(&self) -> String {
        let Machine { date, processor, cores, kernel } = &self.machine;
        format!("{date}, {processor}, {cores} cores, Linux {kernel}")
    }

    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["case", "median", "min", "max", "unit"]);
        for (figure, _) in &self.cases {
            let Figure { name, unit, median, min, max, .. } = figure;
            // Rates of short messages are small.
            let number = |value: &f64| match *value {
                ..0.1 => format!("{value:.5}"),
                0.1..1.0 => format!("{value:.3}"),
                _ => format!("{value:.2}"),
            };
            table.add_row([&**name, &*number(median), &*number(min), &*number(max), unit]);
        }
        right_align(&mut table, 1..4);
        format!("{}\n{table}", self.place())
    }

    pub(crate) fn ratios(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED);
        table.set_header(["ratio of medians", "", "aim"]);
        for RatioFigure { name, ratio, aim, .. } in self.ratio_figures() {
            table.add_row([name, &format!("{ratio:.2}"), &format!("{aim:.2}")]);
        }
        right_align(&mut table, 1..3);
        table.to_string()
    }

    fn ratio_figures(&self) -> impl Iterator<Item = RatioFigure<'_>> {
        let median = |name: &str| {
            self.cases
                .iter()
                .find(|(figure, _)| figure.name == name)
                .map(|(figure, _)| figure.median)
        };
        self.ratios.iter().filter_map(move |Ratio { name, numerator, denominator, aim }| {
            let ratio = median(numerator)? / median(denominator)?;
            Some(RatioFigure { name, numerator, denominator, ratio, aim: *aim })
        })
    }

    pub(crate) fn json(&self) -> Result<String> {
        #[derive(Serialize)]
        struct Report<'a> {
            machine: &'a Machine,
            seconds: f64,
            cases: Vec<&'a Figure>,
            ratios: Vec<RatioFigure<'a>>,
            missing: &'a [String],
        }
        let report = Report {
            machine: &self.machine,
            seconds: self.seconds,
            cases: self.cases.iter().map(|(figure, _)| figure).collect(),
            ratios: self.ratio_figures().collect(),
            missing: &self.missing,
        };
        Ok(serde_json::to_string_pretty(&report)? + "\n")
    }
}

impl Machine {
    fn this() -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let info = read("/proc/cpuinfo");
        let model =
            info.lines().find_map(|line| line.strip_prefix("model name")?.split(':').nth(1));
        let date = std::process::Command::new("date").arg("+%F").output();
        let date = date.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Self {
            date: date.unwrap_or_default(),
            processor: model.unwrap_or("unknown processor").trim().to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

fn right_align(table: &mut Table, columns: std::ops::Range<usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
