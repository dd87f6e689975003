//! The side that owns the buffers and compares them.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use urnic::{Access, ConnectOptions, Mr, Pd};

use super::{Descriptor, READS, Session, pattern};
use crate::host::{Host, Payload};
use crate::report::print;

#[derive(Debug)]
pub(crate) struct Client {
    source: Mr,
    sink: Mr,
    verbose: bool,
    validate: bool,
}

impl Client {
    pub(crate) fn new(pd: &Pd, size: usize, verbose: bool, validate: bool) -> anyhow::Result<Self> {
        Ok(Self {
            source: pd.reg_mr(size, Access::REMOTE_READ)?,
            sink: pd.reg_mr(size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            verbose,
            validate,
        })
    }

    /// Returns the first failure, or difference.
    pub(crate) fn run(
        &self,
        mut session: Session<'_>,
        host: &Host,
        server: SocketAddr,
        options: ConnectOptions,
        count: Option<u64>,
    ) -> anyhow::Result<()> {
        let options = ConnectOptions { ird: READS, ord: READS, ..options };
        let connecting = host.endpoint.connect(server, session.qp(), &options)?;
        let connection = connecting
            .wait(session.timeout())
            .with_context(|| format!("cannot connect to {server}"))?;
        host.note_framing(connection.terms().framing, Payload::Both);
        session.connected(connection);
        let mut number = 0;
        while count.is_none_or(|count| number < count) {
            self.ping(&mut session, number).with_context(|| format!("ping {number}"))?;
            number += 1;
        }
        session.close()
    }

    fn ping(&self, session: &mut Session<'_>, number: u64) -> anyhow::Result<()> {
        let octets = pattern::ping(number, self.source.len());
        self.source.copy_in(0, &octets);
        session.send(describe(&self.source))?;
        session.receive()?;
        session.send(describe(&self.sink))?;
        session.receive()?;
        let mut came = vec![0; self.sink.len()];
        self.sink.copy_out(0, &mut came);
        if self.validate && came != octets {
            let at = came.iter().zip(&octets).position(|(a, b)| a != b).unwrap_or_default();
            bail!("data mismatch: byte {at} of {} is wrong", octets.len());
        }
        if self.verbose {
            print(&format!("ping data: {}", pattern::text(&came)))?;
        }
        Ok(())
    }
}

fn describe(mr: &Mr) -> Descriptor {
    let size = u32::try_from(mr.len()).expect("a ping is at most 64 KiB");
    Descriptor { buffer: mr.remote(0), size }
}
