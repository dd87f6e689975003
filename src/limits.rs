//! Every bound in the engine, in one place.
//!
//! A resource that a peer or an application can grow has a named limit here. Relations between
//! limits are asserted at compile time.

/// Largest ULPDU: RFC 5044 §3 and §4.5 (65535 − 60 − 60 − (6 + 512 + 3), rounded down to 128).
pub const ULPDU_LEN_MAX: usize = 64768;
/// Smallest MULPDU that MPA may report (RFC 5044 §3).
pub const MULPDU_MIN: usize = 128;
/// Octets of TCP stream from one marker to the next (RFC 5044 §4.3).
pub const MARKER_SPACING: u64 = 512;
/// Octets in a marker (RFC 5044 §4.2).
pub const MARKER_LEN: usize = 4;
/// Largest private data in an MPA startup frame (RFC 5044 §7.1.1).
pub const PRIVATE_DATA_LEN_MAX: usize = 512;
/// How long a responder waits for a whole MPA Request (RFC 5044 §7.1.2 (8), (10)), in nanoseconds.
///
/// After a lost SYN, TCP waits 3 s before it sends the Request again, then 6 s, then 12 s
/// (RFC 6298 §5.7): this leaves room for all of them.
pub const MPA_REQUEST_TIMEOUT_NS: u64 = 30_000_000_000;
/// How long an initiator waits for a whole MPA Reply (RFC 5044 §7.1.2 (10)), in nanoseconds.
pub const MPA_REPLY_TIMEOUT_NS: u64 = 30_000_000_000;
/// How long a responder that was told to close, and has posted work it may not send yet, waits for
/// the initiator's first FPDU (RFC 5044 §7.1.2 (4)), in nanoseconds. That FPDU is the last step of
/// the startup, so it gets the time that the steps before it get.
pub const MPA_FIRST_FPDU_TIMEOUT_NS: u64 = 30_000_000_000;
/// How long a stream that was told to close waits for the Response to a Read or an Atomic while
/// nothing arrives, in nanoseconds: as long as TCP waits for an acknowledgment.
pub const CLOSE_SILENCE_NS: u64 = 100_000_000_000;
/// How long after the Reply a silent peer is nudged for the first time, at most, in nanoseconds.
pub const NUDGE_AFTER_NS: u64 = 50_000_000;
/// Longest pause between two nudges, in nanoseconds; after it there are no more.
pub const NUDGE_PAUSE_MAX_NS: u64 = 4_000_000_000;

/// How long a connection whose stream has failed waits for the peer to close its half too, in
/// nanoseconds. RFC 5040 §6.2.1 wants the close graceful, but not for ever.
pub const LINGER_NS: u64 = 20_000_000_000;

/// Largest TCP payload of one frame, super-frames included.
pub const FRAME_PAYLOAD_MAX: usize = 65_535;

/// Scatter/gather entries of one work request.
pub const SGE_MAX: usize = 4;
/// Work requests a queue pair can hold in each direction.
pub const QP_DEPTH_MAX: usize = 65_536;
/// Completions a completion queue can hold.
pub const CQ_DEPTH_MAX: usize = 1 << 20;
/// Outstanding RDMA Reads and Atomics in each direction of a stream (IRD, ORD).
pub const READS_OUTSTANDING_MAX: u16 = 128;
/// Connections of one port.
pub const CONNECTIONS_MAX: usize = 65_536;
/// Connections waiting for their MPA Request or for the application's answer, per listener.
pub const LISTEN_BACKLOG_MAX: usize = 256;
/// Requests that wait for an application to take them from its listener.
pub const CONNECT_REQUESTS_MAX: usize = 1024;

/// Ranges of out-of-order stream octets that one TCP connection keeps track of.
pub const OUT_OF_ORDER_RANGES_MAX: usize = 1024;
/// FPDUs of one stream placed ahead of the delivery point.
pub const FPDUS_AHEAD_MAX: usize = 16_384;
/// Octets in one block of the piece store.
pub const PIECE_BLOCK_LEN: usize = 2048;
/// Blocks in a port's piece store: 8 MiB, which are allocated when they are needed. What the store
/// refuses is lost: a receive window that a lost segment leaves behind has to fit beyond it.
pub const PIECE_BLOCKS_MAX: usize = 4096;
/// Octets of the receive window that a connection offers unless it is told otherwise.
pub const RECEIVE_WINDOW_BYTES: u32 = 4 << 20;

/// Consecutive times a segment is dropped for a bad CRC at the same place before the stream is
/// terminated: a path that corrupts at random gets through, a peer that computes wrong does not.
pub const BAD_FPDU_DROPS_MAX: u32 = 8;

/// Steering tags registered at one time in one table.
pub const REGISTRATIONS_MAX: usize = 1 << 20;
/// Steering tags remembered after their end so that they do not come back soon.
pub const STAGS_RETIRED_MAX: usize = 1 << 17;

const _: () = assert!(MULPDU_MIN < ULPDU_LEN_MAX);
const _: () = assert!(ULPDU_LEN_MAX < FRAME_PAYLOAD_MAX);
const _: () = assert!(PIECE_BLOCK_LEN * PIECE_BLOCKS_MAX >= 2 * FRAME_PAYLOAD_MAX);
const _: () = assert!(MARKER_SPACING.is_multiple_of(4));

/// Fragments of one transmitted frame: the kernel's limit on vectored writes, less the head.
pub const FRAGMENTS_MAX: usize = 1023;
/// Octets sent or received in streaming mode, before MPA startup (RFC 5044 §7.1), that one
/// connection keeps.
pub const STREAMING_BYTES_MAX: usize = 64 << 10;
/// Link addresses that a port remembers.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Frames that wait for the host stack, in each direction.
pub const HOST_FRAMES_MAX: usize = 256;
// A drawn steering tag is taken at once but for one time in 1024.
const _: () = assert!(REGISTRATIONS_MAX + STAGS_RETIRED_MAX <= 1 << 22);

/// IPv6 extension headers before TCP that are walked (RFC 8504 §5.3).
pub const EXTENSION_HEADERS_MAX: usize = 8;
/// IP datagrams put together from fragments at one time.
pub const REASSEMBLIES_MAX: usize = 32;
/// Separate pieces of one such datagram.
pub const REASSEMBLY_PIECES_MAX: usize = 64;
/// How long a datagram waits for its fragments, in nanoseconds. RFC 8200 §4.5 has 60 s, which lets
/// identifications come round again at the rates of today (RFC 4963 §3).
pub const REASSEMBLY_NS: u64 = 30_000_000_000;
/// SYN-ACKs with a cookie that wait for the device; more are dropped, and the peer asks again.
pub const COOKIE_ANSWERS_MAX: usize = 256;
/// Resets and ICMP errors that a port sends in one second to those who belong to no connection.
pub const UNSOLICITED_PER_SECOND_MAX: u32 = 1000;
/// Ordinary sockets of one port.
pub const HOST_SOCKETS_MAX: usize = 1024;
/// Octets of one buffer of an ordinary socket.
pub const HOST_BUFFER_LEN_MAX: usize = 16 << 20;
/// Ports that are one station, one for each queue of an interface.
pub const PORTS_MAX: usize = 64;
/// Frames that wait to be handed to another port of the station; more are dropped.
pub const HANDOVER_FRAMES_MAX: usize = 256;
/// Events of an endpoint that nobody has taken; the oldest go first.
pub const ENDPOINT_EVENTS_MAX: usize = 64;
/// Calls that wait for an endpoint's address at one time.
pub const ADDRESS_WAITERS_MAX: usize = 64;
