//! The guest: Debian's kernel with siw, under emulation, controlled over a virtio console.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::lab::GUEST;
use crate::process::Process;

/// A running guest.
#[derive(Debug)]
pub(crate) struct Guest {
    console: UnixStream,
    answers: Receiver<(u32, Answer)>,
    /// Answers that are not yet awaited.
    kept: BTreeMap<u32, Answer>,
    requests: u32,
    emulator: Process,
    cache: PathBuf,
    network: Network,
}

/// The network that the guest's interface is attached to.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    /// The TAP `tapg`.
    Tap,
    /// The backend that listens at this socket, with this address for the guest.
    VhostUser(PathBuf, &'static str),
}

impl Network {
    /// Options of the emulator, and the guest's address.
    fn options(&self) -> (String, &str) {
        match self {
            // QEMU before 9.1 may wait forever for receive buffers that the guest has given
            // already, if their notification depends on an event index.
            Self::Tap => (
                "-netdev tap,id=n0,ifname=tapg,script=no,downscript=no \
                 -device virtio-net-pci,netdev=n0,mac=02:00:0a:4d:00:02,romfile=,event_idx=off"
                    .to_owned(),
                GUEST,
            ),
            // With MSI-X (`vectors`), QEMU 7.2 crashes when it emulates the processor.
            Self::VhostUser(path, address) => (
                format!(
                    "-object memory-backend-memfd,id=mem,size=640M,share=on \
                     -machine memory-backend=mem -chardev socket,id=v0,path={},reconnect=1 \
                     -netdev vhost-user,id=n0,chardev=v0 -device \
                     virtio-net-pci,netdev=n0,mac=02:00:0a:4d:00:09,romfile=,vectors=0",
                    path.display()
                ),
                address,
            ),
        }
    }
}

/// The result of a command in the guest.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u32,
    pub(crate) output: String,
}

/// A command that may still run in the guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job(u32);

impl Guest {
    /// Boots the files that `build.sh` made in `cache`.
    pub(crate) fn boot(cache: &Path, network: Network) -> anyhow::Result<Self> {
        let (interface, address) = network.options();
        // Each part has processes of its own, whose numbers begin at 1.
        let part = std::env::var(crate::PART)?;
        let control = cache.join(format!("control-{part}"));
        // The socket of a run that was killed.
        if control.exists() {
            std::fs::remove_file(&control)?;
        }
        let serial = cache.join(format!("serial-{part}.log"));
        let (files, path, serial) = (cache.display(), control.display(), serial.display());
        // Emulated even if there is KVM, because KVM often fails within virtual machines.
        let arguments = format!(
            "-machine accel=tcg -cpu max -m 640 -smp 1 -display none -nodefaults \
             -no-reboot -serial file:{serial} -kernel {files}/vmlinuz \
             -initrd {files}/initrd \
             {interface} \
             -device virtio-serial-pci -chardev socket,id=c0,path={path},server=on,wait=off \
             -device virtserialport,chardev=c0,name=urnic.control -append"
        );
        let line = format!("console=ttyS0 quiet panic=-1 urnic.address={address}/24");
        let arguments = arguments.split_whitespace().chain([line.as_str()]);
        let emulator = Process::start("qemu-system-x86_64", arguments)?;
        let console = connect(&control)?;
        std::fs::remove_file(&control)?;
        let (sender, answers) = channel();
        let mut reader = BufReader::new(console.try_clone()?);
        std::thread::spawn(move || {
            while let Ok(answer) = read_answer(&mut reader) {
                if sender.send(answer).is_err() {
                    return;
                }
            }
        });
        let kept = BTreeMap::new();
        let cache = cache.to_owned();
        let mut guest = Self { console, answers, kept, requests: 0, emulator, cache, network };
        // The guest answers this request when it is ready.
        guest.finish(Job(0), BOOT_WITHIN).context("the guest does not boot")?;
        Ok(guest)
    }

