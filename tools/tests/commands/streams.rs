//! `urnic put -` and `urnic get -`: standard input and output.

use std::fs::{self, File};
use std::io::Write;
use std::process::Stdio;

use crate::commands::files::{Folder, pattern};
use crate::commands::scene::{Server, complaint, json, urnic};

fn put_from(server: &Server, name: &str, input: Stdio, octets: &[u8]) -> std::process::Output {
    let command = format!("put - {}{name} --json", server.address());
    let mut client = urnic(&command).stdin(input).spawn().unwrap();
    if let Some(mut pipe) = client.stdin.take() {
        // A client that was refused stops reading: the write may fail.
        let _closed = pipe.write_all(octets);
    }
    client.wait_with_output().unwrap()
}

#[test]
fn put_reads_from_a_pipe_and_get_writes_to_one() {
    let folder = Folder::new("pipes");
    let server = folder.serve("");
    for len in [0, 1, (9 << 20) + 123] {
        let octets = pattern(len);
        let name = format!("/copy-{len}");
        let sent = json(&put_from(&server, &name, Stdio::piped(), &octets));
        assert_eq!(sent["bytes"].as_u64(), Some(len as u64));
        assert!(fs::read(folder.served(&name[1..])).unwrap() == octets);
        let output = server.client(&format!("get ADDRESS{name} -"));
        assert!(output.status.success(), "{}", complaint(&output));
        assert!(output.stdout == octets, "the file, and nothing but the file");
    }
    server.stop();
}

#[test]
fn file_on_standard_input_is_put_unchanged() {
    let folder = Folder::new("redirected");
    let server = folder.serve("");
    let file = folder.own("file");
    fs::write(&file, pattern(5 << 20)).unwrap();
    json(&put_from(&server, "/copy", File::open(&file).unwrap().into(), &[]));
    assert!(fs::read(folder.served("copy")).unwrap() == pattern(5 << 20));
    // Bytes that were read before the command started do not belong to the file.
    let mut begun = File::open(&file).unwrap();
    std::io::Seek::seek(&mut begun, std::io::SeekFrom::Start(5)).unwrap();
    json(&put_from(&server, "/rest", begun.into(), &[]));
    assert!(fs::read(folder.served("rest")).unwrap() == pattern(5 << 20)[5..]);
    server.stop();
}

#[test]
fn options_that_need_a_file_are_refused_for_streams() {
    let folder = Folder::new("stream-refusals");
    let server = folder.serve("");
    fs::write(folder.served("file"), "octets").unwrap();
    let output = put_from(&server, "", Stdio::piped(), b"x");
    assert!(complaint(&output).contains("has no name"), "{}", complaint(&output));
    let output = server.client("get ADDRESS/file - --json");
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("--json"), "{}", complaint(&output));
    assert!(output.stdout.is_empty());
    let output = server.client("get ADDRESS/none -");
    assert!(output.stdout.is_empty() && output.status.code() == Some(2));
    server.stop();
}
