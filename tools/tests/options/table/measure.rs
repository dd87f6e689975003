//! Rows of the commands that measure.

use super::Expect::{self, Either, Ends, Refused, Runs, Says, Works};
use super::{Row, flag, row};

pub(super) const PING: &[Row] = &[
    row("ping", "ARGUMENT", &[("", Works)], ADDRESSES_OF_PING),
    row(
        "ping",
        "--count",
        &[("--count 3", Works)],
        &[("--count 0", Either("--count")), ("--count 4294967295", Runs)],
    ),
    row(
        "ping",
        "--interval",
        &[
            ("--interval 2ms --count 2", Works),
            ("!ping ADDRESS -i 0.001 -c 2 -s 9", Says("2 messages came back")),
        ],
        &[("--interval 0 --count 3", Works), ("--interval 18446744073 --count 2", Runs)],
    ),
    row(
        "ping",
        "--size",
        &[("--size 4K", Works)],
        &[
            ("--size 0", Works),
            ("--size 1", Works),
            ("--size 1G", Either("size")),
            ("--size 16777215T", Either("size")),
        ],
    ),
    flag("ping", "--json", &[("--json", Says("\"count\": 1"))]),
];

const ADDRESSES_OF_PING: &[(&str, Expect)] = &[
    ("!ping EMPTY", Refused("<HOST[:PORT]>")),
    ("!ping 10.0.0.1:65536", Refused("<HOST[:PORT]>")),
    ("!ping 10.0.0.256:7174", Refused("10.0.0.256")),
    ("!ping 10.0.0.256", Refused("10.0.0.256")),
    ("!ping *:7174", Refused("'*'")),
    (
        "!ping localhost:1 --timeout 1s",
        Refused("refused the connection: nothing listens there at TCP port 1"),
    ),
    ("!ping no-such-host.invalid --timeout 1s", Refused("no-such-host.invalid")),
    ("!ping [::1:7174", Refused("::1")),
    ("!ping LONG", Ends),
    ("!ping 127.0.0.1:0 --timeout 1s", Refused("127.0.0.1:0")),
    ("!ping 255.255.255.255:7174 --timeout 1s", Refused("255.255.255.255")),
    ("!ping 127.0.0.1:1 --timeout 1s", Refused("127.0.0.1:1")),
];

