//! `urnic serve`.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::EXIT_UNVERIFIED;
use crate::address::HostPort;
use crate::device;
use crate::host::{Host, SPIN, StackOptions};
use crate::info::DEVICES;
use crate::keys::{self, KeyLine};
use crate::network::Network;
use crate::server::{
    Admission, Ended, Event, Holder, Limits, Log, Opened, Places, Server, await_address,
    check_address,
};
use crate::transfer::{Folder, Room, sweep};
use crate::{size, units};

/// Serve peers: the other end of ping, bw, lat, put and get
///
/// Prints one line when it listens, then serves any number of peers at once until it is stopped by
/// SIGINT or SIGTERM. Each peer has memory of its own; no peer reaches another's. Without --keys,
/// each peer that reaches the address may use what the options allow.
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Address and TCP port to listen at: an address of the device, or 0.0.0.0 or :: for all its
    /// IPv4 or IPv6 addresses; the default port is 7174, and 0 chooses a free one
    #[arg(long, value_name = "HOST[:PORT]")]
    listen: HostPort,

    /// Memory that one peer may have
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = memory_size)]
    size: u64,

    /// Memory that all peers may have together; the peers of one address may have half of it; 4G by
    /// default, or twice --size if that is more
    #[arg(long, value_name = "SIZE", value_parser = memory_size)]
    total_size: Option<u64>,

    /// Peers at a time; when all places or all memory are in use, the address that has most loses a
    /// session to an address with less
    #[arg(long, value_name = "N", default_value_t = 2048,
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    peers: u32,

    /// Peers at a time from one address, or from one /64 of IPv6
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(1..=16_384))]
    peers_per_address: u32,

    /// End when one or more peers were served and all have left; the exit status says if they
    /// succeeded
    #[arg(long)]
    once: bool,

    /// Print each event as JSON, an object on each line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    admission: AdmissionOptions,

    #[command(flatten)]
    files: FileOptions,

    #[command(flatten)]
    stack: StackOptions,
}

/// Rules that decide which peers are admitted.
#[derive(clap::Args, Debug)]
struct AdmissionOptions {
    /// Serve only holders of the keys in this file; 'urnic keygen --help' has its form
    #[arg(long, value_name = "FILE", help_heading = ADMISSION)]
    keys: Option<PathBuf>,

    /// Serve only peers of this network, such as 192.0.2.0/24; may be repeated
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', help_heading = ADMISSION)]
    allow: Vec<Network>,

    /// Do not serve peers of this network, even if --allow has it; may be repeated
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', help_heading = ADMISSION)]
    deny: Vec<Network>,
}

/// Heading of these options.
const ADMISSION: &str = "Admission";

/// Limits on files.
#[derive(clap::Args, Debug)]
struct FileOptions {
    /// Folder from which peers may get files, and into which they may put files; without it there
    /// are no transfers
    #[arg(long, value_name = "DIR", help_heading = FILES)]
    dir: Option<PathBuf>,

    /// Let peers get files, but not put them
    #[arg(long, requires = "dir", help_heading = FILES)]
    read_only: bool,

    /// Let 'put --force' replace files
    #[arg(long, requires = "dir", conflicts_with = "read_only", help_heading = FILES)]
    allow_overwrite: bool,

    /// Largest file that a peer may put
    #[arg(long, value_name = "SIZE", default_value = "1T", value_parser = size::parse,
          requires = "dir", conflicts_with = "read_only", help_heading = FILES)]
    file_size: u64,

    /// Bytes that peers may put while the server runs, all files together, in blocks of 4 KiB; no
    /// limit without this
    #[arg(long, value_name = "SIZE", value_parser = size::parse, requires = "dir",
          conflicts_with = "read_only", help_heading = FILES)]
    quota: Option<u64>,

    /// Number of files that peers may put while the server runs; no limit without this
    #[arg(long, value_name = "N", requires = "dir", conflicts_with = "read_only",
          help_heading = FILES)]
    files: Option<u64>,

    /// Percent of the disk that must stay free: files of peers do not use it
    #[arg(long, value_name = "PERCENT", default_value_t = 5,
          value_parser = clap::value_parser!(u8).range(0..=100), requires = "dir",
          conflicts_with = "read_only", help_heading = FILES)]
    keep_free: u8,

    /// Time for which an incomplete file is kept, so that its sender can go on
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = units::duration,
          requires = "dir", help_heading = FILES)]
    keep_parts: Duration,
}

