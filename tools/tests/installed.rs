//! The command as `cargo install` leaves it: one file, without the libraries beside it.

use std::fs;
use std::io::ErrorKind;
use std::process::Command;
use std::thread;

use urnic_testkit::programs::missing;

#[test]
fn a_command_without_libraries_beside_it_runs_programs() {
    let test = "a_command_without_libraries_beside_it_runs_programs";
    if let Some(reason) = missing(["ibv_devinfo"]) {
        return urnic_testkit::skip(test, &reason);
    }
    let place = tempfile::tempdir().unwrap();
    let (command, folder) = (place.path().join("urnic"), place.path().join("of-the-user"));
    fs::copy(env!("CARGO_BIN_EXE_urnic"), &command).unwrap();
    fs::create_dir(&folder).unwrap();
    for _ in 0..2 {
        let mut run = Command::new(&command);
        run.args(["run", "--", "ibv_devinfo"]).env("XDG_RUNTIME_DIR", &folder);
        let output = loop {
            match run.output() {
                // A child of another test's thread still has the descriptor of the copy.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => thread::yield_now(),
                ended => break ended.unwrap(),
            }
        };
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && printed.contains("urnic0"), "{output:?}");
    }
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "one folder, with the libraries");
}
