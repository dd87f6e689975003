//! Requests of one end: Reads, atomic operations, and Sends that may end in a Terminate.

use urnic_engine::types::Msn;
use urnic_engine::wire::rdmap::ReadRequest;

use crate::judge::atomics::Atomics;
use crate::judge::findings::{Findings, Kind};
use crate::judge::order::{Reads, Response};
use crate::limits::Room;
use crate::trace::answers::Answers;

#[derive(Debug)]
pub(crate) struct PendingRequests {
    pub(crate) reads: Reads,
    pub(crate) atomics: Atomics,
    /// Requests that the other end accepts at a time, from its startup frame.
    pub(crate) ird: Option<u16>,
    pub(crate) answers: Option<Box<Answers>>,
}

impl PendingRequests {
    pub(crate) fn new() -> Self {
        Self { reads: Reads::new(), atomics: Atomics::new(), ird: None, answers: None }
    }

    pub(crate) fn forget(&mut self, notes: &mut Room) {
        self.reads.forget(notes);
        self.atomics.forget(notes);
    }

    /// `arrived` are its frame and time.
    pub(crate) fn read(
        &mut self,
        request: ReadRequest,
        from: &'static str,
        arrived: (u64, u64),
        notes: &mut Room,
        findings: &mut Findings,
    ) {
        let answered = self.reads.request(request, arrived, notes, findings);
        self.answered(answered);
        self.judge_depth(from, arrived.0, findings);
    }

    pub(crate) fn response(
        &mut self,
        response: Response,
        now_ns: u64,
        notes: &mut Room,
        findings: &mut Findings,
    ) {
        let answered = self.reads.response(response, now_ns, notes, findings);
        self.answered(answered);
    }

    fn answered(&mut self, answered: Option<((u64, u64), u64)>) {
        if let (Some(answers), Some((asked, answered_ns))) = (&mut self.answers, answered) {
            answers.read(asked, answered_ns);
        }
    }

    pub(crate) fn atomic(
        &mut self,
        id: u32,
        from: &'static str,
        frame: u64,
        notes: &mut Room,
        findings: &mut Findings,
    ) {
        self.atomics.request((id, frame), notes, findings);
        self.judge_depth(from, frame, findings);
    }

    pub(crate) fn send(&mut self, msn: Msn, arrived: (u64, u64)) {
        if let Some(answers) = &mut self.answers {
            answers.send(msn, arrived);
        }
    }

    pub(crate) fn terminated(&mut self, msn: Msn, now_ns: u64) {
        if let Some(answers) = &mut self.answers {
            answers.terminated(msn, now_ns);
        }
    }

    /// RFC 6581 §9.1: there are at most as many as the responder's IRD. A Response passes the
    /// capture point before its receiver has it, so a request that is open here is open there.
    fn judge_depth(&self, from: &'static str, frame: u64, findings: &mut Findings) {
        let open = self.reads.open() + self.atomics.open();
        if let Some(ird) = self.ird
            && open > usize::from(ird)
        {
            findings.add(Kind::BeyondIrd, from, frame, || {
                format!(
                    "{open} Read and Atomic Requests are open; the other end takes {ird} at a time"
                )
            });
        }
    }

    /// `all_seen`: the requester's stream was delivered completely.
    pub(crate) fn finish(&mut self, all_seen: bool, notes: &mut Room, findings: &mut Findings) {
        self.reads.finish(all_seen, notes, findings);
        self.atomics.finish(all_seen, notes, findings);
    }
}
