//! The pcap format: one link type, then records of a 16-byte header and a frame. Modified pcap has
//! 8 more bytes in each header.

use std::io::Read;

use super::source::{Endianness, Source};
use super::{CaptureError, CapturedFrame, LinkType};

/// Contents of the file header.
#[derive(Debug)]
pub(super) struct Classic {
    endianness: Endianness,
    link: LinkType,
    /// Nanoseconds per unit of the timestamps' fraction.
    fraction_ns: u64,
    is_modified: bool,
}

impl Classic {
    /// Reads the rest of the header behind a magic number. Returns `None` if the magic number is of
    /// another format.
    pub(super) fn open<R: Read>(
        magic: [u8; 4],
        source: &mut Source<R>,
    ) -> Result<Option<Self>, CaptureError> {
        let (endianness, fraction_ns, is_modified) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (Endianness::Big, 1000, false),
            0xd4c3_b2a1 => (Endianness::Little, 1000, false),
            0xa1b2_3c4d => (Endianness::Big, 1, false),
            0x4d3c_b2a1 => (Endianness::Little, 1, false),
            // Kuznetzov's patch of libpcap.
            0xa1b2_cd34 => (Endianness::Big, 1000, true),
            0x34cd_b2a1 => (Endianness::Little, 1000, true),
            _ => return Ok(None),
        };
        let version = source.array::<4>()?;
        let major = endianness.u16([version[0], version[1]]);
        let minor = endianness.u16([version[2], version[3]]);
        if major != 2 {
            return Err(CaptureError::UnsupportedVersion { major, minor });
        }
        // Skip time zone, accuracy and snap length, which are not used.
        source.skip(12)?;
        // The upper half tells whether frames end with a check sequence, which IP ignores.
        let number = endianness.u32(source.array()?) & 0xffff;
        let link = LinkType::from_number(number)
            .ok_or(CaptureError::UnsupportedLink { number, frame: 1 })?;
        Ok(Some(Self { endianness, link, fraction_ns, is_modified }))
    }

    pub(super) fn next_frame<R: Read>(
        &self,
        source: &mut Source<R>,
    ) -> Result<Option<CapturedFrame>, CaptureError> {
        if source.is_at_end()? {
            return Ok(None);
        }
        let header = source.array::<16>()?;
        let [seconds, fraction, captured_len, original_len] =
            std::array::from_fn(|k| self.endianness.u32_at(&header, k));
        if self.is_modified {
            // Interface, protocol and type of the frame.
            source.skip(MODIFIED_LEN)?;
        }
        let timestamp_ns =
            u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * self.fraction_ns;
        let bytes = source.octets(captured_len)?;
        Ok(Some(CapturedFrame {
            number: source.frame(),
            timestamp_ns,
            link: self.link,
            interface: 0,
            original_len: usize::try_from(original_len).unwrap_or(usize::MAX),
            bytes,
        }))
    }
}

/// Additional bytes of a record's header in modified pcap.
const MODIFIED_LEN: u32 = 8;
