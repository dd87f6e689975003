//! Timed tables of segments against a port: input, and the exact output that must follow.
//!
//! ```text
//! 0.000  <  S   0:0    win 60000 <mss=1000,sackOK>    the peer sends
//! 0.000  >  S.  0:0    ack 1                          the port has to send
//! 0.010  <+ .   1:101  ack 1                          the same, and more comes with it
//! 0.010  !  write 500                                 the application does something
//! 0.010  !+ abort                                     the same, and more comes with it
//! 0.010  ?  read 100                                  the application finds something
//! ```
//!
//! Times are seconds from the start; sequence numbers count from each side's initial one. A segment
//! is `FLAGS START:END`, with `S`, `F`, `R`, `P`, `E` (ECE), `W` (CWR) and `.` for ACK; other
//! fields follow. Of a sent segment only the fields that a row names are compared, and `P`, which
//! is advice, never. Between two rows the port must send nothing else, and it must send each
//! segment at its time, within [`TOLERANCE_NS`]; a time of `*` waits for the segment. Timestamps
//! are `ts=VALUE:ECHO`. Of the port's timestamps only the echo is compared, and the peer's echo
//! counts from the port's first timestamp. Comments begin with `#`.
//!
//! One file because the rows are a language: its syntax, what each row does and what it compares.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{IpProtocol, Ipv4Packet, Ipv4Repr};
use urnic_engine::mpa::startup::{Offer, StartupConfig};
use urnic_engine::port::{
    ConnectParams, ConnectionCounters, ConnectionId, ListenParams, LowerLayer, Port, PortConfig,
    PortEvent,
};
use urnic_engine::stream::StreamEvent;
use urnic_engine::tcp::{Config, Flags, Header, KeepAliveTimes, Options, SeqNum, Timestamps};
use urnic_engine::time::{Duration, Instant};
use urnic_engine::types::WrId;
use urnic_engine::verbs::{Qp, QpConfig, Rnic, RnicConfig, SendWr};
use urnic_netdev::{Capabilities, Medium, RxChecksum, RxFrame};

use crate::conformance::pairs;

const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const OUR_PORT: u16 = 7174;
const PEER_PORT: u16 = 40_000;
/// The peer's initial sequence number; it wraps within the first few bytes.
const PEER_ISS: SeqNum = SeqNum(0xffff_fffa);
/// Start time of scripts: initial sequence numbers follow the clock.
pub(super) const START_NS: u64 = 5_000_000_000_000;
/// Tolerance for the time of a segment: the granularity of the retransmission timer.
const TOLERANCE_NS: u64 = 1_000_000;
const IPV4_HEADER_LEN: usize = 20;

/// A segment that the port sent.
#[derive(Debug)]
pub(super) struct Sent {
    at_ns: u64,
    pub(super) header: Header,
    pub(super) len: u32,
    payload: Vec<u8>,
}

/// A port, its scripted peer, and one connection.
pub(crate) struct Script {
    pub(super) port: Port,
    pub(super) now: Instant,
    pub(super) connection: Option<ConnectionId>,
    peer_port: u16,
    our_port: u16,
    pub(super) our_iss: Option<SeqNum>,
    /// First value of the port's timestamp clock, which has its own offset.
    our_timestamp: Option<u32>,
    pub(super) sent: VecDeque<Sent>,
    pub(super) events: Vec<String>,
    /// Counters of each ended connection.
    pub(super) closed: Vec<ConnectionCounters>,
    /// SND.NXT and RCV.NXT by the last segment with an ACK, counted from the initial numbers.
    pub(super) last_told: (u32, u32),
    /// Begin of the peer's stream; arbitrary bytes follow.
    peer_octets: Vec<u8>,
    /// The port's stream, as far as it was sent.
    octets: Vec<u8>,
    qp: Qp,
}

/// Returns the configuration of most tables: MSS 1000, every second segment acknowledged, no
/// timestamps.
pub(crate) fn config() -> Config {
    Config {
        timestamps: false,
        quick_acks: 0,
        window_bytes: 60_000,
        initial_window_segments: Some(10),
        ..Config::default()
    }
}

/// Runs a table against a listener.
pub(crate) fn listen(config: Config, table: &str) {
    let fresh = || {
        let mut script = Script::new(config);
        let params = ListenParams {
            delayed: true,
            lower_layer: LowerLayer::Optimized,
            // One connection is half open, others get cookies.
            backlog: 1,
            ..ListenParams::default()
        };
        script.port.listen(OUR_PORT, params).unwrap();
        script
    };
    fresh().run(table);
    pairs::compare(&fresh, table);
}

