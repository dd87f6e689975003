//! The engine's side: RDMA Writes from one endpoint into the memory of another, one thread each.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::{Context, Result};
use urnic::{ConnectOptions, Connection, ConnectionEvent, Endpoint, EndpointConfig, monotonic_now};
use urnic_engine::mem::{Access, Region};
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ListenParams, LowerLayer, PortConfig};
use urnic_engine::stream::SendPath;
use urnic_engine::time::Duration;
use urnic_engine::types::{Stag, TaggedOffset, WrId};
use urnic_engine::verbs::{Cq, Mr, Qp, QpConfig, RemoteBuffer, Rnic, RnicConfig, SendWr, WcStatus};

use crate::core::pin;
use crate::network::{self, End, Far, Link};

/// How a case runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    pub(crate) link: Link,
    pub(crate) lower_layer: LowerLayer,
    pub(crate) crc: bool,
    pub(crate) markers: bool,
    /// Writes in flight at a time.
    pub(crate) depth: usize,
    pub(crate) send_path: SendPath,
}

impl Spec {
    pub(crate) const fn on(link: Link) -> Self {
        Self {
            link,
            lower_layer: LowerLayer::Optimized,
            crc: true,
            markers: false,
            depth: DEPTH,
            send_path: SendPath::Auto,
        }
    }

    fn startup(&self) -> StartupConfig {
        StartupConfig { crc: self.crc, markers: self.markers, ..StartupConfig::default() }
    }
}

/// One side of the measurement.
struct Side {
    endpoint: Endpoint,
    cq: Cq,
    qp: Qp,
    memory: Mr,
}

impl Side {
    fn new(end: Option<End>, host: u8, len: usize, send_path: SendPath) -> Result<Self> {
        let (device, publisher) = end.map(|end| (end.device, end.publisher)).unzip();
        let rnic = Rnic::new(RnicConfig { seed: u64::from(host).into() });
        let config = EndpointConfig { own_thread: false, send_path, ..EndpointConfig::default() };
        let endpoint = match device {
            Some(device) => {
                let mac = network::mac(host);
                let identity =
                    PortConfig { mac, send_path, ..PortConfig::for_ipv4(network::address(host)) };
                Endpoint::on_device(&rnic, device, identity, &config)?
            }
            None => Endpoint::kernel(&rnic, &config)?,
        };
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(1024)?);
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let depths =
            QpConfig { send_depth: 256, recv_depth: 4, ..QpConfig::with_cqs(send_cq, recv_cq) };
        let qp = pd.create_qp(depths)?;
        let region = match publisher.flatten() {
            Some(publisher) => Region::published(&publisher, len)?,
            None => Region::anonymous(len)?,
        };
        let memory = pd.reg_region(region, Access::REMOTE_WRITE)?;
        memory.copy_in(0, &vec![0x5a; len]);
        Ok(Self { endpoint, cq, qp, memory })
    }
}

/// Work of the peer during a measurement.
type Serve = fn(&Side, &Connection, RemoteBuffer, &AtomicBool);

/// Connects two sides and runs `measure` on the client's.
fn between<R>(
    far: &Far,
    spec: &Spec,
    len: usize,
    serve: Serve,
    measure: impl FnOnce(&Side, &Connection, RemoteBuffer) -> R,
) -> Result<R> {
    let (near_device, far_device) = match spec.link {
        Link::Kernel => (None, None),
        link => {
            let (near, there) = network::ends(far, link)?;
            (Some(near), Some(there))
        }
    };
    let [near_host, far_host] = spec.link.hosts();
    let ip = if near_device.is_some() {
        IpAddr::from(network::address(far_host))
    } else {
        network::VETH[1]
    };
    let params = ListenParams {
        startup: spec.startup(),
        lower_layer: spec.lower_layer,
        ..ListenParams::default()
    };
    let (listens, listens_rx) = mpsc::channel();
    let measured = &AtomicBool::new(false);
    thread::scope(|scope| {
        let server = scope.spawn(move || -> Result<()> {
            if far_device.is_none() {
                far.enter()?;
            }
            let _core = pin(1);
            let side = Side::new(far_device, far_host, len, spec.send_path)?;
            let listener = side.endpoint.listen(SocketAddr::new(ip, 0), params)?;
            listens.send(listener.local())?;
            let request = listener.next_request(PATIENCE)?.context("nobody connects")?;
            let peer = remote(&request.request().private_data)?;
            let own = advertise(&side.memory);
            let offer = Offer { private_data: &own, ird: 1, ord: 1 };
            let connection = request.accept(&side.qp, &offer)?.wait(PATIENCE)?;
            serve(&side, &connection, peer, measured);
            Ok(())
        });
        let _core = pin(0);
        let side = Side::new(near_device, near_host, len, spec.send_path)?;
        let options = ConnectOptions {
            startup: spec.startup(),
            private_data: advertise(&side.memory).to_vec(),
            lower_layer: spec.lower_layer,
            ..ConnectOptions::default()
        };
        let connecting = side.endpoint.connect(listens_rx.recv()?, &side.qp, &options)?;
        let connection = connecting.wait(PATIENCE)?;
        let peer = remote(&connection.terms().private_data)?;
        let result = measure(&side, &connection, peer);
        measured.store(true, Ordering::Relaxed);
        connection.abort();
        // The endpoint sends the reset when it ends.
        drop(connection);
        drop(side);
        server.join().expect("the server does not panic")?;
        Ok(result)
    })
}

