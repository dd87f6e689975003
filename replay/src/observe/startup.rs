//! Finds the MPA startup frame at the beginning of a stream.

use urnic_engine::limits::STREAMING_BYTES_MAX;
use urnic_engine::wire::mpa::{
    EnhancedHeader, StartupFrame, StartupFrameError, StartupHeader, StartupKind,
};

use crate::read::scan::KEYS;

#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) header: StartupHeader,
    pub(crate) enhanced: Option<EnhancedHeader>,
    pub(crate) private_data: Vec<u8>,
    pub(crate) reserved_is_set: bool,
    /// Position of the first byte of full operation.
    pub(crate) end: u64,
    pub(crate) frame: u64,
}

impl Frame {
    pub(crate) fn told(&self) -> String {
        let StartupHeader { kind, markers, crc, reject, revision, .. } = self.header;
        let mut told = format!("MPA {kind:?}, revision {revision}");
        for (is_set, what) in [
            (markers, ", wants markers in what it receives"),
            (crc, ", CRCs"),
            (reject, ", rejects the connection"),
        ] {
            if is_set {
                told.push_str(what);
            }
        }
        told
    }
}

#[derive(Debug, Default)]
pub(crate) struct Search {
    octets: Vec<u8>,
    /// Start of the frame in these bytes.
    at: Option<usize>,
}

impl Search {
    /// Returns the number of used bytes, and the frame when it is complete. The error is `None` if
    /// no bytes look like a frame.
    pub(crate) fn read(
        &mut self,
        bytes: &[u8],
        frame: u64,
    ) -> (usize, Result<Option<Frame>, Option<StartupFrameError>>) {
        let before = self.octets.len();
        self.octets.extend_from_slice(bytes);
        if self.at.is_none() {
            // RFC 5044 §7.1: a connection may begin with bytes before MPA.
            let from = before.saturating_sub(KEYS[0].len() - 1);
            let is_key = |window: &[u8]| KEYS.iter().any(|key| *key == window);
            let fresh = self.octets.get(from..).unwrap_or_default();
            self.at = fresh.windows(KEYS[0].len()).position(is_key).map(|at| at + from);
        }
        let Some(at) = self.at else {
            let is_hopeless = self.octets.len() > STREAMING_BYTES_MAX;
            return (bytes.len(), if is_hopeless { Err(None) } else { Ok(None) });
        };
        let octets = &self.octets[at..];
        match StartupFrame::parse(octets) {
            Ok(None) => (bytes.len(), Ok(None)),
            Err(error) => (bytes.len(), Err(Some(error))),
            Ok(Some((startup, len))) => {
                let (enhanced, private_data) = startup.split_private_data();
                let meaningful =
                    if startup.header.kind == StartupKind::Reply { 0xf0 } else { 0xd0 };
                let found = Frame {
                    header: startup.header,
                    enhanced,
                    private_data: private_data.to_vec(),
                    reserved_is_set: octets[16] & !meaningful != 0,
                    end: (at + len) as u64,
                    frame,
                };
                ((at + len).saturating_sub(before), Ok(Some(found)))
            }
        }
    }
}
