//! One RNIC of the demo: its queues, and its posted requests.

use std::collections::VecDeque;

use urnic_engine::port::{ConnectionCounters, ConnectionId};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{
    Cq, Mr, Pd, Qp, QpConfig, Rnic, RnicConfig, SendWr, Wc, WcOpcode, WcStatus,
};

use super::Failure;
use super::arena::Target;

/// Checked when the request completes.
#[derive(Debug)]
pub(super) enum Work {
    /// Verified at the peer.
    Toward,
    /// A Read that fills this place, of the flow with this number.
    Read { flow: usize, target: Target },
    /// An atomic that must return this value.
    Atomic { original: u64 },
    /// Ends the use of this registration.
    Invalidate(Mr),
}

#[derive(Debug)]
struct Posted {
    id: u64,
    opcode: WcOpcode,
    len: usize,
    signaled: bool,
    work: Work,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) name: &'static str,
    pub(super) rnic: Rnic,
    pub(super) pd: Pd,
    send_cq: Cq,
    recv_cq: Cq,
    qp: Option<Qp>,
    pub(super) connection: Option<ConnectionId>,
    pub(super) counters: Option<Box<ConnectionCounters>>,
    posted: VecDeque<Posted>,
    next_id: u64,
}

impl End {
    pub(super) fn new(name: &'static str, seed: u64) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: seed.into() });
        let pd = rnic.alloc_pd();
        let (send_cq, recv_cq) = (
            rnic.create_cq(2 * SEND_DEPTH).expect("a depth within CQ_DEPTH_MAX"),
            rnic.create_cq(2 * RECV_DEPTH).expect("a depth within CQ_DEPTH_MAX"),
        );
        Self {
            name,
            rnic,
            pd,
            send_cq,
            recv_cq,
            qp: None,
            connection: None,
            counters: None,
            posted: VecDeque::new(),
            next_id: 0,
        }
    }

    pub(super) fn new_qp(&mut self) -> anyhow::Result<Qp> {
        let config = QpConfig {
            send_depth: SEND_DEPTH,
            recv_depth: RECV_DEPTH,
            ..QpConfig::with_cqs(self.send_cq.clone(), self.recv_cq.clone())
        };
        let qp = self.pd.create_qp(config)?;
        self.qp = Some(qp.clone());
        Ok(qp)
    }

    pub(super) fn qp(&self) -> &Qp {
        self.qp.as_ref().expect("made before the connection")
    }

    pub(super) fn has_room(&self, count: usize) -> bool {
        self.posted.len() + count <= SEND_DEPTH
    }

    /// Sets its identifier.
    pub(super) fn post(
        &mut self,
        mut wr: SendWr,
        opcode: WcOpcode,
        work: Work,
    ) -> Result<(), Failure> {
        let id = self.next_id;
        self.next_id += 1;
        wr.id = WrId(id);
        let len = wr.sges.iter().map(|sge| sge.len() as usize).sum();
        let signaled = wr.signaled;
        self.qp().post_send(wr).map_err(|error| {
            Failure::new(format!("{error}")).within(&format!("the {} posted {opcode:?}", self.name))
        })?;
        self.posted.push_back(Posted { id, opcode, len, signaled, work });
        Ok(())
    }

    pub(super) fn poll_recv(&self) -> Result<Option<Wc>, Failure> {
        let Some(wc) = self.recv_cq.poll() else { return Ok(None) };
        self.check_status(&wc, "receive")?;
        Ok(Some(wc))
    }

    /// The completion is checked for success, order and length.
    pub(super) fn poll_send(&mut self) -> Result<Option<(Work, u64)>, Failure> {
        let Some(wc) = self.send_cq.poll() else { return Ok(None) };
        self.check_status(&wc, "request")?;
        // RFC 5040 §5.5 rule 15: in the order of posting, without unsignalled ones.
        while let Some(posted) = self.posted.pop_front() {
            if posted.id != wc.wr_id.0 {
                if posted.signaled {
                    return Err(self.out_of_order(&wc, posted.id));
                }
                continue;
            }
            if (posted.opcode, posted.len) != (wc.opcode, wc.byte_len as usize) {
                return Err(Failure::new(format!(
                    "the {}'s {:?} of {} bytes completed as {:?} of {}",
                    self.name, posted.opcode, posted.len, wc.opcode, wc.byte_len
                )));
            }
            return Ok(Some((posted.work, wc.value)));
        }
        Err(self.out_of_order(&wc, self.next_id))
    }

    pub(super) fn is_idle(&self) -> bool {
        !self.posted.iter().any(|posted| posted.signaled)
    }

    fn check_status(&self, wc: &Wc, what: &str) -> Result<(), Failure> {
        if wc.status == WcStatus::Success {
            return Ok(());
        }
        let Wc { opcode, status, .. } = wc;
        Err(Failure::new(format!("the {}'s {what} {opcode:?} completed as {status:?}", self.name)))
    }

    fn out_of_order(&self, wc: &Wc, oldest: u64) -> Failure {
        Failure::new(format!(
            "the {}'s request {} completed out of order: {oldest} was posted before",
            self.name, wc.wr_id.0
        ))
    }
}

pub(super) const SEND_DEPTH: usize = 512;
pub(super) const RECV_DEPTH: usize = 64;
