//! rsockets: programs of rdma-core that use them, sockets of other programs by `librspreload.so`, a
//! program of this project, and lying peers.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use urnic_testkit::octets::{CRC, REPLY_KEY, REQUEST_KEY, fpdu, send, startup};

use super::{Libraries, Program, compiled, free_port, has, robust};

/// Library that turns the sockets of a program into rsockets.
const PRELOAD: &str = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so";

/// Runs server and client with these options to their successful end. Returns the client's output.
fn stream(libraries: &Libraries, program: &str, options: &str, iwarp: bool) -> String {
    let port = free_port();
    let server = libraries.start(&format!("{program} -p {port} {options}"), iwarp).listens(port);
    let said = libraries.run(&format!("{program} -s 127.0.0.1 -p {port} {options}"), iwarp);
    server.finish();
    said
}

#[test]
fn rstream_streams() {
    if !has("rstream_streams", &["rstream"]) {
        return;
    }
    let libraries = Libraries::new();
    for (index, mode) in ["a", "b", "n", "r", "v", "b -T v"].into_iter().enumerate() {
        for size in [64, 300_000] {
            let options = format!("-T {mode} -S {size} -C 20 -I 3");
            let said = stream(&libraries, "rstream", &options, index % 2 == 0);
            assert!(said.contains("custom"), "{options}: {said}");
        }
    }
    let said = stream(&libraries, "rstream", "-S 5000 -C 20 -I 1 -B 8192 -k 5 -f ip", false);
    assert!(said.contains("custom"), "{said}");
}

#[test]
fn riostream_writes_into_mapped_memory() {
    if !has("riostream_writes_into_mapped_memory", &["riostream"]) {
        return;
    }
    let libraries = Libraries::new();
    for (index, mode) in ["a", "b", "n", "v"].into_iter().enumerate() {
        let options = format!("-T {mode} -S 70000 -C 5 -I 3");
        let said = stream(&libraries, "riostream", &options, index % 2 == 0);
        assert!(said.contains("custom"), "{options}: {said}");
    }
}

#[test]
fn rcopy_copies_a_file() {
    if !has("rcopy_copies_a_file", &["rcopy"]) {
        return;
    }
    let libraries = Libraries::new();
    let folder = libraries.0.path();
    let [from, to] = [folder.join("from"), folder.join("to")];
    let octets: Vec<u8> = (0..3_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(&from, &octets).unwrap();
    let port = free_port();
    let _server = libraries.start(&format!("rcopy -p {port}"), false).listens(port);
    libraries.run(&format!("rcopy {} 127.0.0.1:{} -p {port}", from.display(), to.display()), true);
    assert!(fs::read(to).unwrap() == octets);
}

/// The library's own sockets stay the kernel's.
#[test]
fn sockets_of_other_programs_are_rsockets() {
    let test = "sockets_of_other_programs_are_rsockets";
    if !has(test, &["iperf3"]) {
        return;
    }
    if !Path::new(PRELOAD).exists() {
        return urnic_testkit::skip(test, &format!("{PRELOAD} is missing"));
    }
    let libraries = Libraries::new();
    let preload = [("LD_PRELOAD", PRELOAD)];
    for options in ["", "-R", "-P 3"] {
        let port = free_port();
        let server = libraries.start_with(&format!("iperf3 -s -1 -p {port}"), false, &preload);
        let server = server.listens(port);
        let line = format!("iperf3 -c 127.0.0.1 -p {port} -n 20M {options}");
        let said = libraries.start_with(&line, true, &preload).finish();
        assert!(said.contains("iperf Done"), "{said}");
        server.finish();
    }
    // A client without the preload cannot connect to it.
    let port = free_port();
    let _server =
        libraries.start_with(&format!("iperf3 -s -p {port}"), false, &preload).listens(port);
    let mut plain = libraries
        .start(&format!("iperf3 -c 127.0.0.1 -p {port} -n 1M --connect-timeout 2000"), false);
    assert!(!plain.ends(), "{}", plain.said());
}

#[test]
fn rsockets_are_as_sockets_are() {
    compiled::run("rsockets_are_as_sockets_are", "rsockets", &[]);
}

/// `struct rs_conn_data` of a peer with room for ten bytes.
fn conn_data(version: u8, flags: u8, credits: u16) -> Vec<u8> {
    let mut octets = vec![version, flags];
    octets.extend(credits.to_be_bytes());
    octets.extend([0; 4]);
    for (key, len) in [(1_u32, 2_u32), (2, 10)] {
        octets.extend(7_u64.to_be_bytes());
        octets.extend(key.to_be_bytes());
        octets.extend(len.to_be_bytes());
    }
    octets
}

/// Sends of these words.
fn words(words: &[u32]) -> Vec<u8> {
    let numbered = (1..).zip(words);
    numbered.flat_map(|(msn, word)| fpdu(&send(msn, &word.to_le_bytes()), 0, false)).collect()
}

fn asks(port: u16, private_data: &[u8]) -> (TcpStream, Vec<u8>) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.write_all(&startup(REQUEST_KEY, CRC, 1, private_data)).unwrap();
    let mut reply = vec![0; 20];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[..16], REPLY_KEY);
    (stream, reply)
}

