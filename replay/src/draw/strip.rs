//! Alignment of segments with FPDUs: the whole stream, and a few segments byte by byte.

use std::fmt::Write as _;

use super::chart::{LEFT, RIGHT, Short, svg};
use super::{Picture, octets};
use crate::figures::{count, share};
use crate::trace::{Fit, SideTrace};

const FITS: [(Fit, &str, &str); 3] = [
    (Fit::Aligned, "data", "holds whole FPDUs"),
    (Fit::Unaligned, "again", "cuts an FPDU"),
    (Fit::CrcAlone, "wait", "nothing but a CRC"),
];

/// Draws the whole stream in rows, its segments coloured by alignment.
pub(crate) fn strip(side: &SideTrace, from: &str) -> Picture {
    let len = side.canvas.len;
    let row_len = len.div_ceil(ROWS);
    let mut body = String::new();
    let total: u64 = FITS.iter().map(|(fit, ..)| side.fits(*fit).count()).sum();
    legend(&mut body, |fit| {
        let number = side.fits(fit).count();
        format!(": {} ({})", count(number), share(number, total))
    });
    let width = f64::from(RIGHT - LEFT);
    for (lane, (fit, class, _)) in FITS.into_iter().enumerate() {
        let mut path = String::new();
        for mark in side.fits(fit).iter() {
            let (mut start, end) = (mark.octets.0.min(len), mark.octets.1.min(len));
            while start < end {
                let row = start / row_len;
                let until = end.min((row + 1) * row_len);
                let x = |at: u64| {
                    f64::from(LEFT) + width * ((at - row * row_len) as f64 / row_len as f64)
                };
                let y = TOP
                    + u32::try_from(row).unwrap_or(0) * ROW
                    + 6
                    + 7 * u32::try_from(lane).unwrap_or(0);
                let width = (x(until) - x(start) - 0.6).max(0.4);
                write!(path, "M{} {y}h{}v6h-{}z", Short(x(start)), Short(width), Short(width))
                    .expect("writing to a string does not fail");
                start = until;
            }
        }
        if !path.is_empty() {
            write!(body, "<path class=\"f-{class}\" d=\"{path}\"/>")
                .expect("writing to a string does not fail");
        }
    }
    for row in 0..ROWS {
        let y = TOP + u32::try_from(row).unwrap_or(0) * ROW + 32;
        let at = octets(row * row_len);
        write!(
            body,
            "<path class=\"grid\" d=\"M{LEFT} {y}H{RIGHT}\"/>\
             <text class=\"dim\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{at}</text>",
            LEFT - 6,
            y - 12
        )
        .expect("writing to a string does not fail");
    }
    let height = TOP + u32::try_from(ROWS).unwrap_or(0) * ROW + 24;
    write!(
        body,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">byte of the stream, from left to right and \
         row by row ({} in a row)</text>",
        (LEFT + RIGHT) / 2,
        height - 8,
        octets(row_len)
    )
    .expect("writing to a string does not fail");
    let title = format!("Alignment of what the {from} sent");
    Picture {
        name: format!("{from}-alignment"),
        svg: svg(height, &title, &body),
        title,
        help:
            "The stream is laid out like lines of text. A segment is aligned when it begins where \
               an FPDU begins and ends where one ends: then the receiver can place it by itself, \
               whatever happened to others (RFC 5044 §5). Those in the lower lanes are not: either \
               the sender's TCP cuts its stream without regard to FPDUs, as TCPs of operating \
               systems do, or a box on the way cut and joined segments anew. A sender that was \
               aligned up to some point and is not from there on was most likely recut on the way."
                .to_owned(),
    }
}

/// Draws a few segments around the first that is not aligned, with the FPDUs below them.
pub(crate) fn detail(side: &SideTrace, from: &str) -> Option<Picture> {
    let detail = &side.detail;
    let segments = || detail.segments.iter();
    let first = segments().map(|(_, (start, _))| *start).min()?;
    let last = segments().map(|(_, (_, end))| *end).max()?;
    let len = (last - first).max(1);
    let x = |at: u64| {
        let from = at.clamp(first, last) - first;
        f64::from(LEFT) + f64::from(RIGHT - LEFT) * (from as f64 / len as f64)
    };
    let mut body = String::new();
    legend(&mut body, |_| String::new());
    let mut bar = |class: &str, y: u32, (start, end): (u64, u64), what: &str| {
        let width = (x(end) - x(start) - 1.2).max(0.8);
        write!(
            body,
            "<rect class=\"{class}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"16\">\
             <title>{what}: bytes {start} to {end}, {} of them</title></rect>",
            Short(x(start) + 0.6),
            Short(width),
            end - start
        )
        .expect("writing to a string does not fail");
    };
    for (index, (fit, octets)) in segments().enumerate() {
        let class = FITS.iter().find(|(one, ..)| one == fit).map_or("data", |(_, class, _)| class);
        bar(class, 34 + 18 * u32::from(index % 2 == 1), *octets, "segment");
    }
    for fpdu in detail.fpdus.iter().filter(|(start, end)| *end > first && *start < last) {
        bar("ahead", 80, *fpdu, "FPDU");
    }
    for (y, text) in [(54, "segments"), (93, "FPDUs")] {
        write!(body, "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{text}</text>", LEFT - 6)
            .expect("writing to a string does not fail");
    }
    let labels = [(LEFT, "start", octets(first)), (RIGHT, "end", octets(last))];
    for (x, anchor, text) in labels {
        write!(
            body,
            "<text class=\"dim\" x=\"{x}\" y=\"114\" text-anchor=\"{anchor}\">{text}</text>"
        )
        .expect("writing to a string does not fail");
    }
    write!(
        body,
        "<text x=\"{}\" y=\"114\" text-anchor=\"middle\">byte of the stream ({} in all)</text>",
        (LEFT + RIGHT) / 2,
        octets(len)
    )
    .expect("writing to a string does not fail");
    let title = format!("A few segments of the {from}, byte by byte");
    Some(Picture {
        name: format!("{from}-segments"),
        svg: svg(124, &title, &body),
        title,
        help:
            "Neighbouring segments are in two rows, so that their ends show; below are the FPDUs \
               they carry. In an aligned stream the ends are one above the other. These are the \
               segments around the first that is not aligned, or the last of the stream when all \
               are."
                .to_owned(),
    })
}

fn legend(body: &mut String, figure: impl Fn(Fit) -> String) {
    for (index, (fit, class, text)) in FITS.into_iter().enumerate() {
        let x = LEFT + u32::try_from(index).unwrap_or(0) * 290;
        write!(
            body,
            "<rect class=\"{class}\" x=\"{x}\" y=\"8\" width=\"18\" height=\"8\"/>\
             <text x=\"{}\" y=\"16\">{text}{}</text>",
            x + 24,
            figure(fit)
        )
        .expect("writing to a string does not fail");
    }
}

const ROWS: u64 = 6;
const ROW: u32 = 34;
const TOP: u32 = 24;