/// Bytes written per second, in Gbit/s.
pub(crate) fn write_rate(far: &Far, spec: &Spec, time: Duration) -> Result<f64> {
    let (mut started, mut measured_from) = (None, None);
    let mut rate = 0.0;
    write_while(far, spec, |octets| {
        let now = monotonic_now();
        if measured_from.is_none() && now - *started.get_or_insert(now) >= time / 5 {
            measured_from = Some((now, octets));
        }
        let Some((from, before)) = measured_from.filter(|(from, _)| now - *from >= time) else {
            return true;
        };
        rate = (octets - before) as f64 * 8.0 / (now - from).as_nanos() as f64;
        false
    })?;
    Ok(rate)
}

/// Writes while `go_on` returns true; it is called after each completion with the number of bytes
/// written so far.
pub(crate) fn write_while(
    far: &Far,
    spec: &Spec,
    mut go_on: impl FnMut(u64) -> bool,
) -> Result<()> {
    let (len, depth) = (MESSAGE_LEN, spec.depth);
    between(far, spec, len * depth, serve_until_closed, |side, _, remote| {
        let post = |slot: usize| {
            let start = slot * len;
            let target = RemoteBuffer { to: TaggedOffset(remote.to.0 + start as u64), ..remote };
            let wr =
                SendWr::write(WrId(slot as u64), target, [side.memory.sge(start..start + len)]);
            side.qp.post_send(wr).expect("the queue has room");
        };
        (0..depth).for_each(post);
        let mut octets = 0;
        while go_on(octets) {
            let wc = side.endpoint.wait(&side.cq, PATIENCE).expect("up").expect("completes");
            assert_eq!(wc.status, WcStatus::Success);
            octets += len as u64;
            post(usize::try_from(wc.wr_id.0).expect("a slot"));
        }
    })
}

/// Returns half a round trip of Writes of 8 bytes, where each side polls its own memory: median in
/// µs, and the 99th percentile.
pub(crate) fn write_latency(far: &Far, spec: &Spec, rounds: usize) -> Result<(f64, f64)> {
    between(far, spec, 16, serve_echo, |side, _, remote| {
        let mut samples: Vec<u64> = (1..=rounds + WARM_UP)
            .map(|round| {
                let start = monotonic_now();
                send_word(side, remote, round as u64);
                await_word(side, round as u64);
                monotonic_now().nanos_since(start)
            })
            .skip(WARM_UP)
            .collect();
        send_word(side, remote, u64::MAX);
        await_word(side, u64::MAX);
        samples.sort_unstable();
        let half = |at: usize| samples[at] as f64 / 2000.0;
        (half(rounds / 2), half(rounds * 99 / 100))
    })
}

/// Writes a number into the peer's first word from this side's second.
fn send_word(side: &Side, remote: RemoteBuffer, word: u64) {
    side.memory.copy_in(8, &word.to_be_bytes());
    let wr = SendWr::write(WrId(0), remote, [side.memory.sge(8..16)]);
    while side.qp.post_send(wr.clone()).is_err() {
        drop(side.endpoint.wait(&side.cq, PATIENCE));
    }
}

/// Waits until the peer has written a number into this side's first word.
fn await_word(side: &Side, word: u64) {
    let mut octets = [0; 8];
    loop {
        side.memory.copy_out(0, &mut octets);
        if u64::from_be_bytes(octets) == word {
            return;
        }
        // Turns the engine once; completions of Writes are not needed.
        drop(side.endpoint.wait(&side.cq, Duration::ZERO));
    }
}

fn serve_echo(side: &Side, _: &Connection, peer: RemoteBuffer, _: &AtomicBool) {
    for round in 1.. {
        let mut octets = [0; 8];
        let word = loop {
            side.memory.copy_out(0, &mut octets);
            match u64::from_be_bytes(octets) {
                word if word == round || word == u64::MAX => break word,
                _ => drop(side.endpoint.wait(&side.cq, Duration::ZERO)),
            }
        };
        send_word(side, peer, word);
        if word == u64::MAX {
            break;
        }
    }
    drop(side.endpoint.run_for(Duration::from_millis(20)));
}

fn serve_until_closed(_: &Side, connection: &Connection, _: RemoteBuffer, measured: &AtomicBool) {
    // The client's reset may be lost on a bad link.
    while !measured.load(Ordering::Relaxed) {
        match connection.next_event(Duration::from_millis(100)) {
            Ok(Some(ConnectionEvent::Closed(_))) => break,
            Ok(_) => {}
            Err(error) => panic!("the client ends the connection: {error}"),
        }
    }
}

fn advertise(memory: &Mr) -> [u8; 12] {
    let RemoteBuffer { stag, to } = memory.remote(0);
    let mut octets = [0; 12];
    octets[..4].copy_from_slice(&stag.0.to_be_bytes());
    octets[4..].copy_from_slice(&to.0.to_be_bytes());
    octets
}

fn remote(octets: &[u8]) -> Result<RemoteBuffer> {
    let (stag, to) = octets.split_first_chunk().context("no buffer in the private data")?;
    let stag = Stag(u32::from_be_bytes(*stag));
    Ok(RemoteBuffer { stag, to: TaggedOffset(u64::from_be_bytes(to.try_into()?)) })
}

/// Bytes of one Write.
pub(crate) const MESSAGE_LEN: usize = 64 << 10;
/// Writes in flight at a time.
pub(crate) const DEPTH: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);
/// Round trips before the measurement.
const WARM_UP: usize = 1000;
