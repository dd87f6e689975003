//! Memory behind steering tags: when each part was written, and which parts were written twice.

use std::fmt::Write as _;

use super::chart::{LEFT, RIGHT, Short, svg};
use super::{Picture, octets, time};
use crate::figures::{count, plural};
use crate::trace::SideTrace;
use crate::trace::map::MemoryMap;

/// Draws the maps of the steering tags that `from` wrote to; `None` if it wrote to none.
pub(crate) fn memory(side: &SideTrace, from: &str) -> Option<Picture> {
    if side.maps.is_empty() {
        return None;
    }
    let mut body = String::new();
    legend(&mut body);
    let mut y = 44;
    let mut maps: Vec<_> = side.maps.iter().collect();
    maps.sort_by_key(|(_, map)| std::cmp::Reverse(map.octets));
    for (stag, map) in maps.iter().take(ROWS_MAX) {
        row(&mut body, side, &stag.to_string(), map, y);
        y += ROW;
    }
    let rest = maps.iter().skip(ROWS_MAX);
    let writes = side.maps_left_out + rest.clone().map(|(_, map)| map.writes).sum::<u64>();
    if writes > 0 {
        write!(
            body,
            "<text x=\"{LEFT}\" y=\"{}\">{} more pieces were written to steering tags that got less</text>",
            y + 14,
            count(writes)
        )
        .expect("writing to a string does not fail");
        y += 24;
    }
    let title = format!("Memory that the {from} wrote");
    Some(Picture {
        name: format!("{from}-memory"),
        svg: svg(y + 8, &title, &body),
        title,
        help: "One bar for each of the eight steering tags that most was written to (a steering tag is the name by which one end lets the other write to a piece \
               of its memory), from the lowest to the highest tagged offset written. The shade says when a \
               part was written first: pale is early, strong is late, so an even slope is one pass from \
               beginning to end, and a strong spot amid pale ones is a part that came late. Nothing was \
               written where the bar is empty. Below, what was written more than once is marked: a \
               buffer that is used again, or writes that overlap."
            .to_owned(),
    })
}

fn row(body: &mut String, side: &SideTrace, stag: &str, map: &MemoryMap, y: u32) {
    let (low, high) = (u128::from(map.span.0), map.span.1);
    let len = (high - low).max(1);
    let x = |at: u128| {
        let share = (at.clamp(low, high) - low) as f64 / len as f64;
        f64::from(LEFT) + f64::from(RIGHT - LEFT) * share
    };
    let span = side.canvas.drawn_span() as f64;
    write!(
        body,
        "<text x=\"{LEFT}\" y=\"{}\">STag {stag}: {} in {}, {} of them again</text>\
         <rect class=\"grid\" fill=\"none\" x=\"{LEFT}\" y=\"{}\" width=\"{}\" height=\"22\"/>",
        y + 10,
        octets(map.octets),
        plural(map.writes, "piece"),
        octets(map.again),
        y + 16,
        RIGHT - LEFT
    )
    .expect("writing to a string does not fail");
    for (index, part) in &map.parts {
        let start = u128::from(*index) << map.shift;
        let (from, to) = (x(start), x(start + (1 << map.shift)));
        let width = Short((to - from).max(0.8));
        let since = part.first_ns.saturating_sub(side.canvas.first_ns);
        let shade = 0.15 + 0.85 * (side.canvas.drawn(part.first_ns) as f64 / span).min(1.0);
        write!(
            body,
            "<rect class=\"data\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"22\" \
             fill-opacity=\"{shade:.2}\"><title>{start:#x}: first written after {}, last after {}\
             </title></rect>",
            Short(from),
            y + 16,
            time(since),
            time(part.last_ns.saturating_sub(side.canvas.first_ns))
        )
        .expect("writing to a string does not fail");
        if part.again > 0 {
            write!(
                body,
                "<rect class=\"again\" x=\"{}\" y=\"{}\" width=\"{width}\" height=\"4\"/>",
                Short(from),
                y + 40
            )
            .expect("writing to a string does not fail");
        }
    }
    write!(
        body,
        "<text class=\"dim\" x=\"{LEFT}\" y=\"{0}\">{low:#x}</text>\
         <text class=\"dim\" x=\"{RIGHT}\" y=\"{0}\" text-anchor=\"end\">{high:#x} (tagged offset, bytes)</text>",
        y + 58
    )
    .expect("writing to a string does not fail");
}

fn legend(body: &mut String) {
    for step in 0..10 {
        write!(
            body,
            "<rect class=\"data\" x=\"{}\" y=\"8\" width=\"10\" height=\"10\" fill-opacity=\"{:.2}\"/>",
            LEFT + 10 * step,
            0.15 + 0.085 * f64::from(step + 1)
        )
        .expect("writing to a string does not fail");
    }
    write!(
        body,
        "<text x=\"{}\" y=\"17\">written early (pale) … late (strong)</text>\
         <rect class=\"again\" x=\"{}\" y=\"11\" width=\"20\" height=\"4\"/>\
         <text x=\"{}\" y=\"17\">written again</text>",
        LEFT + 108,
        LEFT + 340,
        LEFT + 366
    )
    .expect("writing to a string does not fail");
}

const ROW: u32 = 70;
/// Steering tags with a bar: those with the most bytes written.
const ROWS_MAX: usize = 8;
