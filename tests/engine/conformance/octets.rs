//! Messages of the peers in the tables: startup frames and FPDUs, of 20 bytes each.

use urnic_engine::wire::crc32c;

/// Flag of a startup frame that requests CRCs.
pub(crate) const CRC: u8 = 0x40;

/// Returns a startup frame of revision 1, without private data.
pub(crate) fn startup(key: &[u8; 16], flags: u8) -> Vec<u8> {
    [&key[..], &[flags, 1, 0, 0]].concat()
}

pub(crate) fn request() -> Vec<u8> {
    startup(b"MPA ID Req Frame", CRC)
}

/// Returns an RDMA Write without payload.
pub(crate) fn empty_write() -> Vec<u8> {
    let mut fpdu = vec![0, 14, 0xC1, 0x40, 0, 0, 0, 1];
    fpdu.extend([0; 8]);
    let crc = crc32c::to_wire(crc32c::crc32c(&fpdu));
    fpdu.extend(crc);
    fpdu
}