const FILES: &str = "Files";

const EXAMPLES: &str = "\
The server ends the session of a peer that does nothing for the time of --timeout, or that connects
and requests nothing. A session without payload ends after an hour, even if its client sends
keepalives; the time that a client needs to hash its file is added. Files arrive under another name
and get their own when they are complete and their checksum is right. If the sender disappears, the
server keeps the incomplete file, hidden, for the time of --keep-parts, and the next attempt goes on
from there. Peers can neither get nor put files and folders whose names begin with a dot. Nothing is
replaced without --allow-overwrite.

With --keys, client and server prove to each other that they have the same key. Only that beginning
of a session is protected: hosts on the path can read and change what follows.

When a session ends, the server prints a line: to standard output if it succeeded, to standard error
if it failed.

Exit status: 0 when it was stopped, 1 with --once if a session failed or was refused, 2 if it cannot
listen.

Examples:
  urnic serve --listen 0.0.0.0
      On all addresses of this machine, over the kernel's TCP. No privilege is needed.
  urnic serve --listen 0.0.0.0 --dir /srv/files --quota 100G
      Serve files, too, and accept up to 100 GiB of them.
  urnic serve --listen 0.0.0.0 --keys server.keys --allow 192.0.2.0/24
      Serve holders of keys in one network; 'urnic keygen' makes keys.
  urnic serve --dev tap:urn0,ip=10.7.0.2/24 --listen 10.7.0.2
      On a TAP interface, with urnic's TCP; 'ip address add 10.7.0.1/24 dev urn0' gives the kernel
      an address on it, and then 'ping 10.7.0.2' is answered, too.";

fn memory_size(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        octets if octets < MEMORY_MIN => Err(format!("{} are the least", size::format(MEMORY_MIN))),
        octets if octets > MEMORY_MAX => Err(format!("{} are the most", size::format(MEMORY_MAX))),
        octets => Ok(octets),
    }
}

/// A page: less memory allows no session at all.
const MEMORY_MIN: u64 = 4 << 10;
/// More than the machines have for which this program is made.
const MEMORY_MAX: u64 = 1 << 40;
/// Bytes besides its region that one session may always have, so that one may have all of `--size`.
const BESIDE: u64 = 1 << 20;
const TOTAL_SIZE: u64 = 4 << 30;

impl Args {
    fn limits(&self, folder: Option<Folder>, log: Log) -> anyhow::Result<Limits> {
        let total = self.total_size.unwrap_or_else(|| TOTAL_SIZE.max(2 * self.size));
        ensure!(
            total >= self.size,
            "--total-size {} is less than --size {}: one peer could not have that much",
            size::format(total),
            size::format(self.size)
        );
        let mappable = mappable().unwrap_or(u64::MAX);
        if mappable < total {
            log.notice(format!(
                "this process may map so little memory (ulimit -v) that all peers together get {}",
                size::format(mappable)
            ));
        }
        let whole = self.size + BESIDE;
        let places = Places {
            peers_max: usize::try_from(self.peers)?,
            peers_per_source_max: usize::try_from(self.peers_per_address)?,
            memory_max: total.max(whole).min(mappable),
            memory_per_source_max: (total / 2).max(whole).min(mappable),
        };
        let FileOptions { read_only, allow_overwrite, file_size, quota, files, keep_free, .. } =
            self.files;
        Ok(Limits {
            folder,
            key: None,
            no_get: None,
            no_put: read_only.then_some(READ_ONLY),
            allow_overwrite,
            memory_max: self.size,
            file_max: file_size,
            room: Arc::new(Room::new(quota, keep_free).with_files_max(files)),
            places,
        })
    }
}

