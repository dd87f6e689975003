//! `librdmacm`: connection ids, their events, connections.
//!
//! Calls of the application and one thread of the library (`crate::turn`) share the ids:
//!
//! 1. A call of the application changes the phase of an id, under the lock of the phase, and
//!    requests a turn of the id.
//! 2. In a turn, the thread handles what happened to the id's connection, under the same lock, and
//!    queues events at the id's channel.
//! 3. The application takes an event, and acknowledges it.
//! 4. A call that destroys the id sets the phase to `Ended`, removes the queued events, and waits
//!    until the taken ones are acknowledged.
//!
//! Racy cases:
//!
//! - *A turn is requested or runs while the id is destroyed.* The turn finds the phase `Ended`, and
//!   queues no event. If it holds the lock first, its events are removed in step 4.
//! - *The id migrates to another channel while a turn queues events.* Both hold the lock of the
//!   id's channel, so all events go to one of the two channels, in order.
//! - *A thread waits at a channel that is destroyed.* See `crate::waited`.

pub(crate) mod address;
mod addrinfo;
mod connect;
mod create;
mod end;
mod ep;
mod event;
mod id;
mod listen;
mod options;
mod own_qp;
mod param;
mod peer_end;
mod ports;
mod probe;
mod queue_pair;
mod shared_queue;
mod show;
pub(crate) mod socket;
mod sync;
mod turn;
mod udp_users;
mod user_event;
mod wait;
