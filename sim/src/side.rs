//! The application at one end of a connection: its requests, and the checks of its completions.

mod changing;
mod placed;
mod request;
mod shared;

use std::io;

use urnic_engine::port::ConnectionId;
use urnic_engine::time::Instant;
use urnic_engine::types::{Stag, WrId};
use urnic_engine::verbs::{
    CompletionLevel, Cq, Pd, PostError, Qp, QpConfig, QpRules, RecvWr, RemoteBuffer, Rnic, SendOp,
    SendWr, Wc, WcStatus,
};

use crate::live::{self, Live};
use crate::memory::{self, Memory, Model, Part, Spot};
use crate::plan::{Ending, FlowPlan, Kind, Mishap, Op, Sabotage, SidePlan};
use crate::shared::SharedPool;

use request::{arrives_as, cmp_swap, cut, immediate, opcode, send, write_immediate};

#[derive(Debug)]
pub(crate) struct Side {
    index: usize,
    rnic: Rnic,
    pd: Pd,
    pub(crate) memory: Memory,
    pub(crate) queues: Queues,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) established: bool,
    pub(crate) closed: bool,
    pub(crate) failed: bool,
    spots: Vec<Spot>,
    peer_spots: Vec<Spot>,
    /// Indices of the peer's requests that take a receive.
    peer_messages: Vec<usize>,
    pub(crate) progress: Progress,
    pub(crate) next_pump: Instant,
    /// True if the peer has posted receives since the last poll.
    pub(crate) credit: bool,
    /// The application never polls, so that its queue overflows.
    blind: bool,
    pub(crate) pause: Option<(Instant, Instant)>,
    /// Memory that this end keeps writing.
    pub(crate) live: Live,
    live_at_post: Vec<u64>,
    /// The application has dropped its handles, and gets no completions.
    pub(crate) has_left: bool,
    pub(crate) sabotage: Option<Sabotage>,
    pool: Option<SharedPool>,
}

/// The queues of one attempt to connect: a queue pair serves one connection.
#[derive(Debug)]
pub(crate) struct Queues {
    pub(crate) qp: Qp,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) posted: usize,
    pub(crate) messages: usize,
    /// Index before which all requests have completed, as far as completions show.
    completed: usize,
    pub(crate) receives_posted: usize,
    received: usize,
    /// Index before which the data of all the peer's requests was checked in memory.
    seen: usize,
    pub(crate) completions: usize,
    /// A completion without success was taken, for send and receive queue.
    broken: [bool; 2],
    pub(crate) delivered: usize,
}

impl Queues {
    fn new(
        rnic: &Rnic,
        pd: &Pd,
        flow: &FlowPlan,
        side: usize,
        pool: Option<&SharedPool>,
    ) -> io::Result<Self> {
        let plan = &flow.sides[side];
        let messages = messages(&flow.sides[1 - side].work).len();
        let overflows = flow.ending == Ending::Overflow(side);
        let (send_cq, recv_cq) = if overflows {
            let cq = rnic.create_cq(1).expect("a depth within CQ_DEPTH_MAX");
            (cq.clone(), cq)
        } else {
            (
                rnic.create_cq(plan.work.len() + 1).expect("a depth within CQ_DEPTH_MAX"),
                rnic.create_cq(messages + 1).expect("a depth within CQ_DEPTH_MAX"),
            )
        };
        let config = QpConfig {
            send_depth: plan.send_depth,
            recv_depth: plan.receives_posted,
            srq: pool.map(|pool| pool.borrow().srq.clone()),
            rules: match flow.waits {
                true => QpRules::IwarpWait,
                false => QpRules::Iwarp,
            },
            completion: match plan.placed {
                true => CompletionLevel::Placed,
                false => CompletionLevel::Taken,
            },
            ..QpConfig::with_cqs(send_cq.clone(), recv_cq.clone())
        };
        let qp = pd.create_qp(config).map_err(io::Error::other)?;
        Ok(Self { qp, send_cq, recv_cq })
    }
}

/// Requests that take a receive of the peer.
fn messages(work: &[Op]) -> Vec<usize> {
    let all = work.iter().enumerate();
    all.filter(|(_, op)| op.kind.is_message()).map(|(index, _)| index).collect()
}

