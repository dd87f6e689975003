//! Commands that a signal ends early: each reports its result so far.

use std::fs;
use std::process::{Child, Output};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::commands::files::{Folder, pattern};
use crate::commands::scene::{Server, complaint, json, wait_until};

/// Interrupts a command after some time.
fn interrupted(child: Child, time: Duration) -> Output {
    sleep(time);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

/// Interrupts a measurement when it has some results, which takes longer on a busy machine.
fn measured(server: &Server, command: &str) -> Output {
    let mut time = A_MOMENT;
    loop {
        let output = interrupted(server.spawn(command), time);
        // A signal that arrives before the command has its handler kills it.
        let came_early = output.status.code().is_none()
            || complaint(&output).contains("before anything was measured");
        if time > 16 * A_MOMENT || !came_early {
            return output;
        }
        time *= 2;
    }
}

#[test]
fn interrupted_measurements_print_their_results_so_far() {
    let server = Server::start("");
    for command in [
        "ping ADDRESS -c 1000000 -i 0.01 --json",
        "bw ADDRESS -t 1000 --json",
        "bw ADDRESS -n 18446744073709551615 --bidir --op read --json",
        "lat ADDRESS -n 4294967295 --json",
    ] {
        let result = json(&measured(&server, command));
        assert_eq!(result["interrupted"], true, "{command}");
        let done = ["count", "messages", "iterations"].map(|key| result[key].as_u64());
        assert!(done.into_iter().flatten().any(|count| count > 0), "{command}: {result}");
    }
    let shown = measured(&server, "ping ADDRESS --interval 1000");
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.status.success() && text.contains("1 message came back: min "), "{text}");
    let shown = measured(&server, "bw ADDRESS --all-sizes -t 0.5");
    assert!(shown.status.success(), "{}", complaint(&shown));
    let lines = String::from_utf8_lossy(&shown.stdout).lines().count();
    // Of 23 sizes: interrupted after two, or a few more if the machine was busy.
    assert!((2..=12).contains(&lines), "{lines}");
    server.stop();
}

#[test]
fn interrupted_transfer_reports_the_kept_part_and_resumes() {
    let folder = Folder::new("interrupted");
    let server = folder.serve("");
    let (file, copy) = (folder.own("file"), folder.own("copy"));
    fs::write(&file, pattern(24 << 20)).unwrap();
    let put = format!("put {} ADDRESS/served --json", file.display());
    let get = format!("get ADDRESS/served {} --json", copy.display());
    for (command, place) in [(put, "at the server"), (get, "here")] {
        let output = interrupted(server.spawn(&format!("{command} --rate 40Mbps")), HALF_OF_IT);
        assert_eq!(output.status.code(), Some(130), "{}", complaint(&output));
        let said = complaint(&output);
        assert!(said.contains(&format!("are kept {place}: the same command goes on")), "{said}");
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&told["exit_status"], told["error"].is_string()), (&130.into(), true));
        // The server may still be writing.
        let mut again = server.client(&command);
        wait_until("the end of the first attempt", || {
            let is_under_way = complaint(&again).contains("is in progress");
            if is_under_way {
                again = server.client(&command);
            }
            !is_under_way
        });
        let again = json(&again);
        assert!(again["resumed_bytes"].as_u64().unwrap() >= 4 << 20, "{again}");
    }
    assert!(fs::read(copy).unwrap() == pattern(24 << 20));
    server.stop();
}

const A_MOMENT: Duration = Duration::from_millis(900);
/// A transfer of 24 MiB at 40 Mbit/s takes five seconds.
const HALF_OF_IT: Duration = Duration::from_millis(2500);
