//! The front of the library: refused settings, closing, the log, and the layers.

use std::fmt::{self, Write};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use urnic::{
    ConnectOptions, Connection, Endpoint, EndpointConfig, Error, ListenParams, Offer, PortConfig,
    Qp, QpConfig, RemoteBuffer, Rnic, RnicConfig, Stag, TaggedOffset,
};
use urnic_netdev::memory::{LinkConfig, MemoryDevice, pair};

const PATIENCE: Duration = Duration::from_secs(20);

struct Host {
    rnic: Rnic,
    endpoint: Endpoint,
}

impl Host {
    fn new(own_thread: bool) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let config = EndpointConfig { own_thread, ..EndpointConfig::default() };
        let endpoint = Endpoint::kernel(&rnic, &config).unwrap();
        Self { rnic, endpoint }
    }

    fn qp(&self) -> Qp {
        self.rnic.alloc_pd().create_qp(QpConfig::new(&self.rnic.create_cq(16).unwrap())).unwrap()
    }

    fn listen(&self) -> urnic::Listener {
        self.endpoint.listen("127.0.0.1:0".parse().unwrap(), ListenParams::default()).unwrap()
    }
}

/// Returns two hosts with a connection between them.
fn connected(own_thread: bool) -> [(Host, Connection); 2] {
    let (client, server) = (Host::new(own_thread), Host::new(own_thread));
    let listener = server.listen();
    let at = listener.local();
    let accepts = thread::spawn(move || {
        let request = listener.next_request(PATIENCE).unwrap().expect("a peer connects");
        let accepting = request.accept(&server.qp(), &Offer::default()).unwrap();
        (accepting.wait(PATIENCE).unwrap(), server)
    });
    let connecting = client.endpoint.connect(at, &client.qp(), &ConnectOptions::default()).unwrap();
    let connection = connecting.wait(PATIENCE).unwrap();
    let (accepted, server) = accepts.join().unwrap();
    [(client, connection), (server, accepted)]
}

#[test]
fn close_waits_for_the_peer_to_close_too() {
    for own_thread in [true, false] {
        let [(_client, near), (server, far)] = connected(own_thread);
        let closes = thread::spawn(move || (far.close(PATIENCE), server));
        near.close(PATIENCE).unwrap();
        closes.join().unwrap().0.unwrap();
    }
}

#[test]
fn close_says_when_the_peer_does_not_close_in_time() {
    let [(_client, near), _server] = connected(true);
    assert_eq!(near.close(Duration::from_millis(30)), Err(Error::Timeout));
}

/// The listener has not made a handle of it, so only the listener's end can end it.
#[test]
fn a_request_that_no_program_takes_is_closed_with_its_listener() {
    for own_thread in [true, false] {
        let (client, server) = (Host::new(true), Host::new(own_thread));
        let listener = server.listen();
        let qp = client.qp();
        let options = ConnectOptions::default();
        let connecting = client.endpoint.connect(listener.local(), &qp, &options).unwrap();
        // Until the request waits at the listener.
        server.endpoint.run_for(Duration::from_millis(200)).unwrap();
        drop(listener);
        let client = thread::spawn(move || (connecting.wait(PATIENCE), client));
        // Without a thread, the server works only while it is polled.
        while !client.is_finished() {
            server.endpoint.run_for(Duration::from_millis(10)).unwrap();
        }
        let ended = client.join().unwrap().0.unwrap_err();
        assert_ne!(ended, Error::Timeout, "own thread {own_thread}");
    }
}

#[test]
fn configuration_that_cannot_be_carried_out_is_refused_with_its_part() {
    let rnic = Rnic::new(RnicConfig { seed: 1.into() });
    let config = EndpointConfig { core: Some(1 << 20), ..EndpointConfig::default() };
    let refused = Endpoint::kernel(&rnic, &config).unwrap_err();
    assert!(refused.to_string().contains("EndpointConfig::core"), "{refused}");
    let port = PortConfig::for_ipv4([10, 0, 0, 1].into());
    let none: Vec<MemoryDevice> = Vec::new();
    let refused = Endpoint::on_queues(&rnic, none, port, &EndpointConfig::default());
    assert!(matches!(refused, Err(Error::Config(_))), "{refused:?}");
    let (a, b) = pair(LinkConfig::default());
    let dhcp = PortConfig::for_dhcp([2, 0, 0, 0, 0, 1]);
    let refused = Endpoint::on_queues(&rnic, vec![a, b], dhcp, &EndpointConfig::default());
    assert!(matches!(refused, Err(Error::Port(_))), "{refused:?}");
}

#[test]
fn a_remote_buffer_travels_in_private_data() {
    let buffer = RemoteBuffer { stag: Stag(7), to: TaggedOffset(9) };
    assert_eq!(RemoteBuffer::from_octets(&buffer.to_octets()), Some(buffer));
}

/// Collects the lines that the library logs.
struct Log;

fn lines() -> &'static Mutex<Vec<String>> {
    static LINES: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    LINES.get_or_init(Mutex::default)
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _infallible = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "urnic"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        lines().lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn the_life_of_a_connection_is_logged() {
    tracing::subscriber::set_global_default(Log).expect("no other test sets one");
    let [(client, near), (_server, far)] = connected(true);
    let at = near.remote();
    near.disconnect();
    far.close(PATIENCE).unwrap();
    near.close(PATIENCE).unwrap();
    drop(client);
    let logged = lines().lock().unwrap().join("\n");
    for (what, whose) in [
        ("connecting", format!("remote={at}")),
        ("a peer asks to connect", format!("local={at}")),
        ("connected", format!("remote={at}")),
        ("connection closed", format!("remote={at}")),
    ] {
        let told = logged.lines().any(|line| line.contains(what) && line.contains(&whose));
        assert!(told, "{what} {whose} in:\n{logged}");
    }
    assert!(logged.contains("worker started"), "{logged}");
}

/// Handles may use workers, workers may use mail, and mail uses neither.
#[test]
fn the_folders_of_the_library_are_strata() {
    let below = [("mail", &["worker", "handle"][..]), ("worker", &["handle"])];
    for (folder, above) in below {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                for above in above {
                    let imported = text.contains(&format!("crate::{above}"));
                    assert!(!imported, "{} imports {above}", path.display());
                }
            }
        }
    }
}
