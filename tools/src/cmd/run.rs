//! `urnic run`: an unchanged rdma-core program on urnic.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use urnic::runtime_folder;

use crate::device::{self, DEVICES, DeviceSpec};
use crate::report::complain;

/// Run a program written for libibverbs and librdmacm on urnic
///
/// The program is not changed: it finds urnic's libibverbs.so.1 and librdmacm.so.1 before those of
/// the system, and one device, urnic0. It needs no root, no kernel module and no /dev/infiniband.
/// It sends iWARP over the kernel's TCP, or over urnic's own TCP on an interface (--dev).
#[derive(clap::Args, Debug)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{DEVICES}"))]
pub(crate) struct Args {
    /// Network of urnic0: kernel, tap:NAME,…, packet:IFACE,…, xdp:IFACE,… and others: --help has
    /// all
    #[arg(long, value_name = "DEVICE", default_value = "kernel")]
    dev: DeviceSpec,
    /// Appearance of the device: ib as RoCE, which most programs are written for, or iwarp
    #[arg(long, value_enum, default_value_t = Personality::Ib)]
    personality: Personality,
    /// Moment when Sends and Writes complete: peer, when they are placed at the other end, as for
    /// InfiniBand, or local, when TCP has accepted them, as iWARP allows [default: peer with ib,
    /// local with iwarp]
    #[arg(long, value_enum)]
    ack: Option<Ack>,
    /// Show the program a device file, /dev/infiniband/urnic0, which UCX requires. UCX then also
    /// needs its transports, as in UCX_TLS=rc_verbs
    #[arg(long)]
    device_file: bool,
    /// Show the program's connections and counters to 'urnic top'
    #[arg(long, env = "URNIC_TOP", hide_env_values = true,
          value_parser = clap::builder::FalseyValueParser::new())]
    top: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Personality {
    Ib,
    Iwarp,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Ack {
    Peer,
    Local,
}

const EXAMPLES: &str = "\
Without this command: put libibverbs.so.1 and librdmacm.so.1, both links to liburnic_rdma.so, into a
folder, name it in LD_LIBRARY_PATH, and set URNIC_PERSONALITY=iwarp, URNIC_ACK=local and
URNIC_DEV=DEVICE if wanted; URNIC_TOP=1 shows the program to urnic top. With URNIC_LOG=debug the
library logs its work.

One program at a time can use an interface. The addresses of --dev are those of urnic0; ordinary
sockets of the program still use the kernel.

Exit status: that of the program; 127 if there is no such program, 126 if it cannot be started, 2 if
a library or a folder is missing.

Examples:
  urnic run -- ibv_devinfo
  urnic run -- rping -s -a 127.0.0.1 -C 10 -v        # in one terminal
  urnic run -- rping -c -a 127.0.0.1 -C 10 -v        # in another
  urnic run -- ib_write_bw -R -d urnic0 -F 10.0.0.2
  urnic run --device-file -- ucx_perftest -x rc_verbs -t am_lat 10.0.0.2
  urnic run --dev tap:urn0,ip=10.7.0.2/24 -- rping -s -a 10.7.0.2 -v";

/// File that contains both libraries.
const LIBRARY: &str = "liburnic_rdma.so";
/// Library that shows a device file to programs.
const PRELOAD: &str = "liburnic_preload.so";
/// Exit statuses of shells for a missing program and for one that cannot be started.
const EXIT_NO_PROGRAM: u8 = 127;
const EXIT_NO_START: u8 = 126;
/// Library names that programs look for.
const NAMES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// Runs the command; returns only if the program cannot be started.
///
/// # Errors
/// If the library is missing, or no folder can be created for the library's names.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = args.program.split_first() else { bail!("no program") };
    let library = find(LIBRARY)?;
    let folder = match installed(&library) {
        Some(folder) => folder,
        None => linked(&library)?,
    };
    let mut path = folder.into_os_string();
    if let Some(others) = env::var_os("LD_LIBRARY_PATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    let personality = match args.personality {
        Personality::Ib => "ib",
        Personality::Iwarp => "iwarp",
    };
    if let Some(problem) = device::problem(&args.dev) {
        writeln!(io::stderr(), "urnic: no frame can pass: {problem}").context("standard error")?;
    }
    let mut command = Command::new(program);
    if args.device_file {
        let mut preload = find(PRELOAD)?.into_os_string();
        if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
            preload.push(":");
            preload.push(others);
        }
        command.env("LD_PRELOAD", preload);
    }
    command.args(arguments).env("LD_LIBRARY_PATH", path).env("URNIC_PERSONALITY", personality);
    command.env("URNIC_DEV", args.dev.to_string());
    if args.top {
        command.env("URNIC_TOP", "1");
    }
    match args.ack {
        Some(Ack::Peer) => command.env("URNIC_ACK", "peer"),
        Some(Ack::Local) => command.env("URNIC_ACK", "local"),
        None => &mut command,
    };
    let error = command.exec();
    complain(&format!("cannot start {}: {error}", program.display()));
    let is_missing = error.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if is_missing { EXIT_NO_PROGRAM } else { EXIT_NO_START }))
}

