//! Memory of the application that peers write by `riowrite`.

use std::collections::BTreeMap;

use urnic::{Access, Mr, MrPart, Region, TaggedOffset};

use super::stream::Stream;
use super::wire::Target;
use crate::errno::Errno;
use std::sync::Arc;

/// Regions of a socket that the peer may not write. The peer's table limits the others.
const LOCAL_MAPS_MAX: usize = 1024;

#[derive(Debug)]
struct Mapped {
    mr: Mr,
    address: u64,
    len: usize,
    offset: u64,
    is_untold: bool,
}

#[derive(Debug, Default)]
pub(super) struct IoMaps {
    remote: BTreeMap<u16, Mapped>,
    local: Vec<Mapped>,
}

impl IoMaps {
    fn untold(&self) -> Option<(u16, u64, Target)> {
        self.remote.iter().find(|(_, map)| map.is_untold).map(|(index, map)| {
            let remote = map.mr.remote(0);
            let len = u32::try_from(map.len).unwrap_or(u32::MAX);
            (*index, map.offset, Target { address: remote.to.0, key: remote.stag.0, len })
        })
    }

    pub(super) fn has_untold(&self) -> bool {
        self.untold().is_some()
    }

    /// Returns the offset. The stream's peer may write the memory if `for_peer`.
    pub(super) fn map(
        &mut self,
        stream: &Stream,
        region: Arc<Region>,
        [address, len]: [usize; 2],
        for_peer: bool,
        offset: Option<u64>,
    ) -> Result<u64, Errno> {
        let base = TaggedOffset(address as u64);
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_WRITE, for_peer);
        let part = MrPart { range: 0..len, base, access, only: None };
        let free = (0..stream.remote_iomap).find(|index| !self.remote.contains_key(index));
        let has_place = if for_peer { free.is_some() } else { self.local.len() < LOCAL_MAPS_MAX };
        if !has_place {
            return Err(Errno::NO_MEMORY);
        }
        let mr = stream.pd.reg_part(region, part).map_err(|_| Errno::NO_MEMORY)?;
        let offset = offset.unwrap_or(base.0);
        let map = Mapped { mr, address: base.0, len, offset, is_untold: for_peer };
        match free.filter(|_| for_peer) {
            Some(index) => drop(self.remote.insert(index, map)),
            None => self.local.push(map),
        }
        Ok(offset)
    }

    /// When this returns, the peer can no longer write there.
    pub(super) fn unmap(&mut self, [address, len]: [usize; 2]) -> Result<(), Errno> {
        let is_it = |map: &Mapped| map.address == address as u64 && map.len == len;
        let at = self.remote.iter().find(|(_, map)| is_it(map)).map(|(index, _)| *index);
        if let Some(index) = at {
            drop(self.remote.remove(&index));
            return Ok(());
        }
        let at = self.local.iter().position(is_it).ok_or(Errno::INVALID)?;
        drop(self.local.swap_remove(at));
        Ok(())
    }
}

/// Sends them before all other data. `None` until there is room for all.
pub(super) fn tell(stream: &mut Stream, maps: &mut IoMaps) -> Option<()> {
    while let Some((index, offset, target)) = maps.untold() {
        if !stream.send_iomap(index, offset, target) {
            return None;
        }
        if let Some(map) = maps.remote.get_mut(&index) {
            map.is_untold = false;
        }
    }
    Some(())
}
