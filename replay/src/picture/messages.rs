//! Messages over time, a row for each operation.

use std::fmt::Write as _;

use super::chart::{Chart, LEFT, RIGHT, Short, TOP};
use super::{Picture, octets, time};
use crate::figures::count;
use crate::tally::json_name;
use crate::trace::SideTrace;

/// The messages that `from` sent; `None` when it sent none.
pub(crate) fn messages(side: &SideTrace, from: &str) -> Option<Picture> {
    let rows = side.operations.len();
    if rows == 0 {
        return None;
    }
    let height = 40 * u32::try_from(rows).unwrap_or(1);
    let mut chart = Chart::new(side.canvas.with_len(1), height);
    chart.time_axis();
    for (row, (opcode, operation)) in side.operations.iter().enumerate() {
        let y = TOP + 40 * u32::try_from(row).unwrap_or(0);
        let latency = &operation.latency;
        let text = format!(
            "{}: {} messages, {}; from the first octet to delivery: half within {}, 99 % within {}, \
             at most {}",
            json_name(*opcode),
            count(latency.count()),
            octets(operation.octets),
            time(latency.quantile(500)),
            time(latency.quantile(990)),
            time(latency.max_ns())
        );
        chart.draw(format_args!(
            "<path class=\"grid\" d=\"M{LEFT} {y}H{RIGHT}\"/><text x=\"{}\" y=\"{}\">{text}</text>",
            LEFT + 4,
            y + 14
        ));
        let mut path = String::new();
        let marks = side.messages.iter().filter(|mark| mark.octets.0 == u64::from(*opcode));
        for mark in marks {
            let (from, to) = (chart.x(mark.at_ns.0), chart.x(mark.at_ns.1));
            let width = Short((to - from).max(0.8));
            write!(path, "M{} {}h{width}v12h-{width}z", Short(from), y + 22)
                .expect("writing to a string does not fail");
        }
        chart.draw(format_args!("<path class=\"f-data pale\" d=\"{path}\"/>"));
    }
    chart.upright("operation");
    let title = format!("Messages of the {from}");
    Some(Picture {
        name: format!("{from}-messages"),
        svg: chart.finish(&title),
        title,
        help: "A message is one operation of a program: a Send, an RDMA Write, a Read Request or the \
               Response to one. Each bar lasts from the arrival of its first octet to its delivery, \
               which comes after all that was sent before it. Bars that grow longer all at once have \
               waited for the same gap."
            .to_owned(),
    })
}
