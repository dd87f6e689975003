//! Texts behind the options: wrapped for a terminal, and as sections of a manual page.
//!
//! The sources are plain text in a few forms, which [`parse`] reads:
//!
//! * lines without indentation are a paragraph, until a blank line, however the source breaks them;
//! * `Examples:` and other lines without indentation that end with a colon, and begin a list, are
//!   headings;
//! * below a heading `Example…`, lines with two spaces are commands, which are never wrapped;
//! * below other headings, a line with two spaces is a row: a term, two spaces or more, and its
//!   meaning, which hangs below itself;
//! * lines with six spaces are a paragraph about the line before.

use std::fmt::Write;

use clap::{Command, CommandFactory};

/// Columns; the largest width also serves an unknown terminal.
const WIDTH_MAX: usize = 100;
const WIDTH_MIN: usize = 40;

pub(crate) fn tree<C: CommandFactory>() -> Command {
    wrapped_tree(C::command(), width())
}

fn wrapped_tree(tree: Command, width: usize) -> Command {
    let rewrap = |command: Command| match command.get_after_long_help().map(ToString::to_string) {
        Some(text) => command.after_long_help(wrapped(&text, width)),
        None => command,
    };
    let names: Vec<_> = tree.get_subcommands().map(|one| one.get_name().to_owned()).collect();
    names
        .into_iter()
        .fold(rewrap(tree.term_width(width)), |tree, name| tree.mut_subcommand(name, rewrap))
}

/// Returns the width that clap determines.
fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let columns = terminal.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
    let said = || std::env::var_os("COLUMNS")?.to_str()?.parse().ok();
    columns.or_else(said).unwrap_or(WIDTH_MAX).clamp(WIDTH_MIN, WIDTH_MAX)
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Heading(String),
    Paragraph(String),
    Command(String),
    Remark(String),
    Row(String, String),
    Blank,
}

fn parse(text: &str) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut has_commands = false;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let words = line.trim();
        let indent = line.len() - line.trim_start().len();
        let is_list = lines.peek().is_some_and(|next| next.starts_with("  "));
        let piece = match indent {
            _ if words.is_empty() => Piece::Blank,
            0 if words.ends_with(':') && is_list => {
                // The heading of examples may take two lines.
                let before = pieces.pop_if(|last| matches!(last, Piece::Paragraph(_)));
                let heading = match before {
                    Some(Piece::Paragraph(before)) => format!("{before} {words}"),
                    _ => words.to_owned(),
                };
                has_commands = heading.starts_with("Example");
                Piece::Heading(heading)
            }
            0 => {
                has_commands = false;
                Piece::Paragraph(words.to_owned())
            }
            1..6 if has_commands => {
                let command = line.get(2..).unwrap_or(words);
                Piece::Command(command.trim_end().to_owned())
            }
            1..6 => match words.split_once("  ") {
                Some((term, meaning)) => Piece::Row(term.to_owned(), meaning.trim().to_owned()),
                None => Piece::Row(words.to_owned(), String::new()),
            },
            _ => Piece::Remark(words.to_owned()),
        };
        match (pieces.last_mut(), piece) {
            (Some(Piece::Paragraph(text)), Piece::Paragraph(more))
            | (Some(Piece::Remark(text)), Piece::Remark(more)) => {
                text.push(' ');
                text.push_str(&more);
            }
            (_, piece) => pieces.push(piece),
        }
    }
    pieces
}

fn wrapped(text: &str, width: usize) -> String {
    let pieces = parse(text);
    let mut lines = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Heading(text) | Piece::Paragraph(text) => fill(&mut lines, "", text, 0, width),
            Piece::Command(text) => lines.push(format!("  {text}")),
            Piece::Remark(text) => fill(&mut lines, "      ", text, 6, width),
            Piece::Row(term, meaning) => {
                let hang = 2 + column(&pieces, index).min(width / 2) + 2;
                let first = format!("  {term}  ");
                let first = format!("{first:<hang$}");
                if first.chars().count() > hang && !meaning.is_empty() {
                    lines.push(first.trim_end().to_owned());
                    fill(&mut lines, &" ".repeat(hang), meaning, hang, width);
                } else {
                    fill(&mut lines, &first, meaning, hang, width);
                }
            }
            Piece::Blank => lines.push(String::new()),
        }
    }
    lines.join("\n")
}

fn column(pieces: &[Piece], index: usize) -> usize {
    let term = |piece: &Piece| match piece {
        Piece::Row(term, _) => Some(term.chars().count()),
        _ => None,
    };
    let after = pieces[index..].iter().map_while(term);
    let before = pieces[..index].iter().rev().map_while(term);
    after.chain(before).max().unwrap_or(0)
}

