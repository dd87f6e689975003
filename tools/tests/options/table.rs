//! The table: command × option → ordinary and extreme values, and their expected outcomes.
//!
//! The arguments of a row are added to the ordinary arguments of its command ([`BASES`]), and
//! replace the same options there. A row that begins with `!` is the whole command line.
//! Placeholders: `ADDRESS` is the server's `IP:PORT`; `OWN` an `IP:PORT` to listen at; `IP` and
//! `PORT` belong to a server of `rping`; `SOURCE` is a file; `OUT` a new path; `NEW` a new name;
//! `EMPTY` no bytes; `LONG` 5000 bytes.
//!
//! Values that no option accepts are not in the table: every option is tested with them.
//!
//! One file because the table is read as a whole.

mod live;
mod measure;
mod own;

use live::{CAPTURE, TOP};
use measure::{BW, LAT, PING};
use own::{LOG, SELF};

use Expect::{Either, Ends, Fails, Refused, Runs, Says, Works};

/// The expected outcome of a command line.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expect {
    /// Exit status 0.
    Works,
    /// Exit status 0, and this on standard output.
    Says(&'static str),
    /// Exit status 2, and this on standard error: the option, or the fault.
    Refused(&'static str),
    /// Works if the machine has enough resources, and is refused if not.
    Either(&'static str),
    /// Works, or ends with an error and exit status 2, with any text.
    Ends,
    /// This exit status, and this on standard error.
    Exits(i32, &'static str),
    /// Exit status 1, and this on standard error: the command ran, and its verification failed.
    Fails(&'static str),
    /// Runs until it is interrupted.
    Runs,
}

/// One option of one command.
pub(crate) struct Row {
    pub(crate) command: &'static str,
    pub(crate) option: &'static str,
    /// Cases on every device, if the command has devices.
    pub(crate) ordinary: &'static [(&'static str, Expect)],
    /// Cases that run once, over the kernel's TCP if the command has devices.
    pub(crate) extreme: &'static [(&'static str, Expect)],
}

/// The ordinary arguments of each command.
pub(crate) const BASES: &[(&str, &[&str])] = &[
    ("ping", &["ADDRESS", "--count 1", "--interval 1ms"]),
    ("bw", &["ADDRESS", "--seconds 0.05", "--size 4K", "--depth 4"]),
    ("lat", &["ADDRESS", "--iterations 20"]),
    ("put", &["SOURCE", "ADDRESS/NEW"]),
    ("get", &["ADDRESS/served", "OUT"]),
    ("rping", &["--client", "--address IP", "--port PORT", "--count 2"]),
    ("serve", &["--listen OWN", "--once"]),
    ("info", &[]),
    ("demo", &["--bytes 20K"]),
    ("replay", &["CAPTURE"]),
    ("capture", &["--interface lo", "--duration 20ms"]),
    ("top", &["--count 1", "--interval 10ms"]),
    ("run", &[]),
    ("sim", &["--seeds 0..2", "--scenario clean"]),
    ("impair", &["tap-a", "tap-b", "--duration 20ms"]),
    ("ibgate", &["--dev ib:sim=none,node=Hca1,ip=10.9.0.9/24", "--duration 20ms"]),
    ("ibswitch", &["--sim none", "--node Hca1", "--duration 20ms"]),
    ("keygen", &["OUT"]),
    ("completions", &["bash"]),
    ("man", &["OUT"]),
];

const fn row(
    command: &'static str,
    option: &'static str,
    ordinary: &'static [(&'static str, Expect)],
    extreme: &'static [(&'static str, Expect)],
) -> Row {
    Row { command, option, ordinary, extreme }
}

const fn flag(
    command: &'static str,
    option: &'static str,
    run: &'static [(&'static str, Expect)],
) -> Row {
    Row { command, option, ordinary: run, extreme: &[] }
}

/// Options that every command on a device has.
macro_rules! stack {
    ($command:literal) => {
        [
            row($command, "--dev", &[("", Works)], DEVICES),
            row(
                $command,
                "--stack",
                &[("--stack layered", Works)],
                &[("--stack optimized", Refused("--stack"))],
            ),
            flag($command, "--markers", &[("--markers", Works)]),
            flag($command, "--no-crc", &[("--no-crc", Works)]),
            row(
                $command,
                "--send-path",
                &[("--send-path stage", Works), ("--send-path gather", Works)],
                &[("--send-path both", Refused("--send-path"))],
            ),
            row($command, "--timeout", &[("--timeout 5s", Works)], TIMEOUTS),
            flag($command, "--top", &[("--top", Works)]),
        ]
    };
}

