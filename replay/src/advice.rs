//! Requirements and effects: two sentences for each kind of finding.

use super::findings::Kind;

impl Kind {
    /// Requirement of the RFC for the sender, or advice for the reader.
    #[expect(clippy::too_many_lines, reason = "a sentence for each kind")]
    pub(super) const fn should(self) -> &'static str {
        match self {
            Self::Crc => {
                "The CRC is that of all octets of the FPDU before it, markers too; a receiver discards the FPDU."
            }
            Self::Marker => "A marker says how far back its FPDU begins; it has to be right.",
            Self::UlpduLength => {
                "The length is that of the ULPDU alone, and at least a DDP header long."
            }
            Self::Pad => "Pad is zero when it is sent.",
            Self::Unaligned => {
                "A sender that knows the MSS begins each segment with an FPDU and ends it with one."
            }
            Self::CrcAlone => "The CRC goes into the segment that holds the rest of its FPDU.",
            Self::CutFpdu => "A stream is closed behind a whole FPDU.",
            Self::DdpHeader => "A ULPDU begins with a whole DDP header.",
            Self::DdpVersion => {
                "The DDP version is that of the negotiated revision: 1 for the IETF's."
            }
            Self::DdpReserved | Self::RdmapReserved | Self::StartupReserved => {
                "Reserved bits are zero when sent, and ignored by receivers."
            }
            Self::QueueNumber => "Untagged messages go to the queues that RDMAP names.",
            Self::MessageNumber => "Message numbers of a queue count up by one from 1.",
            Self::MessageOffset => {
                "The offsets of the segments of a message follow each other without gap."
            }
            Self::TaggedMessage => "A tagged message is finished before the next begins.",
            Self::TaggedOffsetWrap => "Tagged offset plus length stays within 64 bits.",
            Self::RdmapVersion => {
                "The RDMAP version is that of the negotiated revision: 1 for the IETF's."
            }
            Self::Opcode => "Each opcode has its buffer model and its queue.",
            Self::ReadRequestLength => "A Read Request is 28 octets long.",
            Self::ReadRequestSwapped => "All fields of a header are in network byte order.",
            Self::ResponseUnasked => "A Read Response is sent only for a Read Request.",
            Self::ResponseMismatch => {
                "A Read Response fills the place that its Request names, whole and in order."
            }
            Self::ReadUnanswered => {
                "A responder answers all Read Requests, unless the stream ends before."
            }
            Self::AfterTerminate => "A Terminate is the last message of its stream.",
            Self::Terminate => {
                "Look at the segment that the Terminate is about, and at what its sender had registered."
            }
            Self::TerminateLength => "A Terminate has at least its control field.",
            Self::TerminateLayout => {
                "Layer stands in the high four bits of the first octet, type in the low ones."
            }
            Self::StartupFrame => {
                "A startup frame has its key, a known revision and at most 512 octets of Private Data."
            }
            Self::StartupAnswer => {
                "An enhanced Request is answered by an enhanced Reply, a plain one by a plain one."
            }
            Self::Depths => "The responder's ORD is at most the initiator's IRD.",
            Self::Rtr => "Nothing: both ends agree on it.",
            Self::RtrUnmatched => {
                "The Reply chooses one of the kinds of first message that the Request offers."
            }
            Self::BothInitiate => "One end sends a Request, the other a Reply.",
            Self::Rejected => "The Private Data of the Reply may say why.",
            Self::InitiatorEarly => "The initiator waits for the Reply before it sends FPDUs.",
            Self::ResponderEarly => "The responder waits for the first FPDU of the initiator.",
            Self::NoRequest | Self::NoReply | Self::MidConnection | Self::Resumed => {
                "Begin the capture before the connection is opened."
            }
            Self::NotMpa => "Nothing: other programs use TCP, too.",
            Self::Gap => "Capture with a larger buffer, or nearer to the receiver.",
            Self::WaitingFull | Self::MemoryFull | Self::LetGo => {
                "Filter the capture for this connection, and replay it alone."
            }
            Self::CrcSplit => {
                "The receiver computes the CRC over all octets of the FPDU, wherever segments end; newer \
                 kernels do."
            }
            Self::ZeroWindow => "The receiving program takes octets from its socket in time.",
            Self::AckLost => {
                "Nothing is wrong with either end: look for what drops frames between the capture and the \
                 sender."
            }
            Self::EmssSmall => "A path with a larger MTU; below 128 octets alignment is waived.",
            Self::EmssOdd => {
                "A sender that fills segments keeps the EMSS modulo 4 free: its MULPDU has that taken off."
            }
            Self::FpduTooLong => "A ULPDU is at most as long as the MULPDU of the EMSS.",
            Self::ExtensionOpcode => {
                "Immediate Data and atomic messages are untagged, on the queue that the RFC names."
            }
            Self::ImmediateLength => "Immediate Data is one segment with exactly 8 octets.",
            Self::ImmediateAlone => {
                "No action is needed if the programs use Immediate Data as a short message. Otherwise send it \
                 right after the RDMA Write that it announces."
            }
            Self::AtomicRequestForm => {
                "An Atomic Request is one segment with 52 octets, and asks for FetchAdd (0) or CmpSwap (2)."
            }
            Self::AtomicResponseForm => "An Atomic Response is one segment with 12 octets.",
            Self::AtomicMismatch => {
                "Responses come in the order of their Requests, each with the identifier of its own."
            }
            Self::AtomicUnasked => "An Atomic Response is sent only for an Atomic Request.",
            Self::AtomicUnanswered => {
                "A responder answers each Atomic Request once, unless the stream ends before."
            }
            Self::DepthsOpen => {
                "A depth that is left to the programs (0x3FFF) is left open by the Reply, too."
            }
            Self::DepthsLowered => "The initiator keeps to the responder's IRD.",
            Self::BeyondIrd => {
                "A requester waits for an answer when as many requests are open as the responder's IRD."
            }
            Self::RtrOther => {
                "In the peer-to-peer model the initiator's first FPDU is the RTR message agreed on."
            }
            Self::RtrIdle => "Without the peer-to-peer model the flags of RTR messages are zero.",
            Self::Unseen => "Capture with a larger buffer, and until the connection is closed.",
            Self::Spurious => "The sender waits for acknowledgments as long as a round trip takes.",
            Self::Offloaded => {
                "Capture behind the device, or with its segmentation offload turned off."
            }
        }
    }

    /// Possible effect; empty if it is obvious.
    pub(super) const fn costs(self) -> &'static str {
        match self {
            Self::Crc | Self::Marker | Self::UlpduLength => {
                "The connection: the receiver has to end it."
            }
            Self::Unaligned | Self::CrcAlone => {
                "Beyond a gap FPDUs cannot be placed without markers: they are held until TCP has \
                 repaired it."
            }
            Self::Terminate | Self::CrcSplit => "The connection, and all operations under way.",
            Self::TerminateLayout => "The peer reports another error than the one that occurred.",
            Self::TaggedMessage | Self::MessageNumber | Self::MessageOffset => {
                "A receiver that checks ends the connection."
            }
            Self::ResponderEarly | Self::InitiatorEarly => {
                "The other end may take the FPDU for part of its startup, and fail."
            }
            Self::RtrUnmatched => "The responder may wait for ever for leave to send.",
            Self::Gap | Self::Unseen | Self::MidConnection | Self::NoReply | Self::NoRequest => {
                "What lies beyond cannot be known."
            }
            Self::Resumed => "What came before, and the terms of the startup, are not known.",
            Self::ZeroWindow => "The sender stops until the window opens.",
            Self::Spurious => {
                "The link carries the octets twice, and the sender may slow down without need."
            }
            Self::AckLost => {
                "The sender waits for its timer, and the link carries the octets twice."
            }
            Self::EmssSmall | Self::EmssOdd | Self::FpduTooLong => {
                "Such FPDUs are never aligned: beyond a gap they cannot be placed without markers."
            }
            Self::ExtensionOpcode | Self::ImmediateLength | Self::AtomicRequestForm => {
                "The connection: the receiver has to end it."
            }
            Self::AtomicResponseForm | Self::AtomicMismatch | Self::AtomicUnasked => {
                "A requester that checks ends the connection; one that does not takes a wrong value."
            }
            Self::ReadRequestSwapped => {
                "A peer of another make finds no such memory, and ends the connection."
            }
            Self::BeyondIrd => "A responder without room ends the connection (DDP error 1/2/02).",
            Self::DepthsOpen => "The ends may count on different depths.",
            Self::RtrOther => {
                "The responder may take it for the program's, or wait for ever for leave to send."
            }
            Self::Offloaded => {
                "Alignment, and what was on the wire, cannot be judged from this capture."
            }
            _ => "",
        }
    }
}
