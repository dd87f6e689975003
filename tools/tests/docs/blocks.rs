//! The blocks of the documents, run whole by a shell, as a reader pastes them: in a network
//! namespace and a folder of their own, set up like a reader's machine. A block that is not run has
//! the reason above it: `<!-- not run: REASON -->`.
//!
//! A command at the end of a line with `&` runs until the block has ended. The next line waits
//! until the command prints or listens, as a reader does. Long commands are shortened; a command
//! that ends only by a signal gets one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::ip;
use urnic_testkit::packages::PACKAGES;
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

use super::{SERVER, documents, shortened};

/// A fenced block.
#[derive(Debug)]
struct Block {
    document: PathBuf,
    /// Line number of its fence.
    line: usize,
    language: String,
    lines: Vec<String>,
    /// Reason why it is not run.
    reason: Option<String>,
}

fn blocks() -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    for (document, text) in documents() {
        let (mut open, mut before) = (None::<Block>, "");
        for (line, number) in text.lines().zip(1..) {
            let fence = line.strip_prefix("```");
            match (fence, &mut open) {
                (Some(_), Some(_)) => found.extend(open.take()),
                (None, Some(block)) => block.lines.push(line.to_owned()),
                (Some(language), None) => {
                    let reason =
                        before.strip_prefix(MARKER).and_then(|rest| rest.strip_suffix(" -->"));
                    open = Some(Block {
                        document: document.clone(),
                        line: number,
                        language: language.to_owned(),
                        lines: Vec::new(),
                        reason: reason.map(str::to_owned),
                    });
                }
                (None, None) => before = line,
            }
        }
        assert!(open.is_none(), "{}: a block has no end", document.display());
    }
    found
}

/// Marker above a block that is not run.
const MARKER: &str = "<!-- not run: ";

impl Block {
    fn at(&self) -> String {
        format!("{}:{}", self.document.display(), self.line)
    }

    /// Returns the commands as they are typed, with continued lines joined.
    fn commands(&self) -> Vec<String> {
        let text = match &*self.language {
            "sh" => self.lines.join("\n"),
            "console" => {
                let typed = self.lines.iter().map(|line| {
                    line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).unwrap_or_else(
                        || panic!("{}: neither `$` nor `#` begins {line:?}", self.at()),
                    )
                });
                typed.collect::<Vec<_>>().join("\n")
            }
            other => panic!("{}: a block of {other:?} is not run, and does not say why", self.at()),
        };
        let whole = text.replace("\\\n", " ");
        let lines = whole.lines().map(|line| line.split("  #").next().unwrap().trim_end());
        lines.map(str::to_owned).filter(|line| !is_of_cargo(line)).collect()
    }

    /// Returns a program or library that the block uses and this machine lacks.
    fn missing(&self) -> Option<String> {
        let text = self.lines.join(" ");
        let words = || text.split([' ', '/', '=']);
        let used =
            PACKAGES.iter().map(|(name, _)| *name).filter(|name| words().any(|word| word == *name));
        let is_here = |name: &str| {
            let folders = ["/usr/sbin", "/usr/lib/x86_64-linux-gnu/rsocket", UMAD];
            is_there(name) || folders.iter().any(|folder| Path::new(folder).join(name).exists())
        };
        used.into_iter().find(|name| !is_here(name)).map(|name| format!("`{name}` is missing"))
    }
}

const UMAD: &str = "/usr/lib/x86_64-linux-gnu/umad2sim";

/// Returns true for commands that build, install or test: they have run before this test.
fn is_of_cargo(line: &str) -> bool {
    const STARTS: [&str; 5] =
        ["cargo build", "cargo test", "bash .ci/run", "apt-get install", "sudo "];
    STARTS.iter().any(|start| line.starts_with(start)) && !line.contains("&& PATH=")
}

/// Returns one line of the script: shortened, and with the end that it needs.
fn scripted(line: &str, number: usize, is_last: bool) -> String {
    let line = match line.split_once("&& PATH=") {
        Some((_, rest)) => format!("PATH={rest}"),
        None => line.to_owned(),
    };
    let line = match line.strip_prefix("cargo run --release --bin urnic -- ") {
        Some(arguments) => format!("urnic {arguments}"),
        None => line,
    };
    let (line, stays) = match line.strip_suffix('&') {
        Some(line) => (line.trim_end().to_owned(), true),
        None => (line, false),
    };
    let line = line.replace("/tmp/", "$PWD/");
    let line = match line.strip_prefix("urnic ") {
        Some(arguments) => format!("urnic {}", shortened(arguments, SERVER).join(" ")),
        None => line,
    };
    // The example's process is replaced by the last one that was started.
    let line = if line.starts_with("urnic top") { line.replace("4711", "$!") } else { line };
    if stays {
        // After the last command nothing follows: it runs unless it fails at once.
        let patience = if is_last { 2 } else { 20 };
        return format!("{line} >out.{number} 2>&1 &\nbegun out.{number} {patience}");
    }
    let endless =
        line == "urnic top" || (line.starts_with("urnic capture") && !line.contains("--duration"));
    let line = if endless {
        format!("timeout --foreground --preserve-status -s INT 4 {line}")
    } else {
        line
    };
    // A fault of a capture is a finding, and an exit status.
    let line = if line.contains("--strict") { format!("{line} || [ $? = 1 ]") } else { line };
    format!("echo '+ line {number}' >&2; {line}")
}

