//! Liars: peers whose MPA and DDP bytes are made by hand. A liar sends correct messages, then one
//! with an impossible number (RFC 5041 §5.3), to a receive queue that honest peers share.

use std::net::SocketAddr;

use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{ConnectionId, ListenParams, LowerLayer, Port, PortEvent};
use urnic_engine::stream::StreamEvent;
use urnic_engine::time::Instant;
use urnic_engine::verbs::{Cq, Qp, QpConfig, QpRules, Rnic, WcStatus};
use urnic_engine::wire::crc32c::{crc32c, to_wire};

use crate::address::address;
use crate::plan::{LiarPlan, Plan, Sabotage};
use crate::shared::SharedPool;
use crate::world::World;

/// Node that has the shared receive queue.
const OWNER: usize = 0;
const TCP_PORT: u16 = 6999;
const REPLY_LEN: usize = 20;
pub(crate) const MESSAGE_LEN: usize = 21;
/// Length, header, payload, pad, CRC.
const FPDU_LEN: usize = (2 + 18 + MESSAGE_LEN).next_multiple_of(4) + 4;
/// The smallest FPDU of an untagged message (RFC 5044 §4.1).
const FPDU_LEN_MIN: usize = 24;
/// L, and version 1.
const LAST: u8 = 0x41;
const NOT_LAST: u8 = 0x01;
const SEND: u8 = 0x43;

impl LiarPlan {
    /// One for each of the smallest FPDUs that fit in the liar's bytes.
    pub(crate) const fn buffers_max(&self) -> usize {
        (self.messages as usize + 2) * FPDU_LEN / FPDU_LEN_MIN + 1
    }

    /// Bytes after the Reply.
    fn stream(&self) -> Vec<u8> {
        let due = self.messages + 1;
        let whole = (1..due).flat_map(|msn| fpdu(LAST, msn));
        let partial = self.is_partial.then(|| fpdu(NOT_LAST, due));
        let lie = fpdu(LAST, due.wrapping_add(self.lie));
        whole.chain(partial.into_iter().flatten()).chain(lie).collect()
    }
}

fn payload(msn: u32) -> [u8; MESSAGE_LEN] {
    let mut bytes = [0x6c; MESSAGE_LEN];
    bytes[..4].copy_from_slice(&msn.to_be_bytes());
    bytes
}

/// An FPDU without markers.
fn fpdu(control: u8, msn: u32) -> Vec<u8> {
    let len = u16::try_from(18 + MESSAGE_LEN).expect("a short message");
    let mut bytes = len.to_be_bytes().to_vec();
    bytes.extend([control, SEND, 0, 0, 0, 0]);
    for field in [0, msn, 0] {
        bytes.extend(field.to_be_bytes());
    }
    bytes.extend(payload(msn));
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes.extend(to_wire(crc32c(&bytes)));
    bytes
}

#[derive(Debug)]
struct Liar {
    plan: LiarPlan,
    /// Connection at the liar, and at the owner of the queue; `closed` has the same order.
    ends: [Option<ConnectionId>; 2],
    closed: [bool; 2],
    queues: Option<(Qp, Cq)>,
    reply: Vec<u8>,
    has_lied: bool,
    delivered: u32,
    is_found_out: bool,
}

#[derive(Debug)]
pub(crate) struct Liars {
    node: usize,
    rnic: Rnic,
    liars: Vec<Liar>,
    pool: SharedPool,
    waits: bool,
    sabotage: Option<Sabotage>,
}

impl Liars {
    pub(crate) fn new(plan: &Plan, rnic: &Rnic, pool: &SharedPool) -> Self {
        let liars = plan.shared.iter().flat_map(|shared| &shared.liars);
        let liars = liars.map(|plan| Liar {
            plan: *plan,
            ends: [None; 2],
            closed: [false; 2],
            queues: None,
            reply: Vec::new(),
            has_lied: false,
            delivered: 0,
            is_found_out: false,
        });
        Self {
            node: plan.nodes.len() - 1,
            rnic: rnic.clone(),
            liars: liars.collect(),
            pool: SharedPool::clone(pool),
            waits: plan.flows.iter().any(|flow| flow.waits),
            sabotage: plan.sabotage,
        }
    }

    pub(crate) fn listen(&self, world: &mut World) -> Result<(), String> {
        let params = ListenParams {
            startup: StartupConfig { markers: false, ..StartupConfig::default() },
            lower_layer: LowerLayer::Optimized,
            ..ListenParams::default()
        };
        world.port(OWNER).listen(TCP_PORT, params).map_err(|error| error.to_string())
    }

    pub(crate) fn open(&mut self, world: &mut World) -> Result<(), String> {
        let now = world.now();
        let remote = SocketAddr::new(address(OWNER, false), TCP_PORT);
        for (index, liar) in self.liars.iter_mut().enumerate() {
            if liar.ends[0].is_some() || Instant::from_nanos(liar.plan.at_ns) > now {
                continue;
            }
            let port = world.port(self.node);
            let id = port.open(now, remote, LowerLayer::Layered);
            let id = id.map_err(|error| format!("a liar's connection: {error}"))?;
            let request = [&b"MPA ID Req Frame\x40\x01\x00\x08"[..], &name(index)].concat();
            port.send_streaming(id, &request).map_err(|error| error.to_string())?;
            liar.ends[0] = Some(id);
        }
        Ok(())
    }