impl Side {
    /// Messages take their buffers from `pool`, if there is one.
    pub(crate) fn new(
        rnic: &Rnic,
        flow: &FlowPlan,
        index: usize,
        pool: Option<SharedPool>,
    ) -> io::Result<Self> {
        let pd = pool.as_ref().map_or_else(|| rnic.alloc_pd(), |pool| pool.borrow().pd.clone());
        Ok(Self {
            index,
            memory: Memory::new(&pd, flow, index)?,
            queues: Queues::new(rnic, &pd, flow, index, pool.as_ref())?,
            rnic: rnic.clone(),
            pd,
            connection: None,
            established: false,
            closed: false,
            failed: false,
            spots: memory::spots(&flow.sides[index].work),
            peer_spots: memory::spots(&flow.sides[1 - index].work),
            peer_messages: messages(&flow.sides[1 - index].work),
            progress: Progress::default(),
            next_pump: Instant::ZERO,
            credit: true,
            blind: flow.ending == Ending::Overflow(index),
            pause: None,
            live: Live::default(),
            live_at_post: Vec::new(),
            has_left: false,
            sabotage: None,
            pool,
        })
    }

    pub(crate) fn renew(&mut self, flow: &FlowPlan) -> io::Result<()> {
        self.queues = Queues::new(&self.rnic, &self.pd, flow, self.index, self.pool.as_ref())?;
        self.connection = None;
        self.established = false;
        self.closed = false;
        self.progress = Progress::default();
        self.credit = true;
        Ok(())
    }

    /// Drops the queue pair and the queues, as an application that exits does.
    pub(crate) fn leave(&mut self, flow: &FlowPlan) -> io::Result<()> {
        self.has_left = true;
        self.blind = true;
        self.queues = Queues::new(&self.rnic, &self.pd, flow, self.index, self.pool.as_ref())?;
        Ok(())
    }

    pub(crate) fn post_receives(&mut self, flow: &FlowPlan) -> Result<(), String> {
        if self.pool.is_some() {
            self.progress.receives_posted = self.peer_messages.len();
            return Ok(());
        }
        let sender = 1 - self.index;
        let posted_max = self.progress.received + flow.sides[self.index].receives_posted;
        while self.progress.receives_posted < posted_max.min(self.peer_messages.len()) {
            let index = self.peer_messages[self.progress.receives_posted];
            if is_mishap(flow, sender, index, Mishap::NoReceive) {
                break;
            }
            let op = &flow.sides[sender].work[index];
            let len = memory::receive_len(flow, sender, index);
            // The destination of a Write is not in the inbox.
            let at = if op.kind.is_write() { 0 } else { self.peer_spots[index].to };
            let sges = cut(self.memory.part(Part::Inbox), at, len, op.pieces);
            match self.queues.qp.post_recv(RecvWr::new(WrId(index as u64), sges)) {
                Ok(()) => self.progress.receives_posted += 1,
                Err(PostError::State(_)) => break,
                Err(error) => return Err(format!("a receive cannot be posted: {error}")),
            }
        }
        Ok(())
    }

    /// Posts requests while there is room, here and at the peer.
    pub(crate) fn post_sends(&mut self, flow: &FlowPlan, peer: &Self) -> Result<(), String> {
        let work = &flow.sides[self.index].work;
        while let Some(op) = work.get(self.progress.posted) {
            let index = self.progress.posted;
            let takes_receive = op.kind.is_message();
            if takes_receive
                && !flow.waits
                && self.progress.messages >= peer.progress.receives_posted
                && !is_mishap(flow, self.index, index, Mishap::NoReceive)
            {
                break;
            }
            let wr = self.request(flow, index, peer);
            match self.queues.qp.post_send(wr) {
                Ok(()) => {
                    self.live_at_post.truncate(index);
                    self.live_at_post.push(self.counter_at_post(peer));
                    self.progress.posted += 1;
                    self.progress.messages += usize::from(takes_receive);
                }
                Err(PostError::Full | PostError::State(_)) => break,
                Err(error) => return Err(format!("request {index} cannot be posted: {error}")),
            }
        }
        Ok(())
    }

