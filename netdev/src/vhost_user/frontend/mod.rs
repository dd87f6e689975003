//! Frontend: driver of a network device in another process.

mod announced;
mod arena;
mod control;
mod pair;
mod referring;
mod request;
mod session;
mod sharing;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use tracing::debug;

use crate::published::Publisher;
use crate::vhost_user::inbound::hand_over;
use crate::vhost_user::offload::{self, End, HEADER_LEN};
use crate::vhost_user::outbound::{Distance, put_octets};
use crate::vhost_user::{
    CHECK_INTERVAL_NS, CONTROL_INTERVAL_NS, FRAME_LEN_MAX, RingCounters, VhostUserConfig,
};
use crate::virtqueue::{Direction, Run};
use crate::{Capabilities, Device, OpenError, Refusals, RxFrame, TRACE, TransmitError, TxFrame};
use arena::QUEUE_SIZE;
use control::Control;
use pair::{Pair, Queues, SharedPair};

/// One virtqueue pair of a frontend. Its memory is a sealed file, created anew for each backend,
/// which can read and write the queues and their buffers, and nothing else of this process.
/// Transmitted frames are copied into it once, but not payload in [shared](Self::open_sharing)
/// published memory. Heads of received frames are copied out, so that the backend cannot change
/// them; long payload is handed over in place.
// The alignment keeps two devices out of each other's cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub struct VirtioUser {
    shared: Arc<SharedPair>,
    /// The device of the first virtqueue pair serves it for all of them.
    control: Option<Control>,
    capabilities: Capabilities,
    is_up: bool,
    control_due_ns: u64,
    /// [`readiness`](Device::readiness) has asked the backend for events.
    armed: Cell<bool>,
    distance: Distance,
    stage: Box<[u8]>,
    buffers: Vec<u16>,
    runs: Vec<Run>,
}

impl VirtioUser {
    /// Opens a frontend of one virtqueue pair; see [`open_queues`](Self::open_queues).
    pub fn open(config: &VhostUserConfig) -> Result<Self, OpenError> {
        let mut queues = Self::open_queues(config, 1)?;
        Ok(queues.pop().expect("one was asked for"))
    }

    /// Opens a frontend of several virtqueue pairs, each for a thread of its own. The first device
    /// serves the control socket: dropping it stops all devices. A frontend that connects requires
    /// a listening backend, and reconnects if it closes. An [`OpenError`] names a remedy.
    pub fn open_queues(config: &VhostUserConfig, queues: usize) -> Result<Vec<Self>, OpenError> {
        Self::open_with(config, queues, None)
    }

    /// Opens a frontend as [`open_queues`](Self::open_queues) does, and lets the backend read all
    /// memory of `publisher`, whatever its steering tags permit. Payload runs of at least 256 bytes
    /// in it are sent by reference. The backend must accept memory regions while it runs, and map
    /// them read-only, as [`VhostUser`](crate::vhost_user::VhostUser) does. Regions that it does
    /// not map are copied.
    pub fn open_sharing(
        config: &VhostUserConfig,
        queues: usize,
        publisher: &Publisher,
    ) -> Result<Vec<Self>, OpenError> {
        Self::open_with(config, queues, Some(publisher))
    }

    fn open_with(
        config: &VhostUserConfig,
        queues: usize,
        publisher: Option<&Publisher>,
    ) -> Result<Vec<Self>, OpenError> {
        config.check(queues)?;
        let failed = |source: io::Error| OpenError::Io {
            action: "make the events of a virtio-user device".to_owned(),
            source,
        };
        let pairs: Vec<_> =
            (0..queues).map(|_| SharedPair::new()).collect::<io::Result<_>>().map_err(failed)?;
        let mut control = Control::open(config, &pairs, publisher)?;
        control.watch_meeting().map_err(failed)?;
        if !config.listens {
            control.agree_now().map_err(|error| {
                OpenError::no_peer(&config.path, &error, error.io(), error.remedy())
            })?;
        }
        debug!(target: TRACE, path = %config.path.display(), queues, "vhost-user frontend opened");
        let mut control = Some(control);
        Ok(pairs.into_iter().map(|shared| Self::on(shared, control.take(), config.mtu)).collect())
    }

    fn on(shared: Arc<SharedPair>, control: Option<Control>, mtu: usize) -> Self {
        let mut device = Self {
            shared,
            control,
            capabilities: offload::capabilities(End::Frontend, 0, mtu),
            is_up: false,
            control_due_ns: 0,
            armed: Cell::new(false),
            distance: Distance::default(),
            stage: vec![0; FRAME_LEN_MAX].into_boxed_slice(),
            buffers: Vec::with_capacity(usize::from(QUEUE_SIZE)),
            runs: Vec::with_capacity(usize::from(QUEUE_SIZE)),
        };
        device.learn();
        device
    }

    /// Returns the counters of this virtqueue pair.
    #[must_use]
    pub fn counters(&self) -> RingCounters {
        let peers_refused = self.control.as_ref().map_or(0, Control::peers_refused);
        RingCounters { peers_refused, ..self.shared.lock().counters }
    }

