//! Network of the device: the kernel's TCP, or an interface with urnic's own TCP.
//!
//! `URNIC_DEV` selects it, as `urnic run --dev` does. An interface has one user at a time: a
//! process that finds it taken opens no device, and reports the reason on standard error.
#![expect(
    clippy::print_stderr,
    reason = "the user of an application that does not know urnic reads it"
)]

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use libc::c_int;
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use socket2::{Domain, SockAddr, Socket, Type};
use urnic::device::{DeviceSpec, Kind};
use urnic::top::Shown;
use urnic::{Endpoint, EndpointConfig, Rnic, environment};

use crate::errno::Errno;
use crate::event_queue::locked;

/// `urnic run --dev` sets it.
pub(crate) const DEV: &str = "URNIC_DEV";
/// Environment variable that shows the endpoint to `urnic top`.
const TOP: &str = "URNIC_TOP";

/// Time to wait for an address from DHCP.
const LEASE_AWAITED: Duration = Duration::from_secs(10);

/// Ephemeral TCP ports for ids. Queue pairs and the interface's own connections get ports above.
const ANY_FIRST: u16 = 32_768;
const ANY_LEN: u16 = 16_384;

fn spec() -> &'static Result<Option<DeviceSpec>, String> {
    static SPEC: OnceLock<Result<Option<DeviceSpec>, String>> = OnceLock::new();
    SPEC.get_or_init(|| {
        let Some(text) = environment(DEV) else { return Ok(None) };
        let text = text.into_string().map_err(|_| "it is not UTF-8".to_owned())?;
        if text.is_empty() {
            return Ok(None);
        }
        let spec: DeviceSpec = text.parse()?;
        Ok((!spec.is_kernel()).then_some(spec))
    })
}

/// `None` for the kernel's TCP.
pub(crate) fn device() -> Option<&'static DeviceSpec> {
    spec().as_ref().ok()?.as_ref()
}

#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) endpoint: Endpoint,
    pub(crate) leased: Option<IpAddr>,
    bound: Arc<Mutex<HashSet<u16>>>,
    _shown: Option<Shown>,
    /// Keeps other processes from the interface if its device does not do that.
    _lock: Option<Socket>,
}

impl Network {
    pub(crate) fn open(rnic: &Rnic, config: &EndpointConfig) -> Result<Self, Errno> {
        let opened = match spec() {
            Ok(None) => return Ok(Self::of(Endpoint::kernel(rnic, config)?)),
            Ok(Some(spec)) => on_interface(spec, rnic, config),
            Err(problem) => Err((problem.clone(), Errno::INVALID)),
        };
        opened.map_err(|(problem, errno)| {
            let dev = environment(DEV).unwrap_or_default();
            eprintln!("urnic: {DEV}={}: {problem}", dev.display());
            errno
        })
    }

    fn of(endpoint: Endpoint) -> Self {
        let shown = shown(&endpoint);
        Self { endpoint, leased: None, bound: Arc::default(), _shown: shown, _lock: None }
    }

    /// Takes a TCP port of the interface for an id. Port 0 takes any that no other id has.
    pub(crate) fn bind(&self, local: SocketAddr) -> Result<Bound, Errno> {
        if !local.ip().is_unspecified() && !addresses(self.leased).contains(&local.ip()) {
            return Err(Errno(libc::EADDRNOTAVAIL));
        }
        let mut bound = locked(&self.bound);
        let port = match local.port() {
            0 => any(&bound)?,
            port => port,
        };
        // Several ids may be bound to one port, as with `SO_REUSEADDR`; one of them can listen.
        let is_first = bound.insert(port);
        let of = is_first.then(|| Arc::clone(&self.bound));
        Ok(Bound { local: SocketAddr::new(local.ip(), port), of })
    }
}

/// A failure is reported on standard error, and the application continues.
fn shown(endpoint: &Endpoint) -> Option<Shown> {
    let asked = environment(TOP)?.to_ascii_lowercase();
    if ["", "0", "n", "no", "f", "false", "off"].iter().any(|no| asked == *no) {
        return None;
    }
    let shown = Shown::start(endpoint);
    shown.inspect_err(|error| eprintln!("urnic: {TOP}: {error}")).ok()
}