    fn request(&self, flow: &FlowPlan, index: usize, peer: &Self) -> SendWr {
        let work = &flow.sides[self.index].work;
        let (op, spot) = (&work[index], self.spots[index]);
        let id = WrId(index as u64);
        let source = || cut(self.memory.part(Part::Source), spot.from, op.len, op.pieces);
        let mishap = match flow.ending {
            Ending::Mishap { side, at, what } if (side, at) == (self.index, index) => Some(what),
            _ => None,
        };
        let number = peer.memory.part(Part::Numbers).remote(memory::number_at(index) as u64);
        let earlier = |kind| work[..index].iter().filter(|op| op.kind == kind).count();
        let wr = match op.kind {
            Kind::Send => SendWr::new(id, send(op), source()),
            Kind::SendInvalidate => {
                let stag = if mishap.is_some() {
                    peer.memory.part(Part::Source).stag()
                } else {
                    peer.memory.disposable[earlier(Kind::SendInvalidate)].stag()
                };
                let op = SendOp::Send { invalidate: Some(stag), solicited: op.solicited };
                SendWr::new(id, op, source())
            }
            Kind::Write => SendWr::write(id, peer.sink(spot, mishap), source()),
            Kind::WriteImmediate => {
                SendWr::new(id, write_immediate(op, peer.sink(spot, mishap)), source())
            }
            Kind::Read | Kind::ReadBack => {
                let mut written = work[..index].iter().zip(&self.spots[..index]);
                let written = written.rfind(|(op, _)| op.kind.is_write());
                let written = written.map(|(op, spot)| (spot.to, op.len));
                let (part, from, len) = memory::read_extent(op, spot, written);
                let part = peer.memory.part(part);
                let remote = match mishap {
                    Some(Mishap::ReadBounds) => part.remote((part.len() - len / 2) as u64),
                    Some(_) => peer.memory.part(Part::Inbox).remote(0),
                    None => part.remote(from as u64),
                };
                let landing = self.memory.part(Part::Landing);
                let elements = cut(landing, spot.to, len, op.pieces);
                SendWr::new(id, SendOp::RdmaRead { remote }, elements)
            }
            Kind::ReadLive => {
                let from = memory::live_len(work) - op.len;
                let landing = self.memory.part(Part::Landing).sge(spot.to..spot.to + op.len);
                SendWr::read(id, peer.memory.part(Part::Live).remote(from as u64), landing)
            }
            Kind::Immediate => SendWr::new(id, immediate(op, peer.sink(spot, mishap)), []),
            Kind::FetchAdd => SendWr::new(
                id,
                SendOp::FetchAdd { remote: number, add: op.len as u64, mask: 0 },
                [],
            ),
            Kind::CmpSwap => SendWr::new(id, cmp_swap(number, op), []),
            Kind::LocalInvalidate => {
                let of_peer = &flow.sides[1 - self.index].work;
                let first = of_peer.iter().filter(|op| op.kind == Kind::SendInvalidate).count();
                let own = &self.memory.disposable[first + earlier(Kind::LocalInvalidate)];
                SendWr::new(id, SendOp::LocalInvalidate { stag: own.stag() }, [])
            }
        };
        SendWr { fence: op.fence, signaled: op.signaled, ..wr }
    }

    fn sink(&self, spot: Spot, mishap: Option<Mishap>) -> RemoteBuffer {
        let sink = self.memory.part(Part::Sink);
        match mishap {
            None => sink.remote(spot.to as u64),
            Some(Mishap::WriteBounds) => sink.remote(sink.len() as u64),
            Some(Mishap::WriteAccess) => self.memory.part(Part::Source).remote(0),
            Some(Mishap::WriteGuess) => {
                // A guess near the right STag, which other connections use: any byte may differ.
                let RemoteBuffer { stag, to } = sink.remote(0);
                let wrong = u32::try_from(spot.from).unwrap_or(1).wrapping_mul(0x9e37_79b9) | 1;
                RemoteBuffer { stag: Stag(stag.0.wrapping_add(wrong)), to }
            }
            Some(_) => {
                let RemoteBuffer { stag, to } = sink.remote(0);
                RemoteBuffer { stag: Stag(stag.0 ^ 0x5555_5500), to }
            }
        }
    }