    fn learn(&mut self) {
        let pair = self.shared.lock();
        self.is_up = pair.is_up();
        if let Some(queues) = &pair.queues {
            let mtu = self.capabilities.mtu;
            self.capabilities = offload::capabilities(End::Frontend, queues.features, mtu);
        }
    }

    #[cfg(test)]
    pub(super) fn be_stuck(&mut self) {
        self.control.as_mut().expect("the first device").be_stuck();
    }

    fn look_at_control(&mut self, now_ns: u64) {
        let mut is_due = now_ns >= self.control_due_ns;
        if self.armed.replace(false) {
            is_due |= self.shared.watch.take();
            if let Some(queues) = &self.shared.lock().queues {
                queues.to_driver.queue.suppress(&queues.table);
                queues.from_driver.queue.suppress(&queues.table);
            }
        }
        if let Some(control) = &mut self.control
            && (is_due || control.is_outdated())
        {
            self.control_due_ns = now_ns.saturating_add(CONTROL_INTERVAL_NS);
            control.turn();
        }
    }
}

impl Device for VirtioUser {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(&mut self, now_ns: u64, burst: usize, sink: &mut dyn FnMut(RxFrame<'_>)) -> usize {
        self.look_at_control(now_ns);
        self.learn();
        let Self { shared, stage, buffers, runs, .. } = self;
        let mut pair = shared.lock();
        let Pair { queues: Some(queues), counters, is_broken: false } = &mut *pair else {
            return 0;
        };
        let mut count = 0;
        let mut fault = None;
        while count < burst {
            match queues.take_buffers(buffers, runs) {
                Ok(None) => break,
                Ok(Some(None)) => counters.frames_refused += 1,
                Ok(Some(Some(len))) => hand_over(&queues.table, runs, len, stage, counters, sink),
                Err(error) => {
                    fault = Some(error);
                    break;
                }
            }
            queues.offer_again(buffers);
            count += 1;
        }
        if queues.to_driver.publish(&queues.table) {
            counters.events_sent += 1;
        }
        if let Some(fault) = fault {
            pair.end(fault);
        }
        count
    }

    fn transmit(&mut self, _now_ns: u64, frame: &TxFrame<'_>) -> Result<(), TransmitError> {
        let mut pair = self.shared.lock();
        let Pair { queues: Some(queues), counters, is_broken: false } = &mut *pair else {
            return Err(TransmitError::LinkDown);
        };
        let frame_len = frame.len();
        self.capabilities.check_len(frame, frame_len - frame.head.len())?;
        let header = offload::encode(End::Frontend, queues.features, frame)?;
        let len = HEADER_LEN + frame_len;
        if len > FRAME_LEN_MAX {
            return Err(TransmitError::TooLong);
        }
        if queues.free.is_empty()
            && let Err(fault) = queues.reap()
        {
            pair.end(fault);
            return Err(TransmitError::LinkDown);
        }
        let Some(number) = queues.free.pop_front() else { return Err(TransmitError::Full) };
        let referred = match queues.put_referring(number, &header, frame) {
            Some(referred) => referred,
            None => {
                let Queues { table, from_driver, .. } = queues;
                let buffer = [from_driver.slot(number).part(0, len)];
                put_octets(table, &buffer, &header, frame, frame_len, &mut self.distance);
                from_driver.offer(table, number, len, Direction::ToDevice);
                0
            }
        };
        counters.frames_tx += 1;
        counters.copied_tx_bytes += (frame_len - referred) as u64;
        counters.referred_tx_bytes += referred as u64;
        Ok(())
    }

    fn transmit_room(&self) -> usize {
        let pair = self.shared.lock();
        let Some(queues) = &pair.queues else { return 1 };
        let back = queues.from_driver.queue.waiting(&queues.table).unwrap_or(1);
        queues.free.len() + usize::from(back)
    }

    fn flush(&mut self, _now_ns: u64) {
        let mut pair = self.shared.lock();
        let Pair { queues: Some(queues), counters, is_broken: false } = &mut *pair else { return };
        if queues.from_driver.publish(&queues.table) {
            counters.events_sent += 1;
        }
        if let Err(fault) = queues.reap() {
            pair.end(fault);
        }
    }

    fn link_up(&self) -> bool {
        self.is_up
    }

    fn check_interval_ns(&self) -> Option<u64> {
        Some(CHECK_INTERVAL_NS)
    }

    fn refusals(&self) -> Refusals {
        self.counters().refusals()
    }

    /// The caller is about to sleep: asks the backend for an event.
    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        let pair = self.shared.lock();
        self.armed.set(true);
        if let Some(queues) = &pair.queues {
            let is_full = queues.free.is_empty();
            let has_room = is_full && queues.from_driver.queue.arm(&queues.table);
            if queues.to_driver.queue.arm(&queues.table) || has_room {
                return Some(self.shared.watch.always());
            }
        }
        Some(self.shared.watch.as_fd())
    }
}
