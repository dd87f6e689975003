use std::net::Ipv4Addr;

use urnic_engine::port::VlanId;

use super::*;

fn refusal(text: &str) -> String {
    text.parse::<DeviceSpec>().unwrap_err()
}

#[test]
fn every_setting_is_read() {
    let text = "tap:urn0,ip=10.9.0.2/24,ip6=fd00::2/64,mac=02:00:00:00:00:07,mtu=9000,\
                vnet=off,queues=4,gw=10.9.0.1,gw6=fd00::1";
    let spec: DeviceSpec = text.parse().unwrap();
    assert_eq!(spec.to_string(), text);
    let Kind::Tap(tap) = spec.kind() else { panic!("{spec:?}") };
    assert_eq!(tap.name.as_str(), "urn0");
    let tap = &tap.network;
    assert_eq!(tap.ip, Some((Ipv4Addr::new(10, 9, 0, 2), 24)));
    assert_eq!(tap.ip6, Some(("fd00::2".parse().unwrap(), 64)));
    assert_eq!(tap.mac, Some([2, 0, 0, 0, 0, 7]));
    assert_eq!((tap.mtu, tap.vnet, tap.queues), (Some(9000), Some(false), 4));
    assert_eq!(tap.gw, Some(Ipv4Addr::new(10, 9, 0, 1)));
    assert_eq!(tap.gw6, Some("fd00::1".parse().unwrap()));
    let xdp: DeviceSpec = "xdp:eth0,queue=3,ip=10.0.0.1/8,zerocopy=on".parse().unwrap();
    let Kind::Xdp(xdp) = xdp.kind() else { panic!("{xdp:?}") };
    assert_eq!((xdp.queue, xdp.zerocopy), (Some(3), Some(true)));
    let packet: DeviceSpec = "packet:eth0,dhcp,vlan=7".parse().unwrap();
    let Kind::Packet(packet) = packet.kind() else { panic!("{packet:?}") };
    assert_eq!((packet.network.dhcp, packet.network.vlan), (true, VlanId::new(7)));
    let text = "vhost-user:/run/a:b.sock,ip=10.0.0.1/8,queues=2,mtu=9000,sealed";
    let spec: DeviceSpec = text.parse().unwrap();
    let Kind::VhostUser(backend) = spec.kind() else { panic!("{spec:?}") };
    assert_eq!(backend.path.to_str(), Some("/run/a:b.sock"));
    assert_eq!((backend.listens, backend.sealed), (true, true));
    assert_eq!((backend.network.queues, backend.network.mtu), (2, Some(9000)));
    assert!(spec.copies_to_send() && spec.interface().is_none());
    let shm: DeviceSpec = "shm:/run/s,ip=10.0.0.1/8,mtu=9000".parse().unwrap();
    assert!(!shm.copies_to_send() && shm.interface().is_none());
    assert!(shm.sends_published() && !spec.sends_published());
    for (setting, shares) in [("", false), (",share", true), (",share=off", false)] {
        let spec: DeviceSpec = format!("virtio-user:s,ip=10.0.0.1/8{setting}").parse().unwrap();
        assert_eq!((spec.sends_published(), spec.copies_to_send()), (shares, !shares));
    }
    assert!(refusal("shm:s,ip=10.0.0.1/8,vnet=off").contains("unknown setting 'vnet'"));
    assert!(refusal("shm").contains("shm:PATH"));
    for (text, is_listening) in [
        ("shm:s,ip=10.0.0.1/8", false),
        ("shm:s,ip=10.0.0.1/8,listen", true),
        ("virtio-user:s,ip=10.0.0.1/8", false),
        ("virtio-user:s,ip=10.0.0.1/8,listen", true),
        ("virtio-user:s,ip=10.0.0.1/8,listen=off", false),
        ("vhost-user:s,ip=10.0.0.1/8,connect", false),
        ("vhost-user:s,ip=10.0.0.1/8,vnet=off", true),
    ] {
        let spec: DeviceSpec = text.parse().unwrap();
        let (Kind::VhostUser(socket) | Kind::VirtioUser(socket) | Kind::Shm(socket)) = spec.kind()
        else {
            panic!("{spec:?}")
        };
        assert_eq!(socket.listens, is_listening, "{text}");
        assert_eq!(spec.addresses().unwrap().len(), 1, "{text}");
    }
    assert!("kernel".parse::<DeviceSpec>().unwrap().is_kernel());
    for text in [
        "tap:t,ip=10.0.0.2/31,gw=10.0.0.3",
        "tap:t,ip=10.0.0.2/1,gw=127.0.0.1",
        "tap:t,ip6=fd00::2/64,gw6=fe80::1",
        "packet:t,dhcp,gw=10.0.0.1",
    ] {
        assert!(text.parse::<DeviceSpec>().is_ok(), "{text}");
    }
}

