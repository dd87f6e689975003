//! `urnic replay --write`: a copy of the capture with comments, otherwise unchanged.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use urnic_netdev::capture::{CaptureReader, CapturedFrame};
use urnic_testkit::programs::{is_there, program};
use urnic_testkit::skip;

use crate::replay::{pcaps, urnic};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn frames(capture: &[u8]) -> Vec<CapturedFrame> {
    CaptureReader::open(capture).unwrap().map(Result::unwrap).collect()
}

/// A pcapng file under construction, in one byte order.
struct Pcapng {
    is_big: bool,
    octets: Vec<u8>,
}

impl Pcapng {
    fn numbers(&self, numbers: &[u32]) -> Vec<u8> {
        let octets = |number: &u32| {
            if self.is_big { number.to_be_bytes() } else { number.to_le_bytes() }
        };
        numbers.iter().flat_map(octets).collect()
    }

    fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len()).unwrap();
        let head = [code, len];
        let mut option: Vec<u8> = head
            .iter()
            .flat_map(|half| if self.is_big { half.to_be_bytes() } else { half.to_le_bytes() })
            .collect();
        option.extend(value);
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let len = u32::try_from(body.len() + 12).unwrap();
        let (head, tail) = (self.numbers(&[kind, len]), self.numbers(&[len]));
        self.octets.extend([head, body, tail].concat());
    }

    fn packet(&mut self, interface: u32, frame: &[u8], at_ns: u64, options: &[u8]) {
        let len = u32::try_from(frame.len()).unwrap();
        let halves = [at_ns >> 32, at_ns & 0xffff_ffff].map(|half| u32::try_from(half).unwrap());
        let mut body = self.numbers(&[interface, halves[0], halves[1], len, len]);
        body.extend(frame);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(options);
        self.block(6, &body);
    }
}

/// Returns the frames of `capture`, alternately of an Ethernet and a raw IP interface, among blocks
/// of all kinds.
fn with_everything(capture: &[CapturedFrame], is_big: bool) -> Vec<u8> {
    let mut file = Pcapng { is_big, octets: Vec::new() };
    // Version 1.0, a section length that is not given, a comment on the section.
    let version = file.option(1, b"")[..2].to_vec();
    let section = [
        &file.numbers(&[0x1a2b_3c4d])[..],
        &version,
        &[0, 0],
        &[0xff; 8],
        &file.option(1, b"a section"),
        &[0; 4],
    ];
    file.block(0x0a0d_0d0a, &section.concat());
    for (link, name) in [(1_u16, "eth"), (101, "ip")] {
        let link = if is_big { link.to_be_bytes() } else { link.to_le_bytes() };
        let options = [file.option(2, name.as_bytes()), file.option(9, &[9]), vec![0; 4]].concat();
        file.block(1, &[&link[..], &[0, 0], &file.numbers(&[0]), &options].concat());
    }
    // Names, decryption secrets, a block of another vendor, and an unknown one.
    let name = [&file.option(1, b"\x0a\x00\x00\x01here\0")[..], &[0; 4]].concat();
    file.block(4, &name);
    let secret = [file.numbers(&[0x544c_534b, 6]), b"secret".to_vec()].concat();
    file.block(10, &secret);
    let custom = [file.numbers(&[32473]), b"custom".to_vec()].concat();
    file.block(0xbad, &custom);
    file.block(0x7fff_0001, b"unknown!");
    for (index, frame) in capture.iter().enumerate() {
        let own = [file.option(1, "schön".as_bytes()), file.option(2, &[0, 0, 0, 1])].concat();
        let options = if index % 3 == 0 { [own, vec![0; 4]].concat() } else { vec![] };
        let datagram = frame.ip_packet().unwrap().unwrap();
        if index % 2 == 0 {
            file.packet(1, datagram, frame.timestamp_ns + 1, &options);
        } else {
            file.packet(0, &frame.bytes, frame.timestamp_ns + 1, &options);
        }
    }
    let statistics = file.numbers(&[0, 0, 0]);
    file.block(5, &statistics);
    file.octets
}

/// Returns the blocks of a file, with their types.
fn blocks(octets: &[u8], is_big: bool) -> Vec<(u32, Vec<u8>)> {
    let number = |at: usize| {
        let four = octets[at..at + 4].try_into().unwrap();
        if is_big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
    };
    let mut at = 0;
    let mut found = Vec::new();
    while at < octets.len() {
        let len = usize::try_from(number(at + 4)).unwrap();
        assert_eq!(number(at + len - 4), number(at + 4));
        found.push((number(at), octets[at + 8..at + len - 4].to_vec()));
        at += len;
    }
    found
}

