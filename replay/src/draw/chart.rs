//! Frame of a picture: its axes, grid and legend, and the position of values in it.
//!
//! Own code, although the benches draw by `plotters`: these pictures follow light and dark
//! backgrounds, and `urnic` would link `plotters` for them alone.

use std::fmt::Write as _;

use super::escaped;
use crate::trace::marks::{Canvas, Mark};

#[derive(Debug)]
pub(super) struct Chart {
    canvas: Canvas,
    body: String,
    legend: String,
    legend_x: u32,
    height: u32,
    strip: u32,
}

pub(super) const LEFT: u32 = 78;
pub(super) const RIGHT: u32 = 968;
pub(super) const TOP: u32 = 34;
pub(super) const WIDTH: u32 = 1000;
const BELOW: u32 = 44;

impl Chart {
    pub(super) const fn new(canvas: Canvas, plot_height: u32) -> Self {
        Self {
            canvas,
            body: String::new(),
            legend: String::new(),
            legend_x: LEFT,
            height: plot_height,
            strip: 0,
        }
    }

    pub(super) fn with_strip(self, strip: u32) -> Self {
        Self { strip, ..self }
    }

    pub(super) const fn bottom(&self) -> u32 {
        TOP + self.height
    }

    pub(super) fn x(&self, at_ns: u64) -> f64 {
        let share = self.canvas.drawn(at_ns) as f64 / self.canvas.drawn_span() as f64;
        f64::from(LEFT) + f64::from(RIGHT - LEFT) * share
    }

    pub(super) fn y(&self, value: u64) -> f64 {
        let share = value.min(self.canvas.len) as f64 / self.canvas.len as f64;
        f64::from(self.bottom()) - f64::from(self.height) * share
    }

    pub(super) fn draw(&mut self, arguments: std::fmt::Arguments<'_>) {
        self.body.write_fmt(arguments).expect("writing to a string does not fail");
    }

    /// Each line goes from the first to the last event of a mark.
    pub(super) fn lines<'m>(&mut self, class: &str, marks: impl Iterator<Item = &'m Mark>) {
        let mut path = String::new();
        for mark in marks {
            let (x, y) = (self.x(mark.at_ns.0), self.y(mark.octets.0));
            let (dx, dy) = (self.x(mark.at_ns.1) - x, self.y(mark.octets.1) - y);
            write!(path, "M{} {}l{} {}", Short(x), Short(y), Short(dx), Short(dy))
                .expect("writing to a string does not fail");
        }
        self.path(class, &path);
    }

    pub(super) fn path(&mut self, class: &str, path: &str) {
        if !path.is_empty() {
            self.draw(format_args!("<path class=\"{class}\" d=\"{path}\"/>"));
        }
    }

    /// Draws invisible areas that show, under the pointer, the frames of a mark.
    pub(super) fn hints<'m>(&mut self, what: &str, marks: impl Iterator<Item = &'m Mark>) {
        for mark in marks.take(HINTS_MAX) {
            let (x, y) = (self.x(mark.at_ns.0), self.y(mark.octets.1));
            let more = match mark.count {
                1 => String::new(),
                count => format!(" and {} more", count - 1),
            };
            let height = (self.y(mark.octets.0) - y).max(1.0) + 6.0;
            self.draw(format_args!(
                "<rect x=\"{}\" y=\"{}\" width=\"6\" height=\"{}\" fill-opacity=\"0\">\
                 <title>{what}: frame {}{more}</title></rect>",
                Short(x - 3.0),
                Short(y - 3.0),
                Short(height),
                mark.frame
            ));
        }
    }

    pub(super) fn legend(&mut self, class: &str, text: &str) {
        let x = self.legend_x;
        let width = 36 + 15 * u32::try_from(text.chars().count()).unwrap_or(0) / 2;
        if x + width > RIGHT {
            return self.legend_wraps(class, text);
        }
        let y = 12 + self.legend.matches("<!-- -->").count() * 14;
        write!(
            self.legend,
            "<path class=\"{class}\" d=\"M{x} {y}h18\"/><text x=\"{}\" y=\"{}\">{}</text>",
            x + 24,
            y + 4,
            escaped(text)
        )
        .expect("writing to a string does not fail");
        self.legend_x += width;
    }

    fn legend_wraps(&mut self, class: &str, text: &str) {
        if self.legend_x > LEFT {
            self.legend.push_str("<!-- -->");
            self.legend_x = LEFT;
            self.legend(class, text);
        }
    }

    /// Names pauses.
    pub(super) fn time_axis(&mut self) {
        self.time_axis_with(true);
    }

    /// Draws the axis without names of pauses, for pictures with text in them.
    pub(super) fn bare_time_axis(&mut self) {
        self.time_axis_with(false);
    }

    fn time_axis_with(&mut self, names_pauses: bool) {
        let (bottom, height) = (self.bottom(), self.height);
        let span = self.canvas.span_ns();
        let (unit, name) = unit_of(span, &TIMES);
        let pauses = self.canvas.pauses;
        for (from, until) in pauses.iter() {
            let (left, right) = (self.x(from), self.x(until));
            let (width, middle) = (Short(right - left), Short((left + right) / 2.0));
            // A low picture has no room for vertical text.
            let text = match height {
                0..100 => String::new(),
                _ if !names_pauses => String::new(),
                _ => format!("pause of {}", super::time(until - from)),
            };
            self.draw(format_args!(
                "<rect class=\"pause\" x=\"{}\" y=\"{TOP}\" width=\"{width}\" height=\"{}\"/>\
                 <text class=\"dim\" text-anchor=\"middle\" x=\"{middle}\" y=\"{2}\" dy=\"4\" \
                 transform=\"rotate(-90 {middle} {2})\">{text}</text>",
                Short(left),
                height,
                TOP + height / 2
            ));
        }
        let mut last_x = 0.0;
        for tick in ticks(self.canvas.drawn_span(), 10, span) {
            let x = self.x(self.canvas.first_ns + tick);
            // Labels do not overlap, and are not inside a pause.
            if x < last_x + 40.0 || self.is_pause(self.canvas.first_ns + tick) {
                continue;
            }
            last_x = x;
            let x = Short(x);
            let text = tick_text(tick, unit);
            self.draw(format_args!(
                "<path class=\"grid\" d=\"M{x} {TOP}V{bottom}\"/>\
                 <text class=\"dim\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
                bottom + self.strip + 16
            ));
        }
        self.draw(format_args!(
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">time since the first segment with payload ({name})</text>",
            (LEFT + RIGHT) / 2,
            bottom + self.strip + 36
        ));
    }

    fn is_pause(&self, at_ns: u64) -> bool {
        self.canvas.pauses.iter().any(|(from, until)| from < at_ns && at_ns < until)
    }

    /// `units` are (size, name) from the largest on, the last with size 1.
    pub(super) fn value_axis(&mut self, label: &str, units: &[(u64, &str)]) {
        let (unit, name) = unit_of(self.canvas.len, units);
        for tick in ticks(self.canvas.len, 6, self.canvas.len) {
            let y = Short(self.y(tick));
            let text = tick_text(tick, unit);
            self.draw(format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {y}H{RIGHT}\"/>\
                 <text class=\"dim\" x=\"{}\" y=\"{y}\" dy=\"4\" text-anchor=\"end\">{text}</text>",
                LEFT - 6
            ));
        }
        self.upright(&format!("{label} ({name})"));
    }

    pub(super) fn upright(&mut self, text: &str) {
        let middle = TOP + self.height / 2;
        let text = escaped(text);
        self.draw(format_args!(
            "<text x=\"14\" y=\"{middle}\" text-anchor=\"middle\" \
             transform=\"rotate(-90 14 {middle})\">{text}</text>"
        ));
    }

    pub(super) fn finish(mut self, title: &str) -> String {
        let bottom = self.bottom();
        self.draw(format_args!("<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{RIGHT}\"/>"));
        svg(bottom + self.strip + BELOW, title, &format!("{}{}", self.legend, self.body))
    }
}