    /// Checks each completion against the model. `peer_live` is the peer's counter now;
    /// `peer_memory`, if given, must contain completed data.
    pub(crate) fn poll(
        &mut self,
        flow: &FlowPlan,
        model: &Model,
        peer_live: u64,
        peer_memory: Option<&Memory>,
    ) -> Result<(), String> {
        if self.blind {
            return Ok(());
        }
        while let Some(wc) = self.queues.recv_cq.poll() {
            let Some(wc) = self.sabotage.map_or(Some(wc), |sabotage| sabotage.received(wc)) else {
                continue;
            };
            self.progress.completions += 1;
            let wc = self.out_of_pool(flow, wc)?;
            self.on_received(flow, model, &wc)?;
        }
        while let Some(wc) = self.queues.send_cq.poll() {
            let Some(wc) = self.sabotage.map_or(Some(wc), |sabotage| sabotage.sent(wc)) else {
                continue;
            };
            self.progress.completions += 1;
            let plan = &flow.sides[self.index];
            self.on_sent(plan, model, peer_live, &wc)?;
            if let Some(memory) = peer_memory.filter(|_| plan.placed) {
                self.check_placed(flow, model, memory, &wc)?;
            }
        }
        Ok(())
    }

    fn on_sent(
        &mut self,
        plan: &SidePlan,
        model: &Model,
        peer_live: u64,
        wc: &Wc,
    ) -> Result<(), String> {
        let index = usize::try_from(wc.wr_id.0).unwrap_or(usize::MAX);
        let failed = wc.status != WcStatus::Success;
        // Unsignaled requests may have no completion, but only up to the first failure.
        let next = (self.progress.completed..self.progress.posted)
            .find(|index| plan.work[*index].signaled || (failed && *index == index_of(wc)))
            .filter(|next| *next <= index);
        let skipped = next.is_some_and(|next| {
            self.progress.broken[0] || plan.work[next..index].iter().any(|op| op.signaled)
        });
        if next.is_none() || (skipped && next != Some(index)) {
            return Err(format!("{wc:?} is not the completion that comes next: {next:?}"));
        }
        self.progress.completed = index + 1;
        if failed {
            self.progress.broken[0] = true;
            return Ok(());
        }
        let (op, spot) = (&plan.work[index], self.spots[index]);
        if self.progress.broken[0] || wc.opcode != opcode(op) {
            return Err(format!("{wc:?} for {op:?}"));
        }
        match op.kind {
            Kind::Read | Kind::ReadBack => {
                let len = wc.byte_len as usize;
                let range = spot.to..spot.to + len;
                if len > op.len
                    || !self.memory.holds(&model.memory[self.index], Part::Landing, range)
                {
                    return Err(format!("Read {index} completed without its bytes: {wc:?}"));
                }
            }
            Kind::ReadLive => {
                let posted_at = self.live_at_post.get(index).copied().unwrap_or_default();
                live::check(&self.landed(spot, op.len), posted_at..=peer_live)
                    .map_err(|text| format!("Read {index}: {text}"))?;
            }
            Kind::FetchAdd | Kind::CmpSwap if wc.value != model.values[self.index][index] => {
                let expected = model.values[self.index][index];
                return Err(format!("atomic {index} found {:#x}, not {expected:#x}", wc.value));
            }
            _ => {}
        }
        Ok(())
    }

    fn on_received(&mut self, flow: &FlowPlan, model: &Model, wc: &Wc) -> Result<(), String> {
        let work = &flow.sides[1 - self.index].work;
        let next = self.peer_messages.get(self.progress.received).copied();
        self.progress.received += 1;
        let Some(index) = next.filter(|index| *index == index_of(wc)) else {
            return Err(format!("{wc:?} is not the receive that comes next: {next:?}"));
        };
        let op = &work[index];
        if wc.status != WcStatus::Success {
            self.progress.broken[1] = true;
            return Ok(());
        }
        let invalidates = (op.kind == Kind::SendInvalidate).then(|| {
            let earlier = work[..index].iter().filter(|op| op.kind == Kind::SendInvalidate);
            self.memory.disposable[earlier.count()].stag()
        });
        let (opcode, byte_len, value) = arrives_as(op);
        let expected = Wc {
            wr_id: WrId(index as u64),
            status: WcStatus::Success,
            opcode,
            qp: self.queues.qp.number(),
            byte_len,
            invalidated: invalidates,
            solicited: op.solicited,
            value,
        };
        if *wc != expected || self.progress.broken[1] {
            return Err(format!("{wc:?} instead of {expected:?}"));
        }
        self.progress.delivered += 1;
        self.see(work, model, index)
    }

