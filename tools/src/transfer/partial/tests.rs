//! Parts of earlier attempts: how a transfer resumes them, and how their room is counted.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use urnic::Region;

use super::*;
use crate::protocol::CHUNK_LEN;
use crate::transfer::room::CHARGE_MIN;
use crate::transfer::{Folder, Hashing, sweep};

const QUOTA: u64 = 64 << 20;

struct Scene {
    folder: tempfile::TempDir,
    room: Arc<Room>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, room: Arc::new(Room::new(Some(QUOTA), 0)) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn open(&self, name: &str, len: u64) -> anyhow::Result<Partial> {
        let place = Place::at(&self.path(name)).unwrap();
        Partial::open(place, len, true, Arc::clone(&self.room))
    }

    fn names(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }
}

fn octets(len: u64, seed: u8) -> Vec<u8> {
    let octet = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0] ^ seed;
    (0..len).map(octet).collect()
}

/// Stores chunk `index` of a file with these bytes, with a wrong CRC if `is_wrong`.
fn store(partial: &mut Partial, octets: &[u8], index: u64, is_wrong: bool) -> bool {
    let len = partial.len();
    let staging = Staging::new(len, 1, Region::anonymous).unwrap();
    let source = unnamed_file().unwrap();
    source.write_all_at(octets, 0).unwrap();
    let crc = staging.load(&source, index, 0).unwrap();
    partial.store(&staging, 0, index, crc ^ u32::from(is_wrong)).unwrap()
}

