//! Throughput, window and round trips over time.

use std::fmt::Write as _;

use super::chart::{Chart, LEFT, OCTETS, RATES, RIGHT, Short, TIMES};
use super::{Picture, octets, time};
use crate::trace::SideTrace;
use crate::trace::bins::Bin;

/// Draws the bytes of TCP payload in each interval, and the window of the other side.
pub(crate) fn rates(side: &SideTrace, from: &str) -> Picture {
    let bin_ns = side.bins.bin_ns();
    let bits = |octets: u64| {
        let bits = u128::from(octets) * 8 * 1_000_000_000 / u128::from(bin_ns);
        u64::try_from(bits).unwrap_or(u64::MAX)
    };
    let all = |bin: &Bin| bits(bin.octets + bin.octets_again);
    let most = side.bins.bins.iter().map(all).max().unwrap_or(0);
    let mut chart = Chart::new(side.canvas.with_len(most), 180);
    chart.time_axis();
    chart.value_axis("rate", &RATES);
    let bins = |value: &dyn Fn(&Bin) -> u64| {
        let mut path = format!("M{} {}", LEFT, chart.bottom());
        for (index, bin) in side.bins.bins.iter().enumerate() {
            write!(
                path,
                "L{} {}H{}",
                Short(bin_x(side, index, 0.0)),
                Short(chart.y(value(bin))),
                Short(bin_x(side, index, 1.0))
            )
            .expect("writing to a string does not fail");
        }
        write!(path, "V{}z", chart.bottom()).expect("writing to a string does not fail");
        path
    };
    let (sent, again) = (bins(&all), bins(&|bin| bits(bin.octets_again)));
    chart.draw(format_args!(
        "<path class=\"data f-fill\" d=\"{sent}\"/>\
         <path class=\"f-again\" d=\"{again}\"/>"
    ));
    chart.legend("data", &format!("sent, in parts of {}", time(bin_ns)));
    chart.legend("again", "of that, retransmitted");
    let title = format!("Rate of the {from}'s bytes");
    Picture {
        name: format!("{from}-rate"),
        svg: chart.finish(&title),
        title,
        help:
            "Bytes that TCP carried, as bits for each second, in equal parts of the time, two \
               hundred at most and none shorter than the step of the timestamps. Where the rate is zero for a while, the sender had nothing to send, \
               was not allowed to, or waited for its retransmission timer."
                .to_owned(),
    }
}

/// `None` if no acknowledgment was captured.
pub(crate) fn round_trips(side: &SideTrace, from: &str) -> Option<(Picture, Option<Picture>)> {
    let help = "The window is the number of bytes beyond its acknowledgment that the other side lets this one \
                send: each bar shows the least and the most in its part of the time. At zero the \
                sender has to stop.";
    let window = ranges(side, &|bin| bin.window, "window", &OCTETS, "allowed by the other side")?;
    let most = side.bins.bins.iter().filter_map(|bin| bin.window).map(|(_, high)| high).max()?;
    let window = Picture {
        name: format!("{from}-window"),
        title: format!("Window that the {from} may use: at most {}", octets(most)),
        help: help.to_owned(),
        svg: window,
    };
    let rtt = ranges(side, &|bin| bin.rtt, "round trip", &TIMES, "segment to its acknowledgment");
    let rtt = rtt.map(|svg| Picture {
        name: format!("{from}-round-trips"),
        title: format!(
            "Round trips of the {from}: half within {}, 99 % within {}",
            time(side.rtt.quantile(500)),
            time(side.rtt.quantile(990))
        ),
        help: "From a segment to the acknowledgment of its last byte, both as captured: captured at \
               the sender that is the whole round trip; captured at the receiver only the time that \
               the receiver takes. Retransmitted segments are left out, because their acknowledgment \
               may be that of either transmission."
            .to_owned(),
        svg,
    });
    Some((window, rtt))
}

/// Position from the beginning 0.0 of an interval to its end 1.0.
fn bin_x(side: &SideTrace, index: usize, share: f64) -> f64 {
    let at = (index as f64 + share) / f64::from(side.bins.count());
    f64::from(LEFT) + f64::from(RIGHT - LEFT) * at
}

/// Draws bars from the lowest to the highest value of each interval.
fn ranges(
    side: &SideTrace,
    range: &dyn Fn(&Bin) -> Option<(u64, u64)>,
    label: &str,
    units: &[(u64, &str)],
    legend: &str,
) -> Option<String> {
    let most = side.bins.bins.iter().filter_map(range).map(|(_, high)| high).max()?;
    let mut chart = Chart::new(side.canvas.with_len(most), 140);
    chart.time_axis();
    chart.value_axis(label, units);
    let mut path = String::new();
    for (index, bin) in side.bins.bins.iter().enumerate() {
        let Some((low, high)) = range(bin) else { continue };
        let x = Short(bin_x(side, index, 0.5));
        write!(path, "M{x} {}V{}", Short(chart.y(low)), Short(chart.y(high)))
            .expect("writing to a string does not fail");
    }
    chart.draw(format_args!("<path class=\"bar\" d=\"{path}\"/>"));
    chart.legend("data", legend);
    Some(chart.finish(label))
}