fn any(bound: &HashSet<u16>) -> Result<u16, Errno> {
    // Hashers of the standard library have random keys; the chosen port need not be a secret.
    let random = RandomState::new().build_hasher().finish();
    let first = u16::try_from(random % u64::from(ANY_LEN)).unwrap_or(0);
    let mut ports = (0..ANY_LEN).map(|turn| ANY_FIRST + (first + turn) % ANY_LEN);
    ports.find(|port| !bound.contains(port)).ok_or(Errno(libc::EADDRINUSE))
}

/// TCP port of the interface, held by an id until the id listens or is dropped.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) local: SocketAddr,
    of: Option<Arc<Mutex<HashSet<u16>>>>,
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(of) = &self.of {
            locked(of).remove(&self.local.port());
        }
    }
}

fn on_interface(
    spec: &DeviceSpec,
    rnic: &Rnic,
    config: &EndpointConfig,
) -> Result<Network, (String, Errno)> {
    let lock = match spec.kind() {
        // Any number of packet sockets may use an interface.
        Kind::Packet(_) => lock(spec)?,
        _ => None,
    };
    let endpoint =
        spec.open(rnic, config).map_err(|error| (error.to_string(), Errno(libc::ENODEV)))?;
    let leased = if spec.uses_dhcp() {
        let no_lease =
            |_| ("no DHCP server has given an address".to_owned(), Errno(libc::ETIMEDOUT));
        Some(endpoint.wait_address(LEASE_AWAITED).map_err(no_lease)?)
    } else {
        None
    };
    Ok(Network { leased, _lock: lock, ..Network::of(endpoint) })
}

/// Takes a name that only one process of a network namespace can have.
fn lock(spec: &DeviceSpec) -> Result<Option<Socket>, (String, Errno)> {
    let name = spec.interface().map(|interface| interface.name.to_string()).unwrap_or_default();
    let addresses = spec.addresses().unwrap_or_default();
    let addresses = addresses.iter().map(|address| format!("/{address}")).collect::<String>();
    let path = format!("urnic/verbs/{name}{addresses}");
    let (taken, is_foreign) = take_name(&path);
    if is_foreign {
        eprintln!(
            "urnic: a process of another user, or one without urnic, has the name that reserves {name} \
             for one process: continuing without the reservation"
        );
        return Ok(None);
    }
    taken.map(Some).map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => (
            format!(
                "{name} is in use by another process with these addresses: end it, or use others"
            ),
            Errno(libc::EBUSY),
        ),
        _ => (error.to_string(), Errno::from(error)),
    })
}

/// Each process that finds the name taken leaves an entry in the holder's backlog.
const PROBES: c_int = 4096;
/// Time that a holder has from bind to listen.
const LISTENS_WITHIN: Duration = Duration::from_millis(50);

fn local_socket(path: &str) -> std::io::Result<(Socket, SockAddr)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok((socket, SockAddr::unix(format!("\0{path}"))?))
}

/// Takes a name of the abstract namespace, which any user may take. The second value is true if the
/// name is taken by a process that does not hold it for urnic: it belongs to a user other than this
/// one and root, or does not listen.
///
/// 1. A process binds a socket to the name, and listens. It holds the name until it ends.
/// 2. For another process the bind fails. It connects to the name, to find out the holder's user.
/// 3. The holder never accepts: the connection remains in its backlog.
///
/// Racy case: *the holder is between bind and listen.* The connection is refused; the process waits
/// [`LISTENS_WITHIN`], and begins again.
#[expect(clippy::disallowed_methods, reason = "another process has no way to say that it listens")]
fn take_name(path: &str) -> (std::io::Result<Socket>, bool) {
    let take = || -> std::io::Result<Socket> {
        let (socket, at) = local_socket(path)?;
        socket.bind(&at)?;
        socket.listen(PROBES)?;
        Ok(socket)
    };
    let look = || {
        let taken = take();
        let is_taken =
            taken.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse);
        let is_foreign = if is_taken { is_of_another(path) } else { Some(false) };
        (taken, is_foreign)
    };
    let (taken, is_foreign) = match look() {
        (_, None) => {
            std::thread::sleep(LISTENS_WITHIN);
            look()
        }
        found => found,
    };
    (taken, is_foreign.unwrap_or(true))
}

