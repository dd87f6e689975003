//! `urnic serve` with an address from a DHCP server, and without one.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use smoltcp::wire::{DhcpMessageType, DhcpPacket, DhcpRepr};

use crate::commands_tap::scene::{PATIENCE, Server, client, complaint, join, urnic};
use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::ip;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 1);
const LEASED: Ipv4Addr = Ipv4Addr::new(10, 7, 0, 2);

/// RFC 2131 §4.3: an offer for a discovery, an acknowledgment for a request.
fn answer(message: &[u8]) -> Option<Vec<u8>> {
    let packet = DhcpPacket::new_checked(message).ok()?;
    let asked = DhcpRepr::parse(&packet).ok()?;
    let message_type = match asked.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request => DhcpMessageType::Ack,
        _ => return None,
    };
    let reply = DhcpRepr {
        message_type,
        transaction_id: asked.transaction_id,
        secs: 0,
        client_hardware_address: asked.client_hardware_address,
        client_ip: Ipv4Addr::UNSPECIFIED,
        your_ip: LEASED,
        server_ip: GATEWAY,
        router: Some(GATEWAY),
        subnet_mask: Some(Ipv4Addr::new(255, 255, 255, 0)),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: true,
        requested_ip: None,
        client_identifier: None,
        server_identifier: Some(GATEWAY),
        parameter_request_list: None,
        dns_servers: None,
        max_size: None,
        lease_duration: Some(3600),
        renew_duration: None,
        rebind_duration: None,
        additional_options: &[],
    };
    let mut octets = vec![0; reply.buffer_len()];
    reply.emit(&mut DhcpPacket::new_unchecked(&mut octets[..])).unwrap();
    Some(octets)
}

/// Gives every client the address [`LEASED`] until it is stopped.
fn dhcp_server(stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 67)).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let mut buffer = [0; 1500];
        while !stop.load(Ordering::Acquire) {
            let Ok((len, _)) = socket.recv_from(&mut buffer) else { continue };
            if let Some(reply) = answer(&buffer[..len]) {
                socket.send_to(&reply, (Ipv4Addr::BROADCAST, 68)).unwrap();
            }
        }
    })
}

netns_tests! {
    with ["/dev/net/tun"];

    fn server_listens_at_its_leased_address_and_prints_it() {
        join(&["tap-s", "tap-c"]);
        ip(&format!("address add {GATEWAY}/24 dev bridge0"));
        ip("route add default dev bridge0");
        let stop = Arc::new(AtomicBool::new(false));
        let dhcp = dhcp_server(&stop);
        let server = Server::start_at("0.0.0.0:7174", "--dev tap:tap-s,dhcp");
        assert!(server.line().contains("listening at 10.7.0.2:7174 "), "{}", server.line());
        let output = client("ping ADDRESS --count 1 --dev tap:tap-c,ip=10.7.0.3/24");
        assert!(output.status.success(), "{}", complaint(&output));
        assert_eq!(server.complaints(), Vec::<String>::new());
        server.stop();
        let output = client("serve --listen 10.7.0.9:7174 --dev tap:tap-s,dhcp");
        assert_eq!(output.status.code(), Some(2));
        assert!(complaint(&output).contains("10.7.0.9 is not 10.7.0.2"), "{}", complaint(&output));
        stop.store(true, Ordering::Release);
        dhcp.join().unwrap();
    }

    fn without_a_dhcp_server_it_says_so_and_does_not_listen() {
        join(&["tap-s"]);
        let command = "serve --listen 0.0.0.0:7174 --dev tap:tap-s,dhcp --timeout 200ms";
        let mut server = urnic(command).spawn().unwrap();
        let mut errors = BufReader::new(server.stderr.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            errors.read_line(&mut line).unwrap();
            sender.send(line).unwrap();
        });
        let said = receiver.recv_timeout(PATIENCE).unwrap();
        assert!(said.contains("no DHCP server"), "{said}");
        kill_process(Pid::from_child(&server), Signal::INT).unwrap();
        let mut listens = String::new();
        server.stdout.take().unwrap().read_to_string(&mut listens).unwrap();
        assert_eq!((listens.as_str(), server.wait().unwrap().code()), ("", Some(0)));
    }
}
