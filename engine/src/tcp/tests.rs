//! Whole-connection tests: scripts against one connection, and two connections over a bad network.

mod close;
mod ecn;
mod goodput;
mod handshake;
mod in_order;
mod path;
mod persist;
mod random;
mod recovery;
mod robust;
mod script;
mod sim;
mod tail;
mod time_wait;
mod timeout;
mod timestamps;
mod undo;
mod window;
