//! Devices of the commands, opened. The library parses `--dev`; `info` explains it.

mod awaited;
mod state;

use std::time::Duration;

use anyhow::anyhow;
use urnic::device::DeviceError;
use urnic::{Endpoint, EndpointConfig, Rnic};

pub(crate) use awaited::awaited;
pub(crate) use state::{Problem, problem};
pub(crate) use urnic::device::DeviceSpec;

/// Waits for at most `patience` for the process at its other end. Errors say what to do.
pub(crate) fn open(
    spec: &DeviceSpec,
    rnic: &Rnic,
    config: &EndpointConfig,
    patience: Duration,
) -> anyhow::Result<Endpoint> {
    let opened =
        awaited(patience, DeviceError::is_absent_peer, || false, || spec.open(rnic, config));
    opened.map_err(|error| match error {
        DeviceError::Device(error) => anyhow!(error).context(format!("--dev {spec}")),
        DeviceError::Endpoint(error) => anyhow!(error).context("opening an endpoint"),
        other => other.into(),
    })
}
