//! Groups that the kernel receives.

use std::net::IpAddr;

use super::super::limits::KERNEL_GROUPS_MAX;
use super::*;

/// Builds an IGMPv3 report (RFC 3376 §4.2) with records of one kind; 4 joins, 3 leaves.
fn report(kind: u8, groups: &[[u8; 4]]) -> Vec<u8> {
    let [a, b] = u16::try_from(groups.len()).unwrap().to_be_bytes();
    let mut message = vec![0x22, 0, 0, 0, 0, 0, a, b];
    for group in groups {
        message.extend([kind, 0, 0, 0]);
        message.extend(group);
    }
    wrap(KERNEL[0].parse().unwrap(), "224.0.0.22".parse().unwrap(), 2, &message).unwrap()
}

/// RFC 4605 §4.1: groups that the kernel's programs receive are received on the link and forwarded
/// to the kernel.
#[test]
fn groups_that_the_kernel_reports_are_received() {
    let mut scene = Scene::new();
    let group: IpAddr = "239.7.0.1".parse().unwrap();
    let of_group = datagram(PORT[0], "239.7.0.1", 64, 100);
    assert_eq!(scene.send(Side::Link, &of_group)[0].len(), 0);
    // One group of the link, one that is always received, and one to receive.
    scene.send(Side::Kernel, &report(4, &[[224, 0, 0, 251], [239, 1, 2, 3], [239, 7, 0, 1]]));
    scene.send(Side::Kernel, &report(4, &[[239, 7, 0, 1]]));
    assert_eq!(scene.gate.poll_group_change(), Some(Change::Joins(group)));
    assert_eq!(scene.gate.poll_group_change(), None);
    assert_eq!(scene.send(Side::Link, &of_group)[0].len(), 1);
    scene.send(Side::Kernel, &report(3, &[[239, 1, 2, 3], [239, 7, 0, 1]]));
    assert_eq!(scene.gate.poll_group_change(), Some(Change::Leaves(group)));
    assert_eq!(scene.gate.poll_group_change(), None);
    assert_eq!(scene.send(Side::Link, &of_group)[0].len(), 0);
    // Reports of hosts on the link do not concern the kernel.
    scene.send(Side::Link, &report(4, &[[239, 7, 0, 1]]));
    assert_eq!(scene.gate.poll_group_change(), None);
}

#[test]
fn groups_of_the_kernel_are_bounded() {
    let mut scene = Scene::new();
    let groups: Vec<_> = (0..=u8::MAX).map(|at| [239, 7, 0, at]).collect();
    scene.send(Side::Kernel, &report(4, &groups));
    let changes = std::iter::from_fn(|| scene.gate.poll_group_change()).count();
    assert_eq!(changes, KERNEL_GROUPS_MAX);
    assert_eq!(scene.gate.groups_refused(), 256 - KERNEL_GROUPS_MAX as u64);
    scene.send(Side::Kernel, &report(3, &groups[..1]));
    scene.send(Side::Kernel, &report(4, &groups[255..]));
    assert_eq!(std::iter::from_fn(|| scene.gate.poll_group_change()).count(), 2, "room again");
}
