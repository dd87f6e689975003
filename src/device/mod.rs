//! Devices by name, as in commands and environments: parsed, and opened as an endpoint.
//!
//! ```text
//!   spec    `tap:NAME,ip=…` and its kin
//!   open    the device and the endpoint on it
//! ```

mod network;
mod open;
mod settings;
mod spec;

pub use network::Network;
pub use open::DeviceError;
pub use spec::{DeviceSpec, IbPort, Interface, Kind, Socket};
