//! Final report of a gate.

use serde::Serialize;
use urnic_ipoib::counters::Counters;

use super::{Dhcp, Direction, Icmp};

#[derive(Debug, Serialize)]
pub(crate) struct GateSummary {
    seconds: f64,
    link: Link,
    to_link: Direction,
    to_kernel: Direction,
    icmp: Icmp,
    dhcp: Dhcp,
    kernel_groups_refused: u64,
}

#[derive(Debug, Serialize)]
struct Link {
    up: bool,
    mtu: usize,
    link_ups: u64,
    packets_sent: u64,
    datagrams_received: u64,
    sa_requests: u64,
    sa_requests_unanswered: u64,
    sm_reports: u64,
    malformed_packets: u64,
    p_key_mismatches: u64,
    q_key_mismatches: u64,
    bad_datagrams: u64,
    mads_refused: u64,
    without_path: u64,
    without_group: u64,
    waiting_dropped: u64,
}

impl GateSummary {
    pub(crate) const fn of(
        seconds: f64,
        (up, mtu, counters): (bool, usize, &Counters),
        kernel_groups_refused: u64,
        (to_link, to_kernel, icmp, dhcp): (Direction, Direction, Icmp, Dhcp),
    ) -> Self {
        let link = Link {
            up,
            mtu,
            link_ups: counters.link_ups,
            packets_sent: counters.datagrams_sent,
            datagrams_received: counters.datagrams_received,
            sa_requests: counters.requests_sent,
            sa_requests_unanswered: counters.requests_unanswered,
            sm_reports: counters.reports,
            malformed_packets: counters.malformed_packets,
            p_key_mismatches: counters.p_key_mismatches,
            q_key_mismatches: counters.q_key_mismatches,
            bad_datagrams: counters.bad_datagrams,
            mads_refused: counters.mads_refused,
            without_path: counters.without_path,
            without_group: counters.without_group,
            waiting_dropped: counters.waiting_dropped,
        };
        Self { seconds, link, to_link, to_kernel, icmp, dhcp, kernel_groups_refused }
    }

    pub(crate) fn text(&self) -> String {
        let Self { seconds, link, to_link, to_kernel, icmp, dhcp, kernel_groups_refused } = self;
        let state = if link.up { "up" } else { "down" };
        let of = |direction: &Direction| {
            let Direction { received, forwarded, forwarded_bytes, cut, undelivered, .. } =
                direction;
            let Direction { own, stayed, .. } = direction;
            let Direction { malformed, martians, hops_exceeded, too_big, .. } = direction;
            let Direction { unreachable, lost, .. } = direction;
            format!(
                "{forwarded} of {received} datagrams ({forwarded_bytes} bytes, {cut} cut, \
                 {undelivered} undelivered)\n  the \
                 others: {own} for the gate, {stayed} of one link, {hops_exceeded} without hops, \
                 {too_big} too big, {unreachable} unreachable, {lost} lost, {malformed} malformed, \
                 {martians} with impossible addresses"
            )
        };
        format!(
            "{seconds:.1} s; the link is {state}, came up {} times, {} requests to the \
             administrator\nto the link: {}\nto the kernel: {}\nthe gate: {} reports, {} withheld, \
             {} rate-limited, {} echo replies; {kernel_groups_refused} groups refused, \
             {} messages of DHCP relayed",
            link.link_ups,
            link.sa_requests,
            of(to_link),
            of(to_kernel),
            icmp.reports,
            icmp.reports_withheld,
            icmp.rate_limited,
            icmp.echoes,
            dhcp.relayed,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures_page;

    #[test]
    fn each_figure_of_a_gate_has_a_definition() {
        let parts = (Direction::default(), Direction::default(), Icmp::default(), Dhcp::default());
        let summary = GateSummary::of(0.0, (true, 2044, &Counters::default()), 0, parts);
        figures_page::compare("ibgate", figures_page::sentences(&summary.text()));
        figures_page::compare_json("ibgate", &[summary]);
    }

    #[test]
    fn each_counter_is_printed_in_its_field() {
        let counters =
            Counters { link_ups: 21, requests_sent: 22, reports: 23, ..Counters::default() };
        let direction = |first: u64| Direction {
            received: first,
            received_bytes: first + 50,
            forwarded: first + 1,
            forwarded_bytes: first + 2,
            cut: first + 3,
            undelivered: first + 4,
            own: first + 5,
            stayed: first + 6,
            malformed: first + 7,
            martians: first + 8,
            hops_exceeded: first + 9,
            too_big: first + 10,
            unreachable: first + 11,
            lost: first + 12,
        };
        let icmp = Icmp { reports: 1, reports_withheld: 2, rate_limited: 3, echoes: 4 };
        let dhcp = Dhcp { relayed: 5, dropped: 6 };
        let parts = (direction(100), direction(200), icmp, dhcp);
        let summary = GateSummary::of(1.5, (false, 1500, &counters), 7, parts);
        assert_eq!(
            summary.text(),
            "1.5 s; the link is down, came up 21 times, 22 requests to the administrator\n\
             to the link: 101 of 100 datagrams (102 bytes, 103 cut, 104 undelivered)\n  the others: \
             105 for the gate, 106 of one link, 109 without hops, 110 too big, 111 unreachable, 112 \
             lost, 107 malformed, 108 with impossible addresses\n\
             to the kernel: 201 of 200 datagrams (202 bytes, 203 cut, 204 undelivered)\n  the others: \
             205 for the gate, 206 of one link, 209 without hops, 210 too big, 211 unreachable, 212 \
             lost, 207 malformed, 208 with impossible addresses\n\
             the gate: 1 reports, 2 withheld, 3 rate-limited, 4 echo replies; 7 groups refused, 5 \
             messages of DHCP relayed"
        );
        let told = serde_json::to_value(&summary).unwrap();
        assert_eq!(
            (&told["link"]["sm_reports"], &told["dhcp"]["dropped"]),
            (&23.into(), &6.into())
        );
        assert_eq!(told["to_kernel"]["received_bytes"], 250);
    }
}
