//! Partitions as OpenSM's configuration defines them: members, MTU, scope.

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::programs::is_there;

use super::scene::{NEEDS, Process, Recorded, fabric_with, packets};
use super::{dev, json, output, serve};

/// One full member, and two limited ones.
const LIMITED: &str = "\
Default=0x7fff,ipoib,mtu=4,rate=3,scope=2,Q_Key=0x80010b1b : ALL=full;
green=0x8002,ipoib,mtu=4,rate=3,Q_Key=0x80030b1b :
	0x100004=full, 0x100007=limited, 0x10000a=limited;
";
/// A broadcast group that no port of ibsim can carry, because ports are limited to 2048 bytes.
const LONG: &str = "\
Default=0x7fff,ipoib,mtu=5,rate=3,scope=2,Q_Key=0x80010b1b : ALL=full;
";
/// A link with the scope of a site.
const SITE: &str = "\
Default=0x7fff,ipoib,mtu=4,rate=3,scope=2,Q_Key=0x80010b1b : ALL=full;
blue=0x8001,ipoib,mtu=4,rate=3,Q_Key=0x80020b1b :
	mgid=ff15:401b::ffff:ffff,scope=5,Q_Key=0x80020b1b
	ALL=full;
";

netns_tests! {
    with NEEDS;

    /// RFC 4392 §1.2: two limited members receive nothing from each other; all other traffic
    /// passes.
    fn limited_members_receive_from_full_ones_only() {
        let fabric = fabric_with("limited", LIMITED);
        let switch = Recorded::start(&fabric);
        let key = ",pkey=8002";
        for (server, clients) in [(2, [(3, true), (4, true)]), (3, [(2, true), (4, false)])] {
            let _server = serve(server, key);
            for (client, hears) in clients {
                let from = dev(client, key);
                let pinged = output(&format!(
                    "ping 10.9.0.{server} --dev {from} --count 1 --timeout 4s"
                ));
                let complaint = String::from_utf8_lossy(&pinged.stderr);
                let expected = if hears { 0 } else { 2 };
                let status = pinged.status.code();
                assert_eq!(status, Some(expected), "{client} to {server}: {complaint}");
            }
        }
        switch.end();
    }

    /// RFC 4392 §4: the link stays down, with the reason.
    fn a_group_that_the_port_cannot_carry_leaves_the_link_down() {
        let _fabric = fabric_with("long", LONG);
        let _switch = Process::switch("");
        let from = dev(3, "");
        let log = "--log urnic::ipoib=info";
        let pinged = output(&format!("ping 10.9.0.2 --dev {from} --timeout 3s {log}"));
        let complaint = String::from_utf8_lossy(&pinged.stderr).into_owned();
        assert_eq!(pinged.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains("an MTU"), "{complaint}");
    }

    /// RFC 4391 §4: the scope of the broadcast group is that of all groups of the link.
    fn all_groups_of_a_link_have_its_scope() {
        let fabric = fabric_with("site", SITE);
        let switch = Recorded::start(&fabric);
        let server = serve(2, ",pkey=8001,scope=5");
        let from = dev(4, ",pkey=8001,scope=5");
        for to in ["10.9.0.2", "[fd00::2]"] {
            json(&format!("ping {to} --dev {from} --count 2 --interval 1ms"));
        }
        drop(server);
        let (_, capture) = switch.end();
        if is_there("tshark") {
            let groups = "infiniband.grh.dgid == ff00::/8";
            let of_the_site = "infiniband.grh.dgid == ff15::/16";
            let count = packets(&capture, groups);
            assert!(count > 0, "packets to groups");
            assert_eq!(packets(&capture, of_the_site), count);
        }
    }
}
