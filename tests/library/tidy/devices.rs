//! Files that a new device changes: at most four of the product.

use super::{code, is_test, sources};

/// A kind of device.
struct Kind {
    /// Its name in `--dev`, and in the enum of kinds.
    text: &'static str,
    variant: &'static str,
    /// Where it is implemented: a file or a folder.
    own: &'static str,
    /// Other files that name it, because its users need something that no other device has.
    others: &'static [&'static str],
}

const KINDS: [Kind; 7] = [
    // Only the carrier of a TAP interface is a setting.
    Kind {
        text: "tap",
        variant: "Tap",
        own: "netdev/src/tap",
        others: &["netdev/src/sys/tap.rs", "tools/src/device/state.rs"],
    },
    // One process alone may use an address on an interface that others use, too.
    Kind {
        text: "packet",
        variant: "Packet",
        own: "netdev/src/packet",
        others: &["verbs/src/network.rs"],
    },
    Kind { text: "xdp", variant: "Xdp", own: "netdev/src/xdp", others: &[] },
    Kind { text: "vhost-user", variant: "VhostUser", own: "netdev/src/vhost_user", others: &[] },
    Kind { text: "virtio-user", variant: "VirtioUser", own: "netdev/src/vhost_user", others: &[] },
    Kind { text: "shm", variant: "Shm", own: "netdev/src/shm", others: &[] },
    // A cargo feature. The commands of an InfiniBand fabric open its ports themselves.
    Kind {
        text: "ib",
        variant: "Ib",
        own: "ipoib/src",
        others: &[
            "src/device/mod.rs",
            "src/device/spec/ib.rs",
            "tools/src/client/failure.rs",
            "tools/src/cmd/ibgate.rs",
            "tools/src/cmd/info.rs",
            "tools/src/cmd/run.rs",
        ],
    },
];
/// The files in which a device is known by name, besides its own: its text and settings, its
/// opening, and its help.
const REGISTERS: [&str; 3] = ["src/device/open.rs", "src/device/spec.rs", "tools/src/info.rs"];
/// Where product code may name a device.
const FOLDERS: [&str; 7] =
    ["engine/src", "netdev/src", "replay/src", "sim/src", "src", "tools/src", "verbs/src"];

#[test]
fn a_device_is_named_in_three_files_besides_its_own() {
    let all: Vec<_> = FOLDERS.into_iter().flat_map(sources).collect();
    for Kind { text, variant, own, others } in &KINDS {
        let names = [format!("\"{text}\""), format!("Kind::{variant}("), format!("\n  {text}:")];
        let mut named: Vec<_> = all
            .iter()
            .map(|(path, source)| (path.to_str().unwrap(), is_test(path), code(source)))
            .filter(|(path, is_test, _)| !is_test && !path.starts_with(own))
            .filter(|(_, _, code)| names.iter().any(|name| code.contains(name)))
            .map(|(path, ..)| path)
            .filter(|path| !others.contains(path))
            .collect();
        named.sort_unstable();
        assert_eq!(named, REGISTERS, "{text}");
    }
}