impl AdmissionOptions {
    /// Reads the keys. The holder of each has the `limits` of all and those of its line.
    fn admission(&self, limits: &Limits) -> anyhow::Result<Admission> {
        let lines = self.keys.as_deref().map(keys::read).transpose().context("--keys")?;
        let holders = lines.map(|lines| {
            let lines = lines.into_iter().enumerate();
            lines.map(|(number, line)| holder(number, line, limits)).collect::<Result<_, _>>()
        });
        let holders = holders.transpose().context("--keys")?;
        Admission::new(self.allow.clone(), self.deny.clone(), holders)
    }
}

/// Returns the holder of the key in a line, by its number.
fn holder(number: usize, line: KeyLine, limits: &Limits) -> anyhow::Result<Holder> {
    let KeyLine { name, key, read, write, folder, quota } = line;
    let folder = match (&limits.folder, folder) {
        (None, Some(_)) => bail!("{name}: folder= is a folder within --dir, which is missing"),
        (None, None) => None,
        (Some(all), None) => Some(all.again()?),
        (Some(all), Some(own)) => Some(all.within(&own).with_context(|| name.clone())?),
    };
    let room = match quota {
        Some(quota) => Arc::new(limits.room.part(number, quota)),
        None => Arc::clone(&limits.room),
    };
    let limits = Limits {
        folder,
        key: Some(name),
        no_get: (!read).then_some(NO_GET),
        no_put: limits.no_put.or_else(|| (!write).then_some(NO_PUT)),
        room,
        ..*limits
    };
    Ok(Holder { key, limits })
}

/// Reasons of refused transfers.
const READ_ONLY: &str = "this server accepts no files ('urnic serve' has --read-only)";
const NO_GET: &str = "the holder of your key may get no files (its line in --keys has no 'read')";
const NO_PUT: &str = "the holder of your key may put no files (its line in --keys has no 'write')";

/// Bytes that sessions may use of the memory that this process may still map: half, because tables
/// double when they grow, and threads have stacks. Beyond the limit, an allocation would end the
/// process. `None` without a limit.
fn mappable() -> Option<u64> {
    let limit = getrlimit(Resource::As).current?;
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let mapped: u64 = statm.split(' ').next()?.parse().ok()?;
    let mapped = mapped.saturating_mul(u64::try_from(rustix::param::page_size()).ok()?);
    Some(limit.saturating_sub(mapped) / 2)
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dev = &args.stack.dev;
    let addresses = args.listen.resolve(dev).context("--listen")?;
    let mut listen = *addresses.first().context("--listen")?;
    check_address(dev, listen.ip())?;
    let log = if args.json { Log::Json } else { Log::Text };
    let folder = args.files.dir.as_deref().map(Folder::open).transpose()?;
    let limits = args.limits(folder, log)?;
    let admission = args.admission.admission(&limits)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("waiting for signals")?;
    }
    let host = Host::open(&args.stack, SPIN)?;
    if let Some(problem) = device::problem(dev) {
        log.notice(format!("no peer can connect: {problem}"));
    }
    let Opened::With(leased) = await_address(&host, &stop)? else {
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(leased) = leased.filter(|_| listen.is_ipv4()) {
        let is_leased = listen.ip().is_unspecified() || listen.ip() == leased;
        ensure!(is_leased, "--listen: {} is not {leased}, which DHCP has given", listen.ip());
        listen.set_ip(leased);
    }
    if let (Some(dir), false) = (&args.files.dir, args.files.read_only) {
        let room = Arc::clone(&limits.room);
        keep_swept(Folder::open(dir)?, args.files.keep_parts, room, log)?;
    }
    let mut server = Server::new(&host, listen, limits, admission, log)?;
    log.report(&Event::Listening {
        address: server.local(),
        device: dev.to_string(),
        stack: args.stack.stack_kind().name(),
    });
    Ok(match server.run(args.once, &stop)? {
        Ended::Well => ExitCode::SUCCESS,
        Ended::Badly => ExitCode::from(EXIT_UNVERIFIED),
    })
}

/// Removes parts that were not resumed for `age`, now and from time to time.
fn keep_swept(folder: Folder, age: Duration, room: Arc<Room>, log: Log) -> anyhow::Result<()> {
    let body = move || {
        loop {
            if let Err(error) = sweep(&folder, age, now(), &room) {
                log.notice(format!("looking for old unfinished files: {error}"));
            }
            pause();
        }
    };
    let thread = thread::Builder::new().name("urnic-sweep".to_owned()).spawn(body);
    thread.context("starting a thread for unfinished files").map(drop)
}

