//! Messages over time, a row for each operation.

use std::fmt::Write as _;

use super::chart::{Chart, LEFT, RIGHT, Short, TOP};
use super::{Picture, octets, time};
use crate::figures::json_name;
use crate::figures::plural;
use crate::trace::SideTrace;
use crate::trace::answers::Answers;
use crate::trace::delays::Delays;
use crate::trace::marks::Mark;

/// Draws the messages that `from` sent, and their answers; `None` if it sent none.
pub(crate) fn messages(side: &SideTrace, answers: &Answers, from: &str) -> Option<Picture> {
    if side.operations.is_empty() {
        return None;
    }
    let exchanges = [
        ("read_request to the last byte of its response", "ahead", &answers.reads),
        ("send to the terminate that is about it", "again", &answers.sends),
    ];
    let exchanges = exchanges.into_iter().filter(|(.., one)| one.latency.count() > 0);
    let rows = side.operations.len() + exchanges.clone().count();
    let height = ROW * u32::try_from(rows).unwrap_or(1);
    let mut chart = Chart::new(side.canvas.with_len(1), height);
    chart.bare_time_axis();
    let mut y = TOP;
    for (opcode, operation) in &side.operations {
        let latency = &operation.latency;
        let text = format!(
            "{}: {}, {}; from the first byte to delivery: {}",
            json_name(*opcode),
            plural(latency.count(), "message"),
            octets(operation.octets),
            spread(latency)
        );
        let marks = side.messages.iter().filter(|mark| mark.octets.0 == u64::from(*opcode));
        row(&mut chart, y, &text, "data", marks);
        y += ROW;
    }
    for (what, class, exchange) in exchanges {
        let latency = &exchange.latency;
        let text = format!("{what}: {}; {}", plural(latency.count(), "time"), spread(latency));
        row(&mut chart, y, &text, class, exchange.marks.iter());
        y += ROW;
    }
    chart.upright("operation");
    let title = format!("Messages of the {from}");
    Some(Picture {
        name: format!("{from}-messages"),
        svg: chart.finish(&title),
        title,
        help: "A message is one operation of an application: a Send, an RDMA Write, a Read Request or the \
               Response to one. Each bar lasts from the arrival of its first byte to its delivery, \
               which comes after all earlier data. Bars that all become longer at once have \
               waited for the same gap. Below them are exchanges with the other end: from a Read Request to \
               the last byte of its Response, and from a Send to the Terminate that names \
               it."
            .to_owned(),
    })
}

fn row<'m>(
    chart: &mut Chart,
    y: u32,
    text: &str,
    class: &str,
    marks: impl Iterator<Item = &'m Mark>,
) {
    chart.draw(format_args!(
        "<path class=\"grid\" d=\"M{LEFT} {y}H{RIGHT}\"/><text x=\"{}\" y=\"{}\">{text}</text>",
        LEFT + 4,
        y + 14
    ));
    let mut path = String::new();
    for mark in marks {
        let (from, to) = (chart.x(mark.at_ns.0), chart.x(mark.at_ns.1));
        let width = Short((to - from).max(0.8));
        write!(path, "M{} {}h{width}v12h-{width}z", Short(from), y + 22)
            .expect("writing to a string does not fail");
    }
    chart.draw(format_args!("<path class=\"f-{class} pale\" d=\"{path}\"/>"));
}

fn spread(latency: &Delays) -> String {
    format!(
        "half within {}, 99 % within {}, at most {}",
        time(latency.quantile(500)),
        time(latency.quantile(990)),
        time(latency.max_ns())
    )
}

const ROW: u32 = 40;
