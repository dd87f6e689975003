//! Security policy database (SPD, RFC 4301 §4.4.1): ordered policies, the first match decides.

use std::net::IpAddr;

use crate::association::Mode;
use crate::limits::POLICIES_MAX;
use crate::selector::{Match, Selector};
use crate::wire::ip::Flow;

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Packets that this host receives.
    In,
    /// Packets that this host sends.
    Out,
}

/// Associations that a policy wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    /// Number that the policy has in common with its associations (`reqid` of XFRM).
    pub request: u32,
    /// Transport or tunnel.
    pub mode: Mode,
    /// Ends of a tunnel; `None` in transport mode: the ends are the packet's addresses.
    pub ends: Option<(IpAddr, IpAddr)>,
}

impl Template {
    /// Returns the ends of the association that a packet needs: source and destination.
    #[must_use]
    pub const fn ends_for(&self, flow: &Flow) -> (IpAddr, IpAddr) {
        match self.ends {
            Some(ends) => ends,
            None => (flow.source, flow.destination),
        }
    }
}

/// Treatment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Drop it.
    Discard,
    /// Let it pass in clear.
    Bypass,
    /// Protect it by ESP.
    Protect(Template),
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The packets it is for.
    pub selector: Selector,
    /// Direction of these packets.
    pub direction: Direction,
    /// Treatment of these packets.
    pub action: Action,
    /// Order: the policy with the lower number is asked first. Policies of one number are in the
    /// order of their addition.
    pub priority: u32,
}

/// There are too many policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there are {POLICIES_MAX} policies in this direction already")]
pub struct TooManyPolicies;

/// All policies.
#[derive(Debug)]
pub struct Spd {
    inbound: Vec<Policy>,
    outbound: Vec<Policy>,
    /// Action for packets that no policy is for.
    unmatched: Action,
}

impl Spd {
    /// Creates an empty database. `unmatched` is for packets without a policy; RFC 4301 §5 says
    /// that they are discarded, XFRM lets them pass.
    #[must_use]
    pub const fn new(unmatched: Action) -> Self {
        Self { inbound: Vec::new(), outbound: Vec::new(), unmatched }
    }

    /// Adds a policy.
    ///
    /// # Errors
    /// If there are [`POLICIES_MAX`] in its direction.
    pub fn add(&mut self, policy: Policy) -> Result<(), TooManyPolicies> {
        let policies = self.of_mut(policy.direction);
        if policies.len() >= POLICIES_MAX {
            return Err(TooManyPolicies);
        }
        let at = policies.partition_point(|other| other.priority <= policy.priority);
        policies.insert(at, policy);
        Ok(())
    }

    /// Removes the first policy with this selector; returns it if there was one.
    pub fn remove(&mut self, direction: Direction, selector: &Selector) -> Option<Policy> {
        let policies = self.of_mut(direction);
        let at = policies.iter().position(|policy| policy.selector == *selector)?;
        Some(policies.remove(at))
    }

    /// Returns the policies of a direction, in their order.
    #[must_use]
    pub fn policies(&self, direction: Direction) -> &[Policy] {
        match direction {
            Direction::In => &self.inbound,
            Direction::Out => &self.outbound,
        }
    }

    const fn of_mut(&mut self, direction: Direction) -> &mut Vec<Policy> {
        match direction {
            Direction::In => &mut self.inbound,
            Direction::Out => &mut self.outbound,
        }
    }

    /// Returns the action for a packet, and the policy that decides, unless there is none.
    ///
    /// A policy whose ports a packet does not show is for that packet if it protects or discards,
    /// and is not if it bypasses: a later fragment never passes by a port that it may not have.
    #[must_use]
    pub fn decide(&self, direction: Direction, flow: &Flow) -> (Action, Option<&Policy>) {
        let decides = |policy: &&Policy| match policy.selector.compare(flow) {
            Match::Yes => true,
            Match::No => false,
            Match::Unknown => policy.action != Action::Bypass,
        };
        let policy = self.policies(direction).iter().find(decides);
        (policy.map_or(self.unmatched, |policy| policy.action), policy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selector::Prefix;

    fn policy(protocol: Option<u8>, action: Action, priority: u32) -> Policy {
        let any = Prefix::new([0, 0, 0, 0].into(), 0);
        let selector = Selector { protocol, ..Selector::between(any, any) };
        Policy { selector, direction: Direction::Out, action, priority }
    }

    fn flow(protocol: u8, ports: Option<(u16, u16)>) -> Flow {
        let [source, destination] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        Flow { source, destination, protocol, ports }
    }

    #[test]
    fn the_first_policy_by_priority_decides() {
        let mut spd = Spd::new(Action::Discard);
        assert_eq!(spd.decide(Direction::Out, &flow(6, None)), (Action::Discard, None));
        let template = Template { request: 7, mode: Mode::Transport, ends: None };
        spd.add(policy(None, Action::Bypass, 20)).unwrap();
        spd.add(policy(Some(6), Action::Protect(template), 10)).unwrap();
        spd.add(policy(Some(6), Action::Discard, 10)).unwrap();
        let action = |spd: &Spd, protocol| spd.decide(Direction::Out, &flow(protocol, None)).0;
        assert_eq!(action(&spd, 6), Action::Protect(template));
        assert_eq!(action(&spd, 17), Action::Bypass);
        assert_eq!(spd.decide(Direction::In, &flow(17, None)).0, Action::Discard);
        let tcp = policy(Some(6), Action::Discard, 0).selector;
        assert_eq!(spd.remove(Direction::Out, &tcp).unwrap().action, Action::Protect(template));
        assert_eq!(action(&spd, 6), Action::Discard);
        assert!(spd.remove(Direction::Out, &tcp).is_some());
        assert_eq!(spd.remove(Direction::Out, &tcp), None);
        assert_eq!(action(&spd, 6), Action::Bypass);
    }

    #[test]
    fn a_packet_without_visible_ports_does_not_bypass_by_a_port() {
        let mut spd = Spd::new(Action::Discard);
        let mut bypass = policy(Some(17), Action::Bypass, 1);
        bypass.selector.destination_ports = Some(500..=500);
        spd.add(bypass).unwrap();
        let action = |ports| spd.decide(Direction::Out, &flow(17, ports)).0;
        assert_eq!(action(Some((500, 500))), Action::Bypass);
        assert_eq!(action(None), Action::Discard);
    }

    #[test]
    fn policies_are_limited() {
        let mut spd = Spd::new(Action::Bypass);
        for _ in 0..POLICIES_MAX {
            spd.add(policy(None, Action::Bypass, 0)).unwrap();
        }
        assert_eq!(spd.add(policy(None, Action::Bypass, 0)), Err(TooManyPolicies));
    }
}
