//! Runs the programs of `examples/`, as a reader of the documentation would.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use crate::endpoint::closed_port;

/// Returns the program of an example. `cargo test` builds it with the tests; if cargo was asked for
/// these tests alone, it is built here.
fn example(name: &str) -> Command {
    let this = std::env::current_exe().unwrap();
    let profile = this.parent().unwrap().parent().unwrap();
    let path = profile.join("examples").join(name);
    if !path.is_file() {
        let mut cargo = Command::new(env!("CARGO"));
        // With the features that `cargo test --workspace` enables for dependencies: the features of
        // one package would rebuild most of the workspace.
        cargo.args(["build", "--quiet", "--offline", "--workspace", "--example", name]);
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
    }
    Command::new(path)
}

/// Ends a program that a failed test leaves behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_client_writes_into_the_memory_of_the_server() {
    let (mut serve, mut write) = (example("serve"), example("write"));
    let server = serve.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap();
    let mut server = Running(server);
    let mut said = BufReader::new(server.0.stdout.take().unwrap());
    let mut first = String::new();
    said.read_line(&mut first).unwrap();
    let address = first.trim_end().strip_prefix("listening at ").expect("says where it listens");

    let text = "as the documentation says";
    let client = printed(write.args([address, text]));
    assert_eq!(client, format!("wrote {} bytes to {address}\n", text.len()));
    let mut rest = String::new();
    said.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("asks to connect\n"), "{rest}");
    assert!(rest.ends_with(&format!("the peer wrote: {text}\n")), "{rest}");
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn the_client_says_when_nothing_listens() {
    let (_keeper, closed) = closed_port();
    let output = example("write").arg(closed.to_string()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(errors.contains("ConnectionRefused"), "{errors}");
}

#[test]
fn a_task_awaits_completions() {
    assert_eq!(printed(&mut example("tokio")), "sent: Success; received: Success, 5 bytes\n");
}

#[test]
fn the_engine_is_driven_by_hand() {
    assert_eq!(printed(&mut example("lockstep")), "B's memory says: hello, remote memory\n");
}

#[test]
fn two_endpoints_meet_on_a_link_in_memory() {
    assert_eq!(printed(&mut example("on_device")), "Success: 5 bytes\n");
}
