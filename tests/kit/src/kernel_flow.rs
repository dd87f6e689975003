//! A flow of the kernel's TCP with CUBIC at full speed, and a count of the received bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// A running flow; it ends when it is dropped.
#[derive(Debug)]
pub struct KernelFlow {
    sending: TcpStream,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl KernelFlow {
    /// Starts to send to `listener`, which may be in another namespace.
    ///
    /// # Errors
    /// If the kernel has no CUBIC, or the listener cannot be reached.
    pub fn start(listener: &TcpListener) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_tcp_congestion(b"cubic")?;
        socket.connect(&address.into())?;
        let sending = TcpStream::from(socket);
        let (mut arriving, _) = listener.accept()?;
        let mut source = sending.try_clone()?;
        let received = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&received);
        let threads = vec![
            // Both threads run until the connection ends.
            thread::spawn(move || while source.write_all(&[0x5a; 64 << 10]).is_ok() {}),
            thread::spawn(move || {
                let mut buffer = vec![0; 256 << 10];
                while let Ok(len @ 1..) = arriving.read(&mut buffer) {
                    count.fetch_add(len as u64, Ordering::Relaxed);
                }
            }),
        ];
        Ok(Self { sending, received, threads })
    }

    /// Returns the number of bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for KernelFlow {
    fn drop(&mut self) {
        // A reset: data in flight is not needed.
        let _reset = SockRef::from(&self.sending).set_linger(Some(std::time::Duration::ZERO));
        let _ended = self.sending.shutdown(Shutdown::Both);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}
