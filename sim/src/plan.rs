//! Plans: all input of a run, which are the work, the links and the faults.

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::tcp::CongestionKind;
use urnic_netdev::impair::ImpairConfig;

use crate::scenario::Scenario;

/// One run, made by [`Plan::of_seed`], or by hand for a regression test.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed for random values in the run itself: STags, sequence numbers, the fate of frames.
    pub seed: u64,
    /// Scenario for which the plan was drawn.
    pub scenario: Scenario,
    /// Ports; two are joined by a link, more by a switch.
    pub nodes: Vec<NodePlan>,
    /// The link of every node.
    pub link: LinkPlan,
    /// The connections.
    pub flows: Vec<FlowPlan>,
    /// Changes of the link, in order of time.
    pub changes: Vec<Change>,
    /// Beginning of the silence, in which no frame arrives. `None` without a silence.
    pub silence: Option<Silence>,
    /// Peers of node 0 that open connections and do nothing with them.
    pub idlers: Vec<Idler>,
    /// Frames forged by a separate node, which guesses secret numbers.
    pub guesses: Option<Guesses>,
    /// Receive queue that connections of node 0 share, and peers that lie to it.
    pub shared: Option<SharedPlan>,
    /// A fault made on purpose, which the oracle has to find.
    pub sabotage: Option<Sabotage>,
}

/// Fault that a check of the oracle must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The model expects another byte in memory that nothing writes.
    Guard,
    /// The model expects another byte at the destination of the initiator's Writes.
    Sink,
    /// The model expects another byte at the destination of the initiator's Reads.
    Landing,
    /// The model expects another byte in the first message of the initiator.
    Inbox,
    /// The model expects another number after the initiator's Atomics.
    Number,
    /// The model expects other values from Atomics.
    Atomic,
    /// A byte changes in memory that nothing writes.
    Stray,
    /// Completions of the send queue name the next request instead of their own.
    SendOrder,
    /// Completions of the send queue name the request before their own.
    SendRepeated,
    /// Completions of the send queue name another operation.
    SendOpcode,
    /// Completions of Reads report one byte more.
    ReadLength,
    /// The last request succeeds although those before it have failed.
    Revived,
    /// Completions of the receive queue name the next receive instead of their own.
    ReceiveOrder,
    /// Completions of the receive queue report one byte more.
    ReceiveLength,
    /// Completions of the receive queue name another operation.
    ReceiveOpcode,
    /// Completions of the receive queue name another queue pair.
    ReceiveQp,
    /// Completions of the receive queue name an invalidated STag if there is none, and the reverse.
    ReceiveInvalidated,
    /// Completions of the receive queue are solicited if the sender did not ask, and the reverse.
    ReceiveSolicited,
    /// Completions of the receive queue carry other immediate data.
    ReceiveValue,
    /// Failed completions of the send queue get lost.
    LostSend,
    /// Failed completions of the receive queue get lost.
    LostReceive,
    /// The oracle is given a fixed counter for memory that changes.
    Counter,
    /// The oracle expects later counts of memory that changes.
    Stale,
    /// A Read brings bytes that were written after the invalidation.
    Revoked,
    /// The oracle counts one message more for an end that has left.
    LeftBehind,
    /// An end has no time to notice that its peer has vanished.
    Impatience,
    /// A queue pair stays in RTS after its connection has ended.
    State,
    /// A region is kept.
    Region,
    /// A connection is kept.
    Connection,
    /// A byte of an incomplete FPDU is kept.
    Piece,
    /// A port must not hold any bytes.
    Held,
    /// The run may take no step.
    Endless,
    /// The initiator aborts the connection before its work is done, and no event says that the
    /// connection has failed.
    Gone,
    /// A CRC was wrong.
    Crc,
    /// The work beside hostile peers takes a day longer.
    Late,
    /// The work beside hostile peers is never done.
    Undone,
    /// A connection beside hostile peers took another attempt.
    Again,
    /// A Request belongs to no connection of the plan.
    Request,
    /// A buffer of the shared receive queue gets lost.
    Buffer,
    /// A byte of the shared receive queue's memory changes that no message is to write.
    Slack,
    /// A byte behind a message changes in its shared buffer.
    Behind,
    /// Messages are longer than their shared buffers.
    Long,
    /// Completions name no shared buffer.
    Nameless,
    /// An end does not notice that its peer lies.
    Believed,
    /// The messages of a liar have the bytes of the next one.
    LiarPayload,
    /// The owner is to receive no message of a liar.
    LiarCount,
}

