//! Modules do not import each other in circles. A parent and its children may: they are one unit.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{code, is_test, sources};

/// The sources of all packages of the workspace.
const PACKAGES: [&str; 12] = [
    "engine/src",
    "esp/src",
    "ipoib/src",
    "netdev/src",
    "preload/src",
    "replay/src",
    "sim/src",
    "src",
    "tests/kit/src",
    "tests/loom/src",
    "tools/src",
    "verbs/src",
];

type Module = Vec<String>;
/// For each module: the imports of its children from their siblings, or from modules below those.
type Siblings = BTreeMap<Module, BTreeMap<String, BTreeSet<String>>>;

/// Returns the path of the module that a file of `folder` is.
fn module_of(path: &Path, folder: &str) -> Module {
    let path = path.strip_prefix(folder).unwrap().with_extension("");
    let mut module: Module = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&&**last)) {
        module.pop();
    }
    module
}

/// Returns the paths that start at the beginning of `text`: one, or those of a group in braces.
fn paths(text: &str) -> Vec<Module> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if let Some(group) = text.strip_prefix('{') {
        let (mut depth, mut start, mut found) = (0, 0, Vec::new());
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    found.extend(paths(group[start..at].trim_start()));
                    start = at + 1;
                    if c == '}' {
                        break;
                    }
                }
                _ => {}
            }
        }
        return found;
    }
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return Vec::new();
    }
    let below = rest.strip_prefix("::").map(paths).unwrap_or_default();
    if below.is_empty() {
        return vec![vec![name.to_owned()]];
    }
    let name = [name.to_owned()];
    below.into_iter().map(|path| name.iter().cloned().chain(path).collect()).collect()
}

/// Returns the paths that `text`, the code of `module`, names by `crate::` and `super::`.
fn named(text: &str, module: &Module) -> Vec<Module> {
    let mut found = Vec::new();
    for (at, start) in text.match_indices("crate::") {
        found.extend(paths(&text[at + start.len()..]));
    }
    for (at, start) in text.match_indices("super::") {
        // The first of a chain counts the whole chain.
        if text[..at].ends_with("super::") {
            continue;
        }
        let (mut rest, mut parent) = (&text[at..], module.clone());
        while let Some(below) = rest.strip_prefix(start) {
            parent.pop();
            rest = below;
        }
        let below = |path: Module| parent.iter().cloned().chain(path).collect();
        found.extend(paths(rest).into_iter().map(below));
    }
    found
}

fn imports(folder: &str) -> Siblings {
    let sources = sources(folder);
    let files: Vec<_> = sources.iter().filter(|(path, _)| !is_test(path)).collect();
    let modules: BTreeSet<Module> = files.iter().map(|(path, _)| module_of(path, folder)).collect();
    let mut siblings = Siblings::new();
    for (path, text) in files {
        let module = module_of(path, folder);
        for mut other in named(&code(text), &module) {
            while !modules.contains(&other) {
                other.pop();
            }
            let common = module.iter().zip(&other).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (module.get(common), other.get(common)) {
                let parent = module[..common].to_vec();
                let below = siblings.entry(parent).or_default();
                below.entry(a.clone()).or_default().insert(b.clone());
            }
        }
    }
    siblings
}

/// Returns sets of siblings that import each other, directly or indirectly.
fn circles(imports: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<Vec<&str>> {
    let reached = |from: &str| {
        let mut reached: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = vec![from];
        while let Some(module) = open.pop() {
            for next in imports.get(module).into_iter().flatten() {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        reached
    };
    let from_each: BTreeMap<&str, _> =
        imports.keys().map(|name| (&**name, reached(name))).collect();
    let circle = |name: &str| {
        let others = from_each[name].iter().copied();
        others
            .filter(|other| from_each.get(other).is_some_and(|back| back.contains(name)))
            .collect()
    };
    let circles = from_each.iter().filter(|(name, reached)| reached.contains(*name));
    circles.map(|(name, _)| circle(name)).collect()
}

#[test]
fn modules_import_each_other_in_no_circle() {
    let mut found = Vec::new();
    for folder in PACKAGES {
        for (parent, below) in imports(folder) {
            for circle in circles(&below) {
                found.push(format!("{folder}/{}: {}", parent.join("/"), circle.join(", ")));
            }
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Strata of `verbs/src`. A module may import modules of its own stratum and of those before it.
const STRATA: [&[&str]; 11] = [
    &["abi", "object", "errno", "log", "thread", "fault", "names", "private", "refused"],
    &[
        "event_queue",
        "async_event",
        "section",
        "work",
        "region",
        "numbers",
        "fork",
        "exit",
        "waited",
        "turn",
    ],
    &["network", "process"],
    &["context", "channel", "gid", "device", "ack", "attributes"],
    &["peer"],
    &["pd", "parent_domain", "ah", "mr", "cq", "srq"],
    &["qp"],
    &["mw"],
    &["newer", "operations"],
    &["cm"],
    &["rsocket"],
];

#[test]
fn verbs_imports_downward() {
    let stratum = |module: &str| {
        let found = STRATA.iter().position(|stratum| stratum.contains(&module));
        found.unwrap_or_else(|| panic!("verbs/src/{module} has no stratum"))
    };
    for (module, below) in &imports("verbs/src")[&Module::new()] {
        for other in below {
            let is_downward = stratum(other) <= stratum(module);
            assert!(is_downward, "verbs/src/{module} imports {other}, of a higher stratum");
        }
    }
}

#[test]
fn a_circle_would_be_noticed() {
    let paths = paths("a::{b::{C, d}, e}; use");
    assert_eq!(
        paths.iter().map(|path| path.join("::")).collect::<Vec<_>>(),
        ["a::b::C", "a::b::d", "a::e"]
    );
    let module = ["x", "y"].map(str::to_owned).to_vec();
    let named = named("use super::super::z; use crate::w::V;", &module);
    assert_eq!(named, [vec!["w", "V"], vec!["z"]]);
    let to = |name: &str| BTreeSet::from([name.to_owned()]);
    let imports = BTreeMap::from([("a".to_owned(), to("b")), ("b".to_owned(), to("a"))]);
    assert_eq!(circles(&imports), BTreeSet::from([vec!["a", "b"]]));
}
