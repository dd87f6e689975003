//! `urnic put` and `urnic get`.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::commands::scene::{Server, complaint, json, wait_until};

/// A folder that is removed with the test.
pub(crate) struct Folder {
    pub(crate) root: PathBuf,
}

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("urnic-{name}"));
        let _left_over = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("served")).unwrap();
        Self { root }
    }

    pub(crate) fn served(&self, name: &str) -> PathBuf {
        self.root.join("served").join(name)
    }

    pub(crate) fn own(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn serve(&self, options: &str) -> Server {
        Server::start(&format!("--dir {} {options}", self.root.join("served").display()))
    }

    /// Returns the names in the served folder, hidden files too.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = fs::read_dir(self.root.join("served")).unwrap();
        let mut names: Vec<_> =
            names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _best_effort = fs::remove_dir_all(&self.root);
    }
}

/// Returns bytes without repetition.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut octets = Vec::with_capacity(len + 8);
    while octets.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        octets.extend(state.to_le_bytes());
    }
    octets.truncate(len);
    octets
}

pub(crate) fn put(file: &Path, to: &str) -> String {
    format!("put {} ADDRESS{to} --json", file.display())
}

pub(crate) fn get(from: &str, file: &Path) -> String {
    format!("get ADDRESS{from} {} --json", file.display())
}

#[test]
fn files_of_any_size_arrive_octet_for_octet() {
    let folder = Folder::new("sizes");
    let server = folder.serve("");
    for len in [0, 1, 4 << 20, (9 << 20) + 12_345] {
        let octets = pattern(len);
        let file = folder.own("file");
        fs::write(&file, &octets).unwrap();
        let name = format!("/copy-{len}");
        let sent = json(&server.client(&put(&file, &name)));
        assert_eq!((sent["op"].as_str(), sent["bytes"].as_u64()), (Some("put"), Some(len as u64)));
        assert_eq!(fs::read(folder.served(&name[1..])).unwrap(), octets);
        let back = folder.own(&format!("back-{len}"));
        let fetched = json(&server.client(&get(&name, &back)));
        assert_eq!(fetched["sha256"], sent["sha256"]);
        assert_eq!(fs::read(back).unwrap(), octets);
    }
    assert_eq!(folder.names(), ["copy-0", "copy-1", "copy-4194304", "copy-9449529"]);
    server.stop();
}

#[test]
fn the_checksum_is_that_of_the_file() {
    let folder = Folder::new("sha");
    let server = folder.serve("");
    let file = folder.own("abc");
    fs::write(&file, "abc").unwrap();
    let sent = json(&server.client(&put(&file, "")));
    // FIPS 180-4, example of one block.
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(sent["sha256"], abc);
    assert_eq!(fs::read(folder.served("abc")).unwrap(), b"abc");
    server.stop();
}

#[test]
fn a_hundred_megabytes_of_holes_arrive() {
    let folder = Folder::new("sparse");
    let server = folder.serve("");
    let file = folder.own("sparse");
    File::create(&file).unwrap().set_len(100_000_000).unwrap();
    json(&server.client(&put(&file, "")));
    let back = folder.own("back");
    let fetched = json(&server.client(&get("/sparse", &back)));
    assert_eq!(fetched["bytes"].as_u64(), Some(100_000_000));
    let octets = fs::read(back).unwrap();
    assert!(octets.len() == 100_000_000 && octets.iter().all(|octet| *octet == 0));
    server.stop();
}

#[test]
fn existing_file_is_replaced_by_force_only() {
    let folder = Folder::new("force");
    let server = folder.serve("");
    let file = folder.own("file");
    fs::write(&file, "new").unwrap();
    fs::write(folder.served("file"), "old").unwrap();
    for (options, part) in [("", "--force"), ("--force", "--allow-overwrite")] {
        let output = server.client(&format!("{} {options}", put(&file, "")));
        assert_eq!(output.status.code(), Some(2));
        let said = complaint(&output);
        assert!(said.contains(part), "{said}");
        assert!(options.is_empty() || !said.contains("give --force"), "it was given: {said}");
        assert_eq!(fs::read(folder.served("file")).unwrap(), b"old");
    }
    server.stop();
    let server = folder.serve("--allow-overwrite");
    assert_eq!(server.client(&put(&file, "")).status.code(), Some(2), "both ends have to agree");
    assert_eq!(fs::read(folder.served("file")).unwrap(), b"old");
    json(&server.client(&format!("{} --force", put(&file, ""))));
    assert_eq!(fs::read(folder.served("file")).unwrap(), b"new");
    let output = server.client(&get("/file", &file));
    assert_eq!(output.status.code(), Some(2));
    json(&server.client(&format!("{} --force", get("/file", &file))));
    server.stop();
}

#[test]
fn no_name_escapes_the_served_folder() {
    let folder = Folder::new("escape");
    let server = folder.serve("--allow-overwrite");
    let secret = folder.own("secret");
    fs::write(&secret, "secret").unwrap();
    symlink("..", folder.served("up")).unwrap();
    symlink("../secret", folder.served("link")).unwrap();
    symlink(&secret, folder.served("absolute")).unwrap();
    let back = folder.own("back");
    for name in ["../secret", "/etc/passwd", "up/secret", "link", "absolute", "a/../../secret", "."]
    {
        let output = server.client(&get(&format!("/{name}"), &back));
        assert_eq!(output.status.code(), Some(2), "get {name}");
        assert!(!back.exists(), "get {name}");
    }
    for name in ["../x", "/etc/urnic-x", "up/x", "a/../../x", ".", "..", "new/", ".x.urnic-part"] {
        let output = server.client(&format!("{} --force", put(&secret, &format!("/{name}"))));
        assert_eq!(output.status.code(), Some(2), "put {name}: {}", complaint(&output));
    }
    assert_eq!(folder.names(), ["absolute", "link", "up"]);
    // A link with the name of a file is neither followed nor replaced.
    let file = folder.own("file");
    fs::write(&file, "harmless").unwrap();
    let output = server.client(&format!("{} --force", put(&file, "/link")));
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("symbolic link"), "{}", complaint(&output));
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    assert!(fs::symlink_metadata(folder.served("link")).unwrap().is_symlink());
    // A link at the path of the unfinished file is not followed either.
    symlink(&secret, folder.served(".trap.urnic-part")).unwrap();
    let output = server.client(&put(&file, "/trap"));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(fs::read(&secret).unwrap(), b"secret");
    server.stop();
}

