//! Cache lines that one queue writes and another one reads or writes, counted by valgrind's
//! `lackey`.
//!
//! Each of two threads turns its queue for some messages while the other rests. The trace has the
//! address of each load and store, so the count is exact for the process: it includes neighbours
//! that the allocator chose, and does not depend on the load of the machine. Writes of the kernel
//! are not in the trace.
#![expect(clippy::print_stdout, reason = "the report is the purpose")]

use std::collections::HashMap;
use std::env;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use urnic_testkit::{programs, skip};

use crate::case::{CASES, Case, Layout};
use crate::flow::Flow;
use crate::rounds::QUEUES;

/// Bytes of a cache line.
const LINE_LEN: usize = 64;
/// Total length of the traced messages, and their largest number.
const TRACED_BYTES: usize = 256 << 10;
const TRACED_MAX: usize = 32;
/// A queue's thread stores to its mark before its messages and after them.
static MARKS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
/// Beginning of the line of the trace that gives the addresses of the marks.
const MARKS_ARE_AT: &str = "marks at ";

/// Accesses of one queue to a cache line.
#[derive(Clone, Copy, Debug, Default)]
struct Accesses {
    reads: u64,
    writes: u64,
}

/// Traces the cases whose names contain `wanted` and prints the lines that one queue writes and the
/// other touches; fails if that happens for every second message or more often.
//
//
// Rarer accesses pass: where the allocator has put something beside the ring of a completion queue,
// that line is written each time around the ring.
pub(crate) fn run(wanted: &str, test: bool) -> Result<ExitCode> {
    let cases: Vec<_> = CASES.iter().filter(|case| case.name.contains(wanted)).collect();
    ensure!(!cases.is_empty(), "--only {wanted:?} is in the name of no case");
    if let Some(reason) = programs::missing(["valgrind"]) {
        skip("cache lines of two queues", &reason);
        return Ok(ExitCode::SUCCESS);
    }
    let mut shared = 0;
    for case in cases {
        for layout in [Layout::OneRnic, Layout::OneMr] {
            let lines = trace(case, layout)?;
            println!("{}, {}: {} lines shared", case.name, layout.name(), lines.len());
            for (line, [first, second]) in &lines {
                let Accesses { reads, writes } = first;
                let Accesses { reads: other_reads, writes: other_writes } = second;
                println!(
                    "  {line:#x}: {writes} writes and {reads} reads of one queue, {other_writes} and \
                     {other_reads} of the other"
                );
            }
            let often = |accesses: &Accesses| 2 * accesses.writes >= traced_count(case);
            shared += lines.iter().filter(|(_, both)| both.iter().any(often)).count();
            if test {
                break;
            }
        }
    }
    Ok(if shared == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Messages that are traced.
fn traced_count(case: &Case) -> u64 {
    (TRACED_BYTES / case.message_len).min(TRACED_MAX) as u64
}

/// Runs the traced process: each queue's thread moves its messages while the other's rests.
pub(crate) fn traced(name: &str, layout: &str) -> Result<()> {
    let case = CASES.iter().find(|case| case.name == name).context("the name of a case")?;
    let layout = Layout::ALL.into_iter().find(|one| one.name() == layout);
    let flows = Flow::queues(case, layout.context("the name of a layout")?, QUEUES)?;
    // In one write, because the lines of the trace go there, too.
    let told = format!("{MARKS_ARE_AT}{:x}\n", MARKS.as_ptr().addr());
    io::stderr().write_all(told.as_bytes())?;
    let count = traced_count(case);
    let turns = Barrier::new(QUEUES);
    let turn = |queue: usize, mut work: Box<dyn FnMut() -> Result<()> + '_>| {
        for turn in 0..QUEUES {
            if turn == queue {
                pause();
                work()?;
            }
            turns.wait();
        }
        anyhow::Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = flows
            .into_iter()
            .enumerate()
            .map(|(queue, mut flow)| {
                scope.spawn(move || {
                    turn(
                        queue,
                        Box::new(|| flow.connect().and_then(|()| flow.advance(2 * count))),
                    )?;
                    turn(
                        queue,
                        Box::new(|| {
                            MARKS[0].store(queue, Ordering::Release);
                            let done = flow.advance(count);
                            MARKS[1].store(queue, Ordering::Release);
                            done
                        }),
                    )
                })
            })
            .collect();
        threads.into_iter().try_for_each(|one| one.join().expect("it does not panic"))
    })
}

/// Sleeps until the other thread waits for its turn.
#[expect(clippy::disallowed_methods, reason = "nothing reports that a thread sleeps")]
fn pause() {
    thread::sleep(Duration::from_millis(200));
}

/// Returns the lines that one of two queues writes and the other one touches.
fn trace(case: &Case, layout: Layout) -> Result<Vec<(usize, [Accesses; QUEUES])>> {
    let mut child = Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--log-fd=2"])
        .arg(env::current_exe()?)
        .args(["--traced", case.name, layout.name()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let output = BufReader::new(child.stderr.take().context("it is a pipe")?);
    let mut marks = None;
    let mut runs = 0;
    let mut running = false;
    let mut lines: HashMap<usize, [Accesses; QUEUES]> = HashMap::new();
    for text in output.lines() {
        let text = text?;
        if let Some(at) = text.strip_prefix(MARKS_ARE_AT) {
            marks = Some(usize::from_str_radix(at, 16)?);
            continue;
        }
        let (Some(marks), Some((kind, at, len))) = (marks, access(&text)) else { continue };
        if (marks..marks + size_of_val(&MARKS)).contains(&at) {
            running = at == marks;
            runs += usize::from(running);
        } else if running {
            let queue = runs - 1;
            for line in at / LINE_LEN..=(at + len - 1) / LINE_LEN {
                let accesses = &mut lines.entry(line * LINE_LEN).or_default()[queue];
                accesses.reads += u64::from(kind != Kind::Store);
                accesses.writes += u64::from(kind != Kind::Load);
            }
        }
    }
    ensure!(child.wait()?.success() && runs == QUEUES, "{} was not traced", case.name);
    lines.retain(|_, [a, b]| {
        (a.writes > 0 && b.reads + b.writes > 0) || (b.writes > 0 && a.reads > 0)
    });
    let mut lines: Vec<_> = lines.into_iter().collect();
    lines.sort_by_key(|(line, _)| *line);
    Ok(lines)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Load,
    Store,
    Modify,
}

/// Parses a line of the trace about memory: ` L`, ` S` or ` M`, then the address and the length.
fn access(text: &str) -> Option<(Kind, usize, usize)> {
    let (kind, rest) = text.strip_prefix(' ')?.split_once(' ')?;
    let kind = match kind {
        "L" => Kind::Load,
        "S" => Kind::Store,
        "M" => Kind::Modify,
        _ => return None,
    };
    let (at, len) = rest.split_once(',')?;
    Some((kind, usize::from_str_radix(at, 16).ok()?, len.parse().ok()?))
}