#[test]
fn every_block_and_octet_is_copied() {
    let capture = frames(&fs::read(pcaps().join("siw-write-crc.pcap")).unwrap());
    for is_big in [false, true] {
        let source = with_everything(&capture, is_big);
        let (from, to) =
            (path(&format!("every-{is_big}.pcapng")), path(&format!("again-{is_big}")));
        fs::write(&from, &source).unwrap();
        let output = urnic(&["--write", to.to_str().unwrap(), from.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("urnic: ") && said.lines().count() == 1, "{said}");
        let (before, after) = (blocks(&source, is_big), blocks(&fs::read(&to).unwrap(), is_big));
        assert_eq!(before.len(), after.len());
        let mut commented = 0;
        for ((kind, old), (kind_after, new)) in before.iter().zip(&after) {
            assert_eq!(kind, kind_after);
            if old == new {
                continue;
            }
            assert_eq!(*kind, 6, "packets only");
            // The former options without the end mark, then the comment, then the mark.
            let has_options =
                old.ends_with(&[0; 4]) && old.windows(4).any(|four| four == b"sch\xc3");
            let kept = if has_options { &old[..old.len() - 4] } else { &old[..] };
            assert!(new.starts_with(kept) && new.ends_with(&[0; 4]));
            let added = &new[kept.len()..new.len() - 4];
            assert_eq!(added[..2], if is_big { [0, 1] } else { [1, 0] });
            let text = String::from_utf8_lossy(&added[4..]);
            assert!(text.starts_with("iWARP from the "), "{text}");
            commented += 1;
        }
        assert!(commented > 20, "{commented}");
        assert_eq!(frames(&fs::read(&to).unwrap()), frames(&source));
    }
}

/// Each row: a frame of the capture, and a part of its comment.
#[test]
fn tshark_shows_the_comments_and_finds_nothing_wrong() {
    if !is_there("tshark") || !is_there("capinfos") {
        return skip("comments as tshark shows them", "`tshark` or `capinfos` is missing");
    }
    for (name, shown) in [
        ("siw-rping.pcap", "MPA Request, revision 2"),
        ("siw-rping-crc.pcap", "RDMA Read Response to STag 0x16d59900 at 0x563ccdee2c30, 1428"),
        ("siw-terminate-bounds.pcap", "warning, RFC 5040 §4.8: "),
        ("siw-send-loss-crc.pcap", ", retransmission"),
        ("demo-markers-reorder.pcapng", "bytes, last, placed ahead of a gap"),
        ("demo-resegment.pcapng", ", not aligned with FPDUs"),
        ("derived/crc-wrong.pcap", "error, RFC 5044 §4.4: "),
        ("derived/big-endian.pcapng", "aligned with FPDUs"),
    ] {
        let from = pcaps().join(name);
        let to = path(&format!("shown-{}.pcapng", name.replace('/', "-")));
        let output = urnic(&["-w", to.to_str().unwrap(), from.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{name}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        // Some of its packet blocks are simple ones.
        let has_simple = name == "derived/big-endian.pcapng";
        assert_eq!(complaint.contains("frames have no place"), has_simple, "{name}: {complaint}");
        let tshark = program("tshark")
            .args(["-r", to.to_str().unwrap(), "-T", "fields", "-e", "frame.number"])
            .args(["-e", "frame.comment", "-Y", "frame.comment"])
            .output()
            .unwrap();
        assert!(tshark.status.success(), "{name}: {}", String::from_utf8_lossy(&tshark.stderr));
        let comments = String::from_utf8(tshark.stdout).unwrap();
        assert!(comments.contains(shown), "{name} lacks {shown:?}:\n{comments}");
        let capinfos = program("capinfos").arg(&to).output().unwrap();
        assert!(capinfos.status.success(), "{name}");
        let original = fs::read(&from).unwrap();
        assert_eq!(frames(&fs::read(&to).unwrap()), frames(&original), "{name}");
    }
}

#[test]
fn a_pipe_is_written_to_a_pipe_and_a_file_over_itself() {
    let capture = fs::read(pcaps().join("siw-rping-crc.pcap")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_urnic"))
        .args(["replay", "--write", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&capture).unwrap();
    let piped = child.wait_with_output().unwrap();
    assert_eq!(piped.status.code(), Some(0));
    assert_eq!(frames(&piped.stdout), frames(&capture));
    let own = path("over-itself.pcapng");
    fs::write(&own, &capture).unwrap();
    for _ in 0..2 {
        let before = fs::read(&own).unwrap().len();
        let output = urnic(&["--write", own.to_str().unwrap(), own.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0));
        let after = fs::read(&own).unwrap();
        assert!(after.len() > before, "comments were added");
        assert_eq!(frames(&after), frames(&capture));
    }
    assert_eq!(fs::read(&own).unwrap().first_chunk(), piped.stdout.first_chunk::<24>());
}

/// A failed copy does not replace the capture, by whatever path the output names it.
#[test]
fn a_capture_is_not_replaced_by_a_part_of_it() {
    let capture = frames(&fs::read(pcaps().join("siw-write-crc.pcap")).unwrap());
    let whole = with_everything(&capture, false);
    let mut broken = whole.clone();
    // The second length of the block before the last.
    let at = whole.len() - 24 - 4;
    broken[at] ^= 4;
    let (own, link) = (path("broken.pcapng"), path("link-to-broken.pcapng"));
    let _old = fs::remove_file(&link);
    std::os::unix::fs::symlink(&own, &link).unwrap();
    for octets in [&broken[..], &whole[..whole.len() - 30]] {
        for (source, target) in [(&own, &own), (&link, &own), (&own, &link)] {
            fs::write(&own, octets).unwrap();
            let output = urnic(&["--write", target.to_str().unwrap(), source.to_str().unwrap()]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains("was not changed; write to another file"), "{said}");
            assert!(fs::read(&own).unwrap() == octets);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_urnic"));
        command.args(["replay", "--write", own.to_str().unwrap(), "-"]);
        let status = command.stdin(fs::File::open(&own).unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(2));
        assert!(fs::read(&own).unwrap() == octets);
    }
    fs::write(&own, &broken).unwrap();
    let other = path("part-of-broken.pcapng");
    let output = urnic(&["--write", other.to_str().unwrap(), own.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "it is not all there");
    assert!(frames(&whole).starts_with(&frames(&fs::read(&other).unwrap())));
    fs::remove_file(link).unwrap();
}

#[test]
fn target_keeps_its_mode_and_symbolic_links_are_followed() {
    let capture = pcaps().join("siw-write-crc.pcap");
    let (own, link, plain) = (path("mode.pcapng"), path("link-to-mode"), path("plain-mode"));
    for old in [&own, &link, &plain] {
        let _old = fs::remove_file(old);
    }
    fs::write(&plain, "as any file").unwrap();
    std::os::unix::fs::symlink(&own, &link).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    let write = |to: &Path| {
        let output = urnic(&["--write", to.to_str().unwrap(), capture.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0));
    };
    write(&own);
    assert_eq!(mode(&own), mode(&plain), "as the umask has it");
    for bits in [0o600, 0o640, 0o666] {
        fs::set_permissions(&own, fs::Permissions::from_mode(bits)).unwrap();
        fs::write(&own, "").unwrap();
        write(&link);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((mode(&own) & 0o777, fs::metadata(&own).unwrap().len() > 0), (bits, true));
    }
}

#[test]
fn blocks_may_have_any_length() {
    let capture = frames(&fs::read(pcaps().join("siw-write-crc.pcap")).unwrap());
    let mut file = Pcapng { is_big: false, octets: with_everything(&capture, false) };
    let statistics = file.octets.split_off(file.octets.len() - 24);
    file.block(0xbad, &vec![0x5a; 65 << 20]);
    file.octets.extend(&statistics);
    let own = path("long-block.pcapng");
    fs::write(&own, &file.octets).unwrap();
    let output = urnic(&["--write", own.to_str().unwrap(), own.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
    assert_eq!(output.status.code(), Some(0));
    let (before, after) = (blocks(&file.octets, false), blocks(&fs::read(&own).unwrap(), false));
    assert_eq!(before.len(), after.len());
    let tail = before.len() - 2;
    assert!(before[tail..] == after[tail..]);
    fs::remove_file(own).unwrap();
}

#[test]
fn written_frames_and_comments_are_reported() {
    let from = pcaps().join("siw-rping-crc.pcap");
    let to = path("said.pcapng");
    let output = urnic(&["--json", "--write", to.to_str().unwrap(), from.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = &report["files"][0]["written"];
    let (frames, commented) =
        (report["files"][0]["frames"].as_u64().unwrap(), written["commented"].as_u64().unwrap());
    assert!(0 < commented && commented < frames, "{written}");
    let expected = serde_json::json!({
        "frames": frames, "commented": commented, "no_place": 0, "late": 0,
    });
    assert_eq!(*written, expected);
    let said = format!("urnic: {}: {frames} frames, {commented} with a comment\n", to.display());
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    let silent = urnic(&["--json", from.to_str().unwrap()]);
    let report: serde_json::Value = serde_json::from_slice(&silent.stdout).unwrap();
    assert!(report["files"][0].get("written").is_none() && silent.stderr.is_empty());
}

#[test]
fn truncated_sources_and_failed_writes_are_reported() {
    let whole = fs::read(pcaps().join("siw-rping-crc.pcap")).unwrap();
    let (from, to) = (path("cut-source.pcap"), path("cut-target.pcapng"));
    fs::write(&from, &whole[..20_000]).unwrap();
    let output = urnic(&["--write", to.to_str().unwrap(), from.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the capture is cut off: the copy ends with frame "), "{said}");
    let written = frames(&fs::read(&to).unwrap());
    assert!(written.len() > 10 && frames(&whole).starts_with(&written));
    for (arguments, said) in [
        (["--write", "/none/such.pcapng", "x"], "cannot"),
        (["--write", "-", "--json"], "--write - leaves no room"),
        (["--write", "x", "y"], "--write takes one capture"),
    ] {
        let mut all = arguments.to_vec();
        if arguments[2] == "x" {
            all[2] = from.to_str().unwrap();
        } else {
            all.push(from.to_str().unwrap());
        }
        let output = urnic(&all);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{all:?}");
        let said = if said == "cannot" { "writing /none/such.pcapng" } else { said };
        assert!(complaint.contains(said), "{all:?}: {complaint}");
    }
}
