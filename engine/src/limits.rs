//! All limits of the engine: each resource that a peer or an application can grow has one.

/// Largest ULPDU: RFC 5044 §3 and §4.5 (65535 − 60 − 60 − (6 + 512 + 3), rounded down to 128).
pub const ULPDU_LEN_MAX: usize = 64768;
/// Smallest MULPDU that MPA may report (RFC 5044 §3).
pub const MULPDU_MIN: usize = 128;
/// Smallest EMSS; a peer's smaller MSS is ignored: it would make segments mostly header, multiply
/// the work per segment (CVE-2019-11479), and leave no room for the smallest MULPDU.
pub const EMSS_MIN: usize = MULPDU_MIN;
/// Bytes of TCP stream from one marker to the next (RFC 5044 §4.3).
pub const MARKER_SPACING: u64 = 512;
/// Bytes in a marker (RFC 5044 §4.2).
pub const MARKER_LEN: usize = 4;
/// Largest private data in an MPA startup frame (RFC 5044 §7.1.1).
pub const PRIVATE_DATA_LEN_MAX: usize = 512;
/// Time that a responder waits for a whole MPA Request (RFC 5044 §7.1.2 (8), (10)), in nanoseconds:
/// after a lost SYN, TCP retransmits it after 3 s, 6 s and 12 s (RFC 6298 §5.7).
pub const MPA_REQUEST_TIMEOUT_NS: u64 = 30_000_000_000;
/// Time that an initiator waits for a whole MPA Reply (RFC 5044 §7.1.2 (10)), in nanoseconds.
pub const MPA_REPLY_TIMEOUT_NS: u64 = 30_000_000_000;
/// Time that a responder waits for the initiator's first FPDU (RFC 5044 §7.1.2 (4)), in
/// nanoseconds, if it has asked for a ready-to-receive message (RFC 6581 §9.2), or must close and
/// has posted work that it may not send before.
pub const MPA_FIRST_FPDU_TIMEOUT_NS: u64 = 30_000_000_000;
/// Nanoseconds between keep-alive probes to an initiator whose first FPDU is awaited: a responder
/// with nothing to send would never notice that it has disappeared.
pub const FIRST_FPDU_PROBE_NS: u64 = 75_000_000_000;
/// Time that TCP of an initiator may take to be established, in nanoseconds (RFC 9293 §3.8.3,
/// MUST-23: at least three minutes).
pub const OPEN_TIMEOUT_NS: u64 = 180_000_000_000;
/// Time that a closing stream waits for a peer that sends no FPDU and acknowledges nothing new, in
/// nanoseconds: the time that TCP waits for an acknowledgment.
pub const CLOSE_SILENCE_NS: u64 = 100_000_000_000;
/// Longest time from the Reply to the first empty Write to a silent peer, in nanoseconds.
pub const SILENCE_PROBE_AFTER_NS: u64 = 50_000_000;
/// Longest pause between two empty Writes, in nanoseconds; no further one follows.
pub const SILENCE_PROBE_PAUSE_MAX_NS: u64 = 4_000_000_000;

/// Time that a connection that was rejected, or whose stream has failed, waits for the peer to
/// close its half too, in nanoseconds. RFC 5040 §6.2.1 wants a graceful close, but not for ever.
pub const LINGER_NS: u64 = 20_000_000_000;
/// Most multiples of [`LINGER_NS`] for a peer that continues to acknowledge what was sent before.
pub const LINGER_EXTENSIONS_MAX: u32 = 5;

/// Largest TCP payload of one frame, super-frames included.
pub const FRAME_PAYLOAD_MAX: usize = 65_535;

/// Most bytes of segments framed at once if the device does not cut super-frames: they must still
/// be in the nearest cache when the last one is copied into its frame.
pub const RUN_LEN_MAX: usize = 24 << 10;

