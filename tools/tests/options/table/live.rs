//! Rows of the commands that observe open connections.

use super::Expect::{Refused, Runs, Says, Works};
use super::{Row, row};

pub(super) const CAPTURE: &[Row] = &[
    row(
        "capture",
        "--interface",
        &[("--interface lo", Says("capturing on lo"))],
        &[
            ("--interface none0", Refused("none0")),
            ("--interface LONG", Refused("--interface")),
            ("!capture", Refused("--interface")),
        ],
    ),
    row(
        "capture",
        "--write",
        &[("--write OUT", Says("0 iWARP connections")), ("--write -", Works)],
        &[
            ("--write /none/such.pcapng", Refused("/none/such.pcapng")),
            ("--write /dev/full", Refused("writing the capture")),
            ("--write EMPTY", Refused("--write")),
            ("--write - --json", Refused("--write -")),
        ],
    ),
    row(
        "capture",
        "--port",
        &[("--port 7174", Works), ("--port 1 --port 65535", Works)],
        &[
            ("--port 0", Refused("--port")),
            ("--port 65536", Refused("--port")),
            ("--port 7174 --all", Refused("--all")),
        ],
    ),
    row("capture", "--all", &[("--all", Works)], &[("--all --write OUT", Works)]),
    row(
        "capture",
        "--duration",
        &[("--duration 5ms", Works)],
        &[("--duration 0", Works), ("--duration 1", Works)],
    ),
    row(
        "capture",
        "--count",
        &[("--count 5", Works)],
        &[("--count 0", Refused("--count")), ("--count 18446744073709551615", Works)],
    ),
    row(
        "capture",
        "--snap-len",
        &[("--write OUT --snap-len 160", Works)],
        &[
            ("--write OUT --snap-len 142", Works),
            ("--write OUT --snap-len 141", Refused("headers take up to 142 bytes")),
            ("--write OUT --snap-len 262145", Refused("262144 bytes at most")),
            ("--snap-len 160", Refused("--write")),
        ],
    ),
    row(
        "capture",
        "--max-size",
        &[("--write OUT --max-size 1M", Works)],
        &[
            ("--write OUT --max-size 0", Works),
            ("--write OUT --max-size 16777215T", Works),
            ("--max-size 1M", Refused("--write")),
        ],
    ),
    row(
        "capture",
        "--files",
        &[("--write OUT --max-size 1M --files 3", Says(".00001"))],
        &[
            ("--write OUT --max-size 1M --files 1", Works),
            ("--write OUT --max-size 1M --files 4294967295", Works),
            ("--write OUT --max-size 1M --files 0", Refused("--files")),
            ("--write - --max-size 1M --files 2", Refused("name of a file")),
            ("--write OUT --files 2", Refused("--max-size")),
        ],
    ),
    row("capture", "--json", &[("--json", Says("\"frames_lost\":0"))], &[]),
    row("capture", "--quiet", &[("--quiet", Works)], &[("--quiet --json", Refused("--quiet"))]),
];

/// A server of the scene can be shown.
pub(super) const TOP: &[Row] = &[
    row(
        "top",
        "ARGUMENT",
        &[("", Says("urnic serve"))],
        &[
            ("2147483647", Refused("no process has the number 2147483647")),
            ("1", Refused("process 1 shows no endpoint")),
            ("!top 0", Refused("0 is not in 1..=2147483647")),
            ("!top 2147483648", Refused("2147483648 is not in 1..=2147483647")),
            ("!top serve", Refused("invalid digit")),
        ],
    ),
    row(
        "top",
        "--interval",
        &[("--interval 20ms", Works), ("--interval 0.02", Works)],
        &[
            ("--interval 0", Refused("--interval")),
            ("--interval 1ms --count 3", Works),
            ("!top --interval 200000d", Runs),
        ],
    ),
    row(
        "top",
        "--count",
        &[("--count 2", Works)],
        &[("--count 0", Refused("--count")), ("--count 18446744073709551615", Runs)],
    ),
    row(
        "top",
        "--once",
        &[("!top --once", Says("connections open"))],
        &[
            ("!top --once --count 1", Refused("--count")),
            ("!top --once --interval 1s", Refused("--interval")),
        ],
    ),
    row(
        "top",
        "--connections",
        &[("--connections 3", Works)],
        &[
            ("--connections 0", Works),
            ("--connections 1024", Works),
            ("--connections 1025", Refused("--connections")),
            ("--connections 3 --json", Refused("--json")),
        ],
    ),
    row("top", "--json", &[("--json", Says("\"endpoints\":[{"))], &[]),
];
