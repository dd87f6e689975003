//! Every row of `spec/` is cited above the code that obeys it and above a test that shows it, or
//! has an exception with a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{FOLDERS, is_test, sources};

/// Begin of a citation. It is assembled, so that this file does not find itself.
const MARK: &str = concat!("//", " spec: ");
/// Documents of `spec/` without rows of an RFC.
const WITHOUT_ROWS: [&str; 2] = ["README.md", "exceptions.md"];

/// Citations that a kind of exception replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replaces {
    code: bool,
    test: bool,
}

/// The kinds of exceptions, explained in `spec/exceptions.md`.
const KINDS: [(&str, Replaces); 7] = [
    ("No test yet", Replaces { code: false, test: true }),
    ("Cannot be tested from outside", Replaces { code: false, test: true }),
    ("By absence", Replaces { code: true, test: false }),
    ("Not implemented", Replaces { code: true, test: true }),
    ("Nothing to do", Replaces { code: true, test: true }),
    ("Permission", Replaces { code: true, test: true }),
    ("For users", Replaces { code: true, test: true }),
];

/// A row's citations and exception.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Row {
    code: bool,
    test: bool,
    exception: Option<Replaces>,
}

/// The cells of the rows of a document's tables, without heads.
fn table(document: &str) -> impl Iterator<Item = Vec<&str>> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>());
    cells.filter(|cells| cells[0] != "id")
}

/// Adds the rows of a document to all rows.
fn add_rows(rows: &mut BTreeMap<String, Row>, document: &str, faults: &mut Vec<String>) {
    for cells in table(document) {
        if cells.len() != 4 || cells.iter().any(|cell| cell.trim().is_empty()) {
            faults.push(format!("{}: not an id, a level, a requirement and a section", cells[0]));
        }
        if rows.insert(cells[0].to_owned(), Row::default()).is_some() {
            faults.push(format!("{}: two rows have this id", cells[0]));
        }
    }
}

fn add_exceptions(rows: &mut BTreeMap<String, Row>, document: &str, faults: &mut Vec<String>) {
    for cells in table(document) {
        let (id, why) = (cells[0], cells[1..].join(" | "));
        let kind = why.split_once(": ").filter(|(_, reason)| reason.ends_with('.'));
        let kind = kind.and_then(|(kind, _)| KINDS.iter().find(|(name, _)| *name == kind));
        let Some((_, replaces)) = kind else {
            faults.push(format!("{id}: an exception is a kind, a colon and a sentence: {why}"));
            continue;
        };
        match rows.get_mut(id) {
            None => faults.push(format!("{id}: an exception for no row")),
            Some(row) if row.exception.is_some() => faults.push(format!("{id}: two exceptions")),
            Some(row) => row.exception = Some(*replaces),
        }
    }
}

/// Adds the citations of a source. The test module of a source is its last part.
fn add_citations(
    rows: &mut BTreeMap<String, Row>,
    (name, text, is_test): (&str, &str, bool),
    faults: &mut Vec<String>,
) {
    let lines: Vec<&str> = text.lines().collect();
    let mut in_test = is_test;
    for (at, line) in lines.iter().enumerate() {
        in_test |= line.ends_with("mod tests {") && !line.starts_with([' ', '/']);
        let Some((before, ids)) = line.split_once(MARK) else { continue };
        let place = format!("{name}:{}", at + 1);
        // Other comments and attributes may follow.
        let mut below = lines[at + 1..].iter().map(|line| line.trim_start());
        let cited = below.find(|line| !line.starts_with("//") && !line.starts_with("#["));
        let cited = cited.unwrap_or_default();
        if !before.trim_start().is_empty() {
            faults.push(format!("{place}: a citation has a line of its own"));
        } else if cited.is_empty() || in_test && !cited.contains("fn ") {
            faults.push(format!("{place}: a citation is above code, in tests above a function"));
        }
        for id in ids.split(", ") {
            match rows.get_mut(id) {
                None => faults.push(format!("{place}: no row has the id {id:?}")),
                Some(row) if in_test => row.test = true,
                Some(row) => row.code = true,
            }
        }
    }
}

