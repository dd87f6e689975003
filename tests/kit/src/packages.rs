//! Debian's packages for the tests, and advice for what was missing.

use std::collections::BTreeSet;
use std::path::Path;

use crate::{LONG, TAKES_LONG, programs};

/// Programs, headers and libraries, as the reasons of skips name them, with their packages.
/// `.ci/run` installs the packages; a test compares both.
pub const PACKAGES: &[(&str, &str)] = &[
    ("capinfos", "wireshark-common"),
    ("cat", "coreutils"),
    ("cc", "gcc"),
    ("dnsmasq", "dnsmasq-base"),
    ("dpdk-testpmd", "dpdk-dev"),
    ("dumpcap", "wireshark-common"),
    ("ethtool", "ethtool"),
    ("fi_pingpong", "libfabric-bin"),
    ("fio", "fio"),
    ("ib_atomic_bw", "perftest"),
    ("ib_atomic_lat", "perftest"),
    ("ib_read_bw", "perftest"),
    ("ib_read_lat", "perftest"),
    ("ib_send_bw", "perftest"),
    ("ib_send_lat", "perftest"),
    ("ib_write_bw", "perftest"),
    ("ib_write_lat", "perftest"),
    ("ibsim", "ibsim-utils"),
    ("ibv_devices", "ibverbs-utils"),
    ("ibv_devinfo", "ibverbs-utils"),
    ("ibv_rc_pingpong", "ibverbs-utils"),
    ("ibv_srq_pingpong", "ibverbs-utils"),
    ("infiniband/verbs.h", "libibverbs-dev"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("librspreload.so", "librdmacm1"),
    ("libumad2sim.so", "libumad2sim0"),
    ("mount", "mount"),
    ("opensm", "opensm"),
    ("ping", "iputils-ping"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qperf", "qperf"),
    ("rcopy", "rdmacm-utils"),
    ("rdma/rdma_cma.h", "librdmacm-dev"),
    ("rdma_client", "rdmacm-utils"),
    ("rdma_server", "rdmacm-utils"),
    ("riostream", "rdmacm-utils"),
    ("rping", "rdmacm-utils"),
    ("rstream", "rdmacm-utils"),
    ("setpriv", "util-linux"),
    ("timeout", "coreutils"),
    ("tshark", "tshark"),
    ("ucmatose", "rdmacm-utils"),
    ("ucx_info", "ucx-utils"),
    ("ucx_perftest", "ucx-utils"),
    ("unshare", "util-linux"),
    ("valgrind", "valgrind"),
];

/// Folders of programs that are not in an ordinary user's PATH.
const SYSTEM_FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Returns the command that runs the tests skipped for these reasons, or `None` if no command
/// helps.
pub(crate) fn advice<'a>(reasons: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let is_outside = |program: &str| {
        let in_folder = |folder: &&str| Path::new(folder).join(program).is_file();
        !programs::is_there(program) && SYSTEM_FOLDERS.iter().any(in_folder)
    };
    advice_with(reasons, is_outside)
}

/// Does the same; `is_outside` returns true for a program that is installed outside of PATH.
fn advice_with<'a>(
    reasons: impl IntoIterator<Item = &'a str>,
    is_outside: impl Fn(&str) -> bool,
) -> Option<String> {
    let (mut packages, mut rights, mut path, mut long) = (BTreeSet::new(), false, false, false);
    for reason in reasons {
        if reason == TAKES_LONG {
            long = true;
            continue;
        }
        if RIGHTS.iter().any(|words| reason.contains(words)) {
            rights = true;
            continue;
        }
        for (thing, package) in PACKAGES.iter().filter(|(thing, _)| names(reason, thing)) {
            if is_outside(thing) {
                path = true;
            } else {
                packages.insert(*package);
            }
        }
    }
    if packages.is_empty() && !rights && !path && !long {
        return None;
    }
    let mut command = String::new();
    if !packages.is_empty() {
        let packages: Vec<_> = packages.into_iter().collect();
        command = format!(
            "{}apt-get install {} && ",
            if rights { "" } else { "sudo " },
            packages.join(" ")
        );
    }
    let path = if path { "PATH=$PATH:/usr/sbin:/sbin " } else { "" };
    let long = if long { format!("{LONG}=1 ") } else { String::new() };
    let root = if rights { ", as root" } else { "" };
    Some(format!("To run more{root}: {command}{path}{long}cargo test --workspace"))
}