/// A shared receive queue of node 0.
#[derive(Clone, Debug)]
pub struct SharedPlan {
    /// Number of buffers.
    pub buffers: usize,
    /// Bytes of each buffer.
    pub len: usize,
    /// Connections of the last node that lie, besides all flows.
    pub liars: Vec<LiarPlan>,
}

/// A connection whose peer sends some messages and then one whose number is impossible.
#[derive(Clone, Copy, Debug)]
pub struct LiarPlan {
    /// Time at which the connection opens, in nanoseconds.
    pub at_ns: u64,
    /// Whole messages with the right numbers.
    pub messages: u32,
    /// True if the first segment of a message follows, and its other segments never arrive.
    pub is_partial: bool,
    /// Added to the number that is due: anything but 0.
    pub lie: u32,
}

/// Connections that a node opens to the first flow's listener, and on which it then stays silent.
#[derive(Clone, Copy, Debug)]
pub struct Idler {
    /// Node that opens them.
    pub node: usize,
    /// Time of the opening, in nanoseconds.
    pub at_ns: u64,
    /// Number of connections.
    pub count: usize,
    /// Data sent on each connection.
    pub says: Says,
}

/// Data that an idle peer sends before it stays silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// No data.
    Nothing,
    /// The beginning of an MPA Request.
    HalfRequest,
    /// A whole MPA Request; it is rejected or never answered.
    Request {
        /// True if the application rejects the Request, false if it never answers.
        rejected: bool,
    },
    /// Data that is no MPA Request.
    Garbage,
}

/// Forged frames with right addresses and ports, and a wrong number that only the ends know.
#[derive(Clone, Copy, Debug)]
pub struct Guesses {
    /// Number of frames.
    pub count: u64,
    /// Interval between frames, in nanoseconds.
    pub period_ns: u64,
}

/// Time at which the nodes fall silent towards each other, for ever, without FIN or RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// At a time, in nanoseconds.
    At(u64),
    /// After this many completions, of all connections.
    Completions(usize),
    /// This long, in nanoseconds, after an end of a connection was asked to close.
    Closing(u64),
}

/// One port.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// Receive window of its connections, in bytes.
    pub window_bytes: u32,
    /// True if FPDUs that arrive ahead of others are placed at once.
    pub out_of_order_placement: bool,
    /// Blocks of the port's piece store.
    pub piece_blocks: usize,
    /// Congestion controller.
    pub congestion: CongestionKind,
    /// True if SACK is offered.
    pub sack: bool,
    /// True if timestamps are offered.
    pub timestamps: bool,
    /// Maximum time that data may stay unacknowledged, in nanoseconds.
    pub user_timeout_ns: u64,
    /// Idle time before keep-alive probes, in nanoseconds.
    pub keepalive_ns: Option<u64>,
    /// Initial impairment of frames that the node sends.
    pub impair: ImpairConfig,
}

/// Link between the nodes.
#[derive(Clone, Copy, Debug)]
pub struct LinkPlan {
    /// Largest IP datagram, in bytes.
    pub mtu: usize,
    /// Travel time of a frame, in nanoseconds.
    pub latency_ns: u64,
    /// Bits per second of each direction.
    pub rate_bits_per_second: Option<u64>,
    /// Maximum number of frames in flight per direction.
    pub queue_frames: usize,
    /// True if the link accepts super-frames and partial checksums.
    pub super_frames: bool,
    /// True for hosts of an IPoIB link, whose `mtu` is 2044 or 4092. It ignores rate and queue.
    pub is_fabric: bool,
}

