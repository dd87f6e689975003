//! Node of a simulated fabric with its one port, for a link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use super::IbsimError;
use super::client::Client;
use super::plug::Plug;
use crate::fabric::{Mads, Packets, PortInfo};
use crate::wire::address::{Guid, Lid};
use crate::wire::mad::MAD_LEN;

/// A node of ibsim.
#[derive(Debug)]
pub struct Node {
    client: Client,
    plug: Plug,
    guid: Guid,
    told: Option<PortInfo>,
    /// One of the sockets is readable.
    readiness: OwnedFd,
}

impl Node {
    /// Connects to the node `node` of the ibsim `simulator`. ibsim and the switch must run as this
    /// user, root, or the user `also`.
    ///
    /// # Errors
    /// If there is no such simulator or node, or the node is taken.
    pub fn open(simulator: &str, node: &str, also: Option<u32>) -> Result<Self, IbsimError> {
        let mut client = Client::connect(simulator, node, true, also)?;
        let guid = client.guid()?;
        let plug = Plug::new(simulator, guid, also)?;
        let io = |action| move |cause| IbsimError::Io { action, cause };
        client.set_nonblocking().map_err(io("setting up a socket"))?;
        let readiness = watched(&client, &plug)
            .map_err(|errno| IbsimError::Io { action: "watching sockets", cause: errno.into() })?;
        Ok(Self { client, plug, guid, told: None, readiness })
    }

    /// Returns the GUID of the port.
    #[must_use]
    pub const fn guid(&self) -> Guid {
        self.guid
    }
}

fn watched(client: &Client, plug: &Plug) -> rustix::io::Result<OwnedFd> {
    let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let [control, data] = client.descriptors();
    for descriptor in [control, data, plug.descriptor()] {
        let none = epoll::EventData::new_u64(0);
        epoll::add(&readiness, descriptor, none, epoll::EventFlags::IN)?;
    }
    Ok(readiness)
}

impl Mads for Node {
    fn port_change(&mut self, now_ns: u64) -> Option<PortInfo> {
        let info = self.client.watch(now_ns, self.guid)?;
        if self.told.as_ref() == Some(&info) {
            return None;
        }
        self.told = Some(info.clone());
        Some(info)
    }

    fn send_mad(&mut self, _now_ns: u64, to: Lid, mad: &[u8; MAD_LEN]) {
        self.client.send(to, mad);
    }

    fn receive_mad(&mut self, _now_ns: u64) -> Option<(Lid, [u8; MAD_LEN])> {
        self.client.receive()
    }

    fn wait(&mut self, for_ns: u64) -> bool {
        let [_, data] = self.client.descriptors();
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::try_from(for_ns).unwrap_or(0) };
        poll(&mut [PollFd::new(&data, PollFlags::IN)], Some(&timeout)).is_ok()
    }
}

impl Packets for Node {
    fn send_packet(&mut self, now_ns: u64, packet: &[u8]) {
        self.plug.send(now_ns, packet);
    }

    fn receive_packets(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        self.plug.turn(now_ns);
        self.plug.receive(now_ns, burst, sink)
    }

    fn room(&self) -> usize {
        self.plug.room()
    }

    fn next_arrival_ns(&self) -> Option<u64> {
        Some(self.plug.due_ns().min(self.client.due_ns()))
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.readiness.as_fd())
    }
}