/// Devices that no command accepts.
const DEVICES: &[(&str, Expect)] = &[
    ("--dev kernel:eth0", Refused("--dev")),
    ("--dev tap", Refused("--dev")),
    ("--dev tap:", Refused("--dev")),
    ("--dev tap:LONG,ip=10.0.0.1/24", Refused("--dev")),
    ("--dev tap:a/b,ip=10.0.0.1/24", Refused("--dev")),
    ("--dev tap:t,ip=10.0.0.1/33", Refused("--dev")),
    ("--dev tap:t,ip=10.0.0.1/24,ip=10.0.0.2/24", Refused("--dev")),
    ("--dev tap:t,ip=10.0.0.1/24,colour=blue", Refused("--dev")),
    ("--dev tap:t,ip=10.0.0.1/24,queue=1", Refused("--dev")),
    ("--dev packet:t,ip=10.0.0.1/24,mtu=1500", Refused("--dev")),
    ("--dev xdp:t,ip=10.0.0.1/24,queues=2", Refused("--dev")),
    ("--dev packet:none0,ip=10.0.0.1/24", Refused("none0")),
    ("--dev xdp:none0,ip=10.0.0.1/24", Refused("none0")),
    ("--dev token-ring:t", Refused("--dev")),
];

/// A deadline that passes before the peer can answer is reported; a long timeout works like any
/// other.
const TIMEOUTS: &[(&str, Expect)] = &[
    ("--timeout 0", Ends),
    ("--timeout 1ns", Ends),
    ("--timeout 9999999999s", Works),
    ("--timeout 99999999999s", Refused("--timeout")),
    ("--timeout 5", Ends),
];

pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    let parts: [&'static [Row]; 9] = [PING, BW, LAT, PUT, GET, KEY, RPING, SERVE, INFO];
    let own: [&'static [Row]; 10] =
        [DEMO, REPLAY, CAPTURE, TOP, SIM, IMPAIR, IBSWITCH, IBGATE, SELF, LOG];
    let stacks: [&'static [Row]; 7] = [
        &const { stack!("ping") },
        &const { stack!("bw") },
        &const { stack!("lat") },
        &const { stack!("put") },
        &const { stack!("get") },
        &const { stack!("rping") },
        &const { stack!("serve") },
    ];
    parts.into_iter().chain(own).chain(stacks).flatten()
}

const PUT: &[Row] = &[
    row(
        "put",
        "ARGUMENT",
        &[("", Works), ("!put SOURCE-größer ADDRESS", Works)],
        &[
            ("!put EMPTY ADDRESS", Refused("")),
            ("!put /none/such ADDRESS", Refused("/none/such")),
            ("!put /proc ADDRESS", Refused("/proc")),
            ("!put /dev/zero ADDRESS", Refused("/dev/zero")),
            ("!put SOURCE EMPTY", Refused("<HOST[:PORT][/NAME]>")),
            ("!put SOURCE ADDRESS/../up", Refused("..")),
            ("!put SOURCE ADDRESS/LONG", Refused("")),
            ("!put SOURCE 127.0.0.1:1 --timeout 1s", Refused("127.0.0.1:1")),
        ],
    ),
    flag("put", "--force", &[("--force", Works)]),
    row("put", "--rate", &[("--rate 1G", Works)], RATES),
    flag("put", "--json", &[("--json", Says("\"bytes\""))]),
];

/// Files of one key; the servers of the scene have no keys.
const KEYS: &[(&str, Expect)] = &[("--key KEYFILE", Refused("has no keys"))];
const NO_KEYS: &[(&str, Expect)] = &[
    ("--key /none/such", Refused("--key: /none/such")),
    ("--key SOURCE", Refused("--key: ")),
    ("--key CAPTURE", Refused("--key: ")),
];

/// Rows of an option of every client.
macro_rules! key {
    ($($command:literal),*) => {
        &[$(row($command, "--key", KEYS, NO_KEYS)),*]
    };
}

const KEY: &[Row] = key!("ping", "bw", "lat", "put", "get");

/// The rate limit of a transfer.
const RATES: &[(&str, Expect)] = &[
    ("--rate 0", Refused("--rate")),
    ("--rate 1", Runs),
    ("--rate 18000000T", Works),
    ("--rate 1Gb", Refused("--rate")),
];

const GET: &[Row] = &[
    row(
        "get",
        "ARGUMENT",
        &[("", Works), ("!get ADDRESS/served OUT-größer", Works)],
        &[
            ("!get EMPTY OUT", Refused("<HOST[:PORT]/NAME>")),
            ("!get ADDRESS OUT", Refused("Write HOST[:PORT]/NAME")),
            ("!get ADDRESS/none OUT", Refused("none")),
            ("!get ADDRESS/../served OUT", Refused("")),
            ("!get ADDRESS/served /none/such", Refused("/none")),
            ("!get ADDRESS/served EMPTY", Refused("")),
            ("!get ADDRESS/LONG OUT", Refused("")),
            ("!get ADDRESS/served LONG", Refused("")),
        ],
    ),
    flag("get", "--force", &[("--force", Works)]),
    row("get", "--rate", &[("--rate 1G", Works)], RATES),
    flag("get", "--json", &[("--json", Says("\"bytes\""))]),
];

const RPING: &[Row] = &[
    flag("rping", "--server", &[("!rping --server --address IP-OWN --port PORT-OWN", Works)]),
    flag("rping", "--client", &[("", Works)]),
    row(
        "rping",
        "--address",
        &[("", Works)],
        &[
            ("--address 0.0.0.256", Refused("--address")),
            ("--address 1:2:3:4:5:6:7:8:9", Refused("--address")),
            ("--address 255.255.255.255 --timeout 1s", Fails("255.255.255.255")),
            ("!rping --client --count 1", Refused("-a HOST")),
        ],
    ),
    row(
        "rping",
        "--port",
        &[("", Works)],
        &[("--port 65536", Refused("--port")), ("--port 0 --timeout 1s", Ends)],
    ),
    row(
        "rping",
        "--count",
        &[("--count 5", Works)],
        &[("--count 0", Refused("--count")), ("--count 18446744073709551615", Runs)],
    ),
    row(
        "rping",
        "--size",
        &[("--size 23", Works), ("--size 64K", Works)],
        &[("--size 22", Refused("--size")), ("--size 65537", Refused("--size"))],
    ),
    flag("rping", "--verbose", &[("--verbose", Says("ping data: rdma-ping-1: "))]),
    flag("rping", "--validate", &[("--validate", Works)]),
    flag(
        "rping",
        "--persistent",
        &[("!rping --server --persistent --address IP-OWN --port PORT-OWN", Runs)],
    ),
];

const SERVE: &[Row] = &[
    row(
        "serve",
        "--listen",
        &[("", Works)],
        &[
            ("--listen 127.0.0.256", Refused("--listen")),
            ("--listen 127.0.0.1:x", Refused("--listen")),
            ("--listen 127.0.0.1:65536", Refused("--listen")),
            ("--listen 192.0.2.77:7174", Refused("192.0.2.77")),
            ("--listen 127.0.0.1:0", Runs),
        ],
    ),
    row(
        "serve",
        "--dir",
        &[("--dir .", Works)],
        &[("--dir /none/such", Refused("/none/such")), ("--dir SOURCE", Refused(""))],
    ),
    row(
        "serve",
        "--size",
        &[("--size 1M", Works)],
        &[("--size 0", Refused("--size")), ("--size 16777215T", Refused("--size"))],
    ),
    row(
        "serve",
        "--file-size",
        &[("--dir . --file-size 1M", Works)],
        &[("--dir . --file-size 0", Works), ("--dir . --file-size 16777215T", Works)],
    ),
    row(
        "serve",
        "--peers",
        &[("--peers 1", Works)],
        &[("--peers 0", Refused("--peers")), ("--peers 4000000000", Either("--peers"))],
    ),
    row(
        "serve",
        "--peers-per-address",
        &[("--peers-per-address 1", Works)],
        &[
            ("--peers-per-address 0", Refused("--peers-per-address")),
            ("--peers-per-address 4000000000", Either("--peers-per-address")),
        ],
    ),
    row(
        "serve",
        "--total-size",
        &[("--total-size 1G", Works)],
        &[
            ("--total-size 0", Refused("--total-size")),
            ("--total-size 16777215T", Refused("--total-size")),
        ],
    ),
    row(
        "serve",
        "--quota",
        &[("--dir . --quota 1G", Works)],
        &[("--dir . --quota 0", Works), ("--dir . --quota 16777215T", Works)],
    ),
    row(
        "serve",
        "--files",
        &[("--dir . --files 1000", Works)],
        &[("--dir . --files 0", Works), ("--dir . --files 18446744073709551615", Works)],
    ),
    row(
        "serve",
        "--keep-free",
        &[("--dir . --keep-free 1", Works)],
        &[("--dir . --keep-free 0", Works), ("--dir . --keep-free 101", Refused("--keep-free"))],
    ),
    row(
        "serve",
        "--keep-parts",
        &[("--dir . --keep-parts 1h", Works)],
        &[("--dir . --keep-parts 0", Ends), ("--dir . --keep-parts 10000000d", Ends)],
    ),
    flag("serve", "--read-only", &[("--dir . --read-only", Works)]),
    flag("serve", "--allow-overwrite", &[("--dir . --allow-overwrite", Works)]),
    row(
        "serve",
        "--keys",
        &[("--keys KEYFILE", Fails("give --key FILE"))],
        &[
            ("--keys /none/such", Refused("--keys: /none/such")),
            ("--keys SOURCE", Refused("--keys")),
        ],
    ),
    row(
        "serve",
        "--allow",
        &[("--allow 0.0.0.0/0,::/0", Works), ("--allow 192.0.2.0/24", Fails("--allow, --deny"))],
        &[("--allow ::/129", Refused("--allow")), ("--allow LONG", Refused("--allow"))],
    ),
    row(
        "serve",
        "--deny",
        &[("--deny 192.0.2.0/24", Works), ("--deny 0.0.0.0/0", Fails("--allow, --deny"))],
        &[("--deny 10.0.0.0/33", Refused("--deny")), ("--deny LONG", Refused("--deny"))],
    ),
    flag("serve", "--once", &[("", Works)]),
    flag("serve", "--json", &[("--json", Says("\"listening\""))]),
];

const INFO: &[Row] = &[
    row(
        "info",
        "--dev",
        &[("--dev ib:sim=none,node=Hca2,dhcp", Refused("no ibsim"))],
        &[
            ("--dev kernel", Refused("only ports of InfiniBand")),
            ("--dev ib:sim=none,node=Hca2", Refused("--dev")),
            ("--dev EMPTY", Refused("--dev")),
            ("--dev LONG", Refused("--dev")),
        ],
    ),
    flag("info", "--json", &[("--json", Says("{"))]),
];

const DEMO: &[Row] = &[
    row(
        "demo",
        "--bytes",
        &[("--bytes 64K", Works)],
        &[
            ("--bytes 0", Works),
            ("--bytes 1", Works),
            ("--bytes 16777215T", Runs),
            ("--bytes 16777216T", Refused("--bytes")),
        ],
    ),
    row(
        "demo",
        "--message",
        &[("--message 4K", Works)],
        &[
            ("--message 0", Refused("--message")),
            ("--message 1 --bytes 200", Works),
            ("--message 16M", Works),
            ("--message 16777217", Refused("--message")),
        ],
    ),
    row(
        "demo",
        "--seed",
        &[("--seed 7", Works)],
        &[
            ("--seed 0", Works),
            ("--seed 18446744073709551615", Works),
            ("--seed 18446744073709551616", Refused("--seed")),
        ],
    ),
    row(
        "demo",
        "--markers",
        &[("--markers on", Works)],
        &[("--markers yes", Refused("--markers"))],
    ),
    row("demo", "--crc", &[("--crc off", Works)], &[("--crc ON", Refused("--crc"))]),
    row(
        "demo",
        "--stack",
        &[("--stack layered", Works)],
        &[("--stack kernel", Refused("--stack"))],
    ),
    row(
        "demo",
        "--mtu",
        &[("--mtu 9000", Works)],
        &[
            ("--mtu 255", Refused("--mtu")),
            ("--mtu 256", Works),
            ("--mtu 65535", Works),
            ("--mtu 65536", Refused("--mtu")),
        ],
    ),
    row(
        "demo",
        "--latency",
        &[("--latency 1ms", Works)],
        &[
            ("--latency 0", Works),
            ("--latency 1s", Works),
            ("--latency 1000000001ns", Refused("--latency")),
            ("--latency 5", Refused("--latency")),
        ],
    ),
    row(
        "demo",
        "--rate",
        &[("--rate 10G", Works)],
        &[("--rate 999999", Refused("--rate")), ("--rate 1M", Works), ("--rate 18000000T", Works)],
    ),
    row(
        "demo",
        "--super-frames",
        &[("--super-frames on", Works)],
        &[
            ("--super-frames 1K", Works),
            ("--super-frames 63K", Works),
            ("--super-frames 1023", Refused("--super-frames")),
            ("--super-frames 64K", Refused("--super-frames")),
        ],
    ),
    row(
        "demo",
        "--loss",
        &[("--loss 2", Works)],
        &[
            ("--loss 0", Works),
            ("--loss 100", Fails("not verified")),
            ("--loss 100.1", Refused("--loss")),
            ("--loss NaN", Refused("--loss")),
        ],
    ),
    row("demo", "--reorder", &[("--reorder 10", Works)], PERCENT_OF_DEMO_REORDER),
    row(
        "demo",
        "--duplicate",
        &[("--duplicate 10", Works)],
        &[("--duplicate 100", Works), ("--duplicate 101", Refused("--duplicate"))],
    ),
    row(
        "demo",
        "--corrupt",
        &[("--corrupt 2", Works)],
        &[
            ("--corrupt 1 --super-frames on", Refused("--super-frames")),
            ("--corrupt 100", Fails("not verified")),
            ("--corrupt 101", Refused("--corrupt")),
        ],
    ),
    row(
        "demo",
        "--resegment",
        &[("--resegment 20", Works), ("--resegment", Works)],
        &[
            ("--resegment --super-frames 4K", Refused("--super-frames")),
            ("--resegment 100", Works),
            ("--resegment 101", Refused("--resegment")),
        ],
    ),
    row(
        "demo",
        "--record",
        &[("--record OUT", Works)],
        &[
            ("--record /none/such.pcapng", Refused("/none/such.pcapng")),
            ("--record EMPTY", Refused("--record")),
            ("--record LONG", Refused("")),
        ],
    ),
    flag("demo", "--json", &[("--json", Says("\"verified\": true"))]),
    row("demo", "--quiet", &[("--quiet", Works)], &[("--quiet --json", Refused("--quiet"))]),
];

const PERCENT_OF_DEMO_REORDER: &[(&str, Expect)] =
    &[("--reorder 100", Works), ("--reorder 101", Refused("--reorder"))];

const REPLAY: &[Row] = &[
    row(
        "replay",
        "ARGUMENT",
        &[("", Says("MPA revision"))],
        &[
            ("!replay EMPTY", Refused("<FILE>")),
            ("!replay /none/such", Refused("/none/such")),
            ("!replay /", Refused("/: ")),
            ("!replay -", Refused("the capture is empty")),
            ("!replay LONG", Refused("reading the capture failed")),
            ("!replay SOURCE-größer", Refused("neither pcap nor pcapng")),
        ],
    ),
    row(
        "replay",
        "--report",
        &[("--report OUT", Works)],
        &[
            ("--report /none/such.html", Refused("/none/such.html")),
            ("--report EMPTY", Refused("--report")),
        ],
    ),
    row(
        "replay",
        "--svg",
        &[("--svg OUT", Works)],
        &[("--svg SOURCE", Refused("making")), ("--svg EMPTY", Refused("--svg"))],
    ),
    row(
        "replay",
        "--write",
        &[("--write OUT", Says("MPA revision"))],
        &[
            ("--write /none/such.pcapng", Refused("/none/such.pcapng")),
            ("--write /dev/full", Refused("/dev/full")),
            ("--write - --json", Refused("--write -")),
            ("!replay CAPTURE CAPTURE --write OUT", Refused("--write")),
        ],
    ),
    flag("replay", "--json", &[("--json", Says("\"connections\""))]),
    row(
        "replay",
        "--compare",
        &[("--compare", Says("held at most")), ("--compare CAPTURE", Says("from the responder"))],
        &[
            ("--compare --json", Says("\"compared\": [")),
            ("--compare --report OUT", Says("held at most")),
            ("--compare --report /none/such.html", Refused("/none/such.html")),
            ("!replay --compare --json SOURCE", Refused("no iWARP connection to compare")),
            ("--compare CAPTURE CAPTURE", Refused("one or two captures")),
        ],
    ),
    row(
        "replay",
        "--unpack-max",
        &[("--unpack-max 20G", Says("MPA revision"))],
        &[("--unpack-max much", Refused("--unpack-max"))],
    ),
    flag("replay", "--strict", &[("--strict", Works)]),
];

const SIM: &[Row] = &[
    row(
        "sim",
        "--seeds",
        &[("--seeds 3..6", Works)],
        &[
            ("--seeds 18446744073709551613..18446744073709551615", Works),
            ("--seeds 0..18446744073709551615", Runs),
            ("--seeds 5..5", Refused("--seeds")),
            ("--seeds 6..5", Refused("--seeds")),
            ("--seeds 0..18446744073709551616", Refused("--seeds")),
        ],
    ),
    row(
        "sim",
        "--scenario",
        &[("--scenario loss", Works)],
        &[("--scenario Loss", Refused("there are: clean, mixed"))],
    ),
    row(
        "sim",
        "--threads",
        &[("--threads 2", Works)],
        &[
            ("--threads 0", Refused("--threads")),
            ("--threads 1024", Works),
            ("--threads 1025", Refused("--threads")),
        ],
    ),
    row(
        "sim",
        "--failures",
        &[("--failures 3", Works)],
        &[("--failures 0", Refused("--failures")), ("--failures 18446744073709551615", Works)],
    ),
    row(
        "sim",
        "--record",
        &[("--record OUT", Works)],
        &[
            ("--record SOURCE", Refused("--record")),
            // No seed has failed: no folder is made.
            ("--record /none/such", Works),
            ("--record EMPTY", Refused("--record")),
        ],
    ),
    flag("sim", "--json", &[("--json", Says("\"seeds\": 2"))]),
    row("sim", "--quiet", &[("--quiet", Works)], &[("--quiet --json", Refused("--quiet"))]),
];

/// Cases without ibsim: cases with ibsim are in other tests.
const IBSWITCH: &[Row] = &[
    row(
        "ibswitch",
        "--sim",
        &[("--sim none", Refused("no ibsim by the name 'none'"))],
        &[("--sim EMPTY", Refused("--sim")), ("--sim LONG", Refused("no place"))],
    ),
    row(
        "ibswitch",
        "--node",
        &[("--node Hca2", Refused("no ibsim"))],
        &[("!ibswitch --sim none", Refused("--node")), ("--node LONG", Refused("no place"))],
    ),
    row(
        "ibswitch",
        "--pcap",
        &[("--pcap OUT", Refused("no ibsim"))],
        &[("--pcap EMPTY", Refused("--pcap")), ("--pcap /none/such", Refused("--pcap"))],
    ),
    row(
        "ibswitch",
        "--peer",
        &[("--peer 1000", Refused("no ibsim"))],
        &[("--peer root", Refused("--peer")), ("--peer 4294967296", Refused("--peer"))],
    ),
    row(
        "ibswitch",
        "--timeout",
        &[("--timeout 20ms", Refused("no ibsim"))],
        &[("--timeout soon", Refused("--timeout")), ("--timeout 0", Refused("--timeout"))],
    ),
    row(
        "ibswitch",
        "--duration",
        &[("--duration 1s", Refused("no ibsim"))],
        &[("--duration soon", Refused("--duration"))],
    ),
    row("ibswitch", "--json", &[("--json", Refused("no ibsim"))], &[]),
    row(
        "ibswitch",
        "--quiet",
        &[("--quiet", Refused("no ibsim"))],
        &[("--quiet --json", Refused("--quiet"))],
    ),
    row(
        "ibswitch",
        "--log",
        &[("--log debug", Refused("no ibsim"))],
        &[("--log loud", Refused("--log"))],
    ),
];

/// As [`IBSWITCH`].
const IBGATE: &[Row] = &[
    row(
        "ibgate",
        "--dev",
        &[("--dev ib:sim=none,node=Hca2,ip6=fd00::9/64,pkey=8001", Refused("no ibsim"))],
        &[
            ("!ibgate", Refused("--dev")),
            ("--dev kernel", Refused("a gate has a port of InfiniBand")),
            ("--dev tap:t,ip=10.9.0.9/24", Refused("a gate has a port of InfiniBand")),
            ("--dev ib:sim=none,node=Hca2", Refused("--dev")),
            ("--dev ib:sim=none,node=Hca2,dhcp", Refused("a gate is a router")),
            ("--dev EMPTY", Refused("--dev")),
            ("--dev LONG", Refused("--dev")),
        ],
    ),
    row(
        "ibgate",
        "--tun",
        &[("--tun ib0", Refused("no ibsim"))],
        &[
            ("--tun EMPTY", Refused("--tun")),
            ("--tun LONG", Refused("--tun")),
            ("--tun a/b", Refused("--tun")),
        ],
    ),
    row(
        "ibgate",
        "--group",
        &[("--group 239.1.2.3 --group ff15::1", Refused("no ibsim"))],
        &[
            ("--group 10.9.0.3", Refused("no multicast address")),
            ("--group 224.0.0.251", Refused("a group of one link")),
            ("--group ff02::fb", Refused("a group of one link")),
            ("--group EMPTY", Refused("--group")),
            ("--group LONG", Refused("--group")),
        ],
    ),
    row(
        "ibgate",
        "--dhcp-relay",
        &[("--dhcp-relay 10.8.0.1", Refused("no ibsim"))],
        &[
            ("--dhcp-relay 239.1.2.3", Refused("not the address of a server")),
            ("--dhcp-relay 0.0.0.0", Refused("not the address of a server")),
            ("--dhcp-relay fd08::1", Refused("--dhcp-relay")),
            ("--dhcp-relay EMPTY", Refused("--dhcp-relay")),
            ("--dhcp-relay LONG", Refused("--dhcp-relay")),
            (
                "!ibgate --dev ib:sim=none,node=Hca1,ip6=fd00::9/64 --dhcp-relay 10.8.0.1",
                Refused("needs an IPv4 address"),
            ),
        ],
    ),
    row(
        "ibgate",
        "--timeout",
        &[("--timeout 20ms", Refused("no ibsim"))],
        &[("--timeout soon", Refused("--timeout")), ("--timeout 0", Refused("--timeout"))],
    ),
    row(
        "ibgate",
        "--duration",
        &[("--duration 1s", Refused("no ibsim"))],
        &[("--duration soon", Refused("--duration"))],
    ),
    row("ibgate", "--json", &[("--json", Refused("no ibsim"))], &[]),
    row(
        "ibgate",
        "--quiet",
        &[("--quiet", Refused("no ibsim"))],
        &[("--quiet --json", Refused("--quiet"))],
    ),
    row(
        "ibgate",
        "--log",
        &[("--log debug", Refused("no ibsim"))],
        &[("--log loud", Refused("--log"))],
    ),
];

/// All of these run in a network namespace.
const IMPAIR: &[Row] = &[
    row(
        "impair",
        "ARGUMENT",
        &[("", Says("tap-a and tap-b are joined"))],
        &[
            ("!impair tap-a tap-a", Refused("same")),
            ("!impair tap-a EMPTY", Refused("<TAP_B>")),
            ("!impair tap/a tap-b", Refused("<TAP_A>")),
            ("!impair tap-a LONG", Refused("<TAP_B>")),
            ("!impair lo tap-b", Refused("lo")),
        ],
    ),
    row(
        "impair",
        "--loss",
        &[("--loss 1", Works)],
        &[("--loss 100", Works), ("--loss 100.1", Refused("--loss"))],
    ),
    row(
        "impair",
        "--burst",
        &[("--burst 1", Works)],
        &[("--burst 100", Works), ("--burst 101", Refused("--burst"))],
    ),
    row(
        "impair",
        "--burst-length",
        &[("--burst 1 --burst-length 3", Works)],
        &[
            ("--burst-length 0", Refused("--burst-length")),
            ("--burst 100 --burst-length 1000000", Works),
            ("--burst-length 1000001", Refused("--burst-length")),
        ],
    ),
    row(
        "impair",
        "--ack-loss",
        &[("--ack-loss 5", Works)],
        &[("--ack-loss 100", Works), ("--ack-loss 101", Refused("--ack-loss"))],
    ),
    row(
        "impair",
        "--delay",
        &[("--delay 5ms", Works)],
        &[
            ("--delay 9999999999s", Works),
            ("--delay 99999999999s", Refused("--delay")),
            ("--delay 5x", Refused("--delay")),
        ],
    ),
    row(
        "impair",
        "--jitter",
        &[("--jitter 1ms", Works)],
        &[
            ("--jitter 9999999999s --delay 9999999999s", Works),
            ("--jitter 5x", Refused("--jitter")),
        ],
    ),
    row(
        "impair",
        "--reorder",
        &[("--reorder 5", Works)],
        &[("--reorder 100", Works), ("--reorder 101", Refused("--reorder"))],
    ),
    row(
        "impair",
        "--reorder-frames",
        &[("--reorder 5 --reorder-frames 9", Works)],
        &[
            ("--reorder-frames 0", Refused("--reorder-frames")),
            ("--reorder 100 --reorder-frames 18446744073709551615", Works),
        ],
    ),
    row(
        "impair",
        "--duplicate",
        &[("--duplicate 5", Works)],
        &[("--duplicate 100", Works), ("--duplicate 101", Refused("--duplicate"))],
    ),
    row(
        "impair",
        "--corrupt",
        &[("--corrupt 5", Works)],
        &[("--corrupt 100", Works), ("--corrupt 101", Refused("--corrupt"))],
    ),
    row(
        "impair",
        "--resegment",
        &[("--resegment 5", Works)],
        &[
            ("--resegment --super-frames 4K", Refused("--super-frames")),
            ("--resegment 100", Works),
            ("--resegment 101", Refused("--resegment")),
        ],
    ),
    row(
        "impair",
        "--coalesce",
        &[("--coalesce 5", Works)],
        &[("--coalesce 100", Works), ("--coalesce 101", Refused("--coalesce"))],
    ),
    row(
        "impair",
        "--rate",
        &[("--rate 1G", Works)],
        &[("--rate 1", Works), ("--rate 18000000T", Works), ("--rate 0", Refused("--rate"))],
    ),
    row(
        "impair",
        "--queue",
        &[("--rate 1G --queue 100", Works)],
        &[
            ("--queue 100", Refused("--rate")),
            ("--rate 1G --queue 0", Refused("--queue")),
            ("--rate 1G --queue 32768", Works),
            ("--rate 1G --queue 32769", Refused("--queue")),
        ],
    ),
    row(
        "impair",
        "--path-mtu",
        &[("--path-mtu 1400", Works)],
        &[("--path-mtu 0", Either("--path-mtu")), ("--path-mtu 18446744073709551615", Works)],
    ),
    row(
        "impair",
        "--outage-every",
        &[("--outage-every 1s --outage-for 1ms", Works)],
        &[
            ("--outage-every 0", Either("--outage-every")),
            ("--outage-every 1ns", Refused("--outage-for")),
            ("--outage-every 9999999999s --outage-for 1s", Works),
        ],
    ),
    row(
        "impair",
        "--outage-for",
        &[("--outage-for 1ms", Works)],
        &[
            ("--outage-for 20s", Refused("--outage-for")),
            ("--outage-every 9999999999s --outage-for 9999999998s", Works),
        ],
    ),
    row(
        "impair",
        "--direction",
        &[("--loss 1 --direction a-to-b", Works)],
        &[("--direction both", Works), ("--direction up", Refused("--direction"))],
    ),
    row(
        "impair",
        "--seed",
        &[("--seed 3", Works)],
        &[
            ("--seed 18446744073709551615", Works),
            ("--seed 18446744073709551616", Refused("--seed")),
        ],
    ),
    row(
        "impair",
        "--mtu",
        &[("--mtu 2000", Works)],
        &[("--mtu 0", Refused("tap-a")), ("--mtu 18446744073709551615", Refused("tap-a"))],
    ),
    flag("impair", "--offload", &[("--offload", Works)]),
    row(
        "impair",
        "--duration",
        &[("--duration 30ms", Works)],
        &[
            ("--duration 0", Works),
            ("--duration 9999999999s", Runs),
            ("--duration 5x", Refused("--duration")),
        ],
    ),
    flag("impair", "--json", &[("--json", Says("\"a_to_b\""))]),
    row("impair", "--quiet", &[("--quiet", Works)], &[("--quiet --json", Refused("--quiet"))]),
];
