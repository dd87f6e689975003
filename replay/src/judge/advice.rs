//! Requirements and effects: two sentences for each kind of finding.

use super::findings::Kind;

impl Kind {
    /// Requirement of the RFC for the sender, or advice for the reader.
    #[expect(clippy::too_many_lines, reason = "a sentence for each kind")]
    pub(crate) const fn should(self) -> &'static str {
        match self {
            Self::Crc => {
                "The CRC covers all bytes of the FPDU before it, markers too; a receiver discards the FPDU."
            }
            Self::Marker => {
                "A marker gives the distance back to the beginning of its FPDU, which must be right."
            }
            Self::UlpduLength => {
                "The length is that of the ULPDU alone, and at least a DDP header long."
            }
            Self::Pad => "Pad is zero when it is sent.",
            Self::Unaligned => {
                "A sender that knows the MSS begins each segment with an FPDU and ends it with one."
            }
            Self::CrcAlone => "The CRC goes into the segment that holds the rest of its FPDU.",
            Self::CutFpdu => "A stream is closed after a complete FPDU.",
            Self::DdpHeader => "A ULPDU begins with a complete DDP header.",
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
            Self::ReadRequestLength => "A Read Request is 28 bytes long.",
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
                "Look at the segment that the Terminate names, and at the memory that its sender had registered."
            }
            Self::TerminateLength => "A Terminate has at least its control field.",
            Self::TerminateLayout => {
                "The layer is in the high four bits of the first byte, the type in the low four."
            }
            Self::StartupFrame => {
                "A startup frame has its key, a known revision and at most 512 bytes of Private Data."
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
            Self::Rejected => "The Private Data of the Reply may have the reason.",
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
                "The receiver computes the CRC over all bytes of the FPDU, wherever segments end; newer \
                 kernels do."
            }
            Self::ZeroWindow => "The receiving application reads from its socket in time.",
            Self::AckLost => {
                "Nothing is wrong with either end: look for what drops frames between the capture and the \
                 sender."
            }
            Self::EmssSmall => "A path with a larger MTU; below 128 bytes alignment is waived.",
            Self::EmssOdd => {
                "A sender that fills segments reduces its MULPDU by the EMSS modulo 4."
            }
            Self::FpduTooLong => "A ULPDU is at most as long as the MULPDU of the EMSS.",
            Self::ExtensionOpcode => {
                "Immediate Data and atomic messages are untagged, on the queue that the RFC names."
            }
            Self::ImmediateLength => "Immediate Data is one segment with exactly 8 bytes.",
            Self::ImmediateAlone => {
                "No action is needed if the applications use Immediate Data as a short message. Otherwise send it \
                 right after the RDMA Write that it announces."
            }
            Self::AtomicRequestForm => {
                "An Atomic Request is one segment with 52 bytes, and asks for FetchAdd (0) or CmpSwap (2)."
            }
            Self::AtomicResponseForm => "An Atomic Response is one segment with 12 bytes.",
            Self::AtomicMismatch => {
                "Responses come in the order of their Requests, each with the identifier of its own."
            }
            Self::AtomicUnasked => "An Atomic Response is sent only for an Atomic Request.",
            Self::AtomicUnanswered => {
                "A responder answers each Atomic Request once, unless the stream ends before."
            }
            Self::DepthsOpen => {
                "A depth that the Request leaves to the applications (0x3FFF) stays open in the Reply, too."
            }
            Self::DepthsLowered => "The initiator respects the responder's IRD.",
            Self::BeyondIrd => {
                "A requester has at most as many requests in flight as the responder's IRD."
            }
            Self::RtrOther => {
                "In the peer-to-peer model the initiator's first FPDU is the RTR message agreed on."
            }
            Self::RtrIdle => "Without the peer-to-peer model the flags of RTR messages are zero.",
            Self::Unseen => "Capture with a larger buffer, and until the connection is closed.",
            Self::Spurious => "The sender waits at least a round trip for an acknowledgment.",
            Self::Offloaded => "Capture after the device, or without its segmentation offload.",
        }
    }

    /// Possible effect; empty if it is obvious.
    pub(crate) const fn costs(self) -> &'static str {
        match self {
            Self::Crc | Self::Marker | Self::UlpduLength => {
                "The connection: the receiver must end it."
            }
            Self::Unaligned | Self::CrcAlone => {
                "Beyond a gap FPDUs cannot be placed without markers: they are held until TCP has \
                 repaired it."
            }
            Self::Terminate | Self::CrcSplit => "The connection, and all operations in flight.",
            Self::TerminateLayout => "The peer reports another error than the one that occurred.",
            Self::TaggedMessage | Self::MessageNumber | Self::MessageOffset => {
                "A receiver that checks ends the connection."
            }
            Self::ResponderEarly | Self::InitiatorEarly => {
                "The other end may treat the FPDU as part of its startup, and fail."
            }
            Self::RtrUnmatched => "The responder may wait forever for permission to send.",
            Self::Gap | Self::Unseen | Self::MidConnection | Self::NoReply | Self::NoRequest => {
                "The rest of the stream cannot be judged."
            }
            Self::Resumed => "Earlier data, and the terms of the startup, are not known.",
            Self::ZeroWindow => "The sender stops until the window opens.",
            Self::Spurious => {
                "The link carries the bytes twice, and the sender may slow down for no reason."
            }
            Self::AckLost => {
                "The sender waits for its timer, and the link carries the bytes twice."
            }
            Self::EmssSmall | Self::EmssOdd | Self::FpduTooLong => {
                "Such FPDUs are never aligned: beyond a gap they cannot be placed without markers."
            }
            Self::ExtensionOpcode | Self::ImmediateLength | Self::AtomicRequestForm => {
                "The connection: the receiver must end it."
            }
            Self::AtomicResponseForm | Self::AtomicMismatch | Self::AtomicUnasked => {
                "A requester that checks ends the connection; one that does not receives a wrong value."
            }
            Self::ReadRequestSwapped => {
                "A peer with another implementation finds no such memory, and ends the connection."
            }
            Self::BeyondIrd => "A responder without room ends the connection (DDP error 1/2/02).",
            Self::DepthsOpen => "The ends may count on different depths.",
            Self::RtrOther => {
                "The responder may deliver it to the application, or wait forever for permission to send."
            }
            Self::Offloaded => {
                "This capture shows neither the alignment nor the frames on the wire."
            }
            _ => "",
        }
    }
}
