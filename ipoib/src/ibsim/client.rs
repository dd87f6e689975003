//! Client of ibsim at a node: management datagrams, and the port's settings by the subnet manager.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;
use urnic_netdev::local_peer::UserDatagram;

use super::control::{
    CONTROL_LEN, Control, REQUEST_LEN, control, control_answer, envelope, opened, place,
};
use super::{IbsimError, NAME_LEN_MAX, address};
use crate::fabric::PortInfo;
use crate::wire::address::{Guid, Lid, Qpn};
use crate::wire::mad::MAD_LEN;
use crate::wire::smp::{self, NodeInfo, PortSetup, SMP_DATA_LEN, SmpAttribute};

const PATIENCE: Duration = Duration::from_secs(2);
/// ibsim does not report changes.
const ASK_EVERY_NS: u64 = 100_000_000;
const LATE_NS: u64 = 2_000_000_000;
/// Foreign answers skipped while waiting for one.
const SKIPPED_MAX: usize = 1000;

#[derive(Debug)]
pub(super) struct Client {
    simulator: String,
    control: UserDatagram,
    data: UserDatagram,
    number: Option<u32>,
    random: ChaCha20Rng,
    watch: Watch,
}

#[derive(Debug)]
struct Watch {
    asked: Option<Control>,
    asked_ns: u64,
    setup: Option<PortSetup>,
}

impl Client {
    /// Connects to a node. With `hears`, the client gets unsolicited datagrams to queue pair 1;
    /// only one client of a node can.
    pub(super) fn connect(
        simulator: &str,
        node: &str,
        hears: bool,
        also: Option<u32>,
    ) -> Result<Self, IbsimError> {
        let protocol = |cause: io::Error| failed(simulator, cause);
        let refused = || IbsimError::Refused { name: simulator.to_owned(), node: node.to_owned() };
        if simulator.len() > NAME_LEN_MAX || node.len() > NAME_LEN_MAX || node.contains('\0') {
            return Err(refused());
        }
        let mut seed = [0; 32];
        getrandom::fill(&mut seed).map_err(|error| IbsimError::Io {
            action: "drawing randomness",
            cause: io::Error::other(error),
        })?;
        let mut random = ChaCha20Rng::from_seed(seed);
        // ibsim formats it as a signed number.
        let id = random.next_u32() >> 1 | 1;
        // The NUL at its end is part of the name.
        let bound = |kind: &str| {
            let own = address(format!("{simulator}:{kind}{id}\0").as_bytes())?;
            UserDatagram::new(UnixDatagram::bind_addr(&own)?, also)
        };
        let io = |action| move |cause| IbsimError::Io { action, cause };
        let control = bound("ctl").map_err(io("naming a socket"))?;
        let data = bound("in").map_err(io("naming a socket"))?;
        let there = address(format!("{simulator}:ctl\0").as_bytes())
            .and_then(|address| control.socket().connect_addr(&address));
        there.map_err(|cause| IbsimError::NoSimulator { name: simulator.to_owned(), cause })?;
        for socket in [&control, &data] {
            socket.socket().set_read_timeout(Some(PATIENCE)).map_err(io("setting up a socket"))?;
        }
        let mut client = Self {
            simulator: simulator.to_owned(),
            control,
            data,
            number: None,
            random,
            watch: Watch { asked: None, asked_ns: 0, setup: None },
        };
        let answer = client.call(Control::Connect, &place(id, node, hears)).map_err(protocol)?;
        let answer = answer.ok_or_else(refused)?;
        let number = u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
        client.number = Some(number);
        let out = format!("{simulator}:out{number}\0");
        let out = address(out.as_bytes()).and_then(|out| client.data.socket().connect_addr(&out));
        out.map_err(protocol)?;
        Ok(client)
    }

    pub(super) fn simulator(&self) -> &str {
        &self.simulator
    }

