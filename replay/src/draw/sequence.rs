//! One stream over time: segments, acknowledgments, and placement.

use std::fmt::Write as _;

use super::Picture;
use super::chart::{Chart, LEFT, OCTETS, Short};
use crate::trace::marks::{Mark, Marks};
use crate::trace::{Class, SideTrace};

/// Draws the time–sequence picture of what `from` sent.
pub(crate) fn sequence(side: &SideTrace, from: &str) -> Picture {
    let strip = match u32::try_from(lanes(side).count()).unwrap_or(0) {
        0 => 0,
        lanes => LANE * lanes + 4,
    };
    let mut chart = Chart::new(side.canvas, 400).with_strip(strip);
    chart.time_axis();
    chart.value_axis("byte of the stream", &OCTETS);
    // Beyond the last byte the window does not matter.
    stairs(&mut chart, "win", side.of(Class::Window));
    stairs(&mut chart, "ack", side.of(Class::Ack));
    let few_fpdus = side.of(Class::FpduStart).count() <= FPDU_TICKS_MAX;
    if few_fpdus {
        let mut path = String::new();
        for mark in side.of(Class::FpduStart).iter() {
            let (x, y) = (Short(chart.x(mark.at_ns.0) - 3.0), Short(chart.y(mark.octets.0)));
            write!(path, "M{x} {y}h6").expect("writing to a string does not fail");
        }
        chart.path("start", &path);
        chart.legend("start", "FPDU starts");
    }
    let markers = side.of(Class::Marker);
    diamonds(&mut chart, "marker", markers);
    let drawn = [
        (Class::InOrder, "data", "segment, in order"),
        (Class::OutOfOrder, "late", "segment beyond a gap"),
        (Class::Waited, "wait", "FPDU waits to be placed"),
        (Class::Ahead, "ahead", "placed ahead of a gap"),
        (Class::Sack, "sack", "SACK block"),
        (Class::Retransmitted, "again", "retransmitted"),
    ];
    for (class, style, text) in drawn {
        let marks = side.of(class);
        if marks.count() == 0 {
            continue;
        }
        if class == Class::Waited {
            waits(&mut chart, marks);
        } else {
            chart.lines(style, marks.iter());
        }
        chart.legend(style, &format!("{text}: {}", crate::figures::count(marks.count())));
    }
    if markers.count() > 0 {
        chart.legend("marker", &format!("◇ marker: {}", crate::figures::count(markers.count())));
    }
    chart.legend("ack", "acknowledged");
    chart.legend("win", "window ends");
    for (class, style, text) in
        [(Class::Wrong, "wrong", "wrong FPDU"), (Class::Terminate, "end", "Terminate")]
    {
        let marks = side.of(class);
        if marks.count() > 0 {
            crosses(&mut chart, style, marks);
            chart.legend(style, &format!("× {text}: {}", crate::figures::count(marks.count())));
            chart.hints(text, marks.iter());
        }
    }
    chart.hints("retransmitted", side.of(Class::Retransmitted).iter());
    chart.hints("beyond a gap", side.of(Class::OutOfOrder).iter());
    rug(&mut chart, side);
    let title = format!("What the {from} sent, over time");
    Picture {
        name: format!("{from}-sequence"),
        svg: chart.finish(&title),
        title,
        help: HELP.to_owned(),
    }
}

/// Draws right of the byte; a mark of several events has a diamond at each end, and a line between.
fn diamonds(chart: &mut Chart, class: &str, marks: &Marks) {
    let mut path = String::new();
    for mark in marks.iter() {
        let (low, high) = (mark.octets.0, mark.octets.1);
        let (x, y) = (chart.x(mark.at_ns.1) + 4.0, chart.y(low));
        write!(path, "M{} {}l2 2 2 -2 -2 -2z", Short(x), Short(y))
            .expect("writing to a string does not fail");
        if low < high {
            let (from, to) = (chart.x(mark.at_ns.0), chart.y(high));
            write!(
                path,
                "M{} {}l2 2 2 -2 -2 -2zM{} {}V{}",
                Short(x),
                Short(to),
                Short(x + 2.0),
                Short(y - 2.0),
                Short(to + 2.0)
            )
            .expect("writing to a string does not fail");
            if x - from > 8.0 {
                write!(path, "M{} {}H{}", Short(from), Short(y), Short(x))
                    .expect("writing to a string does not fail");
            }
        }
    }
    chart.path(class, &path);
}

