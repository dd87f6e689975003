//! Pages of memory in an unnamed file: placed data may exceed the memory limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(crate) const PAGE_LEN: usize = 4096;

/// Created with the first page, and deleted with the process.
#[derive(Debug, Default)]
pub(crate) struct PageFile {
    file: Option<File>,
    count: u32,
    free: Vec<Slot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(u32);

impl PageFile {
    pub(crate) fn keep(&mut self, page: &[u8]) -> io::Result<Slot> {
        assert_eq!(page.len(), PAGE_LEN, "a whole page");
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let slot = self.free.last().copied().unwrap_or(Slot(self.count));
        file.write_all_at(page, slot.offset(0))?;
        if self.free.pop().is_none() {
            self.count += 1;
        }
        Ok(slot)
    }

    pub(crate) fn write(&self, slot: Slot, start: usize, octets: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(octets, slot.offset(start))
    }

    pub(crate) fn read(&self, slot: Slot, page: &mut [u8; PAGE_LEN]) -> io::Result<()> {
        self.file()?.read_exact_at(page, slot.offset(0))
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Slot {
    const fn offset(self, start: usize) -> u64 {
        self.0 as u64 * PAGE_LEN as u64 + start as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_file_returns_written_pages_and_reuses_slots() {
        let mut pages = PageFile::default();
        let slots = [1, 2, 3].map(|value| pages.keep(&[value; PAGE_LEN]).unwrap());
        pages.write(slots[1], PAGE_LEN - 2, &[7, 8]).unwrap();
        let mut page = [0; PAGE_LEN];
        pages.read(slots[1], &mut page).unwrap();
        assert_eq!((page[0], page[PAGE_LEN - 2..].to_vec()), (2, vec![7, 8]));
        pages.read(slots[2], &mut page).unwrap();
        assert_eq!(page, [3; PAGE_LEN], "its neighbour is as it was");
        pages.release(slots[0]);
        assert_eq!(pages.keep(&[4; PAGE_LEN]).unwrap(), slots[0]);
        assert_eq!(pages.keep(&[5; PAGE_LEN]).unwrap(), Slot(3));
    }
}
