//! Frames that the queues of one interface, each with a worker, pass to one another.

use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, bounded};

use crate::mail::wakeup::Wakeup;
use urnic_engine::limits::{HANDOVER_FRAMES_MAX, PORTS_MAX};
use urnic_engine::poll::RECEIVE_BURST;
use urnic_engine::port::{Handover, Port, Recipient};
use urnic_engine::time::Instant;

const _: () = assert!(PORTS_MAX <= 64, "a bit for each in a word");

#[derive(Debug)]
pub(crate) struct Handovers {
    index: usize,
    inbox: Receiver<Handover>,
    others: Arc<[Inbox]>,
}

#[derive(Debug)]
struct Inbox {
    frames: Sender<Handover>,
    wakeup: Arc<Wakeup>,
}

impl Handovers {
    pub(crate) fn among(wakeups: &[Arc<Wakeup>]) -> Vec<Self> {
        let (frames, inboxes): (Vec<_>, Vec<_>) =
            wakeups.iter().map(|_| bounded(HANDOVER_FRAMES_MAX)).unzip();
        let inbox =
            |(frames, wakeup): (_, &Arc<Wakeup>)| Inbox { frames, wakeup: Arc::clone(wakeup) };
        let others: Arc<[Inbox]> = frames.into_iter().zip(wakeups).map(inbox).collect();
        let own = |(index, inbox)| Self { index, inbox, others: Arc::clone(&others) };
        inboxes.into_iter().enumerate().map(own).collect()
    }

    /// Returns the number of frames from other queues.
    pub(crate) fn receive(&self, now: Instant, port: &mut Port) -> usize {
        let mut received = 0;
        for handover in self.inbox.try_iter().take(RECEIVE_BURST) {
            port.handle_handover(now, &handover);
            received += 1;
        }
        received
    }

    /// Drops frames beyond the queues' capacity.
    pub(crate) fn send(&self, port: &mut Port) {
        // One bit for each of PORTS_MAX.
        let mut rung: u64 = 0;
        while let Some(handover) = port.poll_handover() {
            let to = handover.to();
            for (index, inbox) in self.others.iter().enumerate() {
                let meant = match to {
                    Recipient::One(one) => one == index,
                    Recipient::Others => index != self.index,
                };
                if meant && inbox.frames.try_send(handover.clone()).is_ok() {
                    rung |= 1 << index;
                }
            }
        }
        for (index, inbox) in self.others.iter().enumerate() {
            if rung & 1 << index != 0 {
                inbox.wakeup.ring();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use urnic_netdev::{Capabilities, Medium, RxChecksum, RxFrame};

    use super::*;
    use urnic_engine::port::PortConfig;
    use urnic_engine::verbs::{Rnic, RnicConfig};

    const CAPABILITIES: Capabilities = Capabilities {
        medium: Medium::Ethernet,
        mtu: 1500,
        segmentation_len_max: None,
        tx_checksum: false,
        fragments_max: usize::MAX,
        gather_len_min: 0,
        tx_digest: false,
    };

    fn has_rung(wakeup: &Wakeup) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let rung = poll(&mut [PollFd::new(wakeup, PollFlags::IN)], Some(&at_once)).unwrap() == 1;
        wakeup.clear();
        rung
    }

    /// A sleeping worker would learn of its neighbour only when something else wakes it.
    #[test]
    fn neighbour_change_wakes_the_workers_of_all_other_ports() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let config = PortConfig::for_ipv4([10, 0, 0, 1].into());
        let mut ports = [(); 3].map(|()| Port::new(&rnic, config.clone(), CAPABILITIES));
        let [a, b, c] = &mut ports;
        Port::join(&mut [a, b, c]).unwrap();
        let wakeups = [(); 3].map(|()| Wakeup::new().unwrap());
        let handovers = Handovers::among(&wakeups);
        // An ARP request for the interface.
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 9, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9]);
        frame.extend([10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
        let now = Instant::ZERO;
        for hears in 0..3 {
            handovers[hears].send(&mut ports[hears]);
            assert!(!wakeups.iter().any(|wakeup| has_rung(wakeup)), "nothing to tell");
            let checksum = RxChecksum::Unverified;
            let frame = RxFrame::whole(&frame, checksum, None);
            ports[hears].handle_frame(now, &frame);
            handovers[hears].send(&mut ports[hears]);
            for (index, wakeup) in wakeups.iter().enumerate() {
                assert_eq!(has_rung(wakeup), index != hears, "{index} of what came to {hears}");
                let received = handovers[index].receive(now, &mut ports[index]);
                assert_eq!(received, usize::from(index != hears));
            }
        }
    }
}
