//! Clients of a server that lies: each ends in time with a clear error and the right status, takes
//! only the memory that its work needs, and leaves no incomplete file under the final name.

mod files;
mod measure;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::liar::{After, Liar, Talk, Welcome};
use super::scene::{complaint, urnic};
use urnic_testkit::isolate;

/// A lie, and the expected reaction of a client.
struct Case {
    name: &'static str,
    /// `ADDRESS` is replaced by the server's, `OWN` by the client's folder.
    command: &'static str,
    welcome: Welcome,
    script: Box<dyn Fn(&Talk) -> After + Send + Sync>,
    status: i32,
    /// Standard error contains one of these.
    says: &'static [&'static str],
}

fn case(
    name: &'static str,
    command: &'static str,
    welcome: Welcome,
    script: impl Fn(&Talk) -> After + Send + Sync + 'static,
    says: &'static [&'static str],
) -> Case {
    Case { name, command, welcome, script: Box::new(script), status: 2, says }
}

/// Runs all cases, several at a time.
fn check(cases: Vec<Case>) {
    // Commands wait for a second: not while the cases of another test take both processors.
    let _turn = isolate::alone();
    let cases = Mutex::new(cases.into_iter());
    let problems = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let Some(case) = cases.lock().unwrap().next() else { break };
                    let (name, command) = (case.name, case.command);
                    if let Err(problem) = run(case) {
                        problems.lock().unwrap().push(format!("{name} ({command}): {problem}"));
                    }
                }
            });
        }
    });
    let problems = problems.into_inner().unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Runs a case. On a machine too busy to open the connection in time it has shown nothing.
fn run(case: Case) -> Result<(), String> {
    let Case { name, command, welcome, script, status, says } = case;
    let script: Arc<dyn Fn(&Talk) -> After + Send + Sync> = Arc::from(script);
    let mut left = ATTEMPTS_MAX;
    loop {
        let again = Arc::clone(&script);
        let script = Box::new(move |talk: &Talk| again(talk));
        let welcome = welcome.clone();
        let result = run_once(Case { name, command, welcome, script, status, says });
        left -= 1;
        match result {
            Err(problem) if left > 0 && problem.contains("did not answer within") => {}
            result => return result,
        }
    }
}

fn run_once(case: Case) -> Result<(), String> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let outer = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-server-{number}"));
    let _left_over = fs::remove_dir_all(&outer);
    let own = outer.join("own");
    fs::create_dir_all(&own).unwrap();
    fs::write(own.join("source"), vec![9; SOURCE_LEN]).unwrap();
    // A file of three chunks: the first one has arrived.
    fs::write(own.join(".begun.urnic-part"), vec![0; 12 << 20]).unwrap();
    let journal = format!("urnic-journal 1 {}\n0 00000000\n", 12 << 20);
    fs::write(own.join(".begun.urnic-journal"), journal).unwrap();
    let before = (names(&outer), names(&own));
    let liar = Liar::start(case.welcome, Arc::from(case.script));
    let line = case.command.replace("ADDRESS", &liar.address.to_string());
    let (output, time, memory) = end_of(&line.replace("OWN", own.to_str().unwrap()));
    let said = complaint(&output);
    let outcome = || format!("{:?} after {time:?}, {memory} bytes: {said}", output.status.code());
    // The right part of a file is kept, but not under its name.
    let is_kept = |name: &String| name.ends_with(".urnic-part") || name.ends_with(".urnic-journal");
    let mut left = names(&own);
    let has_come = left.iter().any(|name| name == ".file.urnic-part");
    left.retain(|name| !is_kept(name));
    // A server that does not stop may send more messages than there are buffers, before the command
    // reads one.
    let overrun = said.contains("no buffer for the message");
    let unexpected = match () {
        () if said.contains("panicked") => "panics",
        () if time > TIME_MAX => "takes too long",
        () if memory > MEMORY_MAX => "takes too much memory",
        () if output.status.code() != Some(case.status) => "ends otherwise",
        () if !overrun && !case.says.iter().any(|part| said.contains(part)) => "does not say so",
        () if said.chars().any(|c| c.is_control() && c != '\n') => "moves the cursor",
        () if said.contains("are kept here") != has_come => "says that it keeps what has not come",
        () if names(&outer) != before.0 || left != ["source"] => "leaves something behind",
        () => "",
    };
    let _best_effort = fs::remove_dir_all(outer);
    if unexpected.is_empty() { Ok(()) } else { Err(format!("{unexpected}: {}", outcome())) }
}

fn names(folder: &Path) -> Vec<String> {
    let entry = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|one| entry(one.unwrap().path())).collect();
    names.sort();
    names
}

/// Waits for the end of a command, and kills it after a time; returns its output, its time, and its
/// peak memory in bytes.
fn end_of(line: &str) -> (Output, Duration, u64) {
    let started = Instant::now();
    let mut child = urnic(line).spawn().unwrap();
    let mut memory = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
        // Until exec, the process has the memory of the test process.
        let peak =
            status.ok().filter(|status| status.starts_with("Name:\turnic\n")).and_then(|status| {
                let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
                line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
            });
        memory = memory.max(peak.unwrap_or_default() << 10);
        if started.elapsed() > TIME_MAX {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
    let time = started.elapsed();
    (child.wait_with_output().unwrap(), time, memory)
}

const WORKERS: usize = 4;
/// Attempts to open a connection.
const ATTEMPTS_MAX: usize = 5;
/// Much longer than the timeouts of the commands, for a busy machine.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Four chunks of a file, and the command itself.
const MEMORY_MAX: u64 = 96 << 20;
/// A chunk and a little.
const SOURCE_LEN: usize = (4 << 20) + 5;
