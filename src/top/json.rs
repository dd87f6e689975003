//! An answer as JSON. The answer contains only numbers and addresses, so nothing needs escaping.

use std::fmt::{self, Write};

use super::limits::CONNECTIONS_TOLD_MAX;
use crate::handle::watch::Seen;
use crate::mail::figures::Figures;
use urnic_engine::time::Duration;
use urnic_netdev::Refusals;

/// One line: the counters `shown_for` after the endpoint was shown.
pub(super) fn line(seen: &Seen, shown_for: Duration) -> String {
    let mut out = String::new();
    write(&mut out, seen, shown_for).expect("writing to a string does not fail");
    out
}

fn write(out: &mut String, seen: &Seen, shown_for: Duration) -> fmt::Result {
    let Seen { figures, is_new } = seen;
    let open = figures.open.len();
    let told = open.min(CONNECTIONS_TOLD_MAX);
    write!(
        out,
        "{{\"schema\":1,\"pid\":{},\"shown_ns\":{},\"is_new\":{is_new},\"connections\":{},\
         \"connections_open\":{open},\"connections_rejected\":{},\"connections_untold\":{},\
         \"total\":{{",
        std::process::id(),
        shown_for.as_nanos(),
        figures.connections_closed + open as u64,
        figures.connections_rejected,
        open - told,
    )?;
    write_figures(out, &figures.total())?;
    let Refusals { peers, regions, frames, sessions_ended } = figures.refusals;
    write!(
        out,
        "}},\"device\":{{\"peers_refused\":{peers},\"regions_refused\":{regions},\
         \"frames_refused\":{frames},\"sessions_ended\":{sessions_ended}}},\"open\":["
    )?;
    for (index, one) in figures.open.iter().take(told).enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}{{\"number\":{},\"remote\":\"{}\",", one.number, one.remote)?;
        write_figures(out, &one.figures)?;
        out.write_str("}")?;
    }
    out.write_str("]}\n")
}

fn write_figures(out: &mut String, figures: &Figures) -> fmt::Result {
    for (index, (name, value)) in figures.named().into_iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(out, "{comma}\"{name}\":{value}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mail::figures::{ConnectionFigures, EndpointFigures};
    use crate::top::limits::ANSWER_LEN_MAX;
    use urnic_engine::port::ConnectionCounters;

    #[test]
    fn the_longest_answer_stays_below_its_limit() {
        // Half of the counters have the most digits; most of the others have shorter names.
        let counters = ConnectionCounters {
            bytes_sent: u64::MAX,
            bytes_received: u64::MAX,
            bytes_held_now: u64::MAX,
            frames_sent: u64::MAX,
            fpdus_framed: u64::MAX,
            ..ConnectionCounters::default()
        };
        let figures = Figures::of(&counters);
        let remote = "[fd07:1111:2222:3333:4444:5555:6666:7777%4294967295]:65535".parse().unwrap();
        let one = ConnectionFigures { number: u64::MAX, remote, figures };
        let open = vec![one; CONNECTIONS_TOLD_MAX + 3];
        let figures = EndpointFigures { open, ..EndpointFigures::default() };
        let text = line(&Seen { figures, is_new: true }, Duration::MAX);
        assert!(text.len() < ANSWER_LEN_MAX, "{}", text.len());
        assert!(text.contains("\"connections_untold\":3,"), "{}", &text[..200]);
        assert_eq!(text.matches("\"number\":").count(), CONNECTIONS_TOLD_MAX);
        let longest = Figures::default().named().map(|(name, _)| name.len()).into_iter().max();
        assert!(longest <= Some(30), "the limit counts on that: {longest:?}");
    }

    #[test]
    fn refusals_of_the_device_are_reported() {
        let refusals = Refusals { peers: 1, regions: 2, frames: 3, sessions_ended: 4 };
        let mut figures = EndpointFigures::default();
        // From two queues.
        figures.add(EndpointFigures { refusals, ..EndpointFigures::default() });
        figures.add(EndpointFigures { refusals, ..EndpointFigures::default() });
        let text = line(&Seen { figures, is_new: true }, Duration::ZERO);
        let expected = "\"device\":{\"peers_refused\":2,\"regions_refused\":4,\"frames_refused\":6,\
                        \"sessions_ended\":8},\"open\":[]}\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
