//! A gate between an InfiniBand link and the kernel: a router with two interfaces, sans-IO except for
//! its devices.
//!
//! ```text
//!   rule      forwarding rules          router    one datagram through the gate
//!   packet    IP headers                fragment  IPv4, cut for a smaller MTU
//!   icmp      errors for senders        counters  counts of datagrams
//!   membership  groups of the kernel      relay     DHCP for clients of the link
//! ```

mod counters;
mod fragment;
mod icmp;
mod limits;
mod membership;
mod packet;
mod relay;
mod router;
mod rule;
mod summary;

pub(crate) use counters::{Dhcp, Direction, Icmp};
use limits::BURST;
pub(crate) use limits::GROUPS_MAX;
use router::Router;
use rule::Side;
pub(crate) use rule::{Rules, stays_on_link};
pub(crate) use summary::GateSummary;
use urnic_ipoib::wire::reports::Change;
use urnic_netdev::{Device, Medium};

#[derive(Debug)]
pub(crate) struct Gate<L, T> {
    link: L,
    tun: T,
    router: Router,
}

impl<L: Device, T: Device> Gate<L, T> {
    pub(crate) fn new(link: L, tun: T, rules: Rules) -> Self {
        for medium in [link.capabilities().medium, tun.capabilities().medium] {
            assert_eq!(medium, Medium::Ip, "both devices carry IP");
        }
        Self { link, tun, router: Router::new(rules) }
    }

    pub(crate) const fn link(&mut self) -> &mut L {
        &mut self.link
    }

    pub(crate) const fn tun(&mut self) -> &mut T {
        &mut self.tun
    }

    pub(crate) const fn devices(&self) -> (&L, &T) {
        (&self.link, &self.tun)
    }

    /// Returns the counters from the kernel to the link, and back.
    pub(crate) const fn directions(&self) -> [Direction; 2] {
        [self.router.to_link, self.router.to_kernel]
    }

    pub(crate) const fn icmp(&self) -> Icmp {
        self.router.icmp
    }

    /// Datagrams for which the link has room: more wait in the kernel's queue.
    pub(crate) fn room(&self) -> usize {
        if self.link.link_up() { self.link.transmit_room() } else { usize::MAX }
    }

    pub(crate) const fn dhcp(&self) -> Dhcp {
        self.router.dhcp
    }

    /// Returns the number of datagrams.
    pub(crate) fn turn(&mut self, now_ns: u64) -> usize {
        let burst = BURST.min(self.room());
        let Self { link, tun, router } = self;
        let from_kernel = tun.receive(now_ns, burst, &mut |frame| {
            router.pass(now_ns, Side::Kernel, frame.head, link);
        });
        router.send_answers(now_ns, tun);
        link.flush(now_ns);
        let from_link = link.receive(now_ns, BURST, &mut |frame| {
            router.pass(now_ns, Side::Link, frame.head, tun);
        });
        router.send_answers(now_ns, link);
        link.flush(now_ns);
        tun.flush(now_ns);
        from_kernel + from_link
    }

    /// The link must join or leave the group.
    pub(crate) fn poll_group_change(&mut self) -> Option<Change> {
        self.router.membership.poll_change()
    }

    /// The table was full.
    pub(crate) const fn groups_refused(&self) -> u64 {
        self.router.membership.refused
    }

    pub(crate) fn tell_undeliverable(&mut self, now_ns: u64, datagram: &[u8]) {
        self.router.undeliverable(now_ns, datagram);
        self.router.send_answers(now_ns, &mut self.tun);
        self.tun.flush(now_ns);
    }
}

#[cfg(test)]
mod tests;
