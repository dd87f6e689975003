//! rsockets, the sockets of librdmacm: streams of bytes with the calls of sockets, over rdma_cm. What is on the
//! wire is what rdma-core's speak over iWARP.
//!
//! ```text
//!   wire       messages, and the private data of a connection
//!   stream     one end of a stream: credits, rings, what was posted
//!   socket     what a socket is in, what moves it on, how calls wait
//!   transfer   sending and receiving;   iomap   memory that peers write by `riowrite`
//!   signal     how those that wait are told;   poll   `rpoll` and `rselect`
//!   lingering  connections of sockets that are closed
//!   calls      the functions of C;   pieces   C's memory;   kernel   sockets for this library itself
//! ```
//!
//! Calls move their socket on themselves; in between the peer writes into its ring, as far as it was given
//! room, and no thread is needed for that.

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
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use socket::Socket;

use crate::errno::Errno;
use crate::fork;

/// The sockets of the process, by their descriptors.
static SOCKETS: LazyLock<RwLock<HashMap<RawFd, Arc<Socket>>>> = LazyLock::new(RwLock::default);

/// The socket of a descriptor; EBADF if it is none.
fn lookup(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    let sockets = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    sockets.get(&fd).cloned().ok_or(Errno(libc::EBADF))
}

/// As [`lookup`], of a socket that works in this process: a parent's does not.
fn usable(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    lookup(fd).and_then(|socket| if socket.is_own() { Ok(socket) } else { Err(Errno(libc::EBADF)) })
}

/// Makes it known by its descriptor, which is returned.
fn insert(socket: Socket) -> RawFd {
    let fd = socket.fd;
    let replaced =
        SOCKETS.write().unwrap_or_else(PoisonError::into_inner).insert(fd, Arc::new(socket));
    if let Some(replaced) = replaced {
        // The program has closed its descriptor by `close`.
        fork::forget(replaced);
    }
    fd
}

fn remove(fd: RawFd) -> Result<Arc<Socket>, Errno> {
    let mut sockets = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    sockets.remove(&fd).ok_or(Errno(libc::EBADF))
}