/// Runs a table against a connection that the port opens.
pub(crate) fn connect(config: Config, table: &str) {
    let fresh = || {
        let mut script = Script::new(config);
        let remote = SocketAddr::from((PEER, PEER_PORT));
        let id = script.port.open(script.now, remote, LowerLayer::Optimized).unwrap();
        script.connection = Some(id);
        script
    };
    fresh().run(table);
    pairs::compare(&fresh, table);
}

/// Runs a table against an MPA responder; the peer's stream begins with `peer_octets`. Returns the
/// port's stream.
pub(crate) fn respond(peer_octets: &[u8], table: &str) -> Vec<u8> {
    respond_with(config(), peer_octets, table)
}

/// Does the same with another configuration.
pub(crate) fn respond_with(config: Config, peer_octets: &[u8], table: &str) -> Vec<u8> {
    let fresh = || {
        let mut script = Script::new(config);
        script.peer_octets = peer_octets.to_vec();
        let params = ListenParams { lower_layer: LowerLayer::Optimized, ..ListenParams::default() };
        script.port.listen(OUR_PORT, params).unwrap();
        script
    };
    let mut script = fresh();
    script.run(table);
    pairs::compare(&fresh, table);
    script.octets
}

/// Runs a table against an MPA initiator; the peer's stream begins with `peer_octets`. Returns the
/// port's stream.
pub(crate) fn initiate(peer_octets: &[u8], startup: StartupConfig, table: &str) -> Vec<u8> {
    let fresh = || {
        let mut script = Script::new(Config { window_scaling: false, ..config() });
        script.peer_octets = peer_octets.to_vec();
        let remote = SocketAddr::from((PEER, PEER_PORT));
        let lower_layer = LowerLayer::Optimized;
        let params = ConnectParams { startup, lower_layer, ..ConnectParams::default() };
        let id = script.port.connect(script.now, remote, &script.qp, &params).unwrap();
        script.connection = Some(id);
        script
    };
    let mut script = fresh();
    script.run(table);
    pairs::compare(&fresh, table);
    script.octets
}

/// Handshake at the beginning of tables about other subjects.
pub(crate) const ESTABLISHED: &str = "
0.000 < S  0:0 win 60000 <mss=1000,sackOK>
0.000 > S. 0:0 ack 1
0.001 < .  1:1 ack 1 win 60000
";

/// Handshake with a peer that does not know selective acknowledgments.
pub(crate) const ESTABLISHED_WITHOUT_SACK: &str = "
0.000 < S  0:0 win 60000 <mss=1000>
0.000 > S. 0:0 ack 1
0.001 < .  1:1 ack 1 win 60000
";

/// Returns the rows of a table with their numbers, without comments.
pub(super) fn rows(table: &str) -> impl Iterator<Item = (usize, &str)> {
    let rows = table.lines().enumerate();
    let rows = rows.map(|(number, row)| (number, row.split('#').next().unwrap_or_default().trim()));
    rows.filter(|(_, row)| !row.is_empty())
}

impl Script {
    fn new(tcp: Config) -> Self {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let cq = rnic.create_cq(16).unwrap();
        let queues = QpConfig { send_depth: 8, recv_depth: 8, ..QpConfig::new(&cq) };
        let qp = rnic.alloc_pd().create_qp(queues).unwrap();
        let config = PortConfig { tcp, ..PortConfig::for_ipv4(US) };
        let capabilities = Capabilities {
            medium: Medium::Ip,
            mtu: 1040,
            segmentation_len_max: None,
            tx_checksum: false,
            fragments_max: usize::MAX,
            gather_len_min: 0,
            tx_digest: false,
        };
        Self {
            port: Port::new(&rnic, config, capabilities),
            now: Instant::from_nanos(START_NS),
            connection: None,
            peer_port: PEER_PORT,
            our_port: OUR_PORT,
            our_iss: None,
            our_timestamp: None,
            sent: VecDeque::new(),
            events: Vec::new(),
            closed: Vec::new(),
            last_told: (0, 0),
            peer_octets: Vec::new(),
            octets: Vec::new(),
            qp,
        }
    }

    fn run(&mut self, table: &str) {
        for (number, row) in rows(table) {
            self.row(row).unwrap_or_else(|error| {
                panic!("row {number}: {row}\n{error}\nin\n{table}");
            });
        }
        self.settle();
        assert!(self.sent.is_empty(), "sent after the last row: {:?}\nin\n{table}", self.sent);
    }

