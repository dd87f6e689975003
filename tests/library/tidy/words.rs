//! Comments, documents and messages are in plain words: see "Words" in CONTRIBUTING.md.

use std::fs;
use std::path::Path;

use super::{FOLDERS, is_test, sources};

/// A doc comment begins with a verb or a noun, never with one of these.
const STARTS: [&str; 14] = [
    "what ",
    "which ",
    "who ",
    "whose ",
    "whether ",
    "whatever ",
    "of ",
    "as many ",
    "as much ",
    "so many ",
    "so much ",
    "the same",
    "that ",
    "those ",
];

/// Words and phrases that have a plainer equivalent, which is given behind each.
const PHRASES: &[(&str, &str)] = &[
    ("octet", "byte"),
    ("octets", "bytes"),
    ("short way", "fast path"),
    ("short ways", "fast paths"),
    ("long way", "general path"),
    ("under way", "in flight, outstanding"),
    ("put off", "deferred"),
    ("puts off", "defers"),
    ("send again", "retransmit"),
    ("sends again", "retransmits"),
    ("sent again", "retransmitted"),
    ("told", "reported, notified, known"),
    ("any more", "(leave it out)"),
    ("no more", "no longer, at most"),
    ("stands", "is"),
    ("whoever", "name who acts"),
    ("of use", "useful"),
    ("of which", "whose, or a new sentence"),
    ("of whom", "whose, or a new sentence"),
    ("is to be", "must be, will be"),
    ("are to be", "must be, will be"),
    ("comes to", "reaches, becomes"),
    ("come to", "reach, become"),
    ("has gone", "ended, left, closed"),
    ("have gone", "ended, left, closed"),
    ("those that", "name them"),
    ("nudge", "empty Write, keep-alive Write"),
    ("bell", "doorbell, wake-up"),
    ("visit", "poll"),
    ("visits", "polls"),
    ("visited", "polled"),
    ("settle", "finish, resolve"),
    ("settles", "finishes, resolves"),
    ("settled", "finished, resolved"),
    ("hear", "receive"),
    ("hears", "receives"),
    ("heard", "received"),
    ("clerk", "name its job"),
    ("dues", "timers"),
    ("ledger", "name its contents"),
    ("teller", "name its job"),
    ("habits", "behaviour"),
];

/// Marks of comments, the longest first.
const MARKERS: [&str; 3] = ["///", "//!", "//"];

/// A run of prose with the line that it begins at.
struct Prose {
    line: usize,
    text: String,
    is_doc: bool,
}

/// Splits a source into blocks of comment lines. Code fences and tables of Markdown are left out.
fn comments(source: &str) -> Vec<Prose> {
    let mut blocks: Vec<Prose> = Vec::new();
    let mut last: (usize, &str) = (0, "");
    let mut fenced = false;
    for (number, line) in (1..).zip(source.lines()) {
        let line = line.trim_start();
        let Some(&marker) = MARKERS.iter().find(|marker| line.starts_with(**marker)) else {
            fenced = false;
            continue;
        };
        let text = line[marker.len()..].trim();
        if text.starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced || text.starts_with("One file because") && marker == "//" {
            continue;
        }
        let follows = last == (number - 1, marker) && !text.is_empty();
        match blocks.last_mut() {
            Some(block) if follows => {
                block.text.push(' ');
                block.text.push_str(text);
            }
            _ => {
                // A paragraph inside a doc comment may begin as it likes.
                let first = last != (number - 1, marker);
                let is_doc = marker != "//" && first;
                blocks.push(Prose { line: number, text: text.to_owned(), is_doc });
            }
        }
        last = (number, marker);
    }
    blocks
}

/// Splits a document into paragraphs. Code blocks are left out.
fn paragraphs(document: &str) -> Vec<Prose> {
    let mut blocks: Vec<Prose> = Vec::new();
    let mut fenced = false;
    let mut open = false;
    for (number, line) in (1..).zip(document.lines()) {
        let text = line.trim();
        if text.starts_with("```") {
            fenced = !fenced;
            open = false;
        } else if fenced || text.is_empty() || text.starts_with("<!--") {
            open = false;
        } else if let (true, Some(block)) = (open, blocks.last_mut()) {
            block.text.push(' ');
            block.text.push_str(text);
        } else {
            blocks.push(Prose { line: number, text: text.to_owned(), is_doc: false });
            open = true;
        }
    }
    blocks
}

