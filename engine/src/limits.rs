//! Every bound in the engine, in one place.
//!
//! A resource that a peer or an application can grow has a named limit here. Relations between
//! limits are asserted at compile time.

/// Largest ULPDU: RFC 5044 §3 and §4.5 (65535 − 60 − 60 − (6 + 512 + 3), rounded down to 128).
pub const ULPDU_LEN_MAX: usize = 64768;
/// Smallest MULPDU that MPA may report (RFC 5044 §3).
pub const MULPDU_MIN: usize = 128;
/// Bytes of data in a segment below which a peer's MSS is not heeded. A peer that asks for less
/// asks for segments that are mostly header, and for a multiple of everything that is done or kept
/// for each (CVE-2019-11479); what MPA has to carry at least does not fit either.
pub const EMSS_MIN: usize = MULPDU_MIN;
/// Bytes of TCP stream from one marker to the next (RFC 5044 §4.3).
pub const MARKER_SPACING: u64 = 512;
/// Bytes in a marker (RFC 5044 §4.2).
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
/// How long a responder waits for the initiator's first FPDU (RFC 5044 §7.1.2 (4)) when it has asked
/// for a ready-to-receive message (RFC 6581 §9.2), or was told to close and has posted work that it
/// may not send before, in nanoseconds. That FPDU is the last step of the startup, so it gets the
/// time that the steps before it get.
pub const MPA_FIRST_FPDU_TIMEOUT_NS: u64 = 30_000_000_000;
/// Between keep-alive probes to an initiator that may be silent by right and whose first FPDU is
/// awaited, in nanoseconds: without them a responder that has nothing to send would never find out
/// that the initiator has gone.
pub const FIRST_FPDU_PROBE_NS: u64 = 75_000_000_000;
/// How long TCP may take to be established for an initiator, in nanoseconds (RFC 9293 §3.8.3, MUST-23:
/// at least three minutes).
pub const OPEN_TIMEOUT_NS: u64 = 180_000_000_000;
/// How long a stream that was told to close waits for a peer that makes no progress, in nanoseconds:
/// one that sends no FPDU and acknowledges nothing new, so as long as TCP waits for an
/// acknowledgment.
pub const CLOSE_SILENCE_NS: u64 = 100_000_000_000;
/// How long after the Reply a silent peer is nudged for the first time, at most, in nanoseconds.
pub const NUDGE_AFTER_NS: u64 = 50_000_000;
/// Longest pause between two nudges, in nanoseconds; after it there are no more.
pub const NUDGE_PAUSE_MAX_NS: u64 = 4_000_000_000;

/// How long a connection that was rejected, or whose stream has failed, waits for the peer to close
/// its half too, in nanoseconds. RFC 5040 §6.2.1 wants the close graceful, but not for ever.
pub const LINGER_NS: u64 = 20_000_000_000;
/// As many times [`LINGER_NS`] is the most for a peer that goes on acknowledging what was sent before.
pub const LINGER_EXTENSIONS_MAX: u32 = 5;

/// Largest TCP payload of one frame, super-frames included.
pub const FRAME_PAYLOAD_MAX: usize = 65_535;

/// Bytes of the segments that are framed in one go where the device does not cut super-frames: few
/// enough that they are still in the nearest cache when the last of them is copied into its frame.
pub const RUN_LEN_MAX: usize = 24 << 10;

/// Scatter/gather entries of one work request.
pub const SGE_MAX: usize = 6;
/// Work requests a queue pair can hold in each direction.
pub const QP_DEPTH_MAX: usize = 65_536;
/// Completions a completion queue can hold.
pub const CQ_DEPTH_MAX: usize = 1 << 20;
/// Outstanding RDMA Reads and Atomics in each direction of a stream (IRD, ORD).
pub const READS_OUTSTANDING_MAX: u16 = 128;
/// Bytes of the stream from the end of a Write or Send that the peer is to confirm to the end of the
/// last one behind it, until the confirmation is asked for though more could be sent first.
pub const UNCONFIRMED_BYTES: u64 = 256 << 10;
/// Requests that a confirmation is to be for, until it is asked for though more could be sent first.
/// Programs that signal one request of many post the next when it completes: the others are on their
/// way meanwhile.
pub const UNCONFIRMED_REQUESTS: u64 = 32;
/// Connections of one port unless it is told otherwise, those in TIME-WAIT not counted.
pub const CONNECTIONS_USUAL: usize = 65_536;
/// Connections that a port can be told to have: an idle one takes 4 KiB, so many 1 GiB.
pub const CONNECTIONS_MAX: usize = 1 << 18;
/// Frames whose connections a port looks up before they come.
pub const FRAMES_AHEAD_MAX: usize = 64;
/// Queue pairs that have rung and are known to a port one by one. When more have, it looks at all.
pub const DOORBELL_PLACES: usize = 65_536;
/// Connections in TIME-WAIT that a port keeps unless it is told otherwise, 256 bytes each: four times
/// as many as there are TCP ports to connect to one peer from.
pub const TIME_WAIT_KEPT: usize = 65_536;
/// Connections in TIME-WAIT that a port can be told to keep: 256 MiB.
pub const TIME_WAIT_MAX: usize = 1 << 20;
/// Half-open connections (RFC 9293 SYN-RECEIVED) of one listener. More are served by cookies.
pub const LISTEN_BACKLOG_MAX: usize = 256;
/// Established connections of one listener that wait for their MPA Request, for the application's answer, or for
/// their end after a refusal, if the backlog is at most this. If another comes, one is evicted.
pub const LISTEN_WAITING_MAX: usize = 2 * LISTEN_BACKLOG_MAX;
/// Upper limit of the same for a listener with a larger backlog: programs that open thousands of queue pairs at
/// once ask for one. Linux's net.core.somaxconn has this value. A waiting connection takes about 10 KiB, so a full
/// listener takes 40 MiB.
pub const LISTEN_ASKED_MAX: usize = 4096;
/// Requests that wait for an application to take them from its listener.
pub const CONNECT_REQUESTS_MAX: usize = 1024;

