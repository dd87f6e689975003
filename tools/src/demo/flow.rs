//! One direction of the demo: posts the operations of its plan and verifies received data.

use std::collections::VecDeque;

use urnic_engine::mem::Access;
use urnic_engine::types::{Stag, WrId};
use urnic_engine::verbs::{Mr, RecvWr, RemoteBuffer, SendOp, SendWr, Sge, Wc, WcOpcode};

use super::Failure;
use super::arena::{Arena, Target};
use super::end::{End, RECV_DEPTH, Work};
use super::pattern::{Pattern, Piece, Random};
use super::plan::{Operation, Plan};

#[derive(Clone, Copy, Debug)]
pub(super) struct FlowConfig {
    /// Number of the direction: 0 is from the initiator.
    pub(super) number: usize,
    pub(super) seed: u64,
    pub(super) bytes: u64,
    pub(super) len_max: usize,
    pub(super) mtu: usize,
}

/// A Send or Immediate Data in flight, with everything that its arrival proves.
#[derive(Debug)]
struct Message {
    operation: Operation,
    /// The receive buffer, and its expected contents.
    inbox: Target,
    /// Writes posted since the previous message.
    writes: Vec<Target>,
    window: Option<Mr>,
    /// Value of Immediate Data.
    value: u64,
}

#[derive(Debug)]
pub(super) struct Flow {
    number: usize,
    random: Random,
    plan: Plan,
    /// Drawn from the plan, waiting for room.
    waiting: Option<Operation>,
    pattern: Pattern,
    source: Mr,
    sinks: Arena,
    inboxes: Arena,
    /// Posted receive buffers that no message will use yet, oldest first.
    posted: VecDeque<usize>,
    /// Writes that are not followed by a message yet.
    writes: Vec<Target>,
    writes_max: usize,
    messages: VecDeque<Message>,
    reads: usize,
    /// Memory of the receiver for atomics, and its value after all posted atomics.
    counter: Mr,
    counter_value: u64,
    verified_bytes: u64,
    verified_operations: u64,
}

impl Flow {
    pub(super) fn new(config: FlowConfig, sender: &End, receiver: &End) -> anyhow::Result<Self> {
        let FlowConfig { number, seed, bytes, len_max, mtu } = config;
        let mut random = Random::new(seed);
        let pattern = Pattern::new(random.next(), SOURCE_LEN_MIN.max(2 * len_max));
        let source = sender.pd.reg_mr(pattern.len(), Access::REMOTE_READ)?;
        source.copy_in(0, pattern.octets());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let small = SMALL_LEN.min(len_max);
        let classes = [(small, SMALL_SLOTS), (len_max, LARGE_SLOTS)];
        let classes = if small == len_max { &classes[..1] } else { &classes[..] };
        let sinks = Arena::new("sink memory", &receiver.pd, classes, access)?;
        let inbox_len = INBOX_LEN.min(len_max);
        let inboxes = Arena::new(
            "receive buffers",
            &receiver.pd,
            &[(inbox_len, RECV_DEPTH)],
            Access::LOCAL_WRITE,
        )?;
        let counter = receiver.pd.reg_mr(COUNTER_LEN, Access::FOR_ATOMIC)?;
        let counter_value = random.next();
        counter.copy_in(0, &counter_value.to_ne_bytes());
        Ok(Self {
            number,
            plan: Plan::new(random.next(), bytes, len_max, inbox_len, mtu),
            random,
            waiting: None,
            pattern,
            source,
            sinks,
            inboxes,
            posted: VecDeque::new(),
            writes: Vec::new(),
            writes_max: 1,
            messages: VecDeque::new(),
            reads: 0,
            counter,
            counter_value,
            verified_bytes: 0,
            verified_operations: 0,
        })
    }

    pub(super) const fn verified_bytes(&self) -> u64 {
        self.verified_bytes
    }

    pub(super) const fn verified_operations(&self) -> u64 {
        self.verified_operations
    }

    pub(super) fn post_inboxes(&mut self, receiver: &End) -> Result<(), Failure> {
        (0..RECV_DEPTH).try_for_each(|slot| self.post_inbox(receiver, slot))
    }