fn store_all(partial: &mut Partial, octets: &[u8]) {
    for index in 0..chunk_count(partial.len()) {
        assert!(store(partial, octets, index, false));
    }
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn a_part_of_a_longer_file_is_cut() {
    let scene = Scene::new();
    let long = octets(CHUNK_LEN + 5000, 1);
    let mut partial = scene.open("name", CHUNK_LEN + 5000).unwrap();
    assert!(store(&mut partial, &long, 1, false));
    drop(partial);
    assert_eq!(fs::metadata(scene.path(".name.urnic-part")).unwrap().len(), CHUNK_LEN + 5000);
    let short = octets(1000, 2);
    let mut partial = scene.open("name", 1000).unwrap();
    assert_eq!(partial.chunks_present(), 0, "no chunk of another file is believed");
    store_all(&mut partial, &short);
    let hash = Hashing::new(1000).finish(partial.file(), || true).unwrap().unwrap();
    assert_eq!(hash, <[u8; 32]>::from(Sha256::digest(&short)));
    partial.commit().unwrap();
    assert!(read(&scene.path("name")) == short, "what was hashed, and nothing behind it");
    assert_eq!((scene.names(), scene.room.sums()), (1, (CHARGE_MIN, 1)));
}

#[test]
fn grown_part_is_cut_or_not_committed() {
    let scene = Scene::new();
    let whole = octets(1000, 3);
    let mut partial = scene.open("name", 1000).unwrap();
    store_all(&mut partial, &whole);
    drop(partial);
    let part = scene.path(".name.urnic-part");
    let grow = || File::options().write(true).open(&part).unwrap().set_len(2000).unwrap();
    grow();
    let mut partial = scene.open("name", 1000).unwrap();
    assert!(partial.is_whole() && store(&mut partial, &whole, 0, false));
    grow();
    let error = partial.commit().unwrap_err();
    assert!(error.to_string().contains("changed meanwhile"), "{error}");
    scene.open("name", 1000).unwrap().commit().unwrap();
    assert!(read(&scene.path("name")) == whole);
}

#[test]
fn a_part_of_a_shorter_file_is_begun_anew() {
    let scene = Scene::new();
    let short = octets(1000, 4);
    let mut partial = scene.open("name", 1000).unwrap();
    store_all(&mut partial, &short);
    drop(partial);
    let long = octets(CHUNK_LEN + 1, 5);
    let mut partial = scene.open("name", CHUNK_LEN + 1).unwrap();
    assert_eq!(partial.chunks_present(), 0);
    assert!(!partial.has(0, 0).unwrap() && !partial.is_whole());
    store_all(&mut partial, &long);
    partial.commit().unwrap();
    assert!(read(&scene.path("name")) == long);
}

#[test]
fn chunks_changed_on_disk_are_not_trusted() {
    let scene = Scene::new();
    let long = octets(2 * CHUNK_LEN, 6);
    let mut partial = scene.open("name", 2 * CHUNK_LEN).unwrap();
    store_all(&mut partial, &long);
    let crcs = partial.journal.chunks().clone();
    drop(partial);
    let part = File::options().write(true).open(scene.path(".name.urnic-part")).unwrap();
    part.write_all_at(&[!long[7]], 7).unwrap();
    let partial = scene.open("name", 2 * CHUNK_LEN).unwrap();
    assert!(!partial.has(0, crcs[&0]).unwrap() && partial.has(1, crcs[&1]).unwrap());
    assert!(!partial.has(1, crcs[&1] ^ 1).unwrap(), "it is another chunk that the peer has");
    part.set_len(CHUNK_LEN).unwrap();
    assert!(!partial.has(1, crcs[&1]).unwrap(), "it is gone");
}

#[test]
fn room_is_given_back_unless_something_is_kept() {
    let scene = Scene::new();
    let (len, file) = (2 * CHUNK_LEN, octets(2 * CHUNK_LEN, 7));
    let mut partial = scene.open("wrong", len).unwrap();
    assert_eq!(scene.room.sums(), (len, 1), "reserved before anything has come");
    assert!(!store(&mut partial, &file, 0, true));
    drop(partial);
    assert_eq!((scene.names(), scene.room.sums()), (0, (0, 0)), "a wrong chunk is not kept");
    let mut partial = scene.open("left", len).unwrap();
    assert!(store(&mut partial, &file, 1, false));
    drop(partial);
    assert_eq!(scene.room.sums(), (CHUNK_LEN, 1), "what has come stays counted");
    let mut partial = scene.open("left", len).unwrap();
    assert_eq!(scene.room.sums(), (len, 1), "and is not counted twice");
    assert!(store(&mut partial, &file, 0, false));
    partial.forget().unwrap();
    drop(partial);
    assert_eq!((scene.names(), scene.room.sums()), (0, (0, 0)), "it was the wrong file");
    let mut partial = scene.open("whole", len).unwrap();
    store_all(&mut partial, &file);
    partial.commit().unwrap();
    assert_eq!(scene.room.sums(), (len, 1));
    // A file that replaces another is not counted in addition to it.
    let mut partial = scene.open("whole", 1).unwrap();
    store_all(&mut partial, &[1]);
    partial.commit().unwrap();
    assert_eq!(scene.room.sums(), (CHARGE_MIN, 1));
}

#[test]
fn a_part_that_is_swept_gives_its_room_back() {
    let scene = Scene::new();
    let mut partial = scene.open("old", 2 * CHUNK_LEN).unwrap();
    assert!(store(&mut partial, &octets(2 * CHUNK_LEN, 8), 0, false));
    drop(partial);
    assert_eq!(scene.room.sums(), (CHUNK_LEN, 1));
    let folder = Folder::open(scene.folder.path()).unwrap();
    let written = fs::metadata(scene.path(".old.urnic-part")).unwrap().modified().unwrap();
    let later = written + std::time::Duration::from_secs(100);
    let age = std::time::Duration::from_secs(99);
    assert_eq!(sweep(&folder, age, later, &scene.room).unwrap(), 1);
    assert_eq!((scene.names(), scene.room.sums()), (0, (0, 0)));
}

#[test]
fn a_transfer_that_finds_no_room_leaves_nothing_and_destroys_nothing() {
    let scene = Scene::new();
    let held = scene.open("held", QUOTA - CHUNK_LEN).unwrap();
    let error = scene.open("more", CHUNK_LEN + 1).unwrap_err();
    assert!(format!("{error:#}").contains("--quota"), "{error:#}");
    assert!(!scene.path(".more.urnic-part").exists(), "nothing is left of it");
    let mut partial = scene.open("part", CHUNK_LEN).unwrap();
    assert!(store(&mut partial, &octets(CHUNK_LEN, 9), 0, false));
    drop(partial);
    scene.open("part", CHUNK_LEN + 1).unwrap_err();
    assert_eq!(scene.room.sums(), (QUOTA, 2));
    assert_eq!(scene.open("part", CHUNK_LEN).unwrap().chunks_present(), 1, "it was not touched");
    drop(held);
}

#[test]
fn a_part_whose_journal_does_not_open_is_kept() {
    let scene = Scene::new();
    let (part, journal) = (scene.path(".name.urnic-part"), scene.path(".name.urnic-journal"));
    fs::create_dir(&journal).unwrap();
    let error = scene.open("name", CHUNK_LEN).unwrap_err();
    assert!(format!("{error:#}").contains("the journal of name: "), "{error:#}");
    assert!(!part.exists(), "nothing had arrived");
    fs::remove_dir(&journal).unwrap();
    let mut partial = scene.open("name", 2 * CHUNK_LEN).unwrap();
    assert!(store(&mut partial, &octets(2 * CHUNK_LEN, 10), 0, false));
    drop(partial);
    let elsewhere = scene.path("elsewhere");
    fs::rename(&journal, &elsewhere).unwrap();
    fs::create_dir(&journal).unwrap();
    scene.open("name", 2 * CHUNK_LEN).unwrap_err();
    assert!(part.exists(), "it would be all that there is");
    assert_eq!(scene.room.sums(), (CHUNK_LEN, 1), "and it stays counted");
    fs::remove_dir(&journal).unwrap();
    fs::rename(&elsewhere, &journal).unwrap();
    assert_eq!(scene.open("name", 2 * CHUNK_LEN).unwrap().chunks_present(), 1);
}

#[test]
fn a_file_is_received_by_one_transfer_at_a_time() {
    let scene = Scene::new();
    let first = scene.open("name", 10).unwrap();
    let error = scene.open("name", 10).unwrap_err();
    assert!(format!("{error:#}").contains("another transfer"), "{error:#}");
    assert!(scene.path(".name.urnic-part").exists(), "the other goes on");
    drop(first);
    assert_eq!((scene.names(), scene.room.sums()), (0, (0, 0)));
}

/// Two transfers that begin at once: one has renamed its part while the other waited for the lock.
#[test]
fn a_part_whose_name_is_another_file_by_now_is_busy() {
    let scene = Scene::new();
    let place = Place::at(&scene.path("file")).unwrap();
    let part = scene.folder.path().join(place.name_with(PART));
    let first = File::from(open_own(&place, place.name_with(PART)).unwrap());
    lock(&place, &first).unwrap();
    fs::write(scene.path("other"), b"x").unwrap();
    fs::rename(scene.path("other"), &part).unwrap();
    assert!(lock(&place, &first).unwrap_err().to_string().contains("another transfer"));
    fs::remove_file(&part).unwrap();
    assert!(lock(&place, &first).is_err(), "the name is gone");
}

#[test]
fn part_with_a_short_last_chunk_is_charged_at_most_the_file() {
    let scene = Scene::new();
    let octets = octets(100, 1);
    let mut partial = scene.open("file", 100).unwrap();
    store_all(&mut partial, &octets);
    drop(partial);
    assert_eq!(scene.room.sums(), (CHARGE_MIN, 1));
}

#[test]
fn a_part_is_whole_with_its_last_chunk() {
    let scene = Scene::new();
    let octets = octets(CHUNK_LEN + 1, 2);
    let mut partial = scene.open("file", CHUNK_LEN + 1).unwrap();
    for index in [1, 0] {
        assert!(!partial.is_whole());
        assert!(store(&mut partial, &octets, index, false));
    }
    assert!(partial.is_whole());
}
