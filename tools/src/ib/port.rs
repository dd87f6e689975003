//! An InfiniBand port in `urnic info`: its link, and its DHCP address.

use serde::Serialize;
use urnic::device::IbPort;
use urnic::monotonic_now;
use urnic_ipoib::fabric::PortInfo;
use urnic_ipoib::link::{Lease, LinkState};

use crate::report;

/// Wait for the link, and then for an address.
const PATIENCE_NS: u64 = 15_000_000_000;

#[derive(Debug, Serialize)]
pub(crate) struct Port {
    node: String,
    guid: String,
    gid: Option<String>,
    lid: Option<u16>,
    up: bool,
    reason: Option<String>,
    mtu: usize,
    p_key: String,
    q_key: Option<String>,
    dhcp: Option<Dhcp>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Dhcp {
    Lease {
        address: String,
        router: Option<String>,
        server: String,
        renewal_seconds: u64,
        rebinding_seconds: u64,
        end_seconds: u64,
    },
    None {
        address: (),
    },
}

impl Dhcp {
    fn of(lease: Option<Lease>, now_ns: u64) -> Self {
        let Some(lease) = lease else { return Self::None { address: () } };
        let Lease { address, prefix_len, router, server, renewal_ns, rebinding_ns, end_ns } = lease;
        let seconds = |at_ns: u64| at_ns.saturating_sub(now_ns).div_ceil(1_000_000_000);
        Self::Lease {
            address: format!("{address}/{prefix_len}"),
            router: router.map(|router| router.to_string()),
            server: server.to_string(),
            renewal_seconds: seconds(renewal_ns),
            rebinding_seconds: seconds(rebinding_ns),
            end_seconds: seconds(end_ns),
        }
    }

    fn text(&self) -> String {
        let Self::Lease { address, router, server, renewal_seconds, end_seconds, .. } = self else {
            return "no DHCP server has answered".to_owned();
        };
        let router =
            router.as_ref().map_or_else(String::new, |router| format!(", router {router}"));
        format!(
            "{address}{router}, from {server}; renewed in {renewal_seconds} s, ends in \
             {end_seconds} s"
        )
    }
}

impl Port {
    /// Opens the port, waits for its link and address, and leaves the link.
    pub(crate) fn look(port: &IbPort) -> anyhow::Result<Self> {
        let now_ns = || monotonic_now().as_nanos();
        let mut device = port.open()?;
        let is_up = device.wait_up(PATIENCE_NS, now_ns);
        let asks = port.network.dhcp;
        let lease = if asks && is_up { device.acquire(PATIENCE_NS, now_ns) } else { None };
        let link = device.link();
        let (reason, q_key) = match link.state() {
            LinkState::Up { q_key, .. } => (None, Some(format!("{:#010x}", q_key.0))),
            LinkState::Down(reason) => (Some(reason.to_string()), None),
        };
        Ok(Self {
            node: port.node.clone(),
            guid: format!("{:#018x}", device.fabric().guid().0),
            gid: link.port().map(|info| info.gid().to_string()),
            lid: link.port().map(|info: &PortInfo| info.lid.0),
            up: reason.is_none(),
            reason,
            mtu: link.mtu(),
            p_key: format!("{:#06x}", port.p_key.0),
            q_key,
            dhcp: asks.then(|| Dhcp::of(lease, now_ns())),
        })
    }

    pub(crate) fn text(&self) -> String {
        let state = match &self.reason {
            Some(reason) => format!("down: {reason}"),
            None => "up".to_owned(),
        };
        let of = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let mut table = report::table(&["port", &self.node]);
        for (name, value) in [
            ("link", state),
            ("MTU", self.mtu.to_string()),
            ("GUID", self.guid.clone()),
            ("GID", of(self.gid.clone())),
            ("LID", of(self.lid.map(|lid| lid.to_string()))),
            ("P_Key", self.p_key.clone()),
            ("Q_Key", of(self.q_key.clone())),
        ] {
            report::row(&mut table, [name.to_owned(), value]);
        }
        if let Some(dhcp) = &self.dhcp {
            report::row(&mut table, ["address".to_owned(), dhcp.text()]);
        }
        table.to_string()
    }
}
