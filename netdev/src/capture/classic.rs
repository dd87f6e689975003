//! The pcap format: one link type, then records of a 16-byte header (24 in modified pcap) and a
//! frame.

use std::io::Read;

use super::format::Endianness;
use super::source::Source;
use super::{CaptureError, CapturedFrame, LinkType};

#[derive(Clone, Copy, Debug)]
pub(super) struct Variant {
    pub(super) endianness: Endianness,
    /// Nanoseconds per unit of the timestamps' fraction.
    pub(super) fraction_ns: u64,
    is_modified: bool,
}

pub(super) struct Record {
    pub(super) seconds: u32,
    pub(super) fraction: u32,
    pub(super) captured_len: u32,
    pub(super) original_len: u32,
}

impl Variant {
    /// Returns the variant that begins with a magic number; `None` if that is of another format.
    pub(super) const fn of(magic: [u8; 4]) -> Option<Self> {
        let (endianness, fraction_ns, is_modified) = match u32::from_be_bytes(magic) {
            0xa1b2_c3d4 => (Endianness::Big, 1000, false),
            0xd4c3_b2a1 => (Endianness::Little, 1000, false),
            0xa1b2_3c4d => (Endianness::Big, 1, false),
            0x4d3c_b2a1 => (Endianness::Little, 1, false),
            // Kuznetzov's patch of libpcap.
            0xa1b2_cd34 => (Endianness::Big, 1000, true),
            0x34cd_b2a1 => (Endianness::Little, 1000, true),
            _ => return None,
        };
        Some(Self { endianness, fraction_ns, is_modified })
    }

    pub(super) fn version<R: Read>(
        self,
        source: &mut Source<R>,
    ) -> Result<(u16, u16), CaptureError> {
        let [a, b, c, d] = source.array()?;
        Ok((self.endianness.u16([a, b]), self.endianness.u16([c, d])))
    }

    /// Returns the snap length, and the link type with its flags.
    pub(super) fn head<R: Read>(self, source: &mut Source<R>) -> Result<(u32, u32), CaptureError> {
        // Time zone and accuracy are not used.
        let rest = source.array::<16>()?;
        Ok((self.endianness.u32_at(&rest, 2), self.endianness.u32_at(&rest, 3)))
    }

    /// Reads the header of the next record; `None` at the end of the file.
    pub(super) fn record<R: Read>(
        self,
        source: &mut Source<R>,
    ) -> Result<Option<Record>, CaptureError> {
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
        Ok(Some(Record { seconds, fraction, captured_len, original_len }))
    }
}

#[derive(Debug)]
pub(super) struct Classic {
    variant: Variant,
    link: LinkType,
}

impl Classic {
    /// Returns `None` if the magic number is of another format.
    pub(super) fn open<R: Read>(
        magic: [u8; 4],
        source: &mut Source<R>,
    ) -> Result<Option<Self>, CaptureError> {
        let Some(variant) = Variant::of(magic) else { return Ok(None) };
        let (major, minor) = variant.version(source)?;
        if major != 2 {
            return Err(CaptureError::UnsupportedVersion { major, minor });
        }
        // The upper half tells whether frames end with a check sequence, which IP ignores.
        let number = variant.head(source)?.1 & 0xffff;
        let link = LinkType::from_number(number)
            .ok_or(CaptureError::UnsupportedLink { number, frame: 1 })?;
        Ok(Some(Self { variant, link }))
    }

    pub(super) fn next_frame<R: Read>(
        &self,
        source: &mut Source<R>,
    ) -> Result<Option<CapturedFrame>, CaptureError> {
        let Some(record) = self.variant.record(source)? else { return Ok(None) };
        let fraction_ns = u64::from(record.fraction) * self.variant.fraction_ns;
        let bytes = source.octets(record.captured_len)?;
        Ok(Some(CapturedFrame {
            number: source.frame(),
            timestamp_ns: u64::from(record.seconds) * 1_000_000_000 + fraction_ns,
            link: self.link,
            interface: 0,
            original_len: usize::try_from(record.original_len).unwrap_or(usize::MAX),
            bytes,
        }))
    }
}

/// Additional bytes of a record's header in modified pcap.
const MODIFIED_LEN: u32 = 8;