#[expect(clippy::disallowed_methods, reason = "the age of a file is of the wall clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own that does nothing else")]
fn pause() {
    thread::sleep(SWEEP_INTERVAL);
}

const SWEEP_INTERVAL: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::transfer::unnamed_file;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn limits(options: &str) -> Result<Limits, String> {
        let line = format!("serve --listen 127.0.0.1 {options}");
        let parsed = Command::try_parse_from(line.split_whitespace());
        let Command { args } = parsed.map_err(|why| why.to_string())?;
        args.limits(None, Log::Silent).map_err(|why| why.to_string())
    }

    fn refusal(options: &str) -> String {
        limits(options).err().unwrap_or_default()
    }

    /// An address has half of the memory of all, and one session may always have `--size`.
    #[test]
    fn memory_and_places_are_those_of_the_options() {
        const M: u64 = 1 << 20;
        for (options, of_peer, of_all, of_address) in [
            ("", 64 * M, 4096 * M, 2048 * M),
            ("--size 3G", 3072 * M, 6144 * M, 3073 * M),
            ("--size 1G --total-size 6G", 1024 * M, 6144 * M, 3072 * M),
            ("--size 1M --total-size 1M", M, 2 * M, 2 * M),
            ("--size 4K --total-size 10M", 4096, 10 * M, 5 * M),
        ] {
            let limits = limits(options).unwrap();
            let Places { memory_max, memory_per_source_max, .. } = limits.places;
            assert_eq!(
                (limits.memory_max, memory_max, memory_per_source_max),
                (of_peer, of_all, of_address),
                "{options}"
            );
        }
        let peers = |options| {
            let places = limits(options).unwrap().places;
            (places.peers_max, places.peers_per_source_max)
        };
        assert_eq!(peers(""), (2048, 1024));
        assert_eq!(peers("--peers 7 --peers-per-address 3"), (7, 3));
        assert!(refusal("--size 2M --total-size 1M").contains("--total-size 1M is less"));
        assert!(refusal("--size 4095").contains("4K are the least"));
        assert!(refusal("--size 1025G").contains("1T are the most"));
        assert!(limits("--size 1T").is_ok());
        for options in ["--peers 0", "--peers 16385", "--peers-per-address 0"] {
            assert!(refusal(options).contains("is not in 1..=16384"), "{options}");
        }
    }

    #[test]
    fn files_have_the_limits_of_the_options() {
        let fresh = limits("").unwrap();
        assert_eq!((fresh.no_put, fresh.allow_overwrite), (None, false));
        assert_eq!(fresh.file_max, 1 << 40);
        assert_eq!(limits("--dir / --read-only").unwrap().no_put, Some(READ_ONLY));
        let open = limits("--dir / --allow-overwrite --file-size 5K").unwrap();
        assert_eq!((open.no_put, open.allow_overwrite, open.file_max), (None, true, 5120));
        let files = [(); 2].map(|()| unnamed_file().unwrap());
        let why = |limits: &Limits, index: usize, len| {
            let reserved = limits.room.reserve(&files[index], len);
            reserved.map(|one| one.keep()).map_or_else(|why| why.to_string(), |()| String::new())
        };
        let quota = limits("--dir / --keep-free 0 --quota 8K").unwrap();
        assert_eq!(why(&quota, 0, 8192), "");
        assert!(why(&quota, 1, 1).contains("--quota"));
        let one = limits("--dir / --keep-free 0 --files 1").unwrap();
        assert_eq!(why(&one, 0, 1), "");
        assert!(why(&one, 1, 1).contains("--files"));
        let full = limits("--dir / --keep-free 100").unwrap();
        assert!(why(&full, 0, 1 << 20).contains("100 % of it stay free"));
        for options in [
            "--read-only",
            "--quota 1G",
            "--dir / --read-only --quota 1G",
            "--dir / --read-only --allow-overwrite",
            "--dir / --keep-free 101",
        ] {
            assert!(!refusal(options).is_empty(), "{options}");
        }
    }
}