/// Ranges of out-of-order stream bytes that one TCP connection keeps track of.
pub const OUT_OF_ORDER_RANGES_MAX: usize = 1024;
/// FPDUs of one stream placed ahead of the delivery point.
pub const FPDUS_AHEAD_MAX: usize = 16_384;
/// Bytes in one block of the piece store.
pub const PIECE_BLOCK_LEN: usize = 2048;
/// Blocks in a port's piece store that connections share, for bytes far beyond a gap: 8 MiB, which
/// are allocated when they are needed. What the store refuses is lost: a receive window that a lost
/// segment leaves behind has to fit beyond it. Bytes that the FPDU in order can touch are never
/// refused: each connection may hold them beside these blocks.
pub const PIECE_BLOCKS_MAX: usize = 4096;
/// How long a stream may make no progress and keep bytes far beyond a gap for which another stream
/// was refused room, in nanoseconds: as long as TCP's first retransmission timeout (RFC 6298 §2).
pub const PIECES_IDLE_NS: u64 = 1_000_000_000;
/// How often, at most, a port looks for such a stream, in nanoseconds.
pub const PIECES_LOOK_NS: u64 = 10_000_000;
/// Bytes of the receive window that a connection offers unless it is told otherwise.
pub const RECEIVE_WINDOW_BYTES: u32 = 4 << 20;

/// Bytes of messages that wait for a receive, of one stream whose queue pair lets them
/// (`ReceiverNotReady::Wait`), beyond which the peer is asked for no more: as many as a receive window.
/// What the peer was promised before, or what one read from a socket brings, is taken in any case, so
/// at most as much again is held.
pub const HELD_BYTES_MAX: usize = RECEIVE_WINDOW_BYTES as usize;
/// Segments of such messages, beyond which the peer is asked for no more: they may be empty.
pub const HELD_SEGMENTS_MAX: usize = 16_384;
/// Least room for such bytes that is worth telling the peer of: it sends large segments or none
/// (RFC 9293 §3.8.6.2.2).
pub const HELD_ROOM_MIN: usize = 64 << 10;

/// Times that the FPDU which delivery waits for is dropped for a bad CRC before the stream is
/// terminated: a path that corrupts at random gets through, a peer that computes wrong does not.
pub const BAD_FPDU_DROPS_MAX: u32 = 8;
/// Times that FPDUs beyond the one which delivery waits for are dropped for a bad CRC while it does.
/// A path that corrupts one segment in ten does that to a third of them in a whole window.
pub const BAD_FPDU_DROPS_AHEAD_MAX: u32 = 1024;

/// Bytes in one block of memory for what streams keep as it was first sent (Read Responses, FPDUs of
/// which a part went out alone, flushed requests).
pub const KEPT_BLOCK_LEN: usize = 16 << 10;
/// Blocks that the streams of an interface keep for Read Responses: 256 MiB, divided among its queues; as
/// many for all streams of an RNIC over sockets. A peer decides how much it
/// asks for and how late it acknowledges, so each stream gets a share of it: it may keep as much as
/// is left for all others, and an FPDU in any case. Requests of this end are bounded by their queue,
/// by the congestion window and by the peer's window.
pub const KEPT_BLOCKS_MAX: usize = 16 << 10;
/// Blocks that are not given back to the allocator while no stream needs them: 16 MiB, divided the same
/// way.
pub const KEPT_BLOCKS_FREE_MAX: usize = 1 << 10;
/// Bytes of flushed requests, sent and not acknowledged, that a failed stream keeps so that its
/// Terminate can arrive. Where more are missing at the peer, the connection is reset.
pub const FLUSHED_BYTES_KEPT_MAX: usize = 1 << 20;