fn waits(chart: &mut Chart, marks: &Marks) {
    let mut path = String::new();
    for mark in marks.iter() {
        let (x, y) = (chart.x(mark.at_ns.0), Short(chart.y(mark.octets.0)));
        let until = Short(chart.x(mark.at_ns.1));
        write!(path, "M{} {y}H{until}", Short(x)).expect("writing to a string does not fail");
    }
    chart.path("wait", &path);
}

/// A line that is horizontal until its value changes, up or down.
fn stairs(chart: &mut Chart, class: &str, marks: &Marks) {
    let mut sorted: Vec<&Mark> = marks.iter().collect();
    sorted.sort_by_key(|mark| mark.at_ns.0);
    let mut path = String::new();
    for mark in sorted {
        let (x, last) = (Short(chart.x(mark.at_ns.0)), Short(chart.x(mark.at_ns.1)));
        let (low, high) = (Short(chart.y(mark.octets.0)), Short(chart.y(mark.octets.1)));
        let lead = if path.is_empty() { format!("M{x} {low}") } else { format!("H{x}V{low}") };
        path.push_str(&lead);
        if mark.count > 1 {
            write!(path, "L{last} {high}").expect("writing to a string does not fail");
        }
    }
    chart.path(class, &path);
}

/// Kinds of event with a lane below the time axis, named: marks in a long stream are small.
const LANES: [(Class, &str, &str); 5] = [
    (Class::Ahead, "ahead", "ahead"),
    (Class::Waited, "wait", "waited"),
    (Class::Retransmitted, "again", "retransmitted"),
    (Class::Wrong, "wrong", "wrong"),
    (Class::Terminate, "end", "Terminate"),
];

fn lanes(side: &SideTrace) -> impl Iterator<Item = (Class, &'static str, &'static str)> {
    LANES.into_iter().filter(|(class, ..)| side.of(*class).count() > 0)
}

fn rug(chart: &mut Chart, side: &SideTrace) {
    for (lane, (class, style, name)) in (0_u32..).zip(lanes(side)) {
        let y = chart.bottom() + LANE * lane + 8;
        let mut path = String::new();
        let mut last = String::new();
        for mark in side.of(class).iter() {
            let tick = format!("M{} {y}v6", Short(chart.x(mark.at_ns.0)));
            if tick != last {
                path.push_str(&tick);
                last = tick;
            }
        }
        chart.draw(format_args!(
            "<path class=\"{style}\" style=\"stroke-width:1.2;stroke-linecap:butt\" d=\"{path}\"/>\
             <text class=\"dim\" style=\"font-size:10px\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>",
            LEFT - 6,
            y + 6
        ));
    }
}

fn crosses(chart: &mut Chart, class: &str, marks: &Marks) {
    let mut path = String::new();
    for mark in marks.iter() {
        let (x, y) = (chart.x(mark.at_ns.0) - 4.0, chart.y(mark.octets.0) - 4.0);
        write!(path, "M{} {}l8 8m0 -8l-8 8", Short(x), Short(y))
            .expect("writing to a string does not fail");
    }
    chart.path(class, &path);
}

const LANE: u32 = 11;
/// Most FPDUs of a stream whose starts are drawn: more would only be a shadow.
const FPDU_TICKS_MAX: u64 = 400;

const HELP: &str = "Each upright bar is a TCP segment: its place from left to right is the time of its \
capture, its place from bottom to top is the place of its bytes in the stream. A healthy stream is one \
steep line that never steps back. A segment drawn above a hole arrived before earlier bytes (a gap: \
loss or reordering on the way); one without new bytes was retransmitted. If the receiver can find an \
FPDU (a framed piece of an RDMA message) beyond a gap, by its marker or by alignment, it places the FPDU \
in memory at once: drawn as placed ahead. If it cannot, the FPDU waits: the level line lasts as long as \
it waits. The thin stair shows the acknowledgments of the other side, the broken line its window; where \
these two lines meet the data, the receiver limits the sender. The lanes below the time axis repeat, in \
the same colours, the times when something was placed ahead, waited, was retransmitted or was wrong. \
Each diamond is a marker, at its byte in the stream and at the time when its FPDU was placed; where many \
fall together, a line joins the first and the last of them.";
