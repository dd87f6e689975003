//! State of the interface below a device; changes are traced.

use tracing::debug;

use crate::TRACE;
use crate::interface::Name;

/// State of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Frames pass.
    Up,
    /// No frames pass until the interface is set up again.
    Down,
    /// The interface was deleted, with the device's part of it.
    Gone,
}

impl LinkState {
    /// Records the state of the interface called `name`.
    pub(crate) fn set(&mut self, name: Name, to: Self) {
        if *self != to {
            debug!(target: TRACE, %name, from = ?self, ?to, "link changed");
            *self = to;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::sync::{Arc, Mutex};

    use tracing::field::{Field, Visit};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Dispatch, Event, Metadata, Subscriber};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<String>>);

    impl Visit for Lines {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            *self.0.lock().unwrap() += &format!("{}={value:?} ", field.name());
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == TRACE
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn link_changes_are_logged() {
        // With only one subscriber in the process, `tracing` asks the subscriber of the first
        // thread that reaches a callsite. That may be another test's thread, which has none.
        let _others = [Lines::default(), Lines::default()].map(Dispatch::new);
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            let (mut link, name) = (LinkState::Down, "veth-a".parse().unwrap());
            for to in [LinkState::Down, LinkState::Up, LinkState::Up, LinkState::Gone] {
                link.set(name, to);
            }
        });
        let told = lines.0.lock().unwrap().clone();
        assert_eq!(told.matches("link changed").count(), 2, "{told}");
        assert!(told.contains("name=veth-a from=Down to=Up"), "{told}");
    }
}
