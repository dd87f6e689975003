//! The side that moves the data: a Read from the client, a Write back to it.

use anyhow::{Context, bail};
use urnic::{
    Access, ConnectRequest, Mr, Offer, Pd, RemoteBuffer, SendWr, Stag, TaggedOffset, WrId,
};

use super::session::PeerClosed;
use super::{Descriptor, READS, SIZE_MAX, Session, pattern};
use crate::report::print;

#[derive(Debug)]
pub(crate) struct Server {
    buffer: Mr,
    verbose: bool,
}

impl Server {
    pub(crate) fn new(pd: &Pd, verbose: bool) -> anyhow::Result<Self> {
        Ok(Self { buffer: pd.reg_mr(SIZE_MAX, Access::LOCAL_WRITE)?, verbose })
    }

    /// Serves the client until it closes; returns the number of pings.
    pub(crate) fn run(
        &self,
        mut session: Session<'_>,
        request: ConnectRequest,
    ) -> anyhow::Result<u64> {
        let offer = Offer { private_data: b"", ird: READS, ord: READS };
        let connecting = request.accept(session.qp(), &offer)?;
        let connection = connecting.wait(session.timeout()).context("cannot accept")?;
        session.connected(connection);
        let mut pings = 0;
        loop {
            match self.serve_ping(&mut session) {
                Ok(()) => pings += 1,
                // The normal end.
                Err(error) if error.downcast_ref::<PeerClosed>().is_some() => {
                    session.close()?;
                    return Ok(pings);
                }
                Err(error) => return Err(error.context(format!("ping {pings}"))),
            }
        }
    }

    fn serve_ping(&self, session: &mut Session<'_>) -> anyhow::Result<()> {
        let source = session.receive()?;
        let size = checked_size(source)?;
        let read = SendWr::read(WrId(READ_ID), source.buffer, self.buffer.sge(0..size));
        session.perform(read).context("reading the client's source")?;
        if self.verbose {
            let mut octets = vec![0; size];
            self.buffer.copy_out(0, &mut octets);
            print(&format!("server ping data: {}", pattern::text(&octets)))?;
        }
        session.send(GO_AHEAD)?;
        let sink = session.receive().context("waiting for the client's sink")?;
        let size = checked_size(sink)?.min(size);
        let write = SendWr::write(WrId(WRITE_ID), sink.buffer, [self.buffer.sge(0..size)]);
        session.perform(write).context("writing to the client's sink")?;
        session.send(GO_AHEAD)
    }
}

fn checked_size(descriptor: Descriptor) -> anyhow::Result<usize> {
    match usize::try_from(descriptor.size) {
        Ok(size) if size <= SIZE_MAX => Ok(size),
        _ => bail!("the client's buffer of {} bytes is above {SIZE_MAX}", descriptor.size),
    }
}

/// The contents have no meaning.
const GO_AHEAD: Descriptor =
    Descriptor { buffer: RemoteBuffer { stag: Stag(0), to: TaggedOffset(0) }, size: 0 };
const READ_ID: u64 = 2;
const WRITE_ID: u64 = 3;
