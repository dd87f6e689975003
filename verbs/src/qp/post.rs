//! Posting work: `ibv_post_send`, `ibv_post_recv`.
#![expect(unsafe_code, reason = "C's requests are lists of pointers")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use libc::c_int;
use urnic::{PostError, SendOp, SendWr, WrId};

use super::inline::InlineRing;
use super::{Fetch, Qp, Sink, qp};
use crate::abi::{ibv_data_buf, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge};
use crate::attributes::ELEMENTS_MAX;
use crate::cq::cq;
use crate::errno::{Errno, number};
use crate::event_queue::locked;
use crate::fault::{self, Call};
use crate::object::optional;
use crate::work::{Request, elements};

#[derive(Clone, Copy)]
pub(super) enum Memory<'a> {
    /// Registered memory.
    Elements(&'a [ibv_sge]),
    Inline(&'a [ibv_data_buf]),
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Self::NO_MEMORY,
            _ => Self::INVALID,
        }
    }
}

impl Qp {
    fn send(
        &self,
        inline: &mut InlineRing,
        request: &Request,
        memory: Memory<'_>,
    ) -> Result<(), Errno> {
        fault::check(Call::PostSend)?;
        if !self.takes_sends() {
            return Err(Errno::INVALID);
        }
        let mut wr = SendWr::new(WrId(request.id), request.op, []);
        wr.fence = request.fence;
        wr.signaled = request.signaled || self.all_signaled;
        match memory {
            _ if is_local(&request.op) => {}
            Memory::Elements(elements) if is_atomic(&request.op) => {
                let fetch = self.fetch(&mut wr, elements)?;
                // Under the lock, so that the posts and the fetches have the same order.
                let mut fetches = locked(&self.fetches);
                self.inner().post_send(wr)?;
                fetches.push_back(fetch);
                return Ok(());
            }
            Memory::Elements(elements) => {
                let is_sink = matches!(request.op, SendOp::RdmaRead { .. });
                wr.inaccessible = !self.pd.resolve(elements, is_sink, &mut wr.sges)?;
            }
            Memory::Inline(buffers) => {
                wr.sges.push(inline.copy(&self.pd.inner, buffers)?);
                self.inner().post_send(wr)?;
                inline.taken();
                inline.keep();
                return Ok(());
            }
        }
        Ok(self.inner().post_send(wr)?)
    }

    /// The request names no memory.
    pub(crate) fn send_local(&self, request: &Request) -> Result<(), Errno> {
        self.post_with(|inline| self.send(inline, request, Memory::Elements(&[])))?;
        self.turn();
        Ok(())
    }

    /// Refuses a thread between `ibv_wr_start` and `ibv_wr_complete`: it would wait for itself.
    fn post_with(
        &self,
        post: impl FnOnce(&mut InlineRing) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        self.send_side.alone(|side, is_inside| {
            if is_inside {
                return Err(Errno::INVALID);
            }
            post(&mut side.inline)
        })
    }

    /// Sends a lone request in the posting thread, because the application probably waits for it.
    /// Several requests are sent together, at the next poll or by the endpoint's thread.
    pub(super) fn turn(&self) {
        // SAFETY: a queue is not destroyed while queue pairs complete to it.
        let queue = unsafe { cq(self.cqs[0].0) };
        let is_alone = {
            let inner = self.inner();
            queue.is_watched(&inner) && inner.sends_outstanding() <= 2
        };
        if is_alone {
            let _down_sends_nothing = self.context.process.network.endpoint.poll_turn(false);
        }
    }

    /// Makes an Atomic signaled: the fetched value is stored at its completion.
    pub(super) fn fetch(&self, wr: &mut SendWr, elements: &[ibv_sge]) -> Result<Fetch, Errno> {
        let [element] = elements else { return Err(Errno::INVALID) };
        let fetch = Fetch { sink: self.atomic_sink(element), signaled: wr.signaled };
        wr.inaccessible = fetch.sink.is_none();
        wr.signaled = true;
        if !fetch.signaled && !self.has_quiet_atomics.swap(true, Ordering::AcqRel) {
            // SAFETY: a queue is not destroyed while queue pairs complete to it.
            unsafe { cq(self.cqs[0].0) }.add_room(self.config.send_depth);
        }
        Ok(fetch)
    }

