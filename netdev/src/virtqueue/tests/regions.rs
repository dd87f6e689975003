//! Where queues and tables of descriptors may lie: in one region, which the device can write where it has to.

use super::*;

#[test]
fn a_table_of_descriptors_lies_in_one_region() {
    let file = memory();
    let whole = Descriptor { address: GUEST + BUFFERS, len: 64, flags: 0, next: 0 };
    for (cut, len) in [(SOUND + 16, Err(ChainFault::Table)), (SOUND + 32, Ok(128))] {
        let table = table(&file, &[cut]);
        let mut queue = DeviceQueue::new(&table, layout(&table, 8), false, 0);
        let mut writer = Writer::new(&file, 8);
        writer.descriptor(SOUND, 0, Descriptor { flags: NEXT, next: 1, ..whole });
        writer.descriptor(SOUND, 1, whole);
        let of_two = Descriptor { address: GUEST + SOUND, flags: INDIRECT, len: 32, next: 0 };
        writer.descriptor(DESCRIPTORS, 0, of_two);
        writer.offer(0);
        let chain = queue.take(&table, Direction::ToDevice, &mut Vec::new()).unwrap().unwrap();
        assert_eq!(chain.len, len);
    }
}

/// A device writes to its queues: in memory that it can only read, none is set up.
#[test]
fn a_queue_does_not_lie_in_memory_that_is_read_only() {
    let (file, _mapping) = crate::sys::published::memory(NAME, LEN).unwrap();
    let table = table(&file, &[]);
    let parts = [USER + DESCRIPTORS, USER + AVAILABLE, USER + USED];
    assert_eq!(
        Layout::new(&table, 8, parts).map(|layout| layout.size()),
        Err(LayoutError::Address)
    );
    let mut runs = Vec::new();
    assert_eq!(table.guest_runs(GUEST + BUFFERS, 64, Direction::ToDevice, &mut runs), Ok(()));
    assert_eq!(runs.len(), 1, "data is read there");
}
