//! Cases: operation, message length, link, and the parts that the two queues share.

/// The link between the two ends of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// A link in memory, one for each queue.
    Memory,
    /// The pairs of queues of one vhost-user device.
    VhostUser,
}

/// The operation of each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// A Write to the other end.
    Write,
    /// A Read from the other end.
    Read,
}

/// One kind of work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    /// Its name in the report.
    pub(crate) name: &'static str,
    /// The link of each queue.
    pub(crate) link: Link,
    pub(crate) operation: Operation,
    /// Bytes of a message.
    pub(crate) message_len: usize,
    /// Messages in flight at a time.
    pub(crate) window: usize,
}

/// The parts that two queues share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Nothing: each has an RNIC of its own at both ends, made in the thread that runs it.
    Apart,
    /// The RNIC of each end; each queue has its own domain, completion queue and memory.
    OneRnic,
    /// The RNIC, and a memory region that the queues divide between them.
    OneMr,
}

impl Layout {
    /// All of them; the first is the control of the others.
    pub(crate) const ALL: [Self; 3] = [Self::Apart, Self::OneRnic, Self::OneMr];

    /// Its name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Apart => "nothing in common",
            Self::OneRnic => "one RNIC",
            Self::OneMr => "one RNIC and MR",
        }
    }
}

const LONG: usize = 64 << 10;
const SHORT: usize = 64;
const WINDOW: usize = 16;

const fn case(
    name: &'static str,
    link: Link,
    operation: Operation,
    message_len: usize,
    window: usize,
) -> Case {
    Case { name, link, operation, message_len, window }
}

/// Every kind of work, at an MTU of 1500 and with CRCs.
pub(crate) const CASES: &[Case] = &[
    case("memory: 64 KiB Writes", Link::Memory, Operation::Write, LONG, WINDOW),
    case("memory: 64 KiB Reads", Link::Memory, Operation::Read, LONG, WINDOW),
    case("memory: 64 B Writes", Link::Memory, Operation::Write, SHORT, WINDOW),
    case("memory: 64 B Reads", Link::Memory, Operation::Read, SHORT, WINDOW),
    case("memory: 64 B Writes one by one", Link::Memory, Operation::Write, SHORT, 1),
    case("vhost-user: 64 KiB Writes", Link::VhostUser, Operation::Write, LONG, WINDOW),
    case("vhost-user: 64 KiB Reads", Link::VhostUser, Operation::Read, LONG, WINDOW),
    case("vhost-user: 64 B Writes", Link::VhostUser, Operation::Write, SHORT, WINDOW),
];
