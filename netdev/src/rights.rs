//! Rights that kernel devices need, and the commands that grant them. A user namespace grants all
//! rights over its network namespaces, but none to load BPF programs: the kernel checks `CAP_BPF`
//! in the first user namespace only.

use std::fs;

use rustix::process::geteuid;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// Capabilities in `setcap` syntax.
    capabilities: &'static str,
    /// True if a user namespace can give them.
    namespace_gives: bool,
}

/// `CAP_NET_ADMIN` allows a packet socket to queue more than a few frames of 64 KiB.
pub(crate) const PACKET: Need =
    Need { capabilities: "cap_net_raw,cap_net_admin", namespace_gives: true };
pub(crate) const TAP: Need = Need { capabilities: "cap_net_admin", namespace_gives: true };
pub(crate) const XDP: Need =
    Need { capabilities: "cap_net_raw,cap_net_admin,cap_bpf", namespace_gives: false };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum User {
    Ordinary,
    /// Root without some capabilities, as in a container.
    Root,
    /// The executable is an application under `urnic run`, such as an interpreter. Capabilities on
    /// its file would apply to all its users, and the loader would not preload urnic's libraries
    /// (`AT_SECURE` of ld.so(8)).
    OrdinaryUnderRun,
    /// Root of a user namespace, an ordinary user outside.
    RootOfNamespace,
}

pub(crate) fn remedy(need: Need) -> String {
    let user = match (geteuid().is_root(), in_user_namespace()) {
        (false, _) if std::env::var_os(RUN).is_some() => User::OrdinaryUnderRun,
        (false, _) => User::Ordinary,
        (true, false) => User::Root,
        (true, true) => User::RootOfNamespace,
    };
    let program = std::env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.to_str()).filter(|path| is_plain(path));
    remedy_for(user, need, program.unwrap_or("PROGRAM"))
}

fn remedy_for(user: User, need: Need, program: &str) -> String {
    let Need { capabilities, namespace_gives } = need;
    match user {
        User::Ordinary if namespace_gives => format!(
            "run as root, give the program the capabilities (`sudo setcap {capabilities}+ep \
             {program}`), or use a network namespace of your own (`{NAMESPACE}`)"
        ),
        User::Ordinary => format!(
            "run as root, or give the program the capabilities: `sudo setcap {capabilities}+ep \
             {program}`"
        ),
        User::OrdinaryUnderRun if namespace_gives => {
            format!("run as root, or use a network namespace of your own (`{NAMESPACE}`)")
        }
        User::OrdinaryUnderRun => "run as root".to_owned(),
        User::RootOfNamespace if namespace_gives => format!(
            "the network namespace belongs to another user namespace: make both at once \
             (`{NAMESPACE}`)"
        ),
        User::RootOfNamespace => "the kernel lets no root of a user namespace load BPF programs: \
                                  run as root of the machine, or use the packet device"
            .to_owned(),
        User::Root => {
            let options: Vec<_> = capabilities
                .split(',')
                .map(|name| format!("--cap-add {}", name.trim_start_matches("cap_").to_uppercase()))
                .collect();
            format!(
                "this root lacks capabilities: start the container with `{}`",
                options.join(" ")
            )
        }
    }
}

/// Environment variable by which `urnic run` passes the device to the preloaded libraries.
const RUN: &str = "URNIC_DEV";

/// Command that creates a user namespace and a network namespace that belongs to it.
const NAMESPACE: &str = "unshare --user --map-root-user --net";

/// Returns true if a shell needs no quotes for the path.
fn is_plain(path: &str) -> bool {
    path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte))
}

/// Returns true if this process is in another user namespace than the first one.
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<_> = map.split_whitespace().collect();
    !words.is_empty() && words != ["0", "0", "4294967295"]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_gets_a_remedy_that_works() {
        const PROGRAM: &str = "/usr/bin/urnic";
        let of = |user, need| remedy_for(user, need, PROGRAM);
        let setcap = "`sudo setcap cap_net_raw,cap_net_admin,cap_bpf+ep /usr/bin/urnic`";
        let ordinary = of(User::Ordinary, XDP);
        assert!(ordinary.contains(setcap) && !ordinary.contains("unshare"), "{ordinary}");
        for need in [PACKET, TAP] {
            let ordinary = of(User::Ordinary, need);
            assert!(ordinary.contains("setcap") && ordinary.contains(NAMESPACE), "{ordinary}");
            let under_run = of(User::OrdinaryUnderRun, need);
            assert!(under_run.contains(NAMESPACE) && !under_run.contains("setcap"), "{under_run}");
            let root = of(User::RootOfNamespace, need);
            assert!(root.contains(NAMESPACE) && !root.contains("sudo"), "{root}");
        }
        assert_eq!(of(User::OrdinaryUnderRun, XDP), "run as root");
        let root = of(User::RootOfNamespace, XDP);
        assert!(!root.contains("sudo") && root.contains("root of the machine"), "{root}");
        let container = of(User::Root, XDP);
        assert!(
            container.contains("`--cap-add NET_RAW --cap-add NET_ADMIN --cap-add BPF`"),
            "{container}"
        );
    }

    #[test]
    fn a_path_that_a_shell_would_cut_is_not_shown() {
        assert!(is_plain("/opt/target/debug/urnic-0a_b.1"));
        assert!(!is_plain("/home/a b/urnic") && !is_plain("/tmp/$x"));
    }
}
