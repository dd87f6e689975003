//! Waiting times of FPDUs: the share that waits longer than a time.

use std::fmt::Write as _;

use super::chart::{LEFT, RIGHT, Short, svg};
use super::{Picture, time};
use crate::trace::SideTrace;
use crate::trace::delays::Delays;

/// Draws times from an FPDU's last byte to its placement and delivery; `in_order` is the same
/// stream placed in order only.
pub(crate) fn delays(side: &SideTrace, in_order: Option<&SideTrace>, from: &str) -> Picture {
    let curves = [
        ("ack", "delivery", Some(&side.delivery)),
        ("again", "placement, were all placed in order", in_order.map(|other| &other.placement)),
        ("ahead", "placement", Some(&side.placement)),
    ];
    let curves =
        curves.into_iter().filter_map(|(class, text, delays)| Some((class, text, delays?)));
    let longest = curves.clone().map(|(.., delays)| delays.max_ns()).max().unwrap_or(0);
    // Decades from a microsecond on.
    let decades = (longest.max(1).ilog10() + 1).clamp(4, 20);
    let x = |ns: u64| {
        let log = (ns.max(1000) as f64).log10() - 3.0;
        f64::from(LEFT) + f64::from(RIGHT - LEFT) * (log / f64::from(decades - 3)).min(1.0)
    };
    // Shares from all down to one of a million.
    let y = |left: u64, all: u64| {
        let log = (left as f64 / all.max(1) as f64).max(1e-6).log10();
        f64::from(TOP) - f64::from(BOTTOM - TOP) * log / 6.0
    };
    let mut body = grid(decades, x);
    let mut legend_y = 12;
    for (class, text, delays) in curves {
        let path = curve(delays, x, y);
        let text = format!("{text}: {}", described(delays));
        write!(
            body,
            "<path class=\"{class}\" d=\"{path}\"/><path class=\"{class}\" d=\"M{LEFT} {legend_y}h18\"/>\
             <text x=\"{}\" y=\"{}\">{text}</text>",
            LEFT + 24,
            legend_y + 4
        )
        .expect("writing to a string does not fail");
        legend_y += 16;
    }
    let middle = (TOP + BOTTOM) / 2;
    write!(
        body,
        "<path class=\"axis\" d=\"M{LEFT} {TOP}V{BOTTOM}H{RIGHT}\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">time since the last byte of the FPDU came \
         (logarithmic)</text>\
         <text x=\"14\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 14 {middle})\">\
         FPDUs that wait longer</text>",
        (LEFT + RIGHT) / 2,
        BOTTOM + 36
    )
    .expect("writing to a string does not fail");
    let title = format!("How long FPDUs of the {from} wait");
    Picture {
        name: format!("{from}-delays"),
        svg: svg(BOTTOM + 44, &title, &body),
        title,
        help: "An FPDU can be placed (copied to its memory) as soon as its last byte \
               has arrived, and delivered (the application notified) when all before it have arrived, too. Each \
               curve shows the share of the FPDUs that still waits after a time: lower and further left is \
               better. The cost of a lost segment is the distance between the curve of placement and \
               the curve of the same stream placed in order only, as by a receiver without \
               markers, or on top of a TCP that delivers bytes in order."
            .to_owned(),
    }
}

/// Draws lines at powers of ten, and their labels.
fn grid(decades: u32, x: impl Fn(u64) -> f64) -> String {
    let mut body = String::new();
    for decade in 3..=decades {
        let at = Short(x(10_u64.saturating_pow(decade)));
        let text =
            if decade == 3 { "≤ 1 µs".to_owned() } else { time(10_u64.saturating_pow(decade)) };
        write!(
            body,
            "<path class=\"grid\" d=\"M{at} {TOP}V{BOTTOM}\"/>\
             <text class=\"dim\" x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 16
        )
        .expect("writing to a string does not fail");
    }
    for (power, text) in
        ["100 %", "10 %", "1 %", "0.1 %", "0.01 %", "10 ppm", "1 ppm"].iter().enumerate()
    {
        let at = TOP + (BOTTOM - TOP) * u32::try_from(power).unwrap_or(0) / 6;
        write!(
            body,
            "<path class=\"grid\" d=\"M{LEFT} {at}H{RIGHT}\"/>\
             <text class=\"dim\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{text}</text>",
            LEFT - 6,
            at + 4
        )
        .expect("writing to a string does not fail");
    }
    body
}

fn curve(delays: &Delays, x: impl Fn(u64) -> f64, y: impl Fn(u64, u64) -> f64) -> String {
    let mut path = format!("M{LEFT} {TOP}");
    for (ns, left) in delays.longer() {
        let bottom = if left == 0 { f64::from(BOTTOM) } else { y(left, delays.count()) };
        write!(path, "H{}V{}", Short(x(ns)), Short(bottom))
            .expect("writing to a string does not fail");
    }
    path
}

fn described(delays: &Delays) -> String {
    match delays.count() {
        0 => "none".to_owned(),
        count if delays.at_once() == count => "all at once".to_owned(),
        _ => {
            format!("99 % within {}, at most {}", time(delays.quantile(990)), time(delays.max_ns()))
        }
    }
}

const TOP: u32 = 64;
const BOTTOM: u32 = 284;
