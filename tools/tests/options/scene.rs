//! Servers for all cases on one device, and interfaces for cases that run in parallel.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tempfile::TempDir;

use crate::options::run;
use urnic_testkit::network::{bridge, command, ip};
use urnic_testkit::ports::free_port;

/// Cases that run at the same time. Most of the time they wait.
pub(crate) const WORKERS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Kernel,
    Tap,
    Packet,
    Xdp,
}

/// The folder, servers and interfaces that all cases share.
pub(crate) struct Scene {
    pub(crate) folder: PathBuf,
    /// Folder of the sockets of endpoints: its path is short, as sockets require.
    runtime: TempDir,
    device: Device,
    servers: Vec<Child>,
    /// Addresses of `serve` and `rping --server`.
    serve: String,
    rping: (String, String),
}

impl Scene {
    /// Returns a scene for commands that need no peer.
    pub(crate) fn without_servers() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = run::folder(&format!("alone-{}-{number}", std::process::id()));
        let scene = Self {
            folder,
            runtime: tempfile::tempdir().unwrap(),
            device: Device::Kernel,
            servers: Vec::new(),
            serve: "127.0.0.1:1".to_owned(),
            rping: ("127.0.0.1".to_owned(), "1".to_owned()),
        };
        scene.make_files();
        scene
    }

    pub(crate) fn new(device: Device) -> Self {
        let mut scene = Self::without_servers();
        scene.device = device;
        if device == Device::Kernel {
            scene.serve = format!("127.0.0.1:{}", free_port());
            scene.rping.1 = free_port().to_string();
            scene.start_servers("", "");
            return scene;
        }
        scene.serve = "10.7.0.2:7174".to_owned();
        scene.rping = ("10.7.0.3".to_owned(), "7175".to_owned());
        make_interfaces(device);
        scene.start_servers(
            "--dev tap:tap-s,ip=10.7.0.2/24,ip6=fd07::2/64",
            "--dev tap:tap-r,ip=10.7.0.3/24",
        );
        // For the setting `vlan`, which both ends must share.
        scene.start("serve --listen 10.8.0.2:7174 --dev tap:tap-v,ip=10.8.0.2/24,vlan=5");
        scene
    }

    /// Returns the command, in the environment of the scene.
    pub(crate) fn urnic(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        command
    }

    fn make_files(&self) {
        // Three chunks of a file transfer: the second one waits for its time.
        fs::write(self.folder.join("served/served"), vec![7; 10 << 20]).unwrap();
        fs::write(self.folder.join("source"), vec![9; 10 << 20]).unwrap();
        let key = self.folder.join("key");
        fs::write(&key, format!("key {}\n", "7".repeat(64))).unwrap();
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(self.folder.join("source-größer"), vec![9; 500]).unwrap();
    }

    fn start_servers(&mut self, serve: &str, rping: &str) {
        let folder = self.folder.join("served");
        let (address, port) = self.rping.clone();
        // Many more peers than cases in parallel, because some cases have several. On a device,
        // both its addresses.
        let listen = match self.device {
            Device::Kernel => self.serve.clone(),
            _ => self.serve.replace("10.7.0.2", "[::]"),
        };
        self.start(&format!(
            "serve --listen {listen} --dir {} --peers 1100 --timeout 60s --allow-overwrite --top {serve}",
            folder.display()
        ));
        let line = format!("rping --server --persistent --address {address} --port {port} {rping}");
        self.spawn(&line);
    }

    /// Starts a server, and waits until it listens.
    fn start(&mut self, line: &str) {
        let mut child = self.spawn(line);
        let mut listens = String::new();
        let mut output = BufReader::new(child.take().unwrap());
        output.read_line(&mut listens).unwrap();
        assert!(listens.starts_with("listening at "), "urnic {line}: {listens:?}");
        // Its later output is not needed, and must not block it.
        thread::spawn(move || output.lines().map_while(Result::ok).for_each(drop));
    }

    fn spawn(&mut self, line: &str) -> Option<std::process::ChildStdout> {
        let mut child = self
            .urnic()
            .args(line.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = child.stdout.take();
        self.servers.push(child);
        output
    }

    /// Returns the device of a worker as `--dev` takes it; `None` for the kernel.
    fn own_device(&self, worker: usize) -> Option<String> {
        let own = own_ip(worker);
        match self.device {
            Device::Kernel => None,
            Device::Tap => Some(format!("tap:w{worker},ip={own}/24")),
            Device::Packet => Some(format!("packet:w{worker},ip={own}/24")),
            Device::Xdp => Some(format!("xdp:w{worker},ip={own}/24")),
        }
    }

    /// Returns a command line of the table with all placeholders replaced.
    pub(crate) fn fill(&self, line: &str, worker: usize, number: usize) -> Vec<String> {
        let is_kernel = self.device == Device::Kernel;
        let own = if is_kernel { "127.0.0.1".to_owned() } else { own_ip(worker) };
        let port = if line.contains("OWN") { free_port() } else { 0 };
        let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcaps/siw-rping-crc.pcap");
        let places = [
            ("IP-OWN", own.clone()),
            ("PORT-OWN", port.to_string()),
            ("ADDRESS", self.serve.clone()),
            ("OWN", format!("{own}:{port}")),
            ("KEYFILE", self.folder.join("key").display().to_string()),
            ("CAPTURE", capture.display().to_string()),
            ("SOURCE-", self.folder.join("source-").display().to_string()),
            ("SOURCE", self.folder.join("source").display().to_string()),
            ("OUT", self.folder.join(format!("out-{number}")).display().to_string()),
            ("NEW", format!("new-{number}")),
            ("LONG", "x".repeat(5000)),
            ("EMPTY", String::new()),
            ("WORKER", (10 + worker).to_string()),
            ("IFACE", format!("w{worker}")),
        ];
        let mut filled: Vec<String> = Vec::new();
        for word in line.split(' ').filter(|word| !word.is_empty()) {
            let is_server_of_rping = ["IP", "PORT"].contains(&word);
            filled.push(match word {
                "IP" if is_server_of_rping => self.rping.0.clone(),
                "PORT" => self.rping.1.clone(),
                word => places.iter().fold(word.to_owned(), |word, (name, value)| {
                    if word.contains(name) { word.replace(name, value) } else { word }
                }),
            });
        }
        let says_device = filled.iter().any(|word| word.starts_with("--dev"));
        if let Some(device) = self.own_device(worker).filter(|_| !says_device) {
            filled.extend(["--dev".to_owned(), device]);
        }
        filled
    }

    /// Returns the command line of a client for a server that a case has started.
    pub(crate) fn use_of(&self, command: &str, server: &[String], worker: usize) -> String {
        let after = |option: &str| {
            let at = server.iter().position(|word| word == option);
            at.and_then(|at| server.get(at + 1)).cloned().unwrap_or_default()
        };
        let device = match self.device {
            Device::Kernel => String::new(),
            _ => format!("--dev tap:h{worker},ip=10.7.0.{}/24", 40 + worker),
        };
        if command == "serve" {
            let address = after("--listen");
            return format!("ping {address} --count 1 --timeout 3s {device}");
        }
        let (address, port) = (after("--address"), after("--port"));
        format!("rping --client --address {address} --port {port} --count 2 --timeout 3s {device}")
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for server in &mut self.servers {
            let _ended = server.kill();
            let _reaped = server.wait();
        }
        let _best_effort = fs::remove_dir_all(&self.folder);
    }
}

fn own_ip(worker: usize) -> String {
    format!("10.7.0.{}", 10 + worker)
}

/// Makes one bridge with the TAPs of the servers, and for each worker its interface and the TAP of
/// its servers' client.
fn make_interfaces(device: Device) {
    let mut bridged: Vec<String> = ["tap-s", "tap-r", "tap-v"].map(str::to_owned).into();
    bridged.extend((0..WORKERS).map(|worker| format!("h{worker}")));
    if device == Device::Tap {
        bridged.extend((0..WORKERS).map(|worker| format!("w{worker}")));
    }
    for tap in &bridged {
        ip(&format!("tuntap add dev {tap} mode tap"));
        ip(&format!("link set {tap} up"));
    }
    bridge("bridge0", &bridged.iter().map(String::as_str).collect::<Vec<_>>());
    if device == Device::Tap {
        return;
    }
    for worker in 0..WORKERS {
        ip(&format!("link add b{worker} type veth peer name w{worker}"));
        ip(&format!("link set b{worker} up master bridge0"));
        ip(&format!("link set w{worker} up"));
        if device == Device::Xdp {
            // Nothing on the path completes checksums for an AF_XDP socket.
            command("ethtool", &format!("-K b{worker} tx off"));
        }
    }
}
