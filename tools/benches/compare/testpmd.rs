//! DPDK's testpmd: one process sends frames through shared memory as fast as it can, another one
//! counts them. Neither looks into the frames: this is the rate of other software over vhost-user
//! rings, without offloads.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use urnic::monotonic_now;
use urnic_engine::time::Duration;

/// Bytes of a frame, and bytes of its Ethernet, IPv4 and TCP headers, which urnic's frames have.
const FRAME_LEN: u64 = 1500;
const HEAD_LEN: u64 = 54;
/// Time limit for a process to make its socket.
const START_TIME: Duration = Duration::from_secs(20);
/// Time limit for a process to end.
const END_TIME: Duration = Duration::from_secs(10);
/// testpmd reports once a second; the first second is its start.
const TIME_MIN: Duration = Duration::from_secs(3);

/// Factor on the time of the processes if no frame arrived: on a busy machine they start late.
const TIMES_LONGER: u32 = 4;

/// Returns the payload rate in Gbit/s, without the headers.
pub(crate) fn rate(time: Duration) -> Result<f64> {
    let time = TIME_MIN.max(time + Duration::from_secs(2));
    let longer = time * TIMES_LONGER;
    let rate = rate_within(time)?;
    let rate = if rate.is_none() { rate_within(longer)? } else { rate };
    rate.context("testpmd has received nothing")
}

/// Returns the payload rate of processes that run for `time`; `None` if no frame arrived.
fn rate_within(time: Duration) -> Result<Option<f64>> {
    let folder = TempDir::new()?;
    let [socket, told] = ["s", "told"].map(|name| folder.path().join(name));
    let device = format!("net_vhost0,iface={}", socket.display());
    let mut receiver = testpmd("urnic-rx", 0, &device, &["--forward-mode=rxonly"]);
    let receiver = Ended(receiver.stdout(File::create(&told)?).spawn()?);
    wait_for(&socket)?;
    let device = format!("net_virtio_user0,path={},queue_size=256", socket.display());
    let frames = format!("--txpkts={FRAME_LEN}");
    let mut sender = testpmd("urnic-tx", 1, &device, &["--forward-mode=txonly", &frames]);
    let _sender = Ended(sender.stdout(Stdio::null()).spawn()?);
    pause(time);
    // It writes its report when it ends.
    drop(receiver);
    let mut rates = frames_per_second(&fs::read_to_string(&told)?);
    rates.sort_unstable();
    let median = rates.get(rates.len() / 2);
    Ok(median.map(|frames| (frames * (FRAME_LEN - HEAD_LEN) * 8) as f64 / 1e9))
}

/// A process with one device and one core.
fn testpmd(name: &str, core: usize, device: &str, options: &[&str]) -> Command {
    let mut command = Command::new("dpdk-testpmd");
    command.args(["--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--file-prefix", name]);
    command.args(["--lcores", &format!("0@{core},1@{core}"), "--vdev", device, "--"]);
    command.args(["--stats-period", "1", "--total-num-mbufs", "8192", "--auto-start"]);
    command.args(options).stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns the rates that testpmd prints for the seconds in which frames arrived.
fn frames_per_second(told: &str) -> Vec<u64> {
    let of_line =
        |line: &str| line.trim().strip_prefix("Rx-pps:")?.split_whitespace().next()?.parse().ok();
    told.lines().filter_map(of_line).filter(|rate| *rate > 0).collect()
}

fn wait_for(socket: &Path) -> Result<()> {
    let deadline = monotonic_now() + START_TIME;
    while !socket.exists() {
        ensure!(monotonic_now() < deadline, "testpmd makes no socket");
        pause(Duration::from_millis(50));
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "another program works meanwhile")]
fn pause(time: Duration) {
    sleep(time);
}

/// A process that is ended by a signal, and awaited, when this is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _gone = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let deadline = monotonic_now() + END_TIME;
        while matches!(self.0.try_wait(), Ok(None)) && monotonic_now() < deadline {
            pause(Duration::from_millis(20));
        }
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}
