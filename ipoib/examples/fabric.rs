//! Brings two IPoIB links up on a fabric in memory, under a clock of the example's own.
#![expect(clippy::print_stdout, reason = "an example shows what it did")]

use std::net::Ipv4Addr;

use urnic_ipoib::device::IpoibDevice;
use urnic_ipoib::link::LinkConfig;
use urnic_ipoib::memory::{Fabric, FabricConfig};
use urnic_ipoib::wire::address::{Guid, PKey, Qpn};
use urnic_netdev::Device;

fn main() {
    let fabric = Fabric::new(FabricConfig::default());
    let mut links: Vec<_> = [1u8, 2]
        .into_iter()
        .map(|host| {
            let port = fabric.plug(Guid(0x10_0000 + u64::from(host)), &[PKey(0xffff)]);
            // The key of the link's random choices: fixed, so that each run is the same.
            let config = LinkConfig::new(Qpn::from_bits(0x48 + u32::from(host)), [host; 32]);
            let ipv4 = Some((Ipv4Addr::new(10, 0, 0, host), 24));
            IpoibDevice::new(port, LinkConfig { ipv4, ..config })
        })
        .collect();

    let mut now_ns = 0;
    while !links.iter().all(Device::link_up) {
        for link in &mut links {
            link.receive(now_ns, 64, &mut |_datagram| ());
        }
        now_ns += 1_000_000;
    }
    println!("both links are up after {} ms", now_ns / 1_000_000);
}
