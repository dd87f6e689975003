//! Checks of the oracle on the whole of a run: sizes after a pause, connections beside hostile
//! ones, shared buffers, resources left, CRCs.

use std::sync::{Arc, Weak};

use urnic_engine::limits::{PIECE_BLOCK_LEN, PIECE_BLOCKS_MAX};
use urnic_engine::mem::Region;
use urnic_engine::mpa::pieces::NEAR_PAGES;
use urnic_engine::port::LowerLayer;
use urnic_engine::time::Duration;

use super::Run;
use crate::address::address;
use crate::plan::{Ending, Sabotage};
use crate::scenario::Scenario;
use crate::world::Node;

/// Longer than any work takes.
const DAY: Duration = Duration::from_secs(86_400);
/// First acknowledgment after a pause: some round trips, and a delayed acknowledgment.
const AFTER_PAUSE: Duration = Duration::from_millis(200);

impl Run<'_> {
    /// Nothing is lost in a pause, so segments soon have their old size again.
    pub(super) fn check_sizes(&self) -> Result<(), String> {
        let is_soon = self.world.now() < self.world.last_pause_end() + AFTER_PAUSE;
        if self.plan.scenario != Scenario::Pause || is_soon {
            return Ok(());
        }
        for (index, flow) in self.flows.iter().enumerate() {
            for (side, &node) in flow.sides.iter().zip(&flow.plan.nodes) {
                let port = &self.world.nodes[node].poller.port;
                let size = side.connection.and_then(|id| port.path_mtu(id).ok());
                if size.is_some_and(|size| size != self.plan.link.mtu) {
                    return Err(format!("flow {index} sends datagrams of {size:?} after a pause"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_unnoticed(&self) -> Result<(), String> {
        if !matches!(self.plan.scenario, Scenario::Exhausted | Scenario::Guesses | Scenario::Shared)
        {
            return Ok(());
        }
        for (index, flow) in self.flows.iter().enumerate().filter(|(_, flow)| !flow.plan.is_hostile)
        {
            let is_whole = matches!(flow.plan.ending, Ending::Close(_) | Ending::CloseBoth);
            let done_at = flow.done_at.filter(|_| !self.is_sabotaged(Sabotage::Undone));
            let (Some(opened_at), Some(done_at)) = (flow.opened_at, done_at) else {
                if is_whole {
                    return Err(format!("flow {index} has not done its work"));
                }
                continue;
            };
            let late = if self.is_sabotaged(Sabotage::Late) { DAY } else { Duration::ZERO };
            let took = done_at - opened_at + late;
            let again = flow.was_tried_again() || self.is_sabotaged(Sabotage::Again);
            if is_whole && (again || took > self.time_alone(flow.plan)) {
                return Err(format!("flow {index} is affected by hostile peers: {took:?}"));
            }
        }
        Ok(())
    }

    pub(super) fn check_shared(&mut self) -> Result<(), String> {
        let Some((pool, liars)) = &mut self.shared else { return Ok(()) };
        self.lies = liars.lies();
        liars.end()?;
        pool.borrow_mut().check_whole()
    }

    pub(super) fn check_leaks(&mut self) -> Result<(), String> {
        if self.is_sabotaged(Sabotage::Connection) {
            let remote = (address(1, false), 1).into();
            let now = self.world.now();
            let opened = self.world.port(0).open(now, remote, LowerLayer::Layered);
            opened.map_err(|error| error.to_string())?;
        }
        for (node, Node { poller, .. }) in self.world.nodes.iter().enumerate() {
            let (connections, held) = (poller.port.connection_count(), poller.port.bytes_held());
            let held = held + u64::from(self.is_sabotaged(Sabotage::Piece));
            if connections != 0 || held != 0 {
                return Err(format!("node {node} keeps {connections} connections, {held} bytes"));
            }
            let blocks = self.plan.nodes[node].piece_blocks;
            let blocks = blocks.min(PIECE_BLOCKS_MAX) + NEAR_PAGES * self.flows.len();
            let blocks = if self.is_sabotaged(Sabotage::Held) { 0 } else { blocks };
            let held_max = (blocks * PIECE_BLOCK_LEN) as u64;
            if poller.port.bytes_held_peak() > held_max {
                return Err(format!("node {node} has held more than {held_max} bytes"));
            }
        }
        let sides = self.flows.iter().flat_map(|flow| &flow.sides);
        let mut regions: Vec<Weak<Region>> =
            sides.map(|side| Arc::downgrade(&side.memory.region)).collect();
        let shared = self.shared.take();
        regions.extend(shared.iter().map(|(pool, _)| Arc::downgrade(&pool.borrow().region)));
        drop(shared);
        let keeps = self.is_sabotaged(Sabotage::Region);
        let _kept = regions.first().filter(|_| keeps).and_then(Weak::upgrade);
        self.flows.clear();
        match regions.iter().filter(|region| region.strong_count() > 0).count() {
            0 => Ok(()),
            kept => Err(format!("{kept} regions are kept after their last use")),
        }
    }

    /// Checks links without corruption: even if memory changes while a peer sends it, the peer
    /// sends the bytes over which it computed the CRC.
    // RFC 5044 §4.4: a CRC that is wrong ends the stream, or has the segment retransmitted.
    pub(super) fn check_crcs(&self) -> Result<(), String> {
        let corrupts = self.plan.nodes.iter().any(|node| node.impair.corrupt > 0.0);
        let wrong: u64 =
            self.flows.iter().flat_map(|flow| &flow.counters).map(|one| one.mpa.crc_bad).sum();
        let wrong = wrong + u64::from(self.is_sabotaged(Sabotage::Crc));
        if wrong > 0 && !corrupts {
            return Err(format!("{wrong} CRCs are wrong on links without corruption"));
        }
        Ok(())
    }
}
