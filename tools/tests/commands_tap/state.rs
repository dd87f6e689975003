//! Interfaces that cannot carry frames, and peers that cannot be reached.

use crate::commands_tap::scene::{PATIENCE, Server, client, complaint};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::ip;

netns_tests! {
    with ["/dev/net/tun"];

    fn an_interface_that_is_down_is_named_with_the_command_that_mends_it() {
        ip("tuntap add dev tap-x mode tap");
        let output = client("ping ADDRESS --dev tap:tap-x,ip=10.7.0.9/24 --timeout 5");
        assert_eq!(output.status.code(), Some(2));
        let said = complaint(&output);
        assert!(said.contains("tap-x is down") && said.contains("'ip link set dev tap-x up'"), "{said}");
        // A server may wait for the interface.
        let server = Server::start("--dev tap:tap-x,ip=10.7.0.2/24");
        let said = server.complaint(PATIENCE).unwrap();
        assert!(said.contains("'ip link set dev tap-x up'"), "{said}");
    }

    /// The kernel's TCP accepts the connection, and the process speaks no MPA.
    fn other_service_and_silent_host_are_distinguished() {
        ip("tuntap add dev tap-x mode tap");
        ip("address add 10.7.0.1/24 dev tap-x");
        ip("link set tap-x up");
        let silent = std::net::TcpListener::bind("10.7.0.1:7174").unwrap();
        let device = "tap:tap-x,ip=10.7.0.9/24";
        let output = client(&format!("ping 10.7.0.1 --dev {device} --timeout 2s"));
        assert_eq!(output.status.code(), Some(2));
        let said = complaint(&output);
        assert!(said.contains("accepts TCP connections") && said.contains("no RDMA service"), "{said}");
        assert!(!said.contains("firewall") && !said.contains("VLAN"), "{said}");
        drop(silent);
        let output = client(&format!("ping 10.7.0.1 --dev {device} --timeout 2s"));
        let said = complaint(&output);
        assert!(said.contains("nothing listens there"), "{said}");
    }

    fn peer_without_a_route_and_silent_peer_are_distinguished() {
        let of = |peer: &str| {
            let device = "tap:tap-x,ip=10.7.0.9/24";
            let output = client(&format!("ping {peer} --dev {device} --timeout 300ms"));
            assert_eq!(output.status.code(), Some(2));
            complaint(&output)
        };
        assert!(of("192.0.2.9").contains("gw="), "{}", of("192.0.2.9"));
        let said = of("10.7.0.77");
        assert!(said.contains("is 10.7.0.77 up") && said.contains("VLAN"), "{said}");
    }
}