/// Most scatter/gather entries of a work request.
pub const SGE_MAX: usize = 6;
/// Most work requests of a queue pair in each direction.
pub const QP_DEPTH_MAX: usize = 65_536;
/// Most completions of a completion queue.
pub const CQ_DEPTH_MAX: usize = 1 << 20;
/// Most outstanding RDMA Reads and Atomics in each direction of a stream (IRD, ORD).
pub const READS_OUTSTANDING_MAX: u16 = 128;
/// Distance in the stream between the ends of the first and the last Write or Send that await
/// confirmation, from which on the confirmation is requested even if more could be sent first.
pub const UNCONFIRMED_BYTES: u64 = 256 << 10;
/// Requests that await confirmation, from which on it is requested even if more could be sent
/// first: applications that signal one request of many post the next ones when it completes.
pub const UNCONFIRMED_REQUESTS: u64 = 32;
/// Unsignaled Writes of a stream that are kept until a confirmation, so that a refusal by the peer
/// raises the completion of the right one.
pub const UNSIGNALED_KEPT_MAX: usize = 64;
/// Default number of connections of one port, not counting those in TIME-WAIT.
pub const CONNECTIONS_USUAL: usize = 65_536;
/// Most connections that a port can be configured for: an idle one takes 4 KiB, all of them 1 GiB.
pub const CONNECTIONS_MAX: usize = 1 << 18;
/// Most queue pairs with new work that a port knows one by one. Beyond that, it examines all.
pub const DOORBELL_PLACES: usize = 65_536;
/// Default number of connections in TIME-WAIT that a port keeps, 256 bytes each: four times the
/// number of TCP ports to connect to one peer from.
pub const TIME_WAIT_KEPT: usize = 65_536;
/// Most connections in TIME-WAIT that a port can be configured for: 256 MiB.
pub const TIME_WAIT_MAX: usize = 1 << 20;
/// Most half-open connections (RFC 9293 SYN-RECEIVED) of one listener. Cookies serve further ones.
pub const LISTEN_BACKLOG_MAX: usize = 256;
/// Most established connections of one listener that wait for their MPA Request, for the
/// application's answer, or for their end after a refusal. If another arrives, one is evicted.
pub const LISTEN_WAITING_MAX: usize = 2 * LISTEN_BACKLOG_MAX;
/// Limit for a listener with a larger backlog, which applications with thousands of queue pairs ask
/// for: Linux's net.core.somaxconn. 10 KiB a connection: a full listener takes 40 MiB.
pub const LISTEN_REQUESTED_MAX: usize = 4096;
/// Most Requests that wait for an application to take them from its listener.
pub const CONNECT_REQUESTS_MAX: usize = 1024;

/// Most ranges of out-of-order stream bytes of one TCP connection.
pub const OUT_OF_ORDER_RANGES_MAX: usize = 1024;
/// Most FPDUs of one stream placed ahead of the delivery point.
pub const FPDUS_AHEAD_MAX: usize = 16_384;
/// Bytes in one block of the piece store.
pub const PIECE_BLOCK_LEN: usize = 2048;
/// Blocks in a port's piece store that connections share, for bytes far beyond a gap: 8 MiB,
/// allocated when needed. A receive window that follows a lost segment must fit. Bytes that the
/// FPDU in order can touch are never refused: each connection may hold them in addition.
pub const PIECE_BLOCKS_MAX: usize = 4096;
/// Time that a stream may make no progress and keep bytes far beyond a gap when another stream was
/// refused room, in nanoseconds: as long as TCP's first retransmission timeout (RFC 6298 §2).
pub const PIECES_IDLE_NS: u64 = 1_000_000_000;
/// Shortest time between two searches of a port for such a stream, in nanoseconds.
pub const PIECES_LOOK_NS: u64 = 10_000_000;
/// Default receive window of a connection, in bytes.
pub const RECEIVE_WINDOW_BYTES: u32 = 4 << 20;

/// Bytes of messages that wait for a receive, of one stream whose queue pair permits it
/// (`QpRules::IwarpWait`, `QpRules::InfiniBand`), beyond which this end accepts no further data: as
/// many as a receive window. Bytes that the peer was already promised, or that one read from a
/// socket returns, are accepted in any case, so at most twice as many are held.
pub const HELD_BYTES_MAX: usize = RECEIVE_WINDOW_BYTES as usize;
/// Segments of such messages, beyond which this end accepts no further data: they may be empty.
pub const HELD_SEGMENTS_MAX: usize = 16_384;
/// Smallest such room advertised: large segments or none (RFC 9293 §3.8.6.2.2).
pub const HELD_ROOM_MIN: usize = 64 << 10;

/// Times that the FPDU which delivery waits for is dropped for a bad CRC before the stream is
/// terminated: a path that corrupts at random passes, a peer that computes wrong CRCs does not.
pub const BAD_FPDU_DROPS_MAX: u32 = 8;
/// Times that FPDUs beyond the one which delivery waits for are dropped for a bad CRC meanwhile. A
/// path that corrupts one segment in ten does that to a third of the FPDUs in a whole window.
pub const BAD_FPDU_DROPS_AHEAD_MAX: u32 = 1024;

/// Bytes of a block for what streams keep as sent: Read Responses, partly sent FPDUs, flushed
/// requests.
pub const KEPT_BLOCK_LEN: usize = 16 << 10;
/// Blocks that the streams of an interface keep for Read Responses: 256 MiB, divided among its
/// queues; the same number for all streams of an RNIC over sockets. A stream may keep as much as is
/// left for all others, and an FPDU in any case: a peer decides how much it requests and how late
/// it acknowledges.
pub const KEPT_BLOCKS_MAX: usize = 16 << 10;
/// Most free blocks that are not returned to the allocator: 16 MiB, divided the same way.
pub const KEPT_BLOCKS_FREE_MAX: usize = 1 << 10;
/// Bytes of flushed requests, sent and not acknowledged, that a failed stream keeps so that its
/// Terminate can arrive. If the peer misses more, the connection is reset.
pub const FLUSHED_BYTES_KEPT_MAX: usize = 1 << 20;

