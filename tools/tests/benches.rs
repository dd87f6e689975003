//! Every option of the benches of this package, in their test mode: with an ordinary value and with
//! extreme ones. The benches list their options themselves; one without a row fails here.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use Expect::{Refused, Says, Works};

/// The expected outcome of a command line.
#[derive(Clone, Copy, Debug)]
enum Expect {
    Works,
    /// It works, and this is on standard output.
    Says(&'static str),
    /// The bench fails, with this on standard error.
    Refused(&'static str),
}

/// One option of one bench. `OUT` is replaced by a new path; `,,` is a blank within a value.
type Row = (&'static str, &'static [(&'static str, Expect)]);

const COMPARE: &[Row] = &[
    (
        "--rounds",
        &[
            ("--rounds 2 --only raw,,TAP,,,MTU,,1500", Says("raw TAP, MTU 1500")),
            ("--rounds 4294967295 --only raw,,TAP,,,MTU,,1500", Works),
            ("--rounds 0", Refused("--rounds")),
            ("--rounds 4294967296", Refused("--rounds")),
            ("--rounds=-1", Refused("--rounds")),
            ("--rounds x", Refused("--rounds")),
        ],
    ),
    (
        "--seconds",
        &[
            ("--seconds 0.01 --only raw,,TAP,,,MTU,,1500", Works),
            ("--seconds 86400 --only raw,,TAP,,,MTU,,1500", Works),
            ("--seconds 0", Refused("--seconds")),
            ("--seconds=-1", Refused("--seconds")),
            ("--seconds NaN", Refused("--seconds")),
            ("--seconds inf", Refused("--seconds")),
            ("--seconds 1e300", Refused("--seconds")),
        ],
    ),
    (
        "--small",
        &[
            ("--small --only latency,,of,,send,,,8,,B,,,depth,,4 --rounds 1", Says("µs")),
            (
                "--small --only rate,,of,,read,,,4096,,B,,,depth,,128 --seconds 0.05 --rounds 1",
                Says("M/s"),
            ),
            ("--small --only none,,such", Refused("--only")),
            ("--small=1", Refused("--small")),
        ],
    ),
    (
        "--impaired",
        &[
            ("--impaired --only 1,,%,,loss:", Says("Mbit/s")),
            ("--impaired --only none,,such", Refused("--only")),
            ("--impaired=1", Refused("--impaired")),
        ],
    ),
    (
        "--fairness",
        &[
            ("--fairness --only none,,such", Refused("--only")),
            ("--fairness --impaired", Refused("--impaired")),
        ],
    ),
    (
        "--programs",
        &[
            ("--programs --only 64,,B:,,urnic,,bw", Says("Gbit/s")),
            ("--programs --only none,,such", Refused("--only")),
            ("--programs --fairness", Refused("--fairness")),
        ],
    ),
    (
        "--only",
        &[
            ("--only raw,,TAP,,,MTU,,9000", Says("raw TAP, MTU 9000")),
            ("--only RAW,,TAP,,,MTU,,9000", Refused("--only")),
            ("--only größer\u{202e}", Refused("--only")),
        ],
    ),
    (
        "--json",
        &[
            ("--json OUT --only raw,,TAP,,,MTU,,1500", Says("wrote ")),
            ("--json /no/such/folder/x --only raw,,TAP,,,MTU,,1500", Refused("/no/such/folder")),
            ("--json", Refused("--json")),
        ],
    ),
    (
        "--svg",
        &[
            ("--svg OUT --only raw,,TAP,,,MTU,,1500", Says("wrote ")),
            ("--svg OUT --impaired --only 1,,%,,loss:", Says("wrote ")),
            ("--svg /no/such/folder/x --only raw,,TAP,,,MTU,,1500", Refused("/no/such/folder")),
            ("--svg", Refused("--svg")),
        ],
    ),
    ("--test", &[("--test --only raw,,TAP,,,MTU,,1500", Refused("--test"))]),
    ("--inside", &[("--inside", Refused("--inside")), ("--inside=x", Refused("--inside"))]),
];

const MARKERS: &[Row] = &[
    (
        "--rounds",
        &[
            ("--rounds 2", Works),
            ("--rounds 18446744073709551615", Works),
            ("--rounds 0", Refused("--rounds")),
            ("--rounds 18446744073709551616", Refused("--rounds")),
            ("--rounds=-1", Refused("--rounds")),
        ],
    ),
    (
        "--messages",
        &[
            ("--messages 10", Works),
            ("--messages 4294967295", Works),
            ("--messages 0", Refused("--messages")),
            ("--messages 4294967296", Refused("--messages")),
            ("--messages x", Refused("--messages")),
        ],
    ),
    (
        "--only",
        &[
            ("--only half,,recut", Says("half recut")),
            ("--only none,,such", Refused("--only")),
            ("--only größer\u{202e}", Refused("--only")),
        ],
    ),
    (
        "--json",
        &[
            ("--json OUT --only half,,recut", Works),
            ("--json /no/such/folder/x --only half,,recut", Refused("/no/such/folder")),
            ("--json", Refused("--json")),
        ],
    ),
    ("--test", &[("--test", Refused("--test"))]),
];

const QUEUES: &[Row] = &[
    (
        "--rounds",
        &[
            ("--rounds 2 --only memory:,,64,,B", Says("memory: 64 B Reads")),
            ("--rounds 4294967295 --only memory:,,64,,B", Works),
            ("--rounds 0", Refused("--rounds")),
            ("--rounds 4294967296", Refused("--rounds")),
        ],
    ),
    (
        "--milliseconds",
        &[
            ("--milliseconds 1 --only vhost-user:,,64,,B", Says("vhost-user: 64 B Writes")),
            ("--milliseconds 60000 --only memory:,,64,,B", Works),
            ("--milliseconds 0", Refused("--milliseconds")),
            ("--milliseconds 60001", Refused("--milliseconds")),
            ("--milliseconds x", Refused("--milliseconds")),
        ],
    ),
    (
        "--only",
        &[
            ("--only 64,,KiB", Says("vhost-user: 64 KiB Reads")),
            ("--only none,,such", Refused("--only")),
            ("--only größer\u{202e}", Refused("--only")),
        ],
    ),
    (
        "--json",
        &[
            ("--json OUT --only memory:,,64,,B", Says("one RNIC over nothing")),
            ("--json /no/such/folder/x --only memory:,,64,,B", Refused("/no/such/folder")),
            ("--json", Refused("--json")),
        ],
    ),
    (
        "--lines",
        &[
            ("--lines --only one,,by,,one", Works),
            ("--lines --only none,,such", Refused("--only")),
            ("--lines --rounds 2", Refused("--rounds")),
            ("--lines=1", Refused("--lines")),
        ],
    ),
    (
        "--traced",
        &[
            ("--traced memory:,,64,,B,,Reads one,,RNIC", Works),
            ("--traced none,,such one,,RNIC", Refused("the name of a case")),
            ("--traced memory:,,64,,B,,Reads none,,such", Refused("the name of a layout")),
            ("--traced memory:,,64,,B,,Reads", Refused("--traced")),
        ],
    ),
    ("--test", &[("--test", Refused("--test"))]),
];

const SCALE: &[Row] = &[
    (
        "--connections",
        &[
            ("--connections 1,3", Works),
            ("--connections 100000", Works),
            ("--connections 0", Refused("--connections")),
            ("--connections 100001", Refused("--connections")),
            ("--connections 3,x", Refused("--connections")),
        ],
    ),
    (
        "--messages",
        &[
            ("--messages 10 --connections 2", Works),
            ("--messages 4294967295 --connections 2", Works),
            ("--messages 0", Refused("--messages")),
            ("--messages 4294967296", Refused("--messages")),
        ],
    ),
    (
        "--rounds",
        &[
            ("--rounds 2 --connections 2", Works),
            ("--rounds 4294967295 --connections 2", Works),
            ("--rounds 0", Refused("--rounds")),
            ("--rounds 4294967296", Refused("--rounds")),
        ],
    ),
    (
        "--json",
        &[
            ("--json OUT --connections 2", Says("bytes for an idle one")),
            ("--json /no/such/folder/x --connections 2", Refused("/no/such/folder")),
            ("--json", Refused("--json")),
        ],
    ),
    (
        "--svg",
        &[
            ("--svg OUT --connections 1,2", Works),
            ("--svg /no/such/folder/x --connections 2", Refused("/no/such/folder")),
            ("--svg", Refused("--svg")),
        ],
    ),
    ("--test", &[("--test", Refused("--test"))]),
];

/// Builds the program of a bench, which `cargo test` does not build, and returns its path; `None`
/// if this user may not run cargo, or may not write to the target folder.
fn bench(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().unwrap();
    let profile = this.parent().unwrap().parent().unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    // Features of dependencies are those of all packages together, as in `cargo test --workspace`. With
    // one package's, cargo would build most of the workspace a second time.
    cargo.args(["build", "--quiet", "--offline", "--locked", "--workspace"]);
    cargo.args(["--message-format", "json", "--bench", name]);
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let output = match cargo.output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return None,
        Err(error) => panic!("{}: {error}", env!("CARGO")),
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("Permission denied") {
        return None;
    }
    assert!(output.status.success(), "{complaint}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let made = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let made = made.filter(|one| one["target"]["name"] == name);
    let program = made.filter_map(|one| one["executable"].as_str().map(PathBuf::from)).next_back();
    Some(program.expect("cargo says what it has made"))
}

/// Runs all rows, and fails for options without a row.
fn check(name: &str, rows: &[Row]) {
    let Some(program) = bench(name) else {
        return urnic_testkit::skip(
            &format!("every option of the {name} bench"),
            "cargo cannot build here as this user",
        );
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _left_over = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let help = Command::new(&program).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let words = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let known: BTreeSet<_> =
        words.map(|line| format!("--{}", line.split([' ', '=']).next().unwrap())).collect();
    // Hidden options, which the bench passes to itself, are not in the help.
    let listed: BTreeSet<_> = rows.iter().map(|(option, _)| *option).collect();
    let missing: Vec<_> = known.iter().filter(|one| !listed.contains(&***one)).collect();
    assert!(known.len() > 3 && missing.is_empty(), "no row runs {missing:?} of {known:?}");
    let mut problems = Vec::new();
    let cases = rows.iter().flat_map(|(_, cases)| *cases);
    for (number, (line, expect)) in cases.enumerate() {
        let out = folder.join(format!("out-{number}"));
        if let Err(problem) = run(&program, line, *expect, &out) {
            problems.push(format!("{name} {line} ({expect:?}): {problem}"));
        }
    }
    fs::remove_dir_all(folder).unwrap();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

fn run(program: &Path, line: &str, expect: Expect, out: &Path) -> Result<(), String> {
    let words = line.split_whitespace().map(|word| {
        let word = word.replace(",,,", ",\u{0}").replace(",,", "\u{0}").replace('\u{0}', " ");
        word.replace("OUT", out.to_str().unwrap())
    });
    let (told, said) = (out.with_extension("stdout"), out.with_extension("stderr"));
    let mut child = Command::new(program)
        .arg("--test")
        .args(words)
        .stdin(Stdio::null())
        .stdout(File::create(&told).unwrap())
        .stderr(File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > TIME_MAX {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err("does not end".to_owned());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let [told, said] = [told, said].map(|file| fs::read_to_string(file).unwrap());
    let is_right = match expect {
        _ if said.contains("panicked") => false,
        Works => status.success(),
        Says(what) => status.success() && told.contains(what),
        Refused(what) => matches!(status.code(), Some(1 | 2)) && said.contains(what),
    };
    let was_written = !line.contains("OUT") || out.metadata().is_ok_and(|file| file.len() > 100);
    if is_right && was_written { Ok(()) } else { Err(format!("{status}: {said}\n{told}")) }
}

/// Much longer than a case takes.
const TIME_MAX: Duration = Duration::from_secs(60);

#[test]
fn every_option_of_the_markers_bench_works() {
    check("markers", MARKERS);
}

#[test]
fn every_option_of_the_queues_bench_works() {
    if urnic_testkit::is_too_long("every_option_of_the_queues_bench_works") {
        return;
    }
    check("queues", QUEUES);
}

#[test]
fn every_option_of_the_scale_bench_works() {
    check("scale", SCALE);
}

#[test]
fn every_option_of_the_compare_bench_works() {
    if urnic_testkit::is_too_long("every_option_of_the_compare_bench_works") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        return urnic_testkit::skip("every option of the compare bench", "it needs root");
    }
    let programs = ["unshare", "ip", "ethtool", "mount"];
    if let Some(missing) = urnic_testkit::programs::missing(programs) {
        return urnic_testkit::skip("every option of the compare bench", &missing);
    }
    check("compare", COMPARE);
}