/// Returns the number of peers whose connections have ended, by a reset or in order.
fn served(server: &Program) -> usize {
    let said = server.said();
    said.matches("Connection reset by peer").count() + said.matches("end\n").count()
}

#[test]
fn an_rsocket_outlives_peers_that_lie() {
    const REJECTED: u8 = 0x20;
    let libraries = Libraries::new();
    let test = "an_rsocket_outlives_peers_that_lie";
    let Some(program) = compiled::compile_cm(test, &libraries, "rsockets") else { return };
    let port = free_port();
    let line = format!("{} {port} serve", program.display());
    let mut server = libraries.start(&line, false).says(|line| line == "serving");
    let idle = server.holdings_at_rest();
    for (what, private_data) in [
        ("nothing", vec![]),
        ("too little", conn_data(1, 0, 384)[..39].to_vec()),
        ("a later version", conn_data(2, 0, 384)),
        ("numbers of the other order", conn_data(1, 1, 384)),
        ("no credits", conn_data(1, 0, 0)),
    ] {
        let (_stream, reply) = asks(port, &private_data);
        assert_eq!(reply[16] & REJECTED, REJECTED, "{what}");
    }
    // Both halves of its ring.
    let given = 1 << 18;
    let lies = [
        ("more data than there was room for", words(&[given + 1])),
        // The peer has room for ten echoed bytes: then the server stops reading.
        ("more data than there was room for, in parts", words(&[11, given - 10])),
        ("more messages than were asked for", words(&[11].repeat(800))),
        ("data of no octets", words(&[0])),
        ("a message that is none", words(&[1 << 29])),
        ("a control message that is none", words(&[0xe000_0009])),
        ("half a message", fpdu(&send(1, b"ab"), 0, false)),
        ("more than a message", fpdu(&send(1, b"octets"), 0, false)),
    ];
    let mut await_served = |count: usize, what: &str| {
        server.goes_on_until(&format!("is done with those of: {what}"), |server| {
            served(server) >= count
        });
    };
    for (count, (what, octets)) in (1..).zip(&lies) {
        let (mut stream, reply) = asks(port, &conn_data(1, 2, 384));
        assert_eq!(reply[16] & REJECTED, 0, "{what}");
        stream.write_all(octets).unwrap();
        robust::drain(&mut stream, Duration::from_secs(10));
        await_served(count, what);
    }
    // Peers that leave before they are accepted, in order or by a reset.
    for count in 1..=40 {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        rustix::net::sockopt::set_socket_linger(
            &stream,
            (count % 2 == 0).then_some(Duration::ZERO),
        )
        .unwrap();
        (&stream).write_all(&startup(REQUEST_KEY, CRC, 1, &conn_data(1, 2, 384))).unwrap();
        drop(stream);
    }
    // The server may see the reset before the request.
    await_served(lies.len() + 20, "they ask and go");
    // Credits without an end, and a data destination that is not the peer's memory.
    let (mut stream, _) = asks(port, &conn_data(1, 2, 384));
    stream.write_all(&words(&[3, 0x9fff_ffff, 0xe000_0001])).unwrap();
    robust::drain(&mut stream, Duration::from_millis(50));
    drop(stream);
    server.is_back_at(&idle);
    let said = libraries.run(&format!("{} {port} ask", program.display()), true);
    assert!(said.contains("all is well"), "{said}");
    server.finish();
}
