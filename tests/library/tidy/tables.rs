//! Tables of documents hold words and numbers, not paragraphs: a terminal cannot show those.

use super::links::documents;

/// Most characters of a cell. A longer one is a paragraph of its own, or several rows.
const CELL_CHARS_MAX: usize = 200;

/// Returns the cells of the tables of a document that are too long, with their lines.
fn too_long(document: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let rows = (1..).zip(document.lines()).filter(|(_, line)| {
        fenced ^= line.starts_with("```");
        !fenced && line.starts_with('|')
    });
    let cells = rows.flat_map(|(number, row)| row.split('|').map(move |cell| (number, cell)));
    let long = cells.filter(|(_, cell)| cell.trim().chars().count() > CELL_CHARS_MAX);
    long.map(|(number, cell)| (number, cell.trim().to_owned())).collect()
}

#[test]
fn cells_of_tables_are_not_paragraphs() {
    let mut found = Vec::new();
    for (path, text) in documents() {
        let long = too_long(&text).into_iter();
        found.extend(long.map(|(line, cell)| format!("{}:{line}: {cell}", path.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_paragraph_in_a_cell_is_found() {
    let long = "word ".repeat(50);
    let document = format!("| a |\n|---|\n| {long} | b |\n\n{long}\n```text\n| {long} |\n```\n");
    let lines: Vec<_> = too_long(&document).into_iter().map(|(line, _)| line).collect();
    assert_eq!(lines, [3]);
}