    pub(super) fn row(&mut self, row: &str) -> Result<(), String> {
        let mut words = row.split_whitespace();
        let time = words.next().ok_or("no time")?;
        let direction = words.next().ok_or("no direction")?;
        let rest: Vec<_> = words.collect();
        let at = match time {
            "*" => None,
            seconds => {
                let seconds: f64 = seconds.parse().map_err(|_| "a time is seconds, or *")?;
                Some(Instant::from_nanos(START_NS + (seconds * 1e9) as u64))
            }
        };
        match direction {
            ">" => self.expect(at, &rest),
            _ => {
                let at = at.ok_or("only what goes out can be waited for")?;
                // The port does not run between segments of the same time: they are one burst.
                if at > self.now {
                    self.sleep_until(at);
                }
                if let Some(sent) = self.sent.front() {
                    return Err(format!("sent before that: {sent:?}"));
                }
                match direction {
                    "<" => self.receive(&rest)?,
                    "<+" => return self.receive(&rest),
                    "!+" => return self.act(&rest),
                    "!" => self.act(&rest)?,
                    "?" => self.find(&rest)?,
                    other => return Err(format!("{other} is no direction")),
                }
                self.settle();
                Ok(())
            }
        }
    }

    // ---- the port ----

    /// Runs the port until it is idle at this time.
    pub(super) fn settle(&mut self) {
        let (now, sent) = (self.now, &mut self.sent);
        loop {
            let moved = self.port.poll_transmit(now, 64, &mut |frame| {
                let mut octets = vec![0; frame.len()];
                frame.gather(&mut octets);
                let (header, data_at) = Header::parse(&octets[IPV4_HEADER_LEN..]).unwrap();
                let len = octets.len() - IPV4_HEADER_LEN - data_at;
                let len = u32::try_from(len).unwrap();
                let payload = octets.split_off(IPV4_HEADER_LEN + data_at);
                sent.push_back(Sent { at_ns: now.as_nanos(), header, len, payload });
                Ok(())
            });
            if moved == 0 {
                break;
            }
        }
        while let Some(event) = self.port.poll_event() {
            match event {
                PortEvent::Incoming { connection, .. } => self.connection = Some(connection),
                PortEvent::Closed { counters, .. } => {
                    self.events.push("closed".to_owned());
                    self.closed.push(*counters);
                }
                PortEvent::Stream { event, .. } => {
                    self.events.extend(name(&event).map(ToOwned::to_owned));
                }
                _ => {}
            }
        }
    }

