//! Registered memory of one peer.

use anyhow::Context;
use urnic::{Access, Mr, MrPart, Qp, Region, TaggedOffset};

use crate::host::Host;

/// Registers new memory for this peer only.
pub(crate) fn anonymous(host: &Host, qp: &Qp, len: u64, access: Access) -> anyhow::Result<Mr> {
    let region = host.memory(usize::try_from(len)?).context("no memory")?;
    register(host, qp, region, access)
}

/// Registers a region for this peer only.
pub(crate) fn register(
    host: &Host,
    qp: &Qp,
    region: std::sync::Arc<Region>,
    access: Access,
) -> anyhow::Result<Mr> {
    let range = 0..region.len();
    let part = MrPart { range, base: TaggedOffset(0), access, only: Some(qp.number()) };
    host.pd.reg_part(region, part).context("no room for another registration")
}