    // RFC 5040 §5.5: a Send is delivered after all that was posted before it.
    fn see(&mut self, work: &[Op], model: &Model, last: usize) -> Result<(), String> {
        let unseen = self.progress.seen..=last;
        let all = work[unseen.clone()].iter().zip(&self.peer_spots[unseen.clone()]);
        for (index, (op, Spot { to: at, .. })) in unseen.zip(all) {
            let at = *at;
            let part = match op.kind {
                Kind::Write | Kind::WriteImmediate => Part::Sink,
                Kind::Send | Kind::SendInvalidate => Part::Inbox,
                _ => continue,
            };
            if !self.memory.holds(&model.memory[self.index], part, at..at + op.len) {
                let text = format!("request {last} was delivered before {op:?}, number {index}");
                return Err(text);
            }
        }
        self.progress.seen = last + 1;
        Ok(())
    }

    /// Includes the work of the peer that completes here.
    pub(crate) fn is_done(&self, flow: &FlowPlan) -> bool {
        self.progress.completed == flow.sides[self.index].work.len()
            && self.progress.received == self.peer_messages.len()
    }

    pub(crate) const fn has_completed(&self) -> usize {
        self.progress.completed
    }

    /// Returns the first incomplete request if all wait only for acknowledgments of TCP, not for a
    /// Read, an Atomic or a confirmation of placement.
    pub(crate) fn waits_with(&self, plan: &SidePlan) -> Option<usize> {
        let work = &plan.work;
        let Progress { completed, posted, .. } = self.progress;
        let open = &work[completed..posted];
        let sends_only = open.iter().all(|op| op.kind.is_message() || op.kind.is_write());
        // RFC 5044 §7.1.2 (4): a responder sends nothing before the first FPDU.
        let may_send = self.index == 0 || completed > 0 || self.progress.received > 0;
        let is_open = self.established && may_send && open.iter().any(|op| op.signaled);
        (is_open && sends_only && !plan.placed && self.queues.send_cq.is_empty())
            .then_some(completed)
    }

    pub(crate) fn has_news(&self) -> bool {
        self.credit || !self.blind && self.has_completions()
    }

    fn has_completions(&self) -> bool {
        !self.queues.send_cq.is_empty() || !self.queues.recv_cq.is_empty()
    }

    /// Includes pauses.
    pub(crate) fn looks_at(&self, now: Instant) -> Instant {
        let next = self.next_pump.max(now);
        match self.pause {
            Some((start, end)) if (start..end).contains(&next) => end,
            _ => next,
        }
    }

    /// Plans the next poll.
    pub(crate) fn looks(&mut self, plan: &SidePlan, now: Instant) -> bool {
        if self.has_news() && self.looks_at(now) == now {
            self.credit = false;
            self.next_pump = now.plus_nanos(plan.poll_period_ns);
            return true;
        }
        false
    }

    /// Everything posted must have completed after the end of the connection.
    pub(crate) fn check_all_completed(&self, flow: &FlowPlan) -> Result<(), String> {
        if self.blind {
            return Ok(());
        }
        let Progress { posted, completed, receives_posted, received, .. } = self.progress;
        let silent = &flow.sides[self.index].work[completed..posted];
        if silent.iter().any(|op| op.signaled) || receives_posted != received {
            let text = format!("not all that was posted has completed: {:?}", self.progress);
            return Err(text);
        }
        Ok(())
    }
}

fn index_of(wc: &Wc) -> usize {
    usize::try_from(wc.wr_id.0).unwrap_or(usize::MAX)
}

fn is_mishap(flow: &FlowPlan, side: usize, at: usize, what: Mishap) -> bool {
    flow.ending == Ending::Mishap { side, at, what }
}