/// Returns the rows whose citations are not as their exceptions say.
fn wrong_rows(rows: &BTreeMap<String, Row>) -> Vec<String> {
    let mut faults = Vec::new();
    for (id, row) in rows {
        let replaces = row.exception.unwrap_or(Replaces { code: false, test: false });
        for (cited, replaced, by) in
            [(row.code, replaces.code, "code"), (row.test, replaces.test, "test")]
        {
            match (cited, replaced) {
                (false, false) => faults.push(format!("{id}: no {by} cites it")),
                (true, true) => faults.push(format!("{id}: a {by} cites it despite its exception")),
                _ => {}
            }
        }
    }
    faults
}

/// Returns a line of the table in `spec/README.md`.
fn counts(file: &str, rows: &[Row]) -> String {
    let count = |counts: fn(&Row) -> bool| rows.iter().filter(|row| counts(row)).count();
    let (code, test) = (count(|row| row.code), count(|row| row.test));
    let exceptions = count(|row| row.exception.is_some());
    format!("| {file} | {} | {code} | {test} | {exceptions} |\n", rows.len())
}

#[test]
fn every_row_is_cited_by_code_and_by_a_test_or_has_a_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("spec");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let names = fs::read_dir(&folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> =
        names.filter(|name| !WITHOUT_ROWS.contains(&name.as_str())).collect();
    let (mut rows, mut faults) = (BTreeMap::new(), Vec::new());
    for name in &names {
        add_rows(&mut rows, &read(name), &mut faults);
    }
    assert!(rows.len() > 500, "{} rows", rows.len());
    add_exceptions(&mut rows, &read("exceptions.md"), &mut faults);
    for (path, text) in FOLDERS.into_iter().flat_map(sources) {
        let is_test = is_test(&path) || path.starts_with("tests");
        add_citations(&mut rows, (&path.to_string_lossy(), &text, is_test), &mut faults);
    }
    faults.extend(wrong_rows(&rows));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));

    let mut expected = String::new();
    for name in &names {
        let document = read(name);
        let of_file: Vec<Row> = table(&document).map(|cells| rows[cells[0]]).collect();
        expected += &counts(&format!("[{name}]({name})"), &of_file);
    }
    expected += &counts("all", &rows.into_values().collect::<Vec<_>>());
    assert!(read("README.md").contains(&expected), "spec/README.md must count:\n{expected}");
}

const DOCUMENT: &str = "# T\n\n| id | level | requirement | section |\n|---|---|---|---|\n\
    | T-1 | MUST | It stops. | RFC 1 §1 |\n| T-2 | SHOULD | a `b \\| c` | RFC 1 §2 |\n";

/// Returns the faults of two rows with these exceptions and these sources, of code and of tests.
fn faults(exceptions: &str, code: &str, test: &str) -> Vec<String> {
    // In the inputs `@` begins a citation.
    let (code, test) = (code.replace('@', MARK), test.replace('@', MARK));
    let (mut rows, mut faults) = (BTreeMap::new(), Vec::new());
    add_rows(&mut rows, DOCUMENT, &mut faults);
    add_exceptions(&mut rows, exceptions, &mut faults);
    add_citations(&mut rows, ("code.rs", &code, false), &mut faults);
    add_citations(&mut rows, ("tests.rs", &test, true), &mut faults);
    faults.extend(wrong_rows(&rows));
    faults
}

const BOTH: &str = "@T-1, T-2\nfn f() {}\n";

