//! smoltcp's side: one TCP connection, driven as tightly as its interface allows.
//!
//! Frames cross the same memory link without copies other than smoltcp's own: its interface writes
//! them into the buffers of the link and reads them there. The sending application copies from its
//! memory into the socket, the receiving one from the socket into its memory: the same memory that
//! RDMA reads and writes directly.

use smoltcp::iface::{self, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{self, ChecksumCapabilities, DeviceCapabilities, Medium};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use urnic_netdev::memory::{self, MemoryDevice};
use urnic_netdev::{Device, RxChecksum};

use crate::case::{self, MESSAGE_LEN};
use urnic_testkit::ingress::{Ingress, Received};

const TCP_PORT: u16 = 7174;
const ETHERNET_LEN: usize = 14;
/// Frames taken from the link at a time.
const RECEIVE_BURST: usize = 64;

/// One smoltcp interface with one socket on one end of the link.
struct Stack {
    device: MemoryDevice,
    capabilities: DeviceCapabilities,
    interface: Interface,
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// Answers made while frames are received: ARP replies, resets, urgent acknowledgments.
    answers: Vec<Vec<u8>>,
}

impl Stack {
    fn new(device: MemoryDevice, host: u8, case: &case::Sockets) -> Self {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = case.link.mtu + ETHERNET_LEN;
        if !case.link.software_checksums {
            capabilities.checksum = ChecksumCapabilities::ignored();
        }
        let mut probe =
            Ingress { frame: None, answers: &mut Vec::new(), capabilities: &capabilities };
        let address = EthernetAddress([2, 0, 0, 0, 0, host]);
        let config = iface::Config::new(address.into());
        let mut interface = Interface::new(config, &mut probe, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let address = IpCidr::new(IpAddress::v4(10, 0, 0, host), 24);
            addresses.push(address).expect("room for one address");
        });
        let buffer = || tcp::SocketBuffer::new(vec![0; case.buffer_len]);
        let mut socket = tcp::Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let handle = sockets.add(socket);
        Self { device, capabilities, interface, sockets, handle, answers: Vec::new() }
    }

    fn socket(&mut self) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(self.handle)
    }

    /// Processes all frames that have arrived. Returns their number.
    fn ingress(&mut self, now: Instant) -> usize {
        let Self { device, capabilities, interface, sockets, answers, .. } = self;
        let mut count = 0;
        loop {
            let burst = device.receive(nanos(now), RECEIVE_BURST, &mut |frame| {
                let mut ingress = Ingress { frame: Some(frame.head), answers, capabilities };
                interface.poll_ingress_single(now, &mut ingress, sockets);
            });
            if burst == 0 {
                return count;
            }
            count += burst;
        }
    }

    /// Sends everything that is due.
    fn egress(&mut self, now: Instant) {
        let Self { device, capabilities, interface, sockets, answers, .. } = self;
        for answer in answers.drain(..) {
            let write = |buffer: &mut [u8]| buffer.copy_from_slice(&answer);
            let sent =
                device.transmit_in_place(nanos(now), answer.len(), RxChecksum::Unverified, write);
            sent.expect("the link takes a frame");
        }
        let mut egress = Egress { device, capabilities };
        while interface.poll_egress(now, &mut egress, sockets)
            == iface::PollResult::SocketStateChanged
        {}
        device.flush(nanos(now));
    }
}

fn nanos(now: Instant) -> u64 {
    u64::try_from(now.total_micros()).expect("a time after zero") * 1000
}

/// Lets an interface write frames into the link.
struct Egress<'a> {
    device: &'a mut MemoryDevice,
    capabilities: &'a DeviceCapabilities,
}

struct Transmit<'a> {
    device: &'a mut MemoryDevice,
    now: Instant,
}

impl phy::TxToken for Transmit<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let sent = self.device.transmit_in_place(nanos(self.now), len, RxChecksum::Unverified, f);
        sent.expect("there was room, and smoltcp keeps to the MTU")
    }
}

impl phy::Device for Egress<'_> {
    type RxToken<'a>
        = Received<'a>
    where
        Self: 'a;
    type TxToken<'a>
        = Transmit<'a>
    where
        Self: 'a;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Transmit<'_>)> {
        None
    }

    fn transmit(&mut self, now: Instant) -> Option<Transmit<'_>> {
        (self.device.transmit_room() > 0).then_some(Transmit { device: self.device, now })
    }

    fn capabilities(&self) -> DeviceCapabilities {
        self.capabilities.clone()
    }
}

/// Two sockets with an established connection between them.
pub(crate) struct Pair {
    client: Stack,
    server: Stack,
    now: Instant,
    source: Vec<u8>,
    sink: Vec<u8>,
    sent: usize,
    received: usize,
    target: usize,
}

impl Pair {
    /// Connects, moves some messages, and checks that every byte arrived.
    pub(crate) fn connect(case: &case::Sockets) -> Self {
        let (device_a, device_b) = memory::pair(case.link.config());
        let mut client = Stack::new(device_a, 1, case);
        let mut server = Stack::new(device_b, 2, case);
        server.socket().listen(TCP_PORT).expect("a socket that is free");
        let remote = (IpAddress::v4(10, 0, 0, 2), TCP_PORT);
        let Stack { interface, sockets, handle, .. } = &mut client;
        let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
        socket.connect(interface.context(), remote, 49152).expect("a socket that is free");
        let mut pair = Self {
            client,
            server,
            now: Instant::ZERO,
            source: case::pattern(),
            sink: vec![0; MESSAGE_LEN],
            sent: 0,
            received: 0,
            target: 0,
        };
        while !(pair.client.socket().may_send() && pair.server.socket().may_recv()) {
            pair.step();
        }
        pair.advance(64);
        assert!(pair.sink == pair.source, "every byte arrives with {case:?}");
        pair
    }

    /// Continues until the bytes of `messages` more have arrived, with the socket always full.
    pub(crate) fn advance(&mut self, messages: u64) {
        self.target += usize::try_from(messages).expect("a small number") * MESSAGE_LEN;
        while self.received < self.target {
            self.step();
        }
    }

    /// Lets both ends work once.
    fn step(&mut self) {
        let before = (self.sent, self.received);
        self.send();
        let acks = self.client.ingress(self.now);
        self.send();
        self.client.egress(self.now);
        let arrived = self.server.ingress(self.now);
        self.receive();
        self.server.egress(self.now);
        // The clock does not advance while frames move, as on the other side.
        if acks + arrived == 0 && before == (self.sent, self.received) {
            self.now += smoltcp::time::Duration::from_millis(1);
        }
    }

    fn send(&mut self) {
        let socket = self.client.sockets.get_mut::<tcp::Socket<'_>>(self.client.handle);
        while socket.can_send() {
            let at = self.sent % MESSAGE_LEN;
            self.sent += socket.send_slice(&self.source[at..]).expect("an open socket");
        }
    }

    fn receive(&mut self) {
        let socket = self.server.sockets.get_mut::<tcp::Socket<'_>>(self.server.handle);
        while socket.can_recv() {
            let sink = &mut self.sink[self.received % MESSAGE_LEN..];
            let taken = socket.recv(|octets| {
                let len = octets.len().min(sink.len());
                sink[..len].copy_from_slice(&octets[..len]);
                (len, len)
            });
            self.received += taken.expect("an open socket");
        }
    }
}
