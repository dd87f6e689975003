//! A server that starts like `urnic serve` and then breaks the control protocol: the tests write
//! its messages in bytes, as `tools/src/protocol.rs` defines them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use urnic::{
    Access, ConnectionEvent, Cq, Endpoint, EndpointConfig, ListenParams, Mr, Offer, Pd, Qp,
    QpConfig, RecvWr, RemoteBuffer, Rnic, RnicConfig, SendOp, SendWr, Stag, TaggedOffset, Wc,
    WcOpcode, WcStatus, WrId, random_seed,
};

/// Bytes of a message at most.
const MESSAGE_LEN_MAX: usize = 2048;
/// Sends in flight at a time.
const SENDS_MAX: usize = 32;
const RECEIVES: usize = 256;
/// Time limit for a client's next message, and for its end.
const PATIENCE: Duration = Duration::from_secs(20);

/// Private Data of the server's MPA Reply: the fields of the real thing; a test can falsify each of
/// them.
#[derive(Clone, Debug)]
pub(crate) struct Welcome {
    /// First bytes, and the version.
    pub(crate) magic: &'static [u8],
    /// `None` for the real region.
    pub(crate) region: Option<(u32, u64)>,
    /// Length of the real region in bytes.
    pub(crate) region_len: usize,
    pub(crate) len: u64,
    pub(crate) credits: u32,
    pub(crate) chunks_present: u64,
    pub(crate) idle_ms: u32,
    /// Bytes to add at the end; a negative number removes bytes.
    pub(crate) surplus: isize,
}

/// Fields that an honest server would send for a file that fits into the region.
pub(crate) const HONEST: Welcome = Welcome {
    magic: b"urnc\0\x03",
    region: None,
    region_len: 16 << 20,
    len: 1000,
    credits: 4,
    chunks_present: 0,
    idle_ms: 10_000,
    surplus: 0,
};

/// The server's way to end a connection after its script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// It stays open until the client ends it.
    Silence,
    Close,
    Abort,
}

/// A connection to a client.
pub(crate) struct Talk {
    qp: Qp,
    pub(crate) region: Mr,
    inbox: Mr,
    outbox: Mr,
    sent: Cq,
    received: Cq,
    endpoint: Arc<Endpoint>,
    posted: std::cell::Cell<usize>,
    done: std::cell::Cell<usize>,
}

type Script = Arc<dyn Fn(&Talk) -> After + Send + Sync>;

/// The server. Dropping it ends all its connections.
pub(crate) struct Liar {
    pub(crate) address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    /// Listens; answers every client with `welcome`, then runs `script`.
    pub(crate) fn start(welcome: Welcome, script: Script) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: random_seed().unwrap() });
        let endpoint = Arc::new(Endpoint::kernel(&rnic, &EndpointConfig::default()).unwrap());
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = endpoint.listen(local, ListenParams::default()).unwrap();
        let address = listener.local();
        let is_over = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&is_over);
        let thread = thread::spawn(move || {
            let mut sessions = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let asked = listener.next_request(Duration::from_millis(20)).unwrap();
                let Some(request) = asked else { continue };
                let talk = Talk::new(&rnic, &endpoint, welcome.region_len);
                let said = welcome.emit(&talk.region);
                let offer = Offer { private_data: &said, ird: 16, ord: 16 };
                let Ok(connecting) = request.accept(&talk.qp, &offer) else { continue };
                let (script, ended) = (Arc::clone(&script), Arc::clone(&ended));
                sessions.push(thread::spawn(move || {
                    let Ok(connection) = connecting.wait(PATIENCE) else { return };
                    match script(&talk) {
                        After::Silence => {
                            let is_end = |event: &_| {
                                matches!(
                                    event,
                                    ConnectionEvent::Closed(_) | ConnectionEvent::Failed(_)
                                )
                            };
                            while !ended.load(Ordering::Relaxed)
                                && !connection
                                    .next_event(Duration::from_millis(20))
                                    .is_ok_and(|event| event.as_ref().is_some_and(is_end))
                            {
                            }
                        }
                        After::Close => drop(connection.close(PATIENCE)),
                        After::Abort => connection.abort(),
                    }
                }));
            }
            for session in sessions {
                session.join().unwrap();
            }
        });
        Self { address, is_over, thread: Some(thread) }
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A script that fails has failed the test of its client already.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

impl Welcome {
    fn emit(&self, region: &Mr) -> Vec<u8> {
        let real = region.remote(0);
        let (stag, to) = self.region.unwrap_or((real.stag.0, real.to.0));
        let mut octets = self.magic.to_vec();
        octets.extend(stag.to_be_bytes());
        octets.extend(to.to_be_bytes());
        octets.extend(self.len.to_be_bytes());
        octets.extend(self.credits.to_be_bytes());
        octets.extend(self.chunks_present.to_be_bytes());
        octets.extend(self.idle_ms.to_be_bytes());
        octets.resize(octets.len().saturating_add_signed(self.surplus), 0);
        octets
    }
}

