//! The figures as two pictures, one above the other: memory, and the time of a message.

use anyhow::{Context, Result};
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, DrawingBackend, IntoDrawingArea, IntoFont,
    IntoLogRange, PathElement, RGBColor, SVGBackend, Text, WHITE,
};

use crate::Figure;

/// A line of the charts: its name, its colour, and its value for a number of connections.
type Line = (&'static str, RGBColor, fn(&Figure) -> f64);

const MEMORY: [Line; 3] = [
    ("connection", BLUE, |figure| figure.cost.idle_bytes),
    ("queue pair", ORANGE, |figure| figure.cost.qp_bytes),
    ("TIME-WAIT", GREEN, |figure| figure.cost.time_wait_bytes),
];
const TIME: [Line; 2] = [
    ("64 in flight", BLUE, |figure| 1e9 / figure.messages_per_second),
    ("one on each", ORANGE, |figure| 1e9 / figure.messages_per_second_on_all),
];

/// The figures as SVG.
pub(crate) fn svg(figures: &[Figure]) -> Result<String> {
    let mut drawing = String::new();
    {
        let root = SVGBackend::with_string(&mut drawing, (WIDTH, 2 * HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let (upper, lower) = root.split_vertically(HEIGHT);
        draw(
            &upper,
            "bytes of memory for an idle connection and for one that is over, at one end",
            figures,
            &MEMORY,
        )?;
        draw(&lower, "nanoseconds for a message of 64 bytes, both ends", figures, &TIME)?;
        root.present()?;
    }
    Ok(drawing)
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    caption: &str,
    figures: &[Figure],
    lines: &[Line],
) -> Result<()>
where
    B::ErrorType: 'static,
{
    let last = figures.iter().map(|figure| figure.connections).max().context("no figures")?;
    let values = lines.iter().flat_map(|(.., of)| figures.iter().map(of));
    let highest = values.fold(1.0, f64::max) * 1.2;
    // Room for the names after the last point.
    let counts = (0.8..f64::from(last) * 8.0).log_scale();
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 14).into_font())
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(64)
        .build_cartesian_2d(counts, 0.0..highest)?;
    let whole = |value: &f64| format!("{value:.0}");
    let mut mesh = chart.configure_mesh();
    mesh.x_label_formatter(&whole).y_label_formatter(&whole);
    mesh.x_desc("connections").disable_x_mesh().draw()?;
    for (name, colour, of) in lines {
        let points = || figures.iter().map(|figure| (f64::from(figure.connections), of(figure)));
        let path: Vec<_> = points().collect();
        chart.draw_series([PathElement::new(path, colour.stroke_width(2))])?;
        chart.draw_series(points().map(|at| Circle::new(at, 3, colour.filled())))?;
        let (count, value) = points().next_back().context("no figures")?;
        let at = (count * 1.2, value + highest * 0.03);
        chart.draw_series([Text::new(*name, at, ("sans-serif", 13))])?;
    }
    Ok(())
}

const WIDTH: u32 = 720;
const HEIGHT: u32 = 260;
const BLUE: RGBColor = RGBColor(0x1b, 0x7f, 0xbd);
const GREEN: RGBColor = RGBColor(0x3a, 0x8f, 0x4d);
const ORANGE: RGBColor = RGBColor(0xe0, 0x8a, 0x2c);
