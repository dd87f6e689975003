//! Rooms that the directions of all connections share, each with a limit.

use urnic_engine::mpa::pieces::PieceStore;

use crate::limits::{NOTES_MAX, Room, STARTS_MAX, WAITING_MAX};
use crate::observe::image::ImageBudget;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) store: PieceStore,
    pub(super) waiting_room: Room,
    pub(crate) notes: Room,
    pub(super) starts: Room,
    pub(crate) images: ImageBudget,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            store: PieceStore::default(),
            waiting_room: Room::new(WAITING_MAX),
            notes: Room::new(NOTES_MAX),
            starts: Room::new(STARTS_MAX),
            images: ImageBudget::new(),
        }
    }

    pub(crate) fn without_images() -> Self {
        Self { images: ImageBudget::off(), ..Self::new() }
    }
}
