//! Runs the cases of the table, several at a time, and reports unexpected outcomes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::options::scene::{Scene, WORKERS};
use crate::options::table::{BASES, Expect};

/// One command line, and its expected outcome.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) command: String,
    /// The option under test.
    pub(crate) option: String,
    pub(crate) arguments: String,
    pub(crate) expect: Expect,
}

/// Time limit of any case.
const LIMIT: Duration = Duration::from_secs(40);
/// Time for which an endless command runs.
const A_WHILE: Duration = Duration::from_millis(700);
/// The kernel releases the queue of a closed XDP socket in the background, later on a busy machine.
const QUEUE_HELD: &str = "has an XDP socket already";
/// Pause between two attempts at a held queue.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for a command to end after an interrupt.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs all cases, and returns the problems of the cases that ended otherwise than expected.
pub(crate) fn problems(scene: &Scene, cases: Vec<Case>) -> Vec<String> {
    run_all(scene, &cases, WORKERS)
}

/// Like `problems`, but one case at a time, for cases that use the same interfaces.
pub(crate) fn problems_one_by_one(scene: &Scene, cases: Vec<Case>) -> Vec<String> {
    run_all(scene, &cases, 1)
}

fn run_all(scene: &Scene, cases: &[Case], workers: usize) -> Vec<String> {
    assert!(!cases.is_empty());
    let next = AtomicUsize::new(0);
    let problems = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for worker in 0..workers {
            let (next, problems) = (&next, &problems);
            scope.spawn(move || {
                while let Some((number, case)) = {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    cases.get(number).map(|case| (number, case))
                } {
                    let run = Run::new(scene, worker, number, case);
                    if let Err(problem) = run.check() {
                        problems.lock().unwrap().push(problem);
                    }
                }
            });
        }
    });
    problems.into_inner().unwrap()
}

/// One running case.
struct Run<'a> {
    scene: &'a Scene,
    worker: usize,
    case: &'a Case,
    /// Folder for its output.
    files: PathBuf,
    line: Vec<String>,
}

/// Exit status and output of a command.
struct Outcome {
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

impl<'a> Run<'a> {
    fn new(scene: &'a Scene, worker: usize, number: usize, case: &'a Case) -> Self {
        let files = scene.folder.join(format!("case-{number}"));
        let line = scene.fill(&command_line(case), worker, number);
        Self { scene, worker, case, files, line }
    }

    fn check(&self) -> Result<(), String> {
        let begin = Instant::now();
        loop {
            match self.attempt() {
                Err(problem) if problem.contains(QUEUE_HELD) && begin.elapsed() < LIMIT => {
                    thread::sleep(PAUSE);
                }
                result => return result,
            }
        }
    }

    fn attempt(&self) -> Result<(), String> {
        let begin = Instant::now();
        let mut child = self.start();
        let is_server =
            self.case.command == "serve" || self.line.iter().any(|one| one == "--server");
        let waits = !matches!(self.case.expect, Expect::Refused(_));
        if is_server && waits && self.line.iter().all(|one| one != "127.0.0.1:0") {
            self.use_server(&mut child, begin + PATIENCE);
        }
        let status = if matches!(self.case.expect, Expect::Runs) {
            thread::sleep(A_WHILE);
            let early = child.try_wait().unwrap();
            if early.is_some() {
                return Err(self.tell("ended by itself", &self.outcome(early)));
            }
            kill_process(Pid::from_child(&child), Signal::INT).unwrap();
            wait(&mut child, Instant::now() + PATIENCE)
        } else {
            wait(&mut child, begin + LIMIT)
        };
        let outcome = self.outcome(status);
        let verdict = outcome.judge(self.case);
        for end in ["out", "err"] {
            let _best_effort = fs::remove_file(self.files.with_extension(end));
        }
        verdict.map_err(|what| self.tell(what, &outcome))
    }

    fn start(&self) -> Child {
        let file = |end| File::create(self.files.with_extension(end)).unwrap();
        self.scene
            .urnic()
            .arg(&self.case.command)
            .args(&self.line)
            .current_dir(&self.scene.folder)
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap()
    }

