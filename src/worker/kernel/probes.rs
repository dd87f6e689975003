//! Keep-alive probes of an idle connection, which the kernel sends.

use std::io;

use socket2::{Socket, TcpKeepalive};

use urnic_engine::stream::carrier::ByteStream;
use urnic_engine::stream::life::{LifeTimes, Probes};
use urnic_engine::tcp::KeepAliveTimes;
use urnic_engine::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct IdleProbes {
    probes: Probes,
    first_fpdu: KeepAliveTimes,
    /// Times while a Response is awaited.
    response: KeepAliveTimes,
    /// Times for any idle connection, chosen by the application (RFC 9293 MUST-24).
    chosen: Option<KeepAliveTimes>,
    look_at: Instant,
}

impl IdleProbes {
    pub(super) fn new(user_timeout: Duration, life: &LifeTimes) -> Self {
        let interval = life.probe;
        Self {
            probes: Probes::Off,
            first_fpdu: KeepAliveTimes { idle: interval, interval, ..KeepAliveTimes::default() },
            response: KeepAliveTimes::giving_up_after(user_timeout),
            chosen: None,
            look_at: Instant::ZERO,
        }
    }

    pub(super) const fn chosen(&self) -> Option<KeepAliveTimes> {
        self.chosen
    }

    pub(super) fn choose(
        &mut self,
        socket: &Socket,
        times: Option<KeepAliveTimes>,
    ) -> io::Result<()> {
        self.chosen = times.map(KeepAliveTimes::within_limits);
        self.ask(socket)
    }

    pub(super) fn follow(
        &mut self,
        now: Instant,
        socket: &Socket,
        stream: &ByteStream,
    ) -> io::Result<()> {
        let probes = stream.probes(self.probes);
        if probes == self.probes {
            return Ok(());
        }
        self.look_at = now + self.response.idle;
        self.probes = probes;
        self.ask(socket)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (self.probes == Probes::Response).then_some(self.look_at)
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        socket: &Socket,
        stream: &ByteStream,
    ) -> io::Result<()> {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return Ok(());
        }
        self.look_at = now + self.response.idle;
        if stream.awaits_response() {
            return Ok(());
        }
        self.probes = Probes::Off;
        self.ask(socket)
    }

    fn ask(&self, socket: &Socket) -> io::Result<()> {
        let own = match self.probes {
            Probes::Off => None,
            Probes::FirstFpdu => Some(self.first_fpdu.within_limits()),
            Probes::Response => Some(self.response),
        };
        let times = own.into_iter().chain(self.chosen).min_by_key(|times| times.idle);
        let Some(times) = times else {
            return socket.set_keepalive(false);
        };
        let probes = TcpKeepalive::new()
            .with_time(whole_seconds(times.idle))
            .with_interval(whole_seconds(times.interval))
            .with_retries(times.probes);
        socket.set_tcp_keepalive(&probes)
    }
}

/// The kernel's unit.
fn whole_seconds(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs() + u64::from(time.subsec_nanos() > 0))
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    /// As with the engine's own TCP.
    #[test]
    fn the_kernel_probes_at_the_sooner_of_two_times() {
        let (soon, late) = (Duration::from_secs(1), Duration::from_secs(7200));
        let user_timeout = Duration::from_secs(100);
        let response = KeepAliveTimes::giving_up_after(user_timeout).idle;
        let first_fpdu = LifeTimes::default().probe;
        let asked = |probes, chosen: Option<Duration>| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            let mut idle = IdleProbes::new(user_timeout, &LifeTimes::default());
            idle.probes = probes;
            let times = |idle| KeepAliveTimes { idle, ..KeepAliveTimes::default() };
            idle.choose(&socket, chosen.map(times)).unwrap();
            socket.keepalive().unwrap().then(|| socket.tcp_keepalive_time().unwrap())
        };
        assert_eq!(asked(Probes::Off, None), None);
        assert_eq!(asked(Probes::Off, Some(late)), Some(late));
        for (probes, own) in [(Probes::FirstFpdu, first_fpdu), (Probes::Response, response)] {
            assert!(soon < own && own < late, "{own:?}");
            assert_eq!(asked(probes, None), Some(whole_seconds(own)));
            assert_eq!(asked(probes, Some(soon)), Some(soon), "{probes:?}");
            assert_eq!(asked(probes, Some(late)), Some(whole_seconds(own)), "{probes:?}");
        }
    }

    #[test]
    fn a_part_of_a_second_counts_as_one() {
        assert_eq!(whole_seconds(Duration::from_millis(1)), Duration::from_secs(1));
        assert_eq!(whole_seconds(Duration::from_secs(2)), Duration::from_secs(2));
    }
}
