//! The digest on any processor: through the `crc32c` crate.

use urnic_netdev::SharedSlice;

/// Copies block by block to the stack, because a slice may change while it is read.
pub(super) fn append(mut state: u32, slice: SharedSlice<'_>) -> u32 {
    const BLOCK_LEN: usize = 256;
    let mut block = [0; BLOCK_LEN];
    for at in (0..slice.len()).step_by(BLOCK_LEN) {
        let block = &mut block[..BLOCK_LEN.min(slice.len() - at)];
        slice.copy_out(at, block);
        // The crate's state is a finished CRC, ours a raw register: complements of each other.
        state = !crc32c::crc32c_append(!state, block);
    }
    state
}