/// The string literals of a source that read as prose: those with a space.
fn literals(source: &str) -> Vec<Prose> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = source.chars().peekable();
    let mut previous = ' ';
    while let Some(c) = rest.next() {
        match c {
            '\n' => line += 1,
            '/' if rest.peek() == Some(&'/') => {
                while rest.peek().is_some_and(|c| *c != '\n') {
                    rest.next();
                }
            }
            // A character, not a lifetime: the quote is skipped with what is quoted.
            '\'' if rest.peek() == Some(&'"') => {
                rest.next();
            }
            '\'' if rest.peek() == Some(&'\\') => {
                rest.next();
                rest.next();
            }
            '"' => {
                let (start, raw) = (line, matches!(previous, 'r' | '#'));
                let mut text = String::new();
                while let Some(c) = rest.next() {
                    match c {
                        '\\' if !raw => match rest.next() {
                            Some('\n') => {
                                line += 1;
                                while rest.peek().is_some_and(|c| *c == ' ') {
                                    rest.next();
                                }
                            }
                            Some('n') => text.push(' '),
                            Some(c) => text.push(c),
                            None => {}
                        },
                        '"' => break,
                        '\n' => {
                            line += 1;
                            text.push(' ');
                        }
                        c => text.push(c),
                    }
                }
                if text.contains(' ') {
                    found.push(Prose { line: start, text, is_doc: false });
                }
            }
            _ => {}
        }
        previous = c;
    }
    found
}

/// Lower-case words with single spaces. Code in backticks and quotations are replaced by a word.
fn plain(text: &str) -> String {
    let mut words = String::from(" ");
    let mut quoted: Option<char> = None;
    for c in text.chars() {
        match quoted {
            Some(end) if c == end => quoted = None,
            Some(_) => {}
            None if c == '`' || c == '"' => {
                quoted = Some(c);
                words.push_str(" code ");
            }
            None if c.is_alphanumeric() || c == '_' || c == '\'' => words.extend(c.to_lowercase()),
            None if c.is_whitespace() => words.push(' '),
            None => words.push_str(" . "),
        }
    }
    words.push(' ');
    words.split_whitespace().fold(String::from(" "), |all, word| all + word + " ")
}

/// Lists what is wrong with the words of a file.
fn faults(path: &Path, text: &str) -> Vec<String> {
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    let is_test = path.to_string_lossy().contains("tests");
    let mut prose = if is_source { comments(text) } else { paragraphs(text) };
    // Messages are judged where users read them.
    if is_source && !is_test {
        prose.extend(literals(text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or(text)));
    }
    let mut faults = Vec::new();
    for Prose { line, text, is_doc } in prose {
        let lower = text.to_lowercase();
        if let Some(start) = STARTS.iter().find(|start| is_doc && lower.starts_with(**start)) {
            faults.push(format!("{}:{line}: begins with {start:?}: {text}", path.display()));
        }
        let words = plain(&text);
        for (phrase, instead) in PHRASES {
            let found = words.match_indices(&format!(" {phrase} ")).any(|(at, found)| {
                // "No more than" is a bound.
                !(phrase.ends_with("more") && words[at + found.len()..].starts_with("than "))
            });
            if found {
                let path = path.display();
                faults.push(format!("{path}:{line}: {phrase:?}, better: {instead}: {text}"));
            }
        }
    }
    faults
}

/// Names that say nothing to an engineer of the field. Judged in the types of product code.
const NAMES: [&str; 16] = [
    "Clerk", "News", "Dues", "Needs", "Ledger", "Teller", "Means", "Hear", "Visit", "Visits",
    "Nudge", "Bell", "Told", "Tells", "Habits", "Settled",
];

/// Returns the types of `source` that have one of the words of [`NAMES`] in their name.
fn bad_types(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
        let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
        if !matches!(words.next(), Some("struct" | "enum" | "trait" | "type")) {
            continue;
        }
        let name = words.next().unwrap_or_default();
        let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let mut parts = Vec::new();
        for c in name.chars() {
            if c.is_uppercase() {
                parts.push(String::new());
            }
            parts.last_mut().into_iter().for_each(|part| part.push(c));
        }
        if parts.iter().any(|part| NAMES.contains(&part.as_str())) {
            found.push(name.to_owned());
        }
    }
    found
}