/// Steering tags registered at one time in one table.
pub const REGISTRATIONS_MAX: usize = 1 << 20;
/// Memory windows allocated at one time in one table. Each has 256 steering tags for itself.
pub const WINDOWS_MAX: usize = 1 << 16;
/// Steering tags remembered after their end so that they do not come back soon.
pub const STAGS_RETIRED_MAX: usize = 1 << 17;

const _: () = assert!(MULPDU_MIN < ULPDU_LEN_MAX);
const _: () = assert!(ULPDU_LEN_MAX < FRAME_PAYLOAD_MAX);
const _: () = assert!(RUN_LEN_MAX <= FRAME_PAYLOAD_MAX);
const _: () = assert!(MARKER_SPACING.is_multiple_of(4));
const _: () = assert!(KEPT_BLOCKS_FREE_MAX <= KEPT_BLOCKS_MAX);
const _: () = assert!(CONNECTIONS_USUAL <= CONNECTIONS_MAX);
const _: () = assert!(TIME_WAIT_KEPT <= TIME_WAIT_MAX);
const _: () = assert!(PORTS_MAX <= KEPT_BLOCKS_FREE_MAX);
const _: () = assert!(HELD_ROOM_MIN < HELD_BYTES_MAX);

/// Fragments of one transmitted frame: the kernel's limit on vectored writes, less the head.
pub const FRAGMENTS_MAX: usize = 1023;
/// Bytes sent or received in streaming mode, before MPA startup (RFC 5044 §7.1), that one
/// connection keeps.
pub const STREAMING_BYTES_MAX: usize = 64 << 10;
/// Link addresses that a port remembers.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Hosts whose path is known to take less than the device: later connections begin with that. Any of
/// them is forgotten for another, and then found anew by each connection.
pub const PATHS_KNOWN_MAX: usize = 1024;
/// How long a neighbour's link address holds against another claim that was not asked for, in
/// nanoseconds.
pub const NEIGHBOUR_LOCK_NS: u64 = 1_000_000_000;
/// How long a DHCP server's answer is waited for before it is asked again, in milliseconds.
/// RFC 2131 §4.1: 4 s at first.
pub const DHCP_RETRY_MS: u64 = 4000;

/// How long after DHCP was asked for an address the application is told that none has come, in
/// nanoseconds. The question is asked again every 10 s: one of them may be lost.
pub const ADDRESS_PATIENCE_NS: u64 = 15_000_000_000;
/// Frames that wait for the host stack, in each direction.
pub const HOST_FRAMES_MAX: usize = 256;
// A drawn steering tag is taken at once but for one time in 1024, and where there are windows, in 128.
const _: () = assert!(REGISTRATIONS_MAX + STAGS_RETIRED_MAX <= 1 << 22);
const _: () = assert!(WINDOWS_MAX << 8 <= 1 << 25);

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
/// Resets and ICMP errors that a port sends in one second in answer to what belongs to no connection.
pub const UNSOLICITED_PER_SECOND_MAX: u32 = 1000;
/// Frames of no connection that a port works on in one second, TCP segments, IP fragments and others each; more
/// are dropped. At 3 µs each kind takes a seventh of a core.
pub const CONNECTIONLESS_PER_SECOND_MAX: u64 = 50_000;
/// Frames of no connection that a port works on at once after a while without any, TCP segments, IP fragments
/// and others each: thousands of processes that start together all connect at once.
pub const CONNECTIONLESS_BURST_MAX: u64 = 16_384;
/// Ordinary sockets of one port.
pub const HOST_SOCKETS_MAX: usize = 1024;
/// Bytes of one buffer of an ordinary socket.
pub const HOST_BUFFER_LEN_MAX: usize = 16 << 20;
/// Ports of one interface, one for each of its queues.
pub const PORTS_MAX: usize = 64;
/// Frames that wait to be handed to another queue's port; more are dropped.
pub const HANDOVER_FRAMES_MAX: usize = 256;
/// Events of an endpoint that the program has not taken; the oldest go first.
pub const ENDPOINT_EVENTS_MAX: usize = 64;
/// Wakers that wait for the next completion of one queue; the first is called early for another.
pub const ALARM_WAKERS_MAX: usize = 1024;
/// Wakers that were called early and are remembered until the next ring: one that asks again among
/// them gets a place beyond the limit. An executor calls tasks in turn, so all tasks beyond the limit are
/// called early before the first of them asks again: this is enough for twice as many tasks as the limit.
pub const ALARM_EARLY_KEPT: usize = ALARM_WAKERS_MAX;
/// Pause of a listener over the kernel's TCP after the process or the system had no descriptor or
/// memory for a connection, in nanoseconds. The end of a connection ends it sooner.
pub const ACCEPT_RETRY_NS: u64 = 100_000_000;
/// Calls that wait for an endpoint's address at one time.
pub const ADDRESS_WAITERS_MAX: usize = 64;