    /// `None` if the Atomic may not write there.
    fn atomic_sink(&self, element: &ibv_sge) -> Option<Sink> {
        let region = self.pd.region(element.lkey)?;
        let sge = region.sge(element.addr, element.length)?;
        let fits = usize::try_from(element.length) == Ok(size_of::<u64>());
        (fits && sge.is_writable())
            .then(|| Sink { region: Arc::downgrade(&region), addr: element.addr })
    }

    fn receive(&self, id: u64, elements: &[ibv_sge]) -> Result<(), Errno> {
        fault::check(Call::PostRecv)?;
        if !self.takes_receives() {
            return Err(Errno::INVALID);
        }
        Ok(self.inner().post_recv(self.pd.receive(id, elements)?)?)
    }

    fn post(&self, inline: &mut InlineRing, wr: &ibv_send_wr) -> Result<(), Errno> {
        let request = Request::of(wr)?;
        // SAFETY: the list is there until the call of `ibv_post_send` returns, by its contract.
        let elements = unsafe { elements(wr.sg_list, wr.num_sge) }?;
        if !request.inline {
            return self.send(inline, &request, Memory::Elements(elements));
        }
        if elements.len() > ELEMENTS_MAX as usize {
            return Err(Errno::INVALID);
        }
        let mut buffers = [ibv_data_buf::zeroed(); ELEMENTS_MAX as usize];
        for (buffer, element) in buffers.iter_mut().zip(elements) {
            buffer.addr =
                std::ptr::with_exposed_provenance_mut(usize::try_from(element.addr).unwrap_or(0));
            buffer.length = usize::try_from(element.length).unwrap_or(usize::MAX);
        }
        self.send(inline, &request, Memory::Inline(&buffers[..elements.len()]))
    }
}

pub(super) const fn is_local(op: &SendOp) -> bool {
    matches!(op, SendOp::LocalInvalidate { .. } | SendOp::BindMw { .. })
}

pub(super) const fn is_atomic(op: &SendOp) -> bool {
    matches!(op, SendOp::FetchAdd { .. } | SendOp::CmpSwap { .. })
}

/// Posts requests up to the first that is refused.
///
/// # Safety
/// `of` is live, `wr` is a list of requests, `bad` points at memory for the first refused one.
pub(crate) unsafe extern "C" fn post_send(
    of: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(of) };
    let posted = qp.post_with(|inline| {
        // SAFETY: NULL or a request, by this function's contract.
        while let Some(next) = unsafe { optional(wr) } {
            qp.post(inline, next)?;
            wr = next.next;
        }
        Ok(())
    });
    if posted.is_err() {
        // SAFETY: the caller's memory for the answer, by this function's contract.
        unsafe { bad.write(wr) };
        return number(posted);
    }
    qp.turn();
    0
}

/// Posts buffers up to the first that is refused.
///
/// # Safety
/// `of` is live, `wr` is a list of buffers, `bad` points at memory for the first refused one.
pub(crate) unsafe extern "C" fn post_recv(
    of: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: live, by this function's contract.
    let qp = unsafe { qp(of) };
    // SAFETY: NULL or a buffer, by this function's contract.
    while let Some(next) = unsafe { optional(wr) } {
        // SAFETY: its list is there until this call returns.
        let elements = unsafe { elements(next.sg_list, next.num_sge) };
        if let Err(errno) = elements.and_then(|elements| qp.receive(next.wr_id, elements)) {
            // SAFETY: the caller's memory for the answer, by this function's contract.
            unsafe { bad.write(wr) };
            return number(Err(errno));
        }
        wr = next.next;
    }
    0
}