pub(super) fn svg(height: u32, title: &str, content: &str) -> String {
    format!(
        "<svg class=\"p\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\"><title>{}</title>{content}</svg>",
        escaped(title)
    )
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Short(pub(super) f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.1}", self.0);
        f.write_str(match text.strip_suffix(".0").unwrap_or(&text) {
            "-0" => "0",
            short => short,
        })
    }
}

/// Returns round values from 0 to `max`, at a distance that gives about `count` of them in `part`.
pub(super) fn ticks(part: u64, count: u64, max: u64) -> impl Iterator<Item = u64> {
    // For pauses of any length: a bounded number of values.
    let least = (part / count).max(max / 10_000).max(1);
    let power = 10_u64.pow(least.ilog10());
    let step = [1, 2, 5, 10].into_iter().map(|factor| power.saturating_mul(factor));
    let step = step.clone().find(|step| *step >= least).unwrap_or(least);
    (0..=max / step).map(move |index| index * step)
}

fn unit_of<'u>(max: u64, units: &[(u64, &'u str)]) -> (u64, &'u str) {
    // Two of the next unit are shown as twenty hundred of this one.
    let fits = units.iter().find(|(unit, _)| max / unit >= 2);
    *fits.or_else(|| units.last()).expect("there are units")
}

fn tick_text(value: u64, unit: u64) -> String {
    let text = format!("{:.3}", value as f64 / unit as f64);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub(super) const TIMES: [(u64, &str); 4] =
    [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs"), (1, "ns")];
pub(super) const OCTETS: [(u64, &str); 4] =
    [(1_000_000_000, "GB"), (1_000_000, "MB"), (1000, "kB"), (1, "bytes")];
pub(super) const RATES: [(u64, &str); 4] =
    [(1_000_000_000, "Gbit/s"), (1_000_000, "Mbit/s"), (1000, "kbit/s"), (1, "bit/s")];
/// Most marks of one kind in a picture that show their frame.
const HINTS_MAX: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(1000, 5, 1000).collect::<Vec<_>>(), [0, 200, 400, 600, 800, 1000]);
        assert_eq!(ticks(3, 10, 3).collect::<Vec<_>>(), [0, 1, 2, 3]);
        for max in [1, 7, 99, 12_345, u64::MAX / 3, u64::MAX] {
            assert!((1..=11).contains(&ticks(max, 10, max).count()), "{max}");
        }
        assert_eq!([tick_text(1500, 1000), tick_text(2000, 1000)], ["1.5", "2"]);
    }
}
