//! Parameters of `rdma_connect` and `rdma_accept`.
#![expect(unsafe_code, reason = "C's Private Data is named by address and length")]

use urnic_engine::limits::READS_OUTSTANDING_MAX;

use crate::abi::{RDMA_MAX_INIT_DEPTH, RDMA_MAX_RESP_RES, rdma_conn_param};
use crate::errno::Errno;

/// Maximum outstanding Reads with a peer that does not state a number; the Requests of RFC 6581 do.
pub(super) const DEPTH: u16 = 16;

/// C has eight bits for the number.
pub(super) fn depth(wanted: u8) -> u16 {
    u16::from(wanted).min(READS_OUTSTANDING_MAX)
}

/// Refuses what rdma-core refuses. The special value for the maximum is accepted.
pub(super) fn check_depths(param: Option<&rdma_conn_param>) -> Result<(), Errno> {
    let Some(param) = param else { return Ok(()) };
    let is_beyond =
        |wanted: u8, all: u8| wanted != all && u16::from(wanted) > READS_OUTSTANDING_MAX;
    let beyond = is_beyond(param.responder_resources, RDMA_MAX_RESP_RES)
        || is_beyond(param.initiator_depth, RDMA_MAX_INIT_DEPTH);
    if beyond { Err(Errno::INVALID) } else { Ok(()) }
}

pub(super) fn private_data(param: &rdma_conn_param) -> Vec<u8> {
    let len = usize::from(param.private_data_len);
    if len == 0 || param.private_data.is_null() {
        return Vec::new();
    }
    // SAFETY: of the stated length, and valid until the call with these parameters returns, by C's
    // contract.
    unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec()
}