impl Talk {
    fn new(rnic: &Rnic, endpoint: &Arc<Endpoint>, region_len: usize) -> Self {
        let pd: Pd = rnic.alloc_pd();
        let (sent, received) =
            (rnic.create_cq(2 * SENDS_MAX).unwrap(), rnic.create_cq(2 * RECEIVES).unwrap());
        let (send_cq, recv_cq) = (sent.clone(), received.clone());
        let config = QpConfig {
            send_depth: 2 * SENDS_MAX,
            recv_depth: RECEIVES,
            ..QpConfig::with_cqs(send_cq, recv_cq)
        };
        let qp = pd.create_qp(config).unwrap();
        let region = pd.reg_mr(region_len, Access::FOR_ATOMIC).unwrap();
        let inbox = pd.reg_mr(RECEIVES * MESSAGE_LEN_MAX, Access::LOCAL_WRITE).unwrap();
        let outbox = pd.reg_mr(SENDS_MAX * MESSAGE_LEN_MAX, Access::LOCAL_WRITE).unwrap();
        for slot in 0..RECEIVES {
            post_receive(&qp, &inbox, slot);
        }
        let (posted, done) = Default::default();
        let endpoint = Arc::clone(endpoint);
        Self { qp, region, inbox, outbox, sent, received, endpoint, posted, done }
    }

    /// Sends a control message; returns true if the session goes on.
    pub(crate) fn say(&self, octets: &[u8]) -> bool {
        self.send(octets, SendOp::Send { invalidate: None, solicited: true })
    }

    /// Sends payload.
    pub(crate) fn payload(&self, octets: &[u8]) -> bool {
        self.send(octets, SendOp::Send { invalidate: None, solicited: false })
    }

    /// Sends a control message again and again, until the client has ended.
    pub(crate) fn flood(&self, octets: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while self.say(octets) && Instant::now() < end {}
    }

    /// As [`flood`](Self::flood), with a pause between two messages.
    pub(crate) fn drip(&self, octets: &[u8]) {
        let end = Instant::now() + PATIENCE;
        while self.say(octets) && Instant::now() < end {
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn send(&self, octets: &[u8], op: SendOp) -> bool {
        while self.posted.get() - self.done.get() == SENDS_MAX {
            if !self.collect() {
                return false;
            }
        }
        let at = self.posted.get() % SENDS_MAX * MESSAGE_LEN_MAX;
        let is_memory_used = !matches!(op, SendOp::Immediate { .. });
        self.outbox.copy_in(at, octets);
        let sge = is_memory_used.then(|| self.outbox.sge(at..at + octets.len()));
        self.posted.set(self.posted.get() + 1);
        self.qp.post_send(SendWr::new(WrId(0), op, sge)).is_ok()
    }

    /// Writes to an STag, whether the client has advertised it or not.
    pub(crate) fn write(&self, stag: u32, to: u64, octets: &[u8]) -> bool {
        let remote = RemoteBuffer { stag: Stag(stag), to: TaggedOffset(to) };
        self.send(octets, SendOp::RdmaWrite { remote })
    }

    fn collect(&self) -> bool {
        match self.endpoint.wait(&self.sent, PATIENCE) {
            Ok(Some(Wc { status: WcStatus::Success, .. })) => {
                self.done.set(self.done.get() + 1);
                true
            }
            _ => false,
        }
    }

    /// Receives the client's next message; `None` if none comes.
    pub(crate) fn hear(&self) -> Option<Vec<u8>> {
        let wc = self.endpoint.wait(&self.received, PATIENCE).ok().flatten()?;
        if wc.status != WcStatus::Success {
            return None;
        }
        let slot = usize::try_from(wc.wr_id.0).unwrap();
        let len = if wc.opcode == WcOpcode::RecvImmediate { 0 } else { wc.byte_len as usize };
        let mut octets = vec![0; len];
        self.inbox.copy_out(slot * MESSAGE_LEN_MAX, &mut octets);
        post_receive(&self.qp, &self.inbox, slot);
        Some(octets)
    }

    /// Waits for a control message with this code; returns the bytes after the code.
    pub(crate) fn hear_of(&self, code: u8) -> Option<Vec<u8>> {
        loop {
            let message = self.hear()?;
            if message.first() == Some(&code) {
                return Some(message[1..].to_vec());
            }
        }
    }
}

fn post_receive(qp: &Qp, inbox: &Mr, slot: usize) {
    let octets = slot * MESSAGE_LEN_MAX..(slot + 1) * MESSAGE_LEN_MAX;
    // A connection that has ended accepts no receive.
    let _ended = qp.post_recv(RecvWr::new(WrId(slot as u64), [inbox.sge(octets)]));
}

/// Control messages of the server.
pub(crate) fn counters(value: u64) -> Vec<u8> {
    let fields = std::iter::repeat_n(value.to_be_bytes(), super::COUNTERS.len());
    std::iter::once(1).chain(fields.flatten()).collect()
}

pub(crate) fn credit(count: u32) -> Vec<u8> {
    [&[2][..], &count.to_be_bytes()].concat()
}

/// Code 5 says if a chunk is right, code 9 gives its CRC32c.
pub(crate) fn chunk(code: u8, index: u64, value: u32) -> Vec<u8> {
    [&[code][..], &index.to_be_bytes(), &value.to_be_bytes()].concat()
}

pub(crate) fn sha(digest: [u8; 32]) -> Vec<u8> {
    [&[11][..], &digest].concat()
}

pub(crate) fn failed(reason: &[u8]) -> Vec<u8> {
    [&[13][..], reason].concat()
}

/// `Stopped` has the code 18, `ProcessorTime` 20.
pub(crate) fn number(code: u8, value: u64) -> Vec<u8> {
    [&[code][..], &value.to_be_bytes()].concat()
}
