//! Opening TAPs: settings and errors.
#![expect(clippy::disallowed_methods, reason = "devices of the kernel live in real time")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use urnic_netdev::tap::{QUEUE_FRAMES, Tap, TapConfig};
use urnic_netdev::{Device, Medium, OpenError, TxFrame};

use urnic_testkit::isolate::netns_tests;
use urnic_testkit::network::{Namespace, command, ip};

fn config(name: &str) -> TapConfig {
    TapConfig::new(name.parse().unwrap())
}

netns_tests! {
    with ["/dev/net/tun", "setpriv"];

    fn created_interface_is_up_as_configured_and_removed_with_the_device() {
        let mac = Some([2, 0, 0, 0, 0, 9]);
        let tap = Tap::open(&TapConfig { mtu: Some(9000), mac, ..config("tap0") }).unwrap();
        assert!(tap.link_up(), "made ones are up");
        assert_eq!(tap.capabilities().mtu, 9000);
        assert_eq!(tap.capabilities().segmentation_len_max, None);
        let shown = ip("-d link show tap0");
        for wanted in ["mtu 9000", "UP", "02:00:00:00:00:09"] {
            assert!(shown.contains(wanted), "{wanted} in {shown}");
        }
        // The root of a user namespace may not set it, and the TAP works without.
        let queue_is_long = shown.contains(&format!("qlen {QUEUE_FRAMES}"));
        assert!(queue_is_long || urnic_testkit::isolate::in_user_namespace(), "{shown}");
        drop(tap);
        assert!(!ip("link").contains("tap0"), "gone with the device");
    }

    fn an_interface_that_exists_is_left_as_it_is() {
        ip("tuntap add dev tap0 mode tap");
        ip("link set tap0 mtu 1400 txqueuelen 77");
        let tap = Tap::open(&TapConfig { vnet_header: true, ..config("tap0") }).unwrap();
        assert!(!tap.link_up(), "nobody set it up");
        assert_eq!(tap.capabilities().mtu, 1400);
        assert!(tap.capabilities().segmentation_len_max.is_some(), "super-frames");
        assert!(ip("link show tap0").contains("qlen 77"), "queue as it was");
        drop(tap);
        let tap = Tap::open(&TapConfig { up: Some(true), mtu: Some(1300), ..config("tap0") });
        let tap = tap.unwrap();
        assert!(tap.link_up(), "it was asked to be up");
        assert_eq!(tap.capabilities().mtu, 1300);
        drop(tap);
        assert!(ip("link").contains("tap0"), "it was not made here, and stays");
    }

    fn tun_interface_carries_datagrams_and_gets_a_carrier_by_option() {
        let tun = |name: &str| TapConfig { medium: Medium::Ip, ..config(name) };
        let mut device = Tap::open(&TapConfig { mtu: Some(2044), ..tun("tun0") }).unwrap();
        let capabilities = device.capabilities();
        assert_eq!((capabilities.medium, capabilities.mtu), (Medium::Ip, 2044));
        assert_eq!((capabilities.tx_checksum, capabilities.segmentation_len_max), (false, None));
        assert!(ip("link show tun0").contains("LOWER_UP"));
        device.set_carrier(false).unwrap();
        assert!(ip("link show tun0").contains("NO-CARRIER"));
        device.set_carrier(true).unwrap();
        assert!(ip("link show tun0").contains("LOWER_UP"));
        device.set_mtu(4092).unwrap();
        assert_eq!(device.capabilities().mtu, 4092);
        assert!(ip("link show tun0").contains("mtu 4092"));
        assert!(device.set_mtu(1 << 20).is_err());
        // A datagram of the kernel, first byte first: it goes to an address behind the interface.
        ip("addr add 10.8.0.1/24 dev tun0");
        let socket = std::net::UdpSocket::bind("10.8.0.1:0").unwrap();
        socket.send_to(b"datagram", "10.8.0.2:9").unwrap();
        let (mut found, mut now_ns) = (false, 0);
        while !found {
            assert!(now_ns < 1000, "the datagram comes");
            now_ns += 1;
            device.receive(now_ns, 64, &mut |frame| {
                found |= frame.head[0] == 0x45 && frame.head.ends_with(b"datagram");
            });
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        ip("tuntap add dev tap0 mode tap");
        let error = Tap::open(&tun("tap0")).unwrap_err().to_string();
        assert!(error.contains("a TUN interface"), "{error}");
        drop(device);
        ip("tuntap add dev tun0 mode tun");
        let error = Tap::open(&config("tun0")).unwrap_err().to_string();
        assert!(error.contains("a TAP interface"), "{error}");
    }

    fn an_interface_for_several_queues_can_be_used_with_one() {
        ip("tuntap add dev tap0 mode tap multi_queue");
        let one = Tap::open(&config("tap0")).unwrap();
        assert_eq!(one.name().as_str(), "tap0");
        drop(one);
        assert_eq!(Tap::open_queues(&config("tap0"), 3).unwrap().len(), 3);
    }

    fn an_interface_renamed_is_the_same_device() {
        let mut tap = Tap::open(&config("tap0")).unwrap();
        ip("link set tap0 down");
        ip("link set tap0 name other");
        ip("link set other up mtu 1234");
        tap.receive(u64::MAX, 1, &mut |_| ());
        assert_eq!(tap.name().as_str(), "other");
        assert_eq!(tap.capabilities().mtu, 1234);
        assert!(tap.link_up(), "up again under its new name");
    }

    fn an_interface_moved_to_another_namespace_goes_on_working() {
        let mut tap = Tap::open(&config("tap0")).unwrap();
        let there = Namespace::new();
        ip(&format!("link set tap0 netns {}", there.id()));
        there.run(|| ip("link set tap0 up"));
        tap.receive(u64::MAX, 1, &mut |_| ());
        assert!(tap.link_up(), "out of sight, not down");
        let frame = TxFrame::whole(&[0xff; 60]);
        tap.transmit(0, &frame).unwrap();
        let told = there.run(|| ip("-s -s -j link show tap0"));
        assert!(told.contains("\"rx\":{\"bytes\":60,\"packets\":1,"), "{told}");
    }

    fn tap_errors_name_a_remedy() {
        let told = |result: Result<Tap, OpenError>| result.unwrap_err().to_string();
        ip("link add veth-a type veth peer name veth-b");
        let error = told(Tap::open(&config("veth-a")));
        assert!(error.contains("veth-a is not a TAP interface: use another name"), "{error}");
        ip("tuntap add dev tun0 mode tun");
        let error = told(Tap::open(&config("tun0")));
        assert!(error.contains("tun0 is not a TAP interface"), "{error}");
        let _held = Tap::open(&config("tap0")).unwrap();
        let error = told(Tap::open(&config("tap0")));
        assert!(error.contains("tap0 is in use by another process"), "{error}");
        ip("tuntap add dev tap1 mode tap");
        let error = Tap::open_queues(&config("tap1"), 2).unwrap_err().to_string();
        assert!(error.contains("ip tuntap add dev tap1 mode tap user $USER multi_queue"), "{error}");
        let error = told(Tap::open(&TapConfig { mtu: Some(65_522), ..config("tap2") }));
        assert_eq!(error, "TAP MTU 65522 is outside 68 to 65521");
        assert!(!ip("link").contains("tap2"), "refused before it was made");
        let error = Tap::open_queues(&config("tap2"), 0).unwrap_err().to_string();
        assert_eq!(error, "number of TAP queues 0 is outside 1 to 256");
    }

    fn queues_of_one_interface_agree_on_the_header() {
        ip("tuntap add dev tap0 mode tap multi_queue");
        let _plain = Tap::open_queues(&config("tap0"), 2).unwrap();
        let other = Tap::open_queues(&TapConfig { vnet_header: true, ..config("tap0") }, 2);
        let error = other.unwrap_err().to_string();
        assert!(error.contains("open all queues of an interface the same way"), "{error}");
    }

    fn a_process_that_is_killed_leaves_no_interface() {
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "netns::tap_open::open_and_wait", "--include-ignored", "--nocapture"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line.ends_with("holding tap9")), "it opened");
        assert!(ip("link").contains("tap9"), "it is there");
        holder.kill().unwrap();
        holder.wait().unwrap();
        assert!(!ip("link").contains("tap9"), "it went with the process");
    }

    fn without_the_right_the_error_names_the_command() {
        let itself = std::env::current_exe().unwrap();
        let told = command(
            "setpriv",
            &format!(
                "--bounding-set=-net_admin --inh-caps=-net_admin -- {} --exact \
                 netns::tap_open::open_and_tell --nocapture --test-threads=1 --include-ignored",
                itself.display()
            ),
        );
        assert!(told.contains("no permission to use or make the TAP interface tap9"), "{told}");
        assert!(told.contains("sudo ip tuntap add dev tap9 mode tap user $USER"), "{told}");
    }
}

/// Run by a test above, and killed by it.
#[test]
#[ignore = "run by another test, which kills it"]
#[expect(clippy::print_stdout, reason = "the other test waits for it")]
fn open_and_wait() {
    let _tap = Tap::open(&config("tap9")).unwrap();
    println!("holding tap9");
    let _end = std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Run by a test above, in a process without `CAP_NET_ADMIN`.
#[test]
#[ignore = "run by another test, without privilege"]
#[expect(clippy::print_stdout, reason = "the other test reads it")]
fn open_and_tell() {
    match Tap::open(&config("tap9")) {
        Ok(_) => println!("opened"),
        Err(error) => println!("{error}"),
    }
}
