//! Links of InfiniBand with real parts: ibsim simulates the fabric, OpenSM is its subnet manager
//! and administrator, tshark reads the packets of the nodes. Each test has a network namespace of
//! its own, and therefore its own names of ibsim's sockets.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

mod gate;
mod partitions;
mod scene;

use std::fs;
use std::process::Output;
use std::thread;
use std::time::Duration;

use scene::{NEEDS, Process, Recorded, fabric, packets, urnic, wait_until};
use serde_json::Value;
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::programs::is_there;

fn dev(node: u8, more: &str) -> String {
    format!("ib:sim=sim,node=Hca{node},ip=10.9.0.{node}/24,ip6=fd00::{node}/64{more}")
}

fn output(arguments: &str) -> Output {
    urnic(arguments).output().unwrap()
}

fn json(arguments: &str) -> Value {
    let output = output(&format!("{arguments} --json"));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments}: {complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts a server on the node, for both families.
fn serve(node: u8, more: &str) -> Process {
    Process::serving(&format!("serve --listen [::] --dev {}", dev(node, more)))
}

netns_tests! {
    with NEEDS;

    /// OpenSM's routes deliver every operation, and tshark finds nothing wrong in the packets.
    fn every_operation_between_nodes_of_a_real_subnet() {
        let fabric = fabric("operations");
        let switch = Recorded::start(&fabric);
        let server = serve(2, "");
        let near = dev(3, "");
        let far = dev(4, "");
        for from in [&near, &far] {
            for to in ["10.9.0.2", "[fd00::2]"] {
                let pinged = json(&format!("ping {to} --dev {from} --count 3 --interval 1ms"));
                assert!(pinged["text"].is_null(), "{pinged}");
            }
        }
        for op in ["write", "send", "read"] {
            json(&format!("bw 10.9.0.2 --dev {far} --op {op} --size 64K -n 20"));
        }
        drop(server);
        // The third of the three pairs.
        let server = serve(4, "");
        for to in ["10.9.0.4", "[fd00::4]"] {
            json(&format!("ping {to} --dev {near} --count 3 --interval 1ms"));
        }
        for op in ["write", "send", "read"] {
            json(&format!("bw 10.9.0.4 --dev {near} --op {op} --size 64K -n 2"));
        }
        drop(server);
        let (carried, capture) = switch.end();
        assert_eq!((&carried["ports"], &carried["switches"]), (&4.into(), &2.into()));
        assert_eq!(carried["p_key_violations"], 0, "{carried}");
        // Three times 1.3 MB in datagrams of at most 2044 bytes, and the answers.
        let received = carried["received"].as_u64().unwrap();
        assert!((1900..12_000).contains(&received), "{received} packets");
        if !is_there("tshark") {
            return;
        }
        let read = |filter: &str| packets(&capture, filter);
        assert!(read("arp.hw.type == 32") >= 4, "ARP of InfiniBand");
        assert!(read("icmpv6.opt.length == 3") >= 2, "options of 24 bytes");
        assert!(read("iwarp_ddp_rdmap") > 50, "RDMA is found in it");
        assert_eq!(read("infiniband.deth.q_key != 0x80010b1b"), 0, "the broadcast group's Q_Key");
    }

    /// RFC 4392 §4.1: two partitions are two links.
    fn partitions_isolate_nodes_of_a_real_subnet() {
        let fabric = fabric("partitions");
        let switch = Recorded::start(&fabric);
        let server = serve(2, ",pkey=8001");
        // A full member, and a limited one.
        for node in [4, 3] {
            let from = dev(node, ",pkey=8001");
            json(&format!("ping 10.9.0.2 --dev {from} --count 2 --interval 1ms"));
        }
        let other = dev(4, "");
        let refused = output(&format!("ping 10.9.0.2 --dev {other} --timeout 1s"));
        assert_eq!(refused.status.code(), Some(2));
        drop(server);
        switch.end();
        // A partition without the port, and a fabric or a node that does not exist.
        for (dev, why) in [
            ("ib:sim=none,node=Hca2,ip=10.9.0.9/24", "no ibsim by the name 'none'"),
            ("ib:sim=sim,node=Hca9,ip=10.9.0.9/24", "no place at node 'Hca9'"),
        ] {
            let refused = output(&format!("ping 10.9.0.2 --dev {dev} --timeout 1s"));
            let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
            assert!(complaint.contains(why), "{complaint}");
        }
    }

    /// A cable is unplugged and plugged in again, and another subnet manager takes over: streams go
    /// on.
    fn a_stream_outlives_a_cable_and_a_subnet_manager() {
        let mut fabric = fabric("outlives");
        let switch = Recorded::start(&fabric);
        let _server = serve(2, "");
        let far = dev(4, "");
        // On a busy machine a subnet manager starts slowly.
        let count = "--count 60 --interval 100ms --timeout 30s";
        let pings = Process::start(&format!("ping 10.9.0.2 --dev {far} {count} --json"));
        thread::sleep(Duration::from_millis(700));
        fabric.command("Unlink \"Hca4\"[1]");
        thread::sleep(Duration::from_millis(700));
        fabric.command("Relink \"Hca4\"[1]");
        thread::sleep(Duration::from_millis(1200));
        fabric.restart_manager();
        let pinged: Value = pings.json();
        assert!(pinged.to_string().contains("60"), "{pinged}");
        switch.end();
    }

    /// A new switch finds ports that have nothing to send; its capture can be read meanwhile.
    fn a_switch_that_is_started_anew_reaches_ports_that_are_silent() {
        let fabric = fabric("anew");
        let switch = Recorded::start(&fabric);
        let server = serve(2, "");
        let near = dev(3, "");
        json(&format!("ping 10.9.0.2 --dev {near} --count 2 --interval 1ms"));
        let recorded = fabric.path("packets.pcap");
        wait_until("packets are in the file", || fs::metadata(&recorded).unwrap().len() > 1000);
        switch.end();
        let switch = Recorded::start(&fabric);
        json(&format!("ping 10.9.0.2 --dev {near} --count 2 --interval 1ms --timeout 30s"));
        drop(server);
        switch.end();
    }

    /// Commands that are started together find each other, in any order.
    fn commands_started_before_the_simulator_wait_for_it() {
        let switch = Process::start("ibswitch --sim sim --node Hca1 --json --timeout 60s");
        let listening = format!("--listen [::] --dev {} --timeout 60s", dev(2, ""));
        let server = Process::start(&format!("serve {listening}"));
        let pings = format!("ping 10.9.0.2 --dev {} --count 2 --interval 1ms", dev(3, ""));
        let pings = Process::start(&format!("{pings} --timeout 60s --json"));
        thread::sleep(Duration::from_millis(100));
        let _fabric = fabric("late");
        assert_eq!(pings.json()["count"], 2);
        drop(server);
        assert!(switch.json()["delivered"].as_u64() > Some(0));
    }

    /// A port that is not in its partition has no link.
    fn client_reports_that_its_own_link_is_down() {
        let _fabric = fabric("down");
        let from = dev(3, ",pkey=8005");
        let refused = output(&format!("ping 10.9.0.2 --dev {from} --timeout 500ms"));
        let complaint = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(complaint.contains("itself is down"), "{complaint}");
        assert!(complaint.contains(&format!("urnic info --dev {from}")), "{complaint}");
    }
}