/// The first line begins with `first`, the others with `hang` spaces.
fn fill(lines: &mut Vec<String>, first: &str, text: &str, hang: usize, width: usize) {
    let (mut line, mut has_words) = (first.to_owned(), false);
    for word in text.split_whitespace() {
        let len = line.chars().count() + usize::from(has_words) + word.chars().count();
        if has_words && len > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(hang)));
            has_words = false;
        }
        if has_words {
            line.push(' ');
        }
        line.push_str(word);
        has_words = true;
    }
    lines.push(line.trim_end().to_owned());
}

/// Sections in their usual order.
const SECTIONS: [&str; 5] = ["NOTES", "EXIT STATUS", "DEVICES", "ENVIRONMENT", "EXAMPLES"];

pub(crate) fn roff(text: &str) -> String {
    let mut bodies = SECTIONS.map(|_| String::new());
    let mut section = 0;
    for piece in parse(text) {
        let body = &mut bodies[section];
        match piece {
            Piece::Heading(heading) => {
                section = match heading.as_str() {
                    heading if heading.starts_with("Example") => 4,
                    heading if heading.starts_with("Environment") => 3,
                    heading if heading.starts_with("Devices") => 2,
                    _ => section,
                };
                let is_title = ["Examples:", "Environment:"].contains(&&*heading);
                if !is_title {
                    let _infallible = write!(bodies[section], ".PP\n{}\n", escaped(&heading));
                }
            }
            Piece::Paragraph(text) => match text.strip_prefix("Exit status: ") {
                Some(rest) => {
                    let _infallible = write!(bodies[1], ".PP\n{}\n", escaped(rest));
                }
                None => {
                    section = 0;
                    let _infallible = write!(bodies[0], ".PP\n{}\n", escaped(&text));
                }
            },
            Piece::Command(text) => {
                let _infallible = write!(body, ".PP\n.nf\n.RS 4\n{}\n.RE\n.fi\n", escaped(&text));
            }
            Piece::Remark(text) => {
                let _infallible = write!(body, ".RS 8\n{}\n.RE\n", escaped(&text));
            }
            Piece::Row(term, meaning) => {
                let _infallible =
                    write!(body, ".TP\n\\fB{}\\fR\n{}\n", escaped(&term), escaped(&meaning));
            }
            Piece::Blank => {}
        }
    }
    let parts = SECTIONS.iter().zip(bodies).filter(|(_, body)| !body.is_empty());
    // Consecutive commands are one block.
    let text: String = parts.map(|(name, body)| format!(".SH \"{name}\"\n{body}")).collect();
    text.replace(".RE\n.fi\n.PP\n.nf\n.RS 4\n", "")
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
A paragraph whose lines are broken
anywhere in the source.

Exit status: 0 when all went well, and 2 when it did not.

Devices (--dev):
  kernel        the kernel's TCP sockets, which need no privilege
  a-longer-one  two
Examples:
  urnic bw server --op read --dev tap:urn1,ip=10.7.0.3/24
      Reads of the
      usual size.
  urnic bw .x";

    #[test]
    fn paragraphs_are_filled_rows_hang_and_commands_stay_whole() {
        assert_eq!(
            wrapped(TEXT, 40),
            "\
A paragraph whose lines are broken
anywhere in the source.

Exit status: 0 when all went well, and 2
when it did not.

Devices (--dev):
  kernel        the kernel's TCP
                sockets, which need no
                privilege
  a-longer-one  two
Examples:
  urnic bw server --op read --dev tap:urn1,ip=10.7.0.3/24
      Reads of the usual size.
  urnic bw .x"
        );
    }

    #[test]
    fn a_manual_page_has_its_sections_in_order() {
        assert_eq!(
            roff(TEXT),
            "\
.SH \"NOTES\"
.PP
A paragraph whose lines are broken anywhere in the source.
.SH \"EXIT STATUS\"
.PP
0 when all went well, and 2 when it did not.
.SH \"DEVICES\"
.PP
Devices (\\-\\-dev):
.TP
\\fBkernel\\fR
the kernel's TCP sockets, which need no privilege
.TP
\\fBa\\-longer\\-one\\fR
two
.SH \"EXAMPLES\"
.PP
.nf
.RS 4
urnic bw server \\-\\-op read \\-\\-dev tap:urn1,ip=10.7.0.3/24
.RE
.fi
.RS 8
Reads of the usual size.
.RE
.PP
.nf
.RS 4
urnic bw .x
.RE
.fi
"
        );
        assert_eq!(escaped("'a\\b"), "\\&'a\\eb");
    }
}