    /// `None` if ibsim refuses.
    fn call(&self, what: Control, data: &[u8]) -> io::Result<Option<[u8; SMP_DATA_LEN]>> {
        self.control.socket().send(&control(self.number.unwrap_or(0), what, data))?;
        let mut answer = [0; CONTROL_LEN];
        let len = uninterrupted(|| receive(&self.control, &mut answer))?;
        Ok(control_answer(answer.get(..len).unwrap_or_default(), what))
    }

    /// Asks along a directed route; `None` if there is no such node, or it has no answer.
    pub(super) fn ask(
        &mut self,
        attribute: SmpAttribute,
        modifier: u32,
        route: &[u8],
    ) -> io::Result<Option<[u8; SMP_DATA_LEN]>> {
        const MASK: u64 = (1 << 48) - 1;
        let transaction = self.random.next_u64() & MASK;
        let mad = smp::request(attribute, modifier, transaction, route);
        self.data.socket().send(&envelope(Lid::PERMISSIVE, Qpn::from_bits(0), &mad))?;
        let mut octets = [0; REQUEST_LEN];
        for _ in 0..SKIPPED_MAX {
            let len = uninterrupted(|| receive(&self.data, &mut octets))?;
            let octets = octets.get(..len).unwrap_or_default();
            // An undeliverable datagram is returned with a status.
            let Some((_, _, mad)) = opened(octets) else {
                if octets.get(MAD_TRANSACTION).is_some_and(|back| is_of(back, transaction)) {
                    return Ok(None);
                }
                continue;
            };
            if is_of(&mad[8..16], transaction) {
                return Ok(smp::answer(&mad).map(|(_, data)| data));
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    pub(super) fn guid(&mut self) -> Result<Guid, IbsimError> {
        let simulator = self.simulator.clone();
        let protocol = |cause: io::Error| failed(&simulator, cause);
        let data = self.ask(SmpAttribute::NodeInfo, 0, &[]);
        let info = data.map(|data| data.and_then(|data| NodeInfo::parse(&data).ok()));
        match info {
            Ok(Some(info)) => Ok(info.port_guid),
            Ok(None) => Err(protocol(io::ErrorKind::InvalidData.into())),
            Err(error) => Err(protocol(error)),
        }
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        self.control.socket().set_nonblocking(true)?;
        self.data.socket().set_nonblocking(true)
    }

    pub(super) fn send(&self, to: Lid, mad: &[u8; MAD_LEN]) {
        // A datagram that cannot be sent now is lost; the link retransmits it.
        let _lost = self.data.socket().send(&envelope(to, Qpn::GSI, mad));
    }

    /// Returns the next datagram to queue pair 1.
    pub(super) fn receive(&self) -> Option<(Lid, [u8; MAD_LEN])> {
        let mut octets = [0; REQUEST_LEN];
        loop {
            let len = receive(&self.data, &mut octets).ok()?;
            let datagram = opened(octets.get(..len).unwrap_or_default());
            if let Some((from, _, mad)) = datagram {
                return Some((from, mad));
            }
        }
    }

    /// Returns them each time ibsim has reported all.
    pub(super) fn watch(&mut self, now_ns: u64, guid: Guid) -> Option<PortInfo> {
        let mut told = None;
        let mut octets = [0; CONTROL_LEN];
        while let Ok(len) = receive(&self.control, &mut octets) {
            let Some(asked) = self.watch.asked.take() else { continue };
            let answer = control_answer(octets.get(..len).unwrap_or_default(), asked);
            let Some(answer) = answer else { continue };
            if asked == Control::PortInfo {
                self.watch.setup = PortSetup::parse(&answer).ok();
                self.question(Control::PKeys, now_ns);
            } else if let Some(setup) = self.watch.setup {
                told = Some(PortInfo {
                    guid,
                    prefix: setup.prefix,
                    lid: setup.lid,
                    sm_lid: setup.sm_lid,
                    is_active: setup.is_active,
                    mtu_octets: setup.mtu_octets,
                    p_keys: smp::p_keys(&answer),
                });
            }
        }
        let is_late = now_ns >= self.watch.asked_ns.saturating_add(LATE_NS);
        let is_due = now_ns >= self.watch.asked_ns.saturating_add(ASK_EVERY_NS);
        if is_late || (is_due && self.watch.asked.is_none()) {
            self.question(Control::PortInfo, now_ns);
        }
        told
    }

    fn question(&mut self, what: Control, now_ns: u64) {
        let question = control(self.number.unwrap_or(0), what, &[0]);
        let sent = self.control.socket().send(&question);
        self.watch.asked = sent.is_ok().then_some(what);
        self.watch.asked_ns = now_ns;
    }

    /// The next query, or the timeout of an outstanding one.
    pub(super) const fn due_ns(&self) -> u64 {
        // An answer makes the descriptor readable; only a missing answer needs the timeout.
        let wait_ns = if self.watch.asked.is_some() { LATE_NS } else { ASK_EVERY_NS };
        self.watch.asked_ns.saturating_add(wait_ns)
    }

    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.control.as_fd(), self.data.as_fd()]
    }
}

/// Receives a datagram of a trusted user.
fn receive(socket: &UserDatagram, buffer: &mut [u8]) -> io::Result<usize> {
    let datagram = socket.receive(buffer)?;
    match datagram.user {
        Ok(()) => Ok(datagram.len),
        Err(foreign) => Err(io::Error::new(io::ErrorKind::PermissionDenied, foreign)),
    }
}

fn failed(simulator: &str, cause: io::Error) -> IbsimError {
    let name = simulator.to_owned();
    match cause.get_ref().and_then(|inner| inner.downcast_ref().copied()) {
        Some(foreign) => IbsimError::ForeignUser { name, foreign },
        None => IbsimError::Protocol { name, cause },
    }
}

/// The kernel does not restart a receive with a timeout after a signal (signal(7)).
fn uninterrupted<T>(mut wait: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match wait() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

const MAD_TRANSACTION: std::ops::Range<usize> = 32 + 8..32 + 16;

/// ibsim puts its own mark into the first sixteen bits.
fn is_of(octets: &[u8], transaction: u64) -> bool {
    octets.get(2..) == transaction.to_be_bytes().get(2..)
}

/// Frees the place at the node.
impl Drop for Client {
    fn drop(&mut self) {
        // A refused client has no place to free; number 0 is the subnet manager's.
        if let Some(number) = self.number {
            let _gone = self.control.socket().send(&control(number, Control::Disconnect, &[]));
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a client, and the other end of its socket: a simulator that does not answer.
    pub(in crate::ibsim) fn client(simulator: &str) -> (Client, UnixDatagram) {
        let (control, far) = UnixDatagram::pair().unwrap();
        let (data, _) = UnixDatagram::pair().unwrap();
        control.set_nonblocking(true).unwrap();
        let client = Client {
            simulator: simulator.to_owned(),
            control: UserDatagram::new(control, None).unwrap(),
            data: UserDatagram::new(data, None).unwrap(),
            number: None,
            random: ChaCha20Rng::from_seed([0; 32]),
            watch: Watch { asked: None, asked_ns: 0, setup: None },
        };
        (client, far)
    }

    #[test]
    fn a_wait_that_a_signal_ended_goes_on() {
        let mut results =
            vec![Ok(7), Err(io::ErrorKind::Interrupted), Err(io::ErrorKind::Interrupted)];
        let mut next = || results.pop().unwrap().map_err(io::Error::from);
        assert_eq!(uninterrupted(&mut next).unwrap(), 7);
        let error = uninterrupted(|| Err::<(), _>(io::ErrorKind::TimedOut.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn client_awaiting_an_answer_sleeps_until_its_deadline() {
        let (mut client, _simulator) = client("");
        assert_eq!(client.due_ns(), ASK_EVERY_NS);
        assert_eq!(client.watch(ASK_EVERY_NS, Guid(1)), None);
        assert_eq!(client.due_ns(), ASK_EVERY_NS + LATE_NS);
    }
}
