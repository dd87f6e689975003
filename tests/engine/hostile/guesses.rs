//! An outsider that sees every byte that leaves a port cannot predict later values from them (RFC
//! 5040 §8.1.1 (8), RFC 6528, RFC 6056, RFC 4987).

use std::collections::HashSet;
use std::net::SocketAddr;

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use urnic_engine::mem::Access;
use urnic_engine::port::{LowerLayer, Port, PortConfig};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::verbs::{Rnic, RnicConfig, Seed};
use urnic_netdev::{Capabilities, Medium, TxFrame};

const CAPABILITIES: Capabilities = Capabilities {
    medium: Medium::Ip,
    mtu: 1500,
    segmentation_len_max: None,
    tx_checksum: false,
    fragments_max: usize::MAX,
    gather_len_min: 0,
    tx_digest: false,
};
const OWN: [u8; 4] = [10, 0, 0, 1];
const SERVER: [u8; 4] = [10, 0, 0, 2];

fn rnic(seed: Seed) -> Rnic {
    Rnic::new(RnicConfig { seed })
}

fn port(rnic: &Rnic) -> Port {
    Port::new(rnic, PortConfig::for_ipv4(OWN.into()), CAPABILITIES)
}

fn asks_for_address(rnic: &Rnic) -> Port {
    let config = PortConfig::for_dhcp([2, 0, 0, 0, 0, 9]);
    Port::new(rnic, config, Capabilities { medium: Medium::Ethernet, ..CAPABILITIES })
}

/// Returns the frames that leave the port in the seconds from `first` on.
fn heard(port: &mut Port, first: u64, seconds: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for second in first..first + seconds {
        let now = Instant::ZERO + Duration::from_secs(second);
        port.handle_timeout(now);
        port.poll_transmit(now, 64, &mut |frame: &TxFrame<'_>| {
            let mut octets = vec![0; frame.len()];
            frame.gather(&mut octets);
            frames.push(octets);
            Ok(())
        });
    }
    frames
}

fn word(octets: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(octets[at..at + 4].try_into().unwrap())
}

/// Returns the transaction numbers of the DHCP messages among datagrams.
fn transactions(frames: &[Vec<u8>]) -> Vec<u32> {
    let datagrams = frames.iter().filter(|frame| frame[12..14] == [8, 0]).map(|frame| &frame[14..]);
    let of_dhcp = datagrams.filter(|datagram| datagram[9] == 17 && datagram[22..24] == [0, 67]);
    of_dhcp.map(|datagram| word(datagram, 32)).collect()
}

/// Returns the source port, sequence number and timestamp of a SYN.
fn syn(frames: &[Vec<u8>]) -> (u16, u32, u32) {
    let frame = frames.iter().find(|frame| frame[9] == 6 && frame[33] & 2 != 0).unwrap();
    let header = urnic_engine::tcp::Header::parse(&frame[20..]).unwrap().0;
    let timestamp = header.options.timestamps.map_or(0, |timestamps| timestamps.value);
    (header.src_port, header.seq.0, timestamp)
}

fn opened(port: &mut Port, to: SocketAddr) -> (u16, u32, u32) {
    port.open(Instant::ZERO, to, LowerLayer::Optimized).unwrap();
    syn(&heard(port, 0, 1))
}

fn opened_by_host(port: &mut Port, to: SocketAddr) -> (u16, u32, u32) {
    port.host_mut().tcp_connect(to, 4096).unwrap();
    syn(&heard(port, 0, 1))
}

/// Returns the outputs of smoltcp's generator (sPCG32) from a state on.
fn short_generator(mut state: u64) -> impl Iterator<Item = u32> {
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(0xbb2e_fcec_3c39_611d).wrapping_add(0x7590_ef39);
        (state >> (29 - (state >> 61))) as u32
    })
}

fn seed_octets() -> [u8; Seed::LEN] {
    std::array::from_fn(|at| (at * 37 + 11) as u8)
}

#[test]
fn transaction_ids_of_the_host_stack_do_not_reveal_the_seed() {
    let octets = seed_octets();
    let mut port = asks_for_address(&rnic(Seed::from_octets(octets)));
    let said = transactions(&heard(&mut port, 0, 60));
    assert!(said.len() >= 3, "{said:x?}");
    for window in octets.windows(8) {
        let window: [u8; 8] = window.try_into().unwrap();
        for state in [u64::from_le_bytes(window), u64::from_be_bytes(window)] {
            let outputs: Vec<u32> = short_generator(state).take(16).collect();
            assert!(!said.iter().any(|said| outputs.contains(said)), "{state:x}");
        }
    }
    // Nor do they come from the keystream from which tags are drawn.
    let pd = rnic(Seed::from_octets(octets)).alloc_pd();
    let drawn: Vec<u64> = (0..16).map(|_| tag(&pd).into()).collect();
    for two in drawn.windows(2) {
        for state in [two[0] | two[1] << 32, two[1] | two[0] << 32] {
            let outputs: Vec<u32> = short_generator(state).take(16).collect();
            assert!(!said.iter().any(|said| outputs.contains(said)), "{state:x}");
        }
    }
    // Nor are tags the keystream of the seed.
    let pd = rnic(Seed::from_octets(octets)).alloc_pd();
    let tags: Vec<u32> = (0..16).map(|_| tag(&pd)).collect();
    let mut keystream = ChaCha20Rng::from_seed(octets);
    let outputs: Vec<u32> = (0..64).map(|_| keystream.next_u32()).collect();
    assert!(!tags.iter().any(|tag| outputs.contains(tag)));
    // A number with which smoltcp was seeded, as found from its outputs, is no seed of the tags.
    let number = u64::from_le_bytes(octets[..8].try_into().unwrap());
    let pd = rnic(number.into()).alloc_pd();
    assert!(!(0..16).any(|_| tags.contains(&tag(&pd))));
}

