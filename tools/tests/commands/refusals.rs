//! Refusals before a command does anything: nothing is left behind.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::commands::files::{Folder, get, has_progress, pattern, put};
use crate::commands::scene::{complaint, json, urnic, wait_until};

fn make_fifo(path: &Path) {
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

#[test]
fn invalid_serve_options_are_refused_by_name() {
    for (options, part) in [
        ("--size 0", "--size"),
        ("--size 100T", "--size"),
        ("--size 1M --total-size 512K", "--total-size"),
        ("--total-size 0", "--total-size"),
        ("--timeout 0", "--timeout"),
        ("--timeout 999us", "--timeout"),
        ("--peers 0", "--peers"),
        ("--peers 16385", "--peers"),
        ("--peers-per-address 0", "--peers-per-address"),
        ("--keep-free 101", "--keep-free"),
        ("--keep-parts 5weeks", "--keep-parts"),
        ("--files few", "--files"),
        ("--read-only --allow-overwrite", "--allow-overwrite"),
        ("--dev tap:t,ip=10.1.2.3", "prefix length is missing"),
        ("--dev tap:t,ip=10.1.2.3/24,gw=10.1.3.1", "no neighbour"),
    ] {
        let output = urnic(&format!("serve --listen 127.0.0.1:0 {options}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options}");
        assert!(complaint(&output).contains(part), "{options}: {}", complaint(&output));
    }
}

#[test]
fn an_address_that_the_device_has_not_got_is_not_listened_at() {
    for (listen, device) in [
        ("127.0.0.1:0", "tap:t,ip=10.1.2.3/24"),
        ("10.1.2.4:7174", "packet:lo,ip=10.1.2.3/24"),
        ("[::]:7174", "tap:t,ip=10.1.2.3/24"),
        ("[fd99::2]:7174", "xdp:lo,ip=10.1.2.3/24"),
        ("0.0.0.0:7174", "tap:t,ip6=fd99::1/64"),
    ] {
        let output = urnic(&format!("serve --listen {listen} --dev {device}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{listen} on {device}");
        let said = complaint(&output);
        assert!(said.contains("no address of the device"), "{listen} on {device}: {said}");
    }
}

#[test]
fn only_regular_files_are_replaced() {
    let folder = Folder::new("special");
    let server = folder.serve("--allow-overwrite");
    fs::write(folder.served("one"), "octets").unwrap();
    let pipe = folder.own("pipe");
    make_fifo(&pipe);
    fs::create_dir(folder.own("adir")).unwrap();
    fs::create_dir(folder.served("d")).unwrap();
    fs::write(folder.own("target"), "kept").unwrap();
    symlink("target", folder.own("link")).unwrap();
    for (name, part) in [
        ("pipe", "no regular file"),
        ("adir", "is a folder"),
        ("adir/", "is a folder"),
        ("link", "symbolic link"),
    ] {
        for force in ["", "--force"] {
            let output = server.client(&format!("{} {force}", get("/one", &folder.own(name))));
            let said = complaint(&output);
            assert_eq!(output.status.code(), Some(2), "{name} {force}: {said}");
            assert!(
                said.contains(part) && !said.contains("give --force"),
                "{name} {force}: {said}"
            );
        }
    }
    let null = server.client("get ADDRESS/one /dev/null --force");
    assert_eq!(null.status.code(), Some(2), "{}", complaint(&null));
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
    assert_eq!(fs::read(folder.own("target")).unwrap(), b"kept");
    // The server refuses the same, before any byte is sent.
    fs::write(folder.own("f"), "new").unwrap();
    for (name, part) in [
        ("/d", "is a folder"),
        ("/sub/", "names a folder"),
        ("/sub/x", "no folder sub at the server"),
    ] {
        let output = server.client(&format!("{} --force", put(&folder.own("f"), name)));
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains("rejected") && said.contains(part), "{name}: {said}");
    }
    assert_eq!(folder.names(), ["d", "one"], "nothing is left behind");
    let mut left: Vec<_> = fs::read_dir(&folder.root)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["adir", "f", "link", "pipe", "served", "target"]);
    server.stop();
}

#[test]
fn special_and_missing_files_are_not_put() {
    let folder = Folder::new("no-file");
    let server = folder.serve("");
    let pipe = folder.own("pipe");
    make_fifo(&pipe);
    for (file, part) in [
        (pipe.to_str().unwrap(), "no regular file"),
        ("/dev/zero", "no regular file"),
        ("/proc/cpuinfo", "more bytes than its length says"),
        ("/no/such/file", "No such file"),
    ] {
        let output = server.client(&format!("put {file} ADDRESS/x"));
        assert_eq!(output.status.code(), Some(2), "{file}");
        assert!(complaint(&output).contains(part), "{file}: {}", complaint(&output));
    }
    assert!(folder.names().is_empty(), "{:?}", folder.names());
    server.stop();
}

#[test]
fn hidden_files_are_neither_given_out_nor_taken() {
    let folder = Folder::new("hidden");
    let server = folder.serve("--allow-overwrite");
    fs::create_dir(folder.served(".ssh")).unwrap();
    fs::write(folder.served(".ssh/id"), "secret").unwrap();
    fs::write(folder.served(".profile"), "mine").unwrap();
    let file = folder.own("file");
    fs::write(&file, "theirs").unwrap();
    for name in ["/.profile", "/.ssh/id", "/.new"] {
        let output = server.client(&format!("{} --force", put(&file, name)));
        assert!(complaint(&output).contains("dot"), "put {name}: {}", complaint(&output));
        let output = server.client(&get(name, &folder.own("back")));
        assert!(complaint(&output).contains("dot"), "get {name}: {}", complaint(&output));
        assert!(!folder.own("back").exists());
    }
    assert_eq!(fs::read(folder.served(".profile")).unwrap(), b"mine");
    assert_eq!(folder.names(), [".profile", ".ssh"]);
    server.stop();
}

#[test]
fn options_limit_the_files_of_a_server() {
    let folder = Folder::new("limits");
    let file = folder.own("file");
    fs::write(&file, pattern(5 << 20)).unwrap();
    for (options, part) in [
        ("--read-only", "--read-only"),
        ("--file-size 4M", "--file-size"),
        ("--file-size 0", "--file-size"),
        ("--quota 5242879", "--quota"),
        ("--quota 0", "--quota"),
        ("--files 0", "--files"),
        ("--keep-free 100", "stay free"),
        ("--size 1M", "--size"),
    ] {
        let server = folder.serve(options);
        let output = server.client(&put(&file, ""));
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains("rejected") && said.contains(part), "{options}: {said}");
        assert!(folder.names().is_empty(), "{options}: {:?}", folder.names());
        server.stop();
    }
    let enough = [
        "--file-size 5M",
        "--quota 5124K",
        "--keep-free 0",
        "--size 4M",
        "--files 2",
        "--size 4M --total-size 4M",
    ];
    for (number, options) in enough.iter().enumerate() {
        let server = folder.serve(options);
        json(&server.client(&put(&file, &format!("/{number}"))));
        let empty = folder.own("empty");
        File::create(&empty).unwrap();
        json(&server.client(&put(&empty, &format!("/empty-{number}"))));
        let full =
            options.split(' ').next().filter(|option| ["--quota", "--files"].contains(option));
        if let Some(option) = full {
            let said = complaint(&server.client(&put(&empty, "/second")));
            assert!(
                said.contains(option),
                "for all files together, and an empty one counts: {said}"
            );
        }
        server.stop();
    }
    let server = folder.serve("--read-only");
    json(&server.client(&get("/0", &folder.own("back"))));
    assert_eq!(fs::read(folder.own("back")).unwrap(), pattern(5 << 20));
    server.stop();
}