/// Returns the folder `urnic` beside the library if it has links with the library's names, as
/// packages and container images create them: then nothing must be written.
fn installed(library: &Path) -> Option<PathBuf> {
    let folder = library.parent()?.join("urnic");
    let is_it = |name: &str| fs::canonicalize(folder.join(name)).is_ok_and(|it| it == library);
    NAMES.iter().all(|name| is_it(name)).then_some(folder)
}

/// Returns a folder of this user in which the library has its names.
fn linked(library: &Path) -> anyhow::Result<PathBuf> {
    let folder = folder().context("a folder for the names of the library")?;
    for name in NAMES {
        link(library, &folder.join(name))
            .with_context(|| format!("{name} in {}", folder.display()))?;
    }
    Ok(folder)
}

/// Finds a library, beside this program or in the `lib` folder next to the program's folder.
fn find(name: &str) -> anyhow::Result<PathBuf> {
    let program = env::current_exe().context("finding the path of this program")?;
    let folder = program.parent().unwrap_or_else(|| Path::new("/"));
    let places =
        [folder.join(name), folder.join("deps").join(name), folder.join("../lib").join(name)];
    let found = places.iter().find(|place| place.is_file());
    let found = found.with_context(|| {
        let folder = folder.display();
        format!(
            "{name} is not in {folder}: build it with `cargo build --release`, or copy it there"
        )
    })?;
    fs::canonicalize(found).with_context(|| name.to_owned())
}

/// Returns a folder that only this user can change, because its contents are executed.
fn folder() -> anyhow::Result<PathBuf> {
    private_folder(&runtime_folder().unwrap_or_else(env::temp_dir))
}

/// Creates this user's folder in `base`. If another user has its name, creates one with a name that
/// cannot be guessed.
fn private_folder(base: &Path) -> anyhow::Result<PathBuf> {
    let user = rustix::process::geteuid().as_raw();
    let folder = base.join(format!("urnic-run-{user}"));
    if let Some(folder) = private(folder.clone())? {
        return Ok(folder);
    }
    let mark = RandomState::new().hash_one(std::process::id());
    let other = base.join(format!("urnic-run-{user}-{mark:016x}"));
    writeln!(
        io::stderr(),
        "urnic: {} is not a folder that only you can change: remove it; using {} for now",
        folder.display(),
        other.display()
    )
    .context("standard error")?;
    private(other)?.context("another process has made a folder of that name")
}

/// Creates the folder, unless it exists; `None` if another user can change its contents.
fn private(folder: PathBuf) -> io::Result<Option<PathBuf>> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Links are not followed: another user may have created them.
    let found = fs::symlink_metadata(&folder)?;
    let is_own = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    let is_private = is_own && found.permissions().mode() & 0o022 == 0;
    Ok(is_private.then_some(folder))
}

/// Creates a link to the library, unless it exists; other runs may create it at the same time.
fn link(library: &Path, link: &Path) -> io::Result<()> {
    if fs::read_link(link).is_ok_and(|there| there == library) {
        return Ok(());
    }
    let new = link.with_extension(format!("new-{}", std::process::id()));
    symlink(library, &new)?;
    fs::rename(&new, link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_another_user_is_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let first = private_folder(place.path()).unwrap();
        assert_eq!(private_folder(place.path()).unwrap(), first);
        // A folder as another user may leave it: writable for others, or a link to another place.
        fs::set_permissions(&first, fs::Permissions::from_mode(0o777)).unwrap();
        let other = private_folder(place.path()).unwrap();
        assert_ne!(other, first);
        assert_eq!(fs::symlink_metadata(&other).unwrap().permissions().mode() & 0o777, 0o700);
        fs::remove_dir(&first).unwrap();
        symlink(&other, &first).unwrap();
        assert!(![&first, &other].contains(&&private_folder(place.path()).unwrap()));
    }

    #[test]
    fn names_that_are_installed_beside_the_library_are_used() {
        let place = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(place.path()).unwrap();
        let (library, folder) = (place.join(LIBRARY), place.join("urnic"));
        fs::write(&library, "").unwrap();
        fs::create_dir(&folder).unwrap();
        assert_eq!(installed(&library), None);
        for name in NAMES {
            assert_eq!(installed(&library), None, "not all are there");
            symlink(&library, folder.join(name)).unwrap();
        }
        assert_eq!(installed(&library), Some(folder.clone()));
        fs::remove_file(folder.join(NAMES[0])).unwrap();
        symlink("/dev/null", folder.join(NAMES[0])).unwrap();
        assert_eq!(installed(&library), None, "another library has the name");
    }
}
