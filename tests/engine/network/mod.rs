//! A port on real networks: with routers and VLANs, changing paths, links that go down, neighbours
//! that move, and ordinary sockets beside the engine.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::cast_possible_truncation, reason = "test octets are made of low octets")]

mod cookies;
mod dhcp;
mod fragments;
pub(crate) mod frames;
mod full;
mod host;
mod link;
mod listen;
mod mtu;
mod neighbours;
mod no_neighbour;
mod noise;
mod scene;
mod trace;
mod unreachable;
mod vlan;
mod wire;
