//! Each command's JSON has the fields that `docs/json.md` lists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Output;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::commands::files::{Folder, pattern};
use crate::commands::scene::{complaint, urnic, wait_until};

/// The fields of a command in the document.
struct Section {
    name: String,
    required: BTreeSet<String>,
    /// Paths that may be absent, and `NAME.*` for any name.
    optional: BTreeSet<String>,
}

/// Reads the tables: a section for each command, a row for each field. Below a heading that is a
/// field, rows are of fields inside of it, and optional if the heading says so.
fn document() -> Vec<Section> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let mut sections: Vec<Section> = Vec::new();
    let (mut inside, mut all_optional) = (String::new(), false);
    for line in fs::read_to_string(path).unwrap().lines() {
        if let Some(name) = line.strip_prefix("## ") {
            let (required, optional) = (BTreeSet::new(), BTreeSet::new());
            sections.push(Section { name: name.replace('`', ""), required, optional });
            (inside, all_optional) = (String::new(), false);
        }
        if let Some((field, rest)) =
            line.strip_prefix("### `").and_then(|rest| rest.split_once('`'))
        {
            (inside, all_optional) = (format!("{field}."), rest == " (optional)");
        }
        let Some((field, meaning)) =
            line.strip_prefix("| `").and_then(|row| row.split_once("` | "))
        else {
            continue;
        };
        let section = sections.last_mut().expect("a heading before its table");
        let is_optional = all_optional || meaning.starts_with("optional") || field.ends_with(".*");
        let fields = if is_optional { &mut section.optional } else { &mut section.required };
        for field in each(field) {
            let field = format!("{inside}{field}");
            assert!(fields.insert(field.clone()), "{} {field} is there twice", section.name);
        }
    }
    sections
}

/// Returns `a.c` and `b.c` for `a,b.c`. Both ends have the same counters, and stay one name.
fn each(field: &str) -> Vec<String> {
    match field.split_once('.') {
        Some((names, rest)) if names.contains(',') && names != "local,peer" => {
            names.split(',').map(|name| format!("{name}.{rest}")).collect()
        }
        _ => vec![field.to_owned()],
    }
}

/// Collects the path of each value: `a.b[].c`.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                // Both ends have the same counters.
                let name = if ["local", "peer"].contains(&&**name) && value.is_object() {
                    "local,peer"
                } else {
                    name
                };
                let between = if path.is_empty() { "" } else { "." };
                paths(value, &format!("{path}{between}{name}"), found);
            }
        }
        Value::Array(values) if !values.is_empty() => {
            values.iter().for_each(|value| paths(value, &format!("{path}[]"), found));
        }
        Value::Array(_) => drop(found.insert(format!("{path}[]"))),
        _ => drop(found.insert(path.to_owned())),
    }
}

/// Compares a document's section with the printed values.
pub(crate) fn compare(name: &str, printed: &[Value]) {
    let sections = document();
    let section = sections.iter().find(|section| section.name == name);
    let section = section.unwrap_or_else(|| panic!("docs/json.md has no section on {name}"));
    let mut found = BTreeSet::new();
    for value in printed {
        assert_eq!(value["schema"], 3, "{name}");
        paths(value, "", &mut found);
    }
    found.remove("schema");
    let is_known = |path: &&String| {
        let any = path.rsplit_once('.').map(|(parent, _)| format!("{parent}.*"));
        section.required.contains(*path)
            || section.optional.contains(*path)
            || any.is_some_and(|any| section.optional.contains(&any))
            // An empty list is known if the document lists fields of its elements.
            || (path.ends_with("[]")
                && section.optional.iter().any(|known| known.starts_with(&***path)))
    };
    let unknown: Vec<_> = found.iter().filter(|path| !is_known(path)).collect();
    assert!(unknown.is_empty(), "{name} prints what docs/json.md does not tell: {unknown:?}");
    let missing: Vec<_> = section.required.difference(&found).collect();
    assert!(missing.is_empty(), "{name} does not print {missing:?}");
}

fn parsed(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", complaint(output)))
}