    /// Runs the timers that are due by `until`, in order, at their times.
    pub(super) fn sleep_until(&mut self, until: Instant) {
        while let Some(at) = self.port.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.port.handle_timeout(self.now);
            self.settle();
        }
        self.now = self.now.max(until);
    }

    fn expect(&mut self, at: Option<Instant>, words: &[&str]) -> Result<(), String> {
        self.settle();
        // No timer is longer than TIME-WAIT or the longest retransmission timeout.
        for _ in 0..1000 {
            if !self.sent.is_empty() {
                break;
            }
            let Some(next) = self.port.poll_timeout() else { break };
            let late = at.is_some_and(|at| next.as_nanos() > at.as_nanos() + TOLERANCE_NS);
            if late {
                break;
            }
            self.sleep_until(next);
        }
        let sent = self.sent.pop_front().ok_or("nothing was sent")?;
        if let Some(at) = at {
            let difference = sent.at_ns.abs_diff(at.as_nanos());
            if difference > TOLERANCE_NS {
                let seconds = (sent.at_ns - START_NS) as f64 / 1e9;
                return Err(format!("sent at {seconds:.6}: {sent:?}"));
            }
        }
        if self.our_iss.is_none() && sent.header.flags.contains(Flags::SYN) {
            self.our_iss = Some(sent.header.seq);
            self.our_port = sent.header.src_port;
            self.our_timestamp = sent.header.options.timestamps.map(|found| found.value);
        }
        if sent.header.flags.contains(Flags::ACK) {
            let iss = self.our_iss.unwrap_or(SeqNum(0));
            let next = sent.header.seq.0.wrapping_sub(iss.0).wrapping_add(sent.len);
            self.last_told = (next.max(1), sent.header.ack.0.wrapping_sub(PEER_ISS.0));
        }
        self.compare(&sent, words).map_err(|what| format!("{what}: {sent:?}"))?;
        // The first byte has number 1.
        let start = sent.header.seq.0.wrapping_sub(self.our_iss.unwrap_or(SeqNum(0)).0).max(1);
        if start as usize == self.octets.len() + 1 {
            self.octets.extend(sent.payload);
        }
        Ok(())
    }

    fn compare(&self, sent: &Sent, words: &[&str]) -> Result<(), String> {
        let header = &sent.header;
        let mut words = words.iter();
        let wanted = flags(words.next().ok_or("no flags")?)?;
        if header.flags - Flags::PSH != wanted - Flags::PSH {
            return Err(format!("flags {:?}", header.flags));
        }
        let (start, end) = range(words.next().ok_or("no sequence numbers")?)?;
        let iss = self.our_iss.unwrap_or(SeqNum(0));
        let found = header.seq.0.wrapping_sub(iss.0);
        // RFC 9293 §3.10.7.1: a reset for a segment without a connection takes its number from that
        // segment, or is 0.
        let is_reset = header.flags.contains(Flags::RST);
        if !is_reset && (found, found.wrapping_add(sent.len)) != (start, end) {
            return Err(format!("octets {found}:{}", found.wrapping_add(sent.len)));
        }
        while let Some(word) = words.next() {
            let mut number = || -> Result<u32, String> {
                let word = words.next().ok_or("a number is missing")?;
                word.parse().map_err(|_| format!("{word} is no number"))
            };
            match *word {
                "ack" => {
                    let (wanted, found) = (number()?, header.ack.0.wrapping_sub(PEER_ISS.0));
                    if wanted != found {
                        return Err(format!("ack {found}"));
                    }
                }
                "win" => {
                    if number()? != u32::from(header.window) {
                        return Err(format!("win {}", header.window));
                    }
                }
                options => self.compare_options(&header.options, options)?,
            }
        }
        Ok(())
    }

    fn compare_options(&self, found: &Options, wanted: &str) -> Result<(), String> {
        let mut wanted = parse_options(wanted)?;
        for (left, right) in &mut wanted.sack {
            *left = PEER_ISS.plus(left.0);
            *right = PEER_ISS.plus(right.0);
        }
        if let Some(timestamps) = &mut wanted.timestamps {
            timestamps.value = found.timestamps.map_or(0, |found| found.value);
        }
        if *found == wanted { Ok(()) } else { Err(format!("options, instead of {wanted:?}")) }
    }

    pub(super) fn receive(&mut self, words: &[&str]) -> Result<(), String> {
        let mut words = words.iter();
        let flags = flags(words.next().ok_or("no flags")?)?;
        let (start, end) = range(words.next().ok_or("no sequence numbers")?)?;
        let iss = self.our_iss.unwrap_or(SeqNum(0));
        let mut header = Header {
            src_port: self.peer_port,
            dst_port: self.our_port,
            seq: PEER_ISS.plus(start),
            flags,
            window: 60_000,
            ..Header::default()
        };
        while let Some(word) = words.next() {
            let mut number = || -> Result<u32, String> {
                let word = words.next().ok_or("a number is missing")?;
                word.parse().map_err(|_| format!("{word} is no number"))
            };
            match *word {
                "ack" => header.ack = iss.plus(number()?),
                "win" => header.window = u16::try_from(number()?).map_err(|_| "window")?,
                "port" => header.src_port = u16::try_from(number()?).map_err(|_| "port")?,
                options => {
                    header.options = parse_options(options)?;
                    if let Some(timestamps) = &mut header.options.timestamps {
                        let first = self.our_timestamp.unwrap_or(0);
                        timestamps.echo = timestamps.echo.wrapping_add(first);
                    }
                    for (left, right) in &mut header.options.sack {
                        *left = iss.plus(left.0);
                        *right = iss.plus(right.0);
                    }
                }
            }
        }
        let octets = (start..end).map(|number| {
            let said = number.checked_sub(1).and_then(|at| self.peer_octets.get(at as usize));
            said.copied().unwrap_or(5)
        });
        let frame = frame(&header, &octets.collect::<Vec<u8>>());
        let frame = RxFrame::whole(&frame, RxChecksum::Valid, None);
        self.port.handle_frame(self.now, &frame);
        Ok(())
    }

    // ---- the application ----

    fn act(&mut self, words: &[&str]) -> Result<(), String> {
        let id = self.connection.ok_or("no connection yet")?;
        match words {
            ["write", len] => {
                let len: usize = len.parse().map_err(|_| "write N")?;
                self.port.send_streaming(id, &vec![7; len]).map_err(|error| error.to_string())
            }
            ["keepalive", seconds] => {
                let idle = seconds.parse().map(Duration::from_secs).ok();
                let times = idle.map(KeepAliveTimes::after);
                let set = self.port.set_keepalive(self.now, id, times);
                set.map_err(|error| error.to_string())
            }
            ["close"] => self.port.disconnect(id).map_err(|error| error.to_string()),
            ["accept"] => {
                let accepted = self.port.accept(id, &self.qp, &Offer::default());
                accepted.map_err(|error| error.to_string())
            }
            ["reject"] => {
                self.port.reject(id, &Offer::default()).map_err(|error| error.to_string())
            }
            // A Send without data.
            ["post"] => {
                self.qp.post_send(SendWr::send(WrId(1), [])).map_err(|error| error.to_string())
            }
            ["abort"] => {
                self.port.abort(id);
                Ok(())
            }
            other => Err(format!("{other:?} is nothing an application does")),
        }
    }

    fn find(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["read", len] => {
                let wanted: usize = len.parse().map_err(|_| "read N")?;
                let id = self.connection.ok_or("no connection yet")?;
                let mut octets = vec![0; 65_536];
                let found = self.port.receive_streaming(id, &mut octets);
                let found = found.map_err(|error| error.to_string())?;
                if found == wanted { Ok(()) } else { Err(format!("read {found}")) }
            }
            [event] => {
                let position = self.events.iter().position(|found| found == event);
                let position = position.ok_or_else(|| format!("only {:?}", self.events))?;
                self.events.remove(position);
                Ok(())
            }
            ["connections", count] => {
                let found = self.port.connection_count();
                if *count == found.to_string() { Ok(()) } else { Err(format!("{found}")) }
            }
            ["waiting", count] => {
                let found = self.port.time_wait_count();
                if *count == found.to_string() { Ok(()) } else { Err(format!("{found}")) }
            }
            other => Err(format!("{other:?} is nothing an application finds")),
        }
    }
}

