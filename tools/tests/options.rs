//! Every option of every command, on every device: with an ordinary value and with extreme ones.
//!
//! The commands list their options themselves (`urnic dump-options`, made from the command line
//! parser), and an option without a row in the table fails here. For every value, the command does
//! what the option says or refuses it by name with exit status 2; it never panics and always ends.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, with a bound")]

mod keys;
mod run;
mod scene;
mod table;

use std::collections::BTreeSet;
use std::process::Command;

use run::{Case, problems};
use scene::{Device, Scene};
use table::{BASES, Expect, Row, rows};
use urnic_testkit::isolate::{alone, netns_tests};
use urnic_testkit::programs::is_there;
use urnic_testkit::skip;

/// An option with its command, and the name of its value, if it has one.
#[derive(Clone, Debug)]
struct Known {
    command: String,
    option: String,
    value: Option<String>,
}

/// Returns all options.
fn known() -> Vec<Known> {
    let output = Command::new(env!("CARGO_BIN_EXE_urnic")).arg("dump-options").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let lines = String::from_utf8(output.stdout).unwrap();
    let known = lines.lines().map(|line| {
        let [command, option, value] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("three fields: {line}")
        };
        let value = (value != "-").then(|| value.to_owned());
        Known { command: command.to_owned(), option: option.to_owned(), value }
    });
    known.collect()
}

/// Commands that move data between two machines.
const ON_DEVICES: [&str; 7] = ["ping", "bw", "lat", "put", "get", "rping", "serve"];

#[test]
fn every_option_has_a_row_and_every_row_an_option() {
    let known = known();
    let named: BTreeSet<_> = known.iter().map(|one| (&*one.command, &*one.option)).collect();
    let listed: BTreeSet<_> = rows().map(|row| (row.command, row.option)).collect();
    assert!(named.len() > 100, "the commands have options: {named:?}");
    let missing: Vec<_> = named.difference(&listed).collect();
    assert!(missing.is_empty(), "options that no row of the table runs: {missing:?}");
    let stale: Vec<_> = listed.difference(&named).collect();
    assert!(stale.is_empty(), "rows of options that are gone: {stale:?}");
    for row in rows() {
        let has_value = known.iter().any(|one| {
            (&*one.command, &*one.option) == (row.command, row.option) && one.value.is_some()
        });
        let Row { command, option, ordinary, extreme } = row;
        assert!(!ordinary.is_empty(), "{command} {option} has no ordinary value");
        assert!(!has_value || !extreme.is_empty(), "{command} {option} has no extreme value");
    }
    let commands: BTreeSet<_> = known.iter().map(|one| &*one.command).collect();
    assert_eq!(commands, BASES.iter().map(|(command, _)| *command).collect());
}

/// Empty, negative, no number but text with a change of direction, and too large for 64 bits.
const IMPOSSIBLE: [&str; 4] = ["", "-1", "\u{fc}\u{202e}", "99999999999999999999999999"];

#[test]
fn values_that_no_option_takes_are_refused_by_name() {
    let _turn = alone();
    let scene = Scene::without_servers();
    let mut cases = Vec::new();
    for Known { command, option, value } in known() {
        if option == "ARGUMENT" {
            continue;
        }
        // Any text is a path, or a name chosen by others.
        let is_text = value.as_ref().is_some_and(|name| {
            name.starts_with("FILE") || ["DIR", "SIMULATOR", "NODE", "INTERFACE"].contains(&&**name)
        });
        let all: Vec<String> = match value {
            None => vec![format!("{option} {option}"), format!("{option}=x")],
            Some(_) if is_text => vec![format!("{option}=")],
            Some(_) => IMPOSSIBLE.map(|value| format!("{option}={value}")).into(),
        };
        for arguments in all {
            cases.push(Case {
                command: command.clone(),
                option: option.clone(),
                arguments,
                expect: Expect::Refused("--"),
            });
        }
    }
    assert!(cases.len() > 250, "{}", cases.len());
    let problems = problems(&scene, cases);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Returns the cases of a table's rows; with `has_extremes` also those of the extreme values.
fn cases(wanted: impl Fn(&Row) -> bool, has_extremes: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for row in rows().filter(|row| wanted(row)) {
        let extreme = if has_extremes { row.extreme } else { &[] };
        for (arguments, expect) in row.ordinary.iter().chain(extreme) {
            cases.push(Case {
                command: row.command.to_owned(),
                option: row.option.to_owned(),
                arguments: (*arguments).to_owned(),
                expect: *expect,
            });
        }
    }
    cases
}

#[test]
fn every_option_works_over_the_kernel() {
    let _turn = alone();
    let scene = Scene::new(Device::Kernel);
    let problems =
        problems(&scene, cases(|row| !["capture", "impair"].contains(&row.command), true));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Runs every option of the commands that have a device, with ordinary values, and the device's own
/// settings.
fn over(device: Device) {
    let scene = Scene::new(device);
    let mut cases = cases(|row| ON_DEVICES.contains(&row.command), false);
    cases.extend(keys::cases(device));
    let problems = problems(&scene, cases);
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_setting_of_a_device_has_a_row() {
    for (kind, device) in [("tap", Device::Tap), ("packet", Device::Packet), ("xdp", Device::Xdp)] {
        let told = Command::new(env!("CARGO_BIN_EXE_urnic"))
            .args(["ping", "127.0.0.1:1", "--dev", &format!("{kind}:t,unknown")])
            .output()
            .unwrap();
        let told = String::from_utf8(told.stderr).unwrap();
        let (_, allowed) = told.split_once("allowed are ").expect("it says what is allowed");
        let allowed = allowed.split("\n\n").next().unwrap().replace('\n', " ");
        let allowed: BTreeSet<_> = allowed.split(", ").map(str::trim).collect();
        assert!(allowed.len() > 6, "{told}");
        assert_eq!(allowed, keys::of(device).collect(), "{kind}");
    }
}

netns_tests! {
    alone with ["/dev/net/tun"];

    fn every_option_works_on_a_tap() {
        over(Device::Tap);
    }

    fn every_option_works_on_a_raw_socket() {
        if urnic_testkit::is_too_long("every_option_works_on_a_raw_socket") {
            return;
        }
        over(Device::Packet);
    }

    fn every_option_works_on_an_xdp_socket() {
        if urnic_testkit::is_too_long("every_option_works_on_an_xdp_socket") {
            return;
        }
        if !is_there("ethtool") {
            return skip("every option on an AF_XDP socket", "`ethtool` is missing");
        }
        if let Some(reason) = urnic_testkit::network::xdp_refusal() {
            return skip("every option on an AF_XDP socket", &reason);
        }
        over(Device::Xdp);
    }

    fn every_option_of_capture_works() {
        urnic_testkit::network::ip("link set lo up");
        let scene = Scene::without_servers();
        let problems = run::problems_one_by_one(&scene, cases(|row| row.command == "capture", true));
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    fn every_option_of_impair_works() {
        let scene = Scene::without_servers();
        let problems = run::problems_one_by_one(&scene, cases(|row| row.command == "impair", true));
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
