//! What is done over which link: everything that a run depends on.

use urnic_engine::mpa::startup::StartupConfig;
use urnic_engine::port::LowerLayer;
use urnic_engine::tcp::CongestionKind;
use urnic_netdev::impair::ImpairConfig;

use crate::scenario::Scenario;

/// One run. Made by [`Plan::of_seed`], or by hand for a regression test.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seeds what is random in the run itself: STags, sequence numbers, the fate of frames.
    pub seed: u64,
    /// What the plan was drawn for.
    pub scenario: Scenario,
    /// The ports; two are joined by a link, more by a switch.
    pub nodes: Vec<NodePlan>,
    /// The link of every node.
    pub link: LinkPlan,
    /// The connections.
    pub flows: Vec<FlowPlan>,
    /// What happens to the link, in order of time.
    pub changes: Vec<Change>,
    /// When no frame arrives any more, if that happens.
    pub silence: Option<Silence>,
    /// Peers of node 0 that open connections and do nothing with them.
    pub idlers: Vec<Idler>,
    /// What is sent by a node that is none of these and guesses what it should not know.
    pub guesses: Option<Guesses>,
    /// A fault made on purpose, which the oracle has to find.
    pub sabotage: Option<Sabotage>,
}

/// A fault that a check of the oracle has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The model expects another byte in memory that nothing writes.
    Guard,
    /// The model expects another byte where the initiator's Writes go.
    Sink,
    /// The model expects another byte where the initiator's Reads go.
    Landing,
    /// The model expects that atomics find other values.
    Atomic,
    /// Completions of the send queue name the request behind their own.
    SendOrder,
    /// Completions of the send queue name another operation.
    SendOpcode,
    /// Completions of the receive queue name the receive behind their own.
    ReceiveOrder,
    /// Completions of the receive queue name one byte more.
    ReceiveLength,
    /// Failed completions of the send queue get lost.
    LostSend,
    /// Failed completions of the receive queue get lost.
    LostReceive,
    /// The counter of memory that changes is believed to stand still.
    Counter,
    /// Memory that was written after its invalidation has been read.
    Revoked,
    /// An end that has left is believed to have posted one message more.
    LeftBehind,
    /// An end has no time to notice that its peer has vanished.
    Impatience,
    /// A queue pair goes on after its connection has ended.
    State,
    /// A region is kept.
    Region,
    /// A connection is kept.
    Connection,
    /// A port may hold nothing.
    Held,
    /// A CRC was wrong.
    Crc,
    /// The work beside hostile peers takes a day longer.
    Late,
    /// The work beside hostile peers is never done.
    Undone,
    /// A Request is none of those that were made.
    Request,
}

/// Connections that a node opens to the first flow's listener and leaves as they are.
#[derive(Clone, Copy, Debug)]
pub struct Idler {
    /// Which node opens them.
    pub node: usize,
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// How many.
    pub count: usize,
    /// What is sent on each.
    pub says: Says,
}

/// What a peer says that then says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Says {
    /// Nothing.
    Nothing,
    /// The beginning of an MPA Request.
    HalfRequest,
    /// A whole MPA Request; it is rejected or, if not so, never answered.
    Request {
        /// Whether it is rejected.
        rejected: bool,
    },
    /// What is no MPA Request.
    Garbage,
}

/// Forged frames between the nodes: addresses and ports are right, and at least one of the numbers
/// that only the ends know is not.
#[derive(Clone, Copy, Debug)]
pub struct Guesses {
    /// How many.
    pub count: u64,
    /// Time from one to the next, in nanoseconds.
    pub period_ns: u64,
}

/// When the nodes fall silent towards each other, for ever: no FIN comes and no RST. To each of
/// them, its peers have vanished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// At a time, in nanoseconds.
    At(u64),
    /// After so many completions, of all connections.
    Completions(usize),
    /// This long, in nanoseconds, after an end of a connection was told to close.
    Closing(u64),
}

