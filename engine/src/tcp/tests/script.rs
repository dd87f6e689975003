//! One connection against a hand-made peer. Sequence numbers in scripts are relative: `seq` counts
//! from the peer's first byte, `ack` from ours.

use std::sync::Arc;

use crate::tcp::{
    Config, Flags, Header, Options, Outgoing, PathConfig, SackBlock, SeqNum, State, Tcb, TcpEvent,
    Timestamps,
};
use crate::time::{Duration, Instant};
use crate::types::StreamOffset;

/// Our and the peer's initial sequence numbers: both wrap within the first few bytes.
pub(super) const ISS: SeqNum = SeqNum(0xffff_fff0);
pub(super) const IRS: SeqNum = SeqNum(0xffff_fffa);

pub(super) struct Script {
    pub(super) now: Instant,
    pub(super) connection: Tcb,
    /// The peer's timestamp clock; it advances only if a script moves it.
    pub(super) peer_clock: u32,
    timestamps: bool,
}

/// The settings of most scripts: no timestamps, MSS 1000, delayed acknowledgments from the start.
pub(super) fn config() -> Config {
    Config {
        window_bytes: 60_000,
        timestamps: false,
        quick_acks: 0,
        initial_window_segments: Some(10),
        ..Config::default()
    }
}

/// The settings on a path with segments of 1000 bytes, with timestamps or without.
pub(super) fn on_path(config: Config) -> Arc<PathConfig> {
    let path_payload_max = if config.timestamps { 1040 } else { 1020 };
    let mss_receive = 1000;
    Arc::new(PathConfig { mss_receive, path_payload_max, ..PathConfig::new(config, 1500, 20) })
}

pub(super) fn seq(offset: u32) -> SeqNum {
    IRS.plus(1).plus(offset)
}

pub(super) fn ack(offset: u32) -> SeqNum {
    ISS.plus(1).plus(offset)
}

impl Script {
    /// A connection opened by the peer.
    pub(super) fn established(config: &Config) -> Self {
        Self::established_by(config, Flags::SYN)
    }

    /// Opens it with these flags on the peer's SYN.
    pub(super) fn established_by(config: &Config, flags: Flags) -> Self {
        let now = Instant::ZERO + Duration::from_secs(5000);
        let syn = Header {
            src_port: 9,
            dst_port: 7,
            seq: IRS,
            flags,
            window: 60_000,
            options: Options {
                // Room for timestamps, if the path has it.
                mss: Some(if config.timestamps { 1012 } else { 1000 }),
                window_scale: Some(0),
                sack_permitted: true,
                timestamps: config.timestamps.then_some(Timestamps { value: 100, echo: 0 }),
                ..Options::default()
            },
            ..Header::default()
        };
        let mut connection = Tcb::accept(now, &on_path(*config), &syn, ISS, 0);
        let syn_ack = connection.poll_transmit(now).unwrap().header;
        assert!(syn_ack.flags.contains(Flags::SYN | Flags::ACK));
        let timestamps = config.timestamps;
        let mut script = Self { now, connection, peer_clock: 100, timestamps };
        script.sleep(Duration::from_micros(100));
        script.receive(0, 0, Flags::ACK, 0);
        assert_eq!(script.connection.poll_event(), Some(TcpEvent::Established));
        assert_eq!(script.state(), State::Established);
        script
    }

    pub(super) fn state(&self) -> State {
        self.connection.state()
    }

    pub(super) fn header(&self, at: u32, acked: u32, flags: Flags) -> Header {
        let timestamps =
            self.timestamps.then_some(Timestamps { value: self.peer_clock, echo: 5_000_000 });
        Header {
            src_port: 9,
            dst_port: 7,
            seq: seq(at),
            ack: ack(acked),
            flags,
            window: 60_000,
            options: Options { timestamps, ..Options::default() },
            ..Header::default()
        }
    }

    /// Receives `len` bytes at `at` and commits everything offered; returns true if some were
    /// offered.
    pub(super) fn receive(&mut self, at: u32, acked: u32, flags: Flags, len: usize) -> bool {
        let header = self.header(at, acked, flags);
        self.receive_header(&header, len)
    }

    pub(super) fn receive_header(&mut self, header: &Header, len: usize) -> bool {
        let arrival = self.connection.handle_segment(self.now, header, len, 1);
        let mut start = arrival.payload.as_ref().map(|payload| payload.range.start);
        let mut any = false;
        while let (Some(from), Some(payload)) = (start, &arrival.payload) {
            let missing = self.connection.next_missing(from..payload.range.end);
            if let Some(missing) = missing.clone() {
                any = true;
                self.connection.commit(missing).unwrap();
            }
            start = missing.map(|missing| missing.end);
        }
        self.connection.finish_arrival(self.now, &arrival, false);
        any
    }

    /// Receives an acknowledgment with a SACK option; blocks are relative to our first byte.
    pub(super) fn receive_sack(&mut self, acked: u32, blocks: &[(u32, u32)]) {
        let mut header = self.header(0, acked, Flags::ACK);
        header.options.sack = blocks.iter().map(|&(l, r)| (ack(l), ack(r))).collect();
        self.receive_header(&header, 0);
    }

    /// Sends a record of `len` bytes; returns its header.
    pub(super) fn send(&mut self, len: usize) -> Header {
        assert!(self.connection.send_budget(self.now).bytes >= len);
        self.connection.record_sent(self.now, len, len, false)
    }

    pub(super) fn sleep(&mut self, duration: Duration) {
        self.now = self.now + duration;
    }

    /// Advances to the next timer and runs it.
    pub(super) fn wait_for_timer(&mut self) -> Duration {
        let next = self.connection.poll_timeout().expect("a timer is running");
        let waited = next - self.now;
        self.now = self.now.max(next);
        self.connection.handle_timeout(self.now);
        waited
    }

    /// Runs timers until the retransmission timer has expired; returns the time that this took.
    /// Tail loss probes sent meanwhile are lost.
    pub(super) fn wait_for_rto(&mut self) -> Duration {
        let (start, rtos) = (self.now, self.connection.counters().rtos);
        while self.connection.counters().rtos == rtos {
            self.wait_for_timer();
            if self.connection.counters().rtos == rtos {
                self.resent();
            }
        }
        self.now - start
    }

    pub(super) fn transmit(&mut self) -> Option<Outgoing> {
        self.connection.poll_transmit(self.now)
    }

    /// Returns all retransmissions ready now, as (start, length).
    pub(super) fn resent(&mut self) -> Vec<(u64, u64)> {
        let mut ranges = Vec::new();
        while let Some(outgoing) = self.transmit() {
            assert!(outgoing.retransmission);
            let StreamOffset(start) = outgoing.data.start;
            ranges.push((start, outgoing.data.end.0 - start));
        }
        ranges
    }

    pub(super) fn ack(&mut self) -> Option<Header> {
        self.connection.poll_ack(self.now)
    }

    /// Returns the acknowledgment that is due, as (number, SACK blocks), relative to the peer's
    /// first byte.
    pub(super) fn acked(&mut self) -> Option<(u32, Vec<(u32, u32)>)> {
        let relative = |number: SeqNum| number.0.wrapping_sub(seq(0).0);
        let header = self.ack()?;
        let blocks =
            header.options.sack.iter().map(|&(l, r): &SackBlock| (relative(l), relative(r)));
        Some((relative(header.ack), blocks.collect()))
    }
}