#[test]
fn texts_are_in_plain_words() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut read, mut found) = (vec![root.to_owned()], 0, Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let is_ours = !["target", ".git", "found"].iter().any(|name| path.ends_with(name));
            let extension = path.extension().unwrap_or_default();
            if is_ours && path.is_dir() {
                folders.push(path);
            } else if extension == "rs" || extension == "md" {
                let text = fs::read_to_string(&path).unwrap();
                found.extend(faults(path.strip_prefix(root).unwrap(), &text));
                read += 1;
            }
        }
    }
    assert!(read > 1000, "{read} files");
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), found.join("\n"));
}

#[test]
fn types_have_names_of_the_field() {
    for (path, text) in FOLDERS.into_iter().flat_map(sources).filter(|(path, _)| !is_test(path)) {
        let found = bad_types(&text);
        assert!(found.is_empty(), "{}: {found:?}", path.display());
    }
}

/// The name of a test begins with its subject, never with one of these words.
const TEST_STARTS: [&str; 15] = [
    "what", "whatever", "whose", "which", "who", "whoever", "where", "of", "that", "those", "none",
    "neither", "nothing", "it", "they",
];

/// Words that the name of a test does not contain: see [`PHRASES`].
const TEST_WORDS: [&str; 12] = [
    "told", "asked", "hear", "hears", "heard", "unheard", "nudge", "visit", "visits", "settle",
    "bell", "whoever",
];

/// Phrases that the name of a test does not contain.
const TEST_PHRASES: [&str; 4] = ["_no_more_", "_any_more_", "_of_which_", "_comes_to_"];

/// Returns the names of the tests of `source`: functions behind `#[test]`, and those in a block of a
/// macro whose name ends in `_tests`, which adds the attribute.
fn tests(source: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut is_test, mut end) = (false, None);
    for line in source.lines() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        if code.ends_with("_tests! {") {
            end = Some(indent);
        } else if code == "}" && end == Some(indent) {
            end = None;
        } else if code == "#[test]" {
            is_test = true;
        } else if let Some(rest) = code.strip_prefix("fn ") {
            let in_block = end.is_some_and(|end| indent.len() == end.len() + 4);
            if is_test || in_block {
                found.extend(rest.split('(').next());
            }
            is_test = false;
        }
    }
    found
}

/// Returns true if the name of a test says who does what.
fn is_plain_test(name: &str) -> bool {
    let words: Vec<_> = name.split('_').collect();
    let framed = format!("_{name}_");
    !TEST_STARTS.contains(&words[0])
        && !name.starts_with("as_many_")
        && !name.starts_with("so_many_")
        && !words.iter().any(|word| TEST_WORDS.contains(word))
        && !TEST_PHRASES.iter().any(|phrase| framed.contains(phrase))
}

#[test]
fn tests_have_plain_names() {
    let (mut count, mut faults) = (0, Vec::new());
    for (path, text) in FOLDERS.into_iter().flat_map(sources) {
        for name in tests(&text) {
            count += 1;
            if !is_plain_test(name) {
                faults.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(count > 2000, "{count} tests");
    let source = "#[test]\nfn one() {}\nfn none() {}\nnetns_tests! {\n    fn two() {\n    }\n}\n";
    assert_eq!(tests(source), ["one", "two"]);
    assert!(is_plain_test("stale_hints_are_dropped"));
    assert!(!is_plain_test("what_is_lost_is_told") && !is_plain_test("it_is_visited"));
}

/// Each kind of fault is found, and what is right is not.
#[test]
fn faults_are_found() {
    let count = |name: &str, text: &str| faults(Path::new(name), text).len();
    for fault in [
        "/// Whether it is up.\n",
        "//! What a port is.\n",
        "// The frame stands\n// in the queue.\n",
        "/// Returns no\n/// more.\n",
        "const TEXT: &str = \"sent again at once\";\n",
    ] {
        assert_eq!(count("src/a.rs", fault), 1, "{fault}");
    }
    for right in [
        "/// Returns true if it is up.\n",
        "/// Takes no more than one.\n",
        "/// The `octets` of a name, \"as told\".\n",
        "// Whether or not it is a doc comment.\n",
        "const NAME: &str = \"told\";\n",
    ] {
        assert_eq!(count("src/a.rs", right), 0, "{right}");
    }
    assert_eq!(count("docs/a.md", "A frame is\nput off.\n\n```text\nput off\n```\n"), 1);
    assert_eq!(count("src/tests.rs", "const TEXT: &str = \"sent again at once\";\n"), 0);
    assert_eq!(
        bad_types("pub(crate) struct LeaseNews {\n// struct News\nenum Newsletter {"),
        ["LeaseNews"]
    );
}
