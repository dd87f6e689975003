//! Protection domains, with the regions that requests name by key.
#![expect(unsafe_code, reason = "C's pointers to domains")]

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use libc::c_int;
use urnic::{RecvWr, Sge, WrId};

use crate::abi::{ibv_context, ibv_pd, ibv_sge};
use crate::attributes::ELEMENTS_MAX;
use crate::context::{Context, context};
use crate::errno::{Errno, number, or_null};
use crate::fault::{self, Call};
use crate::object::Object;
use crate::process::next_handle;
use crate::region::Registered;

#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) context: Arc<Context>,
    pub(crate) inner: urnic::Pd,
    /// Regions by steering tag. The domain and its parent domains share the map.
    regions: Arc<RwLock<HashMap<u32, Arc<Registered>>>>,
    /// The domain of a parent domain; it cannot be deallocated before. `None` for other domains.
    base: Option<Arc<Self>>,
    _td: Option<Arc<Td>>,
}

/// A thread domain: a promise of the application, which changes nothing here (`parent_domain`).
#[derive(Debug)]
pub(crate) struct Td;

type PdObject = Object<ibv_pd, Arc<Pd>>;

impl Pd {
    pub(crate) fn add(&self, region: Arc<Registered>) {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(region.key(), region);
    }

    pub(crate) fn remove(&self, key: u32) -> Option<Arc<Registered>> {
        self.regions.write().unwrap_or_else(PoisonError::into_inner).remove(&key)
    }

    pub(crate) fn region(&self, key: u32) -> Option<Arc<Registered>> {
        self.regions.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    /// `None` if the key is not of this domain, or the range is outside the region.
    pub(crate) fn sge(&self, element: &ibv_sge) -> Option<Sge> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        regions.get(&element.lkey)?.sge(element.addr, element.length)
    }

    /// Appends the elements' memory to `sges`. `false` if a key is not of this domain, a range is
    /// outside its region, or a sink is not writable: as on hardware, such a request is accepted,
    /// and completes with an error after the earlier ones.
    pub(crate) fn resolve(
        &self,
        elements: &[ibv_sge],
        is_sink: bool,
        sges: &mut impl Extend<Sge>,
    ) -> Result<bool, Errno> {
        let named = elements.iter().filter(|element| element.length > 0);
        if named.clone().count() > ELEMENTS_MAX as usize {
            return Err(Errno::INVALID);
        }
        let mut usable = true;
        for element in named {
            let sge = self.sge(element).filter(|sge| !is_sink || sge.is_writable());
            usable &= sge.is_some();
            sges.extend(sge);
        }
        Ok(usable)
    }

    pub(crate) fn receive(&self, id: u64, elements: &[ibv_sge]) -> Result<RecvWr, Errno> {
        let mut wr = RecvWr::new(WrId(id), []);
        wr.inaccessible = !self.resolve(elements, true, &mut wr.sges)?;
        Ok(wr)
    }

    pub(crate) const fn is_parent(&self) -> bool {
        self.base.is_some()
    }
}

/// # Safety
/// `pd` came from [`ibv_alloc_pd`] and was not deallocated.
pub(crate) unsafe fn pd<'a>(pd: *mut ibv_pd) -> &'a Arc<Pd> {
    // SAFETY: made in `alloc`, by this function's contract.
    unsafe { PdObject::of(pd) }
}

pub(crate) fn alloc(of: *mut ibv_context, context: &Arc<Context>) -> *mut ibv_pd {
    let pd = Pd {
        context: Arc::clone(context),
        inner: context.process.rnic.alloc_pd(),
        regions: Arc::default(),
        base: None,
        _td: None,
    };
    make(of, pd)
}

/// Makes another handle of the same domain.
pub(crate) fn extend(of: *mut ibv_context, base: &Arc<Pd>, td: Option<Arc<Td>>) -> *mut ibv_pd {
    let pd = Pd {
        context: Arc::clone(&base.context),
        inner: base.inner.clone(),
        regions: Arc::clone(&base.regions),
        base: Some(Arc::clone(base)),
        _td: td,
    };
    make(of, pd)
}

fn make(of: *mut ibv_context, pd: Pd) -> *mut ibv_pd {
    let mut c = ibv_pd::zeroed();
    (c.context, c.handle) = (of, next_handle());
    PdObject::make(c, |_| Arc::new(pd))
}

/// # Safety
/// `of` is an open device.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_alloc_pd(of: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: an open device, by this function's contract.
    let context = unsafe { context(of) };
    or_null(fault::check(Call::AllocPd).map(|()| alloc(of, context)))
}

/// EBUSY while the domain has regions, windows, queue pairs, shared queues or parent domains.
///
/// # Safety
/// `pd` came from [`ibv_alloc_pd`] and is not used again if the function returns 0.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: a live domain, by this function's contract.
    let domain = unsafe { self::pd(pd) };
    // Each of these holds a handle.
    if Arc::strong_count(domain) > 1 {
        return number(Err(Errno::BUSY));
    }
    // SAFETY: live, and freed once: the answer is 0.
    drop(unsafe { PdObject::free(pd) });
    0
}
