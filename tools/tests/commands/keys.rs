//! Servers with keys and networks: peers without a key do nothing, holders of keys what their lines say.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::thread;

use urnic::{
    Endpoint, EndpointConfig, ListenParams, Offer, QpConfig, Rnic, RnicConfig, random_seed,
};

use crate::commands::files::{Folder, get, put};
use crate::commands::scene::{PATIENCE, Server, complaint, json, urnic};

/// Makes a key, and returns its file and its line.
fn key(folder: &Folder, name: &str) -> (PathBuf, String) {
    let file = folder.own(&format!("{name}.key"));
    let made = urnic(&format!("keygen {}", file.display())).output().unwrap();
    assert_eq!(made.status.code(), Some(0), "{}", complaint(&made));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let line = fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(line.starts_with(&format!("{name} ")), "its name is the file's");
    assert!(!String::from_utf8(made.stdout).unwrap().contains(&line[name.len() + 1..]));
    (file, line)
}

/// Writes the server's file of keys.
fn keys(folder: &Folder, lines: &[String]) -> String {
    let file = folder.own("keys");
    fs::write(&file, lines.join("\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    format!("--keys {}", file.display())
}

#[test]
fn peers_without_a_key_do_nothing_and_holders_of_keys_what_they_may() {
    let folder = Folder::new("keys");
    fs::create_dir(folder.served("alice")).unwrap();
    fs::write(folder.served("one"), [1; 5000]).unwrap();
    let names = ["alice", "ci", "probe", "other"];
    let [alice, ci, probe, other] = names.map(|name| key(&folder, name));
    let lines = [
        format!("{} read write folder=alice quota=64K", alice.1),
        format!("{} read", ci.1),
        probe.1,
    ];
    let server = folder.serve(&keys(&folder, &lines));
    let run = |command: &str, key: Option<&PathBuf>| {
        let key = key.map_or_else(String::new, |key| format!("--key {}", key.display()));
        server.client(&format!("{command} {key}"))
    };
    let refused = |command: &str, key: Option<&PathBuf>, part: &str| {
        let output = run(command, key);
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains(part), "{command}: {said}");
    };
    let (own, back) = (folder.own("own"), folder.own("back"));
    fs::write(&own, [7; 60_000]).unwrap();
    let ping = "ping ADDRESS --count 1";
    refused(ping, None, "give --key FILE");
    refused(&get("/one", &back), None, "give --key FILE");
    refused(&put(&own, "/new"), None, "give --key FILE");
    refused(ping, Some(&other.0), "does not know your key");

    json(&run("ping ADDRESS --count 1 --json", Some(&probe.0)));
    json(&run("bw ADDRESS --connections 3 --seconds 0.02 --json", Some(&probe.0)));
    json(&run("lat ADDRESS --iterations 3 --json", Some(&probe.0)));
    refused(&get("/one", &back), Some(&probe.0), "has no 'read'");
    refused(&get("/none", &back), Some(&probe.0), "has no 'read'");
    refused(&put(&own, "/new"), Some(&probe.0), "has no 'write'");
    json(&run(&get("/one", &back), Some(&ci.0)));
    refused(&put(&own, "/new"), Some(&ci.0), "has no 'write'");

    json(&run(&put(&own, "/new"), Some(&alice.0)));
    assert_eq!(fs::read(folder.served("alice/new")).unwrap(), [7; 60_000]);
    refused(&put(&own, "/second"), Some(&alice.0), "of your key (quota)");
    refused(&get("/one", &folder.own("none")), Some(&alice.0), "there is no one in the folder");
    refused(&put(&own, "/../second"), Some(&alice.0), "leads out of the folder");
    assert_eq!(folder.names(), ["alice", "one"]);
    let log = server.stop_and_tell();
    assert!(log.contains("rejected: this server serves only holders of a key"), "{log}");
    assert!(
        log.contains("0 requests were refused for their network, 4 without a right key"),
        "{log}"
    );
}

#[test]
fn a_server_logs_the_name_of_the_key() {
    let folder = Folder::new("keys-log");
    let (file, line) = key(&folder, "alice");
    let options = keys(&folder, &[line]);
    let server = urnic(&format!("serve --listen 127.0.0.1:0 --json --once {options}"));
    let server = Server::of_all_lines(server);
    let ping = format!("ping ADDRESS --count 1 --json --key {}", file.display());
    json(&server.0.client(&ping));
    let lines = server.1.join().unwrap();
    let of = |event: &str| {
        let is_it = |line: &&String| line.contains(&format!("\"event\":\"{event}\""));
        lines.iter().find(is_it).unwrap_or_else(|| panic!("{event}: {lines:?}"))
    };
    assert!(
        of("started").contains("\"key\":\"alice\"") && of("ended").contains("\"key\":\"alice\"")
    );
    assert_eq!(server.0.wait(), Some(0), "a challenge is no failed session");
}

#[test]
fn networks_decide_before_anything_else() {
    for (options, is_served) in [
        ("--deny 127.0.0.0/8", false),
        ("--allow 192.0.2.0/24 --allow ::1", false),
        ("--allow 192.0.2.0/24,127.0.0.1 --deny 127.0.0.2", true),
    ] {
        let server = Server::start(options);
        let output = server.client("ping ADDRESS --count 1");
        let expected = if is_served { Some(0) } else { Some(2) };
        assert_eq!(output.status.code(), expected, "{options}: {}", complaint(&output));
        assert_eq!(complaint(&output).contains("does not serve your address"), !is_served);
        server.stop();
    }
}

#[test]
fn files_of_keys_are_checked_before_anything_starts() {
    let folder = Folder::new("keys-checked");
    let (file, line) = key(&folder, "alice");
    let again = urnic(&format!("keygen {}", file.display())).output().unwrap();
    assert!(complaint(&again).contains("File exists"), "{}", complaint(&again));
    let refused = |options: &str, part: &str| {
        let output = urnic(&format!("serve --listen 127.0.0.1:0 {options}")).output().unwrap();
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{options}: {said}");
        assert!(said.contains(part), "{options}: {said}");
        assert!(!said.contains(&line[6..]), "{said}");
    };
    refused(&keys(&folder, &[format!("{line} folder=x")]), "within --dir, which is missing");
    refused(&keys(&folder, &[format!("{line} execute")]), "line 1: a word is none of");
    let dir = format!("--dir {} ", folder.own("served").display());
    refused(&(dir.clone() + &keys(&folder, &[format!("{line} folder=none")])), "folder none");
    refused(&(dir + &keys(&folder, &[format!("{line} folder=..")])), "leads out of the folder");
    let options = keys(&folder, std::slice::from_ref(&line));
    fs::set_permissions(folder.own("keys"), fs::Permissions::from_mode(0o644)).unwrap();
    refused(&options, "chmod 600");
    let server = Server::start("");
    let said = complaint(&server.client(&format!("ping ADDRESS --key {}", file.display())));
    assert!(said.contains("has no keys and proves nothing"), "{said}");
    server.stop();
}

/// A server that has not got the key: it sends a challenge, and a Reply without a right proof.
#[test]
fn a_client_with_a_key_notices_an_impostor() {
    let folder = Folder::new("impostor");
    let (file, _) = key(&folder, "alice");
    let rnic = Rnic::new(RnicConfig { seed: random_seed().unwrap() });
    let endpoint = Endpoint::kernel(&rnic, &EndpointConfig::default()).unwrap();
    let local = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = endpoint.listen(local, ListenParams::default()).unwrap();
    let ping = format!("ping {} --count 1 --key {}", listener.local(), file.display());
    let client = thread::spawn(move || urnic(&ping).output().unwrap());
    let header = b"urnc\0\x03".as_slice();
    let request = listener.next_request(PATIENCE).unwrap().unwrap();
    assert_eq!(request.request().private_data, [header, &[128]].concat());
    request.reject(&[header, &[0xff], &[5; 24]].concat()).unwrap();
    let request = listener.next_request(PATIENCE).unwrap().unwrap();
    let asked = request.request().private_data.clone();
    assert!(asked.starts_with(&[header, &[129]].concat()) && asked[15..39] == [5; 24]);
    let cq = rnic.create_cq(64).unwrap();
    let depths = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::new(&cq) };
    let qp = rnic.alloc_pd().create_qp(depths).unwrap();
    let welcome = [header, &[0; 12 + 8 + 4 + 8 + 4], &[0; 16]].concat();
    let offer = Offer { private_data: &welcome, ird: 16, ord: 16 };
    let _connecting = request.accept(&qp, &offer).unwrap();
    let output = client.join().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = complaint(&output);
    assert!(said.contains("does not prove that it has the key"), "{said}");
}