/// Returns true if a user other than this one and root has the name; `None` if nothing listens
/// there. Sockets of other types have names of their own.
fn is_of_another(path: &str) -> Option<bool> {
    let connect = || -> std::io::Result<UCred> {
        let (socket, at) = local_socket(path)?;
        socket.connect(&at)?;
        Ok(socket_peercred(&socket)?)
    };
    match connect() {
        Ok(holder) => Some(!holder.uid.is_root() && holder.uid != geteuid()),
        Err(error) => {
            let is_idle = error.kind() == std::io::ErrorKind::ConnectionRefused;
            // Otherwise the backlog is full of entries of processes that found the name taken.
            (!is_idle).then_some(false)
        }
    }
}

/// Returns the addresses of the interface, `leased` included; none with the kernel's TCP.
pub(crate) fn addresses(leased: Option<IpAddr>) -> Vec<IpAddr> {
    let Some(spec) = device() else { return Vec::new() };
    leased.into_iter().chain(spec.addresses().unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ephemeral_port_is_one_without_an_id() {
        let all: HashSet<u16> = (ANY_FIRST..ANY_FIRST + ANY_LEN).collect();
        assert_eq!(any(&all), Err(Errno(libc::EADDRINUSE)));
        let mut but_one = all.clone();
        but_one.remove(&40_000);
        assert_eq!(any(&but_one), Ok(40_000));
        assert!(all.contains(&any(&HashSet::new()).unwrap()));
    }

    /// A name that this user has keeps other processes out; one of another user does not.
    #[test]
    fn name_held_by_another_user_does_not_block_a_process() {
        let path = format!("urnic/verbs/test-{}", std::process::id());
        let (first, of_another) = take_name(&path);
        assert!(first.is_ok() && !of_another);
        let (second, of_another) = take_name(&path);
        assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
        assert!(!of_another);
        drop(first);
        assert!(take_name(&path).0.is_ok());
        let skip = |reason| {
            urnic_testkit::skip("name_held_by_another_user_does_not_block_a_process", reason);
        };
        if !geteuid().is_root() {
            return skip("it needs root, to have a process of another user");
        }
        // A process of another user, which ends with its input.
        let squat = format!(
            "import socket,sys,os; os.setuid(65534); s=socket.socket(socket.AF_UNIX); s.bind('\\0{path}'); \
             s.listen(1); print('ready', flush=True); sys.stdin.read()"
        );
        let python = std::process::Command::new("python3")
            .args(["-c", &squat])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn();
        let Ok(mut python) = python else { return skip("python3 is missing") };
        let mut ready = [0; 5];
        let is_ready = std::io::Read::read_exact(python.stdout.as_mut().unwrap(), &mut ready);
        let (taken, of_another) = take_name(&path);
        drop(python.stdin.take());
        python.wait().unwrap();
        if is_ready.is_err() {
            return skip("there is no other user in this user namespace");
        }
        assert!(taken.is_err() && of_another);
    }

    /// A holder of urnic's always listens.
    #[test]
    fn name_without_a_listening_holder_does_not_block_a_process() {
        let path = format!("urnic/verbs/test-idle-{}", std::process::id());
        let (socket, at) = local_socket(&path).unwrap();
        socket.bind(&at).unwrap();
        let (taken, is_foreign) = take_name(&path);
        assert!(taken.is_err() && is_foreign);
        drop(socket);
        assert!(take_name(&path).0.is_ok());
    }

    /// Any number of processes may find the name taken.
    #[test]
    fn a_holder_keeps_its_name_when_its_queue_is_full() {
        let path = format!("urnic/verbs/test-full-{}", std::process::id());
        let _holder = take_name(&path).0.unwrap();
        for probe in 0..PROBES + 100 {
            let (taken, is_foreign) = take_name(&path);
            assert_eq!(taken.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
            assert!(!is_foreign, "probe {probe}");
        }
    }

    #[test]
    fn a_port_that_an_id_gives_back_is_free() {
        let ports = Arc::new(Mutex::new(HashSet::from([7])));
        let local = ([10, 0, 0, 1], 7).into();
        let (first, second) =
            (Bound { local, of: Some(Arc::clone(&ports)) }, Bound { local, of: None });
        drop(second);
        assert!(locked(&ports).contains(&7), "the first has it");
        drop(first);
        assert!(locked(&ports).is_empty());
    }
}