/// Timed change of the link.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Time of the change, in nanoseconds of the virtual clock.
    pub at_ns: u64,
    /// Event.
    pub what: Event,
}

/// Kind of change of the link.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// New impairment of frames that a node sends.
    Impair(usize, ImpairConfig),
    /// All links go down or up.
    Link(bool),
    /// The MTU of all links changes, in bytes.
    Mtu(usize),
    /// The latency of all links changes, in nanoseconds.
    Latency(u64),
    /// A node stops listening, and listens again at once.
    ListenAgain(usize),
    /// A node does nothing for this many nanoseconds. Frames that arrive meanwhile wait for it.
    Pause(usize, u64),
    /// A node gets another link address; it tells all others, or none.
    Move(usize, bool),
    /// This number of made-up hosts query a node's link address, to fill its neighbour table.
    Crowd(usize, u32),
    /// Event of a fabric of InfiniBand.
    Fabric(FabricEvent),
}

/// Event of a fabric of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// Another subnet manager takes over; it knows no member of any group.
    Manager,
    /// The subnet administrator stops answering, or answers again.
    Silent(bool),
    /// The subnet administrator answers this many requests with "busy".
    Busy(u32),
    /// This many answers of the subnet administrator are lost.
    Mute(u32),
    /// A node's cable is unplugged, or plugged in.
    Cable(usize, bool),
    /// A node's port gets another LID.
    Lid(usize),
    /// A node's link restarts, with another queue pair.
    QueuePair(usize),
    /// All cables are plugged in, and the administrator answers.
    Calm,
}

/// One connection, from its opening to its end.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Nodes of the initiator and the responder.
    pub nodes: [usize; 2],
    /// True if the connection uses IPv6.
    pub ipv6: bool,
    /// Listener of the responder's node; flows with the same number share one.
    pub listener: u16,
    /// Time of the opening.
    pub start: Start,
    /// The ends: initiator and responder.
    pub sides: [SidePlan; 2],
    /// End of the connection.
    pub ending: Ending,
    /// Number of rejections before the responder accepts.
    pub rejects: u32,
    /// True if the sender does not wait for receives: the first one is posted after the start.
    pub waits: bool,
    /// The responder's messages take their buffers from the shared receive queue.
    pub shares: bool,
    /// True for a hostile initiator: any outcome is accepted if all resources are released.
    pub is_hostile: bool,
}

/// Time of opening.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// At a time, in nanoseconds.
    At(u64),
    /// When another flow is ending: an end was asked to close, or has failed.
    After(usize),
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct SidePlan {
    /// MPA settings.
    pub startup: StartupConfig,
    /// Layering of MPA on TCP.
    pub lower_layer: LowerLayer,
    /// Inbound and outbound Reads and Atomics.
    pub depths: [u16; 2],
    /// Requests for the send queue, in order.
    pub work: Vec<Op>,
    /// True if completions of Writes and Sends mean that the data is placed at the peer.
    pub placed: bool,
    /// Depth of the send queue.
    pub send_depth: usize,
    /// Maximum number of receive buffers kept posted.
    pub receives_posted: usize,
    /// Interval at which the application polls its queues, in nanoseconds; 0 for always.
    pub poll_period_ns: u64,
    /// Pause of the application: delay and length, in nanoseconds.
    pub pause_ns: Option<(u64, u64)>,
}

/// End of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All work is done, then this side closes; the other one closes when it notices.
    Close(usize),
    /// All work is done, then both close.
    CloseBoth,
    /// A side ends the connection at once after a number of completions.
    Abort {
        /// Side that aborts.
        side: usize,
        /// Number of completions of both of its queues.
        completions: usize,
    },
    /// A request of a side is not allowed: the stream is terminated.
    Mishap {
        /// Side with the mishap.
        side: usize,
        /// Index of the request in its work.
        at: usize,
        /// Fault of the request.
        what: Mishap,
    },
    /// A completion queue of a side is too short and not polled.
    Overflow(usize),
    /// Each side ends the connection by its own action at its own time, whatever is in flight.
    Acts([Act; 2]),
    /// A side invalidates the memory that the peer reads, and overwrites it.
    Invalidate {
        /// Side that invalidates.
        side: usize,
        /// Delay after its establishment, in nanoseconds.
        after_ns: u64,
    },
}