    pub(super) fn issue(&mut self, sender: &mut End, receiver: &mut End) -> Result<(), Failure> {
        while let Some(operation) = self.waiting.take().or_else(|| self.draw()) {
            if self.try_issue(operation, sender, receiver)? {
                continue;
            }
            self.waiting = Some(operation);
            // Slots of Writes become free when a later message has arrived.
            let blocked_by_writes = !self.writes.is_empty() && !operation.is_message();
            if !blocked_by_writes || !self.try_issue(Operation::EMPTY_SEND, sender, receiver)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn is_done(&self) -> bool {
        self.waiting.is_none()
            && self.writes.is_empty()
            && self.messages.is_empty()
            && self.reads == 0
            && self.plan.is_done()
    }

    /// Draws a message from time to time, so that Writes are verified.
    fn draw(&mut self) -> Option<Operation> {
        if self.writes.len() >= self.writes_max {
            return Some(self.plan.send());
        }
        let last = (!self.writes.is_empty()).then_some(Operation::EMPTY_SEND);
        self.plan.next().or(last)
    }

    fn try_issue(
        &mut self,
        operation: Operation,
        sender: &mut End,
        receiver: &mut End,
    ) -> Result<bool, Failure> {
        if !sender.has_room(2) {
            return Ok(false);
        }
        match operation {
            Operation::Write { len } => {
                let stag = self.sinks.memory.stag();
                self.write(sender, len, stag)
            }
            Operation::Read { len } => self.read(receiver, len),
            Operation::Send { .. } | Operation::Immediate { .. } => {
                self.message(operation, sender, receiver)
            }
            Operation::FetchAdd | Operation::CmpSwap { .. } => {
                self.atomic(operation, sender)?;
                Ok(true)
            }
            Operation::LocalInvalidate => {
                let window = self.source_window(sender)?;
                let op = SendOp::LocalInvalidate { stag: window.stag() };
                let wr = SendWr::new(WrId(0), op, []);
                sender.post(wr, WcOpcode::LocalInvalidate, Work::Invalidate(window))?;
                Ok(true)
            }
        }
    }

    fn write(&mut self, sender: &mut End, len: usize, stag: Stag) -> Result<bool, Failure> {
        let Some((slot, at)) = self.sinks.take(len, &mut self.random) else { return Ok(false) };
        let pieces = self.pieces(len);
        let sges = self.sges(&pieces);
        let target = self.sinks.arm(slot, at, pieces, &self.pattern)?;
        let remote = RemoteBuffer { stag, ..self.sinks.memory.remote(at as u64) };
        let mut wr = SendWr::write(WrId(0), remote, sges);
        // Without a completion: the message that follows proves the arrival.
        wr.signaled = !self.random.one_in(4);
        sender.post(wr, WcOpcode::RdmaWrite, Work::Toward)?;
        self.writes.push(target);
        Ok(true)
    }

    fn read(&mut self, receiver: &mut End, len: usize) -> Result<bool, Failure> {
        if !receiver.has_room(2) {
            return Ok(false);
        }
        let Some((slot, at)) = self.sinks.take(len, &mut self.random) else { return Ok(false) };
        let piece = self.piece(len);
        let target = self.sinks.arm(slot, at, vec![piece], &self.pattern)?;
        let sink = self.sinks.memory.sge(at..at + len);
        let wr = SendWr::read(WrId(0), self.source.remote(piece.at as u64), sink);
        let flow = self.number;
        receiver.post(wr, WcOpcode::RdmaRead, Work::Read { flow, target })?;
        self.reads += 1;
        Ok(true)
    }

    fn message(
        &mut self,
        operation: Operation,
        sender: &mut End,
        receiver: &End,
    ) -> Result<bool, Failure> {
        let Some(slot) = self.posted.pop_front() else { return Ok(false) };
        let (at, _) = self.inboxes.extent(slot);
        let mut window = None;
        let mut value = 0;
        let mut pieces = Vec::new();
        let op = match operation {
            Operation::Send { len, invalidate, solicited } => {
                pieces = self.pieces(len);
                if invalidate {
                    window = Some(self.write_through_window(sender, receiver)?);
                }
                SendOp::Send { invalidate: window.as_ref().map(Mr::stag), solicited }
            }
            Operation::Immediate { solicited } => {
                value = self.random.next();
                SendOp::Immediate { value, solicited }
            }
            other => unreachable!("{other:?} is not a message"),
        };
        let sges = self.sges(&pieces);
        let mut wr = SendWr::new(WrId(0), op, sges);
        wr.fence = self.random.one_in(16);
        let inbox = self.inboxes.arm(slot, at, pieces, &self.pattern)?;
        sender.post(wr, WcOpcode::Send, Work::Toward)?;
        let writes = std::mem::take(&mut self.writes);
        self.writes_max = usize::try_from(self.random.between(1, WRITES_MAX)).expect("small");
        self.messages.push_back(Message { operation, inbox, writes, window, value });
        Ok(true)
    }

    /// Registers the sink memory again, for one short Write and its invalidation.
    fn write_through_window(&mut self, sender: &mut End, receiver: &End) -> Result<Mr, Failure> {
        let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let window = self.sinks.window(&receiver.pd, access).map_err(Failure::of_io)?;
        if self.sinks.has_room() {
            let len = self.plan.short();
            self.write(sender, len, window.stag())?;
        }
        Ok(window)
    }

    /// Registers memory only to invalidate it.
    fn source_window(&self, sender: &End) -> Result<Mr, Failure> {
        sender.pd.reg_mr(COUNTER_LEN, Access::REMOTE_READ).map_err(Failure::of_io)
    }

    fn atomic(&mut self, operation: Operation, sender: &mut End) -> Result<(), Failure> {
        let remote = self.counter.remote(0);
        let original = self.counter_value;
        let number = self.random.next();
        let (op, opcode) = match operation {
            Operation::FetchAdd => {
                self.counter_value = original.wrapping_add(number);
                (SendOp::FetchAdd { remote, add: number, mask: 0 }, WcOpcode::FetchAdd)
            }
            Operation::CmpSwap { equal } => {
                let compare = if equal { original } else { !original };
                if equal {
                    self.counter_value = number;
                }
                let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
                let op = SendOp::CmpSwap { remote, compare, compare_mask, swap: number, swap_mask };
                (op, WcOpcode::CmpSwap)
            }
            other => unreachable!("{other:?} is not an atomic"),
        };
        sender.post(SendWr::new(WrId(0), op, []), opcode, Work::Atomic { original })
    }

    // ---- reception ----

    /// The message, and all Writes before it, must have arrived.
    pub(super) fn received(&mut self, wc: &Wc, receiver: &End) -> Result<(), Failure> {
        let message = self.messages.pop_front();
        let message = message.ok_or_else(|| Failure::new("a message that nobody sent".into()))?;
        let Message { operation, inbox, writes, window, value } = message;
        let slot = usize::try_from(wc.wr_id.0).expect("names of receives are slots");
        let describe = |failure: Failure| failure.within(&format!("{operation:?}"));
        let expected = match operation {
            Operation::Send { solicited, .. } => Wc {
                opcode: WcOpcode::Recv,
                byte_len: u32::try_from(inbox.len).expect("shorter than its buffer"),
                invalidated: window.as_ref().map(Mr::stag),
                solicited,
                value: 0,
                ..*wc
            },
            Operation::Immediate { solicited } => Wc {
                opcode: WcOpcode::RecvImmediate,
                byte_len: 8,
                invalidated: None,
                solicited,
                value,
                ..*wc
            },
            other => unreachable!("{other:?} is not a message"),
        };
        if *wc != expected || self.inboxes.extent(slot).0 != inbox.at {
            return Err(describe(Failure::new(format!("completed as {wc:?}, not {expected:?}"))));
        }
        self.inboxes.check(&inbox, &mut self.pattern).map_err(describe)?;
        for target in writes {
            self.sinks.check(&target, &mut self.pattern).map_err(|failure| {
                let write = Operation::Write { len: target.len };
                failure.within(&format!("{write:?}, followed by {operation:?}"))
            })?;
            self.verified(target.len);
            self.sinks.release(target);
        }
        if window.is_some_and(|window| window.invalidate()) {
            return Err(describe(Failure::new("the STag was still valid".into())));
        }
        self.verified(inbox.len);
        self.inboxes.retire(inbox);
        self.post_inbox(receiver, slot)
    }

    /// The bytes of the Read must have arrived.
    pub(super) fn read_done(&mut self, target: Target) -> Result<(), Failure> {
        self.sinks.check(&target, &mut self.pattern).map_err(|failure| {
            failure.within(&format!("{:?}", Operation::Read { len: target.len }))
        })?;
        self.reads -= 1;
        self.verified(target.len);
        self.sinks.release(target);
        Ok(())
    }

    /// The memory of atomics, the source, and all verified data must be unchanged.
    pub(super) fn verify_rest(&mut self) -> Result<(), Failure> {
        let mut counter = [0; 8];
        self.counter.copy_out(0, &mut counter);
        let (found, expected) = (u64::from_ne_bytes(counter), self.counter_value);
        if found != expected {
            let text = format!("the atomics left {found:#018x} and not {expected:#018x}");
            return Err(Failure::new(text));
        }
        let whole = [Piece { at: 0, len: self.pattern.len() }];
        self.pattern.compare(&self.source, 0, &whole).map_err(|difference| {
            Failure::new(format!("byte {} of the source was changed", difference.offset))
        })?;
        self.sinks.check_all(&mut self.pattern)?;
        self.inboxes.check_all(&mut self.pattern)
    }

    const fn verified(&mut self, len: usize) {
        self.verified_bytes += len as u64;
        self.verified_operations += 1;
    }

    // ---- memory ----

    fn post_inbox(&mut self, receiver: &End, slot: usize) -> Result<(), Failure> {
        let (at, capacity) = self.inboxes.extent(slot);
        // Some buffers have two parts.
        let cut = if slot.is_multiple_of(3) { capacity / 3 } else { capacity };
        let runs = [at..at + cut, at + cut..at + capacity];
        let sges = runs.into_iter().filter(|run| !run.is_empty());
        let sges = sges.map(|run| self.inboxes.memory.sge(run));
        let wr = RecvWr::new(WrId(slot as u64), sges);
        let result = receiver.qp().post_recv(wr);
        result.map_err(|error| Failure::new(format!("posting a receive buffer: {error}")))?;
        self.posted.push_back(slot);
        Ok(())
    }

    fn piece(&mut self, len: usize) -> Piece {
        let places = self.pattern.len() - len + 1;
        let at = self.random.below(places as u64);
        Piece { at: usize::try_from(at).expect("inside the pattern"), len }
    }

    fn pieces(&mut self, len: usize) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(PIECES_MAX);
        let mut left = len;
        while left > 0 {
            let is_last = pieces.len() + 1 == PIECES_MAX || self.random.one_in(2);
            let len = if is_last { left } else { self.up_to(left) };
            pieces.push(self.piece(len));
            left -= len;
        }
        pieces
    }

    fn up_to(&mut self, most: usize) -> usize {
        usize::try_from(self.random.between(1, most as u64)).expect("at most `most`")
    }

    fn sges(&self, pieces: &[Piece]) -> Vec<Sge> {
        pieces.iter().map(|piece| self.source.sge(piece.at..piece.at + piece.len)).collect()
    }
}

const SOURCE_LEN_MIN: usize = 256 << 10;
/// Slots for Writes and Reads: length and number of small ones; number of the longest.
const SMALL_LEN: usize = 8 << 10;
const SMALL_SLOTS: usize = 48;
const LARGE_SLOTS: usize = 6;
const INBOX_LEN: usize = 64 << 10;
const WRITES_MAX: u64 = 5;
const PIECES_MAX: usize = 3;
const COUNTER_LEN: usize = 64;
