//! Random histories of a fabric: managers that restart or are silent, links that go down and up,
//! changed LIDs, late, lost or duplicate answers, hosts that join, leave and send. At the end every
//! host must reach every other, and the administrator must know exactly the hosts' memberships.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use super::*;
use crate::limits::REFRESH_NS;

const SEEDS: u64 = 100;
const HOSTS: usize = 3;
const GROUPS: [Ipv4Addr; 3] =
    [Ipv4Addr::new(239, 1, 0, 1), Ipv4Addr::new(239, 1, 0, 2), Ipv4Addr::new(239, 1, 0, 3)];

fn below(random: &mut ChaCha20Rng, bound: usize) -> usize {
    usize::try_from(random.next_u32()).unwrap() % bound
}

/// Executes one random event.
fn happen(scene: &mut Scene, random: &mut ChaCha20Rng, joined: &mut [[bool; 3]; HOSTS]) {
    let host = below(random, HOSTS);
    let group = below(random, GROUPS.len());
    let address = IpAddr::V4(GROUPS[group]);
    let now_ns = scene.now_ns;
    let count = u32::try_from(below(random, 6)).unwrap();
    match below(random, 16) {
        0 => scene.fabric.restart_manager(),
        1 => scene.fabric.set_link(now_ns, guid(host), false),
        2 => scene.fabric.set_link(now_ns, guid(host), true),
        3 => scene.fabric.move_port(guid(host)),
        4 => scene.fabric.set_silent(random.next_u32() & 1 == 0),
        5 => scene.fabric.set_busy(count),
        6 => scene.fabric.set_double(count),
        7 => scene.fabric.set_mute(count),
        8 => {
            let mut mad = [0; MAD_LEN];
            random.fill_bytes(&mut mad);
            mad[..3].copy_from_slice(&[1, 3, 2]);
            let from = Lid(u16::try_from(below(random, 20)).unwrap());
            scene.fabric.forge_mad(now_ns, guid(host), from, &mad);
        }
        9 | 10 => {
            joined[host][group] = true;
            scene.hosts[host].join_group(now_ns, address);
        }
        11 => {
            joined[host][group] = false;
            scene.hosts[host].leave_group(now_ns, address);
        }
        12 => restart(scene, random, host, joined),
        // The link may be down.
        _ => {
            let to = if count < 3 { address } else { ip4((host + 1) % HOSTS).into() };
            let _down = scene.send(host, &datagram(host, to, 60));
        }
    }
}

/// Restarts a host with another queue pair, perhaps while its port is disconnected. The new process
/// joins the groups of the old one.
fn restart(
    scene: &mut Scene,
    random: &mut ChaCha20Rng,
    host: usize,
    joined: &mut [[bool; 3]; HOSTS],
) {
    let now_ns = scene.now_ns;
    let qpn = Qpn::from_bits(0x100 + random.next_u32() % 0x1000);
    let again = LinkConfig { qpn, ..settings(host) };
    let was_out = random.next_u32() & 1 == 0;
    if was_out {
        scene.fabric.set_link(now_ns, guid(host), false);
    }
    // Requests lost at the end of a process are not repeated.
    calm(scene);
    let port = MemoryPort::new(scene.fabric.clone(), guid(host));
    scene.hosts[host] = IpoibDevice::new(port, again);
    if was_out {
        scene.fabric.set_link(now_ns, guid(host), true);
        joined[host] = [false; 3];
    }
    for (group, is_joined) in GROUPS.iter().zip(joined[host]) {
        if is_joined {
            scene.hosts[host].join_group(now_ns, (*group).into());
        }
    }
}

fn calm(scene: &Scene) {
    scene.fabric.set_silent(false);
    scene.fabric.set_busy(0);
    scene.fabric.set_mute(0);
    scene.fabric.set_double(0);
}

/// Checks the final state.
fn check(scene: &mut Scene, joined: &[[bool; 3]; HOSTS]) {
    for host in 0..HOSTS {
        assert!(scene.hosts[host].link_up(), "{:?}", scene.state(host));
        assert_eq!(scene.hosts[host].link().waiting_octets(), 0);
    }
    let map = MulticastMap::new(Scope::LINK_LOCAL, PKey(0xffff));
    for (at, group) in GROUPS.iter().enumerate() {
        let hosts: Vec<_> = (0..HOSTS).filter(|host| joined[*host][at]).collect();
        let members = (!hosts.is_empty()).then_some(hosts.len());
        let known = scene.fabric.members(map.ipv4(*group));
        assert_eq!(known, members, "{group}: {hosts:?}");
    }
    warm_up(scene);
    for from in 0..HOSTS {
        for to in (0..HOSTS).filter(|to| *to != from) {
            assert!(scene.arrives(from, ip4(to).into(), 100, to), "{from} to {to}");
            assert!(scene.arrives(from, ip6(to).into(), 100, to), "{from} to {to}");
            for (at, group) in GROUPS.iter().enumerate() {
                let arrives = scene.arrives(from, IpAddr::V4(*group), 100, to);
                assert_eq!(arrives, joined[to][at], "{from} to {group} at {to}");
            }
        }
    }
}

/// Uses all paths and neighbours, so that missed changes are detected.
fn warm_up(scene: &mut Scene) {
    for _ in 0..6 {
        for from in 0..HOSTS {
            for to in (0..HOSTS).filter(|to| *to != from) {
                scene.send(from, &datagram(from, ip4(to).into(), 60)).unwrap();
                scene.send(from, &datagram(from, ip6(to).into(), 60)).unwrap();
            }
        }
        scene.run(2 * SECOND);
    }
}

/// Checks that packets cause no queries.
fn check_quiet(scene: &mut Scene) {
    let asked = scene.fabric.asked();
    for _ in 0..50 {
        for from in 0..HOSTS {
            let to = (from + 1) % HOSTS;
            assert!(scene.arrives(from, ip4(to).into(), 60, to));
        }
    }
    let now = scene.fabric.asked();
    assert_eq!((now.paths, now.leaves), (asked.paths, asked.leaves));
    // A refresh of each host may occur meanwhile.
    let said_again = now.joins + now.subscriptions - asked.joins - asked.subscriptions;
    assert!(said_again < 60, "{said_again} for 150 packets");
}

fn run(seed: u64) {
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    let latency_ns = [0, 5_000, 500_000][below(&mut random, 3)];
    let mut scene = Scene::new(FabricConfig { latency_ns, ..FabricConfig::default() }, HOSTS);
    let mut joined = [[false; 3]; HOSTS];
    for _ in 0..20 + below(&mut random, 60) {
        happen(&mut scene, &mut random, &mut joined);
        let pause = [0, 10_000, MS, 300 * MS, 5 * SECOND, 40 * SECOND][below(&mut random, 6)];
        scene.run(1 + pause);
    }
    calm(&scene);
    for host in 0..HOSTS {
        scene.fabric.set_link(scene.now_ns, guid(host), true);
    }
    // Send-only groups are left after a long idle time.
    scene.run(crate::limits::GROUP_IDLE_NS + 3 * REFRESH_NS);
    check(&mut scene, &joined);
    // Immediately after a refresh, with paths and neighbours in use.
    scene.run(REFRESH_NS);
    warm_up(&mut scene);
    check_quiet(&mut scene);
}

#[test]
fn links_recover_from_every_fault_of_the_fabric() {
    for seed in 0..SEEDS {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}