/// Waits until the last command in the background prints, listens or ends.
const BEGUN: &str = r#"
listening() { cat /proc/net/tcp /proc/net/tcp6 /proc/net/unix 2>/dev/null | grep -cE ' 0A |00010000|:ctl' || true; }
begun() {
  local end=$((SECONDS + $2))
  until [ -s "$1" ] || [ "$(listening)" != "$before" ] || ! kill -0 $! 2>/dev/null; do
    if ((SECONDS >= end)); then break; fi
    sleep 0.1
  done
  before=$(listening)
}
before=$(listening)
"#;

/// Runs the blocks of the documents with these names.
fn run(documents: &[&str]) {
    ip("addr add 192.0.2.1/32 dev lo");
    ip("link add eth0 type veth peer name wire");
    for name in ["eth0", "wire"] {
        ip(&format!("link set {name} up"));
    }
    let of_these = |block: &Block| documents.iter().any(|name| block.document.ends_with(name));
    for block in blocks().iter().filter(|block| of_these(block) && block.reason.is_none()) {
        let commands = block.commands();
        if commands.is_empty() {
            continue;
        }
        if let Some(reason) = block.missing() {
            skip(&block.at(), &reason);
            continue;
        }
        run_block(block, &commands);
    }
}

fn run_block(block: &Block, commands: &[String]) {
    let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::create_dir(work.path().join("runtime")).unwrap();
    // With job control, programs in the background keep their input and take SIGINT, as at a prompt.
    let mut script = "set -em\nmount -t tmpfs none /run\n".to_owned();
    // The server that the reader runs outside of the block.
    let has_server = commands.iter().any(|line| line.contains("urnic serve"));
    if !has_server && commands.iter().any(|line| line.contains(SERVER)) {
        let listens =
            "until [ -s served ]; do kill -0 $! || { cat served >&2; exit 1; }; sleep 0.05; done\n";
        script
            .push_str(&format!("urnic serve --listen {SERVER} --dir . >served 2>&1 &\n{listens}"));
    }
    script.push_str(BEGUN);
    for (command, number) in commands.iter().zip(1..) {
        script.push_str(&scripted(command, number, number == commands.len()));
        script.push('\n');
    }
    // Background commands run to the end of the block, or have ended with success.
    script.push_str("for job in $(jobs -p); do kill -INT $job 2>/dev/null || wait $job; done\n");
    fs::write(work.path().join("script"), &script).unwrap();
    let binaries = Path::new(env!("CARGO_BIN_EXE_urnic")).parent().unwrap().to_owned();
    #[expect(clippy::disallowed_methods, reason = "the path that the test was run with")]
    let path = std::env::var("PATH").unwrap_or_default();
    let mut child = program("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "script"])
        .current_dir(work.path())
        .env("PATH", format!("{}:{path}", binaries.display()))
        .env("XDG_RUNTIME_DIR", work.path().join("runtime"))
        .stdin(Stdio::piped())
        .stdout(File::create(work.path().join("out.0")).unwrap())
        .stderr(File::create(work.path().join("errors")).unwrap())
        .spawn()
        .unwrap();
    // Its input stays open until it has ended.
    let input = child.stdin.take();
    let status = child.wait().unwrap();
    drop(input);
    let read = |name: String| fs::read_to_string(work.path().join(name)).unwrap_or_default();
    let others: String = (0..=commands.len()).map(|number| read(format!("out.{number}"))).collect();
    let errors = read("errors".to_owned());
    assert!(status.success(), "{}: {status}\n{script}\n{others}{errors}", block.at());
}

#[test]
fn every_block_is_run_or_says_why_not() {
    let blocks = blocks();
    let (said, run): (Vec<_>, Vec<_>) = blocks.iter().partition(|block| block.reason.is_some());
    for block in &run {
        // Panics for a block that has no command.
        let _commands = block.commands();
        let is_known =
            DOCUMENTS.iter().flat_map(|names| *names).any(|name| block.document.ends_with(name));
        assert!(is_known, "{}: no test runs this document", block.at());
    }
    for block in &said {
        assert!(block.reason.as_ref().unwrap().len() > 8, "{}: why?", block.at());
    }
    assert!(run.len() > 15 && !said.is_empty(), "{} run, {} not", run.len(), said.len());
}

/// Documents, by the test that runs them.
const DOCUMENTS: [&[&str]; 4] = [
    &["README.md", "CONTRIBUTING.md"],
    &[
        "docs/devices.md",
        "docs/first-write.md",
        "docs/serve.md",
        "docs/top.md",
        "docs/verbs.md",
        "docs/your-program.md",
    ],
    &["docs/read-a-capture.md", "docs/replay.md", "docs/simulator.md"],
    &["docs/ipoib.md"],
];

netns_tests! {
    with ["/dev/net/tun", "bash", "mount"];

    fn the_blocks_of_the_readme_run() {
        run(DOCUMENTS[0]);
    }

    fn the_blocks_about_devices_and_programs_run() {
        if urnic_testkit::is_too_long("the_blocks_about_devices_and_programs_run") {
            return;
        }
        run(DOCUMENTS[1]);
    }

    fn the_blocks_about_captures_and_the_simulator_run() {
        run(DOCUMENTS[2]);
    }

    fn the_blocks_about_infiniband_run() {
        run(DOCUMENTS[3]);
    }
}
