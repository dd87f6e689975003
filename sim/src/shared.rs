//! A shared receive queue of a node, its buffers, and the checks of them.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use urnic_engine::mem::{Access, Region};
use urnic_engine::types::{TaggedOffset, WrId};
use urnic_engine::verbs::{Mr, MrPart, Pd, RecvWr, Rnic, Srq};

use crate::plan::{Sabotage, SharedPlan};

const FILL: u8 = 0xa5;

pub(crate) type SharedPool = Rc<RefCell<Pool>>;

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) pd: Pd,
    pub(crate) srq: Srq,
    pub(crate) region: Arc<Region>,
    part: Mr,
    len: usize,
    sabotage: Option<Sabotage>,
}

impl Pool {
    pub(crate) fn new(
        rnic: &Rnic,
        plan: &SharedPlan,
        sabotage: Option<Sabotage>,
    ) -> io::Result<Self> {
        let pd = rnic.alloc_pd();
        let srq = pd.create_srq(plan.buffers).map_err(io::Error::other)?;
        let bytes = plan.buffers * plan.len;
        let region = Region::anonymous(bytes)?;
        let (range, base, access) = (0..bytes, TaggedOffset(0), Access::LOCAL_WRITE);
        let part = MrPart { range, base, access, only: None };
        let part = pd.reg_part(Arc::clone(&region), part)?;
        let pool = Self { pd, srq, region, part, len: plan.len, sabotage };
        (0..plan.buffers).try_for_each(|slot| pool.post(slot)).map_err(io::Error::other)?;
        Ok(pool)
    }

    fn post(&self, slot: usize) -> Result<(), String> {
        let range = slot * self.len..(slot + 1) * self.len;
        let fill = vec![FILL; self.len];
        self.region.write(range.start, &fill).map_err(|error| error.to_string())?;
        let wr = RecvWr::new(WrId(slot as u64), vec![self.part.sge(range)]);
        self.srq.post_recv(wr).map_err(|error| format!("a shared buffer: {error}"))
    }

    /// Posts the buffer again. Fails if the bytes behind `len` have changed.
    pub(crate) fn take(&mut self, id: WrId, len: usize) -> Result<Vec<u8>, String> {
        let slot = self.slot(id)?;
        let len = if self.sabotage == Some(Sabotage::Long) { len + self.len + 1 } else { len };
        if len > self.len {
            return Err(format!("{len} bytes in a shared buffer of {}", self.len));
        }
        if self.sabotage == Some(Sabotage::Behind) && len < self.len {
            let behind = slot * self.len + len;
            self.region.write(behind, &[!FILL]).expect("a byte of the buffer");
        }
        let mut bytes = self.content(slot);
        if bytes.split_off(len).iter().any(|octet| *octet != FILL) {
            return Err(format!("shared buffer {slot} was written behind its message"));
        }
        self.repost(slot)?;
        Ok(bytes)
    }

    pub(crate) fn take_back(&mut self, id: WrId) -> Result<(), String> {
        self.repost(self.slot(id)?)
    }

    /// Returns the index of a completed buffer.
    fn slot(&self, id: WrId) -> Result<usize, String> {
        let id = if self.sabotage == Some(Sabotage::Nameless) { WrId(u64::MAX) } else { id };
        let slot = usize::try_from(id.0).ok().filter(|slot| *slot < self.srq.depth());
        slot.ok_or_else(|| format!("{id:?} is none of the shared buffers"))
    }

    fn repost(&mut self, slot: usize) -> Result<(), String> {
        if self.sabotage.take_if(|sabotage| *sabotage == Sabotage::Buffer).is_some() {
            return Ok(());
        }
        self.post(slot)
    }

    fn content(&self, slot: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.region.read(slot * self.len, &mut bytes).expect("a buffer of the region");
        bytes
    }

    /// No message may have changed a posted buffer.
    pub(crate) fn check_whole(&self) -> Result<(), String> {
        let (there, all) = (self.srq.len(), self.srq.depth());
        if there != all {
            return Err(format!("{there} of {all} shared buffers are there at the end"));
        }
        if self.sabotage == Some(Sabotage::Slack) {
            self.region.write(0, &[!FILL]).expect("the first byte of the region");
        }
        match (0..all).find(|slot| self.content(*slot).iter().any(|octet| *octet != FILL)) {
            Some(slot) => Err(format!("shared buffer {slot} was written without a message")),
            None => Ok(()),
        }
    }
}