#[test]
fn a_row_needs_a_citation_by_code_and_one_by_a_test() {
    assert_eq!(faults("", BOTH, BOTH), [""; 0]);
    assert_eq!(faults("", "@T-1\nlet a = 1;\n", BOTH), ["T-2: no code cites it"]);
    assert_eq!(
        faults("", BOTH, "    @T-2\n    #[test]\n    fn t() {\n"),
        ["T-1: no test cites it"]
    );
    // The test module of a source is a test.
    let both = format!("@T-2\nfn f() {{}}\n#[cfg(test)]\nmod tests {{\n{BOTH}}}\n");
    assert_eq!(faults("", &both, ""), ["T-1: no code cites it"]);
    let both = both.replace("mod tests", "pub(crate) mod tests");
    assert_eq!(faults("", &both, ""), ["T-1: no code cites it"]);
}

#[test]
fn an_exception_replaces_the_citations_of_its_kind_and_no_other() {
    let one = "@T-1\nfn f() {}\n";
    assert_eq!(faults("| T-2 | Not implemented: why. |\n", one, one), [""; 0]);
    assert_eq!(faults("| T-2 | No test yet: why. |\n", BOTH, one), [""; 0]);
    assert_eq!(faults("| T-2 | By absence: why. |\n", one, BOTH), [""; 0]);
    assert_eq!(faults("| T-2 | No test yet: why. |\n", one, one), ["T-2: no code cites it"]);
    assert_eq!(faults("| T-2 | By absence: why. |\n", one, one), ["T-2: no test cites it"]);
    let despite = "T-2: a test cites it despite its exception";
    assert_eq!(faults("| T-2 | No test yet: why. |\n", BOTH, BOTH), [despite]);
    assert_eq!(
        faults("| T-3 | Permission: why. |\n", BOTH, BOTH),
        ["T-3: an exception for no row"]
    );
    let twice = "| T-2 | Permission: why. |\n| T-2 | Permission: why. |\n";
    assert_eq!(faults(twice, one, one), ["T-2: two exceptions"]);
    for why in ["Too hard: why.", "Permission: why", "Permission"] {
        assert_eq!(faults(&format!("| T-2 | {why} |\n"), BOTH, BOTH).len(), 1, "{why}");
    }
}

#[test]
fn a_citation_names_rows_on_a_line_of_its_own_above_code() {
    let place = |code: &str| faults("", &[BOTH, code].concat(), BOTH);
    assert_eq!(place("@T-9\nfn f() {}\n"), ["code.rs:3: no row has the id \"T-9\""]);
    assert_eq!(place("@T-1,T-2\nfn f() {}\n"), ["code.rs:3: no row has the id \"T-1,T-2\""]);
    assert_eq!(place("@T-1\n/// Text.\n#[must_use]\nfn f() {}\n"), [""; 0]);
    let own_line = ["code.rs:3: a citation has a line of its own"];
    assert_eq!(place("fn f() {} @T-1\nfn f() {}\n"), own_line);
    let above = "a citation is above code, in tests above a function";
    assert_eq!(place("@T-1\n\nfn f() {}\n"), [format!("code.rs:3: {above}")]);
    assert_eq!(place("@T-1"), [format!("code.rs:3: {above}")]);
    let test = [BOTH, "@T-1\nassert!(true);\n"].concat();
    assert_eq!(faults("", BOTH, &test), [format!("tests.rs:3: {above}")]);
}

#[test]
fn rows_have_an_id_of_their_own_and_all_cells() {
    let (mut rows, mut faults) = (BTreeMap::new(), Vec::new());
    add_rows(&mut rows, DOCUMENT, &mut faults);
    add_rows(&mut rows, "| T-1 | MUST | x | y |\n| T-4 | MUST | x |\n", &mut faults);
    let cells = "T-4: not an id, a level, a requirement and a section";
    assert_eq!(faults, ["T-1: two rows have this id", cells]);
}

#[test]
fn rows_are_counted() {
    let exception = Some(Replaces { code: false, test: true });
    let row = Row { code: true, test: false, exception };
    let rows = [row, Row { test: true, exception: None, ..row }];
    assert_eq!(counts("a.md", &rows), "| a.md | 2 | 2 | 1 | 1 |\n");
}