#[test]
fn clients_print_the_fields_of_the_document() {
    let folder = Folder::new("json");
    let server = folder.serve("");
    let file = folder.own("file");
    fs::write(&file, pattern(1 << 20)).unwrap();
    let (file, copy) = (file.display(), folder.own("copy"));
    for (name, command) in [
        ("urnic ping", "ping ADDRESS --count 2 --interval 0 --json".to_owned()),
        ("urnic bw", "bw ADDRESS --seconds 0.05 --interval 0.01 --json".to_owned()),
        ("urnic lat", "lat ADDRESS -n 2000 --interval 0.001 --histogram --json".to_owned()),
        ("urnic put and urnic get", format!("put {file} ADDRESS/served --json")),
        ("urnic put and urnic get", format!("get ADDRESS/served {} --json", copy.display())),
        ("Errors", "get ADDRESS/none /tmp/never-made --json".to_owned()),
        ("Errors", "bw ADDRESS --depth 0 --json".to_owned()),
    ] {
        compare(name, &[parsed(&server.client(&command))]);
    }
    for (name, command) in [
        ("urnic bw", "bw ADDRESS --all-sizes -n 1 --json"),
        ("urnic lat", "lat ADDRESS --all-sizes -n 1 --json"),
    ] {
        let table = parsed(&server.client(command));
        let sizes = table["sizes"].as_array().unwrap();
        let of = |index: usize| sizes[index]["size_bytes"].as_u64();
        assert_eq!((sizes.len(), of(0), of(22)), (23, Some(2), Some(8 << 20)), "{name}");
        assert_eq!(table["schema"], 3);
    }
    server.stop();
}

#[test]
fn commands_without_a_peer_print_the_fields_of_the_document() {
    let captures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps");
    let captures = captures.display();
    let folder = Folder::new("json_page");
    let page = folder.own("page.html");
    for (name, command) in [
        ("urnic info", "info --json".to_owned()),
        ("urnic demo", "demo --bytes 20K --json".to_owned()),
        ("urnic sim", "sim --seeds 0..2 --scenario clean --json".to_owned()),
        (
            "urnic replay",
            format!(
                "replay {captures}/siw-rping-crc.pcap {captures}/siw-terminate-bounds.pcap --json"
            ),
        ),
        (
            "urnic replay",
            format!(
                "replay {captures}/siw-terminate-bounds.pcap --json --report {}",
                page.display()
            ),
        ),
        (
            "urnic replay --compare",
            format!("replay {captures}/siw-rping-crc.pcap --compare --json"),
        ),
        ("Errors", "ping 10.0.0.256 --json".to_owned()),
        ("Errors", format!("replay {captures}/README.md --compare --json")),
    ] {
        compare(name, &[parsed(&urnic(&command).output().unwrap())]);
    }
}

#[test]
fn top_prints_the_fields_of_the_document() {
    let runtime = tempfile::tempdir().unwrap();
    let shown = |line: &str| {
        let mut command = urnic(line);
        command.env("XDG_RUNTIME_DIR", runtime.path());
        command
    };
    let mut server = shown("serve --listen 127.0.0.1:0 --top --json").spawn().unwrap();
    let mut first = String::new();
    let mut lines = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
    let event: Value = serde_json::from_str(&first).unwrap();
    let address = event["address"].as_str().unwrap();
    let mut client = urnic(&format!("ping {address} --count 1000 --interval 1 --json"));
    let mut client = client.spawn().unwrap();
    let mut line = Value::Null;
    wait_until("the connection is seen", || {
        line = parsed(&shown("top --once --json").output().unwrap());
        line["endpoints"][0]["connections_open"] == 1
    });
    for child in [&mut client, &mut server] {
        kill_process(Pid::from_child(child), Signal::INT).unwrap();
        child.wait().unwrap();
    }
    compare("urnic top", &[line]);
}

#[test]
fn a_server_prints_an_event_on_each_line() {
    let folder = Folder::new("json-events");
    let at = format!("--listen 127.0.0.1:0 --json --dir {}", folder.root.display());
    let mut server = urnic(&format!("serve {at}")).spawn().unwrap();
    let mut lines = std::io::BufReader::new(server.stdout.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
    let mut events: Vec<Value> = vec![serde_json::from_str(&first).unwrap()];
    let address = events[0]["address"].as_str().unwrap().to_owned();
    let run = |command: &str| urnic(&command.replace("ADDRESS", &address)).output().unwrap();
    assert!(run("ping ADDRESS --count 1").status.success());
    assert_eq!(run("ping ADDRESS --size 1G").status.code(), Some(2));
    kill_process(Pid::from_child(&server), Signal::INT).unwrap();
    let rest = std::io::BufRead::lines(lines);
    events.extend(rest.map(|line| serde_json::from_str::<Value>(&line.unwrap()).unwrap()));
    assert!(server.wait().unwrap().success());
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["listening", "started", "ended", "rejected"]);
    assert!(events.iter().all(|event| event["time"].as_str().unwrap().ends_with('Z')));
    compare("urnic serve", &events);
}