    pub(crate) fn wakeup(&self) -> Option<Instant> {
        let waiting = self.liars.iter().filter(|liar| liar.ends[0].is_none());
        waiting.map(|liar| Instant::from_nanos(liar.plan.at_ns)).min()
    }

    pub(crate) fn are_over(&self) -> bool {
        self.liars.iter().all(|liar| liar.closed[0] && (liar.ends[1].is_none() || liar.closed[1]))
    }

    pub(crate) fn lies(&self) -> u64 {
        self.liars.iter().filter(|liar| liar.has_lied).count() as u64
    }

    /// Returns false for events of other connections.
    pub(crate) fn on_event(
        &mut self,
        world: &mut World,
        node: usize,
        event: &PortEvent,
    ) -> Result<bool, String> {
        let (PortEvent::Stream { connection: id, .. } | PortEvent::Closed { connection: id, .. }) =
            event
        else {
            return Ok(false);
        };
        if let PortEvent::Stream { event: StreamEvent::Request(request), .. } = event {
            let asks = |index: &usize| name(*index) == *request.private_data;
            let Some(index) = (0..self.liars.len()).find(asks).filter(|_| node == OWNER) else {
                return Ok(false);
            };
            self.accept(world.port(node), *id, index)?;
            return Ok(true);
        }
        let end = usize::from(node == OWNER);
        let mut liars = self.liars.iter_mut();
        let Some(liar) = liars
            .find(|liar| liar.ends[end] == Some(*id))
            .filter(|_| [self.node, OWNER].contains(&node))
        else {
            return Ok(false);
        };
        match event {
            PortEvent::Closed { .. } => {
                liar.closed[end] = true;
                let believes = self.sabotage == Some(Sabotage::Believed);
                let is_found_out = liar.is_found_out && !believes;
                if end == 1 && liar.has_lied && !is_found_out {
                    return Err(format!("a liar was believed: {:?}", liar.plan));
                }
            }
            PortEvent::Stream { event: StreamEvent::StreamingBytes, .. } if end == 0 => {
                liar.hear(world.port(node), *id)?;
            }
            PortEvent::Stream { event: StreamEvent::Failed(_), .. } if end == 1 => {
                liar.is_found_out = true;
            }
            PortEvent::Stream { event: StreamEvent::PeerClosed, .. } => {
                // The connection may be over already.
                let _over = world.port(node).disconnect(*id);
            }
            _ => {}
        }
        Ok(true)
    }

    fn accept(&mut self, port: &mut Port, id: ConnectionId, index: usize) -> Result<(), String> {
        let pool = self.pool.borrow();
        let cq = self.rnic.create_cq(pool.srq.depth() + 1).map_err(|error| error.to_string())?;
        let config = QpConfig {
            srq: Some(pool.srq.clone()),
            rules: match self.waits {
                true => QpRules::IwarpWait,
                false => QpRules::Iwarp,
            },
            ..QpConfig::new(&cq)
        };
        let qp = pool.pd.create_qp(config).map_err(|error| error.to_string())?;
        let offer = Offer { private_data: b"yes", ird: 0, ord: 0 };
        if port.accept(id, &qp, &offer).is_ok() {
            self.liars[index].ends[1] = Some(id);
            self.liars[index].queues = Some((qp, cq));
        }
        Ok(())
    }

    /// Returns true if there was a completion.
    pub(crate) fn pump(&mut self) -> Result<bool, String> {
        let mut acted = false;
        let mut pool = self.pool.borrow_mut();
        for liar in &mut self.liars {
            while let Some(wc) = liar.queues.as_ref().and_then(|(_, cq)| cq.poll()) {
                acted = true;
                if wc.status != WcStatus::Success {
                    pool.take_back(wc.wr_id)?;
                    continue;
                }
                liar.delivered += 1;
                let bytes = pool.take(wc.wr_id, wc.byte_len as usize)?;
                let is_next = self.sabotage == Some(Sabotage::LiarPayload);
                let expected = payload(liar.delivered + u32::from(is_next));
                let counts = self.sabotage != Some(Sabotage::LiarCount);
                let most = if counts { liar.plan.messages } else { 0 };
                if liar.delivered > most || bytes != expected {
                    return Err(format!("message {} of a liar: {bytes:?}", liar.delivered));
                }
            }
        }
        Ok(acted)
    }

    /// Drops all liars with the owner's queue pairs.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.pump()?;
        self.liars.clear();
        Ok(())
    }
}

impl Liar {
    /// Sends all messages, with the lie, once the Reply is complete.
    fn hear(&mut self, port: &mut Port, id: ConnectionId) -> Result<(), String> {
        let mut bytes = [0; 256];
        loop {
            let len = port.receive_streaming(id, &mut bytes).map_err(|error| error.to_string())?;
            if len == 0 {
                break;
            }
            self.reply.extend(&bytes[..len]);
        }
        let whole = self.reply.get(18..REPLY_LEN).map(|len| REPLY_LEN + usize::from(len[1]));
        if !self.has_lied && whole.is_some_and(|whole| self.reply.len() >= whole) {
            self.has_lied = true;
            port.send_streaming(id, &self.plan.stream()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

fn name(index: usize) -> [u8; 8] {
    let index = u32::try_from(index).expect("few liars");
    let mut name = *b"liar\0\0\0\0";
    name[4..].copy_from_slice(&index.to_be_bytes());
    name
}
