//! smoltcp's TCP sockets over the same devices: one connection, one thread each side.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Result, ensure};
use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use urnic::monotonic_now;
use urnic_engine::time::Duration;
use urnic_netdev::{Device, TxFrame};

use crate::core::pin;
use crate::network::{self, AnyDevice, Far, Link};
use crate::writes::MESSAGE_LEN;
use urnic_testkit::ingress::{Ingress, Received};

/// One smoltcp interface with one socket.
struct Stack {
    device: AnyDevice,
    capabilities: DeviceCapabilities,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Answers to frames, made while frames are received.
    answers: Vec<Vec<u8>>,
    frame: Vec<u8>,
}

impl Stack {
    fn new(device: AnyDevice, host: u8) -> Self {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = phy::Medium::Ethernet;
        capabilities.max_transmission_unit = device.capabilities().mtu + ETHERNET_LEN;
        capabilities.checksum = ChecksumCapabilities::default();
        let mut probe =
            Ingress { frame: None, answers: &mut Vec::new(), capabilities: &capabilities };
        let config = iface::Config::new(EthernetAddress([2, 0, 10, 77, 0, host]).into());
        let mut interface = Interface::new(config, &mut probe, now());
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(IpAddress::v4(10, 77, 0, host), 24);
            addresses.push(address).expect("room for one address");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_LEN]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self {
            device,
            capabilities,
            interface,
            sockets,
            handle,
            answers: Vec::new(),
            frame: Vec::new(),
        }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Processes the frames that have arrived and sends the frames that are ready.
    fn poll(&mut self) {
        let now = now();
        let Self { device, capabilities, interface, sockets, answers, frame, .. } = self;
        device.receive(nanos(), RECEIVE_BURST, &mut |frame| {
            let mut ingress = Ingress { frame: Some(frame.head), answers, capabilities };
            interface.poll_ingress_single(now, &mut ingress, sockets);
        });
        for answer in answers.drain(..) {
            transmit(device, &answer);
        }
        interface.poll_maintenance(now);
        let mut egress = Egress { device, capabilities, frame };
        while interface.poll_egress(now, &mut egress, sockets)
            == iface::PollResult::SocketStateChanged
        {}
        device.flush(nanos());
    }
}

/// Bytes per second through one connection, in Gbit/s.
pub(crate) fn rate(far: &Far, link: Link, time: Duration) -> Result<f64> {
    let (near, there) = network::devices(far, link)?;
    let _core = pin(0);
    let received = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let receiver = {
        let (received, stop) = (Arc::clone(&received), Arc::clone(&stop));
        thread::spawn(move || receive(there, &received, &stop))
    };
    let mut near = Stack::new(near, 1);
    let Stack { interface, sockets, handle, .. } = &mut near;
    let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
    let remote = (IpAddress::Ipv4(Ipv4Addr::new(10, 77, 0, 2)), TCP_PORT);
    socket.connect(interface.context(), remote, 50_000)?;
    let started = monotonic_now();
    while !near.socket().may_send() {
        near.poll();
        ensure!(monotonic_now() - started < PATIENCE, "smoltcp's socket does not connect");
    }
    let message = vec![0x5a; MESSAGE_LEN];
    let mut run = |time: Duration| {
        let (start, before) = (monotonic_now(), received.load(Ordering::Relaxed));
        while monotonic_now() - start < time {
            while near.socket().send_slice(&message).is_ok_and(|len| len > 0) {}
            near.poll();
        }
        let moved = received.load(Ordering::Relaxed) - before;
        moved as f64 * 8.0 / (monotonic_now() - start).as_nanos() as f64
    };
    run(time / 5);
    let rate = run(time);
    stop.store(true, Ordering::Relaxed);
    receiver.join().expect("the receiver ends well");
    Ok(rate)
}

fn receive(device: AnyDevice, received: &AtomicU64, stop: &AtomicBool) {
    let _core = pin(1);
    let mut stack = Stack::new(device, 2);
    stack.socket().listen(TCP_PORT).expect("a port that is not 0");
    let mut memory = vec![0; MESSAGE_LEN];
    while !stop.load(Ordering::Relaxed) {
        stack.poll();
        while let Ok(len @ 1..) = stack.socket().recv_slice(&mut memory) {
            received.fetch_add(len as u64, Ordering::Relaxed);
        }
    }
}

fn now() -> Instant {
    Instant::from_micros(i64::try_from(nanos() / 1000).expect("an uptime"))
}

fn nanos() -> u64 {
    monotonic_now().as_nanos()
}

fn transmit(device: &mut AnyDevice, octets: &[u8]) {
    let frame = TxFrame::whole(octets);
    // If the device has no room, the frame is lost, as on a wire.
    let _lost = device.transmit(nanos(), &frame);
}

/// Lets an interface send.
struct Egress<'a> {
    device: &'a mut AnyDevice,
    capabilities: &'a DeviceCapabilities,
    frame: &'a mut Vec<u8>,
}

struct Out<'a>(&'a mut AnyDevice, &'a mut Vec<u8>);

impl phy::TxToken for Out<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let Self(device, frame) = self;
        frame.resize(len, 0);
        let result = f(frame);
        transmit(device, frame);
        result
    }
}

impl phy::Device for Egress<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Out<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Out<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Out<'_>> {
        Some(Out(self.device, self.frame))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

const TCP_PORT: u16 = 7174;
const ETHERNET_LEN: usize = 14;
const RECEIVE_BURST: usize = 64;
/// Socket buffer of each socket, in each direction.
const BUFFER_LEN: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
