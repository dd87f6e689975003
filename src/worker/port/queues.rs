//! The ports of several queues with one worker, for an endpoint without threads.

use std::task::Waker;

use urnic_netdev::Device;

use crate::mail::command::Command;
use crate::mail::figures::EndpointFigures;
use crate::mail::wakeup::Wakeup;
use crate::worker::engine::{Engine, Owed};
use crate::worker::listen::listen_at_all;
use crate::worker::port::{PortEngine, wait_for_any};
use urnic_engine::time::Instant;

/// Engines of the queues of one interface, at least one.
#[derive(Debug)]
pub(crate) struct Queues<D> {
    engines: Vec<PortEngine<D>>,
    next: usize,
}

impl<D: Device + Send> Queues<D> {
    pub(crate) const fn new(engines: Vec<PortEngine<D>>) -> Self {
        Self { engines, next: 0 }
    }

    fn listen(&mut self, command: Command) {
        let Command::Listen { local, params, requests, reply } = command else { return };
        let listening = listen_at_all(
            &mut self.engines,
            local,
            |engine, local| engine.listen(local, params.clone(), requests.clone()),
            PortEngine::unlisten,
        );
        // The caller may no longer wait.
        drop(reply.send(listening));
    }
}

impl<D: Device + Send> Engine for Queues<D> {
    fn handle_command(&mut self, now: Instant, command: Command) {
        let index = match &command {
            Command::Listen { .. } => return self.listen(command),
            Command::Unlisten { local, reply: _ } => {
                for engine in &mut self.engines {
                    engine.unlisten(*local);
                }
                return;
            }
            Command::Release { qp, reply } => {
                for engine in &mut self.engines {
                    let command = Command::Release { qp: qp.clone(), reply: reply.clone() };
                    engine.handle_command(now, command);
                }
                return;
            }
            Command::Figures { reply } => {
                let mut all = EndpointFigures::default();
                for engine in &self.engines {
                    all.add(engine.figures());
                }
                return drop(reply.send(all));
            }
            Command::Connect { .. } => {
                self.next = (self.next + 1) % self.engines.len();
                self.next
            }
            _ => match command.key() {
                // A connection that is over has no port.
                Some(key) => match self.engines.iter().position(|engine| engine.has(key)) {
                    Some(index) => index,
                    None => return,
                },
                None => 0,
            },
        };
        self.engines[index].handle_command(now, command);
    }

    fn turn(&mut self, now: Instant) -> usize {
        self.engines.iter_mut().map(|engine| engine.turn(now)).sum()
    }

    fn next_wakeup(&mut self) -> Option<Instant> {
        self.engines.iter_mut().filter_map(Engine::next_wakeup).min()
    }

    fn arm(&mut self, waker: &Waker) -> bool {
        let mut quiet = true;
        for engine in &mut self.engines {
            quiet &= engine.arm(waker);
        }
        quiet
    }

    fn disarm(&mut self, waker: &Waker) {
        self.engines.iter_mut().for_each(|engine| engine.disarm(waker));
    }

    fn wait(&mut self, now: Instant, deadline: Option<Instant>, wakeup: &Wakeup) {
        wait_for_any(&self.engines, now, deadline, wakeup);
    }

    fn shutdown(&mut self, now: Instant) {
        for engine in &mut self.engines {
            engine.shutdown(now);
        }
    }

    fn close_all(&mut self, now: Instant) {
        for engine in &mut self.engines {
            engine.close_all(now);
        }
    }

    fn owed(&self) -> Owed {
        self.engines.iter().map(Engine::owed).max().unwrap_or(Owed::Nothing)
    }

    fn abort_owing(&mut self) {
        self.engines.iter_mut().for_each(Engine::abort_owing);
    }
}

#[cfg(test)]
mod tests {
    use crossbeam::channel::unbounded;
    use urnic_netdev::memory::{LinkConfig, pair};

    use super::*;
    use crate::config::ConnectOptions;
    use crate::mail::channel::unlimited;
    use crate::mail::command::outbox::Outbox;
    use urnic_engine::port::{Port, PortConfig};
    use urnic_engine::verbs::{QpConfig, Rnic, RnicConfig};

    #[test]
    fn queues_open_connections_in_turn() {
        let rnic = Rnic::new(RnicConfig { seed: 1.into() });
        let (commands, _receiver) = unbounded();
        let outbox = Outbox::new(commands, Wakeup::new().unwrap());
        let engines = (0..3).map(|_| {
            let (device, _peer) = pair(LinkConfig::default());
            let config = PortConfig::for_ipv4([10, 0, 0, 1].into());
            let port = Port::new(&rnic, config, device.capabilities());
            PortEngine::new(port, device, outbox.clone(), None)
        });
        let mut queues = Queues::new(engines.collect());
        let (pd, cq) = (rnic.alloc_pd(), rnic.create_cq(16).unwrap());
        let mut counts = [0; 3];
        for _ in 0..6 {
            let (key, (notices, _told)) = (outbox.next_key(), unlimited());
            let qp = pd.create_qp(QpConfig::new(&cq)).unwrap();
            let options = Box::new(ConnectOptions::default());
            let remote = ([10, 0, 0, 2], 7174).into();
            let connect = Command::Connect { key, remote, qp, options, notices };
            queues.handle_command(Instant::ZERO, connect);
            for (count, engine) in counts.iter_mut().zip(&queues.engines) {
                *count += usize::from(engine.has(key));
            }
            assert_eq!(queues.owed(), Owed::Octets, "whichever queue owes them");
        }
        assert_eq!(counts, [2, 2, 2]);
    }
}
