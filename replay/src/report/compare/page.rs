//! A comparison as a page: the tables, and the pictures of both side by side.

use std::fmt::{self, Write};

use super::text::{FROM, rows};
use super::{Comparison, Traces};
use crate::draw::{Picture, escaped, style};
use crate::report::page::{self, HEAD, INTRODUCTION, PAGE_STYLE};

/// Writes the page, in one self-contained file.
#[must_use]
pub fn page(comparison: &Comparison<'_>) -> String {
    let mut out = String::new();
    write(&mut out, comparison).expect("writing to a string does not fail");
    out
}

fn write(out: &mut String, comparison: &Comparison<'_>) -> fmt::Result {
    let names = comparison.names().map(|name| escaped(&name));
    let [first, second] = &names;
    let [one, other] = &comparison.compared;
    write!(
        out,
        "{HEAD}<title>urnic replay --compare: {first}, {second}</title><style>{PAGE_STYLE}{WIDE}{}</style>\
         </head><body><h1>{first} beside {second}</h1>{INTRODUCTION}<p>This page compares the connections with the \
         most bytes: ",
        style()
    )?;
    for (index, one) in [one, other].into_iter().enumerate() {
        let [file, initiator, responder] =
            [&one.file, &one.initiator, &one.responder].map(|text| escaped(text));
        let between = if index == 0 { "on the left" } else { "; on the right" };
        write!(out, "{between} {initiator} → {responder} of {file}, placed {}", one.placed)?;
    }
    out.write_str(
        ". Each picture has axes of its own: read their figures before you compare lengths.</p>",
    )?;
    let [left, right] = comparison.traces.map(pictures);
    for (index, (left, right)) in left.into_iter().zip(right).enumerate() {
        write!(out, "<h2>From the {}</h2>", FROM[index])?;
        write!(
            out,
            "<div class=\"wide\"><table><tr><th></th><th>{first}</th><th>{second}</th></tr>"
        )?;
        for (name, [a, b]) in rows(comparison, index) {
            write!(out, "<tr><td>{}</td><td>{a}</td><td>{b}</td></tr>", indented(name))?;
        }
        out.write_str("</table></div>")?;
        write_pairs(out, &names, left, right)?;
    }
    out.write_str("</body></html>\n")
}

fn pictures(Traces { trace, in_order }: Traces<'_>) -> [Vec<Picture>; 2] {
    page::pictures_of(trace, in_order)
}

/// Writes pictures of the same kind side by side; a picture without a counterpart is alone.
fn write_pairs(
    out: &mut String,
    names: &[String; 2],
    left: Vec<Picture>,
    right: Vec<Picture>,
) -> fmt::Result {
    let mut right: Vec<_> = right.into_iter().map(Some).collect();
    for one in left {
        let at = right
            .iter()
            .position(|other| other.as_ref().is_some_and(|other| other.name == one.name));
        let other = at.and_then(|at| right[at].take());
        write_pair(out, names, [Some(one), other])?;
    }
    right.into_iter().flatten().try_for_each(|other| write_pair(out, names, [None, Some(other)]))
}

fn write_pair(out: &mut String, names: &[String; 2], pair: [Option<Picture>; 2]) -> fmt::Result {
    let help = pair.iter().flatten().map(|one| one.help.clone()).next().unwrap_or_default();
    out.write_str("<div class=\"pair\">")?;
    for (name, picture) in names.iter().zip(pair) {
        match picture {
            Some(Picture { title, svg, .. }) => write!(
                out,
                "<figure><figcaption>{name}: {}</figcaption><div class=\"wide\">{svg}</div></figure>",
                escaped(&title)
            )?,
            None => write!(out, "<p>{name}: there is no such picture.</p>")?,
        }
    }
    write!(out, "</div><details><summary>How to read this</summary><p>{help}</p></details>")
}

fn indented(name: &str) -> String {
    match name.strip_prefix("  ") {
        Some(below) => format!("&emsp;{below}"),
        None => name.to_owned(),
    }
}

const WIDE: &str = "\
body{max-width:1800px}.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 1.5em}.pair figure{margin:1em 0;min-width:0}\
@media(max-width:900px){.pair{grid-template-columns:1fr}}
";
