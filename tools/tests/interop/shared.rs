//! Devices in shared memory: a guest on `vhost-user:`, and DPDK at the other end of either device.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::ensure;
use tempfile::TempDir;
use urnic_testkit::programs;

use crate::guest::{Guest, Network};
use crate::lab::Lab;
use crate::process::{Process, last_line};
use crate::table::Outcome::{Missing, Passed};
use crate::table::{Outcome, Table};

/// Addresses of the guest and of urnic behind the device.
const GUEST: &str = "10.78.0.9";
const OWN: &str = "10.78.0.1";
const ROUNDS: u32 = 50;
const LIMIT: Duration = Duration::from_secs(120);

fn socket(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

/// Runs these cases.
pub(crate) fn run(lab: &mut Lab, table: &mut Table) -> anyhow::Result<()> {
    table.case(lab, "a guest on vhost-user, rping both ways, urnic started anew", guest)?;
    table.case(lab, "DPDK net_virtio_user, bw between two vhost-user", |_| dpdk_drivers())?;
    table.case(lab, "DPDK net_vhost, bw between two virtio-user", |_| dpdk_devices())
}

/// Each case has another process at the socket: the guest's driver continues at the present
/// positions of its rings.
fn guest(lab: &mut Lab) -> anyhow::Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let socket = socket(&folder, "vm");
    let device = format!("--dev vhost-user:{socket},ip={OWN}/24,sealed");
    // The emulator requires a backend at its start.
    let mut first = Lab::command(&format!("serve --listen {OWN}:7174 {device}"))?;
    await_file(&folder.path().join("vm"))?;
    let mut guest = lab.guest.another(Network::VhostUser(folder.path().join("vm"), GUEST))?;
    guest.run(&format!("ping -c 1 -w 20 {OWN}"))?;
    first.end()?;
    for size in [64, 4096, 65535] {
        from_guest(&mut guest, &device, size)?;
        to_guest(&mut guest, &device, size)?;
    }
    Ok(Passed(format!("{ROUNDS} rounds of 64, 4096 and 65535 bytes, six processes")))
}

fn from_guest(guest: &mut Guest, device: &str, size: u32) -> anyhow::Result<()> {
    let server = Lab::command(&format!("rping -s -p 7300 --timeout 60s {device}"))?;
    // Waits until the emulator has connected again.
    guest.run(&format!(
        "for i in $(seq 30); do ping -c 1 -w 1 {OWN} >/dev/null && exit 0; done; exit 1"
    ))?;
    let line = format!("timeout 90 rping -c -a {OWN} -p 7300 -C {ROUNDS} -S {size} -V");
    let client = guest.start(&line)?;
    let client = guest.finish(client, LIMIT)?;
    let server = server.finish(Duration::from_secs(10))?;
    let said = last_line(&client.output);
    ensure!(client.status == 0, "{size}: rping: {} {said}; urnic: {server:?}", client.status);
    ensure!(server.code == Some(0), "{size}: urnic: {server:?}");
    Ok(())
}

fn to_guest(guest: &mut Guest, device: &str, size: u32) -> anyhow::Result<()> {
    let server = guest.start(&format!("timeout 100 rping -s -a {GUEST} -p 7301 -S {size}"))?;
    guest.listening(7301)?;
    let line =
        format!("rping -c -a {GUEST} -p 7301 -C {ROUNDS} -S {size} -V --timeout 60s {device}");
    let client = Lab::command(&line)?.finish(LIMIT)?;
    guest.run("killall -q rping || true")?;
    let server = guest.finish(server, LIMIT)?;
    let said = last_line(&server.output);
    ensure!(client.code == Some(0), "{size}: urnic: {client:?}; rping: {} {said}", server.status);
    Ok(())
}

/// DPDK's switch, without huge pages; it ends with this value.
struct Switch(Child);

impl Switch {
    fn new(devices: &[String], more: &[&str]) -> anyhow::Result<Self> {
        let fixed = "--lcores 0@0,1@1 --no-huge -m 256 --no-pci --no-telemetry --file-prefix=urnic";
        let mut command = Command::new("dpdk-testpmd");
        command.args(fixed.split(' '));
        for device in devices {
            command.args(["--vdev", device]);
        }
        command.args(["--", "-i", "--forward-mode=io", "--nb-cores=1", "--auto-start"]);
        command.args(["--total-num-mbufs=16384"]).args(more);
        // It ends when its standard input is closed.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(command.spawn()?))
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Returns the outcome of a case if DPDK is not installed.
fn without_dpdk() -> Option<Outcome> {
    let missing = programs::missing(["dpdk-testpmd"])?;
    Some(Missing(format!("{missing}: apt-get install dpdk-dev")))
}

/// DPDK is the driver of two backends.
fn dpdk_drivers() -> anyhow::Result<Outcome> {
    if let Some(missing) = without_dpdk() {
        return Ok(missing);
    }
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| socket(&folder, name));
    let _server =
        Lab::command(&format!("serve --listen 10.7.0.2:7174 --dev vhost-user:{a},ip=10.7.0.2/24"))?;
    let client = write("vhost-user", &b)?;
    await_file(Path::new(&a))?;
    await_file(Path::new(&b))?;
    let port = |number: u32, path: &str| {
        format!("net_virtio_user{number},path={path},mac=02:00:00:00:00:1{number}")
    };
    let _switch = Switch::new(&[port(0, &a), port(1, &b)], &[])?;
    judge(client)
}

/// DPDK is the device of two frontends, and accepts super-frames.
fn dpdk_devices() -> anyhow::Result<Outcome> {
    if let Some(missing) = without_dpdk() {
        return Ok(missing);
    }
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| socket(&folder, name));
    let port = |number: u32, path: &str| format!("net_vhost{number},iface={path},tso=1");
    let _switch = Switch::new(&[port(0, &a), port(1, &b)], &["--tx-offloads=0x8000"])?;
    await_file(Path::new(&a))?;
    await_file(Path::new(&b))?;
    // testpmd accepts no memory table while it runs: it refuses a frontend that asks for sharing,
    // and works with one that does not.
    let sharing = format!("ping 10.7.0.2:7174 --dev virtio-user:{b},ip=10.7.0.3/24,share");
    let refused = Lab::command(&sharing)?.finish(LIMIT)?;
    let says_what_to_do = refused.output.contains("leave share out");
    ensure!(refused.code == Some(2) && says_what_to_do, "{refused:?}");
    let _server = Lab::command(&format!(
        "serve --listen 10.7.0.2:7174 --dev virtio-user:{a},ip=10.7.0.2/24"
    ))?;
    judge(write("virtio-user", &b)?)
}

fn write(kind: &str, path: &str) -> anyhow::Result<Process> {
    Lab::command(&format!(
        "bw 10.7.0.2:7174 --count 2000 --timeout 30s --dev {kind}:{path},ip=10.7.0.3/24"
    ))
}

fn judge(client: Process) -> anyhow::Result<Outcome> {
    let client = client.finish(LIMIT)?;
    ensure!(client.code == Some(0), "{client:?}");
    Ok(Passed("2000 Writes of 64 KiB".to_owned()))
}

fn await_file(path: &Path) -> anyhow::Result<()> {
    for _ in 0..1000 {
        if path.exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    anyhow::bail!("no process has made {}", path.display())
}