/// `--rate` holds for less than a chunk, for less than a piece, and at the lowest rate.
#[test]
fn a_rate_is_kept_from_the_first_octet_on() {
    let folder = Folder::new("rate");
    let server = folder.serve("");
    let file = folder.own("file");
    for (len, rate, at_least, at_most) in [
        (2_000_000, "8M", 1.9, 8.0),
        (20_000, "80K", 1.9, 8.0),
        (2, "1", 1.9, 8.0),
        (2, "8", 1.9, 8.0),
        // No limit: only a disk that others use, too, takes time.
        (2_000_000, "18000000T", 0.0, 8.0),
        (0, "1", 0.0, 1.9),
    ] {
        fs::write(&file, pattern(len)).unwrap();
        let name = format!("/at-{rate}-{len}");
        let back = folder.own("back");
        for command in [put(&file, &name), format!("{} --force", get(&name, &back))] {
            let result = json(&server.client(&format!("{command} --rate {rate}")));
            let seconds = result["seconds"].as_f64().unwrap();
            assert!((at_least..at_most).contains(&seconds), "{command} --rate {rate}: {seconds}");
        }
        assert_eq!(fs::read(&back).unwrap(), pattern(len));
    }
    server.stop();
}

pub(crate) fn has_progress(journal: &Path) -> bool {
    fs::read_to_string(journal).is_ok_and(|text| text.lines().count() >= 3)
}

const LEN: usize = 40 << 20;

#[test]
fn put_of_a_killed_client_is_resumed() {
    let folder = Folder::new("client-killed");
    let server = folder.serve("");
    let (file, octets) = (folder.own("file"), pattern(LEN));
    fs::write(&file, &octets).unwrap();
    let mut client = server.spawn(&format!("{} --rate 200M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    client.kill().unwrap();
    client.wait().unwrap();
    assert!(!folder.served("file").exists(), "no half file under the final name");
    let mut sent = None;
    // The server needs a moment to notice the end.
    wait_until("the second attempt", || {
        let output = server.client(&put(&file, ""));
        let is_busy = complaint(&output).contains("in progress");
        sent = (!is_busy).then(|| json(&output));
        !is_busy
    });
    assert!(sent.unwrap()["resumed_bytes"].as_u64().unwrap() >= 8 << 20);
    assert_eq!(fs::read(folder.served("file")).unwrap(), octets);
    assert_eq!(folder.names(), ["file"]);
    server.stop();
}

#[test]
fn put_to_a_killed_server_fails_and_is_resumed() {
    let folder = Folder::new("server-killed");
    let server = folder.serve("");
    let (file, octets) = (folder.own("file"), pattern(LEN));
    fs::write(&file, &octets).unwrap();
    let client = server.spawn(&format!("{} --rate 200M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    server.kill();
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
    assert!(!folder.served("file").exists(), "no half file under the final name");
    // One byte of the partial file changes unnoticed.
    let part = folder.served(".file.urnic-part");
    let mut changed = fs::read(&part).unwrap();
    changed[100] ^= 1;
    fs::write(&part, changed).unwrap();
    let server = folder.serve("");
    let sent = json(&server.client(&put(&file, "")));
    assert!(sent["resumed_bytes"].as_u64().unwrap() >= 4 << 20);
    assert_eq!(fs::read(folder.served("file")).unwrap(), octets);
    server.stop();
}

#[test]
fn interrupted_get_is_resumed() {
    let folder = Folder::new("get");
    let server = folder.serve("");
    let octets = pattern(LEN);
    fs::write(folder.served("file"), &octets).unwrap();
    let (back, journal) = (folder.own("back"), folder.own(".back.urnic-journal"));
    let mut client = server.spawn(&format!("{} --rate 200M", get("/file", &back)));
    wait_until("progress", || has_progress(&journal));
    client.kill().unwrap();
    client.wait().unwrap();
    let client = server.spawn(&format!("{} --rate 200M", get("/file", &back)));
    let before = fs::read_to_string(&journal).unwrap().lines().count();
    wait_until("more", || fs::read_to_string(&journal).unwrap().lines().count() > before);
    server.kill();
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
    assert!(!back.exists(), "no half file under the final name");
    let server = folder.serve("");
    let fetched = json(&server.client(&get("/file", &back)));
    assert!(fetched["resumed_bytes"].as_u64().unwrap() >= 12 << 20);
    assert_eq!(fs::read(back).unwrap(), octets);
    server.stop();
}

#[test]
fn failed_put_ends_a_server_for_one_with_an_error() {
    let folder = Folder::new("once");
    let server = folder.serve("--once");
    let file = folder.own("file");
    fs::write(&file, pattern(LEN)).unwrap();
    let mut client = server.spawn(&format!("{} --rate 100M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(server.wait(), Some(1));
}
