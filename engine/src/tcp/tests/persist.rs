//! A peer whose window is closed, or too small for a segment (RFC 9293 §3.8.6.1, §3.8.6.2.1).

use super::script::{Script, config};
use crate::tcp::{Config, Flags, Header, State, TcpEvent};
use crate::time::Duration;

const MS: Duration = Duration::from_millis(1);
const CEILING: Duration = Duration::from_secs(60);

fn window(script: &mut Script, acked: u32, window: u16) {
    let header = Header { window, ..script.header(0, acked, Flags::ACK) };
    script.receive_header(&header, 0);
}

/// A connection that wants to send, with a window that is closed until probes are as rare as
/// possible.
fn long_shut(config: &Config) -> Script {
    let mut script = Script::established(config);
    window(&mut script, 0, 0);
    script.connection.send_budget(script.now);
    while script.wait_for_timer() < CEILING {
        assert!(script.transmit().is_some());
        window(&mut script, 0, 0);
    }
    assert!(script.transmit().is_some());
    window(&mut script, 0, 0);
    script
}

/// MUST-37: the connection stays as long as probes are answered; R1 (SHLD-10) is three of them.
#[test]
fn a_lost_probe_does_not_end_a_connection_whose_window_is_shut() {
    let mut script = long_shut(&config());
    for round in 0..3 {
        for lost in 0..2 {
            assert_eq!(script.wait_for_timer(), CEILING, "{round}");
            assert!(script.transmit().is_some(), "a probe, though {lost} were lost");
        }
        assert_eq!(script.wait_for_timer(), CEILING);
        assert!(script.transmit().is_some());
        window(&mut script, 0, 0);
    }
    for _ in 0..3 {
        assert_eq!(script.wait_for_timer(), CEILING);
        assert!(script.transmit().is_some());
        assert_eq!(script.state(), State::Established);
    }
    assert_eq!(script.wait_for_timer(), CEILING, "the third is waited for too");
    assert_eq!((script.state(), script.transmit()), (State::Closed, None));
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::TimedOut));
}

/// Data is in flight that the window does not permit now: its retransmissions are probes.
#[test]
fn a_lost_retransmission_does_not_end_a_connection_whose_window_is_shut() {
    let mut script = Script::established(&config());
    for _ in 0..5 {
        script.send(1000);
    }
    window(&mut script, 1000, 0);
    while script.wait_for_rto() < CEILING {
        script.resent();
        window(&mut script, 1000, 0);
    }
    script.resent();
    window(&mut script, 1000, 0);
    assert_eq!(script.connection.counters().loss_probes, 0, "nothing goes beyond the window");
    for _ in 0..3 {
        for _ in 0..2 {
            assert_eq!(script.wait_for_timer(), CEILING);
            assert_eq!(script.resent(), vec![(1000, 1000)]);
        }
        assert_eq!(script.wait_for_timer(), CEILING);
        assert_eq!(script.resent(), vec![(1000, 1000)]);
        window(&mut script, 1000, 0);
    }
    for _ in 0..3 {
        assert_eq!(script.wait_for_timer(), CEILING);
        assert_eq!(script.resent(), vec![(1000, 1000)]);
        assert_eq!(script.state(), State::Established);
    }
    assert_eq!(script.wait_for_timer(), CEILING);
    assert_eq!(script.connection.poll_event(), Some(TcpEvent::TimedOut));
}

/// R2 counts from progress: unanswered probes before it are forgotten.
#[test]
fn acknowledgments_restart_the_r2_timeout() {
    let patience = Duration::from_secs(1);
    let mut script = Script::established(&Config { user_timeout: patience, ..config() });
    for segment in 0..20 {
        script.send(1000);
        let mut waited = Duration::ZERO;
        while waited < Duration::from_millis(400) {
            waited += script.wait_for_timer();
            script.resent();
        }
        assert_eq!(script.state(), State::Established, "{segment}");
        script.receive(0, (segment + 1) * 1000, Flags::ACK, 0);
    }
}

/// RFC 9293 §3.8.6.2.1: "in the range 0.1-1.0 seconds", no matter how long the window was closed.
#[test]
fn a_small_window_is_used_soon_after_a_long_closure() {
    let slow = Config { rto_min: Duration::from_secs(5), ..config() };
    for (config, expected) in [(config(), 100 * MS), (slow, 1000 * MS)] {
        let mut script = long_shut(&config);
        window(&mut script, 0, 500);
        let start = script.now;
        // Further calls postpone nothing, nor does a repeated window advertisement.
        for _ in 0..5 {
            assert!(!script.connection.send_budget(script.now).forced);
            script.sleep(MS);
            window(&mut script, 0, 500);
        }
        script.wait_for_timer();
        assert_eq!(script.now - start, expected);
        assert_eq!(script.transmit(), None);
        let budget = script.connection.send_budget(script.now);
        assert_eq!((budget.bytes, budget.forced), (500, true));
        script.send(500);
    }
}

#[test]
fn a_small_window_that_shuts_again_is_probed_and_used_when_it_is_back() {
    let mut script = long_shut(&config());
    for round in 0..3 {
        let sent = round * 500;
        window(&mut script, sent, 500);
        script.connection.send_budget(script.now);
        window(&mut script, sent, 0);
        assert_eq!(script.wait_for_timer(), 100 * MS);
        assert!(script.transmit().is_some_and(|probe| probe.data.is_empty()));
        window(&mut script, sent, 500);
        script.connection.send_budget(script.now);
        assert_eq!(script.wait_for_timer(), 100 * MS);
        assert!(script.connection.send_budget(script.now).forced);
        script.send(500);
        window(&mut script, sent + 500, 0);
    }
}

/// A window that opens late in a silence is no reason to abort.
#[test]
fn a_small_window_after_a_long_silence_is_used() {
    let mut script = long_shut(&config());
    for _ in 0..3 {
        script.wait_for_timer();
        script.transmit();
    }
    script.sleep(Duration::from_secs(50));
    window(&mut script, 0, 500);
    script.connection.send_budget(script.now);
    assert_eq!(script.wait_for_timer(), 100 * MS);
    assert_eq!(script.state(), State::Established);
    assert!(script.connection.send_budget(script.now).forced);
}

#[test]
fn a_link_that_returns_is_probed_at_once() {
    let mut script = long_shut(&config());
    script.sleep(Duration::from_secs(10));
    script.connection.retransmit_now(script.now);
    assert_eq!(script.wait_for_timer(), Duration::ZERO);
    assert!(script.transmit().is_some());
    assert_eq!(script.wait_for_timer(), CEILING);
}