/// Returns the name of an event in rows.
fn name(event: &StreamEvent) -> Option<&'static str> {
    Some(match event {
        StreamEvent::Request(_) => "request",
        StreamEvent::Established(_) => "established",
        StreamEvent::Rejected(_) => "rejected",
        StreamEvent::StartupFailed(_) => "startup-failed",
        StreamEvent::Failed(_) => "failed",
        StreamEvent::PeerClosed => "peer-closed",
        _ => return None,
    })
}

fn flags(word: &str) -> Result<Flags, String> {
    word.chars().try_fold(Flags::empty(), |flags, letter| {
        let flag = match letter {
            'S' => Flags::SYN,
            'F' => Flags::FIN,
            'R' => Flags::RST,
            'P' => Flags::PSH,
            'E' => Flags::ECE,
            'W' => Flags::CWR,
            '.' => Flags::ACK,
            other => return Err(format!("{other} is no flag")),
        };
        Ok(flags | flag)
    })
}

fn range(word: &str) -> Result<(u32, u32), String> {
    let (start, end) = word.split_once(':').ok_or("sequence numbers are START:END")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is no number"));
    Ok((number(start)?, number(end)?))
}

/// Reads options such as `<mss=1000,sackOK,sack=1:5,wscale=7,ts=5:6>`.
fn parse_options(word: &str) -> Result<Options, String> {
    let inner = word.strip_prefix('<').and_then(|word| word.strip_suffix('>'));
    let inner = inner.ok_or_else(|| format!("{word} is not understood"))?;
    let mut options = Options::default();
    for item in inner.split(',') {
        let (name, value) = item.split_once('=').unwrap_or((item, ""));
        let number = |text: &str| text.parse::<u32>().map_err(|_| format!("{text} is no number"));
        match name {
            "" => {}
            "mss" => options.mss = u16::try_from(number(value)?).ok(),
            "wscale" => options.window_scale = u8::try_from(number(value)?).ok(),
            "sackOK" => options.sack_permitted = true,
            "sack" => {
                let (left, right) = range(value)?;
                options.sack.push((SeqNum(left), SeqNum(right)));
            }
            "ts" => {
                let (value, echo) = range(value)?;
                options.timestamps = Some(Timestamps { value, echo });
            }
            other => return Err(format!("{other} is no option")),
        }
    }
    Ok(options)
}

/// Returns the IPv4 packet with a segment.
fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    let payload_len = header.len() + payload.len();
    let repr = Ipv4Repr {
        src_addr: PEER,
        dst_addr: US,
        next_header: IpProtocol::Tcp,
        payload_len,
        hop_limit: 64,
    };
    let mut octets = vec![0; IPV4_HEADER_LEN + payload_len];
    let mut packet = Ipv4Packet::new_unchecked(&mut octets[..]);
    repr.emit(&mut packet, &ChecksumCapabilities::default());
    header.emit(&mut octets[IPV4_HEADER_LEN..]);
    octets[IPV4_HEADER_LEN + header.len()..].copy_from_slice(payload);
    octets
}