#[test]
fn neighbours_and_gateways_are_reachable() {
    let reaches = |dev: &str, peer: &str| {
        let dev: DeviceSpec = dev.parse().unwrap();
        dev.no_way_to(peer.parse().unwrap()).is_none()
    };
    for dev in ["kernel", "tap:t,ip=10.0.0.2/8,gw=10.0.0.1", "tap:t,ip=10.0.0.2/1", "tap:t,dhcp"] {
        assert!(reaches(dev, "10.9.9.9") && reaches(dev, "11.1.1.1"), "{dev}");
    }
    assert!(reaches("tap:t,ip=10.0.0.2/24", "10.0.0.9"));
    assert!(!reaches("tap:t,ip=10.0.0.2/24", "10.0.1.9"));
    assert!(!reaches("tap:t,ip=10.0.0.2/32", "10.0.0.3"));
    assert!(reaches("tap:t,ip6=fd00::2/64", "fe80::1"));
    assert!(!reaches("tap:t,ip6=fd00::2/128", "fd00::3"));
}

#[test]
fn a_refusal_names_the_part_that_is_wrong() {
    for (text, part) in [
        ("", "unknown kind"),
        ("eth0", "unknown kind of device 'eth0'"),
        ("kernel:x", "no settings"),
        ("tap", "which interface"),
        ("tap:t0", "needs an address"),
        ("tap:a-name-too-long-for-linux,ip=10.0.0.1/8", "interface 'a-name"),
        ("tap:t0,ip=10.0.0", "'ip=10.0.0': an address"),
        ("tap:t0,ip=10.0.0.1", "length is missing: such as 10.0.0.1/24"),
        ("tap:t0,ip6=fd00::1", "length is missing"),
        ("tap:t0,ip=10.0.0.2/24,gw=10.0.1.1", "'gw=10.0.1.1' is no neighbour"),
        ("tap:t0,ip=10.0.0.2/24,gw=10.0.0.2", "no neighbour"),
        ("tap:t0,ip=10.0.0.2/32,gw=10.0.0.3", "no neighbour"),
        ("tap:t0,ip6=fd00::2/64,gw6=fd00:0:0:1::1", "'gw6=fd00:0:0:1::1' is no neighbour"),
        ("tap:t0,ip6=fd00::2/128,gw6=fd00::2", "no neighbour"),
        ("tap:t0,ip=10.0.0.1/33", "from 1 to 32"),
        ("tap:t0,ip=10.0.0.1/0", "from 1 to 32"),
        ("tap:t0,ip=224.0.0.1/4", "not an address a host"),
        ("tap:t0,ip=10.0.0.1/8,ip=10.0.0.2/8", "'ip' is said twice"),
        ("tap:t0,ip=10.0.0.1/8,speed=9", "unknown setting 'speed': allowed are ip,"),
        ("tap:t0,ip=10.0.0.1/8,mac=01:00:00:00:00:00", "group address"),
        ("tap:t0,ip=10.0.0.1/8,mac=2:0:0:0:0:0", "'mac=2:0:0:0:0:0'"),
        ("tap:t0,ip=10.0.0.1/8,vnet=yes", "'vnet=yes': on or off"),
        ("tap:t0,ip=10.0.0.1/8,queues=0", "1 to 64 queues"),
        ("packet:eth0,ip=10.0.0.1/8,queues=65", "1 to 64 queues"),
        ("tap:t0,dhcp,queues=2", "one queue only"),
        ("tap:t0,ip=10.0.0.1/8,vlan=4095", "from 1 to 4094"),
        ("tap:t0,ip=10.0.0.1/8,dhcp", "leave ip= out"),
        ("tap:t0,ip=10.0.0.1/8,congestion=bbr", "'congestion=bbr': cubic, dctcp or reno"),
        ("tap:t0,ip=10.0.0.1/8,congestion", "'congestion': cubic, dctcp or reno"),
        ("kernel,congestion=dctcp", "unknown kind of device"),
        ("tap:t0,dhcp=perhaps", "'dhcp=perhaps': on or off"),
        ("packet:eth0,ip=10.0.0.1/8,mtu=9000", "unknown setting 'mtu'"),
        ("xdp:eth0,ip6=fe80::g/64", "'ip6=fe80::g/64'"),
        ("vhost-user", "which socket"),
        ("virtio-user:", "path of the socket"),
        ("vhost-user:s", "'s' needs an address"),
        ("vhost-user:s,ip=10.0.0.1/8,listen", "unknown setting 'listen'"),
        ("virtio-user:s,ip=10.0.0.1/8,sealed", "unknown setting 'sealed'"),
        ("virtio-user:s,ip=10.0.0.1/8,share=maybe", "'share=maybe'"),
        ("vhost-user:s,ip=10.0.0.1/8,share", "unknown setting 'share'"),
        ("virtio-user:s,ip=10.0.0.1/8,listen=maybe", "'listen=maybe': on or off"),
        ("shm:s,ip=10.0.0.1/8,peer=root", "'peer=root': the number of a user"),
        ("shm:s,ip=10.0.0.1/8,peer=4294967296", "the number of a user"),
        ("tap:t0,ip=10.0.0.1/8,peer=0", "unknown setting 'peer'"),
        ("shm:s,ip=10.0.0.1/8,memory=1G", "unknown setting 'memory'"),
        ("vhost-user:s,ip=10.0.0.1/8,memory=0G", "'memory=0G': a size"),
        ("vhost-user:s,ip=10.0.0.1/8,memory=", "a size is wanted"),
        ("vhost-user:s,ip=10.0.0.1/8,memory=64", "a size is wanted"),
        ("vhost-user:s,ip=10.0.0.1/8,memory=16777216T", "a size is wanted"),
    ] {
        let why = refusal(text);
        assert!(why.contains(part), "{text}: {why}");
    }
}

#[test]
fn peer_user_and_memory_limit_are_parsed() {
    let socket = |text: &str| {
        let spec: DeviceSpec = text.parse().unwrap();
        match spec.kind() {
            Kind::Shm(socket) | Kind::VhostUser(socket) | Kind::VirtioUser(socket) => {
                (socket.peer, socket.memory_max)
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(socket("shm:s,ip=10.0.0.1/8"), (None, 64 << 30));
    assert_eq!(socket("shm:s,ip=10.0.0.1/8,peer=65534").0, Some(65_534));
    assert_eq!(socket("virtio-user:s,ip=10.0.0.1/8,peer=0").0, Some(0));
    for (text, bytes) in [("512M", 512 << 20), ("3G", 3 << 30), ("2T", 2 << 40)] {
        let text = format!("vhost-user:s,ip=10.0.0.1/8,peer=7,memory={text}");
        assert_eq!(socket(&text), (Some(7), bytes));
    }
}
