use super::*;

/// An unnamed file for one test.
fn scratch_file(content: &[u8]) -> File {
    use std::io::Write as _;
    let path = std::env::temp_dir().join(format!(
        "urnic-region-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut file =
        File::options().read(true).write(true).create_new(true).open(&path).expect("scratch file");
    std::fs::remove_file(&path).unwrap();
    file.write_all(content).unwrap();
    file
}

#[test]
fn new_memory_is_zero_and_keeps_what_is_written() {
    let region = Region::anonymous(5000).unwrap();
    let mut out = [1; 5000];
    region.read(0, &mut out).unwrap();
    assert!(out.iter().all(|&octet| octet == 0));
    region.write(4990, &[9; 10]).unwrap();
    region.read(0, &mut out).unwrap();
    assert_eq!(out[4989..], [0, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9]);
    assert_eq!((region.len(), region.pages()), (5000, PageKind::Base));
    region.flush().unwrap();
}

#[test]
fn a_range_beyond_the_region_is_refused() {
    let region = Region::anonymous(100).unwrap();
    assert!(region.slice(0, 100).is_some());
    assert!(region.slice(100, 0).is_some());
    assert!(region.slice(0, 101).is_none());
    assert!(region.slice(101, 0).is_none());
    assert!(region.slice(1, usize::MAX).is_none());
    assert!(region.slice(usize::MAX, 1).is_none());
    assert_eq!(region.read(99, &mut [0; 2]), Err(RegionMisuse::OutsideRegion));
    assert_eq!(region.write(99, &[0; 2]), Err(RegionMisuse::OutsideRegion));
}

#[test]
fn a_region_without_octets_is_legal() {
    for region in [Region::anonymous(0).unwrap(), Region::huge(0).unwrap()] {
        assert!(region.is_empty());
        assert!(region.slice(0, 0).is_some_and(|slice| slice.is_empty()));
        assert!(region.slice(0, 1).is_none());
        region.write(0, &[]).unwrap();
    }
}

#[test]
fn an_absurd_length_is_an_error() {
    assert!(Region::anonymous(usize::MAX).is_err());
    assert!(Region::huge(usize::MAX).is_err());
    assert!(Region::huge(usize::MAX / 2).is_err());
}

fn octet_at(region: &Region, offset: usize) -> u8 {
    let mut octet = [0];
    region.slice(offset, 1).unwrap().copy_out(0, &mut octet);
    octet[0]
}

#[test]
#[cfg_attr(miri, ignore = "maps huge pages")]
fn huge_pages_fall_back_to_ordinary_pages() {
    let region = Region::huge(3_000_000).unwrap();
    assert_eq!(region.len(), 3_000_000);
    region.write(2_999_999, &[1]).unwrap();
    assert_eq!(octet_at(&region, 2_999_999), 1);
    assert!(region.slice(2_999_999, 2).is_none());
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn mapped_file_shows_its_content_and_stores_writes() {
    use std::os::unix::fs::FileExt as _;
    let file = scratch_file(b"0123456789");
    let region = Region::file(&file, 3, 5).unwrap();
    let mut out = [0; 5];
    region.read(0, &mut out).unwrap();
    assert_eq!(&out, b"34567");
    region.write(1, b"abc").unwrap();
    region.flush().unwrap();
    let mut content = [0; 10];
    file.read_exact_at(&mut content, 0).unwrap();
    assert_eq!(&content, b"0123abc789");
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_read_only_file_cannot_be_written() {
    let file = scratch_file(b"0123456789");
    let region = Region::file_read_only(&file, 0, 10).unwrap();
    assert!(!region.is_writable());
    assert!(region.writable(0, 1).is_none());
    assert_eq!(region.write(0, b"x"), Err(RegionMisuse::ReadOnlyMemory));
    assert_eq!(octet_at(&region, 9), b'9');
    region.flush().unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_range_beyond_the_file_is_refused() {
    let file = scratch_file(&[1; 100]);
    assert!(Region::file(&file, 0, 101).is_err());
    assert!(Region::file(&file, 101, 0).is_err());
    assert!(Region::file(&file, u64::MAX, 1).is_err());
    assert!(Region::file_read_only(&file, 99, 2).is_err());
    assert!(Region::file(&file, 100, 0).unwrap().is_empty());
}

#[test]
fn caller_memory_is_written_without_a_copy() {
    let mut memory = [0_u8; 64];
    // SAFETY: `memory` outlives the region, which is dropped below, and is not used meanwhile.
    let region = unsafe { Region::from_raw_parts(memory.as_mut_ptr(), 64) };
    region.write(10, &[1, 2, 3]).unwrap();
    drop(region);
    assert_eq!(memory[9..14], [0, 1, 2, 3, 0]);
}

#[test]
fn octets_of_the_caller_are_read_unchanged() {
    let memory = *b"some octets";
    let mut bytes = [0; 6];
    // SAFETY: bytes of this test, which nothing else accesses.
    unsafe { Region::read_raw(memory.as_ptr().wrapping_add(5), &mut bytes) };
    assert_eq!(&bytes, b"octets");
}
