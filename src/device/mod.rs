//! Devices by name, as in commands and environments: parsed, and opened as an endpoint.
//!
//! ```text
//!   spec    `tap:NAME,ip=…` and its kin
//!   open    the device and the endpoint on it
//! ```
//!
//! The cargo feature `ib` adds `ib:…`.

mod network;
mod open;
mod settings;
mod spec;

pub use network::Network;
pub use open::DeviceError;
#[cfg(feature = "ib")]
pub use spec::IbPort;
pub use spec::{DeviceSpec, Interface, Kind, Socket};
