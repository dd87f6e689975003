//! One listener at several queues.

use std::net::SocketAddr;

use crate::error::Error;

/// Listens at all queues, or at none; the first one chooses a port for 0. Returns the address.
pub(crate) fn listen_at_all<Q>(
    queues: &mut [Q],
    mut local: SocketAddr,
    mut listen: impl FnMut(&mut Q, SocketAddr) -> Result<SocketAddr, Error>,
    mut unlisten: impl FnMut(&mut Q, SocketAddr),
) -> Result<SocketAddr, Error> {
    for index in 0..queues.len() {
        match listen(&mut queues[index], local) {
            Ok(chosen) => local = chosen,
            Err(error) => {
                for queue in &mut queues[..index] {
                    unlisten(queue, local);
                }
                return Err(error);
            }
        }
    }
    Ok(local)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        ([10, 0, 0, 1], port).into()
    }

    #[test]
    fn all_queues_listen_at_the_port_that_the_first_chooses() {
        let mut queues = [None; 3];
        let listening = listen_at_all(
            &mut queues,
            at(0),
            |queue, local| {
                let chosen = if local.port() == 0 { at(50_000) } else { local };
                *queue = Some(chosen);
                Ok(chosen)
            },
            |_, _| unreachable!("none refuses"),
        );
        assert_eq!(listening, Ok(at(50_000)));
        assert_eq!(queues, [Some(at(50_000)); 3]);
    }

    #[test]
    fn no_queue_listens_when_one_refuses() {
        let mut queues = [(0, false), (1, false), (2, false)];
        let listening = listen_at_all(
            &mut queues,
            at(7174),
            |queue, local| {
                if queue.0 == 2 {
                    return Err(Error::Closed);
                }
                queue.1 = true;
                Ok(local)
            },
            |queue, local| {
                assert_eq!(local, at(7174));
                queue.1 = false;
            },
        );
        assert_eq!(listening, Err(Error::Closed));
        assert!(queues.iter().all(|queue| !queue.1));
    }
}
