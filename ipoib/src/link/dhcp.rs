//! The interface's IPv4 address by DHCP: messages on the link, and the address.

use std::net::Ipv4Addr;

use tracing::{info, warn};

use super::groups::Received;
use super::lease::{Lease, LeaseChange};
use super::{Link, LinkState, TRACE};
use crate::wire::dhcp::{Answer, ClientId, Question, client_id, is_for_client};
use crate::wire::mad::JoinState;

impl Link {
    /// Returns the lease, if DHCP is configured and has provided one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        self.dhcp.as_ref()?.lease()
    }

    /// Constant over restarts, and different in each partition (RFC 4390 §2.1, RFC 4361 §6.1).
    fn client_id(&self) -> ClientId {
        let guid = self.port.as_ref().map_or(0, |port| port.guid.0);
        client_id(guid, u32::from(self.map.p_key().0))
    }

    pub(super) fn dhcp_timeout(&self) -> Option<u64> {
        let is_up = matches!(self.state(), LinkState::Up { .. });
        self.dhcp.as_ref().filter(|_| is_up).map(super::lease::Client::poll_timeout)
    }

    pub(super) fn run_dhcp(&mut self, now_ns: u64) {
        let id = self.client_id();
        let is_due = self.dhcp_timeout().is_some_and(|due_ns| due_ns <= now_ns);
        let Some(client) = self.dhcp.as_mut().filter(|_| is_due) else { return };
        let (change, question) = client.poll(now_ns, id);
        self.apply_lease_change(now_ns, change);
        if let Some(question) = question {
            self.ask_server(now_ns, &question);
        }
    }

    fn ask_server(&mut self, now_ns: u64, question: &Question) {
        let datagram = question.to_datagram();
        // A message that cannot be sent counts as lost on the link; the client repeats it.
        let _lost = self.send(now_ns, &datagram, datagram.len(), |place| {
            place.copy_from_slice(&datagram);
        });
    }

    /// Returns true if the datagram was for the DHCP client.
    pub(super) fn handle_dhcp(&mut self, now_ns: u64, datagram: &[u8]) -> bool {
        if self.dhcp.is_none() || !is_for_client(datagram) {
            return false;
        }
        let id = self.client_id();
        let answer = Answer::parse(datagram);
        let Some(client) = self.dhcp.as_mut() else { return true };
        let taken = answer.ok().and_then(|answer| client.handle(now_ns, &id, &answer).ok());
        match taken {
            Some(change) => {
                self.apply_lease_change(now_ns, change);
                self.run_dhcp(now_ns);
            }
            None => self.counters.dhcp_refused += 1,
        }
        true
    }

    fn apply_lease_change(&mut self, now_ns: u64, change: Option<LeaseChange>) {
        match change {
            Some(LeaseChange::Bound(lease)) => {
                let address = Some((lease.address, lease.prefix_len));
                let is_new = self.config.ipv4 != address;
                self.config.ipv4 = address;
                self.config.gateway_v4 = lease.router;
                if is_new {
                    info!(target: TRACE, address = %lease.address, server = %lease.server, "lease");
                    self.join_own_groups(now_ns);
                    self.announce(now_ns);
                }
            }
            Some(LeaseChange::Lost) => {
                warn!(target: TRACE, "the lease has ended");
                self.config.ipv4 = None;
                self.config.gateway_v4 = None;
            }
            None => {}
        }
    }

    fn join_own_groups(&mut self, now_ns: u64) {
        for mgid in self.own_groups() {
            if self.receive_group(now_ns, mgid) == Received::Joins {
                self.add_chore(now_ns, (mgid, JoinState::FULL_MEMBER, true));
            }
        }
    }

    /// RFC 2131 §4.4.6. The server learns it only if the link is up.
    pub(super) fn release_address(&mut self, now_ns: u64) {
        let id = self.client_id();
        if let Some(question) = self.dhcp.as_mut().and_then(|client| client.release(id)) {
            self.ask_server(now_ns, &question);
            self.config.ipv4 = None;
            self.config.gateway_v4 = None;
        }
    }

    pub(crate) fn leased_address(&self) -> Option<Ipv4Addr> {
        self.lease().map(|lease| lease.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::LinkConfig;
    use crate::wire::address::{PKey, Qpn};

    /// RFC 4390 §2.1: the partition is part of the client's identity.
    #[test]
    fn a_client_is_of_its_partition() {
        for p_key in [0xffff, 0x8001] {
            let config = LinkConfig::new(Qpn::from_bits(7), [7; 32]);
            let link = Link::new(LinkConfig { p_key: PKey(p_key), ..config });
            assert_eq!(link.client_id(), client_id(0, p_key.into()));
        }
    }

    #[test]
    fn address_and_router_are_those_of_the_latest_lease() {
        let config = LinkConfig::new(Qpn::from_bits(7), [7; 32]);
        let mut link = Link::new(LinkConfig { dhcp: true, ..config });
        let [address, server] = [7, 1].map(|host| Ipv4Addr::new(10, 0, 0, host));
        for router in [Some(server), None] {
            let [renewal_ns, rebinding_ns, end_ns] = [1, 2, 3];
            let lease =
                Lease { address, prefix_len: 24, router, server, renewal_ns, rebinding_ns, end_ns };
            link.apply_lease_change(0, Some(LeaseChange::Bound(lease)));
            assert_eq!((link.config.ipv4, link.config.gateway_v4), (Some((address, 24)), router));
        }
        link.config.gateway_v4 = Some(server);
        link.apply_lease_change(0, None);
        assert_eq!(link.config.gateway_v4, Some(server));
        link.apply_lease_change(0, Some(LeaseChange::Lost));
        assert_eq!((link.config.ipv4, link.config.gateway_v4), (None, None));
    }
}