/// One port.
#[derive(Clone, Copy, Debug)]
pub struct NodePlan {
    /// Receive window of its connections, in bytes.
    pub window_bytes: u32,
    /// Whether FPDUs that arrive ahead of others are placed at once.
    pub out_of_order_placement: bool,
    /// Blocks of the port's piece store.
    pub piece_blocks: usize,
    /// Congestion controller.
    pub congestion: CongestionKind,
    /// Ask for selective acknowledgments.
    pub sack: bool,
    /// Ask for timestamps.
    pub timestamps: bool,
    /// How long data may stay unacknowledged, in nanoseconds.
    pub user_timeout_ns: u64,
    /// Idle time before the peer is asked whether it is there, in nanoseconds.
    pub keepalive_ns: Option<u64>,
    /// What happens to frames that the node sends, at first.
    pub impair: ImpairConfig,
}

/// What joins the nodes.
#[derive(Clone, Copy, Debug)]
pub struct LinkPlan {
    /// Largest IP datagram, in bytes.
    pub mtu: usize,
    /// Time a frame travels, in nanoseconds.
    pub latency_ns: u64,
    /// Bits per second of each direction.
    pub rate_bits_per_second: Option<u64>,
    /// Frames in flight per direction, at most.
    pub queue_frames: usize,
    /// Whether the link takes super-frames and partial checksums.
    pub super_frames: bool,
    /// Whether the nodes are hosts of a link of InfiniBand, on a fabric whose packets have four bytes
    /// more than `mtu`: of 2044 or of 4092. It has no rate and no queue of its own.
    pub is_fabric: bool,
}

/// Something that happens to the link at some time.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// When, in nanoseconds of the virtual clock.
    pub at_ns: u64,
    /// What.
    pub what: Event,
}

/// What can happen to the link.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// What happens to frames that a node sends, from now on.
    Impair(usize, ImpairConfig),
    /// All links go down or up.
    Link(bool),
    /// The MTU of all links changes, in bytes.
    Mtu(usize),
    /// The latency of all links changes, in nanoseconds.
    Latency(u64),
    /// A node stops listening, and listens again at once.
    ListenAgain(usize),
    /// A node does nothing for so many nanoseconds. What arrives meanwhile waits for it.
    Pause(usize, u64),
    /// Of a fabric of InfiniBand.
    Fabric(FabricEvent),
}

/// What can happen to a fabric of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// Another subnet manager takes over, and knows of no member of any group.
    Manager,
    /// The subnet administrator answers nothing, or does again.
    Silent(bool),
    /// It says to so many requests that it is busy.
    Busy(u32),
    /// So many of its answers are lost.
    Mute(u32),
    /// A node's cable is out, or in.
    Cable(usize, bool),
    /// A node's port gets another LID.
    Lid(usize),
    /// A node's link is started anew, with another queue pair.
    QueuePair(usize),
    /// All cables are in, and the administrator answers.
    Calm,
}

/// One connection, from opening to the end.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Which nodes: initiator and responder.
    pub nodes: [usize; 2],
    /// Whether the connection uses IPv6.
    pub ipv6: bool,
    /// Which listener of the responder's node; those with one number are the same.
    pub listener: u16,
    /// When it is opened.
    pub start: Start,
    /// The ends: initiator and responder.
    pub sides: [SidePlan; 2],
    /// How it ends.
    pub ending: Ending,
    /// How often the responder rejects before it accepts.
    pub rejects: u32,
    /// Messages wait for receives: they are sent whether there are any or not, and none is posted before
    /// the connection stands.
    pub waits: bool,
    /// The initiator means harm: whatever becomes of the connection is right, as long as nothing of
    /// it is left.
    pub is_hostile: bool,
}

