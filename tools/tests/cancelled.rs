//! Options that are without effect because of another option or the peer: an error, or a line about
//! it.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

use std::fs;

use crate::commands::scene::{Server, complaint, urnic};

/// Command lines that are refused: the second option would have no effect.
const REFUSED: &[(&str, &str)] = &[
    ("ping ADDRESS --stack optimized", "--stack"),
    ("bw ADDRESS --all-sizes --size 4K", "--size"),
    ("bw ADDRESS --all-sizes --interval 1", "--interval"),
    ("bw ADDRESS --count 4 --seconds 1", "--seconds"),
    ("bw ADDRESS --bidir --rate 1G", "--rate"),
    ("bw ADDRESS --bidir --op send", "--bidir"),
    ("bw ADDRESS --op fetch-add --size 4K", "--size"),
    ("bw ADDRESS --op immediate --all-sizes", "--all-sizes"),
    ("bw ADDRESS --rate 1K --size 1M --seconds 0.1", "--rate"),
    ("lat ADDRESS --all-sizes --size 4K", "--size"),
    ("lat ADDRESS --all-sizes --interval 1", "--interval"),
    ("lat ADDRESS --all-sizes --histogram", "--histogram"),
    ("lat ADDRESS --op fetch-add --size 4K", "--size"),
    ("get ADDRESS/served - --force", "--force"),
    ("serve --listen 127.0.0.1:0 --read-only", "--dir"),
    ("serve --listen 127.0.0.1:0 --allow-overwrite", "--dir"),
    ("serve --listen 127.0.0.1:0 --file-size 1M", "--dir"),
    ("serve --listen 127.0.0.1:0 --quota 1M", "--dir"),
    ("serve --listen 127.0.0.1:0 --keep-free 1", "--dir"),
    ("serve --listen 127.0.0.1:0 --keep-parts 1h", "--dir"),
    ("serve --listen 127.0.0.1:0 --dir . --read-only --allow-overwrite", "--allow-overwrite"),
    ("serve --listen 127.0.0.1:0 --dir . --read-only --file-size 1M", "--file-size"),
    ("serve --listen 127.0.0.1:0 --dir . --read-only --quota 1M", "--quota"),
    ("serve --listen 127.0.0.1:0 --dir . --read-only --keep-free 1", "--keep-free"),
    ("demo --super-frames on --corrupt 1", "--super-frames"),
    ("demo --super-frames 4K --resegment", "--super-frames"),
    ("demo --json --quiet", "--quiet"),
    ("sim --json --quiet", "--quiet"),
    ("impair a b --burst-length 3", "--burst"),
    ("impair a b --reorder-frames 3", "--reorder"),
    ("impair a b --queue 3", "--rate"),
    ("impair a b --outage-every 3s", "--outage-for"),
    ("impair a b --direction a-to-b", "--direction"),
    ("impair a b --direction a-to-b --rate 1G --delay 1ms", "--direction"),
    ("impair a b --json --quiet", "--quiet"),
    ("capture -i lo --max-size 1M", "--write"),
    ("capture -i lo --write x --files 2", "--max-size"),
    ("capture -i lo --write - --max-size 1M --files 2", "--files"),
    ("capture -i lo --write - --json", "--json"),
    ("capture -i lo --all --port 1", "--port"),
    ("capture -i lo --json --quiet", "--quiet"),
    ("top --once --count 3", "--count"),
    ("top --once --interval 3", "--interval"),
    ("top --json --connections 3", "--connections"),
    ("replay x --write - --json", "--json"),
    ("replay x --write - --compare", "--compare"),
    ("replay x y --write z", "--write"),
    ("info --dev kernel", "--dev"),
    ("rping -s -c", "--client"),
    ("ibswitch --node n --json --quiet", "--quiet"),
    ("ibgate --dev ib:sim=none,node=n,ip=10.9.0.9/24 --json --quiet", "--quiet"),
];

/// Command lines that succeed, and the line for each option without effect.
const NOTED: &[(&str, &[&str])] = &[
    ("ping ADDRESS -c 1", &[]),
    ("ping ADDRESS -c 1 --no-crc --json", &["--no-crc: CRCs are used"]),
    ("bw ADDRESS -n 4 -P 3 --markers --no-crc", &["payload has none", "--no-crc: CRCs are used"]),
    ("bw ADDRESS -n 4 --op read --markers", &[]),
    ("bw ADDRESS -t 0.01 --bidir --markers", &["only the server's payload"]),
    ("bw ADDRESS -n 2 -P 3", &["--connections 3: only 2 of them"]),
    ("lat ADDRESS -n 4 --markers", &["only the server's payload"]),
    ("lat ADDRESS -n 4 --op read --markers", &[]),
    ("put FILE ADDRESS/name --markers --no-crc", &["payload has none", "--no-crc: CRCs are used"]),
    ("get ADDRESS/served OUT --markers", &[]),
];

#[test]
fn options_that_another_one_cancels_are_refused() {
    let mut problems = Vec::new();
    for (command, name) in REFUSED {
        let line = command.replace("ADDRESS", "127.0.0.1:1");
        let output = urnic(&line).output().unwrap();
        let said = complaint(&output);
        if output.status.code() != Some(2) || !said.contains(name) {
            problems.push(format!("{command}: {:?}, {said}", output.status.code()));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn options_that_the_peer_leaves_without_effect_have_a_line_each() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("served");
    fs::create_dir(&served).unwrap();
    fs::write(served.join("served"), "octets").unwrap();
    fs::write(folder.path().join("file"), "octets").unwrap();
    let own = |name: &str| folder.path().join(name).display().to_string();
    let server = Server::start(&format!("--dir {}", served.display()));
    for (command, lines) in NOTED {
        let output =
            server.client(&command.replace("FILE", &own("file")).replace("OUT", &own("out")));
        let said = complaint(&output);
        assert!(output.status.success(), "{command}: {said}");
        assert_eq!(said.lines().count(), lines.len(), "{command}, each once: {said}");
        assert!(lines.iter().all(|line| said.contains(line)), "{command}: {said}");
    }
    server.stop();
    let server = Server::start("--markers --no-crc");
    assert_eq!(complaint(&server.client("bw ADDRESS -n 4 --markers --no-crc")), "");
    server.stop();
}