    /// Reboots it, which ends all its processes.
    pub(crate) fn reboot(&mut self) -> anyhow::Result<()> {
        // Its TAP is free after the end of the emulator.
        self.emulator.end()?;
        *self = Self::boot(&self.cache, self.network.clone())?;
        Ok(())
    }

    /// Boots another guest of the same build.
    pub(crate) fn another(&self, network: Network) -> anyhow::Result<Self> {
        Self::boot(&self.cache, network)
    }

    /// Starts a command of the guest's shell.
    pub(crate) fn start(&mut self, command: &str) -> anyhow::Result<Job> {
        self.requests += 1;
        self.console.write_all(format!("{} {command}\n", self.requests).as_bytes())?;
        Ok(Job(self.requests))
    }

    /// Waits for the end of a command.
    pub(crate) fn finish(&mut self, job: Job, limit: Duration) -> anyhow::Result<Answer> {
        let began = Instant::now();
        loop {
            if let Some(answer) = self.kept.remove(&job.0) {
                return Ok(answer);
            }
            let left = limit.saturating_sub(began.elapsed());
            match self.answers.recv_timeout(left) {
                Ok((number, answer)) => {
                    self.kept.insert(number, answer);
                }
                Err(RecvTimeoutError::Timeout) => bail!("the guest has not answered for {limit:?}"),
                Err(RecvTimeoutError::Disconnected) => bail!("the guest is gone"),
            }
        }
    }

    /// Runs a command that must succeed; returns its output.
    pub(crate) fn run(&mut self, command: &str) -> anyhow::Result<String> {
        let job = self.start(command)?;
        let answer = self.finish(job, COMMAND_WITHIN)?;
        ensure!(answer.status == 0, "in the guest: {command}: {}", answer.output.trim());
        Ok(answer.output)
    }

    /// Waits until a process listens at a TCP port of the guest.
    pub(crate) fn listening(&mut self, port: u16) -> anyhow::Result<()> {
        self.socket(&format!(":{port:04X} 00000000:0000 0A"))
    }

    /// Waits until a connection with this TCP port at either end is established.
    pub(crate) fn connected(&mut self, port: u16) -> anyhow::Result<()> {
        self.socket(&format!(":{port:04X} ([0-9A-F:]+ )?01 "))
    }

    fn socket(&mut self, pattern: &str) -> anyhow::Result<()> {
        self.run(&format!(
            "n=0; until grep -qE '{pattern}' /proc/net/tcp; do n=$((n+1)); [ $n -lt 500 ] || exit 1; \
             usleep 20000; done"
        ))
        .map(drop)
    }

    /// Reloads siw, the ordinary build or the build that requests CRCs itself.
    pub(crate) fn reload(&mut self, asks_for_crc: bool) -> anyhow::Result<()> {
        let module = if asks_for_crc { "/modules/crc/siw.ko" } else { "/modules/*-siw.ko" };
        self.run(&format!(
            "rdma link del siw0 && rmmod siw && insmod {module} && \
             rdma link add siw0 type siw netdev eth0"
        ))
        .map(drop)
    }
}

fn connect(control: &Path) -> anyhow::Result<UnixStream> {
    let began = Instant::now();
    loop {
        match UnixStream::connect(control) {
            Ok(stream) => return Ok(stream),
            Err(error) if began.elapsed() > Duration::from_secs(10) => {
                return Err(error).context("the emulator does not start");
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn read_answer(reader: &mut impl BufRead) -> anyhow::Result<(u32, Answer)> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut numbers = line.split_whitespace().map(str::parse::<u32>);
    let (Some(job), Some(status), Some(len)) = (numbers.next(), numbers.next(), numbers.next())
    else {
        bail!("{GUEST} says {line:?}");
    };
    let mut output = Vec::new();
    reader.take(len?.into()).read_to_end(&mut output)?;
    Ok((job?, Answer { status: status?, output: String::from_utf8_lossy(&output).into_owned() }))
}

const BOOT_WITHIN: Duration = Duration::from_secs(120);
// On a busy machine, fifty programs that start at the same time need long.
const COMMAND_WITHIN: Duration = Duration::from_secs(200);
