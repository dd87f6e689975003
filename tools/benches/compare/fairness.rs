//! Two flows at a time through one bottleneck: the engine beside the kernel's CUBIC, and two of a
//! kind.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::Result;
use urnic::monotonic_now;
use urnic_engine::time::Duration;

use crate::case::{Case, Unit, case};
use crate::impaired::{Impaired, KERNEL};
use crate::network::{Far, Link};
use crate::writes::{self, Spec};
use urnic_testkit::kernel_flow::KernelFlow;

/// A queue of one bandwidth-delay product.
const BOTTLENECK: &str = "--rate 100M --delay 10ms --queue 165";
/// Writes outstanding: more than path and queue hold.
const DEPTH: usize = 32;

/// The sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Urnic,
    Cubic,
}

/// All pairs.
pub(crate) fn cases() -> Vec<Case> {
    use Who::{Cubic, Urnic};
    let fairness = |name: &str, pair: [Who; 2]| {
        case(name, Unit::Fairness, move |far, time| Ok(jain(rates(far, pair, time)?)))
    };
    let share = |far: &Far, time| {
        let [urnic, cubic] = rates(far, [Urnic, Cubic], time)?;
        Ok(100.0 * urnic / (urnic + cubic))
    };
    vec![
        case("share of urnic beside Linux CUBIC", Unit::Share, share),
        fairness("two flows of urnic", [Urnic, Urnic]),
        fairness("two flows of Linux CUBIC", [Cubic, Cubic]),
    ]
}

/// Returns the Mbit/s of two flows over `time`, after a warm-up of half of it.
fn rates(far: &Far, pair: [Who; 2], time: Duration) -> Result<[f64; 2]> {
    let _link = Impaired::start(far, BOTTLENECK)?;
    let (counts, over) = ([AtomicU64::new(0), AtomicU64::new(0)], AtomicBool::new(false));
    let (counts, over) = (&counts, &over);
    let rates = thread::scope(|scope| -> Result<[f64; 2]> {
        let mut kernel_flows = Vec::new();
        for (flow, _) in pair.iter().enumerate().filter(|(_, who)| **who == Who::Cubic) {
            let listener = far.run(|| TcpListener::bind((KERNEL[1], 0)))??;
            kernel_flows.push((flow, KernelFlow::start(&listener)?));
        }
        let mut engines = Vec::new();
        for (flow, _) in (0..).zip(pair).filter(|(_, who)| *who == Who::Urnic) {
            let spec = Spec { depth: DEPTH, ..Spec::on(Link::Impaired { flow }) };
            engines.push(scope.spawn(move || {
                writes::write_while(far, &spec, |octets| {
                    counts[usize::from(flow)].store(octets, Ordering::Relaxed);
                    !over.load(Ordering::Relaxed)
                })
            }));
        }
        let look = || {
            for (flow, kernel_flow) in &kernel_flows {
                counts[*flow].store(kernel_flow.received(), Ordering::Relaxed);
            }
            (monotonic_now(), [0, 1].map(|flow| counts[flow].load(Ordering::Relaxed)))
        };
        pause(time / 2);
        let (start, before) = look();
        pause(time);
        let (end, after) = look();
        over.store(true, Ordering::Relaxed);
        drop(kernel_flows);
        for engine in engines {
            engine.join().expect("a flow does not panic")?;
        }
        let ns = (end - start).as_nanos() as f64;
        Ok([0, 1].map(|flow| (after[flow] - before[flow]) as f64 * 8e3 / ns))
    })?;
    let [first, second] = rates;
    eprintln!(
        "  {:?} {first:.1}, {:?} {second:.1} Mbit/s: Jain's index {:.3}",
        pair[0],
        pair[1],
        jain(rates)
    );
    Ok(rates)
}

/// 1 when both are the same, a half when one has everything (Jain, Chiu and Hawe 1984).
fn jain([first, second]: [f64; 2]) -> f64 {
    (first + second).powi(2) / (2.0 * (first.powi(2) + second.powi(2)))
}

#[expect(clippy::disallowed_methods, reason = "others work meanwhile")]
fn pause(time: Duration) {
    thread::sleep(time);
}
