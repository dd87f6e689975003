//! The host stack beside the engine: smoltcp answers what is not for an MPA connection
//! (RFC 5044 Figure 11, right side).

use std::collections::VecDeque;

use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as SmolInstant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};
use urnic_netdev::{Capabilities, TransmitError, TxChecksum, TxFrame};

use crate::limits::HOST_FRAMES_MAX;
use crate::port::PortConfig;
use crate::time::Instant;

/// smoltcp on a queue of frames.
pub(crate) struct Host {
    interface: Interface,
    sockets: SocketSet<'static>,
    queue: Queue,
    dirty: bool,
    deadline: Option<Instant>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Host {
    pub(crate) fn new(config: &PortConfig, capabilities: &Capabilities, seed: u64) -> Self {
        let medium = match capabilities.medium {
            urnic_netdev::Medium::Ethernet => Medium::Ethernet,
            urnic_netdev::Medium::Ip => Medium::Ip,
        };
        let hardware = match medium {
            Medium::Ethernet => HardwareAddress::Ethernet(EthernetAddress(config.mac)),
            Medium::Ip => HardwareAddress::Ip,
        };
        let mut queue =
            Queue { medium, mtu: capabilities.mtu, rx: VecDeque::new(), tx: VecDeque::new() };
        let mut interface_config = Config::new(hardware);
        interface_config.random_seed = seed;
        let mut interface =
            Interface::new(interface_config, &mut queue, SmolInstant::from_micros(0));
        interface.update_ip_addrs(|addresses| {
            if let Some((address, prefix_len)) = config.ipv4 {
                let pushed = addresses.push(IpCidr::new(IpAddress::Ipv4(address), prefix_len));
                assert!(pushed.is_ok(), "an interface holds two addresses");
            }
            if let Some((address, prefix_len)) = config.ipv6 {
                let pushed = addresses.push(IpCidr::new(IpAddress::Ipv6(address), prefix_len));
                assert!(pushed.is_ok(), "an interface holds two addresses");
            }
        });
        Self { interface, sockets: SocketSet::new(Vec::new()), queue, dirty: true, deadline: None }
    }

    /// Takes a frame that is not for an MPA connection.
    pub(crate) fn handle_frame(&mut self, frame: &[u8]) {
        if self.queue.rx.len() < HOST_FRAMES_MAX {
            self.queue.rx.push_back(frame.to_vec());
            self.dirty = true;
        }
    }

    /// Lets smoltcp work and sends what it has to say; returns the number of frames.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Instant,
        transmit: &mut dyn FnMut(&TxFrame<'_>) -> Result<(), TransmitError>,
    ) -> usize {
        let due = self.deadline.is_some_and(|deadline| deadline <= now);
        if self.dirty || due {
            self.dirty = false;
            let at = smoltcp_time(now);
            self.interface.poll(at, &mut self.queue, &mut self.sockets);
            self.deadline = self.interface.poll_at(at, &self.sockets).map(|at| {
                Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000).max(now)
            });
        }
        let mut sent = 0;
        while let Some(frame) = self.queue.tx.pop_front() {
            let frame = TxFrame {
                head: &frame,
                payload: &[],
                checksum: TxChecksum::Complete,
                segment_size: None,
            };
            sent += usize::from(transmit(&frame).is_ok());
        }
        sent
    }

    pub(crate) const fn poll_timeout(&self) -> Option<Instant> {
        self.deadline
    }
}

fn smoltcp_time(now: Instant) -> SmolInstant {
    SmolInstant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}

/// A pair of frame queues that poses as a smoltcp device.
#[derive(Debug)]
struct Queue {
    medium: Medium,
    mtu: usize,
    rx: VecDeque<Vec<u8>>,
    tx: VecDeque<Vec<u8>>,
}

impl Device for Queue {
    type RxToken<'a> = Received;
    type TxToken<'a> = ToSend<'a>;

    fn receive(&mut self, _at: SmolInstant) -> Option<(Received, ToSend<'_>)> {
        let frame = self.rx.pop_front()?;
        Some((Received(frame), ToSend(&mut self.tx)))
    }

    fn transmit(&mut self, _at: SmolInstant) -> Option<ToSend<'_>> {
        (self.tx.len() < HOST_FRAMES_MAX).then_some(ToSend(&mut self.tx))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = self.medium;
        // smoltcp counts the Ethernet header as part of the MTU.
        capabilities.max_transmission_unit = match self.medium {
            Medium::Ethernet => self.mtu + 14,
            _ => self.mtu,
        };
        capabilities
    }
}

struct Received(Vec<u8>);

impl RxToken for Received {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

struct ToSend<'a>(&'a mut VecDeque<Vec<u8>>);

impl TxToken for ToSend<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut frame = vec![0; len];
        let result = f(&mut frame);
        self.0.push_back(frame);
        result
    }
}