pub(super) const BW: &[Row] = &[
    row(
        "bw",
        "ARGUMENT",
        &[("", Works)],
        &[
            ("!bw EMPTY", Refused("<HOST[:PORT]>")),
            ("!bw 127.0.0.1:1 --timeout 1s", Refused("127.0.0.1:1")),
        ],
    ),
    row(
        "bw",
        "--op",
        &[
            ("--op write", Works),
            ("--op read", Works),
            ("--op send", Works),
            ("!bw ADDRESS --op fetch-add --seconds 0.05", Works),
            ("!bw ADDRESS --op immediate --seconds 0.05", Works),
        ],
        &[("--op WRITE", Refused("--op")), ("--op fetch-add", Refused("--size"))],
    ),
    row(
        "bw",
        "--size",
        &[("--size 10K", Works), ("--size 1", Works)],
        &[
            ("--size 0", Either("size")),
            ("--size 1G", Either("size")),
            ("--size 16777215T", Either("size")),
        ],
    ),
    row(
        "bw",
        "--seconds",
        &[("--seconds 0.1", Works)],
        &[
            ("--seconds 0", Refused("--seconds")),
            ("--seconds 0.001", Works),
            ("--seconds 9999999999", Runs),
        ],
    ),
    row(
        "bw",
        "--depth",
        &[("--depth 1", Works), ("--depth 64", Works)],
        &[("--depth 0", Refused("--depth")), ("--depth 65536", Either("depth"))],
    ),
    row(
        "bw",
        "--post-list",
        &[("--post-list 2", Says(", posted by")), ("--depth 64 --post-list 64", Works)],
        &[
            ("--post-list 0", Refused("--post-list")),
            ("--post-list 5", Refused("--post-list 5: only 4 messages")),
            ("--op send --depth 4096 --size 8 --post-list 4096", Works),
            ("--post-list 4097", Refused("--post-list")),
        ],
    ),
    row(
        "bw",
        "--signal-every",
        &[("--signal-every 4", Says(" completion")), ("--op read --signal-every 3", Works)],
        &[
            ("--signal-every 0", Refused("--signal-every")),
            ("--signal-every 5", Refused("--signal-every 5: only 4 messages")),
            ("--op read --depth 4096 --size 8 --signal-every 4096", Works),
            ("--signal-every 4097", Refused("--signal-every")),
        ],
    ),
    row(
        "bw",
        "--connections",
        &[("--connections 3", Works), ("--connections 12", Works)],
        &[
            ("--connections 0", Refused("--connections")),
            ("--connections 200", Works),
            ("--connections 4000000000", Either("connections")),
        ],
    ),
    row(
        "bw",
        "--all-sizes",
        &[("!bw ADDRESS --all-sizes --seconds 0.005 --depth 4", Says("      8M"))],
        &[
            ("--all-sizes", Refused("--all-sizes")),
            ("!bw ADDRESS -a -t 0.005 -i 1", Refused("--interval")),
            ("!bw ADDRESS -a --op send -n 5 --depth 4096 --json", Says("\"sizes\"")),
        ],
    ),
    row(
        "bw",
        "--count",
        &[("!bw ADDRESS --count 5 --json", Says("\"messages\": 5"))],
        &[
            ("--count 5", Refused("--seconds")),
            ("!bw ADDRESS -n 0", Refused("--count")),
            ("!bw ADDRESS -n 18446744073709551615", Runs),
        ],
    ),
    row(
        "bw",
        "--bidir",
        &[("--bidir", Says("both ways")), ("--bidir --op read", Says("both ways"))],
        &[
            ("--bidir --op send", Refused("--bidir")),
            ("--bidir --connections 20 --depth 4096", Works),
        ],
    ),
    row(
        "bw",
        "--rate",
        &[("--rate 1G", Works)],
        &[
            ("--rate 0", Refused("--rate")),
            ("--rate 1", Refused("--rate")),
            ("--rate 18000000T", Works),
            ("--rate 1Gb", Refused("--rate")),
            ("--rate 1Gbps --bidir", Refused("--rate")),
        ],
    ),
    row(
        "bw",
        "--interval",
        &[("--interval 10ms", Says("bit/s")), ("-i 0.01 --json", Says("\"from_seconds\""))],
        INTERVALS,
    ),
    flag("bw", "--json", &[("--json", Says("\"gbps\""))]),
];

/// Time between two lines.
const INTERVALS: &[(&str, Expect)] =
    &[("--interval 0", Refused("--interval")), ("--interval 18446744073", Works)];

pub(super) const LAT: &[Row] = &[
    row(
        "lat",
        "ARGUMENT",
        &[("", Works)],
        &[
            ("!lat EMPTY", Refused("<HOST[:PORT]>")),
            ("!lat 127.0.0.1:1 --timeout 1s", Refused("127.0.0.1:1")),
        ],
    ),
    row(
        "lat",
        "--op",
        &[
            ("--op write", Works),
            ("--op read", Works),
            ("--op send", Works),
            ("--op fetch-add", Works),
            ("--op immediate", Works),
        ],
        &[("--op both", Refused("--op")), ("--op fetch-add --size 16", Refused("--size"))],
    ),
    row(
        "lat",
        "--size",
        &[("--size 2K", Works)],
        &[("--size 0", Either("size")), ("--size 1", Works), ("--size 16777215T", Either("size"))],
    ),
    row(
        "lat",
        "--iterations",
        &[("--iterations 10", Works)],
        &[
            ("--iterations 0", Either("--iterations")),
            ("--iterations 1", Works),
            ("--iterations 4294967295", Runs),
        ],
    ),
    row(
        "lat",
        "--all-sizes",
        &[("!lat ADDRESS --all-sizes --iterations 5", Says("      8M"))],
        &[
            ("--all-sizes --size 8", Refused("--size")),
            ("--all-sizes --op immediate", Refused("--all-sizes")),
            ("!lat ADDRESS --all-sizes -n 3 --op send --json", Says("\"sizes\"")),
        ],
    ),
    row(
        "lat",
        "--interval",
        &[("!lat ADDRESS --interval 1ms -n 300", Says("messages"))],
        INTERVALS,
    ),
    flag(
        "lat",
        "--histogram",
        &[("--histogram", Says("█")), ("--histogram --json", Says("\"up_to_us\""))],
    ),
    flag("lat", "--json", &[("--json", Says("\"iterations\": 20"))]),
];