    /// Runs a client of a server, as soon as it listens.
    fn use_server(&self, server: &mut Child, limit: Instant) {
        let line = self.scene.use_of(&self.case.command, &self.line, self.worker);
        while server.try_wait().unwrap().is_none() && Instant::now() < limit {
            let served = Command::new(env!("CARGO_BIN_EXE_urnic"))
                .args(line.split_whitespace())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            if served.status.success() {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn outcome(&self, status: Option<ExitStatus>) -> Outcome {
        let read = |end: &str| {
            let octets = fs::read(self.files.with_extension(end)).unwrap();
            String::from_utf8_lossy(&octets).into_owned()
        };
        Outcome { status, stdout: read("out"), stderr: read("err") }
    }

    fn tell(&self, what: &str, outcome: &Outcome) -> String {
        let Case { command, expect, .. } = self.case;
        let short = |text: &str| text.chars().take(600).collect::<String>();
        let line: Vec<_> = self.line.iter().map(|one| short(one)).collect();
        let (told, said) = (short(&outcome.stderr), short(&outcome.stdout));
        format!("urnic {command} {line:?} ({expect:?}): {what}\n  stderr: {told}\n  stdout: {said}")
    }
}

impl Outcome {
    fn judge(&self, case: &Case) -> Result<(), &'static str> {
        let Some(status) = self.status else { return Err("does not end") };
        if self.stderr.contains("panicked") || status.code() == Some(101) {
            return Err("panics");
        }
        if status.code().is_none_or(|code| code != 0) && self.stderr.is_empty() {
            // A command need not report an interrupt.
            return if matches!(case.expect, Expect::Runs) { Ok(()) } else { Err("says nothing") };
        }
        let told = self.stderr.replace('\n', " ");
        let names = |what: &str| told.contains(what);
        match (case.expect, status.code()) {
            (Expect::Works, Some(0)) | (Expect::Either(_), Some(0)) => Ok(()),
            (Expect::Ends, Some(0..=2)) | (Expect::Runs, _) => Ok(()),
            (Expect::Says(what), Some(0)) if self.stdout.contains(what) => Ok(()),
            (Expect::Says(_), Some(0)) => Err("does not say so"),
            (Expect::Refused("--"), Some(2)) if names(&case.option) => Ok(()),
            (Expect::Refused("--"), Some(2)) => Err("does not name the option"),
            (Expect::Refused(what) | Expect::Either(what), Some(2)) if names(what) => Ok(()),
            (Expect::Refused(_) | Expect::Either(_), Some(2)) => Err("does not say why"),
            (Expect::Fails(what), Some(1)) if names(what) => Ok(()),
            (Expect::Exits(status, what), Some(code)) if code == status && names(what) => Ok(()),
            _ => Err("ends otherwise"),
        }
    }
}

/// Returns the arguments of a case: those of the table, and the command's ordinary ones unless the
/// case gives them itself.
fn command_line(case: &Case) -> String {
    let Case { command, arguments, .. } = case;
    if let Some(whole) = arguments.strip_prefix('!') {
        let own = whole.split_once(' ').map_or("", |(_, rest)| rest);
        return if whole.starts_with(&**command) { own.to_owned() } else { panic!("{whole}") };
    }
    let (_, base) = BASES.iter().find(|(name, _)| name == command).expect("a command with a base");
    let given = |part: &&&str| {
        let option = part.split(' ').next().unwrap_or_default();
        let is_same = |one: &str| one == option || one.starts_with(&format!("{option}="));
        !option.starts_with("--") || !arguments.split_whitespace().any(is_same)
    };
    let kept: Vec<&str> = base.iter().filter(given).copied().collect();
    format!("{} {arguments}", kept.join(" "))
}

/// Waits for the end, and kills the command after the limit.
fn wait(child: &mut Child, limit: Instant) -> Option<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if Instant::now() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes a folder for this run of the tests.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("options-{name}"));
    let _left_over = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("served")).unwrap();
    folder
}
