//! IPsec's Encapsulating Security Payload (ESP, RFC 4303), sans-IO.
//!
//! [`processor::Esp`] is the whole: a database of policies (RFC 4301 §4.4.1), one of associations
//! (§4.4.2), and the two paths of packets through them. It has no socket, clock, thread or source of
//! randomness: time is an argument in nanoseconds, packets are slices, keys come from a key
//! exchange that is somewhere else.
//!
//! The rooms, from below: [`wire`] reads and writes headers, [`crypto`] has the algorithms,
//! [`window`] the anti-replay window, [`lifetime`] the limits of an association, [`selector`] and
//! [`policy`] decide what is protected, [`association`] seals and opens packets, [`waiting`] keeps
//! packets until there is an association, [`overhead`] says how long a packet may be.
#![forbid(unsafe_code)]

pub mod association;
pub mod counters;
pub mod crypto;
pub mod key;
pub mod lifetime;
pub mod limits;
pub mod overhead;
pub mod policy;
pub mod processor;
pub mod selector;
pub mod waiting;
pub mod window;
pub mod wire;
