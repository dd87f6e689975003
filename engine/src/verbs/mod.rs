//! The public types and operations, named as in rdma-core: an [`Rnic`] creates protection domains
//! ([`Pd`]) and completion queues ([`Cq`]), a domain memory regions ([`Mr`]) and queue pairs
//! ([`Qp`]). A [`Port`](crate::port::Port) moves the data. The handles may be used from any thread.

mod alarm;
pub(crate) mod calls;
mod cq;
mod doorbell;
mod mr;
mod mw;
mod pd;
pub(crate) mod posted;
mod qp;
mod receives;
mod rnic;
mod srq;
mod sync;
mod wc;
mod wr;

pub use crate::mem::{BindError, MwBind, MwType};
pub use crate::secret::Seed;
pub use cq::Cq;
pub use mr::{Mr, MrPart};
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{CompletionLevel, PostError, Qp, QpConfig, QpRules, QpState, QueueError, SendBatch};
pub use rnic::{Rnic, RnicConfig};
pub use srq::Srq;
pub use wc::{Wc, WcOpcode, WcStatus};
pub use wr::{RecvWr, RemoteBuffer, SendOp, SendWr, Sge};

pub use alarm::Alarm;
pub use doorbell::{Doorbell, DoorbellButton};
pub(crate) use qp::QpShared;
pub(crate) use rnic::{HeldRnic, RnicShared};
