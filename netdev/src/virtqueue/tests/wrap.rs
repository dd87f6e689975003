//! Indices: ahead of the ring, and wrapping to zero.

use super::*;

/// More entries than an index has values: each side gets an event for the entry that it waits for,
/// and for no other.
#[test]
fn event_indices_are_kept_over_the_wrap() {
    let file = memory();
    let table = table(&file, &[]);
    let layout = layout(&table, 8);
    let mut device = DeviceQueue::new(&table, layout, true, 0);
    let mut driver = DriverQueue::new(layout, true);
    let mut runs = Vec::new();
    for round in 0..140_000_u32 {
        // Number of entries at a time, and whether each side waits for them.
        let count = u16::try_from(round % 5 + 1).unwrap();
        let (device_waits, driver_waits) = (round % 3 == 0, round % 7 < 2);
        assert!(!(device_waits && device.arm(&table, 0)), "{round}: nothing is there");
        assert!(!(driver_waits && driver.arm(&table)), "{round}: nothing is back");
        for number in 0..count {
            driver.offer(&table, number, GUEST + BUFFERS, 64, Direction::ToDevice);
        }
        assert_eq!(driver.publish(&table), device_waits, "{round}: a kick");
        assert!(!device_waits || device.arm(&table, 0), "{round}: it is there already");
        for _ in 0..count {
            runs.clear();
            let chain = device.take(&table, Direction::ToDevice, &mut runs).unwrap().unwrap();
            assert_eq!(chain.len, Ok(64));
            device.give_back(&table, chain.head, 0);
        }
        assert_eq!(device.publish(&table), driver_waits, "{round}: a call");
        for _ in 0..count {
            assert_eq!(driver.waiting(&table).map(|waiting| waiting > 0), Ok(true));
            driver.take(&table).unwrap();
        }
    }
}

#[test]
fn an_index_ahead_of_the_ring_ends_the_queue() {
    let file = memory();
    let table = table(&file, &[]);
    let layout = layout(&table, 8);
    let mut queue = DeviceQueue::new(&table, layout, false, 5);
    layout.set_available_index(&table, 13);
    assert_eq!(queue.waiting(&table), Ok(8));
    layout.set_available_index(&table, 14);
    assert_eq!(queue.waiting(&table), Err(QueueFault::Index));
    layout.set_available_index(&table, 4);
    assert_eq!(queue.waiting(&table), Err(QueueFault::Index));
}