fn tag(pd: &urnic_engine::verbs::Pd) -> u32 {
    pd.reg_mr(64, Access::REMOTE_WRITE).unwrap().stag().0
}

#[test]
fn random_outputs_of_one_purpose_reveal_no_other() {
    let to = SocketAddr::from((SERVER, 7174));
    let seed = Seed::from_octets(seed_octets());
    let plain = rnic(seed);
    let first_tag = tag(&plain.alloc_pd());
    let first_syn = opened(&mut port(&plain), to);
    // Many tags are drawn, many messages sent, host sockets opened.
    let busy = rnic(seed);
    let pd = busy.alloc_pd();
    assert_eq!(tag(&pd), first_tag);
    for _ in 0..100 {
        tag(&pd);
    }
    let mut talks = port(&busy);
    for port in 1..20 {
        opened_by_host(&mut talks, SocketAddr::from((SERVER, port)));
    }
    assert_eq!(opened(&mut talks, to), first_syn);
    // The other direction.
    let other = rnic(seed);
    let mut talks = port(&other);
    for port in 1..20 {
        opened(&mut talks, SocketAddr::from((SERVER, port)));
    }
    assert_eq!(tag(&other.alloc_pd()), first_tag);
}

#[test]
fn seed_and_peer_change_every_visible_number() {
    let to = |port| SocketAddr::from((SERVER, port));
    let mut seen: [HashSet<u32>; 5] = Default::default();
    let mut count = 0;
    for number in 0..40_u64 {
        let mut octets = seed_octets();
        octets[31] ^= number as u8;
        let rnic = rnic(Seed::from_octets(octets));
        let (source, isn, timestamp) = opened(&mut port(&rnic), to(7174));
        // Before the clocks have moved, both values are hashes of the same addresses.
        assert_ne!(isn, timestamp, "one key for both");
        let (host_source, host_isn, _) = opened_by_host(&mut port(&rnic), to(7174));
        let values = [u32::from(source), isn, timestamp, u32::from(host_source), host_isn];
        for (seen, value) in seen.iter_mut().zip(values) {
            seen.insert(value);
        }
        count += 1;
    }
    let rnic = rnic(Seed::from_octets(seed_octets()));
    for number in 1..=40 {
        let (source, isn, timestamp) = opened(&mut port(&rnic), to(number));
        let (host_source, host_isn, _) = opened_by_host(&mut port(&rnic), to(number));
        let values = [u32::from(source), isn, timestamp, u32::from(host_source), host_isn];
        for (seen, value) in seen.iter_mut().zip(values) {
            seen.insert(value);
        }
        count += 1;
    }
    let [sources, isns, timestamps, host_sources, host_isns] = seen.map(|seen| seen.len());
    assert_eq!((isns, timestamps, host_isns), (count, count, count));
    // Few of sixteen thousand coincide by chance.
    assert!(sources > count - 5 && host_sources > count - 5, "{sources} {host_sources} of {count}");
}

/// A sequence number of an ordinary socket is not the output of smoltcp's generator: two ports that
/// draw the same output show different numbers to different peers.
#[test]
fn sequence_numbers_of_ordinary_sockets_depend_on_both_ends() {
    let isn = |to: SocketAddr| {
        let rnic = rnic(Seed::from_octets(seed_octets()));
        opened_by_host(&mut port(&rnic), to).1
    };
    let base = isn(SocketAddr::from((SERVER, 80)));
    assert_eq!(isn(SocketAddr::from((SERVER, 80))), base);
    assert_ne!(isn(SocketAddr::from((SERVER, 81))), base);
    assert_ne!(isn(SocketAddr::from(([10, 0, 0, 3], 80))), base);
}

#[test]
fn no_transaction_id_repeats_after_an_mtu_change_or_on_another_port() {
    let rnic = rnic(Seed::from_octets(seed_octets()));
    let mut seen = HashSet::new();
    let mut count = 0;
    for _ in 0..3 {
        let mut port = asks_for_address(&rnic);
        for change in 0..4 {
            let said = transactions(&heard(&mut port, 100 * change, 60));
            assert!(!said.is_empty());
            count += said.len();
            seen.extend(said);
            let mtu = 1400 + change as usize;
            let medium = Medium::Ethernet;
            port.set_capabilities(Instant::ZERO, Capabilities { mtu, medium, ..CAPABILITIES });
        }
    }
    assert_eq!(seen.len(), count, "no number came twice");
}

#[test]
fn a_port_without_link_addresses_asks_for_none_and_goes_on() {
    let rnic = rnic(Seed::from_octets(seed_octets()));
    let config = PortConfig { ipv4: None, dhcp: true, ..PortConfig::for_ipv4(OWN.into()) };
    let mut port = Port::new(&rnic, config, CAPABILITIES);
    assert!(heard(&mut port, 0, 60).iter().all(|frame| frame[0] >> 4 == 6));
}
