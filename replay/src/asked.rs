//! What one end asks of the other: Reads, atomic operations, and Sends that may end in a Terminate.

use urnic_engine::types::Msn;
use urnic_engine::wire::rdmap::ReadRequest;

use super::atomics::Atomics;
use super::findings::{Findings, Kind};
use super::limits::Room;
use super::order::{Reads, Response};
use super::trace::answers::Answers;

/// The requests of one end, and their answers.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) reads: Reads,
    pub(super) atomics: Atomics,
    /// Requests that the other end takes at a time, as its startup frame says.
    pub(super) ird: Option<u16>,
    /// What pictures are made of.
    pub(super) answers: Option<Box<Answers>>,
}

impl Asked {
    pub(super) fn new() -> Self {
        Self { reads: Reads::new(), atomics: Atomics::new(), ird: None, answers: None }
    }

    /// Something of either stream was missed.
    pub(super) fn forget(&mut self, notes: &mut Room) {
        self.reads.forget(notes);
        self.atomics.forget(notes);
    }

    /// A Read Request; `from` sent it, `arrived` are its frame and time.
    pub(super) fn read(
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

    /// A whole Read Response.
    pub(super) fn response(
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

    /// An Atomic Request.
    pub(super) fn atomic(
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

    /// A Send begins.
    pub(super) fn send(&mut self, msn: Msn, arrived: (u64, u64)) {
        if let Some(answers) = &mut self.answers {
            answers.send(msn, arrived);
        }
    }

    /// A Terminate says that it is about this Send.
    pub(super) fn terminated(&mut self, msn: Msn, now_ns: u64) {
        if let Some(answers) = &mut self.answers {
            answers.terminated(msn, now_ns);
        }
    }

    /// RFC 6581 §9.1: no more requests are open than the responder's IRD. A Response passes the place of the
    /// capture before its receiver has it: what is open here is open there.
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

    /// The capture is at its end. `all_seen`: the requester's stream was delivered whole.
    pub(super) fn finish(&mut self, all_seen: bool, notes: &mut Room, findings: &mut Findings) {
        self.reads.finish(all_seen, notes, findings);
        self.atomics.finish(all_seen, notes, findings);
    }
}
