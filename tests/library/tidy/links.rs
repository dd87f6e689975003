//! Links of all documents: the files exist, and the headings that anchors name. Every page of `docs`
//! has its place in the site.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Returns every document of the project: its path from the root, and its text.
pub(super) fn documents() -> BTreeMap<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut found) = (vec![root.to_owned()], BTreeMap::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !["target", ".git", "found"].iter().any(|name| path.ends_with(name))
            {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text = fs::read_to_string(&path).unwrap();
                found.insert(path.strip_prefix(root).unwrap().to_owned(), text);
            }
        }
    }
    assert!(found.len() > 20, "{} documents", found.len());
    found
}

/// Returns the text without its code blocks.
fn prose(document: &str) -> String {
    let mut fenced = false;
    let lines = document.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the targets of the links of a document.
fn links(document: &str) -> Vec<String> {
    let prose = prose(document);
    let without_code: Vec<&str> = prose.split('`').step_by(2).collect();
    let text = without_code.concat();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// Returns the anchors of a document's headings, as forges and mdBook make them: in lower case,
/// spaces as hyphens, without punctuation, and numbered from the second on.
fn anchors(document: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let prose = prose(document);
    for line in prose.lines().filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let before = found.iter().filter(|other| other.trim_end_matches(DIGITS) == anchor).count();
        found.push(if before == 0 { anchor } else { format!("{anchor}-{before}") });
    }
    found
}

/// Characters of the number behind an anchor.
const DIGITS: [char; 11] = ['-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'];

/// Returns the path without `..`; `None` if it leaves the project.
fn resolved(path: &Path) -> Option<PathBuf> {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if found.pop() => {}
            Component::Normal(name) => found.push(name),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(found)
}

#[test]
fn links_lead_to_files_and_headings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents = documents();
    let (mut checked, mut wrong) = (0, Vec::new());
    for (path, text) in &documents {
        let folder = path.parent().unwrap();
        for link in links(text).iter().filter(|link| !link.contains("://")) {
            checked += 1;
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target =
                if file.is_empty() { Some(path.clone()) } else { resolved(&folder.join(file)) };
            let Some(target) = target.filter(|target| root.join(target).exists()) else {
                wrong.push(format!("{}: no file {link}", path.display()));
                continue;
            };
            let has_anchor = || {
                let document = documents.get(&target);
                document.is_some_and(|text| anchors(text).iter().any(|known| known == anchor))
            };
            if !anchor.is_empty() && !has_anchor() {
                wrong.push(format!("{}: no heading {link}", path.display()));
            }
        }
    }
    assert!(checked > 80, "{checked} links");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_page_of_docs_is_listed_once_in_the_site() {
    let documents = documents();
    let mut listed = links(&documents[Path::new("docs/SUMMARY.md")]);
    listed.sort();
    let pages = documents.keys().filter_map(|path| path.strip_prefix("docs").ok());
    let mut pages: Vec<_> = pages.map(|path| path.display().to_string()).collect();
    pages.retain(|page| page != "SUMMARY.md");
    pages.sort();
    assert_eq!(listed, pages);
}

#[test]
fn links_and_anchors_are_found() {
    let document =
        "# A b: `c`\n[one](x.md) `[no](y.md)` [`t`\nu](#z)\n```text\n[no](w.md)\n```\n## A b: c";
    assert_eq!(links(document), ["x.md", "#z"]);
    assert_eq!(anchors(document), ["a-b-c", "a-b-c-1"]);
    assert_eq!(resolved(Path::new("docs/../a/./b")), Some(PathBuf::from("a/b")));
    assert_eq!(resolved(Path::new("../a")), None);
}
