//! Rows of options about the command itself, and of its log.

use super::Expect::{Exits, Refused, Says, Works};
use super::{Row, row};

pub(super) const SELF: &[Row] = &[
    row(
        "completions",
        "ARGUMENT",
        &[
            ("!completions bash", Says("_urnic")),
            ("!completions zsh", Says("#compdef urnic")),
            ("!completions fish", Says("complete -c urnic")),
        ],
        &[("!completions EMPTY", Refused("<SHELL>")), ("!completions LONG", Refused("<SHELL>"))],
    ),
    row(
        "keygen",
        "ARGUMENT",
        &[("", Works)],
        &[
            ("!keygen SOURCE", Refused("source: File exists")),
            ("!keygen /none/such", Refused("/none/such")),
            ("!keygen /tmp/ü", Refused("--name")),
            ("!keygen EMPTY", Refused("<FILE>")),
        ],
    ),
    row(
        "keygen",
        "--name",
        &[("--name alice@host", Works)],
        &[("--name a/b", Refused("--name")), ("--name LONG", Refused("--name"))],
    ),
    row(
        "man",
        "ARGUMENT",
        &[("!man OUT", Works)],
        &[
            ("!man EMPTY", Refused("<DIR>")),
            ("!man SOURCE", Refused("source")),
            ("!man /proc/none", Refused("/proc/none")),
        ],
    ),
    row(
        "run",
        "ARGUMENT",
        &[
            ("!run /proc/self/exe --version", Works),
            ("!run -- /proc/self/exe sim --seeds 0..1 --quiet", Works),
        ],
        &[("!run EMPTY", Exits(127, "cannot start")), ("!run LONG", Exits(126, "cannot start"))],
    ),
    row(
        "run",
        "--personality",
        &[
            ("!run --personality iwarp -- /proc/self/exe --version", Works),
            ("!run --personality ib /proc/self/exe --version", Works),
        ],
        &[("!run --personality roce /proc/self/exe", Refused("--personality"))],
    ),
    row(
        "run",
        "--device-file",
        &[("!run --device-file -- /proc/self/exe --version", Works)],
        &[("!run --device-file=yes -- /proc/self/exe", Refused("--device-file"))],
    ),
    row(
        "run",
        "--ack",
        &[
            ("!run --ack peer -- /proc/self/exe --version", Works),
            ("!run --personality iwarp --ack local -- /proc/self/exe --version", Works),
        ],
        &[("!run --ack never /proc/self/exe", Refused("--ack"))],
    ),
    row(
        "run",
        "--top",
        &[("!run --top -- /proc/self/exe --version", Works)],
        &[("!run --top=yes -- /proc/self/exe --version", Refused("--top"))],
    ),
    row(
        "run",
        "--dev",
        &[
            ("!run --dev kernel -- /proc/self/exe --version", Works),
            ("!run --dev tap:t,ip=10.0.0.1/24 -- /proc/self/exe --version", Works),
        ],
        &[
            ("!run --dev tap:t /proc/self/exe", Refused("--dev")),
            ("!run --dev eth0 /proc/self/exe", Refused("--dev")),
        ],
    ),
    row(
        "run",
        "--log",
        &[("!run --log debug /proc/self/exe --version", Works)],
        &[("!run --log loud /proc/self/exe", Refused("--log"))],
    ),
];

/// Rows for `--log`, which prints events while a command runs.
macro_rules! log {
    ($($command:literal),*) => {
        &[$(row(
            $command,
            "--log",
            &[("--log debug", Works)],
            &[("--log loud", Refused("--log")), ("--log urnic::tcp=trace", Works)],
        )),*]
    };
}

pub(super) const LOG: &[Row] = log!(
    "ping",
    "bw",
    "lat",
    "put",
    "get",
    "rping",
    "serve",
    "info",
    "demo",
    "replay",
    "capture",
    "top",
    "sim",
    "impair",
    "keygen",
    "completions",
    "man"
);
