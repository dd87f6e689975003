//! rsockets, the sockets of librdmacm: byte streams with the calls of sockets, over rdma_cm. The
//! wire format is that of rdma-core's rsockets over iWARP.
//!
//! ```text
//!   wire       messages, and the private data of a connection
//!   stream     one end of a stream: credits, rings, posted requests
//!   socket     states of a socket, the steps between them, and waiting calls
//!   transfer   sending and receiving;   iomap   memory that peers write by `riowrite`
//!   signal     wake-ups of waiting calls;   poll   `rpoll` and `rselect`
//!   lingering  connections of closed sockets
//!   calls      the functions of C;   pieces   C's memory;   kernel   sockets for this library itself
//! ```
//!
//! Calls advance their socket themselves. Between calls the peer writes into its ring, as far as
//! its credits allow, without any thread of this end.

mod calls;
mod iomap;
mod kernel;
mod lingering;
mod options;
mod pieces;
mod poll;
mod signal;
mod socket;
mod stream;
mod transfer;
mod wire;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, PoisonError, RwLock};

use socket::Socket;

use crate::errno::Errno;
use crate::fork::{self, PerProcess};

type Sockets = RwLock<HashMap<RawFd, Arc<Socket>>>;

static SOCKETS: PerProcess<Sockets> = PerProcess::new(inherit);

/// A forked child can only close the parent's sockets. None if a thread of the parent was opening
/// or closing one during the fork.
fn inherit(parents: Option<&Sockets>) -> Sockets {
    let inherited = parents.and_then(|parents| parents.try_read().ok());
    inherited.map(|sockets| RwLock::new(sockets.clone())).unwrap_or_default()
}

/// EBADF if there is none.
fn lookup(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    let sockets = SOCKETS.of_this().read().unwrap_or_else(PoisonError::into_inner);
    sockets.get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// Refuses a socket inherited from a parent process, which does not work here.
fn usable(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    lookup(fd).and_then(|socket| if socket.is_own() { Ok(socket) } else { Err(Errno(libc::EBADF)) })
}

fn insert(socket: Socket) -> RawFd {
    let fd = socket.fd;
    let mut sockets = SOCKETS.of_this().write().unwrap_or_else(PoisonError::into_inner);
    let replaced = sockets.insert(fd, Arc::new(socket));
    drop(sockets);
    if let Some(replaced) = replaced {
        // The application closed the old socket's descriptor by `close`.
        fork::forget(replaced);
    }
    fd
}

fn remove(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    let mut sockets = SOCKETS.of_this().write().unwrap_or_else(PoisonError::into_inner);
    sockets.remove(&fd).ok_or(Errno(libc::EBADF))
}