/// When a connection is opened.
#[derive(Clone, Copy, Debug)]
pub enum Start {
    /// At a time, in nanoseconds.
    At(u64),
    /// As soon as another flow has been told to close, or has failed.
    After(usize),
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct SidePlan {
    /// MPA settings.
    pub startup: StartupConfig,
    /// How MPA uses TCP.
    pub lower_layer: LowerLayer,
    /// Inbound and outbound Reads and Atomics.
    pub depths: [u16; 2],
    /// What is posted to the send queue, in order.
    pub work: Vec<Op>,
    /// Whether completions of Writes and Sends say that they are placed at the peer.
    pub placed: bool,
    /// Depth of the send queue.
    pub send_depth: usize,
    /// Receive buffers kept posted, at most.
    pub receives_posted: usize,
    /// How often the application looks at its queues, in nanoseconds; 0 for always.
    pub poll_period_ns: u64,
    /// When the application does nothing at all: after how long, and for how long, in nanoseconds.
    pub pause_ns: Option<(u64, u64)>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All work is done, then this side closes, and the other one when it notices.
    Close(usize),
    /// All work is done, then both close.
    CloseBoth,
    /// A side ends the connection at once after so many completions.
    Abort {
        /// Which.
        side: usize,
        /// Completions of both of its queues.
        completions: usize,
    },
    /// A request of a side is not allowed: the stream is terminated.
    Mishap {
        /// Which.
        side: usize,
        /// The index of the request in its work.
        at: usize,
        /// What is wrong with it.
        what: Mishap,
    },
    /// A completion queue of a side is too short and not polled.
    Overflow(usize),
    /// Each side ends it in its own way at its own time, whatever is in flight.
    Acts([Act; 2]),
    /// A side invalidates what the peer reads, and writes over it.
    Invalidate {
        /// Which.
        side: usize,
        /// How long after it was established, in nanoseconds.
        after_ns: u64,
    },
}

/// What a side does to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Act {
    /// What.
    pub what: Deed,
    /// How long after the connection is established there, in nanoseconds.
    pub after_ns: u64,
}

/// A way to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// None of its own: it closes when the peer has.
    Nothing,
    /// It closes; what it has posted is still to be done.
    Disconnect,
    /// It ends the connection at once.
    Abort,
    /// It closes and drops its queue pair and queues; what it has posted is still to be done.
    Leave,
}

/// What is wrong with a request.
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
    /// A Send that invalidates what it may not.
    Invalidate,
    /// A Write with an STag that is guessed.
    WriteGuess,
}

/// One posted request.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// Bytes.
    pub len: usize,
    /// Scatter elements on the side that has them.
    pub pieces: usize,
    /// Wait for earlier Reads and Atomics.
    pub fence: bool,
    /// Whether success raises a completion.
    pub signaled: bool,
    /// Ask for an event at the peer.
    pub solicited: bool,
}

/// What a request does.
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
    /// A Read of what the peer had from the start.
    Read,
    /// A Read of what this side wrote last.
    ReadBack,
    /// A Read of what the peer goes on writing.
    ReadLive,
    /// Immediate Data.
    Immediate,
    /// An atomic add.
    FetchAdd,
    /// An atomic compare and swap.
    CmpSwap,
    /// An invalidation of an STag of its own.
    LocalInvalidate,
}

impl Kind {
    /// Whether the peer gets a completion of its receive queue.
    #[must_use]
    pub const fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::SendInvalidate | Self::Immediate | Self::WriteImmediate)
    }

    /// Returns true if it writes the peer's memory.
    #[must_use]
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::WriteImmediate)
    }

    /// Whether it counts against the outstanding Reads.
    #[must_use]
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            Self::Read | Self::ReadBack | Self::ReadLive | Self::FetchAdd | Self::CmpSwap
        )
    }
}

impl Op {
    /// A signalled request of one scatter element.
    #[must_use]
    pub const fn new(kind: Kind, len: usize) -> Self {
        Self { kind, len, pieces: 1, fence: false, signaled: true, solicited: false }
    }
}

impl Plan {
    /// When the last fault stops, in nanoseconds.
    #[must_use]
    pub(crate) fn faults_end_ns(&self) -> u64 {
        self.changes.last().map_or(0, |change| change.at_ns)
    }

    /// Whether nothing ever happens to a frame.
    #[must_use]
    pub(crate) fn is_clean(&self) -> bool {
        self.changes.is_empty()
            && self.silence.is_none()
            && self.nodes.iter().all(|node| node.impair == ImpairConfig::default())
            && self.link.rate_bits_per_second.is_none()
    }

    /// Payload bytes of all requests.
    #[must_use]
    pub fn octets(&self) -> u64 {
        let sides = self.flows.iter().flat_map(|flow| &flow.sides);
        sides.flat_map(|side| &side.work).map(|op| op.len as u64).sum()
    }
}