/// Action by which a side ends a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act {
    /// Action.
    pub what: Deed,
    /// Delay after the connection is established at this side, in nanoseconds.
    pub after_ns: u64,
}

/// Way to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// The side closes only after the peer.
    Nothing,
    /// The side closes; its posted requests must still be completed.
    Disconnect,
    /// The side aborts the connection.
    Abort,
    /// The side closes and drops its queues; its posted requests must still be delivered.
    Leave,
}

/// Fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// A Write that ends behind the peer's region.
    WriteBounds,
    /// A Write with an STag that does not exist.
    WriteStag,
    /// A Write to a region that may only be read.
    WriteAccess,
    /// A Read of a region that may not be read.
    ReadAccess,
    /// A Read that ends behind the peer's region.
    ReadBounds,
    /// A Send without a buffer posted for it.
    NoReceive,
    /// A Send longer than its buffer.
    TooLong,
    /// A Send that invalidates an STag without the right to.
    Invalidate,
    /// A Write with a guessed STag.
    WriteGuess,
}

/// One posted request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Operation.
    pub kind: Kind,
    /// Length in bytes.
    pub len: usize,
    /// Number of scatter elements, at the side that has them.
    pub pieces: usize,
    /// True if the request waits for earlier Reads and Atomics.
    pub fence: bool,
    /// True if success generates a completion.
    pub signaled: bool,
    /// True if the request asks for an event at the peer.
    pub solicited: bool,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A Send.
    Send,
    /// A Send that invalidates an STag of the peer.
    SendInvalidate,
    /// An RDMA Write.
    Write,
    /// An RDMA Write with Immediate Data.
    WriteImmediate,
    /// A Read of the peer's initial data.
    Read,
    /// A Read of the data that this side wrote last.
    ReadBack,
    /// A Read of memory that the peer keeps writing.
    ReadLive,
    /// Immediate Data.
    Immediate,
    /// An Atomic add.
    FetchAdd,
    /// An Atomic compare and swap.
    CmpSwap,
    /// An invalidation of an STag of this side.
    LocalInvalidate,
}

impl Kind {
    /// Returns true if the peer gets a completion of its receive queue.
    #[must_use]
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate | Self::Immediate | Self::WriteImmediate)
    }

    /// Returns true if it writes the peer's memory.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImmediate)
    }

    /// Returns true if it counts against the outstanding Reads.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            Self::Read | Self::ReadBack | Self::ReadLive | Self::FetchAdd | Self::CmpSwap
        )
    }
}

impl Op {
    /// Makes a signaled request of one scatter element.
    #[must_use]
    pub const fn new(kind: Kind, len: usize) -> Self {
        Self { kind, len, pieces: 1, fence: false, signaled: true, solicited: false }
    }
}

impl Plan {
    /// Returns the time of the last change of the link, in nanoseconds: all faults that stop have
    /// stopped by then.
    #[must_use]
    pub(crate) fn faults_end_ns(&self) -> u64 {
        self.changes.last().map_or(0, |change| change.at_ns)
    }

    /// Returns true if the link never changes, and neither impairs frames nor limits their rate.
    #[must_use]
    pub(crate) fn is_clean(&self) -> bool {
        self.changes.is_empty()
            && self.silence.is_none()
            && self.nodes.iter().all(|node| node.impair == ImpairConfig::default())
            && self.link.rate_bits_per_second.is_none()
    }

    /// Returns the payload bytes of all requests.
    #[must_use]
    pub fn octets(&self) -> u64 {
        let sides = self.flows.iter().flat_map(|flow| &flow.sides);
        sides.flat_map(|side| &side.work).map(|op| op.len as u64).sum()
    }
}
