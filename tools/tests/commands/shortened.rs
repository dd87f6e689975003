//! Files that become shorter while they are transferred: an error of their session, and of no
//! other.

use std::fs::{self, File};
use std::path::Path;

use crate::commands::files::{Folder, get, has_progress, pattern, put};
use crate::commands::scene::{Server, complaint, json, wait_until};

const LEN: usize = 40 << 20;

fn shorten(file: &Path) {
    File::options().write(true).open(file).unwrap().set_len(1).unwrap();
}

/// Another session of the server, during the test.
struct Witness(std::process::Child);

impl Witness {
    fn start(server: &Server) -> Self {
        Self(server.spawn("ping ADDRESS --count 100 --interval 10ms"))
    }

    fn ends_well(self) {
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success(), "the other session: {}", complaint(&output));
    }
}

#[test]
fn a_served_file_that_is_shortened_ends_its_session_only() {
    let folder = Folder::new("shortened-get");
    let server = folder.serve("");
    fs::write(folder.served("file"), pattern(LEN)).unwrap();
    let back = folder.own("back");
    let client = server.spawn(&format!("{} --rate 200M", get("/file", &back)));
    wait_until("progress", || has_progress(&folder.own(".back.urnic-journal")));
    let witness = Witness::start(&server);
    shorten(&folder.served("file"));
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("has become shorter"), "{}", complaint(&output));
    assert!(!back.exists());
    witness.ends_well();
    fs::write(folder.served("other"), pattern(1000)).unwrap();
    json(&server.client(&get("/other", &back)));
    assert!(fs::read(&back).unwrap() == pattern(1000), "nothing of the longer file is left");
    server.stop();
}

#[test]
fn an_arriving_file_that_is_shortened_ends_its_session_only() {
    let folder = Folder::new("shortened-put");
    let server = folder.serve("");
    let file = folder.own("file");
    fs::write(&file, pattern(LEN)).unwrap();
    let client = server.spawn(&format!("{} --rate 200M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    let witness = Witness::start(&server);
    shorten(&folder.served(".file.urnic-part"));
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", complaint(&output));
    assert!(!folder.served("file").exists());
    witness.ends_well();
    json(&server.client(&put(&file, "")));
    assert_eq!(fs::read(folder.served("file")).unwrap(), pattern(LEN));
    server.stop();
}

/// The next file of that name is shorter than the part of the previous one that has arrived.
#[test]
fn a_put_into_the_name_of_a_longer_part_has_its_own_length() {
    let folder = Folder::new("shorter-put");
    let server = folder.serve("");
    let (file, short) = (folder.own("file"), folder.own("short"));
    fs::write(&file, pattern(LEN)).unwrap();
    fs::write(&short, pattern(1000)).unwrap();
    let mut client = server.spawn(&format!("{} --rate 200M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the end of the first attempt", || {
        server.client(&put(&short, "/file")).status.success()
    });
    assert!(fs::read(folder.served("file")).unwrap() == pattern(1000));
    assert_eq!(folder.names(), ["file"]);
    server.stop();
}

#[test]
fn client_reports_that_its_own_file_was_shortened() {
    let folder = Folder::new("shortened-client");
    let server = folder.serve("");
    let (file, back) = (folder.own("file"), folder.own("back"));
    fs::write(&file, pattern(LEN)).unwrap();
    let client = server.spawn(&format!("{} --rate 200M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    shorten(&file);
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
    assert!(complaint(&output).contains("has become shorter"), "{}", complaint(&output));
    fs::write(folder.served("whole"), pattern(LEN)).unwrap();
    let client = server.spawn(&format!("{} --rate 200M", get("/whole", &back)));
    wait_until("progress", || has_progress(&folder.own(".back.urnic-journal")));
    shorten(&folder.own(".back.urnic-part"));
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", complaint(&output));
    assert!(!back.exists(), "half a file gets no name");
    server.stop();
}