/// Texts of reasons that root would not get.
const RIGHTS: [&str; 5] =
    ["no right to", "no permission to", "Permission denied", "not permitted", "needs root"];

/// Returns true if the reason has the name as a word or as the end of a path.
fn names(reason: &str, name: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || "_-".contains(character);
    reason.match_indices(name).any(|(at, _)| {
        let (before, after) = (&reason[..at], &reason[at + name.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_is_made_of_what_was_missing() {
        let none = |_: &str| false;
        let of = |reasons: &[&str]| advice_with(reasons.iter().copied(), none);
        assert_eq!(of(&["no IPv6 on lo"]), None);
        let missing = ["the program `rping` is missing", "/usr/include/rdma/rdma_cma.h is missing"];
        assert_eq!(
            of(&missing).unwrap(),
            "To run more: sudo apt-get install librdmacm-dev rdmacm-utils && cargo test --workspace"
        );
        assert_eq!(
            of(&["the program `ip` is missing", "it needs root"]).unwrap(),
            "To run more, as root: apt-get install iproute2 && cargo test --workspace"
        );
        assert_eq!(
            of(&[TAKES_LONG, "it needs root"]).unwrap(),
            "To run more, as root: URNIC_LONG=1 cargo test --workspace"
        );
        // A file that exists but may not be read is not installed again.
        let denied = "/usr/lib/umad2sim/libumad2sim.so: Permission denied (os error 13)";
        assert_eq!(of(&[denied]).unwrap(), "To run more, as root: cargo test --workspace");
        let outside = advice_with(["the program `opensm` is missing"], |name| name == "opensm");
        assert_eq!(
            outside.unwrap(),
            "To run more: PATH=$PATH:/usr/sbin:/sbin cargo test --workspace"
        );
    }

    /// Packages that every Debian has, or that another listed package depends on.
    const WITHOUT_ASKING: [&str; 5] = ["coreutils", "gcc", "librdmacm1", "mount", "util-linux"];

    #[test]
    fn the_gate_installs_these_packages() {
        let gate = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.ci/run");
        let gate = std::fs::read_to_string(gate).unwrap();
        let lines = gate.lines().map(str::trim_start);
        let programs: Vec<_> = lines.filter_map(|line| line.strip_prefix("program ")).collect();
        assert!(programs.len() > 10, "{programs:?}");
        for line in programs {
            let pair = line.split_once(' ').unwrap();
            assert!(PACKAGES.contains(&pair), "{pair:?}");
        }
        let installed = |package: &str| names(&gate, package) || WITHOUT_ASKING.contains(&package);
        let missing: Vec<_> = PACKAGES.iter().filter(|(_, package)| !installed(package)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    /// Programs without which tests of `verbs` are skipped: `has("NAME", &["PROGRAM"])`.
    #[test]
    fn programs_that_tests_need_have_a_package() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../verbs/tests/programs");
        let mut needed = BTreeSet::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let Ok(text) = std::fs::read_to_string(entry.unwrap().path()) else { continue };
            for call in text.split("has(").skip(1).filter_map(|rest| rest.split(')').next()) {
                let Some((_, list)) = call.split_once("&[") else { continue };
                needed.extend(list.split('"').skip(1).step_by(2).map(str::to_owned));
            }
        }
        assert!(needed.len() > 8, "{needed:?}");
        let is_known = |name: &String| PACKAGES.iter().any(|(known, _)| known == name);
        let unknown: Vec<_> = needed.iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "programs without a package: {unknown:?}");
    }

    #[test]
    fn a_name_is_a_word_of_the_reason() {
        assert!(
            names("`ip` is missing", "ip")
                && names("/usr/include/rdma/rdma_cma.h", "rdma/rdma_cma.h")
        );
        assert!(!names("the program `ping` is missing", "ip"));
        assert!(!names("the program `rping` is missing", "ping"));
        assert!(!names("fio_x", "fio"));
    }
}
