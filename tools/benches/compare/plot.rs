//! A chart of the rates: a bar per case, from zero, with the spread of the rounds.

use anyhow::Result;
use plotters::prelude::{
    BLACK, ChartBuilder, Color, IntoDrawingArea, IntoFont, PathElement, RGBColor, Rectangle,
    SVGBackend, Text, WHITE,
};

use crate::case::Unit;
use crate::report::Figures;

/// The rates as SVG.
pub(crate) fn svg(figures: &Figures) -> Result<String> {
    let rates: Vec<_> = figures.of(Unit::Rate).collect();
    let highest = rates.iter().map(|figure| figure.max).fold(1.0, f64::max) * 1.15;
    let rows = u32::try_from(rates.len())?;
    let mut drawing = String::new();
    {
        let size = (WIDTH, rows * ROW + MARGIN);
        let root = SVGBackend::with_string(&mut drawing, size).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(
                format!("Gbit/s of payload — {}", figures.place()),
                ("sans-serif", 14).into_font(),
            )
            .margin(8)
            .x_label_area_size(28)
            .build_cartesian_2d(-highest * LABELS..highest, 0.0..f64::from(rows))?;
        let x_label = |x: &f64| if *x < 0.0 { String::new() } else { format!("{x:.0}") };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_label_formatter(&x_label)
            .draw()?;
        for (row, figure) in rates.iter().enumerate() {
            let top = f64::from(rows) - row as f64;
            let (low, high, middle) = (top - 0.85, top - 0.15, top - 0.5);
            let bar =
                Rectangle::new([(0.0, low), (figure.median, high)], colour(&figure.name).filled());
            let spread = PathElement::new([(figure.min, middle), (figure.max, middle)], BLACK);
            let name =
                Text::new(figure.name.clone(), (-highest * LABELS, top - 0.3), ("sans-serif", 13));
            let value = format!("{:.1}", figure.median);
            let value =
                Text::new(value, (figure.max + highest * 0.01, top - 0.3), ("sans-serif", 13));
            chart.draw_series([bar])?;
            chart.draw_series([spread])?;
            chart.draw_series([name])?;
            chart.draw_series([value])?;
        }
        root.present()?;
    }
    Ok(drawing)
}

/// Returns the colour of the program that moved the bytes.
fn colour(name: &str) -> RGBColor {
    match name.split(' ').next() {
        Some("urnic") => RGBColor(0x1b, 0x7f, 0xbd),
        Some("raw") => RGBColor(0xb8, 0xb8, 0xb8),
        _ => RGBColor(0xe0, 0x8a, 0x2c),
    }
}

const WIDTH: u32 = 900;
const ROW: u32 = 22;
const MARGIN: u32 = 80;
/// Room for the names, as a share of the highest rate.
const LABELS: f64 = 0.55;
