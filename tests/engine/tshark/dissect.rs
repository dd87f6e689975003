//! Runs `tshark` and parses its output.

use std::collections::BTreeMap;
use std::path::PathBuf;

use urnic_testkit::programs::{missing, program};
use urnic_testkit::skip;

/// Values of fields, over all FPDUs of a session.
#[derive(Debug, Default)]
pub(crate) struct Fields(BTreeMap<&'static str, Vec<u64>>);

impl Fields {
    pub(crate) fn push(&mut self, field: &'static str, value: u64) {
        assert!(FIELDS.contains(&field), "{field} is asked for");
        self.0.entry(field).or_default().push(value);
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    /// Returns the values of a field. Frames of the two directions mix, so the order has no
    /// meaning.
    pub(crate) fn sorted(&self, field: &str) -> Vec<u64> {
        let mut values = self.0.get(field).cloned().unwrap_or_default();
        values.sort_unstable();
        values
    }
}

/// Result of `tshark` for a capture.
pub(crate) struct Verdict {
    pub(crate) fields: Fields,
    pub(crate) crcs_good: usize,
    pub(crate) text: String,
}

/// Lets `tshark` read a capture; `None`, with the reason printed, if that is impossible here.
pub(crate) fn judge(name: &str, capture: &[u8]) -> Option<Verdict> {
    if let Some(reason) = missing(["tshark", "timeout"]) {
        skip(name, &reason);
        return None;
    }
    let file = Capture::write(name, capture);
    let mut ask: Vec<&str> = vec!["-T", "fields", "-E", "separator=/t", "-E", "occurrence=a"];
    for field in FIELDS {
        ask.extend(["-e", field]);
    }
    let table = tshark(&file, &ask);
    let mut fields = Fields::default();
    for line in table.lines() {
        for (field, values) in FIELDS.into_iter().zip(line.split('\t')) {
            for value in values.split(',').filter(|value| !value.is_empty()) {
                fields.push(field, number(value));
            }
        }
    }
    let text = tshark(&file, &["-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap"]);
    let crcs_good = text.matches("(Good CRC32)").count();
    Some(Verdict { fields, crcs_good, text })
}

fn tshark(file: &Capture, arguments: &[&str]) -> String {
    let output = program("timeout")
        .args(["60", "tshark", "-n", "-r"])
        .arg(&file.0)
        // These dissectors would claim all data.
        .args(["--disable-heuristic", "rpcrdma_iwarp", "--disable-heuristic", "smb_direct_iwarp"])
        .args(["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"])
        .args(["-o", "iwarp_ddp_rdmap.reassemble_iwarp_rdma_send:FALSE"])
        .args(arguments)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn number(value: &str) -> u64 {
    match (value, value.strip_prefix("0x")) {
        ("True", _) => 1,
        ("False", _) => 0,
        (_, Some(hex)) => u64::from_str_radix(hex, 16).unwrap(),
        (decimal, None) => decimal.parse().unwrap(),
    }
}

/// A capture file that is removed when it is dropped.
struct Capture(PathBuf);

impl Capture {
    fn write(name: &str, octets: &[u8]) -> Self {
        let file = format!("urnic-tshark-{}-{name}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(file);
        std::fs::write(&path, octets).unwrap();
        Self(path)
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // A failing test leaves its capture for inspection.
        if !std::thread::panicking() {
            let _gone = std::fs::remove_file(&self.0);
        }
    }
}

const FIELDS: [&str; 32] = [
    "iwarp_mpa.rev",
    "iwarp_mpa.pdlength",
    "iwarp_mpa.ulpdulength",
    "iwarp_ddp.tagged_flag",
    "iwarp_ddp.last_flag",
    "iwarp_ddp.dv",
    "iwarp_ddp.stag",
    "iwarp_ddp.tagged_offset",
    "iwarp_ddp.qn",
    "iwarp_ddp.msn",
    "iwarp_ddp.mo",
    "iwarp_rdma.version",
    "iwarp_rdma.opcode",
    "iwarp_rdma.inval_stag",
    "iwarp_rdma.sinkstag",
    "iwarp_rdma.sinkto",
    "iwarp_rdma.rdmardsz",
    "iwarp_rdma.srcstag",
    "iwarp_rdma.srcto",
    "iwarp_rdma.term_layer",
    "iwarp_rdma.term_errcode_ddp_tagged",
    "iwarp_rdma.atomic.opcode",
    "iwarp_rdma.atomic.request_identifier",
    "iwarp_rdma.atomic.remote_stag",
    "iwarp_rdma.atomic.remote_tagged_offset",
    "iwarp_rdma.atomic.add_data",
    "iwarp_rdma.atomic.add_mask",
    "iwarp_rdma.atomic.swap_data",
    "iwarp_rdma.atomic.swap_mask",
    "iwarp_rdma.atomic.compare_data",
    "iwarp_rdma.atomic.compare_mask",
    "iwarp_rdma.atomic.original_remote_data_value",
];