/// Most steering tags registered at one time in one table.
pub const REGISTRATIONS_MAX: usize = 1 << 20;
/// Most memory windows allocated at one time in one table. Each has 256 steering tags for itself.
pub const WINDOWS_MAX: usize = 1 << 16;
/// Most steering tags remembered after their end, so that they are not reused soon.
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

/// Most fragments of one transmitted frame: the kernel's limit on vectored writes, less the head.
pub const FRAGMENTS_MAX: usize = 1023;
/// Most bytes each way that a connection keeps in streaming mode (RFC 5044 §7.1).
pub const STREAMING_BYTES_MAX: usize = 64 << 10;
/// Bytes beyond a gap copied before full operation: the longest startup frame is 532 bytes.
pub const EARLY_BYTES_MAX: usize = 4096;
/// Copies of such bytes per connection; together at most [`EARLY_BYTES_MAX`] bytes.
pub const EARLY_PIECES_MAX: usize = 16;
/// Link addresses that a port remembers.
pub const NEIGHBOURS_MAX: usize = 1024;
/// Most hosts whose path is known to take less than the device: later connections start with that
/// limit. Any host may be evicted for another; each connection then finds its limit anew.
pub const PATHS_KNOWN_MAX: usize = 1024;
/// Time that a neighbour's link address is kept against an unsolicited claim, in nanoseconds.
pub const NEIGHBOUR_LOCK_NS: u64 = 1_000_000_000;
/// Milliseconds before a DHCP request is repeated (RFC 2131 §4.1: 4 s at first).
pub const DHCP_RETRY_MS: u64 = 4000;

/// Time from the first DHCP request to the report that no address was given, in nanoseconds. The
/// request is repeated every 10 s: one of them may be lost.
pub const ADDRESS_PATIENCE_NS: u64 = 15_000_000_000;
/// Most frames that wait for the host stack, in each direction.
pub const HOST_FRAMES_MAX: usize = 256;
// A random steering tag is in use once in 1024 draws, and if there are windows, once in 128.
const _: () = assert!(REGISTRATIONS_MAX + STAGS_RETIRED_MAX <= 1 << 22);
const _: () = assert!(WINDOWS_MAX << 8 <= 1 << 25);

/// Most IPv6 extension headers before TCP that are walked (RFC 8504 §5.3).
pub const EXTENSION_HEADERS_MAX: usize = 8;
/// Most IP datagrams in reassembly at one time.
pub const REASSEMBLIES_MAX: usize = 32;
/// Most separate pieces of one such datagram.
pub const REASSEMBLY_PIECES_MAX: usize = 64;
/// Time that a datagram waits for its fragments, in nanoseconds. RFC 8200 §4.5 has 60 s, which lets
/// identifications repeat at today's rates (RFC 4963 §3).
pub const REASSEMBLY_NS: u64 = 30_000_000_000;
/// Most SYN-ACKs with a cookie that wait for the device; the peers of others retransmit their SYN.
pub const COOKIE_ANSWERS_MAX: usize = 256;
/// Most resets and ICMP errors per second of a port in answer to frames of no connection.
pub const UNSOLICITED_PER_SECOND_MAX: u32 = 1000;
/// Most frames of no connection that a port processes in one second, TCP segments, IP fragments and
/// others each; further ones are dropped. At 3 µs each kind takes a seventh of a core.
pub const CONNECTIONLESS_PER_SECOND_MAX: u64 = 50_000;
/// Most frames of no connection that a port processes at once after a while without any, each kind:
/// thousands of processes that start together all connect at once.
pub const CONNECTIONLESS_BURST_MAX: u64 = 16_384;
/// Most ordinary sockets of one port.
pub const HOST_SOCKETS_MAX: usize = 1024;
/// Most bytes of one buffer of an ordinary socket.
pub const HOST_BUFFER_LEN_MAX: usize = 16 << 20;
/// Most ports of one interface, one for each of its queues.
pub const PORTS_MAX: usize = 64;
/// Most frames that wait for hand-over to another queue's port; further ones are dropped.
pub const HANDOVER_FRAMES_MAX: usize = 256;
/// Most events of an endpoint that the application has not taken; the oldest are dropped.
pub const ENDPOINT_EVENTS_MAX: usize = 64;
/// Most wakers that wait for the next completion of one queue; a further one wakes the first early.
pub const ALARM_WAKERS_MAX: usize = 1024;
/// Wakers that were called early and are remembered until the next completion: a task among them
/// that registers again gets a place beyond the limit. An executor polls all tasks beyond the limit
/// before the first registers again: enough for twice as many tasks as the limit.
pub const ALARM_EARLY_KEPT: usize = ALARM_WAKERS_MAX;
/// Pause of a listener over the kernel's TCP after the process or the system had no descriptor or
/// memory for a connection, in nanoseconds. The close of a connection ends the pause sooner.
pub const ACCEPT_RETRY_NS: u64 = 100_000_000;
/// Most calls that wait for an endpoint's address at one time.
pub const ADDRESS_WAITERS_MAX: usize = 64;