/// Transfers that fit succeed, whatever else is in flight; the others are refused before they send
/// anything.
#[test]
fn parallel_puts_succeed_up_to_the_quota() {
    let folder = Folder::new("parallel");
    let server = folder.serve("--quota 32M");
    let file = folder.own("file");
    fs::write(&file, pattern(8 << 20)).unwrap();
    let clients: Vec<_> =
        (0..12).map(|number| server.spawn(&put(&file, &format!("/{number}")))).collect();
    let mut done = 0;
    for client in clients {
        let output = client.wait_with_output().unwrap();
        if output.status.success() {
            done += 1;
        } else {
            let said = complaint(&output);
            assert!(
                said.contains("rejected") && said.contains("(--quota) 32M are taken"),
                "{said}"
            );
        }
    }
    assert_eq!((done, folder.names().len()), (4, 4), "{:?}", folder.names());
    server.stop();
}

/// The room that an interrupted transfer has reserved but not filled is free for others.
#[test]
fn interrupted_put_releases_its_unfilled_reservation() {
    let folder = Folder::new("given-back");
    let server = folder.serve("--quota 64M");
    let (file, other) = (folder.own("file"), folder.own("other"));
    fs::write(&file, pattern(60 << 20)).unwrap();
    fs::write(&other, pattern(20 << 20)).unwrap();
    let mut client = server.spawn(&format!("{} --rate 100M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    let said = complaint(&server.client(&put(&other, "")));
    assert!(said.contains("60M are taken, 60M of them by unfinished transfers"), "{said}");
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("room", || server.client(&put(&other, "")).status.success());
    server.stop();
}

#[test]
fn announced_files_use_no_disk_and_missing_parts_leave_none() {
    let folder = Folder::new("announced");
    let server = folder.serve("");
    let file = folder.own("file");
    File::create(&file).unwrap().set_len(2 << 30).unwrap();
    let mut client = server.spawn(&format!("{} --rate 200M", put(&file, "")));
    let part = folder.served(".file.urnic-part");
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    let taken = fs::metadata(&part).unwrap().blocks() * 512;
    assert!(taken < 512 << 20, "{taken} bytes for a small part of the file");
    client.kill().unwrap();
    client.wait().unwrap();
    // A session that received nothing is removed at once.
    let mut client = server.spawn(&format!("{} --rate 1K", put(&file, "/other")));
    wait_until("a session", || folder.served(".other.urnic-part").exists());
    client.kill().unwrap();
    client.wait().unwrap();
    wait_until("the end of it", || !folder.served(".other.urnic-part").exists());
    assert!(!folder.served(".other.urnic-journal").exists());
    assert!(part.exists(), "what has come is kept");
    server.stop();
}

#[test]
fn a_file_longer_than_the_disk_is_not_begun() {
    let folder = Folder::new("too-long");
    let server = folder.serve("");
    File::create(folder.served("long")).unwrap().set_len(8 << 40).unwrap();
    let back = folder.own("back");
    let threads = server.threads();
    for _ in 0..8 {
        let output = server.client(&get("/long", &back));
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("8T are wanted, but the disk has"), "{said}");
    }
    assert!(!back.exists() && !folder.own(".back.urnic-part").exists());
    assert!(!folder.own(".back.urnic-journal").exists());
    // The server does not continue to hash it either.
    wait_until("the end of the threads", || server.threads() <= threads);
    assert!(server.client("ping ADDRESS --count 1").status.success());
    server.stop();
}

#[test]
fn unfinished_files_that_are_old_are_removed() {
    let folder = Folder::new("swept");
    let old = File::create(folder.served(".old.urnic-part")).unwrap();
    let hour_ago = old.metadata().unwrap().modified().unwrap() - Duration::from_secs(3600);
    old.set_modified(hour_ago).unwrap();
    File::create(folder.served(".young.urnic-part")).unwrap().write_all(b"x").unwrap();
    let server = folder.serve("--read-only --keep-parts 30min");
    assert!(server.client("ping ADDRESS --count 1").status.success());
    server.stop();
    assert!(folder.served(".old.urnic-part").exists(), "a server that only reads removes nothing");
    let server = folder.serve("--keep-parts 2h");
    assert!(server.client("ping ADDRESS --count 3 --interval 50ms").status.success());
    server.stop();
    assert!(folder.served(".old.urnic-part").exists(), "not old enough");
    let server = folder.serve("--keep-parts 30min");
    wait_until("the sweep", || !folder.served(".old.urnic-part").exists());
    assert!(folder.served(".young.urnic-part").exists());
    server.stop();
}

#[test]
fn special_file_created_during_a_put_is_not_replaced() {
    let folder = Folder::new("overtaken");
    let server = folder.serve("--allow-overwrite");
    let file = folder.own("file");
    fs::write(&file, pattern(40 << 20)).unwrap();
    let client = server.spawn(&format!("{} --force --rate 200M", put(&file, "")));
    wait_until("progress", || has_progress(&folder.served(".file.urnic-journal")));
    make_fifo(&folder.served("file"));
    let output = client.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", complaint(&output));
    assert!(complaint(&output).contains("no regular file"), "{}", complaint(&output));
    assert!(fs::metadata(folder.served("file")).unwrap().file_type().is_fifo());
    server.stop();
}
